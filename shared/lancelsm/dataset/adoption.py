"""Read a base that Lance's own writer wrote to, and commit the facts that make it a table of lancelsm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lancelsm.common.layout import Generation, RegionId
from lancelsm.dataset.base_rows import Base, Preempted, commit
from lancelsm.dataset.base_table import MERGED, BaseFacts, BaseTable, StorageOptions, open_base, open_dataset
from lancelsm.dataset.merged_generations import read_markers
from lancelsm.dataset.native import native_errors
from lancelsm.dataset.statement import Stating
from lancelsm.errors import Contended, Invalid
from lancelsm.objects import ObjectStore

_CLEANUP = "lance.auto_cleanup."


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoptable:
    """A base with a MemWAL index: its newest version, the region spec of the index if there is one, and the markers."""

    base: BaseTable
    spec: Mapping[str, Any] | None
    markers: Mapping[RegionId, Generation]


def read_adoptable(*, uri: str, objects: ObjectStore, storage_options: StorageOptions = None) -> Adoptable:
    """Read a base that Lance's writer wrote to.

    Raises:
        Invalid: there is no dataset, or it has no MemWAL index or no primary key.
        Corrupt: the dataset can't be read.
        Unavailable: the store did not answer.
    """
    base = open_base(uri=uri, storage_options=storage_options)
    details = base.mem_wal_index()
    if details is None:
        remedy = "Copy its rows: lancelsm.create(OTHER_URI, lance.dataset(URI).scanner().to_reader(), primary_key=KEY)"
        raise Invalid("the dataset has no MemWAL index", remedy=remedy, table=uri)
    if not base.schema.primary_key:
        raise Invalid("the dataset declares no primary key", remedy="Declare one in its field metadata", table=uri)
    specs = [spec for spec in details["sharding_specs"] if spec["spec_id"]]
    found = read_markers(objects=objects, version=base.version)
    return Adoptable(base=base, spec=specs[0] if specs else None, markers={} if found is None else found.merged)


def take_over(adoptable: Adoptable, facts: BaseFacts, *, objects: ObjectStore) -> None:
    """Write the table's facts into the base, and counters derived from the markers, as one version. State its files.

    Also turns automatic clean-up off: with it, any commit may delete files that readers need.

    Raises:
        Contended: another process committed first; nothing was written.
        Unavailable: the store did not answer.
    """
    base = adoptable.base
    counters = {  # guard: counters come from the marker of Lance
        f"{MERGED}{region}": str(number) for region, number in adoptable.markers.items()
    }
    write_facts(base, {**counters, **facts.metadata()}, stating=Stating(objects=objects))
    with native_errors("automatic clean-up can't be turned off", table=base.uri):
        dataset = open_dataset(uri=base.uri, version=None, storage_options=base.storage_options)
        automatic = [name for name in dataset.config() if name.startswith(_CLEANUP)]
        if automatic:  # guard: automatic cleanup is switched off
            dataset.delete_config_keys(automatic)


def write_facts(base: BaseTable, facts: Mapping[str, str], *, stating: Stating | None = None) -> None:
    """Write schema metadata into the base as one version. Raises: the same errors as `take_over`."""
    metadata = {**base.metadata, **facts}
    outcome = commit(Base.of(base), changed={}, new=(), metadata=metadata, properties={}, stating=stating)
    if isinstance(outcome, Preempted):
        raise Contended("another process committed to the base first", table=base.uri)
