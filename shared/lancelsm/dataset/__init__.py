"""Lance's own datasets, read and written: the only package that imports lance."""

import os

# Lance calls an index without fields an error whenever it lists a MemWAL index, which has none. It reads this once,
# when it is imported; whoever has set it keeps it.
os.environ.setdefault("LANCE_LOG", "warn,lance::index=off")  # noqa: TID251
