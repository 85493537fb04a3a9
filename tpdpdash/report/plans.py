"""Answers about layouts: one estimate, or the ranking of a search."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpdpdash import units
from tpdpdash.report.lines import table
from tpdpdash.text import fault_text, t

if TYPE_CHECKING:
    from tpdpdash.cost.result import Estimate
    from tpdpdash.search.plan import Plan


def estimate_lines(found: Estimate) -> list[str]:
    """One layout, in words: the verdict, the step, the memory of each stage."""
    fits = t("It fits") if found.fits else t("It does not fit")
    memory = units.format_memory_of(found.peak_bytes, found.capacity_bytes)
    layout = found.layout
    product = f"TP {layout.tp} × CP {layout.cp} × PP {layout.pp} × DP {layout.dp} = {layout.world_size}"
    parts = [
        [t("part of the step"), t("exposed")],
        *([n.removesuffix("_s"), units.format_time(s)] for n, s in found.parts.items() if s),
    ]
    head = [t("stage"), t("layers"), t("weights"), t("gradients"), t("optimizer"), t("activations"), t("total")]
    stages = [
        [
            str(stage.stage),
            str(stage.layers),
            *map(units.format_memory, (stage.weights_bytes, stage.gradients_bytes, stage.optimizer_bytes)),
            *map(units.format_memory, (stage.activations_bytes + stage.logits_bytes, stage.total_bytes)),
        ]
        for stage in found.stages
    ]
    return [
        f"{product}. {fits}: {memory}.",
        t(
            "{step} a step, {speed} tokens/s per device, MFU {mfu}.",
            step=units.format_time(found.step_s),
            speed=units.format_large(found.throughput["tokens_per_s_per_device"]),
            mfu=units.format_share(found.throughput["mfu"]),
        ),
        *_budget_lines(found),
        "",
        *table(parts),
        "",
        *table([head, *stages]),
    ]


def _budget_lines(found: Estimate) -> list[str]:
    days = found.budget["days"]
    if days != days:  # NaN: no tokens were given
        return []
    texts = {
        "days": units.format_time(days * units.DAY_S),
        "hours": units.format_large(found.budget["device_hours"]),
        "energy": units.format_energy(found.budget["energy_kwh"]),
        "cost": units.format_money(found.budget["cost"]),
    }
    return [t("All tokens: {days}, {hours} device-hours, {energy}, cost {cost}.", **texts)]


def plan_lines(found: Plan, top: int) -> list[str]:
    """The ranking, and what was refused."""
    count = {"considered": units.format_count(found.considered), "feasible": units.format_count(found.feasible)}
    summary = t(
        "{considered} layouts considered, {feasible} fit, in {time}.", **count, time=units.format_time(found.seconds)
    )
    lines = [summary, ""]
    if found.feasible:
        head = ["", "TP", "CP", "EP", "PP", "DP", t("chunks"), t("micro-batch"), "ZeRO", t("recompute")]
        head += [t("tokens/s per device"), t("step"), "MFU", t("memory")]
        lines += table([head, *(_ranked_row(i, row) for i, row in enumerate(found.top(top)))])
    elif found.closest is not None and found.closest_bytes_short is not None:
        short = units.format_memory(found.closest_bytes_short)
        lines.append(
            t(
                "Nothing fits. The closest layout, {layout}, is {short} short.",
                layout=found.closest.layout.layout_id,
                short=short,
            )
        )
    else:
        lines.append(t("No layout is legal."))
    if found.refused:
        rows = [[units.format_count(one.count), fault_text(one.fault)] for one in found.refusals.values()]
        lines += ["", *table([[t("refused"), t("for instance")], *rows])]
    return lines


def _ranked_row(place: int, row: Estimate) -> list[str]:
    layout = row.layout
    return [
        str(place + 1),
        *map(str, (layout.tp, layout.cp, layout.ep, layout.pp, layout.dp, layout.num_model_chunks)),
        str(layout.micro_batch_size),
        str(layout.zero_stage),
        layout.recompute,
        units.format_large(row.throughput["tokens_per_s_per_device"]),
        units.format_time(row.step_s),
        units.format_share(row.throughput["mfu"]),
        units.format_memory(row.peak_bytes),
    ]
