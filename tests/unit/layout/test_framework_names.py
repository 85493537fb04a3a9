"""Whose habits a framework has that is named otherwise."""

from __future__ import annotations

import pytest

from tpdpdash.layout.frameworks import known_framework
from tpdpdash.training import FRAMEWORKS


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("torchtitan", "fsdp2"),
        ("PyTorch", "fsdp2"),
        ("NeMo", "megatron-core"),
        ("Megatron-LM", "megatron-core"),
        ("Megatron-DeepSpeed", "megatron-deepspeed"),
        ("MaxText", "jax"),
        ("llm-foundry", "fsdp1"),
        ("InternLM", "internevo"),
        ("Hugging Face Trainer", "fsdp1"),
        ("accelerate", "fsdp1"),
        ("PyTorch Lightning", "fsdp1"),
        ("Axolotl", "fsdp1"),
        ("Hugging Face + DeepSpeed", "deepspeed"),
        ("Accelerate FSDP2", "fsdp2"),
        ("OLMo-core", "fsdp2"),
        ("OLMo", "fsdp1"),
        ("nanoGPT", "fsdp2"),
        ("DDP", "fsdp2"),
        ("Megatron-LM with Transformer Engine", "megatron-core"),
        ("AXLearn", "jax"),
    ],
)
def test_a_framework_is_known_by_the_words_of_its_name(name: str, known: str) -> None:
    assert known_framework(name) == known


@pytest.mark.parametrize(
    ("name", "known"), [("megatron-cor", "megatron-core"), ("DeepSpeed", "deepspeed"), ("nanotorn", "nanotron")]
)
def test_a_slip_of_the_pen_is_the_framework_that_was_meant(name: str, known: str) -> None:
    assert known_framework(name) == known


@pytest.mark.parametrize("name", ["x", "axolot", "zero", "transformer", ""])
def test_a_name_that_is_only_spelled_a_little_alike_is_megatron_core(name: str) -> None:
    assert known_framework(name) == "megatron-core"


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_known_framework_is_itself(name: str) -> None:
    assert known_framework(name) == name
