"""A headless Chromium that looks at pages: driven through two pipes, in Chrome's DevTools protocol."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
WHY_NOT: Final = "" if any(map(shutil.which, NAMES)) else f"no browser to look at pages: none of {', '.join(NAMES)}"
_FLAGS: Final = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe")


class Browser:
    """One tab. Scripts of ours run in it whatever a page allows."""

    def __init__(self, to: int, of: int) -> None:
        self._to, self._of = os.fdopen(to, "wb", 0), os.fdopen(of, "rb", 0)
        self._asked = 0
        self._session: str | None = None
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._ask("Page.enable")

    def _ask(self, method: str, **parameters: Any) -> Any:
        self._asked += 1
        words = {"id": self._asked, "method": method, "params": parameters}
        words |= {} if self._session is None else {"sessionId": self._session}
        self._to.write(json.dumps(words).encode() + b"\0")
        while (told := self._next()).get("id") != self._asked:
            pass
        assert "error" not in told, told
        return told["result"]

    def _next(self) -> Any:
        """The next word of it."""
        found = bytearray()
        while not found.endswith(b"\0"):
            byte = self._of.read(1)
            assert byte, "the browser has ended"
            found += byte
        return json.loads(found[:-1])

    def open(self, page: Path, width: int, style: str) -> None:
        """A page, so many pixels wide, for who prefers a `light` or a `dark` one; returns when it is there."""
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 700
        )
        self._ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": style}])
        self._ask("Page.navigate", url=page.absolute().as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def value(self, script: str) -> Any:
        """What a script comes to in the page, or what it promises."""
        found = self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self, file: Path) -> None:
        """The whole page as a PNG file."""
        found = self._ask("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(found["data"]))


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser with a fresh profile; nothing is left of it."""
    program = next(filter(None, map(shutil.which, NAMES)))
    (theirs_in, to), (of, theirs_out) = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as folder:
        command = [program, *_FLAGS, f"--user-data-dir={folder}", "about:blank"]
        wired = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out} 2>/dev/null'  # it listens at 3, and answers at 4
        process = subprocess.Popen(["bash", "-c", wired, "bash", *command], pass_fds=(theirs_in, theirs_out))
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Browser(to, of)
        finally:
            process.terminate()
            process.wait(timeout=20)
