"""Run under torchrun: train a tiny model under each layout of a list, in the same processes, and write the losses.

    torchrun --nproc-per-node N losses_of_layouts.py CASES.json OUT_DIR

CASES.json: {name: {"model": …, "training": …, "layout": …}}; OUT_DIR/rank-R.json: {name: [loss a step] or null};
OUT_DIR/rank-R.pt: {name: {weight: this rank's part after the last step}} of the cases whose optimizer is sgd.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from tpdpdash.layout.layout import Layout
from tpdpdash.model.spec import ModelSpec
from tpdpdash.telemetry.probe import Probe
from tpdpdash.training import Training
from tpdpdash.worker.data import SyntheticTokens
from tpdpdash.worker.groups import GroupCache, make_groups
from tpdpdash.worker.train import SEED, Place, Trainer

NUM_STEPS = 5


Weights = dict[str, torch.Tensor]


def train(case: dict[str, dict[str, object]], cache: GroupCache) -> tuple[list[float] | None, Weights | None]:
    """This rank's losses of the first steps (None off the last stage), and its weights after them."""
    model, training = ModelSpec(**case["model"]), Training(**case["training"])
    layout = Layout(**{**case["layout"], "layers_per_stage": tuple(case["layout"]["layers_per_stage"])})
    groups = make_groups(layout, dist.get_rank(), cache)
    probe = Probe(None, rank=dist.get_rank(), world_size=layout.world_size)
    tokens = SyntheticTokens(vocab_size=model.vocab_size, seq_len=training.seq_len, seed=SEED)
    place = Place(groups=groups, device=torch.device("cpu"), probe=probe)
    trainer = Trainer(model, training, layout, place, tokens)
    seen = [trainer.step(number) for number in range(1, NUM_STEPS + 1)]
    weights = {name: parameter.detach().clone() for name, parameter in trainer.weights.parameters.items()}
    losses = None if seen[0] is None else [loss.item() for loss in seen]
    return losses, weights if training.optimizer == "sgd" else None


def main() -> None:
    """All cases, one after the other: every rank takes part in each."""
    torch.set_num_threads(1)
    cases, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    cache: GroupCache = {}
    results = {name: train(case, cache) for name, case in cases.items()}
    losses = {name: curve for name, (curve, _) in results.items()}
    (folder / f"rank-{dist.get_rank()}.json").write_text(json.dumps(losses))
    weights = {name: parts for name, (_, parts) in results.items() if parts is not None}
    torch.save(weights, folder / f"rank-{dist.get_rank()}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
