"""Rules of the batch, the sequence, the vocabulary and recomputation.

Test names carry the rows of the reference reports (r…) and bad inputs (b…) that they answer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rule_faults import faults_of
from strategies import dense_model, layout_of, training_of

from tpdpdash.layout.batch_rules import MAX_SEQ_LEN, sequence_multiple
from tpdpdash.layout.rules import check_layout
from tpdpdash.layout.vocabulary import padded_vocab_size
from tpdpdash.text import fault_lines


def test_b63_a_batch_of_10_offers_12() -> None:
    fault = faults_of(layout_of(8, dp=4, micro_batch_size=3), global_batch_size=10)["batch_not_divisible"]
    assert (fault.field, fault.values["nearest"]) == ("training.global_batch_size", (12,))


def test_r065_a_batch_of_256_over_7_replicas_offers_252_and_266_or_dp_8() -> None:
    fault = faults_of(layout_of(8, dp=7, micro_batch_size=2), global_batch_size=256)["batch_not_divisible"]
    assert fault.values["nearest"] == (252, 266)
    assert fault.values["nearest_dp"] == (4, 8)


@pytest.mark.parametrize(
    ("training", "field"),
    [
        pytest.param({"global_batch_size": 0}, "training.global_batch_size", id="b64-batch-0"),
        pytest.param({"seq_len": 0}, "training.seq_len", id="b64-seq-0"),
        pytest.param({"seq_len": 10**9}, "training.seq_len", id="b64-seq-1e9"),
        pytest.param({"global_batch_size": -4}, "training.global_batch_size", id="negative-batch"),
        pytest.param({"global_batch_size": 10**12}, "training.global_batch_size", id="huge-batch"),
    ],
)
def test_a_batch_or_sequence_of_zero_or_beyond_reason_is_refused(training: dict[str, int], field: str) -> None:
    found = check_layout(dense_model(), training_of(**training), None, layout_of(8, pp=2, num_model_chunks=2))
    assert (found_ranges := [f for f in found if f.code == "out_of_range"])
    assert [f.field for f in found_ranges] == [field]
    assert fault_lines(found)


def test_the_limit_of_the_sequence_is_the_nearest_value() -> None:
    found = check_layout(dense_model(), training_of(seq_len=10**9), None, layout_of(8))
    assert [f.values["nearest"] for f in found if f.field == "training.seq_len"] == [MAX_SEQ_LEN]


@pytest.mark.parametrize(
    ("cp", "tp", "sequence_parallel", "multiple"),
    [(2, 8, True, 16), (4, 3, True, 24), (1, 8, True, 8), (1, 8, False, 1), (4, 8, False, 8)],
)
def test_r058_the_sequence_is_a_multiple_of_cp_times_lcm_of_2_and_tp(
    cp: int, tp: int, sequence_parallel: bool, multiple: int
) -> None:
    assert sequence_multiple(cp, tp, sequence_parallel) == multiple
    model = dense_model(num_attention_heads=24, num_kv_heads=24, ffn_hidden_size=6144)
    layout = layout_of(8, cp=cp, tp=tp, sequence_parallel=sequence_parallel)
    assert faults_of(layout, model, seq_len=171 * multiple) == {}
    if multiple > 1:
        fault = faults_of(layout, model, seq_len=171 * multiple + 1)["sequence_not_divisible"]
        assert fault.values["multiple"] == multiple
        assert fault.values["nearest"] == (171 * multiple, 172 * multiple)


def test_r058_4104_tokens_suit_cp_4_and_tp_3() -> None:
    model = dense_model(num_layers=12, num_attention_heads=12, num_kv_heads=12, ffn_hidden_size=6144)
    assert faults_of(layout_of(12, cp=4, tp=3), model, seq_len=4104) == {}


def test_r059_8190_tokens_do_not_divide_over_tp_4() -> None:
    fault = faults_of(layout_of(8, tp=4, dp=2), seq_len=8190, framework="fsdp2")["sequence_not_divisible"]
    assert fault.values["nearest"] == (8188, 8192)


def test_a_sequence_longer_than_the_position_table_is_refused() -> None:
    fault = faults_of(layout_of(8), dense_model(position_embedding_size=512))["sequence_beyond_positions"]
    assert fault.values["nearest"] == 512


@pytest.mark.parametrize(
    ("tp", "framework", "rows"),
    [
        pytest.param(4, "megatron-core", 152064, id="r061"),
        pytest.param(4, "fsdp2", 151669, id="torch-shards-unevenly"),
        pytest.param(4, "nanotron", 151672, id="nanotron"),
        pytest.param(1, "megatron-deepspeed", 151680, id="tp-1"),
    ],
)
def test_the_vocabulary_is_padded_and_never_refused(tp: int, framework: str, rows: int) -> None:
    assert padded_vocab_size(151669, tp, framework) == rows
    found = check_layout(dense_model(vocab_size=151669), training_of(framework=framework), None, layout_of(8, tp=tp))
    assert found == []


def test_padding_is_the_same_over_an_array() -> None:
    assert np.array_equal(padded_vocab_size(50257, np.array([1.0, 8.0]), "megatron-core"), [50304, 51200])


def test_recomputed_layers_lie_within_a_stage_and_go_with_full_recomputation() -> None:
    layout = layout_of(8, pp=2, recompute="full", recompute_num_layers=5)
    assert faults_of(layout)["out_of_range"].values["nearest"] == 4
    assert faults_of(replace(layout, recompute_num_layers=4)) == {}
    assert set(faults_of(replace(layout, recompute_num_layers=1, recompute="none"))) == {"recompute_layers_unused"}
