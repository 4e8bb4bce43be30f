"""Store objects in S3 and in the other object stores that obstore supports.

The client of obstore never retries a request, since the retry of a conditional put would be refused because of its
first attempt. Reads and deletions are retried here. obstore reports 409 (a concurrent request) like 412 (the object
exists): neither changed anything. obstore has its own threads, so a process that forks must open its stores after the
fork.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import from_url

from lancelsm.common.clock import Budget, Clock, Ids, SystemClock, SystemIds
from lancelsm.errors import Corrupt, Invalid, LsmError, Unavailable
from lancelsm.objects import Body, ETag, Listed, Object, PreconditionFailed, WriteUnknown, Written
from lancelsm.objects.credentials import find_credentials
from lancelsm.objects.keys import check_key

T = TypeVar("T")
Page = list[Listed]
Keys = list[str]

_READ_SECONDS = 30.0
_PAGE = 1000
_PROVIDER = "External AWS credential provider: "  # how obstore reports that our credential provider failed
_CODE = re.compile(r"<Code>(\w+)</Code>")
_NO_PATH = re.compile(r'Encountered object with invalid path: .*?[Pp]ath "(.*)"(?:: Enc| con)', re.DOTALL)

_FLAGS = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "http1_only",
        "http2_keep_alive_while_idle",
        "http2_only",
        "randomize_addresses",
    }
)
_CLIENT = _FLAGS | {
    "connect_timeout",
    "default_content_type",
    "http2_keep_alive_interval",
    "http2_keep_alive_timeout",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "read_timeout",
    "root_certificate",
    "timeout",
    "user_agent",
}
# Options that only the client of Lance reads.
_LANCE_ONLY = frozenset({"client_max_retries", "client_retry_timeout", "download_retry_count"})


class CloudStore:
    """Objects below a URL that obstore supports: `s3://bucket/path`, `gs://`, `az://`.

    Args:
        url: the URL of the table.
        storage_options: names and values as in Lance (`aws_region`, `aws_endpoint`, `allow_http`, ...). Missing options
            come from the environment, then keys and region for S3 from `objects.credentials`.
        clock, ids: pace the retries of reads, for at most 30 s.

    Raises:
        Invalid: in the constructor: the URL or an option is not valid, or there are no credentials. In a call: the
            store denies access.
    """

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self._url = url
        self._clock = clock or SystemClock()
        self._ids = ids or SystemIds()
        config, client = _split(storage_options or {})
        credentials = find_credentials(url, config, clock=self._clock)
        try:
            opened: Any = from_url
            self._store: Any = opened(
                url,
                config=config,
                client_options=client or None,  # if not None, obstore ignores those of the environment
                retry_config={"max_retries": 0},
                credential_provider=credentials,
            )
        except (BaseError, ValueError, TypeError) as error:
            raise Invalid(
                f"the store can't be opened: {_first_line(error)}", remedy="Check the URL and the options", url=url
            ) from error

    def get(self, key: str) -> Object | None:
        def attempt() -> Object | None:
            try:
                answer = self._store.get(check_key(key))
                return Object(body=bytes(answer.bytes()), etag=ETag(answer.meta["e_tag"]))
            except FileNotFoundError as error:
                if _code(error) == "NoSuchBucket":
                    raise
                return None

        return self._retried(attempt, key)

    def create(self, key: str, body: Body) -> Written | PreconditionFailed | WriteUnknown:
        return self._put(key, body, "create")

    def replace(self, key: str, body: Body, *, expect: ETag) -> Written | PreconditionFailed | WriteUnknown:
        return self._put(key, body, {"e_tag": expect})

    def list(self, prefix: str) -> Iterator[Listed]:
        # obstore only lists whole path segments, so list the parent and filter.
        parent = prefix.rpartition("/")[0]
        if parent:
            check_key(parent)
        return self._listed(parent, prefix)

    def directories(self) -> Keys:
        """Return the names of the directories right below the URL: the first segments of keys that have several."""
        found = self._retried(self._store.list_with_delimiter, "")["common_prefixes"]
        return [prefix.rstrip("/").rpartition("/")[2] for prefix in found]

    def delete(self, keys: Collection[str]) -> None:
        valid = [check_key(key) for key in keys]
        for start in range(0, len(valid), _PAGE):
            self._retried(partial(self._delete, valid[start : start + _PAGE]), valid[start])

    def _delete(self, keys: Keys) -> None:
        with suppress(FileNotFoundError):  # S3 does not report missing objects, other stores do
            self._store.delete(keys)

    def _listed(self, parent: str, prefix: str) -> Iterator[Listed]:
        last: str | None = None
        while True:
            listing = self._retried(partial(self._page, parent, last), prefix)
            yield from (line for line in listing if line.key.startswith(prefix))
            if len(listing) < _PAGE:  # obstore fills a chunk from several pages of the store
                return
            last = listing[-1].key

    def _page(self, parent: str, last: str | None) -> Page:
        for chunk in self._store.list(parent or None, offset=last, chunk_size=_PAGE):
            return [
                Listed(key=meta["path"], size=meta["size"], etag=ETag(meta["e_tag"]) if meta.get("e_tag") else None)
                for meta in chunk
            ]
        return []

    def _put(self, key: str, body: Body, mode: str | dict[str, str]) -> Written | PreconditionFailed | WriteUnknown:
        try:
            answer = self._store.put(check_key(key), body, mode=mode, use_multipart=False)
        except (BaseError, OSError) as error:
            refused = self._access_error(error, key)
            if refused is not None:
                raise refused from error
            if isinstance(error, AlreadyExistsError | PreconditionError):
                return PreconditionFailed()
            return WriteUnknown(cause=_first_line(error))
        return Written(etag=ETag(answer["e_tag"]))

    def _retried(self, attempt: Callable[[], T], key: str) -> T:
        failed: Exception | None = None
        for _ in Budget(clock=self._clock, ids=self._ids, seconds=_READ_SECONDS).attempts():
            try:
                return attempt()
            except (BaseError, OSError) as error:
                refused = self._access_error(error, key)
                if refused is not None:
                    raise refused from error
                failed = error
        assert failed is not None
        raise Unavailable(
            f"the store did not answer for {_READ_SECONDS:g} s: {_first_line(failed)}",
            remedy="Retry; check the network and the endpoint",
            url=self._url,
            object=key,
        ) from failed

    def _access_error(self, error: Exception, key: str) -> LsmError | None:
        """Return the error if the store refuses all access: nothing was written, and a retry would not help."""
        text = _first_line(error)
        if (found := _NO_PATH.search(text)) is not None:
            return Corrupt(
                "an object was found whose key is no path: it has a segment that is empty, `.` or `..`, or a control "
                "character",
                remedy="lancelsm wrote no such object. Move it out of the table",
                url=self._url,
                object=found[1],
            )
        if _code(error) in ("NoSuchBucket", "InvalidBucketName"):
            message, remedy = "the bucket does not exist", "Create it, or check the URL"
        elif isinstance(error, PermissionDeniedError) or " 403 Forbidden" in text:  # a GenericError for listings
            message = f"the store denied access ({_code(error) or 403})"
            remedy = (
                "Grant s3:GetObject and s3:PutObject on the table's prefix, and s3:ListBucket on the bucket for that "
                "prefix: without s3:ListBucket, S3 answers 403 instead of 404 for a missing object"
            )
        elif _PROVIDER in text:
            return Unavailable(
                f"AWS credentials could not be renewed: {text.partition(_PROVIDER)[2]}",
                remedy="Retry; if it fails again, log in again (`aws sso login`), or check the role",
                url=self._url,
                object=key,
            )
        elif isinstance(error, UnauthenticatedError):
            message = "the store does not accept these credentials"
            remedy = "Check access key, secret and session token"
        elif "redirect without LOCATION" in text:
            message, remedy = "the bucket is in another region", "Set the option aws_region"
        elif "builder error" in text:
            message, remedy = "the endpoint is plain HTTP", 'Set the option allow_http to "true", or use HTTPS'
        else:
            return None
        return Invalid(message, remedy=remedy, url=self._url, object=key)


def _split(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Any]]:
    """Split options into those of the store and those of its HTTP client. Lance takes both in one map."""
    config: dict[str, str] = {}
    client: dict[str, Any] = {}
    for name, value in options.items():
        plain = name.lower()
        bare = plain.removeprefix("aws_")
        if bare in _FLAGS:
            client[bare] = value.lower() in ("true", "1", "yes", "on")
        elif bare in _CLIENT:
            client[bare] = value
        elif plain not in _LANCE_ONLY:
            config[plain] = value
    return config, client


def _first_line(error: Exception) -> str:
    return str(error).partition("\n\nDebug source:")[0]


def _code(error: Exception) -> str | None:
    found = _CODE.search(str(error))
    return found[1] if found else None
