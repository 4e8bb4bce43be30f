"""Build what `cdk deploy` uploads: the layers of the functions and the archive of the Spark job, without Docker.

    python -m layers.building [--arch arm64|x86_64] [lean | lance | spark | expression ...]

Each is installed from its lock (requirements/layer-*.txt) for the runtime's Python, architecture and C library,
whatever this machine has; slimmed, checked, and tried out where an interpreter of that version is at hand.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

import pyarrow

import lancelsm
from layers.slimming import SERVICES, libraries, slim

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "layers" / "build"
MAX_BYTES = 262_144_000  # that Lambda unpacks, of layers and function together
GLIBC = 34  # 2.34, of Amazon Linux 2023
MACHINES = {"arm64": "aarch64", "x86_64": "x86_64"}  # Lambda's word for an architecture, and everybody else's
_ELF_MACHINES = {"arm64": 183, "x86_64": 62}
_LEVEL = 9  # of zstd: 67 MB in 12 s; level 15 takes ten times as long for 2 % less


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What is built under one name.

    Args:
        python: of the runtime.
        below: where the runtime looks for packages in it.
        packed: a library too large for a function, replaced by its compressed copy and what unpacks it.
        own: whether lancelsm itself is in it; functions bring it with their code.
        limited: the names that a function unpacks together; none if there is no limit.
    """

    name: str
    python: str = "3.13"
    below: str = "python"
    packed: str = ""
    own: bool = False
    limited: tuple[str, ...] = ()


LAYERS = {
    layer.name: layer
    for layer in (
        Layer(name="lean", limited=("lean",)),
        Layer(name="lance", packed="lance/lance.abi3.so", limited=("lance",)),
        Layer(name="spark", python="3.11", below=".", own=True),
        Layer(name="expression", limited=("lean", "expression")),
    )
}
DEFAULT = ("lean", "lance", "spark")


class BuildError(Exception):
    """What was built would not run."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="make build", description="Build the layers and the archive of the Spark job."
    )
    parser.add_argument("--arch", default="arm64", choices=sorted({*MACHINES, *MACHINES.values()}))
    parser.add_argument(
        "layers", nargs="*", metavar="LAYER", help=f"of {', '.join(LAYERS)} (default: all but the last)"
    )
    given = parser.parse_args(arguments)
    if unknown := set(given.layers) - LAYERS.keys():
        parser.error(f"there is no layer {', '.join(sorted(unknown))}")
    arch = "arm64" if given.arch == "aarch64" else given.arch
    try:
        for name in given.layers or DEFAULT:
            build(LAYERS[name], arch)
    except BuildError as error:
        print(f"make build: {error}", file=sys.stderr)
        return 1
    return 0


def build(layer: Layer, arch: str) -> Path:
    """Build one layer into layers/build/{arch}/{name}, unless it stands there from the same lock and code.

    A build that fails leaves no directory of that name.

    Raises:
        BuildError: a package has no build for the target or another version than its lock, or the layer is too large.
    """
    made, lock = BUILD / arch / layer.name, lock_of(layer)
    stamp, origin = made.with_suffix(".stamp"), _origin(lock)
    if not (made.is_dir() and stamp.is_file() and stamp.read_text() == origin):
        stamp.unlink(missing_ok=True)
        shutil.rmtree(made, ignore_errors=True)
        partial = made.with_suffix(".part")
        shutil.rmtree(partial, ignore_errors=True)
        packages = partial / layer.below
        _install(layer, arch, packages)
        check_versions(packages, lock.read_text())
        check_libraries(packages, arch)
        if layer.limited:
            slim(packages)
        if layer.packed:
            pack(packages / layer.packed)
        _compile(layer, packages)
        partial.replace(made)
        stamp.write_text(origin)
    if layer.own:
        _copy_own(made / layer.below)
    try:
        if layer.limited:
            code = tree_bytes([ROOT / "functions", ROOT / "shared" / "lancelsm"])
            check_size([BUILD / arch / name for name in layer.limited], code)
        tried = _try_out(layer, arch, made / layer.below)
    except BuildError:
        shutil.rmtree(made)  # nobody shall deploy it
        raise
    print(f"{made.relative_to(ROOT)}: {tree_bytes([made]) / 1e6:.1f} MB, {tried}", flush=True)
    return made


def lock_of(layer: Layer) -> Path:
    return ROOT / "requirements" / f"layer-{layer.name}.txt"


def platforms(machine: str) -> list[str]:
    """The platform tags that the runtime's C library satisfies, the best first.

    pip takes each as it stands and derives no older ones: without all of them it overlooks builds, or says that there
    are none.
    """
    return [*(f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC, 16, -1)), f"manylinux2014_{machine}"]


def _install(layer: Layer, arch: str, packages: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    command += ["--no-deps", "--require-hashes", "--only-binary=:all:", "--implementation", "cp"]
    # The lock was resolved for the target; pip would hold packages against the interpreter that runs it.
    command += ["--python-version", layer.python, "--ignore-requires-python"]
    command += [word for tag in platforms(MACHINES[arch]) for word in ("--platform", tag)]
    done = subprocess.run([*command, "--target", str(packages), "-r", str(lock_of(layer))], check=False)
    if done.returncode:
        raise BuildError(f"pip could not install {lock_of(layer).name} for {arch}")


def locked(lock: str) -> dict[str, str]:
    """Name and version of every package that a lock pins."""
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.MULTILINE))


def check_versions(packages: Path, lock: str) -> None:
    """Raises `BuildError` unless exactly the packages of the lock are there, each in its version."""
    found = {_normal(one.metadata["Name"]): one.version for one in distributions(path=[str(packages)])}
    if found != locked(lock):
        odd = sorted(name for name, _ in found.items() ^ locked(lock).items())
        raise BuildError(f"what was installed is not what the lock names: {', '.join(dict.fromkeys(odd))}")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def check_libraries(packages: Path, arch: str) -> None:
    """Raises `BuildError` if a library is for another architecture, or needs a newer C library than the runtime's."""
    for path in libraries(packages):
        elf = path.read_bytes()
        if int.from_bytes(elf[18:20], "little") != _ELF_MACHINES[arch]:
            raise BuildError(f"{path.relative_to(packages)} is not for {arch}")
        newest = max((int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", elf)), default=0)
        if newest > GLIBC:
            raise BuildError(f"{path.relative_to(packages)} needs glibc 2.{newest}, the runtime has 2.{GLIBC}")


def pack(library: Path) -> Path:
    """Replace a library by its compressed copy, and the module that it is by the one that unpacks it."""
    started = time.perf_counter()
    content = library.read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:16]
    module = library.name.split(".")[0]
    packed = library.with_name(f"{module}-{digest}-{len(content)}.so.zst")
    packed.write_bytes(pyarrow.Codec("zstd", compression_level=_LEVEL).compress(content, asbytes=True))
    library.unlink()
    shutil.copyfile(Path(__file__).with_name("packed.py"), library.with_name(f"{module}.py"))
    before, after = len(content) / 1e6, packed.stat().st_size / 1e6
    print(
        f"packed {library.name}: {before:.1f} MB to {after:.1f} MB in {time.perf_counter() - started:.0f} s", flush=True
    )
    return packed


def check_size(directories: Iterable[Path], code_bytes: int) -> None:
    """Raises `BuildError` if Lambda would refuse these layers with a function of that size."""
    whole = tree_bytes(directories) + code_bytes
    if whole >= MAX_BYTES:
        raise BuildError(f"layers and function are {whole:,} bytes, Lambda takes fewer than {MAX_BYTES:,}")


def tree_bytes(directories: Iterable[Path]) -> int:
    return sum(path.stat().st_size for directory in directories for path in _files(directory))


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())


