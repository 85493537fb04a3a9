"""Tokens: the same for every layout, repeatable, and refused when a text cannot feed the model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tpdpdash.faults import InvalidInputError
from tpdpdash.text import fault_lines
from tpdpdash.worker.data import SyntheticTokens, TextTokens, replica_batch


@pytest.fixture
def tokens() -> SyntheticTokens:
    return SyntheticTokens(vocab_size=100, seq_len=16, seed=3)


@pytest.mark.parametrize("dp", [1, 2, 3, 6])
def test_replicas_together_read_the_same_global_batch(tokens: SyntheticTokens, dp: int) -> None:
    parts = [replica_batch(tokens, step=4, global_batch_size=6, dp=dp, dp_rank=rank)[0] for rank in range(dp)]
    whole, _ = replica_batch(tokens, step=4, global_batch_size=6, dp=1, dp_rank=0)
    assert torch.equal(torch.cat(parts), whole)


def test_targets_are_the_inputs_one_token_on(tokens: SyntheticTokens) -> None:
    inputs, targets = replica_batch(tokens, step=1, global_batch_size=2, dp=1, dp_rank=0)
    assert inputs.shape == targets.shape == (2, 16)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_steps_and_seeds_give_different_tokens_inside_the_vocabulary(tokens: SyntheticTokens) -> None:
    other = SyntheticTokens(vocab_size=100, seq_len=16, seed=4)
    drawn = [tokens.sequence(0), tokens.sequence(1), other.sequence(0)]
    assert len({tuple(sequence.tolist()) for sequence in drawn}) == 3
    assert all(0 <= token < 100 for sequence in drawn for token in sequence.tolist())


def test_a_text_is_read_one_token_a_byte_and_again_from_its_start(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes(bytes(range(256)))
    text = TextTokens(file, vocab_size=256, seq_len=50)
    assert text.sequence(1).tolist() == list(range(50, 101))
    assert torch.equal(text.sequence(5), text.sequence(0))


def test_a_text_that_cannot_feed_the_model_is_refused_with_all_faults(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes(b"short")
    with pytest.raises(InvalidInputError) as refused:
        TextTokens(file, vocab_size=100, seq_len=50)
    assert [fault.code for fault in refused.value.faults] == ["builtin_bytes", "builtin_short_text"]
    assert "51" in fault_lines(refused.value.faults)[1]


def test_a_text_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError) as refused:
        TextTokens(tmp_path / "nothing", vocab_size=256, seq_len=4)
    assert refused.value.faults[0].code == "file_unreadable"
