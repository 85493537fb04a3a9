"""Bytes that claim to be a config.json → a dict. Hostile or broken bytes become faults; nothing is ever executed."""

from __future__ import annotations

import json
from pathlib import Path

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.model.rules import LongNumber

MAX_CONFIG_BYTES = 5_000_000
"""A real config.json has a few kilobytes; those with long label tables reach some hundred."""
MAX_DUPLICATE_NOTICES = 20
_MAX_DIGITS = 300

_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"PK\x03\x04", "zip"),
    (b"\x1f\x8b", "gzip"),
    (b"GGUF", "gguf"),
    (b"\x89HDF", "hdf5"),
    (b"version https://git-lfs", "git_lfs"),
    (b"<!doctype html", "html"),
    (b"<html", "html"),
    (b"<", "xml"),
)


def _foreign_kind(data: bytes) -> str | None:
    """What the bytes are, if they are recognisably something else than JSON; looks at the first bytes only."""
    head = data[:200].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for signature, kind in _SIGNATURES:
        if head.startswith(signature.lower()):
            return kind
    if data[:1] == b"\x80" and data[1:2] in b"\x01\x02\x03\x04\x05":
        return "pickle"
    header_size = int.from_bytes(data[:8], "little")
    if len(data) > 9 and data[8:9] == b"{" and header_size < 2**32 and data[0:1] not in b" \t\r\n{[":
        return "safetensors"
    return None


def _decoded(data: bytes, name: str) -> str:
    """Text of the file: UTF-8, or UTF-16 / UTF-32 as JSON allows; a byte order mark is skipped."""
    encoding = json.detect_encoding(data)
    try:
        return data.decode(encoding).removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")
    except UnicodeDecodeError as error:
        values = {"encoding": encoding, "position": error.start}
        raise InvalidInputError([Fault(code="not_utf8", field=name, values=values)]) from None


def _whole_number(digits: str) -> int | LongNumber:
    return int(digits) if len(digits) <= _MAX_DIGITS else LongNumber(digits)


def parse_config(data: bytes, name: str) -> tuple[dict[str, object], tuple[Fault, ...]]:
    """The config as a dict, and a notice for each key that stands twice in one object (the last one counts)."""
    if len(data) > MAX_CONFIG_BYTES:
        raise InvalidInputError([too_large_fault(name, len(data))])
    if not data.strip():
        raise InvalidInputError([Fault(code="file_empty", field=name)])
    kind = _foreign_kind(data)
    if kind is not None:
        raise InvalidInputError([Fault(code=f"file_is_{kind}", field=name)])
    notices: list[Fault] = []

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        table: dict[str, object] = {}
        for key, value in pairs:
            if key in table and len(notices) < MAX_DUPLICATE_NOTICES:
                notices.append(Fault(code="duplicate_key", field=f"{name}: {key}", value=value))
            table[key] = value
        return table

    try:
        config = json.loads(_decoded(data, name), object_pairs_hook=unique, parse_int=_whole_number)
    except json.JSONDecodeError as error:
        values = {"reason": error.msg, "line": error.lineno, "column": error.colno}
        raise InvalidInputError([Fault(code="not_json", field=name, values=values)]) from None
    except RecursionError:
        raise InvalidInputError([Fault(code="nested_too_deep", field=name)]) from None
    if not isinstance(config, dict):
        raise InvalidInputError([Fault(code="not_table", field=name, value=config)])
    return config, tuple(notices)


def too_large_fault(name: str, size: int) -> Fault:
    """The fault of a file that is refused by its size."""
    return Fault(code="file_too_large", field=name, value=name, values={"size": size, "limit": MAX_CONFIG_BYTES})


def read_config_bytes(path: Path) -> bytes:
    """The file's bytes; its kind and size are checked before anything is read."""
    try:
        if not path.is_file():
            raise InvalidInputError([Fault(code="file_missing", field="model.config", value=str(path))])
        size = path.stat().st_size
        if size > MAX_CONFIG_BYTES:
            raise InvalidInputError([too_large_fault(path.name, size)])
        with path.open("rb") as file:
            return file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        values = {"reason": error.strerror or "unknown"}
        raise InvalidInputError(
            [Fault(code="file_unreadable", field="model.config", value=str(path), values=values)]
        ) from error
