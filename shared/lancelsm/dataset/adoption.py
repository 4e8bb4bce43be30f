"""What Lance's own writer left in a base, and the commit that makes it a table of lancelsm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lancelsm.common.layout import Generation, RegionId
from lancelsm.dataset.base_rows import Base, Preempted, commit
from lancelsm.dataset.base_table import MERGED, BaseFacts, BaseTable, StorageOptions, open_base, open_dataset
from lancelsm.dataset.merged_generations import read_markers
from lancelsm.dataset.native import native_errors, read_errors
from lancelsm.errors import Contended, Invalid
from lancelsm.objects import ObjectStore

_CLEANUP = "lance.auto_cleanup."


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoptable:
    """A base with a MemWAL index: its newest version, the index's region spec if it has one, and its markers."""

    base: BaseTable
    spec: Mapping[str, Any] | None
    markers: Mapping[RegionId, Generation]


def read_adoptable(*, uri: str, objects: ObjectStore, storage_options: StorageOptions = None) -> Adoptable:
    """Look at a base that Lance's writer wrote to.

    Raises:
        Invalid: no dataset is there, or it has no MemWAL index or no primary key.
    """
    base = open_base(uri=uri, storage_options=storage_options)
    with read_errors("the base's MemWAL index can't be read", table=uri):
        details = open_dataset(uri=uri, version=base.version, storage_options=storage_options).mem_wal_index_details()
    if details is None:
        raise Invalid("the dataset has no MemWAL index", remedy="Make a table of its rows: lancelsm init", table=uri)
    if not base.schema.primary_key:
        raise Invalid("the dataset declares no primary key", remedy="Declare one in its field metadata", table=uri)
    specs = [spec for spec in details["sharding_specs"] if spec["spec_id"]]
    found = read_markers(objects=objects, version=base.version)
    return Adoptable(base=base, spec=specs[0] if specs else None, markers={} if found is None else found.merged)


def take_over(adoptable: Adoptable, facts: BaseFacts) -> None:
    """Write the table's facts and the counters, from the markers, into the base as one version.

    Automatic cleanup is taken out of its configuration: any commit would delete behind readers.

    Raises:
        Contended: others kept committing; nothing was written.
        Unavailable: the store did not answer.
    """
    base = adoptable.base
    counters = {f"{MERGED}{region}": str(number) for region, number in adoptable.markers.items()}
    write_facts(base, {**counters, **facts.metadata()})
    with native_errors("automatic cleanup can't be switched off", table=base.uri):
        dataset = open_dataset(uri=base.uri, version=None, storage_options=base.storage_options)
        automatic = [name for name in dataset.config() if name.startswith(_CLEANUP)]
        if automatic:
            dataset.delete_config_keys(automatic)


def write_facts(base: BaseTable, facts: Mapping[str, str]) -> None:
    """Write schema metadata into the base as one version; raises as `take_over`."""
    metadata = {**base.metadata, **facts}
    outcome = commit(Base.of(base), changed={}, new=(), metadata=metadata, properties={})
    if isinstance(outcome, Preempted):
        raise Contended("the base changed meanwhile", remedy="Run it again", table=base.uri)
