"""Jobs of the built-in worker whose memory is counted and estimated: named ones, random ones, and Llama-3-8B."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any

from strategies import dense_model, layout_of, training_of

from tpdpdash.layout.groups import coordinates
from tpdpdash.layout.layout import Layout
from tpdpdash.model.presets import preset
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One rank of one job."""

    model: ModelSpec
    training: Training
    layout: Layout
    rank: int

    @property
    def stage(self) -> int:
        """The rank's pipeline stage."""
        return coordinates(self.layout, self.rank).pp

    @property
    def gradients_come_late(self) -> bool:
        """FSDP with one microbatch: its gradients come while activations go, and are estimated beside them."""
        layout = self.layout
        return layout.zero_stage >= 2 and layout.num_microbatches(self.training.global_batch_size) == 1

    def to_json(self) -> dict[str, Any]:
        """As the oracle reads it."""
        parts = {name: asdict(getattr(self, name)) for name in ("model", "training", "layout")}
        return {**parts, "rank": self.rank}


GROUPED = dense_model(
    num_layers=2,
    hidden_size=96,
    num_attention_heads=6,
    num_kv_heads=2,
    head_dim=16,
    ffn_hidden_size=200,
    vocab_size=1000,
)
"""Grouped heads; no size is a power of two."""
VARIANT = dense_model(
    num_layers=2,
    hidden_size=80,
    num_attention_heads=4,
    num_kv_heads=4,
    head_dim=24,
    ffn_hidden_size=120,
    vocab_size=334,
    tied_embeddings=True,
    qkv_bias=True,
    qk_norm="head",
)
"""Tied embeddings, biases, q and k norms, head_dim ≠ hidden_size / heads."""
UNEVEN = dense_model(
    num_layers=5,
    hidden_size=52,
    num_attention_heads=4,
    num_kv_heads=4,
    head_dim=14,
    ffn_hidden_size=75,
    vocab_size=333,
)
"""No weight is a multiple of the buffers' alignment; more layers than stages."""


def case(model: ModelSpec = GROUPED, rank: int = 0, training: dict[str, Any] | None = None, **layout: Any) -> Case:
    """A job of sequences of 96 tokens, one in each microbatch; two microbatches, or one more than stages."""
    degrees = layout_of(model.num_layers, **{"micro_batch_size": 1, **layout})
    batch = degrees.dp * degrees.micro_batch_size * (2 if degrees.pp == 1 else degrees.pp + 1)
    steps = {"seq_len": 96, "global_batch_size": batch, "framework": "builtin", **(training or {})}
    return Case(model=model, training=training_of(**steps), layout=degrees, rank=rank)


FP32 = {"precision": "fp32"}
NAIVE = {"attention": "naive"}
SHORT = {"seq_len": 8, "global_batch_size": 2}
"""So few tokens that the optimizer's step is the fullest moment."""
IN_16_BITS = {"optimizer_states": "bf16", "gradient_dtype": "bf16"}
SMALL = {
    "tp 2, sequence parallel": case(rank=1, tp=2),
    "tp 2, two sequences, fp32": case(training=FP32, tp=2, sequence_parallel=False, micro_batch_size=2),
    "dp 4, zero 0, fp32": case(training=FP32, dp=4),
    "dp 4, zero 1": case(rank=3, dp=4, zero_stage=1),
    "dp 4 in pairs of shards, zero 1": case(rank=2, dp=4, zero_stage=1, dp_shard_size=2),
    "fsdp 4": case(rank=3, dp=4, zero_stage=3),
    "fsdp 2 in pairs, fp32": case(rank=1, training=FP32, dp=4, zero_stage=3, dp_shard_size=2),
    "fsdp 4, zero 2": case(dp=4, zero_stage=2),
    "fsdp 2, tp 2, variant, one microbatch": case(
        VARIANT, training={"seq_len": 64, "global_batch_size": 2}, dp=2, tp=2, zero_stage=3
    ),
    "fsdp 3, five layers, full recompute": case(UNEVEN, dp=3, zero_stage=3, recompute="full"),
    "naive attention": case(training=NAIVE, micro_batch_size=2),
    "naive attention, selective recompute, fp32": case(training=NAIVE | FP32, recompute="selective"),
    "selective recompute": case(recompute="selective", micro_batch_size=2),
    "full recompute": case(recompute="full"),
    "full recompute of one layer, fp32": case(
        training=FP32, recompute="full", recompute_num_layers=1, recompute_method="block"
    ),
    "variant, tp 2": case(VARIANT, tp=2),
    "variant, naive attention, fp32": case(VARIANT, training=FP32 | NAIVE, dp=2, zero_stage=1),
    "short, 16-bit states, zero 1": case(training=SHORT | IN_16_BITS, dp=2, zero_stage=1),
    "short, fp32": case(training=SHORT | FP32),
    "short, sgd": case(training=SHORT | {"optimizer": "sgd"}),
    "pp 3, first of uneven stages": case(UNEVEN, pp=3, layers_per_stage=(2, 2, 1)),
    "pp 3, middle of uneven stages": case(UNEVEN, rank=1, pp=3, layers_per_stage=(1, 3, 1)),
    "pp 3, last of uneven stages, fp32": case(UNEVEN, rank=2, training=FP32, pp=3, layers_per_stage=(2, 1, 2)),
    "pp 2, gpipe, first": case(pp=2, schedule="gpipe"),
    "pp 2, gpipe, last": case(rank=1, pp=2, schedule="gpipe"),
    "pp 3, middle, full recompute in blocks of two": case(
        UNEVEN, rank=1, pp=3, layers_per_stage=(1, 3, 1), recompute="full", recompute_num_layers=2
    ),
    "tp 2, pp 2, dp 2, first": case(tp=2, pp=2, dp=2, zero_stage=1),
    "tp 2, pp 2, dp 2, last, fp32": case(rank=7, training=FP32, tp=2, pp=2, dp=2, zero_stage=1),
}


