"""Build the indexes of a generation as one new Lance version of its directory.

The version with the rows stays as it is, and readers of rows keep to it. A crash before the commit leaves index files
that no version lists. A crash after it leaves a version that the next call finds and keeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from lance.dataset import Index

from lancelsm.dataset.base_table import StorageOptions
from lancelsm.dataset.durable import make_durable
from lancelsm.dataset.indexes import BaseIndex, WantedIndex, index_kind
from lancelsm.dataset.native import native_errors, read_errors
from lancelsm.errors import Corrupt, Invalid
from lancelsm.objects.location import local_path

_VECTOR = "IVF_"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedGeneration:
    """The Lance version of a generation with its indexes.

    `failed` maps each index that Lance could not build to its reason. An index without any value to find is not built,
    and is not in `failed`.
    """

    version: int
    failed: Mapping[str, str]


def index_generation(
    *, uri: str, wanted: Sequence[WantedIndex], storage_options: StorageOptions = None
) -> IndexedGeneration:
    """Build the wanted indexes that a generation lacks, in one commit; durable on return. Idempotent.

    Raises:
        Contended: another process indexed the generation meanwhile.
        Corrupt: the generation can't be read.
        Unavailable: the store did not answer.
    """
    with read_errors("the generation can't be read", object=uri):
        dataset = lance.dataset(uri, storage_options=dict(storage_options or {}))
        present = _indexes(dataset)
    outdated = [one.name for one in wanted if one.name in present and not _serves(present[one.name], one)]
    for name in outdated:
        with native_errors("an index of the generation can't be dropped", object=uri):
            dataset.drop_index(name)
    built: list[Index] = []
    failed: dict[str, str] = {}
    for one in wanted:
        if one.name in present and one.name not in outdated:
            continue
        try:
            built += _build(dataset, one, uri=uri)
        except (Invalid, Corrupt) as error:
            if not _has_none_to_find(dataset, one, uri=uri):
                failed[one.name] = error.message
    if built:
        with native_errors("the indexes of the generation can't be committed", object=uri):
            dataset = lance.LanceDataset.commit(
                uri,
                lance.LanceOperation.CreateIndex(built, []),
                read_version=dataset.version,
                storage_options=dict(storage_options or {}),
            )
    if built or outdated:
        make_durable(uri)
    return IndexedGeneration(version=dataset.version, failed=failed)


def _indexes(dataset: lance.LanceDataset) -> dict[str, BaseIndex]:
    return {
        one.name: BaseIndex(
            name=one.name,
            columns=tuple(one.field_names),
            kind=index_kind(one.index_type),
            rows=one.num_rows_indexed,
            details=dict(one.details or {}),
        )
        for one in dataset.describe_indices()
    }


def _serves(index: BaseIndex, wanted: WantedIndex) -> bool:
    """Return whether an index of a generation is what the list wants. Lance's own writer builds IVF_HNSW_SQ."""
    if index.columns != (wanted.column,):
        return False
    if wanted.kind.startswith(_VECTOR):
        return index.kind.startswith(_VECTOR) and index.metric == wanted.options.get("metric")
    found = index.in_generations
    return found is not None and found.kind == wanted.kind and found.options == wanted.options


def _build(dataset: lance.LanceDataset, wanted: WantedIndex, *, uri: str) -> Iterator[Index]:
    """Yield the index as an uncommitted segment; nothing for a generation that lacks the column."""
    if wanted.column not in dataset.schema.names:
        return
    with native_errors(f"the index {wanted.name!r} of the generation can't be built", object=uri):
        fragments = [fragment.fragment_id for fragment in dataset.get_fragments()]
        try:
            index = dataset.create_index_uncommitted(
                wanted.column, wanted.kind, name=wanted.name, fragment_ids=fragments, **wanted.options
            )
            # A text index is left in a staging directory until its segments are merged.
            done = dataset.merge_existing_index_segments([index]) if wanted.kind == "INVERTED" else index
            _remove_staging(uri, str(index.uuid))
        # Lance raises these for a kind or an option that does not fit the column, each from another check:
        # NotImplementedError is that of its Python for a kind that it does not know.
        except (TypeError, KeyError, NotImplementedError, RuntimeError) as cause:
            if isinstance(cause, RuntimeError) and "Unprocessable" not in str(cause):
                raise
            raise Invalid(f"the index {wanted.name!r} can't be built: {cause}", object=uri) from cause
    yield done


def _remove_staging(uri: str, index: str) -> None:
    """Remove the directory that Lance leaves empty. Only objects are collected, so it would keep its parents too."""
    path = local_path(uri)
    if path is not None:
        with suppress(OSError):
            (path / "_indices" / index / "staging").rmdir()


def _has_none_to_find(dataset: lance.LanceDataset, wanted: WantedIndex, *, uri: str) -> bool:
    """Return whether a generation has no value that an index of this kind can find."""
    if not wanted.kind.startswith(_VECTOR):
        return False
    with read_errors("the generation can't be read", object=uri):
        return not any(
            _findable(batch.column(0), cosine=wanted.options.get("metric") == "cosine")
            for batch in dataset.scanner(columns=[wanted.column]).to_batches()
        )


def _findable(vectors: pa.Array, *, cosine: bool) -> bool:
    """Return whether any of these vectors is finite, and for cosine not zero."""
    while pa.types.is_list(vectors.type) or pa.types.is_large_list(vectors.type):
        vectors = vectors.flatten()
    width = vectors.type.list_size
    present = vectors.drop_null()
    values: Any = present.flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
    good = np.isfinite(values.astype(np.float64)).all(axis=1)
    return bool((good & (values != 0).any(axis=1)).any() if cosine else good.any())
