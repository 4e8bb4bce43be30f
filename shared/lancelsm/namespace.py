"""Tables by name: the directory namespace of Lance, in which `orders` is the table at `ROOT/orders.lance`.

LanceDB and `lance_namespace.connect("dir", {"root": ROOT})` find the same tables by the same names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

import pyarrow as pa

from lancelsm.common.argument_checks import checked
from lancelsm.common.layout import CONFIG
from lancelsm.common.other_names import NAMESPACE, other_name
from lancelsm.common.row_types import ArrowLike
from lancelsm.common.task_pool import TaskPool
from lancelsm.errors import Invalid
from lancelsm.objects.location import absolute, check_location, local_path
from lancelsm.objects.open import list_directories, open_store
from lancelsm.region.handle import DEFAULT_OWNER
from lancelsm.table import create, open  # noqa: A004 - as users call them

if TYPE_CHECKING:
    from lancelsm.table import Table

_NAME = re.compile(r"[A-Za-z0-9_.-]+")  # the names that LanceDB accepts
_SUFFIX = ".lance"
_PARALLEL = 16


class Namespace:
    """The tables in `NAME.lance` below a root. It sends no request before it is used, and keeps nothing.

    `namespace["orders"]` opens a table, `"orders" in namespace` looks for it, and iteration yields the names of all
    tables in alphabetical order. Plain Lance datasets below the root are not listed: `lancelsm.open` can't open them.
    """

    def __init__(self, root: str, *, storage_options: Mapping[str, str] | None) -> None:
        self._root = root
        self._storage_options = storage_options

    if not TYPE_CHECKING:  # type checkers report a name that is missing

        def __getattr__(self, name: str) -> object:
            if error := other_name("a namespace", name, NAMESPACE):
                raise error
            return object.__getattribute__(self, name)  # raises the error that Python has for it

    def __repr__(self) -> str:
        return f"<lancelsm.Namespace {self._root!r}>"

    @property
    def root(self) -> str:
        """The directory or URL below which the tables are."""
        return self._root

    def uri(self, name: str) -> str:
        """Return the location of a table. It need not exist.

        Raises:
            Invalid: it is not a name: letters, digits, `_`, `-` and `.`.
        """
        if not _is_name(name):
            raise Invalid(
                f"{name!r} is not the name of a table",
                remedy="Use letters, digits, `_`, `-` and `.`; open other locations by lancelsm.open",
                field="name",
                url=self._root,
            )
        return f"{self._root.rstrip('/')}/{name}{_SUFFIX}"

    def __getitem__(self, name: str) -> Table:
        """Open a table.

        Raises:
            Invalid: it is not a name, there is no table of this name, or a newer release created it.
            Corrupt: the table's configuration is unreadable or contradicts the base.
            Unavailable: a store or the registry did not answer.
        """
        return open(self.uri(name), storage_options=self._storage_options)

    def __contains__(self, name: object) -> bool:
        """Return whether there is a table of this name; False if it is not a name."""
        return _is_name(name) and self._has_table(name)

    def __iter__(self) -> Iterator[str]:
        """List the tables: one listing of the root, and one read for each directory in it that ends in `.lance`.

        Raises:
            Invalid, Unavailable: the store denies access or did not answer.
        """
        directories = list_directories(self._root, self._storage_options)
        names = sorted(name.removesuffix(_SUFFIX) for name in directories if name.endswith(_SUFFIX))
        with TaskPool(_PARALLEL) as pool:
            return compress(names, pool.map(self.__contains__, names))

    def _ipython_key_completions_(self) -> list[str]:
        """Complete `namespace["` in IPython and notebooks."""
        return list(self)

    def create(
        self,
        name: str,
        data_or_schema: ArrowLike | pa.Schema,
        *,
        primary_key: str | Sequence[str],
        regions: str | None = None,
        registry: str | None = None,
        owner: str = DEFAULT_OWNER,
        settings: Mapping[str, object] | None = None,
        indexes: Mapping[str, str | Mapping[str, object]] | None = None,
        ttl: str | None = None,
        sequence_by: str | Sequence[str] | None = None,
        exist_ok: bool = False,
    ) -> Table:
        """Create the table `NAME.lance` below the root and open it.

        Args:
            name: letters, digits, `_`, `-` and `.`.
            data_or_schema: an Arrow schema, or the first rows, which become version 1 of the base.
            primary_key: the key columns, in order.
            regions: the region spec, such as `bucket(id, 4)`; by default the table has one region.
            registry: `sqlite` (default for paths), `object` (default for URLs) or `dynamodb:NAME`.
            owner: the owner name that ordinary writers share.
            settings: values by name, stored in the table's configuration.
            indexes: the indexes to create: by column a kind, or a mapping with `kind` and its options.
            ttl: how long a row lives, such as `7d on created_at`.
            sequence_by: the columns that order change events, as for `lancelsm.create`.
            exist_ok: if a table with the same columns, key and region spec exists there, open it.

        Raises:
            Invalid: it is not a name, a table or another dataset exists there, or an argument is not valid.
            Contended: another process is creating a table there.
            Unavailable: a store or the registry did not answer.

        After an error or a crash, the same call continues where this one stopped.
        """
        return create(
            self.uri(name),
            data_or_schema,
            primary_key=primary_key,
            regions=regions,
            registry=registry,
            owner=owner,
            settings=settings,
            indexes=indexes,
            ttl=ttl,
            sequence_by=sequence_by,
            storage_options=self._storage_options,
            exist_ok=exist_ok,
        )

    def _has_table(self, name: str) -> bool:
        return open_store(self.uri(name), self._storage_options).get(CONFIG) is not None


def _is_name(name: object) -> TypeGuard[str]:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


@checked
def connect(root: str | Path, *, storage_options: Mapping[str, str] | None = None) -> Namespace:
    """Return the tables below a directory or URL, by name: `lancelsm.connect("lake")["orders"]` is `lake/orders.lance`.

    Args:
        root: a path or URL. A directory that does not exist is empty.
        storage_options: options of the object store, as Lance takes them, for every table.

    Raises:
        Invalid: the root is not a path or URL.
    """
    path = local_path(check_location(root))
    return Namespace(str(root) if path is None else str(absolute(path)), storage_options=storage_options)
