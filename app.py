"""The dashboard's entry: `streamlit run app.py`, or `tpdpdash serve`."""

import streamlit as st

from tpdpdash.ui import access, shell, state

st.set_page_config(page_title="tpdpdash", page_icon=":material/hub:", layout="wide", initial_sidebar_state=230)
shell.mark_shell()
page = shell.build_navigation()
state.restore()
with st.sidebar:
    shell.sidebar()
    access.take_token()
page.run()
