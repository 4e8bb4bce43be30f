"""Read and copy earlier versions of objects in an S3 bucket with versioning.

Credentials, region and endpoint are those of boto3. Each request is repeated until the budget is spent: listing is safe
to repeat, and a copy writes the same bytes again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar
from urllib.parse import urlsplit

from lancelsm.common import aws
from lancelsm.common.clock import Budget
from lancelsm.errors import Invalid, Unavailable

T = TypeVar("T")

_PART_BYTES = 256 << 20  # larger objects are copied in parts


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectVersion:
    """One version of an object. Its key is relative to the listed location; `deleted` means a delete marker."""

    key: str
    version: str
    modified: datetime
    deleted: bool = False
    size: int = 0


class VersionedBucket:
    """The objects below `s3://bucket/prefix`, with their earlier versions.

    Args:
        budget: starts the retry budget of one request.

    Raises:
        Invalid: in the constructor: it is no URL of S3. In a call: access is denied.
        Unavailable: in a call: the bucket did not answer within the budget.
    """

    def __init__(self, uri: str, *, budget: Callable[[], Budget]) -> None:
        self._bucket, self._prefix = bucket_and_prefix(uri)
        self._uri = uri
        self._budget = budget
        self._client = aws.client("s3")

    def keeps_versions(self) -> bool:
        """Return whether versioning is on. If it is off or suspended, objects that were deleted are gone."""
        answer = self._call(lambda: self._client.get_bucket_versioning(Bucket=self._bucket))
        return bool(answer.get("Status") == "Enabled")

    def versions(self, start: str = "") -> Iterator[list[ObjectVersion]]:
        """Yield all versions of each object whose key starts so, the newest first, one object after the other."""
        yield from (list(found) for _, found in groupby(self._lines(start), key=attrgetter("key")))

    def read(self, found: ObjectVersion) -> bytes:
        """Return the bytes of a version that is no delete marker."""
        key = self._prefix + found.key

        def request() -> bytes:
            answer = self._client.get_object(Bucket=self._bucket, Key=key, VersionId=found.version)
            return bytes(answer["Body"].read())

        return self._call(request)

    def copy(self, found: ObjectVersion, to: str) -> None:
        """Copy a version to the same relative key below another URL of S3, inside S3. Overwrites what is there."""
        bucket, prefix = bucket_and_prefix(to)
        source = {"Bucket": self._bucket, "Key": self._prefix + found.key, "VersionId": found.version}
        transfer = aws.one_thread_transfer(_PART_BYTES)
        self._call(lambda: self._client.copy(source, bucket, prefix + found.key, Config=transfer))

    def _lines(self, start: str) -> Iterator[ObjectVersion]:
        after: dict[str, str] = {}
        while True:
            page = self._call(
                lambda after=after: self._client.list_object_versions(  # type: ignore[misc]
                    Bucket=self._bucket, Prefix=self._prefix + start, **after
                )
            )
            lines = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
            # The answer has two lists. In each, a key's newest version comes first; a marker and a version of the same
            # second are ordered by `IsLatest` alone.
            lines.sort(key=lambda line: (line["Key"], -line["LastModified"].timestamp(), not line["IsLatest"]))
            yield from (self._version(line) for line in lines)
            if not page.get("IsTruncated"):
                return
            after = {"KeyMarker": page["NextKeyMarker"], "VersionIdMarker": page["NextVersionIdMarker"]}

    def _version(self, line: dict[str, Any]) -> ObjectVersion:
        return ObjectVersion(
            key=line["Key"].removeprefix(self._prefix),
            version=line["VersionId"],
            modified=line["LastModified"],
            deleted="Size" not in line,
            size=line.get("Size", 0),
        )

    def _call(self, request: Callable[[], T]) -> T:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - an extra

        failed: Exception | None = None
        for _ in self._budget().attempts():
            try:
                return request()
            except (BotoCoreError, ClientError) as error:
                failed = error
                refused = aws.translated(error, doing="versions of objects can't be read or copied", url=self._uri)
                if isinstance(refused, Invalid):
                    raise refused from error
        raise Unavailable(f"S3 did not answer: {failed}", remedy="Repeat the call", url=self._uri) from failed


def bucket_and_prefix(uri: str) -> tuple[str, str]:
    """Return the bucket and the prefix of keys, with a slash at its end; raise `Invalid` if it is no URL of S3."""
    parts = urlsplit(uri)
    if parts.scheme not in ("s3", "s3a") or not parts.netloc:
        raise Invalid(f"{uri!r} is not a URL of S3", remedy="Give s3://bucket/path", url=uri)
    path = parts.path.strip("/")
    return parts.netloc, f"{path}/" if path else ""
