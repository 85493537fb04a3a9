"""The only place with st.cache_*: what the pages ask the rooms for, computed once for every viewer.

No thread is started here and none calls streamlit: readers are refreshed by whoever looks, under a lock.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.job import Job, pins_of, write_job
from tpdpdash.ui import access, state
from tpdpdash.units import GIB

if TYPE_CHECKING:
    from tpdpdash.cluster.nvml import Detection
    from tpdpdash.cluster.spec import ClusterSpec
    from tpdpdash.cost.result import Estimate
    from tpdpdash.layout.layout import Layout
    from tpdpdash.run.change import Change
    from tpdpdash.run.folder import RunFolder
    from tpdpdash.run.history import RunView
    from tpdpdash.run.preflight import Check
    from tpdpdash.run.rehearsal import Rehearsal
    from tpdpdash.search.plan import Plan
    from tpdpdash.ui.live import LiveRun
    from tpdpdash.ui.state import JobState

PLANS_KEPT = 16
ESTIMATES_KEPT = 128
READERS_KEPT = 8
RUNS_SHOWN = 50
MEMORY_STEP_BYTES = GIB // 2
"""Free memory of a CPU is told apart in these steps: plans are not searched anew for less."""


def job_key(job: Job) -> str:
    """Two jobs with the same key have the same plan and estimate.

    A Job's text says "local" and no figures of it: those come from the detection, and change with this machine. Free
    memory changes from second to second, so a plan holds for a step of it.
    """
    device = job.cluster.device
    memory = round(device.usable_bytes * job.cluster.devices_per_node / MEMORY_STEP_BYTES)
    figures = replace(job.cluster, device=replace(device, usable_bytes=0.0)) if device.is_cpu else job.cluster
    return f"{write_job(job)}\n{memory} {figures!r}"


# Plans and estimates are frozen and large: shared as they are (cache_resource), not copied for each viewer.
@st.cache_resource(max_entries=PLANS_KEPT, show_spinner=False)
def _plan(key: str, top: int, _job: Job) -> Plan:
    del key
    from tpdpdash.search.plan import plan

    return plan(_job, top=top)


def plan_for(job: Job, top: int = 20) -> Plan:
    """The search over every layout of the job."""
    return _plan(job_key(job), top, job)


@st.cache_resource(max_entries=ESTIMATES_KEPT, show_spinner=False)
def _estimate(key: str, _job: Job) -> Estimate:
    del key
    from tpdpdash.cost.estimate import estimate_job

    return estimate_job(_job)


def best_layout(job: Job) -> Layout | None:
    """The plan's best layout; None when nothing fits. Raises InvalidInputError."""
    best = plan_for(job).best
    return None if best is None else best.layout


def estimate_for(job: Job) -> Estimate:
    """The estimate of the job's one layout. Raises InvalidInputError with every fault of the layout."""
    return _estimate(job_key(job), job)


@st.cache_data(ttl=2.0, max_entries=1, show_spinner=False)
def detection() -> Detection:
    """What is here, at most two seconds old."""
    from tpdpdash.cluster.nvml import detect_devices

    return detect_devices(os.environ)


def device_names() -> tuple[str, ...]:
    """What a cluster can be described with: this machine, then the catalogue."""
    from tpdpdash.cluster import catalogue

    return ("local", *catalogue.device_names())


def read_local_cluster() -> tuple[ClusterSpec, tuple[Fault, ...]]:
    """What estimates use for this machine, and what to know about how it was read. Raises InvalidInputError."""
    return _cluster({"device": "local"})


def read_described_cluster(view: JobState) -> tuple[ClusterSpec, tuple[Fault, ...]]:
    """The cluster of the view, and what was assumed of it. Raises InvalidInputError with every fault."""
    return _cluster(state.cluster_table(view))


def _cluster(table: Mapping[str, object]) -> tuple[ClusterSpec, tuple[Fault, ...]]:
    from tpdpdash.cluster.describe import cluster_from_fields

    spec, found, notices = cluster_from_fields(table, detection)
    if spec is None or found:
        raise InvalidInputError(found)
    return spec, tuple(notices)


# ------------------------------------------------------------------------------------------------ runs


@st.cache_data(ttl=1.0, max_entries=4, show_spinner=False)
def _runs(root: str, limit: int) -> list[RunView]:
    from tpdpdash.run.history import list_runs

    return list_runs(Path(root), limit=limit)


def runs(limit: int = RUNS_SHOWN) -> list[RunView]:
    """The newest runs, at most a second old."""
    return _runs(str(_runs_root()), limit)


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


@st.cache_resource(max_entries=READERS_KEPT, show_spinner=False)
def _live_run(path: str) -> LiveRun:
    from tpdpdash.run.folder import RunFolder
    from tpdpdash.ui.live import LiveRun

    return LiveRun(RunFolder(Path(path)))


def reader(run_id: str) -> LiveRun:
    """The reader of a run, shared by every viewer. Raises InvalidInputError."""
    return _live_run(str(run_folder(run_id).path))


@st.cache_resource(max_entries=READERS_KEPT, show_spinner=False)
def predicted_run(run_id: str) -> tuple[Job, Estimate] | None:
    """The Job of a run as it runs, with its estimate; None when it is not here or has none."""
    from tpdpdash.job import read_job

    try:
        job = read_job(run_folder(run_id).job, detection)
        return job, estimate_for(job)
    except InvalidInputError:
        return None


def rehearsal_of(job: Job) -> Rehearsal:
    """The job shrunken to this machine. Raises InvalidInputError."""
    from tpdpdash.run.rehearsal import rehearse

    return rehearse(job, read_local_cluster()[0])


def job_here(job: Job) -> Job:
    """The job on this machine's devices (CPU ranks where there is no GPU), unchanged otherwise."""
    from tpdpdash.cluster.local import with_ranks

    layout = job.layout()
    here, _ = read_local_cluster()
    cluster = with_ranks(here, layout.world_size) if here.device.is_cpu else here
    return replace(job, cluster=cluster, pins=pins_of(layout), world_follows_layout=False)


def runnable_here(job: Job) -> Job:
    """The job exactly as it would run here: checks and prediction are of it. Raises InvalidInputError."""
    from tpdpdash.run.start import runnable

    return runnable(job_here(job))


def preflight_of(job: Job) -> Sequence[Check]:
    """What would go wrong on this machine. Raises InvalidInputError when the job has no estimate."""
    from tpdpdash.run.preflight import preflight

    here = None if job.cluster.device.is_cpu else read_local_cluster()[0]
    return preflight(job, here=here, prediction=estimate_for(job).to_json())


def start(job: Job, *, asked: Job, changes: Sequence[Change], request_id: str) -> RunFolder:
    """Start a job for a holder of the start token; one request starts one run, however often it is sent.

    Raises InvalidInputError, also for those who do not hold the token.
    """
    access.require_token()
    from tpdpdash.run.start import start_run

    prediction = estimate_for(job).to_json()
    folder = start_run(job, asked=write_job(asked), prediction=prediction, changes=changes, request_id=request_id)
    _runs.clear()
    return folder


def stop(run_id: str) -> None:
    """Ask a run to end, for a holder of the start token. Returns at once: the page shows how it ends."""
    access.require_token()
    from tpdpdash.run.stop import request_stop

    request_stop(run_folder(run_id), by="dashboard")
