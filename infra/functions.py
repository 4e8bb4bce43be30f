"""The functions: one role each, with what its code does and nothing else."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_lambda_event_sources as sources
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra import grants
from infra.checks import accept, accept_stars
from infra.grants import State, allow, objects, records, sending
from infra.layers import RUNTIME, LayerName, Layers, architecture
from infra.stage import ROOT, Stage
from infra.storage import TABLES, WORK

BATCH = 10  # messages; the most that a FIFO queue gives
WRITER = "writer_flush"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a function needs to run. CPU comes with memory: 1,769 MB is one core."""

    layer: LayerName
    memory: int  # MB
    seconds: int
    local_seconds: int  # without the cold start, which the emulator doesn't count; its queue waits six times as long
    environment: tuple[str, ...] = ()
    disk: int = 512  # MB


_TABLES, _WORK, _QUEUE = "LANCELSM_TABLES", "LANCELSM_WORK", "LANCELSM_QUEUE_URL"


def _lance(*, seconds: int, local_seconds: int, environment: tuple[str, ...]) -> Shape:
    """The shape of a function that loads Lance."""
    memory = 3008  # the most that a new account allows
    return Shape(
        layer="lance", memory=memory, disk=2048, seconds=seconds, local_seconds=local_seconds, environment=environment
    )


SHAPES: Mapping[str, Shape] = {
    "ingest": Shape(layer="lean", memory=1024, seconds=30, local_seconds=20, environment=(_TABLES, _WORK, _QUEUE)),
    WRITER: Shape(
        layer="lean",
        memory=1769,
        seconds=60,
        local_seconds=10,
        environment=(_TABLES, _WORK, _QUEUE, "LANCELSM_DEAD_LETTER_URL"),
    ),
    "region_claim": Shape(layer="lean", memory=1024, seconds=120, local_seconds=60, environment=(_TABLES,)),
    "compaction": _lance(seconds=900, local_seconds=120, environment=(_TABLES,)),
    "merger": _lance(seconds=900, local_seconds=180, environment=(_TABLES, _WORK)),
    "gc": _lance(seconds=900, local_seconds=120, environment=(_TABLES,)),
    "gc_sweep": _lance(seconds=900, local_seconds=120, environment=(_TABLES,)),
    "query": _lance(seconds=120, local_seconds=60, environment=(_TABLES, _WORK)),
    "scrub": _lance(seconds=900, local_seconds=60, environment=(_TABLES,)),
    "dispatch": Shape(
        layer="lean",
        memory=512,
        seconds=60,
        local_seconds=30,
        environment=("LANCELSM_REGISTRY", "LANCELSM_COMPACTION", "LANCELSM_MERGE_MACHINE"),
    ),
}


MODULES: Mapping[str, str] = {"gc": "gc_round"}  # Lambda takes no module with the name of one that is built in


def visibility(stage: Stage) -> cdk.Duration:
    """How long the queue waits for the writer: six times its time, as Lambda asks for."""
    return cdk.Duration.seconds(6 * _seconds(SHAPES[WRITER], stage))


def machine_arn(scope: Construct, stage: Stage, name: str) -> str:
    return cdk.Stack.of(scope).format_arn(
        service="states",
        resource="stateMachine",
        resource_name=f"{stage.prefix}-{name}",
        arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
    )


