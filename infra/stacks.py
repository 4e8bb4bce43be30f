"""Define the two stacks of a deployment. State holds all data; Pipeline may be destroyed and deployed again."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from constructs import Construct

from infra.alarms import Watched
from infra.checks import check
from infra.collecting import Collecting
from infra.events import Events
from infra.functions import Functions, seconds, visibility
from infra.grants import State as StateResources
from infra.grants import state_of
from infra.layers import Layers
from infra.merging import Merging
from infra.network import Network
from infra.observing import Observing
from infra.queues import Queues
from infra.registry import Registry
from infra.schedules import Schedules, period
from infra.sharing import key_statement, registry_kind
from infra.shifting import Shifting
from infra.spark_jobs import SparkJobs
from infra.stage import Stage, stage_of
from infra.storage import Storage


class State(cdk.Stack):
    """Bucket, registry and queues, without those that the context names. They are kept when the stack is deleted."""

    def __init__(self, scope: Construct, *, stage: Stage) -> None:
        super().__init__(
            scope,
            f"{stage.prefix}-state",
            stack_name=f"{stage.prefix}-state",  # also in a pipeline, which would prepend the name of its stage
            description="lancelsm: bucket, registry and queues (all data)",
            synthesizer=_synthesizer(stage),
            env=cdk.Environment(region=stage.region) if stage.region else None,
            termination_protection=stage.keeps_data,
            analytics_reporting=False,
        )
        key = kms.Key.from_key_arn(self, "Key", stage.kms_key) if stage.kms_key else None
        Storage(self, stage=stage, key=key)
        Registry(self, stage=stage, key=key)
        Queues(self, stage=stage, key=key, visibility=visibility(stage))
        _add_outputs(self, state_of(Construct(self, "Kept"), stage), stage)
        if stage.kms_key and stage.readers:
            cdk.CfnOutput(self, "KeyStatement", value=key_statement(self, stage.readers))


class Pipeline(cdk.Stack):
    """Functions, state machines, the schedule and alarms. It holds no data."""

    def __init__(self, scope: Construct, *, stage: Stage) -> None:
        super().__init__(
            scope,
            f"{stage.prefix}-pipeline",
            stack_name=f"{stage.prefix}-pipeline",
            description="lancelsm: functions, state machines, schedule and alarms (no data)",
            synthesizer=_synthesizer(stage),
            env=cdk.Environment(region=stage.region) if stage.region else None,
            analytics_reporting=False,
        )
        state = state_of(Construct(self, "Kept"), stage)
        _add_outputs(self, state, stage)  # here too: there may be no state stack
        layers = Layers(self, stage=stage)
        network = Network(self, subnets=stage.subnets) if stage.subnets else None
        waiting = Events(self, stage=stage, key=state.key, seconds=seconds)
        functions = Functions(
            self,
            stage=stage,
            state=state,
            layers=layers,
            chunks=waiting.chunks,
            rounds=waiting.rounds,
            network=network,
        )
        live = functions.live
        collecting = Collecting(self, stage=stage, collector=live["gc"], sweeper=live["gc_sweep"])
        merging = Merging(
            self,
            stage=stage,
            state=state,
            merger=live["merger"],
            collecting=collecting.machine,
            layers=layers,
            network=network,
        )
        SparkJobs(self, stage=stage, state=state, merging=merging)
        Schedules(self, stage=stage, state=state, functions=live, failed=waiting.failed)
        waiting.consume(live)
        waiting.keep_failures([live[name] for name in ("dispatch", "compaction")], period=period(stage))
        waiting.keep_failures([live[name] for name in stage.rounds], period=cdk.Duration.hours(6))
        watched = Watched(
            stage=stage,
            state=state,
            functions=functions.all,
            merging=merging.machine,
            jobs=merging.application,
            collecting=collecting.machine,
            failed_events=waiting.failed,
        )
        observing = Observing(self, watched=watched)
        if stage.shift_minutes:
            Shifting(self, stage=stage, functions=live, alarm=observing.alarms["broken-release"])


def deployment(app: cdk.App) -> tuple[cdk.Stack, ...]:
    """Define the stacks of the stage that the context chooses. Synthesis checks them."""
    check(app)
    return stacks(app)


def stacks(app: cdk.Stage) -> tuple[cdk.Stack, ...]:
    """Define the stacks of the stage that the context chooses, Pipeline last.

    If the context names bucket, registry and queues, there is no State: an empty stack can't be deployed.

    Args:
        app: the app, or a stage of a pipeline.
    """
    stage = stage_of(app.node)
    state = [] if stage.bucket and stage.registry and stage.queue else [State(app, stage=stage)]
    pipeline = Pipeline(app, stage=stage)
    for stack in state:
        pipeline.add_stack_dependency(stack, "the queue has to exist before the functions that read it")
    for name, value in {"lancelsm:stage": stage.name, **stage.tags}.items():
        cdk.Tags.of(app).add(name, value)
    if stage.permissions_boundary:
        policy = iam.ManagedPolicy.from_managed_policy_arn(pipeline, "Boundary", stage.permissions_boundary)
        iam.PermissionsBoundary.of(app).apply(policy)
    return (*state, pipeline)


def _add_outputs(stack: cdk.Stack, state: StateResources, stage: Stage) -> None:
    """Add outputs with the names of bucket, registry and queues."""
    outputs = {
        "Bucket": state.bucket.bucket_name,
        "RegistryName": registry_kind(state.registry, stage.readers),
        "QueueUrl": state.writes.queue_url,
        "DeadLetterUrl": state.dead_letters.queue_url,
    }
    for name, value in outputs.items():
        cdk.CfnOutput(stack, name, value=value)


def _synthesizer(stage: Stage) -> cdk.IStackSynthesizer:
    """Return how assets are uploaded: below a prefix of the stage. They stay, so a merge that runs across a deployment
    ends with the code that it started with.

    A deployment to the emulator uses the caller's own credentials.
    """
    prefix = f"{stage.prefix}/"
    if stage.local:
        return cdk.CliCredentialsStackSynthesizer(bucket_prefix=prefix)
    return cdk.DefaultStackSynthesizer(bucket_prefix=prefix)
