"""The configuration of a table: the facts that the base records, in a file that writers can read without Lance."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from lancelsm.common.clock import Budget
from lancelsm.common.formats import TABLE_FORMAT, check_format
from lancelsm.common.json_text import parse_json
from lancelsm.common.layout import CONFIG, RegionValues, TableId, is_id
from lancelsm.errors import Contended, Corrupt, Invalid, Unavailable
from lancelsm.objects import ObjectStore, PreconditionFailed, Written, put_once
from lancelsm.record.schema import TableSchema, unknown_column
from lancelsm.record.schema_history import history_from_json, history_to_json
from lancelsm.routing import spec as region_specs
from lancelsm.routing.route import values_json
from lancelsm.routing.spec import RegionSpec

FORMAT = TABLE_FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole configuration of a table.

    `regions` is None for a table that was adopted from Lance without a region spec; it accepts no rows yet. `owner` is
    the name that all ordinary writers of the table share. `schema` has the columns with their history; its version
    increases with each change. `sequence_by` has the columns that order change events of the table; empty if none do.
    `earlier_regions` has the region specs before the last reshards, oldest first.
    """

    table: TableId
    registry: str
    owner: str
    schema: TableSchema
    regions: RegionSpec | None
    settings: Mapping[str, str] = field(default_factory=dict)
    sequence_by: tuple[str, ...] = ()
    earlier_regions: tuple[RegionSpec, ...] = ()

    @property
    def schema_version(self) -> int:
        return self.schema.version

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "table": self.table,
            "registry": self.registry,
            "owner": self.owner,
            "primary_key": list(self.schema.primary_key),
            "regions": None if self.regions is None else region_specs.to_json(self.regions),
            "schema": {
                "version": self.schema_version,
                "arrow": base64.b64encode(self.schema.columns.serialize()).decode(),
                **({"changes": history_to_json(history)} if (history := self.schema.history).changes else {}),
            },
            "settings": dict(self.settings),
            **({"sequence_by": list(self.sequence_by)} if self.sequence_by else {}),
            **(
                {"earlier_regions": [region_specs.to_json(spec) for spec in self.earlier_regions]}
                if self.earlier_regions
                else {}
            ),
        }

    def regions_of(self, number: int) -> RegionSpec | None:
        """Return the region spec with this number; None if it is not known."""
        known = (*self.earlier_regions, *([] if self.regions is None else [self.regions]))
        return next((spec for spec in known if spec.number == number), None)

    def region_values(self, values: RegionValues, *, number: int) -> dict[str, bool | int | str | None]:
        """Return the values of a region of the spec with this number, for display and JSON; empty if it is unknown."""
        spec = self.regions_of(number)
        return {} if spec is None else values_json(values, spec)

    def resharded(self, spec: RegionSpec) -> Config:
        """Return the configuration with a later region spec; itself if the spec is not later."""
        if self.regions is None or spec.number <= self.regions.number:  # guard: region spec never goes back
            return self
        return replace(self, regions=spec, earlier_regions=(*self.earlier_regions, self.regions))


@lru_cache(maxsize=64)
def regions_text(spec: RegionSpec | None) -> str:
    """Encode the region spec as it is stored in the schema metadata of the base; empty without a spec."""
    return "" if spec is None else json.dumps(region_specs.to_json(spec), sort_keys=True, separators=(",", ":"))


def later_regions(text: str, config: Config) -> RegionSpec | None:
    """Return the region spec that a base stores if it is later than that of the configuration, else None.

    A reshard commits the spec to the base first. A process that has the table open may also have an old configuration.
    """
    if config.regions is None or text == regions_text(config.regions):
        return None
    try:
        spec = region_specs.from_json(parse_json(text))
    except (ValueError, Invalid):
        return None
    return spec if spec.number > config.regions.number else None


def encode(config: Config) -> bytes:
    return json.dumps(config.to_json(), indent=1, sort_keys=True).encode()


def decode(body: bytes, *, uri: str) -> Config:
    """Decode a configuration.

    Raises:
        Invalid: a newer release wrote it, or its sums are SHA3-256.
        Corrupt: it is unreadable.
    """
    try:
        document = parse_json(body)
        check_format(document["format"], newest=FORMAT, what="table", table=uri)
        columns = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(document["schema"]["arrow"])))
        history = history_from_json(document["schema"].get("changes", ()))
        if history.version != document["schema"]["version"]:
            raise ValueError(f"the schema has version {document['schema']['version']!r}, its changes lead to another")
        config = Config(
            table=TableId(_text(document, "table")),
            registry=_text(document, "registry"),
            owner=_text(document, "owner"),
            schema=TableSchema(columns=columns, primary_key=_primary_key(document, columns), history=history),
            regions=None if document["regions"] is None else region_specs.from_json(document["regions"]),
            settings={name: _text(document["settings"], name) for name in document["settings"]},
            sequence_by=tuple(map(str, document.get("sequence_by", ()))),
            earlier_regions=tuple(region_specs.from_json(spec) for spec in document.get("earlier_regions", ())),
        )
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError, pa.ArrowException) as error:
        raise Corrupt(f"the table's configuration is unreadable: {error!r}", table=uri, object=CONFIG) from error
    if not is_id(config.table):
        what = f"the table's configuration has an id that is not a UUID: {config.table!r}"
        raise Corrupt(what, table=uri, object=CONFIG, field="table")
    return config


