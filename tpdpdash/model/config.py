"""A Hugging Face config.json → ModelSpec. Reads data only: code that a config points to is never imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.fields import nearest_words
from tpdpdash.model.config_json import parse_config, read_config_bytes
from tpdpdash.model.families import Family, Rule, families
from tpdpdash.model.names import shown_name
from tpdpdash.model.patterns import PATTERNS, layer_pattern
from tpdpdash.model.rules import LIMITS, build_spec
from tpdpdash.model.section import ABSENT, Section
from tpdpdash.model.spec import ModelSpec
from tpdpdash.model.variants import VARIANTS
from tpdpdash.model.windows import num_sliding_layers, sliding_window
from tpdpdash.model.wrappers import decoder_section

PREDICTION_KEY = "num_nextn_predict_layers"
ATTENTION_KINDS = frozenset(
    {"full_attention", "sliding_attention", "chunked_attention", "attention", "global", "local"}
)
"""Kinds of layer that have the same parameters; state-space and linear attention have others."""

NULL_MEANS_NONE = frozenset({"q_lora_rank", "num_shared_experts", "shared_expert_ffn_hidden_size"})
"""Numbers whose null says that the part is absent."""
NULL_FOLLOWS = frozenset({"num_kv_heads", "head_dim"})
"""Numbers whose null says that they follow from others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadModel:
    """A model and what has to be said about how it was read."""

    spec: ModelSpec
    """The architecture."""
    notices: tuple[Fault, ...] = ()
    """Not wrong, but never silent: assumed values, parts that are not counted, keys that stand twice."""


@dataclass(slots=True, kw_only=True)
class _Reading:
    """What was read so far; lives inside one call of read_config_table."""

    section: Section
    family: Family
    values: dict[str, object]
    labels: dict[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    notices: list[Fault] = field(default_factory=list)

    def label(self, name: str) -> str:
        """The key that a field was read from."""
        return self.labels.get(name, self.section.label(name))

    def whole(self, name: str) -> int | None:
        """A whole number within its limits, or None: what follows from a wrong one is not looked at."""
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int):
            return None
        low, high = LIMITS.get(name, (0, 65_536))
        return value if low <= value <= high else None


def _read_rule(reading: _Reading, name: str, rule: Rule) -> None:
    """Read one field by its rule: value, class default (said, if it is a number), or left for rules.py to complete."""
    section = reading.section
    key, value = section.find(rule.keys)
    reading.labels[name] = section.label(key)
    conflict = section.conflict(rule.keys)
    if conflict is not None:
        reading.faults.append(conflict)
    if value is ABSENT:
        size = reading.family.sizes.get(name) if section.is_nested else None
        value = rule.default if rule.default is not None else size
        if value is not None and not isinstance(value, bool):
            reading.notices.append(Fault(code="default_assumed", field=section.label(key), value=value))
    elif value is None and isinstance(rule.default, bool):
        value = False
    elif value is None and name in NULL_MEANS_NONE:
        value = 0
    elif value is None and rule.default is not None and name not in NULL_FOLLOWS:
        reading.faults.append(Fault(code="missing", field=section.label(key)))
    if rule.is_switch and isinstance(value, bool):
        value = rule.when_true if value else rule.when_false
    elif rule.is_switch:
        reading.faults.append(Fault(code="not_true_false", field=section.label(key), value=value))
        value = None
    reading.values[name] = value


def _check_requirements(reading: _Reading) -> None:
    """Keys that must hold one value, and layers that must all be attention."""
    section = reading.section
    for key, needed in reading.family.requires.items():
        value = section.get(key)
        if value is not ABSENT and value is not None and value != needed:
            fault = Fault(code="unsupported_value", field=section.label(key), value=value, values={"needed": needed})
            reading.faults.append(fault)
    kinds = section.get("layer_types")
    if isinstance(kinds, list) and not {str(kind) for kind in kinds} <= ATTENTION_KINDS:
        other = sorted({str(kind) for kind in kinds} - ATTENTION_KINDS)[:5]
        reading.faults.append(Fault(code="unsupported_layers", field=section.label("layer_types"), value=other))


def _derive(reading: _Reading) -> None:
    """Fields that follow from others: MLP width, position rows, shared experts."""
    values, family = reading.values, reading.family
    hidden = reading.whole("hidden_size")
    if values.get("ffn_hidden_size") is None and family.ffn_multiple and hidden:
        values["ffn_hidden_size"] = family.ffn_multiple * hidden
    positions = reading.whole("position_embedding_size")
    if positions is not None and family.position_offset:
        values["position_embedding_size"] = positions + family.position_offset
    shared = values.pop("num_shared_experts", None)
    if isinstance(shared, bool) or not isinstance(shared, int | None) or (isinstance(shared, int) and shared < 0):
        reading.faults.append(Fault(code="not_whole_number", field=reading.label("num_shared_experts"), value=shared))
    elif shared and (width := reading.whole("moe_ffn_hidden_size")):
        values["shared_expert_ffn_hidden_size"] = shared * width


def _read_prediction(reading: _Reading) -> None:
    """Multi-token prediction modules: one key in all families, absent or null without them."""
    value = reading.section.get(PREDICTION_KEY)
    reading.labels["mtp_num_layers"] = reading.section.label(PREDICTION_KEY)
    reading.values["mtp_num_layers"] = 0 if value is ABSENT or value is None else value


