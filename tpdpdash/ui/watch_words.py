"""Watch's sentence: what is certain about a run at this moment, worst news first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tpdpdash.compare.verdict import RECENT_STEPS, Verdict
from tpdpdash.compare.verdict_words import evidence, headline, next_step
from tpdpdash.run.status import SchedulerJob
from tpdpdash.telemetry.analysis import usual
from tpdpdash.telemetry.reader import Telemetry
from tpdpdash.text import t
from tpdpdash.ui.live import Look
from tpdpdash.ui.parts import Kind, literal, literal_text
from tpdpdash.ui.runs_view import duration_s, failure_cause
from tpdpdash.units import format_count, format_time

STALE_S = 15.0
"""A live run writes heartbeats every second; older than this, the page is not live."""
MISSING_S = 30.0
"""Ranks of one machine report within some seconds of each other."""
NAMED_RANKS = 8
"""Missing ranks that are named; of more their number is told."""
SILENT_S = 20.0
"""A rank writes one a second as well; a busy machine may hold its thread back for some of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """What the verdict box says. Markdown; what came from outside went through `literal`."""

    kind: Kind
    """good, warning, bad or info."""
    text: str
    """The answer."""
    detail: str = ""
    """The quieter second line."""


def sentence(look: Look) -> Sentence:
    """The state of the run; while it runs, the worst of what is certain."""
    state = look.view.state
    if state == "damaged":
        why = literal(look.view.damage)
        return Sentence(kind="bad", text=t("**This run's folder is damaged.** {why}", why=why))
    if look.view.is_over:
        return _ended(look)
    if state == "stopping":
        ended = sum(name == "finished" for name in look.telemetry.last_event.values())
        text = t("**Stopping:** {n} of {all} ranks have ended.", n=ended, all=look.telemetry.world_size)
        return Sentence(kind="warning", text=text)
    for finding in (_stale, _waiting, _hung, _partial, _trouble):
        found = finding(look)
        if found is not None:
            return found
    return _steady(look)


def _ended(look: Look) -> Sentence:
    status, step = look.view.status, last_step(look.told)
    took = format_time(duration_s(status))
    at = t("at step {step}", step=format_count(step)) if step is not None else t("before the first step")
    if look.view.state == "finished":
        return Sentence(kind="good", text=t("**Finished** {at}, after {took}.", at=at, took=took))
    if look.view.state == "stopped":
        by = status.stop_requested_by if status else None
        whom = t("by you") if by == "dashboard" else t("from the shell") if by == "cli" else t("by a signal")
        left = status.could_not_kill if status else ()
        gone = t("All processes are gone.") if not left else t("Still there: {pids}.", pids=", ".join(map(str, left)))
        return Sentence(kind="info", text=t("**Stopped {whom} {at}.** {gone}", whom=whom, at=at, gone=gone))
    if look.view.state == "lost":
        kept = t("Its records {until} are kept.", until=t("up to step {step}", step=step) if step is not None else "")
        return Sentence(kind="warning", text=t("**Lost:** its supervisor is gone and left no end. {kept}", kept=kept))
    failure = status.first_failure if status else None
    cause = literal(failure_cause(failure)) if failure else t("the cause is not known")
    is_cause = failure is not None and failure.rank is not None and failure.code != "rank_lost_peers"
    others = t("The other ranks stopped because of it.") if is_cause else ""
    return Sentence(kind="bad", text=t("**Failed {at}: {cause}.** {others}", at=at, cause=cause, others=others))


def last_step(telemetry: Telemetry) -> int | None:
    """The last step that any rank has finished."""
    return int(telemetry.steps[-1]) if len(telemetry.steps) else None


def _stale(look: Look) -> Sentence | None:
    last = look.telemetry.last_t
    if last is None or look.seen_t - last <= STALE_S:
        return None
    age, step = format_time(look.seen_t - last), last_step(look.told)
    shown = t("Showing step {step}; this is not live.", step=step) if step is not None else t("This is not live.")
    return Sentence(kind="warning", text=t("**Last record {age} ago.** {shown}", age=age, shown=shown))


def _waiting(look: Look) -> Sentence | None:
    if len(look.telemetry.steps):
        return None
    status = look.view.status
    if status and status.scheduler and status.scheduler.state == "PENDING":
        return _queued(look, status.scheduler)
    missing = look.telemetry.missing_ranks
    if look.telemetry.ranks and missing and (duration_s(status) or 0.0) > MISSING_S:
        return _missing(look, missing)
    phase = status.phase if status else "starting"
    reached = len(look.telemetry.ranks)
    since = format_time(duration_s(status))
    text = t("**{phase}: {n} of {all} ranks report**, {since} so far.", phase=t(phase).capitalize(), n=reached,
             all=look.telemetry.world_size, since=since)  # fmt: skip
    detail = t("No step yet. On few cores the first step usually comes after half a minute or more.")
    return Sentence(kind="info", text=text, detail=detail)


def _queued(look: Look, job: SchedulerJob) -> Sentence:
    place = t("place {n} in {partition}", n=job.position, partition=literal(job.partition)) if job.position else ""
    why = t("Slurm says: {reason}.", reason=literal(job.reason)) if job.reason else ""
    since = format_time(look.seen_t - look.view.status.created) if look.view.status else ""
    text = t("**Job {id} waits in Slurm's queue**, {since} so far", id=literal(job.id), since=since)
    text += f": {place}." if place else "."
    return Sentence(
        kind="info", text=f"{text} {why}".rstrip(), detail=t("It starts by itself; nothing here needs to stay open.")
    )


