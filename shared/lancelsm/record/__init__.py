"""Rows on their way in: checked against the table's schema, keyed, folded newest-wins, and summed."""
