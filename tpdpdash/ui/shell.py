"""The frame of every page: navigation, sidebar, and the guard against streamlit's legacy `pages/` mode.

Until the first `st.navigation` of a process, streamlit runs a deep link's file under pages/ alone, without app.py.
Each page calls `require_shell()` first: it builds the navigation, which ends that mode, and runs again with app.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from tpdpdash.text import t

SIDEBAR_PX = 230
_SEEN = "_shell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """One screen of the dashboard."""

    name: str
    """Its file in pages/ and its path in the address."""
    title: str
    """What the sidebar calls it."""
    icon: str
    """Material icon."""
    in_sidebar: bool = True
    """Reached from the sidebar; otherwise from other screens only."""


SCREENS = (
    Screen(name="cluster", title="Cluster", icon=":material/dns:"),
    Screen(name="plan", title="Plan", icon=":material/leaderboard:"),
    Screen(name="layout", title="Layout", icon=":material/grid_view:"),
    Screen(name="launch", title="Launch", icon=":material/rocket_launch:"),
    Screen(name="watch", title="Watch", icon=":material/monitoring:"),
    Screen(name="learn", title="Learn", icon=":material/school:"),
    Screen(name="accuracy", title="How far to trust this", icon=":material/adjust:", in_sidebar=False),
)


def page_path(name: str) -> str:
    """What `st.switch_page` and `st.page_link` take for a screen."""
    return f"pages/{name}.py"


def _start() -> None:
    """The bare address: Plan, or Cluster as long as nothing has been chosen. (A default page has no path of its own, so
    no screen is the default.)"""
    from tpdpdash.ui import state

    first = "cluster" if state.is_untouched() else "plan"
    st.switch_page(page_path(first), query_params=st.query_params.to_dict())


def build_navigation() -> st.Page:
    """The pages and their addresses. Without icons: streamlit fetches a page's icon from elsewhere for the tab."""
    start = st.Page(_start, title=t("Start"), default=True, visibility="hidden", icon="")
    screens = [st.Page(page_path(s.name), title=t(s.title), icon="", url_path=s.name) for s in SCREENS]
    return st.navigation([start, *screens], position="hidden")


def trust_link(place: DeltaGenerator) -> None:
    """A link to how far estimates hold, from wherever one is shown."""
    from tpdpdash.ui import state

    screen = next(each for each in SCREENS if each.name == "accuracy")
    place.page_link(page_path(screen.name), label=t(screen.title), icon=screen.icon, query_params=state.params())


def favicon() -> bytes:
    """The icon of the browser's tab: four ranks in two TP groups. Drawn here: streamlit would fetch a named icon."""
    import numpy as np

    from tpdpdash.charts.heat import palette_png
    from tpdpdash.charts.palette import phase_colors

    colors = phase_colors("light")
    cell = np.full((14, 14), 0, dtype=np.uint8)
    gap = 2
    icon = np.full((32, 32), gap, dtype=np.uint8)
    icon[1:15, 1:15], icon[1:15, 17:31] = cell, cell
    icon[17:31, 1:15], icon[17:31, 17:31] = cell + 1, cell + 1
    return palette_png(icon, (colors["forward"].fill, colors["tp"].fill))


def mark_shell() -> None:
    """app.py says that it has run before the page."""
    st.session_state[_SEEN] = True


def require_shell() -> None:
    """First call of every page. In a fresh process a deep link may have skipped app.py: then start over with it."""
    if not st.session_state.pop(_SEEN, False):
        build_navigation()
        st.rerun()


def sidebar() -> DeltaGenerator:
    """Name, links to the screens, and what is here at the foot; returns the place of the links."""
    from tpdpdash.ui import cluster_view, services

    st.markdown(f"### tp:blue[dp]dash  \n:small[:gray[{t('plan · launch · watch')}]]")
    place = st.empty()
    links(place)
    st.caption(cluster_view.machine_line(services.detection()))
    return place


def links(place: DeltaGenerator) -> None:
    """Links to the screens that carry the view. Drawn again after the page, which may have changed it."""
    from tpdpdash.ui import run_services, state

    live = run_services.count_live_runs()
    with place.container(gap="xsmall"):
        for screen in filter(lambda each: each.in_sidebar, SCREENS):
            is_live = screen.name == "watch" and live
            label = f"{t(screen.title)} :small[:gray[{t('{n} live', n=live)}]]" if is_live else t(screen.title)
            path = page_path(screen.name)
            st.page_link(path, label=label, icon=screen.icon, width="stretch", query_params=state.params())
