"""What the tests of the validity rules share."""

from __future__ import annotations

from typing import Any

from strategies import dense_model, training_of

from tpdpdash.faults import Fault
from tpdpdash.layout.layout import Layout
from tpdpdash.layout.rules import check_layout
from tpdpdash.model.spec import ModelSpec
from tpdpdash.text import fault_lines


def faults_of(layout: Layout, model: ModelSpec | None = None, cluster: Any = None, **training: Any) -> dict[str, Fault]:
    """The faults of a layout by code; every one of them has a sentence."""
    found = check_layout(model or dense_model(), training_of(**training), cluster, layout)
    assert len(fault_lines(found)) == len(found)
    return {fault.code: fault for fault in found}
