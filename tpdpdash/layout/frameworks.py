"""Which frameworks share a habit. What a framework allows and overlaps stands here, once, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from tpdpdash.fields import nearest_words
from tpdpdash.training import FRAMEWORKS, ContextMessages, Training

MEGATRON = frozenset({"megatron-core", "megatron-2022", "megatron-deepspeed"})
"""Megatron-LM and its branches: replicate KV heads, pad the vocabulary, run fewer microbatches than stages."""
TORCH_PIPELINING = frozenset({"fsdp1", "fsdp2", "builtin"})
"""Pipelines by torch.distributed.pipelining: at least as many microbatches as stages."""
DEEPSPEED_ENGINES = frozenset({"deepspeed", "megatron-deepspeed"})
"""Run by DeepSpeed's engine: a pipeline goes with ZeRO 0 or 1 only."""
PIPELINE_WITHOUT_ZERO_2 = DEEPSPEED_ENGINES | {"builtin"}
"""Shard gradients and weights only where there is no pipeline."""
MEGATRON_OF_2022 = frozenset({"megatron-2022"})
"""Neither context nor expert parallelism, and of ZeRO the states only."""
DIVIDES_HEADS_FOR_CONTEXT = DEEPSPEED_ENGINES
"""Context parallelism by all-to-all: DeepSpeed-Ulysses, arXiv:2309.14509. Others send keys and values round a ring:
Transformer Engine's and torch's default."""
ALL = frozenset(FRAMEWORKS)
DEFAULT_FRAMEWORK = "megatron-core"
FRAMEWORK_WORDS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("megatron", "deepspeed"), "megatron-deepspeed"),
    (("automodel",), "fsdp2"),
    (("megatron",), "megatron-core"),
    (("nemo",), "megatron-core"),
    (("torchtitan",), "fsdp2"),
    (("fsdp2",), "fsdp2"),
    (("fsdp",), "fsdp1"),
    (("foundry",), "fsdp1"),
    (("deepspeed",), "deepspeed"),
    (("jax",), "jax"),
    (("maxtext",), "jax"),
    (("pax",), "jax"),
    (("nanotron",), "nanotron"),
    (("internevo",), "internevo"),
    (("internlm",), "internevo"),
    *(((word,), "jax") for word in ("axlearn", "levanter", "t5x", "easylm", "flax", "praxis")),
    (("olmo", "core"), "fsdp2"),
    *(((word,), "fsdp1") for word in ("hugging", "transformers", "accelerate", "axolotl", "llama-factory", "swift")),
    *(((word,), "fsdp1") for word in ("lightning", "litgpt", "composer", "mosaic", "olmo", "open_lm", "fully sharded")),
    *(((word,), "fsdp1") for word in ("fairscale", "fairseq", "metaseq")),
    (("hf", "trainer"), "fsdp1"),
    *(((word,), "fsdp2") for word in ("lingua", "nanogpt", "nanochat", "ddp", "torch")),
)
"""Words in a framework's name, and the family; the first line whose words all stand there holds.

Hugging Face's Trainer, and what is built on it and on Accelerate, shards by FSDP's first version unless told otherwise
(fsdp_version 1, reduced in 16 bits); so do Lightning's FSDPStrategy, Composer, OLMo and open_lm, and FairScale had it
first. OLMo-core and Meta's lingua call fully_shard. nanoGPT and nanochat replicate by torch.
"""
REPLICATES_BY_DEFAULT = ("ddp", "nanogpt", "nanochat")
"""Words in the name of what shards nothing unless told otherwise: torch's DistributedDataParallel."""
MISSPELT_LIKENESS = 0.75
"""From here on another spelling is a slip: megatron-cor is, nemo for internevo is not."""


def framework_by_words(name: str) -> str | None:
    """The family whose words stand in a framework's name; None where none do."""
    lower = name.lower()
    return next((found for words, found in FRAMEWORK_WORDS if all(word in lower for word in words)), None)


def replicates(name: str) -> bool:
    """Whether a framework's name says that it shards no states unless told otherwise."""
    return any(word in name.lower() for word in REPLICATES_BY_DEFAULT)


@cache
def known_framework(name: str) -> str:
    """The framework whose habits are used for `name`: itself, however it is written, or misspelt; the family whose
    words stand in it; else Megatron-Core."""
    if name in FRAMEWORKS:
        return name
    misspelt = nearest_words(name, FRAMEWORKS, most=1, cutoff=MISSPELT_LIKENESS)
    return next(iter(misspelt), None) or framework_by_words(name) or DEFAULT_FRAMEWORK


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapHabit:
    """What a framework overlaps with computation unless told otherwise."""

    grad_reduce: bool
    """Gradient reduction runs beside backward."""
    param_gather: bool
    """Gathering of sharded weights runs beside forward."""
    tp: bool
    """Tensor parallel messages run beside their GEMMs."""
    ep: bool = False
    """Expert messages run beside another microbatch's computation: asked for everywhere, since it needs a pipeline that
    interleaves, or none."""


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
        # One flat reduction after the pipeline's last backward. ZeRO 2 and 3 are FSDP2's and overlap on GPUs.
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
        "overlap_ep": habit.ep,
    }


def cp_comm_type(training: Training) -> ContextMessages:
    """How context parallel ranks meet each other's keys: as asked, or as the framework does."""
    if training.cp_comm_type is not None:
        return training.cp_comm_type
    return "a2a" if known_framework(training.framework) in DIVIDES_HEADS_FOR_CONTEXT else "p2p"
