"""Store records as items of a DynamoDB table that many lancelsm tables share: the registry of a deployment.

An item has the keys `pk` (`Key.partition`) and `sk` (`Key.sort`, never empty) and one attribute for each field: S for
text, N for a number. The index `dirty` has the items with that field. It is eventually consistent, so only schedules
use it.

Every read is strongly consistent, and a refused swap returns the item as it was at that instant. So no decision depends
on a stale replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from lancelsm.common.clock import Budget, Clock, Ids
from lancelsm.common.layout import Key, RegionId, TableId
from lancelsm.errors import Corrupt, Invalid, LsmError, Unavailable
from lancelsm.registry import NEVER_DECREASE, Fields, Record, SwapApplied, SwapLost, SwapUnknown, Value, apply_swap

T = TypeVar("T")
Item = dict[str, dict[str, Any]]

INDEX = "dirty"
_KEYS = ("pk", "sk")

# The attempt was refused: nothing happened, and a retry may succeed.
_THROTTLED = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ThrottlingException",
        "TransactionConflictException",
    }
)
_BAD_CREDENTIALS = frozenset(
    {
        "ExpiredTokenException",
        "IncompleteSignatureException",
        "InvalidSignatureException",
        "MissingAuthenticationTokenException",
        "UnrecognizedClientException",
    }
)
_INCONCLUSIVE = (408, 429)  # proxies send them: the request may have been applied


class DynamoRegistry:
    """Records in the DynamoDB table `name`.

    A swap is one conditional UpdateItem and a deletion is one DeleteItem. Each is sent once, since an attempt without
    an answer may be applied later, and callers can recognise their own write. So a timeout, a dropped connection or a
    server error gives `SwapUnknown` at once. A throttled attempt certainly changed nothing: it is retried until the
    budget is spent; then `Unavailable` is raised, and nothing was written.

    Args:
        name: the name of the DynamoDB table.
        client: a boto3 client for DynamoDB that does not retry; it is shared between threads.
        clock, ids: pace the retries of reads and of throttled writes.
        budget_seconds: how long to retry.

    Raises:
        Invalid: in a call: the table does not exist or has other keys, or a grant or credentials are missing.
    """

    def __init__(self, name: str, *, client: Any, clock: Clock, ids: Ids, budget_seconds: float = 30.0) -> None:
        self._name = name
        self._client = client
        self._clock = clock
        self._ids = ids
        self._budget_seconds = budget_seconds

    def read(self, key: Key) -> Record | None:
        answer = self._retried(
            "GetItem",
            lambda: self._client.get_item(
                TableName=self._name, Key={"pk": {"S": key.partition}, "sk": {"S": key.sort}}, ConsistentRead=True
            ),
        )
        return _record(key, answer["Item"]) if "Item" in answer else None

    def dirty(self) -> list[tuple[TableId, RegionId, str]]:
        """List the regions whose rows are not all in the base, of all tables, with the time since when (`Head.dirty`).

        The list is eventually consistent: use it only for schedules.
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
        if isinstance(outcome, SwapLost):  # raises if a number would decrease
            apply_swap(key, outcome.record, expect=expect, change=change)
        return outcome

    def delete(self, key: Key, *, expect: Fields) -> SwapApplied | SwapLost | SwapUnknown:
        condition = _Expression()
        condition.require(expect)
        return self._write(
            "DeleteItem", self._client.delete_item, key, condition.request() | {"ReturnValues": "ALL_OLD"}
        )

    def discard(self, key: Key) -> None:
        self._retried(
            "DeleteItem",
            lambda: self._client.delete_item(
                TableName=self._name, Key={"pk": {"S": key.partition}, "sk": {"S": key.sort}}
            ),
        )

    def _write(
        self, action: str, call: Callable[..., Any], key: Key, request: dict[str, Any]
    ) -> SwapApplied | SwapLost | SwapUnknown:
        """Send a conditional write once; repeat it only if it certainly was not applied."""
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
                    return SwapUnknown(cause="the answer does not contain the record")
                return SwapApplied(record=_record(key, answer["Attributes"]))
            except _errors() as error:
                if _code(error) == "ConditionalCheckFailedException":
                    item = _answer(error).get("Item")
                    return SwapLost(record=_record(key, item) if item else None)
                if _code(error) not in _THROTTLED:
                    permanent = self._permanent_error(action, error)
                    if permanent is None:
                        return SwapUnknown(cause=str(error))
                    raise permanent from error
                failed = error
        raise self._unavailable(f"{action} was throttled, so nothing was written: {failed}") from failed

    def _pages(self, action: str, call: Callable[..., Any], **request: Any) -> Iterator[Item]:
        start: dict[str, Any] = {}
        while True:
            page = self._retried(action, lambda: call(TableName=self._name, **request, **start))  # noqa: B023
            yield from page["Items"]
            if "LastEvaluatedKey" not in page:
                return
            start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    def _retried(self, action: str, attempt: Callable[[], T]) -> T:
        failed: Exception | None = None
        for _ in self._budget().attempts():
            try:
                return attempt()
            except _errors() as error:
                permanent = None if _code(error) in _THROTTLED else self._permanent_error(action, error)
                if permanent is not None:
                    raise permanent from error
                failed = error
        raise self._unavailable(f"{action} got no answer for {self._budget_seconds:g} s: {failed}") from failed

    def _budget(self) -> Budget:
        return Budget(clock=self._clock, ids=self._ids, seconds=self._budget_seconds)

    def _unavailable(self, message: str) -> Unavailable:
        return Unavailable(message, remedy="Retry; check the network and the registry", registry=self._label)

    def _permanent_error(self, action: str, error: Exception) -> LsmError | None:
        """Return the error if a retry would be refused too, and nothing happened; None if the outcome is unknown."""
        from botocore import exceptions  # noqa: PLC0415 - an extra

        code = _code(error)
        if code == "ResourceNotFoundException":
            message = f"there is no DynamoDB table {self._name!r} here, or it has no index {INDEX!r}"
            remedy = "Deploy the stack that contains it, or set the AWS region and account of the table"
        elif code == "AccessDeniedException":
            message = f"access denied: {_message(error)}"
            resource = f"the index {INDEX} of the table" if action == "Scan" else "the table"
            remedy = f"Grant dynamodb:{action} on {resource} {self._name}"
        elif code in _BAD_CREDENTIALS or isinstance(
            error,
            exceptions.NoCredentialsError
            | exceptions.PartialCredentialsError
            | exceptions.SSOError
            | exceptions.TokenRetrievalError,
        ):
            message = f"AWS does not accept these credentials: {_message(error)}"
            remedy = "Check the environment, the profile or the role; after an expired login run `aws sso login`"
        elif 400 <= _status(error) < 500 and _status(error) not in _INCONCLUSIVE:
            message, remedy = f"{code}: {_message(error)}", "Use a table with the keys pk and sk, both of type string"
        else:
            return None
        return Invalid(message, remedy=remedy, registry=self._label)

    @property
    def _label(self) -> str:
        return f"dynamodb:{self._name}"


