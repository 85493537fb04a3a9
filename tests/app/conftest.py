"""AppTest on the real app.py: fresh caches for every test, and streamlit's legacy pages mode switched off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from streamlit.runtime.pages_manager import PagesManager

from tpdpdash.ui import run_services

APP = Path(__file__).parents[2] / "app.py"


@pytest.fixture(autouse=True)
def fresh_caches() -> Iterator[None]:
    """What was seen of this machine and of its runs outlives a test otherwise; plans and estimates follow from their
    job alone and may."""
    _forget()
    yield
    _forget()


def _forget() -> None:
    st.cache_data.clear()
    run_services._live_run.clear()


@pytest.fixture(autouse=True)
def no_pages_directory_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """AppTest sets the legacy mode again before every run; the real server leaves it at the first st.navigation."""
    build = PagesManager.__init__

    def build_without(self: PagesManager, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        PagesManager.uses_pages_directory = False

    monkeypatch.setattr(PagesManager, "__init__", build_without)
