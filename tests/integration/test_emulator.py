"""The emulator behaves as the stacks need it: kinds of errors, roles, order of messages, jobs."""

from __future__ import annotations

import gzip
import io
import json
import os
import time
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lancelsm.errors import Invalid
from local import ACCOUNT, REGION, install, server
from tests.emulator import Emulator, emulator
from tests.integration import deployment

BUCKET = "emulated"
until = partial(deployment.until, seconds=180.0)  # a job may need this long to start
Allowed = tuple[str, str] | dict[str, Any]  # action and resource, or a whole statement
MERGE = Path(__file__).resolve().parents[2] / "infra" / "workflows" / "merge.asl.json"
RULE = f"arn:aws:events:{REGION}:{ACCOUNT}:rule/StepFunctionsGetEventsForEMRServerlessJobRule"

FUNCTION = '''
import json, os, time
import boto3


class Contended(Exception):
    pass


def handler(event, context):
    if "Records" in event:
        return batch(event["Records"])
    if "raise" in event:
        raise Contended(event["raise"])
    if "exit" in event:
        os._exit(1)
    if "sleep" in event:
        time.sleep(event["sleep"])
    if "read" in event:
        return boto3.client("s3").get_object(Bucket=os.environ["BUCKET"], Key=event["read"])["Body"].read().decode()
    if "presign" in event:
        given = {"Bucket": os.environ["BUCKET"], "Key": event["presign"]}
        return boto3.client("s3", config=boto3.session.Config(signature_version="s3v4")).generate_presigned_url(
            "get_object", Params=given)
    return {"event": event, "pid": os.getpid()}


def batch(records):
    """Record every delivery. Fail a message as often as it says, and all later ones of its group."""
    table, queue = boto3.client("dynamodb"), boto3.client("sqs")
    failed, blocked = [], set()
    for record in records:
        body, received = json.loads(record["body"]), int(record["attributes"]["ApproximateReceiveCount"])
        group = record["attributes"]["MessageGroupId"]
        if group in blocked or received <= body.get("fails", 0):
            blocked.add(group)
            failed.append({"itemIdentifier": record["messageId"]})
            queue.change_message_visibility(QueueUrl=os.environ["QUEUE"], ReceiptHandle=record["receiptHandle"],
                                            VisibilityTimeout=1)
        done = "failed" if group in blocked else "done"
        number = table.update_item(TableName=os.environ["TABLE"], Key={"pk": {"S": "count"}},
                                   UpdateExpression="ADD n :one", ExpressionAttributeValues={":one": {"N": "1"}},
                                   ReturnValues="ALL_NEW")["Attributes"]["n"]["N"]
        outcome = f"{group}{body['n']} {done}"
        table.put_item(TableName=os.environ["TABLE"],
                       Item={"pk": {"S": f"seen {int(number):04}"}, "outcome": {"S": outcome}})
    return {"batchItemFailures": failed}
'''

JOB = """
import os, sys, time
import boto3
import shipped

print("role", boto3.client("sts").get_caller_identity()["Arn"].split("/")[1], *sys.argv[1:])
if "fail" in sys.argv:
    raise ValueError("as asked")
if "wait" in sys.argv:
    boto3.client("s3").put_object(Bucket="emulated", Key="job/" + sys.argv[2], Body=str(os.getpid()).encode())
    time.sleep(600)
from pyspark import SparkContext
print("sum", SparkContext.getOrCreate().range(3).map(lambda n: n + __import__("shipped").TEN).sum())
"""


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with emulator(tmp_path_factory.mktemp("emulator")) as running:
        s3 = running.client("s3")
        s3.create_bucket(Bucket=BUCKET)
        s3.put_object(Bucket=BUCKET, Key="in/a", Body=b"may be read")
        s3.put_object(Bucket=BUCKET, Key="out/a", Body=b"may not")
        s3.put_object(Bucket=BUCKET, Key="job.py", Body=JOB.encode())
        s3.put_object(Bucket=BUCKET, Key="deps.zip", Body=zipped({"shipped.py": "TEN = 10\n"}))
        yield running


