"""Names of calls in LanceDB, Lance, delta-rs and pandas, and what to call here instead: a missing attribute says it."""

from __future__ import annotations

TABLE = {
    **dict.fromkeys(("add", "append", "insert", "put", "write"), "upsert(rows)"),
    "merge_insert": "upsert(rows), with if_absent=True to insert only new keys",
    **dict.fromkeys(("filter", "query", "select", "where"), "scan(where=..., columns=[...])"),
    **dict.fromkeys(("to_dicts", "to_list"), "to_pylist()"),
    **dict.fromkeys(("to_pyarrow_table", "to_table"), "to_arrow()"),
    **dict.fromkeys(("to_lance", "to_pyarrow_dataset"), "lancelsm.arrow_dataset(table)"),
    "take": "get(keys)",
    **dict.fromkeys(("checkout", "load_as_version", "load_version"), "at(version)"),
    **dict.fromkeys(("list_versions", "version", "versions"), "history(), which lists the versions of the base"),
    **dict.fromkeys(("checkout_latest", "refresh", "update_incremental"), "scan(), which sees the newest rows"),
    **dict.fromkeys(("create_tag", "tags"), "snapshot(name) and snapshots()"),
    **dict.fromkeys(("delta", "load_cdf"), "changes(cursor=...)"),
    "create_scalar_index": 'create_index(column, kind="BTREE")',
    "create_fts_index": 'create_index(column, kind="INVERTED")',
    **dict.fromkeys(("index_stats", "list_indexes"), "list_indices()"),
    "add_columns": "add_column(name, type)",
    "drop_columns": "drop_column(name)",
    "alter_columns": "rename_column, widen_column or set_nullable",
    "compact_files": "optimize()",
    **dict.fromkeys(("cleanup_old_versions", "vacuum"), "collect(yes=True)"),
    "name": "uri, the location",
    **dict.fromkeys(("key", "primary_key"), "config.primary_key"),
    "regions": "list_regions(), or config.regions for the region spec",
    **dict.fromkeys(("columns", "dtypes"), "schema"),
    **dict.fromkeys(("info", "metadata", "stats"), "status(), or config for key and region spec"),
    **{call: f"lancelsm.{call}(table)" for call in ("backup", "copy", "doctor", "drop")},
}

ROWS = {
    **dict.fromkeys(("collect", "fetchall", "to_dicts", "to_list"), "to_pylist()"),
    **dict.fromkeys(("read_all", "to_pyarrow", "to_table"), "to_arrow()"),
    **dict.fromkeys(("to_df", "df"), "to_pandas()"),
    **dict.fromkeys(("filter", "limit", "select", "where"), "the arguments where, columns and limit of scan"),
    **dict.fromkeys(("column_names", "columns"), "schema.names"),
    **dict.fromkeys(("count_rows", "num_rows"), "to_arrow().num_rows, or count(where=...) of the table"),
}

NAMESPACE = {
    "create_table": "create(name, rows, primary_key=...)",
    "open_table": "namespace[name]",
    **dict.fromkeys(("list_tables", "table_names", "tables"), "list(namespace)"),
    "drop_table": "lancelsm.drop(namespace[name])",
}

MODULE = {
    "create_table": "create(uri, rows, primary_key=...)",
    **dict.fromkeys(("DeltaTable", "open_table"), "open(uri)"),
    **dict.fromkeys(("upsert", "write_dataset", "write_deltalake"), "open(uri).upsert(rows)"),
    "connect_async": "open_async(uri)",
}


def other_name(whose: str, name: str, calls: dict[str, str]) -> AttributeError | None:
    """Return the error for a name that other libraries have; None if this is no such name."""
    return AttributeError(f"{whose} has no {name!r}. Use {calls[name]}") if name in calls else None
