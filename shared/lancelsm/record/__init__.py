"""Process rows before they are written: check them against the schema, keep the newest row of each key, sum them."""
