"""The operators that cost counts of a built-in layer are those that run: counted by a dispatch mode while it runs."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from tpdpdash.cost.builtin_time import layer_elements
from tpdpdash.cost.estimate import estimate_job
from tpdpdash.cost.frameworks import framework_habits
from tpdpdash.cost.messages import collectives_of
from tpdpdash.cost.optimizer import COUNTED_UPDATE_BYTES
from tpdpdash.job import job_from_tables
from tpdpdash.model.spec import ModelSpec
from tpdpdash.telemetry.probe import Probe
from tpdpdash.worker.collectives import TensorGroup
from tpdpdash.worker.transformer import Layer, rope_table
from tpdpdash.worker.update import Update
from tpdpdash.worker.weights import layer_weights, meta_parameters, subset

TOKENS = 64
MOVE_NOTHING = frozenset({
    "view", "_unsafe_view", "t", "transpose", "permute", "unsqueeze", "squeeze", "expand", "detach", "as_strided",
    "slice", "select", "split", "alias", "_reshape_alias", "empty_like", "empty", "new_empty", "empty_strided",
    "new_empty_strided",
})  # fmt: skip
PRICED_APART = frozenset(
    {"mm", "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"}
)
SMALL = 4 * 110.0
"""Bytes a token that are left out: factors of norms, softmax's of heads, tables of the rotary embedding."""


class Operators(TorchDispatchMode):
    """Counts operators, and the bytes that each element-wise one reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.number: Counter[str] = Counter()
        self.moved = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        name = function._schema.name.split("::")[1]
        if name not in MOVE_NOTHING:
            self.number[name] += 1
            tensors = [x for x in tree_flatten((args, kwargs, out))[0] if isinstance(x, torch.Tensor) and x.dim()]
            self.moved += 0 if name in PRICED_APART else sum(x.element_size() * x.numel() for x in tensors)
        return out


def counted(hidden: int, inner: int, heads: int, kv_heads: int, head_dim: int):
    """(forward, backward, elements of the weights) of one layer that runs."""
    model = ModelSpec(
        name="m", num_layers=1, hidden_size=hidden, num_attention_heads=heads, num_kv_heads=kv_heads,
        head_dim=head_dim, ffn_hidden_size=inner, vocab_size=2,
    )  # fmt: skip
    shapes = meta_parameters(layer_weights(model, 0, 1, False), 1)
    parameters = {name: torch.nn.Parameter(torch.randn(each.shape) * 0.02) for name, each in shapes.items()}
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    alone = TensorGroup(group=None, rank=0, size=1, sequence_parallel=False, probe=Probe(None, rank=0, world_size=1))
    layer = Layer(model, subset(parameters, "model.layers.0"), alone, "flash")
    states = torch.randn(TOKENS, 1, hidden, requires_grad=True)
    states.grad = torch.zeros_like(states)  # as between layers, where a gradient is added up
    rope = rope_table(TOKENS, head_dim, torch.device("cpu"))
    with Operators() as forward:
        out = layer(states, rope)
    gradient = torch.randn_like(out)
    with Operators() as backward:
        out.backward(gradient)
    matrices = sum(p.numel() for p in parameters.values() if p.dim() > 1)
    return model, forward, backward, matrices


@pytest.mark.parametrize(
    "widths", [(64, 256, 4, 4, 16), (128, 256, 4, 4, 16), (64, 320, 4, 4, 16), (64, 256, 8, 4, 16), (64, 256, 4, 2, 16)]
)
def test_bytes_of_a_layers_elementwise_operators(widths):
    model, forward, backward, matrices = counted(*widths)
    found = layer_elements(model, tp=1.0, split=1.0, is_cpu=True)
    assert forward.moved / TOKENS == pytest.approx(4 * found.forward, abs=SMALL)
    accumulated = framework_habits("builtin").accumulation_bytes * matrices
    input_gradient = 3 * 4 * widths[0]  # added to the gradient that the test gave it
    assert (backward.moved - accumulated) / TOKENS - input_gradient == pytest.approx(4 * found.backward, abs=SMALL)


def test_number_of_operators_of_a_layer():
    _, forward, backward, _ = counted(64, 256, 4, 4, 16)
    habits = framework_habits("builtin")
    assert sum(forward.number.values()) == habits.layer_kernels
    added_to_the_inputs_gradient = 1
    counted_backward = sum(backward.number.values()) - added_to_the_inputs_gradient
    assert counted_backward == habits.layer_kernels * habits.backward_kernels


@pytest.mark.parametrize(("kind", "moved"), COUNTED_UPDATE_BYTES.items())
def test_bytes_of_an_update(kind, moved):
    update = Update(torch.randn(1000), kind=kind, state_dtype=torch.float32)
    gradients = torch.randn(1000)
    update(gradients)
    with Operators() as operators:
        update(gradients)
    assert operators.moved / 1000 == moved


class Halves(TensorGroup):
    """A group of two ranks that hold the same: counts messages and sends none."""

    __slots__ = ()
    sent: ClassVar[list[str]] = []

    def all_reduce(self, tensor, op=None):  # noqa: ARG002 - as the group has it
        self.sent.append("all_reduce")
        return tensor

    def all_gather(self, shard):
        self.sent.append("all_gather")
        return torch.cat((shard, shard))

    def reduce_scatter(self, whole):
        self.sent.append("reduce_scatter")
        return whole[: len(whole) // 2]


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_messages_of_a_tensor_parallel_layer(sequence_parallel):
    """As many in forward and in backward as cost counts: what is gathered is kept for backward."""
    facts = {
        "num_layers": 1, "hidden_size": 64, "num_attention_heads": 4, "ffn_hidden_size": 256, "vocab_size": 64,
    }  # fmt: skip
    model = ModelSpec(name="m", num_kv_heads=4, head_dim=16, **facts)
    group = Halves(
        group=None, rank=0, size=2, sequence_parallel=sequence_parallel, probe=Probe(None, rank=0, world_size=1)
    )
    shapes = meta_parameters(layer_weights(model, 0, 2, sequence_parallel), 2)
    parameters = {name: torch.nn.Parameter(torch.randn(each.shape) * 0.02) for name, each in shapes.items()}
    layer = Layer(model, subset(parameters, "model.layers.0"), group, "flash")
    states = torch.randn(TOKENS // 2 if sequence_parallel else TOKENS, 1, 64, requires_grad=True)
    Halves.sent.clear()
    out = layer(states, rope_table(TOKENS, 16, torch.device("cpu")))
    in_forward = len(Halves.sent)
    out.backward(torch.randn_like(out))
    sent = {"forward": in_forward, "backward": len(Halves.sent) - in_forward}
    job = job_from_tables({
        "model": {"name": "m", **facts},
        "cluster": {"device": "CPU", "nodes": 1, "devices_per_node": 2},
        "training": {"seq_len": TOKENS, "global_batch_size": 1, "precision": "fp32", "framework": "builtin"},
        "layout": {"tp": 2, "sequence_parallel": sequence_parallel},
    })  # fmt: skip
    what = "all-gather, reduce-scatter" if sequence_parallel else "all-reduce"
    counted = {each.when: each.times for each in collectives_of(job, estimate_job(job)) if each.what == what}
    assert sent == counted
