"""Run a job of an EMR Serverless application on this machine: fetch its files, then run spark-submit with two threads.

A job gets a fresh directory, the credentials of its role and this interpreter. An archive is unpacked once and linked
into each run. A job runs with Spark's defaults for memory and cores; the sizes that it requests only count against the
application's capacity. Spark does not access S3 here: a job reads and writes through Lance.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lancelsm.compaction.java import java_home
from lancelsm.errors import Invalid
from local import REGION
from local.emr_parameters import spark_properties
from local.emr_states import Application, JobResult, JobRun

_log = logging.getLogger("lancelsm.local")

_STOP_SECONDS = 5
_ERROR_LINES = 5
_QUICK = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a job here is short, and full compilation would take most of its time
)
_SPARK_LOG = re.compile(r"WARNING: Using incubator modules|\d\d/\d\d/\d\d [0-9:]+ (INFO|WARN) ")
_DRIVER = "spark.emr-serverless.driverEnv."
# Properties that do not apply on this machine: sizes of the service's workers.
_IGNORED = (
    *("spark.driver.cores", "spark.driver.memory", "spark.dynamicAllocation.", "spark.emr-serverless."),
    *("spark.executor.cores", "spark.executor.instances", "spark.executor.memory", "spark.master"),
)
_INTERPRETERS = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")

Credentials = Callable[[str, str], Mapping[str, str]]  # (role, session name) -> environment variables


class SparkRunner:
    """Start jobs in the directory `work`, which belongs to the runner."""

    def __init__(self, *, work: Path, endpoint: str, credentials: Credentials) -> None:
        self._work = work
        self._endpoint = endpoint
        self._credentials = credentials

    def start(self, job: JobRun, application: Application) -> SparkRun:
        identity = self._credentials(job.request["executionRoleArn"], f"{job.application}-{job.id}")
        run = SparkRun(
            job=job,
            directory=self._work / "jobs" / f"{job.id}-{job.attempt}",
            fetch=Fetch(s3=_s3(self._endpoint, identity), cache=self._work / "cache"),
            environment=_environment(self._endpoint, identity),
            log_uri=log_uri(job, application),
        )
        threading.Thread(target=run.run, name=f"job {job.id}", daemon=True).start()
        return run


class SparkRun:
    """One attempt of a job. `run` runs it in a thread of its own."""

    def __init__(
        self, *, job: JobRun, directory: Path, fetch: Fetch, environment: Mapping[str, str], log_uri: str | None
    ) -> None:
        self._job = job
        self._directory = directory
        self._fetch = fetch
        self._environment = environment
        self._log_uri = log_uri
        self._outcome: JobResult | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = threading.Event()

    def outcome(self) -> JobResult | None:
        return self._outcome

    def stop(self) -> None:
        self._stopped.set()
        if self._process is not None:
            threading.Thread(target=_end, args=(self._process,), daemon=True).start()

    def run(self) -> None:
        logs = self._directory / "logs"
        try:
            shutil.rmtree(self._directory, ignore_errors=True)
            logs.mkdir(parents=True)
            result = self._submitted(logs)
            self._keep_logs(logs)
        except Exception as error:  # noqa: BLE001 - any error fails this job, but not the emulator
            result = JobResult(succeeded=False, details=f"{type(error).__name__}: {error}")
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._outcome = result

    def _submitted(self, logs: Path) -> JobResult:
        properties = spark_properties(self._job.request)
        home = self._directory / "home"
        home.mkdir()
        for archive in _comma_separated(properties.pop("spark.archives", "")):
            address, _, name = archive.partition("#")
            (home / (name or address.rsplit("/", 1)[-1])).symlink_to(self._fetch.unpacked(address))
        driver = self._job.request["jobDriver"]["sparkSubmit"]
        entry = self._fetch.file(driver["entryPoint"], home)
        python_files = [
            self._fetch.file(one, home) for one in _comma_separated(properties.pop("spark.submit.pyFiles", ""))
        ]
        command = submission(entry, driver.get("entryPointArguments", []), properties, python_files)
        requested = {
            name.removeprefix(_DRIVER): value for name, value in properties.items() if name.startswith(_DRIVER)
        }
        environment = requested | dict(self._environment) | dict.fromkeys(_INTERPRETERS, sys.executable)
        with (logs / "stdout").open("wb") as output, (logs / "stderr").open("wb") as errors:
            if self._stopped.is_set():
                return JobResult(succeeded=False, details="Stopped before it ran")
            self._process = subprocess.Popen(
                command,
                cwd=home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        if self._stopped.is_set():  # stopped after the check above and before the start
            _end(self._process)
        code = self._process.wait()
        if code == 0:
            return JobResult(succeeded=True)
        # Spark puts both outputs of a Python driver into its own stdout.
        last = last_lines("\n".join((logs / name).read_text(errors="replace") for name in ("stderr", "stdout")))
        return JobResult(succeeded=False, details=f"Job failed. ExitCode: {code}. Last lines: {last}")

    def _keep_logs(self, logs: Path) -> None:
        if self._log_uri is None:
            return
        for name in ("stdout", "stderr"):
            address = f"{self._log_uri}/SPARK_DRIVER/{name}.gz"
            try:
                self._fetch.put(address, gzip.compress((logs / name).read_bytes(), mtime=0))
            except Exception:  # noqa: BLE001 - the job has ended anyway
                _log.exception("the log of job %s was not uploaded: %s", self._job.id, address)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Download the files that a job names, with the credentials of its role."""

    s3: Any
    cache: Path

    def file(self, address: str, into: Path) -> Path:
        if not address.startswith("s3://"):
            return Path(address.removeprefix("local://").removeprefix("file://"))
        bucket, key = _split(address)
        target = into / key.rsplit("/", 1)[-1]
        content = self.s3.get_object(Bucket=bucket, Key=key)["Body"]
        with target.open("wb") as file:
            shutil.copyfileobj(content, file)
        return target

    def unpacked(self, address: str) -> Path:
        """Return the directory with an archive's content. The first caller unpacks it."""
        bucket, key = _split(address)
        tag = self.s3.head_object(Bucket=bucket, Key=key)["ETag"]
        target = self.cache / hashlib.sha256(f"{tag} {key}".encode()).hexdigest()[:32]
        if target.is_dir():
            return target
        temporary = self.cache / f"{target.name}.{threading.get_ident()}"
        temporary.mkdir(parents=True)
        packed = self.file(address, temporary)
        content = temporary / "content"
        _unpack(packed, content)
        try:
            content.rename(target)
        except OSError:
            if not target.is_dir():
                raise
        shutil.rmtree(temporary)
        return target

    def put(self, address: str, body: bytes) -> None:
        bucket, key = _split(address)
        self.s3.put_object(Bucket=bucket, Key=key, Body=body)


