"""Watch: is it healthy? One run, live while it runs, and the history of all runs."""

from tpdpdash.ui.shell import require_shell

require_shell()

import streamlit as st  # noqa: E402 - a page that is run without app.py must leave before anything heavy

from tpdpdash.faults import InvalidInputError  # noqa: E402
from tpdpdash.text import t  # noqa: E402
from tpdpdash.ui import access, parts, runs_view, services, shell, state, watch_parts  # noqa: E402
from tpdpdash.ui.live import Look  # noqa: E402

REFRESH_S = 1.0
HISTORY_REFRESH_S = 5.0
PAUSED = "watch-paused"


def chosen_run() -> str | None:
    """The run in the address, else the newest."""
    asked = state.chosen_run()
    if asked:
        return asked
    newest = services.runs(1)
    return newest[0].run_id if newest else None


def empty() -> None:
    """Before the first run."""
    parts.page_head(t("Watch"), t("Is it healthy?"))
    text = t("**No run yet.** Rehearse a layout in about a minute, without a GPU.")
    parts.verdict("info", text)
    st.page_link(shell.page_path("launch"), label=t("Go to Launch"), icon=":material/rocket_launch:")


def head(look: Look) -> bool:
    """Title, state, and the controls that act on the run; whether the charts are paused."""
    view = look.view
    actions = parts.page_head(t("Watch"), runs_view.run_title(view), parts.state_chip(view.state))
    paused = bool(st.session_state.get(PAUSED)) and not view.is_over
    if view.is_over:
        return False
    with actions:
        label, icon = (t("Resume"), "play_arrow") if paused else (t("Pause charts"), "pause")
        st.button(label, icon=f":material/{icon}:", on_click=_set_paused, args=(not paused,))
        with st.popover(t("Stop"), icon=":material/stop_circle:", disabled=view.state == "stopping"):
            st.markdown(t("Stop this run? Every process of it ends; its records are kept."))
            may_stop = access.may_start()
            if st.button(t("Stop the run"), type="primary", disabled=not may_stop, key="stop-run"):
                services.stop(view.run_id)
                st.rerun()
            if not may_stop:
                st.caption(parts.literal(access.not_allowed()))
    return paused


def _set_paused(value: bool) -> None:
    st.session_state[PAUSED] = value


def run_screen(run_id: str) -> None:
    """One run."""
    live = services.reader(run_id)
    # One look for the head and the timer: a run that ends between two would keep the head of a live one.
    look = live.look()
    paused, was_over = head(look), look.view.is_over
    timer = None if paused or was_over else REFRESH_S

    @st.fragment(run_every=timer)
    def charts() -> None:
        look = live.look()
        watch_parts.screen(look, paused=paused)
        if look.view.is_over and not was_over:
            st.rerun()  # the buttons and the timer follow the state

    charts()


@st.fragment(run_every=HISTORY_REFRESH_S if services.count_live_runs() else None)
def history() -> None:
    """All runs, with a filter; a click opens one."""
    with parts.card(t("Runs"), parts.truncated(services.RUNS_SHOWN, services.count_runs())) as right:
        wanted = right.text_input(t("Filter"), placeholder=t("model, layout or state"), label_visibility="collapsed")
        all_runs = services.runs()
        shown = runs_view.matching(all_runs, wanted or "")
        if not shown:
            st.caption(t('No run matches "{text}". {n} runs in all.', text=parts.literal(wanted), n=len(all_runs)))
            return
        picked = runs_view.picked_run(shown, key="runs")
        if picked and picked != state.chosen_run():
            state.choose_run(picked)
            st.rerun()


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
