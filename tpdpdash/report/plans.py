"""Answers about layouts: one estimate, or the ranking of a search."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from tpdpdash import units
from tpdpdash.compare.error_words import bar_sentence
from tpdpdash.report.lines import table
from tpdpdash.search.ranking import NEAR_FRAC
from tpdpdash.text import fault_text, t

if TYPE_CHECKING:
    from tpdpdash.cost.result import Estimate
    from tpdpdash.search.margins import Margin
    from tpdpdash.search.plan import Plan


def estimate_lines(found: Estimate) -> list[str]:
    """One layout, in words: the verdict, the step, the memory of each stage."""
    memory = units.with_error(units.format_memory_of(found.peak_bytes, found.capacity_bytes), found.memory_error_frac)
    layout, error = found.layout, found.error_frac
    product = f"TP {layout.tp} × CP {layout.cp} × PP {layout.pp} × DP {layout.dp} = {layout.world_size}"
    parts = [
        [t("part of the step"), t("exposed")],
        *([n.removesuffix("_s"), units.format_time(s)] for n, s in asdict(found.time).items() if s),
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
        f"{product}. {_fits_words(found)}: {memory}.",
        t(
            "{step} a step, {speed} tokens/s per device, MFU {mfu}.",
            step=units.with_error(units.format_time(found.step_s), error),
            speed=units.with_error(units.format_large(found.throughput.tokens_per_s_per_device), error),
            mfu=units.with_error(units.format_share(found.throughput.mfu), error),
        ),
        *_budget_lines(found),
        bar_sentence(found.time_error),
        "",
        *table(parts),
        "",
        *table([head, *stages]),
    ]


def _fits_words(found: Estimate) -> str:
    """The verdict on memory, and whether the error bar leaves it open."""
    fits = t("It fits") if found.fits else t("It does not fit")
    return t("{fits}, by less than the error", fits=fits) if found.is_tight else fits


def _budget_lines(found: Estimate) -> list[str]:
    days = found.budget.days
    if days != days:  # NaN: no tokens were given
        return []
    texts = {
        "days": units.format_time(days * units.DAY_S),
        "hours": units.format_large(found.budget.device_hours),
        "energy": units.format_energy(found.budget.energy_kwh),
        "cost": units.format_money(found.budget.cost),
    }
    texts = {name: units.with_error(text, found.error_frac) for name, text in texts.items()}
    lines = [t("All tokens: {days}, {hours} device-hours, {energy}, cost {cost}.", **texts)]
    if found.budget.goodput_frac < 1:
        share = units.format_share(found.budget.goodput_frac)
        lines.append(t("Goodput {share}: the rest goes to checkpoints and failures at the stated rates.", share=share))
    return lines


def plan_lines(found: Plan, top: int) -> list[str]:
    """The ranking, and what was refused."""
    count = {"considered": units.format_count(found.considered), "feasible": units.format_count(found.feasible)}
    summary = t(
        "{considered} layouts considered, {feasible} fit, in {time}.", **count, time=units.format_time(found.seconds)
    )
    lines = [summary, ""]
    if found.feasible:
        head = ["", "TP", "CP", "EP", "PP", "DP", t("chunks"), t("micro-batch"), "ZeRO", t("recompute")]
        head += [t("tokens/s per device"), t("step"), "MFU", t("memory"), t("against the first")]
        ranked = zip(found.top_rows(top), found.top(top), found.margins(top), strict=True)
        lines += table([head, *(_ranked_row(place, layout, lost) for place, layout, lost in ranked)])
        lines += ["", pick_sentence(found)]
        if found.picked is not None:
            lines.append(bar_sentence(found.picked.time_error))
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


def pick_sentence(found: Plan) -> str:
    """Which of the ranked layouts to run, and why that one."""
    place = found.pick + 1
    if found.near == 1:
        return t("Run layout {place}: no other is as fast within {share}.", place=place, share=_near())
    return t(
        "Run layout {place}: the simplest of {count} within {share} of the fastest.",
        place=place,
        count=units.format_count(found.near),
        share=_near(),
    )


def _near() -> str:
    return units.format_share(NEAR_FRAC)


def _ranked_row(place: int, row: Estimate, lost: Margin) -> list[str]:
    """One layout; what it loses against the first is step time, and the part in which it loses most."""
    layout = row.layout
    against = f"{units.format_difference(lost.step_frac)} {lost.where.removesuffix('_s')}" if place else t("best")
    return [
        str(place + 1),
        *map(str, (layout.tp, layout.cp, layout.ep, layout.pp, layout.dp, layout.num_model_chunks)),
        str(layout.micro_batch_size),
        str(layout.zero_stage),
        layout.recompute,
        units.with_error(units.format_large(row.throughput.tokens_per_s_per_device), row.error_frac),
        units.with_error(units.format_time(row.step_s), row.error_frac),
        units.format_share(row.throughput.mfu),
        units.with_error(units.format_memory(row.peak_bytes), row.memory_error_frac),
        against.strip(),
    ]
