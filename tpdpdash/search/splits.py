"""Candidate splits of a model's layers over pipeline stages."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tpdpdash.job import Job
from tpdpdash.layout.layout import LayoutPins
from tpdpdash.layout.prediction import counted_ends, loss_units, trained_model
from tpdpdash.layout.resolve import COUNTED_ENDS, SPLIT_PINS, draft_layout
from tpdpdash.layout.schedules import SCHEDULE_FACTS
from tpdpdash.layout.stages import even_stage_layers, pinned_stage_layers, stage_units
from tpdpdash.model.counts import forward_flops_per_token
from tpdpdash.model.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One split, and what of it counts as layers."""

    layers: tuple[int, ...]
    """Layers of each stage, first to last."""
    account_for_embedding: bool = False
    """The embedding counts as one layer of the first stage."""
    account_for_loss: bool = False
    """The head and loss count as one layer of the last stage, each prediction module as one more."""

    def common_units(self, modules: int) -> int:
        """Greatest common divisor of what the stages hold: chunks must divide it. modules: those for prediction."""
        loss = loss_units(self.account_for_loss, modules)
        return math.gcd(*stage_units(self.layers, self.account_for_embedding, loss))


def splits_of(job: Job, pp: int, schedule: str) -> tuple[Split, ...]:
    """Splits to try on pp stages under a schedule, the Job's own default first; with a pinned split nothing else.

    Besides the even one: a layer less on the last stage, on the first, on both (the embedding and the loss counted as a
    layer each), and the split that gives the last stage as many layers fewer as its head is worth, rounded either way.
    """
    pinned = {name: getattr(job.pins, name) for name in SPLIT_PINS if getattr(job.pins, name) is not None}
    if not pinned and pp > 1:
        model = trained_model(job.model, job.training)
        if SCHEDULE_FACTS[schedule].placement == "fold":
            return _folded(model, pp)
        return _candidates(model, job.training.seq_len, pp)
    keys: dict[str, Any] = {"pp": pp, "schedule": schedule, **pinned}
    draft = draft_layout(LayoutPins(**keys), job.model, job.training, None).layout
    flags = {name: getattr(draft, name) for name in COUNTED_ENDS}
    return (Split(layers=draft.layers_per_stage, **flags),)


@lru_cache(maxsize=1024)
def _candidates(model: ModelSpec, seq_len: int, pp: int) -> tuple[Split, ...]:
    layers = model.num_layers
    found = [_accounted(model, pp, flags) for flags in (_gap(model, pp), (False, True), (True, True), (True, False))]
    even = found[0].layers
    head = head_layers(model, seq_len)
    share = (layers + head) / pp - head
    for last in sorted({math.floor(share), math.ceil(share)} & set(range(1, even[-1])), reverse=True):
        found.append(Split(layers=pinned_stage_layers(layers, pp, last=last)))
    # Which of the middle stages has a layer more is no choice: equal ends and equal middles are one candidate.
    return _distinct(found, lambda s: (s[0], s[-1], *sorted(s[1:-1])))


@lru_cache(maxsize=1024)
def _folded(model: ModelSpec, pp: int) -> tuple[Split, ...]:
    modules = model.mtp_num_layers
    default = counted_ends(model.num_layers, pp, modules, folded=True) if modules else (False, False)
    choices = dict.fromkeys((default, (False, False), (False, True), (True, True)))
    found = [_accounted(model, pp, flags, folded=True) for flags in choices]
    return _distinct(found, lambda s: s)


def _distinct(found: list[Split], alike: Callable[[tuple[int, ...]], tuple[int, ...]]) -> tuple[Split, ...]:
    """The first of those whose layers are alike, in their order; but for the default, none with an empty stage."""
    firsts: dict[tuple[int, ...], Split] = {}
    for split in found:
        firsts.setdefault(alike(split.layers), split)
    return tuple(s for s in firsts.values() if s is found[0] or min(s.layers) >= 1)


def _accounted(model: ModelSpec, pp: int, flags: tuple[bool, bool], *, folded: bool = False) -> Split:
    embedding, loss = flags
    units = loss_units(loss, model.mtp_num_layers)
    return Split(
        layers=even_stage_layers(
            model.num_layers, pp, account_for_embedding=embedding, account_for_loss=units, folded=folded
        ),
        account_for_embedding=embedding,
        account_for_loss=loss,
    )


def _gap(model: ModelSpec, pp: int) -> tuple[bool, bool]:
    """(account_for_embedding, account_for_loss) where the layers do not divide and embedding and loss, or the loss
    alone, fill the gap (126 layers on 16 stages, 61 on 31), so that stages can have chunks. Prediction modules always
    count."""
    layers = model.num_layers
    if model.mtp_num_layers:
        return counted_ends(layers, pp, model.mtp_num_layers)
    if not layers % pp:
        return False, False
    if (layers + 2) % pp == 0 and layers + 2 > pp:
        return True, True
    return False, (layers + 1) % pp == 0 and layers + 1 > pp


def head_layers(model: ModelSpec, seq_len: int) -> float:
    """Layers whose forward pass takes as many FLOPs as what stands behind the last layer: the head, and prediction
    modules."""
    forward = forward_flops_per_token(model, seq_len, causal=True)
    layers = model.num_layers + model.mtp_num_layers
    return model.mtp_num_layers + layers * forward.head / (forward.total - forward.head)
