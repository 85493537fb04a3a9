"""Opening a screen in AppTest, and reading it as a person does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streamlit.testing.v1 import AppTest

APP = Path(__file__).parents[2] / "app.py"


def open_page(name: str, *, token: str | None = None, **params: str) -> AppTest:
    """A screen at this address; `token` is what the browser would have handed over."""
    at = AppTest.from_file(str(APP), default_timeout=120)
    if token is not None:
        at.session_state["start-token"] = token
    for key, value in params.items():
        at.query_params[key] = value
    return at.switch_page(f"pages/{name}.py").run()


def texts(at: AppTest) -> str:
    """Every sentence of the page, without the signs that keep it from being markdown."""
    kinds: tuple[Any, ...] = (
        at.title,
        at.subheader,
        at.markdown,
        at.success,
        at.warning,
        at.error,
        at.info,
        at.caption,
    )
    shown = [str(element.value) for kind in kinds for element in kind]
    shown += [html.proto.body for html in at.get("html")]  # legends and lists of groups
    return "\n".join(shown).replace("\\", "").replace("\N{WORD JOINER}", "")


def specs(at: AppTest) -> list[str]:
    """The Vega-Lite spec of every chart, as text."""
    return [chart.proto.spec for chart in at.get("vega_lite_chart")]


def param(at: AppTest, name: str) -> str:
    """One parameter of the address."""
    value = at.query_params[name]
    return str(value[0] if isinstance(value, list) else value)
