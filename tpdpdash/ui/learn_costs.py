"""What each degree buys and costs, estimated for one well-known model: the table of Learn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tpdpdash.cluster.catalogue import default_cluster
from tpdpdash.cost.estimate import estimate_job
from tpdpdash.cost.messages import collectives_of
from tpdpdash.cost.result import Estimate
from tpdpdash.job import Job
from tpdpdash.layout.layout import LayoutPins
from tpdpdash.model.presets import preset
from tpdpdash.text import t
from tpdpdash.training import Training
from tpdpdash.units import format_count, format_memory, format_sent, format_share

MODEL = "llama-3-8b"
DEVICE = "H100-SXM5-80GB"
SEQ_LEN, GLOBAL_BATCH_SIZE = 4096, 128
HEADER = ("Degree", "Buys", "Costs", "Weights, gradients, optimizer, each", "In messages a step, each")
"""Titles of the columns; `header` translates them."""


def header() -> list[str]:
    """Titles of the columns in the reader's language."""
    return [t(title) for title in HEADER]


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """One layout of the example and what it costs each device."""

    job: Job
    """The job, with its cluster as large as the layout."""
    estimate: Estimate
    """Its estimate."""

    @property
    def states_bytes(self) -> float:
        """Weights, gradients and optimizer states on the fullest stage."""
        return max(s.weights_bytes + s.gradients_bytes + s.optimizer_bytes for s in self.estimate.stages)

    def sent_bytes(self, kind: str) -> float:
        """Bytes of the messages that one device takes part in, in one step, on its groups of this kind."""
        messages = collectives_of(self.job, self.estimate)
        return sum(m.bytes_each * m.times for m in messages if m.group == kind)


@cache
def priced(tp: int = 1, dp: int = 1, pp: int = 1, zero_stage: int = 0) -> Priced:
    """The example under one layout."""
    world_size = tp * dp * pp
    job = Job(
        name=MODEL,
        model=preset(MODEL),
        cluster=default_cluster(DEVICE, nodes=1, devices_per_node=world_size),
        training=Training(seq_len=SEQ_LEN, global_batch_size=GLOBAL_BATCH_SIZE),
        pins=LayoutPins(tp=tp, dp=dp, pp=pp, zero_stage=zero_stage),
    ).resolved()
    return Priced(job=job, estimate=estimate_job(job))


def degree_rows() -> list[tuple[str, str, str, str, str, str]]:
    """(kind, degree, what it buys, what it costs, states each before → after, bytes in messages a step each)."""
    alone, tp, dp, pp = priced(), priced(tp=2), priced(dp=8), priced(pp=2)
    bubble = pp.estimate.bubble_frac
    return [
        ("tp", "TP 2", t("half of every layer on each"), t("messages in every layer, on the fastest link"),
         _change(alone, tp), format_sent(tp.sent_bytes("tp"))),
        ("dp", "DP 8", t("8 parts of the batch at a time"), t("∇W summed once a step; weights held 8 times"),
         _change(alone, dp), format_sent(dp.sent_bytes("dp"))),
        ("pp", "PP 2", t("half of the layers on each"), t("a bubble: {share} of the step", share=format_share(bubble)),
         _change(alone, pp), format_sent(pp.sent_bytes("pp"))),
    ]  # fmt: skip


def _change(before: Priced, after: Priced) -> str:
    first, last = format_memory(before.states_bytes), format_memory(after.states_bytes)
    number, _, unit = first.rpartition(" ")
    return f"{number if last.endswith(unit) else first} → {last}"


def example_sentence() -> str:
    """Which example, and what ZeRO 1 changes."""
    alone, sharded = priced(), priced(dp=8, zero_stage=1)
    return t(
        "{batch} sequences of {seq} tokens on {device}, ZeRO 0, estimated. With ZeRO 1, DP 8 divides the optimizer "
        "states by 8: {change}.",
        batch=format_count(GLOBAL_BATCH_SIZE),
        seq=format_count(SEQ_LEN),
        device=DEVICE,
        change=_change(alone, sharded),
    )
