"""The dashboard's entry: `streamlit run app.py`, or `tpdpdash serve`."""

import streamlit as st

from tpdpdash.ui import access, frontend, parts, services, shell, state

page = shell.build_navigation()
st.set_page_config(
    page_title="tpdpdash", page_icon=shell.favicon(), layout="wide", initial_sidebar_state=shell.SIDEBAR_PX
)
shell.mark_shell()
with st.sidebar:
    if not access.take_token():
        st.stop()
    frontend.mend(parts.theme())
    state.restore()
    links = shell.sidebar()
parts.faults(state.address_faults(), "info")
page.run()
services.set_aside(page.url_path)
shell.links(links)
