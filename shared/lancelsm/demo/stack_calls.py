"""What the demo needs from a deployment besides rows: its resources, a flush, a merge, and counts of requests."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from lancelsm.client.invoke import Functions, Service, function_name
from lancelsm.client.large_payloads import outputs
from lancelsm.common import aws
from lancelsm.common.clock import Budget, Clock, Ids
from lancelsm.compaction.runner import Engine
from lancelsm.errors import LsmError, Unavailable

_FUNCTION_SECONDS = 900
_MERGE_SECONDS = 3600

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedStage:
    """The tables, registry and merge machine of a stage, from the outputs of its stack."""

    stage: str
    tables: str
    registry: str
    machine: str

    @classmethod
    def from_outputs(cls, stage: str, *, service: Service) -> Self:
        """Read the outputs. Raises `Invalid` if the stage is not deployed."""
        found = outputs(f"lancelsm-{stage}-pipeline", service=service)
        return cls(
            stage=stage,
            tables=f"s3://{found['Bucket']}/tables",
            registry=found["RegistryName"],
            machine=found["MergeMachine"],
        )


class Stack:
    """One deployment. Counts the requests sent to `ingest` from here, and the messages that they caused."""

    def __init__(self, resources: DeployedStage, *, service: Service, clock: Clock, ids: Ids) -> None:
        self.resources = resources
        self.requests = self.messages = 0
        self._service = service
        self._clock = clock
        self._ids = ids
        names = {"compaction": function_name(resources.stage, "compaction")}
        self._functions = Functions(names, service=service)

    def service(self, name: str, **more: Any) -> Any:
        """Create AWS clients like `common.aws.client`; calls of Lambda are counted."""
        client = self._service(name, **more)
        return _CountingClient(client, self) if name == "lambda" else client

    def attempts(self, seconds: float) -> Iterable[int]:
        return Budget(clock=self._clock, ids=self._ids, seconds=seconds).attempts()

    def flush(self, table: str) -> Document:
        """Invoke `compaction` until nothing is left. It is safe to repeat. Raises the errors of the function."""
        made: list[Document] = []
        while True:
            answer = self._functions.answer(
                "compaction",
                json.dumps({"table": table}).encode(),
                attempts=self.attempts(_FUNCTION_SECONDS),
                read_seconds=_FUNCTION_SECONDS,
                table=table,
            )
            made += answer["generations"]
            if not answer.get("left"):
                return {"generations": made}

    def merge(self, table: str, *, engine: Engine, collect: bool = True) -> Document:
        """Start an execution of the merge machine, wait for it, and return its output.

        Args:
            collect: whether the machine may start a collection of the table later.

        Raises:
            Invalid, Unavailable: it can't be started or described.
            LsmError: the execution failed; has its error.
        """
        states = self._service("stepfunctions")
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - optional dependency

        request = json.dumps({"table": table, "engine": engine, **({} if collect else {"collect": "off"})})
        try:
            run = states.start_execution(stateMachineArn=self.resources.machine, input=request)["executionArn"]
            for _ in self.attempts(_MERGE_SECONDS):
                execution = states.describe_execution(executionArn=run)
                if execution["status"] == "SUCCEEDED":
                    return dict(json.loads(execution["output"]))
                if execution["status"] != "RUNNING":
                    what = f"{execution['status']}, {execution.get('error')}: {execution.get('cause')}"
                    raise LsmError(f"the merge ended: {what}", table=table, execution=run)
        except (BotoCoreError, ClientError) as error:
            raise aws.translated(error, doing="the merge can't be run", table=table) from error
        raise Unavailable(f"the merge is still running after {_MERGE_SECONDS} s", table=table, execution=run)


class _CountingClient:
    """A Lambda client that counts the answers of `ingest`."""

    def __init__(self, client: Any, stack: Stack) -> None:
        self._client = client
        self._stack = stack

    def invoke(self, *, FunctionName: str, Payload: bytes) -> Any:
        reply = self._client.invoke(FunctionName=FunctionName, Payload=Payload)
        if FunctionName != function_name(self._stack.resources.stage, "ingest"):
            return reply
        body = reply["Payload"].read()
        self._stack.requests += 1
        if "FunctionError" not in reply:
            self._stack.messages += len(json.loads(body)["messages"])
        return {**reply, "Payload": io.BytesIO(body)}
