"""What one rank of the built-in worker holds, to the byte: the worker itself runs under fake tensors and a fake group.

    python storage_oracle.py < CASES.json > HELD.json

CASES.json: {name: {"model": …, "training": …, "layout": …, "rank": r}}; HELD.json: {name: {part: bytes}}, parts as in
`Held`. No storage is allocated and nothing is sent, so that any model and world fits in one process. A storage is alive
from the operator that made it until nothing refers to it; views count once. It tells nothing of allocators: rounding,
fragments, context, workspaces inside an operator.
"""

from __future__ import annotations

import json
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining.stage import InferenceMode
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from tpdpdash.layout.layout import Layout
from tpdpdash.model.spec import ModelSpec
from tpdpdash.telemetry.probe import Probe
from tpdpdash.training import Training
from tpdpdash.worker.build import SEED, Place
from tpdpdash.worker.data import SyntheticTokens
from tpdpdash.worker.groups import make_groups
from tpdpdash.worker.train import Trainer
from tpdpdash.worker.weights import FlatWeights

KEEPING = ("forward", "loss")
"""The probe's phases that make what backward needs."""
GATHERED = "gathered"
"""Storages of whole weights under FSDP."""
WARM_UP = 1
"""Steps before the one that is told: receive buffers and FSDP's states come with the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes of one rank in one step."""

    weights: int
    """Weights in the precision of the GEMMs."""
    gradients: int
    """Gradients that stay allocated."""
    optimizer: int
    """Masters and moments."""
    between_steps: int
    """All that is alive between two steps."""
    kept: int
    """Made by forward passes and losses: the most that is alive when a backward pass begins."""
    peak: int
    """The most that is alive at any moment of the step."""
    peak_by_phase: dict[str, int]
    """The same of each phase of the probe."""


class StorageCount(TorchDispatchMode):
    """Counts the storages of tensors on the CPU that operators return, from then on until they are freed."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, tuple[str, int]] = {}
        self._alive: Counter[str] = Counter()
        self.phase = "build"
        """What the peak is counted for."""
        self.peaks: dict[str, int] = {}
        """The most bytes alive, by phase."""
        self.kept = 0
        """The most bytes made by forward passes and losses, when a backward pass begins."""

    @property
    def alive(self) -> int:
        """Bytes now."""
        return self._alive.total()

    def backward_begins(self) -> None:
        """Note what forward passes have kept."""
        self.kept = max(self.kept, sum(self._alive[phase] for phase in KEEPING))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # counted when it arrives as operators on this rank's part
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu":
                self._add(leaf.untyped_storage())
        self.note_peak()
        return made

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._storages:
            self._storages[key] = self.phase, storage.nbytes()
            self._alive[self.phase] += storage.nbytes()
            weakref.finalize(storage, self._remove, key)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """FSDP frees and allocates gathered weights within their storages: no operator tells."""
        if storage._cdata in self._storages:
            phase, before = self._storages[storage._cdata]
            self._alive[phase] -= before
            self._storages[storage._cdata] = GATHERED, storage.nbytes()
            self._alive[GATHERED] += storage.nbytes()
        self.note_peak()

    def note_peak(self) -> None:
        """Compare what is alive with the most so far."""
        self.peaks[self.phase] = max(self.peaks.get(self.phase, 0), self.alive)

    def _remove(self, key: int) -> None:
        phase, size = self._storages.pop(key)
        self._alive[phase] -= size


class Watched:
    """A region of the probe. The worker keeps regions and enters them again and again, one inside another."""

    def __init__(self, count: StorageCount, phase: str | None) -> None:
        self._count, self._phase = count, phase
        self._outer: list[str] = []

    def __enter__(self) -> None:
        self._outer.append(self._count.phase)
        self._count.phase = self._phase or self._count.phase

    def __exit__(self, *_: object) -> None:
        self._count.phase = self._outer.pop()


class WatchingProbe(Probe):
    """Tells the count in which phase the worker is."""

    def __init__(self, count: StorageCount, *, rank: int, world_size: int) -> None:
        self._count = count
        super().__init__(None, rank=rank, world_size=world_size)

    def phase(self, name: str, collective: str = "") -> Watched:
        """A region; a collective counts for the region around it."""
        return Watched(self._count, None if collective else name)

    def action(self, kind: str, stage: int, microbatch: int) -> Watched:  # noqa: ARG002 - the probe's signature
        """One forward or backward pass of a microbatch."""
        if kind == "B":
            self._count.backward_begins()
        return Watched(self._count, None)


def agree_on_shapes(_schedule: Any, stages: list[Any], has_backward: bool, _is_done: bool) -> None:
    """In place of the vote on whether shapes are known beforehand, whose messages a fake group does not carry: the
    worker gives the shapes on every stage."""
    for stage in stages:
        assert not InferenceMode.needs_dynamic(stage._user_meta, has_backward)
        stage._inference_mode = InferenceMode.STATIC


def outside(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, run without fake tensors: a device mesh holds real ranks."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **kwargs)

    return run


@contextmanager
def counting_resizes(count: StorageCount) -> Iterator[None]:
    """Tell the count what FSDP allocates and frees within storages."""

    def counted(function: Callable[[torch.Tensor], None]) -> Callable[[torch.Tensor], None]:
        def resize(tensor: torch.Tensor) -> None:
            function(tensor)
            count.resized(tensor.untyped_storage())

        return resize

    with ExitStack() as patches:
        for module, name in (
            (_fsdp_param, "alloc_storage"),
            (_fsdp_param, "free_storage"),
            (_fsdp_param_group, "alloc_storage"),
        ):
            patches.enter_context(patch.object(module, name, counted(getattr(module, name))))
        patches.enter_context(patch.object(DeviceMesh, "from_group", outside(DeviceMesh.from_group)))
        patches.enter_context(patch.object(schedules._PipelineSchedule, "_warmup_p2p", agree_on_shapes))
        yield


def bytes_of(*tensors: torch.Tensor) -> int:
    """Bytes of the tensors' storages, each once."""
    storages = {storage._cdata: storage.nbytes() for storage in (tensor.untyped_storage() for tensor in tensors)}
    return sum(storages.values())


