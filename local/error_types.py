"""Give a failing function its own error, as AWS does: the exception's class as errorType, and its stack.

MiniStack calls every error of a handler `Runtime.HandlerError`, so that no state machine could tell `Contended` from
`Invalid`. Two places are changed: where a worker writes down what was raised, and where the answer is made of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from lancelsm.errors import Invalid

_MARK = "\x1e"  # in front of an error in JSON where MiniStack carries plain text
_DIED = "Worker process died"  # MiniStack's words for a process that ended without an answer

_RAISED = '{"status": "error", "error": str(e), "trace": traceback.format_exc()}'
_TOLD = _RAISED.replace("str(e)", "_told(e, context.aws_request_id)")
_TELL = f"""
def _told(error, request):
    import json, traceback
    stack = traceback.extract_tb(error.__traceback__)[1:]  # without the worker's own frame
    return {_MARK!r} + json.dumps({{"errorMessage": str(error), "errorType": type(error).__name__,
                                   "requestId": request, "stackTrace": traceback.format_list(stack)}})
"""

Execute = Callable[[dict[str, Any], Any, str], dict[str, Any]]


def telling(worker: str) -> str:
    """The script of a Python worker, changed to say what was raised.

    Raises:
        Invalid: it is not the script that this was made for.
    """
    if worker.count(_RAISED) != 1:
        raise Invalid("MiniStack's worker reports errors in another way", remedy="Install the release of the lock")
    return _TELL + worker.replace(_RAISED, _TOLD)


def true_errors(execute: Execute) -> Execute:
    """Run a function so that its answer has the error that the worker told."""

    def executed(function: dict[str, Any], event: Any, request: str) -> dict[str, Any]:
        answer = execute(function, event, request)
        body = answer.get("body")
        if answer.get("error") and isinstance(body, dict):
            answer["body"] = _true(body, request)
        return answer

    return executed


def _true(body: dict[str, Any], request: str) -> dict[str, Any]:
    message = str(body.get("errorMessage", ""))
    if message.startswith(_MARK):
        told: dict[str, Any] = json.loads(message.removeprefix(_MARK))
        return told
    if message == _DIED:
        died = f"RequestId: {request} Error: Runtime exited without providing a reason"
        return {"errorMessage": died, "errorType": "Runtime.ExitError"}
    return body
