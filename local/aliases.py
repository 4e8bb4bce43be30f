"""Apply the settings of an alias to its asynchronous invocations. MiniStack applies only those of a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Invoke = Callable[[dict[str, Any], Any], None]


def configured(invoke: Invoke) -> Invoke:
    """Wrap an asynchronous invocation: repetitions, age and the destination of failures are those of its alias."""

    def invoked(function: dict[str, Any], event: Any) -> None:
        from ministack.services import lambda_svc  # noqa: PLC0415 - it reads its settings on import

        arn = str((function.get("config") or function).get("FunctionArn", "")).split(":")
        name, alias = (arn[6], arn[7]) if len(arn) == 8 else ("", "")
        known = lambda_svc._functions[name] if alias and name in lambda_svc._functions else {}
        found = (known.get("event_invoke_configs") or {}).get(alias)
        invoke({**function, "event_invoke_config": found} if found else function, event)

    return invoked
