"""Every place where MiniStack is changed, in one list. Each is checked first: a release that moved one is refused."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from lancelsm.common.clock import SystemClock, SystemIds
from lancelsm.errors import Invalid
from local import emr_http, emr_stack, error_types, roles
from local.emr import EmrServerless
from local.emr_runner import SparkRunner

RELEASE = "1.5.33"
STEP_SECONDS = 0.1

# (module, attribute, what replaces it, made of what was there)
CHANGES: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("app", "pin_request_origin", roles.asking_as_secure),
    ("core.iam_actions", "extract_iam_action", roles.naming_batches),
    ("core.iam_actions", "extract_resource_arn", roles.naming_jobs),
    ("core.lambda_runtime", "_PYTHON_WORKER_SCRIPT", error_types.telling),
    ("services.eventbridge", "_invoke_target", roles.delivering),
    ("services.lambda_svc", "_execute_function_warm", error_types.true_errors),
    ("services.lambda_svc", "_run_sqs_batch", roles.polling),
    ("services.stepfunctions", "_invoke_resource", roles.invoking),
    ("services.stepfunctions", "_invoke_resource_with_timeout", emr_stack.giving_up),
    ("services.stepfunctions", "_run_execution", roles.executing),
)
# (module, table): each gets entries, above all for EMR Serverless, which MiniStack lacks
TABLES = (
    ("app", "SERVICE_HANDLERS"),
    ("core.iam_actions", "SERVICE_TO_IAM_NAMESPACE"),
    ("core.iam_actions", "_BOTOCORE_SERVICE_MAP"),
    ("core.router", "SERVICE_PATTERNS"),
    ("services.cloudformation.provisioners", "_RESOURCE_HANDLERS"),
    ("services.stepfunctions", "_SERVICE_DISPATCH"),
)


def install(*, work: Path, endpoint: str) -> EmrServerless:
    """Change the MiniStack of this process, once, and start what EMR Serverless does.

    Args:
        work: a directory for jobs.
        endpoint: of the emulator, for jobs.

    Returns:
        What to close at the end.

    Raises:
        Invalid: it is another release, or a place to change is missing. Nothing was changed.
    """
    check()
    clock, ids = SystemClock(), SystemIds()
    runner = SparkRunner(work=work, endpoint=endpoint, credentials=roles.credentials)
    emr = EmrServerless(runner=runner, clock=clock, ids=ids)
    for module, attribute, made in CHANGES:
        place = _module(module)
        setattr(place, attribute, made(getattr(place, attribute)))
    entries = _entries(emr)
    for module, table in TABLES:
        getattr(_module(module), table).update(entries[table])

    def step() -> None:
        while True:
            emr.step()
            clock.sleep(STEP_SECONDS)

    threading.Thread(target=step, name="emr-serverless", daemon=True).start()
    return emr


def check() -> None:
    """Raises Invalid unless MiniStack is the release that this is made for and has every place that is changed."""
    found = metadata.version("ministack")
    places = [(module, name) for module, name, _ in CHANGES] + list(TABLES)
    missing = [f"{module}.{name}" for module, name in places if not hasattr(_module(module), name)]
    if found != RELEASE or missing:
        raise Invalid(
            f"MiniStack is {found}, not {RELEASE}" + (f", and lacks {', '.join(missing)}" if missing else ""),
            remedy=f"Install ministack=={RELEASE}",
        )
    error_types.telling(_module("core.lambda_runtime")._PYTHON_WORKER_SCRIPT)


def _entries(emr: EmrServerless) -> Mapping[str, Mapping[str, Any]]:
    """What each table gets."""
    service, clock, ids = emr_http.SERVICE, SystemClock(), SystemIds()
    return {
        "SERVICE_HANDLERS": {
            service: emr_http.EmrHttp(emr).handle_request,
            "s3": roles.hiding_absence(_module("app").SERVICE_HANDLERS["s3"]),
        },
        "SERVICE_TO_IAM_NAMESPACE": {service: service},
        "_BOTOCORE_SERVICE_MAP": {service: [service]},
        "SERVICE_PATTERNS": {service: {"host_patterns": [r"emr-serverless\."], "credential_scope": service}},
        "_RESOURCE_HANDLERS": {emr_stack.TYPE: emr_stack.Stacks(emr, ids=ids).handler()},
        "_SERVICE_DISPATCH": {emr_stack.TASK: emr_stack.Task(emr, clock=clock, ids=ids)},
    }


def _module(name: str) -> Any:
    return importlib.import_module(f"ministack.{name}")
