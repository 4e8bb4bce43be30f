"""The checks of a deployment. Pure functions: facts in, checks out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from lancelsm.stack.delivery.mapping import is_delivering
from lancelsm.stack.doctor import Check, evaluate
from lancelsm.stack.doctor.facts import NO_STACK, Answer, CallFailed, DeploymentFacts

_ALIAS = "live"  # as in lancelsm.client.invoke
_SKEW_SECONDS = 60
_RECEIVES = 100  # fewer receives would move messages to the dead-letter queue that only have to wait
_RETENTION_SECONDS = 14 * 86400
_VISIBILITY = 6  # the visibility timeout is at least this many times the function's timeout
_LABELS = ("emr-spark-8", "emr-7.", "emr-spark-7")
_DENIED = ("AccessDenied", "AccessDeniedException", "403", "Forbidden", "UnauthorizedOperation")
_DEPLOY = "Deploy again, with the same context as before: make deploy STAGE={stage}"


def checks(facts: DeploymentFacts) -> list[Check]:
    """Return all checks, ordered so that each depends only on earlier ones."""
    return [
        _credentials(facts),
        _region(facts),
        _clock(facts),
        *(_stack(facts, name, answer) for name, answer in facts.stacks.items()),
        _bucket(facts),
        *_probe(facts),
        _registry(facts),
        *_queues(facts),
        *(_function(facts, name, answer) for name, answer in facts.functions.items()),
        _invocable(facts),
        _mapping(facts),
        *(_machine(facts, name, answer) for name, answer in facts.machines.items()),
        _application(facts),
    ]


def _unknown(facts: DeploymentFacts, name: str, refused: CallFailed) -> Check:
    """Return a failed check for a call that failed."""
    if refused.code in _DENIED:
        remedy = "Run with credentials that may read it"
    elif refused.code == "NoOutput" or "NotFound" in refused.code or "NonExistent" in refused.code:
        remedy = _deploy(facts)
    else:
        remedy = "Check credentials, region and network"
    return Check(name=name, ok=False, found=f"{refused.code}: {refused.message}", remedy=remedy)


def _deploy(facts: DeploymentFacts) -> str:
    return _DEPLOY.format(stage=facts.stage)


def _credentials(facts: DeploymentFacts) -> Check:
    if isinstance(facts.caller, CallFailed):
        remedy = "Set credentials: AWS_PROFILE, `aws sso login`, or a role"
        found = f"{facts.caller.code}: {facts.caller.message}"
        return Check(name="credentials", ok=False, found=found, remedy=remedy)
    return Check(name="credentials", ok=True, found=str(facts.caller["Arn"]))


def _region(facts: DeploymentFacts) -> Check:
    """Check that everything is in the AWS region of the calls."""
    regions: dict[str, str] = {}
    for name, answer in facts.functions.items():
        if not isinstance(answer, CallFailed):
            regions[name] = _region_of(answer["FunctionArn"])
    for name, answer in facts.queues.items():
        if not isinstance(answer, CallFailed):
            regions[name] = _region_of(answer["QueueArn"])
    if not isinstance(facts.registry, CallFailed):
        regions["registry"] = _region_of(facts.registry["TableArn"])
    if not isinstance(facts.bucket, CallFailed) and (region := _bucket_region(facts.bucket)):
        regions["bucket"] = region
    elsewhere = {name: region for name, region in regions.items() if region != facts.region}
    what = ", ".join(f"{name} in {region}" for name, region in elsewhere.items())
    return evaluate(
        "region",
        facts.region,
        (bool(elsewhere), f"checked {facts.region}, but {what}", "Deploy everything in one region"),
    )


def _region_of(arn: str) -> str:
    return arn.split(":")[3]


def _bucket_region(answer: Mapping[str, Any]) -> str | None:
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    region: str | None = answer.get("BucketRegion") or headers.get("x-amz-bucket-region")
    return region


def _clock(facts: DeploymentFacts) -> Check:
    skew = facts.skew_seconds
    if skew is None:
        return Check(name="clock", ok=True, found="unknown: no reply had a time")
    remedy = "Synchronise the machine's clock by NTP: AWS refuses requests that are 5 minutes off"
    return evaluate("clock", f"{abs(skew):.0f} s off", (abs(skew) > _SKEW_SECONDS, f"{abs(skew):.0f} s off", remedy))


def _stack(facts: DeploymentFacts, name: str, answer: Answer) -> Check:
    name = f"stack {name}"
    if isinstance(answer, CallFailed):
        if answer.code == NO_STACK:
            return Check(name=name, ok=False, found=answer.message, remedy=_deploy(facts))
        return _unknown(facts, name, answer)
    status = str(answer["StackStatus"])
    good = status.endswith("_COMPLETE") and status not in ("ROLLBACK_COMPLETE", "DELETE_COMPLETE")
    remedy = f"Look at the stack's events. {_deploy(facts)}"
    return evaluate(name, status, (not good, status, remedy))


def _bucket(facts: DeploymentFacts) -> Check:
    if isinstance(facts.bucket, CallFailed):
        return _unknown(facts, "bucket", facts.bucket)
    return Check(name="bucket", ok=True, found=facts.outputs["Bucket"])


def _probe(facts: DeploymentFacts) -> Iterator[Check]:
    if isinstance(facts.probe, CallFailed):
        yield _unknown(facts, "conditional writes", facts.probe)
        return
    seen = facts.probe
    grant = "Grant s3:ListBucket on the bucket: without it S3 answers 403 for absent objects"
    found = f"a read of an absent object gives {seen['absent']}"
    yield evaluate("absent objects", found, (seen["absent"] != 404, found, grant))
    refused = seen["created"] >= 300
    ignored = "Use a bucket that supports If-None-Match and If-Match: without them writers overwrite each other"
    yield evaluate(
        "conditional writes",
        "If-None-Match and If-Match work",
        (refused, f"creating an object gives {seen['created']}", "Grant s3:PutObject below work/"),
        (not refused and seen["again"] != 412, f"a second create gives {seen['again']}, not 412", ignored),
        (not refused and seen["stale"] != 412, f"a stale If-Match gives {seen['stale']}, not 412", ignored),
        (not refused and seen.get("replaced") != 200, f"a valid If-Match gives {seen.get('replaced')}", ignored),
    )


def _registry(facts: DeploymentFacts) -> Check:
    table, name = facts.registry, "registry"
    if isinstance(table, CallFailed):
        return _unknown(facts, name, table)
    keys = [(key["AttributeName"], key["KeyType"]) for key in table["KeySchema"]]
    indexes = {index["IndexName"] for index in table.get("GlobalSecondaryIndexes", ())}
    recovery = _recovery(facts.backups)
    local = _emulated(facts)  # the emulator keeps no data
    deploy = _deploy(facts)
    return evaluate(
        name,
        f"{table['TableName']}, {table['TableStatus']}",
        (table["TableStatus"] not in ("ACTIVE", "UPDATING"), f"it is {table['TableStatus']}", "Wait, then check again"),
        (keys != [("pk", "HASH"), ("sk", "RANGE")], f"its key is {keys}", "Use a table with the key pk and sk"),
        ("dirty" not in indexes, "it has no index `dirty`", deploy),
        (recovery != "ENABLED" and not local, f"point-in-time recovery is {recovery}", f"Turn it on. {deploy}"),
        (
            not table.get("DeletionProtectionEnabled") and not local and not _is_disposable(facts),
            "deletion protection is off",
            f"Turn deletion protection on. {deploy}",
        ),
        (
            bool(table.get("Replicas")),
            "it is a global table, whose replicas accept conflicting swaps",
            "Remove its replicas",
        ),
    )


def _is_disposable(facts: DeploymentFacts) -> bool:
    """Return whether data is meant to go with its stack (`removal=destroy`): then no protection is on."""
    state = facts.stacks.get("state")
    return isinstance(state, Mapping) and state.get("EnableTerminationProtection") is False


def _emulated(facts: DeploymentFacts) -> bool:
    """Return whether the deployment is on the emulator: only there functions may use HTTP."""
    known = (one for one in facts.functions.values() if not isinstance(one, CallFailed))
    return any("AWS_ALLOW_HTTP" in one.get("Environment", {}).get("Variables", {}) for one in known)


def _recovery(backups: Answer) -> str:
    if isinstance(backups, CallFailed):
        return f"unknown ({backups.code})"
    described = backups["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription", {})
    return str(described.get("PointInTimeRecoveryStatus", "DISABLED"))


def _queues(facts: DeploymentFacts) -> Iterator[Check]:
    writes, dead_letters = facts.queues["QueueUrl"], facts.queues["DeadLetterUrl"]
    deploy = _deploy(facts)
    writer = facts.functions["writer_flush"]
    seconds = 0 if isinstance(writer, CallFailed) else int(writer["Timeout"])
    if isinstance(writes, CallFailed):
        yield _unknown(facts, "queue", writes)
    else:
        redrive = json.loads(writes.get("RedrivePolicy", "{}"))
        target = None if isinstance(dead_letters, CallFailed) else dead_letters["QueueArn"]
        receives = int(redrive.get("maxReceiveCount", 0))
        hidden = int(writes["VisibilityTimeout"])
        yield evaluate(
            "queue",
            f"{_name(writes)}, {writes.get('ApproximateNumberOfMessages', '?')} messages waiting",
            *_fifo(writes, deploy),
            (redrive.get("deadLetterTargetArn") != target, "its dead letters go to another queue", deploy),
            (
                0 < receives < _RECEIVES,
                f"it gives up a message after {receives} receives, so a blocked region would skip messages",
                deploy,
            ),
            (
                hidden < _VISIBILITY * seconds,
                f"its visibility timeout is {hidden} s, the writer's timeout {seconds} s",
                deploy,
            ),
        )
    if isinstance(dead_letters, CallFailed):
        yield _unknown(facts, "dead letters", dead_letters)
    else:
        waiting = int(dead_letters.get("ApproximateNumberOfMessages", 0))
        yield evaluate(
            "dead letters",
            f"{_name(dead_letters)}, empty",
            *_fifo(dead_letters, deploy),
            (waiting > 0, f"{waiting} dead letters are waiting", "Look at them, then: lancelsm redrive"),
        )


def _fifo(queue: Mapping[str, Any], deploy: str) -> Iterator[tuple[bool, str, str]]:
    kept = int(queue.get("MessageRetentionPeriod", 0))
    yield queue.get("FifoQueue") != "true", "it is not a FIFO queue", deploy
    yield queue.get("ContentBasedDeduplication") == "true", "it deduplicates by content, not by request", deploy
    yield kept < _RETENTION_SECONDS, f"it keeps messages for only {kept} s", deploy


def _name(queue: Mapping[str, Any]) -> str:
    return str(queue["QueueArn"]).rpartition(":")[2]


def _function(facts: DeploymentFacts, function: str, answer: Answer) -> Check:
    name = f"function {function}"
    if isinstance(answer, CallFailed):
        return _unknown(facts, name, answer)
    runtime = str(answer.get("Runtime") or answer.get("PackageType"))
    settings = answer.get("Environment", {}).get("Variables", {})
    state = answer.get("State", "Active")
    updated = answer.get("LastUpdateStatus", "Successful")
    local = _emulated(facts)
    deploy = _deploy(facts)
    return evaluate(
        name,
        f"{runtime}, {_architecture(answer)}, {answer['MemorySize']} MB, {answer['Timeout']} s",
        (state not in ("Active", "Inactive"), f"it is {state}: {answer.get('StateReason', '')}", deploy),
        (updated == "Failed", f"its last update failed: {answer.get('LastUpdateStatusReason', '')}", deploy),
        (not _runs(runtime), f"its runtime is {runtime}", f"Use Python 3.12 or 3.13. {deploy}"),
        (not local and not answer.get("Layers") and runtime != "Image", "it has no layer", f"make build. {deploy}"),
        (
            not local and not _same_architecture(facts, answer),
            f"it is {_architecture(answer)}, other functions are not",
            deploy,
        ),
        *(
            (settings[setting] != expected, f"{setting} is {settings[setting]}, not {expected}", deploy)
            for setting, expected in _settings(facts).items()
            if setting in settings
        ),
        (
            "LANCELSM_STACK" not in settings,
            "its settings are missing",
            deploy,
        ),
    )


def _runs(runtime: str) -> bool:
    if runtime == "Image":
        return True
    major, _, minor = runtime.removeprefix("python").partition(".")
    return (major, minor.isdigit()) == ("3", True) and int(minor) >= 11


def _architecture(answer: Mapping[str, Any]) -> str:
    return str((answer.get("Architectures") or ["x86_64"])[0])


def _same_architecture(facts: DeploymentFacts, answer: Mapping[str, Any]) -> bool:
    known = {_architecture(one) for one in facts.functions.values() if not isinstance(one, CallFailed)}
    return known == {_architecture(answer)}


def _settings(facts: DeploymentFacts) -> dict[str, str]:
    """Return the settings whose values follow from the outputs of the stacks."""
    outputs = facts.outputs
    found = {
        "LANCELSM_QUEUE_URL": outputs.get("QueueUrl"),
        "LANCELSM_DEAD_LETTER_URL": outputs.get("DeadLetterUrl"),
        "LANCELSM_REGISTRY": outputs.get("RegistryName"),
        "LANCELSM_COMPACTION": outputs.get("CompactionFunction"),
        "LANCELSM_MERGE_MACHINE": outputs.get("MergeMachine"),
    }
    if "Bucket" in outputs:
        found |= {f"LANCELSM_{place.upper()}": f"s3://{outputs['Bucket']}/{place}" for place in ("tables", "work")}
    return {name: value for name, value in found.items() if value is not None}


def _invocable(facts: DeploymentFacts) -> Check:
    refused = {name: answer for name, answer in facts.invocable.items() if isinstance(answer, CallFailed)}
    missing = {name for name, answer in facts.functions.items() if isinstance(answer, CallFailed)}
    denied = [name for name in refused if name not in missing]
    what = ", ".join(f"{name} ({refused[name].code})" for name in denied)
    return evaluate(
        "invocation",
        f"{len(facts.invocable) - len(refused)} functions can be invoked",
        (bool(denied), f"refused: {what}", "Grant lambda:InvokeFunction on them to the callers"),
        (bool(missing), f"not found: {', '.join(sorted(missing))}", _deploy(facts)),
    )


def _mapping(facts: DeploymentFacts) -> Check:
    name, deploy = "delivery", _deploy(facts)
    if isinstance(facts.mappings, CallFailed):
        return _unknown(facts, name, facts.mappings)
    writes = facts.queues["QueueUrl"]
    arn = None if isinstance(writes, CallFailed) else writes["QueueArn"]
    found = [one for one in facts.mappings["EventSourceMappings"] if one["EventSourceArn"] == arn]
    if len(found) != 1:
        return Check(name=name, ok=False, found=f"{len(found)} mappings from the queue to the writer", remedy=deploy)
    (mapping,) = found
    state, response_types = str(mapping["State"]), mapping.get("FunctionResponseTypes", ())
    target = str(mapping["FunctionArn"])
    return evaluate(
        name,
        f"{state}, batches of {mapping['BatchSize']}",
        (
            not is_delivering(state),
            f"the mapping is {state}: messages wait",
            "Enable it: aws lambda update-event-source-mapping --enabled --uuid " + str(mapping["UUID"]),
        ),
        ("ReportBatchItemFailures" not in response_types, "a batch fails as a whole", deploy),
        (not target.endswith(f":{_ALIAS}"), f"it invokes {target}, not the alias {_ALIAS}", deploy),
    )


def _machine(facts: DeploymentFacts, machine: str, answer: Answer) -> Check:
    name = f"state machine {machine.lower()}"
    if isinstance(answer, CallFailed):
        return _unknown(facts, name, answer)
    status, kind = str(answer["status"]), str(answer["type"])
    return evaluate(
        name,
        f"{status}, {kind}",
        (status != "ACTIVE", f"it is {status}", _deploy(facts)),
        (kind != "STANDARD", f"it is {kind}, which ends after 5 minutes", _deploy(facts)),
    )


def _application(facts: DeploymentFacts) -> Check:
    name, application = "Spark application", facts.application
    if isinstance(application, CallFailed):
        return _unknown(facts, name, application)
    label, state = str(application["releaseLabel"]), str(application["state"])
    architecture = str(application.get("architecture", "X86_64")).lower()
    built = {_architecture(one) for one in facts.functions.values() if not isinstance(one, CallFailed)}
    deploy = _deploy(facts)
    return evaluate(
        name,
        f"{label}, {architecture}, {state}",
        (not label.startswith(_LABELS), f"its release is {label}", f"Use emr-spark-8.x or emr-7.x. {deploy}"),
        (state == "TERMINATED", "it is terminated", deploy),
        (
            not _emulated(facts) and bool(built) and built != {architecture},
            f"it is {architecture}, its packages are built for {', '.join(sorted(built))}",
            f"Deploy both with one -c architecture. {deploy}",
        ),
        (bool(application.get("initialCapacity")), "it keeps workers, which cost money while idle", deploy),
    )
