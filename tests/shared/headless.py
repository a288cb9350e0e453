"""Headless browser, driven through a pipe without port and network."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SECONDS = 60


class Browser:
    """One page of a headless Chromium, controlled with the DevTools protocol."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        # Chromium reads from 3 and writes to 4; higher numbers are not in the way while they are put there.
        from_us, self._out = os.pipe()
        self._in, to_us = os.pipe()
        high_in, high_out = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in (from_us, to_us))
        options = "--headless --no-sandbox --disable-gpu --remote-debugging-pipe --disable-dev-shm-usage"
        self._process = subprocess.Popen(  # noqa: S603 (our own command)
            [
                "/bin/bash",
                "-c",
                f'exec "$0" {options} --user-data-dir="$1" 3<&{high_in} 4>&{high_out}',
                CHROMIUM,
                profile,
            ],
            pass_fds=(high_in, high_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (from_us, to_us, high_in, high_out):
            os.close(end)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events in between are added to `events`."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._in, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def open(self, place: Path | str) -> None:
        """Load a file or an address and wait for its end; earlier events are dropped."""
        self.events.clear()
        url = place if isinstance(place, str) else place.resolve().as_uri()
        self.send("Page.navigate", url=url)
        while not self.happened("Page.loadEventFired"):
            self.events.append(self._receive())

    def happened(self, *methods: str) -> list[dict[str, Any]]:
        """Return the parameters of the events of these names."""
        return [event["params"] for event in self.events if event.get("method") in methods]

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str, *, text: str = "") -> None:
        """Press and release a key."""
        code = {"Tab": 9, "Enter": 13}.get(key, 0)
        event = {"key": key, "code": key, "windowsVirtualKeyCode": code, **({"text": text} if text else {})}
        self.send("Input.dispatchKeyEvent", type="keyDown", **event)
        self.send("Input.dispatchKeyEvent", type="keyUp", **event)

    def emulate(
        self, *, scheme: str = "light", media: str = "", width: int = 1280, height: int = 900
    ) -> None:
        """Set colour scheme, medium and window."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", media=media, features=features)
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **metrics)

    def picture(self) -> bytes:
        """Return a PNG of the whole page."""
        found = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(found["data"])

    def close(self) -> None:
        """End the browser."""
        os.close(self._out)  # which Chromium takes as the order to end
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
