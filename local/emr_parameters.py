"""Derive the Spark properties of a job run and the capacity of its workers from its request. Pure functions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lancelsm.errors import Invalid

# Options of spark-submit that set a property.
_OPTIONS = {
    "--archives": "spark.archives",
    "--driver-cores": "spark.driver.cores",
    "--driver-memory": "spark.driver.memory",
    "--executor-cores": "spark.executor.cores",
    "--executor-memory": "spark.executor.memory",
    "--files": "spark.files",
    "--jars": "spark.jars",
    "--name": "spark.app.name",
    "--num-executors": "spark.executor.instances",
    "--py-files": "spark.submit.pyFiles",
}
# The service's defaults for a worker. Memory outside the heap is a tenth of the heap unless the job sets it.
_CORES, _MEMORY, _EXECUTORS, _OVERHEAD = "4", "14g", 3, 0.1
_UNITS = {"": 1 / 2**30, "k": 1 / 2**20, "m": 1 / 2**10, "g": 1.0, "t": 2.0**10}


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """A number of vCPUs and of GB of memory."""

    cpu: float
    memory: float

    def __add__(self, other: Capacity) -> Capacity:
        return Capacity(cpu=self.cpu + other.cpu, memory=self.memory + other.memory)

    def fits(self, maximum: Capacity) -> bool:
        return self.cpu <= maximum.cpu and self.memory <= maximum.memory


def capacity(document: Mapping[str, str]) -> Capacity:
    """Parse a `maximumCapacity` of the API: {"cpu": "16 vCPU", "memory": "64 GB"}."""

    def number(text: str) -> float:
        found = re.fullmatch(r"([0-9.]+)\s*[A-Za-z]*", text)
        if not found:
            raise Invalid(f"{text!r} is not a capacity", remedy="Write it as 16 vCPU or 64 GB")
        return float(found[1])

    return Capacity(cpu=number(document["cpu"]), memory=number(document["memory"]))


def spark_properties(request: Mapping[str, Any]) -> dict[str, str]:
    """Return the Spark properties of a StartJobRun request. Parameters of spark-submit override its `spark-defaults`.

    Raises:
        Invalid: an option of spark-submit is unknown or not supported here.
    """
    overrides = request.get("configurationOverrides", {}).get("applicationConfiguration", [])
    properties: dict[str, str] = {}
    for one in overrides:
        if one.get("classification") == "spark-defaults":
            properties |= one.get("properties", {})
    words = shlex.split(request["jobDriver"]["sparkSubmit"].get("sparkSubmitParameters", ""))
    while words:
        option, equals, value = words.pop(0).partition("=")
        if not equals:
            if not words:
                raise Invalid(f"the spark-submit parameter {option} has no value")
            value = words.pop(0)
        if option == "--conf":
            name, _, value = value.partition("=")
            properties[name] = value
        elif option in _OPTIONS:
            properties[_OPTIONS[option]] = value
        else:
            raise Invalid(f"the spark-submit parameter {option} is not supported here", remedy="Use --conf")
    return properties


def workers(properties: Mapping[str, str]) -> Capacity:
    """Return the capacity of the driver and the executors that a job starts with."""

    def worker(kind: str) -> Capacity:
        heap = _gigabytes(properties.get(f"spark.{kind}.memory", _MEMORY))
        overhead = properties.get(f"spark.{kind}.memoryOverhead")
        memory = heap + (heap * _OVERHEAD if overhead is None else _gigabytes(overhead))
        return Capacity(cpu=float(properties.get(f"spark.{kind}.cores", _CORES)), memory=memory)

    initial = 1 if properties.get("spark.dynamicAllocation.enabled", "true") == "true" else _EXECUTORS
    count = int(properties.get("spark.executor.instances", initial))
    return sum((worker("executor") for _ in range(count)), worker("driver"))


def _gigabytes(text: str) -> float:
    found = re.fullmatch(r"(\d+)\s*([kmgt]?)b?", text.strip().lower())
    if not found:
        raise Invalid(f"{text!r} is not an amount of memory", remedy="Write it as 14g")
    return int(found[1]) * _UNITS[found[2]]
