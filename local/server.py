"""Start and stop an emulated AWS on this machine: MiniStack, and emulations of what it lacks.

It listens only on the loopback interface, at GATEWAY_PORT (4566), and checks the permissions of every role. It keeps no
data: everything deployed is gone when it stops. A running server holds a lock on the file `pid` in its directory, so
`stop` never kills another process by a process id that a crash has left there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from lancelsm.common.clock import Budget, SystemClock, SystemIds
from lancelsm.errors import Invalid, LsmError, Unavailable
from lancelsm.objects.posix import try_lock
from local import ACCOUNT, REGION, SECRET
from local.install import install

DIRECTORY = Path(".local")
PORT = 4566
HEALTH = "/_localstack/health"

_LOCK_SECONDS = 1.0
_START_SECONDS = 60.0
_STOP_SECONDS = 15.0
# Variables that would give the emulator, its functions or its jobs another endpoint or identity.
_REMOVED = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_ENDPOINT_URL_S3")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m local.server", description=__doc__)
    parser.add_argument("command", nargs="?", choices=["serve", "start", "stop"], default="serve")
    parser.add_argument(
        "--directory",
        type=Path,
        default=DIRECTORY,
        help="directory for process id, log and work files (default: .local)",
    )
    options = parser.parse_args(arguments)
    port = int(os.environ.get("GATEWAY_PORT", PORT))  # noqa: TID251 - MiniStack and LocalStack read the same variable
    try:
        if options.command == "stop":
            stopped = stop(options.directory)
            sys.stdout.write(f"{'Stopped the' if stopped else 'There is no'} emulated AWS of {options.directory}\n")
        elif options.command == "start":
            if running(options.directory) is None:
                start(options.directory, port=port)
            elif not _answers(port):
                raise Invalid(
                    f"the emulator that runs in {options.directory} has another port than {port}",
                    remedy="Set GATEWAY_PORT to its port, or stop it: make local-down",
                )
            sys.stdout.write(f"An emulated AWS runs in {options.directory} at {endpoint(port)}\n")
        else:
            serve(options.directory, port=port)
    except LsmError as error:
        sys.exit(f"{type(error).__name__}: {error}")


def endpoint(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def serve(directory: Path, *, port: int) -> None:
    """Run the emulator in this process until it receives a signal.

    Raises:
        Invalid: an emulator already runs in this directory, or MiniStack is not the expected release.
    """
    work = directory.resolve() / "work"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "pid").open("a+") as pid:
        # A process that only checks whether an emulator runs also holds the lock for a moment.
        if not any(try_lock(pid.fileno(), wait=False) for _ in _budget(_LOCK_SECONDS).attempts()):
            raise Invalid(f"an emulator runs in {directory}", remedy="Stop it: python -m local.server stop")
        pid.truncate(0)
        pid.write(str(os.getpid()))
        pid.flush()
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        _configure(port=port, work=work)
        # It reads its settings on import.
        from ministack.app import main as ministack  # noqa: PLC0415

        emr = install(work=work, endpoint=endpoint(port))
        sys.argv[1:] = []
        try:
            ministack()
        finally:
            emr.close()


def start(directory: Path, *, port: int) -> str:
    """Run the emulator in a process of its own, and return its endpoint once it answers.

    Raises:
        Invalid: an emulator already runs in this directory.
        Unavailable: it ended or did not answer; the message contains its log.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if running(directory) is not None:
        raise Invalid(f"an emulator runs in {directory}", remedy="Stop it: python -m local.server stop")
    log = directory / "log"
    environment = {**os.environ, "GATEWAY_PORT": str(port)}  # noqa: TID251 - a child of this process
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "local.server", "serve", "--directory", directory],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    for _ in _budget(_START_SECONDS).attempts():
        if server.poll() is not None:
            break
        if running(directory) == server.pid and _answers(port):
            return endpoint(port)
    stop(directory)
    raise Unavailable(f"the emulator did not start: {log.read_text(errors='replace')[-1000:]}", remedy=f"Read {log}")


def stop(directory: Path) -> bool:
    """Stop the emulator of a directory, its functions and jobs. Returns False if no emulator runs there.

    Raises:
        Unavailable: it did not stop in time.
    """
    pid = running(directory)
    if pid is None:
        return False
    os.kill(pid, signal.SIGTERM)
    for _ in _budget(_STOP_SECONDS).attempts():
        if running(directory) != pid:
            return True
    raise Unavailable(f"the emulator in {directory} does not stop", remedy=f"Kill process {pid}")


def running(directory: Path) -> int | None:
    """Return the process id of the emulator of a directory; None if no emulator runs."""
    try:
        with (directory / "pid").open("r+") as pid:
            if try_lock(pid.fileno(), wait=False):
                return None
            return int(pid.read() or 0) or None
    except FileNotFoundError:
        return None


def _configure(*, port: int, work: Path) -> None:
    """Set the environment variables that configure MiniStack. Functions inherit them."""
    settings: Mapping[str, str] = {
        "AUTH": "true",
        "AWS_ENDPOINT_URL": endpoint(port),
        "AWS_ACCESS_KEY_ID": ACCOUNT,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "IOT_MTLS_ENABLED": "0",
        "SFTP_ENABLED": "0",
        "TMPDIR": str(work),
    }
    for name in _REMOVED:
        os.environ.pop(name, None)  # noqa: TID251
    os.environ.update(settings)  # noqa: TID251


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(endpoint(port) + HEALTH, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _budget(seconds: float) -> Budget:
    return Budget(clock=SystemClock(), ids=SystemIds(), seconds=seconds)


if __name__ == "__main__":
    main()
