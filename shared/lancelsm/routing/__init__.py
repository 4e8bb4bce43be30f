"""Map rows to regions: the region spec, its transforms, and the split of rows by region values."""
