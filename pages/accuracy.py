"""How far to trust this: published runs beside what is predicted of them."""

from tpdpdash.ui.shell import require_shell

require_shell()

from collections.abc import Callable, Sequence  # noqa: E402 - a page that is run without app.py must leave first

import streamlit as st  # noqa: E402

from tpdpdash.charts.agreement import agreement  # noqa: E402
from tpdpdash.compare.targets import packaged_figures  # noqa: E402
from tpdpdash.cost.residuals import Residual, Residuals, What, packaged_residuals  # noqa: E402
from tpdpdash.text import t  # noqa: E402
from tpdpdash.ui import figures, parts, services, state, trust_view  # noqa: E402

WHATS: dict[str, What] = {"Step time": "time", "Peak memory": "memory"}
theme = parts.theme()
By = Callable[[Residual], str]
SOURCE: By = lambda run: run.source  # noqa: E731
DEVICE: By = lambda run: run.device  # noqa: E731


def main() -> None:
    """The whole page."""
    found = packaged_residuals()
    actions = parts.page_head(t("How far to trust this"), t("Published runs beside what is predicted of them"))
    with actions:
        shown = st.segmented_control(
            t("What"), format_func=t, required=True, label_visibility="collapsed",
            **state.choice("what", tuple(WHATS), "Step time"),
        )  # fmt: skip
    place = st.container()
    choice = chosen(found, WHATS[shown])
    runs = found.of(choice.what)
    own = [run for run in runs if choice.holds(run)]
    if not own:
        with place:
            nothing(choice)
        return
    with place:
        parts.verdict(
            "info",
            trust_view.answer(own, choice.what),
            trust_view.detail(found, services.held_out(choice.what)),
        )
    left, right = st.columns([5, 8])
    with left:
        agreement_card(runs, own, choice.what)
    with right:
        targets_card()
    worst_card(own, choice.what)
    score_card(own, t("By source"), t("Source"), SOURCE, "by-source")
    score_card(own, t("By device"), t("Device"), DEVICE, "by-device")


def chosen(found: Residuals, what: What) -> trust_view.Choice:
    """The filters, which stand in the address."""
    row = st.grid(columns=2, min_column_width=160)
    words = {trust_view.ALL: t("all")}
    source = row.selectbox(
        t("Source"), format_func=lambda name: words.get(name, name),
        **state.choice("source", trust_view.names_of(found, what, SOURCE), trust_view.ALL),
    )  # fmt: skip
    device = row.selectbox(
        t("Device"), format_func=lambda name: words.get(name, name),
        **state.choice("hardware", trust_view.names_of(found, what, DEVICE), trust_view.ALL),
    )  # fmt: skip
    return trust_view.Choice(what=what, source=source, device=device)


def nothing(choice: trust_view.Choice) -> None:
    """The state of filters that leave no run."""
    source, device = parts.literal(choice.source), parts.literal(choice.device)
    parts.verdict("warning", t("No run of {source} on {device}.", source=source, device=device))
    if st.button(t("Clear"), icon=":material/filter_alt_off:"):
        for name in ("source", "hardware"):
            st.query_params.pop(name, None)
        st.rerun()


def agreement_card(runs: Sequence[Residual], own: Sequence[Residual], what: What) -> None:
    """Every run as a dot; those that the filters leave out are grey."""
    caption = t("band: within 10 % · ring: the {count} worst", count=len(trust_view.worst(own)))
    with parts.card(t("Predicted against measured"), caption):
        unit = "s" if what == "time" else "GiB"
        chart = agreement(
            trust_view.agreement_table(runs, own, what), theme, unit=unit, description=trust_view.answer(own, what)
        )
        figures.figure(chart, "agreement")


def targets_card() -> None:
    """What was asked for, and whether it is reached."""
    targets = packaged_figures()
    with parts.card(t("What was asked for"), trust_view.targets_caption(targets)):
        st.dataframe(
            trust_view.targets_table(targets), hide_index=True, key="targets", height=440,
            column_config={name: st.column_config.Column(width=px) for name, px in trust_view.target_widths().items()},
            alt=t("Figures that were asked for, and what is reached"),
        )  # fmt: skip
        st.caption(trust_view.targets_words())


def worst_card(own: Sequence[Residual], what: What) -> None:
    """The worst rows by name."""
    count = len(trust_view.worst(own))
    with parts.card(t("Worst rows"), parts.truncated(count, len(own)), fill=False):
        st.dataframe(
            trust_view.worst_table(own, what), hide_index=True, key="worst", height="content", alt=t("The worst rows")
        )


def score_card(own: Sequence[Residual], title: str, column: str, by: By, key: str) -> None:
    """Errors of each source, or of each device."""
    with parts.card(title, t("bias: median of predicted / measured − 1")):
        figures.error_table(trust_view.score_table(own, column, by), trust_view.median_column(), key=key, alt=title)


main()
