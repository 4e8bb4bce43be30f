"""Invoke one function once and classify the outcome.

Each outcome is a value, since only the caller knows whether its call may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lancelsm.common.json_text import parse_json
from lancelsm.errors import Ambiguous, Invalid, LsmError, Unavailable

Document = dict[str, Any]
Service = Callable[..., Any]  # creates AWS clients, see `common.aws.client`

ALIAS = "live"  # of every function of a deployment: the version that callers get
_KINDS = {kind.kind: kind for kind in LsmError.__subclasses__()}
_RETRYABLE = ("Contended", "Unavailable", "Ambiguous")
_TOO_MANY = 429
_SERVER_ERROR = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The function returned this document."""

    document: Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The function raised an error, or AWS refused the call. `retryable`: a retry may succeed."""

    error: LsmError
    retryable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NotStarted:
    """The function did not run, and this call will not start it later: throttled, or no connection."""

    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoResponse:
    """No conclusive reply: the function may have run, or may still run."""

    cause: str


Response = Answered | Failed | NotStarted | NoResponse


def function_name(stage: str, function: str) -> str:
    """Return the name by which a function of a stage is invoked."""
    return f"lancelsm-{stage}-{function}:{ALIAS}"


class Functions:
    """The functions of a deployment.

    Args:
        names: their names, ARNs or aliases in AWS, by function.
        service: creates AWS clients.
    """

    def __init__(self, names: Mapping[str, str], *, service: Service) -> None:
        self._names = names
        self._service = service

    def invoke(self, function: str, payload: bytes, *, read_seconds: int) -> Response:
        """Invoke a function once and wait for its reply.

        Args:
            read_seconds: how long to wait; after that the outcome is `NoResponse`.
        """
        name = self._names[function]
        client = self._service("lambda", read_seconds=read_seconds)
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - optional dependency

        try:
            reply = client.invoke(FunctionName=name, Payload=payload)
            body = reply["Payload"].read()
        except ClientError as error:
            return _client_error(error.response, name)
        except BotoCoreError as error:
            return _connection_error(error, name)
        except OSError as error:  # the connection broke while the reply was read
            return NoResponse(cause=f"{name} gave no reply: {error}")
        return _parse_reply(reply, body, name)

    def answer(
        self, function: str, payload: bytes, *, attempts: Iterable[int], read_seconds: int, **where: str
    ) -> Document:
        """Invoke a function that may run twice until it answers, or fails with an error that a retry can't fix.

        Args:
            attempts: the attempts of a `Budget`.
            where: context for errors.

        Raises:
            LsmError: the error of the function or of AWS.
            Unavailable: no attempt had a reply.
        """
        cause = ""
        for _ in attempts:
            outcome = self.invoke(function, payload, read_seconds=read_seconds)
            if isinstance(outcome, Answered):
                return outcome.document
            if isinstance(outcome, Failed):
                if not outcome.retryable:
                    raise outcome.error
                cause = str(outcome.error)
            else:
                cause = outcome.cause
        raise Unavailable(cause, **where)


def _parse_reply(reply: Mapping[str, Any], body: bytes, name: str) -> Response:
    """Classify a reply of Lambda."""
    try:
        document = parse_json(body)
    except ValueError as error:
        return NoResponse(cause=f"{name} answered with invalid JSON: {error}")
    if "FunctionError" not in reply:
        return Answered(document=document)
    kind, message = str(document.get("errorType", "")), str(document.get("errorMessage", ""))
    if kind in _KINDS:
        return Failed(error=_error(kind, message), retryable=kind in _RETRYABLE)
    if not kind or kind.startswith(("Sandbox.", "Runtime.")):  # killed, or out of time or memory
        return NoResponse(cause=f"{name} ended without a reply: {kind} {message}".rstrip())
    remedy = "Read, then decide whether to call again; the function's log has the reason"
    return Failed(error=Ambiguous(f"{name} failed: {kind}: {message}", remedy=remedy), retryable=False)


def _error(kind: str, message: str) -> LsmError:
    """Decode the error that a function raised."""
    try:
        document = dict(parse_json(message)["error"])
    except (ValueError, TypeError, KeyError):
        return _KINDS[kind](message)
    text, remedy = str(document.pop("message", "")), str(document.pop("remedy", ""))
    error = _KINDS[kind](text, remedy=remedy)
    error.where = {name: value for name, value in document.items() if name != "kind"}
    return error


def _client_error(response: Mapping[str, Any], name: str) -> Response:
    """Classify an error reply of AWS."""
    code, message = str(response["Error"].get("Code", "")), str(response["Error"].get("Message", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if status == _TOO_MANY or "Throttl" in code or "TooManyRequests" in code:
        return NotStarted(cause=f"{name} is throttled: {code}")
    if status >= _SERVER_ERROR or code in ("ServiceException", "InternalFailure"):
        return NoResponse(cause=f"the service failed: {code} {message}".rstrip())
    remedies = {
        "ResourceNotFoundException": "Check the stage, the function's name and the AWS region",
        "AccessDeniedException": "Grant lambda:InvokeFunction on it",
        "RequestTooLargeException": "Give fewer rows at once",
        "RequestEntityTooLargeException": "Give fewer rows at once",
    }
    what = f"{name} can't be invoked: {code}: {message}"
    return Failed(error=Invalid(what, remedy=remedies.get(code, "Fix the error that AWS reports")), retryable=False)


def _connection_error(error: Exception, name: str) -> Response:
    """Classify a failure of the AWS client library itself."""
    from botocore.exceptions import ConnectionError as NoConnection  # noqa: PLC0415
    from botocore.exceptions import HTTPClientError, IncompleteReadError, SSLError  # noqa: PLC0415

    # A TLS error may come after the request was sent, except a failed check of the certificate.
    broke = isinstance(error, SSLError) and "CERTIFICATE_VERIFY_FAILED" not in str(error)
    if isinstance(error, NoConnection) and not broke:
        return NotStarted(cause=f"no connection: {error}")
    if broke or isinstance(error, HTTPClientError | IncompleteReadError):
        return NoResponse(cause=f"{name} gave no reply: {error}")
    what = f"{name} can't be invoked: {error}"
    return Failed(error=Invalid(what, remedy="Check credentials, profile and region"), retryable=False)
