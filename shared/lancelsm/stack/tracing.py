"""Trace the calls of a function with X-Ray, if the deployment asks for it (`-c tracing=true`).

A trace has the times of the call and of its calls of AWS, without answers. The SDK takes 0.4 s at each cold start, so
it is imported only where tracing is on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

Handler = TypeVar("Handler", bound=Callable[..., Any])

TRACING = "LANCELSM_TRACING"  # "true" in the environment
_PATCHED = ("botocore",)  # objects are read and written by obstore and Lance, which the SDK does not know


def traced(handler: Handler) -> Handler:
    """Return a handler that is traced if this environment asks for it, else the same handler.

    The handler must raise only errors without values of rows: the trace has their text. Answers may have such values,
    so the trace has none.
    """
    if os.environ.get(TRACING) != "true":
        return handler
    from aws_lambda_powertools import Tracer  # noqa: PLC0415 - optional dependency

    tracer = Tracer(service=os.environ.get("LANCELSM_STACK", "lancelsm"), patch_modules=_PATCHED)
    wrapped: Any = tracer.capture_lambda_handler(handler, capture_response=False, capture_error=False)
    return wrapped  # type: ignore[no-any-return]
