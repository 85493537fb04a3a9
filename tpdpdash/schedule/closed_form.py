"""Pipeline time, bubble and microbatches in flight in closed form, over many layouts at once.

The step time everywhere comes from here; `timeline.simulate` draws it. All arrays have n rows (layouts); stage arrays
are (n, S), and `stage_mask` says which stages exist. f and b are the forward and backward of one microbatch on one
stage (all its chunks), t = f + b, p = pp, m = microbatches, v = chunks, g = group, x = transfer to the next rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.layout.layout import SCHEDULES

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

GPIPE, INTERLEAVED = SCHEDULES.index("gpipe"), SCHEDULES.index("interleaved")
ZB_2P, ZB_V, DUALPIPE_V = (SCHEDULES.index(name) for name in ("zb-2p", "zb-v", "dualpipe-v"))


def warmup_forwards(
    schedule: ArrayLike,
    pp: ArrayLike,
    num_microbatches: ArrayLike,
    num_model_chunks: ArrayLike,
    group: ArrayLike,
    stage: ArrayLike,
) -> Floats:
    """Forwards (of a chunk) that a stage runs before its first 1F1B pair, inputs broadcast against each other.

    1F1B: min(p − s − 1, m). Interleaved: min(2(p − s − 1) + (v − 1)·g, m·v). GPipe: all. Source: Megatron-LM
    schedules.py, get_pp_rank_microbatches; golden: pp_truth.jsonl.
    """
    m, v = np.asarray(num_microbatches, np.float64), np.asarray(num_model_chunks, np.float64)
    later = np.maximum(np.asarray(pp, np.float64) - np.asarray(stage, np.float64) - 1, 0)
    interleaved = np.equal(schedule, INTERLEAVED)
    warmup = np.where(interleaved, 2 * later + (v - 1) * np.asarray(group, np.float64), later)
    return np.minimum(np.where(np.equal(schedule, GPIPE), m * v, warmup), m * v)


def microbatches_in_flight(
    schedule: ArrayLike,
    pp: ArrayLike,
    num_microbatches: ArrayLike,
    num_model_chunks: ArrayLike,
    stage: ArrayLike,
    group: ArrayLike | None = None,
) -> Floats:
    """Most microbatches whose activations a stage holds at once, in whole-stage units: a chunk's share counts 1/v.

    GPipe m; 1F1B min(p − s, m); interleaved min(2(p − s − 1) + (v − 1)·g + 1, m·v) / v: one more than its warm-up. No
    pipeline: 1. ZB-2p min(2(p − s) − 1, m); ZB-V and DualPipe-V min(p, m) on every stage; ZB-1p as 1F1B. Source:
    Megatron-LM schedules.py; Korthikanti 2022, section 4.2.3; Qi 2024 (arXiv:2401.10241 table 1, arXiv:2405.15362
    section 4); golden: pp_truth.jsonl.
    """
    m, v = np.asarray(num_microbatches, np.float64), np.asarray(num_model_chunks, np.float64)
    warmup = warmup_forwards(schedule, pp, m, v, pp if group is None else group, stage)
    p, s = np.asarray(pp, np.float64), np.asarray(stage, np.float64)
    held = np.where(np.equal(schedule, ZB_2P), np.maximum(2 * (p - s) - 1, 1), warmup + 1)
    held = np.where(np.isin(schedule, (ZB_V, DUALPIPE_V)), p * v, held)
    return np.minimum(held, m * v) / v


def pipeline_seconds(
    *,
    schedule: ArrayLike,
    forward_s: Floats,
    backward_s: Floats,
    stage_mask: Flags,
    num_microbatches: ArrayLike,
    num_model_chunks: ArrayLike = 1.0,
    group: ArrayLike | None = None,
    transfer_s: ArrayLike = 0.0,
) -> Floats:
    """Time from the first forward to the last backward of a step [s], (n,).

    schedule: codes into SCHEDULES (none, gpipe, 1f1b, interleaved); forward_s, backward_s [s] (n, S) of one microbatch,
    evenly divided over the chunks; transfer_s [s] between neighbours, not occupying them.

    GPipe is exact: T = Σt + (m − 1)(max f + max b) + 2(p − 1)x. For 1F1B and interleaved T is the longest of the
    dependency paths of `_through_stage` and `_round_trips`: never above the simulation, equal to it for even stages,
    where it is m·t + (p − 1)·t/v, and at most (m + (p − 1)/v)(max f + max b) − T below it (x = 0). Compared with
    (m − 1)·max t + Σt/v + (1 − 1/v)·max t it does not charge a drain that overlaps the slowest stage's own work.
    Left out: a chunk that is longer than the other chunks of its stage.
    """
    rows = len(forward_s)
    f, b = np.where(stage_mask, forward_s, 0.0), np.where(stage_mask, backward_s, 0.0)
    p = stage_mask.sum(axis=1, dtype=np.float64)
    codes = np.broadcast_to(np.asarray(schedule), rows)
    m, v, x = (_column(value, rows) for value in (num_microbatches, num_model_chunks, transfer_s))
    g = p if group is None else _column(group, rows)
    gpipe = (f + b).sum(axis=1) + (m - 1) * (f.max(axis=1) + b.max(axis=1)) + 2 * (p - 1) * x
    through = _through_stage(codes, f, b, p, m, v, g, x)
    trips = np.where((v == 1)[:, None], _round_trips(f + b, p, m, x), 0.0)
    longest = np.where(stage_mask, np.maximum(through, trips), 0.0).max(axis=1)
    return np.asarray(np.where(codes == GPIPE, gpipe, longest), np.float64)


def _column(value: ArrayLike, rows: int) -> Floats:
    return np.broadcast_to(np.asarray(value, np.float64), rows)


def _through_stage(
    codes: NDArray[np.uint8], f: Floats, b: Floats, p: Floats, m: Floats, v: Floats, g: Floats, x: Floats
) -> Floats:
    """For each stage k the time of the step as seen from it, (n, S): its own work, and what it must wait for.

    Before its first forward and after its last backward the stages before it work (Σ t/v + 2kx). Until its first
    backward (of the first microbatch's last chunk) it runs its warm-up, or waits until that chunk has come (v − 1 turns
    through all ranks) and gone down the stages after it and back. The drain is the same seen backwards, with the last
    group's size. Between them it runs one forward and one backward in turn.
    """
    s = np.arange(f.shape[1], dtype=np.float64)[None, :]
    p, m, v, g, x = p[:, None], m[:, None], v[:, None], g[:, None], x[:, None]
    t, chunks = f + b, m * v
    prefix = np.cumsum(t, axis=1)
    before = (prefix - t) / v + 2 * s * x
    after = np.maximum(p - s - 1, 0)
    down = (prefix[:, -1:] - prefix) / v + 2 * after * x
    warmup = warmup_forwards(codes[:, None], p, m, v, g, s)
    last_group = np.where(m % g == 0, g, m % g)
    turns_f = (v - 1) * np.maximum(g * f / v, f.sum(axis=1, keepdims=True) / v + p * x)
    turns_b = (v - 1) * np.maximum(last_group * b / v, b.sum(axis=1, keepdims=True) / v + p * x)
    fill, drain = turns_f + f / v + down, turns_b + b / v + down
    in_turn = np.maximum((warmup + 1) * f / v, fill) + np.maximum((warmup + 1) * b / v, drain)
    in_turn = in_turn + (chunks - warmup - 1) * t / v
    all_first = np.maximum(np.maximum(m * f, fill) + m * b, m * f + drain)
    return np.asarray(before + np.where(warmup + 1 < chunks, in_turn, all_first), np.float64)


def _round_trips(t: Floats, p: Floats, m: Floats, x: Floats) -> Floats:
    """1F1B: for each stage k the time of round trips, (n, S). Stage k has q = p − k microbatches under way, and starts
    microbatch i + q only when i has come back: (m − 1) div q + 1 trips over the stages from k on, and one over the last
    r = (m − 1) mod q stages. This is what exposes transfers in the steady phase.
    """
    s = np.arange(t.shape[1], dtype=np.float64)[None, :]
    p, m, x = p[:, None], m[:, None], x[:, None]
    prefix = np.cumsum(t, axis=1)
    total = prefix[:, -1:]
    under_way = np.maximum(p - s, 1)
    trips, rest = np.divmod(m - 1, under_way)
    padded = np.concatenate([np.zeros_like(total), prefix], axis=1)
    first_of_rest = np.maximum(p - rest, 0).astype(np.int64)
    last_trip = total - np.take_along_axis(padded, first_of_rest, axis=1) + 2 * (rest - 1) * x
    trip = total - (prefix - t) + 2 * (under_way - 1) * x
    rest_s = np.where(rest > 0, last_trip, 0.0)
    return np.asarray(prefix - t + 2 * s * x + (trips + 1) * trip + rest_s, np.float64)
