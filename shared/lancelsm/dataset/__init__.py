"""Lance's own datasets, read and written: the only package that imports lance."""
