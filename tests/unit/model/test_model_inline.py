"""ModelSpec's own fields in a Job file."""

from dataclasses import asdict

import pytest

from tpdpdash.model.counts import parameter_counts
from tpdpdash.model.inline import spec_from_fields
from tpdpdash.model.presets import preset, preset_names
from tpdpdash.text import fault_lines

PLAIN: dict[str, object] = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "ffn_hidden_size": 128,
    "vocab_size": 100,
}
EXPERTS = {**PLAIN, "num_experts": 4, "num_experts_per_token": 2, "moe_ffn_hidden_size": 32}
LATENT = {**PLAIN, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}


def test_what_is_not_given_follows_from_what_is() -> None:
    spec, faults = spec_from_fields(PLAIN)
    assert not faults
    assert spec is not None
    assert (spec.name, spec.num_kv_heads, spec.head_dim, spec.gated_mlp) == ("inline", 8, 8, True)


@pytest.mark.parametrize("name", preset_names())
def test_the_fields_of_any_spec_give_the_same_spec_back(name: str) -> None:
    fields = asdict(preset(name))
    del fields["source"]
    spec, faults = spec_from_fields({**fields, "dense_layers": list(fields["dense_layers"])})
    assert not faults
    assert spec is not None
    assert asdict(spec) == {**asdict(preset(name)), "source": ""}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {("missing", f"model.{key}") for key in PLAIN}),
        ({**PLAIN, "hiden_size": 64}, {("unknown_key", "model.hiden_size")}),
        ({**PLAIN, "source": "x"}, {("unknown_key", "model.source")}),
        ({**PLAIN, "num_layers": 2.0}, {("not_whole_number", "model.num_layers")}),
        ({**PLAIN, "num_layers": True}, {("not_whole_number", "model.num_layers")}),
        ({**PLAIN, "num_layers": 0}, {("out_of_range", "model.num_layers")}),
        ({**PLAIN, "vocab_size": 10**30}, {("out_of_range", "model.vocab_size")}),
        ({**PLAIN, "gated_mlp": 1}, {("not_true_false", "model.gated_mlp")}),
        ({**PLAIN, "norm": "batchnorm"}, {("unknown_choice", "model.norm")}),
        ({**PLAIN, "name": 5}, {("not_text", "model.name")}),
        ({**PLAIN, "num_kv_heads": 3}, {("does_not_divide", "model.num_kv_heads")}),
        ({**PLAIN, "num_attention_heads": 7}, {("not_divisible", "model.hidden_size")}),
        (
            {**PLAIN, "num_experts": 4},
            {("missing", "model.num_experts_per_token"), ("missing", "model.moe_ffn_hidden_size")},
        ),
        ({**PLAIN, "moe_ffn_hidden_size": 4}, {("missing", "model.num_experts")}),
        ({**EXPERTS, "num_experts_per_token": 5}, {("out_of_range", "model.num_experts_per_token")}),
        ({**EXPERTS, "first_k_dense_layers": 3}, {("out_of_range", "model.first_k_dense_layers")}),
        ({**EXPERTS, "dense_layers": [2]}, {("out_of_range", "model.dense_layers")}),
        ({**EXPERTS, "dense_layers": "0"}, {("not_list", "model.dense_layers")}),
        ({**LATENT, "v_head_dim": 0}, {("missing", "model.v_head_dim")}),
        ({**PLAIN, "q_lora_rank": 8}, {("missing", "model.kv_lora_rank")}),
        (
            {**PLAIN, "num_layers": "x", "vocab_size": -1},
            {("not_whole_number", "model.num_layers"), ("out_of_range", "model.vocab_size")},
        ),
    ],
)
def test_every_fault_names_its_field_all_at_once(fields: dict[str, object], expected: set[tuple[str, str]]) -> None:
    spec, faults = spec_from_fields(fields)
    assert spec is None
    assert {(fault.code, fault.field) for fault in faults} == expected
    assert all(fault_lines(faults))


def test_experts_and_latent_attention_can_be_given_inline() -> None:
    for fields in (EXPERTS, LATENT):
        spec, faults = spec_from_fields(fields)
        assert not faults
        assert spec is not None
        assert parameter_counts(spec).total > 0


def test_an_mlp_of_experts_only_needs_no_dense_width() -> None:
    fields = {key: value for key, value in EXPERTS.items() if key != "ffn_hidden_size"}
    spec, faults = spec_from_fields(fields)
    assert not faults
    assert spec is not None
    assert spec.ffn_hidden_size == spec.moe_ffn_hidden_size
