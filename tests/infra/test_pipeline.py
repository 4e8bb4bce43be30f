"""The pipeline stack: functions, layers, state machines, the Spark application, the schedule, alarms."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from infra.asl import resolved
from infra.functions import MODULES, SHAPES
from infra.machines import WORKFLOWS
from infra.merging import ENTRY_POINT
from infra.schedules import jitter_minutes
from infra.spark import SparkSizes
from lancelsm.errors import Invalid
from local.emr_parameters import capacity, spark_properties, workers
from local.emr_states import JobResult
from tests.infra.conftest import ROOT, Stacks, synthesized
from tests.unit.test_emr_states import Environment

FUNCTIONS = {
    "ingest", "writer_flush", "apply", "region_claim", "compaction", "merger", "gc", "gc_sweep", "query", "scrub",
    "report", "dispatch",
}  # fmt: skip


def _settings(name: str) -> set[str]:
    """Return the names that a function's module passes to `settings(...)`."""
    tree = ast.parse((ROOT / "functions" / f"{MODULES.get(name, name)}.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return {
        argument.value
        for call in calls
        if call.func.id == "settings"  # type: ignore[attr-defined]
        for argument in call.args
        if isinstance(argument, ast.Constant)
    }


def test_every_function_is_deployed_under_its_name(stacks: Stacks) -> None:
    assert set(stacks.functions()) == FUNCTIONS
    outputs = {name.removesuffix("Function") for name in stacks.pipeline["Outputs"] if name.endswith("Function")}
    assert outputs == {name.title().replace("_", "") for name in FUNCTIONS}


def test_every_file_of_the_directory_functions_is_deployed() -> None:
    files = {path.stem for path in (ROOT / "functions").glob("*.py")} - {"__init__"}
    assert {MODULES.get(name, name) for name in SHAPES} == files


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_function_gets_exactly_the_settings_that_it_reads(name: str, prod: Stacks) -> None:
    deployed = set(prod.functions()[name]["Environment"]["Variables"]) - {"LANCELSM_STACK"}
    assert deployed == _settings(name)


def test_the_context_sets_settings_of_the_library(chosen: Stacks) -> None:
    for function in chosen.functions().values():
        assert function["Environment"]["Variables"]["LANCELSM_FLUSH_ROWS"] == "1000"


def test_settings_in_the_context_are_validated(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="flush_rows"):
        synthesized(tmp_path, stage="local", LANCELSM_FLUSH_ROWS="0")


@pytest.mark.parametrize("name", ["Team", "1st", "a" * 21, "a_b"])
def test_a_name_that_no_stage_may_have_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at most 20 lower-case letters"):
        synthesized(tmp_path, stage=name)


@pytest.mark.rest
def test_a_stage_of_any_name_has_names_of_its_own_and_the_schedule_of_the_context(tmp_path: Path, layers: Path) -> None:
    name = "team-a-of-20-letters"
    team = synthesized(tmp_path, stage=name, layers=str(layers), schedule_minutes="15")

    assert set(team.functions()) == FUNCTIONS
    schedule = team.one("AWS::Scheduler::Schedule")
    assert (schedule["ScheduleExpression"], schedule["State"]) == ("rate(15 minutes)", "ENABLED")
    configured = team.of("AWS::Lambda::EventInvokeConfig").values()
    assert {one["MaximumEventAgeInSeconds"] for one in configured} == {900}
    roles = [_text(one["RoleName"]) for one in team.of("AWS::IAM::Role").values()]
    assert all(role.startswith(f"lancelsm-{name}-") for role in roles)
    assert max(len(role.replace("AWS::Region", "ap-southeast-2")) for role in roles) <= 64, "the limit of IAM"


@pytest.mark.parametrize(
    ("context", "command"),
    [
        ({}, "make build"),
        ({"architecture": "x86_64"}, "make build ARCH=x86_64"),
        ({"expression": "true"}, "make build ARGS=expression"),  # it is not built by default
    ],
)
def test_a_missing_layer_is_named_with_the_remedy(context: dict[str, str], command: str, tmp_path: Path) -> None:
    if "expression" in context:
        (tmp_path / "arm64" / "lean").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=f"run `{command}`"):
        synthesized(tmp_path, stage="dev", layers=str(tmp_path), **context)


