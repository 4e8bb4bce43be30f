"""Open the object store of a table by its URI."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lancelsm.objects import ObjectStore
from lancelsm.objects.location import local_path


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
