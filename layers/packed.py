"""Stands in a layer where a library too large for it would be: unpacks the library beside and becomes it.

The file is copied into the layer in the library's place. Its neighbour is `{name}-{digest}-{size}.so.zst`.
"""

import fcntl
import importlib.util
import os
import shutil
import sys
import tempfile

import pyarrow


def unpacked(source: str, directory: str) -> str:
    """The path of the library in `directory`, unpacked there by whichever process came first.

    A process that dies while it unpacks leaves a file under another name, which the next one begins anew; what has the
    library's name is whole. The name carries the digest of the content: another layer's library has another name.

    Raises:
        ImportError: there is no room, or what came out has another size than the name says.
    """
    name = os.path.basename(source).removesuffix(".zst")
    size = int(name.split(".")[0].rsplit("-", 1)[1])
    target = os.path.join(directory, name)
    if os.path.exists(target):
        return target
    with open(f"{target}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a process that dies lets go of it
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
    """Put the library that is packed in the directory `here` into the place of the module `name`."""
    (packed,) = (entry for entry in os.listdir(here) if entry.endswith(".so.zst"))
    path = unpacked(os.path.join(here, packed), tempfile.gettempdir())
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    library = importlib.util.module_from_spec(spec)
    sys.modules[name] = library  # what the import of this module gives to whoever asked for it
    spec.loader.exec_module(library)


if "." in __name__ and not __name__.startswith("layers."):  # imported in the library's place
    become(__name__, os.path.dirname(__file__))