@pytest.mark.one_case
@pytest.mark.parametrize("change", ["other", "absent", "more"])
def test_an_archive_with_other_code_than_the_functions_is_refused(change: str, tmp_path: Path) -> None:
    for name in ("lean", "lance", "spark"):
        (tmp_path / "arm64" / name).mkdir(parents=True)
    package = tmp_path / "arm64" / "spark" / "lancelsm"
    shutil.copytree(ROOT / "shared" / "lancelsm", package, ignore=shutil.ignore_patterns("__pycache__"))
    if change == "other":
        (package / "namespace.py").write_text("")
    elif change == "absent":
        (package / "namespace.py").unlink()
    else:
        (package / "gone.py").touch()

    with pytest.raises(ValueError, match="run `make build`"):
        synthesized(tmp_path, stage="dev", layers=str(tmp_path))


def test_functions_that_only_use_the_log_have_the_lean_layer(prod: Stacks) -> None:
    layers = prod.of("AWS::Lambda::LayerVersion")
    for name, function in prod.functions().items():
        (layer,) = function["Layers"]
        assert layers[layer["Ref"]]["LayerName"] == f"lancelsm-prod-{SHAPES[name].layer}"


@pytest.mark.rest
def test_routing_by_expressions_needs_one_more_layer_where_rows_are_routed(tmp_path: Path, layers: Path) -> None:
    routed = synthesized(tmp_path, stage="dev", layers=str(layers), expression="true")
    assert {name: len(one["Layers"]) for name, one in routed.functions().items()} == {
        name: 2 if shape.layer == "lean" else 1 for name, shape in SHAPES.items() if name in FUNCTIONS
    }


def test_the_emulator_needs_no_layers(local: Stacks) -> None:
    assert not local.of("AWS::Lambda::LayerVersion")


@pytest.mark.rest
def test_another_emulator_gets_the_layers_on_request(tmp_path: Path, layers: Path) -> None:
    given = synthesized(tmp_path, stage="local", emulator_layers="true", layers=str(layers))
    assert {len(one.get("Layers", ())) for one in given.functions().values()} == {1}


def test_nothing_reserves_concurrency_or_opens_a_url(stacks: Stacks) -> None:
    assert not any("ReservedConcurrentExecutions" in one for one in stacks.functions().values())
    assert not stacks.of("AWS::Lambda::Url")


def test_a_function_url_needs_credentials(chosen: Stacks) -> None:
    assert chosen.one("AWS::Lambda::Url")["AuthType"] == "AWS_IAM"


def test_the_writer_reports_failed_messages_of_a_batch(prod: Stacks) -> None:
    (mapping,) = (one for one in prod.of("AWS::Lambda::EventSourceMapping").values() if one["BatchSize"] == 10)
    assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]


def test_the_context_limits_the_concurrency_of_the_writer(chosen: Stacks, prod: Stacks, tmp_path: Path) -> None:
    def limits(stacks: Stacks) -> list[Any]:
        mappings = stacks.of("AWS::Lambda::EventSourceMapping").values()
        return [one.get("ScalingConfig") for one in mappings if one["BatchSize"] == 10]

    assert (limits(chosen), limits(prod)) == ([{"MaximumConcurrency": 7}], [None])
    with pytest.raises(ValueError, match="from 2 to 1000"):
        synthesized(tmp_path, stage="local", maximum_concurrency="1")


