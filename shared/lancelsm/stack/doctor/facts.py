"""Fetch facts about a deployment from AWS, unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

from lancelsm.common.clock import Clock, Ids

Service = Callable[[str], Any]  # creates AWS clients, see `common.aws.client`

FUNCTIONS = (
    "ingest",
    "writer_flush",
    "apply",
    "region_claim",
    "compaction",
    "merger",
    "gc",
    "gc_sweep",
    "query",
    "scrub",
    "dispatch",
)
MACHINES = ("Merge", "Collect")
NO_STACK = "ValidationError"  # CloudFormation's error code for a stack that does not exist


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFailed:
    """A call that failed: code and text of the error."""

    code: str
    message: str


Answer = Mapping[str, Any] | CallFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentFacts:
    """One deployment. Each answer is the reply of the call that its name says.

    Attributes:
        stacks: both stacks; only `pipeline` if it was deployed over an existing bucket, registry and queues.
        outputs: the outputs of both stacks by name.
        probe: status codes of requests for an object below `work/`: `absent` (read before it exists), `created`,
            `again` (created a second time), `stale` (replaced with a wrong ETag), `replaced` (replaced with its ETag).
        skew_seconds: the machine's clock minus AWS's; None if unknown.
    """

    stage: str
    region: str
    caller: Answer
    skew_seconds: float | None
    stacks: Mapping[str, Answer]
    outputs: Mapping[str, str]
    bucket: Answer
    probe: Answer
    registry: Answer
    backups: Answer
    queues: Mapping[str, Answer]
    functions: Mapping[str, Answer]
    invocable: Mapping[str, Answer]
    mappings: Answer
    machines: Mapping[str, Answer]
    application: Answer


def fetch(stage: str, *, service: Service, clock: Clock, ids: Ids) -> DeploymentFacts:
    """Fetch all facts. Writes one small object below `work/doctor/`, which expires.

    Raises:
        Invalid: boto3 is missing, or no AWS region is set.
    """
    identity = service("sts")
    caller = _call(identity.get_caller_identity)
    stacks = {name: _stack(service, f"lancelsm-{stage}-{name}") for name in ("state", "pipeline")}
    outputs = {
        output["OutputKey"]: output["OutputValue"]
        for stack in stacks.values()
        if not isinstance(stack, CallFailed)
        for output in stack.get("Outputs", ())
    }
    state = stacks["state"]
    if isinstance(state, CallFailed) and state.code == NO_STACK and "Bucket" in outputs:
        del stacks["state"]  # the deployment uses resources that existed before

    def query_output(name: str, ask: Callable[[str], Any]) -> Answer:
        value = outputs.get(name)
        return (
            CallFailed(code="NoOutput", message=f"no stack has the output {name}")
            if value is None
            else _call(ask, value)
        )

    objects, queue, compute = service("s3"), service("sqs"), service("lambda")
    registry = service("dynamodb")
    functions = {name: name.title().replace("_", "") + "Function" for name in FUNCTIONS}
    queues = {
        name: query_output(
            name, lambda url: queue.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        )
        for name in ("QueueUrl", "DeadLetterUrl")
    }
    writes = queues["QueueUrl"]
    return DeploymentFacts(
        stage=stage,
        region=identity.meta.region_name,
        caller=caller,
        skew_seconds=_skew(caller, clock),
        stacks=stacks,
        outputs=outputs,
        bucket=query_output("Bucket", lambda name: objects.head_bucket(Bucket=name)),
        probe=query_output("Bucket", partial(_probe, objects, ids.nonce())),
        registry=query_output("RegistryName", lambda name: registry.describe_table(TableName=_table(name))["Table"]),
        backups=query_output("RegistryName", lambda name: registry.describe_continuous_backups(TableName=_table(name))),
        queues=queues,
        functions={
            name: query_output(key, lambda name: compute.get_function_configuration(FunctionName=name))
            for name, key in functions.items()
        },
        invocable={
            name: query_output(key, lambda name: compute.invoke(FunctionName=name, InvocationType="DryRun"))
            for name, key in functions.items()
        },
        mappings=writes
        if isinstance(writes, CallFailed)
        else _call(lambda arn: compute.list_event_source_mappings(EventSourceArn=arn), writes["QueueArn"]),
        machines={
            name: query_output(
                f"{name}Machine", lambda arn: service("stepfunctions").describe_state_machine(stateMachineArn=arn)
            )
            for name in MACHINES
        },
        application=query_output(
            "SparkApplication",
            lambda id_: service("emr-serverless").get_application(applicationId=id_)["application"],
        ),
    )


def _call(ask: Callable[..., Any], *arguments: Any) -> Answer:
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - optional dependency

    try:
        answer: Mapping[str, Any] = ask(*arguments)
        return answer
    except ClientError as error:
        details = error.response["Error"]
        return CallFailed(code=str(details.get("Code", "")), message=str(details.get("Message", "")))
    except BotoCoreError as error:
        return CallFailed(code=type(error).__name__, message=str(error))


def _stack(service: Service, name: str) -> Answer:
    return _call(lambda: service("cloudformation").describe_stacks(StackName=name)["Stacks"][0])


def _table(registry: str) -> str:
    return registry.removeprefix("dynamodb:")


def _skew(caller: Answer, clock: Clock) -> float | None:
    if isinstance(caller, CallFailed):
        return None
    date = caller.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    return None if date is None else clock.now() - parsedate_to_datetime(date).timestamp()


def _probe(objects: Any, nonce: str, bucket: str) -> dict[str, int]:
    """Return the status codes of reads and conditional writes of a test object."""
    from botocore.exceptions import ClientError  # noqa: PLC0415

    key = f"work/doctor/{nonce}"

    def status(act: Callable[..., Any], **how: str | bytes) -> int:
        try:
            return int(act(Bucket=bucket, Key=key, **how)["ResponseMetadata"]["HTTPStatusCode"])
        except ClientError as error:
            return int(error.response["ResponseMetadata"]["HTTPStatusCode"])

    found = {"absent": status(objects.get_object)}
    found["created"] = status(objects.put_object, Body=b"1", IfNoneMatch="*")
    found["again"] = status(objects.put_object, Body=b"2", IfNoneMatch="*")
    found["stale"] = status(objects.put_object, Body=b"3", IfMatch='"00000000000000000000000000000000"')
    if found["created"] < 300:
        etag = objects.head_object(Bucket=bucket, Key=key)["ETag"]
        found["replaced"] = status(objects.put_object, Body=b"4", IfMatch=etag)
    return found
