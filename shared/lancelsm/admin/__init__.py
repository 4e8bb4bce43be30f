"""The life of a table: create, clone, adopt what Lance wrote, rebuild its registry, drop."""