def _compile(layer: Layer, packages: Path) -> None:
    """A layer is read-only: without bytecode in it every cold start compiles what it imports."""
    python = interpreter(layer.python)
    if python is None:
        print(f"no Python {layer.python} here: {layer.name} goes without bytecode, and its cold starts take longer")
        return
    # Checked against the sources' times by default, which an upload doesn't keep.
    command = [str(python), "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "."]
    if subprocess.run(command, cwd=packages, check=False).returncode:
        raise BuildError(f"the packages of {layer.name} don't compile with Python {layer.python}")


def interpreter(version: str) -> Path | None:
    """This interpreter or the one on PATH of that version, if it runs."""
    if version == platform.python_version().rpartition(".")[0]:
        return Path(sys.executable)
    found = shutil.which(f"python{version}")
    if found is None or subprocess.run([found, "--version"], capture_output=True, check=False).returncode:
        return None
    return Path(found)


def _copy_own(packages: Path) -> None:
    """The package as it is now: the archive is only as new as its last build."""
    shutil.rmtree(packages / "lancelsm", ignore_errors=True)
    shutil.copytree(ROOT / "shared" / "lancelsm", packages / "lancelsm", ignore=shutil.ignore_patterns("__pycache__"))


def _origin(lock: Path) -> str:
    code = [Path(__file__).with_name(name) for name in ("building.py", "slimming.py", "packed.py")]
    return hashlib.sha256(b"".join(path.read_bytes() for path in (lock, *code))).hexdigest()


def _try_out(layer: Layer, arch: str, packages: Path) -> str:
    """Run what the layer is for with nothing else on the path; says what was tried.

    Raises:
        BuildError: it failed.
    """
    if MACHINES[arch] != platform.machine():
        return f"not tried: this machine is no {MACHINES[arch]}"
    python = interpreter(layer.python)
    if python is None:
        return f"not tried: no Python {layer.python} here"
    paths = [packages, *([] if layer.own else [ROOT / "shared"])]
    regions = None
    if layer.name == "expression":
        paths.append(BUILD / arch / "lean" / "python")
        regions = "expr(id % 2)"
    with tempfile.TemporaryDirectory() as directory:
        table = f"{directory}/table"
        lancelsm.create(table, [{"id": 1, "v": "old"}], primary_key="id", regions=regions)
        environment = {"AWS_REGION": "eu-west-1", "TMPDIR": directory}
        script = Path(__file__).with_name("trial.py")
        done = isolated(python, paths, script, [layer.name, table, *sorted(SERVICES)], environment)
    if done.returncode:
        raise BuildError(f"the layer {layer.name} does not work:\n{done.stderr}")
    return f"tried with Python {layer.python}"


def isolated(
    python: Path,
    paths: Iterable[Path],
    script: Path,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a script in an interpreter that sees the standard library and `paths`, and writes no bytecode."""
    start = (
        f"import runpy, sys; sys.path[:0] = {[str(path) for path in paths]!r}; "
        f"sys.argv = {[str(script), *arguments]!r}; runpy.run_path({str(script)!r}, run_name='__main__')"
    )
    return subprocess.run(
        [python, "-I", "-S", "-B", "-c", start], capture_output=True, text=True, env=environment, check=False
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
