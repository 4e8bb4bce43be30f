"""The modules that a writer needs import nothing heavy."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import lancelsm
from tests.unit.tables import three_levels

PACKAGE = Path(lancelsm.__file__).parent
LEAN = ("common", "record", "routing", "region", "wal", "objects", "registry")
HEAVY = ("numpy", "lance", "pydantic", "pyarrow.dataset", "pyspark", "pandas", "datafusion", "boto3")


def modules(name: str) -> list[str]:
    """The module `lancelsm.{name}`, or the package and all modules in it."""
    folder = PACKAGE / name
    return [f"lancelsm.{name}", *(f"lancelsm.{name}.{found.name}" for found in pkgutil.iter_modules([str(folder)]))]


@pytest.mark.one_case
@pytest.mark.parametrize("name", LEAN)
def test_a_lean_module_imports_without_heavy_packages(name: str) -> None:
    # pyarrow imports numpy if it is installed, so the script hides the heavy packages instead.
    script = f"import sys; sys.modules |= dict.fromkeys({HEAVY}); import {', '.join(modules(name))}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.rest
def test_a_process_of_status_does_not_load_lance(tmp_path: Path) -> None:
    table = three_levels(tmp_path / "table")
    table.merge()  # its marker is a version of the base without a statement of its own
    script = (
        f"import sys; sys.modules['lance'] = None; from lancelsm.cli import main; "
        f"main(['status', {table.uri!r}, '--output', 'json'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["base_version"] == table.status().base_version
