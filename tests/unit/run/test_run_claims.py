"""Claims on devices: held by whoever inherits them, gone with that process, shared only on request."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import Timeout

from tpdpdash.cluster.detection import DetectedDevice, Detection, HostMemory, MigInstance
from tpdpdash.cluster.occupants import rank_devices
from tpdpdash.faults import InvalidInputError
from tpdpdash.run import claims
from tpdpdash.run.claims import claimed, devices_in_use, living_claims
from tpdpdash.run.folder import RunFolder
from tpdpdash.text import fault_text

GPUS = tuple(DetectedDevice(index=n, cuda_index=n, uuid=f"GPU-{n}", visible=True) for n in range(4))
HERE = Detection(
    devices=GPUS,
    driver_version="580",
    problem=None,
    host=HostMemory(total_bytes=None, available_bytes=None, cores=2),
    num_visible=4,
)
FIRST = RunFolder(Path("runs/20261130-131502-first-abcd"))
SECOND = RunFolder(Path("runs/20261130-131503-second-abcd"))


def held(*devices: str) -> list[tuple[str, str]]:
    return [(claim.device, claim.run_id) for claim in living_claims(devices)]


def test_a_claim_lives_as_long_as_the_process_that_inherited_it() -> None:
    with claimed(("GPU-0", "GPU-1"), FIRST, shares=False) as descriptors:
        holder = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], pass_fds=descriptors)
    try:
        assert held("GPU-0", "GPU-1", "GPU-2") == [("GPU-0", FIRST.run_id), ("GPU-1", FIRST.run_id)]
        with pytest.raises(InvalidInputError, match=FIRST.run_id), claimed(("GPU-1",), SECOND, shares=False):
            pass
        assert held("GPU-1") == [("GPU-1", FIRST.run_id)], "a refused claim leaves nothing"
    finally:
        holder.kill()
        holder.wait()
    assert held("GPU-0", "GPU-1") == []
    assert not list(claims._claims_dir().glob("*.claim")), "claims of dead runs are cleared away"
    with claimed(("GPU-1",), SECOND, shares=False):
        assert held("GPU-1") == [("GPU-1", SECOND.run_id)]


def test_a_run_that_shares_holds_its_devices_too() -> None:
    with claimed(("GPU-0",), FIRST, shares=False), claimed(("GPU-0",), SECOND, shares=True):
        assert held("GPU-0") == [("GPU-0", FIRST.run_id), ("GPU-0", SECOND.run_id)]
    assert held("GPU-0") == []


def test_ranks_without_a_device_claim_nothing() -> None:
    with claimed((), FIRST, shares=False) as descriptors:
        assert descriptors == ()
    assert not claims._claims_dir().exists()
    assert devices_in_use(replace(HERE, devices=(), num_visible=0), 8) == ()


def test_a_claim_of_a_full_disk_blocks_nobody_and_breaks_nothing() -> None:
    with claimed(("GPU-0",), FIRST, shares=False):
        (path,) = claims._claims_dir().glob("*.claim")
        path.write_bytes(b"")
        assert held("GPU-0") == []


def test_a_claim_that_fails_lets_go_of_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the dashboard, which goes on, would hold them until it ends."""
    write, written = os.write, []

    def fills_up(descriptor: int, data: bytes) -> int:
        written.append(descriptor)
        if len(written) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", fills_up)
    with pytest.raises(OSError, match="No space"), claimed(("GPU-0", "GPU-1"), FIRST, shares=False):
        pass
    monkeypatch.undo()
    assert held("GPU-0", "GPU-1") == []


def test_who_holds_a_device_is_said_with_the_number_that_people_know() -> None:
    with claimed(("GPU-2", "GPU-3"), FIRST, shares=False):
        (fault,) = devices_in_use(HERE, 4)
    assert fault_text(fault).startswith(f"GPU 2, GPU 3: run {FIRST.run_id} holds it")


def test_a_registry_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: object) -> None:
        raise Timeout("all.lock")

    monkeypatch.setattr(claims, "living_claims", busy)
    (fault,) = devices_in_use(HERE, 1)
    assert fault.code == "claims_unreadable"
    assert "all.lock" in fault_text(fault)


def test_ranks_take_the_devices_in_the_order_in_which_cuda_shows_them() -> None:
    turned = tuple(replace(gpu, cuda_index=3 - gpu.index) for gpu in GPUS)
    assert rank_devices(HERE, 2) == ("GPU-0", "GPU-1")
    assert rank_devices(replace(HERE, devices=turned), 2) == ("GPU-3", "GPU-2")
    hidden = (replace(GPUS[0], visible=False, cuda_index=None), *(replace(g, cuda_index=g.index - 1) for g in GPUS[1:]))
    assert rank_devices(replace(HERE, devices=hidden), 1) == ("GPU-1",)
    unordered = tuple(replace(gpu, cuda_index=None, visible=None) for gpu in GPUS)
    assert rank_devices(replace(HERE, devices=unordered), 1) == ("GPU-0", "GPU-1", "GPU-2", "GPU-3")


def test_a_rank_on_a_slice_takes_the_slice() -> None:
    slices = (MigInstance(uuid="MIG-a", visible=False), MigInstance(uuid="MIG-b", visible=True))
    gpu = replace(GPUS[0], visible=False, cuda_index=None, mig_mode=True, mig=slices)
    assert rank_devices(replace(HERE, devices=(gpu, *GPUS[1:])), 1) == ("MIG-b",)


def test_a_device_without_a_uuid_is_told_by_its_place() -> None:
    nameless = (replace(GPUS[0], uuid=None, pci_bus_id="0000:1b:00.0"), replace(GPUS[1], uuid=None))
    keys = rank_devices(replace(HERE, devices=nameless), 2)
    assert keys == ("0000:1b:00.0", "gpu-1")
    with claimed(keys, FIRST, shares=False):
        assert held(*keys) == [(key, FIRST.run_id) for key in keys]
