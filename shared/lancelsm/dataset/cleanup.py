"""What of a base may go: its versions with their age, the files that each of them names, and Lance's own clean-up."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from lance.fragment import FragmentMetadata

from lancelsm.dataset.base_table import MEM_WAL_INDEX, BaseTable, StorageOptions, VersionGone, open_dataset
from lancelsm.dataset.native import native_errors, read_errors
from lancelsm.errors import Contended, Corrupt

_TRIES = 5
_LANCES_OWN = "__lance_"  # indexes that have no rows to catch up with


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVersion:
    """A version of the base that is still there; `committed` is in Unix seconds."""

    version: int
    committed: float


def stored_versions(*, uri: str, storage_options: StorageOptions = None) -> tuple[StoredVersion, ...]:
    """Every version of the base that is there, oldest first.

    Raises:
        Contended: others kept removing versions while they were listed.
        Corrupt, Unavailable: as `base_table.open_base`.
    """
    said = ""
    for _ in range(_TRIES):
        try:
            dataset = open_dataset(uri=uri, version=None, storage_options=storage_options)
            with read_errors("the base's versions can't be read", table=uri):
                found: list[dict[str, Any]] = dataset.versions()  # type: ignore[assignment]
            break
        except Corrupt as error:
            # Lance lists them and then reads each: another collector may remove one between the two. That one is not
            # listed again; what is damaged is.
            if error.message == said:
                raise
            said = error.message
    else:
        raise Contended(
            "others kept removing versions of the base while they were listed", remedy="Run it again", table=uri
        )
    return tuple(
        StoredVersion(version=one["version"], committed=one["timestamp"].astimezone(UTC).timestamp())
        for one in sorted(found, key=lambda one: int(one["version"]))
    )


def named_files(*, uri: str, version: int, storage_options: StorageOptions = None) -> frozenset[str]:
    """Data and deletion files that a version names, as keys below the table.

    Raises:
        Contended: the version is gone, since it was listed. What it named a newer one may name that was not listed.
        Corrupt, Unavailable: as `base_table.open_base`.
    """
    try:
        dataset = open_dataset(uri=uri, version=version, storage_options=storage_options)
    except VersionGone as error:
        what = f"version {version} of the base was removed meanwhile"
        raise Contended(what, remedy="Run it again", table=uri) from error
    with read_errors("the base's fragments can't be read", table=uri):
        fragments = [fragment.metadata for fragment in dataset.get_fragments()]
        return frozenset(name for fragment in fragments for name in _files(fragment))


def searched_indexes(base: BaseTable) -> frozenset[str]:
    """The names of the indexes over rows of this version."""
    with read_errors("the base's indexes can't be read", table=base.uri):
        names = {index.name for index in base.dataset.describe_indices()}
    return frozenset(name for name in names - {MEM_WAL_INDEX} if not name.startswith(_LANCES_OWN))


def clean_versions(*, uri: str, versions: Collection[int], storage_options: StorageOptions = None) -> int:
    """Remove versions of the base and what only they name; returns how many were there.

    Lance never removes the newest one, a tagged one, or a file that a version which stays names. It also removes files
    that no version names, if they are older than 7 days.

    Raises:
        Unavailable: the store did not answer; some may be gone.
    """
    if not versions:
        return 0
    dataset = open_dataset(uri=uri, version=None, storage_options=storage_options)
    with native_errors("versions of the base can't be removed", table=uri):
        stats = dataset.cleanup_old_versions(versions=sorted(versions), error_if_tagged_old_versions=False)
    return int(stats.old_versions)


def _files(fragment: FragmentMetadata) -> Iterator[str]:
    # Whatever has a path: a file of a kind that is new to us is named too.
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
