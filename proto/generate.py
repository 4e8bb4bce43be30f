"""Generate shared/lancelsm/generated from the .proto files in this directory.

    python proto/generate.py            write the files
    python proto/generate.py --check    exit 1 if the files are not up to date

protoc names Python modules after the paths of the .proto files. The packages `lance` and `lancelsm` already exist, so
this script moves the generated modules below `lancelsm.generated`. It rewrites the imports between them and the module
names that pickled messages contain.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

PROTO = Path(__file__).resolve().parent
GENERATED = PROTO.parent / "shared" / "lancelsm" / "generated"


def generate(sources: Path) -> dict[str, str]:
    """Return the text of every generated file, by its path below `generated`.

    Raises:
        RuntimeError: protoc failed; its messages are on stderr.
    """
    protos = sorted(path.relative_to(sources).as_posix() for path in sources.rglob("*.proto"))
    own = "|".join(sorted({Path(proto).parent.as_posix().replace("/", r"\.") for proto in protos}))
    names = re.compile(r"(?<=BuildTopDescriptorsAndMessages\(DESCRIPTOR, )'[^']+'")
    imports = re.compile(rf"^(from|import) ({own})(?=[ .])", re.MULTILINE)
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as scratch:
        search = [f"-I{sources}", f"-I{well_known}"]
        if protoc.main(["protoc", *search, f"--python_out={scratch}", f"--pyi_out={scratch}", *protos]) != 0:
            raise RuntimeError(f"protoc failed for {protos}")
        files = {
            path.relative_to(scratch).as_posix(): names.sub(
                "__name__", imports.sub(r"\1 lancelsm.generated.\2", path.read_text())
            )
            for path in Path(scratch).rglob("*.py*")
        }
    packages = {parent.as_posix() for name in files for parent in Path(name).parents}
    return files | {f"{package}/__init__.py".removeprefix("./"): "" for package in packages}


def read_generated(target: Path) -> dict[str, str]:
    """Return the text of every generated file in `target`, by its path below `target`."""
    return {
        path.relative_to(target).as_posix(): path.read_text()
        for path in target.rglob("*.py*")
        if "__pycache__" not in path.parts
    }


def main() -> int:
    """Write or check the generated files. Return 1 if a check finds a difference, else 0."""
    parser = argparse.ArgumentParser(description="Generate Python from the .proto files.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the files are not up to date")
    check = parser.parse_args().check
    wanted, present = generate(PROTO), read_generated(GENERATED)
    changed = sorted(name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name))
    if check:
        if changed:
            print(f"not up to date, run `make proto`: {', '.join(changed)}", file=sys.stderr)
        return 1 if changed else 0
    for name in changed:
        path = GENERATED / name
        if name not in wanted:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[name])
    return 0


if __name__ == "__main__":
    sys.exit(main())
