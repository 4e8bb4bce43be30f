"""A year of flights through the whole pipeline, and a proof at the end that nothing was lost.

`embedded` takes it through a table in a directory, `deployed` through the functions of a stack; data and proof are the
same.
"""
