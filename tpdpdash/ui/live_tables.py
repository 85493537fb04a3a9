"""Telemetry → the tables of Watch's charts: at most 1,600 rows each, whatever the run's size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tpdpdash.charts.heat import LEVEL_EDGES, MAX_HEAT_ROWS, data_uri, heat_levels, palette_png, pooled_rows
from tpdpdash.charts.palette import PHASE_ORDER, Fill, Theme, heat_ramp, phase_colors, phase_label, ui_colors
from tpdpdash.compare.prediction import Prediction
from tpdpdash.compare.verdict import RECENT_STEPS
from tpdpdash.telemetry.analysis import RankPhases, StepBand
from tpdpdash.telemetry.reader import RankInfo, Telemetry
from tpdpdash.telemetry.record import PHASES
from tpdpdash.text import t
from tpdpdash.units import ceil_div, format_difference, format_memory, format_share, format_time, gib

MAX_POINTS = 300
MAX_BAR_RANKS = 32
MAX_LANES = 16
MAX_TIMELINE_BARS = 1024
"""Actions that are drawn of one step: 32 microbatches in MAX_LANES lanes."""
SMOOTHING = 0.85
NUMBERED_FRAC = 0.03
"""Share of the step from which on a bar has room for its number."""
Action = tuple[str, int, int, float, float]
"""F or B, stage, microbatch, start and duration in seconds."""
Floats = NDArray[np.float64]


def _buckets(count: int, limit: int) -> NDArray[np.int64]:
    """First index of each of at most `limit` runs of neighbours."""
    return np.unique(np.linspace(0, count, min(count, limit), endpoint=False).astype(np.int64))


def step_time_table(band: StepBand, window: int | None, predicted: Prediction | None) -> pd.DataFrame:
    """For charts.live.step_time_spec. Neighbouring steps are joined by their extremes, so that no outlier is lost.

    predicted: what is drawn beside them, with its error; None = nothing.
    """
    cut = slice(-window if window else None, None)
    steps, low, middle, high = band.steps[cut], band.min_s[cut], band.median_s[cut], band.max_s[cut]
    known = np.isfinite(middle)
    steps, low, middle, high = steps[known], low[known], middle[known], high[known]
    first = _buckets(len(steps), MAX_POINTS)
    table = pd.DataFrame(
        {
            "kind": "step",
            "step": steps[first].astype(np.int32),
            "low_s": np.minimum.reduceat(low, first) if len(first) else low,
            "median_s": middle[first],
            "high_s": np.maximum.reduceat(high, first) if len(first) else high,
        }
    )
    if predicted is None or predicted.step_s is None or not len(first):
        return table
    half_s = predicted.step_s * (predicted.error_frac or 0.0)
    ends = pd.DataFrame(
        {
            "kind": "predicted",
            "step": [steps[0], steps[-1]],
            "low_s": predicted.step_s - half_s,
            "median_s": predicted.step_s,
            "high_s": predicted.step_s + half_s,
        }
    )
    return pd.concat([table, ends.astype({"step": np.int32})], ignore_index=True)


def heat_table(
    steps: NDArray[np.int64], excess: Floats, noise: float, theme: Theme, chosen: int | None
) -> pd.DataFrame:
    """For charts.live.heat_spec: what of the ranks' excess work (R, S) stands out of its noise, as one image."""
    pooled = pooled_rows(excess)
    png = palette_png(heat_levels(np.where(pooled < noise, 0.0, pooled)), heat_ramp(theme))
    edges = {"first_step": steps[0] - 0.5, "last_step": steps[-1] + 0.5}
    rows = [{"kind": "image", "url": data_uri(png), **edges, "first_row": -0.5, "last_row": len(excess) - 0.5}]
    if chosen is not None:
        rows.append({"kind": "chosen", "url": "", **edges, "first_row": chosen - 0.5, "last_row": chosen + 0.5})
    return pd.DataFrame(rows)


def shown_ranks(excess: Floats, chosen: int | None) -> list[int]:
    """Ranks that get a bar: all, or those whose excess work (R, S) was largest of late, and the chosen one."""
    if len(excess) <= MAX_BAR_RANKS:
        return list(range(len(excess)))
    recent = excess[:, -RECENT_STEPS:]
    above = np.where(np.isnan(recent), -np.inf, recent).max(axis=1, initial=-np.inf)
    worst = np.argsort(-above, kind="stable")[: MAX_BAR_RANKS - 1].tolist()
    return sorted({*worst, *([chosen] if chosen is not None else [])})


def rank_name(rank: int, info: RankInfo | None) -> str:
    """ "rank 5  s1 d0 t1": its stage, replica and slice."""
    if info is None:
        return t("rank {rank}", rank=rank)
    places = " ".join(
        f"{short}{info.coords[key]}" for short, key in (("s", "pp"), ("d", "dp"), ("t", "tp")) if key in info.coords
    )
    return f"{t('rank {rank}', rank=rank)}  {places}".rstrip()


