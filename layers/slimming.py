"""Remove from installed packages what a function does not need: files by name, and sections of libraries.

Lambda's limit is 262,144,000 bytes for unpacked layers and code. This needs no tool of the target's architecture.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

# The services that the functions and the job call. botocore reads the description of a service when it creates its
# client. `sts` provides the credentials of roles.
SERVICES = frozenset({"dynamodb", "lambda", "s3", "sqs", "stepfunctions", "sts"})

# Files for building, documenting and testing, in every package.
_SOURCES = ("*.c", "*.cpp", "*.h", "*.hpp", "*.pxd", "*.pxi", "*.pyi", "*.pyx")
_DIRECTORIES = ("__pycache__", "tests", "include", "includes")
_FILES = (
    "bin",
    "numpy/_core/lib",
    "numpy/f2py",
    "numpy/random/lib",
    "pyarrow/src",
    # Arrow's own stores and formats. Objects are read and written by obstore and Lance.
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
    # Copies for linkers. The loader only uses the name with the major version.
    "pyarrow/libarrow_python.so",
    "pyarrow/libarrow_python.so.*.*",
)


def slim(packages: Path) -> None:
    """Remove what the functions never load from a directory of installed packages. Idempotent."""
    unwanted = [path for pattern in _SOURCES for path in packages.rglob(pattern)]
    unwanted += [path for name in _DIRECTORIES for path in packages.rglob(name)]
    unwanted += [path for pattern in _FILES for path in packages.glob(pattern)]
    unwanted += [path for path in packages.glob("botocore/data/*/") if path.name not in SERVICES]
    for path in unwanted:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)  # its parent may already be removed
        else:
            path.unlink(missing_ok=True)
    for directory in sorted((path for path in packages.rglob("*") if path.is_dir()), reverse=True):
        if not any(directory.iterdir()):
            directory.rmdir()
    for library in libraries(packages):
        library.write_bytes(without_sections(library.read_bytes()))


def libraries(packages: Path) -> list[Path]:
    """Return the ELF files below a directory."""
    return sorted(path for path in packages.rglob("*.so*") if path.is_file() and _starts_as_elf(path))


def without_sections(elf: bytes) -> bytes:
    """Return a 64-bit little-endian ELF file cut off after its last segment.

    A loader maps only segments. The section table and the symbols for debuggers and linkers come after them. Offsets do
    not change, unlike with `strip`, which breaks the alignment of numpy's bundled libraries.
    """
    (table,) = struct.unpack_from("<Q", elf, 0x20)
    entry_size, count = struct.unpack_from("<HH", elf, 0x36)
    end = table + entry_size * count
    for number in range(count):
        _, _, offset, _, _, size = struct.unpack_from("<IIQQQQ", elf, table + entry_size * number)
        end = max(end, offset + size)
    kept = bytearray(elf[:end])
    struct.pack_into("<Q", kept, 0x28, 0)  # offset of the section table
    struct.pack_into("<HH", kept, 0x3C, 0, 0)  # number of sections, index of the section with names
    return bytes(kept)


def _starts_as_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(6) == b"\x7fELF\x02\x01"
