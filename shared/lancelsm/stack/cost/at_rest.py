"""Estimate the cost of a deployment without writes from the resources in its templates.

A resource type without a rule here raises `Invalid`, so each new resource of the stacks needs a rule for its price.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from lancelsm.errors import Invalid
from lancelsm.stack.cost import CostItem, prices
from lancelsm.stack.cost.per_row import MEMORY_MB, MONTH_SECONDS

Properties = Mapping[str, Any]

_POLLERS = 5  # pollers per event source mapping; each poll waits 20 s for messages
_POLL_SECONDS = 20
_DISPATCH_SECONDS = 0.2
_ROUND_SECONDS = 3.0  # a start with Lance, and the list of tables
_LOG_BYTES = 1200
_FREE_DASHBOARDS = 3
_RECORDS_GB = 0.001
_REQUEST_METRICS = 16  # that S3 writes for a bucket
_STAGE = re.compile(r"[a-z][a-z0-9-]{0,19}")
_RATE = re.compile(r"rate\((\d+) (minute|hour|day)s?\)")
_UNIT_SECONDS = {"minute": 60, "hour": 3600, "day": 86400}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The resources of a deployment that cost something at rest."""

    alarms: int = 0  # metrics of alarms
    dashboards: int = 0
    mappings: int = 0  # event source mappings from a queue to a function
    runs: int = 0  # scheduled runs of `dispatch` per month
    rounds: int = 0  # scheduled runs of `scrub` and `backup` per month, without what they read of tables
    metrics: int = 0  # that the runs of `dispatch` write: the heartbeat
    request_metrics: int = 0  # of S3
    registries: int = 0
    keys: int = 0
    interfaces: int = 0  # of VPC endpoints: one in each subnet

    def __add__(self, other: Inventory) -> Inventory:
        return Inventory(**{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)})


# The resources of the stacks; tests/infra compares this with the templates.
AT_REST: Final[Mapping[str, Inventory]] = {
    "dev": Inventory(alarms=20, dashboards=1, mappings=2, registries=1, runs=730, metrics=1),
    "prod": Inventory(alarms=20, dashboards=1, mappings=2, registries=1, runs=8760, metrics=1),
}


def presets_of(stage: str) -> str:
    """Return the stage whose presets a stage has. Raises `Invalid` if no stage may have this name."""
    if not _STAGE.fullmatch(stage):
        remedy = "Give at most 20 lower-case letters, digits and hyphens, beginning with a letter"
        raise Invalid(f"{stage!r} is no name of a stage", remedy=remedy, field="stage")
    return stage if stage in AT_REST else "dev"


def bill_at_rest(resources: Inventory) -> list[CostItem]:
    """Return the bill of a month without writes, without the cost of stored data."""
    part = "at rest"
    polls = resources.mappings * _POLLERS * MONTH_SECONDS / _POLL_SECONDS
    duration = resources.runs * _DISPATCH_SECONDS * MEMORY_MB["dispatch"] / 1024
    records = resources.registries * _RECORDS_GB
    priced = (
        ("alarms", resources.alarms, prices.ALARM),
        ("heartbeat of dispatch", resources.metrics, prices.METRIC),
        ("S3 request metrics", resources.request_metrics, prices.METRIC),
        ("queue polling", polls, prices.QUEUE_REQUEST),
        ("dispatch", resources.runs, prices.INVOCATION),
        ("dispatch", duration, prices.ARM_GB_SECOND),
        ("dispatch, index reads", resources.runs, prices.RECORD_READ),
        ("logs of dispatch", resources.runs * _LOG_BYTES / 1e9, prices.LOGS),
        ("scrub and backup", resources.rounds, prices.INVOCATION),
        ("scrub and backup", resources.rounds * _ROUND_SECONDS * MEMORY_MB["scrub"] / 1024, prices.ARM_GB_SECOND),
        ("scrub and backup, list of tables", resources.rounds, prices.RECORD_READ),
        ("registry", records, prices.RECORD_STORAGE),
        ("registry, point-in-time recovery", records, prices.RECORD_RECOVERY),
        ("dashboards", max(0, resources.dashboards - _FREE_DASHBOARDS), prices.DASHBOARD),
        ("keys", resources.keys, prices.KEY),
        ("VPC endpoints", resources.interfaces * MONTH_SECONDS / 3600, prices.ENDPOINT_HOUR),
    )
    return [
        CostItem(part=part, item=item, quantity=quantity, price=price) for item, quantity, price in priced if quantity
    ]


