"""Firefox, driven by WebDriver BiDi, which it speaks itself: no driver is installed beside it."""

import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import websocket

KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c", "Space": " "}
KEYS |= {"ArrowLeft": "\ue012", "ArrowUp": "\ue013", "ArrowRight": "\ue014", "ArrowDown": "\ue015"}
QUIET = {  # no request of the browser's own, and Tab reaches every control
    "app.normandy.enabled": False,
    "browser.newtabpage.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "services.settings.server": "data:,",
    "ui.prefersReducedMotion": 1,
}


def find_firefox() -> str | None:
    """Return the path of a Firefox on this machine."""
    places = map(shutil.which, ("firefox-esr", "firefox"))
    return os.environ.get("FIREFOX") or next(filter(None, places), None)


class Firefox:
    """A headless Firefox with one page. `problems` holds the errors of its console and the requests that left files."""

    def __init__(self, path: str) -> None:
        self.profile = tempfile.mkdtemp()
        lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in QUIET.items()]
        Path(self.profile, "user.js").write_text("".join(lines))
        command = [path, "--headless", "--no-remote", "--profile", self.profile, "--remote-debugging-port=0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.problems: list[str] = []
        self.numbers = itertools.count(1)
        found = (re.search(r"listening on (ws://\S+)", line) for line in self.process.stderr)
        address = next(filter(None, found))[1]
        threading.Thread(target=self.process.stderr.read, daemon=True).start()  # or it stops when the pipe is full
        self.socket = websocket.create_connection(f"{address}/session", suppress_origin=True, timeout=120)
        self.version = self.send("session.new", capabilities={})["capabilities"]["browserVersion"]
        # The first tab never has the focus: without a screen, that stays with the address bar.
        self.page = self.send("browsingContext.create", type="tab")["context"]
        self.send("session.subscribe", events=["log.entryAdded", "network.beforeRequestSent"], contexts=[self.page])

    def send(self, method, **parameters):
        """Send a command and return its result; what the page reports meanwhile goes to `problems`."""
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self.socket.recv())
            if answer.get("id") == number:
                if answer["type"] == "error":
                    raise RuntimeError(f"{method}: {answer['message']}")
                return answer["result"]
            said = answer.get("params", {})
            if answer.get("method") == "log.entryAdded" and said["level"] == "error":
                self.problems.append(said["text"])
            if answer.get("method") == "network.beforeRequestSent":
                url = said["request"]["url"]
                if not url.startswith(("file:", "data:", "about:", "resource:", "chrome:")):
                    self.problems.append(url)

    def open(self, path, width=900, height=900):
        """Open a file in a window of this size."""
        self.send("browsingContext.setViewport", context=self.page, viewport={"width": width, "height": height})
        self.send("browsingContext.navigate", context=self.page, url=path.as_uri(), wait="complete")

    def evaluate(self, expression):
        """Return the value of an expression that JSON can hold."""
        text = f"JSON.stringify({expression})"
        answer = self.send("script.evaluate", expression=text, target={"context": self.page}, awaitPromise=True)
        if answer["type"] == "exception":
            raise RuntimeError(answer["exceptionDetails"]["text"])
        return json.loads(answer["result"].get("value", "null"))

    def until(self, expression, seconds=30):
        """Wait until an expression is true: what follows a key or a click may come later."""
        end = time.monotonic() + seconds
        while not self.evaluate(expression):
            if time.monotonic() > end:
                raise TimeoutError(f"not true after {seconds} s: {expression}")
            time.sleep(0.05)

    def press(self, *keys):
        """Press keys, one after the other."""
        acts = [{"type": type_, "value": KEYS.get(key, key)} for key in keys for type_ in ("keyDown", "keyUp")]
        self.send("input.performActions", context=self.page, actions=[{"type": "key", "id": "k", "actions": acts}])

    def click(self, expression, share=0.5):
        """Click with the mouse on the element that an expression gives, at this share of its width."""
        box = self.evaluate(
            f"(() => {{ const n = {expression}; n.scrollIntoView({{block: 'center'}}); "
            f"const b = n.getBoundingClientRect(); return [b.x + b.width * {share}, b.y + b.height / 2]; }})()"
        )
        acts = [{"type": "pointerMove", "x": round(box[0]), "y": round(box[1])}]
        acts += [{"type": type_, "button": 0} for type_ in ("pointerDown", "pointerUp")]
        mouse = {"type": "pointer", "id": "m", "parameters": {"pointerType": "mouse"}, "actions": acts}
        self.send("input.performActions", context=self.page, actions=[mouse])

    def close(self):
        """End the browser and remove its profile."""
        try:
            self.send("browser.close")
            self.process.wait(20)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self.socket.close()
            shutil.rmtree(self.profile, ignore_errors=True)