@pytest.fixture(scope="module")
def function(aws: Emulator) -> str:
    """The ARN of a function that may read below in/, and use the queue and the table."""
    sqs, table = aws.client("sqs"), "deliveries"
    attributes = {"FifoQueue": "true", "VisibilityTimeout": "20"}
    queue = sqs.create_queue(QueueName="writes.fifo", Attributes=attributes)["QueueUrl"]
    aws.client("dynamodb").create_table(
        TableName=table,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
    )
    allowed = [
        ("s3:GetObject", f"arn:aws:s3:::{BUCKET}/in/*"),
        ("sqs:*", arn("sqs", "writes.fifo")),
        ("dynamodb:*", arn("dynamodb", f"table/{table}")),
    ]
    made = aws.client("lambda").create_function(
        FunctionName="reader",
        Runtime="python3.11",
        Role=role(aws, "reader", allowed),
        Handler="code.handler",
        Code={"ZipFile": zipped({"code.py": FUNCTION})},
        Timeout=3,
        Environment={"Variables": {"BUCKET": BUCKET, "QUEUE": queue, "TABLE": table}},
    )
    return str(made["FunctionArn"])


@pytest.fixture(scope="module")
def application(aws: Emulator) -> str:
    made = aws.client("emr-serverless").create_application(
        name="merge",
        releaseLabel="emr-spark-8.0.0",
        type="SPARK",
        maximumCapacity={"cpu": "16 vCPU", "memory": "64 GB"},
    )
    return str(made["applicationId"])


@pytest.fixture(scope="module")
def job_role(aws: Emulator) -> str:
    return role(aws, "job", [("s3:*", f"arn:aws:s3:::{BUCKET}/*")])


def test_ministack_is_the_expected_release_and_has_all_patched_names() -> None:
    install.check()


def test_a_release_without_a_patched_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "TABLES", (*install.TABLES, ("core.router", "_moved")))

    with pytest.raises(Invalid, match=r"lacks core\.router\._moved"):
        install.check()


@pytest.mark.rest
def test_a_directory_has_only_one_emulator(aws: Emulator, tmp_path: Path) -> None:
    with emulator(tmp_path), pytest.raises(Invalid, match="an emulator runs in"):
        server.start(tmp_path, port=1)
    assert server.running(tmp_path) is None


def test_start_refuses_an_emulator_that_runs_at_another_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_PORT", "1")

    with emulator(tmp_path), pytest.raises(SystemExit, match="another port than 1"):
        server.main(["start", "--directory", str(tmp_path)])


def test_a_function_fails_with_the_class_and_the_stack_trace_of_its_exception(aws: Emulator, function: str) -> None:
    answer = aws.client("lambda").invoke(FunctionName=function, Payload=json.dumps({"raise": "later"}))
    error = json.loads(answer["Payload"].read())

    assert answer["FunctionError"] == "Unhandled"
    assert (error["errorType"], error["errorMessage"]) == ("Contended", "later")
    assert "in handler" in error["stackTrace"][0]


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("event", "kind"),
    [({"exit": 1}, "Runtime.ExitError"), ({"sleep": 30}, "Sandbox.Timedout")],
    ids=["exit", "timeout"],
)
def test_a_function_that_ends_without_an_answer_fails_as_on_aws(
    aws: Emulator, function: str, event: dict[str, int], kind: str
) -> None:
    assert invoked(aws, function, event)["errorType"] == kind


def test_a_function_has_the_permissions_of_its_role(aws: Emulator, function: str) -> None:
    assert invoked(aws, function, {"read": "in/a"}) == "may be read"
    assert invoked(aws, function, {"read": "out/a"})["errorType"] == "AccessDenied"


