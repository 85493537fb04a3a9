"""Learn's sentences and its question: what the groups of the 16 devices mean, in the document's own names."""

from __future__ import annotations

from collections.abc import Sequence

from tpdpdash.text import t
from tpdpdash.ui.learn_view import WORLD_SIZE, World, all_names, held, name, names, slice_name


def product_sentence(world: World) -> str:
    """The product of the degrees, and what it means."""
    product = t(
        "**Total parallelism = TP × DP × PP = {tp} × {dp} × {pp} = {world}.**",
        tp=world.tp, dp=world.dp, pp=world.pp, world=WORLD_SIZE,
    )  # fmt: skip
    size = world.tp * world.pp
    if world.dp == 1:
        return f"{product} " + t("All 16 devices compute one model together, on the whole batch.")
    if size == 1:
        return f"{product} " + t("Every device computes the whole model on a sixteenth of the batch.")
    return f"{product} " + t(
        "{size} devices compute the whole model together; {dp} such sets each take 1/{dp} of the batch.",
        size=size,
        dp=world.dp,
    )


def groups_sentence(world: World) -> str:
    """Which groups the chosen device is in."""
    sentence = t(
        "{device} is chosen: its tensor group is {tp}, its data group is {dp}.",
        device=name(world.device), tp=names(world.peers(world.tp_groups)), dp=names(world.peers(world.dp_groups)),
    )  # fmt: skip
    if world.pp == 1:
        return sentence
    return f"{sentence} " + t("Its pipeline is {pp}.", pp=names(world.peers(world.pp_groups)))


def group_texts(world: World) -> list[tuple[str, str, str]]:
    """Every group by its name in the document, as the code that defines it."""
    kinds = [("tp", "tp_groups", world.tp_groups), ("dp", "dp_groups", world.dp_groups)]
    if world.pp > 1:
        kinds.append(("pp", "pp_groups", world.pp_groups))
    return [(kind, _counted(groups), f"{title} = {all_names(groups)}") for kind, title, groups in kinds]


def _counted(groups: Sequence[Sequence[int]]) -> str:
    return t("{count} groups of {size}", count=len(groups), size=len(groups[0]))


def sizes_sentence(world: World) -> str:
    """The sizes by the document's names."""
    return (
        f"world_size = {WORLD_SIZE}, tp_world_size = {world.tp}, dp_world_size = {world.dp}, pp_world_size = {world.pp}"
    )


def lanes_caption(world: World) -> str:
    """ "g0 and g1, one MLP"."""
    return t("{devices}, one MLP", devices=" · ".join(map(name, world.peers(world.tp_groups))))


def correction(world: World) -> str:
    """What the document has wrong: the tensor group does not exchange weight gradients."""
    group = world.peers(world.tp_groups)
    if world.tp == 1:
        return t(
            "**Often told wrong:** with tensor parallelism, devices do **not** exchange ∇W₁ and ∇W₂. "
            "Each belongs to one slice only. What the tensor group sums are Y and dX."
        )
    return t(
        "**Often told wrong:** {devices} do **not** exchange {gradients}. Each belongs to one device of the "
        "group only. What the tensor group sums are Y and dX.",
        devices=_listed([name(d) for d in group]),
        gradients=_listed([f"∇{slice_name(i)}" for i in range(world.tp)]),
    )


def correction_detail() -> str:
    """The same with sequence parallelism."""
    return t("With sequence parallelism each all-reduce is a reduce-scatter and an all-gather of the same bytes.")


def _listed(words: Sequence[str]) -> str:
    if len(words) == 1:
        return words[0]
    shown = list(words) if len(words) <= 4 else [words[0], "…", words[-1]]
    return t("{first} and {last}", first=", ".join(shown[:-1]), last=shown[-1])


def pipeline_sentence(world: World) -> str:
    """What PP 2 changes, seen from the chosen device."""
    first, last = world.peers(world.pp_groups)
    return t(
        "{tp} × {dp} × 2 = 16. Devices 0–7 hold the first half of the model, 8–15 the second; "
        "{first} hands activations to {last}, {last} hands gradients back.",
        tp=world.tp, dp=world.dp, first=name(first), last=name(last),
    )  # fmt: skip


def terms_sentence() -> str:
    """What the words in the table of degrees mean."""
    return t(
        "all-reduce: everyone ends with the sum. Bubble: stages wait while the pipeline fills and drains. "
        "Microbatch: the part of the batch that passes the pipeline at once. "
        "ZeRO 1: each device of a data group keeps a part of the optimizer states only."
    )


# ------------------------------------------------------------------------------------------- question


def question(world: World) -> str:
    """The question, for a device that is not the chosen one."""
    return t(
        "With TP {tp}, DP {dp}, PP {pp}: with which devices does {device} average gradients?",
        tp=world.tp, dp=world.dp, pp=world.pp, device=name(asked(world)),
    )  # fmt: skip


def asked(world: World) -> int:
    """The device that the question is about."""
    return 5 if world.device != 5 else 10


def right_answer(world: World) -> str:
    """Its data group."""
    others = [d for d in world.group_of(asked(world), world.dp_groups) if d != asked(world)]
    return ", ".join(map(name, others)) or t("none")


def answers(world: World) -> list[str]:
    """The right answer among wrong ones, in an order that does not tell."""
    device = asked(world)
    tensor = [d for d in world.group_of(device, world.tp_groups) if d != device]
    wrong = [", ".join(map(name, tensor)) or t("none"), t("{device} only", device=name(device - 1)), t("all 15 others")]
    return sorted({right_answer(world), *wrong}, key=lambda text: (len(text), text))


def answer_sentence(world: World, answer: str) -> str:
    """Right or not, and why."""
    device = asked(world)
    index = next(i for i, group in enumerate(world.dp_groups) if device in group)
    why = t(
        "{device} holds {slice}, as does every device of dp_groups[{index}] = {group}.",
        device=name(device), slice=held(world, device), index=index, group=names(world.dp_groups[index]),
    )  # fmt: skip
    return (t("**Right.**") if answer == right_answer(world) else t("**Not quite.**")) + f" {why}"
