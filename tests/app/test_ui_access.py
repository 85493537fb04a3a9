"""The start token: made once, private, compared whole; without it the server refuses, whatever the page showed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest
import streamlit as st

from tpdpdash import serve
from tpdpdash import start_token as token
from tpdpdash.faults import InvalidInputError
from tpdpdash.run.place import HERE
from tpdpdash.ui import run_services, services


def test_the_token_is_private_and_survives_a_restart() -> None:
    first = token.start_token()
    assert len(first) >= 32
    assert stat.S_IMODE(token.token_path().stat().st_mode) == 0o600
    assert token.start_token() == first
    code = "from tpdpdash.start_token import start_token; print(start_token())"
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert again.stdout.strip() == first


@pytest.mark.parametrize("harm", ["readable", "empty", "binary", "long"])
def test_a_token_that_others_could_read_or_that_is_damaged_is_replaced(harm: str) -> None:
    first = token.start_token()
    path = token.token_path()
    if harm == "readable":
        path.chmod(0o644)
    else:
        path.write_bytes({"empty": b"", "binary": b"\xff" * 40, "long": b"a" * 500}[harm])
    second = token.start_token()
    assert second != first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token.start_token() == second


@pytest.mark.parametrize("presented", [None, "", "wrong", "é" * 43, "\ud800", "x" * 10_000])
def test_nothing_else_passes_for_the_token(presented: str | None) -> None:
    assert not token.is_start_token(presented)
    assert not token.is_start_token(token.start_token() + "x")
    assert token.is_start_token(token.start_token())


def test_the_server_refuses_to_start_and_stop_without_the_token() -> None:
    st.session_state.clear()
    with pytest.raises(InvalidInputError) as refused:
        run_services.stop("20261130-101500-llama-3-8b-abcd")
    assert refused.value.faults[0].code == "start_token_needed"
    with pytest.raises(InvalidInputError) as refused:
        services.start(None, asked=None, changes=(), request_id="x", place=HERE)  # type: ignore[arg-type]
    assert refused.value.faults[0].code == "start_token_needed"


def test_serve_listens_on_this_machine_only_and_prints_an_address_with_the_token() -> None:
    command = serve.serve_command(8501, "127.0.0.1")
    assert "--server.address=127.0.0.1" in command
    assert command[command.index("--server.allowedHosts") + 1] == "localhost"
    assert serve.dashboard_url(8501, "127.0.0.1", "abc") == "http://127.0.0.1:8501/?token=abc"
    assert serve.dashboard_url(8501, "::1", "abc") == "http://[::1]:8501/?token=abc"


def test_serve_refuses_a_port_that_is_taken() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InvalidInputError) as refused:
            serve.serve(taken.getsockname()[1])
    assert refused.value.faults[0].code == "cannot_listen"


def test_serve_and_token_bring_in_no_streamlit() -> None:
    code = "import sys, tpdpdash.serve, tpdpdash.start_token; print('streamlit' in sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert shown.stdout.strip() == "False"
