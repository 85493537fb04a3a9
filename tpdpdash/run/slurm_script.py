"""The batch script of a run under Slurm: text, kept in the run folder. Pure: builds and starts nothing.

The script runs on the first node of the job, as the run's supervisor; the supervisor starts the script once more on
each node, through srun, as torchrun's agent. Every word from outside is quoted.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence

from tpdpdash.run.command import Meeting, run_environment, shim_argv, torchrun_argv, worker_argv
from tpdpdash.run.folder import RunFolder
from tpdpdash.run.shim import PARENT_VARIABLE

_ENDPOINT = "MEETING-POINT"
_SCRIPT = """\
#!/bin/bash
# The run {run_id}. Account, time limit and the like: SBATCH_ACCOUNT, SBATCH_TIMELIMIT, … in the
# environment of whoever starts it (sbatch(1), input environment variables).
{directives}
set -euo pipefail

{exports}

# A name or address of this node that the other nodes can use: Slurm's name for it where that resolves, else the
# node's first address that is not the loopback.
reachable() {{
  if getent hosts "$SLURMD_NODENAME" >/dev/null; then echo "$SLURMD_NODENAME"; else hostname -I | awk '{{print $1}}'; fi
}}

if [ "${{1:-}}" = agent ]; then  # on each node, started by srun below
  # The supervisor samples its own node; a sampler elsewhere ends with the agent, whose process this becomes.
  if [ "$SLURM_NODEID" != 0 ]; then env -u {parent} {sampler} "$SLURM_NODEID" & fi
  exec env -u {parent} {agent}
fi

TPDPDASH_HEAD=$(reachable)
[ -n "$TPDPDASH_HEAD" ] || {{ echo "$SLURMD_NODENAME has no address that other nodes could reach" >&2; exit 1; }}
TPDPDASH_PORT=$({python} -c 'from tpdpdash.run.address import free_port; print(free_port())')
export TPDPDASH_HEAD TPDPDASH_PORT

exec {supervisor} \\
  srun {srun} --output={agent_log} \\
  bash {script} agent
"""


def batch_script(
    folder: RunFolder,
    *,
    nodes: int,
    ranks_per_node: int,
    uses_gpus: bool,
    environ: Mapping[str, str],
    partition: str | None = None,
    rank_argv: Sequence[str] | None = None,
    cwd: str | None = None,
) -> str:
    """The script for `nodes` machines of `ranks_per_node` ranks; `environ` is added to what every run adds.

    CPU ranks have a core each, ranks on GPUs a GPU each.
    """
    environment = run_environment(
        folder, num_ranks=ranks_per_node, num_cores=ranks_per_node, uses_gpus=uses_gpus, is_alone=nodes == 1
    )
    each = f"--gpus-per-node={ranks_per_node}" if uses_gpus else f"--cpus-per-task={ranks_per_node}"
    size = (f"--nodes={nodes}", "--ntasks-per-node=1", each)
    place = (f"--partition={partition}",) if partition else ()
    files = (f"--chdir={cwd or folder.path}", f"--output={folder.supervisor_log}", "--open-mode=append")
    options = (f"--job-name={folder.run_id}", *place, *size, "--no-requeue", *files)
    return _SCRIPT.format(
        run_id=folder.run_id,
        directives="\n".join(f"#SBATCH {shlex.quote(option)}" for option in options),
        exports="\n".join(f"export {name}={shlex.quote(value)}" for name, value in {**environ, **environment}.items()),
        parent=PARENT_VARIABLE,
        agent=_agent(folder, nodes, ranks_per_node, rank_argv),
        sampler=shlex.join((*shim_argv(), sys.executable, "-m", "tpdpdash.run.node_sampler", str(folder.path))),
        python=shlex.quote(sys.executable),
        supervisor=shlex.join((sys.executable, "-m", "tpdpdash.run.supervisor", str(folder.path))),
        srun=shlex.join((*size, f"--ntasks={nodes}", "--kill-on-bad-exit=1")),
        agent_log=shlex.quote(f"{folder.logs}/agent-%n.log"),
        script=shlex.quote(str(folder.batch_script)),
    )


def _agent(folder: RunFolder, nodes: int, ranks_per_node: int, rank_argv: Sequence[str] | None) -> str:
    """torchrun's words on one node. The first node keeps the meeting point: torchrun would guess it from names, and
    guesses wrong where a machine knows itself as 127.0.1.1."""
    words = torchrun_argv(
        folder,
        num_ranks=ranks_per_node,
        rank_argv=rank_argv or worker_argv(folder),
        meeting=Meeting(nodes=nodes, endpoint=_ENDPOINT),
    )
    here = '"$TPDPDASH_HEAD:$TPDPDASH_PORT" --rdzv-conf "is_host=$((SLURM_NODEID == 0))" --local-addr "$(reachable)"'
    lines = shlex.join(words).replace(_ENDPOINT, here, 1)
    return re.sub(r" (?=--(?:nnodes|nproc-per-node|log-dir|no-python) )", " \\\\\n    ", lines, count=4)
