"""Deploy the stacks, and call functions, pause the queue and read logs in tests.

The stacks are deployed once to an emulator of their own, by `make bootstrap deploy STAGE=local`, as `make local` does.
If LANCELSM_TEST_ENDPOINT is set, the tests use the stacks of the stage LANCELSM_TEST_STAGE at that endpoint or on AWS.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from botocore.exceptions import ClientError

import lancelsm
from lancelsm.client.invoke import function_name
from lancelsm.common.layout import Position, wal_entry
from lancelsm.record.schema import TOMBSTONE
from lancelsm.region.catalog import Region
from lancelsm.table import Table
from lancelsm.wal.entry import decode
from tests.emulator import Emulator, emulator
from tests.handlers.runtime_api import FunctionError, Runtime, runtime

T = TypeVar("T")
Records = list[dict[str, Any]]  # messages in the form in which Lambda passes them

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120.0
_OUTER_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES", "ARGS", "STAGE")


class Deployment:
    """Both stacks of a stage."""

    def __init__(self, aws: Emulator, *, stage: str, directory: Path) -> None:
        self.aws = aws
        self.stage = stage
        self._directory = directory
        self._clients: dict[str, Any] = {}
        self._outputs: dict[str, str] = {}
        self._run = uuid.uuid4().hex[:8]  # makes names unique: tables of earlier runs may exist

    def make(self, *targets: str, source: Path = ROOT) -> None:
        """Run targets of the Makefile for this stage and this account.

        Args:
            source: the checkout whose code is deployed.
        """
        outer = {name: value for name, value in os.environ.items() if name not in _OUTER_MAKE}
        done = subprocess.run(
            ["make", *targets, f"STAGE={self.stage}", f"CDK_OUT={self._directory / 'cdk.out'}"],
            cwd=source,
            env={**outer, **self.aws.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        self._outputs.clear()
        assert done.returncode == 0, f"make {' '.join(targets)}: {done.stdout[-3000:]}{done.stderr[-3000:]}"

    def client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = self.aws.client(service)
        return self._clients[service]

    def output(self, name: str) -> str:
        """Return an output of one of the stacks, as last deployed; `KeyError` if it does not exist."""
        if not self._outputs:
            for stack in ("state", "pipeline"):
                with suppress(ClientError):  # the pipeline stack may be destroyed
                    stack_name = f"lancelsm-{self.stage}-{stack}"
                    (found,) = self.client("cloudformation").describe_stacks(StackName=stack_name)["Stacks"]
                    self._outputs |= {one["OutputKey"]: one["OutputValue"] for one in found["Outputs"]}
        return self._outputs[name]

    def table(self, name: str, rows: Any, **options: Any) -> Table:
        """Create a table of the deployment directly, without its functions."""
        arguments = {"primary_key": "id", "registry": self.output("RegistryName"), **options}
        return lancelsm.create(f"s3://{self.output('Bucket')}/tables/{name}-{self._run}", rows, **arguments)

    # Functions

    @property
    def _writes(self) -> str:
        return f"arn:aws:sqs:{self.aws.region}:{self.aws.account}:lancelsm-{self.stage}-writes.fifo"

    def function(self, name: str) -> str:
        return function_name(self.stage, name)

    def invoke(self, name: str, event: object) -> Any:
        """Invoke a function and return its document, or raise `FunctionError`."""
        answer = self.client("lambda").invoke(FunctionName=self.function(name), Payload=json.dumps(event))
        document = json.loads(answer["Payload"].read())
        if "FunctionError" in answer:
            raise FunctionError(document["errorType"], document["errorMessage"])
        return document

    @contextmanager
    def containers(
        self, name: str, log: Path, *, seconds: float = 60.0, variables: Mapping[str, str] | None = None
    ) -> Iterator[Runtime]:
        """Run the function in Lambda's own runtime client, beside the deployed one, one container per concurrent call.

        Args:
            variables: more environment variables.
        """
        configuration = self.client("lambda").get_function_configuration(FunctionName=self.function(name))
        library = {"PYTHONPATH": str(ROOT / "shared")}
        environment = {
            **configuration["Environment"]["Variables"],
            **self.aws.environment,
            **library,
            **(variables or {}),
        }
        with runtime(ROOT / "functions", f"{name}.handler", environment, log=log, seconds=seconds) as invoke:
            yield invoke

    # The queues

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Disable the event source mapping, so that only the test receives from the write queue."""
        functions = self.client("lambda")

        def switch(*, on: bool) -> None:
            (mapping,) = functions.list_event_source_mappings(EventSourceArn=self._writes)["EventSourceMappings"]
            functions.update_event_source_mapping(UUID=mapping["UUID"], Enabled=on)
            wanted = "Enabled" if on else "Disabled"
            until(lambda: functions.get_event_source_mapping(UUID=mapping["UUID"])["State"], lambda one: one == wanted)

        switch(on=False)
        try:
            yield
        finally:
            switch(on=True)

    def take(self, maximum: int = 10, *, hidden: int = 60, wait: int = 1) -> Records:
        """Receive a batch from the write queue, which is hidden from other consumers for `hidden` seconds."""
        answer = self.client("sqs").receive_message(
            QueueUrl=self.output("QueueUrl"),
            MaxNumberOfMessages=maximum,
            VisibilityTimeout=hidden,
            WaitTimeSeconds=wait,
            MessageSystemAttributeNames=["All"],
        )
        return [
            {
                "messageId": one["MessageId"],
                "receiptHandle": one["ReceiptHandle"],
                "body": one["Body"],
                "attributes": one["Attributes"],
                "messageAttributes": {},
                "md5OfBody": one["MD5OfBody"],
                "eventSource": "aws:sqs",
                "eventSourceARN": self._writes,
                "awsRegion": self.aws.region,
            }
            for one in answer.get("Messages", [])
        ]

    def settle(self, records: Sequence[Mapping[str, Any]], answer: Mapping[str, Any]) -> None:
        """Delete the messages that did not fail, as the service does. An expired receipt handle deletes nothing."""
        failed = {one["itemIdentifier"] for one in answer["batchItemFailures"]}
        entries = [
            {"Id": str(number), "ReceiptHandle": one["receiptHandle"]}
            for number, one in enumerate(records)
            if one["messageId"] not in failed
        ]
        if entries:
            self.client("sqs").delete_message_batch(QueueUrl=self.output("QueueUrl"), Entries=entries)

    def waiting(self, queue: str = "QueueUrl") -> int:
        """Return the number of messages in a queue, including those in flight."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        answer = self.client("sqs").get_queue_attributes(QueueUrl=self.output(queue), AttributeNames=names)
        return sum(int(answer["Attributes"][name]) for name in names)

    def clear(self) -> None:
        """Delete the messages that a failed test has left in the queues."""
        for queue in ("QueueUrl", "DeadLetterUrl"):
            if self.waiting(queue):
                self.client("sqs").purge_queue(QueueUrl=self.output(queue))

    # State machines

    def start(self, input_document: Mapping[str, Any]) -> str:
        """Start the merge machine and return the execution's ARN."""
        machines = self.client("stepfunctions")
        started = machines.start_execution(
            stateMachineArn=self.output("MergeMachine"), input=json.dumps(input_document)
        )
        return str(started["executionArn"])

    def finished(self, execution: str) -> Any:
        """Wait until an execution has succeeded, and return its output."""
        machines = self.client("stepfunctions")
        done = until(
            lambda: machines.describe_execution(executionArn=execution), lambda one: one["status"] != "RUNNING"
        )
        assert done["status"] == "SUCCEEDED", (done.get("error"), done.get("cause"))
        return json.loads(done["output"])


