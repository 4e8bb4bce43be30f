"""From a table's URI to its object store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lancelsm.errors import Invalid
from lancelsm.objects import ObjectStore


def local_path(uri: str | Path) -> Path | None:
    """The directory that a path or a `file://` URL names; None for any other URL."""
    if isinstance(uri, Path) or "://" not in uri:
        return Path(uri)
    parts = urlsplit(uri)
    if parts.scheme != "file":
        return None
    if parts.netloc not in ("", "localhost"):
        raise Invalid("a file URL names no host", remedy="Write file:///path", url=uri)
    return Path(unquote(parts.path))


def open_store(uri: str | Path, storage_options: Mapping[str, str] | None = None) -> ObjectStore:
    """The objects of the table at a path, a `file://` URL or a URL of an object store. Touches nothing yet.

    Raises:
        Invalid: the URI or an option is not understood.
    """
    path = local_path(uri)
    if path is not None:
        from lancelsm.objects.filesystem import LocalStore  # noqa: PLC0415 - each process needs one of the two

        return LocalStore(path)
    from lancelsm.objects.cloud import CloudStore  # noqa: PLC0415

    return CloudStore(str(uri), storage_options)
