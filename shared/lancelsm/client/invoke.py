"""One invocation of one function, and what is known after it.

The four outcomes are values: whether a call may be repeated is decided by who knows what it does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lancelsm.errors import Ambiguous, Invalid, LsmError, Unavailable

Document = dict[str, Any]
Service = Callable[..., Any]  # as `common.aws.client`

_KINDS = {kind.kind: kind for kind in LsmError.__subclasses__()}
_AGAIN = ("Contended", "Unavailable", "Ambiguous")
_TOO_MANY = 429
_SERVER_ERROR = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    document: Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The function raised, or AWS refuses the call: no permission, no such function. `again`: it may succeed later."""

    error: LsmError
    again: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NotStarted:
    """The function did not run and never will for this call: throttled, or no connection."""

    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoResponse:
    """No answer that proves anything: the function may have run, or may still."""

    cause: str


Response = Answered | Failed | NotStarted | NoResponse


class Functions:
    """The functions of a deployment.

    Args:
        names: their names, ARNs or aliases in AWS, by our name for them.
    """

    def __init__(self, names: Mapping[str, str], *, service: Service) -> None:
        self._names = names
        self._service = service

    def invoke(self, function: str, payload: bytes, *, read_seconds: int) -> Response:
        """Invoke a function once and wait for its answer.

        Args:
            read_seconds: how long; what takes longer is `NoResponse`.
        """
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - an extra

        name = self._names[function]
        client = self._service("lambda", read_seconds=read_seconds)
        try:
            reply = client.invoke(FunctionName=name, Payload=payload)
            body = reply["Payload"].read()
        except ClientError as error:
            return _denied(error.response, name)
        except BotoCoreError as error:
            return _broken(error, name)
        except OSError as error:  # a stream that breaks off
            return NoResponse(cause=f"{name} gave no answer: {error}")
        return _told(reply, body, name)

    def answer(
        self, function: str, payload: bytes, *, attempts: Iterable[int], read_seconds: int, **where: str
    ) -> Document:
        """Invoke a function that may run twice until it answers, or fails in a way that no repetition mends.

        Args:
            attempts: as of a `Budget`.
            where: what errors say of it.

        Raises:
            LsmError: as the function, or AWS, said.
            Unavailable: there was no answer to any attempt.
        """
        cause = ""
        for _ in attempts:
            outcome = self.invoke(function, payload, read_seconds=read_seconds)
            if isinstance(outcome, Answered):
                return outcome.document
            if isinstance(outcome, Failed):
                if not outcome.again:
                    raise outcome.error
                cause = str(outcome.error)
            else:
                cause = outcome.cause
        raise Unavailable(cause, **where)


def _told(reply: Mapping[str, Any], body: bytes, name: str) -> Response:
    try:
        document = json.loads(body)
    except ValueError as error:
        return NoResponse(cause=f"{name} answered what is no JSON: {error}")
    if "FunctionError" not in reply:
        return Answered(document=document)
    kind, message = str(document.get("errorType", "")), str(document.get("errorMessage", ""))
    if kind in _KINDS:
        return Failed(error=_error(kind, message), again=kind in _AGAIN)
    if not kind or kind.startswith(("Sandbox.", "Runtime.")):  # killed, or out of time or memory
        return NoResponse(cause=f"{name} ended without an answer: {kind} {message}".rstrip())
    remedy = "Read, then decide whether to do it again; the function's log has the reason"
    return Failed(error=Ambiguous(f"{name} failed: {kind}: {message}", remedy=remedy), again=False)


def _error(kind: str, message: str) -> LsmError:
    """The error that a function raised, from its document."""
    try:
        said = dict(json.loads(message)["error"])
    except (ValueError, TypeError, KeyError):
        return _KINDS[kind](message)
    text, remedy = str(said.pop("message", "")), str(said.pop("remedy", ""))
    error = _KINDS[kind](text, remedy=remedy)
    error.where = {name: value for name, value in said.items() if name != "kind"}
    return error


def _denied(response: Mapping[str, Any], name: str) -> Response:
    code, said = str(response["Error"].get("Code", "")), str(response["Error"].get("Message", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if status == _TOO_MANY or "Throttl" in code or "TooManyRequests" in code:
        return NotStarted(cause=f"{name} is throttled: {code}")
    if status >= _SERVER_ERROR or code in ("ServiceException", "InternalFailure"):
        return NoResponse(cause=f"the service failed: {code} {said}".rstrip())
    remedies = {
        "ResourceNotFoundException": "Name the stage or the function as it was deployed, and its region",
        "AccessDeniedException": "Grant lambda:InvokeFunction on it",
        "RequestTooLargeException": "Give fewer rows at once",
        "RequestEntityTooLargeException": "Give fewer rows at once",
    }
    what = f"{name} can't be invoked: {code}: {said}"
    return Failed(error=Invalid(what, remedy=remedies.get(code, "See what AWS says")), again=False)


def _broken(error: Exception, name: str) -> Response:
    """What a failure of the client library itself means."""
    from botocore.exceptions import ConnectionError as NoConnection  # noqa: PLC0415
    from botocore.exceptions import HTTPClientError, IncompleteReadError, SSLError  # noqa: PLC0415

    # TLS may break on the answer, too; only without trust nothing is ever sent.
    broke = isinstance(error, SSLError) and "CERTIFICATE_VERIFY_FAILED" not in str(error)
    if isinstance(error, NoConnection) and not broke:
        return NotStarted(cause=f"no connection: {error}")
    if broke or isinstance(error, HTTPClientError | IncompleteReadError):
        return NoResponse(cause=f"{name} gave no answer: {error}")
    what = f"{name} can't be invoked: {error}"
    return Failed(error=Invalid(what, remedy="Check credentials, profile and region"), again=False)
