"""Launch's parts: which job, the checks and changes of it, its start, and how it comes up."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd
import streamlit as st

from tpdpdash.compare.error_words import bar_sentence
from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.job import Job, pins_of, write_job
from tpdpdash.layout.layout import DEFAULT_RANK_ORDER
from tpdpdash.text import t
from tpdpdash.ui import (
    access,
    launch_places,
    launch_words,
    parts,
    phases_strip,
    runs_view,
    services,
    shell,
    state,
    watch_words,
)
from tpdpdash.ui.key_words import key_word
from tpdpdash.ui.live import Look
from tpdpdash.units import format_count, format_time, with_error

if TYPE_CHECKING:
    from tpdpdash.cost.result import Estimate
    from tpdpdash.run.change import Change
    from tpdpdash.run.place import Place
    from tpdpdash.run.preflight import Check

STARTED = "launch-started"
_REQUEST = "launch-request"
_SHARE = "launch-share-devices"
_ICONS = {
    "ok": ":green[:material/check_circle:]",
    "warning": ":orange[:material/warning:]",
    "failed": ":red[:material/error:]",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A job as it would be started here."""

    job: Job | None
    """The job as it would run; None when it cannot."""
    changes: Sequence[Change]
    """What a rehearsal changes."""
    checks: Sequence[Check]
    """What was looked at before the start."""
    faults: tuple[Fault, ...]
    """Why it cannot be started."""
    way: str
    """How it runs: one of launch_places.WAYS."""
    place: Place
    """Where it runs."""
    asked: Job
    """The job as it was asked."""
    share_devices: bool
    """Whether it may take devices that others use."""

    @property
    def rehearsal(self) -> bool:
        """Whether it is shrunken."""
        return self.way == launch_places.REHEARSE

    @property
    def is_ready(self) -> bool:
        """Whether it may be started."""
        return self.job is not None and not self.faults and not any(check.level == "failed" for check in self.checks)


def job_to_launch() -> tuple[Job, str]:
    """The job of the chosen layout; without a choice, the plan's best, and a line that says so.

    Raises InvalidInputError.
    """
    chosen = state.chosen_job()
    if chosen is not None:
        return chosen, ""
    job = state.job()
    best = services.best_layout(job)
    if best is None:
        return job, t("No layout is chosen and none fits the described cluster: the default layout is shown.")
    return replace(job, pins=pins_of(best)), t("No layout was chosen: this is the best one of Plan.")


def question(job: Job) -> str:
    """What the head says: model and layout (markdown)."""
    layout = job.layout()
    ranks = t("{n} ranks", n=format_count(layout.world_size))
    order = "" if layout.rank_order == DEFAULT_RANK_ORDER else " · " + t("order `{o}`", o=layout.rank_order)
    return f"{parts.literal(job.name)} · {runs_view.layout_words(layout.layout_id)} = {ranks}{order}"


def prepared(job: Job, way: str, place: Place) -> Prepared:
    """The job as it would be started, with its checks; a refusal is part of the answer."""
    share = bool(st.session_state.get(_SHARE)) and place.engine != "slurm"  # the box was ticked for another place
    kept: Callable[..., Prepared] = partial(Prepared, way=way, place=place, asked=job, share_devices=share)
    try:
        rehearsal = services.rehearsal_of(job) if way == launch_places.REHEARSE else None
        as_asked = services.runnable_here if place.engine == "local" else services.runnable_as_described
        runs = rehearsal.job if rehearsal is not None else as_asked(job)
        changes = rehearsal.changes if rehearsal is not None else ()
        checks = services.checks_of(runs, place, share_devices=share)
        return kept(job=runs, changes=changes, checks=checks, faults=())
    except InvalidInputError as wrong:
        return kept(job=None, changes=(), checks=(), faults=wrong.faults)


def start(launch: Prepared) -> None:
    """Start it once, however often the button was pressed: the request keeps its id until the run has come up."""
    if launch.job is None:
        return
    request = st.session_state.setdefault(_REQUEST, secrets.token_hex(16))
    folder = services.start(
        launch.job,
        asked=launch.asked,
        changes=launch.changes,
        request_id=request,
        place=launch.place,
        share_devices=launch.share_devices,
    )
    st.session_state[STARTED] = folder.run_id
    st.session_state.pop(_REQUEST, None)
    state.remember_run(folder.run_id)


