"""config.json of a model on the Hugging Face hub. Fetches that one file; weights and code are never asked for."""

from __future__ import annotations

import re
from pathlib import Path

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.model.config_json import MAX_CONFIG_BYTES, read_config_bytes, too_large_fault

FIELD = "model.config"
FETCH_TIMEOUT_S = 10.0
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


def is_hub_id(text: str) -> bool:
    """Whether the text has the form organisation/name."""
    return _HUB_ID.fullmatch(text) is not None and ".." not in text and "--" not in text


def fetch_config(hub_id: str) -> bytes:
    """The bytes of the model's config.json: from the local cache, else over the network.

    Raises InvalidInputError: no network, no such model, a model that asks for a login, no config.json.
    """
    # Imported here: it takes long, and planning with presets and files works without it.
    from huggingface_hub import hf_hub_download, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
    from huggingface_hub.file_download import get_hf_file_metadata

    cached = try_to_load_from_cache(hub_id, "config.json")
    if isinstance(cached, str):
        return read_config_bytes(Path(cached))
    try:
        metadata = get_hf_file_metadata(hf_hub_url(hub_id, "config.json"), timeout=FETCH_TIMEOUT_S)
        if metadata.size is not None and metadata.size > MAX_CONFIG_BYTES:
            raise InvalidInputError([too_large_fault(hub_id, metadata.size)])
        path = hf_hub_download(hub_id, "config.json", etag_timeout=FETCH_TIMEOUT_S)
    except HfHubHTTPError as error:
        raise InvalidInputError([_refused(hub_id, error)]) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        values = {"reason": type(error).__name__}
        raise InvalidInputError([Fault(code="hub_unreachable", field=FIELD, value=hub_id, values=values)]) from error
    return read_config_bytes(Path(path))


def _refused(hub_id: str, error: Exception) -> Fault:
    """The hub answered, but with no config: which case it is."""
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        return Fault(code="hub_gated", field=FIELD, value=hub_id)
    if isinstance(error, RepositoryNotFoundError):
        return Fault(code="hub_no_model", field=FIELD, value=hub_id)
    if isinstance(error, EntryNotFoundError):
        return Fault(code="hub_no_config", field=FIELD, value=hub_id)
    return Fault(code="hub_unreachable", field=FIELD, value=hub_id, values={"reason": type(error).__name__})