def bar_phases(theme: Theme) -> dict[str, Fill]:
    """Colours of what is stacked, in stack order: the palette's phases, and regions without a name here."""
    ui = ui_colors(theme)
    other = Fill(fill=ui["muted"], outline=ui["muted"], on=ui["bg"], text=ui["muted"])
    fills = {
        name: fill for name, fill in phase_colors(theme).items() if name in (*PHASES, "bubble", "idle", "unattributed")
    }
    return {**fills, "other": other}


def occurring(phases: RankPhases) -> set[str]:
    """Phases in which any rank spent time."""
    seen = {name for i, name in enumerate(PHASES) if np.nansum(phases.phase_s[:, i]) > 0}
    besides = {"bubble": phases.bubble_s, "idle": phases.total_waiting_s}
    return seen | {name for name, seconds in besides.items() if np.nansum(seconds) > 0}


def heat_legend(theme: Theme, noise: float) -> tuple[dict[str, Fill], dict[str, str]]:
    """Colours and labels of the heat map's ramp, without those that are below the noise; the first begins with it."""
    edges = [t("median, or noise"), *(format_difference(max(edge, noise)) for edge in LEVEL_EDGES)]
    edges[-1] = t("{share} or more", share=edges[-1])
    shown = [0, *(i + 1 for i, edge in enumerate(LEVEL_EDGES) if [*LEVEL_EDGES, np.inf][i + 1] > noise)]
    fills = {str(i): Fill(fill=color, outline=color, on=color, text=color) for i, color in enumerate(heat_ramp(theme))}
    return fills, {str(i): edges[i] for i in shown}


def pooled_note(num_ranks: int) -> str:
    """What the heat map says of itself when a row stands for several ranks."""
    if num_ranks <= MAX_HEAT_ROWS:
        return ""
    rows = ceil_div(num_ranks, ceil_div(num_ranks, MAX_HEAT_ROWS))
    return t("{ranks} ranks as {rows} rows; each row shows its slowest rank.", ranks=f"{num_ranks:,}", rows=rows)


def phase_word(phase: str) -> str:
    """The phase in the reader's language, "other" included."""
    return phase_label(phase) if phase in PHASE_ORDER else t("other")


def phases_table(phases: RankPhases, ranks: Sequence[int], infos: Mapping[int, RankInfo], theme: Theme) -> pd.DataFrame:
    """For charts.live.phases_spec: seconds a step of each rank, transfer and waiting apart."""
    rows = []
    fills = bar_phases(theme)
    for rank in ranks:
        parts = {name: float(phases.phase_s[rank, i]) for i, name in enumerate(PHASES)}
        parts["bubble"] = float(phases.bubble_s[rank])
        parts["idle"] = float(phases.total_waiting_s[rank])
        parts["unattributed"] = float(phases.unattributed_s[rank])
        start, whole, name = 0.0, float(phases.step_s[rank]) or np.nan, rank_name(rank, infos.get(rank))
        for phase, fill in fills.items():
            seconds = parts[phase]
            if not np.isfinite(seconds) or seconds <= 0:
                continue
            shown = f"{format_time(seconds)} · {format_share(seconds / whole)}"
            place = {"kind": "bar", "row": name, "x": start, "x2": start + seconds}
            rows.append(
                place | {"fill": fill.fill, "outline": fill.outline, "label": phase_word(phase), "shown": shown}
            )
            start += seconds
    return pd.DataFrame(rows, columns=["kind", "row", "x", "x2", "fill", "outline", "label", "shown"])


def summary_table(phases: RankPhases, ranks: Sequence[int], infos: Mapping[int, RankInfo]) -> pd.DataFrame:
    """The same as shares of the step: working, transferring, bubble, waiting, unattributed."""
    columns = {
        t("working"): phases.working_s,
        t("transferring"): phases.transferring_s,
        t("bubble"): phases.bubble_s,
        t("waiting"): phases.total_waiting_s,
        t("unattributed"): phases.unattributed_s,
    }
    chosen = list(ranks)
    shares = {name: [format_share(v) for v in phases.share(seconds)[chosen]] for name, seconds in columns.items()}
    names = [rank_name(rank, infos.get(rank)) for rank in chosen]
    return pd.DataFrame({t("Rank"): names, t("Step"): [format_time(s) for s in phases.step_s[chosen]], **shares})


def drawn_span(actions: Mapping[int, Sequence[Action]]) -> tuple[float, float]:
    """Seconds of a step that MAX_TIMELINE_BARS can show of every lane without a gap, and of the step's actions."""
    most = MAX_TIMELINE_BARS // max(1, len(actions))
    whole_s = max((start + length for lane in actions.values() for *_, start, length in lane), default=1.0)
    beyond = (sorted(start for *_, start, _ in lane)[most] for lane in actions.values() if len(lane) > most)
    return min(beyond, default=whole_s), whole_s


