"""Layout: one way to divide a model and its batch over devices. LayoutPins: the part of it that a person fixed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

Schedule = Literal["none", "gpipe", "1f1b", "interleaved", "zb-1p", "zb-2p", "zb-v", "dualpipe", "dualpipe-v"]
Recompute = Literal["none", "selective", "full"]
RecomputeMethod = Literal["uniform", "block"]
SCHEDULES: tuple[str, ...] = get_args(Schedule)
RECOMPUTES: tuple[str, ...] = get_args(Recompute)
DEFAULT_RANK_ORDER = "tp-cp-ep-dp-pp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A complete layout: every key of docs/reference.md's layout table, resolved. World size = tp · cp · pp · dp."""

    tp: int = 1
    """Tensor parallel degree."""
    cp: int = 1
    """Context parallel degree."""
    pp: int = 1
    """Pipeline stages' ranks: pipeline parallel degree (p)."""
    dp: int = 1
    """Data parallel degree (d): replicas of the model."""
    ep: int = 1
    """Expert parallel degree."""
    etp: int = 1
    """Tensor parallel degree inside an expert; defaults to tp."""
    rank_order: str = DEFAULT_RANK_ORDER
    """Which degree varies fastest over the ranks, first to last."""
    micro_batch_size: int = 1
    """Sequences in one microbatch (b)."""
    schedule: Schedule = "none"
    """Pipeline schedule."""
    num_model_chunks: int = 1
    """Model chunks on each rank (v); above 1 the schedule interleaves."""
    microbatch_group_size_per_vp_stage: int = 1
    """Microbatches that a chunk runs before the next chunk; defaults to pp."""
    zero_stage: int = 1
    """What DP shards: 0 nothing, 1 optimizer states, 2 also gradients, 3 also weights (FSDP)."""
    dp_shard_size: int = 1
    """Ranks over which ZeRO shards; defaults to dp; smaller is HSDP."""
    sequence_parallel: bool = False
    """Norms and dropout split over the TP group along the sequence; defaults to tp > 1."""
    recompute: Recompute = "none"
    """Activation recomputation in backward."""
    recompute_num_layers: int | None = None
    """Layers of each stage that recompute; None = all."""
    recompute_method: RecomputeMethod = "uniform"
    """uniform: every block of recompute_num_layers keeps its input;
    block: only the first recompute_num_layers of a stage recompute."""
    layers_per_stage: tuple[int, ...] = ()
    """Layers on each pipeline rank, first to last, all chunks together; sums to num_layers."""
    account_for_embedding: bool = False
    """The embedding counts as one layer in the split."""
    account_for_loss: bool = False
    """The head and loss count as one layer in the split, each prediction module as one more."""
    overlap_grad_reduce: bool = True
    """Gradient reduction overlaps backward; defaults to the framework's habit."""
    overlap_param_gather: bool = True
    """Parameter gathering overlaps forward; defaults to the framework's habit."""
    overlap_tp: bool = False
    """TP messages overlap GEMMs; defaults to the framework's habit."""
    overlap_ep: bool = False
    """Expert messages of one microbatch run beside another's computation; defaults to the framework's habit."""
    offload_optimizer: bool = False
    """Optimizer states live in host memory."""
    offload_activations: bool = False
    """Kept activations live in host memory."""

    @property
    def world_size(self) -> int:
        """Ranks = degree of parallelism = tp · cp · pp · dp."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def expert_dp(self) -> int:
        """Replicas of each expert shard: tp · cp · dp / (etp · ep); the rules say first that it divides."""
        return self.tp * self.cp * self.dp // (self.etp * self.ep)

    @property
    def layout_id(self) -> str:
        """A short name that stands in the URL and in tables: tp4-pp2-dp8."""
        degrees = [("tp", self.tp), ("cp", self.cp), ("ep", self.ep), ("pp", self.pp), ("dp", self.dp)]
        return "-".join(f"{name}{degree}" for name, degree in degrees if degree > 1 or name in ("tp", "pp", "dp"))

    def num_microbatches(self, global_batch_size: int) -> int:
        """Microbatches of one step on one replica (m). The batch must divide; the rules say so first."""
        return global_batch_size // (self.micro_batch_size * self.dp)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPins:
    """The layout keys that were given; None = free (searched by `plan`, defaulted by every other command)."""

    tp: int | None = None
    cp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: int | None = None
    etp: int | None = None
    rank_order: str | None = None
    micro_batch_size: int | None = None
    schedule: Schedule | None = None
    num_model_chunks: int | None = None
    microbatch_group_size_per_vp_stage: int | None = None
    zero_stage: int | None = None
    dp_shard_size: int | None = None
    sequence_parallel: bool | None = None
    recompute: Recompute | None = None
    recompute_num_layers: int | None = None
    recompute_method: RecomputeMethod | None = None
    layers_per_stage: tuple[int, ...] | None = None
    first_stage_layers: int | None = None
    last_stage_layers: int | None = None
    account_for_embedding: bool | None = None
    account_for_loss: bool | None = None
    overlap_grad_reduce: bool | None = None
    overlap_param_gather: bool | None = None
    overlap_tp: bool | None = None
    overlap_ep: bool | None = None
    offload_optimizer: bool | None = None
    offload_activations: bool | None = None

    def given(self) -> dict[str, object]:
        """Only the keys that were given."""
        pairs = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {name: value for name, value in pairs if value is not None}