def random_case(seed: int) -> Case:
    """A small job that the worker runs, any of its features at odds of about one half."""
    pick = random.Random(seed)
    tp, pp, dp = pick.choice([1, 2, 3]), pick.choice([1, 1, 2, 3]), pick.choice([1, 2])
    layers = tuple(pick.choice([1, 2]) for _ in range(pp))
    kv = tp * pick.choice([1, 2])
    model = dense_model(
        num_layers=sum(layers),
        hidden_size=tp * pick.randrange(20, 60),
        num_attention_heads=kv * pick.choice([1, 2]),
        num_kv_heads=kv,
        head_dim=2 * pick.randrange(4, 10),
        ffn_hidden_size=tp * pick.randrange(20, 90),
        vocab_size=tp * pick.randrange(60, 200),
        tied_embeddings=pp == 1 and pick.random() < 0.5,
        qkv_bias=pick.random() < 0.5,
        qk_norm=pick.choice(["none", "head"]),
    )
    training = {
        "seq_len": tp * pick.randrange(10, 40),
        "precision": pick.choice(["fp32", "bf16"]),
        "gradient_dtype": pick.choice(["fp32", "bf16"]),
        "attention": pick.choice(["flash", "naive"]),
        "optimizer": pick.choice(["adamw", "adamw", "sgd"]),
        "optimizer_states": pick.choice(["fp32", "bf16"]),
    }
    return case(
        model,
        rank=pick.randrange(tp * pp * dp),
        training=training,
        tp=tp,
        pp=pp,
        dp=dp,
        layers_per_stage=layers,
        zero_stage=pick.choice([0, 1]),
        micro_batch_size=pick.choice([1, 2]),
        sequence_parallel=tp > 1 and pick.random() < 0.5,
        recompute=pick.choice(["none", "selective", "full"]),
        schedule=pick.choice(["gpipe", "1f1b"]) if pp > 1 else "none",
    )


RANDOM = {f"random {seed}": random_case(seed) for seed in range(12)}


def llama(rank: int = 0, batch: int = 8, seq_len: int = 4096, **layout: Any) -> Case:
    """Llama-3-8B on 8 ranks."""
    steps = {"seq_len": seq_len, "global_batch_size": batch}
    return case(preset("llama-3-8b"), rank, steps, **layout)


LLAMA = {
    "tp 8": llama(tp=8, batch=1, seq_len=8192),
    "tp 8, full recompute": llama(tp=8, batch=1, seq_len=8192, recompute="full"),
    "fsdp 8": llama(dp=8, zero_stage=3),
    "fsdp 8, full recompute": llama(dp=8, zero_stage=3, recompute="full"),
    "dp 8, zero 1": llama(dp=8, zero_stage=1),
    **{f"pp 8, stage {rank}": llama(rank, pp=8) for rank in (0, 3, 7)},
    "pp 8, gpipe, stage 3": llama(3, pp=8, schedule="gpipe"),
}
