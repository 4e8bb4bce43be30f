"""Credentials for objects in S3 where nothing names keys: botocore's session finds them and keeps them fresh.

obstore itself looks at keys in options and environment, and at metadata services without their token. It knows no
profiles, no SSO, no process that hands out keys, and no container token in the environment: with it a snapshot of a
function or a person's laptop would be a stranger. Lance's client needs no help: it walks the same chain as botocore
(environment, profile, SSO, process, web identity, container, instance), and takes the region from there too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import Any

from lancelsm.common import aws
from lancelsm.common.clock import Clock
from lancelsm.errors import Invalid

# botocore renews what ends within ten minutes before it hands it out.
_LIFETIME = timedelta(minutes=10)
_CHOSEN = ("access_key_id", "skip_signature")


class SessionCredentials:
    """What obstore calls when it needs keys: from several threads, and again before what it got last has ended.

    Args:
        credentials: botocore's, which renew themselves under a lock.
        region: of the store, unless its options name one.
        clock: tells when an answer was given.
    """

    def __init__(self, credentials: Any, *, region: str | None, clock: Clock) -> None:
        self.config = {"region": region} if region else {}  # obstore's word for it
        self._credentials = credentials
        self._clock = clock

    def __call__(self) -> dict[str, Any]:
        """Keys, and until when they surely last; raises what botocore raises if it can't renew them."""
        frozen = self._credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.fromtimestamp(self._clock.now(), UTC) + _LIFETIME,
        }


def find_credentials(url: str, options: Mapping[str, str], *, clock: Clock) -> SessionCredentials | None:
    """The credentials of this process's session of boto3 for a store at a URL.

    Args:
        options: of the store, names in lower case.

    Returns:
        None where obstore finds keys by itself: options or the environment name them or say that requests go unsigned,
        boto3 is not installed, or the URL is not of S3.

    Raises:
        Invalid: there are no credentials.
    """
    if not url.startswith(("s3://", "s3a://")) or _is_chosen(options) or find_spec("boto3") is None:
        return None
    session = aws.session()
    credentials = session.get_credentials()
    if credentials is None:
        raise Invalid(
            "no AWS credentials were found",
            remedy="Log in, name a profile in AWS_PROFILE, give keys as options, or set aws_skip_signature if all may "
            "read",
            url=url,
        )
    return SessionCredentials(credentials, region=session.region_name, clock=clock)


def _is_chosen(options: Mapping[str, str]) -> bool:
    """Whether options or the environment say how to sign."""
    given = {name.removeprefix("aws_") for name in options}
    return any(name in given or os.environ.get(f"AWS_{name.upper()}") for name in _CHOSEN)  # noqa: TID251
