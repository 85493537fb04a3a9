"""A real server and a real chromium: what AppTest cannot see (legacy pages mode, components, ticks, colours)."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from tests.unit.cluster import fake_nvml

ROOT = Path(__file__).parents[2]
CHROMIUM = "/usr/bin/chromium"
SHOTS = ROOT / ".ci" / "shots"
START_LIMIT_S = 90
IDLE = "[data-testid=stApp][data-test-script-state=notRunning]"
# Streamlit's own frontend looks for its server below the deep link first, and warns of an empty chart's extent.
EXPECTED = re.compile(r"404|Infinite extent")


@dataclass
class Server:
    """One dashboard with directories of its own."""

    port: int
    token: str
    log: Path
    process: subprocess.Popen[bytes]

    def url(self, path: str = "", *, token: bool = False, **params: str) -> str:
        """An address of this server."""
        if token:
            params["token"] = self.token
        query = "&".join(f"{key}={value}" for key, value in params.items())
        return f"http://127.0.0.1:{self.port}/{path}" + (f"?{query}" if query else "")

    def stop(self) -> None:
        """End the server; runs go on."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=30)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_up(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    limit = time.monotonic() + START_LIMIT_S
    while time.monotonic() < limit:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}:\n{log.read_text()}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise TimeoutError(f"no server on port {port}:\n{log.read_text()}")


def _launch(log: Path, environ: Mapping[str, str]) -> Server:
    """Start a dashboard as `tpdpdash serve` does, its token made beforehand."""
    from tpdpdash.serve import serve_command
    from tpdpdash.start_token import start_token

    port = _free_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", environ["XDG_STATE_HOME"])
        token = start_token()
    with log.open("wb") as out:
        process = subprocess.Popen(
            serve_command(port, "127.0.0.1"), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            env=dict(environ),
        )  # fmt: skip
    _wait_until_up(port, process, log)
    return Server(port=port, token=token, log=log, process=process)


def _end(*servers: Server) -> None:
    """End servers; nothing may have gone wrong while they served. What Streamlit says of connections that are open
    while it stops ("WebSocket is not connected") comes after its "Stopping..." and is its own."""
    for server in servers:
        if server.process.poll() is None:
            server.stop()
    for server in servers:
        served, _, _ = server.log.read_text().partition("Stopping...")
        assert "Traceback" not in served, served


@pytest.fixture
def start_server(tmp_path: Path, runs_root: Path) -> Iterator[Callable[[], Server]]:
    """Start a dashboard with the directories of this test; every server and run of the test is ended with it."""
    from tpdpdash.run.folder import RunFolder, run_ids
    from tpdpdash.run.stop import stop_run

    started: list[Server] = []

    def start() -> Server:
        started.append(_launch(tmp_path / f"server-{len(started)}.log", os.environ))
        return started[-1]

    yield start
    for run_id in run_ids(runs_root):
        stop_run(RunFolder(runs_root / run_id), by="signal")
    _end(*started)


@pytest.fixture(scope="module")
def gpu_state_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the shared server keeps its token and uploads."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def gpu_server(tmp_path_factory: pytest.TempPathFactory, gpu_state_home: Path) -> Iterator[Server]:
    """One dashboard for all tests of a module, on a machine with 8 × H100 (the fake NVML library) and no run."""
    folder = tmp_path_factory.mktemp("gpu-server")
    busy = {"power_error": "NOT_SUPPORTED", "used": 41 * 2**30, "util": 97}
    machine = folder / "scenario.txt"
    machine.write_text(fake_nvml.scenario([{}] * 7 + [busy]))
    environ = fake_nvml.environment(fake_nvml.build(folder), machine)
    server = _launch(
        folder / "server.log", {**environ, "TPDPDASH_RUNS": str(folder / "runs"), "XDG_STATE_HOME": str(gpu_state_home)}
    )
    yield server
    _end(server)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's chromium."""
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=[*flags, "--disable-component-update"])
        yield chromium
        chromium.close()


@dataclass
class Tab:
    """One tab, with everything that went wrong in it."""

    page: Page
    errors: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    def open(self, url: str) -> Page:
        """Go there and wait until the script has run."""
        self.page.goto(url, wait_until="domcontentloaded")
        return self.settled()

    def settled(self, pause_ms: int = 500) -> Page:
        """Wait until the script has run and what it sent is drawn."""
        self.page.wait_for_selector(IDLE, timeout=120_000)
        self.page.wait_for_timeout(pause_ms)
        self.page.wait_for_selector(IDLE, timeout=120_000)
        return self.page

    def shows(self, text: str) -> bool:
        """Whether a text stands on the page, or comes within half a minute: elements are drawn after the script has
        run, on a busy machine much later."""
        main = "document.querySelector('[data-testid=stMain]')?.innerText"
        try:
            self.page.wait_for_function(f"text => ({main} ?? '').includes(text)", arg=text, timeout=30_000)
        except PlaywrightTimeout:
            return False
        return True

    def shot(self, name: str) -> None:
        """Keep a picture of the whole page."""
        width = self.page.viewport_size["width"] if self.page.viewport_size else 1440
        height = self.page.locator("[data-testid=stMainBlockContainer]").evaluate("e => e.scrollHeight")
        self.page.set_viewport_size({"width": width, "height": min(max(900, int(height) + 80), 6000)})
        self.page.wait_for_timeout(400)
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png")
        self.page.set_viewport_size({"width": width, "height": 1000})


@pytest.fixture
def new_tab(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., Tab]]:
    """A tab of a new browser profile; errors, dialogs and requests elsewhere are collected. Each leaves a picture."""
    contexts, tabs = [], []

    def make(width: int = 1440, scheme: str = "light") -> Tab:
        context = browser.new_context(viewport={"width": width, "height": 1000}, color_scheme=scheme)  # type: ignore[arg-type]
        contexts.append(context)
        tab = Tab(context.new_page())
        tabs.append(tab)

        def on_console(message: ConsoleMessage) -> None:
            if message.type == "error" and not EXPECTED.search(message.text):
                tab.errors.append(message.text)

        tab.page.on("console", on_console)
        tab.page.on("pageerror", lambda error: tab.errors.append(f"{error}\n{error.stack}"))
        tab.page.on("crash", lambda _page: tab.errors.append("the tab crashed"))
        tab.page.on("dialog", lambda dialog: (tab.dialogs.append(dialog.message), dialog.dismiss()))
        tab.page.on(
            "request",
            lambda request: (
                tab.outside.append(request.url)
                if request.url.startswith("http") and "//127.0.0.1:" not in request.url
                else None
            ),
        )
        return tab

    yield make
    SHOTS.mkdir(parents=True, exist_ok=True)
    for i, context in enumerate(contexts):
        print(f"tab {i}:", *tabs[i].errors, sep="\n  ")  # shown where the test has failed
        for page in context.pages:
            page.screenshot(path=SHOTS / f"{request.node.name}-{i}.png")
        context.close()
