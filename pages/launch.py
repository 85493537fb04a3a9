"""Launch: run a layout here, on Slurm or several machines, or rehearse it small. Checks first, every change listed,
then the five phases."""

from tpdpdash.ui.shell import require_shell

require_shell()

import streamlit as st  # noqa: E402 - a page that is run without app.py must leave before anything heavy

from tpdpdash.faults import InvalidInputError  # noqa: E402
from tpdpdash.text import t  # noqa: E402
from tpdpdash.ui import access, launch_parts, launch_places, parts, run_services, runs_view, shell  # noqa: E402

REFRESH_S = 1.0
RECENT_RUNS = 6


def starting(run_id: str) -> None:
    """The phases of the run that this tab has started; opens Watch once it runs."""
    live = run_services.reader(run_id)

    @st.fragment(run_every=REFRESH_S)
    def phases() -> None:
        look = live.look()
        launch_parts.starting(look)
        if len(look.telemetry.steps) or look.view.is_over:
            st.session_state.pop(launch_parts.STARTED, None)
            st.switch_page(shell.page_path("watch"), query_params={"run": run_id})

    phases()


def recent_runs() -> None:
    """The newest runs; a click opens one in Watch."""
    total = run_services.count_runs()
    if not total:
        return
    shown = run_services.runs(RECENT_RUNS)
    with parts.card(t("Recent runs"), t("{n} of {all}", n=len(shown), all=total)) as right:
        right.page_link(shell.page_path("watch"), label=t("All runs"))
        picked = runs_view.picked_run(shown, key="recent")
        if picked:
            st.switch_page(shell.page_path("watch"), query_params={"run": picked})


def screen() -> None:
    """Head, answer, checks, changes, command."""
    job, chosen_by = launch_parts.job_to_launch()
    actions = parts.page_head(t("Launch"), launch_parts.question(job))
    with actions:
        way = launch_places.chosen_way()
        button = st.empty()
    launch = launch_parts.prepared(job, way, launch_places.chosen_place(way))
    started = st.session_state.get(launch_parts.STARTED)
    ready = launch.is_ready and access.may_start() and not started
    label = t("Start rehearsal") if launch.rehearsal else t("Start the run")
    if button.button(label, type="primary", icon=":material/play_arrow:", disabled=not ready, key="start"):
        launch_parts.start(launch)
        st.rerun()
    if started:
        starting(started)
    else:
        launch_parts.answer(launch)
    if chosen_by:
        st.caption(chosen_by)
    launch_parts.details(launch)


try:
    screen()
except InvalidInputError as wrong:
    parts.page_head(t("Launch"), t("Run it here, or rehearse it small."))
    parts.faults(wrong.faults)
recent_runs()
