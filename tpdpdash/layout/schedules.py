"""What each pipeline schedule is, as data: which parts of the model a rank runs, how backward is cut, who has it.

Action lists and times stand in schedule/; rules, defaults and the search ask this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import numpy as np

from tpdpdash.layout.frameworks import TORCH_PIPELINING, known_framework
from tpdpdash.layout.layout import SCHEDULES

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from tpdpdash.layout.layout import Schedule

    Flags = NDArray[np.bool_]

Placement = Literal["loop", "fold", "mirror"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFacts:
    """One schedule. p = pp ranks."""

    num_model_chunks: int | None = 1
    """Chunks that a rank must have; None = two or more."""
    placement: Placement = "loop"
    """loop: chunk c of rank r is model part c·p + r. fold: a V; rank r has parts r and 2p − 1 − r, so that both ends of
    the model are on rank 0. mirror: two copies of the model, the second from the last rank to the first; rank r has
    stages r and p − 1 − r."""
    splits_backward: bool = False
    """Backward is an input gradient and a weight gradient that can wait."""
    pairs_passes: bool = False
    """A forward and a backward run as one, each hiding the other's messages."""
    microbatches_per_rank: int = 0
    """At least this many microbatches for each pipeline rank; 0 = one microbatch is enough."""
    is_even: bool = False
    """Ranks and microbatches must be even."""


SCHEDULE_FACTS: Mapping[str, ScheduleFacts] = MappingProxyType(
    {
        "none": ScheduleFacts(),
        "gpipe": ScheduleFacts(),
        "1f1b": ScheduleFacts(),
        "interleaved": ScheduleFacts(num_model_chunks=None),
        "zb-1p": ScheduleFacts(splits_backward=True),
        "zb-2p": ScheduleFacts(splits_backward=True),
        "zb-v": ScheduleFacts(num_model_chunks=2, placement="fold", splits_backward=True),
        "dualpipe": ScheduleFacts(
            placement="mirror", splits_backward=True, pairs_passes=True, microbatches_per_rank=2, is_even=True
        ),
        "dualpipe-v": ScheduleFacts(
            num_model_chunks=2, placement="fold", splits_backward=True, pairs_passes=True, microbatches_per_rank=2
        ),
    }
)
"""ZB-H1, ZB-H2: arXiv:2401.10241; ZB-V: arXiv:2405.15362; DualPipe: DeepSeek-V3, arXiv:2412.19437 §3.2.1; DualPipe-V:
github.com/deepseek-ai/DualPipe and torch's ScheduleDualPipeV."""

NEAREST_IN_TORCH: Mapping[str, Schedule] = MappingProxyType({"zb-2p": "zb-1p", "dualpipe": "dualpipe-v"})
"""What is most like the schedules that torch.distributed.pipelining does not have."""
_TORCH = tuple(name for name in SCHEDULES if name != "none" and name not in NEAREST_IN_TORCH)
_OFFERED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "megatron-core": ("1f1b", "interleaved"),
        "megatron-2022": ("1f1b", "interleaved"),
        "megatron-deepspeed": ("1f1b",),
        "deepspeed": ("1f1b",),
        "fsdp1": _TORCH,
        "fsdp2": _TORCH,
        "jax": ("gpipe", "1f1b", "interleaved"),
        "nanotron": ("gpipe", "1f1b"),
        "internevo": ("1f1b", "interleaved", "zb-1p", "zb-v"),
        "builtin": _TORCH,
    }
)


def schedules_of(framework: str) -> tuple[str, ...]:
    """Schedules that a framework (or the nearest known one) has without a fork. What a search tries where none is
    pinned; a pin can name the others, as far as the rules allow it.

    Megatron's zero-bubble schedules are a fork's (github.com/sail-sg/zero-bubble-pipeline-parallelism).
    """
    return _OFFERED[known_framework(framework)]


def schedule_codes(condition: str, value: object = True) -> tuple[int, ...]:
    """Codes (indices into SCHEDULES) of the schedules whose fact `condition` has this value."""
    return tuple(SCHEDULES.index(name) for name, facts in SCHEDULE_FACTS.items() if getattr(facts, condition) == value)


def is_among(schedule: ArrayLike, codes: tuple[int, ...]) -> Flags:
    """Whether schedules are among some, codes of both; of the shape of `schedule`."""
    found: Flags = _table(codes)[schedule]  # type: ignore[index]
    return found


@cache
def _table(codes: tuple[int, ...]) -> Flags:
    """Whether each schedule is among some."""
    return np.array([code in codes for code in range(len(SCHEDULES))], np.bool_)


TWO_CHUNKS = schedule_codes("num_model_chunks", 2)
ONE_CHUNK = schedule_codes("num_model_chunks", 1)
SPLIT_BACKWARD = schedule_codes("splits_backward")
PAIRED_PASSES = schedule_codes("pairs_passes")
FOLDED, MIRRORED = schedule_codes("placement", "fold"), schedule_codes("placement", "mirror")
EVEN = schedule_codes("is_even")
MICROBATCHES_PER_RANK = np.array([SCHEDULE_FACTS[name].microbatches_per_rank for name in SCHEDULES], np.float64)
"""By code."""


def ends_meet(schedule: ArrayLike) -> Flags:
    """Rows whose rank 0 has both the embedding and the head. schedule: codes (n,)."""
    return is_among(schedule, FOLDED + MIRRORED)


def validates_after_update(schedule: ArrayLike, framework: str) -> Flags:
    """Rows whose ranks go on into the next step without meeting in the optimizer: post-validation of the gradient norm
    (arXiv:2401.10241 §4), which the paper's code has and torch.distributed.pipelining has not. schedule: codes (n,)."""
    skewed = tuple(SCHEDULES.index(name) for name in ("zb-1p", "zb-2p", "zb-v"))
    return is_among(schedule, skewed) & (known_framework(framework) not in TORCH_PIPELINING)


def part_of(placement: Placement, pp: int, rank: int, chunk: int) -> int:
    """Which part of its model copy a rank's chunk is, from 0. Under mirror the chunk is the copy."""
    if placement == "loop":
        return chunk * pp + rank
    back = (2 * pp if placement == "fold" else pp) - 1 - rank
    return back if chunk else rank


def parts_of_rank(placement: Placement, pp: int, rank: int, num_model_chunks: int) -> tuple[int, ...]:
    """Every part of the model that a rank holds, first chunk first; under mirror one of each copy."""
    chunks = 2 if placement == "mirror" else num_model_chunks
    return tuple(part_of(placement, pp, rank, chunk) for chunk in range(chunks))


def ranks_of_ends(placement: Placement, pp: int) -> tuple[frozenset[int], frozenset[int]]:
    """(ranks with the embedding, ranks with the head)."""
    if placement == "mirror":
        return frozenset({0, pp - 1}), frozenset({0, pp - 1})
    return frozenset({0}), frozenset({0 if placement == "fold" else pp - 1})