def note_gradients(trainer: Trainer) -> list[int]:
    """Bytes of the parameters' own gradients at each of the optimizer's steps from now on; FSDP drops them after it."""
    noted: list[int] = []
    step = trainer.optimizer.step

    def noting() -> None:
        own = [each.grad for each in trainer.weights.parameters.values() if each.grad is not None]
        noted.append(bytes_of(*(each.to_local() if isinstance(each, DTensor) else each for each in own)))
        step()

    trainer.optimizer.step = noting
    return noted


def held_by(model: ModelSpec, training: Training, layout: Layout, rank: int) -> Held:
    """Build the rank's part of the job and run a step after a warm-up."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.world_size)
    groups = make_groups(layout, rank)
    count = StorageCount()
    probe = WatchingProbe(count, rank=rank, world_size=layout.world_size)
    place = Place(groups=groups, device=torch.device("cpu"), probe=probe)
    tokens = SyntheticTokens(vocab_size=model.vocab_size, seq_len=training.seq_len, seed=SEED)
    with counting_resizes(count), FakeTensorMode(), count:
        trainer = Trainer(model, training, layout, place, tokens)
        reduced = note_gradients(trainer)
        for number in range(1, WARM_UP + 1):
            trainer.step(number)
        between_steps, count.kept = count.alive, 0
        count.peaks.clear()
        trainer.step(WARM_UP + 1)
    dist.destroy_process_group()
    if isinstance(trainer.weights, FlatWeights):
        weights, gradients = bytes_of(trainer.weights.values), bytes_of(trainer.weights.gradients)
    else:
        weights = bytes_of(*(each.to_local() for each in trainer.weights.parameters.values()))
        gradients = reduced[-1]
    states = [state for update in trainer.optimizer.updates for state in update.states]
    return Held(
        weights=weights,
        gradients=gradients,
        optimizer=bytes_of(*states),
        between_steps=between_steps,
        kept=count.kept,
        peak=max(count.peaks.values()),
        peak_by_phase=count.peaks,
    )


def main() -> None:
    """All cases, one after the other."""
    torch.set_num_threads(1)
    held = {}
    for name, case in json.load(sys.stdin).items():
        layout = Layout(**{**case["layout"], "layers_per_stage": tuple(case["layout"]["layers_per_stage"])})
        held[name] = asdict(held_by(ModelSpec(**case["model"]), Training(**case["training"]), layout, case["rank"]))
    json.dump(held, sys.stdout)


if __name__ == "__main__":
    main()
