"""Run the suites of S3, DynamoDB and SQS against moto's server: `python -m tests.on_moto DIRECTORY [ARGUMENT ...]`.

It is a second, independent implementation of these services. DIRECTORY has its packages (`make moto`); the arguments
are those of pytest. `tests.conformance.deviations` lists where it differs from AWS.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

SUITES = ("tests/conformance", "tests/handlers/test_in_lambda.py", "tests/handlers/test_client.py")


def main() -> int:
    directory, *arguments = sys.argv[1:]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as work, Path(work, "log").open("wb") as log:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        environment = {**os.environ, "PYTHONPATH": str(Path(directory).resolve())}
        server = subprocess.Popen(command, cwd=work, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait_for(endpoint, server)
            tests = [sys.executable, "-m", "pytest", *SUITES, *arguments]
            return subprocess.run(tests, env={**os.environ, "LANCELSM_TEST_ENDPOINT": endpoint}, check=False).returncode
        finally:
            server.terminate()
            server.wait()


def _wait_for(endpoint: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{endpoint}/moto-api/", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    sys.exit("moto's server did not start")


if __name__ == "__main__":
    sys.exit(main())
