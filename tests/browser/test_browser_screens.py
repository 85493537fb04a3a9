"""Every screen in a real browser: as a deep link, light, dark and narrow, without an error or a request elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tpdpdash.ui import uploads

pytestmark = pytest.mark.browser
SCREENS = ("cluster", "plan", "layout", "launch", "watch", "learn")
NASTY = "[x](javascript:alert(1)) <img src=x onerror=alert(1)> :smile: **b**"


def test_a_deep_link_is_the_first_request_of_a_fresh_server(
    start_server: Callable[[], Any], new_tab: Callable[..., Any]
) -> None:
    server, tab = start_server(), new_tab()
    page = tab.open(server.url("plan", device="A100-SXM4-80GB", nodes="2", gpus="8"))
    page.get_by_role("heading", name="Plan").wait_for()
    assert page.get_by_role("link", name="Learn").is_visible(), "the shell is missing: app.py was skipped"
    assert "16" in tab.text()
    assert "device=A100-SXM4-80GB" in page.url
    assert tab.errors == []


def test_every_screen_opens_in_light_and_dark_and_on_a_narrow_window(
    start_server: Callable[[], Any], new_tab: Callable[..., Any]
) -> None:
    server = start_server()
    for scheme, width in (("light", 1440), ("dark", 1440), ("light", 400)):
        tab = new_tab(width, scheme)
        for screen in SCREENS:
            page = tab.open(server.url(screen))
            page.get_by_role("heading", level=1).wait_for()
            assert page.get_by_role("heading", level=1).inner_text() == screen.capitalize()
            assert page.locator("[data-testid=stException]").count() == 0
            overflow = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert overflow <= 0, f"{screen} is {overflow} px wider than a window of {width} px"
            tab.shot(f"{screen}-{scheme}-{width}")
        assert tab.errors == []
        assert tab.outside == []


def test_a_name_from_a_config_is_text_in_every_screen(
    start_server: Callable[[], Any], new_tab: Callable[..., Any]
) -> None:
    """Rows b29, b31, b32 and r133."""
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8}
    config = {
        "model_type": "llama",
        **sizes,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "tie_word_embeddings": False,
    }
    model = uploads.keep_config(json.dumps({**config, "_name_or_path": NASTY}).encode(), "config.json")
    server, tab = start_server(), new_tab()
    for screen in ("plan", "layout", "launch"):
        page = tab.open(server.url(screen, model=model, layout="tp2-pp2-dp2"))
        assert tab.dialogs == []
        assert page.locator("[data-testid=stMain] a[href^='javascript']").count() == 0
        assert page.locator("[data-testid=stMain] img[src='x']").count() == 0
    assert tab.errors == []
