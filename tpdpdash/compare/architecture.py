"""The model of a row: columns as published, and the conventions of the model family where a column says nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from tpdpdash.compare.cells import Cells, UnreadableRowError
from tpdpdash.compare.named_model import MAX_SIZE, preset_named
from tpdpdash.compare.notes import dense_layers_of, has_flag, is_megatron_command_line, option
from tpdpdash.layout.frameworks import MEGATRON
from tpdpdash.model.families import families
from tpdpdash.model.spec import ModelSpec, Norm
from tpdpdash.model.windows import all_but_every
from tpdpdash.units import ceil_div

T = TypeVar("T")
MAX_LAYERS, MAX_EXPERTS = 10_000, 100_000
HEAD_DIM = 128
"""Width of a head where none is stated."""
FFN_FACTOR = 4
"""Inner width of a plain MLP over the hidden size, where none is stated."""
VOCAB_SIZE = 51_200
"""GPT-2's vocabulary as Megatron pads it, where none is stated."""
PADDED_VOCAB, PADDED_TO = "flash-attn training", 8
"""The training code that pads every vocabulary, and to what: pad_vocab_size_multiple in flash-attention's
training/configs/model/gpt2.yaml."""
BIASED_EXPERTS, EVERY_SECOND = "gpt-oss", "llama4-maverick"
"""Families whose experts have biases, and whose every second layer is dense."""
WINDOWS: dict[str, tuple[int, str]] = {
    "gpt-oss": (128, "gpt_oss"),
    "gemma2": (4096, "gemma2"),
    "gemma3": (1024, "gemma3_text"),
}
"""Families with a sliding window, by their models' config.json, and their name there."""
MLA_COLUMNS = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def model_of(cells: Cells) -> ModelSpec:
    """The architecture. Raises UnreadableRowError where layers or width are not stated, and the name is no preset's.

    Plain MLPs with as many key/value heads as heads are GPT's kind: layer norms, biases, a learned position table.
    With grouped heads, or beside rotary positions, a plain MLP is Nemotron's kind: layer norms without biases.
    """
    layers, hidden = cells.whole("num_layers", MAX_LAYERS), cells.whole("hidden", MAX_SIZE)
    known = preset_named(cells)
    if known is not None:
        return _as_named(cells, known)
    if not layers or not hidden:
        raise UnreadableRowError("no_architecture", "num_layers" if not layers else "hidden")
    heads, kv_heads, head_dim = _heads(cells, hidden)
    gated = _or(cells, "gated_ffn", cells.flag("gated_ffn"), _states_width(cells))
    notes = cells.text("notes")
    learned = not gated and kv_heads == heads and option(notes, "position-embedding-type") is None
    biased = learned and not has_flag(notes, "disable-bias-linear") and "no biases" not in notes
    if is_megatron_command_line(notes):
        learned = option(notes, "position-embedding-type") is None
        biased = not has_flag(notes, "disable-bias-linear")
    mla: dict[str, Any] = {name: cells.whole(name, MAX_SIZE) or 0 for name in MLA_COLUMNS}
    return ModelSpec(
        name=cells.text("model_name"),
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_hidden_size=cells.whole("ffn_hidden", MAX_SIZE) or _dense_width(cells, hidden),
        vocab_size=_vocab_size(cells),
        gated_mlp=gated,
        tied_embeddings=_tied(cells, learned),
        position_embedding_size=(cells.whole("seq_len", 100 * MAX_SIZE) or 0) if learned else 0,
        norm=_norm(cells, gated),
        qkv_bias=biased,
        attention_output_bias=biased,
        mlp_bias=biased or cells.word("model_family").startswith(BIASED_EXPERTS),
        qk_norm="head" if has_flag(notes, "qk-layernorm") else "none",
        **_windows(cells, layers),
        **_experts(cells, hidden),
        **mla,
    )


def _as_named(cells: Cells, known: ModelSpec) -> ModelSpec:
    for column in ("num_layers", "hidden"):
        cells.infer(column)
    vocab = cells.whole("vocab", MAX_SIZE) or known.vocab_size
    return replace(known, name=cells.text("model_name"), vocab_size=vocab)


def _vocab_size(cells: Cells) -> int:
    """Rows of the table as trained, noted where they are not what the row says."""
    stated = _or(cells, "vocab", cells.whole("vocab", MAX_SIZE), VOCAB_SIZE)
    if PADDED_VOCAB not in cells.word("framework") or stated % PADDED_TO == 0:
        return stated
    cells.infer("vocab")
    return ceil_div(stated, PADDED_TO) * PADDED_TO