def timeline_table(
    actions: Mapping[int, Sequence[Action]], until_s: float, infos: Mapping[int, RankInfo], theme: Theme
) -> pd.DataFrame:
    """For charts.live.timeline_spec: forward and backward of each microbatch that begins before `until_s`, in the
    lanes of `lanes_of`."""
    colors = phase_colors(theme)
    rows: list[dict[str, object]] = []
    for rank, lane in actions.items():
        name = rank_name(rank, infos.get(rank))
        idle = {"kind": "bar", "row": name, "x": 0.0, "x2": until_s, "label": t("waiting and messages"), "shown": ""}
        rows.append(idle | {"fill": colors["idle"].fill, "outline": colors["idle"].outline})
        rows += action_rows(name, [action for action in lane if action[3] < until_s], until_s, theme)
    return pd.DataFrame(rows, columns=["kind", "row", "x", "x2", "fill", "outline", "label", "shown"])


def action_rows(name: str, actions: Sequence[Action], total_s: float, theme: Theme) -> list[dict[str, object]]:
    """The bars of one lane, and the microbatch's number on those that are wide enough for it."""
    colors, rows = phase_colors(theme), []
    split = {"I": t("input gradients"), "W": t("weight gradients")}
    for kind, stage, microbatch, start, length in actions:
        phase = "forward" if kind == "F" else "backward"
        fill, word = colors[phase], split.get(kind, phase_word(phase))
        what = t("{what} of microbatch {m}, stage {stage}", what=word, m=microbatch, stage=stage)
        place = {"row": name, "x": start, "x2": start + length, "label": what, "shown": format_time(length)}
        rows.append({"kind": "bar", **place, "fill": fill.fill, "outline": fill.fill})
        if length > NUMBERED_FRAC * total_s:
            middle = {"row": name, "x": start + length / 2, "label": str(microbatch), "fill": fill.on}
            rows.append({"kind": "number", **middle})
    return rows


def lanes_of(
    actions: Mapping[int, Sequence[Action]],
    infos: Mapping[int, RankInfo],
    chosen: int | None,
) -> dict[int, Sequence[Action]]:
    """The ranks whose lanes are drawn, by stage: all, or the chosen one's and the first of each stage."""
    order = sorted(actions, key=lambda rank: (infos[rank].coords.get("pp", 0) if rank in infos else 0, rank))
    if len(order) > MAX_LANES:
        first_of_stage: dict[int, int] = {}
        for rank in order:
            first_of_stage.setdefault(infos[rank].coords.get("pp", 0) if rank in infos else 0, rank)
        kept = {*list(first_of_stage.values())[: MAX_LANES - 1], *([chosen] if chosen in actions else [])}
        order = [rank for rank in order if rank in kept]
    return {rank: actions[rank] for rank in order}


def loss_table(steps: NDArray[np.int64], loss: Floats) -> pd.DataFrame:
    """For charts.live.loss_spec: the loss (S,), and its exponential mean."""
    known = np.isfinite(loss)
    series = pd.Series(loss[known])
    table = pd.DataFrame(
        {
            "step": steps[known].astype(np.int32),
            "loss": series.to_numpy(),
            "smoothed": series.ewm(alpha=1 - SMOOTHING).mean().to_numpy(),
        }
    )
    return table.iloc[_buckets(len(table), MAX_POINTS)] if len(table) else table


def memory_table(
    telemetry: Telemetry,
    ranks: Sequence[int],
    theme: Theme,
    stage_bytes: Sequence[float],
    capacity_bytes: float | None,
    limit_text: str,
) -> pd.DataFrame:
    """For charts.live.memory_spec: the most that each rank held, the prediction of its stage, what there is."""
    ui = ui_colors(theme)
    peak = np.where(np.isnan(telemetry.peak_memory_bytes), -np.inf, telemetry.peak_memory_bytes)
    peak = peak.max(axis=1, initial=-np.inf)
    rows: list[dict[str, object]] = []
    for rank in ranks:
        name = rank_name(rank, telemetry.ranks.get(rank))
        held = float(peak[rank])
        shown = format_memory(held) if np.isfinite(held) else t("unknown")
        length = gib(max(held, 0.0)) if np.isfinite(held) else 0.0
        place = {"kind": "bar", "row": name, "x": 0.0, "x2": length, "label": t("peak"), "shown": shown}
        rows.append({**place, "fill": ui["axis"], "outline": ui["axis"]})
        info = telemetry.ranks.get(rank)
        stage = info.coords.get("pp", 0) if info else -1
        if 0 <= stage < len(stage_bytes):
            rows.append({"kind": "predicted", "row": name, "x": gib(stage_bytes[stage])})
    if capacity_bytes is not None:
        rows.append({"kind": "limit", "x": gib(capacity_bytes), "label": limit_text})
    return pd.DataFrame(rows, columns=["kind", "row", "x", "x2", "fill", "outline", "label", "shown"])
