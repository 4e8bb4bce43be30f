"""Read the choices for one deployment from the context (`-c name=value`, or `context` in cdk.json).

Everything else is the same at every stage.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, cast, get_args

import aws_cdk as cdk
from constructs import Node

from infra.partitions import check_partition
from infra.spark import SparkSizes
from lancelsm.common.settings import Settings, parse_settings

ROOT = Path(__file__).resolve().parent.parent
_NAME = re.compile(r"[a-z][a-z0-9-]{0,19}")
Architecture = Literal["arm64", "x86_64"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The choices. The name decides nothing but names: several stages may share an account and AWS region."""

    name: str
    region: str | None  # of AWS; None: that of the credentials
    emulator: bool  # it needs no layers, and no data has to last
    schedule_minutes: int  # between two runs of `dispatch`; 0: never
    architecture: Architecture
    layers: Path  # where `make build` puts them
    bucket: str | None  # name of an existing one
    registry: str | None  # name of an existing one
    queue: str | None  # ARN of an existing one; needs `dead_letters` too
    dead_letters: str | None
    kms_key: str | None  # ARN; without it S3, SQS and DynamoDB use their own keys
    alarm_topic: str | None  # ARN; without it alarms are only shown
    runbook_url: str | None  # where the files of docs/runbooks are; alarms name it
    table_metrics: bool  # whether metrics are also there for each table, which costs more
    function_url: bool  # whether `ingest` gets a URL, for callers with IAM credentials
    collect: bool  # whether merges start collections
    writers: int | None  # most invocations of `writer_flush` at the same time; None: no limit but the account's
    noncurrent_days: int  # how long the bucket keeps what was deleted or replaced
    spark: SparkSizes
    expression: bool  # whether tables may have regions by SQL expression, which needs one more layer
    settings: Mapping[str, str]  # of lancelsm, for all functions, by environment variable

    @property
    def prefix(self) -> str:
        """The prefix of every resource name."""
        return f"lancelsm-{self.name}"

    @property
    def local(self) -> bool:
        return self.emulator

    @property
    def bucket_name(self) -> str:
        """The bucket's name. It must be unique across all AWS accounts."""
        return self.bucket or f"{self.prefix}-{cdk.Aws.ACCOUNT_ID}-{cdk.Aws.REGION}"

    @property
    def registry_name(self) -> str:
        return self.registry or f"{self.prefix}-registry"

    @property
    def removal(self) -> cdk.RemovalPolicy:
        """What happens to data when its stack is deleted."""
        return cdk.RemovalPolicy.DESTROY if self.local else cdk.RemovalPolicy.RETAIN


def stage_of(node: Node) -> Stage:
    """Read the stage from the context of an app.

    Raises:
        ValueError: a value is not allowed; the message lists the allowed ones.
        Invalid: a setting of lancelsm is invalid.
    """

    def text(name: str) -> str | None:
        value = node.try_get_context(name)
        return str(value) if value else None

    def flag(name: str) -> bool:
        return _one_of(name, (text(name) or "false").lower(), Literal["true", "false"]) == "true"

    name = text("stage") or "dev"
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"-c stage={name}: give at most 20 lower-case letters, digits and hyphens, beginning with a letter"
        )
    preset = "5" if name == "prod" else "0"
    chosen = Stage(
        name=name,
        region=text("region"),
        emulator=flag("emulator"),
        schedule_minutes=_number("schedule_minutes", text("schedule_minutes") or preset, range(1441)) or 0,
        architecture=cast("Architecture", _one_of("architecture", text("architecture") or "arm64", Architecture)),
        layers=ROOT / (text("layers") or "layers/build"),
        bucket=text("bucket"),
        registry=text("registry"),
        queue=text("queue"),
        dead_letters=text("dead_letters"),
        kms_key=text("kms_key"),
        alarm_topic=text("alarm_topic"),
        runbook_url=(text("runbook_url") or "").rstrip("/") or None,
        table_metrics=flag("table_metrics"),
        function_url=flag("function_url"),
        collect=_one_of("collect", (text("collect") or "on").lower(), Literal["on", "off"]) == "on",
        writers=_number("maximum_concurrency", text("maximum_concurrency"), range(2, 1001)),
        noncurrent_days=_number("noncurrent_days", text("noncurrent_days"), range(1, 3651)) or 7,
        spark=_spark(text),
        expression=flag("expression"),
        settings=_settings(node.try_get_context),
    )
    if region := chosen.region or os.environ.get("CDK_DEFAULT_REGION"):  # the CDK sets it from the credentials
        check_partition(region, chosen={"function_url": chosen.function_url, "tracing": flag("tracing")})
    if bool(chosen.queue) != bool(chosen.dead_letters):
        raise ValueError(
            "an existing queue needs its dead-letter queue: give both -c queue=ARN and -c dead_letters=ARN"
        )
    return chosen


def _one_of(name: str, value: str, literal: Any) -> str:
    if value not in get_args(literal):
        raise ValueError(f"-c {name}={value}: give one of {', '.join(get_args(literal))}")
    return value


def _number(name: str, value: str | None, allowed: range) -> int | None:
    if value is None:
        return None
    if not value.isdecimal() or int(value) not in allowed:
        raise ValueError(f"-c {name}={value}: give a whole number from {allowed.start} to {allowed.stop - 1}")
    return int(value)


def _spark(text: Callable[[str], str | None]) -> SparkSizes:
    """Return the sizes of Spark jobs. A value that is not given has its default."""
    given: dict[str, Any] = {}
    for field in fields(SparkSizes):
        name = f"spark_{field.name}"
        if (value := text(name)) is not None:
            given[field.name] = value if field.name == "release" else _number(name, value, range(1, 100_000))
    return SparkSizes(**given)


def _settings(context: Callable[[str], Any]) -> dict[str, str]:
    """Return the settings given as `-c LANCELSM_FLUSH_ROWS=1000`, validated by the library."""
    given = {field.name: context(f"LANCELSM_{field.name.upper()}") for field in fields(Settings)}
    kept = {name: value for name, value in given.items() if value is not None}
    return {f"LANCELSM_{name.upper()}": str(value) for name, value in parse_settings(kept).items()}
