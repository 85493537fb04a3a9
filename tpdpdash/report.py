"""Answers of the command line: lines for people, documents for --json. Formats only; figures come from their rooms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tpdpdash import units
from tpdpdash.faults import Fault
from tpdpdash.model.counts import TRAINING_FLOPS_PER_FORWARD_FLOP, forward_flops_per_token, parameter_counts
from tpdpdash.text import fault_lines, fault_text, t

if TYPE_CHECKING:
    from tpdpdash.cluster.detection import DetectedDevice, Detection
    from tpdpdash.compare.predict import Prediction
    from tpdpdash.compare.scores import Score
    from tpdpdash.compare.validate import Validation
    from tpdpdash.cost.result import Estimate
    from tpdpdash.model.spec import ModelSpec
    from tpdpdash.run.change import Change
    from tpdpdash.run.history import RunView
    from tpdpdash.search.plan import Plan

UNSUPPORTED = frozenset({"unknown_architecture", "unsupported_value", "unsupported_layers", "nested_config"})
"""Faults of a config that is sound, but of no model that we can count."""
UNSUPPORTED_MODEL = {"supported": False, "parameters": None, "embedding_parameters": None, "active_parameters": None}
REFERENCE_SEQ_LEN = 2048
"""Sequence length at which `model` states FLOPs per token: attention's share depends on it."""


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows (the first is the head) as aligned columns; numbers read from the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    right = [all(row[i][:1].isdigit() or row[i][:1] in "$−" for row in rows[1:] if row[i]) for i in range(len(widths))]
    cells = [
        [cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(row, widths, right, strict=True)] for row in rows
    ]
    return ["  ".join(row).rstrip() for row in cells]


def jsonable(value: Any) -> Any:
    """Faults and tuples inside a fact's dict as JSON has them."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, frozenset)):
        return [jsonable(entry) for entry in value]
    return value


# ------------------------------------------------------------------------------------------- devices


def detection_document(found: Detection) -> dict[str, Any]:
    """`devices --json`: every field of every device, null where unknown."""
    from dataclasses import asdict, replace

    plain = replace(found, problem=None, devices=tuple(replace(d, problem=None) for d in found.devices))
    document: dict[str, Any] = jsonable(asdict(plain))
    document["problem"] = fault_text(found.problem) if found.problem else None
    for entry, device in zip(document["devices"], found.devices, strict=True):
        entry["problem"] = fault_text(device.problem) if device.problem else None
    return document


def detection_lines(found: Detection) -> list[str]:
    """What is here, in words."""
    host = found.host
    here = t("CPU: {cores} cores, {memory} of memory", cores=host.cores, memory=units.format_memory(host.total_bytes))
    why = [fault_text(found.problem)] if found.problem else []
    if not found.devices:
        return [*why, here]
    head = [t("GPU"), t("name"), t("memory used"), t("load"), t("power"), t("temperature"), t("NVLinks")]
    return [*why, *table([head, *map(_device_row, found.devices)]), here]


def _device_row(device: DetectedDevice) -> list[str]:
    if device.problem is not None:
        return [str(device.index), fault_text(device.problem), "", "", "", "", ""]
    unknown = t("unknown")
    watts = [unknown if w is None else f"{w:.0f} W" for w in (device.power_w, device.power_limit_w)]
    return [
        str(device.index),
        device.name or unknown,
        units.format_memory_of(device.used_bytes, device.total_bytes),
        units.format_share(device.utilisation_frac),
        t("{used} of {limit}", used=watts[0], limit=watts[1]),
        unknown if device.temperature_c is None else f"{device.temperature_c:.0f} °C",
        unknown if device.nvlink_links is None else str(device.nvlink_links),
    ]


# --------------------------------------------------------------------------------------------- model


def model_document(spec: ModelSpec) -> dict[str, Any]:
    """`model --json`: parameters before any padding, FLOPs per trained token at REFERENCE_SEQ_LEN."""
    counts = parameter_counts(spec)
    flops = forward_flops_per_token(spec, REFERENCE_SEQ_LEN, causal=True)
    return {
        "name": spec.name,
        "supported": True,
        "parameters": counts.total,
        "embedding_parameters": counts.embedding,
        "active_parameters": counts.active,
        "num_layers": spec.num_layers,
        "flops_per_token": TRAINING_FLOPS_PER_FORWARD_FLOP * flops.total,
        "flops_seq_len": REFERENCE_SEQ_LEN,
    }


def model_lines(spec: ModelSpec) -> list[str]:
    """A model's size, in words."""
    facts = model_document(spec)
    rows = [
        (t("parameters"), f"{facts['parameters']:,}"),
        (t("of these in the embedding"), f"{facts['embedding_parameters']:,}"),
        (t("active for one token"), f"{facts['active_parameters']:,}"),
        (t("layers"), f"{facts['num_layers']:,}"),
        (
            t("FLOPs per trained token, {seq_len} tokens a sequence, causal", seq_len=REFERENCE_SEQ_LEN),
            units.format_large(facts["flops_per_token"]),
        ),
    ]
    return table([[spec.name, ""], *[list(row) for row in rows]])


