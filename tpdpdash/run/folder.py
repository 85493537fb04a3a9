"""RunFolder: every path of a run, its id, and writes that are whole or not there at all. Standard library only."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.state_dir import state_dir
from tpdpdash.telemetry import regular
from tpdpdash.telemetry.profile_request import request_file

RUNS_VARIABLE = "TPDPDASH_RUNS"
RUN_ID = re.compile(r"\d{8}-\d{6}-[a-z0-9][a-z0-9.-]{0,63}")
MAX_RECORD_BYTES = 4 << 20
RESERVE_BYTES = 64 << 10
"""Holds a last status, and the summary of a hundred ranks."""
_SUFFIX_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"  # none that is mistaken for another
_TRIES = 20


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run (docs/reference.md). Making the object touches nothing."""

    path: Path
    """`$TPDPDASH_RUNS/<run-id>`."""

    @property
    def run_id(self) -> str:
        """The name by which people call the run."""
        return self.path.name

    @property
    def asked(self) -> Path:
        """The Job as it was asked."""
        return self.path / "asked.toml"

    @property
    def job(self) -> Path:
        """The Job as it runs."""
        return self.path / "job.toml"

    @property
    def prediction(self) -> Path:
        """The estimate of the Job as it runs."""
        return self.path / "prediction.json"

    @property
    def changes(self) -> Path:
        """What a rehearsal changed."""
        return self.path / "changes.json"

    @property
    def command(self) -> Path:
        """argv, working directory and added environment."""
        return self.path / "command.json"

    @property
    def status(self) -> Path:
        """Written by whoever answers for the run alone (status_file)."""
        return self.path / "status.json"

    @property
    def summary(self) -> Path:
        """Written once, at the end."""
        return self.path / "summary.json"

    @property
    def logs(self) -> Path:
        """torchrun's folder of per-rank output."""
        return self.path / "logs"

    @property
    def agent_log(self) -> Path:
        """What torchrun's agent itself said."""
        return self.logs / "agent.log"

    @property
    def supervisor_log(self) -> Path:
        """What the supervisor had to say."""
        return self.logs / "supervisor.log"

    @property
    def telemetry(self) -> Path:
        """What the ranks wrote."""
        return self.path / "telemetry"

    @property
    def devices(self) -> Path:
        """Device samples, one file a node."""
        return self.path / "devices"

    @property
    def stop_request(self) -> Path:
        """Whoever wants the run to end writes this file."""
        return self.path / "control" / "stop.json"

    @property
    def profile_request(self) -> Path:
        """Whoever wants a deep profile of a step writes this file, and the ranks read it."""
        return request_file(self.path)

    @property
    def reserve(self) -> Path:
        """Room on the disk for the last words of a run; given up when it ends."""
        return self.path / "control" / "reserve"

    def agent_logs(self) -> list[Path]:
        """The agent's log, and on several machines the log of each machine's agent."""
        return [path for path in (self.agent_log, *sorted(self.logs.glob("agent-*.log"))) if path.is_file()]

    @property
    def batch_script(self) -> Path:
        """What Slurm starts."""
        return self.path / "job.sbatch"

    @property
    def elsewhere(self) -> Path:
        """The line for a shell that starts the ranks of each other machine, where a person does that."""
        return self.path / "elsewhere.sh"

    def elsewhere_command(self) -> str | None:
        """That line; None where no person starts anything."""
        try:
            return regular.read_bounded(self.elsewhere, MAX_RECORD_BYTES).decode().strip()
        except FileNotFoundError:
            return None

    def rank_link(self, rank: int) -> Path:
        """A link to torchrun's folder of that rank's output, which is numbered within its machine."""
        return self.logs / f"rank-{rank:05d}"

    def rank_outputs(self, rank: int) -> dict[str, Path]:
        """stdout.log, stderr.log and error.json of a rank, those that exist.

        Without its link (a full disk) they are found where all agents' folders are one machine's.
        """
        folder = self.rank_link(rank)
        agents = list(self.logs.glob("*/attempt_*")) if not folder.exists() else []
        folder = agents[0] / str(rank) if len(agents) == 1 else folder
        names = ("stdout.log", "stderr.log", "error.json")
        return {name: folder / name for name in names if (folder / name).is_file()}

    def make(self) -> None:
        """Make the folder, 0700, and those in it. FileExistsError if the name is taken."""
        self.path.mkdir(mode=0o700)
        try:
            for folder in (self.logs, self.telemetry, self.devices, self.stop_request.parent):
                folder.mkdir(mode=0o700)
            self.reserve.write_bytes(bytes(RESERVE_BYTES))
        except OSError:
            shutil.rmtree(self.path, ignore_errors=True)  # a full disk leaves no half-made run
            raise


