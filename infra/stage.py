"""What is chosen for one deployment, read once from the context (`-c name=value`, or `context` in cdk.json).

Everything else is the same in every stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, cast, get_args

import aws_cdk as cdk
from constructs import Node

from lancelsm.common.settings import Settings, checked

ROOT = Path(__file__).resolve().parent.parent
StageName = Literal["local", "dev", "prod"]
Architecture = Literal["arm64", "x86_64"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The choices. `local` is the emulator: its own interpreter has what layers hold, and nothing has to last."""

    name: StageName
    architecture: Architecture
    layers: Path  # where `make build` left them
    bucket: str | None  # name of one that exists
    registry: str | None  # name of one that exists
    queue: str | None  # ARN of one that exists; with its dead letters
    dead_letters: str | None
    kms_key: str | None  # ARN; without it S3, SQS and DynamoDB use keys of their own
    alarm_topic: str | None  # ARN; without it alarms are only shown
    function_url: bool  # of ingest, for callers with IAM credentials
    collect: bool  # merges start collections
    expression: bool  # for tables whose regions are made by SQL expressions: a layer more
    pace: Mapping[str, str]  # settings of lancelsm for all functions, by variable

    @property
    def prefix(self) -> str:
        """How every physical name starts."""
        return f"lancelsm-{self.name}"

    @property
    def local(self) -> bool:
        return self.name == "local"

    @property
    def bucket_name(self) -> str:
        """Buckets share one namespace in the world."""
        return self.bucket or f"{self.prefix}-{cdk.Aws.ACCOUNT_ID}-{cdk.Aws.REGION}"

    @property
    def registry_name(self) -> str:
        return self.registry or f"{self.prefix}-registry"

    @property
    def removal(self) -> cdk.RemovalPolicy:
        """What happens to data when its stack goes."""
        return cdk.RemovalPolicy.DESTROY if self.local else cdk.RemovalPolicy.RETAIN


def stage_of(node: Node) -> Stage:
    """The stage of an app, from its context.

    Raises:
        ValueError: a value is none of those that its name allows; says which.
    """

    def text(name: str) -> str | None:
        value = node.try_get_context(name)
        return str(value) if value else None

    def flag(name: str) -> bool:
        return _one_of(name, (text(name) or "false").lower(), Literal["true", "false"]) == "true"

    chosen = Stage(
        name=cast("StageName", _one_of("stage", text("stage") or "dev", StageName)),
        architecture=cast("Architecture", _one_of("architecture", text("architecture") or "arm64", Architecture)),
        layers=ROOT / (text("layers") or "layers/build"),
        bucket=text("bucket"),
        registry=text("registry"),
        queue=text("queue"),
        dead_letters=text("dead_letters"),
        kms_key=text("kms_key"),
        alarm_topic=text("alarm_topic"),
        function_url=flag("function_url"),
        collect=_one_of("collect", (text("collect") or "on").lower(), Literal["on", "off"]) == "on",
        expression=flag("expression"),
        pace=_pace(node.try_get_context),
    )
    if bool(chosen.queue) != bool(chosen.dead_letters):
        raise ValueError("a queue that exists comes with its dead letters: give both -c queue=ARN -c dead_letters=ARN")
    return chosen


def _one_of(name: str, value: str, kind: Any) -> str:
    if value not in get_args(kind):
        raise ValueError(f"-c {name}={value}: give one of {', '.join(get_args(kind))}")
    return value


def _pace(context: Callable[[str], Any]) -> dict[str, str]:
    """Settings given as `-c LANCELSM_FLUSH_ROWS=1000`, checked as the library checks them."""
    given = {field.name: context(f"LANCELSM_{field.name.upper()}") for field in fields(Settings)}
    kept = {name: value for name, value in given.items() if value is not None}
    return {f"LANCELSM_{name.upper()}": str(value) for name, value in checked(kept).items()}