class Functions(Construct):
    """All functions, by the name of their file, from one asset: the handlers beside the library.

    Args:
        source: holds `functions/` and `shared/lancelsm/`.
    """

    def __init__(self, scope: Construct, *, stage: Stage, state: State, layers: Layers, source: Path = ROOT) -> None:
        super().__init__(scope, "Functions")
        self._stage, self._state, self._layers = stage, state, layers
        environment = self._environment()
        with tempfile.TemporaryDirectory() as directory:
            gather(source, Path(directory))
            code = lambda_.Code.from_asset(directory)
            self.all = {name: self._function(name, shape, code, environment) for name, shape in SHAPES.items()}
        self.all[WRITER].add_event_source(
            sources.SqsEventSource(state.writes, batch_size=BATCH, report_batch_item_failures=True)
        )
        if stage.function_url:
            self.url = self.all["ingest"].add_function_url(auth_type=lambda_.FunctionUrlAuthType.AWS_IAM)
            cdk.CfnOutput(cdk.Stack.of(self), "IngestUrl", value=self.url.url)

    def _environment(self) -> dict[str, str]:
        """Every setting that some function reads."""
        state, stage = self._state, self._stage
        root = f"s3://{state.bucket.bucket_name}"
        return {
            _TABLES: f"{root}/{TABLES}",
            _WORK: f"{root}/{WORK}",
            _QUEUE: state.writes.queue_url,
            "LANCELSM_DEAD_LETTER_URL": state.dead_letters.queue_url,
            "LANCELSM_REGISTRY": f"dynamodb:{state.registry.table_name}",
            "LANCELSM_COMPACTION": f"{stage.prefix}-compaction",
            "LANCELSM_MERGE_MACHINE": machine_arn(self, stage, "merge"),
        }

    def _function(
        self, name: str, shape: Shape, code: lambda_.Code, environment: Mapping[str, str]
    ) -> lambda_.Function:
        stage, title = self._stage, name.title().replace("_", "")
        group = logs.LogGroup(
            self,
            f"{title}Log",
            log_group_name=f"/aws/lambda/{stage.prefix}-{name}",
            retention=logs.RetentionDays.THREE_MONTHS if stage.name == "prod" else logs.RetentionDays.TWO_WEEKS,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        role = iam.Role(
            self,
            f"{title}Role",
            # Names of roles are of the account, names of functions of the region.
            role_name=f"{stage.prefix}-{name}-{cdk.Aws.REGION}",
            assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
        )
        logging = allow(["logs:CreateLogStream", "logs:PutLogEvents"], [group.log_group_arn])
        statements = [*self._grants(name), logging]
        for statement in statements:
            role.add_to_policy(statement)
        accept_stars(role, statements, "Stars stand for tables and regions of this stack, which are made at run time")
        function = lambda_.Function(
            self,
            title,
            function_name=f"{stage.prefix}-{name}",
            runtime=RUNTIME,
            architecture=architecture(stage),
            handler=f"{MODULES.get(name, name)}.handler",
            code=code,
            layers=self._layers.of(shape.layer),
            memory_size=shape.memory,
            ephemeral_storage_size=cdk.Size.mebibytes(shape.disk),
            timeout=cdk.Duration.seconds(_seconds(shape, stage)),
            role=role,
            log_group=group,
            environment={
                "LANCELSM_STACK": cdk.Stack.of(self).stack_name,
                **{name: environment[name] for name in shape.environment},
                **stage.pace,
                **({"AWS_ALLOW_HTTP": "true"} if stage.local else {}),
            },
        )
        accept(function, {"L1": "One runtime for functions and layers; a test of the layers moves both"})
        cdk.CfnOutput(cdk.Stack.of(self), f"{title}Function", value=function.function_name)
        return function

    def _grants(self, name: str) -> Sequence[iam.PolicyStatement]:
        """What the code of a function does. Every committer of manifests reads and writes all of them: before one
        version is committed it makes sure that the one before is published."""
        state = self._state
        log, table = (grants.LOG, grants.MANIFESTS), (grants.TABLE,)
        appending = [
            *objects(state, get=[grants.CONFIG, *log, grants.INBOX], put=log),
            *records(state, write=True),
        ]
        by_name = {
            "ingest": lambda: [
                *objects(state, get=[grants.CONFIG, grants.INBOX], put=[grants.INBOX]),
                *records(state),
                *sending(state, state.writes),
            ],
            WRITER: lambda: [
                *appending,
                *objects(state, put=[grants.INBOX]),  # rows in quarantine that are too large for a message
                *sending(state, state.dead_letters),
            ],
            "region_claim": lambda: [*objects(state, get=[grants.CONFIG, *log], put=log), *records(state, write=True)],
            "compaction": lambda: [*objects(state, get=table, put=[grants.REGIONS]), *records(state, write=True)],
            "merger": lambda: merging(state),
            "gc": lambda: [
                *objects(state, get=table, put=[grants.MANIFESTS, *grants.ROUNDS, *grants.VERSIONS]),
                *records(state, write=True, delete=True),
            ],
            "gc_sweep": lambda: sweeping(state),
            "query": lambda: [
                *objects(state, get=[*table, grants.RESULTS], put=[grants.RESULTS]),
                *records(state),
            ],
            "scrub": lambda: [*objects(state, get=table), *records(state)],
            "dispatch": lambda: [
                *objects(state, get=[grants.CONFIG, grants.MANIFESTS]),
                *records(state, find=True),
                allow(["lambda:InvokeFunction"], [self._arn("compaction")]),
                allow(["states:ListExecutions", "states:StartExecution"], [machine_arn(self, self._stage, "merge")]),
            ],
        }
        return by_name[name]()

    def _arn(self, name: str) -> str:
        return cdk.Stack.of(self).format_arn(
            service="lambda",
            resource="function",
            resource_name=f"{self._stage.prefix}-{name}",
            arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
        )


def merging(state: State) -> list[iam.PolicyStatement]:
    """What a merge does, wherever it runs: it reads the table, and writes the base but never the regions."""
    return [
        *objects(state, get=[grants.TABLE, grants.MERGES], put=[*grants.BASE, grants.MERGES]),
        iam.PolicyStatement(
            effect=iam.Effect.DENY,  # the stars of the base's places would reach into the generations
            actions=["s3:PutObject"],
            resources=[state.bucket.arn_for_objects(grants.REGIONS)],
        ),
        *records(state, write=True),
    ]


def sweeping(state: State) -> list[iam.PolicyStatement]:
    """What a sweep does: it publishes what was committed, then deletes objects, tags, and the records of old pins."""
    deleted = [grants.REGIONS, *grants.ROUNDS, *grants.BASE, grants.TAGS]
    return [
        *objects(state, get=[grants.TABLE], put=[grants.MANIFESTS], delete=deleted),
        iam.PolicyStatement(
            effect=iam.Effect.DENY,  # without it nobody can open the table
            actions=["s3:DeleteObject"],
            resources=[state.bucket.arn_for_objects(grants.CONFIG)],
        ),
        *records(state, delete=True),
    ]


def gather(source: Path, into: Path) -> None:
    """Lay the handlers and the library side by side, as functions find them."""
    for file in sorted((source / "functions").glob("*.py")):
        shutil.copyfile(file, into / file.name)
    left_out = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(source / "shared" / "lancelsm", into / "lancelsm", ignore=left_out)


def _seconds(shape: Shape, stage: Stage) -> int:
    return shape.local_seconds if stage.local else shape.seconds
