"""Plan: what should I run?"""

from tpdpdash.ui.shell import require_shell

require_shell()

import numpy as np  # noqa: E402 - a page that is run without app.py must leave before anything heavy
import streamlit as st  # noqa: E402
from streamlit.delta_generator import DeltaGenerator  # noqa: E402

from tpdpdash.charts.bars import refused_bars, step_bars  # noqa: E402
from tpdpdash.charts.palette import PHASE_ORDER, phase_colors, phase_label  # noqa: E402
from tpdpdash.charts.scatter import memory_speed, shown_dots  # noqa: E402
from tpdpdash.cost.estimate import Estimates  # noqa: E402
from tpdpdash.faults import InvalidInputError  # noqa: E402
from tpdpdash.job import Job  # noqa: E402
from tpdpdash.layout.unused import unused_settings  # noqa: E402
from tpdpdash.search.plan import Plan  # noqa: E402
from tpdpdash.text import t  # noqa: E402
from tpdpdash.ui import (  # noqa: E402
    estimate_view,
    figures,
    more_fit,
    parts,
    plan_cards,
    plan_inputs,
    plan_view,
    refusals,
    services,
    shell,
    state,
)
from tpdpdash.units import format_count  # noqa: E402

theme = parts.theme()
view = state.read_job_state()


def main() -> None:
    """The whole page; the verdict stands above the inputs that it answers."""
    actions = parts.page_head(t("Plan"), t("What should I run?"))
    answer = st.container()
    try:
        job = state.job(view)
    except InvalidInputError as wrong:
        plan_inputs.inputs(None)
        with answer:
            parts.faults(wrong.faults)
        return
    plan_inputs.inputs(job)
    try:
        with answer, st.spinner(t("Searching every layout …"), show_time=True):
            plan = services.plan_for(job)
    except InvalidInputError as wrong:
        with answer:
            parts.faults(wrong.faults)
        return
    parts.faults((*job.notices, *unused_settings(job.model, job.training)), "info")
    if plan.ranked is None:
        with answer:
            parts.verdict("warning", *plan_view.nothing_fits(plan, job))
        more_card(plan, job)
        refused_card(plan)
        return
    found(plan, plan.ranked, job, answer, actions)


def found(plan: Plan, ranked: Estimates, job: Job, answer: DeltaGenerator, actions: DeltaGenerator) -> None:
    """The page of a plan with at least one layout that fits."""
    rows = plan.variants
    codes, pick = plan_view.codes(ranked, rows), plan_view.pick_place(plan)
    now = plan_view.follow_inputs(view, job, codes[pick])
    chosen, estimate = plan_view.chosen(ranked, rows, codes, pick, now)
    picked = ranked.row(plan.pick)
    with answer:
        parts.verdict(
            "good",
            plan_view.pick_sentence(picked, job),
            plan_view.detail_sentence(picked, plan, ranked),
        )
        parts.cards(plan_cards.metrics(estimate, job))
    shell.trust_link(actions)
    if actions.button(t("Open layout {n}", n=chosen + 1), icon=":material/grid_view:", type="primary"):
        st.switch_page(shell.page_path("layout"))
    ranked_card(plan, ranked, codes, chosen)
    left, right = st.columns([5, 4])
    with left:
        step_card(ranked, rows)
    with right:
        scatter_card(plan, ranked)
    left, right = st.columns([5, 4])
    with left:
        refused_card(plan)
    with right:
        more_card(plan, job)


def ranked_card(plan: Plan, ranked: Estimates, codes: list[str], chosen: int) -> None:
    """The ranked table; the selected row is the layout of the page."""
    rows = plan.variants
    show_all = bool(st.session_state.get("plan-all")) or chosen >= plan_view.ROWS_SHOWN
    shown = rows if show_all else rows[: plan_view.ROWS_SHOWN]
    caption = plan_view.search_caption(plan, ranked, len(shown), len(rows))
    with parts.card(t("Ranked layouts"), caption) as controls:
        if len(rows) > plan_view.ROWS_SHOWN:
            controls.toggle(t("Show all"), key="plan-all", disabled=chosen >= plan_view.ROWS_SHOWN)
        data = parts.csv_bytes(plan_view.csv_table(ranked, rows))
        controls.download_button("CSV", data, "layouts.csv", "text/csv", icon=":material/download:")
        figures.ranked_table(
            plan_view.ranked_table(ranked, shown, plan.job),
            key=f"layouts-{plan_view.signature(plan.job)}-{show_all}",
            selected=chosen,
            limits=plan_view.bar_limits(ranked, plan.job),
            on_select=lambda row: state.choose_layout(codes[row]),
        )


def step_card(ranked: Estimates, rows: np.ndarray) -> None:
    """Where the step goes: whole, and beyond compute on its own axis."""
    top = rows[: plan_view.BARS_SHOWN]
    with parts.card(
        t("Where the step goes"), t("top {count} · whisker: error of the step", count=len(top))
    ) as controls:
        unit = controls.segmented_control(
            t("Unit"), format_func=t, required=True, label_visibility="collapsed",
            **state.choice("unit", ("Seconds", "Share"), "Seconds"),
        )  # fmt: skip
        each = plan_view.parts_of(ranked, top)
        whole = estimate_view.step_table(each)
        beyond = estimate_view.step_table(each, beyond_compute=True)
        used = estimate_view.used_parts(whole, PHASE_ORDER)
        labels = {phase: t("compute") if phase == "forward" else phase_label(phase) for phase in used}
        figures.legend(phase_colors(theme), labels)
        names = plan_view.names_of(ranked, top)
        for place, table, title in zip(
            st.columns(2), (whole, beyond), (t("Whole step"), t("Beyond compute")), strict=True
        ):
            with place:
                sums, fracs = plan_view.sums_with_errors(table, ranked, top if table is whole else None)
                chart = step_bars(
                    table, theme, names=names, figures=plan_view.sum_texts(sums, fracs), as_share=unit == "Share",
                    errors=list(sums * fracs), title=title, axis_title=t("Exposed seconds on the critical stage"),
                )  # fmt: skip
                st.markdown(f":small[**{title}**]")
                figures.figure(chart, f"step-{title}")


def scatter_card(plan: Plan, ranked: Estimates) -> None:
    """Memory against speed of the layouts that were kept."""
    with parts.card(t("Memory against speed"), plan_view.scatter_caption(plan, len(ranked))):
        picked = ranked.columns.layout(plan.pick)
        table = shown_dots(plan_view.scatter_table(ranked, plan), ranked.capacity_bytes)
        label = t("pick: {degrees}", degrees=estimate_view.degrees(picked, " · "))
        chart = memory_speed(
            table,
            theme,
            capacity_bytes=ranked.capacity_bytes,
            pick_label=label,
            error_frac=plan_view.known(ranked.error_frac[0]),
        )
        figures.picking_figure(chart, "memory-speed", "layout", lambda code: state.choose_layout(str(code)))


def refused_card(plan: Plan) -> None:
    """What was refused and why."""
    count = format_count(sum(plan.refused.values()))
    with parts.card(t("Refused: {count} layouts", count=count), t("by the first rule that was broken")):
        table = refusals.table(plan.refusals)
        if len(table):
            figures.figure(refused_bars(table, theme), "refused")
            with st.expander(t("One example of each, with the nearest legal values")):
                parts.faults(refusals.examples(plan.refusals), "info")


def more_card(plan: Plan, job: Job) -> None:
    """What would make more fit: searched on request, each change is a plan of its own."""
    with parts.card(t("What would make more fit"), t("one change at a time")):
        more_fit.table(plan, job)


main()
