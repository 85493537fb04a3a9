"""Learn's 16 devices as plain data for charts: the document's groups by name, slices of W, what each pass sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tpdpdash.charts.map_geometry import Bus
from tpdpdash.charts.pictures import PassBox, Split
from tpdpdash.charts.rank_map import RankMap
from tpdpdash.layout.groups import rank_groups
from tpdpdash.layout.stages import even_stage_layers
from tpdpdash.model.spec import ModelSpec
from tpdpdash.text import t
from tpdpdash.units import format_count

WORLD_SIZE = 16
DEVICES_PER_NODE = 8
SUBSCRIPTS = "₁₂₃₄₅₆₇₈"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The 16 devices under one tp_world_size and pp_world_size, seen from one device."""

    tp: int
    """tp_world_size."""
    pp: int
    """pp_world_size."""
    device: int
    """The chosen device."""
    tp_groups: tuple[tuple[int, ...], ...]
    """Devices that split each layer."""
    dp_groups: tuple[tuple[int, ...], ...]
    """Devices that hold the same weights and average their gradients."""
    pp_groups: tuple[tuple[int, ...], ...]
    """Devices that hold successive parts of the model."""

    @property
    def dp(self) -> int:
        """dp_world_size."""
        return len(self.dp_groups[0])

    def peers(self, groups: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """The group that holds the chosen device."""
        return self.group_of(self.device, groups)

    @staticmethod
    def group_of(device: int, groups: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """The group that holds a device."""
        return next(group for group in groups if device in group)

    def slice_of(self, device: int) -> int:
        """Which slice of W a device holds, from 0."""
        return next(group.index(device) for group in self.tp_groups if device in group)


def learn_world(tp: int, pp: int, device: int) -> World:
    """The groups of 16 devices. Source: Megatron's order tp-cp-ep-dp-pp, as in the document."""
    groups = rank_groups(world_size=WORLD_SIZE, tp=tp, pp=pp)
    tp_groups, dp_groups, pp_groups = (tuple(map(tuple, groups[kind])) for kind in ("tp", "dp", "pp"))
    return World(tp=tp, pp=pp, device=device, tp_groups=tp_groups, dp_groups=dp_groups, pp_groups=pp_groups)


def name(device: int) -> str:
    """g0 … g15."""
    return f"g{device}"


def names(group: Sequence[int]) -> str:
    """[g0, g1]."""
    return f"[{', '.join(map(name, group))}]"


def short_names(group: Sequence[int]) -> str:
    """The group in a few characters: g0,g2…g14."""
    if len(group) <= 3:
        return ",".join(map(name, group))
    return f"{name(group[0])},{name(group[1])}…{name(group[-1])}"


def all_names(groups: Sequence[Sequence[int]]) -> str:
    """[[g0, g1], [g2, g3], …], every group."""
    return f"[{', '.join(map(names, groups))}]"


def slice_name(index: int) -> str:
    """W₁, W₂, …"""
    return f"W{SUBSCRIPTS[index]}"


def held(world: World, device: int) -> str:
    """What of W a device holds."""
    return slice_name(world.slice_of(device)) if world.tp > 1 else "W"


def device_map(world: World, num_layers: int) -> RankMap:
    """The 16 devices with their TP groups framed and their DP groups as lines."""
    per_stage = WORLD_SIZE // world.pp
    stages = {node: stage_note(num_layers, world.pp, node * DEVICES_PER_NODE // per_stage) for node in (0, 1)}
    tp_named = {f"tp_groups[{i}]": group for i, group in enumerate(world.tp_groups)} if world.tp > 1 else {}
    buses = [Bus(name=f"dp_groups[{i}]", ranks=group) for i, group in enumerate(world.dp_groups)]
    return RankMap(
        world_size=WORLD_SIZE,
        devices_per_node=DEVICES_PER_NODE,
        chosen=world.device,
        groups=chosen_groups(world),
        node_notes=stages if world.pp > 1 else {},
        labels={device: name(device) for device in range(WORLD_SIZE)},
        notes={device: held(world, device) for device in range(WORLD_SIZE)},
        named_groups=tp_named,
        buses=buses if world.dp > 1 else (),
        block_size=world.tp,
    )


def stage_map(world: World, num_layers: int) -> RankMap:
    """The same devices as rows of pipeline stages."""
    per_stage = WORLD_SIZE // world.pp
    stages = range(world.pp)
    return RankMap(
        world_size=WORLD_SIZE,
        devices_per_node=per_stage,
        chosen=world.device,
        groups=chosen_groups(world),
        node_titles={stage: stage_note(num_layers, world.pp, stage) for stage in stages},
        node_notes={stage: t("stage {stage}", stage=stage) for stage in stages},
        labels={device: name(device) for device in range(WORLD_SIZE)},
        node_columns=1,
    )


def chosen_groups(world: World) -> dict[str, tuple[int, ...]]:
    """The chosen device's groups that have more than one member."""
    kinds = {"tp": world.tp_groups, "dp": world.dp_groups, "pp": world.pp_groups}
    peers = {kind: world.peers(groups) for kind, groups in kinds.items()}
    return {kind: group for kind, group in peers.items() if len(group) > 1}


def stage_note(num_layers: int, pp: int, stage: int) -> str:
    """ "layers 0–15"."""
    sizes = even_stage_layers(num_layers, pp)
    first = sum(sizes[:stage])
    return t("layers {first}–{last}", first=first, last=first + sizes[stage] - 1)


def splits(world: World) -> tuple[list[Split], list[str]]:
    """X · W up · W down = Y, with the chosen device's slices lit; and the signs between them."""
    group = world.peers(world.tp_groups)
    own = [group.index(world.device)]
    labels = [f"{slice_name(i)} · {name(device)}" for i, device in enumerate(group)]
    if world.tp == 1:
        labels = [f"W · {name(world.device)}"]
    result = t("Y") if world.tp == 1 else _sum([f"Y{SUBSCRIPTS[i]}" for i in range(world.tp)])
    end = t("all-reduce") if world.tp > 1 else t("output")
    return [
        Split(title=t("input"), direction="whole", labels=["X"], chosen=(), note=t("same on all")),
        Split(title=t("W up: columns"), direction="columns", labels=labels, chosen=own, note=t("no message")),
        Split(title=t("W down: rows"), direction="rows", labels=labels, chosen=own, note=t("partial sums")),
        Split(title=end, direction="whole", labels=["Y"], chosen=(), note=result),
    ], ["×", "→", "→"]


def _sum(terms: Sequence[str]) -> str:
    """Y₁ + Y₂, or Y₁ + … + Y₈."""
    return " + ".join(terms if len(terms) <= 2 else [terms[0], "…", terms[-1]])


def split_sentence(world: World, model: ModelSpec) -> str:
    """Who keeps which numbers of one MLP, with the sizes of the model."""
    width, inner = model.hidden_size, model.ffn_hidden_size // world.tp
    sizes = {
        "device": name(world.device), "slice": held(world, world.device), "up": _shape(width, inner),
        "down": _shape(inner, width), "tp": world.tp, "model": model.name,
    }  # fmt: skip
    if world.tp == 1:
        return t("{device} keeps all of W: {up} up and {down} down ({model}). Nothing is sent inside a layer.", **sizes)
    return t(
        "Columns first, rows second: nothing is sent between the two products, and one all-reduce over its group of "
        "**tp_groups** makes Y whole. {device} keeps {slice}: {up} up and {down} down ({model}). That is 1/{tp} of the "
        "parameters, of the arithmetic, and of what is stored in between.",
        **sizes,
    )


def _shape(rows: int, columns: int) -> str:
    return f"{format_count(rows)} × {format_count(columns)}"


def forward_boxes(world: World) -> tuple[list[str], list[PassBox]]:
    """Lanes and boxes of the forward pass of one MLP on the chosen device's TP group."""
    group = world.peers(world.tp_groups)
    boxes: list[PassBox] = []
    for lane, device in enumerate(group):
        own = held(world, device)
        boxes.append(PassBox(lanes=(lane, lane), start=0, steps=1.4, text=f"X · {own} {t('up')}", phase="forward"))
        boxes.append(PassBox(lanes=(lane, lane), start=1.4, steps=1.4, text=f"· {own} {t('down')}", phase="forward"))
    if world.tp > 1:
        boxes.append(_message(len(group), 2.85, "tp", t("all-reduce"), "Y"))
    return lanes(world), boxes


def backward_boxes(world: World) -> tuple[list[str], list[PassBox]]:
    """Lanes and boxes of the backward pass: weight gradients stay, dX is summed over TP, ∇W over DP."""
    group = world.peers(world.tp_groups)
    boxes: list[PassBox] = []
    for lane, device in enumerate(group):
        gradient = f"∇{held(world, device)}"
        stays = t("{gradient}, stays", gradient=gradient) if world.tp > 1 else gradient
        partial = t("dX, partial") if world.tp > 1 else "dX"
        boxes.append(PassBox(lanes=(lane, lane), start=0, steps=1.4, text=stays, phase="backward"))
        boxes.append(PassBox(lanes=(lane, lane), start=1.4, steps=1.4, text=partial, phase="backward"))
        if world.dp > 1:
            peers = short_names(next(g for g in world.dp_groups if device in g))
            boxes.append(
                PassBox(
                    lanes=(lane, lane), start=4.15 if world.tp > 1 else 2.85, steps=1.75, phase="dp", is_message=True,
                    text=t("all-reduce {gradient}", gradient=gradient), note=peers,
                )
            )  # fmt: skip
    if world.tp > 1:
        boxes.append(_message(len(group), 2.85, "tp", t("all-reduce"), "dX"))
    return lanes(world), boxes


def lanes(world: World) -> list[str]:
    """One lane a device of the chosen TP group: "g0 W₁"."""
    return [f"{name(device)} {held(world, device)}" for device in world.peers(world.tp_groups)]


def _message(num_lanes: int, start: float, phase: str, text: str, note: str) -> PassBox:
    last = num_lanes - 1
    return PassBox(lanes=(0, last), start=start, steps=1.25, text=text, note=note, phase=phase, is_message=True)
