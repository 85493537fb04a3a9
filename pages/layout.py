"""Layout: what exactly is this layout?"""

from tpdpdash.ui.shell import require_shell

require_shell()

import streamlit as st  # noqa: E402 - a page that is run without app.py must leave before anything heavy

from tpdpdash.charts.bars import memory_bars  # noqa: E402
from tpdpdash.charts.palette import MEMORY_ORDER, memory_colors, memory_label, phase_colors, phase_label  # noqa: E402
from tpdpdash.charts.pictures import weight_splits  # noqa: E402
from tpdpdash.charts.rank_map import rank_map, shown_nodes, shown_ranks  # noqa: E402
from tpdpdash.charts.timeline import timeline  # noqa: E402
from tpdpdash.compare.error_words import bar_sentence  # noqa: E402
from tpdpdash.cost.messages import collectives_of  # noqa: E402
from tpdpdash.cost.result import Estimate  # noqa: E402
from tpdpdash.faults import InvalidInputError  # noqa: E402
from tpdpdash.job import Job  # noqa: E402
from tpdpdash.layout.advice import advice  # noqa: E402
from tpdpdash.layout.layout import Layout  # noqa: E402
from tpdpdash.text import t  # noqa: E402
from tpdpdash.ui import (  # noqa: E402
    estimate_view,
    figures,
    layout_edit,
    layout_view,
    parts,
    rank_view,
    services,
    shell,
    state,
    timeline_view,
)

FORMS = ("JSON", "Python")
theme = parts.theme()
view = state.read_job_state()


def main() -> None:
    """The whole page: head, faults of a layout that is not possible, or everything about one that is."""
    head = st.container()
    try:
        asked = layout_edit.asked_job(view)
    except InvalidInputError as wrong:
        with head:
            parts.page_head(t("Layout"), t("What exactly is this layout?"))
        parts.faults(wrong.faults)
        return
    draft = layout_edit.draft(asked)
    with head:
        actions = parts.page_head(t("Layout"), layout_view.headline(asked, draft))
    with actions.popover(t("Change"), icon=":material/tune:"):
        layout_edit.degree_widgets(draft)
    try:
        job = asked.resolved()
        estimate = services.estimate_for(job)
    except InvalidInputError as wrong:
        parts.verdict("bad", t("**This layout is not possible.** Every fault is listed with the nearest legal value."))
        parts.faults(wrong.faults)
        if st.button(t("Take the plan's best layout"), icon=":material/leaderboard:"):
            state.choose_layout("")
            st.rerun()
        return
    if actions.button(t("Launch"), icon=":material/rocket_launch:", type="primary"):
        state.update(layout=state.layout_code(estimate.layout))
        st.switch_page(shell.page_path("launch"))
    show(job, estimate)


def show(job: Job, estimate: Estimate) -> None:
    """Everything about a legal layout."""
    layout = estimate.layout
    rank = min(max(view.rank, 0), layout.world_size - 1)
    groups = layout_view.layout_groups(layout)
    own = layout_view.rank_groups_of(groups, rank, job.cluster.devices_per_node)
    parts.verdict(
        "good" if estimate.fits else "warning",
        estimate_view.speed_sentence(estimate, estimate_view.device_word(job)),
        f"{layout_view.placement_sentence(own)} {bar_sentence(estimate.time_error)}",
    )
    parts.faults(advice(job.model, job.cluster, job.training, layout), "info")
    left, right = st.columns([5, 3])
    with left:
        map_card(job, estimate, rank, own)
        timeline_card(job, estimate)
    with right:
        rank_card(job, estimate, rank)
        memory_card(estimate)
    collectives_card(job, estimate, rank)
    groups_card(layout, groups)


