"""The state of a table and its regions: heads, manifests and their commits, the catalog, the configuration."""
