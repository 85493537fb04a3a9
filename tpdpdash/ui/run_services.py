"""What the pages ask of runs that exist, once for every viewer: lists, readers, traces, profiles, and their end.

No thread is started here and none calls streamlit: readers are refreshed by whoever looks, under a lock.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st

from tpdpdash.faults import InvalidInputError
from tpdpdash.ui import access

if TYPE_CHECKING:
    from tpdpdash.compare.run_plan import BetterLayout, RunPlan
    from tpdpdash.run.archive import Archive
    from tpdpdash.run.folder import RunFolder
    from tpdpdash.run.history import RunView
    from tpdpdash.run.restore import Restored
    from tpdpdash.telemetry.profile_file import DeepProfile
    from tpdpdash.telemetry.profile_table import ProfileTable
    from tpdpdash.ui.live import LiveRun, Look

READERS_KEPT = 8
RUNS_SHOWN = 50


@st.cache_data(ttl=1.0, max_entries=4, show_spinner=False)
def _runs(root: str, limit: int, offset: int) -> list[RunView]:
    from tpdpdash.run.history import list_runs

    return list_runs(Path(root), limit=limit, offset=offset)


def runs(limit: int = RUNS_SHOWN, *, page: int = 0) -> list[RunView]:
    """A page of runs, newest first, at most a second old."""
    return _runs(str(_runs_root()), limit, page * limit)


def list_again() -> None:
    """A run came or went: the next list is read anew."""
    _runs.clear()


def count_runs() -> int:
    """How many runs there are."""
    from tpdpdash.run.history import count_runs

    return count_runs(_runs_root())


def count_live_runs() -> int:
    """How many of the newest runs are under way."""
    return sum(not view.is_over for view in runs())


def _runs_root() -> Path:
    from tpdpdash.run.folder import runs_root

    return runs_root(os.environ)


def run_folder(run_id: str) -> RunFolder:
    """The run of that id. Raises InvalidInputError."""
    from tpdpdash.run.folder import find_run

    return find_run(_runs_root(), run_id)


def run_view(run_id: str) -> RunView:
    """A run as it is judged now. Raises InvalidInputError."""
    from tpdpdash.run.history import read_state

    return read_state(run_folder(run_id))


def is_of_local_job(run_id: str) -> bool:
    """Whether a run is of a Job on this machine as it was measured."""
    from tpdpdash.job import read_job

    path = run_folder(run_id).job
    try:
        return path.is_file() and read_job(path).cluster.measured is not None
    except InvalidInputError:
        return False


@st.cache_resource(max_entries=READERS_KEPT, show_spinner=False)
def _live_run(path: str) -> LiveRun:
    from tpdpdash.run.folder import RunFolder
    from tpdpdash.ui.live import LiveRun

    return LiveRun(RunFolder(Path(path)))


def reader(run_id: str) -> LiveRun:
    """The reader of a run, shared by every viewer. Raises InvalidInputError."""
    return _live_run(str(run_folder(run_id).path))


@st.cache_resource(max_entries=READERS_KEPT, show_spinner=False)
def better_layout(run_id: str, _plan: RunPlan) -> BetterLayout | None:
    """What the planner would rather run on the devices of a run."""
    del run_id
    from tpdpdash.compare.run_plan import better_layout

    return better_layout(_plan)


def stop(run_id: str) -> None:
    """Ask a run to end, for a holder of the start token. Returns at once: the page shows how it ends."""
    access.require_token()
    from tpdpdash.run.stop import request_stop

    request_stop(run_folder(run_id), by="dashboard")


def trace(run_id: str) -> bytes:
    """A run's trace, compressed; made when the button is clicked, not when the page is drawn."""
    from tpdpdash.compare.run_trace import write_run_trace

    with tempfile.TemporaryDirectory() as folder:
        return write_run_trace(run_folder(run_id), Path(folder) / "trace.json.gz").path.read_bytes()


def ask_for_profile(look: Look, ranks: Sequence[int]) -> None:
    """Ask a run for a deep profile of its next step, for a holder of the start token. Raises InvalidInputError."""
    access.require_token()
    from tpdpdash.run.profile import ask_for_profile as ask

    ask(look.view, look.told, ranks=ranks, step=None, by="dashboard")


@st.cache_resource(max_entries=READERS_KEPT, show_spinner=False)
def profile_table(path: str, num_bytes: int) -> tuple[DeepProfile, ProfileTable]:
    """A deep profile without its events, and what they say. Raises InvalidInputError."""
    del num_bytes  # only for the cache: a file is written once
    from tpdpdash.run.profile import open_profile
    from tpdpdash.telemetry.profile_table import profile_table as of

    profile = open_profile(Path(path))
    return replace(profile, events=()), of(profile)


def delete(run_id: str) -> None:
    """Remove a run that is over, for a holder of the start token. Raises InvalidInputError."""
    access.require_token()
    from tpdpdash.run.archive import delete_run

    delete_run(run_folder(run_id))
    list_again()


def archive(run_id: str) -> Archive:
    """Pack a run that is over into one file, for a holder of the start token. Raises InvalidInputError."""
    access.require_token()
    from tpdpdash.run.archive import archive_run

    made = archive_run(run_folder(run_id))
    list_again()
    return made


def archived_runs() -> Sequence[str]:
    """Ids of the runs that were archived, newest first; none where their folder cannot be read."""
    from tpdpdash.run.restore import archived_runs as archived

    try:
        return archived()
    except OSError:
        return ()


def restore(run_id: str) -> Restored:
    """Put an archived run back among the runs, for a holder of the start token. Raises InvalidInputError."""
    access.require_token()
    from tpdpdash.run.restore import find_archive, restore_run

    back = restore_run(find_archive(run_id))
    list_again()
    return back
