"""What the built-in worker cannot run, as rules of framework "builtin": preflight, rehearsal and worker ask them.

Overlap flags are not among them: they change when messages travel, not what is trained. The worker overlaps nothing,
and its habit says so where the framework is "builtin" (layout.frameworks).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tpdpdash.layout.microbatch_rules import microbatches, uneven_rounds
from tpdpdash.layout.rule import Explained, Facts, Rule, all_rows, flags
from tpdpdash.layout.world import nearest_of
from tpdpdash.units import nearest_multiples

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tpdpdash.layout.columns import LayoutColumns
    from tpdpdash.layout.layout import Layout
    from tpdpdash.model.spec import ModelSpec

    Flags = NDArray[np.bool_]

BUILTIN = frozenset({"builtin"})


def _of_layout(code: str, name: str, violated: Callable[[LayoutColumns], Flags], nearest: object) -> Rule:
    """A rule about one key of the layout."""

    def explain(_facts: Facts, layout: Layout) -> Explained:
        return Explained(value=getattr(layout, name), values={"nearest": nearest})

    return Rule(
        code=code,
        field=f"layout.{name}",
        violated=lambda _facts, c: flags(violated(c)),
        explain=explain,
        frameworks=BUILTIN,
    )


def _of_training(code: str, name: str, runs: tuple[object, ...]) -> Rule:
    """A rule about one key of the training: only the values of `runs` are run."""

    def explain(facts: Facts, _layout: Layout) -> Explained:
        return Explained(value=getattr(facts.training, name), values={"choices": runs, "nearest": runs[0]})

    return Rule(
        code=code,
        field=f"training.{name}",
        violated=lambda facts, c: all_rows(c, getattr(facts.training, name) not in runs),
        explain=explain,
        frameworks=BUILTIN,
    )


def _of_model(code: str, name: str, cannot: Callable[[ModelSpec], bool], nearest: object) -> Rule:
    """A rule about one fact of the model; `nearest` is the value that the worker builds."""

    def explain(facts: Facts, _layout: Layout) -> Explained:
        return Explained(value=getattr(facts.model, name), values={"nearest": nearest})

    return Rule(
        code=code,
        field=f"model.{name}",
        violated=lambda facts, c: all_rows(c, cannot(facts.model)),
        explain=explain,
        frameworks=BUILTIN,
    )


def _vocabulary(facts: Facts, c: LayoutColumns) -> Flags:
    return flags(facts.model.vocab_size % c.tp != 0)


def _explain_vocabulary(facts: Facts, layout: Layout) -> Explained:
    size = facts.model.vocab_size
    return Explained(value=size, values={"tp": layout.tp, "nearest": nearest_multiples(size, layout.tp)})


def _tied_over_stages(facts: Facts, c: LayoutColumns) -> Flags:
    return flags((c.pp > 1) & facts.model.tied_embeddings)


def _explain_uneven_rounds(facts: Facts, layout: Layout) -> Explained:
    batch, replica = facts.training.global_batch_size, layout.micro_batch_size * layout.dp
    m = layout.num_microbatches(batch)
    legal = [n for n in range(1, 2 * m) if n % max(n // layout.pp, 1) == 0]
    values = {"microbatches": m, "rounds": m // layout.pp}
    return Explained(value=batch, values=values | {"nearest": tuple(n * replica for n in nearest_of(legal, m))})


def _other_group(facts: Facts, c: LayoutColumns) -> Flags:
    m, whole = microbatches(facts, c)
    rounds = np.maximum(m // c.pp, 1)
    is_even = whole & (m >= c.pp) & (m % rounds == 0)
    return flags(is_even & c.is_schedule("interleaved") & (c.microbatch_group_size_per_vp_stage != m / rounds))


def _explain_group(facts: Facts, layout: Layout) -> Explained:
    m = layout.num_microbatches(facts.training.global_batch_size)
    return Explained(
        value=layout.microbatch_group_size_per_vp_stage,
        values={"microbatches": m, "pp": layout.pp, "nearest": m // (m // layout.pp)},
    )


def _odd_head(facts: Facts, c: LayoutColumns) -> Flags:
    return all_rows(c, facts.model.head_dim % 2 == 1)


def _explain_odd_head(facts: Facts, _layout: Layout) -> Explained:
    head_dim = facts.model.head_dim
    return Explained(value=head_dim, values={"nearest": nearest_multiples(head_dim, 2)})


_UNBUILT_PARTS: tuple[Rule, ...] = (
    _of_model("builtin_no_experts", "num_experts", lambda model: model.is_moe, 0),
    _of_model("builtin_no_mla", "kv_lora_rank", lambda model: model.is_mla, 0),
    _of_model("builtin_no_learned_positions", "position_embedding_size", lambda m: m.position_embedding_size > 0, 0),
    _of_model("builtin_only_rmsnorm", "norm", lambda model: model.norm != "rmsnorm", "rmsnorm"),
    _of_model("builtin_only_two_norms", "norms_per_layer", lambda model: model.norms_per_layer != 2, 2),
    _of_model("builtin_only_final_norm", "final_norm", lambda model: not model.final_norm, True),
    _of_model("builtin_only_gated_mlp", "gated_mlp", lambda model: not model.gated_mlp, True),
    _of_model("builtin_no_bias", "attention_output_bias", lambda model: model.attention_output_bias, False),
    _of_model("builtin_no_bias", "mlp_bias", lambda model: model.mlp_bias, False),
    _of_model("builtin_no_bias", "lm_head_bias", lambda model: model.lm_head_bias, False),
    _of_model("builtin_qk_norm", "qk_norm", lambda model: model.qk_norm not in ("none", "head"), "head"),
    _of_model("builtin_no_other_value_head", "v_head_dim", lambda m: m.v_head_dim not in (0, m.head_dim), 0),
    _of_model("builtin_no_window", "sliding_window", lambda m: m.sliding_window * m.sliding_layers > 0, 0),
    _of_model("builtin_no_extra_parameters", "extra_parameters", lambda m: m.extra_parameters > 0, 0),
    _of_model(
        "builtin_no_extra_parameters",
        "extra_parameters_per_layer",
        lambda model: model.extra_parameters_per_layer > 0,
        0,
    ),
)
"""What worker.transformer does not build."""

BUILTIN_RULES: tuple[Rule, ...] = (
    _of_layout("builtin_no_context_parallel", "cp", lambda c: c.cp > 1, 1),
    _of_layout("builtin_no_expert_parallel", "ep", lambda c: c.ep > 1, 1),
    _of_layout("builtin_no_offload", "offload_optimizer", lambda c: c.offload_optimizer, False),
    _of_layout("builtin_no_offload", "offload_activations", lambda c: c.offload_activations, False),
    Rule(
        code="builtin_uneven_rounds",
        field="training.global_batch_size",
        violated=lambda facts, c: uneven_rounds(facts, c, "interleaved"),
        explain=_explain_uneven_rounds,
        frameworks=BUILTIN,
        source="torch 2.13 ScheduleInterleaved1F1B: m a multiple of its max(1, m // pp) rounds",
    ),
    Rule(
        code="builtin_group_size",
        field="layout.microbatch_group_size_per_vp_stage",
        violated=_other_group,
        explain=_explain_group,
        frameworks=BUILTIN,
        source="torch 2.13 ScheduleInterleaved1F1B: microbatches_per_round = m / (m // pp)",
    ),
    *_UNBUILT_PARTS,
    Rule(
        code="builtin_vocabulary_not_divisible",
        field="model.vocab_size",
        violated=_vocabulary,
        explain=_explain_vocabulary,
        frameworks=BUILTIN,
    ),
    Rule(
        code="builtin_tied_over_stages",
        field="model.tied_embeddings",
        violated=_tied_over_stages,
        explain=lambda _facts, layout: Explained(value=True, values={"pp": layout.pp, "nearest": False}),
        frameworks=BUILTIN,
    ),
    Rule(
        code="builtin_odd_head",
        field="model.head_dim",
        violated=_odd_head,
        explain=_explain_odd_head,
        frameworks=BUILTIN,
    ),
    _of_training("builtin_precision", "precision", ("bf16", "fp32", "fp16")),
    _of_training("builtin_optimizer", "optimizer", ("adamw", "sgd")),
    _of_training("builtin_only_full_training", "trainable", ("all",)),
    _of_training("builtin_no_dropout", "dropout", (0.0,)),
    _of_training("builtin_no_graphs", "cuda_graphs", ("none",)),
    _of_training("builtin_no_fp8_inputs", "fp8_activation_inputs", (False,)),
    _of_training("builtin_not_deterministic", "deterministic", (False,)),
    _of_training("builtin_no_packing", "packed_seq_len", (None,)),
    _of_training("builtin_full_fp32", "tf32", (False, None)),
    _of_training("builtin_no_prediction", "mtp_num_layers", (0, None)),
    _of_training("builtin_no_launch_blocking", "launch_blocking", (False,)),
    _of_training("builtin_only_core_attention", "recompute_modules", ((), ("core_attn",))),
)
