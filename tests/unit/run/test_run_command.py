"""The command of a run is a list, complete and printable, built without starting anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tpdpdash.run.command import Command, Meeting, host_command, local_command, python_path
from tpdpdash.run.folder import RunFolder

FOLDER = RunFolder(Path("/runs/20261130-131502-llama-3-8b-x7k2"))


def command(**changes: object) -> object:
    options = {"num_ranks": 8, "num_cores": 2, "uses_gpus": False, "environ": {}}
    return local_command(FOLDER, **{**options, **changes})  # type: ignore[arg-type]


def test_torchrun_gets_a_free_port_one_attempt_and_files_for_each_rank() -> None:
    argv = " ".join(command().argv)
    for part in (
        "-m torch.distributed.run --standalone --local-addr 127.0.0.1 --nproc-per-node 8 --max-restarts 0",
        f"--log-dir {FOLDER.logs} --redirects 3 --shutdown-timeout 5",
        f"{sys.executable} -u -m tpdpdash.worker --run-dir {FOLDER.path}",
    ):
        assert part in argv


def test_agent_and_ranks_start_through_the_shim() -> None:
    argv = command().argv
    shims = [index for index, part in enumerate(argv) if part.endswith("shim.py")]
    assert len(shims) == 2
    assert argv[shims[0] + 2 : shims[0] + 4] == ("-m", "torch.distributed.run")
    assert argv[shims[1] - 5 : shims[1] - 3] == ("--no-python", "--")
    assert argv[shims[1] + 2 : shims[1] + 5] == ("-u", "-m", "tpdpdash.worker")


def test_several_machines_meet_at_one_of_them_and_no_node_rank_is_pretended() -> None:
    meeting = Meeting(nodes=2, endpoint="gpu-07:29512", keeps_it=True)
    argv = " ".join(command(meeting=meeting).argv)
    meet = "--nnodes 2 --rdzv-backend c10d --rdzv-id 20261130-131502-llama-3-8b-x7k2 --rdzv-endpoint gpu-07:29512"
    assert f"{meet} --rdzv-conf is_host=1 --nproc-per-node 8" in argv
    assert not any(word in argv for word in ("--standalone", "127.0.0.1", "--node-rank"))
    assert "GLOO_SOCKET_IFNAME" not in command(meeting=meeting).env


def test_a_command_can_be_copied_into_a_shell_of_another_machine(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "my runs" / "x")
    folder.logs.mkdir(parents=True)
    line = host_command(Command(argv=("echo", "a b", "$HOME"), cwd="/tmp", env={"GREETING": "it's me"}), folder)
    assert line.startswith("""cd /tmp && env 'GREETING=it'"'"'s me' echo 'a b' '$HOME' """)
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    (log,) = folder.agent_logs()
    assert (ended.stdout, log.read_text()) == ("a b $HOME\n", "a b $HOME\n")


def test_threads_and_the_runs_name_are_set_explicitly() -> None:
    env = command().env
    assert (env["TPDPDASH_RUN_ID"], env["TPDPDASH_RUN_DIR"]) == (FOLDER.run_id, str(FOLDER.path))
    assert (env["OMP_NUM_THREADS"], env["MKL_NUM_THREADS"]) == ("1", "1")
    assert command(num_ranks=2, num_cores=16).env["OMP_NUM_THREADS"] == "8"
    assert (env["CUDA_VISIBLE_DEVICES"], env["GLOO_SOCKET_IFNAME"]) == ("", "lo")


def test_ranks_on_gpus_keep_the_devices_that_were_assigned() -> None:
    """r108: what Slurm or a person put into CUDA_VISIBLE_DEVICES is not rewritten."""
    assert "CUDA_VISIBLE_DEVICES" not in command(uses_gpus=True, environ={"CUDA_VISIBLE_DEVICES": "4,5,6,7"}).env


def test_a_persons_pythonpath_is_kept_behind_the_checkout() -> None:
    path = python_path({"PYTHONPATH": "/mine"}).get("PYTHONPATH", "/mine")
    assert path.endswith("/mine")


def test_importing_the_run_room_brings_in_neither_torch_nor_streamlit() -> None:
    script = (
        "import sys, tpdpdash.run.start, tpdpdash.run.history, tpdpdash.run.stop, tpdpdash.run.rehearsal;"
        "print([m for m in ('torch', 'streamlit', 'pandas', 'pydantic') if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_the_supervisor_stays_small() -> None:
    """It runs beside every job: numpy and the planning rooms are not its business."""
    script = (
        "import sys, tpdpdash.run.supervisor;"
        "print([m for m in ('numpy', 'torch', 'pydantic', 'tpdpdash.job', 'tpdpdash.layout') if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_only_a_script_starts_with_the_folder_that_watches_its_steps_and_before_the_persons_own() -> None:
    folders = command(watches_steps=True, environ={"PYTHONPATH": "/mine:/ours"}).env["PYTHONPATH"].split(":")
    assert (Path(folders[0]) / "sitecustomize.py").is_file()
    assert folders[-2:] == ["/mine", "/ours"]
    assert folders[0] not in command().env.get("PYTHONPATH", "")
