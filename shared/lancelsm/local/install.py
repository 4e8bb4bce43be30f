"""Every place where MiniStack is changed, in one list. Each is checked first: a release that moved one is refused."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib import metadata
from typing import Any

from lancelsm.errors import Invalid
from lancelsm.local import errors, roles

RELEASE = "1.5.33"

# (module, attribute, what replaces it, made of what was there)
CHANGES: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("core.lambda_runtime", "_PYTHON_WORKER_SCRIPT", errors.telling),
    ("services.lambda_svc", "_execute_function_warm", errors.true_errors),
    ("services.lambda_svc", "_run_sqs_batch", roles.polling),
    ("services.eventbridge", "_invoke_target", roles.delivering),
    ("services.stepfunctions", "_run_execution", roles.executing),
    ("services.stepfunctions", "_invoke_resource", roles.invoking),
)


def install() -> None:
    """Change the MiniStack of this process, once.

    Raises:
        Invalid: it is another release, or a place to change is missing. Nothing was changed.
    """
    check()
    for module, attribute, made in CHANGES:
        place = _module(module)
        setattr(place, attribute, made(getattr(place, attribute)))


def check() -> None:
    """Raises Invalid unless MiniStack is the release that this is made for and has every place that is changed."""
    found = metadata.version("ministack")
    missing = [f"{module}.{attribute}" for module, attribute, _ in CHANGES if not hasattr(_module(module), attribute)]
    if found != RELEASE or missing:
        raise Invalid(
            f"MiniStack is {found}, not {RELEASE}" + (f", and lacks {', '.join(missing)}" if missing else ""),
            remedy=f"Install ministack=={RELEASE}",
        )


def _module(name: str) -> Any:
    return importlib.import_module(f"ministack.{name}")
