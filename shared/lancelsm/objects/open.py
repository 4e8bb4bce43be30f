"""Open the object store of a table by its URI."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lancelsm.errors import Invalid
from lancelsm.objects import ObjectStore
from lancelsm.objects.location import check_location


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


def open_store(uri: str | Path, storage_options: Mapping[str, str] | None = None) -> ObjectStore:
    """Open the objects of the table at a path, a `file://` URL or a URL of an object store. Sends no request yet.

    Raises:
        Invalid: the URI or an option is not valid.
    """
    path = local_path(uri)
    if path is not None:
        from lancelsm.objects.filesystem import LocalStore  # noqa: PLC0415 - each process needs one of the two

        return LocalStore(path)
    from lancelsm.objects.cloud import CloudStore  # noqa: PLC0415

    return CloudStore(str(uri), storage_options)
