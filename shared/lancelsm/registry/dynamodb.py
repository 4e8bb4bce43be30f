"""Records as items of one DynamoDB table, which many tables share: the registry of a deployment.

An item has the keys `pk` (`Key.partition`) and `sk` (`Key.sort`, never empty) and an attribute for each field: text S,
a number N. The table's index `dirty` holds the items that have that field; it lags, so only schedules look at it.

Every read asks for consistency, and a refused swap returns the item that refused it, as it was in that instant. So no
decision rests on what a replica happens to know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from lancelsm.common.clock import Budget, Clock, Ids
from lancelsm.common.layout import Key, RegionId, TableId
from lancelsm.errors import Corrupt, Invalid, LsmError, Unavailable
from lancelsm.registry import NEVER_DECREASE, Fields, Record, SwapApplied, SwapLost, SwapUnknown, Value, swapped

T = TypeVar("T")
Item = dict[str, dict[str, Any]]

INDEX = "dirty"
_KEYS = ("pk", "sk")

# Refusals of one attempt: nothing happened, and the next one may succeed.
_BUSY = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ThrottlingException",
        "TransactionConflictException",
    }
)
_STRANGER = frozenset(
    {
        "ExpiredTokenException",
        "IncompleteSignatureException",
        "InvalidSignatureException",
        "MissingAuthenticationTokenException",
        "UnrecognizedClientException",
    }
)
_PASSING = (408, 429)  # of proxies: they say nothing about the request


class DynamoRegistry:
    """Records in the DynamoDB table `name`.

    A swap is one conditional UpdateItem, a deletion one DeleteItem, and it is sent once: whoever calls knows how to
    recognise its own write, and an attempt that was not heard of may land later. So a timeout, a dropped connection or
    a server's error is `SwapUnknown` at once. A throttled attempt is known to have changed nothing: it is repeated
    until the budget is spent, then `Unavailable` is raised and nothing was written.

    Args:
        name: the table's.
        client: boto3's for DynamoDB, which tries once; it is shared between threads.
        clock, ids: pace the repetition of reads and of throttled swaps.
        budget_seconds: how long those are repeated.

    Raises:
        Invalid: at a call: the table is not there or has other keys, or a grant or credentials are missing.
    """

    def __init__(self, name: str, *, client: Any, clock: Clock, ids: Ids, budget_seconds: float = 30.0) -> None:
        self._name = name
        self._client = client
        self._clock = clock
        self._ids = ids
        self._budget_seconds = budget_seconds

    def read(self, key: Key) -> Record | None:
        answer = self._repeated(
            "GetItem",
            lambda: self._client.get_item(
                TableName=self._name, Key={"pk": {"S": key.partition}, "sk": {"S": key.sort}}, ConsistentRead=True
            ),
        )
        return _record(key, answer["Item"]) if "Item" in answer else None

    def dirty(self) -> list[tuple[TableId, RegionId, str]]:
        """The regions that the base lags behind, and since when (`Head.dirty`), of all tables of this registry.

        It may miss what happened a moment ago and show what is over: for schedules alone.
        """
        found = []
        for item in self._pages("Scan", self._client.scan, IndexName=INDEX):
            kind, table, region = item["pk"]["S"].split("#")
            if kind == "H":
                found.append((TableId(table), RegionId(region), str(item[INDEX]["S"])))
        return sorted(found)

    def list(self, partition: str) -> list[tuple[Key, Record]]:
        items = self._pages(
            "Query",
            self._client.query,
            KeyConditionExpression="pk = :pk",
            ExpressionAttributeValues={":pk": {"S": partition}},
            ConsistentRead=True,
        )
        keyed = [(Key(partition=partition, sort=item["sk"]["S"]), item) for item in items]
        return [(key, _record(key, item)) for key, item in keyed]

    def swap(self, key: Key, *, expect: Fields | None, change: Fields) -> SwapApplied | SwapLost | SwapUnknown:
        outcome = self._write(
            "UpdateItem", self._client.update_item, key, _update(expect, change) | {"ReturnValues": "ALL_NEW"}
        )
        if isinstance(outcome, SwapLost):  # to what it expects, or to a number that never decreases: then this raises
            swapped(key, outcome.record, expect=expect, change=change)
        return outcome

    def delete(self, key: Key, *, expect: Fields) -> SwapApplied | SwapLost | SwapUnknown:
        condition = _Expression()
        condition.require(expect)
        return self._write(
            "DeleteItem", self._client.delete_item, key, condition.request() | {"ReturnValues": "ALL_OLD"}
        )

    def discard(self, key: Key) -> None:
        self._repeated(
            "DeleteItem",
            lambda: self._client.delete_item(
                TableName=self._name, Key={"pk": {"S": key.partition}, "sk": {"S": key.sort}}
            ),
        )

    def _write(
        self, action: str, call: Callable[..., Any], key: Key, request: dict[str, Any]
    ) -> SwapApplied | SwapLost | SwapUnknown:
        """Send a conditional write once, and again only while it is known to have been turned away."""
        request = request | {
            "TableName": self._name,
            "Key": {"pk": {"S": key.partition}, "sk": {"S": key.sort}},
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        failed: Exception | None = None
        for _ in self._budget().attempts():
            try:
                answer = call(**request)
                if "Attributes" not in answer:
                    return SwapUnknown(cause="the answer lacks the record")
                return SwapApplied(record=_record(key, answer["Attributes"]))
            except _errors() as error:
                if _code(error) == "ConditionalCheckFailedException":
                    item = _answer(error).get("Item")
                    return SwapLost(record=_record(key, item) if item else None)
                if _code(error) not in _BUSY:
                    refusal = self._refusal(action, error)
                    if refusal is None:
                        return SwapUnknown(cause=str(error))
                    raise refusal from error
                failed = error
        raise self._unavailable(f"{action} was throttled, so nothing was written: {failed}") from failed

    def _pages(self, action: str, call: Callable[..., Any], **request: Any) -> Iterator[Item]:
        start: dict[str, Any] = {}
        while True:
            page = self._repeated(action, lambda: call(TableName=self._name, **request, **start))  # noqa: B023
            yield from page["Items"]
            if "LastEvaluatedKey" not in page:
                return
            start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    def _repeated(self, action: str, once: Callable[[], T]) -> T:
        failed: Exception | None = None
        for _ in self._budget().attempts():
            try:
                return once()
            except _errors() as error:
                refusal = None if _code(error) in _BUSY else self._refusal(action, error)
                if refusal is not None:
                    raise refusal from error
                failed = error
        raise self._unavailable(f"{action} was not answered for {self._budget_seconds:g} s: {failed}") from failed

    def _budget(self) -> Budget:
        return Budget(clock=self._clock, ids=self._ids, seconds=self._budget_seconds)

    def _unavailable(self, message: str) -> Unavailable:
        return Unavailable(message, remedy="Retry; check the network and the registry", registry=self._named)

    def _refusal(self, action: str, error: Exception) -> LsmError | None:
        """The error if this request was refused for good, and nothing happened; None if that can't be told."""
        from botocore import exceptions  # noqa: PLC0415 - an extra

        code = _code(error)
        if code == "ResourceNotFoundException":
            message = f"there is no DynamoDB table {self._name!r} here, or it lacks the index {INDEX!r}"
            remedy = "Deploy the stack that holds it, or set the AWS region and account where it is"
        elif code == "AccessDeniedException":
            message = f"access denied: {_message(error)}"
            place = f"the index {INDEX} of the table" if action == "Scan" else "the table"
            remedy = f"Grant dynamodb:{action} on {place} {self._name}"
        elif code in _STRANGER or isinstance(
            error,
            exceptions.NoCredentialsError
            | exceptions.PartialCredentialsError
            | exceptions.SSOError
            | exceptions.TokenRetrievalError,
        ):
            message = f"AWS does not take these credentials: {_message(error)}"
            remedy = "Check the environment, the profile or the role; an expired login wants `aws sso login`"
        elif 400 <= _status(error) < 500 and _status(error) not in _PASSING:
            message, remedy = f"{code}: {_message(error)}", "Use a table with the keys pk and sk, both text"
        else:
            return None
        return Invalid(message, remedy=remedy, registry=self._named)

    @property
    def _named(self) -> str:
        return f"dynamodb:{self._name}"


