"""Garbage collection: mark, verify, commit, sweep. Only a sweep deletes."""
