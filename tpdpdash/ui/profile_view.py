"""Watch's deep profile: ask for the next step of chosen ranks, see what becomes of it, and what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import streamlit as st

from tpdpdash.faults import InvalidInputError
from tpdpdash.report.profiles import cut_words, operator_rows, phase_rows, progress_word
from tpdpdash.run.profile import RankProfile, profile_progress
from tpdpdash.telemetry.profile_file import KeptProfile, kept_profiles
from tpdpdash.telemetry.profile_request import MAX_RANKS
from tpdpdash.text import t
from tpdpdash.ui import access, parts, run_services, state
from tpdpdash.units import format_share, format_time

if TYPE_CHECKING:
    from tpdpdash.ui.live import Look

_REFUSED = "profile-refused"
MARKS = {"asked": "schedule", "running": "pending", "ready": "check_circle", "failed": "error", "missed": "block",
         "replaced": "block"}  # fmt: skip
"""Icons of what becomes of a request."""


def card(look: Look) -> None:
    """Under the timeline of a step. A run that is over without a profile has none."""
    kept = kept_profiles(look.view.folder.path)
    asked = profile_progress(look.view, look.told)
    if look.view.is_over and not kept and not asked:
        return
    caption = t("operators and kernels by torch.profiler; this step and the next are left out of all figures")
    with parts.card(t("Deep profile of one step"), caption, key="deep-profile"):
        if not look.view.is_over:
            _ask(look)
        _progress(asked)
        if kept:
            _shown(kept)


def _ask(look: Look) -> None:
    """The ranks and the button; who lacks the start token sees both and may use neither."""
    may, row = access.may_start(), st.container(horizontal=True, vertical_alignment="bottom")
    slow = [each.rank for each in look.verdict.slow_ranks[:1]]
    ranks = row.multiselect(
        t("Ranks"),
        range(look.told.world_size),
        default=slow or [0],
        max_selections=MAX_RANKS,
        disabled=not may,
        width=320,
        key="profile-ranks",
    )
    row.button(
        t("Profile the next step"),
        icon=":material/troubleshoot:",
        disabled=not may or not ranks,
        on_click=_send,
        args=(look, ranks),
        key="profile-next",
    )
    if not may:
        row.caption(parts.literal(access.not_allowed()), width="stretch")
    parts.faults(st.session_state.get(_REFUSED, ()))


def _send(look: Look, ranks: list[int]) -> None:
    """Ask; what was refused stands under the button until the next try."""
    st.session_state.pop(_REFUSED, None)
    try:
        run_services.ask_for_profile(look, ranks)
    except InvalidInputError as refused:
        st.session_state[_REFUSED] = refused.faults


def _progress(asked: tuple[RankProfile, ...]) -> None:
    """What became of the last request, until all of it is ready."""
    if not asked or all(each.progress == "ready" for each in asked):
        return
    lines = [f":material/{MARKS[each.progress]}: {parts.literal_text(progress_word(each))}" for each in asked]
    st.markdown("  \n".join(lines))


def _shown(kept: tuple[KeptProfile, ...]) -> None:
    """One profile as two tables, and its file."""
    names = {t("rank {rank}, step {step}", rank=each.rank, step=each.step): each for each in kept}
    row = st.container(horizontal=True, vertical_alignment="bottom")
    chosen = row.selectbox(t("Profile"), width=220, **state.choice("profile", tuple(names), next(iter(names))))
    each = names.get(chosen or "", kept[0])
    try:
        profile, shown = run_services.profile_table(str(each.path), each.num_bytes)
    except InvalidInputError as damaged:
        parts.faults(damaged.faults)
        return
    words = [t("{time} of the step, the profiler's own cost included.", time=format_time(profile.step_s))]
    if shown.idle_s is not None:
        words.append(t("No kernel ran in {share} of it.", share=format_share(shown.idle_s / profile.step_s)))
    if cut := cut_words(profile):
        words.append(f"{cut.capitalize()}.")
    row.caption(" ".join(words), width="stretch")
    row.download_button(
        t("Download"),
        each.path.read_bytes,
        each.path.name,
        "application/gzip",
        icon=":material/download:",
        help=t("Chrome trace events, for ui.perfetto.dev; Trace above has them beside the other ranks"),
        key="profile-download",
    )
    left, right = st.columns(2)
    with left:
        st.dataframe(_frame(operator_rows(shown)), hide_index=True, row_height=28, key="profile-operators",
                     alt=t("The most costly operators"))  # fmt: skip
        st.caption(parts.truncated(len(shown.operators), shown.num_operators))
    with right:
        st.dataframe(_frame(phase_rows(shown)), hide_index=True, row_height=28, key="profile-phases",
                     alt=t("Each phase by kind of work"))  # fmt: skip
        if not shown.on_device:
            st.caption(t("The main thread; messages hold the wait for the other side, the rest is Python and waiting."))


def _frame(rows: list[list[str]]) -> pd.DataFrame:
    return pd.DataFrame([[parts.plain(cell) for cell in row] for row in rows[1:]], columns=rows[0])