def group_lines(groups: Mapping[str, list[list[int]]], order: str) -> list[str]:
    """Groups by kind, one line each; the order stands beside them, for without it they mean nothing."""
    lines = [t("order {order}: the first varies fastest over the ranks", order=order)]
    for kind, members in groups.items():
        lines.append(f"{kind}: {' '.join('[' + ','.join(map(str, ranks)) + ']' for ranks in members)}")
    return lines


# ------------------------------------------------------------------------------------------ planning


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


def validation_lines(found: Validation, worst: int = 10) -> list[str]:
    """Errors by source, and the rows that are predicted worst."""
    counts = {"rows": found.rows, "predicted": len(found.predictions), "skipped": len(found.skipped)}
    lines = [t("{rows} rows, {predicted} predicted, {skipped} skipped.", **counts), ""]
    what = t("of peak memory") if found.kind == "memory" else t("of step time")
    head = [t("source"), t("rows"), t("median |error| {what}", what=what), t("mean"), t("bias"), t("rank correlation")]
    rows = [_score_row(source, each) for source, each in found.by_source.items()]
    lines += table([head, *rows, _score_row(t("mean of the sources"), found.mean_of_sources)])
    rows = [_miss_row(prediction) for prediction in found.worst(worst)]
    if rows:
        head = [t("worst rows"), t("source"), t("model"), t("layout"), t("predicted"), t("measured"), t("error")]
        lines += ["", *table([head, *rows])]
    reasons = Counter(fault_text(Fault(code=s.reason, field=s.column, value=s.value)) for s in found.skipped)
    rows = [[units.format_count(count), reason] for reason, count in reasons.most_common(worst)]
    return [*lines, "", *table([[t("skipped"), t("reason")], *rows])] if rows else lines


def _score_row(source: str, each: Score) -> list[str]:
    if not each.n:
        return [source, "0", "", "", "", ""]
    correlation = "" if each.spearman is None else f"{each.spearman:.3f}"
    errors = [units.format_share(each.median_abs_error), units.format_share(each.mean_abs_error)]
    bias = "" if each.bias is None else units.format_difference(each.bias)
    return [source, str(each.n), *errors, bias, correlation]


def _miss_row(prediction: Prediction) -> list[str]:
    case = prediction.case
    if prediction.error is None:
        figures = [units.format_memory(size) for size in (prediction.peak_bytes, case.measured_peak_bytes)]
        error = prediction.memory_error
    else:
        figures = [units.format_time(seconds) for seconds in (prediction.step_s, case.measured_step_s)]
        error = prediction.error
    facts = [str(case.row), case.source_id, case.model.name, case.layout.layout_id]
    return [*facts, *figures, units.format_difference(error)]


# ---------------------------------------------------------------------------------------------- runs


def change_lines(changes: Sequence[Change]) -> list[str]:
    """What a rehearsal changes."""
    if not changes:
        return []
    rows = [[change.key, str(change.asked), str(change.rehearsed)] for change in changes]
    return table([[t("rehearsed otherwise"), t("asked"), t("rehearsed")], *rows])


def run_document(view: RunView) -> dict[str, Any]:
    """`runs`, `show` and `stop --json`: status.json's fields, with the state as the reader judges it."""
    status = view.status.to_json() if view.status else {"v": 1}
    damage = {"damage": view.damage} if view.damage else {}
    return {**status, "run": view.run_id, "state": view.state, **damage}


def run_lines(view: RunView) -> list[str]:
    """One run, in words."""
    from tpdpdash.run.failure import failure_fault

    status = view.status
    if status is None:
        return [f"{view.run_id}: {view.state}", *([view.damage] if view.damage else [])]
    step = t(
        "step {last} of {steps}",
        last=status.last_step if status.last_step is not None else "–",
        steps=status.steps or "?",
    )
    lines = [
        f"{view.run_id}: {view.state}",
        f"{status.name}, {status.layout}, {t('{n} ranks', n=status.world_size)}, {step}",
    ]
    if status.started is not None and status.ended is not None:
        lines.append(t("took {time}", time=units.format_time(status.ended - status.started)))
    if status.first_failure is not None:
        lines += fault_lines([failure_fault(status.first_failure)])
        lines += (status.first_failure.traceback or "").splitlines()
    return lines


def runs_lines(views: Sequence[RunView]) -> list[str]:
    """The history, newest first."""
    if not views:
        return [t("No run yet.")]
    rows = [
        [
            view.run_id,
            view.state,
            view.status.layout,
            str(view.status.last_step if view.status.last_step is not None else "–"),
        ]
        if view.status
        else [view.run_id, view.state, "", ""]
        for view in views
    ]
    return table([[t("run"), t("state"), t("layout"), t("last step")], *rows])


def progress_line(view: RunView) -> str:
    """One line of a run's progress."""
    status = view.status
    if status is None:
        return str(view.state)
    if status.last_step is not None:
        return t("{state}: step {step} of {steps}", state=view.state, step=status.last_step, steps=status.steps or "?")
    through = status.world_size - status.ranks_by_phase.get(status.phase, 0)
    values = {"phase": status.phase, "through": through, "all": status.world_size}
    return t("{state}: {phase}, {through} of {all} ranks are through", state=view.state, **values)