class _Expression:
    """A condition and an update under construction: every field by a placeholder, since many names are reserved."""

    def __init__(self) -> None:
        self._conditions: list[str] = []
        self._names: dict[str, str] = {}
        self._values: Item = {}

    def require(self, expect: Fields | None) -> None:
        """The condition that the record has these fields; None: that there is no record."""
        self.add("attribute_not_exists(pk)" if expect is None else "attribute_exists(pk)")
        for field, value in (expect or {}).items():
            absent = f"attribute_not_exists({self.name(field)})"
            self.add(absent if value is None else f"{self.name(field)} = {self.value(value)}")

    def add(self, condition: str) -> None:
        self._conditions.append(condition)

    def name(self, field: str) -> str:
        return self._names.setdefault(field, f"#{len(self._names)}")

    def value(self, value: Value) -> str:
        placeholder = f":{len(self._values)}"
        self._values[placeholder] = _attribute(value)
        return placeholder

    def request(self, update: str = "") -> dict[str, Any]:
        """The parts of a request; DynamoDB takes none that is empty."""
        parts = {
            "ConditionExpression": " AND ".join(self._conditions),
            "UpdateExpression": update,
            "ExpressionAttributeNames": {placeholder: field for field, placeholder in self._names.items()},
            "ExpressionAttributeValues": self._values,
        }
        return {name: part for name, part in parts.items() if part}


