"""Find credentials for S3 with the session of botocore, which also renews them, if no keys are given explicitly.

obstore itself only uses keys from options and environment, and metadata services without a token. It does not support
profiles, SSO, credential processes, or a container token from the environment. So it would find no credentials in a
restored snapshot of a function or on a developer's laptop. The client of Lance needs no help: it uses the same chain as
botocore (environment, profile, SSO, process, web identity, container, instance), also for the region.
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

# botocore renews credentials that expire within ten minutes before it returns them.
_LIFETIME = timedelta(minutes=10)
_EXPLICIT = ("access_key_id", "skip_signature")


class SessionCredentials:
    """The credential provider that obstore calls: from several threads, and again before the last keys expire.

    Args:
        credentials: the credentials of botocore, which renew themselves under a lock.
        region: the region of the store, if its options do not name one.
        clock: gives the time of each call, from which the expiry follows.
    """

    def __init__(self, credentials: Any, *, region: str | None, clock: Clock) -> None:
        self.config = {"region": region} if region else {}  # obstore reads this attribute
        self._credentials = credentials
        self._clock = clock

    def __call__(self) -> dict[str, Any]:
        """Return the keys and a time until which they are valid; raise the error of botocore if it can't renew them."""
        frozen = self._credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.fromtimestamp(self._clock.now(), UTC) + _LIFETIME,
        }


def find_credentials(url: str, options: Mapping[str, str], *, clock: Clock) -> SessionCredentials | None:
    """Return the credentials of the boto3 session of this process for a store.

    Args:
        options: the options of the store, with names in lower case.

    Returns:
        None if obstore needs no provider: options or environment contain keys or turn off signing, boto3 is not
        installed, or the URL is not of S3.

    Raises:
        Invalid: there are no credentials.
    """
    if not url.startswith(("s3://", "s3a://")) or _is_explicit(options) or find_spec("boto3") is None:
        return None
    session = aws.session()
    credentials = session.get_credentials()
    if credentials is None:
        raise Invalid(
            "no AWS credentials were found",
            remedy="Log in, name a profile in AWS_PROFILE, give keys as options, or set aws_skip_signature for public "
            "data",
            url=url,
        )
    return SessionCredentials(credentials, region=session.region_name, clock=clock)


def _is_explicit(options: Mapping[str, str]) -> bool:
    """Return whether options or environment say how to sign requests."""
    given = {name.removeprefix("aws_") for name in options}
    return any(name in given or os.environ.get(f"AWS_{name.upper()}") for name in _EXPLICIT)  # noqa: TID251
