"""The log of a region: entries as Arrow IPC streams, appended one position at a time, read back with proof."""
