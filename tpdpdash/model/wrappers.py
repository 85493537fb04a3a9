"""Configs that wrap a language model (vision, audio): the part that describes the decoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.model.section import Section

DECODER_KEYS = ("text_config", "llm_config", "language_config")
_TOWER_KEYS = ("vision_config", "audio_config", "vision_tower")
"""Keys of what stands beside the language model."""
_TIE = "tie_word_embeddings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapper:
    """Conventions of a wrapper, as transformers v5.24 has them."""

    decoder: str
    """model_type of the language model where the nested config names none."""
    tied: bool = False
    """Whether embeddings are tied where the wrapper does not say."""
    tied_by: Literal["wrapper", "either", "decoder"] = "wrapper"
    """Whose tie_word_embeddings counts."""


WRAPPERS: Mapping[str, Wrapper] = MappingProxyType(
    {
        "llava": Wrapper(decoder="llama", tied_by="either"),
        "llava_next": Wrapper(decoder="llama"),
        "llava_next_video": Wrapper(decoder="llama", tied_by="either"),
        "llava_onevision": Wrapper(decoder="qwen2", tied_by="either"),
        "vipllava": Wrapper(decoder="llama"),
        "video_llava": Wrapper(decoder="llama"),
        "mistral3": Wrapper(decoder="mistral", tied=True),
        "paligemma": Wrapper(decoder="gemma", tied=True),
        "gemma3": Wrapper(decoder="gemma3_text", tied=True),
        "qwen2_vl": Wrapper(decoder="qwen2_vl_text", tied_by="either"),
        "qwen2_5_vl": Wrapper(decoder="qwen2_5_vl_text", tied_by="either"),
        "qwen3_vl": Wrapper(decoder="qwen3_vl_text"),
        "qwen3_vl_moe": Wrapper(decoder="qwen3_vl_moe_text"),
        "llama4": Wrapper(decoder="llama4_text", tied_by="decoder"),
        "idefics2": Wrapper(decoder="mistral"),
        "idefics3": Wrapper(decoder="llama"),
        "smolvlm": Wrapper(decoder="llama"),
        "aya_vision": Wrapper(decoder="cohere2", tied=True),
        "cohere2_vision": Wrapper(decoder="cohere2", tied=True),
        "internvl": Wrapper(decoder="qwen2", tied=True),
    }
)
"""By model_type."""


def _nested(config: Mapping[str, object]) -> tuple[str, object] | None:
    for key in DECODER_KEYS:
        if config.get(key) is not None:
            return key, config[key]
    return None


def _wrapper_of(config: Mapping[str, object]) -> Wrapper | None:
    model_type = config.get("model_type")
    return WRAPPERS.get(model_type) if isinstance(model_type, str) else None


def _tie(config: Mapping[str, object], inner: Mapping[str, object]) -> object:
    """tie_word_embeddings of the language model inside its wrapper; None where the decoder's own default counts."""
    wrapper = _wrapper_of(config)
    own = inner.get(_TIE)
    if wrapper is None:
        return config.get(_TIE, own)
    if wrapper.tied_by == "decoder":
        return own
    outer = config.get(_TIE, wrapper.tied)
    return True if wrapper.tied_by == "either" and own is True else outer


def decoder_section(config: Mapping[str, object], file: str) -> tuple[Section, list[Fault]]:
    """The object that describes the decoder, and notices where that is a part of the whole model only."""
    found = _nested(config)
    if found is None:
        section = Section(table=config, file=file)
        return section, [_left_out(section.label(key), config) for key in _TOWER_KEYS if config.get(key)]
    key, inner = found
    if not isinstance(inner, Mapping):
        raise InvalidInputError([Fault(code="not_table", field=f"{file}: {key}", value=inner)])
    deeper = _nested(inner)
    if deeper is not None:
        raise InvalidInputError([Fault(code="nested_config", field=f"{file}: {key}.{deeper[0]}")])
    table = dict(inner)
    wrapper = _wrapper_of(config)
    if table.get("model_type") is None:
        if wrapper is None:
            raise InvalidInputError([Fault(code="missing", field=f"{file}: {key}.model_type")])
        table["model_type"] = wrapper.decoder
    notices = [_left_out(f"{file}: {key}", config)]
    tie, own = _tie(config, inner), inner.get(_TIE)
    if tie is not None:
        table[_TIE] = tie
    if tie is not None and own is not None and own != tie:
        values = {"used": tie}
        notices.append(Fault(code="wrapper_decides", field=f"{file}: {key}.{_TIE}", value=own, values=values))
    return Section(table=table, file=file, prefix=f"{key}."), notices


def _left_out(label: str, config: Mapping[str, object]) -> Fault:
    return Fault(code="language_model_only", field=label, value=config.get("model_type"))
