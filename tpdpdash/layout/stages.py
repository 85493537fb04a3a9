"""Layers of each pipeline stage: Megatron's own split with its refusals, and the most even split.

`megatron_stage_layers` is public API, for whoever asks what Megatron builds from its own flags, and is held to
Megatron by golden rows; a Job resolves its stages by `even_stage_layers`, `pinned_stage_layers` and `chunk_layers`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.layout.world import nearest_of, range_faults
from tpdpdash.units import divisors

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]


def stage_columns(
    num_layers: int,
    pp: ArrayLike,
    account_for_embedding: ArrayLike = 0,
    account_for_loss: ArrayLike = 0,
    folded: ArrayLike = False,
) -> tuple[Floats, Flags]:
    """The most even split of each row: (layers (n, max pp), mask of the stages that exist).

    What does not divide goes to the middle stages first, later ones before earlier ones, then to the first, then to the
    last: the last stage has the head, the first the embedding, and under 1F1B earlier stages hold more microbatches.
    account_for_embedding, account_for_loss: layers for which the embedding and the loss count on their stages. folded:
    rows whose schedule is a V, with both ends on rank 0, which therefore comes last. The sum is always num_layers.
    """
    p = np.atleast_1d(np.asarray(pp, np.float64))[:, None]
    first = np.broadcast_to(np.asarray(account_for_embedding, np.float64), p.shape[0])[:, None]
    last = np.broadcast_to(np.asarray(account_for_loss, np.float64), p.shape[0])[:, None]
    is_v = np.broadcast_to(np.asarray(folded, np.bool_), p.shape[0])[:, None]
    first, last = first + np.where(is_v, last, 0.0), np.where(is_v, 0.0, last)
    units = num_layers + first + last
    stage = np.arange(int(p.max(initial=1)), dtype=np.float64)[None, :]
    is_last = stage == p - 1
    mask = stage < p
    turn = np.where(is_v, p - 1 - stage, np.where(is_last, p - 1, p - 2 - stage))
    dealt = np.floor_divide(units, p) + (turn < units % p)
    layers = dealt - (stage == 0) * first - is_last * last
    return np.where(mask, layers, 0.0), mask


@lru_cache(maxsize=4096)
def even_stage_layers(
    num_layers: int,
    pp: int,
    *,
    account_for_embedding: int = 0,
    account_for_loss: int = 0,
    folded: bool = False,
) -> tuple[int, ...]:
    """The Job's own default, one stage split of `stage_columns`: 30 layers on 4 stages are 7, 8, 8, 7."""
    layers, _ = stage_columns(num_layers, pp, account_for_embedding, account_for_loss, folded)
    return tuple(int(n) for n in layers[0])


def pinned_stage_layers(
    num_layers: int, pp: int, *, first: int | None = None, last: int | None = None
) -> tuple[int, ...]:
    """A given number of layers on the first or last stage (or both), the rest as even as it goes.

    Raises InvalidInputError where the rest cannot give every other stage a layer.
    """
    faults = _pinned_faults(pp, first, last)
    if faults:
        raise InvalidInputError(faults)
    left = num_layers - (first or 0) - (last or 0)
    stages_left = pp - (first is not None) - (last is not None)
    if left < stages_left or (stages_left == 0 and left != 0):
        raise InvalidInputError([_left_over_fault(num_layers, pp, first, last, left, stages_left)])
    middle = even_stage_layers(left, stages_left) if stages_left else ()
    return (*(() if first is None else (first,)), *middle, *(() if last is None else (last,)))


def cost_balanced_stage_layers(num_layers: int, pp: int, head_layers: float) -> tuple[int, ...]:
    """nanotron's split, by the parameters of each block's matrices: a stage takes blocks until it exceeds its share of
    their sum. head_layers: parameters of the head's matrix over those of one layer.

    Source: nanotron models/base.py, build_model: block_compute_costs and their cumulative thresholds.
    """
    share = (num_layers + head_layers) / pp
    layers, stage = [0] * pp, 0
    for block in range(1, num_layers + 1):
        layers[stage] += 1
        if block > share * (stage + 1) and stage < pp - 1:
            stage += 1
    return tuple(layers)