def inventory(templates: Iterable[Mapping[str, Any]]) -> Inventory:
    """Count the resources in CloudFormation templates.

    Raises:
        Invalid: a resource type has no rule, or a resource costs more than its rule covers; names the resource.
    """
    resources = Inventory()
    for template in templates:
        for name, resource in template["Resources"].items():
            kind, properties = resource["Type"], resource.get("Properties", {})
            rule = _RULES.get(kind)
            if rule is None:
                raise Invalid(f"{kind} has no price", remedy="Add a rule to lancelsm.stack.cost.at_rest", resource=name)
            found = rule(properties)
            if isinstance(found, str):
                raise Invalid(f"{kind} has no price with {found}", remedy="Extend its rule", resource=name)
            resources += found
    return resources


Rule = Callable[[Properties], Inventory | str]


def _free(_: Properties) -> Inventory:
    return Inventory()


def _free_without(*names: str) -> Rule:
    def rule(properties: Properties) -> Inventory | str:
        return next((name for name in names if properties.get(name)), None) or Inventory()

    return rule


def _each(**counted: int) -> Rule:
    return lambda _: Inventory(**counted)


def _alarm(properties: Properties) -> Inventory | str:
    """Count the metrics of an alarm: each of them is charged."""
    return Inventory(alarms=sum("MetricStat" in one for one in properties.get("Metrics", ())) or 1)


def _scheduled(properties: Properties) -> Inventory | str:
    expression = properties.get("ScheduleExpression")
    if expression is None or properties.get("State") == "DISABLED":
        return Inventory()
    found = _RATE.fullmatch(str(expression))
    if not found:
        return f"the schedule {expression}"
    runs = MONTH_SECONDS // (int(found[1]) * _UNIT_SECONDS[found[2]])
    if "scheduled" in str(properties.get("Target")):  # the event of a scrub or a backup
        return Inventory(rounds=runs)
    return Inventory(runs=runs, metrics=1)


def _endpoint(properties: Properties) -> Inventory | str:
    if properties.get("VpcEndpointType", "Gateway") == "Gateway":
        return Inventory()
    return Inventory(interfaces=len(properties.get("SubnetIds", ())))


def _filter(properties: Properties) -> Inventory | str:
    """Return no cost: a filter is free while no line matches, unless it has a default value for other lines."""
    transformations = properties.get("MetricTransformations", ())
    return "DefaultValue" if any("DefaultValue" in one for one in transformations) else Inventory()


def _bucket(properties: Properties) -> Inventory | str:
    return Inventory(request_metrics=_REQUEST_METRICS * len(properties.get("MetricsConfigurations", ())))


def _registry(properties: Properties) -> Inventory | str:
    if properties.get("BillingMode") != "PAY_PER_REQUEST":
        return "provisioned capacity"
    return Inventory(registries=1)


_RULES: Final[Mapping[str, Rule]] = {
    "AWS::CDK::Metadata": _free,
    "AWS::CloudWatch::Alarm": _alarm,
    "AWS::CloudWatch::Dashboard": _each(dashboards=1),
    "AWS::CodeDeploy::Application": _free,
    "AWS::CodeDeploy::DeploymentGroup": _free,
    "AWS::DynamoDB::Table": _registry,
    "AWS::EC2::SecurityGroup": _free,
    "AWS::EC2::SecurityGroupIngress": _free,
    "AWS::EC2::VPCEndpoint": _endpoint,
    "AWS::EMRServerless::Application": _free_without("InitialCapacity"),
    "AWS::IAM::ManagedPolicy": _free,
    "AWS::IAM::Policy": _free,
    "AWS::IAM::Role": _free,
    "AWS::KMS::Key": _each(keys=1),
    "AWS::Lambda::Alias": _free_without("ProvisionedConcurrencyConfig"),
    "AWS::Lambda::EventInvokeConfig": _free,
    "AWS::Lambda::EventSourceMapping": _each(mappings=1),
    "AWS::Lambda::Function": _free_without("SnapStart"),
    "AWS::Lambda::LayerVersion": _free,
    "AWS::Lambda::Permission": _free,
    "AWS::Lambda::Url": _free,
    "AWS::Lambda::Version": _free_without("ProvisionedConcurrencyConfig"),
    "AWS::Logs::LogGroup": _free,
    "AWS::Logs::MetricFilter": _filter,
    "AWS::S3::Bucket": _bucket,
    "AWS::S3::BucketPolicy": _free,
    "AWS::SQS::Queue": _free,
    "AWS::SQS::QueuePolicy": _free,
    "AWS::Scheduler::Schedule": _scheduled,
    "AWS::StepFunctions::StateMachine": _free,
}
