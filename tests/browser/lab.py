"""A JupyterLab of its own for a test, and what a learner does in it."""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

PANEL = "jupyterapp.shell.currentWidget"
START_SECONDS = 180
LAB_MILLISECONDS = 120_000  # limits against hanging: on a busy machine a notebook takes half a minute to open


class Lab:
    """A JupyterLab server on the loopback, with folders of its own for everything that Jupyter keeps."""

    def __init__(self, desk: Path, private: Path) -> None:
        self.desk, self.token = desk, secrets.token_hex(16)
        for name in ("config", "data", "runtime", "ipython"):
            (private / name).mkdir(parents=True, exist_ok=True)
        # No question about news from the internet, which would cover part of the notebook.
        news = private / "config/lab/user-settings/@jupyterlab/apputils-extension/notification.jupyterlab-settings"
        news.parent.mkdir(parents=True)
        news.write_text('{"fetchNews": "false", "checkForUpdates": false}')
        environment = {name: value for name, value in os.environ.items() if name not in ("CI", "COURSE_DESK")}
        environment |= {
            "JUPYTER_CONFIG_DIR": str(private / "config"),
            "JUPYTER_DATA_DIR": str(private / "data"),
            "JUPYTER_RUNTIME_DIR": str(private / "runtime"),
            "IPYTHONDIR": str(private / "ipython"),
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
        }
        options = [
            "--no-browser",
            "--allow-root",
            "--ServerApp.ip=127.0.0.1",
            "--ServerApp.port=0",
            f"--ServerApp.root_dir={desk}",
            f"--IdentityProvider.token={self.token}",
            "--LabApp.expose_app_in_browser=True",
        ]
        self.log = private / "server.log"
        with self.log.open("wb") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jupyterlab", *options],
                env=environment,
                cwd=desk,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        self.url = self._wait_until_up(private / "runtime")

    def _wait_until_up(self, runtime: Path) -> str:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            for info in runtime.glob("jpserver-*.json"):
                try:
                    url = json.loads(info.read_text())["url"].rstrip("/")
                    with urllib.request.urlopen(f"{url}/api/status?token={self.token}", timeout=5):
                        return url
                except (OSError, ValueError):
                    pass  # half written, or not listening yet
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        self.stop()
        raise RuntimeError("JupyterLab did not start:\n" + self.log.read_text(errors="replace")[-3000:])

    def stop(self) -> None:
        """End the server; it ends its kernels."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(5)


class Notebook:
    """An open notebook: what a learner sees and does, and what its model holds."""

    def __init__(self, lab: Lab, page, name: str) -> None:
        self.page = page
        # A workspace of its own: the usual one would open what an earlier page had open.
        page.goto(f"{lab.url}/lab/workspaces/{secrets.token_hex(4)}/tree/{name}?token={lab.token}")
        page.wait_for_function("window.jupyterapp !== undefined && document.querySelector('.jp-NotebookPanel')")
        page.wait_for_function(f"{PANEL} && {PANEL}.context && {PANEL}.context.isReady")
        page.wait_for_function(f"['idle', 'busy'].includes({PANEL}.sessionContext.session?.kernel?.status)")
        page.locator(".jp-Cell").first.wait_for()

    def cells(self) -> list[dict]:
        """The cells as they would be saved."""
        return self.page.evaluate(f"{PANEL}.content.model.toJSON().cells")

    def state(self) -> list:
        """What no key pressed in a control may change: the cells, the active one, the mode."""
        cells = f"[...{PANEL}.content.model.cells].map((cell) => [cell.id, cell.type, cell.sharedModel.source])"
        return self.page.evaluate(f"[{cells}, {PANEL}.content.activeCellIndex, {PANEL}.content.mode]")

    def find(self, wanted) -> list[int]:
        """The positions of the cells for which `wanted(cell)` is true."""
        return [number for number, cell in enumerate(self.cells()) if wanted(cell)]

    def show(self, number: int):
        """Scroll to a cell, which is drawn only then, and return its locator."""
        self.page.evaluate(f"{PANEL}.content.scrollToItem({number}, 'start')")
        cell = self.page.locator(f'.jp-Cell[data-windowed-list-index="{number}"]')
        cell.wait_for()
        cell.scroll_into_view_if_needed()
        return cell

    def menu(self, *names: str) -> None:
        """Choose from the menu bar."""
        bar = self.page.locator(".lm-MenuBar")
        bar.get_by_role("menuitem", name=names[0], exact=True).click()
        for name in names[1:]:
            items = self.page.locator(".lm-Menu-item")
            items.filter(has_text=re.compile(rf"^\s*{re.escape(name)}\s*(\t|$)")).last.click()

    def type_into(self, number: int, text: str) -> None:
        """Replace the text of a cell by hand."""
        editor = self.show(number).locator(".cm-content")
        editor.click()
        self.page.keyboard.press("ControlOrMeta+a")
        self.page.keyboard.insert_text(text)
        self.page.keyboard.press("Escape")

    def run_all(self, seconds: float) -> None:
        """Clear the outputs, choose Run All Cells, and wait for the end."""
        self.menu("Edit", "Clear Outputs of All Cells")
        self.menu("Run", "Run All Cells")
        self.page.wait_for_function(
            f"""{PANEL}.sessionContext.session.kernel.status === 'idle' &&
            [...{PANEL}.content.model.cells].every((cell) => cell.type !== 'code' || cell.executionCount !== null)""",
            timeout=seconds * 1000,
            polling=500,
        )

    def trust(self) -> None:
        """Trust the notebook, so that the scripts in its outputs run."""
        self.page.evaluate("() => { jupyterapp.commands.execute('notebook:trust'); }")
        self.page.get_by_role("button", name="Confirm Trusting this notebook").click()
        self.page.locator(".jp-Dialog").wait_for(state="detached")

    def errors(self) -> list[str]:
        """The exceptions and the text on stderr among the outputs."""
        found = []
        for cell in self.cells():
            for output in cell.get("outputs", ()):
                if output["output_type"] == "error" or output.get("name") == "stderr":
                    found.append(f"{cell['id']}: {output}"[:2000])
        return found

    def use_theme(self, name: str) -> None:
        """Choose a theme from the settings menu."""
        self.menu("Settings", "Theme", name)
        light = "false" if "Dark" in name else "true"
        self.page.wait_for_function(f"document.body.dataset.jpThemeLight === '{light}'")
