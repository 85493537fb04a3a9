"""Where this user's runs, start token and uploaded configs are kept."""

from __future__ import annotations

from pathlib import Path


def state_dir() -> Path:
    """The user's state directory of tpdpdash, made 0700 when it is missing."""
    from platformdirs import user_state_path

    folder = user_state_path("tpdpdash", appauthor=False)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
