"""Read the choices for one deployment from the context (`-c name=value`, or `context` in cdk.json).

Everything else is the same at every stage. docs/operations/deploy.md lists the values; the name of a stage only presets
some.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import aws_cdk as cdk
from aws_cdk import aws_logs as logs
from constructs import Node

from infra.backups import Backups, backups_of
from infra.context import Context
from infra.network import Subnets, subnets_of
from infra.partitions import check_partition
from infra.replication import Replica, replica_of
from infra.spark import SparkSizes
from lancelsm.common.settings import Settings, parse_settings
from lancelsm.stack.cost.from_metrics import FILTER

ROOT = Path(__file__).resolve().parent.parent
_NAME = re.compile(r"[a-z][a-z0-9-]{0,19}")
Architecture = Literal["arm64", "x86_64"]
Removal = Literal["retain", "destroy"]
# How many days CloudWatch keeps logs: the only numbers that it allows, in the order of the CDK's names for them.
LOG_DAYS = (
    1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653,
)  # fmt: skip
# The last name of the CDK means that logs never expire.
_RETENTION = dict(zip(LOG_DAYS, logs.RetentionDays, strict=False))
_SHIFT = 5
SHIFT_MINUTES = (0, 5, 10, 15, 30)  # the canaries of CodeDeploy for functions
# What differs by the name of a stage, unless the context gives it. Other names start from `dev`.
PRESETS: Mapping[str, Mapping[str, int]] = {
    "dev": {"schedule_minutes": 60, "log_days": 14},
    "prod": {"schedule_minutes": 5, "log_days": 90},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The choices. The name decides nothing but names: several stages may share an account and AWS region."""

    name: str
    region: str | None  # of AWS; None: that of the credentials
    emulator: bool  # no data has to last
    has_layers: bool  # functions and jobs get the packages that `make build` made
    removal: Removal  # of data, when the stack `State` is deleted
    log_days: int  # how long logs are kept
    tags: Mapping[str, str]  # of every resource
    permissions_boundary: str | None  # ARN of a policy that bounds every role
    subnets: Subnets | None  # of functions and jobs; None: they are in no VPC
    readers: tuple[str, ...]  # accounts that may read all tables
    replica: Replica | None
    schedule_minutes: int  # between two runs of `dispatch`; 0: never
    scrub_sample_days: int  # between two scrubs of a sample of each changed table; 0: never
    scrub_days: int  # the same of everything in it
    backups: Backups | None  # of each changed table, on a schedule
    architecture: Architecture
    layers: Path  # where `make build` puts them
    bucket: str | None  # name of an existing one
    registry: str | None  # name of an existing one
    queue: str | None  # ARN of an existing one; needs `dead_letters` too
    dead_letters: str | None
    kms_key: str | None  # ARN; without it S3, SQS and DynamoDB use their own keys
    alarm_topic: str | None  # ARN; without it alarms are only shown
    runbook_url: str | None  # where the files of docs/operations/runbooks are; alarms name it
    table_metrics: bool  # whether metrics are also there for each table, which costs more
    request_metrics: bool  # whether S3 counts the requests to the bucket, which costs more
    tracing: bool  # whether X-Ray traces functions and state machines
    shift_minutes: int  # during which a tenth of the calls gets a new version; 0: all at once
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
    def rounds(self) -> tuple[str, ...]:
        """The functions that run for each table on a schedule."""
        scrubs = self.scrub_sample_days or self.scrub_days
        return (*(("scrub",) if scrubs else ()), *(("backup",) if self.backups else ()))

    @property
    def bucket_name(self) -> str:
        """The bucket's name. It must be unique across all AWS accounts."""
        return self.bucket or f"{self.prefix}-{cdk.Aws.ACCOUNT_ID}-{cdk.Aws.REGION}"

    @property
    def registry_name(self) -> str:
        return self.registry or f"{self.prefix}-registry"

    @property
    def keeps_data(self) -> bool:
        """Whether data outlives its stack."""
        return self.removal == "retain"

    @property
    def removal_policy(self) -> cdk.RemovalPolicy:
        return cdk.RemovalPolicy.RETAIN if self.keeps_data else cdk.RemovalPolicy.DESTROY

    @property
    def log_retention(self) -> logs.RetentionDays:
        return _RETENTION[self.log_days]


