"""Define the state machine that runs one garbage collection round for one table. Merges start it."""

from __future__ import annotations

from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from infra.functions import live_name
from infra.grants import allow
from infra.machines import machine
from infra.stage import Stage


class Collecting(Construct):
    """The state machine of `workflows/collect.asl.json`."""

    def __init__(self, scope: Construct, *, stage: Stage, collector: lambda_.Alias, sweeper: lambda_.Alias) -> None:
        super().__init__(scope, "Collecting")
        self.machine = machine(
            self,
            "collect",
            stage=stage,
            tokens={"Collector": live_name(stage, "gc"), "Sweeper": live_name(stage, "gc_sweep")},
            grants=[allow(["lambda:InvokeFunction"], [collector.function_arn, sweeper.function_arn])],
        )
