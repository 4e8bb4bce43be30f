"""Define the Lambda functions. Each has a role of its own, which allows only what its code does."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_lambda_event_sources as sources
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra import grants
from infra.backups import copying
from infra.checks import accept, accept_wildcards
from infra.grants import State, allow, objects, records, sending
from infra.layers import RUNTIME, LayerName, Layers, architecture
from infra.network import ATTACHING, Network
from infra.sharing import registry_kind
from infra.stage import ROOT, Stage
from infra.storage import TABLES, WORK
from lancelsm.client.invoke import ALIAS, function_name
from lancelsm.stack.telemetry import TABLE_METRICS
from lancelsm.stack.tracing import TRACING

BATCH = 10  # messages; the maximum for a FIFO queue
WRITER = "writer_flush"
WILDCARDS = "Wildcards stand for tables and regions of this stack, which are created at run time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a function needs to run. CPU grows with memory: 1,769 MB is one core."""

    description: str
    layer: LayerName
    memory: int  # MB
    seconds: int
    # At stage local. The emulator does not count the cold start, and its queue hides a batch for six times as long.
    local_seconds: int
    environment: tuple[str, ...] = ()
    disk: int = 512  # MB


_TABLES, _WORK, _QUEUE = "LANCELSM_TABLES", "LANCELSM_WORK", "LANCELSM_QUEUE_URL"
_CHUNKS = "LANCELSM_DISPATCH_QUEUE_URL"
_MAPPING = "LANCELSM_WRITE_MAPPING"
_BACKUPS = "LANCELSM_BACKUPS"
_REPORT = "LANCELSM_REPORT"  # the ARN that a click on the dashboard calls


def _lance(description: str, *, seconds: int, local_seconds: int, environment: tuple[str, ...]) -> Shape:
    """Return the shape of a function that loads Lance."""
    memory = 3008  # the most that a new account allows
    return Shape(
        description=description,
        layer="lance",
        memory=memory,
        disk=2048,
        seconds=seconds,
        local_seconds=local_seconds,
        environment=environment,
    )


SHAPES: Mapping[str, Shape] = {
    "ingest": Shape(
        description="Validates rows and sends them to the write queue.",
        layer="lean",
        memory=1024,
        seconds=30,
        local_seconds=20,
        environment=(_TABLES, _WORK, _QUEUE),
    ),
    WRITER: Shape(
        description="Appends rows of the write queue to the write-ahead logs of their regions.",
        layer="lean",
        memory=1769,
        seconds=60,
        local_seconds=10,
        environment=(_TABLES, _WORK, _QUEUE, "LANCELSM_DEAD_LETTER_URL"),
    ),
    "apply": _lance(
        "Writes what depends on the rows that are there, such as conditional upserts and updates.",
        seconds=120,
        local_seconds=60,
        environment=(_TABLES, _WORK),
    ),
    "region_claim": Shape(
        description="Claims regions of a table in a new epoch, which fences their previous owner.",
        layer="lean",
        memory=1024,
        seconds=120,
        local_seconds=60,
        environment=(_TABLES,),
    ),
    "compaction": _lance(
        "Flushes write-ahead logs into generations.", seconds=900, local_seconds=120, environment=(_TABLES, _CHUNKS)
    ),
    "merger": _lance(
        "Merges generations into the base of a table, and optimizes the base.",
        seconds=900,
        local_seconds=180,
        environment=(_TABLES, _WORK),
    ),
    "gc": _lance(
        "Marks, verifies and commits a garbage collection round. Deletes no objects.",
        seconds=900,
        local_seconds=120,
        environment=(_TABLES, _WORK),
    ),
    "gc_sweep": _lance(
        "Deletes the objects of a committed garbage collection round.",
        seconds=900,
        local_seconds=120,
        environment=(_TABLES, _WORK),
    ),
    "query": _lance(
        "Reads rows of a table, now or at a snapshot.", seconds=120, local_seconds=60, environment=(_TABLES, _WORK)
    ),
    "scrub": _lance(
        "Reads all objects of a table and reports what is missing or damaged.",
        seconds=900,
        local_seconds=60,
        environment=(_TABLES,),
    ),
    "report": _lance(
        "Draws the tables for the dashboard. Writes nothing.",
        seconds=60,
        local_seconds=60,
        environment=(_TABLES, "LANCELSM_REGISTRY", _REPORT),
    ),
    "backup": _lance(
        "Copies the rows of each table that has changed to another bucket.",
        seconds=900,
        local_seconds=60,
        environment=(_TABLES, _BACKUPS),
    ),
    "dispatch": Shape(
        description="Starts the flushes and merges that are due.",
        layer="lean",
        memory=512,
        seconds=60,
        local_seconds=30,
        environment=("LANCELSM_REGISTRY", "LANCELSM_COMPACTION", "LANCELSM_MERGE_MACHINE", _CHUNKS, _MAPPING),
    ),
}