def stage_of(node: Node) -> Stage:
    """Read the stage from the context of an app. docs/operations/deploy.md lists the values.

    Raises:
        ValueError: a value is not allowed; the message lists the allowed ones.
        Invalid: a setting of lancelsm is invalid.
    """
    context = Context(node.try_get_context)
    name = context.text("stage") or "dev"
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"-c stage={name}: give at most 20 lower-case letters, digits and hyphens, beginning with a letter"
        )
    emulator, presets = context.flag("emulator"), PRESETS.get(name, PRESETS["dev"])
    kms_key = context.arn("kms_key", "kms:REGION:ACCOUNT:key/ID", "kms:REGION:ACCOUNT:key/[A-Za-z0-9-]+")
    bucket = context.name("bucket", "the name of a bucket, without s3://", r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
    minutes = context.number("schedule_minutes", range(1441))
    shift = context.number("shift_minutes", SHIFT_MINUTES)
    chosen = Stage(
        name=name,
        region=context.text("region"),
        emulator=emulator,
        has_layers=context.flag("emulator_layers") or not emulator,
        removal=context.one_of("removal", Removal, default="destroy" if emulator else "retain"),
        log_days=context.number("log_days", LOG_DAYS) or presets["log_days"],
        tags=context.tags("tags"),
        permissions_boundary=context.arn(
            "permissions_boundary", "iam::ACCOUNT:policy/NAME", r"iam::(ACCOUNT|aws):policy/[\w+=,.@/-]+"
        ),
        subnets=subnets_of(context),
        readers=context.words("readers", "the id of an account, which has 12 digits", r"\d{12}"),
        replica=replica_of(context, kms_key=kms_key),
        scrub_sample_days=context.number("scrub_sample_days", range(366)) or 0,
        scrub_days=context.number("scrub_days", range(366)) or 0,
        backups=backups_of(context, own=re.escape(bucket) if bucket else rf"lancelsm-{name}-\d{{12}}-[a-z0-9-]+"),
        schedule_minutes=minutes if minutes is not None else 0 if emulator else presets["schedule_minutes"],
        architecture=context.one_of("architecture", Architecture, default="arm64"),
        layers=ROOT / (context.text("layers") or "layers/build"),
        bucket=bucket,
        registry=context.name("registry", "the name of a DynamoDB table", r"[\w.-]{3,255}"),
        queue=context.arn("queue", "sqs:REGION:ACCOUNT:NAME.fifo", r"sqs:REGION:ACCOUNT:[\w-]+\.fifo"),
        dead_letters=context.arn("dead_letters", "sqs:REGION:ACCOUNT:NAME.fifo", r"sqs:REGION:ACCOUNT:[\w-]+\.fifo"),
        kms_key=kms_key,
        alarm_topic=context.arn("alarm_topic", "sns:REGION:ACCOUNT:NAME", r"sns:REGION:ACCOUNT:[\w-]+"),
        runbook_url=(context.text("runbook_url") or "").rstrip("/") or None,
        table_metrics=context.flag("table_metrics"),
        request_metrics=context.flag("request_metrics"),
        tracing=context.flag("tracing"),
        shift_minutes=0 if emulator else _SHIFT if shift is None else shift,
        function_url=context.flag("function_url"),
        collect=context.one_of("collect", Literal["on", "off"], default="on") == "on",
        writers=context.number("maximum_concurrency", range(2, 1001)),
        noncurrent_days=context.number("noncurrent_days", range(1, 3651)) or 7,
        spark=_spark(context),
        expression=context.flag("expression"),
        settings=_settings(context.value),
    )
    if region := chosen.region or os.environ.get("CDK_DEFAULT_REGION"):  # the CDK sets it from the credentials
        check_partition(region, chosen={"function_url": chosen.function_url, "tracing": chosen.tracing})
    _check_existing(chosen)
    context.check_names(node.get_all_context())
    return chosen


def _check_existing(chosen: Stage) -> None:
    """Refuse what would have to change a resource that the stacks don't create."""
    if bool(chosen.queue) != bool(chosen.dead_letters):
        raise ValueError(
            "an existing queue needs its dead-letter queue: give both -c queue=ARN and -c dead_letters=ARN"
        )
    if chosen.readers and (chosen.bucket or chosen.registry):
        raise ValueError(
            "-c readers: the stacks change no policy of an existing bucket or registry. Leave readers out, and let the "
            "accounts read them there (docs/operations/deploy.md)"
        )
    if chosen.request_metrics and chosen.bucket:
        raise ValueError(
            f"-c request_metrics: the stacks change no existing bucket. Leave request_metrics out, and add request "
            f"metrics with the filter id {FILTER} to it"
        )
    if chosen.replica and chosen.bucket:
        raise ValueError(
            "-c replica_bucket: the stacks change no existing bucket. Leave replica_bucket out, and replicate it there"
        )


def _spark(context: Context) -> SparkSizes:
    """Return the sizes of Spark jobs. A value that is not given has its default."""
    given: dict[str, Any] = {}
    for field in fields(SparkSizes):
        name = f"spark_{field.name}"
        value = context.text(name) if field.name == "release" else context.number(name, range(1, 100_000))
        if value is not None:
            given[field.name] = value
    return SparkSizes(**given)


def _settings(context: Callable[[str], Any]) -> dict[str, str]:
    """Return the settings given as `-c LANCELSM_FLUSH_ROWS=1000`, validated by the library."""
    given = {field.name: context(f"LANCELSM_{field.name.upper()}") for field in fields(Settings)}
    kept = {name: value for name, value in given.items() if value is not None}
    return {f"LANCELSM_{name.upper()}": str(value) for name, value in parse_settings(kept).items()}
