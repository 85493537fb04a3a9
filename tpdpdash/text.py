"""Every text a person reads goes through `t`; a fault becomes the sentence of its code.

gettext without streamlit: the command line and the dashboard share it.
"""

from __future__ import annotations

import gettext
import re
from collections.abc import Iterable
from datetime import date, time

from tpdpdash.fault_texts import FAULT_TEXTS
from tpdpdash.faults import Fault, written

_NEAREST = re.compile(r"; nearest(?: legal value)?: \{nearest\}$| \(nearest: \{nearest\}\)")
"""What a sentence says of the nearest legal value, where it can be left out: there may be none near."""
_TRANSLATIONS = gettext.NullTranslations()


def t(message: str, **values: object) -> str:
    """The message in the person's language, with `{name}` fields filled from `values`."""
    translated = _TRANSLATIONS.gettext(message)
    return translated.format(**values) if values else translated


def _plain(value: object) -> str:
    """A value as a person would write it; control characters and lone surrogates are escaped, length is bounded."""
    if isinstance(value, (list, tuple, frozenset, set)):
        return ", ".join(_plain(v) for v in value) or "none"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    shown = str(value) if isinstance(value, (str, date, time)) else written(value)
    if not shown:
        return '""'
    shown = shown.encode("unicode_escape").decode("ascii") if not shown.isprintable() else shown
    return shown if len(shown) <= 120 else f"{shown[:100]}… ({len(shown)} characters)"


def fault_text(fault: Fault) -> str:
    """One sentence that names the field, the value and, where there is one, the nearest legal value."""
    values = {name: _plain(value) for name, value in fault.values.items()}
    text = FAULT_TEXTS[fault.code]
    if "nearest" in fault.values and fault.values["nearest"] in (None, (), [], ""):
        text = _NEAREST.sub("", text)
    return t(text, field=_plain(fault.field), value=_plain(fault.value), **values)


def fault_lines(faults: Iterable[Fault]) -> list[str]:
    """One line per fault, in the order found."""
    return [fault_text(fault) for fault in faults]
