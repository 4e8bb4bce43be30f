"""List the versions of a base and the files that each names, and remove versions by Lance's own clean-up."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from lance.fragment import FragmentMetadata

from lancelsm.common.layout import LANCE_DIRECTORIES
from lancelsm.dataset.base_manifest import MEM_WAL_INDEX
from lancelsm.dataset.base_table import DELETES, BaseTable, StorageOptions, VersionGone, open_dataset
from lancelsm.dataset.native import native_errors, read_errors, retry_removed
from lancelsm.dataset.statement import FILES
from lancelsm.errors import Contended
from lancelsm.objects.links import first_link
from lancelsm.objects.location import local_path

VERSIONS = "_versions"

_MANIFEST = re.compile(r"([0-9]+)\.manifest")
_INVERTED = 2**64 - 1  # minus the version is the number in a name of 20 digits
_INVERTED_DIGITS = 20
_LANCE_PREFIX = "__lance_"  # prefix of indexes that don't cover rows


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVersion:
    """A version of the base that still exists; `committed` is in Unix seconds."""

    version: int
    committed: float


def link_in_base(uri: str) -> str | None:
    """Return a symbolic link in the directories of a base. While there is one, no version can be removed.

    Lance's clean-up follows links: it would also delete files outside of the table.
    """
    return first_link(uri, LANCE_DIRECTORIES)


def stored_versions(*, uri: str, storage_options: StorageOptions = None) -> tuple[StoredVersion, ...]:
    """List all existing versions of the base, oldest first.

    Raises:
        Contended: other processes kept removing versions while they were listed.
        Corrupt, Unavailable: see `base_table.open_base`.
    """
    if first_link(uri, (VERSIONS,)) is not None:  # Lance would follow it
        return _versions_by_name(uri)

    def listed() -> list[dict[str, Any]]:
        dataset = open_dataset(uri=uri, version=None, storage_options=storage_options)
        with read_errors("the base's versions can't be read", table=uri):
            return dataset.versions()  # type: ignore[return-value]

    found = retry_removed(listed, what="versions of the base", table=uri)
    return tuple(
        StoredVersion(version=one["version"], committed=one["timestamp"].astimezone(UTC).timestamp())
        for one in sorted(found, key=lambda one: int(one["version"]))
    )


def named_files(*, uri: str, version: int, storage_options: StorageOptions = None) -> frozenset[str]:
    """Return the data and deletion files that a version names, its statement, and its file of deleted keys.

    They are keys relative to the table.

    Raises:
        Contended: the version was removed after it was listed. A newer version that was not listed may name its files.
        Corrupt, Unavailable: see `base_table.open_base`.
    """
    try:
        dataset = open_dataset(uri=uri, version=version, storage_options=storage_options)
    except VersionGone as error:
        what = f"version {version} of the base was removed meanwhile"
        raise Contended(what, table=uri) from error
    with read_errors("the base's fragments can't be read", table=uri):
        fragments = [fragment.metadata for fragment in dataset.get_fragments()]
        metadata = dataset.schema.metadata or {}
        own = [metadata.get(name.encode(), b"").decode() for name in (FILES, DELETES)]
        return frozenset([*own, *(name for fragment in fragments for name in _files(fragment))]) - {""}


def searched_indexes(base: BaseTable) -> frozenset[str]:
    """Return the names of the indexes over rows of this version."""
    with read_errors("the base's indexes can't be read", table=base.uri):
        names = {index.name for index in base.dataset.describe_indices()}
    return frozenset(name for name in names - {MEM_WAL_INDEX} if not name.startswith(_LANCE_PREFIX))


def clean_versions(*, uri: str, versions: Collection[int], storage_options: StorageOptions = None) -> int:
    """Remove versions of the base, and the files that only they name. Return how many versions were removed.

    Removes nothing while `link_in_base` finds a link. Lance never removes the newest version, a tagged version, or a
    file that a remaining version names. It also removes files that no version names if they are older than 7 days.

    Raises:
        Contended: other processes kept removing tags or versions; some versions may be removed.
        Corrupt: a tag or a version is damaged.
        Unavailable: the store did not answer; some versions may be removed.
    """
    if not versions:
        return 0
    if link_in_base(uri) is not None:  # guard: Lance follows no link out of the base
        return 0

    def clean() -> int:
        dataset = open_dataset(uri=uri, version=None, storage_options=storage_options)
        with native_errors("versions of the base can't be removed", table=uri):
            stats = dataset.cleanup_old_versions(versions=sorted(versions), error_if_tagged_old_versions=False)
        return int(stats.old_versions)

    # Lance lists tags and versions and then reads each. Another collector may remove one in between.
    return retry_removed(clean, what="tags or versions of the base", table=uri)


def _versions_by_name(uri: str) -> tuple[StoredVersion, ...]:
    """Like `stored_versions`, for a local base. `committed` is the time of the last change of the file."""
    found = []
    with os.scandir(f"{local_path(uri)}/{VERSIONS}") as entries:
        for entry in entries:
            number = _MANIFEST.fullmatch(entry.name)
            if number is not None and entry.is_file(follow_symlinks=False):
                version = _INVERTED - int(number[1]) if len(number[1]) == _INVERTED_DIGITS else int(number[1])
                found.append(StoredVersion(version=version, committed=entry.stat().st_mtime))
    return tuple(sorted(found, key=lambda one: one.version))


def _files(fragment: FragmentMetadata) -> Iterator[str]:
    # Every `path` in the JSON counts, so that files of a kind that is unknown here are included.
    for path in _paths(fragment.to_json()):
        yield f"data/{path}"
    if fragment.deletion_file is not None:
        yield str(fragment.deletion_file.path(fragment.id))


def _paths(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "path" and isinstance(inner, str):
                yield inner
            else:
                yield from _paths(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _paths(inner)
