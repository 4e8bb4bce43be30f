"""Both stacks of a deployment: State lasts, Pipeline may be destroyed and deployed again over it."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_kms as kms
from constructs import Construct

from infra.checks import check
from infra.collecting import Collecting
from infra.functions import Functions, visibility
from infra.grants import State as Kept
from infra.grants import kept
from infra.layers import Layers
from infra.merging import Merging
from infra.observing import Observing
from infra.queues import Queues
from infra.registry import Registry
from infra.schedules import Schedules
from infra.stage import Stage, stage_of
from infra.storage import Storage


class State(cdk.Stack):
    """Bucket, registry and queues: kept when the stack goes, and none of those that the context names."""

    def __init__(self, scope: Construct, *, stage: Stage) -> None:
        super().__init__(
            scope,
            f"{stage.prefix}-state",
            description="lancelsm: what lasts",
            synthesizer=_synthesizer(stage),
            termination_protection=not stage.local,
            analytics_reporting=False,
        )
        key = kms.Key.from_key_arn(self, "Key", stage.kms_key) if stage.kms_key else None
        Storage(self, stage=stage, key=key)
        Registry(self, stage=stage, key=key)
        Queues(self, stage=stage, key=key, visibility=visibility(stage))
        _tell(self, kept(Construct(self, "Kept"), stage))


class Pipeline(cdk.Stack):
    """Functions, state machines, schedules, alarms: no data."""

    def __init__(self, scope: Construct, *, stage: Stage) -> None:
        super().__init__(
            scope,
            f"{stage.prefix}-pipeline",
            description="lancelsm: what works",
            synthesizer=_synthesizer(stage),
            analytics_reporting=False,
        )
        state = kept(Construct(self, "Kept"), stage)
        _tell(self, state)  # too: there may be no State
        layers = Layers(self, stage=stage)
        functions = Functions(self, stage=stage, state=state, layers=layers).all
        collecting = Collecting(self, stage=stage, collector=functions["gc"], sweeper=functions["gc_sweep"])
        merging = Merging(
            self,
            stage=stage,
            state=state,
            merger=functions["merger"],
            collecting=collecting.machine,
            layers=layers,
        )
        Schedules(self, stage=stage, dispatch=functions["dispatch"])
        Observing(
            self,
            stage=stage,
            state=state,
            functions=functions,
            merging=merging.machine,
            collecting=collecting.machine,
        )


def deployment(app: cdk.App) -> tuple[cdk.Stack, ...]:
    """The stacks of the stage that the context chooses, Pipeline last, checked when they are synthesized.

    Where the context names bucket, registry and queues there is no State: a stack of nothing can't be deployed.
    """
    stage = stage_of(app.node)
    state = [] if stage.bucket and stage.registry and stage.queue else [State(app, stage=stage)]
    pipeline = Pipeline(app, stage=stage)
    for stack in state:
        pipeline.add_stack_dependency(stack, "functions are of no use before the queue that feeds them")
    cdk.Tags.of(app).add("lancelsm:stage", stage.name)
    check(app)
    return (*state, pipeline)


def _tell(stack: cdk.Stack, state: Kept) -> None:
    """Outputs that say where everything is that lasts."""
    outputs = {
        "Bucket": state.bucket.bucket_name,
        "RegistryName": f"dynamodb:{state.registry.table_name}",
        "QueueUrl": state.writes.queue_url,
        "DeadLetterUrl": state.dead_letters.queue_url,
    }
    for name, value in outputs.items():
        cdk.CfnOutput(stack, name, value=value)


def _synthesizer(stage: Stage) -> cdk.IStackSynthesizer:
    """The emulator is deployed to under the caller's own credentials."""
    return cdk.CliCredentialsStackSynthesizer() if stage.local else cdk.DefaultStackSynthesizer()
