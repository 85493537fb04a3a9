"""The catalogue of devices and links: catalogue.toml, each figure with its source.

A device is found by its name, by a spelling that fits only one device, or by the name that NVML gives it.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from tpdpdash.cluster.figures import device_spec, link_spec, spec_field
from tpdpdash.cluster.spec import ClusterSpec, DeviceSpec, LinkSpec
from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.fields import nearest

CPU = "CPU"

# Words that say nothing about which device is meant.
_FILLER = frozenset(
    (
        "nvidia",
        "amd",
        "tesla",
        "geforce",
        "instinct",
        "gpu",
        "gpus",
        "card",
        "accelerator",
        "tensor",
        "core",
        "dgx",
        "hgx",
    )
)
# Keys of a device's table that are not figures.
_NOT_FIGURES = frozenset(
    (
        *("document", "is_cpu", "constants", "scale_up", "scale_up_domain_size", "network", "devices_per_node"),
        *("nvml_names", "nvml_words", "sources"),
    )
)
# A driver reports less than nominal by its own reserve: 0.1 % (HIP) to 8 % (GDDR with ECC, B300).
_LARGEST_RESERVE_FRAC = 0.1


@cache
def _catalogue() -> dict[str, Any]:
    """The parsed file. Read once; nothing below hands out a part of it that could be changed."""
    return tomllib.loads((files("tpdpdash.cluster") / "catalogue.toml").read_text(encoding="utf-8"))


def device_names() -> tuple[str, ...]:
    """All devices, in the order of the file."""
    return tuple(_catalogue()["devices"])


def catalogue_device(name: str) -> DeviceSpec:
    """The device of exactly this name. Raises KeyError: for a person's spelling there is find_device."""
    table = _catalogue()["devices"][name]
    document = f"datasheet: {_catalogue()['documents'].get(table.get('document'), '')}"
    figures = {key: value for key, value in table.items() if key not in _NOT_FIGURES}
    sources = dict.fromkeys(figures, document) | table["sources"]
    constants, constant_sources = software_constants(table["constants"])
    return device_spec(
        name,
        figures | constants,
        sources | constant_sources,
        is_cpu=bool(table.get("is_cpu", False)),
        architecture=architecture(table["constants"]),
    )


def architecture(constants: str) -> str:
    """The family that a table of constants is of: hopper-pcie is a hopper."""
    return constants.partition("-")[0]


def software_constants(name: str) -> tuple[dict[str, float], dict[str, str]]:
    """What software reaches on an architecture: figures by key and the source text of each."""
    table = dict(_catalogue()["constants"][name])
    sources = table.pop("sources")
    like = table.pop("like", None)
    if like is None:
        return table, dict(sources)
    base, base_sources = software_constants(like)
    return base | table, base_sources | sources


def catalogue_link(name: str) -> LinkSpec:
    """The link of this key in the file."""
    table = dict(_catalogue()["links"][name])
    sources, title, kind = (table.pop(key) for key in ("sources", "name", "kind"))
    return link_spec(title, table, sources, kind)


# ----------------------------------------------------------------------------------------------- finding a device


def _words(text: str) -> list[str]:
    """A spelling as comparable words: "H100 SXM5 80 GB" and "h100-sxm-80gb" share theirs."""
    joined = re.sub(r"(\d+)\s*(?:gib|gb|g)\b", r"\1gb", text.lower())
    split = re.sub(r"\b(rtx|titan)(?=[a]?\d)", r"\1 ", joined)
    split = re.sub(r"\b([avh][128]00)(?=sxm|pcie)", r"\1 ", split)
    return [word for word in re.split(r"[^a-z0-9.]+", split) if word and word not in _FILLER]


def _vocabulary(name: str) -> frozenset[str]:
    """Every word that may stand in a spelling of this device."""
    table = _catalogue()["devices"][name]
    words = set(_words(name)) | set(table.get("nvml_words", ()))
    words |= {re.sub(r"^sxm\d$", "sxm", word) for word in words}
    return frozenset(words)


def matching_devices(text: str) -> tuple[str, ...]:
    """The devices that a spelling fits: the one of exactly that name, else all that hold each of its words."""
    names = device_names()
    exact = [name for name in names if name.lower() == text.strip().lower()]
    words = _words(text)
    if exact or not words:
        return tuple(exact)
    return tuple(name for name in names if _vocabulary(name).issuperset(words))


def find_device(name: str, field: str = "cluster.device") -> DeviceSpec:
    """The device that a person means. Raises InvalidInputError: unknown, or fitting several."""
    found = matching_devices(name) or devices_by_nvml_name(name)
    if len(found) == 1:
        return catalogue_device(found[0])
    if found:
        raise InvalidInputError([Fault(code="ambiguous_device", field=field, value=name, values={"candidates": found})])
    values = {"nearest": nearest(name, device_names()), "figures": REQUIRED_FIGURES}
    raise InvalidInputError([Fault(code="unknown_device", field=field, value=name, values=values)])


REQUIRED_FIGURES = ("memory_gib", "memory_gb_per_s", "peak_bf16_tflops (or peak_fp16_tflops, peak_fp32_tflops)")


def devices_by_nvml_name(name: str, total_bytes: float | None = None) -> tuple[str, ...]:
    """The devices that a driver's name (and reported memory) fits: one, several or none.

    "NVIDIA H100" alone is several; with 95.6 GiB it is the 96 GB part.
    """
    table = _catalogue()["devices"]
    named = tuple(device for device in table if name in table[device]["nvml_names"])
    found = named or matching_devices(name)
    if total_bytes is None or len(found) < 2:
        return found
    return tuple(device for device in found if _memory_fits(table[device], total_bytes))


def _memory_fits(table: dict[str, Any], total_bytes: float) -> bool:
    nominal = table["memory_gib"] * spec_field("memory_gib")[1]
    return bool((1 - _LARGEST_RESERVE_FRAC) * nominal <= total_bytes <= nominal)


def is_unified_memory(name: str) -> bool:
    """Does a driver's name mean a GPU that shares the host's memory? (GB10, Jetson: no memory of its own.)"""
    return any(word in _catalogue()["unified_memory"]["nvml_words"] for word in _words(name))


# --------------------------------------------------------------------------------------------- describing a cluster


def default_cluster(
    device_name: str, nodes: int, devices_per_node: int | None = None, field: str = "cluster.device"
) -> ClusterSpec:
    """A cluster of a catalogue device on the links that it usually comes with. Raises InvalidInputError."""
    device = find_device(device_name, field)
    table = _catalogue()["devices"][device.name]
    per_node = devices_per_node or int(table["devices_per_node"])
    return ClusterSpec(
        device=device,
        nodes=nodes,
        devices_per_node=per_node,
        scale_up=catalogue_link(table["scale_up"]),
        scale_up_domain_size=domain_size(table.get("scale_up_domain_size"), per_node),
        network=catalogue_link(table["network"]),
        asked_device=device_name,
    )


def domain_size(rack_size: int | None, devices_per_node: int) -> int:
    """Devices that one scale-up domain joins: a node, or whole nodes of a rack (NVL72)."""
    if rack_size is None or rack_size < devices_per_node:
        return devices_per_node
    return rack_size // devices_per_node * devices_per_node
