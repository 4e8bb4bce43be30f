"""Leave out the regions and generations that can have no row for the condition of a read."""
