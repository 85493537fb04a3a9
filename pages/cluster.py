"""Cluster: what do I have? Detected devices live, or a described cluster with each figure's source."""

from tpdpdash.ui.shell import require_shell

require_shell()

import pandas as pd  # noqa: E402 - a page that is run without app.py must leave before anything heavy
import streamlit as st  # noqa: E402

from tpdpdash.cluster.describe import MAX_DEVICES_PER_NODE, MAX_NODES  # noqa: E402
from tpdpdash.cluster.spec import ClusterSpec  # noqa: E402
from tpdpdash.faults import InvalidInputError  # noqa: E402
from tpdpdash.text import t  # noqa: E402
from tpdpdash.ui import calibrate_view, cluster_view, parts, services, shell, state  # noqa: E402

REFRESH_S = 2.0
MAX_LINKED = 16
LABELS = {"here": "This machine", "described": "Describe another"}

actions = parts.page_head(t("Cluster"), t("What do I have?"))
with actions:
    shown = st.segmented_control(
        t("Show"),
        format_func=lambda option: t(LABELS[option]),
        required=True,
        label_visibility="collapsed",
        **state.choice("show", tuple(LABELS), "here"),
    )


@st.fragment(run_every=REFRESH_S)
def devices_now() -> None:
    """Live readings, refreshed while the page is open."""
    detection = services.detection()
    sentence, detail = cluster_view.here_sentence(detection)
    parts.verdict("good" if detection.devices else "info", sentence, detail)
    if not detection.devices:
        return
    parts.cards(cluster_view.live_metrics(detection))
    with parts.card(t("Devices"), t("read every {s} s; what the driver does not report is unknown", s=int(REFRESH_S))):
        used = st.column_config.ProgressColumn(min_value=0.0, max_value=100.0, format="%.0f %%", width="small")
        st.dataframe(
            pd.DataFrame(cluster_view.device_rows(detection.devices)),
            key="devices",
            hide_index=True,
            column_config={t("Used"): used},
            alt=t("One row a GPU"),
        )


def links() -> None:
    """How the GPUs are joined; it does not change while the page is open."""
    devices = services.detection().devices
    if 1 < len(devices) <= MAX_LINKED:
        with parts.card(t("Link matrix"), t("NVLink directly or by a switch; PCIe otherwise")):
            parts.table(cluster_view.link_table(devices))


def figures(cluster: ClusterSpec, title: str) -> None:
    """What estimates use, with sources."""
    with parts.card(title, t("each figure with its source")):
        parts.table(cluster_view.figures_table(cluster))


def this_machine() -> None:
    """Detected devices, then what an estimate for them would use."""
    devices_now()
    links()
    calibrate_view.card()
    try:
        cluster, notices = services.read_local_cluster()
        parts.faults(notices, "info")
        figures(cluster, t("What estimates for this machine use"))
    except InvalidInputError as wrong:
        parts.faults(wrong.faults)


def described() -> None:
    """The cluster of the view; changes go to the address and to Plan."""
    view = state.read_job_state()
    with parts.card(t("Describe another cluster"), t("what is not given comes from the catalogue")):
        grid = st.grid(columns=5, min_column_width=150)
        grid.selectbox(t("Device"), services.device_names(), **state.bound("device"))
        grid.number_input(t("Nodes"), 1, MAX_NODES, **state.bound("nodes"))
        grid.number_input(t("Devices in a node"), 1, MAX_DEVICES_PER_NODE, **state.bound("gpus"))
        grid.number_input(
            t("Network, GB/s per device"), min_value=0.0, placeholder=t("catalogue"), **state.bound("network")
        )
        grid.number_input(t("Price per device-hour, $"), min_value=0.0, placeholder=t("none"), **state.bound("price"))
        if st.button(t("Use for planning"), icon=":material/leaderboard:", type="primary"):
            st.switch_page(shell.page_path("plan"))
    try:
        cluster, notices = services.read_described_cluster(view)
    except InvalidInputError as wrong:
        parts.faults(wrong.faults)
        return
    parts.faults(notices, "info")
    name = parts.literal(cluster.device.name)
    parts.verdict(
        "info",
        t("**{nodes} × {per_node} × {name}.**", nodes=cluster.nodes, per_node=cluster.devices_per_node, name=name),
        t("Figures from the catalogue; not measured here."),
    )
    parts.cards(cluster_view.spec_metrics(cluster))
    figures(cluster, t("What estimates use"))


if shown == "described":
    described()
else:
    this_machine()
