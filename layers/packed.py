"""Unpack a compressed library on import, and replace this module with it.

A library that is too large for a layer is stored compressed, as `{name}-{digest}-{size}.so.zst`. A copy of this file
stands beside it, under the name of the library's module.
"""

import fcntl
import importlib.util
import os
import shutil
import sys
import tempfile

import pyarrow


def unpacked(source: str, directory: str) -> str:
    """Return the path of the library in `directory`. The first process unpacks it there.

    A file with the library's name is always complete: a process that dies while it unpacks leaves a file under another
    name, which the next process overwrites. The name contains the digest of the content, so layers do not collide.

    Raises:
        ImportError: there is not enough space, or the unpacked size differs from the size in the name.
    """
    name = os.path.basename(source).removesuffix(".zst")
    size = int(name.split(".")[0].rsplit("-", 1)[1])
    target = os.path.join(directory, name)
    if os.path.exists(target):
        return target
    with open(f"{target}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the process dies
        if os.path.exists(target):
            return target
        try:
            with pyarrow.input_stream(source, compression="zstd") as packed, open(f"{target}.part", "wb") as part:
                shutil.copyfileobj(packed, part, 1 << 20)
                written = part.tell()
            if written != size:
                raise ImportError(f"{source} unpacks to {written} bytes instead of {size}: build the layer again")
            os.replace(f"{target}.part", target)
        except OSError as error:
            raise ImportError(f"{source} needs {size} bytes in {directory}: {error}") from error
    return target


def become(name: str, here: str) -> None:
    """Load the library that is packed in the directory `here` as the module `name`."""
    (packed,) = (entry for entry in os.listdir(here) if entry.endswith(".so.zst"))
    path = unpacked(os.path.join(here, packed), tempfile.gettempdir())
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    library = importlib.util.module_from_spec(spec)
    sys.modules[name] = library  # the import statement returns this module
    spec.loader.exec_module(library)


if "." in __name__ and not __name__.startswith("layers."):  # imported in place of the library
    become(__name__, os.path.dirname(__file__))
