"""Multi-token prediction: modules behind the last layer that predict the tokens after the next one (DeepSeek-V3,
arXiv:2412.19437 §2.2). Which of a model's modules a job trains; what they count for in a stage split."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tpdpdash.layout.frameworks import known_framework
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training

TRAINS_PREDICTION = frozenset({"megatron-core"})
"""Frameworks whose recipes train the modules that a model has: Megatron-Bridge's DeepSeek-V3 recipe sets
mtp_num_layers = 1. Others load Hugging Face's model, which has none."""


def mtp_layers(model: ModelSpec, training: Training) -> int:
    """Prediction modules that are trained: as many as asked, else the model's where the framework's recipes do so."""
    if training.mtp_num_layers is not None:
        return training.mtp_num_layers
    return model.mtp_num_layers if known_framework(training.framework) in TRAINS_PREDICTION else 0


def trained_model(model: ModelSpec, training: Training) -> ModelSpec:
    """The model with the prediction modules that are trained."""
    return _with_modules(model, mtp_layers(model, training))


@lru_cache(maxsize=64)
def _with_modules(model: ModelSpec, modules: int) -> ModelSpec:
    return model if model.mtp_num_layers == modules else replace(model, mtp_num_layers=modules)


def loss_units(account_for_loss: bool, modules: int) -> int:
    """Layers that the end of the model counts for in a split: the head with the loss one, each module one more."""
    return (1 + modules) * account_for_loss


def counted_ends(num_layers: int, pp: int, modules: int, *, folded: bool = False) -> tuple[bool, bool]:
    """(account_for_embedding, account_for_loss) of the split that makes room for prediction modules: the embedding
    counts where the stages of pp are only then equal (61 layers with one module: 64 units, as Megatron-Bridge lays
    DeepSeek-V3 out). Nothing counts where a stage would be left without layers. folded: a V, with both ends on rank
    0."""
    loss = loss_units(True, modules)
    units = num_layers + loss
    embedding = units % pp > 0 and (units + 1) % pp == 0
    least = (units + embedding) // pp
    fullest = loss + embedding if folded else max(loss, embedding)
    return (embedding, True) if least > fullest else (False, False)
