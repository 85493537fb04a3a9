"""What no setting of streamlit reaches: a few lines of style, and two habits of its frontend mended in the browser.

Selectors are the data-testid marks of the pinned version; without them the screens look looser and work the same.
"""

from __future__ import annotations

import streamlit as st

from tpdpdash.charts.palette import Theme, ui_colors

_MENDS_JS = """
// Every change of the address is made a step of the browser's history, also one that a screen makes by itself as it
// opens, and then Back leads nowhere: here a change on the same screen replaces the address. And on a narrow window
// the sidebar stays open over the screen that was chosen in it. Once a tab.
export default function () {
  if (window.tpdpdashMended) return
  window.tpdpdashMended = true
  const push = window.history.pushState.bind(window.history)
  window.history.pushState = (state, title, url) => {
    const isSameScreen = new URL(url, window.location.href).pathname === window.location.pathname
    if (isSameScreen) window.history.replaceState(state, title, url)
    else push(state, title, url)
  }
  document.addEventListener("click", (event) => {
    if (window.innerWidth >= 768 || !event.target.closest("[data-testid=stSidebar] a")) return
    const collapse = document.querySelector("[data-testid=stSidebarCollapseButton] button")
    if (collapse) window.setTimeout(() => collapse.click(), 150)
  })
}
"""

# The sidebar's own header holds nothing but the button that folds it: the name stands beside the button, what is here
# at the foot. The answer of a page is text on a tinted ground, only its sign is coloured. Beside the sidebar a window
# of 870 px leaves no more room than one of 640 px, where streamlit puts columns below each other. A figure that is
# longer than its card goes on in a second line: its unit and its error are not cut off. A link that the keyboard has
# reached is seen. Live cards do not fade while they are brought up to date on a busy machine: nothing in them is old
# by more than a second.
_STYLE = """
[data-testid=stSidebarHeader] {{ position: absolute; top: 0; right: 0.4rem; z-index: 1; padding: 0 }}
[data-testid=stSidebarUserContent] {{ padding: 1.1rem 0 1rem; min-height: 100vh; display: flex }}
[data-testid=stSidebarUserContent] > div,
[data-testid=stSidebarUserContent] > div > [data-testid=stVerticalBlock] {{ display: flex; flex: 1 }}
[data-testid=stSidebarUserContent] > div > [data-testid=stVerticalBlock] > :last-child {{ margin-top: auto }}
.st-key-token-keeper, .st-key-frontend {{ position: absolute }}
[data-testid=stSidebarUserContent] h3 {{ padding: 0; font-size: 20px }}
[data-testid=stSidebarUserContent] [data-testid=stPageLink] p {{ font-size: 15px }}
[data-testid=stMainBlockContainer] {{ padding-left: 2rem; padding-right: 2rem; max-width: 1720px }}
[data-testid=stAlert] [data-testid=stMarkdownContainer] {{ color: {text} }}
[data-testid=stAlert] [data-testid=stMarkdownContainer] small {{ color: {muted} }}
div:has(> [data-testid=stMetricChart]), [data-testid=stMetricChart] {{ height: 36px }}
[data-testid=stMetricChart] svg {{ transform: scaleY(0.64); transform-origin: top }}
a:focus-visible {{ outline: 2px solid {primary} !important; outline-offset: 1px; border-radius: 6px }}
[data-testid=stMetric] .stMarkdownEllipsis, [data-testid=stMetric] .stMarkdownEllipsis * {{
  white-space: normal; overflow: visible; text-overflow: clip
}}
[data-testid=stMetricValue] .stMarkdownColoredText {{ display: inline-block; line-height: 1.3 }}
.st-key-live [data-stale=true] {{ opacity: 1 !important }}
@media (max-width: 870px) {{
  [data-testid=stHorizontalBlock]:has(> [data-testid=stColumn]) {{ flex-wrap: wrap }}
  [data-testid=stColumn] {{ min-width: calc(100% - 1.5rem) }}
}}
@media (max-width: 640px) {{
  [data-testid=stMainBlockContainer] {{ padding-left: 1rem; padding-right: 1rem }}
  [data-testid=stButtonGroup] button {{ padding-left: 0.4rem; padding-right: 0.4rem }}
}}
"""


def mend(theme: Theme) -> None:
    """Called once on every full run, where it takes no room of the page."""
    ui = ui_colors(theme)
    st.html(f"<style>{_STYLE.format(text=ui['text'], muted=ui['muted'], primary=ui['primary'])}</style>")
    # streamlit wants the same declaration on every run.
    component = st.components.v2.component("tpdpdash_frontend", html="<span hidden></span>", js=_MENDS_JS)
    component(key="frontend", height=1)
