"""Open the adapters under test from a description. Another process can open the same one from the same description."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lancelsm.common.clock import SystemClock, SystemIds
from lancelsm.objects import ObjectStore
from lancelsm.objects.open import open_store
from lancelsm.registry import Registry
from lancelsm.registry.dynamodb import DynamoRegistry
from lancelsm.registry.open import open_registry
from tests.conformance.dynamodb import dynamodb_client
from tests.simulation.faults import MemoryRegistry, MemoryStore

Description = Mapping[str, Any]

OBJECTS = ("memory", "local", "s3", "versioned-s3")
REGISTRIES = (
    "memory",
    "sqlite",
    "object-on-memory",
    "object-on-local",
    "object-on-s3",
    "dynamodb",
    "dynamodb-stale-replica",
    "dynamodb-other",
)


def between_processes(names: tuple[str, ...]) -> list[str]:
    """Return the backends that processes can share, one of each kind."""
    return [name for name in names if "memory" not in name and "stale" not in name]


def opened_store(description: Description) -> ObjectStore:
    if description["backend"].endswith("memory"):
        return MemoryStore()
    return open_store(description["uri"], description.get("options"))


def opened_registry(description: Description) -> Registry:
    if description["backend"] == "memory":
        return MemoryRegistry()
    kind = description["backend"].split("-")[0]
    if kind == "dynamodb":
        client = dynamodb_client(description["endpoint"])
        return DynamoRegistry(description["table"], client=client, clock=SystemClock(), ids=SystemIds())
    uri = description.get("uri", Path("unused"))
    return open_registry(kind, uri=uri, store=opened_store(description), clock=SystemClock(), ids=SystemIds())
