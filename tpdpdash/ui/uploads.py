"""Uploaded models, kept by their content hash so that an address can name them: config.json files, and the [model]
table of a Job file."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.state_dir import made_private, state_dir

PREFIX = "config:"
TABLE_PREFIX = "table:"
HASH_CHARS = 16


def _folder() -> Path:
    return made_private(made_private(state_dir()) / "configs")


def keep_config(data: bytes, name: str) -> str:
    """Keep an uploaded config; the view's `model` for it. Raises InvalidInputError when it cannot be read."""
    from tpdpdash.model.config import read_config

    read_config(data, name)
    return f"{PREFIX}{_keep(data)}"


def keep_table(table: Mapping[str, object]) -> str:
    """Keep the [model] table of a Job file, which was read already; the view's `model` for it."""
    return f"{TABLE_PREFIX}{_keep(json.dumps(table, sort_keys=True).encode())}"


def is_upload(model: str) -> bool:
    """Whether a view's `model` is one that was uploaded."""
    return model.startswith((PREFIX, TABLE_PREFIX))


def model_table(model: str) -> dict[str, object]:
    """The [model] table of a view's `model`. Raises InvalidInputError when an upload is not here (any more)."""
    if not is_upload(model):
        return {"preset": model}
    kind, _, digest = model.partition(":")
    path = _path(digest)
    if not re.fullmatch(rf"[0-9a-f]{{{HASH_CHARS}}}", digest) or not path.is_file():
        raise InvalidInputError([Fault(code="upload_missing", field="model", value=model)])
    if f"{kind}:" == PREFIX:
        return {"config": str(path)}
    table: dict[str, object] = json.loads(path.read_bytes())
    return table


def _path(digest: str) -> Path:
    return _folder() / f"{digest}.json"


def _keep(data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()[:HASH_CHARS]
    path = _path(digest)
    if not path.exists():
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_bytes(data)
        temporary.replace(path)
    return digest
