"""Every text a person reads goes through `t`; the sentence for each fault code stands here.

gettext without streamlit: the command line and the dashboard share it.
"""

from __future__ import annotations

import gettext
from collections.abc import Iterable

from tpdpdash.faults import Fault

_TRANSLATIONS = gettext.NullTranslations()


def t(message: str, **values: object) -> str:
    """The message in the person's language, with `{name}` fields filled from `values`."""
    translated = _TRANSLATIONS.gettext(message)
    return translated.format(**values) if values else translated


# Sentences may use {field}, {value} and whatever Fault.values holds; {nearest} is the nearest legal value or values.
FAULT_TEXTS: dict[str, str] = {
    # any room
    "missing": "{field} is missing",
    "not_whole_number": "{field} must be a whole number, not {value}",
    "not_number": "{field} must be a number, not {value}",
    "not_text": "{field} must be text, not {value}",
    "not_true_false": "{field} must be true or false, not {value}",
    "not_list": "{field} must be a list of whole numbers, not {value}",
    "not_table": "{field} must be a table of keys, not {value}",
    "out_of_range": "{field} is {value}; it must lie between {low} and {high}; nearest legal value: {nearest}",
    "unknown_key": "{field} is not a key here; nearest: {nearest}",
    "unknown_choice": "{field} is {value}; it must be one of {choices}; nearest: {nearest}",
    "not_divisible": "{field} is {value}; it must be divisible by {divisor_name} = {divisor}; nearest: {nearest}",
    "conflicting_keys": "{field} cannot be given together with {other}",
    # files
    "file_missing": "{field}: there is no file {value}",
    "file_too_large": "{field}: the file has {size} bytes; the limit is {limit}",
    "file_unreadable": "{field}: {value} cannot be read: {reason}",
    "not_toml": "{field}: not TOML: {reason}",
    "unknown_framework": "{field} {value} is not known; its habits are taken from the nearest, {nearest}",
    # model
    # cluster
    # layout
    # run
    # worker
    # screens
    "start_token_needed": "Only the holder of the start token can launch or stop; open the address printed at start",
    "unknown_layout_code": "{field} is {value}; a chosen layout is written like tp4-pp2-dp8",
    "cannot_listen": "{field}: cannot listen on port {value}: {reason}",
    "upload_missing": "{field}: the uploaded config {value} is not kept here; drop the file again",
}


def _plain(value: object) -> str:
    """A value as a person would write it; control characters and lone surrogates are escaped, length is bounded."""
    if isinstance(value, (list, tuple, frozenset, set)):
        return ", ".join(_plain(v) for v in value) or "none"
    if value is None:
        return "none"
    shown = value if isinstance(value, str) else repr(value)
    shown = shown.encode("unicode_escape").decode("ascii") if not shown.isprintable() else shown
    return shown if len(shown) <= 120 else f"{shown[:100]}… ({len(shown)} characters)"


def fault_text(fault: Fault) -> str:
    """One sentence that names the field, the value and, where there is one, the nearest legal value."""
    values = {name: _plain(value) for name, value in fault.values.items()}
    return t(FAULT_TEXTS[fault.code], field=_plain(fault.field), value=_plain(fault.value), **values)


def fault_lines(faults: Iterable[Fault]) -> list[str]:
    """One line per fault, in the order found."""
    return [fault_text(fault) for fault in faults]