class _Expression:
    """Builds a condition and an update. Every field has a placeholder, since many names are reserved in DynamoDB."""

    def __init__(self) -> None:
        self._conditions: list[str] = []
        self._names: dict[str, str] = {}
        self._values: Item = {}

    def require(self, expect: Fields | None) -> None:
        """Require that the record has these fields; None: that there is no record."""
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
        """Return the parts of the request that are not empty; DynamoDB refuses empty ones."""
        parts = {
            "ConditionExpression": " AND ".join(self._conditions),
            "UpdateExpression": update,
            "ExpressionAttributeNames": {placeholder: field for field, placeholder in self._names.items()},
            "ExpressionAttributeValues": self._values,
        }
        return {name: part for name, part in parts.items() if part}


def _update(expect: Fields | None, change: Fields) -> dict[str, Any]:
    """Return the parts of an UpdateItem that has the semantics of `registry.apply_swap`."""
    expression = _Expression()
    expression.require(expect)
    assigned, removed = [], []
    for field, value in change.items():
        if value is not None:
            name, new = expression.name(field), expression.value(value)
            assigned.append(f"{name} = {new}")
            if expect is not None and field in NEVER_DECREASE:
                expression.add(f"(attribute_not_exists({name}) OR {name} <= {new})")
        elif expect is not None:  # a new record does not have the field anyway
            removed.append(expression.name(field))
            if field in NEVER_DECREASE:
                expression.add(f"attribute_not_exists({expression.name(field)})")
    clauses = (f"{verb} {', '.join(parts)}" for verb, parts in (("SET", assigned), ("REMOVE", removed)) if parts)
    return expression.request(" ".join(clauses))


def _attribute(value: Value) -> dict[str, str | bytes]:
    if isinstance(value, bytes):
        return {"B": value}
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
        if kind == "B":
            return bytes(value)
    except ValueError:
        pass
    raise Corrupt(
        f"the field has the value {value!r} of type {kind}, which lancelsm never writes",
        remedy="Restore the value of the field: text, a whole number or bytes",
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
