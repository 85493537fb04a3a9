"""One estimate as sentences and plain tables: the verdict, memory by stage, where the step goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from tpdpdash.charts.lanes import spread
from tpdpdash.charts.palette import MEMORY_ORDER
from tpdpdash.cost.figures import TIME_PARTS, StepSeconds
from tpdpdash.cost.result import Estimate
from tpdpdash.job import Job
from tpdpdash.layout.layout import Layout
from tpdpdash.text import t
from tpdpdash.ui import parts
from tpdpdash.ui.key_words import layout_word
from tpdpdash.units import (
    format_count,
    format_large,
    format_memory,
    format_share,
    format_time,
    plus_minus,
    with_error,
)

if TYPE_CHECKING:
    from tpdpdash.cost.messages import Message

MAX_STAGES = 16
"""Stages whose memory is drawn; the fullest one always is."""
PHASE_OF_PART = {
    "compute_s": "forward", "recompute_s": "recompute", "tp_s": "tp", "cp_s": "cp", "ep_s": "ep", "pp_s": "pp",
    "bubble_s": "bubble", "dp_s": "dp", "optimizer_s": "optimizer",
}  # fmt: skip
"""Colour of each part of an estimated step; compute has the colour of the forward pass."""


def shown_degrees(layout: Layout) -> dict[str, int]:
    """The degrees that a layout is named by: tp, pp and dp always, the others where they are above 1."""
    degree_of = {"tp": layout.tp, "cp": layout.cp, "ep": layout.ep, "pp": layout.pp, "dp": layout.dp}
    return {kind: n for kind, n in degree_of.items() if n > 1 or kind in ("tp", "pp", "dp")}


def degrees(layout: Layout, sign: str = " × ") -> str:
    """TP 8 × PP 4 × DP 32; CP and EP only where they are above 1."""
    return sign.join(f"{layout_word(kind)} {n}" for kind, n in shown_degrees(layout).items())


def variant(layout: Layout) -> str:
    """The rest in words: 6 chunks a stage, micro-batch 1, no recompute, ZeRO 1."""
    parts = []
    if layout.num_model_chunks > 1:
        parts.append(t("{count} chunks a stage", count=layout.num_model_chunks))
    parts.append(t("micro-batch {size}", size=layout.micro_batch_size))
    recompute = {"none": t("no recompute"), "selective": t("selective recompute"), "full": t("full recompute")}
    parts.append(recompute[layout.recompute])
    parts.append(t("ZeRO {stage}", stage=layout.zero_stage))
    return ", ".join(parts)


def cluster_name(job: Job) -> str:
    """128 × 8 A100-SXM4-80GB."""
    cluster = job.cluster
    if job.world_follows_layout:
        return t("this machine's {device}", device=parts.literal(cluster.device.name))
    return f"{cluster.nodes} × {cluster.devices_per_node} {parts.literal(cluster.device.name)}"


def product(layout: Layout) -> str:
    """TP 4 × PP 4 × DP 4 = 64 GPUs."""
    return t("{degrees} = {world} devices", degrees=degrees(layout), world=format_count(layout.world_size))


def device_word(job: Job) -> str:
    """What one device is called in labels."""
    return t("rank") if job.cluster.device.is_cpu else "GPU"


def speed_sentence(estimate: Estimate, device: str) -> str:
    """The answer of Layout: time, speed, and whether it fits."""
    speed = t(
        "**{step} a step, {tokens} tokens/s per {device}, MFU {mfu}.**",
        device=device,
        step=with_error(format_time(estimate.step_s), estimate.error_frac),
        tokens=with_error(format_large(estimate.throughput.tokens_per_s_per_device), estimate.error_frac),
        mfu=with_error(format_share(estimate.throughput.mfu), estimate.error_frac),
    )
    stage = fullest_stage(estimate)
    spare = estimate.spare_bytes
    if estimate.fits:
        fits = t(
            "It fits: stage {stage} needs the most, with {spare} to spare.", stage=stage, spare=format_memory(spare)
        )
    else:
        fits = t("It does not fit: stage {stage} is {short} short.", stage=stage, short=format_memory(-spare))
    fits += tight_sentence(estimate)
    bubble = estimate.bubble_frac
    if not estimate.time.bubble_s:
        return f"{speed} {fits}"
    return f"{speed} {fits} " + t("The bubble takes {share}.", share=format_share(bubble))


def tight_sentence(estimate: Estimate) -> str:
    """That the error bar of the peak leaves open whether it fits; empty where it does not."""
    if not estimate.is_tight:
        return ""
    error = plus_minus(format_memory(estimate.peak_bytes), estimate.memory_error_frac)
    return " " + t("That is less than the error of the estimate, {error} GiB.", error=error)


def fullest_stage(estimate: Estimate) -> int:
    """The stage that needs the most memory."""
    return max(estimate.stages, key=lambda stage: stage.total_bytes).stage


def memory_caption(estimate: Estimate) -> str:
    """What the bars are, and how far the fullest may be off."""
    error = plus_minus(format_memory(estimate.peak_bytes), estimate.memory_error_frac)
    return t("worst rank, at its peak, {error} GiB", error=error) if error else t("worst rank, at its peak")


def memory_table(estimate: Estimate) -> tuple[pd.DataFrame, list[str], int]:
    """(columns row, part, value in bytes; the names of the rows; the row of the fullest stage).

    Above 16 stages the first, the last, the fullest and evenly spaced ones between are drawn.
    """
    fullest = fullest_stage(estimate)
    shown = sorted({*spread(range(len(estimate.stages)), MAX_STAGES - 1), fullest})
    rows = [
        (row, part, getattr(estimate.stages[stage], f"{part}_bytes"))
        for row, stage in enumerate(shown)
        for part in MEMORY_ORDER
    ]
    names = [t("stage {stage}", stage=stage) for stage in shown]
    return pd.DataFrame(rows, columns=["row", "part", "value"]), names, shown.index(fullest)


def used_parts(table: pd.DataFrame, order: Sequence[str]) -> list[str]:
    """Parts that are drawn at all, in stack order: the legend."""
    present = set(table[table["value"] > 0]["part"])
    return [part for part in order if part in present]


def step_table(parts: Sequence[StepSeconds[float]], *, beyond_compute: bool = False) -> pd.DataFrame:
    """Columns row, part (a phase), value in seconds; one row an estimate."""
    names = [name for name in TIME_PARTS if not (beyond_compute and name == "compute_s")]
    rows = [(row, PHASE_OF_PART[name], getattr(each, name)) for row, each in enumerate(parts) for name in names]
    return pd.DataFrame(rows, columns=["row", "part", "value"])


def message_table(messages: Sequence[Message]) -> pd.DataFrame:
    """The collectives of one rank as a person reads them, one row a message."""
    from tpdpdash.units import format_sent

    rows = [
        {
            t("Group"): message.group.upper(),
            t("What"): message.what,
            t("When"): message.when,
            t("Bytes each"): format_sent(message.bytes_each),
            t("Times a step"): format_count(message.times),
            t("Link"): message.link,
            t("Seconds a step"): _message_time(message.seconds, message.exposed_s),
        }
        for message in messages
    ]
    return pd.DataFrame(rows)


def message_figures() -> list[str]:
    """Columns of `message_table` that hold figures."""
    return [t("Bytes each"), t("Times a step"), t("Seconds a step")]


def _message_time(seconds: float, exposed_s: float) -> str:
    if exposed_s >= seconds:
        return t("{time}, all exposed", time=format_time(seconds))
    if exposed_s <= 0:
        return t("{time}, hidden", time=format_time(seconds))
    return t("{time}, {exposed} exposed", time=format_time(seconds), exposed=format_time(exposed_s))
