"""What a table cannot say about an architecture: fields of ModelSpec that follow from several keys.

Each variant takes the decoder's section and the values read so far, and gives values to set on top. A value may be
of the wrong type still (rules.py says so later): a variant then leaves it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.model.section import ABSENT, Section

Values = Mapping[str, object]
Variant = Callable[[Section, Values], dict[str, object]]


def _whole(values: Values, field: str) -> int | None:
    value = values.get(field)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _switch(section: Section, key: str, default: bool) -> bool:
    value = section.get(key)
    if value is ABSENT:
        return default
    if value is None:
        return False
    if not isinstance(value, bool):
        raise InvalidInputError([Fault(code="not_true_false", field=section.label(key), value=value)])
    return value


def _attention_sinks(_: Section, values: Values) -> dict[str, object]:
    """One learned sink a head in each layer (gpt-oss)."""
    return {"extra_parameters_per_layer": _whole(values, "num_attention_heads") or 0}


def _mla(_: Section, values: Values) -> dict[str, object]:
    """Multi-head latent attention: every head has its own keys and values, and its width comes from its parts."""
    unread: dict[str, object] = {"num_kv_heads": None, "head_dim": None}
    return unread if values.get("kv_lora_rank") else {}


def _plain_heads(section: Section, values: Values) -> dict[str, object]:
    """A head_dim of its own is refused where norms on queries and keys do not follow it (OLMoE, Phi)."""
    hidden, heads, head_dim = (_whole(values, f) for f in ("hidden_size", "num_attention_heads", "head_dim"))
    if hidden and heads and head_dim and head_dim * heads != hidden:
        needed = {"needed": hidden // heads}
        raise InvalidInputError(
            [Fault(code="unsupported_value", field=section.label("head_dim"), value=head_dim, values=needed)]
        )
    return {}


def _qk_norm_bias(section: Section, values: Values) -> dict[str, object]:
    """Norms on queries and keys have a bias each, of a head's width (Phi, Persimmon)."""
    hidden, heads = _whole(values, "hidden_size"), _whole(values, "num_attention_heads")
    if values.get("qk_norm") != "head" or not hidden or not heads:
        return {}
    return {**_plain_heads(section, values), "extra_parameters_per_layer": 2 * (hidden // heads)}


def _multi_query(section: Section, _: Values) -> dict[str, object]:
    """One key/value head, unless multi_query is false (GPT-BigCode)."""
    return {"num_kv_heads": 1 if _switch(section, "multi_query", True) else None}


def _embedding_norm(_: Section, values: Values) -> dict[str, object]:
    """A layer norm with a bias after the embedding (BLOOM)."""
    return {"extra_parameters": 2 * (_whole(values, "hidden_size") or 0)}


def _opt(section: Section, values: Values) -> dict[str, object]:
    """No final norm where norms come last; the embedding must be as wide as the residual stream."""
    width = section.get("word_embed_proj_dim")
    if width is not ABSENT and width is not None and width != values.get("hidden_size"):
        needed = {"needed": values.get("hidden_size")}
        raise InvalidInputError(
            [Fault(code="unsupported_value", field=section.label("word_embed_proj_dim"), value=width, values=needed)]
        )
    final = _switch(section, "do_layer_norm_before", True) and not _switch(section, "_remove_final_layer_norm", False)
    weights = _switch(section, "layer_norm_elementwise_affine", True)
    return {"final_norm": final, "norm": "layernorm" if weights else "none"}


def _falcon(section: Section, values: Values) -> dict[str, object]:
    """Falcon-40B's architecture groups heads, Falcon-7B's has one key/value head, Falcon-RW's has all of them."""
    new = _switch(section, "new_decoder_architecture", False)
    parallel = _switch(section, "parallel_attn", True)
    norms = section.get("num_ln_in_parallel_attn")
    two_norms = not parallel or norms == 2 or (new and (norms is ABSENT or norms is None))
    kv_heads = values.get("num_kv_heads") if new else 1 if _switch(section, "multi_query", True) else None
    return {"num_kv_heads": kv_heads, "norms_per_layer": 2 if two_norms else 1}


VARIANTS: Mapping[str, Variant] = MappingProxyType(
    {
        "attention_sinks": _attention_sinks,
        "mla": _mla,
        "plain_heads": _plain_heads,
        "qk_norm_bias": _qk_norm_bias,
        "multi_query": _multi_query,
        "embedding_norm": _embedding_norm,
        "opt": _opt,
        "falcon": _falcon,
    }
)
"""By the name that families.toml uses."""
