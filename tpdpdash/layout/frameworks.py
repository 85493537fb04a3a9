"""Which frameworks share a habit. What a framework allows and overlaps stands here, once, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tpdpdash.fields import nearest
from tpdpdash.training import FRAMEWORKS

MEGATRON = frozenset({"megatron-core", "megatron-2022", "megatron-deepspeed"})
"""Megatron-LM and its branches: replicate KV heads, pad the vocabulary, run fewer microbatches than stages."""
TORCH_PIPELINING = frozenset({"fsdp1", "fsdp2", "builtin"})
"""Pipelines by torch.distributed.pipelining: at least as many microbatches as stages."""
DEEPSPEED_ENGINES = frozenset({"deepspeed", "megatron-deepspeed"})
"""Run by DeepSpeed's engine: a pipeline goes with ZeRO 0 or 1 only."""
ALL = frozenset(FRAMEWORKS)
DEFAULT_FRAMEWORK = "megatron-core"


def known_framework(name: str) -> str:
    """The framework whose habits are used for `name`: itself, or the one that is spelled most like it."""
    return name if name in FRAMEWORKS else nearest(name, FRAMEWORKS) or DEFAULT_FRAMEWORK


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapHabit:
    """What a framework overlaps with computation unless told otherwise."""

    grad_reduce: bool
    """Gradient reduction runs beside backward."""
    param_gather: bool
    """Gathering of sharded weights runs beside forward."""
    tp: bool
    """Tensor parallel messages run beside their GEMMs."""


_NONE = OverlapHabit(grad_reduce=False, param_gather=False, tp=False)
_DATA_PARALLEL = OverlapHabit(grad_reduce=True, param_gather=True, tp=False)

OVERLAP_HABITS: Mapping[str, OverlapHabit] = MappingProxyType(
    {
        # Megatron Bridge's recipes set --overlap-grad-reduce and --overlap-param-gather.
        "megatron-core": _DATA_PARALLEL,
        # Korthikanti 2022 and its time: the all-reduce follows the last backward.
        "megatron-2022": _NONE,
        # BigScience's BF16 optimizer reduces after the pipeline's flush.
        "megatron-deepspeed": _NONE,
        # overlap_comm, which DeepSpeed's ZeRO guides set.
        "deepspeed": _DATA_PARALLEL,
        # Prefetch of the next unit is FSDP's default, in both versions.
        "fsdp1": _DATA_PARALLEL,
        "fsdp2": _DATA_PARALLEL,
        # XLA's latency-hiding scheduler.
        "jax": _DATA_PARALLEL,
        # nanotron's DDP hooks overlap the reduction; ZeRO-1's gather follows the optimizer.
        "nanotron": OverlapHabit(grad_reduce=True, param_gather=False, tp=False),
        # InternEvo's overlap_sync_grad and overlap_sync_param.
        "internevo": _DATA_PARALLEL,
        # One flat reduction after the pipeline's last backward.
        "builtin": _NONE,
    }
)


def overlap_habit(framework: str) -> OverlapHabit:
    """The overlap habit of a framework, or of the nearest one."""
    return OVERLAP_HABITS[known_framework(framework)]


def overlap_keys(framework: str) -> dict[str, bool]:
    """The layout keys that follow from the framework where they are not given."""
    habit = overlap_habit(framework)
    return {
        "overlap_grad_reduce": habit.grad_reduce,
        "overlap_param_gather": habit.param_gather,
        "overlap_tp": habit.tp,
    }
