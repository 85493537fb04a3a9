"""config.json of a model on the Hugging Face hub. Fetches that one file; weights and code are never asked for."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from urllib.parse import urlsplit

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.model.config_json import MAX_CONFIG_BYTES, read_config_bytes, too_large_fault

FIELD = "model.config"
TIMEOUT_S = 5.0
_PART = r"[A-Za-z0-9](?:[\w.-]{0,94}\w)?"
_HUB_ID = re.compile(f"{_PART}/{_PART}", re.ASCII)
_DEFAULT_PORTS = {"http": 80, "https": 443}


def is_hub_id(text: str) -> bool:
    """Whether the text has the form organisation/name that the hub accepts."""
    return _HUB_ID.fullmatch(text) is not None and not any(part in text for part in ("..", "--", ".git"))


def _check_reachable(hub_id: str, endpoint: str) -> None:
    """One connection attempt: without a network the hub's client tries for half a minute before it gives up."""
    from urllib.request import getproxies  # here, as it brings in half of the standard library

    url = urlsplit(endpoint)
    proxy = getproxies().get(url.scheme)
    target = urlsplit(proxy) if proxy else url
    port = target.port or _DEFAULT_PORTS.get(target.scheme, 443)
    try:
        socket.create_connection((target.hostname or "", port), timeout=TIMEOUT_S).close()
    except OSError as error:
        raise InvalidInputError([_unreachable(hub_id, error)]) from error


def fetch_config(hub_id: str, *, endpoint: str | None = None, cache_dir: Path | None = None) -> bytes:
    """The bytes of the model's config.json: from the local cache, else over the network.

    Raises InvalidInputError: no network, no such model, a model that asks for a login, no config.json.
    `endpoint` and `cache_dir` default to the hub's own settings (HF_ENDPOINT, HF_HOME).
    """
    # Imported here: it takes long, and planning with presets and files works without it.
    from huggingface_hub import constants, errors, hf_hub_download, try_to_load_from_cache

    # The class of whichever HTTP library this version of the hub's client uses.
    http_error: type[Exception] = vars(errors)["HTTPError"]
    cached = try_to_load_from_cache(hub_id, "config.json", cache_dir=cache_dir)
    if isinstance(cached, str):
        return read_config_bytes(Path(cached))
    if not constants.HF_HUB_OFFLINE:
        _check_reachable(hub_id, endpoint or constants.ENDPOINT)
    try:
        probe = hf_hub_download(
            hub_id, "config.json", endpoint=endpoint, cache_dir=cache_dir, etag_timeout=TIMEOUT_S, dry_run=True
        )
        if probe.file_size is not None and probe.file_size > MAX_CONFIG_BYTES:
            raise InvalidInputError([too_large_fault(hub_id, probe.file_size)])
        path = hf_hub_download(hub_id, "config.json", endpoint=endpoint, cache_dir=cache_dir, etag_timeout=TIMEOUT_S)
    except (OSError, http_error) as error:
        raise InvalidInputError([_refused(hub_id, error)]) from error
    return read_config_bytes(Path(path))


def _unreachable(hub_id: str, error: Exception) -> Fault:
    reason = getattr(error, "strerror", None) or type(error).__name__
    return Fault(code="hub_unreachable", field=FIELD, value=hub_id, values={"reason": reason})


def _refused(hub_id: str, error: Exception) -> Fault:
    """The hub gave no config: which case it is."""
    from huggingface_hub.errors import GatedRepoError, RemoteEntryNotFoundError, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        return Fault(code="hub_gated", field=FIELD, value=hub_id)
    if isinstance(error, RepositoryNotFoundError):
        return Fault(code="hub_no_model", field=FIELD, value=hub_id)
    if isinstance(error, RemoteEntryNotFoundError):
        return Fault(code="hub_no_config", field=FIELD, value=hub_id)
    return _unreachable(hub_id, error)
