"""Patch MiniStack. All patches are in one list, and every patched name is checked first.

Another release of MiniStack, or one without such a name, is refused.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from lancelsm.common.clock import SystemClock, SystemIds
from lancelsm.errors import Invalid
from local import aliases, emr_http, emr_stack, error_types, roles
from local.emr import EmrServerless
from local.emr_runner import SparkRunner

RELEASE = "1.5.33"
STEP_SECONDS = 0.1

# (module, attribute, function from the original to its replacement)
PATCHES: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("app", "pin_request_origin", roles.treating_as_secure),
    ("core.iam_actions", "dynamodb_service_context", roles.naming_leading_keys),
    ("core.iam_actions", "extract_iam_action", roles.naming_actions),
    ("core.iam_actions", "extract_resource_arn", roles.naming_emr_resources),
    ("core.lambda_runtime", "_PYTHON_WORKER_SCRIPT", error_types.reporting_errors),
    ("services.eventbridge", "_invoke_target", roles.delivering),
    ("services.lambda_svc", "_execute_function_warm", error_types.true_errors),
    ("services.lambda_svc", "_run_sqs_batch", roles.polling),
    ("services.lambda_svc", "invoke_async_with_retry", aliases.configured),
    ("services.stepfunctions", "_invoke_resource", roles.invoking),
    ("services.stepfunctions", "_invoke_resource_with_timeout", emr_stack.giving_up),
    ("services.stepfunctions", "_run_execution", roles.executing),
)
# (module, table): tables that get new entries, mostly for EMR Serverless, which MiniStack does not emulate
TABLES = (
    ("app", "SERVICE_HANDLERS"),
    ("core.iam_actions", "SERVICE_TO_IAM_NAMESPACE"),
    ("core.iam_actions", "_BOTOCORE_SERVICE_MAP"),
    ("core.router", "SERVICE_PATTERNS"),
    ("services.cloudformation.provisioners", "_RESOURCE_HANDLERS"),
    ("services.stepfunctions", "_SERVICE_DISPATCH"),
)


def install(*, work: Path, endpoint: str) -> EmrServerless:
    """Patch the MiniStack of this process, once, and start the emulation of EMR Serverless.

    Args:
        work: a directory for jobs.
        endpoint: the emulator's endpoint, for jobs.

    Returns:
        The emulation. The caller closes it at the end.

    Raises:
        Invalid: MiniStack is another release, or a name to patch is missing. Nothing was patched.
    """
    check()
    clock, ids = SystemClock(), SystemIds()
    runner = SparkRunner(work=work, endpoint=endpoint, credentials=roles.credentials)
    emr = EmrServerless(runner=runner, clock=clock, ids=ids)
    for module_name, attribute, patched in PATCHES:
        module = _module(module_name)
        setattr(module, attribute, patched(getattr(module, attribute)))
    entries = _entries(emr)
    for module_name, table in TABLES:
        getattr(_module(module_name), table).update(entries[table])

    def step() -> None:
        while True:
            emr.step()
            clock.sleep(STEP_SECONDS)

    threading.Thread(target=step, name="emr-serverless", daemon=True).start()
    return emr


def check() -> None:
    """Raise `Invalid` unless MiniStack is the expected release and has every name that is patched."""
    found = metadata.version("ministack")
    names = [(module, name) for module, name, _ in PATCHES] + list(TABLES)
    missing = [f"{module}.{name}" for module, name in names if not hasattr(_module(module), name)]
    if found != RELEASE or missing:
        raise Invalid(
            f"MiniStack is {found}, not {RELEASE}" + (f", and lacks {', '.join(missing)}" if missing else ""),
            remedy=f"Install ministack=={RELEASE}",
        )
    error_types.reporting_errors(_module("core.lambda_runtime")._PYTHON_WORKER_SCRIPT)


def _entries(emr: EmrServerless) -> Mapping[str, Mapping[str, Any]]:
    """Return the new entries of each table."""
    service, clock, ids = emr_http.SERVICE, SystemClock(), SystemIds()
    return {
        "SERVICE_HANDLERS": {
            service: emr_http.EmrHttp(emr).handle_request,
            "s3": roles.hiding_absent_objects(_module("app").SERVICE_HANDLERS["s3"]),
        },
        "SERVICE_TO_IAM_NAMESPACE": {service: service},
        "_BOTOCORE_SERVICE_MAP": {service: [service]},
        "SERVICE_PATTERNS": {service: {"host_patterns": [r"emr-serverless\."], "credential_scope": service}},
        "_RESOURCE_HANDLERS": {emr_stack.TYPE: emr_stack.Stacks(emr, ids=ids).handler()},
        "_SERVICE_DISPATCH": {emr_stack.TASK: emr_stack.Task(emr, clock=clock, ids=ids)},
    }


def _module(name: str) -> Any:
    return importlib.import_module(f"ministack.{name}")
