"""Garbage collection in four steps: mark, verify, commit, sweep. Only the sweep deletes."""
