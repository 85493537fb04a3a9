"""ZeRO 2 and 3 by torch's FSDP2: weights, gradients and optimizer states are 1/dp_shard_size between the steps.

One group of weights a layer, and one of the embedding, final norm and head. ZeRO 3 frees a layer's weights after its
forward and gathers them again in backward; ZeRO 2 gathers them once a step. Gradients are reduce-scattered after each
microbatch's backward. The shards are fp32 and their own master copy; GEMMs see the precision of the training.
Imported only where it is used: it costs as much as torch itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from tpdpdash.telemetry.parallel_torch import measure_fsdp
from tpdpdash.telemetry.probe import Probe
from tpdpdash.training import Optimizer
from tpdpdash.worker.collectives import TensorGroup
from tpdpdash.worker.groups import Groups
from tpdpdash.worker.transformer import Stage
from tpdpdash.worker.update import LossScale, Update
from tpdpdash.worker.weights import Weight, start_value


class FullyShardedWeights:
    """The weights of one stage, each cut along its first dimension over the ranks of dp_shards."""

    __slots__ = ("_dtype", "_keeps_gathered", "_stage", "parameters", "partial")

    def __init__(
        self,
        stage: Stage,
        parameters: Mapping[str, torch.nn.Parameter],
        declared: Sequence[Weight],
        *,
        zero_stage: int,
        groups: Groups,
        dtype: torch.dtype,
        gradient_dtype: torch.dtype,
        device: torch.device,
        probe: Probe,
    ) -> None:
        """`stage` was built from `parameters` on the meta device: no rank ever holds all of it. `initialise` fills."""
        places = _places(stage, parameters)
        policy = MixedPrecisionPolicy(
            param_dtype=dtype, reduce_dtype=gradient_dtype, cast_forward_inputs=False
        )  # the tables of the rotary embedding stay fp32
        if groups.dp_shards is None:
            raise ValueError("groups.dp_shards is None; there is nobody to shard with")
        mesh = DeviceMesh.from_group(groups.dp_shards, device.type)
        self._keeps_gathered = zero_stage == 2
        reshard = False if self._keeps_gathered else None  # FSDP's own default keeps the outermost group only
        for module in (*stage.layers, stage):
            sharded = fully_shard(module, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
            _sum_gradients(sharded)
            for group in sharded._get_fsdp_state()._fsdp_param_groups:
                measure_fsdp(group, partial(probe.phase, "dp"))
        stage.to_empty(device=device)
        self._stage, self._dtype = stage, dtype
        self.parameters: dict[str, Any] = {name: getattr(module, attribute) for name, (module, attribute) in places}
        """Sharded parameters by name: DTensors."""
        self.partial = [self.parameters[weight.name] for weight in declared if weight.is_partial]
        """Those whose gradients are summed over the TP group."""

    @torch.no_grad()
    def initialise(self, weights: Sequence[Weight], seed: int, tp: int, tp_rank: int) -> None:
        """Fill in this rank's part of the start values, one whole tensor at a time."""
        for weight in weights:
            parameter = self.parameters[weight.name]
            local, mesh = parameter.to_local(), parameter.device_mesh
            whole = start_value(weight, seed, tp, tp_rank, local.device).to(self._dtype)  # as every other layout starts
            shards = whole.chunk(mesh.size(), dim=0)
            if mesh.get_local_rank() < len(shards):  # a dimension shorter than the group leaves its last ranks none
                local.copy_(shards[mesh.get_local_rank()])

    def collect_gradients(self) -> None:
        """Nothing to do: FSDP has taken them."""

    def before_microbatch(self, is_last: bool) -> None:
        """ZeRO 2 keeps the gathered weights from one microbatch to the next."""
        if self._keeps_gathered:
            self._stage.set_reshard_after_backward(is_last)


class FullyShardedOptimizer:
    """Updates this rank's shard of every weight."""

    def __init__(
        self,
        weights: FullyShardedWeights,
        *,
        kind: Optimizer,
        state_dtype: torch.dtype,
        dtype: torch.dtype,
        groups: Groups,
        tp: TensorGroup,
        probe: Probe,
    ) -> None:
        self._parameters = list(weights.parameters.values())
        self._partial = weights.partial
        self._replicas, self._tp, self._probe = groups.dp_replicas, tp, probe
        self.updates = [Update(each.to_local(), kind=kind, state_dtype=state_dtype) for each in self._parameters]
        self.loss_scale = LossScale(dtype, probe)

    @torch.no_grad()
    def step(self) -> None:
        """Sum what FSDP did not, update, and drop the gradients."""
        _together([each.grad.to_local() for each in self._partial], self._tp.all_reduce)
        gradients = [each.grad.to_local() for each in self._parameters]
        if self._replicas is not None:
            with self._probe.phase("dp", "all_reduce"):
                _together(gradients, lambda flat: dist.all_reduce(flat, group=self._replicas))
        is_usable = self.loss_scale.is_usable(gradients)
        with self._probe.phase("optimizer"):
            if is_usable:
                for update, gradient in zip(self.updates, gradients, strict=True):
                    update(self.loss_scale.unscaled(gradient))
            for each in self._parameters:
                each.grad = None
        self.loss_scale.adapt(is_usable)


def _places(
    stage: Stage, parameters: Mapping[str, torch.nn.Parameter]
) -> list[tuple[str, tuple[torch.nn.Module, str]]]:
    """Where each named parameter stands in the modules: FSDP puts others in its place."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    return [
        (names[id(parameter)], (module, attribute))
        for module in stage.modules()
        for attribute, parameter in module.named_parameters(recurse=False)
    ]


def _sum_gradients(module: FSDPModule) -> None:
    """Not the mean: losses are divided beforehand, as everywhere in the worker."""
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)


def _together(tensors: Sequence[torch.Tensor], reduce: Callable[[torch.Tensor], Any]) -> None:
    """Reduce many tensors in place as one message."""
    if not tensors:
        return
    flat = torch.cat([each.flatten() for each in tensors])
    reduce(flat)
    for each, reduced in zip(tensors, flat.split([each.numel() for each in tensors]), strict=True):
        each.copy_(reduced.view_as(each))
