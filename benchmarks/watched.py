"""Watch as a server shows it: a dashboard of its own, and tabs that speak its protocol, so that no browser takes part.

A tab does what the page in a browser does: it opens Watch, and runs the page's timed part again once a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import websockets
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from tpdpdash.run.folder import RUNS_VARIABLE, RunFolder
from tpdpdash.serve import serve_command
from tpdpdash.units import KIB

START_LIMIT_S = 120
MAX_MESSAGE_BYTES = 1 << 28
_SUBPROTOCOL = websockets.Subprotocol("streamlit")
_CPU_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What so many tabs cost their server."""

    num_tabs: int
    """Tabs that look at the run."""
    opened_s: tuple[float, float]
    """Until the last of them showed the whole page: seconds, and of the server's CPU."""
    tick_cpu_s: tuple[float, ...]
    """CPU of the server in each second in which every tab was brought up to date."""
    tick_bytes: float
    """To one tab, in one of them."""
    peak_bytes: int
    """The most memory that the server held."""


@dataclass(slots=True)
class Tab:
    """One page in one session."""

    socket: websockets.ClientConnection
    query: str
    fragment: str = ""
    received_bytes: int = 0
    cached: set[str] = field(default_factory=set)

    async def run(self, *, fragment: str = "") -> None:
        """Run the page, or its timed part, and take what it sends."""
        asked = BackMsg()
        asked.rerun_script.query_string = self.query
        asked.rerun_script.page_name = "watch"
        asked.rerun_script.fragment_id = fragment
        asked.rerun_script.is_auto_rerun = bool(fragment)
        asked.rerun_script.cached_message_hashes.extend(self.cached)
        await self.socket.send(asked.SerializeToString())
        while True:
            data = await self.socket.recv(decode=False)
            self.received_bytes += len(data)
            message = ForwardMsg.FromString(data)
            if message.metadata.cacheable:
                self.cached.add(message.hash)
            if message.HasField("auto_rerun") and message.auto_rerun.interval <= 1.0:
                self.fragment = message.auto_rerun.fragment_id
            if message.HasField("script_finished"):
                return


class Server:
    """A dashboard with a state directory of its own."""

    def __init__(self, runs: Path, state: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        environment = {**os.environ, RUNS_VARIABLE: str(runs), "XDG_STATE_HOME": str(state)}
        self.log = state / "server.log"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                serve_command(self.port, "127.0.0.1"), stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment
            )

    @property
    def cpu_s(self) -> float:
        """Its processor seconds so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * _CPU_TICK_S

    @property
    def peak_bytes(self) -> int:
        """The most memory that it held."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * KIB for line in lines if line.startswith("VmHWM"))

    async def open_tab(self, query: str) -> Tab:
        """Connect; the page is not run yet."""
        limit = time.monotonic() + START_LIMIT_S
        while True:
            try:
                address = f"ws://127.0.0.1:{self.port}/_stcore/stream"
                return Tab(
                    await websockets.connect(address, subprotocols=[_SUBPROTOCOL], max_size=MAX_MESSAGE_BYTES), query
                )
            except OSError:
                if time.monotonic() > limit:
                    raise
                await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def _server(folder: RunFolder) -> AsyncIterator[Server]:
    with tempfile.TemporaryDirectory() as state:
        server = Server(folder.path.parent, Path(state))
        try:
            yield server
        finally:
            server.process.terminate()
            server.process.wait(timeout=30)


async def watched(folder: RunFolder, step: Callable[[], None], num_ticks: int, most_tabs: int) -> list[Watched]:
    """Open one tab after the other; between two openings every rank tells a step each second, and all tabs see it."""
    found = []
    async with _server(folder) as server:
        warm = await server.open_tab("")  # what any first page costs: imports
        await warm.run()
        tabs: list[Tab] = []
        for _ in range(most_tabs):
            tab, started, cpu = await server.open_tab(f"run={folder.run_id}"), time.perf_counter(), server.cpu_s
            await tab.run()
            opened = (time.perf_counter() - started, server.cpu_s - cpu)
            tabs.append(tab)
            ticks, before = [], tab.received_bytes
            for _ in range(num_ticks):
                step()
                ticks.append(await _tick(server, tabs))
            found.append(
                Watched(num_tabs=len(tabs), opened_s=opened, tick_cpu_s=tuple(ticks),
                        tick_bytes=(tab.received_bytes - before) / num_ticks, peak_bytes=server.peak_bytes)
            )  # fmt: skip
    return found


async def _tick(server: Server, tabs: list[Tab]) -> float:
    """One second: each tab at a moment of its own. CPU of the server, of which this process takes nothing."""
    begun, cpu = time.monotonic(), server.cpu_s
    for i, tab in enumerate(tabs):
        await asyncio.sleep(max(0.0, begun + 0.9 * i / len(tabs) - time.monotonic()))
        await tab.run(fragment=tab.fragment)
    await asyncio.sleep(max(0.0, begun + 1.0 - time.monotonic()))
    return server.cpu_s - cpu
