"""Start the dashboard: `streamlit run app.py` as a child, its address with the start token on the terminal.

No streamlit is imported here, so that the command line stays quick.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.start_token import start_token
from tpdpdash.text import t

DEFAULT_PORT = 8501
DEFAULT_ADDRESS = "127.0.0.1"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def app_file() -> Path:
    """app.py at the top of the checkout. Raises InvalidInputError where only the package is installed."""
    path = Path(__file__).resolve().parents[1] / "app.py"
    if not path.is_file():
        raise InvalidInputError([Fault(code="file_missing", field="serve", value=str(path))])
    return path


def serve_command(port: int, address: str) -> list[str]:
    """What is run. Settings of .streamlit/config.toml hold; these flags win over it."""
    hosts = ["localhost", "127.0.0.1"] if address in _LOOPBACK else ["localhost", "127.0.0.1", address]
    flags = [f"--server.port={port}", f"--server.address={address}", "--server.headless=true"]
    allowed = [flag for host in hosts for flag in ("--server.allowedHosts", host)]
    return [sys.executable, "-m", "streamlit", "run", str(app_file()), *flags, *allowed]


def dashboard_url(port: int, address: str, token: str) -> str:
    """The address to open; the browser keeps the token and drops it from the address."""
    host = "127.0.0.1" if address in ("0.0.0.0", "::") else f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}/?token={token}"


def _check_port(port: int, address: str) -> None:
    """Refuse a port that is taken before an address is printed that another program answers."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except (OSError, OverflowError) as taken:
            values = {"reason": str(taken)}
            raise InvalidInputError(
                [Fault(code="cannot_listen", field="serve.port", value=port, values=values)]
            ) from taken


def serve(port: int = DEFAULT_PORT, address: str = DEFAULT_ADDRESS, *, extra: Sequence[str] = ()) -> int:
    """Run the dashboard until it is stopped; its exit status. Raises InvalidInputError when it cannot listen there."""
    _check_port(port, address)
    command = [*serve_command(port, address), *extra]
    print(t("tpdpdash: open {url}", url=dashboard_url(port, address, start_token())), flush=True)
    if address not in _LOOPBACK:
        print(t("It listens on {address}: others on that network can reach it.", address=address), file=sys.stderr)
    # Its own working directory, so that streamlit finds .streamlit/config.toml.
    child = subprocess.Popen(command, cwd=app_file().parent, stdin=subprocess.DEVNULL)

    def pass_on(signum: int, _frame: FrameType | None) -> None:
        child.send_signal(signum)

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, pass_on)
    return _exit_status(child.wait())


def _exit_status(returncode: int) -> int:
    """Stopped by the person is no failure."""
    return 0 if returncode in (-signal.SIGINT, -signal.SIGTERM) else max(returncode, 0) or abs(returncode)
