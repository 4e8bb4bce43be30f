"""Tables as sources of query engines: a pyarrow dataset, a relation of duckdb, a table of DataFusion, a polars frame.

An engine gets the columns and rows that it needs. Its filter becomes a condition of the scan if it means the same in
Lance's dialect. What doesn't is filtered here or by the engine.
"""