def submission(entry: Path, arguments: list[str], properties: Mapping[str, str], python_files: list[Path]) -> list[str]:
    """Return the command that runs a job on this machine."""
    kept = {name: value for name, value in properties.items() if not name.startswith(_IGNORED)}
    local = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    command = [str(_spark_home() / "bin" / "spark-submit"), "--master", "local[2]"]
    for name, value in (local | kept).items():
        if name.removeprefix("spark.executorEnv.") not in _INTERPRETERS:
            command += ["--conf", f"{name}={value}"]
    if python_files:
        command += ["--py-files", ",".join(map(str, python_files))]
    return [*command, str(entry), *arguments]


def last_lines(log: str) -> str:
    """Return the end of a job's output without Spark's own log lines."""
    lines = [line for line in log.splitlines() if line.strip() and not _SPARK_LOG.match(line)]
    return " ".join(lines[-_ERROR_LINES:])


def log_uri(job: JobRun, application: Application) -> str | None:
    """Return where the logs of an attempt go, in the layout of EMR Serverless; None if they are not kept."""
    for request in (job.request.get("configurationOverrides", {}), application.request):
        root = request.get("monitoringConfiguration", {}).get("s3MonitoringConfiguration", {}).get("logUri")
        if root:
            uri = f"{root.rstrip('/')}/applications/{application.id}/jobs/{job.id}"
            return f"{uri}/attempts/{job.attempt}" if job.attempts > 1 else uri
    return None


def _environment(endpoint: str, identity: Mapping[str, str]) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "HOME") if name in os.environ}  # noqa: TID251
    return {
        **kept,
        **identity,
        "AWS_ALLOW_HTTP": "true",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": REGION,
        "JAVA_HOME": str(java_home()),
        "SPARK_HOME": str(_spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": _QUICK,
    }


def _spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def _s3(endpoint: str, identity: Mapping[str, str]) -> Any:
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=identity["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=identity["AWS_SECRET_ACCESS_KEY"],
        aws_session_token=identity["AWS_SESSION_TOKEN"],
    )


def _unpack(packed: Path, into: Path) -> None:
    into.mkdir()
    if zipfile.is_zipfile(packed):
        with zipfile.ZipFile(packed) as content:
            content.extractall(into)
    elif tarfile.is_tarfile(packed):
        with tarfile.open(packed) as content:
            content.extractall(into, filter="data")
    else:
        raise Invalid(f"{packed.name} is neither a zip nor a tar archive")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process group of a job, first with SIGTERM, then with SIGKILL."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, signal_number)
            process.wait(_STOP_SECONDS)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
        else:
            return


def _split(address: str) -> tuple[str, str]:
    bucket, _, key = address.removeprefix("s3://").partition("/")
    return bucket, key


def _comma_separated(text: str) -> list[str]:
    return [one for one in text.split(",") if one]
