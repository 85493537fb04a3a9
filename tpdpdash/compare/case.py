"""One measured run as inputs of the cost model, with what was measured and how it was read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.compare.architecture import model_of
from tpdpdash.compare.cells import Cells, UnreadableRowError
from tpdpdash.compare.conditions import cluster_of, framework_of, training_of
from tpdpdash.compare.degrees import Degrees, degrees_of
from tpdpdash.compare.layout_words import with_layout_words
from tpdpdash.compare.named_model import fill_from_preset
from tpdpdash.compare.notes import has_flag, is_megatron_command_line, option
from tpdpdash.compare.row_layout import layout_of
from tpdpdash.compare.table import OVERFLOW, TOTAL_SPEED, Row
from tpdpdash.layout.layout import Layout
from tpdpdash.layout.prediction import trained_model
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training
from tpdpdash.units import GIB

PeakScope = Literal["allocated", "reserved", "device", "model"]
RankView = Literal["max", "first", "middle", "last"]
SCOPES: tuple[PeakScope, ...] = ("allocated", "reserved", "device", "model")
VIEWS: tuple[RankView, ...] = ("max", "first", "middle", "last")
USUAL_DEVICES_PER_NODE = 8
"""For HSDP on unknown hardware."""
STATE_COLUMNS = ("weights_gib", "grads_gib", "optimizer_gib", "weights_optimizer_gib")
_RELEASES = re.compile(r"^(mbridge|dgxc)-v?\d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Libraries:
    """What a command line says of the libraries that hold workspaces."""

    is_local: bool = False
    """Megatron's own layers instead of Transformer Engine's."""
    groups_experts: bool = True
    """Products of experts are grouped."""
    gathers_tokens: bool = False
    """Tokens reach their experts by an all-gather, Megatron's default dispatcher."""
    keeps_dummies: bool = True
    """Transformer Engine keeps what it hands autograd for gradients that are added already: since April 2025
    (https://github.com/NVIDIA/TransformerEngine/pull/1651), after the containers of NeMo's published runs."""
    is_megatron_lm: bool = False
    """Megatron-LM's own loop, which reads memory while the update's fp32 gradients are still there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run that can be predicted."""

    row: int
    """Data row, from 0."""
    source_id: str
    """As published."""
    source: str
    """The same, with all releases of one project as one source."""
    model: ModelSpec
    """The architecture."""
    cluster: ClusterSpec | None
    """The hardware; None where it is not in the catalogue: memory alone is predicted."""
    hardware: str
    """As written in the row."""
    training: Training
    """Batch, precision, framework."""
    layout: Layout
    """Complete."""
    inferred: tuple[str, ...]
    """Fields that the row does not state, or contradicts."""
    complete: int | None
    """2: all is stated; 1: all but recompute; 0: less; None where the table does not judge."""
    is_measured: bool
    """False for figures from a paper's own formula."""
    measured_step_s: float | None
    """Step time, printed or from tokens per second."""
    measured_peak_bytes: float | None
    """Peak memory of one device."""
    measured_state_bytes: tuple[tuple[str, float], ...]
    """Weights, gradients, optimizer states as far as printed, by the name of the column without its unit."""
    measured_activation_bytes: float | None
    """Activations, or whatever else the peak holds beyond the states."""
    peak_scope: PeakScope
    """What the peak counts."""
    rank_view: RankView
    """Which rank's memory was read."""
    libraries: Libraries
    """What its command line says of the libraries in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A row that cannot be predicted."""

    row: int
    """Data row, from 0."""
    reason: str
    """Code: ragged_row, bad_value, no_architecture."""
    column: str = ""
    """The column at fault."""
    value: str = ""
    """What stands there."""


def source_of(source_id: str) -> str:
    """All releases of Megatron-Bridge are one source, all of DGX Cloud's benchmarks another."""
    release = _RELEASES.match(source_id)
    return release[1] if release else source_id or "unnamed"


