"""What a table and its regions consist of: heads, manifests and their commits, the catalog, the configuration."""