def megatron_stage_layers(
    num_layers: int,
    pp: int,
    num_model_chunks: int = 1,
    first: int | None = None,
    last: int | None = None,
    account_for_embedding: bool = False,
    account_for_loss: bool = False,
) -> list[list[int]]:
    """Layers that Megatron-LM builds, per pipeline rank and chunk. Raises InvalidInputError where Megatron refuses, and
    where it would silently build another number of layers than the model has.

    Source: Megatron-LM get_num_layers_to_build; golden: pp_truth.jsonl.
    """
    given = {"num_layers": num_layers, "pp": pp, "num_model_chunks": num_model_chunks}
    faults = range_faults({k: n for k, n in given.items() if k != "num_layers"})
    faults += range_faults({"num_layers": num_layers}, prefix="model.") + _pinned_faults(pp, first, last)
    uneven = first is not None or last is not None
    if uneven and (account_for_embedding or account_for_loss):
        flag = "account_for_embedding" if account_for_embedding else "account_for_loss"
        faults.append(_conflict(f"layout.{flag}", _pinned_field(first)))
    if faults:
        raise InvalidInputError(faults)
    if uneven:
        per_rank = _uneven_ranks(num_layers, pp, first, last)
    else:
        units = num_layers + account_for_embedding + account_for_loss
        if units % pp:
            raise InvalidInputError([_not_divisible_by_pp(num_layers, pp, units)])
        per_rank = [units // pp] * pp
    chunks = [_chunks(rank, layers, num_model_chunks if pp > 1 else 1) for rank, layers in enumerate(per_rank)]
    chunks[0][0] -= account_for_embedding
    chunks[-1][-1] -= account_for_loss
    return _checked(chunks, num_layers)


def chunk_layers(
    layers_per_stage: tuple[int, ...],
    num_model_chunks: int,
    *,
    account_for_embedding: int = 0,
    account_for_loss: int = 0,
    folded: bool = False,
) -> list[list[int]]:
    """A legal split into chunks, per pipeline rank. Chunk c of rank r is model part c·pp + r; embedding and loss take
    the layers for which they count off the first and the last part. In a V (folded) the second chunk is part
    2·pp − 1 − r, and an odd layer goes to the first."""
    if folded:
        return [[layers - layers // 2, layers // 2] for layers in layers_per_stage]
    units = stage_units(layers_per_stage, account_for_embedding, account_for_loss)
    chunks = [_chunks(rank, layers, num_model_chunks) for rank, layers in enumerate(units)]
    chunks[0][0] -= account_for_embedding
    chunks[-1][-1] -= account_for_loss
    return chunks


def stage_units(
    layers_per_stage: tuple[int, ...], account_for_embedding: int, account_for_loss: int
) -> tuple[int, ...]:
    """What chunks divide on each stage: its layers, with the layers for which the embedding and the loss count."""
    units = list(layers_per_stage)
    units[0] += account_for_embedding
    units[-1] += account_for_loss
    return tuple(units)


def _chunks(rank: int, layers: int, num_model_chunks: int) -> list[int]:
    if layers % num_model_chunks:
        values = {
            "layers": layers,
            "stage": rank,
            "nearest": nearest_of(divisors(layers), num_model_chunks),
        }
        fault = Fault(
            code="chunks_not_divisible", field="layout.num_model_chunks", value=num_model_chunks, values=values
        )
        raise InvalidInputError([fault])
    return [layers // num_model_chunks] * num_model_chunks


def _checked(chunks: list[list[int]], num_layers: int) -> list[list[int]]:
    per_rank = tuple(sum(parts) for parts in chunks)
    if min(min(parts) for parts in chunks) < 0:
        values = {"stage": int(np.argmin(per_rank)), "nearest": even_stage_layers(num_layers, len(chunks))}
        fault = Fault(code="stage_without_layers", field="layout.layers_per_stage", value=per_rank, values=values)
        raise InvalidInputError([fault])
    if sum(per_rank) != num_layers:
        raise InvalidInputError([stage_sum_fault(per_rank, num_layers)])
    return chunks


def stage_sum_fault(per_rank: tuple[int, ...], num_layers: int) -> Fault:
    """Stage layers that are not the model's: layers are never dropped."""
    values = {
        "total": sum(per_rank),
        "num_layers": num_layers,
        "nearest": even_stage_layers(num_layers, max(1, len(per_rank))),
    }
    return Fault(code="stage_layers_do_not_sum", field="layout.layers_per_stage", value=per_rank, values=values)


def _uneven_ranks(num_layers: int, pp: int, first: int | None, last: int | None) -> list[int]:
    left = num_layers - (first or 0) - (last or 0)
    stages_left = pp - (first is not None) - (last is not None)
    if left < 0 or (stages_left and left % stages_left) or (not stages_left and left):
        raise InvalidInputError([_left_over_fault(num_layers, pp, first, last, left, stages_left)])
    per_rank = [left // stages_left if stages_left else 0] * pp
    if first is not None:
        per_rank[0] = first
    if last is not None:
        per_rank[-1] = last
    return per_rank


def _pinned_field(first: int | None) -> str:
    return "layout.first_stage_layers" if first is not None else "layout.last_stage_layers"


def _pinned_faults(pp: int, first: int | None, last: int | None) -> list[Fault]:
    pinned = {"first_stage_layers": first, "last_stage_layers": last}
    given = {name: layers for name, layers in pinned.items() if layers is not None}
    faults = range_faults(given)
    if pp == 1:
        faults += [Fault(code="stage_pin_without_pipeline", field=f"layout.{n}", value=x) for n, x in given.items()]
    return faults


def _conflict(field: str, other: str) -> Fault:
    return Fault(code="conflicting_keys", field=field, value=True, values={"other": other})


def _left_over_fault(
    num_layers: int, pp: int, first: int | None, last: int | None, left: int, stages_left: int
) -> Fault:
    field = _pinned_field(first if last is None else None)
    value = first if last is None else last
    other = num_layers - left - (value or 0)
    legal = [n for n in range(1, num_layers) if _divides(num_layers - other - n, stages_left)]
    values = {
        "left": left,
        "stages_left": stages_left,
        "num_layers": num_layers,
        "pp": pp,
        "nearest": nearest_of(legal, value or 0),
    }
    return Fault(code="stage_layers_left_over", field=field, value=value, values=values)


def _divides(left: int, stages_left: int) -> bool:
    return left == 0 if stages_left == 0 else left >= stages_left and left % stages_left == 0


def _not_divisible_by_pp(num_layers: int, pp: int, units: int) -> Fault:
    values = {
        "num_layers": num_layers,
        "units": units,
        "nearest": nearest_of(divisors(units), pp),
        "split": even_stage_layers(num_layers, pp),
    }
    return Fault(code="layers_not_divisible", field="layout.pp", value=pp, values=values)