def map_card(job: Job, estimate: Estimate, rank: int, own: list[layout_view.RankGroup]) -> None:
    """The rank map with the chosen rank's groups."""
    spec = layout_view.map_of(estimate.layout, job.cluster, rank, own)
    shown = len(shown_ranks(spec, shown_nodes(spec)))
    with parts.card(t("Rank map"), layout_view.map_caption(shown, spec.world_size, rank), fill=False) as controls:
        layout_edit.rank_choice(controls, spec.world_size)
        layout_edit.order_choice(controls)
        figures.picking_figure(rank_map(spec, theme), "rank-map", "rank", state.choose_rank)
        figures.group_lines(layout_view.group_texts(estimate.layout, own, job.cluster), theme)


def rank_card(job: Job, estimate: Estimate, rank: int) -> None:
    """What the chosen rank holds."""
    layout = estimate.layout
    with parts.card(t("Rank {rank}", rank=rank), layout_view.rank_caption(layout, job.cluster, rank), fill=False):
        held, total = rank_view.rank_parameters(job, layout, rank)
        rows = rank_view.holdings(layout, job.model, job.training, rank, held, total)
        st.table(rank_view.holdings_table(rows), border="horizontal", hide_header=True, hide_index=True)
        if layout.tp > 1:
            st.caption(t("Its slice of every weight"))
            figures.figure(weight_splits(rank_view.weight_pictures(layout, job.model, rank), theme), "weight-slices")


def timeline_card(job: Job, estimate: Estimate) -> None:
    """The pipeline's actions, and the microbatches in flight below."""
    with parts.card(t("Pipeline timeline"), timeline_view.caption(estimate), fill=False) as controls:
        drawn = timeline_view.draw(job, estimate)
        window = timeline_view.pick_window(drawn, controls)
        chart = timeline(
            window,
            theme,
            pipeline_end_s=drawn.pipeline_end_s,
            in_flight=drawn.in_flight,
            in_flight_note=drawn.in_flight_note,
            in_flight_name=t("stage {stage}", stage=0),
        )
        figures.legend(phase_colors(theme), {phase: phase_label(phase) for phase in drawn.phases})
        figures.figure(chart, "timeline")
        cut = timeline_view.part_caption(window, drawn)
        if cut:
            st.caption(cut)


def memory_card(estimate: Estimate) -> None:
    """Memory of each stage against the limit."""
    with parts.card(t("Memory of each stage"), estimate_view.memory_caption(estimate), fill=False):
        table, names, fullest = estimate_view.memory_table(estimate)
        used = estimate_view.used_parts(table, MEMORY_ORDER)
        figures.legend(memory_colors(theme), {part: memory_label(part) for part in used})
        chart = memory_bars(table, theme, capacity_bytes=estimate.capacity_bytes, names=names, bold_row=fullest)
        figures.figure(chart, "memory")
        cut = parts.truncated(len(names), len(estimate.stages))
        if cut:
            st.caption(cut)


def collectives_card(job: Job, estimate: Estimate, rank: int) -> None:
    """What the chosen rank sends in one step."""
    with parts.card(t("Collectives of rank {rank}", rank=rank), t("what it sends in one step")) as controls:
        table = estimate_view.message_table(collectives_of(job, estimate, rank))
        if not len(table):
            st.caption(t("Nothing is sent: there is one device only."))
            return
        controls.download_button(t("CSV"), parts.csv_bytes(table), f"collectives-rank-{rank}.csv", "text/csv")
        figures.group_table(
            table, theme, key="collectives", right=estimate_view.message_figures(), alt=t("Messages of one rank")
        )


def groups_card(layout: Layout, groups: dict[str, list[list[int]]]) -> None:
    """Every group, to copy."""
    with parts.card(t("All groups"), t("order {order}", order=layout.rank_order), fill=False) as controls:
        form = controls.segmented_control(
            t("Form"), FORMS, default=FORMS[0], required=True, label_visibility="collapsed", key="groups-form"
        )
        st.code(layout_view.copyable(groups, form or FORMS[0]), language=(form or FORMS[0]).lower(), height=150)


main()
