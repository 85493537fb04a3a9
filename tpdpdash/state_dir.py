"""Where this user's runs, archives, claims on devices, locks, start token and uploaded configs are kept."""

from __future__ import annotations

from pathlib import Path


def state_dir() -> Path:
    """The user's state directory of tpdpdash, whether it exists or not."""
    from platformdirs import user_state_path

    return user_state_path("tpdpdash", appauthor=False)


def made_private(folder: Path) -> Path:
    """The folder, made 0700 where it is missing. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
