"""Rows on their way through a queue: sent once they are checked, applied in order, set aside where they never fit."""
