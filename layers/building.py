"""Build the layers of the functions and the archive of the Spark job, which `cdk deploy` uploads. Needs no Docker.

    python -m layers.building [--arch arm64|x86_64] [lean | lance | spark | expression ...]

Each layer is installed from its lock file (requirements/layer-*.txt) for the Python, the architecture and the C library
of the runtime, not for those of this machine. It is then slimmed, checked, and tested if an interpreter of that version
is installed here.
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
MAX_BYTES = 262_144_000  # Lambda's limit for layers and function together, unpacked
GLIBC = 34  # glibc 2.34, of Amazon Linux 2023
MACHINES = {"arm64": "aarch64", "x86_64": "x86_64"}  # Lambda's name of an architecture: the usual name
_ELF_MACHINES = {"arm64": 183, "x86_64": 62}
_LEVEL = 9  # of zstd: compresses to 67 MB in 12 s; level 15 takes ten times as long and saves 2 %


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer, or the archive of the Spark job.

    Args:
        python: the Python version of the runtime.
        below: the directory in the layer where the runtime looks for packages.
        packed: a library that is too large for a function. A compressed copy and a module that unpacks it replace it.
        own: whether the layer contains lancelsm. Functions contain it in their own code instead.
        limited: the layers that a function has together and that count against Lambda's limit; empty without a limit.
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
    """A layer that was built would not work."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="make build", description="Build the layers and the archive of the Spark job."
    )
    parser.add_argument("--arch", default="arm64", choices=sorted({*MACHINES, *MACHINES.values()}))
    parser.add_argument(
        "layers", nargs="*", metavar="LAYER", help=f"one of {', '.join(LAYERS)} (default: all except the last)"
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.layers) - LAYERS.keys():
        parser.error(f"unknown layer: {', '.join(sorted(unknown))}")
    arch = "arm64" if options.arch == "aarch64" else options.arch
    try:
        for name in options.layers or DEFAULT:
            build(LAYERS[name], arch)
    except BuildError as error:
        print(f"make build: {error}", file=sys.stderr)
        return 1
    return 0


def build(layer: Layer, arch: str) -> Path:
    """Build one layer into layers/build/{arch}/{name}, unless it was already built from the same lock and code.

    A build that fails leaves no directory of that name.

    Raises:
        BuildError: a package has no build for the target or not the version of its lock, the layer is too large, or
            its test failed.
    """
    target, lock = BUILD / arch / layer.name, lock_of(layer)
    stamp, digest = target.with_suffix(".stamp"), _inputs_digest(lock)
    if not (target.is_dir() and stamp.is_file() and stamp.read_text() == digest):
        stamp.unlink(missing_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        partial = target.with_suffix(".part")
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
        partial.replace(target)
        stamp.write_text(digest)
    if layer.own:
        _copy_own(target / layer.below)
    try:
        if layer.limited:
            code = tree_bytes([ROOT / "functions", ROOT / "shared" / "lancelsm"])
            check_size([BUILD / arch / name for name in layer.limited], code)
        outcome = _test(layer, arch, target / layer.below)
    except BuildError:
        shutil.rmtree(target)  # a broken layer must not be deployed
        raise
    print(f"{target.relative_to(ROOT)}: {tree_bytes([target]) / 1e6:.1f} MB, {outcome}", flush=True)
    return target


def lock_of(layer: Layer) -> Path:
    return ROOT / "requirements" / f"layer-{layer.name}.txt"


def platforms(machine: str) -> list[str]:
    """Return the platform tags that the runtime's C library supports, the newest first.

    pip does not derive older tags from a newer one. Without the full list it misses builds, or finds none at all.
    """
    return [*(f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC, 16, -1)), f"manylinux2014_{machine}"]


def _install(layer: Layer, arch: str, packages: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    command += ["--no-deps", "--require-hashes", "--only-binary=:all:", "--implementation", "cp"]
    # The lock was resolved for the target. Otherwise pip would check packages against the interpreter that runs pip.
    command += ["--python-version", layer.python, "--ignore-requires-python"]
    command += [option for tag in platforms(MACHINES[arch]) for option in ("--platform", tag)]
    done = subprocess.run([*command, "--target", str(packages), "-r", str(lock_of(layer))], check=False)
    if done.returncode:
        raise BuildError(f"pip could not install {lock_of(layer).name} for {arch}")


def locked(lock: str) -> dict[str, str]:
    """Return the name and the version of every package that a lock pins."""
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.MULTILINE))


