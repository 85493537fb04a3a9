"""What a person means by MODEL: a preset's name, a config.json or its folder, or a model on the hub."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.model.config import ReadModel, read_config, read_config_file
from tpdpdash.model.hub import fetch_config, is_hub_id
from tpdpdash.model.presets import preset, preset_names

CONFIG_NAME = "config.json"


def _config_path(text: str, base_dir: Path) -> Path | None:
    """The path of a config, if the text is one: a name that ends in .json, or a folder with a config.json."""
    if not text or "\0" in text:
        return None
    try:
        path = base_dir / Path(text).expanduser()
        if path.suffix.lower() == ".json":
            return path
        return path / CONFIG_NAME if (path / CONFIG_NAME).is_file() else None
    except (OSError, RuntimeError):  # too long for the file system, or ~ of a user who does not exist: no path
        return None


def resolve_model(text: str, *, base_dir: Path | None = None, field: str = "model") -> ReadModel:
    """The model that `text` names; raises InvalidInputError.

    Tried in this order: preset, path, hub id. A path is relative to `base_dir` (default: the working directory) and
    must end in .json or be a folder with a config.json: nothing else is opened. `field`: the key under which the person
    gave the text.
    """
    if text.lower() in preset_names():
        return ReadModel(spec=preset(text))
    path = _config_path(text, base_dir or Path())
    if path is not None:
        return read_config_file(path)
    if is_hub_id(text):
        model = read_config(fetch_config(text), text)
        return replace(model, spec=replace(model.spec, name=text, source=f"hub:{text}"))
    if "/" in text or "\\" in text:
        raise InvalidInputError([Fault(code="not_a_model", field=field, value=text)])
    return ReadModel(spec=preset(text, field))
