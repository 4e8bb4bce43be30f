"""Report the error of a function as AWS does: the exception's class as errorType, and its stack trace.

MiniStack reports every error of a handler as `Runtime.HandlerError`, so that no state machine could tell `Contended`
from `Invalid`. This patches two places: where a worker reports an exception, and where the response is built.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from lancelsm.errors import Invalid

_MARK = "\x1e"  # marks an error in JSON where MiniStack expects plain text
_DIED = "Worker process died"  # MiniStack's message for a process that ended without an answer

_RAISED = '{"status": "error", "error": str(e), "trace": traceback.format_exc()}'
_PATCHED = _RAISED.replace("str(e)", "_described(e, context.aws_request_id)")
_DESCRIBE = f"""
def _described(error, request):
    import json, traceback
    stack = traceback.extract_tb(error.__traceback__)[1:]  # without the worker's own frame
    return {_MARK!r} + json.dumps({{"errorMessage": str(error), "errorType": type(error).__name__,
                                   "requestId": request, "stackTrace": traceback.format_list(stack)}})
"""

Execute = Callable[[dict[str, Any], Any, str], dict[str, Any]]


def reporting_errors(worker: str) -> str:
    """Patch the script of a Python worker so that it reports the exception.

    Raises:
        Invalid: the script is not the one that this patch was written for.
    """
    if worker.count(_RAISED) != 1:
        raise Invalid("MiniStack's worker reports errors in another way", remedy="Install the release of the lock file")
    return _DESCRIBE + worker.replace(_RAISED, _PATCHED)


def true_errors(execute: Execute) -> Execute:
    """Wrap the invocation of a function so that its response has the error that the worker reported."""

    def executed(function: dict[str, Any], event: Any, request: str) -> dict[str, Any]:
        answer = execute(function, event, request)
        body = answer.get("body")
        if answer.get("error") and isinstance(body, dict):
            answer["body"] = _original_error(body, request)
        return answer

    return executed


def _original_error(body: dict[str, Any], request: str) -> dict[str, Any]:
    message = str(body.get("errorMessage", ""))
    if message.startswith(_MARK):
        error: dict[str, Any] = json.loads(message.removeprefix(_MARK))
        return error
    if message == _DIED:
        died = f"RequestId: {request} Error: Runtime exited without providing a reason"
        return {"errorMessage": died, "errorType": "Runtime.ExitError"}
    return body
