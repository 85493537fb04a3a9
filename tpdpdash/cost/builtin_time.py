"""What one layer of the built-in worker reads and writes besides its matrix products, operator by operator.

The worker's layer (worker.transformer) is eager torch: every operator reads its inputs from memory and writes its
output there. tests/differential counts the same operators while a layer runs. Counts are elements a token; a CPU has no
fused RMSNorm, which is then six operators.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpdpdash.model.spec import ModelSpec

if TYPE_CHECKING:
    from tpdpdash.units import Numeric

NORM = {True: (7.0, 24.0), False: (2.0, 3.0)}
"""(forward, backward) of a norm of one element, by whether the device is a CPU: squared, averaged, scaled by the
vector's factor and by its weight there; read and written once where it is one kernel."""
NORMS, RESIDUAL_ADDS = 2, 2
"""Of one layer."""
ADD = 3.0
"""Two inputs read, one output written."""
INPUT_GRADIENT_ADDS = 3
"""Three products share attention's input and two the MLP's: the gradients of each are added up."""
ROTARY_FORWARD, ROTARY_BACKWARD = 12.0, 10.0
"""Of one element of queries and keys: halves swapped, two products, their sum; backward the same without a copy."""
GATE_FORWARD, GATE_BACKWARD = 5.0, 9.0
"""SiLU of the gate (2, its gradient 3) and the product with up (3, its two gradients 6), of one inner element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerElements:
    """Elements a token that a layer's element-wise operators read and write on one rank."""

    forward: Numeric
    """In the forward pass."""
    backward: Numeric
    """In the backward pass."""


def layer_elements(model: ModelSpec, *, tp: Numeric, split: Numeric, is_cpu: bool) -> LayerElements:
    """Of a dense layer. split: ranks over which the sequence is cut between the parallel regions (tp, or 1).

    Norms and residual adds on the cut sequence, gradients of the products' inputs on the whole one, rotary embedding
    and gate on a rank's heads and inner width. Left out: figures of a head or a token (norms' factors, softmax's).
    """
    h, f = model.hidden_size, model.ffn_hidden_size / tp
    heads = model.num_attention_heads / tp + model.num_kv_heads / tp
    rotated = heads * model.head_dim
    norm_forward, norm_backward = NORM[is_cpu]
    return LayerElements(
        forward=(NORMS * norm_forward + RESIDUAL_ADDS * ADD) * h / split + ROTARY_FORWARD * rotated + GATE_FORWARD * f,
        backward=(NORMS * norm_backward + RESIDUAL_ADDS * ADD) * h / split
        + INPUT_GRADIENT_ADDS * ADD * h
        + ROTARY_BACKWARD * rotated
        + GATE_BACKWARD * f,
    )