def _update(expect: Fields | None, change: Fields) -> dict[str, Any]:
    """The parts of an UpdateItem that decides as `registry.swapped` does and writes the fields of `change` alone."""
    expression = _Expression()
    expression.require(expect)
    assigned, removed = [], []
    for field, value in change.items():
        if value is not None:
            name, new = expression.name(field), expression.value(value)
            assigned.append(f"{name} = {new}")
            if expect is not None and field in NEVER_DECREASE:
                expression.add(f"(attribute_not_exists({name}) OR {name} <= {new})")
        elif expect is not None:  # what is created lacks it anyway
            removed.append(expression.name(field))
            if field in NEVER_DECREASE:
                expression.add(f"attribute_not_exists({expression.name(field)})")
    clauses = (f"{verb} {', '.join(parts)}" for verb, parts in (("SET", assigned), ("REMOVE", removed)) if parts)
    return expression.request(" ".join(clauses))


def _attribute(value: Value) -> dict[str, str]:
    return {"N": str(int(value))} if isinstance(value, int) else {"S": str(value)}


def _record(key: Key, item: Item) -> Record:
    return {field: _value(key, field, attribute) for field, attribute in item.items() if field not in _KEYS}


def _value(key: Key, field: str, attribute: dict[str, Any]) -> Value:
    ((kind, value),) = attribute.items()
    try:
        if kind == "S":
            return str(value)
        if kind == "N":
            return int(value)
    except ValueError:
        pass
    raise Corrupt(
        f"the registry's field has the value {value!r} of type {kind}, which lancelsm never writes",
        remedy="Restore what it was: text or a whole number",
        record=f"{key.partition}/{key.sort}",
        field=field,
    )


def _errors() -> tuple[type[Exception], ...]:
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - an extra
    from botocore.parsers import ResponseParserError  # noqa: PLC0415

    return BotoCoreError, ClientError, ResponseParserError


def _answer(error: Exception) -> dict[str, Any]:
    return getattr(error, "response", None) or {}


def _code(error: Exception) -> str:
    return str(_answer(error).get("Error", {}).get("Code", ""))


def _message(error: Exception) -> str:
    return str(_answer(error).get("Error", {}).get("Message") or error)


def _status(error: Exception) -> int:
    return int(_answer(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