def test_chunks_of_tables_go_to_a_few_invocations_of_dispatch_and_those_that_fail_are_kept(stacks: Stacks) -> None:
    queue = stacks.named("AWS::SQS::Queue", QueueName=f"lancelsm-{stacks.stage}-dispatch")
    properties = stacks.of("AWS::SQS::Queue")[queue]
    (mapping,) = (one for one in stacks.of("AWS::Lambda::EventSourceMapping").values() if one["BatchSize"] == 1)

    assert mapping["EventSourceArn"]["Fn::GetAtt"][0] == queue
    assert mapping["ScalingConfig"] == {"MaximumConcurrency": 5}
    assert properties["VisibilityTimeout"] == 6 * stacks.functions()["dispatch"]["Timeout"]
    failed = stacks.named("AWS::SQS::Queue", QueueName=f"lancelsm-{stacks.stage}-failed-events")
    redrive = properties["RedrivePolicy"]
    assert (redrive["deadLetterTargetArn"]["Fn::GetAtt"][0], redrive["maxReceiveCount"]) == (failed, 3)


def test_events_without_a_caller_are_not_repeated_and_their_failures_are_kept(stacks: Stacks) -> None:
    queue = stacks.named("AWS::SQS::Queue", QueueName=f"lancelsm-{stacks.stage}-failed-events")
    configured = stacks.of("AWS::Lambda::EventInvokeConfig").values()
    minutes = {"dev": 60}.get(stacks.stage, 5)

    assert {_text(one["FunctionName"]).split("Functions")[1][:8] for one in configured} == {"Dispatch", "Compacti"}
    for one in configured:
        assert (one["MaximumRetryAttempts"], one["MaximumEventAgeInSeconds"]) == (0, 60 * minutes)
        assert one["DestinationConfig"]["OnFailure"]["Destination"]["Fn::GetAtt"][0] == queue


@pytest.mark.parametrize(("stage", "minutes", "jitter"), [("prod", 5, 1), ("dev", 60, 12)])
def test_the_schedule_of_a_stage_runs_with_jitter_and_keeps_what_it_could_not_start(
    stage: str, minutes: int, jitter: int, all_stacks: dict[str, Stacks]
) -> None:
    stacks = all_stacks[stage]
    schedule = stacks.one("AWS::Scheduler::Schedule")

    assert (schedule["ScheduleExpression"], schedule["State"]) == (f"rate({minutes} minutes)", "ENABLED")
    assert schedule["FlexibleTimeWindow"] == {"Mode": "FLEXIBLE", "MaximumWindowInMinutes": jitter}
    queue = stacks.named("AWS::SQS::Queue", QueueName=f"lancelsm-{stage}-failed-events")
    assert schedule["Target"]["DeadLetterConfig"] == {"Arn": {"Fn::GetAtt": [queue, "Arn"]}}
    assert schedule["Target"]["RetryPolicy"] == {
        "MaximumRetryAttempts": 0,
        "MaximumEventAgeInSeconds": 60 * minutes,
    }
    assert schedule["Target"]["Input"] == "{}"


def test_the_emulator_has_the_schedule_but_runs_it_only_on_request(local: Stacks) -> None:
    assert local.one("AWS::Scheduler::Schedule")["State"] == "DISABLED"


@pytest.mark.parametrize(("minutes", "jitter"), [(1, 0), (4, 0), (5, 1), (60, 12), (1440, 15)])
def test_jitter_is_a_part_of_the_period(minutes: int, jitter: int) -> None:
    assert jitter_minutes(minutes) == jitter


def test_the_spark_application_has_no_idle_capacity_and_a_maximum(prod: Stacks) -> None:
    application = prod.one("AWS::EMRServerless::Application")
    assert application["ReleaseLabel"].startswith("emr-spark-8.")
    assert application["Architecture"] == "ARM64"
    assert "InitialCapacity" not in application
    assert int(application["MaximumCapacity"]["Cpu"].split()[0]) <= 16
    assert application["AutoStopConfiguration"]["Enabled"] is True


def test_a_job_has_an_archive_of_packages_on_aws_and_none_on_the_emulator(prod: Stacks, local: Stacks) -> None:
    assert ENTRY_POINT.is_file()
    assert "#deps" in str(_tokens(prod, "merge")["SparkSubmitParameters"])
    assert "archives" not in str(_tokens(local, "merge")["SparkSubmitParameters"])


