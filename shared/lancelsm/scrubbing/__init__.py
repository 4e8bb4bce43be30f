"""Scrub: read all objects and records of a table, and report each one that is wrong. It repairs nothing.

Like readers, it reads heads first, then the objects that they name, then the base. It can run beside merges and
collections: a suspect object counts as wrong only if a head that is read later still needs it.
"""
