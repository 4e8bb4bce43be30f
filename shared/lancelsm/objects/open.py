"""Open the object store of a table by its URI, and list the directories in which tables can be."""

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


def list_directories(uri: str | Path, storage_options: Mapping[str, str] | None = None) -> list[str]:
    """Return the names of the directories right below a path or URL, in no order; none if there is nothing.

    Raises:
        Invalid: the URI or an option is not valid, or access is denied.
        Unavailable: the store did not answer, or the disk failed.
    """
    path = local_path(uri)
    if path is not None:
        from lancelsm.objects.filesystem import subdirectories  # noqa: PLC0415

        return subdirectories(path)
    from lancelsm.objects.cloud import CloudStore  # noqa: PLC0415

    return CloudStore(str(uri), storage_options).directories()