def _text(document: Mapping[str, object], name: str) -> str:
    value = document[name]
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} is {value!r}")
    return value


def _primary_key(document: Mapping[str, Any], columns: pa.Schema) -> tuple[str, ...]:
    names = tuple(document["primary_key"])
    if not names or not set(names) <= set(columns.names) or len(set(names)) < len(names):
        raise ValueError(f"primary_key is {document['primary_key']!r}")
    return names


def read(objects: ObjectStore, *, uri: str) -> Config | None:
    """Read the configuration of a table; None if there is no lancelsm table at this location."""
    found = objects.get(CONFIG)
    return None if found is None else decode(found.body, uri=uri)


def create(objects: ObjectStore, config: Config, *, uri: str) -> None:
    """Write the configuration of a new table: the last step of its creation.

    Raises:
        Invalid: another table exists at this location.
        Unavailable: the store did not answer; create the table again, which finishes it.
    """
    body = encode(config)
    found = put_once(objects, CONFIG, body, attempts=range(2))
    if found is None:
        raise Unavailable("the table's configuration could not be written", remedy="Run init again", table=uri)
    if decode(found, uri=uri) != config:  # not the bytes: Lance does not keep the order of metadata
        raise table_exists(uri)


def table_exists(uri: str) -> Invalid:
    """Build the error for a location where another table is."""
    remedy = "Open it (create with exist_ok=True and init --exist-ok do), or use another location"
    return Invalid("a table already exists at this location", remedy=remedy, table=uri)


def no_table(uri: str) -> Invalid:
    """Build the error for a location without a configuration."""
    remedy = (
        "Check the location; lancelsm.create or lancelsm init creates a table, "
        "lancelsm region adopt adopts one that Lance wrote"
    )
    return Invalid("there is no table at this location", remedy=remedy, table=uri)


def change_settings(objects: ObjectStore, settings: Mapping[str, str], *, uri: str, budget: Budget) -> Config:
    """Set some settings of a table; the others keep their values.

    Args:
        settings: valid settings, as text.

    Returns:
        The configuration with these settings.

    Raises:
        Invalid: there is no table at this location, or a newer release created it.
        Contended: concurrent changes of the configuration, or the store did not answer; set the settings again.
        Corrupt: the configuration is unreadable.
    """

    def changed(present: Config) -> Config:
        return replace(present, settings={**present.settings, **settings})

    return change(objects, changed, uri=uri, budget=budget)


def remember_sequence(objects: ObjectStore, names: Sequence[str], *, uri: str, budget: Budget) -> Config:
    """Record the columns that order change events of a table.

    Raises: the same errors as `change_settings`, and `Invalid` if other columns order them.
    """

    def changed(present: Config) -> Config:
        if present.sequence_by not in ((), tuple(names)):
            raise Invalid(
                f"change events of the table are ordered by {', '.join(present.sequence_by)}",
                remedy="Give these columns as sequence_by, or leave it out",
                table=uri,
                field="sequence_by",
            )
        if unknown := [name for name in names if name not in present.schema.names]:  # it was dropped or renamed
            raise unknown_column(unknown[0], present.schema.names, table=uri, role="sequence_by: ")
        return replace(present, sequence_by=tuple(names))

    return change(objects, changed, uri=uri, budget=budget)


def change_regions(objects: ObjectStore, spec: RegionSpec, *, uri: str, budget: Budget) -> Config:
    """Give a table a later region spec. Raises: the same errors as `change_settings`."""
    return change(objects, lambda present: present.resharded(spec), uri=uri, budget=budget)


def newest_sequence(objects: ObjectStore, config: Config, *, uri: str) -> tuple[str, ...]:
    """Return the columns that order change events of a table.

    Another process may have named them since `config` was read. Once they are named, they stay.

    Raises:
        Corrupt: the configuration is unreadable.
        Unavailable: the store did not answer.
    """
    newest = config if config.sequence_by else read(objects, uri=uri)
    return () if newest is None else newest.sequence_by


def change(objects: ObjectStore, changed: Callable[[Config], Config], *, uri: str, budget: Budget) -> Config:
    """Replace the configuration by what `changed` returns for it, perhaps several times. Return the new one.

    Raises: the same errors as `change_settings`.
    """
    for _ in budget.attempts():
        found = objects.get(CONFIG)
        if found is None:
            raise no_table(uri)
        present = decode(found.body, uri=uri)
        wanted = changed(present)
        if wanted == present or isinstance(objects.replace(CONFIG, encode(wanted), expect=found.etag), Written):
            return wanted
    raise Contended("other processes kept changing the table's configuration", remedy="Set them again", table=uri)


def rewrite(objects: ObjectStore, config: Config, *, uri: str) -> None:
    """Replace the configuration of a table.

    Raises:
        Contended: another process replaced it meanwhile. Nothing was written.
        Unavailable: the store did not answer; call this again.
        Corrupt: the table has no configuration.
    """
    body = encode(config)
    found = objects.get(CONFIG)
    if found is None:
        raise Corrupt("the table's configuration is gone", table=uri, object=CONFIG)
    if found.body == body:
        return
    outcome = objects.replace(CONFIG, body, expect=found.etag)
    if isinstance(outcome, PreconditionFailed):
        raise Contended("the table's configuration was changed meanwhile", remedy="Run it again", table=uri)
    if not isinstance(outcome, Written):
        raise Unavailable("the table's configuration could not be written", remedy="Run it again", table=uri)
