"""Who may launch and stop: takes the start token from the address, keeps it in the browser, checks it on the server.

The browser keeps it in localStorage, which belongs to one host *and port*; a cookie would be sent to every other
server on 127.0.0.1. A small component takes the token out of the address (without a step in the browser's history),
stores it, and hands it to each new session of that browser.
"""

from __future__ import annotations

import streamlit as st

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.start_token import is_start_token
from tpdpdash.text import fault_text

_KEY = "start-token"
_QUERY = "token"
_TAKEN = "start-token-taken"
_NEEDED = Fault(code="start_token_needed", field="token")

_KEEPER_JS = """
export default function (component) {
  const { data, setStateValue } = component
  const name = "tpdpdash-start-token"
  const address = new URL(window.location.href)
  const fresh = address.searchParams.get("token")
  if (fresh !== null) {
    address.searchParams.delete("token")
    window.history.replaceState(window.history.state, "", address)
  }
  let kept = null
  try {
    if (data.refused && window.localStorage.getItem(name) === data.refused) {
      window.localStorage.removeItem(name)
    }
    if (data.accepted) window.localStorage.setItem(name, data.accepted)
    kept = window.localStorage.getItem(name)
  } catch (blocked) {
    kept = data.accepted
  }
  // A token that came by the address is answered too: the server waits for it with a clean address.
  if (fresh !== null || (kept && kept !== data.presented)) setStateValue("token", kept ?? "")
}
"""


def _keeper() -> object:
    """The component, declared once a process run: streamlit wants the same declaration on every run."""
    return st.components.v2.component("tpdpdash_token_keeper", html="<span hidden></span>", js=_KEEPER_JS)


def take_token() -> bool:
    """Called by app.py first on every full run: token from the address or the browser → this session.

    False on the one run whose address still holds the token: app.py ends there, and the component starts it anew
    once the address is clean. (Taking it out on the server would leave it in the browser's history.)
    """
    from_address = st.query_params.get(_QUERY)
    if from_address is not None and (is_start_token(from_address) or not may_start()):
        st.session_state[_KEY] = from_address
    is_first_run = from_address is not None and st.session_state.get(_TAKEN) != from_address
    st.session_state[_TAKEN] = from_address
    presented = st.session_state.get(_KEY)
    accepted = presented if is_start_token(presented) else None
    data = {"presented": presented, "accepted": accepted, "refused": None if accepted else presented}
    result = _keeper()(key="token-keeper", data=data, height=1, on_token_change=lambda: None)  # type: ignore[operator]
    if is_first_run:
        return False
    if from_address is not None:
        del st.query_params[_QUERY]
    from_browser = getattr(result, "token", None)
    if accepted is None and from_browser and from_browser != presented:
        st.session_state[_KEY] = from_browser
        st.rerun()
    return True


def may_start() -> bool:
    """Whether this session holds the start token."""
    return is_start_token(st.session_state.get(_KEY))


def not_allowed() -> str:
    """What stands where a control is disabled for want of the token (plain text)."""
    return fault_text(_NEEDED)


def require_token() -> None:
    """Refuse on the server, whatever the page showed. Raises InvalidInputError."""
    if not may_start():
        raise InvalidInputError([_NEEDED])
