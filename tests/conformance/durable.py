"""Run a writer that prints each key once its write is acknowledged, and kill it.

python -m tests.conformance.durable objects|registry DESCRIPTION
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

from lancelsm.common.layout import Key
from lancelsm.objects import Written
from lancelsm.registry import SwapApplied
from tests.conformance.backends import Description, opened_registry, opened_store
from tests.conformance.race import ROOT

SIZE = 100_000


def acknowledged_until_killed(port: str, description: Description, count: int) -> list[str]:
    """Return the keys that were acknowledged to a writer before it was killed. There are at least `count`."""
    command = [sys.executable, "-m", "tests.conformance.durable", port, json.dumps(description)]
    writer = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        lines = [writer.stdout.readline() for _ in range(count)]
    finally:
        writer.kill()
        rest, _ = writer.communicate()
    return [line.strip() for line in lines + rest.splitlines(keepends=True) if line.endswith("\n")]


def body_of(number: int) -> bytes:
    return number.to_bytes(8, "big") * (SIZE // 8)


def record_key(number: int) -> Key:
    return Key(partition="K#killed", sort=f"{number:08}")


def main() -> None:
    port, description = sys.argv[1], json.loads(sys.argv[2])
    if port == "objects":
        store = opened_store(description)
        for number in itertools.count():
            assert isinstance(store.create(f"wal/{number:08}", body_of(number)), Written)
            print(number, flush=True)
    registry = opened_registry(description)
    for number in itertools.count():
        assert isinstance(registry.swap(record_key(number), expect=None, change={"n": number}), SwapApplied)
        print(number, flush=True)


if __name__ == "__main__":
    main()
