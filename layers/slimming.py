"""What an installed package can do without in a function: files by name, and the ends of libraries.

Lambda unpacks at most 262,144,000 bytes of layers and code. Nothing here needs a tool of the target's architecture.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

# The services that the functions and the job speak to; botocore reads the description of a service when its client is
# made. `sts` gives credentials to roles.
SERVICES = frozenset({"dynamodb", "lambda", "s3", "sqs", "stepfunctions", "sts"})

# What is built, documented or tested with, in every package.
_SOURCES = ("*.c", "*.cpp", "*.h", "*.hpp", "*.pxd", "*.pxi", "*.pyi", "*.pyx")
_DIRECTORIES = ("__pycache__", "tests", "include", "includes")
_FILES = (
    "bin",
    "numpy/_core/lib",
    "numpy/f2py",
    "numpy/random/lib",
    "pyarrow/src",
    # Stores and formats of Arrow's own; objects go through obstore and Lance.
    "pyarrow/_azurefs.*",
    "pyarrow/_cuda.*",
    "pyarrow/_dataset_orc.*",
    "pyarrow/_dataset_parquet_encryption.*",
    "pyarrow/_flight.*",
    "pyarrow/_gcsfs.*",
    "pyarrow/_hdfs.*",
    "pyarrow/_orc.*",
    "pyarrow/_parquet_encryption.*",
    "pyarrow/_pyarrow_cpp_tests.*",
    "pyarrow/_s3fs.*",
    "pyarrow/_substrait.*",
    "pyarrow/flight.py",
    "pyarrow/libarrow_flight.*",
    "pyarrow/libarrow_python_flight.*",
    "pyarrow/libarrow_python_parquet_encryption.*",
    "pyarrow/libarrow_s3.*",
    # Copies for linkers; the loader asks for the name with the major version alone.
    "pyarrow/libarrow_python.so",
    "pyarrow/libarrow_python.so.*.*",
)


def slim(packages: Path) -> None:
    """Remove from a directory of installed packages what the functions never load; run again, it changes nothing."""
    unwanted = [path for pattern in _SOURCES for path in packages.rglob(pattern)]
    unwanted += [path for name in _DIRECTORIES for path in packages.rglob(name)]
    unwanted += [path for pattern in _FILES for path in packages.glob(pattern)]
    unwanted += [path for path in packages.glob("botocore/data/*/") if path.name not in SERVICES]
    for path in unwanted:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)  # one within another is gone with it
        else:
            path.unlink(missing_ok=True)
    for directory in sorted((path for path in packages.rglob("*") if path.is_dir()), reverse=True):
        if not any(directory.iterdir()):
            directory.rmdir()
    for library in libraries(packages):
        library.write_bytes(without_sections(library.read_bytes()))


def libraries(packages: Path) -> list[Path]:
    """The ELF files below a directory."""
    return sorted(path for path in packages.rglob("*.so*") if path.is_file() and _starts_as_elf(path))


def without_sections(elf: bytes) -> bytes:
    """A 64-bit little-endian ELF file without what comes after its last segment.

    Segments are all that a loader maps. Symbols for debuggers and linkers, and the table of sections, come after them.
    Offsets stay as they are, unlike with `strip`, which breaks the alignment of numpy's bundled libraries.
    """
    (table,) = struct.unpack_from("<Q", elf, 0x20)
    entry_size, count = struct.unpack_from("<HH", elf, 0x36)
    end = table + entry_size * count
    for number in range(count):
        _, _, offset, _, _, size = struct.unpack_from("<IIQQQQ", elf, table + entry_size * number)
        end = max(end, offset + size)
    kept = bytearray(elf[:end])
    struct.pack_into("<Q", kept, 0x28, 0)  # where the table of sections is
    struct.pack_into("<HH", kept, 0x3C, 0, 0)  # how many, and which one names the others
    return bytes(kept)


def _starts_as_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(6) == b"\x7fELF\x02\x01"
