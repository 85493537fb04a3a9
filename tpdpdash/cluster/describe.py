"""[cluster] of a Job file ↔ ClusterSpec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tpdpdash.cluster.catalogue import catalogue_link, default_cluster
from tpdpdash.cluster.detection import Detection
from tpdpdash.cluster.inline import LINK_TABLE, device_from_fields, with_links
from tpdpdash.cluster.local import read_local
from tpdpdash.cluster.spec import ClusterSpec, DeviceSpec, FigureSource, LinkSpec
from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.fields import Limits, read_fields
from tpdpdash.units import format_bandwidth

Table = Mapping[str, object]
Read = tuple[ClusterSpec | None, list[Fault], list[Fault]]

MAX_NODES = 100_000
MAX_DEVICES_PER_NODE = 1_024
SIZE_LIMITS: Limits = {
    "nodes": (1, MAX_NODES),
    "devices_per_node": (1, MAX_DEVICES_PER_NODE),
    "price_per_device_hour": (0, 1_000_000),
    "failures_per_device_day": (0, 1_000),
    "restart_s": (0, 864_000),
}
RATES = ("price_per_device_hour", "failures_per_device_day", "restart_s")
"""Keys that are taken over as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTable:
    """The keys of [cluster]."""

    device: object = None
    """A catalogue name, "local", or a table of figures."""
    nodes: int | None = None
    """Machines."""
    devices_per_node: int | None = None
    """Devices in each machine."""
    links: object = None
    """A table of LinkFigures."""
    price_per_device_hour: float | None = None
    """Dollars."""
    failures_per_device_day: float = 0.0
    """Failures that stop the job."""
    restart_s: float = 0.0
    """Seconds from a failure to the next step."""


def cluster_from_fields(fields: Table, detect: Callable[[], Detection]) -> Read:
    """(cluster, faults, notices) of a [cluster] table; the cluster is None when there is a fault.

    `device` absent = "local". `nodes` absent = 1: a Job whose layout gives dp sizes the cluster afterwards.
    `detect` is called for "local" only.
    """
    table, faults = _even_nodes(fields)
    values, more = read_fields(ClusterTable, table, "cluster", SIZE_LIMITS)
    faults += more
    nodes, per_node = values.get("nodes"), values.get("devices_per_node")
    cluster, device_faults, notices = _described(values.get("device", "local"), nodes, per_node, detect)
    faults += device_faults
    links = values.get("links", {})
    if not isinstance(links, Mapping):
        faults.append(Fault(code="not_table", field=LINK_TABLE, value=links))
    elif cluster is not None and "nodes" not in {fault.field.removeprefix("cluster.") for fault in faults}:
        cluster, link_faults = with_links(cluster, links)
        faults += link_faults
        if cluster.asked_device == "inline" and "like" not in cluster.asked_figures:
            unlinked, about_links = _unlinked(cluster)
            faults += unlinked if not link_faults else []
            notices += about_links
    if faults or cluster is None:
        return None, faults, notices
    return replace(cluster, **{name: values[name] for name in RATES if name in values}), [], notices


def _even_nodes(fields: Table) -> tuple[Table, list[Fault]]:
    """`nodes` as a list of machines: taken as a number when all are alike, refused when they are not.

    Each entry is its number of devices, or a table with `devices` or `gpus`.
    """
    nodes = fields.get("nodes")
    if not isinstance(nodes, (list, tuple)):
        return fields, []
    counts = [_devices_of(node) for node in nodes]
    if not counts or None in counts:
        return fields, []
    if len(set(counts)) > 1:
        rest = {key: value for key, value in fields.items() if key not in ("nodes", "devices_per_node")}
        smallest = min(count for count in counts if count is not None)
        values = {"nearest": f"{len(counts)} nodes of {smallest}"}
        return rest, [Fault(code="uneven_nodes", field="cluster.nodes", value=tuple(counts), values=values)]
    if fields.get("devices_per_node", counts[0]) != counts[0]:
        given, values = fields["devices_per_node"], {"other": f"cluster.nodes of {counts[0]} devices each"}
        fault = Fault(code="conflicting_keys", field="cluster.devices_per_node", value=given, values=values)
        return {**fields, "nodes": len(counts)}, [fault]
    return {**fields, "nodes": len(counts), "devices_per_node": counts[0]}, []


