"""Run any training script, here, on several machines or under Slurm: the same supervisor, logs and device samples as a
Job has."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

from tpdpdash.cluster.detection import Detection
from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.run.claims import devices_in_use
from tpdpdash.run.folder import RunFolder
from tpdpdash.run.place import HERE, Place
from tpdpdash.run.profile import StepAndRanks, file_at_start
from tpdpdash.run.request import RunRequest, start_request
from tpdpdash.run.slurm_preflight import NodesAsked, script_nodes

MODULE = "-m"


def script_argv(words: Sequence[str], *, cwd: Path) -> tuple[str, ...]:
    """What each rank runs: SCRIPT.py and `-m MODULE` by this Python, anything else as the program that it is.

    Raises InvalidInputError when there is nothing to run, or the file is not there.
    """
    program = words[0] if words else ""
    if program == MODULE and len(words) > 1:
        return (sys.executable, "-u", *words)
    if program.endswith(".py"):
        if not (cwd / program).is_file():
            raise _unknown(program)
        return (sys.executable, "-u", *words)
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}") if program else None
    if found is None:
        raise _unknown(program)
    return (str(Path(cwd, found)), *words[1:])


def script_name(words: Sequence[str]) -> str:
    """Name of the run: the script's or the module's."""
    return words[1].rpartition(".")[2] if words[0] == MODULE else Path(words[0]).stem


def start_script(
    words: Sequence[str],
    *,
    here: Detection | None,
    ranks_per_node: int | None,
    cwd: Path,
    place: Place = HERE,
    nodes: int = 1,
    share_devices: bool = False,
    profile: StepAndRanks | None = None,
) -> RunFolder:
    """Start a script under torchrun, on each of the `nodes` of `place` as many ranks; None: a rank a GPU.

    `here`: this machine's devices; None under Slurm, which deals out its own. `cwd`: working directory on every
    machine; `profile`: take a deep profile of this step. Raises InvalidInputError: nothing is left behind then, and
    also where others use the GPUs that it would take here, unless they may be shared.
    """
    argv = script_argv(words, cwd=cwd)
    if here is None:
        asked = script_nodes(partition=place.partition, nodes=nodes, ranks_per_node=ranks_per_node, cwd=cwd)
    else:
        asked = _like_here(here, nodes, ranks_per_node, share_devices=share_devices)
    files = file_at_start(profile, world_size=asked.num_ranks, steps=None)
    request = RunRequest(
        name=script_name(words),
        world_size=asked.num_ranks,
        engine=place.engine,
        nodes=nodes,
        partition=place.partition,
        uses_gpus=asked.uses_gpus,
        shares_devices=share_devices,
        has_probe=False,
        watches_steps=True,
        rank_argv=argv,
        cwd=str(cwd),
        files=MappingProxyType(files),
    )
    return start_request(request)


def _like_here(here: Detection, nodes: int, ranks_per_node: int | None, *, share_devices: bool) -> NodesAsked:
    """Every machine is taken to be like this one. Raises InvalidInputError where others use its GPUs."""
    size, uses_gpus = ranks_per_node or max(1, here.num_visible), here.num_visible > 0
    taken = devices_in_use(here, size) if uses_gpus and not share_devices else ()
    if taken:
        raise InvalidInputError(taken)
    return NodesAsked(nodes=nodes, num_ranks=nodes * size, uses_gpus=uses_gpus)


def _unknown(program: str) -> InvalidInputError:
    return InvalidInputError([Fault(code="no_script", field="SCRIPT", value=program or None)])
