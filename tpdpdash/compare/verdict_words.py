"""The verdict and the gap in words: for the command line and the screens alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpdpdash.compare.verdict import slow_code
from tpdpdash.telemetry.record import COLLECTIVE_PHASES
from tpdpdash.text import t
from tpdpdash.units import format_difference, format_memory, format_share, format_time, with_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpdpdash.compare.attribution import Attribution
    from tpdpdash.compare.verdict import Bound, Verdict
    from tpdpdash.telemetry.growth import Growth
    from tpdpdash.telemetry.hang import Hang, HeldUp
    from tpdpdash.telemetry.slow import SlowGroup, SlowRank

BOUND_TEXTS = {
    "input": "Reading the batches bounds this run.",
    "compute": "Compute bounds this run.",
    "tp": "Tensor parallel messages bound this run.",
    "cp": "Context parallel messages bound this run.",
    "ep": "Expert parallel messages bound this run.",
    "pp": "The pipeline bounds this run.",
    "dp": "Data parallel messages bound this run.",
    "unmeasured": "Most of this run's step is not measured.",
}
NEXT_TEXTS = {
    "hung": "Stop the run, and look at the log of that rank.",
    "slow_rank": "Look at that rank's machine: other processes, clocks, temperature; or leave the machine out.",
    "slow_stage": "Look at that rank's machine, or give its stage fewer layers.",
    "slow_input": "Look at how that rank reads its data: its disk, its share of the files, its number of readers.",
    "slow_link": "Look at the link between these ranks: cables, other traffic, whether they share a node.",
    "memory_grows": "Look for what is kept from step to step: losses with their graph, lists, caches.",
    "input": "Read ahead in more processes, from a faster disk, or prepare the data beforehand.",
    "compute": "A faster step needs faster devices, a lower precision or less recomputation.",
    "tp": "Try a smaller TP degree, or keep TP inside a node.",
    "cp": "Try a smaller CP degree, or keep CP inside a node.",
    "ep": "Try a smaller EP degree, or keep EP inside a node.",
    "pp": "Try more microbatches, an interleaved or zero-bubble schedule, or fewer stages.",
    "dp": "Try a larger batch for each exchange, overlap with backward, or a lower ZeRO stage.",
    "unmeasured": "Put regions around what the script does outside forward, backward and its messages.",
}
PART_TEXTS = {
    "compute": "compute",
    "tp": "TP messages",
    "cp": "CP messages",
    "ep": "EP messages",
    "pp": "PP messages",
    "bubble": "bubble",
    "dp": "DP messages",
    "optimizer": "optimizer",
    "waiting": "waiting for other ranks",
    "other": "other, unattributed",
}


def headline(verdict: Verdict) -> str:
    """One sentence: the worst of what is certain."""
    if verdict.hang is not None:
        return _hang_headline(verdict.hang)
    if verdict.slow_ranks:
        rank, code = verdict.slow_ranks[0].rank, slow_code(verdict.slow_ranks[0])
        return (
            t("Rank {rank} reads its data slowly.", rank=rank)
            if code == "slow_input"
            else t("Rank {rank} is slow.", rank=rank)
        )
    if verdict.slow_groups:
        slow = verdict.slow_groups[0]
        return t(
            "The {kind} group of ranks {ranks} has a slow link.", kind=slow.kind.upper(), ranks=rank_list(slow.ranks)
        )
    if verdict.growing:
        return t("Rank {rank}'s memory grows with every step.", rank=verdict.growing[0].rank)
    return t(BOUND_TEXTS[verdict.bound.code]) if verdict.bound is not None else t("No step has been measured.")


def evidence(verdict: Verdict) -> str:
    """What it is seen by, in figures."""
    if verdict.hang is not None:
        return _hang_evidence(verdict.hang)
    if verdict.slow_ranks:
        return _slow_evidence(verdict.slow_ranks)
    if verdict.slow_groups:
        return _group_evidence(verdict.slow_groups[0])
    if verdict.growing:
        return _growth_evidence(verdict.growing[0])
    return _bound_evidence(verdict.bound) if verdict.bound is not None else ""


def next_step(verdict: Verdict) -> str:
    """What to try next."""
    told = t(NEXT_TEXTS[verdict.code]) if verdict.code in NEXT_TEXTS else ""
    if verdict.better is None:
        return told
    better = verdict.better
    name = f"{better.layout_id}, {better.schedule}" if better.schedule else better.layout_id
    proposed = t("The planner expects {layout} to take {share} less of a step.", layout=name,
                 share=format_share(better.saved_frac))  # fmt: skip
    return f"{told} {proposed}".strip()


def rank_list(ranks: Sequence[int]) -> str:
    """ "0, 1, 2, 3", or "0, 1, 2, … 63"."""
    shown = [str(rank) for rank in ranks]
    return ", ".join(shown if len(shown) <= 8 else [*shown[:3], f"… {shown[-1]}"])


# --------------------------------------------------------------------------------------------- findings


def _hang_headline(hang: Hang) -> str:
    pause = format_time(hang.pause_s)
    if not hang.culprits:
        return t("No step for {pause}: every rank waits in a collective.", pause=pause)
    held = hang.culprits[0]
    if held.is_silent:
        return t("No step for {pause}: rank {rank} does not run.", pause=pause, rank=held.rank)
    return t("No step for {pause}: rank {rank} is in {phase} and does not go on.", pause=pause, rank=held.rank,
             phase=held.phase)  # fmt: skip


def _hang_evidence(hang: Hang) -> str:
    told = [
        t(
            "A step usually takes {usual}; the last one was {step}.",
            usual=format_time(hang.usual_s),
            step=hang.last_step,
        )
    ]
    if not hang.culprits:
        told.append(t("They may have entered different ones."))
        return " ".join(told)
    told.append(_held_words(hang.culprits[0]))
    if len(hang.culprits) > 1:
        told.append(t("So are ranks {ranks}.", ranks=rank_list([held.rank for held in hang.culprits[1:]])))
    return " ".join(told)


def _held_words(held: HeldUp) -> str:
    told = []
    if held.is_silent:
        told.append(t("Not even its heartbeat comes; it was in {phase}.", phase=held.phase))
    elif held.phase in COLLECTIVE_PHASES:
        told.append(t("It has entered fewer collectives than the others of its stage."))
    if held.kind is not None:
        told.append(t("Its {kind} group (ranks {ranks}) waits in {collective}.", kind=held.kind.upper(),
                      ranks=rank_list(held.group), collective=held.awaited))  # fmt: skip
    if held.last_collective is not None:
        told.append(t("Its own last collective was {collective}.", collective=held.last_collective))
    return " ".join(told)


def _slow_evidence(found: Sequence[SlowRank]) -> str:
    slow = found[0]
    texts = {
        "stage": "Since step {step} its own work takes {more} longer a step ({share}) than that of the other ranks "
        "of its stage, most of it in {phase}.",
        "past": "Since step {step} its own work takes {more} longer a step ({share}) than before, most of it in "
        "{phase}; that of the other stages does not.",
        "stages": "Its own work takes {more} longer a step ({share}) than its stage should against the others, most of "
        "it in {phase}.",
    }
    told = t(texts[slow.against], step=slow.since_step, more=format_time(slow.excess_s),
             share=format_difference(slow.excess_frac), phase=slow.phase)  # fmt: skip
    others = [each.rank for each in found[1:]]
    return f"{told} " + t("Slow too: rank {ranks}.", ranks=rank_list(others)) if others else told


def _group_evidence(slow: SlowGroup) -> str:
    texts = {
        "stage": "Its messages take {time} a step, {more} ({share}) more than in the other groups of that kind.",
        "stages": "Its messages take {time} a step, {more} ({share}) more than in the groups of other stages.",
        "past": "Its messages take {time} a step, {more} ({share}) more than before.",
    }
    return t(texts[slow.against], time=format_time(slow.transfer_s), more=format_time(slow.excess_s),
             share=format_difference(slow.excess_frac))  # fmt: skip


def _growth_evidence(growth: Growth) -> str:
    told = t("It holds {held}, {rate} more a step.", held=format_memory(growth.held_bytes),
             rate=format_memory(growth.bytes_per_step))  # fmt: skip
    if growth.others_bytes_per_step == growth.others_bytes_per_step:  # NaN: there are no others
        told += " " + t("The other ranks: {rate}.", rate=format_memory(max(0.0, growth.others_bytes_per_step)))
    return told


def _bound_evidence(bound: Bound) -> str:
    figures = {
        "time": format_time(bound.seconds),
        "step": format_time(bound.step_s),
        "share": format_share(bound.share),
    }
    told = t("{time} of the {step} step ({share}), mean of the last {n} steps and all ranks.", **figures,
             n=bound.num_steps)  # fmt: skip
    if bound.bubble_s > 0:
        told += " " + t("Of these {time} are idle time that the schedule plans.", time=format_time(bound.bubble_s))
    if bound.waiting_s > 0:
        told += " " + t("Of these {time} are waiting for other ranks.", time=format_time(bound.waiting_s))
    return told


# -------------------------------------------------------------------------------------------------- gap


def part_word(part: str) -> str:
    """A part of the step."""
    return t(PART_TEXTS[part])


def gap_sentence(found: Attribution) -> str:
    """Whether the step is as predicted, and where the gap is."""
    if found.predicted_step_s is None or found.gap_s is None:
        return t("There is no prediction of this run.")
    predicted = with_error(format_time(found.predicted_step_s), found.error_frac)
    difference = format_difference(found.gap_s / found.predicted_step_s)
    told = t(
        "A step takes {measured} in the mean of {n} steps, predicted {predicted} ({difference}).",
        measured=format_time(found.measured_step_s), n=found.num_steps, predicted=predicted, difference=difference,
    )  # fmt: skip
    if found.is_within_error:
        told += " " + t("That is within the error.")
    where = found.where
    if where is None or not where.gap_s:
        return told
    figures = {"measured": format_time(where.measured_s), "predicted": format_time(where.predicted_s)}
    return told + " " + t("Most of the gap is in {part}: {measured} instead of {predicted}.",
                          part=part_word(where.part), **figures)  # fmt: skip
