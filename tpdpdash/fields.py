"""A table of keys that a person wrote → checked values of a fact type, every fault at once.

pydantic does the checking; it is imported here, when a table is read, and nowhere else in the fact rooms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from tpdpdash.faults import Fault, out_of_range

if TYPE_CHECKING:
    from pydantic import BaseModel

Limits = Mapping[str, tuple[float, float]]
MAX_COMPARED = 64
"""Characters of a wrong word that are compared with the legal ones: comparing takes the square of the length."""

_CODES = {
    "missing": "missing",
    "extra_forbidden": "unknown_key",
    "literal_error": "unknown_choice",
    "bool_type": "not_true_false",
    "string_type": "not_text",
    "tuple_type": "not_list",
    "float_type": "not_number",
    "finite_number": "not_number",
    "int_type": "not_whole_number",
    "int_from_float": "not_whole_number",
}


def nearest(word: object, choices: tuple[str, ...]) -> str | None:
    """The choice that is spelled most like `word`, whatever its case; None when nothing is alike."""
    return next(iter(nearest_words(word, choices, most=1, cutoff=0.4)), None)


def nearest_words(word: object, choices: tuple[str, ...], *, most: int = 3, cutoff: float = 0.5) -> tuple[str, ...]:
    """The choices that are spelled most like `word`, whatever its case, best first: `most` of them, and only those
    whose likeness (difflib's ratio) is at least `cutoff`."""
    by_lower = {choice.lower(): choice for choice in choices}
    matches = get_close_matches(str(word)[:MAX_COMPARED].lower(), by_lower, n=most, cutoff=cutoff)
    return tuple(by_lower[match] for match in matches)


@cache
def _reader(kind: type) -> type[BaseModel]:
    """A strict pydantic model with the fields of a dataclass: no coercion, no unknown keys, finite numbers."""
    from pydantic import ConfigDict, create_model

    hints = get_type_hints(kind)
    definitions: dict[str, Any] = {}
    for field in fields(kind):
        required = field.default is MISSING and field.default_factory is MISSING
        definitions[field.name] = (hints[field.name], ... if required else None)
    config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    return create_model(kind.__name__, __config__=config, **definitions)


def _fault(error: Mapping[str, Any], kind: type, path: str) -> Fault:
    """One of pydantic's errors in our words; `path` is the table's name."""
    key = str(error["loc"][0])
    code = _CODES.get(error["type"], "not_whole_number")
    given = None if code == "missing" else error["input"]
    values: dict[str, object] = {}
    if code == "unknown_key":
        values["nearest"] = nearest(key, tuple(f.name for f in fields(kind)))
    if code == "unknown_choice":
        choices = tuple(c for c in _choices(kind, key) if isinstance(c, str))
        values |= {"choices": choices, "nearest": nearest(given, choices)}
    return Fault(code=code, field=f"{path}.{key}", value=given, values=values)


def _choices(kind: type, key: str) -> tuple[object, ...]:
    """The legal words of a Literal field, also where None is allowed besides."""
    arguments = get_args(get_type_hints(kind)[key])
    return tuple(c for a in arguments for c in (get_args(a) or (a,)))


def read_fields(
    kind: type, table: Mapping[str, object], path: str, limits: Limits
) -> tuple[dict[str, Any], list[Fault]]:
    """Check a table against a dataclass: types, unknown keys, missing keys, and `limits` (low, high) by key.

    Returns the values that are usable and all faults; the values are complete only when there is no fault.
    """
    from pydantic import ValidationError

    null = [key for key, value in table.items() if value is None]
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items() if v is not None}
    faults: list[Fault] = []
    try:
        _reader(kind).model_validate(given)
    except ValidationError as invalid:
        seen: dict[str, Fault] = {}
        for error in invalid.errors(include_url=False, include_context=False):
            seen.setdefault(str(error["loc"][0]), _fault(error, kind, path))
        faults = list(seen.values())
    told = {fault.field for fault in faults}
    faults += [Fault(code="missing", field=f"{path}.{key}") for key in null if f"{path}.{key}" not in told]
    broken = {fault.field.removeprefix(f"{path}.") for fault in faults}
    values: dict[str, Any] = {key: value for key, value in given.items() if key not in broken}
    for key in [key for key in values if key in limits]:
        low, high = limits[key]
        entries = values[key] if isinstance(values[key], tuple) else (values[key],)
        wrong = [entry for entry in entries if not low <= entry <= high]
        if wrong:
            faults.append(out_of_range(f"{path}.{key}", wrong[0], low, high))
            del values[key]
    return values, faults
