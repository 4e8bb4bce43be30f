"""Evaluate the synthesized policies of roles, and list for each role what it may do and what it may not.

The evaluator is the emulator's own. It checks every request when AUTH is on, so both decide alike.
"""

from __future__ import annotations

from typing import Any

from ministack.core.iam_evaluator import EvalContext, evaluate, parse_policy_document

from tests.infra.conftest import Stacks

ACCOUNT, REGION = "111111111111", "us-east-1"
BUCKET = f"arn:aws:s3:::lancelsm-local-{ACCOUNT}-{REGION}"
TABLE = f"{BUCKET}/tables/shop/orders"
REGION_OF_TABLE = f"{TABLE}/_mem_wal/11111111-2222-4333-8444-555555555555"
CONFIG = f"{TABLE}/_lancelsm/config.json"
ENTRY = f"{REGION_OF_TABLE}/wal/0101.arrow"
MANIFEST = f"{REGION_OF_TABLE}/manifest/staged/1-aa.binpb"
GENERATION = f"{REGION_OF_TABLE}/aaaaaaaa_gen_1/data/1.lance"
BASE_DATA = f"{TABLE}/data/1.lance"
BASE_VERSION = f"{TABLE}/_versions/1.manifest"
BASE_INDEX = f"{TABLE}/_indices/1/index.idx"
TAG = f"{TABLE}/_refs/tags/lancelsm-aa.json"
ROUND, BASE_ROUND = f"{REGION_OF_TABLE}/gc/1-aa.binpb", f"{TABLE}/_lancelsm/gc/1-aa.binpb"
INBOX, PLAN, RESULT = f"{BUCKET}/work/inbox/1", f"{BUCKET}/work/steps/e/plan.json", f"{BUCKET}/work/results/1"
REGISTRY = f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/lancelsm-local-registry"
WRITES = f"arn:aws:sqs:{REGION}:{ACCOUNT}:lancelsm-local-writes.fifo"
DEAD_LETTERS = f"arn:aws:sqs:{REGION}:{ACCOUNT}:lancelsm-local-dead-letters.fifo"
FAILED_EVENTS = f"arn:aws:sqs:{REGION}:{ACCOUNT}:lancelsm-local-failed-events"
CHUNKS = f"arn:aws:sqs:{REGION}:{ACCOUNT}:lancelsm-local-dispatch"
COMPACTION, MERGER, GC, SWEEP, DISPATCH = (
    f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:lancelsm-local-{name}:live"
    for name in ("compaction", "merger", "gc", "gc_sweep", "dispatch")
)
MAPPING = f"arn:aws:lambda:{REGION}:{ACCOUNT}:event-source-mapping:00000000-0000-4000-8000-000000000001"
MERGE, COLLECT = (
    f"arn:aws:states:{REGION}:{ACCOUNT}:stateMachine:lancelsm-local-{name}" for name in ("merge", "collect")
)
APPLICATION = f"arn:aws:emr-serverless:{REGION}:{ACCOUNT}:/applications/00f1"
JOB_ROLE, OWN_JOB_ROLE = (
    f"arn:aws:iam::{ACCOUNT}:role/lancelsm-local-{name}-job-{REGION}" for name in ("merge", "spark")
)
RULE = f"arn:aws:events:{REGION}:{ACCOUNT}:rule/StepFunctionsGetEventsForEMRServerlessJobRule"

Request = tuple[str, str]

