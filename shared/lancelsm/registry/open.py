"""Open the registry of a table by its kind."""

from __future__ import annotations

from pathlib import Path

from lancelsm.common.clock import Clock, Ids
from lancelsm.common.layout import SQLITE
from lancelsm.errors import Invalid
from lancelsm.objects import ObjectStore
from lancelsm.objects.links import check_no_link
from lancelsm.objects.location import local_path
from lancelsm.registry import Registry

_PARALLEL = 16


def default_registry(uri: str | Path) -> str:
    """Return the default kind of registry: `sqlite` for a path, `object` for a URL."""
    return "object" if local_path(uri) is None else "sqlite"


def open_registry(kind: str, *, uri: str | Path, store: ObjectStore, clock: Clock, ids: Ids) -> Registry:
    """Open the registry of a table. Sends no request yet.

    Args:
        kind: `sqlite` (only for tables at a path), `object`, or `dynamodb:NAME` with the name of the DynamoDB table.
            Its AWS region, account and endpoint come from `lancelsm.common.aws`.
        uri: the URI of the table.
        store: the object store of the table.

    Raises:
        Corrupt: the file of a sqlite registry is a symbolic link.
        Invalid: the kind is unknown or does not fit the URI. For DynamoDB also the errors of `common.aws.client`.
    """
    path = local_path(uri)
    if kind == "object":
        from lancelsm.registry.object import ObjectRegistry  # noqa: PLC0415 - each process needs one of them

        return ObjectRegistry(store, clock=clock, ids=ids, parallel=_PARALLEL if path is None else 1)
    if kind == "sqlite":
        if path is None:
            raise Invalid("a sqlite registry needs a table at a path", remedy='Use the registry "object"', url=uri)
        from lancelsm.registry.sqlite import SqliteRegistry  # noqa: PLC0415

        check_no_link(path, SQLITE)
        return SqliteRegistry(path / SQLITE)
    service, _, name = kind.partition(":")
    if service == "dynamodb":
        if not name:
            raise Invalid("the registry has no table name", remedy="Name its DynamoDB table: dynamodb:NAME", url=uri)
        from lancelsm.common import aws  # noqa: PLC0415
        from lancelsm.registry.dynamodb import DynamoRegistry  # noqa: PLC0415

        return DynamoRegistry(name, client=aws.client("dynamodb"), clock=clock, ids=ids)
    raise Invalid(f"unknown kind of registry: {kind!r}", remedy="Use sqlite, object or dynamodb:NAME", url=uri)
