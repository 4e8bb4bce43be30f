"""Only `lancelsm.dataset` imports Lance, and the modules that a writer needs import nothing heavy."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import lancelsm

PACKAGE = Path(lancelsm.__file__).parent
LEAN = ("common", "record", "routing", "region", "wal", "objects", "registry")
HEAVY = ("numpy", "lance", "pydantic", "pyarrow.dataset", "pyspark", "pandas", "datafusion", "boto3")


def imported(source: Path) -> set[str]:
    """The modules that `source` imports anywhere, in functions too."""
    nodes = list(ast.walk(ast.parse(source.read_text())))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}


def test_only_the_dataset_package_imports_lance() -> None:
    users = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if any(module.split(".")[0] == "lance" for module in imported(path))
    }

    assert {user for user in users if not user.startswith("dataset/")} == set()


def modules(name: str) -> list[str]:
    """The module `lancelsm.{name}`, or the package and all modules in it."""
    folder = PACKAGE / name
    return [f"lancelsm.{name}", *(f"lancelsm.{name}.{found.name}" for found in pkgutil.iter_modules([str(folder)]))]


@pytest.mark.parametrize("name", LEAN)
def test_a_lean_module_imports_without_heavy_packages(name: str) -> None:
    # pyarrow imports numpy if it is installed, so the script hides the heavy packages instead.
    script = f"import sys; sys.modules |= dict.fromkeys({HEAVY}); import {', '.join(modules(name))}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
