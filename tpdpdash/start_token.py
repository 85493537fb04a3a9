"""The start token: who holds it may launch and stop runs. Standard library and platformdirs only.

As Jupyter does: made once, kept 0600 in the user's state directory across restarts, printed in the address that
`serve` shows, and compared in constant time.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from pathlib import Path

from tpdpdash.state_dir import made_private, state_dir

TOKEN_BYTES = 32
MAX_TOKEN_CHARS = 200


def token_path() -> Path:
    """Where the start token is kept."""
    return made_private(state_dir()) / "start-token"


def start_token() -> str:
    """This user's start token; made when there is none, or when the file was readable by others."""
    path = token_path()
    kept = _kept_token(path)
    if kept is not None:
        return kept
    fresh = secrets.token_urlsafe(TOKEN_BYTES)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(fresh)
    try:
        # A link, not a rename: two servers that start at once must end with one token.
        os.link(temporary, path)
    except FileExistsError:
        kept = _kept_token(path)
        if kept is not None:
            return kept
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return fresh


def _kept_token(path: Path) -> str | None:
    """The token on disk; None when it is missing, empty, another user's, or was open to others."""
    try:
        with path.open(encoding="ascii") as file:
            status = os.fstat(file.fileno())
            text = file.read(MAX_TOKEN_CHARS + 1).strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    is_private = status.st_uid == os.getuid() and not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    is_whole = len(text) >= TOKEN_BYTES and len(text) <= MAX_TOKEN_CHARS
    return text if is_private and is_whole else None


def is_start_token(presented: str | None) -> bool:
    """Whether what a browser or a caller presents is this user's start token."""
    if not presented or len(presented) > MAX_TOKEN_CHARS:
        return False
    return hmac.compare_digest(presented.encode("utf-8", "replace"), start_token().encode("ascii"))