@pytest.mark.parametrize(("listing", "kind"), [(True, "NoSuchKey"), (False, "AccessDenied")], ids=["lister", "reader"])
def test_only_a_role_that_may_list_learns_that_an_object_is_absent(aws: Emulator, listing: bool, kind: str) -> None:
    # Given a role that may read below tables/, with or without the right to list
    bucket, name = f"arn:aws:s3:::{BUCKET}", "lister" if listing else "reads"
    allowed = [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": f"{bucket}/tables/*"}]
    if listing:
        below = {"StringLikeIfExists": {"s3:prefix": ["tables/*"]}}
        allowed.append({"Effect": "Allow", "Action": "s3:ListBucket", "Resource": bucket, "Condition": below})
    made = role(aws, name, allowed, trusts_root=True)

    # When it reads an absent object
    with pytest.raises(ClientError) as refused:
        acting(aws, "s3", made).get_object(Bucket=BUCKET, Key="tables/absent")

    assert refused.value.response["Error"]["Code"] == kind


def test_a_bucket_policy_that_demands_encryption_allows_reads_and_other_denials_hold(aws: Emulator) -> None:
    # Given a bucket with the policy of the stacks, and a bucket that denies everything
    s3 = aws.client("s3")
    role(aws, "secure", [("s3:GetObject", "*")], trusts_root=True)
    for name, condition in (
        ("secure", {"Condition": {"Bool": {"aws:SecureTransport": "false"}}}),
        ("closed", {}),
    ):
        s3.create_bucket(Bucket=name)
        s3.put_object(Bucket=name, Key="a", Body=b"a")
        denied = {"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": f"arn:aws:s3:::{name}/*"}
        s3.put_bucket_policy(Bucket=name, Policy=json.dumps(policy([denied | condition])))
    reader = acting(aws, "s3", f"arn:aws:iam::{ACCOUNT}:role/secure")

    # When a role reads both, then only the first read succeeds
    assert reader.get_object(Bucket="secure", Key="a")["Body"].read() == b"a"
    with pytest.raises(ClientError, match="explicit deny"):
        reader.get_object(Bucket="closed", Key="a")


def test_sending_a_batch_needs_the_permission_to_send_a_message(aws: Emulator) -> None:
    queue = aws.client("sqs").create_queue(QueueName="batches")["QueueUrl"]
    sender = acting(aws, "sqs", role(aws, "sender", [("sqs:SendMessage", arn("sqs", "batches"))], trusts_root=True))

    sent = sender.send_message_batch(QueueUrl=queue, Entries=[{"Id": "0", "MessageBody": "a"}])

    assert len(sent["Successful"]) == 1
    with pytest.raises(ClientError, match="AccessDenied"):
        sender.receive_message(QueueUrl=queue)


def test_a_role_that_may_write_the_records_of_one_partition_writes_no_others(aws: Emulator) -> None:
    aws.client("dynamodb").create_table(
        TableName="partitions",
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    writing: dict[str, Any] = {
        "Effect": "Allow",
        "Action": "dynamodb:UpdateItem",
        "Resource": arn("dynamodb", "table/partitions"),
        "Condition": {"ForAnyValue:StringEquals": {"dynamodb:LeadingKeys": ["scrub"]}},
    }
    writer = acting(aws, "dynamodb", role(aws, "partition", [writing], trusts_root=True))

    writer.update_item(TableName="partitions", Key={"pk": {"S": "scrub"}})

    with pytest.raises(ClientError, match="AccessDenied"):
        writer.update_item(TableName="partitions", Key={"pk": {"S": "heads"}})


def test_a_url_presigned_by_a_function_is_read_without_credentials(aws: Emulator, function: str) -> None:
    url = invoked(aws, function, {"presign": "in/a"})

    with urllib.request.urlopen(url) as answer:
        assert answer.read() == b"may be read"


@pytest.mark.rest
def test_a_state_machine_retries_and_catches_by_kind_of_error(aws: Emulator, function: str) -> None:
    # Given a task that is retried twice on Contended, then caught by that name
    machine = machine_of(
        aws,
        "retrying",
        [("lambda:InvokeFunction", function)],
        lambda_task(function)
        | {
            "Retry": [{"ErrorEquals": ["Contended"], "IntervalSeconds": 1, "MaxAttempts": 2, "BackoffRate": 1}],
            "Catch": [{"ErrorEquals": ["Contended"], "ResultPath": "$.error", "Next": "Caught"}],
        },
        Caught={"Type": "Pass", "Parameters": {"kind.$": "$.error.Error"}, "End": True},
    )

    # When it always fails
    execution = executed(aws, machine, {"raise": "later"})

    # Then it was tried three times
    assert (execution["status"], json.loads(execution["output"])) == ("SUCCEEDED", {"kind": "Contended"})
    assert events(aws, execution).count("TaskFailed") == 3


def test_a_merge_whose_function_dies_continues_as_a_job_with_the_same_plan(aws: Emulator, function: str) -> None:
    # Given the states of the merge machine from the function to the job, with a stub in place of the job
    states = json.loads(MERGE.read_text())["States"]
    machine = machine_of(
        aws,
        "dying",
        [("lambda:InvokeFunction", function)],
        lambda_task(function) | {"Catch": states["MergeInLambda"]["Catch"]},
        TooLarge=states["TooLarge"],
        MergeOnSpark={"Type": "Pass", "End": True},
        Failed=states["Failed"],
    )

    execution = executed(aws, machine, {"exit": 1, "plan": {"engine": "inprocess", "token": "t"}, "attempt": 1})

    assert execution["status"] == "SUCCEEDED"
    found = json.loads(execution["output"])
    assert (found["plan"], found["attempt"]) == ({"engine": "spark", "token": "t"}, 1)


def test_a_state_machine_invokes_only_functions_that_its_role_allows(aws: Emulator, function: str) -> None:
    machine = machine_of(
        aws, "idle", [("lambda:InvokeFunction", arn("lambda", "function:other"))], lambda_task(function)
    )

    execution = executed(aws, machine, {"read": "in/a"})

    assert (execution["status"], execution["error"]) == ("FAILED", "Lambda.AWSLambdaException")
    assert "not authorized to perform: lambda:InvokeFunction" in execution["cause"]


def test_an_alias_is_invoked_by_its_own_name_only_and_keeps_its_failed_events(aws: Emulator, function: str) -> None:
    # Given an alias whose failed events go to a queue at once
    functions, sqs = aws.client("lambda"), aws.client("sqs")
    version = functions.publish_version(FunctionName=function)["Version"]
    alias = functions.create_alias(FunctionName=function, Name="live", FunctionVersion=version)["AliasArn"]
    queue = sqs.create_queue(QueueName="failed")["QueueUrl"]
    kept = {"OnFailure": {"Destination": arn("sqs", "failed")}}
    functions.put_function_event_invoke_config(
        FunctionName=function, Qualifier="live", MaximumRetryAttempts=0, DestinationConfig=kept
    )
    allowed = [("lambda:InvokeFunction", alias)]

    # When machines that may invoke the alias invoke it, and the function
    by_alias = executed(aws, machine_of(aws, "by-alias", allowed, lambda_task("reader:live")), {"read": "in/a"})
    by_function = executed(aws, machine_of(aws, "by-function", allowed, lambda_task(function)), {"read": "in/a"})
    functions.invoke(FunctionName="reader:live", InvocationType="Event", Payload=b'{"raise": "later"}')

    # Then only the alias runs, and the event is kept
    assert by_alias["status"] == "SUCCEEDED"
    assert "not authorized to perform: lambda:InvokeFunction" in by_function["cause"]
    (message,) = until(lambda: sqs.receive_message(QueueUrl=queue).get("Messages"), bool)
    assert json.loads(message["Body"])["requestPayload"] == {"raise": "later"}


@pytest.mark.rest
def test_a_group_is_redelivered_in_order_and_does_not_block_others(aws: Emulator, function: str) -> None:
    # Given two groups of three messages; A1 fails twice
    sqs = aws.client("sqs")
    queue = sqs.get_queue_url(QueueName="writes.fifo")["QueueUrl"]
    for group in "AB":
        for n in range(3):
            body = json.dumps({"n": n, "fails": 2 if (group, n) == ("A", 1) else 0})
            sqs.send_message(
                QueueUrl=queue, MessageBody=body, MessageGroupId=group, MessageDeduplicationId=f"{group}{n}"
            )

    # When a function receives them and reports which failed
    aws.client("lambda").create_event_source_mapping(
        EventSourceArn=arn("sqs", "writes.fifo"),
        FunctionName=function,
        BatchSize=10,
        FunctionResponseTypes=["ReportBatchItemFailures"],
    )
    delivered = until(lambda: deliveries(aws), lambda seen: "A2 done" in seen and "B2 done" in seen)

    # Then each was applied once, in the order of its group, and B did not wait for A
    assert [one for one in delivered if one.startswith("B")] == ["B0 done", "B1 done", "B2 done"]
    assert [one for one in delivered if one.startswith("A")] == [
        *("A0 done", "A1 failed", "A2 failed", "A1 failed", "A2 failed", "A1 done", "A2 done")
    ]


def test_a_mapping_delivers_nothing_if_the_function_may_not_receive(aws: Emulator, function: str) -> None:
    # Given a queue that the function's role does not name
    sqs, functions = aws.client("sqs"), aws.client("lambda")
    queue = sqs.create_queue(QueueName="other.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    sqs.send_message(QueueUrl=queue, MessageBody="{}", MessageGroupId="g", MessageDeduplicationId="d")

    made = functions.create_event_source_mapping(EventSourceArn=arn("sqs", "other.fifo"), FunctionName=function)

    last = until(
        lambda: functions.get_event_source_mapping(UUID=made["UUID"])["LastProcessingResult"],
        lambda result: result.startswith("PROBLEM"),
    )
    assert "sqs:ReceiveMessage" in last


@pytest.mark.rest
def test_a_schedule_delivers_only_where_its_role_allows(aws: Emulator) -> None:
    # Given two queues, a role that may send to the second, and a schedule for each queue
    sqs, scheduler = aws.client("sqs"), aws.client("scheduler")
    queues = {name: sqs.create_queue(QueueName=name)["QueueUrl"] for name in ("closed", "open")}
    sends = role(aws, "schedule", [("sqs:SendMessage", arn("sqs", "open"))])
    for seconds, name in enumerate(queues, start=1):
        scheduler.create_schedule(
            Name=name,
            ScheduleExpression=time.strftime("at(%Y-%m-%dT%H:%M:%S)", time.gmtime(time.time() + seconds)),
            FlexibleTimeWindow={"Mode": "OFF"},
            Target={"Arn": arn("sqs", name), "RoleArn": sends, "Input": '{"table": "orders"}'},
        )

    # When the second has delivered
    received = until(
        lambda: sqs.receive_message(QueueUrl=queues["open"], WaitTimeSeconds=1).get("Messages"), lambda found: found
    )

    # Then it delivered its input, and the first delivered nothing
    assert received[0]["Body"] == '{"table": "orders"}'
    assert not sqs.receive_message(QueueUrl=queues["closed"]).get("Messages")


@pytest.mark.rest
@pytest.mark.spark
def test_a_job_runs_under_its_role_with_its_archive(aws: Emulator, application: str, job_role: str) -> None:
    # When a job is submitted twice with one client token
    emr = aws.client("emr-serverless")
    first, again = (emr.start_job_run(**job(application, job_role, token="once")) for _ in range(2))
    ended = until(lambda: state(aws, application, first), lambda one: one["state"] in ("SUCCESS", "FAILED"))

    # Then it ran once, and its log is where EMR Serverless puts it
    assert (first["jobRunId"], ended["state"]) == (again["jobRunId"], "SUCCESS"), ended["stateDetails"]
    key = f"logs/applications/{application}/jobs/{first['jobRunId']}/SPARK_DRIVER/stdout.gz"
    kept = aws.client("s3").get_object(Bucket=BUCKET, Key=key)["Body"].read()
    assert gzip.decompress(kept).decode().splitlines() == ["role job", "sum 33"]


@pytest.mark.rest
@pytest.mark.spark
def test_a_state_machine_waits_for_a_job_and_fails_if_it_fails(aws: Emulator, application: str, job_role: str) -> None:
    machine = job_machine(aws, "failing", application, job_role, "fail")

    execution = executed(aws, machine, {})

    assert (execution["status"], execution["error"]) == ("FAILED", "States.TaskFailed")
    cause = json.loads(execution["cause"])
    assert (cause["State"], "ValueError: as asked" in cause["StateDetails"]) == ("FAILED", True)


@pytest.mark.rest
@pytest.mark.spark
def test_stopping_an_execution_cancels_its_job_and_ends_its_processes(
    aws: Emulator, application: str, job_role: str
) -> None:
    # Given an execution whose job has reported its process id
    machines, s3, emr = (aws.client(service) for service in ("stepfunctions", "s3", "emr-serverless"))
    machine = job_machine(aws, "stopped", application, job_role, "wait", "pid")
    started = machines.start_execution(stateMachineArn=machine)
    found = until(lambda: s3.list_objects_v2(Bucket=BUCKET, Prefix="job/pid"), lambda listed: listed["KeyCount"])
    process = int(s3.get_object(Bucket=BUCKET, Key=found["Contents"][0]["Key"])["Body"].read())

    # When it is stopped
    machines.stop_execution(executionArn=started["executionArn"])

    # Then the job is cancelled and its process has ended
    newest = max(emr.list_job_runs(applicationId=application)["jobRuns"], key=lambda one: one["createdAt"])
    until(
        lambda: emr.get_job_run(applicationId=application, jobRunId=newest["id"])["jobRun"]["state"],
        lambda one: one == "CANCELLED",
    )
    assert not Path(f"/proc/{process}").exists() or os.name != "posix"


def test_a_state_machine_starts_no_job_without_permission(aws: Emulator, application: str, job_role: str) -> None:
    machine = machine_of(aws, "powerless", [], job_task(application, job_role))

    execution = executed(aws, machine, {})

    assert execution["error"] == "EMRServerless.AccessDeniedException"


def test_a_role_makes_only_the_permitted_calls_to_emr_serverless(aws: Emulator, application: str) -> None:
    # Given credentials of a role that may only read this application
    looker = role(aws, "looker", [("emr-serverless:GetApplication", application_arn(application))], trusts_root=True)
    emr = acting(aws, "emr-serverless", looker)

    # Then it may not change it
    assert emr.get_application(applicationId=application)["application"]["name"] == "merge"
    with pytest.raises(ClientError, match="AccessDenied"):
        emr.update_application(applicationId=application, clientToken="t")


def test_a_stack_creates_and_deletes_an_application(aws: Emulator) -> None:
    # Given a template as CDK writes it: numbers as text, tags as a list
    stacks, emr = aws.client("cloudformation"), aws.client("emr-serverless")
    properties = {
        "Name": "stacked",
        "ReleaseLabel": "emr-spark-8.0.0",
        "Type": "SPARK",
        "AutoStopConfiguration": {"Enabled": True, "IdleTimeoutMinutes": "5"},
        "MaximumCapacity": {"Cpu": "16 vCPU", "Memory": "64 GB"},
        "Tags": [{"Key": "table", "Value": "orders"}],
    }
    resources = {"Application": {"Type": "AWS::EMRServerless::Application", "Properties": properties}}
    declared = {"Arn": {"Value": {"Fn::GetAtt": ["Application", "Arn"]}}, "Id": {"Value": {"Ref": "Application"}}}

    # When it is deployed, then deleted
    stacks.create_stack(StackName="emr", TemplateBody=json.dumps({"Resources": resources, "Outputs": declared}))
    stack = until(lambda: stacks.describe_stacks(StackName="emr")["Stacks"][0], lambda one: one.get("Outputs"))
    outputs = {one["OutputKey"]: one["OutputValue"] for one in stack["Outputs"]}
    made = emr.get_application(applicationId=outputs["Id"])["application"]
    stacks.delete_stack(StackName="emr")
    until(
        lambda: [one["id"] for one in emr.list_applications()["applications"] if one["state"] != "TERMINATED"],
        lambda remaining: outputs["Id"] not in remaining,
    )

    # Then the application was as in the template
    assert outputs["Arn"] == made["arn"] == application_arn(outputs["Id"])
    assert (made["name"], made["tags"], made["autoStopConfiguration"]) == (
        "stacked",
        {"table": "orders"},
        {"enabled": True, "idleTimeoutMinutes": 5},
    )


def arn(service: str, resource: str) -> str:
    return f"arn:aws:{service}:{REGION}:{ACCOUNT}:{resource}"


def application_arn(application: str) -> str:
    return arn("emr-serverless", f"/applications/{application}")


def zipped(files: dict[str, str]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


def acting(aws: Emulator, service: str, role_arn: str) -> Any:
    """Return a client that acts as a role. The role must trust the root."""
    given = aws.client("sts").assume_role(RoleArn=role_arn, RoleSessionName="acting")["Credentials"]
    own = {"key": given["AccessKeyId"], "secret": given["SecretAccessKey"], "token": given["SessionToken"]}
    return aws.client(service, **own)


def role(aws: Emulator, name: str, allowed: Sequence[Allowed], *, trusts_root: bool = False) -> str:
    iam = aws.client("iam")
    services = [f"{one}.amazonaws.com" for one in ("lambda", "states", "emr-serverless")]
    principal = {"AWS": f"arn:aws:iam::{ACCOUNT}:root"} if trusts_root else {"Service": services}
    trust = {"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"}
    made = iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(policy([trust])))["Role"]["Arn"]
    statements = [
        one if isinstance(one, dict) else {"Effect": "Allow", "Action": one[0], "Resource": one[1]} for one in allowed
    ]
    if statements:
        iam.put_role_policy(RoleName=name, PolicyName="allowed", PolicyDocument=json.dumps(policy(statements)))
    return str(made)


def policy(statements: list[dict[str, Any]]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": statements}


def invoked(aws: Emulator, function: str, event: object) -> Any:
    answer = aws.client("lambda").invoke(FunctionName=function, Payload=json.dumps(event))
    return json.loads(answer["Payload"].read())


def deliveries(aws: Emulator) -> list[str]:
    items = aws.client("dynamodb").scan(TableName="deliveries")["Items"]
    return [item["outcome"]["S"] for item in sorted(items, key=lambda one: one["pk"]["S"]) if "outcome" in item]


def lambda_task(function: str) -> dict[str, Any]:
    return {
        "Type": "Task",
        "Resource": "arn:aws:states:::lambda:invoke",
        "Parameters": {"FunctionName": function, "Payload.$": "$"},
        "End": True,
    }


def machine_of(
    aws: Emulator, name: str, allowed: Sequence[Allowed], first: dict[str, Any], **states: dict[str, Any]
) -> str:
    definition = {"StartAt": "First", "States": {"First": first, **states}}
    made = aws.client("stepfunctions").create_state_machine(
        name=name, definition=json.dumps(definition), roleArn=role(aws, f"machine-{name}", allowed)
    )
    return str(made["stateMachineArn"])


def executed(aws: Emulator, machine: str, given: object) -> dict[str, Any]:
    machines = aws.client("stepfunctions")
    started = machines.start_execution(stateMachineArn=machine, input=json.dumps(given))["executionArn"]
    return until(lambda: machines.describe_execution(executionArn=started), lambda one: one["status"] != "RUNNING")


def events(aws: Emulator, execution: dict[str, Any]) -> list[str]:
    history = aws.client("stepfunctions").get_execution_history(executionArn=execution["executionArn"])
    return [event["type"] for event in history["events"]]


def job(application: str, job_role: str, *arguments: str, token: str) -> dict[str, Any]:
    paths = "--conf spark.emr-serverless.driverEnv.PYTHONPATH=./deps --conf spark.executorEnv.PYTHONPATH=./deps"
    return {
        "applicationId": application,
        "clientToken": token,
        "executionRoleArn": job_role,
        "jobDriver": {
            "sparkSubmit": {
                "entryPoint": f"s3://{BUCKET}/job.py",
                "entryPointArguments": list(arguments),
                "sparkSubmitParameters": f"--archives s3://{BUCKET}/deps.zip#deps {paths}",
            }
        },
        "configurationOverrides": {
            "monitoringConfiguration": {"s3MonitoringConfiguration": {"logUri": f"s3://{BUCKET}/logs/"}}
        },
    }


def job_task(application: str, job_role: str, *arguments: str) -> dict[str, Any]:
    submit = job(application, job_role, *arguments, token="")["jobDriver"]["sparkSubmit"]
    return {
        "Type": "Task",
        "Resource": "arn:aws:states:::emr-serverless:startJobRun.sync",
        "Parameters": {
            "ApplicationId": application,
            "ClientToken.$": "States.Hash($$.Execution.Id, 'SHA-256')",
            "ExecutionRoleArn": job_role,
            "JobDriver": {"SparkSubmit": {name[:1].upper() + name[1:]: value for name, value in submit.items()}},
        },
        "End": True,
    }


def job_machine(aws: Emulator, name: str, application: str, job_role: str, *arguments: str) -> str:
    jobs = f"{application_arn(application)}/jobruns/*"
    allowed = [
        ("emr-serverless:StartJobRun", application_arn(application)),
        ("emr-serverless:GetJobRun", jobs),
        ("emr-serverless:CancelJobRun", jobs),
        ("iam:PassRole", job_role),
        ("events:*", RULE),
    ]
    return machine_of(aws, name, allowed, job_task(application, job_role, *arguments))


def state(aws: Emulator, application: str, started: dict[str, Any]) -> dict[str, Any]:
    emr = aws.client("emr-serverless")
    found: dict[str, Any] = emr.get_job_run(applicationId=application, jobRunId=started["jobRunId"])["jobRun"]
    return found
