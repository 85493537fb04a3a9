"""LoRA: frozen weights, small adapters; and other optimizers' states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from strategies import cluster_of, dense_model, moe_model, training_of

from tpdpdash.cost.activations import kept_bytes
from tpdpdash.cost.adapters import adapted_matrices, adapter_parameters, gathered_inputs
from tpdpdash.cost.estimate import estimate_job
from tpdpdash.cost.frameworks import framework_habits
from tpdpdash.cost.messages import collectives_of
from tpdpdash.cost.parameters import vocab_rows
from tpdpdash.cost.result import Estimate
from tpdpdash.cost.states import state_bytes
from tpdpdash.job import Job
from tpdpdash.layout.layout import LayoutPins
from tpdpdash.model.counts import parameter_counts
from tpdpdash.model.presets import preset


def priced(nodes: int = 1, model: Any = None, **given: Any) -> Estimate:
    """The estimate of a small job; keys of LayoutPins are pins."""
    return estimate_job(job_of(nodes, model, **given))


def job_of(nodes: int = 1, model: Any = None, **given: Any) -> Job:
    """A small job on nodes of eight."""
    pins = {k: v for k, v in given.items() if k in LayoutPins.__dataclass_fields__}
    training = training_of(**{k: v for k, v in given.items() if k not in pins})
    return Job(
        name="small",
        model=model or dense_model(),
        cluster=cluster_of(nodes),
        training=training,
        pins=LayoutPins(**pins),
    )


@pytest.mark.parametrize(
    ("targets", "expected"),
    [((), 39_976_960), (("q_proj", "v_proj"), 8_388_608)],
)
def test_adapters_of_llama_2_7b_are_those_that_peft_prints(targets, expected):
    """Hugging Face peft, rank 16, all linear layers: "trainable params: 39,976,960"; q and v: 8,388,608."""
    training = training_of(trainable="lora", lora_rank=16, lora_targets=targets)
    model = preset("llama-2-7b")
    matrices = adapted_matrices(model, training, False, tp=1.0, ep=1.0, etp=1.0)
    assert adapter_parameters(matrices, 16) * model.num_layers == expected


def test_frozen_weights_have_no_gradients_and_no_states():
    """2 bytes a frozen parameter, 18 an adapter's with Megatron's conventions."""
    model = dense_model()
    found = priced(trainable="lora", zero_stage=0, tp=1).stages[0]
    training = training_of(trainable="lora")
    adapters = 8 * adapter_parameters(adapted_matrices(model, training, False, tp=1.0, ep=1.0, etp=1.0), 16)
    assert found.gradients_bytes == pytest.approx(4 * adapters)
    assert found.optimizer_bytes == pytest.approx(12 * adapters)
    assert found.weights_bytes == pytest.approx(2 * (parameter_counts(model).total + adapters), rel=1e-3)


@pytest.mark.parametrize("framework", ["fsdp2", "deepspeed", "megatron-core"])
@pytest.mark.parametrize("keys", [{}, {"tp": 2, "pp": 2}, {"ep": 4}], ids=["dense", "tp", "moe"])
def test_lora_takes_less_memory_time_and_traffic_than_full_training(framework, keys):
    """With enough work that the host's launches, of which adapters add some, do not decide."""
    sizes = {"hidden_size": 4096, "head_dim": 256, "ffn_hidden_size": 16384}
    model = moe_model(**sizes, moe_ffn_hidden_size=4096) if "ep" in keys else dense_model(**sizes)
    keys = {"zero_stage": 1 if "pp" in keys else 3, "seq_len": 4096, "global_batch_size": 32, "model": model, **keys}
    whole, lora = (priced(2, framework=framework, trainable=t, **keys) for t in ("all", "lora"))
    assert lora.peak_bytes < whole.peak_bytes
    assert lora.step_s < whole.step_s
    assert lora.time.dp_s <= whole.time.dp_s
    assert lora.throughput.mfu <= 1


def test_only_adapters_are_reduced_and_frozen_weights_are_gathered_under_zero_3():
    sizes = {}
    for trainable in ("all", "lora"):
        job = job_of(zero_stage=3, framework="fsdp2", trainable=trainable)
        found = collectives_of(job, estimate_job(job))
        sizes[trainable] = {m.what: m.bytes_each for m in found if m.group == "dp"}
    assert sizes["lora"]["reduce-scatter"] < 0.05 * sizes["all"]["reduce-scatter"]
    assert sizes["lora"]["all-gather"] == pytest.approx(sizes["all"]["all-gather"], rel=0.05)


def test_targets_are_known_by_megatrons_names_too():
    training = training_of(trainable="lora", lora_targets=("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"))
    every = replace(training, lora_targets=())
    for model in (dense_model(), moe_model(), preset("deepseek-v3")):
        sizes = {
            adapter_parameters(adapted_matrices(model, t, model.is_moe, tp=1.0, ep=1.0, etp=1.0), 8)
            for t in (training, every)
        }
        assert len(sizes) == 1


