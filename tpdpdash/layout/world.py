"""What degrees and world size demand of each other, as faults with the nearest legal degrees."""

from __future__ import annotations

from collections.abc import Mapping

from tpdpdash.faults import Fault
from tpdpdash.units import ceil_div, divisors

MAX_DEGREE = 2**20
"""Above any machine; keeps products of degrees inside float64's whole numbers."""


def range_faults(
    values: Mapping[str, object], *, low: int = 1, high: int = MAX_DEGREE, prefix: str = "layout."
) -> list[Fault]:
    """Whole numbers between low and high, one fault a field."""
    faults = []
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int):
            faults.append(Fault(code="not_whole_number", field=prefix + name, value=value))
        elif not low <= value <= high:
            nearest = min(max(value, low), high)
            limits = {"low": low, "high": high, "nearest": nearest}
            faults.append(Fault(code="out_of_range", field=prefix + name, value=value, values=limits))
    return faults


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


def expert_grid_faults(world_size: int, *, dp: int, pp: int, ep: int, etp: int, order: str) -> list[Fault]:
    """The expert grid: etp·ep·pp divides the world size; with pp not last in the order, expert-dp must equal dp, for
    otherwise dense and expert layers had different pipelines. `order` may be empty: then only the first is asked.

    Source: Megatron-LM initialize_model_parallel.
    """
    product = etp * ep * pp
    if world_size % product:
        legal = divisors(world_size // pp // etp) if world_size % (pp * etp) == 0 else divisors(world_size // pp)
        values = {
            "world_size": world_size,
            "product": product,
            "degrees": _written({"etp": etp, "ep": ep, "pp": pp}),
            "nearest": nearest_of(legal, ep),
        }
        field, value = ("layout.ep", ep) if ep > 1 else ("layout.etp", etp)
        return [Fault(code="expert_grid_not_divisible", field=field, value=value, values=values)]
    expert_dp = world_size // product
    if order and pp > 1 and expert_dp != dp and not order.endswith("pp"):
        nearest = "-".join([name for name in order.split("-") if name != "pp"] + ["pp"])
        values = {"dp": dp, "expert_dp": expert_dp, "nearest": nearest}
        return [Fault(code="rank_order_pp_not_last", field="layout.rank_order", value=order, values=values)]
    return []
