"""Check and compare locations of tables as callers give them: paths and URLs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lancelsm.errors import Invalid

# Lance can't name files with control characters. Lone surrogates stand for bytes that are not UTF-8.
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ONE_SLASH = re.compile(r"(s3|s3a|gs|az|abfss|file):/(?!/)")  # without it, a slip creates a directory named `s3:`


def check_location(uri: object) -> str | Path:
    """Return the location if it can be one.

    Raises:
        Invalid: it is not text or a path, is empty, or has characters that no table's files can have.
    """
    if not isinstance(uri, str | Path):
        raise Invalid(
            f"a location is a path or a URL, not {type(uri).__name__}",
            remedy="Give text or a pathlib.Path",
            field="uri",
        )
    text = str(uri)
    if not text:
        raise Invalid("the location is empty", remedy="Give a path, or . for the current directory", field="uri")
    if found := _FORBIDDEN.search(text):
        raise Invalid(
            f"the location {text!r} has the character {found[0]!r}",
            remedy="Use a location without control characters, in UTF-8",
            field="uri",
        )
    if isinstance(uri, str) and (found := _ONE_SLASH.match(uri)):
        raise Invalid(
            f"the location {uri!r} is neither a path nor a URL",
            remedy=f"Write {found[1]}://{'/' * (found[1] == 'file')}{uri[found.end() :]}, or ./{uri} for a path",
            field="uri",
        )
    if isinstance(uri, str) and "://" in uri:
        try:
            parts = urlsplit(uri)
        except ValueError as error:
            raise Invalid(
                f"{uri!r} is not a URL: {error}", remedy="Write s3://bucket/path, or give a path", field="uri"
            ) from error
        if not parts.scheme or not (parts.netloc or parts.path):
            raise Invalid(f"{uri!r} is not a URL of a table", remedy="Give a path, or s3://bucket/path", field="uri")
        if "?" in uri or "#" in uri:  # a key that is appended to such a URL would not be a part of its path
            raise Invalid(
                f"the URL {uri!r} has a query or a fragment", remedy="Write ? as %3F and # as %23", field="uri"
            )
        if parts.scheme != "file" and not {".", ".."}.isdisjoint(parts.path.split("/")):
            raise Invalid(
                f"the URL {uri!r} has a segment that is `.` or `..`", remedy="Write it without them", field="uri"
            )
    return uri


def absolute(path: Path) -> Path:
    """Return the absolute path. `..` goes to the parent of what a symbolic link points to, as for other programs."""
    return Path(os.path.realpath(path)) if ".." in path.parts else path.absolute()


def local_path(uri: str | Path) -> Path | None:
    """Return the directory of a path or a `file://` URL; None for any other URL."""
    uri = check_location(uri)
    if isinstance(uri, Path) or "://" not in uri:
        return Path(uri)
    parts = urlsplit(uri)
    if parts.scheme != "file":
        return None
    if parts.netloc not in ("", "localhost"):
        raise Invalid("a file URL can't name a host", remedy="Write file:///path", url=uri)
    return Path(check_location(unquote(parts.path)))


def is_absolute(uri: str) -> bool:
    """Return whether a stored location does not depend on the directory of the process."""
    return "://" in uri or Path(uri).is_absolute()


def is_same_location(one: str, other: str) -> bool:
    """Return whether two locations are the same one. Paths may differ by symbolic links."""
    paths = local_path(one), local_path(other)
    if paths[0] is None or paths[1] is None:
        return one == other
    return paths[0].resolve() == paths[1].resolve()
