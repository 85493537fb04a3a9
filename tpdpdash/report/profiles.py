"""Answers about deep profiles: what a run has, what became of a request, and a profile as two short tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tpdpdash import units
from tpdpdash.report.lines import table
from tpdpdash.telemetry.profile_kinds import KINDS
from tpdpdash.text import t

if TYPE_CHECKING:
    from tpdpdash.run.profile import RankProfile
    from tpdpdash.telemetry.profile_file import DeepProfile, KeptProfile
    from tpdpdash.telemetry.profile_table import PhaseRow, ProfileTable


def kind_word(kind: str) -> str:
    """A kind of work in the reader's language."""
    words = {"gemm": t("GEMM"), "attention": t("attention"), "communication": t("messages")}
    return {**words, "elementwise": t("elementwise"), "other": t("other")}[kind]


def progress_word(found: RankProfile) -> str:
    """What became of a request on one rank: "rank 0, step 20: ready"."""
    words = {
        "asked": t("asked; it begins with that step"),
        "running": t("being taken and written"),
        "ready": t("ready"),
        "failed": t("failed: {reason}", reason=found.reason),
        "missed": t("not taken: the run ended before"),
        "replaced": t("not taken: a later request took its place"),
    }
    return t("rank {rank}, step {step}: {state}", rank=found.rank, step=found.step, state=words[found.progress])


def kept_document(kept: Sequence[KeptProfile]) -> list[dict[str, Any]]:
    """`profiles` of `show --json`."""
    return [
        {"rank": each.rank, "step": each.step, "file": f"profiles/{each.path.name}", "bytes": each.num_bytes}
        for each in kept
    ]


def kept_lines(kept: Sequence[KeptProfile]) -> list[str]:
    """The profiles of a run; nothing where there are none."""
    if not kept:
        return []
    rows = [[str(each.rank), str(each.step), units.format_sent(each.num_bytes), str(each.path)] for each in kept]
    return ["", *table([[t("deep profile of rank"), t("step"), t("size"), t("file")], *rows])]


def profile_document(profile: DeepProfile, shown: ProfileTable) -> dict[str, Any]:
    """`profile --json`, one of them."""
    return {
        "rank": profile.rank,
        "step": profile.step,
        "step_s": profile.step_s,
        "recorded_events": profile.recorded_events,
        "kept_events": profile.kept_events,
        "on_device": shown.on_device,
        "idle_s": shown.idle_s,
        "operators": [
            {"name": row.name, "kind": row.kind, "calls": row.calls, "self_s": row.self_s, "phase": row.phase}
            for row in shown.operators
        ],
        "phases": [
            {"phase": row.phase, "wall_s": row.wall_s, **{f"{kind}_s": row.kind_s[kind] for kind in KINDS},
             "rest_s": row.rest_s}
            for row in shown.phases
        ],
    }  # fmt: skip


def profile_lines(profile: DeepProfile, shown: ProfileTable) -> list[str]:
    """A profile in two tables."""
    head = t("rank {rank}, step {step}: {time}, the profiler's own cost included", rank=profile.rank,
             step=profile.step, time=units.format_time(profile.step_s))  # fmt: skip
    return [head, *filter(None, [cut_words(profile)]), "", *table(operator_rows(shown)), "", *table(phase_rows(shown))]


def cut_words(profile: DeepProfile) -> str:
    """What a profile says of itself where it does not hold all."""
    if profile.kept_events >= profile.recorded_events:
        return ""
    counts = {"kept": f"{profile.kept_events:,}", "all": f"{profile.recorded_events:,}"}
    return t("the longest {kept} of {all} events are kept", **counts)


def operator_rows(shown: ProfileTable) -> list[list[str]]:
    """The most costly operators, under their head."""
    own = t("GPU time") if shown.on_device else t("own time")
    rows = [
        [row.name, kind_word(row.kind), str(row.calls), units.format_time(row.self_s), units.format_share(row.share),
         phase_word(row.phase)]
        for row in shown.operators
    ]  # fmt: skip
    return [[t("operator"), t("kind"), t("calls"), own, t("of the step"), t("mostly in")], *rows]


def phase_rows(shown: ProfileTable) -> list[list[str]]:
    """Each phase by the kinds of work that occur, under its head; rest: in no operator and no message."""
    kinds = [kind for kind in KINDS if any(row.kind_s[kind] > 0 for row in shown.phases)]
    rest = [] if shown.on_device else [t("rest")]
    head = [t("phase"), t("on the host"), *map(kind_word, kinds), *rest]
    return [head, *(_phase_row(row, kinds, with_rest=bool(rest)) for row in shown.phases)]


def _phase_row(row: PhaseRow, kinds: Sequence[str], *, with_rest: bool) -> list[str]:
    seconds = [row.wall_s, *(row.kind_s[kind] for kind in kinds), *([row.rest_s] if with_rest else [])]
    return [phase_word(row.phase), *(units.format_time(spent) if spent > 0 else "" for spent in seconds)]


def phase_word(phase: str) -> str:
    """A phase's name in the reader's language."""
    return phase.upper() if len(phase) == 2 else t(phase)
