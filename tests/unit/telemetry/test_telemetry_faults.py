"""Telemetry that no honest rank writes, at the sizes that the fault table names."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

import pytest

from tpdpdash.telemetry.files import RankFiles
from tpdpdash.telemetry.profile_request import read_request, request_file
from tpdpdash.telemetry.reader import RunReader
from tpdpdash.telemetry.record import rank_file
from tpdpdash.telemetry.rollup import RollupWriter
from tpdpdash.telemetry.tail import HEAD_BYTES, TAIL_BYTES

GB = 1 << 30
MB = 1 << 20


def step(number: int, t: float = 100.0) -> bytes:
    record = {"v": 1, "kind": "step", "rank": 0, "t": t, "step": number, "step_s": 1.0, "phase_s": {"forward": 0.9}}
    return json.dumps(record).encode() + b"\n"


def test_a_line_of_1_gb_is_neither_held_nor_read_and_hides_no_step(tmp_path: Path) -> None:
    path = rank_file(tmp_path, 0)
    path.parent.mkdir()
    with path.open("wb") as file:
        file.write(step(1))
        file.truncate(GB)  # NUL bytes without an end of line, on a disk that need not hold them
        file.seek(0, 2)
        file.write(b"\n" + step(2) + step(3))
    tracemalloc.start()
    reader = RunReader(tmp_path, 1)
    reader.refresh()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    found = reader.snapshot()
    assert found.steps.tolist() == [1, 2, 3]
    assert found.skipped_bytes >= GB - HEAD_BYTES - TAIL_BYTES
    assert peak_bytes < 64 * MB


def test_a_line_that_grows_to_more_than_a_line_may_be_is_dropped_as_it_comes(tmp_path: Path) -> None:
    path = rank_file(tmp_path, 0)
    path.parent.mkdir()
    path.write_bytes(step(1))
    reader = RunReader(tmp_path, 1)
    reader.refresh()
    for _ in range(40):
        with path.open("ab") as file:
            file.write(b"y" * MB)
        reader.refresh()
    with path.open("ab") as file:
        file.write(b"\n" + step(2))
    reader.refresh()
    found = reader.snapshot()
    assert (found.steps.tolist(), found.bad_lines) == ([1, 2], {"too_long": 1})


def test_r085_which_host_a_rank_is_on_is_its_own_word_and_follows_no_order(tmp_path: Path) -> None:
    """c10d numbers the ranks as their agents meet: rank 0 need not be on the machine of the rendezvous."""
    hosts = ("GPU36DC", "GPU36DC", "GPU3B62", "GPU3B62")
    for rank, host in enumerate(hosts):
        path = rank_file(tmp_path, rank)
        path.parent.mkdir(exist_ok=True)
        about = {"pid": 7 + rank, "host": host, "world_size": 4, "coords": {}, "local_rank": rank % 2}
        path.write_text(json.dumps({"v": 1, "kind": "hello", "rank": rank, "t": 1.0, **about}) + "\n")
    reader = RunReader(tmp_path, 4)
    reader.refresh()
    found = reader.snapshot()
    assert tuple(found.ranks[rank].host for rank in range(4)) == hosts
    assert [found.ranks[rank].local_rank for rank in range(4)] == [0, 1, 0, 1]
    assert found.duplicated_ranks == frozenset()


def test_a_pipe_among_the_telemetry_keeps_no_reader_waiting(tmp_path: Path) -> None:
    """Neither one that begins, nor one that goes on from the rollup, in whose files it stands; nor a rank."""
    for rank in (0, 1):
        path = rank_file(tmp_path, rank)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(step(1).replace(b'"rank":0', b'"rank":%d' % rank))
    os.mkfifo(rank_file(tmp_path, 2))
    files, writer = RankFiles(path.parent, 3), RollupWriter(path.parent, 3)
    files.read()
    writer.close(files)
    reader = RunReader(tmp_path, 3)
    reader.refresh()
    assert reader.snapshot().steps.tolist() == [1]
    request_file(tmp_path).parent.mkdir(exist_ok=True)
    os.mkfifo(request_file(tmp_path))
    with pytest.raises(OSError, match="not a plain file"):
        read_request(tmp_path)
