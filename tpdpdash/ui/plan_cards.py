"""Plan's six cards: the figures of one layout, each with its error."""

from __future__ import annotations

from tpdpdash.cost.result import Estimate
from tpdpdash.job import Job
from tpdpdash.text import t
from tpdpdash.ui.estimate_view import device_word, fullest_stage
from tpdpdash.ui.parts import Metric
from tpdpdash.units import (
    DAY_S,
    format_count,
    format_energy,
    format_large,
    format_memory_of,
    format_money,
    format_share,
    format_time,
    plus_minus,
)


def metrics(best: Estimate, job: Job) -> list[Metric]:
    """Speed, step time, MFU, memory, days and cost."""
    speed, training, device = best.throughput, job.training, device_word(job)
    return [
        _card(
            best,
            t("Tokens/s per {device}", device=device),
            format_large(speed.tokens_per_s_per_device),
            note=t("{tokens} tokens/s in all", tokens=format_large(speed.tokens_per_s)),
        ),
        _card(
            best,
            t("Step time"),
            format_time(best.step_s),
            note=t("{tokens} tokens a step", tokens=format_large(training.tokens_per_step)),
        ),
        _card(
            best,
            "MFU",
            format_share(speed.mfu),
            note=t("HFU {hfu}", hfu=format_share(speed.hfu)),
            about=t(
                "Model FLOP/s over the dense peak: forward and backward, causal attention counted half. "
                "HFU counts what is recomputed as well."
            ),
        ),
        _memory_card(best),
        *_budget_cards(best, job),
    ]


def _card(best: Estimate, label: str, value: str, *, note: str, about: str = "") -> Metric:
    """A figure that follows from the step time, and has its error."""
    return Metric(label=label, value=value, unit=plus_minus(value, best.error_frac), note=note, help=about)


def _memory_card(best: Estimate) -> Metric:
    held, _, capacity = format_memory_of(best.peak_bytes, best.capacity_bytes).partition(" ")
    note = t("stage {stage} · {share}", stage=fullest_stage(best), share=format_share(best.held_frac))
    error = plus_minus(held, best.memory_error_frac)
    return Metric(label=t("Memory, worst stage"), value=held, unit=f"{error} {capacity}".strip(), note=note)


def _budget_cards(best: Estimate, job: Job) -> list[Metric]:
    budget, device, tokens = best.budget, device_word(job), job.training.tokens
    hours = t("{hours} {device}-hours", hours=format_large(budget.device_hours), device=device)
    energy = t("{energy} in the {device}s", energy=format_energy(budget.energy_kwh), device=device)
    if budget.goodput_frac < 1:
        notes = t("goodput {share}", share=format_share(budget.goodput_frac)), hours
    else:
        notes = hours, energy
    return [
        _card(
            best,
            t("{tokens} tokens take", tokens=format_large(tokens)) if tokens else t("Training takes"),
            format_time(budget.days * DAY_S),
            note=notes[0],
            about=rates_sentence(job),
        ),
        _card(
            best,
            t("and cost"),
            format_money(budget.cost),
            note=notes[1],
            about=energy
            if job.cluster.price_per_device_hour
            else t("Give a price per device-hour on the Cluster page."),
        ),
    ]


def rates_sentence(job: Job) -> str:
    """What days and cost assume of failures and checkpoints."""
    cluster, training = job.cluster, job.training
    if not cluster.failures_per_device_day and not training.checkpoint_s:
        return t("Assumes no failures and no time for checkpoints: state their rates under Failures.")
    every = training.checkpoint_interval_steps
    return t(
        "Assumes {failures} failures per device and day, {restart} to restart, {stop} for a checkpoint, one every "
        "{every}.",
        failures=f"{cluster.failures_per_device_day:g}",
        restart=format_time(cluster.restart_s),
        stop=format_time(training.checkpoint_s),
        every=t("{steps} steps", steps=format_count(every)) if every else t("interval that loses least"),
    )
