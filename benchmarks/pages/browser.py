"""A headless Chromium driven over the DevTools protocol: pages, scripts in them, screenshots. Standard library only."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--remote-debugging-port=0", "--hide-scrollbars",
)  # fmt: skip
START_S, ANSWER_S = 30.0, 120.0


def chromium() -> str | None:
    """Path of an installed Chromium; None without one."""
    return next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )


class Browser:
    """A Chromium process with one page. Use as a context manager."""

    def __init__(self, width: int = 1280, height: int = 800) -> None:
        self.folder = tempfile.mkdtemp(prefix="tensor-graphs-browser-")
        command = [
            chromium() or "chromium",
            *FLAGS,
            f"--user-data-dir={self.folder}",
            f"--window-size={width},{height}",
            "about:blank",
        ]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            port, path = self._port()
            browser = WebSocket(f"ws://127.0.0.1:{port}{path}")
            target = browser.call("Target.createTarget", url="about:blank")["targetId"]
            browser.close()
            self.socket = WebSocket(f"ws://127.0.0.1:{port}/devtools/page/{target}")
        except BaseException:
            self._end()
            raise
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def _port(self) -> tuple[int, str]:
        file, until = Path(self.folder, "DevToolsActivePort"), time.monotonic() + START_S
        while time.monotonic() < until:
            if file.exists() and len(lines := file.read_text().split()) == 2:
                return int(lines[0]), lines[1]
            time.sleep(0.05)
        raise TimeoutError("Chromium did not start")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()
        self._end()

    def _end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Result of a command of the DevTools protocol."""
        return self.socket.call(method, **parameters)

    def open(self, path: Path, ready: str = "document.body.dataset.ready === '1'") -> float:
        """Load a file; returns the seconds until the expression `ready` is true.

        Raises TimeoutError if it stays false.
        """
        began = time.perf_counter()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not self.run(f"document.readyState !== 'loading' && !!document.body && ({ready})"):
            if time.perf_counter() - began > ANSWER_S:
                raise TimeoutError(f"{path} is not ready: {self.messages()}")
            time.sleep(0.02)
        return time.perf_counter() - began

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression (a promise is awaited). Raises RuntimeError if it throws."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(json.dumps(found["exceptionDetails"])[:2000])
        return found["result"].get("value")

    def cpu_s(self) -> float:
        """CPU seconds of all processes of the browser so far (Linux)."""
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                ticks += (int(fields[11]) + int(fields[12])) * (int(fields[3]) == self.process.pid)  # of its session
        return ticks / os.sysconf("SC_CLK_TCK")

    def resize(self, width: int, height: int, *, dark: bool = False, scale: float = 1.0) -> None:
        """Set the size of the window and the preferred colours."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write a PNG of the window, or of the whole page."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def messages(self) -> list[str]:
        """Errors that the page reported so far: uncaught exceptions and console errors."""
        self.run("0")
        return [
            json.dumps(e)[:600]
            for e in self.socket.events
            if e["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")
        ]


class WebSocket:
    """A minimal WebSocket client for JSON messages (RFC 6455, no extensions)."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.socket = socket.create_connection((parts.hostname, parts.port), timeout=ANSWER_S)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(
            f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self.buffer, self.number = b"", 0
        self.events: list[dict[str, Any]] = []
        while b"\r\n\r\n" not in self.buffer:
            self.buffer += self.socket.recv(4096)
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        if b" 101 " not in head.splitlines()[0]:
            raise ConnectionError(head.decode(errors="replace"))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events that arrive meanwhile are kept.

        Raises RuntimeError if it failed.
        """
        self.number += 1
        self._send(json.dumps({"id": self.number, "method": method, "params": parameters}).encode())
        while True:
            message = json.loads(self._receive())
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return dict(message["result"])
            if "method" in message:
                self.events.append(message)

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def _send(self, payload: bytes) -> None:
        length, mask = len(payload), os.urandom(4)
        size = bytes([128 | length]) if length < 126 else bytes([254]) + length.to_bytes(2, "big") if length < 1 << 16 else bytes([255]) + length.to_bytes(8, "big")  # fmt: skip
        self.socket.sendall(b"\x81" + size + mask + _masked(payload, mask))

    def _read(self, count: int) -> bytes:
        while len(self.buffer) < count:
            part = self.socket.recv(1 << 16)
            if not part:
                raise ConnectionError("the browser closed the connection")
            self.buffer += part
        found, self.buffer = self.buffer[:count], self.buffer[count:]
        return found

    def _receive(self) -> bytes:
        parts: Sequence[bytes] = []
        while True:
            first, size = self._read(2)
            length = size & 127
            if length > 125:
                length = int.from_bytes(self._read(2 if length == 126 else 8), "big")
            payload = self._read(length)
            if first & 15 in (0, 1):
                parts = [*parts, payload]
                if first & 128:
                    return b"".join(parts)


def _masked(payload: bytes, mask: bytes) -> bytes:
    key = mask * (len(payload) // 4 + 1)
    number = int.from_bytes(payload, "big") ^ int.from_bytes(key[: len(payload)], "big")
    return number.to_bytes(len(payload), "big") if payload else b""
