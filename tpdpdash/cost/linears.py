"""The matrices of one layer by how tensor parallelism splits them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpdpdash.cost.operators import DeviceRates, LinearSeconds, linear_s
from tpdpdash.model.spec import ModelSpec

if TYPE_CHECKING:
    from tpdpdash.units import Numeric


@dataclass(frozen=True, slots=True, kw_only=True)
class Linears:
    """Matrices of one layer, or of a part of it, on one rank."""

    column: list[LinearSeconds]
    """Split by columns: their input is the same on every rank of the TP group."""
    row: list[LinearSeconds]
    """Split by rows: their output is summed over the TP group."""
    whole: list[LinearSeconds]
    """Not split by TP: routers, experts, compressing projections."""


def mlp_linears(model: ModelSpec, rates: DeviceRates, tokens: Numeric, ffn_hidden_size: int, split: Numeric) -> Linears:
    """Up (with gate) and down projections, f / split wide."""
    inner = ffn_hidden_size / split
    up = linear_s(tokens, model.hidden_size, (2 if model.gated_mlp else 1) * inner, rates)
    return Linears(column=[up], row=[linear_s(tokens, inner, model.hidden_size, rates)], whole=[])
