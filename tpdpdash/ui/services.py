"""The only place with st.cache_*: what the pages ask the rooms for, computed once for every viewer.

No thread is started here and none calls streamlit: readers are refreshed by whoever looks, under a lock.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import streamlit as st

from tpdpdash.faults import InvalidInputError
from tpdpdash.job import Job, write_job
from tpdpdash.ui import state

if TYPE_CHECKING:
    from tpdpdash.cluster.nvml import Detection
    from tpdpdash.cluster.spec import ClusterSpec
    from tpdpdash.cost.estimate import Estimate
    from tpdpdash.search.plan import Plan
    from tpdpdash.ui.state import JobState

PLANS_KEPT = 16
ESTIMATES_KEPT = 128
READERS_KEPT = 8


def job_key(job: Job) -> str:
    """Two jobs with the same key have the same plan and estimate."""
    return write_job(job)


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


def local_cluster() -> ClusterSpec:
    """What estimates use for this machine."""
    return _cluster({"device": "local"})


def described_cluster(view: JobState) -> ClusterSpec:
    """The cluster of the view. Raises InvalidInputError with every fault."""
    return _cluster(state.cluster_table(view))


def _cluster(table: Mapping[str, object]) -> ClusterSpec:
    from tpdpdash.cluster.describe import cluster_from_fields

    spec, found, _ = cluster_from_fields(table, detection)
    if spec is None or found:
        raise InvalidInputError(found)
    return spec
