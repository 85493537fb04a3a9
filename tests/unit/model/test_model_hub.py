"""Fetching config.json from a hub: a small server stands in for it, over the hub's real client."""

import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tpdpdash.faults import InvalidInputError
from tpdpdash.model.config_json import MAX_CONFIG_BYTES
from tpdpdash.model.hub import fetch_config, is_hub_id

BODY = b'{"model_type": "llama"}'
REFUSALS = {"gone": (404, "RepoNotFound"), "gated": (403, "GatedRepo"), "bare": (404, "EntryNotFound")}


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does, for the repositories org/good, org/huge and those of REFUSALS."""

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        name = self.path.split("/")[2]
        status, code = REFUSALS.get(name, (200, ""))
        size = 10 * MAX_CONFIG_BYTES if name == "huge" else len(BODY)
        self.send_response(status)
        for key, value in {"X-Error-Code": code, "X-Error-Message": code, "X-Repo-Commit": "c" * 40}.items():
            self.send_header(key, value)
        self.send_header("ETag", f'"{name}"')
        self.send_header("Content-Length", str(size if status == 200 else 0))
        self.end_headers()
        if with_body and status == 200:
            self.wfile.write(BODY)

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_config_is_fetched_once_and_then_read_from_the_cache(endpoint: str, tmp_path: Path) -> None:
    assert fetch_config("org/good", endpoint=endpoint, cache_dir=tmp_path) == BODY
    assert fetch_config("org/good", endpoint="http://127.0.0.1:1", cache_dir=tmp_path) == BODY


@pytest.mark.parametrize(
    ("name", "code"),
    [("gone", "hub_no_model"), ("gated", "hub_gated"), ("bare", "hub_no_config"), ("huge", "file_too_large")],
)
def test_each_refusal_of_the_hub_says_what_it_is(name: str, code: str, endpoint: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError) as caught:
        fetch_config(f"org/{name}", endpoint=endpoint, cache_dir=tmp_path)
    assert [fault.code for fault in caught.value.faults] == [code]


def test_without_a_network_the_message_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError) as caught:
        fetch_config("org/any", endpoint="http://127.0.0.1:1", cache_dir=tmp_path)
    assert [fault.code for fault in caught.value.faults] == ["hub_unreachable"]


@pytest.mark.parametrize("text", ["meta-llama/Llama-3.1-8B", "a/b", "Qwen/Qwen3-0.6B"])
def test_organisation_and_name_make_a_hub_id(text: str) -> None:
    assert is_hub_id(text)


@pytest.mark.parametrize("text", ["../x", "a/../b", "a/b/c", "/etc/x", "a/b c", "a/b--c", "a/b.git", "-a/b", "a/b."])
def test_paths_and_odd_names_are_no_hub_ids(text: str) -> None:
    assert not is_hub_id(text)


def test_the_hub_client_is_not_imported_until_it_is_needed() -> None:
    check = "import sys, tpdpdash.model.resolve; sys.exit('huggingface_hub' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
