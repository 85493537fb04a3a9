"""Sliding windows: in how many layers a token meets only the keys just before it, as configs say it."""

from __future__ import annotations

from tpdpdash.model.section import ABSENT, Section

SLIDING = "sliding_attention"


def sliding_window(section: Section) -> object:
    """The window [tokens] as the config has it; 0 where there is none.

    Qwen's configs name a window and the layers below which there is none, and switch it on by a key of its own.
    """
    window = section.get("sliding_window")
    switch = section.get("use_sliding_window")
    is_off = switch is False or (switch is ABSENT and section.get("max_window_layers") is not ABSENT)
    return 0 if window is ABSENT or window is None or is_off else window


def num_sliding_layers(section: Section, num_layers: int, full_every: int) -> int:
    """Layers with the window: those that `layer_types` names, all but every n-th, or those from Qwen's
    max_window_layers on. `full_every` is the family's n where the config states none; 0 = every layer has it."""
    kinds, every, first = (section.get(key) for key in ("layer_types", "sliding_window_pattern", "max_window_layers"))
    if isinstance(kinds, list):
        return min(num_layers, kinds.count(SLIDING))
    if isinstance(first, int):
        return max(0, num_layers - first)
    return all_but_every(every if isinstance(every, int) else full_every, num_layers)


def all_but_every(nth: int, num_layers: int) -> int:
    """Layers but every n-th; 0 = all of them."""
    return num_layers - num_layers // nth if nth > 0 else num_layers
