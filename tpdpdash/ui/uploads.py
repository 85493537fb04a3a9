"""Uploaded config.json files, kept by their content hash so that an address can name them."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.state_dir import made_private, state_dir

PREFIX = "config:"
HASH_CHARS = 16


def _folder() -> Path:
    return made_private(made_private(state_dir()) / "configs")


def keep_config(data: bytes, name: str) -> str:
    """Keep an uploaded config; the view's `model` for it. Raises InvalidInputError when it cannot be read."""
    from tpdpdash.model.config import read_config

    read_config(data, name)
    digest = hashlib.sha256(data).hexdigest()[:HASH_CHARS]
    path = _folder() / f"{digest}.json"
    if not path.exists():
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_bytes(data)
        temporary.replace(path)
    return f"{PREFIX}{digest}"


def model_table(model: str) -> dict[str, object]:
    """The [model] table of a view's `model`. Raises InvalidInputError when an upload is not here (any more)."""
    if not model.startswith(PREFIX):
        return {"preset": model}
    digest = model.removeprefix(PREFIX)
    path = _folder() / f"{digest}.json"
    if not re.fullmatch(rf"[0-9a-f]{{{HASH_CHARS}}}", digest) or not path.is_file():
        raise InvalidInputError([Fault(code="upload_missing", field="model", value=model)])
    return {"config": str(path)}
