"""Pipeline time, bubble and microbatches in flight in closed form, over many layouts at once.

The step time everywhere comes from here; `timeline.simulate` draws it. All arrays have n rows (layouts); stage arrays
are (n, S), and `stage_mask` says which stages exist. f and b are the forward and backward of one microbatch on one
stage (all its chunks), t = f + b, p = pp, m = microbatches, v = chunks, g = group, x = transfer to the next rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.elementwise import added_up
from tpdpdash.layout.layout import SCHEDULES
from tpdpdash.layout.schedules import FOLDED, MIRRORED, PAIRED_PASSES, SPLIT_BACKWARD, is_among
from tpdpdash.schedule.split_forms import ChunkSeconds, dualpipe_v_seconds, zb_v_seconds, zero_bubble_seconds

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

GPIPE, INTERLEAVED = SCHEDULES.index("gpipe"), SCHEDULES.index("interleaved")
ZB_1P, ZB_2P, ZB_V = (SCHEDULES.index(name) for name in ("zb-1p", "zb-2p", "zb-v"))


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
    """Most microbatches whose activations a rank holds at once, in whole-rank units: a chunk's share counts 1/v, a
    copy's (DualPipe) 1/2. Held from the forward to the weight gradient.

    GPipe m; 1F1B min(p − s, m); interleaved min(2(p − s − 1) + (v − 1)·g + 1, m·v) / v: one more than its warm-up. No
    pipeline: 1. On every stage: ZB-1p min(p, m), ZB-2p min(2p − 1, m), ZB-V min(p, m); DualPipe-V p + ½ and DualPipe
    (p + 1)/2: a pair's forward begins before its backward ends. Source: Megatron-LM schedules.py; Korthikanti 2022,
    section 4.2.3; arXiv:2401.10241 table 1, arXiv:2405.15362 section 4; DeepSeek-V3 table 2; golden: pp_truth.jsonl;
    tests count it in the action lists.
    """
    m, v = np.asarray(num_microbatches, np.float64), np.asarray(num_model_chunks, np.float64)
    warmup = warmup_forwards(schedule, pp, m, v, pp if group is None else group, stage)
    p = np.asarray(pp, np.float64)
    parts = np.where(is_among(schedule, MIRRORED), 2.0, v)
    held = np.where(np.equal(schedule, ZB_1P), p, warmup + 1)
    held = np.where(np.equal(schedule, ZB_2P), 2 * p - 1, held)
    held = np.where(is_among(schedule, FOLDED), 2 * p, held)
    held = np.where(is_among(schedule, MIRRORED), p, held) + is_among(schedule, PAIRED_PASSES)
    return np.minimum(held, np.where(is_among(schedule, MIRRORED), m, m * v)) / parts


def waiting_weight_gradients(
    schedule: ArrayLike, pp: ArrayLike, num_microbatches: ArrayLike, first_stage: ArrayLike, last_stage: ArrayLike
) -> Floats:
    """Of the microbatches in flight at most so many, in whole-rank units, wait for their weight gradient alone, on the
    worst of the stages from first_stage to last_stage; inputs broadcast against each other.

    ZB-1p s, ZB-2p 2 s, and one more whose gradient is next; ZB-V s + ½, DualPipe-V (s + 1)/2, DualPipe likewise by its
    distance from the nearer end; 0 where backward is whole. Tests count it in the action lists.
    """
    p, m, first, last = (np.asarray(each, np.float64) for each in (pp, num_microbatches, first_stage, last_stage))
    waiting = np.where(np.equal(schedule, ZB_1P), last + 1, np.where(np.equal(schedule, ZB_2P), 2 * last + 1, 0.0))
    waiting = np.where(np.equal(schedule, ZB_V), last + 0.5, waiting)
    mirrored = is_among(schedule, MIRRORED)
    last = np.where(mirrored, np.minimum(np.minimum(last, p - 1 - first), np.floor(p / 2) - 1), last)
    waiting = np.where(is_among(schedule, PAIRED_PASSES), (last + 1) / 2, waiting)
    return np.asarray(np.minimum(waiting, np.where(mirrored, m / 2, m)))


def paired_frac(schedule: ArrayLike, pp: ArrayLike, num_microbatches: ArrayLike, stage: ArrayLike) -> Floats:
    """Share of a rank's forwards (and as many backwards) that run in pairs under DualPipe-V and DualPipe, inputs
    broadcast against each other: (2 m − 3 p + s + 1) / 2 m of DualPipe-V's, one pair less on its last rank; DualPipe is
    one of p / 2 ranks and half of the microbatches. Tests count it in the action lists."""
    p, m, s = (np.asarray(each, np.float64) for each in (pp, num_microbatches, stage))
    mirrored = is_among(schedule, MIRRORED)
    s = np.where(mirrored, np.minimum(s, np.maximum(p - 1 - s, 0)), s)
    p, m = np.where(mirrored, p / 2, p), np.where(mirrored, m / 2, m)
    return np.asarray(np.maximum(2 * m - 3 * p + s + 1 - (s == p - 1), 0) / (2 * m))


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
    weight_gradient_s: Floats | None = None,
    second_chunk: ChunkSeconds | None = None,
    skewed: ArrayLike = False,
) -> Floats:
    """Time from the first forward to the last backward of a step [s], (n,).

    schedule: codes into SCHEDULES; forward_s, backward_s [s] (n, S) of one microbatch, evenly divided over the chunks;
    transfer_s [s] between neighbours, not occupying them; it counts where backward is whole. weight_gradient_s [s]: the
    part of backward_s that can wait. second_chunk: the part of all three that is the second chunk's (zb-v, dualpipe-v)
    or the second copy's (dualpipe, whose times are both stages of a rank, once each); half of them unless given.
    skewed (n,): rows whose ranks need not meet between steps; there it is the time from step to step.

    GPipe is exact: T = Σt + (m − 1)(max f + max b) + 2(p − 1)x. For 1F1B and interleaved T is the longest of the
    dependency paths of `_through_stage` and `_round_trips`: never above the simulation, equal to it for even stages,
    where it is m·t + (p − 1)·t/v, and at most (m + (p − 1)/v)(max f + max b) − T below it (x = 0). Compared with
    (m − 1)·max t + Σt/v + (1 − 1/v)·max t it does not charge a drain that overlaps the slowest stage's own work.
    Split backwards: the longest path of `paths.longest_path`, never above the simulation; equal to it for even stages
    under zb-1p, dualpipe and dualpipe-v. Seen below it: stages that differ up to twofold, mean 0.1-1 %, at most 14 %.
    Left out: a chunk that is longer than the other chunks of its stage (but `second_chunk`).
    """
    rows = len(forward_s)
    f, b = np.where(stage_mask, forward_s, 0.0), np.where(stage_mask, backward_s, 0.0)
    p = stage_mask.sum(axis=1, dtype=np.float64)
    codes = np.broadcast_to(np.asarray(schedule), rows)
    m, v, x = (_column(value, rows) for value in (num_microbatches, num_model_chunks, transfer_s))
    g = p if group is None else _column(group, rows)
    splits = is_among(codes, SPLIT_BACKWARD)
    if splits.any():
        w = np.zeros_like(f) if weight_gradient_s is None else np.where(stage_mask, weight_gradient_s, 0.0)
        whole = ChunkSeconds(forward_s=f, input_gradient_s=b - w, weight_gradient_s=w)
        second = second_chunk or whole.times(0.5)
        at, meets_later = ~splits, np.broadcast_to(np.asarray(skewed, np.bool_), rows)
        seconds = np.zeros(rows)
        seconds[splits] = _split_seconds(
            codes[splits], whole.rows(splits), second.rows(splits), p[splits], m[splits], meets_later[splits]
        )
        if at.any():
            seconds[at] = _whole_seconds(codes[at], f[at], b[at], stage_mask[at], m[at], v[at], g[at], x[at])
        return seconds
    return _whole_seconds(codes, f, b, stage_mask, m, v, g, x)


def _split_seconds(
    codes: NDArray[np.uint8], whole: ChunkSeconds, second: ChunkSeconds, p: Floats, m: Floats, skewed: Flags
) -> Floats:
    """Schedules whose backward is split."""
    seconds = np.zeros(len(codes))
    first = whole.less(second)
    straight, pairs = is_among(codes, (ZB_1P, ZB_2P)), is_among(codes, PAIRED_PASSES)
    if straight.any():
        depth = np.where(codes[straight] == ZB_1P, 1.0, 2.0)
        rows = whole.rows(straight)
        seconds[straight] = zero_bubble_seconds(rows, p[straight], m[straight], depth, skewed=skewed[straight])
    folds = codes == ZB_V
    if folds.any():
        chunks = first.rows(folds), second.rows(folds)
        seconds[folds] = zb_v_seconds(*chunks, p[folds], m[folds], skewed=skewed[folds])
    if pairs.any():
        share = np.where(is_among(codes[pairs], MIRRORED), 0.5, 1.0)
        ranks, each = share * p[pairs], share * m[pairs]
        seconds[pairs] = dualpipe_v_seconds(first.rows(pairs), second.rows(pairs), ranks, each)
    return seconds


def _whole_seconds(
    codes: NDArray[np.uint8],
    f: Floats,
    b: Floats,
    stage_mask: Flags,
    m: Floats,
    v: Floats,
    g: Floats,
    x: Floats,
) -> Floats:
    """Schedules whose backward is whole. From here on stages come first, (S, n): loops run over the rows of a stage."""
    f, b, exists = f.T, b.T, stage_mask.T
    p = exists.sum(axis=0, dtype=np.float64)
    through = _through_stage(codes, f, b, p, m, v, g, x)
    one = np.flatnonzero(v == 1)
    if len(one) == len(v):
        through = np.maximum(through, _round_trips(f + b, p, m, x))
    elif len(one):
        trips = _round_trips(f.take(one, axis=1) + b.take(one, axis=1), p[one], m[one], x[one])
        through[:, one] = np.maximum(through.take(one, axis=1), trips)
    seconds = np.where(exists, through, 0.0).max(axis=0)
    all_first = np.flatnonzero(codes == GPIPE)
    if len(all_first):
        f, b = f.take(all_first, axis=1), b.take(all_first, axis=1)
        p, m, x = (each[all_first] for each in (p, m, x))
        longest = f.max(axis=0) + b.max(axis=0)
        seconds[all_first] = added_up(f + b) + (m - 1) * longest + 2 * (p - 1) * x
    return np.asarray(seconds, np.float64)


def _column(value: ArrayLike, rows: int) -> Floats:
    return np.broadcast_to(np.asarray(value, np.float64), rows)


def _through_stage(
    codes: NDArray[np.uint8], f: Floats, b: Floats, p: Floats, m: Floats, v: Floats, g: Floats, x: Floats
) -> Floats:
    """For each stage k the time of the step as seen from it, (S, n): its own work, and what it must wait for.

    Before its first forward and after its last backward the stages before it work (Σ t/v + 2kx). Until its first
    backward (of the first microbatch's last chunk) it runs its warm-up, or waits until that chunk has come (v − 1 turns
    through all ranks) and gone down the stages after it and back. The drain is the same seen backwards, with the last
    group's size. Between them it runs one forward and one backward in turn.
    """
    s = np.arange(len(f), dtype=np.float64)[:, None]
    t, chunks = f + b, m * v
    prefix = np.cumsum(t, axis=0)
    before = (prefix - t) / v + 2 * s * x
    after = np.maximum(p - s - 1, 0)
    down = (prefix[-1] - prefix) / v + 2 * after * x
    warmup = warmup_forwards(codes, p, m, v, g, s)
    last_group = np.where(m % g == 0, g, m % g)
    turns_f = (v - 1) * np.maximum(g * f / v, added_up(f) / v + p * x)
    turns_b = (v - 1) * np.maximum(last_group * b / v, added_up(b) / v + p * x)
    fill, drain = turns_f + f / v + down, turns_b + b / v + down
    in_turn = np.maximum((warmup + 1) * f / v, fill) + np.maximum((warmup + 1) * b / v, drain)
    in_turn = in_turn + (chunks - warmup - 1) * t / v
    all_first = np.maximum(np.maximum(m * f, fill) + m * b, m * f + drain)
    return np.asarray(before + np.where(warmup + 1 < chunks, in_turn, all_first), np.float64)


def _round_trips(t: Floats, p: Floats, m: Floats, x: Floats) -> Floats:
    """1F1B: for each stage k the time of round trips, (S, n). Stage k has q = p − k microbatches under way, and starts
    microbatch i + q only when i has come back: (m − 1) div q + 1 trips over the stages from k on, and one over the last
    r = (m − 1) mod q stages. This is what exposes transfers in the steady phase.
    """
    s = np.arange(len(t), dtype=np.float64)[:, None]
    prefix = np.cumsum(t, axis=0)
    total = prefix[-1]
    under_way = np.maximum(p - s, 1)
    trips, rest = np.divmod(m - 1, under_way)
    padded = np.concatenate([np.zeros_like(t[:1]), prefix])
    first_of_rest = np.maximum(p - rest, 0).astype(np.int64)
    before_rest = padded.take(first_of_rest * len(m) + np.arange(len(m)))  # np.take_along_axis, four times as fast
    last_trip = total - before_rest + 2 * (rest - 1) * x
    trip = total - (prefix - t) + 2 * (under_way - 1) * x
    rest_s = np.where(rest > 0, last_trip, 0.0)
    return np.asarray(prefix - t + 2 * s * x + (trips + 1) * trip + rest_s, np.float64)
