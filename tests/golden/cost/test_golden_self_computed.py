"""No coefficient of the cost model changes unseen."""

from __future__ import annotations

import json

import pytest
from self_computed import FILE, LAYOUTS, figures

from tpdpdash.training import FRAMEWORKS

KEPT = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_figures_are_those_that_were_kept(framework, name):
    """Self-computed; rewritten by self_computed.py after a change that is meant to move figures."""
    assert figures(framework, name) == pytest.approx(KEPT[framework][name], rel=1e-6)
