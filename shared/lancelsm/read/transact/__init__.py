"""Writes that depend on the rows that they replace: read rows at a head, and append right after this head."""
