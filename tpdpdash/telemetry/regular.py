"""Opening and reading what stands in a run folder: a file, or an error at once. Standard library only.

A pipe of that name would keep its reader waiting for ever: supervisor, ranks and screens alike.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """A plain file for reading. Raises OSError, also where it is a folder, a pipe or a device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a plain file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bounded(path: Path, limit_bytes: int) -> bytes:
    """All of a plain file. Raises OSError, or ValueError where it is larger than the limit."""
    with open_regular(path) as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise ValueError(f"{path.name} is larger than {limit_bytes} bytes")
    return data


def read_json(path: Path, limit_bytes: int) -> Any:
    """What a JSON file says. Raises OSError, or ValueError where it is larger than the limit, or no JSON."""
    data = read_bounded(path, limit_bytes)
    try:
        return json.loads(data)
    except RecursionError as deep:
        raise ValueError(f"{path.name} is nested too deeply") from deep
