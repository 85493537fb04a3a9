"""A run's folder as it lies there when the run is over, for the tests of its archive."""

from __future__ import annotations

from pathlib import Path

from run_statuses import own_status

from tpdpdash.run.folder import RunFolder, new_run_folder, write_json


def run_of(root: Path, state: str, **changes: object) -> RunFolder:
    """A run whose supervisor is this process, with telemetry, a log and a link."""
    folder = new_run_folder(root, "demo")
    write_json(folder.status, own_status(state=state, **changes).to_json())
    (folder.telemetry / "rank-00000.jsonl").write_bytes(b'{"v":1}\n' * 10_000)
    (folder.logs / "agent.log").write_bytes(b"")
    (folder.path / "latest").symlink_to("logs")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
