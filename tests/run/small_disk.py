"""A disk of 1 MiB for the fault tests: mounted, or played in every program that is started where none may be."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tpdpdash.units import ceil_div

SIZE_BYTES = 1 << 20
_PAGE_BYTES = 4096
_PLAYED = Path(__file__).parents[1] / "golden" / "run" / "fake_disk.c"


class MountedDisk:
    """A file system of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Take all that is left."""
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while file.write(b"x" * 4096):
                    pass
            except OSError:
                return
        raise AssertionError("the disk has no end")

    def free(self) -> None:
        """Give it back."""
        self._ballast.unlink()

    def make_read_only(self) -> None:
        """Nothing can be written any more."""
        subprocess.run(["mount", "-o", "remount,ro", str(self.path)], check=True)


class PlayedDisk(MountedDisk):
    """A folder on which every program but this one finds no room (fake_disk.c)."""

    def fill(self) -> None:
        """Take all that is left, in a file without a byte on the real disk."""
        sizes = [path.stat().st_size for path in self.path.rglob("*") if path.is_file() and not path.is_symlink()]
        with self._ballast.open("wb") as file:
            file.truncate(SIZE_BYTES - sum(ceil_div(size, _PAGE_BYTES) for size in sizes) * _PAGE_BYTES)

    def make_read_only(self) -> None:
        """Nothing can be written any more."""
        (self.path / "read-only").touch()


@contextmanager
def small_disk(folder: Path, *, may_mount: bool) -> Iterator[MountedDisk]:
    """The disk at that folder, for the programs that are started meanwhile; played where it may not be mounted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", str(folder)]
    if may_mount and subprocess.run(mount, check=False, capture_output=True).returncode == 0:
        try:
            yield MountedDisk(folder)
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)
        return
    library = folder.with_suffix(".so")
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror"]
    subprocess.run(["gcc", *flags, "-o", str(library), str(_PLAYED)], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(library))
        patch.setenv("FAKE_DISK", str(folder))
        patch.setenv("FAKE_DISK_BYTES", str(SIZE_BYTES))
        yield PlayedDisk(folder)


def elsewhere(script: str, *arguments: str) -> str:
    """What a program of its own prints: the disk may be played in it."""
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