MAY: dict[str, list[Request]] = {
    "ingest": [
        ("s3:GetObject", CONFIG),
        ("s3:GetObject", INBOX),
        ("s3:PutObject", INBOX),
        ("dynamodb:GetItem", REGISTRY),
        ("dynamodb:Query", REGISTRY),
        ("sqs:SendMessage", WRITES),
    ],
    "writer_flush": [
        ("s3:GetObject", CONFIG),
        ("s3:GetObject", ENTRY),
        ("s3:PutObject", ENTRY),
        ("s3:GetObject", MANIFEST),
        ("s3:PutObject", MANIFEST),
        ("s3:GetObject", INBOX),
        ("s3:PutObject", INBOX),
        ("dynamodb:UpdateItem", REGISTRY),
        ("sqs:ReceiveMessage", WRITES),
        ("sqs:DeleteMessage", WRITES),
        ("sqs:ChangeMessageVisibility", WRITES),
        ("sqs:GetQueueAttributes", WRITES),
        ("sqs:SendMessage", DEAD_LETTERS),
    ],
    "apply": [
        ("s3:GetObject", GENERATION),
        ("s3:GetObject", INBOX),
        ("s3:PutObject", ENTRY),
        ("s3:PutObject", MANIFEST),
        ("dynamodb:Query", REGISTRY),
        ("dynamodb:UpdateItem", REGISTRY),
    ],
    "region_claim": [
        ("s3:GetObject", ENTRY),
        ("s3:PutObject", ENTRY),
        ("s3:PutObject", MANIFEST),
        ("dynamodb:UpdateItem", REGISTRY),
    ],
    "compaction": [
        ("s3:GetObject", ENTRY),
        ("s3:GetObject", BASE_VERSION),
        ("s3:PutObject", GENERATION),
        ("s3:PutObject", MANIFEST),
        ("dynamodb:UpdateItem", REGISTRY),
        ("sqs:SendMessage", FAILED_EVENTS),
        ("sqs:SendMessage", CHUNKS),
    ],
    "merger": [
        ("s3:GetObject", GENERATION),
        ("s3:PutObject", BASE_DATA),
        ("s3:PutObject", BASE_VERSION),
        ("s3:PutObject", BASE_INDEX),
        ("s3:GetObject", PLAN),
        ("s3:PutObject", PLAN),
        ("dynamodb:UpdateItem", REGISTRY),
    ],
    "gc": [
        ("s3:GetObject", ENTRY),
        ("s3:GetObject", BASE_VERSION),
        ("s3:PutObject", MANIFEST),
        ("s3:PutObject", ROUND),
        ("s3:PutObject", BASE_ROUND),
        ("s3:PutObject", BASE_VERSION),
        ("s3:GetObject", PLAN),
        ("s3:PutObject", PLAN),
        ("dynamodb:Query", REGISTRY),
        ("dynamodb:UpdateItem", REGISTRY),
        ("dynamodb:DeleteItem", REGISTRY),
    ],
    "gc_sweep": [
        ("s3:GetObject", BASE_ROUND),
        ("s3:GetObject", PLAN),
        ("s3:PutObject", MANIFEST),
        ("s3:DeleteObject", ENTRY),
        ("s3:DeleteObject", GENERATION),
        ("s3:DeleteObject", MANIFEST),
        ("s3:DeleteObject", ROUND),
        ("s3:DeleteObject", BASE_ROUND),
        ("s3:DeleteObject", BASE_DATA),
        ("s3:DeleteObject", BASE_VERSION),
        ("s3:DeleteObject", BASE_INDEX),
        ("s3:DeleteObject", TAG),
        ("dynamodb:Query", REGISTRY),
        ("dynamodb:DeleteItem", REGISTRY),
    ],
    "query": [("s3:GetObject", GENERATION), ("s3:PutObject", RESULT), ("s3:GetObject", RESULT)],
    "report": [
        ("s3:GetObject", MANIFEST),
        ("s3:GetObject", BASE_VERSION),
        ("dynamodb:Query", REGISTRY),
        ("dynamodb:GetItem", REGISTRY),
    ],
    "scrub": [("s3:GetObject", ENTRY), ("s3:GetObject", BASE_ROUND), ("dynamodb:Query", REGISTRY)],
    "dispatch": [
        ("s3:GetObject", CONFIG),
        ("s3:GetObject", MANIFEST),
        ("dynamodb:Scan", f"{REGISTRY}/index/dirty"),
        ("dynamodb:GetItem", REGISTRY),
        ("lambda:InvokeFunction", COMPACTION),
        ("lambda:GetEventSourceMapping", MAPPING),
        ("states:StartExecution", MERGE),
        ("states:ListExecutions", MERGE),
        ("sqs:SendMessage", FAILED_EVENTS),
        ("sqs:SendMessage", CHUNKS),
        ("sqs:ReceiveMessage", CHUNKS),
    ],
    "merge-machine": [
        ("lambda:InvokeFunction", MERGER),
        ("states:StartExecution", COLLECT),
        ("emr-serverless:StartJobRun", APPLICATION),
        ("emr-serverless:GetJobRun", f"{APPLICATION}/jobruns/00j1"),
        ("emr-serverless:CancelJobRun", f"{APPLICATION}/jobruns/00j1"),
        ("iam:PassRole", JOB_ROLE),
        ("events:PutRule", RULE),
        ("events:PutTargets", RULE),
        ("events:DescribeRule", RULE),
    ],
    "merge-job": [
        ("s3:GetObject", GENERATION),
        ("s3:PutObject", BASE_DATA),
        ("s3:PutObject", PLAN),
        ("s3:PutObject", f"{BUCKET}/work/jobs/logs/a/1"),
        ("dynamodb:UpdateItem", REGISTRY),
    ],
    "spark-machine": [
        ("emr-serverless:StartJobRun", APPLICATION),
        ("emr-serverless:GetJobRun", f"{APPLICATION}/jobruns/00j1"),
        ("emr-serverless:CancelJobRun", f"{APPLICATION}/jobruns/00j1"),
        ("iam:PassRole", OWN_JOB_ROLE),
        ("events:PutRule", RULE),
    ],
    "spark-job": [
        ("s3:GetObject", GENERATION),
        ("s3:GetObject", f"{BUCKET}/jobs/totals.py"),
        ("s3:PutObject", ENTRY),
        ("s3:PutObject", MANIFEST),
        ("s3:PutObject", TAG),
        ("s3:PutObject", f"{BUCKET}/work/jobs/logs/a/1"),
        ("dynamodb:Query", REGISTRY),
        ("dynamodb:UpdateItem", REGISTRY),
    ],
    "collect-machine": [("lambda:InvokeFunction", GC), ("lambda:InvokeFunction", SWEEP)],
    "schedules": [("lambda:InvokeFunction", DISPATCH), ("sqs:SendMessage", FAILED_EVENTS)],
}
MAY_NOT: dict[str, list[Request]] = {
    "ingest": [("s3:PutObject", ENTRY), ("s3:GetObject", GENERATION), ("dynamodb:UpdateItem", REGISTRY)],
    "writer_flush": [("s3:PutObject", GENERATION), ("s3:PutObject", BASE_DATA), ("sqs:SendMessage", WRITES)],
    "apply": [("s3:PutObject", GENERATION), ("s3:PutObject", BASE_DATA), ("s3:PutObject", INBOX)],
    "region_claim": [("s3:PutObject", CONFIG), ("s3:GetObject", BASE_DATA), ("sqs:ReceiveMessage", WRITES)],
    "compaction": [("s3:PutObject", BASE_VERSION), ("s3:PutObject", CONFIG), ("sqs:ReceiveMessage", WRITES)],
    "merger": [("s3:PutObject", GENERATION), ("s3:PutObject", MANIFEST), ("s3:PutObject", RESULT)],
    "gc": [
        ("s3:PutObject", ENTRY),
        ("s3:PutObject", GENERATION),
        ("s3:PutObject", BASE_DATA),
        ("s3:PutObject", CONFIG),
        ("lambda:InvokeFunction", SWEEP),
    ],
    "gc_sweep": [
        ("s3:PutObject", ENTRY),
        ("s3:PutObject", BASE_VERSION),
        ("s3:DeleteObject", CONFIG),
        ("s3:DeleteObject", f"{BUCKET}/tables/a/data/b/_lancelsm/config.json"),
        ("s3:DeleteObject", PLAN),
        ("s3:PutObject", PLAN),
        ("dynamodb:UpdateItem", REGISTRY),
    ],
    "query": [("s3:PutObject", BASE_DATA), ("dynamodb:UpdateItem", REGISTRY), ("s3:GetObject", INBOX)],
    "report": [
        ("s3:PutObject", RESULT),
        ("s3:PutObject", MANIFEST),
        ("s3:DeleteObject", ENTRY),
        ("s3:GetObject", INBOX),
        ("dynamodb:UpdateItem", REGISTRY),
        ("dynamodb:DeleteItem", REGISTRY),
        ("dynamodb:Scan", REGISTRY),
        ("lambda:InvokeFunction", COMPACTION),
    ],
    "scrub": [("s3:PutObject", MANIFEST), ("dynamodb:UpdateItem", REGISTRY), ("dynamodb:DeleteItem", REGISTRY)],
    "dispatch": [
        ("s3:GetObject", ENTRY),
        ("dynamodb:UpdateItem", REGISTRY),
        ("dynamodb:Scan", REGISTRY),
        ("lambda:InvokeFunction", SWEEP),
        ("lambda:InvokeFunction", COMPACTION.removesuffix(":live")),
        ("lambda:GetEventSourceMapping", f"{MAPPING[:-1]}2"),
        ("states:StartExecution", COLLECT),
    ],
    "merge-machine": [
        ("lambda:InvokeFunction", SWEEP),
        ("lambda:InvokeFunction", MERGER.removesuffix(":live")),
        ("emr-serverless:StartJobRun", f"{APPLICATION[:-1]}2"),
        ("iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/admin"),
        ("s3:GetObject", CONFIG),
    ],
    "merge-job": [("s3:PutObject", MANIFEST), ("s3:GetObject", RESULT), ("lambda:InvokeFunction", MERGER)],
    "spark-machine": [("iam:PassRole", JOB_ROLE), ("lambda:InvokeFunction", MERGER), ("s3:GetObject", CONFIG)],
    "spark-job": [
        ("s3:PutObject", BASE_DATA),
        ("s3:PutObject", BASE_VERSION),
        ("s3:PutObject", GENERATION),
        ("s3:PutObject", CONFIG),
        ("s3:PutObject", f"{BUCKET}/jobs/totals.py"),
        ("s3:DeleteObject", TAG),
        ("dynamodb:DeleteItem", REGISTRY),
        ("sqs:SendMessage", WRITES),
    ],
    "schedules": [
        ("lambda:InvokeFunction", SWEEP),
        ("lambda:InvokeFunction", DISPATCH.removesuffix(":live")),
        ("sqs:SendMessage", CHUNKS),
    ],
    "collect-machine": [
        ("lambda:InvokeFunction", MERGER),
        ("lambda:InvokeFunction", GC.removesuffix(":live")),
        ("states:StartExecution", MERGE),
    ],
}
ONLY = {"s3:DeleteObject": {"gc_sweep"}, "dynamodb:DeleteItem": {"gc", "gc_sweep"}}