def answer(launch: Prepared) -> None:
    """Whether it can be started, in one sentence."""
    if launch.job is None or launch.faults:
        parts.faults(launch.faults)
        _next_step(launch)
        return
    blocking = [check for check in launch.checks if check.level == "failed"]
    if blocking:
        parts.verdict("bad", t("**It would not run:** {why}", why=launch_words.check_words(blocking[0])))
        _next_step(launch)
        return
    if not access.may_start():
        parts.verdict("warning", t("**Ready, but not for you.** {why}", why=parts.literal(access.not_allowed())))
        return
    job = launch.job
    ranks, steps = job.layout().world_size, job.training.steps
    kind = t("CPU ranks over gloo") if job.cluster.device.is_cpu else parts.literal(job.cluster.device.name)
    verb = t("rehearse") if launch.rehearsal else t("run")
    text = t("**Ready to {verb}: {n} {kind}, {steps} steps.**", verb=verb, n=ranks, kind=kind, steps=steps)
    if launch.rehearsal:
        text += " " + _likeness(launch)
    detail = t("No GPU is needed. The first step comes after half a minute or more: importing, connecting, building.")
    predicted = _predicted(services.estimate_for(job))
    parts.verdict("good", text, f"{predicted} {detail}" if job.cluster.device.is_cpu else predicted)


def _next_step(launch: Prepared) -> None:
    """What to do about a layout that cannot run here as it is: rehearse it, or choose another one."""
    if launch.rehearsal:
        return
    row = st.container(horizontal=True, vertical_alignment="center")
    row.button(t("Rehearse it small"), icon=":material/science:", on_click=_rehearse)
    row.page_link(shell.page_path("plan"), label=t("Choose another layout"), query_params=state.params())
    row.caption(t("A rehearsal replaces what the built-in worker cannot run, and lists each change before it starts."))


def _rehearse() -> None:
    """The way stands in the address only where it is not the default one, which is to rehearse."""
    st.query_params.pop("how", None)


def _predicted(estimate: Estimate) -> str:
    """What a step should take, and how far that may be off."""
    step = with_error(format_time(estimate.step_s), estimate.error_frac)
    return f"{t('Predicted: {step} a step.', step=step)} {bar_sentence(estimate.time_error)}"


def _likeness(launch: Prepared) -> str:
    """How much of the layout a rehearsal keeps. The worker overlaps nothing and has fewer layers: that changes when
    messages are sent, not which."""
    keeps = ("layout.layers_per_stage", "layout.overlap_")
    changed = [change.key for change in launch.changes if change.key.startswith("layout.")]
    own = [key for key in changed if not key.startswith(keeps)]
    if not own:
        return t("The same groups, schedule and messages, on a shrunken model.")
    words = ", ".join(key_word(key) for key in own)
    return t("A shrunken model, and of the layout these are not as asked: {words}.", words=words)


def starting(look: Look) -> None:
    """What is certain about the run that was started, and its five phases."""
    found = watch_words.sentence(look)
    parts.verdict(found.kind, found.text, found.detail)
    with parts.card(t("Starting"), phases_strip.caption()):
        phases_strip.strip(look)
    launch_places.elsewhere(look)


def details(launch: Prepared) -> None:
    """Checks and command beside the list of changes."""
    if launch.job is None:
        return
    left, right = st.columns([1.1, 1])
    with left:
        _checks(launch.checks)
        _command(launch)
    with right:
        _changes(launch)


def _checks(checks: Sequence[Check]) -> None:
    holds = access.may_start()
    levels = [*(check.level for check in checks), "ok" if holds else "failed"]
    counts = {level: levels.count(level) for level in ("ok", "warning", "failed")}
    caption = t("{n} good", n=counts["ok"])
    caption += t(", {n} to know", n=counts["warning"]) if counts["warning"] else ""
    caption += t(", {n} against it", n=counts["failed"]) if counts["failed"] else ""
    with parts.card(t("Before it starts"), caption):
        rows: list[tuple[str, str, str]] = [
            (check.level, launch_words.check_name(check), launch_words.check_words(check)) for check in checks
        ]
        token = t("this browser holds it") if holds else t("this browser does not hold it")
        rows.append((levels[-1], t("Start token"), token))
        cells = [(_ICONS[level], f"**{name}**", f":gray[{words}]") for level, name, words in rows]
        parts.table(pd.DataFrame(cells, columns=["", " ", "  "]), hide_header=True, is_markdown=True)
        if any(check.code == "in_use" and check.level != "ok" for check in checks):
            st.checkbox(t("Start all the same: share these devices"), key=_SHARE)


def _command(launch: Prepared) -> None:
    with parts.card(t("Command"), t("the same from a shell")):
        flags = launch_places.command_flags(launch.way, launch.place)
        st.code(
            f"tpdpdash run job.toml{flags}\n# {t('starts')}: python -m torch.distributed.run … tpdpdash.worker …",
            language="bash",
        )
        left = st.container(horizontal=True, vertical_alignment="center")
        left.download_button(
            "job.toml", write_job(launch.asked), file_name="job.toml", mime="text/plain", icon=":material/download:"
        )
        left.caption(t("Closing this page does not stop the run."))


def _changes(launch: Prepared) -> None:
    if not launch.rehearsal:
        with parts.card(t("What runs"), launch_words.place_words(launch.place), fill=False):
            st.caption(launch_words.place_details(launch.place))
        return
    with parts.card(t("What the rehearsal changes"), t("{n} changes", n=len(launch.changes))):
        parts.table(launch_words.changes_table(launch.changes), is_markdown=True)
