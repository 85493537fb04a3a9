"""The built-in model against a plain transformer written from the papers, with torch's own loss and optimizer."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from tpdpdash.layout.groups import coordinates
from tpdpdash.layout.layout import Layout
from tpdpdash.model.spec import ModelSpec
from tpdpdash.telemetry.probe import Probe
from tpdpdash.training import Training
from tpdpdash.worker.build import SEED, Place
from tpdpdash.worker.collectives import TensorGroup, vocab_parallel_cross_entropy
from tpdpdash.worker.data import SyntheticTokens, replica_batch
from tpdpdash.worker.groups import Groups
from tpdpdash.worker.train import Trainer
from tpdpdash.worker.transformer import NORM_EPS, ROPE_BASE, flash_attention, naive_attention
from tpdpdash.worker.update import BETA_1, BETA_2, EPSILON, LEARNING_RATE, WEIGHT_DECAY
from tpdpdash.worker.weights import FlatWeights, stage_weights

MODEL = ModelSpec(
    name="tiny",
    num_layers=2,
    hidden_size=32,
    num_attention_heads=4,
    num_kv_heads=2,
    head_dim=16,
    ffn_hidden_size=48,
    vocab_size=64,
    qkv_bias=True,
    qk_norm="head",
)
TRAINING = Training(seq_len=16, global_batch_size=4, precision="fp32", framework="builtin")
LAYOUT = Layout(layers_per_stage=(2,), zero_stage=0)
CPU = torch.device("cpu")
NUM_STEPS = 3


def start_weights(model: ModelSpec) -> dict[str, torch.nn.Parameter]:
    """The whole start weights by Hugging Face's names."""
    declared = stage_weights(model, range(model.num_layers), True, True, 1, False)
    flat = FlatWeights(declared, tp=1, dp=1, dtype=torch.float32, gradient_dtype=torch.float32, device=CPU)
    flat.initialise(declared, SEED, 1, 0)
    return {name: torch.nn.Parameter(p.detach().clone()) for name, p in flat.parameters.items()}


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Zhang 2019, equation 4."""
    return x / (x.pow(2).mean(-1, keepdim=True) + NORM_EPS).sqrt() * weight


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Su 2021, equation 34, in complex numbers: the pair (i, i + d/2) turns by position · base^(−2i/d)."""
    d = x.shape[-1]
    angles = torch.arange(x.shape[-2])[:, None] * ROPE_BASE ** (-torch.arange(0, d, 2) / d)[None, :]
    turned = torch.complex(x[..., : d // 2], x[..., d // 2 :]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), dim=-1)


def reference_logits(w: dict[str, torch.nn.Parameter], tokens: torch.Tensor) -> torch.Tensor:
    """(batch, sequence) tokens → (batch, sequence, vocabulary), head by head."""
    x = w["model.embed_tokens.weight"][tokens]
    future = torch.full((tokens.shape[1],) * 2, float("-inf")).triu(1)
    for layer in range(MODEL.num_layers):
        at = f"model.layers.{layer}"
        h, heads = norm(x, w[f"{at}.input_layernorm.weight"]), []
        q, k, v = (h @ w[f"{at}.self_attn.{n}_proj.weight"].T + w[f"{at}.self_attn.{n}_proj.bias"] for n in "qkv")
        for head in range(MODEL.num_attention_heads):
            group = head // (MODEL.num_attention_heads // MODEL.num_kv_heads)
            own, shared = slice(head * 16, head * 16 + 16), slice(group * 16, group * 16 + 16)
            q_head = rotated(norm(q[..., own], w[f"{at}.self_attn.q_norm.weight"]))
            k_head = rotated(norm(k[..., shared], w[f"{at}.self_attn.k_norm.weight"]))
            scores = (q_head @ k_head.transpose(1, 2) / 4 + future).softmax(-1)
            heads.append(scores @ v[..., shared])
        x = x + torch.cat(heads, -1) @ w[f"{at}.self_attn.o_proj.weight"].T
        h = norm(x, w[f"{at}.post_attention_layernorm.weight"])
        gate, up = h @ w[f"{at}.mlp.gate_proj.weight"].T, h @ w[f"{at}.mlp.up_proj.weight"].T
        x = x + (gate * gate.sigmoid() * up) @ w[f"{at}.mlp.down_proj.weight"].T
    return norm(x, w["model.norm.weight"]) @ w["lm_head.weight"].T


def synthetic() -> SyntheticTokens:
    """The tokens of a run of MODEL."""
    return SyntheticTokens(vocab_size=MODEL.vocab_size, seq_len=TRAINING.seq_len, seed=SEED)


def reference_losses() -> list[float]:
    """The plain model, torch.optim.AdamW, the whole batch at once."""
    weights, losses = start_weights(MODEL), []
    betas = (BETA_1, BETA_2)
    optimizer = torch.optim.AdamW(
        weights.values(), LEARNING_RATE["adamw"], betas=betas, eps=EPSILON, weight_decay=WEIGHT_DECAY
    )
    for step in range(1, NUM_STEPS + 1):
        tokens, targets = replica_batch(synthetic(), step=step, global_batch_size=4, dp=1, dp_rank=0)
        loss = F.cross_entropy(reference_logits(weights, tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def probe() -> Probe:
    """A probe that writes nothing."""
    return Probe(None, rank=0, world_size=1)


def test_the_worker_trains_as_a_plain_transformer_with_torchs_adamw() -> None:
    groups = Groups(coordinates=coordinates(LAYOUT, 0), tp=None, pp=None, dp=None)
    place = Place(groups=groups, device=CPU, probe=probe())
    trainer = Trainer(MODEL, TRAINING, LAYOUT, place, synthetic())
    losses = [trainer.step(step) for step in range(1, NUM_STEPS + 1)]
    assert [loss.item() for loss in losses if loss is not None] == pytest.approx(reference_losses(), abs=1e-5)


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_flash_and_naive_attention_agree(num_kv_heads: int) -> None:
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(2, 4, 24, 64, generator=generator)
    k, v = torch.randn(2, 2, num_kv_heads, 24, 64, generator=generator)
    torch.testing.assert_close(flash_attention(q, k, v), naive_attention(q, k, v), atol=1e-5, rtol=1e-5)


def test_vocab_parallel_cross_entropy_and_its_gradient_equal_torchs_own() -> None:
    tp = TensorGroup(group=None, rank=0, size=1, sequence_parallel=False, probe=probe())
    generator = torch.Generator().manual_seed(1)
    logits = (30 * torch.randn(7, 3, 64, generator=generator)).requires_grad_()
    targets = torch.randint(64, (7, 3), generator=generator)
    ours = vocab_parallel_cross_entropy(logits, targets, tp)
    (gradient,) = torch.autograd.grad(ours, logits)
    theirs = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradient, torch.autograd.grad(theirs, logits)[0], atol=1e-7, rtol=1e-4)