class Roles:
    """The roles of a deployment and their policies."""

    def __init__(self, stacks: Stacks) -> None:
        self._roles = {name: _resolve(one["RoleName"]) for name, one in stacks.of("AWS::IAM::Role").items() if one}
        self._documents: dict[str, list[Any]] = {}
        for policy in stacks.of("AWS::IAM::Policy").values():
            for role in policy["Roles"]:
                self._documents.setdefault(self._short(role["Ref"]), []).append(_resolve(policy["PolicyDocument"]))
        self._policies = {
            name: [parse_policy_document(one) for one in documents] for name, documents in self._documents.items()
        }
        assert not any("ManagedPolicyArns" in one for one in stacks.of("AWS::IAM::Role").values())

    @property
    def names(self) -> set[str]:
        return set(self._policies)

    def documents(self) -> dict[str, list[Any]]:
        """Return the policies of each role, with references resolved."""
        return self._documents

    def allows(self, name: str, action: str, resource: str, **conditions: str) -> bool:
        """Return whether the policies of a role allow an action."""
        passed = {"iam:passedtoservice": "emr-serverless.amazonaws.com"} if action == "iam:PassRole" else {}
        request = EvalContext(
            principal_arn=f"arn:aws:sts::{ACCOUNT}:assumed-role/{name}/test",
            principal_type="AssumedRole",
            principal_account=ACCOUNT,
            action=action,
            resource_arn=resource,
            region=REGION,
            source_ip="127.0.0.1",
            secure_transport=True,
            service_context={**passed, **conditions},
        )
        return bool(evaluate(request, self._policies[name]).decision == "Allow")

    def _short(self, logical: str) -> str:
        return self._roles[logical].removeprefix("lancelsm-local-").removesuffix(f"-{REGION}")