def _read_window(reading: _Reading) -> None:
    """Attention that sees a window only, and in how many layers."""
    values, section = reading.values, reading.section
    values["sliding_window"] = sliding_window(section)
    reading.labels["sliding_window"] = section.label("sliding_window")
    layers = reading.whole("num_layers")
    if layers and reading.whole("sliding_window"):
        values["sliding_layers"] = num_sliding_layers(section, layers, reading.family.full_every)


def _place_experts(reading: _Reading) -> None:
    """Which layers route to experts; a model without experts keeps none of their fields."""
    values, name = reading.values, reading.family.moe_layers
    layers = reading.whole("num_layers")
    experts = values.get("num_experts")
    if experts is None or (type(experts) is int and experts == 0):
        for part in ("num_experts", "num_experts_per_token", "moe_ffn_hidden_size", "shared_expert_ffn_hidden_size"):
            values.pop(part, None)
        values |= {"first_k_dense_layers": 0, "shared_expert_gate": False, "router_bias": False}
        return
    if layers is None or name not in PATTERNS:
        return
    values |= asdict(layer_pattern(PATTERNS[name](reading.section, layers), layers))


def _shown_name(config: Mapping[str, object], fallback: str) -> str:
    """The name in the config, or the file's; what cannot be shown is escaped."""
    given = config.get("_name_or_path")
    return shown_name(given if isinstance(given, str) and given.strip() else fallback)


def _family_of(section: Section) -> tuple[Family, list[Fault]]:
    """The family that the model_type names; without one a Llama-like decoder is assumed, and that is said."""
    known = families()
    model_type = section.get("model_type")
    if model_type is ABSENT or model_type is None:
        classes = section.get("architectures")
        stems = (
            [str(c).lower().split("for")[0].removesuffix("lmheadmodel") for c in classes]
            if isinstance(classes, list)
            else []
        )
        by_class = {name.replace("_", ""): name for name in known}
        if stems and stems[0] not in by_class:
            raise InvalidInputError([_unknown_architecture(section, "architectures", str(stems[0]))])
        name = by_class[stems[0]] if stems else "llama"
        return known[name], [Fault(code="decoder_assumed", field=section.label("model_type"), value=name)]
    if not isinstance(model_type, str):
        raise InvalidInputError([Fault(code="not_text", field=section.label("model_type"), value=model_type)])
    if model_type not in known:
        raise InvalidInputError([_unknown_architecture(section, "model_type", model_type)])
    return known[model_type], []


def _unknown_architecture(section: Section, key: str, value: str) -> Fault:
    nearest = nearest_words(value, tuple(families()), cutoff=0.6)
    return Fault(code="unknown_architecture", field=section.label(key), value=value, values={"nearest": nearest})


def _remarks(config: Mapping[str, object], file: str) -> list[Fault]:
    """What the file holds and the count leaves out."""
    remarks = []
    if config.get("auto_map"):
        remarks.append(Fault(code="remote_code_ignored", field=f"{file}: auto_map", value=config["auto_map"]))
    if config.get(PREDICTION_KEY) not in (None, 0):
        value = config[PREDICTION_KEY]
        remarks.append(Fault(code="prediction_layers_left_out", field=f"{file}: {PREDICTION_KEY}", value=value))
    return remarks


def read_config_table(config: Mapping[str, object], file: str) -> ReadModel:
    """A config that is a dict already; `file` stands before each key in faults. Raises InvalidInputError."""
    remarks = _remarks(config, file)
    try:
        section, notices = decoder_section(config, file)
        family, assumed = _family_of(section)
    except InvalidInputError as error:
        raise InvalidInputError((*error.faults, *remarks)) from None
    reading = _Reading(section=section, family=family, values=dict(family.literals))
    for name, rule in family.rules.items():
        if rule.keys:
            _read_rule(reading, name, rule)
    _check_requirements(reading)
    for step in (_derive, _apply_variant, _read_prediction, _read_window, _place_experts):
        try:
            step(reading)
        except InvalidInputError as error:
            reading.faults.extend(error.faults)
    reading.values |= {"name": _shown_name(config, file), "source": f"config:{file}"}
    spec, faults = build_spec(reading.values, reading.label)
    all_faults = {(fault.code, fault.field): fault for fault in (*reading.faults, *faults)}
    if spec is None or all_faults:
        wrong = {field for _, field in all_faults}
        raise InvalidInputError((*all_faults.values(), *(n for n in reading.notices if n.field in wrong)))
    return ReadModel(spec=spec, notices=(*notices, *assumed, *reading.notices, *remarks))


def _apply_variant(reading: _Reading) -> None:
    if reading.family.variant:
        reading.values |= VARIANTS[reading.family.variant](reading.section, reading.values)


def read_config(data: bytes, name: str = "config.json") -> ReadModel:
    """The bytes of a config.json; `name` is the file's name. Raises InvalidInputError with every fault."""
    config, notices = parse_config(data, name)
    model = read_config_table(config, name)
    return ReadModel(spec=model.spec, notices=(*notices, *model.notices))


def read_config_file(path: Path) -> ReadModel:
    """A config.json on disk; refused by its size before it is read.

    Without a name inside, the model is called as the file, or as the folder of a plain config.json.
    """
    model = read_config(read_config_bytes(path), path.name)
    if model.spec.name != path.name:
        return model
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return ReadModel(spec=replace(model.spec, name=name or path.name), notices=model.notices)
