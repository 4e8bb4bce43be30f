"""Say in which partition of AWS an AWS region is, and refuse what that partition lacks.

Templates name no partition, so the same stacks are deployed to each. Only what is listed here differs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")
_PREFIXES = {"cn-": "aws-cn", "us-gov-": "aws-us-gov", "us-iso": "aws-iso", "eu-iso": "aws-iso", "eusc-": "aws-eusc"}
# What a partition lacks, by the name of the value in the context that asks for it.
LACKING: Mapping[str, Mapping[str, str]] = {
    "aws": {},
    "aws-us-gov": {},
    "aws-cn": {"function_url": "URLs of functions", "tracing": "X-Ray for functions"},
}


def partition_of(region: str) -> str:
    """Return the partition of an AWS region.

    Raises:
        ValueError: `region` is not the name of an AWS region, or lancelsm does not support its partition.
    """
    if not _REGION.fullmatch(region) and not region.startswith("eusc-"):
        raise ValueError(f"-c region={region}: give the name of an AWS region, such as us-gov-west-1")
    partition = next((name for start, name in _PREFIXES.items() if region.startswith(start)), "aws")
    if partition not in LACKING:
        raise ValueError(f"-c region={region}: the partition {partition} is not one of {', '.join(LACKING)}")
    return partition


def check_partition(region: str, *, chosen: Mapping[str, bool]) -> None:
    """Check that the partition of this AWS region has what the context asks for.

    Args:
        chosen: whether the context asks for something, by the name of the value.

    Raises:
        ValueError: it lacks something; or as `partition_of`.
    """
    partition = partition_of(region)
    for name, what in LACKING[partition].items():
        if chosen.get(name):
            raise ValueError(f"-c {name}: the partition {partition} of {region} has no {what}. Leave {name} out")