def read_cases(rows: Iterable[Row]) -> tuple[list[Case], list[Skipped]]:
    """Every row as a case, or with the reason why it cannot be one."""
    cases, skipped = [], []
    for number, row in enumerate(rows):
        try:
            cases.append(read_case(number, row))
        except UnreadableRowError as wrong:
            skipped.append(Skipped(row=number, reason=wrong.reason, column=wrong.column, value=wrong.value[:80]))
    return cases, skipped


def read_case(number: int, row: Row) -> Case:
    """One row. Raises UnreadableRowError."""
    if OVERFLOW in row:
        raise UnreadableRowError("ragged_row", "", row[OVERFLOW])
    cells = Cells(row=with_layout_words(row))
    fill_from_preset(cells)
    model = model_of(cells)
    degrees = degrees_of(cells)
    cluster = cluster_of(cells, degrees.num_devices)
    training = training_of(cells, degrees.global_batch_size)
    model = trained_model(model, training)
    per_node = cluster.devices_per_node if cluster else USUAL_DEVICES_PER_NODE
    layout = layout_of(cells, degrees, model, training, per_node)
    source_id = cells.text("source_id")
    return Case(
        row=number,
        source_id=source_id,
        source=source_of(source_id),
        model=model,
        cluster=cluster,
        hardware=cells.text("hardware"),
        training=training,
        layout=layout,
        complete=cells.whole("complete", 2),
        is_measured=cells.word("kind") in ("", "measured"),
        measured_step_s=_step_s(cells, training, degrees),
        measured_peak_bytes=_bytes(cells, "peak_mem_gib_per_gpu") or _bytes(cells, "peak_gib"),
        measured_state_bytes=tuple(
            (name.removesuffix("_gib"), size) for name in STATE_COLUMNS if (size := _bytes(cells, name))
        ),
        measured_activation_bytes=_bytes(cells, "activations_gib"),
        peak_scope=_scope(cells),
        rank_view=_view(cells),
        libraries=_libraries(cells.text("notes"), cells.word("framework")),
        inferred=tuple(cells.inferred),
    )


def _step_s(cells: Cells, training: Training, degrees: Degrees) -> float | None:
    """Step time as printed, else tokens of a step over tokens per second; None where neither is stated, or where the
    time is that of a batch which is not."""
    printed = cells.measured("step_time_s")
    total, each = cells.measured(TOTAL_SPEED), cells.measured("tokens_per_sec_per_gpu")
    whose = {"global_batch", "seq_len"}.isdisjoint(cells.inferred)
    if printed is not None and (whose or (each is None and total is None)):
        return printed if whose else None
    if each is not None:
        total = each * (cells.whole("num_gpus", 10_000_000) or degrees.num_devices)
    return None if total is None else training.tokens_per_step / total


def _bytes(cells: Cells, column: str) -> float | None:
    size = cells.measured(column)
    return None if size is None else size * GIB


def _scope(cells: Cells) -> PeakScope:
    """What was read. A peak without a word is torch's allocated peak, which training logs print; nanotron's benchmarks
    print the reserved one."""
    stated = cells.word("peak_scope")
    for scope in SCOPES:
        if stated == scope:
            return scope
    if cells.text("peak_mem_gib_per_gpu") or cells.text("peak_gib"):
        cells.infer("peak_scope")
    return "reserved" if framework_of(cells) == "nanotron" else "allocated"


def _view(cells: Cells) -> RankView:
    stated = cells.word("rank_view")
    return next((view for view in VIEWS if stated == view), "max")


def _libraries(notes: str, framework: str) -> Libraries:
    """Megatron's flags where the notes list them; else what frameworks do by default, and in NeMo's time."""
    return Libraries(
        is_local=option(notes, "transformer-impl") == "local",
        groups_experts=has_flag(notes, "moe-grouped-gemm") or not is_megatron_command_line(notes),
        gathers_tokens=is_megatron_command_line(notes)
        and option(notes, "moe-token-dispatcher-type") in (None, "allgather"),
        keeps_dummies="nemo" not in framework,
        is_megatron_lm=is_megatron_command_line(notes),
    )
