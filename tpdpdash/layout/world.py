"""What degrees and world size demand of each other, as faults with the nearest legal degrees."""

from __future__ import annotations

from collections.abc import Mapping

from tpdpdash.faults import Fault, whole_number_fault
from tpdpdash.units import ceil_div, divisors

MAX_DEGREE = 2**20
"""Above any machine; keeps products of degrees inside float64's whole numbers."""


def range_faults(
    values: Mapping[str, object], *, low: int = 1, high: int = MAX_DEGREE, prefix: str = "layout."
) -> list[Fault]:
    """Whole numbers between low and high, one fault a field."""
    found = (whole_number_fault(prefix + name, value, low, high) for name, value in values.items())
    return [fault for fault in found if fault is not None]


def nearest_of(choices: list[int], value: int) -> tuple[int, ...]:
    """The legal values on both sides of `value`."""
    below = [c for c in choices if c <= value]
    above = [c for c in choices if c >= value]
    return tuple(dict.fromkeys(below[-1:] + above[:1]))


def world_faults(world_size: int, **degrees: int) -> list[Fault]:
    """The product of the degrees (tp, cp, pp) must divide the world size: dp is what remains.

    The fault names the first degree that breaks it. Source: Megatron-LM initialize_model_parallel, "world_size (16) is
    not divisible by 3".
    """
    product, culprit = 1, ""
    for name, degree in degrees.items():
        product *= degree
        if not culprit and world_size % product:
            culprit = name
    if not culprit:
        return []
    others = product // degrees[culprit]
    legal = divisors(world_size // others) if world_size % others == 0 else divisors(world_size)
    values = {
        "world_size": world_size,
        "product": product,
        "degrees": _written(degrees),
        "nearest": nearest_of(legal, degrees[culprit]),
        "min_world_size": product,
        "nearest_world_size": product * max(1, ceil_div(world_size, product)),
    }
    return [Fault(code="world_not_divisible", field=f"layout.{culprit}", value=degrees[culprit], values=values)]


def _written(degrees: Mapping[str, int]) -> str:
    names = "·".join(degrees)
    return f"{names} = {'·'.join(str(d) for d in degrees.values())}"


def expert_grid_faults(world_size: int, *, pp: int, ep: int, etp: int) -> list[Fault]:
    """The expert grid: etp·ep·pp divides the world size (pp already does). Names etp or ep, whichever breaks it.

    Source: Megatron-LM initialize_model_parallel.
    """
    product = etp * ep * pp
    if world_size % product == 0:
        return []
    ranks = world_size // pp
    alone = ranks % etp == 0  # then it is ep that does not divide what etp leaves
    field, value, legal = ("layout.ep", ep, divisors(ranks // etp)) if alone else ("layout.etp", etp, divisors(ranks))
    values = {
        "world_size": world_size,
        "product": product,
        "degrees": _written({"etp": etp, "ep": ep, "pp": pp}),
        "nearest": nearest_of(legal, value),
    }
    return [Fault(code="expert_grid_not_divisible", field=field, value=value, values=values)]


def pipeline_faults(order: str, dense: Mapping[str, int], expert: Mapping[str, int]) -> list[Fault]:
    """Dense and expert layers must have the same pipelines: pp last in the order, or the same data parallel size in
    both grids and as many ranks before pp. `order` was checked; sizes by the names of ORDER_NAMES.

    Source: Megatron-LM initialize_model_parallel: "When not using pp-last rank ordering, the data parallel size of the
    attention and moe layers must be the same", "Pipeline parallel groups are expected to be the same".
    """
    names = order.split("-")
    if dense["pp"] == 1 or names[-1] == "pp":
        return []
    values: dict[str, object] = {
        "dp": dense["dp"],
        "expert_dp": expert["dp"],
        "nearest": "-".join([*(name for name in names if name != "pp"), "pp"]),
    }
    if dense["dp"] != expert["dp"]:
        return [Fault(code="rank_order_pp_not_last", field="layout.rank_order", value=order, values=values)]
    stride, expert_stride = 1, 1
    for name in names[: names.index("pp")]:
        stride, expert_stride = stride * dense[name], expert_stride * expert[name]
    if stride == expert_stride:
        return []
    values |= {"stride": stride, "expert_stride": expert_stride}
    return [Fault(code="rank_order_splits_pipelines", field="layout.rank_order", value=order, values=values)]
