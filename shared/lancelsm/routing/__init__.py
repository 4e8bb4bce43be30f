"""How rows map to regions: the spec, its transforms, and the split of a table by region values."""