def _missing(look: Look, missing: Sequence[int]) -> Sentence:
    """Some ranks have long reported and wait for others, which may never have been started."""
    status, count = look.view.status, len(missing)
    who = t("rank {rank}", rank=missing[0]) if count == 1 else t("ranks {ranks}", ranks=_listed(missing))
    since = format_time(duration_s(status))
    text = t("**Waiting for {who}**: {n} of {all} ranks report, {since} so far.", who=who,
             n=look.telemetry.world_size - count, all=look.telemetry.world_size, since=since)  # fmt: skip
    run, rank = look.view.run_id, missing[0]
    if status is not None and status.engine == "hosts":
        path = literal(str(look.view.folder.elsewhere))
        detail = t("Were the ranks of the other machines started? The line for each stands in {path}.", path=path)
    else:
        detail = t("What it has written so far: `tpdpdash logs {run} --rank {rank}`.", run=run, rank=rank)
    return Sentence(kind="warning", text=text, detail=detail)


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:NAMED_RANKS]))
    return t("{ranks} and {n} more", ranks=shown, n=len(ranks) - NAMED_RANKS) if len(ranks) > NAMED_RANKS else shown


def _hung(look: Look) -> Sentence | None:
    return _told(look.verdict, "bad") if look.verdict.hang is not None else None


def _trouble(look: Look) -> Sentence | None:
    """A slow rank, a slow link, memory that grows."""
    verdict = look.verdict
    if not (verdict.slow_ranks or verdict.slow_groups or verdict.growing):
        return None
    told = _told(verdict, "warning")
    if not verdict.slow_ranks:
        return told
    slow = [each.rank for each in verdict.slow_ranks]
    phases = look.phases(RECENT_STEPS)
    waits = np.delete(phases.total_waiting_s, slow)
    if not np.isfinite(waits).any():
        return told
    figures = {"wait": format_time(float(np.nanmedian(waits))), "step": format_time(float(np.nanmedian(phases.step_s)))}
    return replace(told, text=f"{told.text} " + t("The others wait **{wait} of each {step} step**, in all.", **figures))


def _told(verdict: Verdict, kind: Kind) -> Sentence:
    """The verdict's own words; phases and collectives in them come from the run."""
    text = f"**{literal_text(headline(verdict))}** {literal_text(evidence(verdict))}".rstrip()
    return Sentence(kind=kind, text=text, detail=literal_text(next_step(verdict)))


def _partial(look: Look) -> Sentence | None:
    telemetry = look.telemetry
    silent: dict[int, int | None] = dict.fromkeys(telemetry.missing_ranks)
    for rank, beat in telemetry.heartbeats.items():
        if look.seen_t - beat.t > SILENT_S and telemetry.last_event.get(rank) != "finished":
            silent[rank] = beat.step
    if not silent:
        return None
    reporting = telemetry.world_size - len(silent)
    rank, step = next(iter(silent.items()))
    since = t("since step {step}", step=step) if step is not None else t("so far")
    who = t("rank {rank} has sent nothing {since}", rank=rank, since=since)
    more = t(", and {n} more", n=len(silent) - 1) if len(silent) > 1 else ""
    text = t("**{n} of {all} ranks report**; {who}{more}.", n=reporting, all=telemetry.world_size, who=who, more=more)
    return Sentence(kind="warning", text=text)


def _steady(look: Look) -> Sentence:
    median = format_time(usual(look.band.median_s, RECENT_STEPS))
    n = min(RECENT_STEPS, len(look.telemetry.steps))
    ranks = look.telemetry.world_size
    text = t(
        "**All {all} ranks keep pace.** Median step {usual} over the last {n} steps.", all=ranks, usual=median, n=n
    )
    return Sentence(kind="good", text=text, detail=literal_text(headline(look.verdict)))


def shared_cores() -> str:
    """What is to be known of more ranks than cores."""
    return t("step times show the order of things, not their speed")


def notes(look: Look, cores_here: int | None) -> Sequence[str]:
    """What a reader of the charts must know besides (plain sentences)."""
    telemetry, found = look.telemetry, []
    on_cpu = any(info.device.startswith("cpu") for info in telemetry.ranks.values())
    if on_cpu and cores_here and telemetry.world_size > cores_here:
        shared = {"n": telemetry.world_size, "cores": cores_here, "note": shared_cores()}
        found.append(t("{n} ranks share {cores} cores: {note}.", **shared))
    if telemetry.dropped_steps:
        found.append(t("The last {n} steps are shown.", n=format_count(len(telemetry.steps))))
    if profiled := sorted({note.step for note in telemetry.profiles}):
        listed = ", ".join(map(str, profiled[-NAMED_RANKS:]))
        found.append(t("Not in these figures: step {steps}, deep-profiled, and the step after.", steps=listed))
    if telemetry.bad_lines:
        counted = ", ".join(f"{count} × {literal(kind)}" for kind, count in telemetry.bad_lines.items())
        found.append(t("Lines that could not be used: {counted}.", counted=counted))
    if telemetry.lost_records:
        found.append(t("{n} records could not be written by the ranks.", n=telemetry.lost_records))
    if telemetry.non_finite_losses:
        found.append(t("{n} steps had a loss that is not a number.", n=telemetry.non_finite_losses))
    if telemetry.duplicated_ranks:
        found.append(t("Two processes claim to be rank {rank}.", rank=min(telemetry.duplicated_ranks)))
    return found
