"""Find files at the location of a new table that a drop or a collection would later take for the table's own."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lancelsm.common.layout import OWN_DIRECTORIES
from lancelsm.errors import Corrupt, Invalid
from lancelsm.objects import ObjectStore

# Lance writes these before the first version of a dataset. A crash leaves them, and the next call uses none of them.
_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_LEFT_BY_LANCE = re.compile(
    r"data/[01]{24}[0-9a-f]{26}\.lance"
    rf"|_transactions/0-{_UUID}\.txn"
    r"|(data|_transactions)/\.tmp[A-Za-z0-9]{6}"  # being written to a local disk
    r"|_versions/18446744073709551614\.manifest#[0-9]+"  # the same, of version 1
)

# The data of a Lance dataset: files of rows, and files of large values below the name of their file of rows.
_DATA_OF_LANCE = re.compile(r"data/([^/]+\.lance|[01]{24}[0-9a-f]{26}/[0-9a-f]+\.[a-z]+|\.tmp[A-Za-z0-9]{6})")


def first_foreign(store: ObjectStore) -> str | None:
    """Return the first file in the directories of a table that is not there yet; None if there is none.

    What Lance leaves if it crashes before the first version of a base is not foreign. The files of a table that another
    process creates meanwhile are: if there is a foreign file, look for that table again.

    Raises:
        Unavailable: the store did not answer.
    """
    return _first_other(store, OWN_DIRECTORIES, _LEFT_BY_LANCE)


def first_foreign_data(store: ObjectStore) -> str | None:
    """Return the first file below `data/` of a Lance dataset that Lance did not write; None if there is none."""
    return _first_other(store, ("data",), _DATA_OF_LANCE)


def _first_other(store: ObjectStore, directories: Iterable[str], known: re.Pattern[str]) -> str | None:
    try:
        for directory in directories:
            for found in store.list(f"{directory}/"):
                if known.fullmatch(found.key) is None:
                    return found.key
    except Corrupt as error:  # a key that is no path
        return str(error.where["object"])
    return None


def not_free(foreign: str, *, uri: str) -> Invalid:
    """The error for a foreign file."""
    return Invalid(
        f"there is a file where the table would keep its own files, and a drop would delete it: {foreign}",
        remedy="Choose another location, or move the file away",
        table=uri,
        object=foreign,
    )
