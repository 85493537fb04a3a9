"""The preset that a row's model name means, and the sizes that the row leaves to it."""

from __future__ import annotations

import re
from functools import cache

from tpdpdash.compare.cells import Cells
from tpdpdash.model.presets import preset, preset_names
from tpdpdash.model.spec import ModelSpec

MAX_SIZE = 10_000_000
_TRAINED_FURTHER = re.compile(r"(instruct|base|chat|hf)$")
"""What names of checkpoints end with that share one architecture."""


def preset_named(cells: Cells) -> ModelSpec | None:
    """The preset that a row names which states no size at all; "meta-llama/Llama-3.1-70B" is llama-3.1-70b."""
    if any(cells.whole(name, MAX_SIZE) for name in ("num_layers", "hidden")):
        return None
    name = _plain_presets().get(_letters(cells.text("model_name")))
    return preset(name) if name else None


def fill_from_preset(cells: Cells) -> None:
    """Write the sizes that a row does not state into its cells, and note them: those of the preset that its name
    begins with ("DeepSeek-V3 671B"), where the layers and the width that it states are the preset's. The dense width
    in place of the experts' own would make another model."""
    layers, hidden = cells.whole("num_layers", MAX_SIZE), cells.whole("hidden", MAX_SIZE)
    if not (layers and hidden):
        return
    letters = _letters(cells.text("model_name"))
    names = [name for plain, name in _plain_presets().items() if letters.startswith(plain)]
    alike = [known for known in map(preset, names) if (known.num_layers, known.hidden_size) == (layers, hidden)]
    if not alike:
        return
    sizes = _sizes(max(alike, key=lambda known: len(known.name)))
    missing = {column: cell for column, cell in sizes.items() if not cells.text(column)}
    cells.row = {**cells.row, **missing}
    for column in missing:
        cells.infer(column)


def _sizes(known: ModelSpec) -> dict[str, str]:
    """A preset in the columns of a table; no column where it has no such part."""
    sizes = {
        "num_heads": known.num_attention_heads,
        "num_kv_heads": known.num_kv_heads,
        "head_dim": known.head_dim,
        "ffn_hidden": known.ffn_hidden_size,
        "gated_ffn": int(known.gated_mlp),
        "vocab": known.vocab_size,
        "tied_embeddings": int(known.tied_embeddings),
    }
    if known.is_moe:
        sizes |= {
            "num_experts": known.num_experts,
            "top_k": known.num_experts_per_token,
            "moe_ffn_hidden": known.moe_ffn_hidden_size,
            "first_k_dense": known.first_k_dense_layers,
        }
    if known.is_mla:
        sizes |= {
            "q_lora_rank": known.q_lora_rank,
            "kv_lora_rank": known.kv_lora_rank,
            "qk_nope_head_dim": known.qk_nope_head_dim,
            "qk_rope_head_dim": known.qk_rope_head_dim,
            "v_head_dim": known.v_head_dim,
        }
    words = {column: str(size) for column, size in sizes.items() if size or column in ("gated_ffn", "tied_embeddings")}
    shared = known.shared_expert_ffn_hidden_size
    return words | ({"shared_experts": f"ffn{shared}"} if shared else {})


@cache
def _plain_presets() -> dict[str, str]:
    return {_letters(name): name for name in preset_names()}


def _letters(name: str) -> str:
    """A name without its owner, what separates its words, and what it was trained for further."""
    plain = "".join(letter for letter in name.rpartition("/")[2].lower() if letter.isalnum())
    return _TRAINED_FURTHER.sub("", plain)
