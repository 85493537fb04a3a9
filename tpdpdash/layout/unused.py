"""Keys of [training] that were set and change nothing: each goes with a choice that was not made."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from tpdpdash.faults import Fault
from tpdpdash.training import LOW_PRECISIONS, Training

if TYPE_CHECKING:
    from tpdpdash.layout.layout import Layout
    from tpdpdash.model.spec import ModelSpec

_DEFAULTS = {field.name: field.default for field in fields(Training)}


def unused_settings(model: ModelSpec, training: Training, layout: Layout | None = None) -> list[Fault]:
    """Every key of [training] that differs from its default and has no effect on this layout; without one, on any."""
    return [
        Fault(code="setting_unused", field=f"training.{key}", value=value, values={"needs": what})
        for key, (what, is_met) in needs(model, training, layout).items()
        if not is_met and (value := getattr(training, key)) != _DEFAULTS[key]
    ]


def needs(model: ModelSpec, training: Training, layout: Layout | None) -> dict[str, tuple[str, bool]]:
    """What each key goes with, as a Job file has it, and whether that was chosen; or may be, without a layout."""
    fused, narrow = training.attention == "flash", training.precision in LOW_PRECISIONS
    ep, etp = (2, 2) if layout is None else (layout.ep, layout.etp)
    adapters = ("training.trainable lora", training.trainable == "lora")
    return {
        "tf32": ("training.precision fp32", training.precision == "fp32"),
        "fp8_recipe": ("training.precision fp8", training.precision == "fp8"),
        "fp8_attention": (
            f"training.precision {', '.join(LOW_PRECISIONS)} and training.attention flash",
            narrow and fused,
        ),
        "expert_load_cv": ("a mixture of experts", model.is_moe),
        "expert_dispatcher": ("layout.ep or layout.etp above 1", model.is_moe and ep * etp > 1),
        "fp8_dispatch": ("layout.ep above 1", model.is_moe and ep > 1),
        "cp_comm_type": ("layout.cp above 1", layout is None or layout.cp > 1),
        "optimizer_offload_fraction": ("layout.offload_optimizer", layout is None or layout.offload_optimizer),
        "recompute_modules": ("layout.recompute selective", layout is None or layout.recompute == "selective"),
        "lora_rank": adapters,
        "lora_targets": adapters,
    }