def _devices_of(node: object) -> int | None:
    """Devices of one entry of a list of machines; None when it does not say."""
    if isinstance(node, Mapping):
        node = node.get("devices", node.get("gpus"))
    return node if type(node) is int else None


def _described(device: object, nodes: int | None, per_node: int | None, detect: Callable[[], Detection]) -> Read:
    """The cluster before its links are changed."""
    try:
        if device == "local":
            local = read_local(detect(), nodes=nodes, devices_per_node=per_node)
            return local.cluster, [], list(local.notices)
        if isinstance(device, str):
            return default_cluster(device, nodes or 1, per_node), [], []
    except InvalidInputError as wrong:
        return None, list(wrong.faults), []
    if not isinstance(device, Mapping):
        return None, [Fault(code="not_text", field="cluster.device", value=device)], []
    spec, faults = device_from_fields(device)
    like = device.get("like")
    if per_node is None and like is None:
        faults.append(Fault(code="missing", field="cluster.devices_per_node"))
    if spec is None or faults:
        return None, faults, []
    usual = like if isinstance(like, str) else None
    return _inline_cluster(spec, usual, nodes or 1, per_node, device), [], _assumptions(spec)


def _inline_cluster(
    spec: DeviceSpec, like: str | None, nodes: int, per_node: int | None, figures: Table
) -> ClusterSpec:
    """A described device on the links of the device that it is like; else on assumed ones, until links are given."""
    if like is not None:
        usual = default_cluster(like, nodes, per_node)
        return replace(usual, device=spec, asked_device="inline", asked_figures=dict(figures))
    return ClusterSpec(
        device=spec,
        nodes=nodes,
        devices_per_node=per_node or 1,
        scale_up=_assumed_link("pcie4"),
        scale_up_domain_size=per_node or 1,
        network=_assumed_link("ethernet25"),
        asked_device="inline",
        asked_figures=dict(figures),
    )


def _assumed_link(name: str) -> LinkSpec:
    source = FigureSource(kind="assumed", source="not described; used by nothing, or said in a notice")
    link = catalogue_link(name)
    return replace(link, sources=dict.fromkeys(link.sources, source))


def _unlinked(cluster: ClusterSpec) -> tuple[list[Fault], list[Fault]]:
    """(faults, notices) for links of a described device that nobody has described.

    A fault where something must cross them; a notice about the network of a single node, which may become several.
    """
    faults = []
    if cluster.devices_per_node > 1 and cluster.scale_up.source.kind == "assumed":
        faults.append(Fault(code="missing", field=f"{LINK_TABLE}.scale_up_gb_per_s"))
    if cluster.network.source.kind != "assumed":
        return faults, []
    field = f"{LINK_TABLE}.network_gb_per_s"
    if cluster.nodes > 1:
        return [*faults, Fault(code="missing", field=field)], []
    return faults, [Fault(code="assumed_network", field=field, value=format_bandwidth(cluster.network.bytes_per_s))]


def _assumptions(spec: DeviceSpec) -> list[Fault]:
    """What was assumed of a described device: said, not hidden."""
    assumed = tuple(field for field, source in spec.sources.items() if source.kind == "assumed")
    return [Fault(code="assumed_figures", field="cluster.device", value=assumed)] if assumed else []


# ---------------------------------------------------------------------------------------------------------- writing


def cluster_to_fields(cluster: ClusterSpec) -> dict[str, object]:
    """The [cluster] table that cluster_from_fields reads back as this cluster ("local" stays "local")."""
    is_inline = cluster.asked_device == "inline"
    fields: dict[str, object] = {
        "device": dict(cluster.asked_figures) if is_inline else cluster.asked_device or cluster.device.name,
        "nodes": cluster.nodes,
        "devices_per_node": cluster.devices_per_node,
    }
    fields |= {name: value for name in RATES if (value := getattr(cluster, name))}
    return fields | ({"links": dict(cluster.asked_links)} if cluster.asked_links else {})
