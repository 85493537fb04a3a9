"""A device that a person describes, and links that a person overrides: [cluster.device] and [cluster.links]."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tpdpdash.cluster.catalogue import REQUIRED_FIGURES, find_device, software_constants
from tpdpdash.cluster.figures import (
    DEVICE_LIMITS,
    LINK_LIMITS,
    PRECISIONS,
    DeviceFigures,
    LinkFigures,
    device_figures,
    device_spec,
    spec_field,
)
from tpdpdash.cluster.spec import ClusterSpec, DeviceSpec, FigureSource, LinkSpec
from tpdpdash.faults import Fault, InvalidInputError, out_of_range
from tpdpdash.fields import read_fields

DEVICE_TABLE, LINK_TABLE = "cluster.device", "cluster.links"

# Drivers keep 0.7 to 1.3 % of the catalogue's HBM devices; nothing is known of the described one.
ASSUMED_USABLE_FRAC = 0.98
_GIVEN = "given: by the person who described it"


def device_from_fields(fields: Mapping[str, object]) -> tuple[DeviceSpec | None, list[Fault]]:
    """A device from a person's figures: the DeviceFigures keys, with memory, bandwidth and a peak required.

    `like` = a catalogue device takes over what is not given. Every fault at once; the device only without faults.
    """
    values, faults = read_fields(DeviceFigures, fields, DEVICE_TABLE, DEVICE_LIMITS)
    if "memory_gib" in values and "memory_gb" in values:
        faults.append(Fault(code="conflicting_keys", field=f"{DEVICE_TABLE}.memory_gb", values={"other": "memory_gib"}))
    base: DeviceSpec | None = None
    if "like" in values:
        try:
            base = find_device(values["like"], f"{DEVICE_TABLE}.like")
        except InvalidInputError as wrong:
            faults += wrong.faults
    figures = {key: float(value) for key, value in values.items() if key not in ("name", "like")}
    if base is None:
        faults += _missing_figures(figures, {fault.field for fault in faults})
    faults += _too_much_usable(figures)
    if faults:
        return None, faults
    name = values.get("name") or (f"{base.name}, changed" if base else DeviceFigures().name)
    return (_changed(base, figures, name) if base else _described(figures, name)), []


def _missing_figures(figures: Mapping[str, float], told: set[str]) -> list[Fault]:
    """The figures without which nothing can be planned; none is guessed."""
    needed = {
        "memory_gib": ("memory_gib", "memory_gb"),
        "memory_gb_per_s": ("memory_gb_per_s",),
        "peak_bf16_tflops": ("peak_bf16_tflops", "peak_fp16_tflops", "peak_fp32_tflops"),
    }
    return [
        Fault(code="missing_figure", field=f"{DEVICE_TABLE}.{key}", values={"figures": REQUIRED_FIGURES})
        for key, choices in needed.items()
        if not any(choice in figures or f"{DEVICE_TABLE}.{choice}" in told for choice in choices)
    ]


def _too_much_usable(figures: Mapping[str, float]) -> list[Fault]:
    """Usable memory cannot exceed the nominal memory that stands beside it."""
    usable = figures.get("usable_gib")
    memory_key = "memory_gib" if "memory_gib" in figures else "memory_gb"
    if usable is None or memory_key not in figures:
        return []
    high = figures[memory_key] * spec_field(memory_key)[1] / spec_field("usable_gib")[1]
    if usable <= high:
        return []
    return [out_of_range(f"{DEVICE_TABLE}.usable_gib", usable, 0, high)]


def _described(figures: Mapping[str, float], name: str) -> DeviceSpec:
    """A device of which only the given figures are known; what software reaches is assumed and marked so."""
    constants, sources = software_constants("generic")
    all_figures = {"power_w": math.nan, **constants, **figures}
    all_sources = {"power_w": "assumed: unknown, and so is energy"} | sources | dict.fromkeys(figures, _GIVEN)
    if "usable_gib" not in figures:
        memory_key = "memory_gib" if "memory_gib" in figures else "memory_gb"
        nominal_bytes = figures[memory_key] * spec_field(memory_key)[1]
        all_figures["usable_gib"] = ASSUMED_USABLE_FRAC * nominal_bytes / spec_field("usable_gib")[1]
        all_sources["usable_gib"] = f"assumed: {ASSUMED_USABLE_FRAC:.0%} of the nominal memory"
    return device_spec(name, all_figures, all_sources)


def _changed(base: DeviceSpec, figures: Mapping[str, float], name: str) -> DeviceSpec:
    """A catalogue device with some figures changed."""
    changed = device_spec(
        name, {**device_figures(base), **figures}, dict.fromkeys((*device_figures(base), *figures), _GIVEN)
    )
    given = {spec_field(key)[0] for key in figures if not key.startswith("peak_")}
    given |= {f"peak_flops_per_s.{p}" for p in PRECISIONS if f"peak_{p}_tflops" in figures}
    sources = {**base.sources, **{field: changed.sources[field] for field in given}}
    usable = changed.usable_bytes
    if "usable_bytes" not in given and "memory_bytes" in given:
        usable = changed.memory_bytes * base.usable_bytes / base.memory_bytes
        sources["usable_bytes"] = FigureSource(kind="assumed", source=f"the same share as of {base.name}")
    return replace(changed, is_cpu=base.is_cpu, architecture=base.architecture, usable_bytes=usable, sources=sources)


# ------------------------------------------------------------------------------------------------------------ links


def with_links(cluster: ClusterSpec, fields: Mapping[str, object]) -> tuple[ClusterSpec, list[Fault]]:
    """A cluster with the links that a person knows better: the LinkFigures keys.

    Every fault at once; with a fault, the cluster comes back unchanged.
    """
    values, faults = read_fields(LinkFigures, fields, LINK_TABLE, LINK_LIMITS)
    if "network_gb_per_s" in values and "network_gbit_per_s" in values:
        values_shown = {"other": "network_gb_per_s"}
        faults.append(Fault(code="conflicting_keys", field=f"{LINK_TABLE}.network_gbit_per_s", values=values_shown))
    faults += _zero_bandwidth(cluster, values) + _domain_faults(cluster, values.get("scale_up_domain_size"))
    if faults:
        return cluster, faults
    size = values.get("scale_up_domain_size", cluster.scale_up_domain_size)
    return replace(
        cluster,
        scale_up=_changed_link(cluster.scale_up, values, "scale_up"),
        network=_changed_link(cluster.network, values, "network"),
        scale_up_domain_size=size,
        asked_links={**cluster.asked_links, **values},
    ), []


def _zero_bandwidth(cluster: ClusterSpec, values: Mapping[str, float]) -> list[Fault]:
    """A link of bandwidth 0 carries nothing: refused where something must be sent over it."""
    used = {"scale_up": cluster.devices_per_node > 1, "network": cluster.nodes > 1}
    return [
        Fault(
            code="no_bandwidth",
            field=f"{LINK_TABLE}.{key}",
            value=0,
            values={"nodes": cluster.nodes, "devices_per_node": cluster.devices_per_node},
        )
        for key, value in values.items()
        if "_per_s" in key and value == 0 and used[key.split("_g")[0]]
    ]


def _domain_faults(cluster: ClusterSpec, size: int | None) -> list[Fault]:
    """A domain is whole nodes, or an even part of a node."""
    per_node = cluster.devices_per_node
    if size is None or size % per_node == 0 or per_node % size == 0:
        return []
    nearest = max(size // per_node, 1) * per_node
    values = {"divisor_name": "cluster.devices_per_node", "divisor": per_node, "nearest": nearest}
    return [Fault(code="not_divisible", field=f"{LINK_TABLE}.scale_up_domain_size", value=size, values=values)]


def _changed_link(link: LinkSpec, values: Mapping[str, float], prefix: str) -> LinkSpec:
    """The link with the given figures; a bandwidth of 0 on a link that nothing crosses changes nothing."""
    changes: dict[str, Any] = {}
    for key, value in values.items():
        if key.startswith(f"{prefix}_") and key != "scale_up_domain_size":
            field, factor = spec_field(key.removeprefix(prefix))
            changes[field.removeprefix("_")] = value * factor
    if not changes.get("bytes_per_s"):
        changes.pop("bytes_per_s", None)
    given = FigureSource(kind="given", source=LINK_TABLE)
    return replace(link, **changes, sources={**link.sources, **dict.fromkeys(changes, given)})
