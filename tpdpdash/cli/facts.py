"""Commands that say what is: devices, a model's figures, rank groups."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated

import typer

from tpdpdash.cli.shell import Json, answer, app, tell
from tpdpdash.faults import InvalidInputError
from tpdpdash.report import facts
from tpdpdash.text import fault_lines


@app.command()
def devices(as_json: Json = False) -> None:
    """What is here: the GPUs that NVML reports, or the CPU."""
    from tpdpdash.job import detect_here

    found = detect_here()
    answer(as_json, facts.detection_document(found), facts.detection_lines(found))


@app.command()
def model(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="A preset, a path to config.json, or a hub id.")],
    as_json: Json = False,
) -> None:
    """A model's parameters, active parameters and FLOPs per token."""
    from tpdpdash.model.resolve import resolve_model

    try:
        read = resolve_model(name)
    except InvalidInputError as invalid:
        if as_json and any(fault.code in facts.UNSUPPORTED for fault in invalid.faults):
            print(json.dumps(facts.UNSUPPORTED_MODEL))
        raise
    tell(fault_lines(read.notices))
    answer(as_json, facts.model_document(read.spec), facts.model_lines(read.spec))


def _option(field: str) -> str:
    """The option that gives a key of the layout: layout.tp is --tp, layout.rank_order --order."""
    name = field.removeprefix("layout.").replace("_", "-")
    return "--order" if name == "rank-order" else f"--{name}"


@app.command()
def groups(
    world_size: Annotated[int, typer.Option(help="Ranks in all.")],
    tp: int = 1,
    pp: int = 1,
    cp: int = 1,
    ep: int = 1,
    etp: Annotated[int | None, typer.Option(help="Tensor parallel inside an expert; default tp.")] = None,
    order: Annotated[str, typer.Option(help="Which degree varies fastest, first to last.")] = "tp-cp-ep-dp-pp",
    as_json: Json = False,
) -> None:
    """Which ranks form which group."""
    from tpdpdash.layout.groups import rank_groups

    try:
        found = rank_groups(world_size=world_size, tp=tp, cp=cp, pp=pp, ep=ep, etp=etp, order=order)
    except InvalidInputError as invalid:  # the fields are named as keys of a Job: here they are options
        raise InvalidInputError(replace(fault, field=_option(fault.field)) for fault in invalid.faults) from invalid
    answer(as_json, found, facts.group_lines(found, order))
