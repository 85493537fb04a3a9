"""The whole way: a layout is rehearsed, its charts move (r129: the live part ticks), a reload loses nothing, Stop
leaves no process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tpdpdash.run.folder import run_ids
from tpdpdash.run.processes import processes_of_run

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
FIRST_STEP_LIMIT_MS = 360_000


def steps_shown(tab: Any) -> int:
    """The number in the Steps card."""
    value = tab.page.locator("[data-testid=stMetric]").filter(has_text="Steps").locator("[data-testid=stMetricValue]")
    return int(value.inner_text().split()[0].replace(",", ""))


def wait_for_more_steps(tab: Any, than: int, limit_s: float = 120) -> int:
    """Wait until the page, not the file, shows a later step."""
    limit = time.monotonic() + limit_s
    while time.monotonic() < limit:
        if (shown := steps_shown(tab)) > than:
            return shown
        tab.page.wait_for_timeout(500)
    raise AssertionError(f"still at step {than} after {limit_s} s")


def test_rehearse_watch_reload_restart_and_stop(
    start_server: Callable[[], Any], new_tab: Callable[..., Any], runs_root: Path
) -> None:
    server, tab = start_server(), new_tab()
    view = {"model": "llama-3-8b", "device": "H100-SXM5-80GB", "nodes": "1", "gpus": "4", "steps": "2000"}

    # From Plan with the token in the address: it leaves the address, and the browser keeps it.
    page = tab.open(server.url("plan", token=True, **view))
    page.wait_for_url(lambda url: "token=" not in url)
    tab.settled()
    assert tab.shows("tokens/s per GPU")

    # A chosen layout, on Layout and then on Launch.
    page = tab.open(server.url("layout", **view, layout="tp2-pp2-dp1"))
    assert tab.shows("TP 2")
    page.get_by_role("link", name="Launch").click()
    page.wait_for_url("**/launch**")
    tab.settled()
    assert tab.shows("TP 2 × PP 2 × DP 1 = 4 ranks")

    # Start, pressed twice: one run. Its phases, then Watch by itself.
    page.get_by_role("button", name="Start rehearsal").dblclick()
    page.wait_for_url("**/watch**", timeout=FIRST_STEP_LIMIT_MS)
    (run_id,) = run_ids(runs_root)
    page.locator("[data-testid=stMetric]").first.wait_for(timeout=60_000)

    # Charts move; a reload and a new server re-attach from disk.
    first = wait_for_more_steps(tab, than=1)
    tab.shot("watch-running")
    page.reload()
    tab.settled()
    second = wait_for_more_steps(tab, than=first)
    assert tab.errors == []
    assert tab.outside == []
    tab.page.close()
    server.stop()
    server, tab = start_server(), new_tab()
    page = tab.open(server.url("watch", run=run_id))
    wait_for_more_steps(tab, than=second)

    # Another browser sees the run, but may not stop it.
    other = new_tab()
    other.open(server.url("watch"))
    other.page.get_by_role("button", name="Stop").first.click()
    assert other.page.get_by_role("button", name="Stop the run").is_disabled()

    # Stop ends every process. (Another port is another origin: the token comes by the address once more.)
    page = tab.open(server.url("watch", token=True, run=run_id))
    page.wait_for_url(lambda url: "token=" not in url)
    page.locator("[data-testid=stMetric]").first.wait_for(timeout=60_000)
    page.get_by_role("button", name="Pause charts").click()  # a paused page tells the end all the same
    page.get_by_role("button", name="Resume").wait_for()
    page.get_by_role("button", name="Stop").first.click()
    page.get_by_role("button", name="Stop the run").click()
    page.locator("[data-testid=stAlert]").get_by_text("Stopped by you").first.wait_for(timeout=90_000)
    assert processes_of_run(run_id) == []
    assert tab.errors == []
    assert tab.outside == []
