"""The palette: one colour a phase and group kind, readable on light and dark."""

from __future__ import annotations

import pytest

from tpdpdash.charts.palette import (
    MEMORY_ORDER,
    PHASE_ORDER,
    Theme,
    chart_theme,
    heat_ramp,
    memory_colors,
    memory_label,
    phase_colors,
    phase_label,
    ui_colors,
)

THEMES: tuple[Theme, ...] = ("light", "dark")


def luminance(color: str) -> float:
    """WCAG 2 relative luminance of #RRGGBB."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """WCAG 2 contrast ratio."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", THEMES)
def test_text_on_every_mark_has_the_contrast_of_text(theme: Theme) -> None:
    for fill in phase_colors(theme).values():
        assert contrast(fill.fill, fill.on) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
def test_every_mark_or_its_outline_stands_out_from_the_card(theme: Theme) -> None:
    for fill in phase_colors(theme).values():
        assert contrast(fill.outline, ui_colors(theme)["card"]) >= 3


@pytest.mark.parametrize("theme", THEMES)
def test_coloured_words_are_readable_on_the_card(theme: Theme) -> None:
    for fill in phase_colors(theme).values():
        assert contrast(fill.text, ui_colors(theme)["card"]) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
def test_only_idle_time_is_hollow(theme: Theme) -> None:
    hollow = {name for name, fill in phase_colors(theme).items() if fill.hollow}
    assert hollow == {"bubble", "idle", "unattributed"}


@pytest.mark.parametrize("theme", THEMES)
def test_memory_parts_borrow_the_colours_of_phases(theme: Theme) -> None:
    colors = memory_colors(theme)
    assert tuple(colors) == MEMORY_ORDER
    assert colors["weights"] == phase_colors(theme)["forward"]
    assert colors["gradients"] == phase_colors(theme)["backward"]


@pytest.mark.parametrize("theme", THEMES)
def test_group_kinds_are_told_apart(theme: Theme) -> None:
    fills = [phase_colors(theme)[kind].fill for kind in ("tp", "cp", "ep", "pp", "dp")]
    assert len(set(fills)) == len(fills)


def test_every_phase_and_memory_part_has_a_name() -> None:
    names = [phase_label(phase) for phase in PHASE_ORDER]
    assert len(set(names)) == len(names)
    assert phase_label("tp") == "tensor (TP)"
    parts = [memory_label(part) for part in MEMORY_ORDER]
    assert parts == ["weights", "gradients", "optimizer", "activations", "logits", "buffers", "overhead"]


@pytest.mark.parametrize("theme", THEMES)
def test_charts_have_no_ground_of_their_own(theme: Theme) -> None:
    assert chart_theme(theme)["background"] == "transparent"
    assert len(heat_ramp(theme)) == 8
