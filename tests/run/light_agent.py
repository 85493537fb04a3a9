"""In torchrun's place where torch would only cost time: starts ranks, ends them all when one fails, says so as torchrun
does.

light_agent.py WORLD_SIZE PROGRAM ARGUMENTS…
"""

import os
import signal
import socket
import subprocess
import sys
import time


def main() -> int:
    """Start the ranks and wait for them; 1 when one has failed."""
    size, program = int(sys.argv[1]), sys.argv[2:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(signal_exception()))
    shared = {**os.environ, "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [subprocess.Popen(program, env={**shared, "RANK": str(n), "LOCAL_RANK": str(n)}) for n in range(size)]
    try:
        while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
            time.sleep(0.02)
        return 1 if report(ranks) else 0
    finally:
        end(ranks)


def free_port() -> int:
    """Where the ranks may meet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def report(ranks: list[subprocess.Popen[bytes]]) -> bool:
    """Say which ranks failed, as torchrun does."""
    failed = [(n, rank) for n, rank in enumerate(ranks) if rank.poll()]
    for n, rank in failed:
        print(f"failed (exitcode: {rank.returncode}) local_rank: {n} (pid: {rank.pid}) of a program", flush=True)
    return bool(failed)


def end(ranks: list[subprocess.Popen[bytes]]) -> None:
    """End what still lives."""
    for rank in ranks:
        if rank.poll() is None:
            print(f"Sending process {rank.pid} closing signal SIGTERM", flush=True)
            rank.terminate()
    for rank in ranks:
        rank.wait()


def signal_exception() -> int:
    """What torchrun writes when it is asked to end."""
    print(f"SignalException: Process {os.getpid()} got signal: 15", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
