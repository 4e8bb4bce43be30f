"""Functions are traced only if the deployment asks for it, and a trace has no values of rows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECRET = "a-secret-value"
IMPORT = """
import sys
from functions import writer_flush
print("aws_xray_sdk" in sys.modules, "wrapt" in sys.modules, hasattr(writer_flush.handler, "__wrapped__"))
"""
# A function that is called twice under a segment: it answers a row, and fails with a value of a row
CALLS = f"""
from aws_xray_sdk.core import xray_recorder
from lancelsm.errors import Invalid
from lancelsm.stack.function import function

class Context:
    aws_request_id, function_name = "one", "f"
    def get_remaining_time_in_millis(self): return 60_000

def work(event, call):
    if event["fails"]:
        raise Invalid("row 3: {SECRET} is not a number", redacted="row 3 has no number", row=3)
    return {{"rows": [{{"v": "{SECRET}"}}]}}

sent = []
xray_recorder.emitter.send_entity = lambda entity: sent.append(entity.serialize())
handler = function(work)
for fails in (False, True):
    try:
        handler({{"fails": fails, "v": "{SECRET}"}}, Context())
    except Invalid:
        pass
print("\\n".join(sent))
"""


def run(script: str, **environment: str) -> str:
    names = ("TABLES", "WORK", "QUEUE_URL", "DEAD_LETTER_URL")
    settings = {f"LANCELSM_{name}": f"file:///tmp/{name}" for name in names}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **settings, "AWS_DEFAULT_REGION": "us-east-1", **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.rest
def test_the_writer_imports_nothing_for_traces_and_needs_no_variable_for_them() -> None:
    assert run(IMPORT).split() == ["False", "False", "False"]


@pytest.mark.rest
def test_a_trace_has_the_calls_and_no_values_of_rows() -> None:
    pytest.importorskip("aws_xray_sdk")  # an environment that was installed from an older lock

    trace = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
    text = run(CALLS, LANCELSM_TRACING="true", LAMBDA_TASK_ROOT="/", _X_AMZN_TRACE_ID=trace)

    assert text.count("## handler") == 2
    assert "row 3 has no number" in text
    assert SECRET not in text