def runs_root(environ: Mapping[str, str]) -> Path:
    """Where runs live: $TPDPDASH_RUNS, else the user's state directory. Raises InvalidInputError: ~nobody."""
    given = environ.get(RUNS_VARIABLE)
    if not given:
        return state_dir() / "runs"
    try:
        return Path(given).expanduser().absolute()
    except (OSError, RuntimeError) as wrong:
        raise _unreadable(given, str(wrong)) from wrong


def _unreadable(root: Path | str, reason: str) -> InvalidInputError:
    values = {"reason": reason}
    return InvalidInputError([Fault(code="file_unreadable", field=RUNS_VARIABLE, value=str(root), values=values)])


def find_run(root: Path, name: str) -> RunFolder:
    """The run of that id, or the only one whose id begins so. Raises InvalidInputError."""
    if not re.fullmatch(r"[a-z0-9.-]{1,96}", name) or ".." in name:
        raise InvalidInputError([Fault(code="run_name_illegal", field="run", value=name)])
    known = run_ids(root)
    if name in known:
        return RunFolder(root / name)
    matches = [found for found in known if found.startswith(name) or found.endswith(f"-{name}")]
    if len(matches) == 1:
        return RunFolder(root / matches[0])
    code = "run_ambiguous" if matches else "run_unknown"
    raise InvalidInputError([Fault(code=code, field="run", value=name, values={"candidates": matches[:5]})])


def run_ids(root: Path) -> list[str]:
    """Ids of all runs, newest first (an id begins with its time in UTC). Raises InvalidInputError."""
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if RUN_ID.fullmatch(entry.name)]
    except FileNotFoundError:
        return []
    except OSError as wrong:
        raise _unreadable(root, wrong.strerror or str(wrong)) from wrong
    return sorted(names, reverse=True)


def new_run_folder(root: Path, name: str, now: float | None = None) -> RunFolder:
    """Make a folder with a fresh id like 20261130-131502-llama-3-8b-x7k2. Raises OSError."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    slug = re.sub(r"[^a-z0-9.]+", "-", name.lower())[:40].strip("-.") or "run"
    for _ in range(_TRIES):
        suffix = "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(4))
        folder = RunFolder(root / f"{stamp}-{slug}-{suffix}")
        try:
            folder.make()
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"no free run id in {root} after {_TRIES} tries")


def write_whole(path: Path, text: str, *, durable: bool = True) -> None:
    """Replace a file atomically: a reader sees the old text or the new one, never a part. Raises OSError.

    `durable`: also after a power cut.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, document: Mapping[str, Any] | list[Any], *, durable: bool = True) -> None:
    """Replace a JSON file atomically. Raises OSError."""
    write_whole(path, json.dumps(document, indent=1, allow_nan=False) + "\n", durable=durable)


def asked_to_stop_by(folder: RunFolder) -> str | None:
    """Who asked for the end of a run; its deletion asks too. None: nobody, as far as can be seen."""
    if _is_there(folder.stop_request):
        try:
            return str(read_json(folder.stop_request)["by"])[:40]
        except (OSError, ValueError, KeyError, TypeError):
            return "unknown"
    if _is_there(folder.path) is False:
        return "deletion"  # nobody could find it again, neither to watch it nor to stop it
    return None


def _is_there(path: Path) -> bool | None:
    """Whether it exists; None where the file system does not tell: a shared one that is away for a moment (ESTALE, EIO)
    is no reason to end a run."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return None
    return True


def read_json(path: Path) -> Any:
    """A JSON file of the run folder, bounded. Raises OSError, or ValueError when it is damaged."""
    return regular.read_json(path, MAX_RECORD_BYTES)