def _submitted(stacks: Stacks) -> tuple[dict[str, str], Any]:
    """Return the Spark properties of a job and the application that it runs on."""
    parameters = _text(_tokens(stacks, "merge")["SparkSubmitParameters"])
    properties = spark_properties({"jobDriver": {"sparkSubmit": {"sparkSubmitParameters": parameters}}})
    return properties, stacks.one("AWS::EMRServerless::Application")


def _text(value: Any) -> str:
    """Return a value of a template as text, with the names of references."""
    match value:
        case {"Fn::Join": [separator, parts]}:
            return str(separator).join(_text(part) for part in parts)
        case {"Ref": name}:
            return str(name)
        case {"Fn::Sub": text}:
            return str(text)
        case _:
            return str(value)


def test_a_job_uses_the_whole_application_and_most_memory_is_overhead(prod: Stacks) -> None:
    properties, application = _submitted(prod)
    maximum = capacity({name.lower(): text for name, text in application["MaximumCapacity"].items()})

    used = workers(properties | {"spark.executor.instances": properties["spark.dynamicAllocation.maxExecutors"]})

    assert used == maximum
    worker = used.memory / 4
    assert worker in range(8, 31)  # GB, the range for a worker of 4 vCPU
    for kind in ("driver", "executor"):
        assert properties[f"spark.{kind}.cores"] == "4"
        assert int(properties[f"spark.{kind}.memoryOverhead"].removesuffix("g")) >= 0.75 * worker


def test_the_context_gives_the_sizes_of_spark_jobs(chosen: Stacks, prod: Stacks) -> None:
    application = chosen.one("AWS::EMRServerless::Application")
    assert application["ReleaseLabel"] == "emr-spark-8.1.0"
    assert application["MaximumCapacity"] == {"Cpu": "40 vCPU", "Memory": "160 GB", "Disk": "900 GB"}
    assert application["SchedulerConfiguration"] == {"MaxConcurrentRuns": 3, "QueueTimeoutMinutes": 720}
    assert prod.one("AWS::EMRServerless::Application")["SchedulerConfiguration"] == {
        "MaxConcurrentRuns": 1,
        "QueueTimeoutMinutes": 360,
    }