MODULES: Mapping[str, str] = {"gc": "gc_round"}  # Lambda rejects a module named like a built-in one


def visibility(stage: Stage) -> cdk.Duration:
    """Return how long the queue hides a batch: six times the timeout of the function, as AWS recommends."""
    return cdk.Duration.seconds(6 * seconds(WRITER, stage))


def machine_arn(scope: Construct, stage: Stage, name: str) -> str:
    return cdk.Stack.of(scope).format_arn(
        service="states",
        resource="stateMachine",
        resource_name=f"{stage.prefix}-{name}",
        arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
    )


def live_name(stage: Stage, name: str) -> str:
    """Return the name by which everything invokes a function: that of its alias `live`."""
    return function_name(stage.name, name)


def alias_arn(scope: Construct, stage: Stage, name: str) -> str:
    """Return the ARN of the alias by which everything invokes a function, by its name."""
    return _lambda_arn(scope, "function", live_name(stage, name))


def _alias(function: lambda_.Function) -> lambda_.Alias:
    """Publish what is deployed as a version, and let the alias `live` name it."""
    return lambda_.Alias(function, "Live", alias_name=ALIAS, version=function.current_version)


class Functions(Construct):
    """All functions, by name, and their aliases, by which everything invokes them.

    They share one asset, which holds the handlers and the library.

    Args:
        chunks: the queue with chunks of tables for `dispatch`.
        rounds: the queues with tables for functions that a schedule runs for each table, by the function's name.
        network: where functions run; None: in no VPC.
        source: the directory that contains `functions/` and `shared/lancelsm/`.
    """

    def __init__(
        self,
        scope: Construct,
        *,
        stage: Stage,
        state: State,
        layers: Layers,
        chunks: sqs.IQueue,
        rounds: Mapping[str, sqs.IQueue],
        network: Network | None = None,
        source: Path = ROOT,
    ) -> None:
        super().__init__(scope, "Functions")
        self._stage, self._state, self._layers, self._chunks = stage, state, layers, chunks
        self._network, self._rounds = network, rounds
        environment = self._environment()
        with tempfile.TemporaryDirectory() as directory:
            gather(source, Path(directory))
            code = lambda_.Code.from_asset(directory)
            self.all: dict[str, lambda_.Function] = {}
            self.live: dict[str, lambda_.Alias] = {}
            for name, shape in SHAPES.items():
                if name == "backup" and not stage.backups:
                    continue
                self.all[name] = self._function(name, shape, code, environment)
                self.live[name] = _alias(self.all[name])
                if name == WRITER:
                    environment[_MAPPING] = self._mapping = self._deliver()  # `dispatch` reads its state
        if stage.function_url:
            self.url = self.live["ingest"].add_function_url(auth_type=lambda_.FunctionUrlAuthType.AWS_IAM)
            cdk.CfnOutput(cdk.Stack.of(self), "IngestUrl", value=self.url.url)

    def _deliver(self) -> str:
        """Deliver the messages of the write queue to the writer. Return the id of the event source mapping."""
        source = sources.SqsEventSource(
            self._state.writes, batch_size=BATCH, report_batch_item_failures=True, max_concurrency=self._stage.writers
        )
        self.live[WRITER].add_event_source(source)
        return source.event_source_mapping_id

    def _environment(self) -> dict[str, str]:
        """Return all environment variables that any function reads."""
        state, stage = self._state, self._stage
        root = f"s3://{state.bucket.bucket_name}"
        return {
            _TABLES: f"{root}/{TABLES}",
            _WORK: f"{root}/{WORK}",
            _QUEUE: state.writes.queue_url,
            "LANCELSM_DEAD_LETTER_URL": state.dead_letters.queue_url,
            "LANCELSM_REGISTRY": registry_kind(state.registry, stage.readers),
            "LANCELSM_COMPACTION": live_name(stage, "compaction"),
            "LANCELSM_MERGE_MACHINE": machine_arn(self, stage, "merge"),
            _CHUNKS: self._chunks.queue_url,
            _REPORT: alias_arn(self, stage, "report"),
            **{_queue_setting(name): queue.queue_url for name, queue in self._rounds.items()},
            **({_BACKUPS: stage.backups.uri} if stage.backups else {}),
        }

    def _function(
        self, name: str, shape: Shape, code: lambda_.Code, environment: Mapping[str, str]
    ) -> lambda_.Function:
        stage, title = self._stage, name.title().replace("_", "")
        group = logs.LogGroup(
            self,
            f"{title}Log",
            log_group_name=f"/aws/lambda/{stage.prefix}-{name}",
            retention=stage.log_retention,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        role = iam.Role(
            self,
            f"{title}Role",
            # Role names are unique in the account, function names only in the AWS region.
            role_name=f"{stage.prefix}-{name}-{cdk.Aws.REGION}",
            assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
        )
        logging = allow(["logs:CreateLogStream", "logs:PutLogEvents"], [group.log_group_arn])
        statements = [*self._grants(name), logging]
        for statement in statements:
            role.add_to_policy(statement)
        accept_wildcards(role, statements, WILDCARDS)
        if self._network:
            role.add_to_policy(allow(ATTACHING, ["*"]))
            accept(role, {"IAM5[Resource::*]": "Network interfaces have no names before Lambda creates them"})
        function = lambda_.Function(
            self,
            title,
            function_name=f"{stage.prefix}-{name}",
            description=shape.description,
            runtime=RUNTIME,
            architecture=architecture(stage),
            handler=f"{MODULES.get(name, name)}.handler",
            code=code,
            layers=self._layers.of(shape.layer),
            memory_size=shape.memory,
            ephemeral_storage_size=cdk.Size.mebibytes(shape.disk),
            timeout=cdk.Duration.seconds(seconds(name, stage)),
            role=role,
            log_group=group,
            # An older version stays: invocations that run may end, and the alias may go back to it.
            current_version_options=lambda_.VersionOptions(removal_policy=cdk.RemovalPolicy.RETAIN),
            tracing=lambda_.Tracing.ACTIVE if stage.tracing else None,
            **(self._network.of_function() if self._network else {}),
            environment={
                "LANCELSM_STACK": cdk.Stack.of(self).stack_name,
                **{name: environment[name] for name in (*shape.environment, *self._on_schedule(name))},
                **stage.settings,
                **({TABLE_METRICS: "true"} if stage.table_metrics else {}),
                **({TRACING: "true"} if stage.tracing else {}),
                **({"AWS_ALLOW_HTTP": "true"} if stage.local else {}),
            },
        )
        accept(
            function,
            {"L1": "Functions and layers share one runtime; both move to a newer one once the layers are tested on it"},
        )
        if stage.tracing:
            accept(role, {"IAM5[Resource::*]": "X-Ray has no resources that a policy could name"})
        cdk.CfnOutput(cdk.Stack.of(self), f"{title}Function", value=live_name(stage, name))
        return function

    def _on_schedule(self, name: str) -> tuple[str, ...]:
        """Return what a function reads of the environment only if a schedule runs it."""
        return ("LANCELSM_REGISTRY", _queue_setting(name)) if name in self._rounds else ()

    def _grants(self, name: str) -> Sequence[iam.PolicyStatement]:
        """Return what the code of a function needs.

        A committer of a manifest may read and write all of them: before it commits a version, it makes sure that the
        version before is published.
        """
        state = self._state
        log, table = (grants.LOG, grants.MANIFESTS), (grants.TABLE,)
        appending = [
            *objects(state, get=[grants.CONFIG, *log, grants.INBOX], put=log),
            *records(state, write=True),
        ]
        by_name: Mapping[str, Callable[[], Sequence[iam.PolicyStatement]]] = {
            "ingest": lambda: [
                *objects(state, get=[grants.CONFIG, grants.INBOX], put=[grants.INBOX]),
                *records(state),
                *sending(state, state.writes),
            ],
            WRITER: lambda: [
                *appending,
                *objects(state, put=[grants.INBOX]),  # quarantined rows that are too large for a message
                *sending(state, state.dead_letters),
            ],
            "apply": lambda: [*objects(state, get=[*table, grants.INBOX], put=log), *records(state, write=True)],
            "region_claim": lambda: [*objects(state, get=[grants.CONFIG, *log], put=log), *records(state, write=True)],
            "compaction": lambda: [
                *objects(state, get=table, put=[grants.REGIONS]),
                *records(state, write=True),
                *sending(state, self._chunks),
            ],
            "merger": lambda: merging(state),
            "gc": lambda: [
                *objects(
                    state,
                    get=[*table, grants.STEPS],
                    put=[grants.MANIFESTS, *grants.ROUNDS, *grants.VERSIONS, grants.STEPS],
                ),
                *records(state, write=True, delete=True),
            ],
            "gc_sweep": lambda: sweeping(state),
            "query": lambda: [
                *objects(state, get=[*table, grants.RESULTS], put=[grants.RESULTS]),
                *records(state),
            ],
            "report": lambda: [*objects(state, get=table), *records(state)],
            "scrub": lambda: [*objects(state, get=table), *records(state), *self._in_rounds(name)],
            "backup": lambda: [
                *objects(state, get=table),
                *records(state),
                *self._in_rounds(name),
                *(copying(self._stage.backups) if self._stage.backups else ()),
            ],
            "dispatch": lambda: [
                *objects(state, get=[grants.CONFIG, grants.MANIFESTS]),
                *records(state, find=True),
                grants.advisory(state, "dispatch"),
                *sending(state, self._chunks),
                allow(["lambda:InvokeFunction"], [self._arn("function", live_name(self._stage, "compaction"))]),
                allow(["lambda:GetEventSourceMapping"], [self._arn("event-source-mapping", self._mapping)]),
                allow(["states:ListExecutions", "states:StartExecution"], [machine_arn(self, self._stage, "merge")]),
            ],
        }
        return by_name[name]()

    def _in_rounds(self, name: str) -> Sequence[iam.PolicyStatement]:
        """Return what a function needs if a schedule runs it for each table: its queue and its record."""
        if name not in self._rounds:
            return ()
        return (grants.advisory(self._state, "scrub"), *sending(self._state, self._rounds[name]))

    def _arn(self, resource: str, name: str) -> str:
        return _lambda_arn(self, resource, name)


def _lambda_arn(scope: Construct, resource: str, name: str) -> str:
    return cdk.Stack.of(scope).format_arn(
        service="lambda", resource=resource, resource_name=name, arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME
    )


def _queue_setting(name: str) -> str:
    return f"LANCELSM_{name.upper()}_QUEUE_URL"


def merging(state: State) -> list[iam.PolicyStatement]:
    """Return what a merge needs, in a function or a Spark job: read the table, write the base, never the regions."""
    return [
        *objects(state, get=[grants.TABLE, grants.STEPS], put=[*grants.BASE, grants.STEPS]),
        iam.PolicyStatement(
            effect=iam.Effect.DENY,  # the wildcards of the base also match objects of generations
            actions=["s3:PutObject"],
            resources=[state.bucket.arn_for_objects(grants.REGIONS)],
        ),
        *records(state, write=True),
    ]


def sweeping(state: State) -> list[iam.PolicyStatement]:
    """Return what a sweep needs: publish committed manifests, delete objects, tags and records of expired pins."""
    deleted = [grants.REGIONS, *grants.ROUNDS, *grants.BASE, grants.TAGS]
    return [
        *objects(state, get=[grants.TABLE, grants.STEPS], put=[grants.MANIFESTS], delete=deleted),
        iam.PolicyStatement(
            effect=iam.Effect.DENY,  # without the configuration, the table can't be opened
            actions=["s3:DeleteObject"],
            resources=[state.bucket.arn_for_objects(grants.CONFIG)],
        ),
        *records(state, delete=True),
    ]


def gather(source: Path, into: Path) -> None:
    """Copy the handlers and the library into one directory, as a function imports them."""
    for file in sorted((source / "functions").glob("*.py")):
        shutil.copyfile(file, into / file.name)
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(source / "shared" / "lancelsm", into / "lancelsm", ignore=ignored)


def seconds(name: str, stage: Stage) -> int:
    """Return the timeout of a function."""
    shape = SHAPES[name]
    return shape.local_seconds if stage.local else shape.seconds
