"""A headless Chromium, spoken to by its own protocol over a pipe: nothing to install beside it."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PATIENCE = 60.0
"""Seconds after which a browser that says nothing counts as dead."""
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)

LAUNCH = """
import os, sys
read, write = (os.dup(int(n)) for n in sys.argv[1:3])
spare = [os.dup(read) for _ in range(5)]  # neither of the two is 3 or 4 from here on
read, write = os.dup(read), os.dup(write)
os.dup2(read, 3)
os.dup2(write, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""The browser reads commands from descriptor 3 and writes to 4."""


def find() -> str | None:
    """Return the browser of this machine, if it has one."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


class Chromium:
    """A browser with one page."""

    def __init__(self, program: str, profile: Path) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", LAUNCH, str(to_browser), str(from_browser)),
                *(program, *FLAGS, f"--user-data-dir={profile}", "about:blank"),
            ],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._heard = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        """What the page told of itself, in order."""
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    def _attach(self) -> None:
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            heard = self._hear()
            if heard.get("id") == self._number:
                assert "error" not in heard, f"{method}: {heard['error']}"
                return heard["result"]

    def _hear(self) -> dict[str, Any]:
        while b"\0" not in self._heard:
            ready, _, _ = select.select([self._read], [], [], PATIENCE)
            assert ready, "the browser says nothing"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has ended"
            self._heard += part
        line, _, self._heard = self._heard.partition(b"\0")
        heard = json.loads(line)
        if "method" in heard:
            self.events.append(heard)
        return heard

    def open(
        self,
        url: str,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        scripts: bool = True,
    ) -> None:
        """Load a page and wait until it has drawn."""
        self.events.clear()
        self.send("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url=url)
        while not any(e["method"] == "Page.loadEventFired" for e in self.events):
            self._hear()
        if scripts:
            self.drawn()

    def drawn(self) -> None:
        """Wait until what was asked for is on the screen."""
        self.run("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(1))))")

    def run(self, script: str) -> Any:
        """Evaluate an expression in the page and return its value."""
        found = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Send a mouse event: ``mouseMoved``, ``mousePressed``, ``mouseReleased``, ``mouseWheel``."""
        pressed = (
            {} if kind in ("mouseMoved", "mouseWheel") else {"button": "left", "clickCount": 1}
        )
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **{**pressed, **more})
        self.drawn()

    def key(self, key: str, modifiers: int = 0) -> None:
        """Press a key and let it go."""
        text = {"text": key} if len(key) == 1 else {}
        if key == "Enter":
            text = {"text": "\r"}
        common = {"key": key, "modifiers": modifiers}
        self.send("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)
        self.drawn()

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Save what the page looks like as PNG."""
        shown = self.send("Page.captureScreenshot", captureBeyondViewport=whole, format="png")
        path.write_bytes(base64.b64decode(shown["data"]))

    def complaints(self) -> list[str]:
        """Return errors and warnings of the page so far."""
        found = []
        for event in self.events:
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(event["params"]["exceptionDetails"]))
            if event["method"] in ("Log.entryAdded", "Runtime.consoleAPICalled"):
                found.append(str(event["params"]))
        return found

    def requests(self) -> list[str]:
        """Return the addresses that the page asked for so far."""
        return [
            e["params"]["request"]["url"]
            for e in self.events
            if e["method"] == "Network.requestWillBeSent"
        ]

    def close(self) -> None:
        """End the browser."""
        os.close(self._write)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        time.sleep(0.1)  # its children write to the profile a moment longer
