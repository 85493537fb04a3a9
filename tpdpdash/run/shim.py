"""Runs as a script between a parent and its child: asks the kernel to kill it when its parent dies, then becomes
the child. Standard library only; started with `python -I -S`, so it imports nothing of this package.

    python -I -S shim.py PROGRAM ARGUMENTS…

TPDPDASH_PARENT_PID names the expected parent. A parent that died before the request reached the kernel is noticed
by comparing; the child then expects *this* process, which keeps its pid across exec.
"""

import ctypes
import os
import signal
import sys

PARENT_VARIABLE = "TPDPDASH_PARENT_PID"
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main() -> None:
    """Set the parent-death signal, check that the parent still lives, and exec."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")
    expected = os.environ.get(PARENT_VARIABLE)
    if expected is not None and os.getppid() != int(expected):
        sys.exit("the parent ended before its child began")
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as wrong:
        sys.exit(f"{sys.argv[1]} cannot be started: {wrong.strerror}")


if __name__ == "__main__":
    main()
