"""Learn: the 16 devices of TP 2 × DP 8, who holds what and who talks to whom."""

from tpdpdash.ui.shell import require_shell

require_shell()

import streamlit as st  # noqa: E402 - a page that is run without app.py must leave before anything heavy

from tpdpdash.charts.pictures import pass_picture, weight_splits  # noqa: E402
from tpdpdash.charts.rank_map import rank_map  # noqa: E402
from tpdpdash.model.presets import preset  # noqa: E402
from tpdpdash.text import t  # noqa: E402
from tpdpdash.ui import figures, learn_costs, learn_view, learn_words, parts, shell, state  # noqa: E402

theme = parts.theme()
model = preset(learn_costs.MODEL)


DEVICES = tuple(learn_view.name(device) for device in range(learn_view.WORLD_SIZE))


def pick_device(device: int) -> None:
    """A click on the map chooses that device."""
    st.query_params["g"] = learn_view.name(device)


shell.trust_link(parts.page_head(t("Learn"), t("16 devices: who holds what, and who talks to whom")))
with st.container(horizontal=True, vertical_alignment="bottom"):
    tp = st.segmented_control(
        "tp_world_size", required=True, **state.choice("tp_world_size", ("1", "2", "4", "8"), "2")
    )
    pp = st.segmented_control("pp_world_size", required=True, **state.choice("pp_world_size", ("1", "2"), "1"))
    device = st.selectbox(t("Device"), width=120, **state.choice("g", DEVICES, "g0"))
world = learn_view.learn_world(int(tp), int(pp), DEVICES.index(device))

parts.verdict("info", learn_words.product_sentence(world), learn_words.groups_sentence(world))

with parts.card(t("The 16 devices"), t("click a device to follow it"), key="learn-devices"):
    devices = rank_map(learn_view.device_map(world, model.num_layers), theme)
    figures.picking_figure(devices, "learn-map", "rank", pick_device)
    figures.group_lines(learn_words.group_texts(world), theme)
    st.caption(learn_words.sizes_sentence(world))

left, right = st.columns([5, 7])
with left, parts.card(t("Split W"), t("one MLP")):
    pictures, joints = learn_view.splits(world)
    figures.figure(weight_splits(pictures, theme, joints=joints), "learn-split")
    st.caption(learn_view.split_sentence(world, model))
with right, parts.card(t("What each degree buys, and costs"), learn_costs.MODEL):
    figures.degree_table(learn_costs.degree_rows(), learn_costs.header(), theme)
    st.caption(f"{learn_costs.example_sentence()} {learn_words.terms_sentence()}")

left, right = st.columns(2)
with left, parts.card(t("Forward"), learn_words.lanes_caption(world)):
    lanes, boxes = learn_view.forward_boxes(world)
    figures.figure(pass_picture(lanes, boxes, theme, description=t("Forward pass")), "learn-forward")
    st.caption(t("On **dp_groups** nothing is sent: each replica has its own part of the batch."))
with right, parts.card(t("Backward"), learn_words.lanes_caption(world)):
    lanes, boxes = learn_view.backward_boxes(world)
    figures.figure(pass_picture(lanes, boxes, theme, description=t("Backward pass")), "learn-backward")
    st.caption(t("On **dp_groups** every slice of W is averaged with the same slice in the other replicas."))

parts.verdict("warning", learn_words.correction(world), learn_words.correction_detail())

left, right = st.columns(2)
with left, parts.card(t("With PP 2"), t("the model in two halves")):
    halves = learn_view.learn_world(world.tp, 2, world.device)
    figures.figure(rank_map(learn_view.stage_map(halves, model.num_layers), theme), "learn-stages")
    st.caption(learn_words.pipeline_sentence(halves))
with right, parts.card(t("Check yourself")):
    answer = st.pills(learn_words.question(world), learn_words.answers(world), key="learn-answer")
    if answer is not None:
        is_right = answer == learn_words.right_answer(world)
        parts.verdict("good" if is_right else "warning", learn_words.answer_sentence(world, answer))
