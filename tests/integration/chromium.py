"""A headless Chromium that a test drives through a pipe with the DevTools protocol; nothing is downloaded."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
#: WebGL computed by the processor, which every machine has.
SOFTWARE_WEBGL = ("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader")
NO_WEBGL = ("--disable-3d-apis",)
PATIENCE = 120.0
_QUIET = (
    "--headless=new",
    "--no-sandbox",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--disable-domain-reliability",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
_LOGS = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")


class Chromium:
    """One page; a context manager that ends the browser whatever happens."""

    def __init__(self, *flags: str, size: tuple[int, int] = (1600, 900), dark: bool = False) -> None:
        assert CHROMIUM is not None
        self._profile = tempfile.TemporaryDirectory(prefix="ringflow-chromium-", ignore_cleanup_errors=True)
        its_in, self._out = os.pipe()
        self._in, its_out = os.pipe()
        command = [CHROMIUM, *_QUIET, *flags, f"--user-data-dir={self._profile.name}", "about:blank"]
        # The protocol is spoken on the file descriptors 3 and 4.
        shell = ["bash", "-c", f'exec "$0" "$@" 3<&{its_in} 4>&{its_out}', *command]
        self._process = subprocess.Popen(
            shell, pass_fds=(its_in, its_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(its_in)
        os.close(its_out)
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.resize(*size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer; what happens meanwhile is kept in `events`."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select.select([self._in], [], [], PATIENCE)[0], "the browser does not answer"
            part = os.read(self._in, 1 << 20)
            assert part, "the browser ended"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        read: dict[str, Any] = json.loads(message)
        return read

    def js(self, expression: str) -> Any:
        """The value of an expression in the page, awaited if it is a promise."""
        done = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait until an expression is true."""
        ends = time.monotonic() + PATIENCE
        while not self.js(expression):
            assert time.monotonic() < ends, f"never true: {expression}; {self.complaints()}"
            time.sleep(0.02)

    def open(self, url: str) -> None:
        """Open the display and wait until its first event is drawn."""
        self.call("Page.navigate", url=url)
        self.until("document.documentElement?.dataset.ready === 'yes'")
        self.drawn()

    def drawn(self) -> None:
        """Wait until everything that was asked for is on the screen."""
        self.js("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def resize(self, width: int, height: int) -> None:
        """Another size of the window."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def click(self, x: float, y: float, *, to: tuple[float, float] | None = None) -> None:
        """Press and release the mouse; at another place, if that is a drag."""
        button = {"button": "left", "buttons": 1, "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, **button)
        x, y = to or (x, y)
        if to:
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, **button)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, **button)

    def click_on(self, selector: str) -> None:
        """Click the middle of an element."""
        self.js(f"document.querySelector({selector!r}).scrollIntoView({{block: 'nearest'}})")
        box = self.js(f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])"
                      f"(document.querySelector({selector!r}).getBoundingClientRect())")  # fmt: skip
        self.click(*box)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option, or write into a field."""
        self.js(
            f"(() => {{ const box = document.querySelector({selector!r}); box.value = {json.dumps(value)};"
            "box.dispatchEvent(new Event('input')); box.dispatchEvent(new Event('change')); })()"
        )

    def press(self, key: str) -> None:
        """One key."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def picture(self, path: Path) -> bytes:
        """What is on the screen, as a PNG file."""
        content = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        path.write_bytes(content)
        return content

    def complaints(self) -> list[str]:
        """Everything the page wrote to the console, and errors nobody caught."""
        return [json.dumps(event["params"])[:500] for event in self.events if event.get("method") in _LOGS]

    def requests(self) -> list[str]:
        """Addresses the page asked for."""
        sent = (event for event in self.events if event.get("method") == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in sent]
