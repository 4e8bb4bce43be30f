"""Check the options of an index, since Lance ignores those that a kind does not have, and complete them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from lancelsm.common.error_text import did_you_mean, shown
from lancelsm.errors import Invalid

_IVF: Final = frozenset(
    {
        "metric",
        "num_partitions",
        "target_partition_size",
        "sample_rate",
        "max_iters",
        "ivf_centroids",
        "ivf_centroids_file",
        "precomputed_partition_dataset",
        "streaming_sample_rate",
        "streaming_coreset_rate",
        "streaming_refine_passes",
        "shuffle_partition_batches",
        "shuffle_partition_concurrency",
        "skip_transpose",
        "filter_nan",
        "accelerator",
        "index_cache_size",
        "index_file_version",
    }
)
_PQ: Final = frozenset({"num_sub_vectors", "num_bits", "pq_codebook"})
_HNSW: Final = frozenset({"m", "max_level", "ef_construction"})
_SCALAR: Final = frozenset({"format_version"})
_KINDS: Final[Mapping[str, frozenset[str]]] = {
    "IVF_FLAT": _IVF,
    "IVF_PQ": _IVF | _PQ,
    "IVF_SQ": _IVF | {"num_bits"},
    "IVF_RQ": _IVF | {"num_bits", "rabitq_model"},
    "IVF_HNSW_FLAT": _IVF | _HNSW,
    "IVF_HNSW_PQ": _IVF | _HNSW | _PQ,
    "IVF_HNSW_SQ": _IVF | _HNSW | {"num_bits"},
    **dict.fromkeys(("BTREE", "BITMAP", "LABEL_LIST", "NGRAM", "ZONEMAP", "BLOOMFILTER"), _SCALAR),
}
# Arguments of Lance that are no options: they leave rows out, or are those of `create_index`.
_RESERVED: Final = frozenset({"train", "fragment_ids", "index_uuid", "progress_callback", "storage_options"})
_SUB_VECTOR_SIZES: Final = (16, 8)  # as in LanceDB


def checked_options(kind: str, options: Mapping[str, Any], *, column: pa.Field, table: str) -> dict[str, Any]:
    """Return the options for Lance. An index of the kind PQ gets `num_sub_vectors` by the length of the vectors.

    Args:
        kind: in upper case. The options of INVERTED, and of a kind that is not known here, are checked by Lance.

    Raises:
        Invalid: the kind has no such option.
    """
    known = _KINDS.get(kind)
    for name in options:
        if name in _RESERVED or (known is not None and name not in known):
            remedy = (
                did_you_mean(name, sorted(known or ()), what=f"The options of {kind} are") if known else "Leave it out"
            )
            raise Invalid(f"{kind} has no option {shown(name)}", remedy=remedy, table=table, field=str(name))
    if not kind.endswith("_PQ") or options.get("num_sub_vectors") is not None:
        return dict(options)
    length = _length(column.type)
    size = next((one for one in _SUB_VECTOR_SIZES if length % one == 0), None)
    return {**options, "num_sub_vectors": length // size if size and length else 1}


def _length(kind: pa.DataType) -> int:
    """Return the length of the vectors in a column, also of several per row; 0 if it has none."""
    inner = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else kind
    return int(inner.list_size) if pa.types.is_fixed_size_list(inner) else 0
