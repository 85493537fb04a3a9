"""Runs as a script between a parent and its child: asks the kernel to kill it when its parent dies, then becomes
the child. Standard library only; started with `python -I -S`, so it imports nothing of this package.

    python -I -S shim.py PROGRAM ARGUMENTS…

TPDPDASH_PARENT_PID names the expected parent. A parent that died before the request reached the kernel is noticed
by comparing; the child then expects *this* process, which keeps its pid across exec.
"""

# ruff: noqa: PTH118, PTH120, PTH211 - importing pathlib would take longer than all the rest

import ctypes
import os
import signal
import sys

PARENT_VARIABLE = "TPDPDASH_PARENT_PID"
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def link_output(environ: "os._Environ[str]") -> None:
    """In front of a rank: logs/rank-00003 leads to torchrun's folder of its output, which only its machine can name."""
    error_file, run_dir = environ.get("TORCHELASTIC_ERROR_FILE"), environ.get("TPDPDASH_RUN_DIR")
    if error_file is None or run_dir is None or "RANK" not in environ:
        return
    link = os.path.join(run_dir, "logs", f"rank-{int(environ['RANK']):05d}")
    try:
        os.symlink(os.path.relpath(os.path.dirname(error_file), os.path.dirname(link)), link)
    except OSError as wrong:  # a full disk: the rank runs, and its output lies where torchrun put it
        sys.stderr.write(f"{link}: {wrong.strerror}\n")


def main() -> None:
    """Set the parent-death signal, check that the parent still lives, and exec."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")
    expected = os.environ.get(PARENT_VARIABLE)
    if expected is not None and os.getppid() != int(expected):
        sys.exit("the parent ended before its child began")
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    link_output(os.environ)
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as wrong:
        sys.exit(f"{sys.argv[1]} cannot be started: {wrong.strerror}")


if __name__ == "__main__":
    main()