@pytest.mark.parametrize(
    ("framework", "optimizer", "states", "expected"),
    [
        ("megatron-core", "adamw", "bf16", 2 + 4 + 4 + 4),
        ("fsdp2", "adamw", "bf16", 2 + 2 + 4),
        ("megatron-core", "sgd", "fp32", 2 + 4 + 4 + 4),
        ("deepspeed", "sgd", "fp32", 2 + 6 + 4),
        ("fsdp2", "sgd", "fp32", 4 + 4),
        ("megatron-core", "lion", "fp32", 2 + 4 + 4 + 4),
        ("megatron-core", "muon", "fp32", 2 + 4 + 4 + 4),
        ("fsdp2", "adam8bit", "fp32", 4 + 4 + 2 * (1 + 4 / 256)),
    ],
)
def test_each_optimizer_has_its_states(framework, optimizer, states, expected):
    training = training_of(optimizer=optimizer, optimizer_states=states)
    assert state_bytes(training, framework_habits(framework)).total == expected


def test_muon_keeps_adams_states_for_embedding_and_head():
    muon, lion = (priced(optimizer=o, zero_stage=0).stages[0].optimizer_bytes for o in ("muon", "lion"))
    assert muon - lion == pytest.approx(4 * 2 * 32000 * 1024, rel=0.01)


@pytest.mark.parametrize(("tp", "dp", "table"), [(4, 2, False), (1, 8, True)])
def test_megatron_deals_out_whole_matrices_to_muons_ranks(tp, dp, table):
    """The fullest rank has the embedding's master and Adam's two values, or, where that is more, an even share."""
    degrees = {"tp": tp, "dp": dp}
    share = priced(optimizer="muon", zero_stage=0, **degrees).stages[0].optimizer_bytes / dp
    embedding = (4 + 4 + 4) * vocab_rows(dense_model(), float(tp), "megatron-core") * dense_model().hidden_size
    assert (embedding > share) is table
    found = priced(optimizer="muon", zero_stage=1, **degrees).stages[0].optimizer_bytes
    assert found == pytest.approx(max(embedding, share), rel=1e-9)
    nanotron = priced(optimizer="muon", zero_stage=1, framework="nanotron", **degrees).stages[0]
    assert nanotron.optimizer_bytes == pytest.approx(share, rel=0.01)


def test_muons_products_take_time():
    muon, lion = (priced(optimizer=o).time.optimizer_s for o in ("muon", "lion"))
    assert muon > lion


def test_bf16_states_of_70b_over_32_devices_are_what_automodel_measured():
    """r006: Llama-3.3-70B, PP 8 × DP 4, parameters, gradients and Adam in bf16: about 17.5 GB a device."""
    found = priced(
        4, preset("llama-3.1-70b"), pp=8, tp=1, zero_stage=3, framework="fsdp2", optimizer_states="bf16",
        gradient_dtype="bf16", micro_batch_size=4, global_batch_size=128,
    )  # fmt: skip
    stage = found.stages[3]
    assert 16.5e9 < stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes < 18.5e9


def test_zero_2_of_fsdp_keeps_gathered_16_bit_weights_beside_fp32_shards():
    model = dense_model()
    found = priced(zero_stage=2, framework="fsdp2", tp=1).stages[0]
    assert found.weights_bytes == pytest.approx((2 + 4 / 8) * parameter_counts(model).total, rel=1e-3)


def test_offloading_is_paid_for_in_time():
    kept, states, activations = (
        priced(tp=1, zero_stage=1, **keys)
        for keys in ({}, {"offload_optimizer": True}, {"offload_activations": True, "pp": 4})
    )
    assert states.time.optimizer_s > kept.time.optimizer_s
    plain = priced(tp=1, zero_stage=1, pp=4)
    assert activations.step_s >= plain.step_s
    assert activations.stages[0].activations_bytes < plain.stages[0].activations_bytes / 2


@pytest.mark.parametrize(
    ("model", "tp", "tokens", "saved_gb"),
    [("qwen3-8b", 2, 2 * 8192, 4.731), ("gpt-oss-120b", 2, 8192, 0.814)],
)
def test_adapters_keep_whole_inputs_under_sequence_parallelism(model, tp, tokens, saved_gb):
    """Megatron-Bridge's memory-tuning notes: what input re-gather saves on H100 with LoRA on all linear layers; the
    batches are not printed, and taken as the nearest power of two."""
    spec = preset(model)
    training = training_of(trainable="lora")
    blocks = gathered_inputs(spec, training, spec.is_moe)
    kept = blocks * spec.num_layers * 2 * spec.hidden_size * (1 - 1 / tp) * tokens
    assert kept / 1e9 == pytest.approx(saved_gb, rel=0.05)


def test_no_whole_input_is_kept_without_adapters_or_without_sequence_parallelism():
    spec = preset("qwen3-8b")
    habits = framework_habits("megatron-core")
    for trainable, split, more in (("lora", True, True), ("lora", False, False), ("all", True, False)):
        each = kept_bytes(
            spec, training_of(trainable=trainable), habits, False, tp=2.0, etp=2.0, sequence_parallel=split
        )
        plain = kept_bytes(spec, training_of(), habits, False, tp=2.0, etp=2.0, sequence_parallel=split)
        assert float(each.everything - plain.everything) == (2 * 2 * spec.hidden_size * 0.5 if more else 0.0)
    assert gathered_inputs(spec, training_of(trainable="lora", lora_targets=("o_proj", "down_proj")), False) == 0
    assert gathered_inputs(spec, training_of(trainable="lora", lora_targets=("q_proj",)), False) == 1
