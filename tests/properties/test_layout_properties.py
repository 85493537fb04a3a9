"""What holds for every layout: rank maps are bijections, columns equal their rows, placement equals counting."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st
from strategies import RANK_ORDERS, dense_model, layout_of, layouts, moe_model, training_of

from tpdpdash.faults import InvalidInputError
from tpdpdash.layout.batch_rules import sequence_multiple
from tpdpdash.layout.columns import LayoutColumns
from tpdpdash.layout.grid import DENSE_GROUPS, EXPERT_GROUPS
from tpdpdash.layout.groups import coordinates, group_of, groups_of
from tpdpdash.layout.layout import SCHEDULES, Layout, LayoutPins
from tpdpdash.layout.placement import members_per_block
from tpdpdash.layout.resolve import resolve_layout
from tpdpdash.layout.rules import RULES, check_layout, refusal_codes
from tpdpdash.layout.stages import even_stage_layers, megatron_stage_layers
from tpdpdash.layout.world import world_faults
from tpdpdash.text import fault_lines

FEW = settings(max_examples=60)


@FEW
@given(layouts(most_ranks=96))
def test_the_rank_map_is_a_bijection(layout: Layout) -> None:
    places = [coordinates(layout, rank) for rank in range(layout.world_size)]
    assert len({(p.tp, p.cp, p.pp, p.dp) for p in places}) == layout.world_size
    assert len({(p.etp, p.ep, p.edp, p.pp) for p in places}) == layout.world_size


@FEW
@given(layouts(most_ranks=96))
def test_groups_divide_the_world_and_group_of_finds_them(layout: Layout) -> None:
    for kind, groups in groups_of(layout).items():
        if kind not in ("embedding", "position_embedding"):
            assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size))
        assert all(group == sorted(group) for group in groups)
        for group in groups[:3]:
            assert group_of(layout, kind, group[-1]) == tuple(group)


@FEW
@given(layouts(most_ranks=96))
def test_ranks_of_a_group_differ_in_its_coordinate_only(layout: Layout) -> None:
    groups = groups_of(layout)
    for kind, own in (("tp", "tp"), ("cp", "cp"), ("dp", "dp"), ("pp", "pp")):
        for group in groups[kind]:
            places = [coordinates(layout, rank).as_dict() for rank in group]
            assert [place[own] for place in places] == list(range(len(group)))
            assert len({tuple(place[n] for n in ("tp", "cp", "dp", "pp") if n != own) for place in places}) == 1


@FEW
@given(layouts(), st.sampled_from([1, 2, 4, 6, 7, 8, 16, 72]))
def test_placement_equals_counting_the_ranks_of_every_group(layout: Layout, block: int) -> None:
    columns, groups = LayoutColumns.from_layouts([layout]), groups_of(layout)
    for kind in (*DENSE_GROUPS, *EXPERT_GROUPS):
        counted = min(min(Counter(rank // block for rank in group).values()) for group in groups[kind])
        assert members_per_block(columns, kind, block)[0] == counted


@FEW
@given(st.lists(layouts(most_ranks=64), min_size=1, max_size=8))
def test_columns_equal_their_rows(rows: list[Layout]) -> None:
    columns = LayoutColumns.from_layouts(rows)
    assert [columns.layout(row) for row in range(len(rows))] == rows
    training = training_of(global_batch_size=120, seq_len=960)
    for model in (dense_model(num_layers=17), moe_model(num_layers=6)):
        codes = refusal_codes(model, training, None, columns)
        for code, layout in zip(codes.tolist(), rows, strict=True):
            found = check_layout(model, training, None, layout)
            assert (RULES[code - 1].code if code else None) == (found[0].code if found else None)
            assert len(fault_lines(found)) == len(found)


@FEW
@given(st.integers(1, 130), st.integers(1, 32), st.booleans(), st.booleans())
def test_the_default_split_keeps_every_layer_and_is_as_even_as_it_goes(
    layers: int, pp: int, embedding: bool, loss: bool
) -> None:
    split = even_stage_layers(layers, pp, account_for_embedding=embedding, account_for_loss=loss)
    assert (len(split), sum(split)) == (pp, layers)
    units = list(split)
    units[0] += embedding
    units[-1] += loss
    assert max(units) - min(units) <= 1


@FEW
@given(st.integers(1, 130), st.integers(1, 16), st.integers(1, 4), st.booleans(), st.booleans())
def test_where_megatron_splits_evenly_the_default_is_megatrons(
    layers: int, pp: int, chunks: int, embedding: bool, loss: bool
) -> None:
    try:
        built = megatron_stage_layers(layers, pp, chunks, account_for_embedding=embedding, account_for_loss=loss)
    except InvalidInputError:
        return
    own = even_stage_layers(layers, pp, account_for_embedding=embedding, account_for_loss=loss)
    assert tuple(sum(rank) for rank in built) == own


@FEW
@given(
    st.integers(1, 512),
    st.fixed_dictionaries({name: st.sampled_from([None, 1, 2, 3, 4, 8]) for name in ("tp", "cp", "pp", "dp", "ep")}),
    st.sampled_from([None, *RANK_ORDERS[::7], "tp-dp", "x", ""]),
    st.sampled_from([None, *SCHEDULES]),
    st.sampled_from([None, 1, 2]),
)
def test_any_pins_give_a_legal_layout_or_faults_in_words(
    world_size: int, degrees: dict[str, int | None], order: str | None, schedule: str | None, chunks: int | None
) -> None:
    pins = LayoutPins(rank_order=order, schedule=schedule, num_model_chunks=chunks, **degrees)  # type: ignore[arg-type]
    model, training = moe_model(), training_of()
    try:
        layout = resolve_layout(pins, model, training, world_size)
    except InvalidInputError as wrong:
        told = fault_lines(wrong.faults)
        event(f"{len(told)} faults")
        return
    assert layout.world_size == world_size
    assert sum(layout.layers_per_stage) == model.num_layers
    assert check_layout(model, training, None, layout) == []
    groups_of(layout)


@FEW
@given(st.integers(1, 300), st.integers(1, 12), st.integers(1, 12))
def test_the_nearest_degrees_of_a_world_fit_it(world_size: int, tp: int, pp: int) -> None:
    for fault in world_faults(world_size, tp=tp, cp=1, pp=pp):
        nearest = fault.values["nearest"]
        assert isinstance(nearest, tuple)
        for degree in nearest:
            others = 1 if fault.field == "layout.tp" else tp
            assert world_size % (degree * others) == 0


@FEW
@given(st.integers(1, 9), st.integers(1, 9), st.booleans(), st.integers(1, 5000))
def test_the_nearest_batch_and_sequence_are_legal(cp: int, tp: int, sequence_parallel: bool, size: int) -> None:
    heads = tp * 4
    model = dense_model(num_attention_heads=heads, num_kv_heads=heads, ffn_hidden_size=heads * 64)
    layout = layout_of(8, cp=cp, tp=tp, dp=3, micro_batch_size=2, sequence_parallel=sequence_parallel)
    step = int(sequence_multiple(cp, tp, sequence_parallel))
    training = training_of(seq_len=size, global_batch_size=size)
    nearest: dict[str, set[int]] = {"training.seq_len": {step}, "training.global_batch_size": {6}}
    for fault in check_layout(model, training, None, layout):
        offered = fault.values["nearest"]
        assert isinstance(offered, tuple)
        nearest[fault.field] = set(offered)
    for seq_len in nearest["training.seq_len"]:
        for batch in nearest["training.global_batch_size"]:
            mended = training_of(seq_len=seq_len, global_batch_size=batch)
            assert check_layout(model, mended, None, layout) == []


def test_a_hundred_thousand_rows_have_the_codes_of_their_blocks() -> None:
    rng = np.random.default_rng(0)
    rows = 100_000
    columns = LayoutColumns.build(
        num_layers=96,
        tp=2.0 ** rng.integers(0, 5, rows),
        pp=2.0 ** rng.integers(0, 6, rows),
        dp=2.0 ** rng.integers(0, 8, rows),
        micro_batch_size=2.0 ** rng.integers(0, 4, rows),
        num_model_chunks=2.0 ** rng.integers(0, 3, rows),
    )
    model = dense_model(num_layers=96, num_attention_heads=96, num_kv_heads=96, ffn_hidden_size=49152)
    training = training_of(seq_len=2048, global_batch_size=1536)
    codes = refusal_codes(model, training, None, columns)
    assert codes.shape == (rows,)
    part = np.arange(5_000, 6_000)
    assert np.array_equal(codes[part], refusal_codes(model, training, None, columns.take(part)))
