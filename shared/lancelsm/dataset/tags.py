"""Lance's tags on versions of a base: its own clean-up leaves a tagged version alone, whoever runs it."""

from __future__ import annotations

from lancelsm.dataset.base_table import StorageOptions, open_dataset
from lancelsm.dataset.native import native_errors, read_errors
from lancelsm.errors import Corrupt, Invalid

_TRIES = 10


def tag_version(*, uri: str, version: int, tag: str, storage_options: StorageOptions = None) -> None:
    """Give a version of the base a tag; nothing happens if it has it.

    Args:
        tag: letters, digits, `.`, `-`, `_`.

    Raises:
        VersionGone: the version was cleaned up.
        Invalid: the tag is on another one.
        Unavailable: the store did not answer.
    """
    dataset = open_dataset(uri=uri, version=version, storage_options=storage_options)
    try:
        with native_errors("the base can't be tagged", table=uri):
            dataset.tags.create(tag, version)
    except (Corrupt, Invalid) as error:
        open_dataset(uri=uri, version=version, storage_options=storage_options)  # it may be gone since
        found = tags(uri=uri, storage_options=storage_options).get(tag)
        if found is None:
            raise
        if found != version:
            what = f"the tag {tag!r} is on version {found} of the base"
            raise Invalid(what, table=uri, version=version) from error


def tags(*, uri: str, storage_options: StorageOptions = None) -> dict[str, int]:
    """Every tag and its version."""
    dataset = open_dataset(uri=uri, version=None, storage_options=storage_options)
    left = _TRIES
    while True:
        try:
            with read_errors("the base's tags can't be read", table=uri):
                return {name: int(found["version"]) for name, found in dataset.tags.list().items()}
        except Corrupt:  # Lance lists them, then reads each: one may be taken away in between
            left -= 1
            if not left:
                raise


def remove_tag(*, uri: str, tag: str, storage_options: StorageOptions = None) -> None:
    """Take a tag away; nothing happens if it is not there."""
    dataset = open_dataset(uri=uri, version=None, storage_options=storage_options)
    try:
        with native_errors("the base's tag can't be removed", table=uri):
            dataset.tags.delete(tag)
    except Corrupt:  # as Lance tells of one that is not there
        if tag in tags(uri=uri, storage_options=storage_options):
            raise
