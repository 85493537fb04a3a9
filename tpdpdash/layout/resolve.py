"""From the keys that were given to a complete Layout: the defaults of the Job file, and what contradicts what."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.fields import nearest
from tpdpdash.layout.column_defaults import following_keys
from tpdpdash.layout.columns import RECOMPUTE_METHODS
from tpdpdash.layout.frameworks import overlap_keys
from tpdpdash.layout.grid import rank_order_faults
from tpdpdash.layout.layout import DEFAULT_RANK_ORDER, RECOMPUTES, SCHEDULES, Layout, LayoutPins
from tpdpdash.layout.prediction import counted_ends, loss_units, mtp_layers
from tpdpdash.layout.rules import AT_LEAST_ONE, DEGREES, check_layout
from tpdpdash.layout.schedules import SCHEDULE_FACTS
from tpdpdash.layout.shard_rules import ZERO_STAGES
from tpdpdash.layout.stages import even_stage_layers, pinned_stage_layers
from tpdpdash.layout.world import range_faults, world_faults

if TYPE_CHECKING:
    from tpdpdash.cluster.spec import ClusterSpec
    from tpdpdash.model.spec import ModelSpec
    from tpdpdash.training import Training

POSITIVE = (*AT_LEAST_ONE, "recompute_num_layers")
CHOICES = {"schedule": SCHEDULES, "recompute": RECOMPUTES, "recompute_method": RECOMPUTE_METHODS}
STAGE_PINS = ("first_stage_layers", "last_stage_layers")
COUNTED_ENDS = ("account_for_embedding", "account_for_loss")
SPLIT_PINS = ("layers_per_stage", *STAGE_PINS, *COUNTED_ENDS)
"""Keys that decide the split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A layout with every key filled in, and what is wrong with the keys that were given."""

    layout: Layout
    """Complete; where a key was faulty its default stands in, so that the other rules can still be asked."""
    faults: tuple[Fault, ...]
    """Faults of the given keys: ranges, the world size, the order, the stage split."""


def resolve_layout(
    pins: LayoutPins,
    model: ModelSpec,
    training: Training,
    world_size: int | None,
    cluster: ClusterSpec | None = None,
) -> Layout:
    """The complete layout of a job: what was given, and design defaults for the rest.

    world_size None: the world is what the degrees multiply to. Raises InvalidInputError with every fault, those of the
    validity rules included; rules about the device are asked only where `cluster` is given.
    """
    draft = draft_layout(pins, model, training, world_size)
    faults = {(f.code, f.field): f for f in draft.faults}
    world_told = any(f.code == "world_not_divisible" for f in draft.faults)
    for fault in check_layout(model, training, cluster, draft.layout):
        if not (world_told and fault.code == "dp_not_world"):  # one fault of the world, not two
            faults.setdefault((fault.code, fault.field), fault)
    if faults:
        raise InvalidInputError(faults.values())
    return draft.layout


def draft_layout(pins: LayoutPins, model: ModelSpec, training: Training, world_size: int | None) -> Draft:
    """Every key filled in, with the faults found on the way; nothing is raised."""
    given = pins.given()
    faults = range_faults({name: given[name] for name in POSITIVE if name in given})
    faults += range_faults({"zero_stage": given.get("zero_stage", 1)}, low=ZERO_STAGES[0], high=ZERO_STAGES[-1])
    faults += [
        _unknown(name, given[name], known) for name, known in CHOICES.items() if given.get(name, known[0]) not in known
    ]
    for fault in faults:
        given.pop(fault.field.removeprefix("layout."), None)
    degrees, degree_faults = _degrees(given, world_size)
    order = given.get("rank_order", DEFAULT_RANK_ORDER)
    order_faults = rank_order_faults(order, degrees)
    values = _defaults(given, degrees, training) | given | degrees
    values["rank_order"] = DEFAULT_RANK_ORDER if order_faults else order
    modules, folded = mtp_layers(model, training), SCHEDULE_FACTS[values["schedule"]].placement == "fold"
    counted = _counted_ends(given, model.num_layers, degrees["pp"], modules, folded)
    values |= counted
    values["layers_per_stage"], stage_faults = _stage_layers(
        given | counted, model.num_layers, degrees["pp"], modules, folded
    )
    known = {field.name for field in fields(Layout)}
    layout = Layout(**{name: value for name, value in values.items() if name in known})
    return Draft(layout=layout, faults=(*faults, *degree_faults, *order_faults, *stage_faults))


def _degrees(given: dict[str, Any], world_size: int | None) -> tuple[dict[str, int], list[Fault]]:
    """All six degrees; dp is what the world leaves, or what was given, which must then agree."""
    degrees = {name: int(given.get(name, 1)) for name in DEGREES}
    degrees["etp"] = int(given.get("etp", degrees["tp"]))
    if world_size is None:
        return degrees, []
    model_parallel = {name: degrees[name] for name in ("tp", "cp", "pp")}
    faults = world_faults(world_size, **model_parallel)
    if faults:
        return degrees, faults
    left = world_size // (degrees["tp"] * degrees["cp"] * degrees["pp"])
    if given.get("dp", left) != left:
        values = {"world_size": world_size, "product": world_size // left, "nearest": left}
        faults = [Fault(code="dp_not_world", field="layout.dp", value=given["dp"], values=values)]
        return degrees, faults
    return {**degrees, "dp": left}, []


def _defaults(given: dict[str, Any], degrees: dict[str, int], training: Training) -> dict[str, Any]:
    """What follows from the degrees, the chunks and the framework."""
    facts = SCHEDULE_FACTS.get(given.get("schedule", ""), SCHEDULE_FACTS["none"])
    chunks = int(given.get("num_model_chunks", facts.num_model_chunks or 1))
    follows = following_keys(tp=degrees["tp"], pp=degrees["pp"], dp=degrees["dp"], num_model_chunks=chunks)
    follows["schedule"] = SCHEDULES[int(follows["schedule"])]
    follows["sequence_parallel"] = bool(follows["sequence_parallel"])
    return follows | {"num_model_chunks": chunks} | overlap_keys(training.framework)


def _counted_ends(given: dict[str, Any], num_layers: int, pp: int, modules: int, folded: bool) -> dict[str, bool]:
    """The account_for flags where nothing about the split is given: none, but where prediction modules stand at the end
    of the model they count with the loss, and the embedding too where stages are only then equal."""
    if not modules or pp == 1 or any(name in given for name in SPLIT_PINS):
        return {}
    return dict(zip(COUNTED_ENDS, counted_ends(num_layers, pp, modules, folded=folded), strict=True))


def _stage_layers(
    given: dict[str, Any], num_layers: int, pp: int, modules: int, folded: bool
) -> tuple[tuple[int, ...], list[Fault]]:
    """The explicit split: as given, or from the pinned ends, or the most even one."""
    account = {name: bool(given.get(name, False)) for name in COUNTED_ENDS}
    even = even_stage_layers(
        num_layers,
        pp,
        account_for_embedding=account["account_for_embedding"],
        account_for_loss=loss_units(account["account_for_loss"], modules),
        folded=folded,
    )
    pinned = {name: given[name] for name in STAGE_PINS if name in given}
    explicit = given.get("layers_per_stage")
    if explicit is not None:
        if not isinstance(explicit, (list, tuple)) or not all(type(n) is int for n in explicit):
            return even, [Fault(code="not_list", field="layout.layers_per_stage", value=explicit)]
        layers = tuple(explicit)
        ends = {"first_stage_layers": layers[:1], "last_stage_layers": layers[-1:]}
        others = [name for name, n in pinned.items() if ends[name] != (n,)]
        return layers, [_conflict(f"layout.{name}", pinned[name], "layout.layers_per_stage") for name in others]
    if not pinned:
        return even, []
    flags = [name for name, counts in account.items() if counts]
    if flags:
        return even, [_conflict(f"layout.{name}", True, f"layout.{next(iter(pinned))}") for name in flags]
    try:
        first, last = pinned.get("first_stage_layers"), pinned.get("last_stage_layers")
        return pinned_stage_layers(num_layers, pp, first=first, last=last), []
    except InvalidInputError as wrong:
        return even, list(wrong.faults)


def _conflict(field: str, value: object, other: str) -> Fault:
    return Fault(code="conflicting_keys", field=field, value=value, values={"other": other})


def _unknown(name: str, value: object, known: tuple[str, ...]) -> Fault:
    closest = nearest(value, known) or known[0]
    values = {"choices": known, "nearest": closest}
    return Fault(code="unknown_choice", field=f"layout.{name}", value=value, values=values)
