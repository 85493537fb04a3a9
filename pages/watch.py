"""Watch: is it healthy? One run, live while it runs, and the history of all runs."""

from tpdpdash.ui.shell import require_shell

require_shell()

import streamlit as st  # noqa: E402 - a page that is run without app.py must leave before anything heavy

from tpdpdash.faults import InvalidInputError  # noqa: E402
from tpdpdash.text import t  # noqa: E402
from tpdpdash.ui import (  # noqa: E402
    access,
    calibrate_view,
    parts,
    run_end,
    run_services,
    runs_view,
    shell,
    state,
    watch_parts,
)
from tpdpdash.ui.live import LiveRun, Look  # noqa: E402

REFRESH_S = 1.0
HISTORY_REFRESH_S = 5.0
PAUSED = "watch-paused"


def chosen_run() -> str | None:
    """The run in the address, else the newest."""
    asked = state.chosen_run()
    if asked:
        return asked
    newest = run_services.runs(1)
    return newest[0].run_id if newest else None


def empty() -> None:
    """Before the first run."""
    parts.page_head(t("Watch"), t("Is it healthy?"))
    text = t("**No run yet.** Rehearse a layout in about a minute, without a GPU.")
    parts.verdict("info", text)
    row = st.container(horizontal=True, vertical_alignment="center")
    row.page_link(shell.page_path("launch"), label=t("Go to Launch"), icon=":material/rocket_launch:")
    run_end.restore_control(row)


def head(look: Look) -> bool:
    """Title, state, and the controls that act on the run; whether the charts are paused."""
    view = look.view
    actions = parts.page_head(t("Watch"), runs_view.run_title(view), parts.state_chip(view.state))
    paused = bool(st.session_state.get(PAUSED)) and not view.is_over
    if view.is_over:
        run_end.controls(view, actions)
        calibrate_view.trust_button(view)
        return False
    with actions:
        label, icon = (t("Resume"), "play_arrow") if paused else (t("Pause charts"), "pause")
        st.button(label, icon=f":material/{icon}:", on_click=_set_paused, args=(not paused,))
        with st.popover(t("Stop"), icon=":material/stop_circle:", disabled=view.state == "stopping"):
            st.markdown(t("Stop this run? Every process of it ends; its records are kept."))
            may_stop = access.may_start()
            if st.button(t("Stop the run"), type="primary", disabled=not may_stop, key="stop-run"):
                run_services.stop(view.run_id)
                st.rerun()
            if not may_stop:
                st.caption(parts.literal(access.not_allowed()))
    return paused


def _set_paused(value: bool) -> None:
    st.session_state[PAUSED] = value


def run_screen(run_id: str) -> None:
    """One run."""
    live = run_services.reader(run_id)
    # One look for the head and the timer: a run that ends between two would keep the head of a live one.
    look = live.look()
    paused, was_over = head(look), look.view.is_over
    timer = None if paused or was_over else REFRESH_S

    @st.fragment(run_every=timer)
    def charts() -> None:
        look = live.look()
        with st.container(key="live"):
            watch_parts.screen(look, paused=paused)
        if look.view.is_over and not was_over:
            st.rerun()  # the buttons and the timer follow the state

    charts()
    if paused:
        _until_state_changes(live, look.view.state)


def _until_state_changes(live: LiveRun, state_shown: str) -> None:
    """Paused charts stand still; a run that stops, ends or fails meanwhile is told all the same."""

    @st.fragment(run_every=REFRESH_S)
    def watched() -> None:
        if live.look().view.state != state_shown:
            st.rerun()

    watched()


@st.fragment(run_every=HISTORY_REFRESH_S if run_services.count_live_runs() else None)
def history() -> None:
    """All runs, with a filter; a click opens one."""
    count = run_services.count_runs()
    with parts.card(t("Runs"), parts.truncated(run_services.RUNS_SHOWN, count)) as right:
        run_end.restore_control(right)
        wanted = right.text_input(t("Filter"), placeholder=t("model, layout or state"), label_visibility="collapsed")
        all_runs = run_services.runs(page=runs_view.picked_page(right, count, run_services.RUNS_SHOWN))
        shown = runs_view.matching(all_runs, wanted or "")
        if not shown:
            st.caption(t('No run matches "{text}". {n} runs in all.', text=parts.literal(wanted), n=len(all_runs)))
            return
        picked = runs_view.picked_run(shown, key="runs")
        if picked and picked != state.chosen_run():
            state.choose_run(picked)
            st.rerun()


run_end.say_what_was_done()
run_id = chosen_run()
if run_id is None:
    empty()
else:
    try:
        run_screen(run_id)
    except InvalidInputError as wrong:
        parts.page_head(t("Watch"), t("Is it healthy?"))
        parts.faults(wrong.faults)
    history()
