"""Build the sdist and the wheel, install the wheel into an empty environment, and use it there.

The wheel is built from the sdist, so both are complete. Both are kept if `--dist` names a directory. Packages come
from the lock; with `--newest` pip resolves them, as it does for a user, and the commands of examples/Dockerfile run.

    make .venv/build.stamp
    .venv/bin/python tools/smoke_wheel.py --dist dist
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("smoke_table.py")
PACKAGES = ("lancelsm", "pyspark_lancelsm")
SOURCES = ("LICENSE", "README.md", "pyproject.toml")
LEFTOVERS = shutil.ignore_patterns("*.egg-info", "__pycache__")
PIP = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dist", type=Path, help="keep sdist and wheel in this directory, which must not be there")
    parser.add_argument("--newest", action="store_true", help="let pip resolve the dependencies instead of the lock")
    options = parser.parse_args()
    if options.dist and options.dist.exists():
        parser.error(f"{options.dist} is there already: remove it first")
    with tempfile.TemporaryDirectory(prefix="lancelsm-smoke-") as directory:
        work = Path(directory)
        sdist, wheel = build(work)
        check_contents(sdist, wheel)
        say(f"built {sdist.name} and {wheel.name}")
        python = install(wheel, work / "venv", newest=options.newest)
        say(f"installed into an empty environment; dependencies {'by pip' if options.newest else 'of the lock'}")
        use(python, work / "tables")
        say("a table was written, read, flushed and merged, from Python and from the command line")
        if options.newest:
            serve_as_image(python, wheel, work / "tables")
            say("the commands of examples/Dockerfile installed the wheel, served a table and ended at its signal")
        if options.dist:
            shutil.copytree(sdist.parent, options.dist)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def build(work: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it, with the build backend of this environment."""
    sources, dist = work / "sources", work / "dist"
    sources.mkdir()
    dist.mkdir()
    for name in SOURCES:
        shutil.copy(ROOT / name, sources)
    # A copy, since the backend also packs what earlier builds left beside the sources.
    shutil.copytree(ROOT / "shared", sources / "shared", ignore=LEFTOVERS)
    call_backend("build_sdist", sources, dist)
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(work / "unpacked", filter="data")
    (unpacked,) = (work / "unpacked").iterdir()
    call_backend("build_wheel", unpacked, dist)
    (wheel,) = dist.glob("*.whl")
    return sdist, wheel


def call_backend(hook: str, sources: Path, dist: Path) -> None:
    script = f"from setuptools import build_meta; build_meta.{hook}({str(dist)!r})"
    subprocess.run([sys.executable, "-c", script], cwd=sources, stdout=subprocess.DEVNULL, check=True)


def check_contents(sdist: Path, wheel: Path) -> None:
    """The wheel holds the library as it lies in `shared`, its license, and nothing of what lies beside it."""
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    library = ROOT / "shared"
    wanted = {
        path.relative_to(library).as_posix()
        for package in PACKAGES
        for path in (library / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    metadata = {name for name in held if name.partition("/")[0].endswith(".dist-info")}
    surplus = held - metadata - wanted
    require(not surplus, f"the wheel also holds {sorted(surplus)}")
    require(wanted <= held, f"the wheel lacks {sorted(wanted - held)}")
    require(not [name for name in held if "local" in Path(name).parts], "the emulator is in the wheel")
    require(any(name.endswith("/licenses/LICENSE") for name in metadata), "the wheel lacks the license")
    require(packed >= {*SOURCES, *(f"shared/{name}" for name in wanted)}, "the sdist lacks sources")


def install(wheel: Path, environment: Path, *, newest: bool) -> Path:
    """The interpreter of a new environment that has the wheel and what it depends on."""
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    if newest:
        subprocess.run([python, *PIP, wheel], check=True)
    else:
        subprocess.run([python, *PIP, "--require-hashes", "-r", ROOT / "requirements" / "core.txt"], check=True)
        subprocess.run([python, *PIP, "--no-deps", wheel], check=True)
    subprocess.run([python, "-m", "pip", "check"], stdout=subprocess.DEVNULL, check=True)
    return python


def use(python: Path, tables: Path) -> None:
    """Work on tables in a directory, with nothing in the environment that could name these sources."""
    tables.mkdir()
    command = python.with_name("lancelsm")
    orders = tables / "orders"
    output(tables, python, "-I", TABLE, orders)
    require("scrub" in output(tables, command, "--help"), "the help does not name the commands")
    require(output(tables, command, "get", orders, "--key", "2", "--output", "json") != "", "a row is gone")
    for check in ("doctor", "scrub"):
        output(tables, command, check, orders)


def serve_as_image(python: Path, wheel: Path, tables: Path) -> None:
    """Run what examples/Dockerfile runs in its image: installation, service, check of its health, and signal.

    The port is another one, and the table is in this directory.
    """
    image = (ROOT / "examples" / "Dockerfile").read_text()
    (extras,) = re.findall(r"^RUN pip install .*whl\)\[([a-z,]+)\]", image, re.MULTILINE)
    check, entry, arguments = (
        json.loads(re.findall(rf"^{name} .*?(\[.*\])$", image, re.MULTILINE)[0])
        for name in ("HEALTHCHECK", "ENTRYPOINT", "CMD")
    )
    (ends,) = re.findall(r"^STOPSIGNAL (\w+)$", image, re.MULTILINE)
    subprocess.run([python, *PIP, f"{wheel}[{extras}]"], check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    places = {"/lake/orders": str(tables / "orders"), "0.0.0.0:9090": f"127.0.0.1:{port}"}
    command = [python.with_name(entry[0]), *entry[1:], *(places.get(one, one) for one in arguments)]
    health = [python.with_name(check[0]), *(one.replace("9090", port) for one in check[1:])]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env={"PATH": os.defpath}) as service:
        try:
            answers = becomes_healthy(service, health)
        finally:
            service.send_signal(signal.Signals[ends])
    require(answers, "the service of the image does not become healthy")
    require(service.returncode == 0, f"the service of the image ended with {service.returncode}")


def becomes_healthy(service: subprocess.Popen[bytes], check: list[Path | str]) -> bool:
    for _ in range(60):
        if subprocess.run(check, stderr=subprocess.DEVNULL, check=False).returncode == 0:
            return True
        with suppress(subprocess.TimeoutExpired):
            service.wait(1)
            return False  # it has ended
    return False


def output(directory: Path, *command: Path | str) -> str:
    environment = {"PATH": os.defpath}
    done = subprocess.run(command, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise SystemExit(otherwise)


if __name__ == "__main__":
    main()