@pytest.mark.parametrize(
    ("context", "text"),
    [
        ({"spark_capacity": "15"}, "a driver and 3 executors of 4 vCPU, 16 vCPU together"),
        ({"spark_worker": "16"}, "64 vCPU together"),
        ({"spark_worker": "3"}, "give one of 1, 2, 4, 8, 16"),
        ({"spark_queue_minutes": "14"}, "from 15 to 720"),
        ({"spark_queue_minutes": "721"}, "from 15 to 720"),
        ({"spark_executors": "many"}, "whole number"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_their_sum(context: dict[str, str], text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=text):
        synthesized(tmp_path, stage="local", **context)


@pytest.mark.parametrize("worker", [1, 2, 4, 8, 16])
def test_a_worker_of_every_size_has_the_memory_of_its_part_of_the_application(worker: int) -> None:
    sizes = SparkSizes(capacity=64, worker=worker)
    properties = sizes.properties()

    used = workers(properties | {"spark.executor.instances": "3"})

    assert (used.cpu, used.memory) == (4 * worker, 16 * worker)


def test_of_two_merges_on_the_deployed_capacity_one_waits_and_then_runs(prod: Stacks) -> None:
    application = prod.one("AWS::EMRServerless::Application")
    parameters = " ".join(f"--conf {name}={value}" for name, value in SparkSizes().properties().items())
    emr = Environment(
        maximumCapacity={name.lower(): value for name, value in application["MaximumCapacity"].items()},
        schedulerConfiguration={"maxConcurrentRuns": application["SchedulerConfiguration"]["MaxConcurrentRuns"]},
    )
    first, second = emr.submit("1", parameters), emr.submit("2", parameters)

    emr.step(8)
    together = [emr.state(job) for job in (first, second)]
    emr.runs[0].end = JobResult(succeeded=True)
    emr.step(8)

    assert together == ["RUNNING", "QUEUED"]
    assert [emr.state(job) for job in (first, second)] == ["SUCCESS", "RUNNING"]


def test_a_merge_may_wait_for_capacity_before_each_attempt_of_its_job() -> None:
    workflow = json.loads((WORKFLOWS / "merge.asl.json").read_text())
    (attempts,) = (one["NumericLessThan"] for one in workflow["States"]["JobFailed"]["Choices"])
    minutes = workflow["States"]["MergeOnSpark"]["Parameters"]["ExecutionTimeoutMinutes"]

    optimize = workflow["States"]["OptimizeOnSpark"]["Parameters"]["ExecutionTimeoutMinutes"]
    assert workflow["TimeoutSeconds"] > 60 * (attempts * (720 + minutes) + 720 + optimize)


def test_an_optimize_goes_on_while_something_is_left_and_becomes_a_job_if_it_is_too_large() -> None:
    states = json.loads((WORKFLOWS / "merge.asl.json").read_text())["States"]

    chosen = {one["Next"]: one for one in states["Optimized"]["Choices"]}
    assert chosen["OptimizeOnSpark"]["Variable"] == "$.optimize.document.engine"
    assert (chosen["Optimize"]["Variable"], chosen["Optimize"]["BooleanEquals"]) == ("$.optimize.document.left", True)
    job = states["OptimizeOnSpark"]
    assert "'--step', 'optimize'" in job["Parameters"]["JobDriver"]["SparkSubmit"]["EntryPointArguments.$"]
    killed, failed = states["Optimize"]["Catch"]
    assert (killed["Next"], "Sandbox.Timedout" in killed["ErrorEquals"]) == ("OptimizeOnSpark", True)
    # A failure reaches the step that reports it, and fails neither this execution nor later ones
    assert {failed["Next"], job["Next"], *(one["Next"] for one in job["Catch"])} == {"Record"}
    assert states["Record"]["Parameters"]["Payload"]["optimize.$"] == "$.optimize.document"


def test_a_failed_job_is_retried_only_after_its_error_was_read() -> None:
    states = json.loads((WORKFLOWS / "merge.asl.json").read_text())["States"]

    caught = {catch["Next"] for catch in states["MergeOnSpark"]["Catch"]}
    assert caught == {"WhyFailed", "Failed"}
    assert states["WhyFailed"]["Parameters"]["Payload"]["step"] == "why"
    assert states["WhyFailed"]["Catch"] == [
        {"ErrorEquals": ["States.ALL"], "ResultPath": "$.failure", "Next": "Failed"}
    ]
    assert (states["WhyFailed"]["Next"], states["WhyFailed"]["ResultPath"]) == ("JobFailed", None)


def test_a_job_gets_the_aws_region(prod: Stacks) -> None:
    properties, _ = _submitted(prod)

    assert {properties[f"{kind}.AWS_REGION"] for kind in ("spark.emr-serverless.driverEnv", "spark.executorEnv")} == {
        "AWS::Region"
    }


def _tokens(stacks: Stacks, name: str) -> dict[str, Any]:
    machines = stacks.of("AWS::StepFunctions::StateMachine").values()
    (machine,) = (one for one in machines if one["StateMachineName"].endswith(f"-{name}"))
    return machine["DefinitionSubstitutions"]


@pytest.mark.parametrize("name", ["merge", "collect", "spark"])
def test_every_token_of_a_workflow_is_filled_in(name: str, prod: Stacks) -> None:
    text = (WORKFLOWS / f"{name}.asl.json").read_text()
    for token in _tokens(prod, name):
        assert f"${{{token}}}" in text
        text = text.replace(f"${{{token}}}", "x")
    assert "${" not in text


def test_make_asl_shows_the_state_machines_with_deployed_names(local: Stacks) -> None:
    shown = resolved(local.pipeline["Resources"])

    assert set(shown) == {"merge", "collect", "spark"}
    assert shown["merge"]["States"]["Plan"]["Parameters"]["FunctionName"] == "lancelsm-local-merger:live"
    assert shown["collect"]["States"]["Sweep"]["Parameters"]["FunctionName"] == "lancelsm-local-gc_sweep:live"
    assert shown["merge"]["States"]["Collect"]["Parameters"]["StateMachineArn"].startswith("<CollectingMachine")
    assert shown["merge"]["States"]["MergeOnSpark"]["Parameters"]["ExecutionRoleArn"].endswith(".Arn>")


@pytest.mark.parametrize("name", ["merge", "collect"])
def test_every_task_retries_by_kind_of_error_and_fails_with_that_kind(name: str) -> None:
    workflow = json.loads((WORKFLOWS / f"{name}.asl.json").read_text())
    states = workflow["States"]

    assert "Input: {" in workflow["Comment"]
    assert "Output: {" in workflow["Comment"]
    for state in states.values():
        if state["Type"] != "Task":
            continue
        assert any("States.ALL" in catch["ErrorEquals"] for catch in state["Catch"])
        if state["Resource"].endswith(":lambda:invoke"):
            restarted = {kind for catch in state["Catch"] for kind in catch["ErrorEquals"] if catch["Next"] != "Failed"}
            caught = restarted & {"Contended"}  # more steps than this one are repeated then
            assert {*state["Retry"][0]["ErrorEquals"], *caught} == {"Contended", "Unavailable", "Ambiguous"}
    assert states["Failed"] == {"Type": "Fail", "ErrorPath": "$.failure.Error", "CausePath": "$.failure.Cause"}
    reached = {workflow["StartAt"]} | set(_followers(states))
    assert reached == set(states)


@pytest.mark.parametrize("error", ["Sandbox.Timedout", "Lambda.Unknown", "Runtime.ExitError", "Runtime.OutOfMemory"])
def test_a_merge_too_large_for_a_function_becomes_a_spark_job_with_the_same_plan(error: str) -> None:
    states = json.loads((WORKFLOWS / "merge.asl.json").read_text())["States"]

    # The function runs out of time or memory: no retry matches
    merge = states["MergeInLambda"]
    assert not any(error in retry["ErrorEquals"] for retry in merge["Retry"])
    catch = next(one for one in merge["Catch"] if {error, "States.ALL"} & set(one["ErrorEquals"]))

    # Then a job starts with the same plan, and the output names its engine
    assert (catch["Next"], catch["ResultPath"]) == ("TooLarge", None)  # null keeps the input
    assert states["TooLarge"]["Next"] == "MergeOnSpark"
    assert (states["TooLarge"]["Result"], states["TooLarge"]["ResultPath"]) == ("spark", "$.plan.engine")
    selected = set(states["Plan"]["ResultSelector"])
    assert {"table.$", "plan.$", "result.$", "token.$"} <= selected
    assert states["Merged"]["Parameters"]["engine.$"] == "$.plan.engine"


def _followers(states: Any) -> list[str]:
    if isinstance(states, list):
        return [name for one in states for name in _followers(one)]
    if not isinstance(states, dict):
        return []
    here = [value for key, value in states.items() if key in ("Next", "Default")]
    return here + [name for one in states.values() for name in _followers(one)]


@pytest.mark.rest
def test_merges_start_collections_unless_the_context_disables_it(prod: Stacks, tmp_path: Path) -> None:
    without = synthesized(tmp_path, stage="local", collect="off")

    assert _tokens(prod, "merge")["Collect"] == "on"
    assert _tokens(without, "merge")["Collect"] == "off"


def test_an_unknown_value_of_collect_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give one of on, off"):
        synthesized(tmp_path, stage="local", collect="later")


def test_the_npm_lock_names_no_registry() -> None:
    text = (ROOT / "package-lock.json").read_text()
    assert "://" not in text
    assert json.loads(text)["packages"]["node_modules/aws-cdk"]["integrity"].startswith("sha512-")


def test_neither_stack_reports_its_deployment_to_aws(stacks: Stacks) -> None:
    assert "AWS::CDK::Metadata" not in str([stacks.state, stacks.pipeline])
