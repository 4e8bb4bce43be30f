"""Scrub: read everything that a table consists of, and name each object that is wrong. It repairs nothing.

Heads are read first, then what they name, then the base, as readers do. A concurrent merge or collection is no problem:
what looks wrong counts only if a head that is read later still needs it.
"""
