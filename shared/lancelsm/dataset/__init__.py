"""Read and write Lance datasets. This is the only package that imports lance."""

import os

# When Lance lists a MemWAL index, it logs an error, since the index has no fields. Lance reads this variable once, on
# import. A value that is already set stays.
os.environ.setdefault("LANCE_LOG", "warn,lance::index=off")  # noqa: TID251
