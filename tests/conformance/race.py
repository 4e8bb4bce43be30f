"""Race several actors on one store or registry. An actor is a thread of the test or a process of its own.

    python -m tests.conformance.race TASK DESCRIPTION NAME

A process prints `ready`, waits for a line, runs its task and prints the result as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

from lancelsm.common.layout import Key
from lancelsm.objects import Object, ObjectStore, Written
from lancelsm.registry import Registry, SwapApplied
from tests.conformance.backends import Description, opened_registry, opened_store

ROOT = Path(__file__).parents[2]
ROUNDS = 20
STEPS = 10
COUNTER = "counter"
RECORD = Key(partition="C#race", sort="counter")


def create_each(store: ObjectStore, name: str) -> list[int]:
    """Return the rounds in which this actor's create was the first."""
    return [n for n in range(ROUNDS) if isinstance(store.create(f"round/{n}", f"{n} {name}".encode()), Written)]


def count_object(store: ObjectStore, name: str) -> int:
    """Add 1 to the counter `STEPS` times. Returns the number of attempts."""
    tries = 0
    for _ in range(STEPS):
        while True:
            tries += 1
            found: Object = store.get(COUNTER)
            value = json.loads(found.body)["n"]
            # `by` and `try` make each body unique: equal bodies have equal ETags.
            body = json.dumps({"n": value + 1, "by": name, "try": tries}).encode()
            if isinstance(store.replace(COUNTER, body, expect=found.etag), Written):
                break
    return tries


def create_each_record(registry: Registry, name: str) -> list[int]:
    """Return the rounds in which this actor's create was the first."""
    return [
        n
        for n in range(ROUNDS)
        if isinstance(
            registry.swap(Key(partition="R#race", sort=f"{n}"), expect=None, change={"by": name}), SwapApplied
        )
    ]


def count_record(registry: Registry, name: str) -> int:
    """Add 1 to the counter `STEPS` times. Returns the number of attempts."""
    tries = 0
    for _ in range(STEPS):
        while True:
            tries += 1
            value = registry.read(RECORD)["n"]
            if isinstance(registry.swap(RECORD, expect={"n": value}, change={"n": value + 1}), SwapApplied):
                break
    return tries


def count_own_field(registry: Registry, name: str) -> int:
    """Add 1 to the actor's own field of the record `STEPS` times. Returns the number of lost swaps."""
    lost = 0
    for value in range(STEPS):
        outcome = registry.swap(RECORD, expect={name: value}, change={name: value + 1})
        lost += not isinstance(outcome, SwapApplied)
    return lost


TASKS: dict[str, tuple[Callable[[Description], Any], Callable[[Any, str], Any]]] = {
    "create_each": (opened_store, create_each),
    "count_object": (opened_store, count_object),
    "create_each_record": (opened_registry, create_each_record),
    "count_record": (opened_registry, count_record),
    "count_own_field": (opened_registry, count_own_field),
}


def by_threads(task: str, shared: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the result of every actor. All start at once, on one adapter."""
    run, barrier = TASKS[task][1], Barrier(len(names))

    def actor(name: str) -> Any:
        barrier.wait()
        return run(shared, name)

    with ThreadPoolExecutor(len(names)) as pool:
        return dict(zip(names, pool.map(actor, names), strict=True))


def by_processes(task: str, description: Description, names: Sequence[str]) -> dict[str, Any]:
    """Return the result of every actor. Each is a process with its own adapter, and all start at once."""
    command = [sys.executable, "-m", "tests.conformance.race", task, json.dumps(description)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    actors = {name: subprocess.Popen([*command, name], cwd=ROOT, **pipes) for name in names}
    try:
        for actor in actors.values():
            assert actor.stdout.readline() == "ready\n"
        for actor in actors.values():
            actor.stdin.write("go\n")
            actor.stdin.flush()
        return {name: json.loads(actor.communicate(timeout=300)[0]) for name, actor in actors.items()}
    finally:
        for actor in actors.values():
            actor.kill()
            actor.communicate()


def main() -> None:
    task, description, name = sys.argv[1:]
    open_shared, run = TASKS[task]
    shared = open_shared(json.loads(description))
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(run(shared, name)))


if __name__ == "__main__":
    main()