def _resolve(value: Any) -> Any:
    """Return a part of a template with references resolved to the names of this account."""
    match value:
        case {"Fn::Join": [separator, parts]}:
            return separator.join(_resolve(part) for part in parts)
        case {"Fn::Sub": text}:
            return text.replace("${AWS::AccountId}", ACCOUNT).replace("${AWS::Region}", REGION)
        case {"Ref": name}:
            pseudo = {"AWS::AccountId": ACCOUNT, "AWS::Region": REGION, "AWS::Partition": "aws"}
            if name.startswith("FunctionsWriterFlushLiveSqsEventSource"):
                return MAPPING.rsplit(":", maxsplit=1)[-1]
            if alias := next((arn for start, arn in ALIASES.items() if name.startswith(f"{start}Live")), None):
                return alias
            return COLLECT if name.startswith("CollectingMachine") and "Role" not in name else pseudo.get(name, name)
        case {"Fn::GetAtt": [name, "Arn"]}:
            return ARNS[next(start for start in ARNS if name.startswith(start))]
        case dict():
            return {key: _resolve(one) for key, one in value.items()}
        case list():
            return [_resolve(one) for one in value]
    return value


ALIASES = {"FunctionsDispatch": DISPATCH, "FunctionsMerger": MERGER, "FunctionsGcSweep": SWEEP, "FunctionsGc": GC}
ARNS = {
    "CollectingMachine": COLLECT,
    "EventsFailed": FAILED_EVENTS,
    "EventsDispatch": CHUNKS,
    "MergingApplication": APPLICATION,
    "MergingJobRole": JOB_ROLE,
    "SparkJobsJobRole": OWN_JOB_ROLE,
    "Functions": "arn:aws:logs:::log",
}
