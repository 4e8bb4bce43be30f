"""Read the current state of a table: one consistent view of log, generations and base, and its rows."""
