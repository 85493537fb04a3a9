"""Names that people give to presets, jobs and runs: they become folder names, job names and parts of URLs."""

from __future__ import annotations

import unicodedata

from tpdpdash.faults import Fault, InvalidInputError

MAX_NAME_LENGTH = 100
MAX_NAME_BYTES = 200
"""Below the 255 bytes of a file name on Linux, with room for a suffix."""
_PUNCTUATION = frozenset("._-")
_RESERVED = frozenset({"con", "prn", "aux", "nul"} | {f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10)})
"""Device names: a folder of such a name cannot be copied to Windows."""


def shown_name(text: str) -> str:
    """A model's name as it can be shown: what cannot be printed is escaped, and its length is bounded."""
    shown = text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
    return shown if len(shown) <= MAX_NAME_LENGTH else f"{shown[: MAX_NAME_LENGTH - 1]}…"


def _is_name_character(character: str) -> bool:
    return character in _PUNCTUATION or unicodedata.category(character)[0] == "L" or character.isdecimal()


def check_name(text: object, field: str) -> str:
    """The name in its composed form (NFC), so that two spellings of one name are equal; raises InvalidInputError.

    A name holds letters, digits, '.', '_' and '-', at most 100 characters, and neither begins nor ends with '.' or
    begins with '-'.
    """
    if not isinstance(text, str):
        raise InvalidInputError([Fault(code="not_text", field=field, value=text)])
    name = unicodedata.normalize("NFC", text)
    faults = []
    if not name:
        faults.append(Fault(code="name_empty", field=field, value=text))
    if len(name) > MAX_NAME_LENGTH or len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        limits = {"length": len(name), "limit": MAX_NAME_LENGTH, "byte_limit": MAX_NAME_BYTES}
        faults.append(Fault(code="name_too_long", field=field, value=text, values=limits))
    wrong = sorted({c for c in name if not _is_name_character(c)})
    if wrong:
        faults.append(Fault(code="name_characters", field=field, value=text, values={"wrong": wrong}))
    elif name.startswith((".", "-")) or name.endswith("."):
        faults.append(Fault(code="name_edges", field=field, value=text))
    elif name.split(".")[0].lower() in _RESERVED:
        faults.append(Fault(code="name_reserved", field=field, value=text))
    if faults:
        raise InvalidInputError(faults)
    return name
