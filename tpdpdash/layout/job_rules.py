"""Rules about a job as a whole, before anything is divided: the world's ranks, the device's precision, the packing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.layout.rule import Explained, Facts, Rule, all_rows, flags

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpdpdash.layout.columns import LayoutColumns
    from tpdpdash.layout.layout import Layout

    Flags = NDArray[np.bool_]

PRECISION_NEEDS = {
    "fp32": ("fp32",),
    "bf16": ("bf16",),
    "fp16": ("fp16",),
    "fp8": ("fp8",),
    # Block-scaled formats came with the fp4 units: a device with fp8 alone (Hopper) cannot run them.
    "mxfp8": ("fp8", "fp4"),
    "nvfp4": ("fp4",),
}


def _off_world(facts: Facts, c: LayoutColumns) -> Flags:
    cluster = facts.cluster
    if cluster is None or (cluster.asked_device == "local" and cluster.device.is_cpu):
        return all_rows(c, False)  # on local CPU ranks the world is what the layout multiplies to
    return flags(c.world_size != cluster.world_size)


def _explain_world(facts: Facts, layout: Layout) -> Explained:
    world_size = facts.cluster.world_size if facts.cluster else layout.world_size
    others = layout.tp * layout.cp * layout.pp
    nearest = world_size // others if world_size % others == 0 else 0
    return Explained(value=layout.dp, values={"world_size": world_size, "product": others, "nearest": nearest or ()})


def _precision(facts: Facts, c: LayoutColumns) -> Flags:
    return all_rows(c, facts.cluster is not None and not _supports(facts, facts.training.precision))


def _supports(facts: Facts, precision: str) -> bool:
    peaks = facts.cluster.device.peak_flops_per_s if facts.cluster else {}
    return all(name in peaks for name in PRECISION_NEEDS[precision])


def _explain_precision(facts: Facts, _layout: Layout) -> Explained:
    legal = tuple(name for name in ("bf16", "fp16", "fp8", "mxfp8", "nvfp4", "fp32") if _supports(facts, name))
    device = facts.cluster.device.name if facts.cluster else ""
    nearest = "fp8" if "fp8" in legal and facts.training.precision in ("mxfp8", "nvfp4") else legal[:1]
    return Explained(value=facts.training.precision, values={"device": device, "legal": legal, "nearest": nearest})


def _packed(facts: Facts, c: LayoutColumns) -> Flags:
    return all_rows(c, (facts.training.packed_seq_len or 0) > facts.training.seq_len)


def _explain_packed(facts: Facts, _layout: Layout) -> Explained:
    seq_len = facts.training.seq_len
    return Explained(value=facts.training.packed_seq_len, values={"seq_len": seq_len, "nearest": seq_len})


JOB_RULES: tuple[Rule, ...] = (
    Rule(code="dp_not_world", of_degrees=True, field="layout.dp", violated=_off_world, explain=_explain_world),
    Rule(
        code="precision_not_on_device",
        of_degrees=True,
        field="training.precision",
        violated=_precision,
        explain=_explain_precision,
    ),
    Rule(
        code="packed_longer_than_sequence",
        of_degrees=True,
        field="training.packed_seq_len",
        violated=_packed,
        explain=_explain_packed,
    ),
)
