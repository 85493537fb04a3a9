"""One rank of several: train a tiny model under each layout of a list, in the same processes, and write the losses.

    torchrun --nproc-per-node N losses_of_layouts.py CASES.json OUT_DIR

CASES.json: {name: {"model": …, "training": …, "layout": …}}; OUT_DIR/rank-R.json: {name: [loss a step] or null};
OUT_DIR/messages-R.json: {name: {"phase function": calls in the last step}};
OUT_DIR/rank-R.pt: {name: {weight: this rank's part after the last step}} of the cases whose optimizer is sgd.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tpdpdash.layout.layout import Layout
from tpdpdash.model.spec import ModelSpec
from tpdpdash.telemetry.probe import Probe
from tpdpdash.training import Training
from tpdpdash.worker.build import DTYPES, SEED, Place
from tpdpdash.worker.data import SyntheticTokens
from tpdpdash.worker.groups import GroupCache, make_groups
from tpdpdash.worker.train import Trainer

NUM_STEPS = 4


COLLECTIVES = ("all_reduce", "all_gather_single", "reduce_scatter_single")
Weights = dict[str, torch.Tensor]


class Listener:
    """Notes in which phase of the probe each collective is called, FSDP's own included."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        """By phase and function."""
        self.probe: Probe | None = None
        """Of the case that runs."""
        for name in COLLECTIVES:
            setattr(dist, name, self._heard(getattr(dist, name)))

    def _heard(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def heard(*args: Any, **kwargs: Any) -> Any:
            phase = None if self.probe is None else self.probe._state.phase_name()
            self.calls[f"{phase} {function.__name__}"] += 1
            return function(*args, **kwargs)

        return heard


def train(
    case: dict[str, dict[str, object]], cache: GroupCache, listener: Listener
) -> tuple[list[float] | None, Weights | None, dict[str, int]]:
    """This rank's losses of the first steps (None off the last stage), its weights after them, and what it sent in the
    last one."""
    model, training = ModelSpec(**case["model"]), Training(**case["training"])
    layout = Layout(**{**case["layout"], "layers_per_stage": tuple(case["layout"]["layers_per_stage"])})
    groups = make_groups(layout, dist.get_rank(), cache)
    probe = Probe(None, rank=dist.get_rank(), world_size=layout.world_size)
    tokens = SyntheticTokens(vocab_size=model.vocab_size, seq_len=training.seq_len, seed=SEED)
    place = Place(groups=groups, device=torch.device("cpu"), probe=probe)
    trainer = Trainer(model, training, layout, place, tokens)
    listener.probe, seen = probe, []
    for number in range(1, NUM_STEPS + 1):
        listener.calls.clear()
        with probe.step(number):
            seen.append(trainer.step(number))
    messages = dict(listener.calls)
    dtype = DTYPES[training.precision]
    weights = {name: whole(part).detach().to(dtype, copy=True) for name, part in trainer.weights.parameters.items()}
    losses = None if seen[0] is None else [loss.item() for loss in seen]
    return losses, weights if training.optimizer == "sgd" else None, messages


def whole(parameter: torch.Tensor) -> torch.Tensor:
    """A weight of this rank, put together over its replicas where those shard it."""
    gather = getattr(parameter, "full_tensor", None)
    return parameter if gather is None else gather()


def main() -> None:
    """All cases, one after the other: every rank takes part in each."""
    torch.set_num_threads(1)
    cases, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    cache: GroupCache = {}
    listener = Listener()
    results = {name: train(case, cache, listener) for name, case in cases.items()}
    losses = {name: curve for name, (curve, _, _) in results.items()}
    messages = {name: sent for name, (_, _, sent) in results.items()}
    (folder / f"messages-{dist.get_rank()}.json").write_text(json.dumps(messages))
    (folder / f"rank-{dist.get_rank()}.json").write_text(json.dumps(losses))
    weights = {name: parts for name, (_, parts, _) in results.items() if parts is not None}
    torch.save(weights, folder / f"rank-{dist.get_rank()}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