@contextmanager
def deployed(directory: Path) -> Iterator[Deployment]:
    """Deploy both stacks, unless an endpoint is given. They disappear with the emulator."""
    stage = os.environ.get("LANCELSM_TEST_STAGE", "local")
    with emulator(directory / "emulator") as aws:
        deployment = Deployment(aws, stage=stage, directory=directory)
        if "LANCELSM_TEST_ENDPOINT" not in os.environ:
            deployment.make("bootstrap", "deploy")
        yield deployment


def batch(records: Records) -> dict[str, Any]:
    """Return the event for a batch."""
    return {"Records": records}


def history(table: Table, *, skip: Region | None = None) -> dict[Any, list[Any]]:
    """Return all values of `v` that each key has in the committed log, in order; None for a tombstone."""
    values: dict[Any, list[Any]] = {}
    for region in table.list_regions():
        if skip is not None and region.id == skip.id:
            continue
        for number in range(1, region.head().next_position):
            key = wal_entry(region.id, Position(number))
            found = region.context.objects.get(key)
            assert found is not None, key
            entry = decode(found.body, position=Position(number), key=key)
            for row in [] if entry.fence else entry.table().to_pylist():
                values.setdefault(row["id"], []).append(None if row[TOMBSTONE] else row["v"])
    return values


def rows(table: Table) -> dict[Any, Any]:
    """Return `v` by key, as a new reader sees the table."""
    return {row["id"]: row["v"] for row in lancelsm.open(table.uri).scan().to_arrow().to_pylist()}


def until(read: Callable[[], T], holds: Callable[[T], object], *, seconds: float = SECONDS) -> T:
    """Read until the condition holds, and return the last value. The failure after `seconds` shows the last value."""
    deadline = time.monotonic() + seconds
    while True:
        last = read()
        if holds(last):
            return last
        assert time.monotonic() < deadline, last
        time.sleep(0.1)
