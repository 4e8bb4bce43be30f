"""The generated protobuf modules are up to date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

GENERATE = Path(__file__).resolve().parents[2] / "proto" / "generate.py"


def test_the_generated_code_matches_the_proto_files() -> None:
    done = subprocess.run([sys.executable, GENERATE, "--check"], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
