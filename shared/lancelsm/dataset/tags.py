"""Read and write Lance's tags on versions of a base. No clean-up of Lance removes a tagged version."""

from __future__ import annotations

from lancelsm.dataset.base_table import StorageOptions, open_dataset
from lancelsm.dataset.native import native_errors, read_errors, retry_removed
from lancelsm.errors import Corrupt, Invalid


def tag_version(*, uri: str, version: int, tag: str, storage_options: StorageOptions = None) -> None:
    """Tag a version of the base. Idempotent.

    Args:
        tag: letters, digits, `.`, `-`, `_`.

    Raises:
        VersionGone: the version was cleaned up.
        Invalid: the tag is on another version.
        Unavailable: the store did not answer.
    """
    dataset = open_dataset(uri=uri, version=version, storage_options=storage_options)
    try:
        with native_errors("the base can't be tagged", table=uri):
            dataset.tags.create(tag, version)
    except (Corrupt, Invalid) as error:
        open_dataset(uri=uri, version=version, storage_options=storage_options)  # raises if it was removed meanwhile
        found = tags(uri=uri, storage_options=storage_options).get(tag)
        if found is None:
            raise
        if found != version:
            what = f"the tag {tag!r} is on version {found} of the base"
            raise Invalid(what, table=uri, version=version) from error


def tags(*, uri: str, storage_options: StorageOptions = None) -> dict[str, int]:
    """Return all tags with their versions.

    Raises:
        Contended: other processes kept removing tags.
        Corrupt: a tag is damaged.
        Unavailable: the store did not answer.
    """
    dataset = open_dataset(uri=uri, version=None, storage_options=storage_options)

    def listed() -> dict[str, int]:
        with read_errors("the base's tags can't be read", table=uri):
            return {name: int(found["version"]) for name, found in dataset.tags.list().items()}

    return retry_removed(listed, what="tags of the base", table=uri)


def remove_tag(*, uri: str, tag: str, storage_options: StorageOptions = None) -> None:
    """Remove a tag. Idempotent."""
    dataset = open_dataset(uri=uri, version=None, storage_options=storage_options)
    try:
        with native_errors("the base's tag can't be removed", table=uri):
            dataset.tags.delete(tag)
    except Corrupt:  # Lance fails if the tag does not exist
        if tag in tags(uri=uri, storage_options=storage_options):
            raise
