"""Watch's sentence: what is certain about a run at this moment, worst news first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tpdpdash.telemetry import analysis
from tpdpdash.telemetry.reader import Telemetry
from tpdpdash.text import t
from tpdpdash.ui.live import Look
from tpdpdash.ui.parts import Kind, literal
from tpdpdash.ui.runs_view import duration_s, failure_cause
from tpdpdash.units import format_count, format_share, format_time

STALE_S = 15.0
"""A live run writes heartbeats every second; older than this, the page is not live."""
SILENT_S = 20.0
"""A rank writes one a second as well; a busy machine may hold its thread back for some of them."""
HUNG_FLOOR_S = 30.0
"""Before this no pause is called one: checkpoints and first allocations take some seconds."""
HUNG_STEPS = 10
"""And it is longer than so many usual steps."""
SLOW_WINDOW = 20
"""Steps that are looked at: the present, not the whole run."""
SLOW_MIN_STEPS = 6
"""With fewer, one odd step would name a rank."""
SLOW_FRAC = 0.10
"""Own work above the median of the stage from which on a rank is called slow …"""
SLOW_SHARE = 0.8
"""… in so many of the steps: noise changes sides, a slow device does not."""


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
    for finding in (_stale, _waiting, _hung, _partial, _slow):
        found = finding(look)
        if found is not None:
            return found
    return _steady(look)


def _ended(look: Look) -> Sentence:
    status, step = look.view.status, last_step(look.telemetry)
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
    others = t("The other ranks stopped because of it.") if failure and failure.rank is not None else ""
    return Sentence(kind="bad", text=t("**Failed {at}: {cause}.** {others}", at=at, cause=cause, others=others))


def last_step(telemetry: Telemetry) -> int | None:
    """The last step that any rank has finished."""
    return int(telemetry.steps[-1]) if len(telemetry.steps) else None


def _stale(look: Look) -> Sentence | None:
    last = look.telemetry.last_t
    if last is None or look.seen_t - last <= STALE_S:
        return None
    age, step = format_time(look.seen_t - last), last_step(look.telemetry)
    shown = t("Showing step {step}; this is not live.", step=step) if step is not None else t("This is not live.")
    return Sentence(kind="warning", text=t("**Last record {age} ago.** {shown}", age=age, shown=shown))


def _waiting(look: Look) -> Sentence | None:
    if len(look.telemetry.steps):
        return None
    status = look.view.status
    phase = status.phase if status else "starting"
    reached = len(look.telemetry.ranks)
    since = format_time(duration_s(status))
    text = t("**{phase}: {n} of {all} ranks report**, {since} so far.", phase=t(phase).capitalize(), n=reached,
             all=look.telemetry.world_size, since=since)  # fmt: skip
    detail = t("No step yet. On few cores the first step usually comes after half a minute or more.")
    return Sentence(kind="info", text=text, detail=detail)


def _hung(look: Look) -> Sentence | None:
    telemetry = look.telemetry
    ends = telemetry.t + telemetry.step_s
    if not len(telemetry.steps) or np.isnan(ends).all():
        return None
    pause = look.seen_t - float(np.nanmax(ends))
    usual = float(np.nanmedian(telemetry.step_s))
    if pause < max(HUNG_FLOOR_S, HUNG_STEPS * usual):
        return None
    text = t(
        "**No step for {pause}**; a step usually takes {usual}.", pause=format_time(pause), usual=format_time(usual)
    )
    return Sentence(kind="bad", text=f"{text} {_who_is_behind(telemetry)}".rstrip())


def _who_is_behind(telemetry: Telemetry) -> str:
    """Ranks that have entered fewer collectives than the others, and where they are."""
    counts = {rank: beat.collectives for rank, beat in telemetry.heartbeats.items()}
    most = max(counts.values(), default=0)
    behind = [rank for rank, count in counts.items() if count < most]
    if not behind or len(behind) > len(counts) // 2:
        return ""
    rank = min(behind, key=lambda r: counts[r])
    where = literal(telemetry.heartbeats[rank].phase or t("no region"))
    return t("**Rank {rank}** is in {where} and has entered fewer collectives than the others.", rank=rank, where=where)


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


def slow_ranks(telemetry: Telemetry) -> list[tuple[int, float]]:
    """(rank, median share above its stage) of ranks that are slow in nearly every step of the last ones."""
    ratio = analysis.own_work_ratio(telemetry)[:, -SLOW_WINDOW:]
    if ratio.shape[1] < SLOW_MIN_STEPS:
        return []
    found = []
    for rank, row in enumerate(ratio):
        known = row[np.isfinite(row)]
        if len(known) >= SLOW_MIN_STEPS and np.mean(known > 1 + SLOW_FRAC) >= SLOW_SHARE:
            found.append((rank, float(np.median(known)) - 1))
    return sorted(found, key=lambda pair: -pair[1])


def _slow(look: Look) -> Sentence | None:
    found = slow_ranks(look.telemetry)
    if not found:
        return None
    rank, share = found[0]
    phases = analysis.rank_phases(look.telemetry, SLOW_WINDOW)
    waits = np.delete(phases.total_waiting_s, [r for r, _ in found])
    waited = float(np.nanmedian(waits)) if np.isfinite(waits).any() else None
    step_s = float(np.nanmedian(phases.step_s))
    text = t("**Rank {rank} is slow.** In the last {n} steps its own work takes {share} longer than the median of its "
             "stage.", rank=rank, n=phases.num_steps, share=format_share(share))  # fmt: skip
    if waited is not None:
        text += " " + t(
            "The others wait **{wait} of each {step} step**, in all.",
            wait=format_time(waited),
            step=format_time(step_s),
        )
    others = [str(r) for r, _ in found[1:4]]
    detail = t("Slow too: rank {ranks}.", ranks=", ".join(others)) if others else ""
    return Sentence(kind="warning", text=text, detail=detail)


def _steady(look: Look) -> Sentence:
    band = analysis.step_band(look.telemetry)
    recent = band.median_s[-SLOW_WINDOW:]
    usual = format_time(float(np.nanmedian(recent))) if np.isfinite(recent).any() else t("unknown")
    n = min(SLOW_WINDOW, len(look.telemetry.steps))
    ranks = look.telemetry.world_size
    text = t("**All {all} ranks keep pace.** Median step {usual} over the last {n} steps.", all=ranks, usual=usual, n=n)
    return Sentence(kind="good", text=text)


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
