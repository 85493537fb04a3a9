"""What the pages ask the rooms for, computed once for every viewer: plans, estimates, this machine, and starts.

The only place with st.cache_*, but for what is asked of runs that exist (run_services). No thread is started here and
none calls streamlit.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import streamlit as st

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.job import Job, detect_here, pins_of, write_job
from tpdpdash.ui import access, job_state, run_services
from tpdpdash.units import GIB

if TYPE_CHECKING:
    from tpdpdash.cluster.measured import MeasuredFile
    from tpdpdash.cluster.nvml import Detection
    from tpdpdash.cluster.spec import ClusterSpec
    from tpdpdash.compare.residuals import Coverage
    from tpdpdash.cost.residuals import What
    from tpdpdash.cost.result import Estimate
    from tpdpdash.layout.layout import Layout
    from tpdpdash.run.change import Change
    from tpdpdash.run.folder import RunFolder
    from tpdpdash.run.place import Place
    from tpdpdash.run.preflight import Check
    from tpdpdash.run.rehearsal import Rehearsal
    from tpdpdash.run.slurm import SlurmPartition
    from tpdpdash.search.plan import Plan
    from tpdpdash.ui.job_state import JobState

PLANS_KEPT = 16
ESTIMATES_KEPT = 128
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


@st.cache_resource(show_spinner=False)
def set_aside(page: str) -> None:
    """Streamlit collects garbage after each run of a page or of its timed part, looking at all that lives. What the
    imports of a page made lives on and is no garbage: once for each page it is taken out of what is looked at."""
    del page
    gc.collect()
    gc.freeze()


# Plans and estimates are frozen and large: shared as they are (cache_resource), not copied for each viewer.
@st.cache_resource(max_entries=PLANS_KEPT, show_spinner=False)
def _plan(key: str, _job: Job) -> Plan:
    del key
    from tpdpdash.search.plan import plan

    return plan(_job)


def plan_for(job: Job) -> Plan:
    """The search over every layout of the job."""
    return _plan(job_key(job), job)


@st.cache_resource(max_entries=ESTIMATES_KEPT, show_spinner=False)
def _estimate(key: str, _job: Job) -> Estimate:
    del key
    from tpdpdash.cost.estimate import estimate_job

    return estimate_job(_job)


@st.cache_resource(show_spinner=False)
def held_out(what: What) -> Coverage:
    """How many published runs of a source the error bars of all other sources hold."""
    from tpdpdash.compare.residuals import held_out_coverage
    from tpdpdash.cost.residuals import packaged_residuals

    return held_out_coverage(packaged_residuals().of(what))


def best_layout(job: Job) -> Layout | None:
    """The layout that the plan picks; None when nothing fits. Raises InvalidInputError."""
    picked = plan_for(job).picked
    return None if picked is None else picked.layout


def estimate_for(job: Job) -> Estimate:
    """The estimate of the job's one layout. Raises InvalidInputError with every fault of the layout."""
    return _estimate(job_key(job), job)


@st.cache_data(ttl=2.0, max_entries=1, show_spinner=False)
def detection() -> Detection:
    """What is here, at most two seconds old."""
    return detect_here()


def device_names() -> tuple[str, ...]:
    """What a cluster can be described with: this machine, then the catalogue."""
    from tpdpdash.cluster import catalogue

    return ("local", *catalogue.device_names())


def read_local_cluster() -> tuple[ClusterSpec, tuple[Fault, ...]]:
    """What estimates use for this machine, and what to know about how it was read. Raises InvalidInputError."""
    return _cluster({"device": "local"})


def read_described_cluster(view: JobState) -> tuple[ClusterSpec, tuple[Fault, ...]]:
    """The cluster of the view, and what was assumed of it. Raises InvalidInputError with every fault."""
    return _cluster(job_state.cluster_table(view))


def _cluster(table: Mapping[str, object]) -> tuple[ClusterSpec, tuple[Fault, ...]]:
    from tpdpdash.cluster.describe import cluster_from_fields

    spec, found, notices = cluster_from_fields(table, detection)
    if spec is None or found:
        raise InvalidInputError(found)
    return spec, tuple(notices)


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


def runnable_as_described(job: Job) -> Job:
    """The job exactly as the built-in worker runs it on the described cluster. Raises InvalidInputError."""
    from tpdpdash.run.start import runnable

    return runnable(job)


@st.cache_data(ttl=10.0, max_entries=1, show_spinner=False)
def slurm_partitions() -> Sequence[SlurmPartition]:
    """What Slurm can send jobs to, at most ten seconds old; nothing where it does not answer."""
    from tpdpdash.run.slurm import SlurmSilentError, list_partitions

    try:
        return list_partitions()
    except SlurmSilentError:  # the checks say why
        return ()


def checks_of(job: Job, place: Place, *, share_devices: bool) -> Sequence[Check]:
    """What would go wrong there. Raises InvalidInputError when the job has no estimate."""
    from tpdpdash.run.claims import devices_in_use
    from tpdpdash.run.place import checks

    prediction = estimate_for(job).to_json()
    gpus_here = place.gpus_here(job)
    if not gpus_here:
        return checks(job, place, prediction=prediction)
    here, in_use = read_local_cluster()[0], devices_in_use(detection(), gpus_here)
    return checks(job, place, here=here, prediction=prediction, in_use=in_use, share_devices=share_devices)


def start(
    job: Job,
    *,
    asked: Job,
    changes: Sequence[Change],
    request_id: str,
    place: Place,
    share_devices: bool = False,
) -> RunFolder:
    """Start a job for a holder of the start token; one request starts one run, however often it is sent.

    Raises InvalidInputError, also for those who do not hold the token.
    """
    access.require_token()
    from tpdpdash.run.start import start_run

    prediction = estimate_for(job).to_json()
    folder = start_run(
        job,
        asked=write_job(asked),
        prediction=prediction,
        changes=changes,
        request_id=request_id,
        place=place,
        share_devices=share_devices,
    )
    run_services.list_again()
    return folder


def measured() -> tuple[MeasuredFile | None, tuple[Fault, ...]]:
    """The cluster file, and why it cannot be used."""
    here = detection()
    return here.measured, here.measured_faults


def start_calibration(request_id: str) -> str:
    """Measure this machine, for a holder of the start token; the run's id. Raises InvalidInputError."""
    access.require_token()
    from tpdpdash.run.calibrate import start_calibration as start_measuring

    folder = start_measuring(detection(), request_id=request_id)
    run_services.list_again()
    return folder.run_id


def take_over(run_id: str) -> None:
    """A calibration's figures, or the correction of a finished run, for a holder of the start token. Raises
    InvalidInputError."""
    access.require_token()
    from tpdpdash.compare import recalibrate

    recalibrate.take_over(run_services.run_view(run_id))
    detection.clear()


def undo_correction(run_id: str) -> None:
    """Take a run's correction back, for a holder of the start token. Raises InvalidInputError."""
    access.require_token()
    from tpdpdash.compare import recalibrate

    recalibrate.undo(run_id)
    detection.clear()


def forget_measured() -> None:
    """Go back to the catalogue's figures, for a holder of the start token."""
    access.require_token()
    from tpdpdash.cluster.measured import config_path
    from tpdpdash.cluster.measured import forget_measured as remove

    remove(config_path())
    detection.clear()