def check_versions(packages: Path, lock: str) -> None:
    """Raise `BuildError` unless exactly the packages and versions of the lock are installed."""
    found = {_normal(one.metadata["Name"]): one.version for one in distributions(path=[str(packages)])}
    if found != locked(lock):
        different = sorted(name for name, _ in found.items() ^ locked(lock).items())
        raise BuildError(f"installed packages differ from the lock: {', '.join(dict.fromkeys(different))}")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def check_libraries(packages: Path, arch: str) -> None:
    """Raise `BuildError` if a library is for another architecture or needs a newer C library than the runtime has."""
    for path in libraries(packages):
        elf = path.read_bytes()
        if int.from_bytes(elf[18:20], "little") != _ELF_MACHINES[arch]:
            raise BuildError(f"{path.relative_to(packages)} is not built for {arch}")
        newest = max((int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", elf)), default=0)
        if newest > GLIBC:
            raise BuildError(f"{path.relative_to(packages)} needs glibc 2.{newest}, the runtime has 2.{GLIBC}")


def pack(library: Path) -> Path:
    """Replace a library with its compressed copy and a Python module that unpacks it on import."""
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
    """Raise `BuildError` if these layers and a function of that size exceed Lambda's limit."""
    total = tree_bytes(directories) + code_bytes
    if total >= MAX_BYTES:
        raise BuildError(f"layers and function have {total:,} bytes; Lambda needs fewer than {MAX_BYTES:,}")


def tree_bytes(directories: Iterable[Path]) -> int:
    return sum(path.stat().st_size for directory in directories for path in _files(directory))


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())


def _compile(layer: Layer, packages: Path) -> None:
    """Add bytecode to a layer. A layer is read-only, so without it every cold start compiles what it imports."""
    python = interpreter(layer.python)
    if python is None:
        print(f"Python {layer.python} is not installed: {layer.name} has no bytecode, so its cold starts take longer")
        return
    # By default Python checks bytecode against the times of the sources, which an upload does not keep.
    command = [str(python), "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "."]
    if subprocess.run(command, cwd=packages, check=False).returncode:
        raise BuildError(f"the packages of {layer.name} do not compile with Python {layer.python}")


def interpreter(version: str) -> Path | None:
    """Return this interpreter or the one on PATH, if it has that version and works."""
    if version == platform.python_version().rpartition(".")[0]:
        return Path(sys.executable)
    found = shutil.which(f"python{version}")
    if found is None or subprocess.run([found, "--version"], capture_output=True, check=False).returncode:
        return None
    return Path(found)


def _copy_own(packages: Path) -> None:
    """Copy the current lancelsm into the archive, which may be from an earlier build."""
    for name in ("lancelsm", "pyspark_lancelsm"):
        shutil.rmtree(packages / name, ignore_errors=True)
        shutil.copytree(ROOT / "shared" / name, packages / name, ignore=shutil.ignore_patterns("__pycache__"))


def _inputs_digest(lock: Path) -> str:
    code = [Path(__file__).with_name(name) for name in ("building.py", "slimming.py", "packed.py")]
    return hashlib.sha256(b"".join(path.read_bytes() for path in (lock, *code))).hexdigest()


def _test(layer: Layer, arch: str, packages: Path) -> str:
    """Test a layer with nothing else on the path, and return a phrase about the test.

    Raises:
        BuildError: the test failed.
    """
    if MACHINES[arch] != platform.machine():
        return f"not tested: this machine is not {MACHINES[arch]}"
    python = interpreter(layer.python)
    if python is None:
        return f"not tested: Python {layer.python} is not installed"
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
    return f"tested with Python {layer.python}"


def isolated(
    python: Path,
    paths: Iterable[Path],
    script: Path,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a script in an interpreter that sees only the standard library and `paths`, and writes no bytecode."""
    start = (
        f"import runpy, sys; sys.path[:0] = {[str(path) for path in paths]!r}; "
        f"sys.argv = {[str(script), *arguments]!r}; runpy.run_path({str(script)!r}, run_name='__main__')"
    )
    return subprocess.run(
        [python, "-I", "-S", "-B", "-c", start], capture_output=True, text=True, env=environment, check=False
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
