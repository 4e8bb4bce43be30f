"""Build the Lambda layers, and unpack a packed library when it is imported."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import threading
from importlib.metadata import requires
from pathlib import Path

import pytest

import lancelsm
from layers.building import (
    LAYERS,
    MACHINES,
    MAX_BYTES,
    BuildError,
    check_libraries,
    check_size,
    check_versions,
    lock_of,
    locked,
    pack,
    platforms,
)
from layers.packed import unpacked
from layers.slimming import SERVICES, libraries, slim, without_sections

SHARED = Path(lancelsm.__file__).parents[1]


def pins(name: str) -> dict[str, str]:
    return locked(lock_of(LAYERS[name]).read_text())


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_contains_only_tested_versions(name: str) -> None:
    tested = re.findall(r"^([a-z0-9-]+)==(\S+)", (SHARED.parent / "requirements" / "dev.txt").read_text(), re.MULTILINE)

    assert set(pins(name).items()) <= set(tested)


def test_the_writer_layer_contains_neither_lance_nor_numpy() -> None:
    assert not pins("lean").keys() & {"numpy", "pydantic", "pylance"}
    assert pins("lance").keys() >= {*pins("lean"), "numpy", "pylance"}


@pytest.mark.parametrize("lock", ["spark.txt", "aws.txt", "layer-spark.txt"])
def test_each_lock_for_spark_has_what_pyspark_needs_to_take_frames_of_arrow(lock: str) -> None:
    needed = [re.match(r"\w+", one) for one in requires("pyspark") or () if one.endswith('extra == "sql"')]
    names = {one[0] for one in needed if one}

    assert names >= {"pandas", "pyarrow"}
    assert names <= locked((SHARED.parent / "requirements" / lock).read_text()).keys()


def test_the_expression_layer_repeats_no_package_of_the_lean_layer() -> None:
    assert not pins("expression").keys() & pins("lean").keys()


# This code runs where the whole package is installed, never in a function.
NOT_IN_FUNCTIONS = {"cli", "client", "cost.py", "doctor.py", "local"}


def test_layers_keep_the_service_descriptions_of_all_services_that_functions_call() -> None:
    sources = [*(SHARED / "lancelsm").rglob("*.py"), *(SHARED.parent / "functions").glob("*.py")]
    inside = [path.read_text() for path in sources if not NOT_IN_FUNCTIONS & set(path.relative_to(SHARED.parent).parts)]
    called = {name for source in inside for name in re.findall(r"\bclient\(\"([a-z0-9-]+)\"", source)}

    assert called
    assert called <= SERVICES


@pytest.mark.parametrize("machine", MACHINES.values())
def test_wheels_for_older_c_libraries_are_accepted(machine: str) -> None:
    tags = platforms(machine)

    assert {f"manylinux_2_{minor}_{machine}" for minor in (17, 24, 26, 28, 34)} <= set(tags)
    assert f"manylinux_2_35_{machine}" not in tags


def installed(directory: Path, **versions: str) -> Path:
    for name, version in versions.items():
        info = directory / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return directory


LOCK = "py-arrow==26.0.1 \\\n    --hash=sha256:00\n    # via -r x.in\nobstore==0.12.1 \\\n    --hash=sha256:00\n"


def test_packages_that_match_the_lock_file_pass_the_check(tmp_path: Path) -> None:
    check_versions(installed(tmp_path, py_arrow="26.0.1", obstore="0.12.1"), LOCK)


@pytest.mark.parametrize("versions", [{"py_arrow": "26.0.1", "obstore": "0.3.0"}, {"py_arrow": "26.0.1"}])
def test_an_older_or_missing_package_fails_the_build(tmp_path: Path, versions: dict[str, str]) -> None:
    with pytest.raises(BuildError, match="obstore"):
        check_versions(installed(tmp_path, **versions), LOCK)


def test_a_layer_larger_than_lambda_allows_fails_the_build(tmp_path: Path) -> None:
    with (tmp_path / "library.so").open("wb") as file:
        file.truncate(MAX_BYTES - 100)

    check_size([tmp_path], 99)
    with pytest.raises(BuildError, match="262,144,000"):
        check_size([tmp_path], 100)


def elf(*, machine: int = 62, content: bytes = b"code", after: bytes = b"symbols") -> bytes:
    """Encode an ELF file with one segment of `content`, followed by sections."""
    header = bytearray(64)
    header[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<H", header, 18, machine)
    struct.pack_into("<Q", header, 0x20, 64)
    struct.pack_into("<Q", header, 0x28, 120 + len(content))
    struct.pack_into("<HHHHH", header, 0x36, 56, 1, 64, 1, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 120, 0, 0, len(content), len(content), 1)
    return bytes(header) + segment + content + after


def test_only_bytes_that_no_loader_maps_are_cut_off() -> None:
    cut = without_sections(elf(content=b"code", after=b"symbols"))

    assert cut.endswith(b"code")
    assert struct.unpack_from("<Q", cut, 0x28) == (0,)
    assert without_sections(cut) == cut


def test_a_real_library_works_without_its_sections(tmp_path: Path) -> None:
    import mmh3

    assert mmh3.__file__ is not None
    (tmp_path / Path(mmh3.__file__).name).write_bytes(without_sections(Path(mmh3.__file__).read_bytes()))
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import mmh3; print(mmh3.__file__, mmh3.hash('a'))"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert done.stdout.split() == [str(tmp_path / Path(mmh3.__file__).name), str(mmh3.hash("a"))], done.stderr


@pytest.mark.parametrize(
    ("library", "raised"),
    [
        (elf(machine=183), "not built for x86_64"),
        (elf(content=b"GLIBC_2.4\0GLIBC_2.35\0"), r"needs glibc 2\.35"),
    ],
)
def test_a_library_that_the_runtime_cannot_load_fails_the_build(tmp_path: Path, library: bytes, raised: str) -> None:
    (tmp_path / "a.so").write_bytes(library)

    with pytest.raises(BuildError, match=raised):
        check_libraries(tmp_path, "x86_64")


def test_slimming_keeps_the_files_that_are_needed_at_run_time(tmp_path: Path) -> None:
    kept = [
        "pyarrow/lib.cpython-313.so",
        "pyarrow/libarrow_python.so.2600",
        "botocore/data/sqs/a.json",
        "numpy/core.py",
    ]
    removed = [
        "pyarrow/include/arrow/api.h",
        "pyarrow/libarrow_flight.so.2600",
        "pyarrow/libarrow_python.so",
        "pyarrow/libarrow_python.so.2600.1.0",
        "botocore/data/ec2/a.json",
        "numpy/lib/tests/test_io.py",
        "numpy/core.pyi",
    ]
    for name in (*kept, *removed):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(elf() if ".so" in name else b"text")

    slim(tmp_path)
    slim(tmp_path)

    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == sorted(kept)
    assert len(libraries(tmp_path)) == 2


CONTENT = os.urandom(1000) * 3000


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    library = tmp_path / "layer" / "lance" / "lance.abi3.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(CONTENT)
    return pack(library)


def test_concurrent_imports_unpack_a_library_once_and_unchanged(tmp_path: Path, packed: Path) -> None:
    paths: list[str] = []
    threads = [threading.Thread(target=lambda: paths.append(unpacked(str(packed), str(tmp_path)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(paths)) == 1
    assert len(paths) == 8
    assert Path(paths[0]).read_bytes() == CONTENT
    assert not list(tmp_path.glob("*.part"))


def test_a_partly_unpacked_library_of_a_crashed_process_is_unpacked_again(tmp_path: Path, packed: Path) -> None:
    (tmp_path / packed.name.removesuffix(".zst")).with_suffix(".so.part").write_bytes(b"half" * 1_000_000)

    assert Path(unpacked(str(packed), str(tmp_path))).read_bytes() == CONTENT


def test_an_unpacked_library_is_not_unpacked_again(tmp_path: Path, packed: Path) -> None:
    first = Path(unpacked(str(packed), str(tmp_path)))
    packed.unlink()

    assert unpacked(str(packed), str(tmp_path)) == str(first)


def test_a_truncated_library_is_never_loaded(tmp_path: Path, packed: Path) -> None:
    shorter = packed.with_name(packed.name.replace(f"-{len(CONTENT)}.", f"-{len(CONTENT) + 1}."))
    packed.rename(shorter)

    with pytest.raises(ImportError, match="build the layer again"):
        unpacked(str(shorter), str(tmp_path))
    assert not list(tmp_path.glob("*.so"))


def test_the_error_of_a_full_disk_says_how_many_bytes_are_needed(tmp_path: Path, packed: Path) -> None:
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000)); "
        f"from layers.packed import unpacked; unpacked({str(packed)!r}, {str(tmp_path)!r})"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=SHARED.parent, check=False
    )

    assert f"needs {len(CONTENT)} bytes in {tmp_path}" in done.stderr
    assert not list(tmp_path.glob("*.so"))


def test_a_packed_extension_module_replaces_the_module_that_unpacks_it(tmp_path: Path) -> None:
    """`from .lance import ...` within a package works like this."""
    import mmh3

    assert mmh3.__file__ is not None
    package = tmp_path / "layer" / "outer"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .mmh3 import hash\n")
    library = package / Path(mmh3.__file__).name
    library.write_bytes(Path(mmh3.__file__).read_bytes())
    pack(library)
    script = (
        f"import sys; sys.path.insert(0, {str(package.parent)!r}); import outer; "
        "print(outer.hash('a'), outer.mmh3 is sys.modules['outer.mmh3'], outer.mmh3.__file__)"
    )

    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        check=False,
    )

    assert done.stdout.split()[:2] == [str(mmh3.hash("a")), "True"], done.stderr
    assert done.stdout.split()[2].startswith(str(tmp_path / "mmh3-"))
