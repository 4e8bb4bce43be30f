"""Search the rows of a view by vector, by text, or by both."""
