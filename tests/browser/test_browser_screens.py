"""Every screen in a real browser: as a deep link, light, dark and narrow, without an error or a request elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tpdpdash.ui import uploads

pytestmark = pytest.mark.browser
SCREENS = ("cluster", "plan", "layout", "launch", "watch", "learn", "accuracy")
TITLES = {"accuracy": "How far to trust this"}
"""Where the title is not the name in the address."""
CUT_OFF_FIGURES = """() => [...document.querySelectorAll("[data-testid=stMetric] .stMarkdownEllipsis")]
    .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText)"""
"""Texts of cards that do not fit theirs: a unit or an error would be lost."""
NASTY = "[x](javascript:alert(1)) <img src=x onerror=alert(1)> :smile: **b**"


def test_a_deep_link_is_the_first_request_of_a_fresh_server(gpu_server: Any, new_tab: Callable[..., Any]) -> None:
    """First of its module: the server has served nothing yet."""
    tab = new_tab()
    page = tab.open(gpu_server.url("plan", device="A100-SXM4-80GB", nodes="2", gpus="8"))
    page.get_by_role("heading", name="Plan").wait_for()
    assert page.get_by_role("link", name="Learn").is_visible(), "the shell is missing: app.py was skipped"
    assert tab.shows("16")
    assert "device=A100-SXM4-80GB" in page.url
    assert tab.errors == []


def look_at(tab: Any, screen: str, name: str) -> None:
    """One screen as it stands: its title, no traceback, nothing beyond the window; a picture is kept."""
    heading = tab.page.get_by_role("heading", level=1)
    heading.wait_for()
    assert heading.inner_text() == TITLES.get(screen, screen.capitalize())
    assert tab.page.locator("[data-testid=stException]").count() == 0
    overflow = tab.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert overflow <= 0, f"{name} is {overflow} px wider than its window"
    assert tab.page.evaluate(CUT_OFF_FIGURES) == [], name
    tab.shot(name)


def test_every_screen_opens_in_light_and_in_dark(gpu_server: Any, new_tab: Callable[..., Any]) -> None:
    tab = new_tab()
    for screen in SCREENS:
        tab.open(gpu_server.url(screen))
        look_at(tab, screen, f"{screen}-light")
        tab.page.emulate_media(color_scheme="dark")
        tab.settled()
        ground = tab.page.locator("[data-testid=stApp]").evaluate("e => getComputedStyle(e).backgroundColor")
        assert ground == "rgb(14, 17, 23)"
        look_at(tab, screen, f"{screen}-dark")
        tab.page.emulate_media(color_scheme="light")
    assert tab.errors == []
    assert tab.outside == []


def test_the_keyboards_place_is_seen_and_a_chart_is_told_by_its_sentence_alone(
    gpu_server: Any, new_tab: Callable[..., Any]
) -> None:
    page = new_tab().open(gpu_server.url("learn"))
    for _ in range(4):  # past "Skip to main content"
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText").endswith("Layout")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    charts = page.locator("[role=graphics-document]")
    charts.nth(1).wait_for()
    assert "Map of 16 of 16 ranks" in str(charts.first.get_attribute("aria-label"))
    assert page.locator("[data-testid=stMain] [role=graphics-symbol]").count() == 0, "marks read out their pixels"


def test_every_screen_opens_in_a_narrow_window(gpu_server: Any, new_tab: Callable[..., Any]) -> None:
    tab = new_tab(400)
    for screen in SCREENS:
        tab.open(gpu_server.url(screen))
        look_at(tab, screen, f"{screen}-narrow")
        beyond = "b => b.getBoundingClientRect().right > window.innerWidth"
        cut_off = (
            f"[...document.querySelectorAll('[data-testid=stMain] button')].filter({beyond}).map(b => b.innerText)"
        )
        assert tab.page.evaluate(cut_off) == [], screen
    assert tab.errors == []


def test_no_card_cuts_off_its_figure_beside_the_sidebar_of_a_small_window(
    gpu_server: Any, new_tab: Callable[..., Any]
) -> None:
    for width in (800, 1440):
        tab = new_tab(width)
        tab.open(gpu_server.url("plan", model="llama-3-8b", device="H100-SXM5-80GB", nodes="2", gpus="8"))
        look_at(tab, "plan", f"plan-{width}")
        tab.open(gpu_server.url("cluster", show="described", device="GB200-NVL72-186GB", nodes="4", gpus="4"))
        look_at(tab, "cluster", f"described-{width}")
        assert tab.errors == []


def test_eight_gpus_are_shown_live_and_nobody_starts_anything_without_the_token(
    gpu_server: Any, new_tab: Callable[..., Any]
) -> None:
    tab = new_tab()
    tab.open(gpu_server.url("cluster"))
    assert tab.shows("8 × NVIDIA H100 80GB HBM3, all joined by NVSwitch. 7 free; GPU 7 holds 41.0 GiB.")
    assert tab.shows("7 of 8 report"), "the power of one is not supported"
    page = tab.open(
        gpu_server.url("launch", how="here", device="local", nodes="auto", gpus="auto", layout="tp2-pp2-dp2")
    )
    assert page.get_by_role("button", name="Start the run").is_disabled()
    assert tab.errors == []


def test_a_name_from_a_config_is_text_in_every_screen(
    gpu_server: Any, gpu_state_home: Path, new_tab: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows b29, b31, b32 and r133."""
    monkeypatch.setenv("XDG_STATE_HOME", str(gpu_state_home))
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8}
    config = {"model_type": "llama", **sizes, "num_key_value_heads": 8, "vocab_size": 32000}
    model = uploads.keep_config(json.dumps({**config, "_name_or_path": NASTY}).encode(), "config.json")
    tab = new_tab()
    for screen in ("plan", "layout", "launch"):
        page = tab.open(gpu_server.url(screen, model=model, layout="tp2-pp2-dp2"))
        assert tab.dialogs == []
        assert page.locator("[data-testid=stMain] a[href^='javascript']").count() == 0
        assert page.locator("[data-testid=stMain] img[src='x']").count() == 0
    assert tab.errors == []


def test_b01_a_config_that_cannot_be_read_leaves_the_model_as_it_was(
    gpu_server: Any, new_tab: Callable[..., Any], tmp_path: Path
) -> None:
    wrong = tmp_path / "config.json"
    wrong.write_text('{"model_type": "llama", "hidden_size": 4096,')
    tab = new_tab()
    page = tab.open(gpu_server.url("plan", model="gpt2-xl", seq="1024"))
    page.get_by_role("button", name="config.json").click()
    page.locator("input[type=file]").set_input_files(wrong)
    page.get_by_text("Nothing was changed: the model is still gpt2-xl.").wait_for()
    assert "model=gpt2-xl" in page.url
    assert tab.shows("tokens/s per GPU")
