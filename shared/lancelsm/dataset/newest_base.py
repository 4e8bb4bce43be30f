"""Read the newest version of a base without Lance, which takes longer to load than all else that `status` does."""

from __future__ import annotations

import re
from functools import cache

from lancelsm.common.layout import LANCE_DIRECTORIES
from lancelsm.dataset.base_manifest import decode_manifest
from lancelsm.dataset.base_table import BaseTable, StorageOptions, open_dataset
from lancelsm.dataset.merged_generations import manifest_names
from lancelsm.errors import LsmError
from lancelsm.objects import Listed, ObjectStore
from lancelsm.objects.links import check_directories

_MANIFEST = re.compile(r"_versions/(\d+)\.manifest")
_DOWN = 1 << 63  # names above this number count down
_BYTES = 64 << 20  # of a manifest; Lance decodes a larger one faster


def read_newest_base(*, uri: str, objects: ObjectStore, storage_options: StorageOptions) -> BaseTable | None:
    """Read the newest version of a base: one listing and one object. Always reads the store.

    Returns:
        The base; None if only Lance can decode it, or can say what is wrong with it.
    """
    try:
        check_directories(uri, LANCE_DIRECTORIES)
        newest = _newest(objects)
        found = None if newest is None or newest.size > _BYTES else objects.get(newest.key)
        manifest = None if found is None else decode_manifest(found.body)
    except (LsmError, OSError):
        return None
    if newest is None or manifest is None or newest.key not in manifest_names(manifest.version):
        return None

    base = BaseTable(
        uri=uri,
        version=manifest.version,
        schema=manifest.schema,
        metadata=manifest.metadata,
        fragments=manifest.fragments,
        data_storage_version=manifest.data_storage_version,
        opened=cache(lambda: open_dataset(uri=uri, version=manifest.version, storage_options=storage_options)),
        storage_options=storage_options,
        manifest=manifest,
    )
    try:
        _ = base.facts, base.counters, base.fence
    except ValueError:
        return None
    return base


def _newest(objects: ObjectStore) -> Listed | None:
    """Find the newest manifest. In newer tables it is listed first, so that no further page of the listing is read."""
    counting_up: dict[int, Listed] = {}
    for item in objects.list("_versions/"):
        if (found := _MANIFEST.fullmatch(item.key)) is None:
            continue
        if (number := int(found[1])) > _DOWN:
            return None if counting_up else item  # a table has names of one kind
        counting_up[number] = item
    return counting_up[max(counting_up)] if counting_up else None
