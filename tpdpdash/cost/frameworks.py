"""Framework habits: what decides between frameworks that run the same layout. The table is frameworks.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal

from tpdpdash.layout.frameworks import known_framework
from tpdpdash.training import Training
from tpdpdash.units import MICROSECOND, MILLISECOND

SelectiveKind = Literal["core_attention", "operators", "alternate_layers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkHabits:
    """One framework's conventions, overlap and host cost. Every figure's source stands in frameworks.toml."""

    name: str
    """The framework whose table was taken."""
    asked: str
    """The framework as it was asked; differs from `name` where it is unknown here and the nearest was taken."""
    holds_fp32_weights: bool
    """Weights (or their shards) are fp32 and cast for compute; otherwise 16-bit weights with fp32 masters."""
    counts_operators: bool
    """Memory and what moves through it are counted operator by operator of its own code, not by the formulas of fused
    implementations."""
    zero2_shards_weights: bool
    """ZeRO 2 shards the fp32 weights too and keeps a gathered copy in the compute precision through a microbatch."""
    holds_stages_whole: bool
    """From ZeRO 2 on, a stage of a pipeline gathers its weights for the first microbatch of a step and reduces its
    gradients after the last; in between it holds both whole and sends nothing."""
    replicates_by_ddp: bool
    """Without sharded weights or gradients: autocast casts fp32 weights for compute, whole, and DDP copies gradients
    into buckets of their size."""
    sgd_momentum: bool
    """SGD keeps a momentum."""
    distributes_whole_matrices: bool
    """Under Muon, whose update needs whole matrices, ZeRO deals them out to ranks instead of cutting them."""
    updates_from_fp32_gradients: bool
    """The update makes a fp32 copy of 16-bit gradients, sharded as the optimizer's states are: a buffer of 4 bytes a
    parameter."""
    keeps_16bit_gradients: bool
    """Beside fp32 main gradients, 16-bit gradients stay allocated."""
    copies_qkv: bool
    """Queries, keys and values are held before the rotary embedding too."""
    keeps_cast_inputs: bool
    """Products in 8 bits or fewer keep their input as it was cast; otherwise in 16 bits, cast again in backward."""
    fuses_gate: bool
    """A gated MLP's activation and product are one operator, which keeps its two inputs only."""
    uses_transformer_engine: bool
    """Its products run through Transformer Engine, which has workspaces of its own."""
    max_live_parameters: float
    """Under ZeRO-3, parameters that may be whole at once; 0 where layers are gathered whole."""
    offloads_gradients: bool
    """From ZeRO 2 on, gradients go to host memory with the optimizer."""
    preallocates_messages: bool
    """A receive buffer of every microbatch is allocated when a pipeline stage is built."""
    keeps_gathered_sequence: bool
    """The buffer that the head's input is gathered into under sequence parallelism stays allocated."""
    accumulates_apart: bool
    """16-bit gradients are added to the fp32 ones by a kernel of its own after each microbatch."""
    reduces_whole: bool
    """ZeRO 1 and 2 all-reduce gradients, of which every rank needs its shard alone."""
    gathers_in_update: bool
    """Under ZeRO 1 and 2 the update ends with the gathering of its weights, beside which nothing runs, whatever the
    layout overlaps."""
    reduces_16bit_gradients: bool
    """Gradients are cast to 16 bits before they are reduced, whatever they are accumulated in."""
    accumulation_bytes: float
    """Bytes read and written per parameter to add its 16-bit gradient to the fp32 one."""
    logit_kept_bytes: float
    """Bytes held per logit at the peak of the loss."""
    split_logit_kept_bytes: float
    """The same where the vocabulary is divided over tensor parallel ranks; 0: no different."""
    logit_traffic_bytes: float
    """Bytes read and written per logit by the loss, forward and backward."""
    eager_logit_traffic_bytes: float
    """The same without a compiler; 0: no different."""
    pads_compiled_products: bool
    """A compiler pads operands whose rows are not aligned."""
    selective_kind: SelectiveKind
    """What selective recompute recomputes."""
    backward_hides_tp: bool
    """TP messages of backward run beside GEMMs of the same layer."""
    gathers_again: bool
    """Under sequence parallelism backward gathers the inputs of products once more instead of keeping them whole."""
    compresses_shards: bool
    """Under sequence parallelism MLA's compressing projections run on a rank's own tokens, so that what is gathered for
    the expanding ones is compressed."""
    hidden_frac: float
    """Share of overlapped message time that is gained."""
    tp_hidden_frac: float
    """Share of TP time hidden with layout.overlap_tp."""
    uses_tf32: bool
    """fp32 products run in TF32 unless told otherwise."""
    dispatches_once_per_domain: bool
    """A token goes to each domain of its experts once and is handed on inside (DeepEP, HybridEP)."""
    merges_rings: bool
    """Context parallel attention adds up the parts of its ring operator by operator, in fp32."""
    gather_launches: float
    """Launches for each rank's slice of each parameter when ZeRO-1's updated weights are gathered; 0 where they are
    gathered as flat buffers."""
    gathers_per_microbatch: float
    """Weight gathers in one microbatch under ZeRO-3."""
    gradient_bucket_bytes: float
    """Buckets that stay allocated for reduction."""
    allocator_frac: float
    """What the caching allocator reserves beyond what tensors hold, as a share of it."""
    layer_kernels: float
    """Kernels launched in the forward pass of a dense layer."""
    message_kernels: float
    """Launches whose host time one tensor parallel message takes."""
    moe_kernels: float
    """Kernels that a mixture-of-experts layer adds."""
    backward_kernels: float
    """Backward launches per forward launch."""
    microbatch_s: float
    """Host seconds of one microbatch, exposed."""
    microbatch_kernels: float
    """Kernels of one microbatch besides its layers'."""
    step_s: float
    """Host seconds of one step, exposed."""
    eager_traffic: float
    """Element-wise traffic without a compiler, against with."""
    p2p_hidden_frac: float
    """Share of stage-to-stage messages hidden in 1F1B and GPipe."""
    scatters_p2p: bool
    """Stage messages are split over TP also without sequence parallelism."""
    gemm_frac: float
    """Speed of its GEMMs against the device's curve, which Megatron defines: gaps between kernels, layouts, casts."""
    native_attention: bool
    """Its fused attention is written for the device; otherwise it is one that runs on all."""
    attention_frac: float
    """Speed of its attention against the device's figure."""
    traffic_frac: float
    """Element-wise traffic of its operators against Megatron-Core's fused ones."""
    interleaved_p2p_hidden_frac: float
    """The same when interleaving."""
    grouped_gemm_frac: float
    """Speed of a grouped expert GEMM against one dense GEMM of the same sizes."""
    eager_expert_biases: bool
    """Experts' biases and the activation between them are added operator by operator."""
    sources: Mapping[str, str]
    """Kind and source of each figure, by field."""

    def dispatches_once(self, training: Training) -> bool:
        """Whether a token goes to each domain of its experts once."""
        if training.expert_dispatcher is None:
            return self.dispatches_once_per_domain
        return training.expert_dispatcher == "flex"

    def runs_tf32(self, training: Training) -> bool:
        """Whether fp32 products run in TF32."""
        return self.uses_tf32 if training.tf32 is None else training.tf32

    def element_wise_frac(self, compiled: bool) -> float:
        """Traffic of element-wise operators against Megatron-Core's fused ones."""
        return self.traffic_frac if compiled else self.eager_traffic

    def loss_traffic_bytes(self, compiled: bool) -> float:
        """Bytes that the loss reads and writes per logit."""
        return self.logit_traffic_bytes if compiled else self.eager_logit_traffic_bytes or self.logit_traffic_bytes

    def without_overlap(self) -> FrameworkHabits:
        """The same where no message runs beside computation."""
        return replace(self, hidden_frac=0.0, tp_hidden_frac=0.0, p2p_hidden_frac=0.0, interleaved_p2p_hidden_frac=0.0)


SCALED = {"microbatch_us": ("microbatch_s", MICROSECOND), "step_ms": ("step_s", MILLISECOND)}
"""Keys of the table in another unit: the field of each, and the unit."""


@cache
def _tables() -> Mapping[str, Any]:
    """The packaged table, read once."""
    text = files("tpdpdash.cost").joinpath("frameworks.toml").read_text(encoding="utf-8")
    return MappingProxyType(tomllib.loads(text))


@cache
def framework_habits(asked: str) -> FrameworkHabits:
    """The habits of a framework; an unknown one takes the nearest."""
    name = known_framework(asked)
    merged = {**_tables()["default"], **_tables()[name]}
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for key, figure in merged.items():
        field, factor = SCALED.get(key, (key, None))
        values[field] = figure["value"] * factor if factor else figure["value"]
        sources[field] = f"{figure['kind']}: {figure['source']}"
    return FrameworkHabits(name=name, asked=asked, sources=MappingProxyType(sources), **values)