def num_experts_of(cells: Cells) -> int:
    """Routed experts; 0 for a dense model, also where a row says that it has one."""
    known = preset_named(cells)
    experts = known.num_experts if known else cells.whole("num_experts", MAX_EXPERTS) or 0
    return experts if experts > 1 else 0


def _or(cells: Cells, name: str, stated: T | None, inferred: T) -> T:
    """What is stated; else the inferred value, noted."""
    if stated is not None and stated != 0:
        return stated
    if stated is False:
        return stated
    cells.infer(name)
    return inferred


def _heads(cells: Cells, hidden: int) -> tuple[int, int, int]:
    """(heads, key/value heads, head width); a missing one from the others."""
    heads, head_dim = cells.whole("num_heads", MAX_SIZE), cells.whole("head_dim", MAX_SIZE)
    if not heads:
        cells.infer("num_heads")
        heads = max(1, hidden // (head_dim or HEAD_DIM))
    kv_heads = _or(cells, "num_kv_heads", cells.whole("num_kv_heads", MAX_SIZE), heads)
    return heads, min(kv_heads, heads), head_dim or max(1, hidden // heads)


def _states_width(cells: Cells) -> bool:
    """Whether the row says how wide its MLPs are. Where it does not, the width of a plain MLP is taken."""
    return any(cells.whole(name, MAX_SIZE) for name in ("ffn_hidden", "moe_ffn_hidden"))


def _dense_width(cells: Cells, hidden: int) -> int:
    """Width of a dense MLP that is not stated. Of no use, and not noted, where every layer has experts."""
    if not num_experts_of(cells):
        cells.infer("ffn_hidden")
    return FFN_FACTOR * hidden


def _tied(cells: Cells, learned: bool) -> bool:
    """Embedding and head share their weights: as stated, else as GPT does."""
    return _or(cells, "tied_embeddings", cells.flag("tied_embeddings"), learned)


def _norm(cells: Cells, gated: bool) -> Norm:
    """RMS norms with gated MLPs, layer norms with plain ones; Megatron's layer norm unless its flag says otherwise."""
    notes = cells.text("notes")
    if is_megatron_command_line(notes):
        return "rmsnorm" if option(notes, "normalization") == "RMSNorm" else "layernorm"
    if "no biases" in notes and cells.word("framework_family") not in MEGATRON:
        return "layernorm_no_bias"
    return "rmsnorm" if gated else "layernorm"


def _experts(cells: Cells, hidden: int) -> dict[str, Any]:
    """Routed and shared experts; empty for a dense model."""
    experts = num_experts_of(cells)
    if not experts:
        return {}
    width = cells.whole("moe_ffn_hidden", MAX_SIZE)
    width = width or _or(cells, "moe_ffn_hidden", cells.whole("ffn_hidden", MAX_SIZE), FFN_FACTOR * hidden)
    first = cells.whole("first_k_dense", MAX_LAYERS) or 0
    return {
        "num_experts": experts,
        "num_experts_per_token": min(_or(cells, "top_k", cells.whole("top_k", MAX_EXPERTS), 1), experts),
        "moe_ffn_hidden_size": width,
        "shared_expert_ffn_hidden_size": _shared_width(cells, width),
        "first_k_dense_layers": first,
        "moe_layer_interval": 2 if cells.word("model_family").startswith(EVERY_SECOND) else 1,
        "dense_layers": dense_layers_of(cells.text("notes")),
    }


def _windows(cells: Cells, layers: int) -> dict[str, Any]:
    family = cells.word("model_family")
    known = next((known for name, known in WINDOWS.items() if family.startswith(name)), None)
    if known is None:
        return {}
    window, model_type = known
    return {"sliding_window": window, "sliding_layers": all_but_every(families()[model_type].full_every, layers)}


def _shared_width(cells: Cells, width: int) -> int:
    """Inner width of all shared experts: a number of experts, or their width ("ffn512")."""
    cell = cells.word("shared_experts")
    if cell.startswith("ffn") and cell[3:].isdecimal():
        return min(int(cell[3:]), MAX_SIZE)
    return (cells.whole("shared_experts", MAX_EXPERTS) or 0) * width
