"""A person's table becomes checked values, or every fault of it at once."""

from dataclasses import dataclass
from typing import Literal

import pytest

from tpdpdash.faults import whole_number_fault
from tpdpdash.fields import nearest, nearest_words, read_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    count: int
    rate: float = 1.0
    flag: bool = False
    word: Literal["red", "green"] = "red"
    name: str | None = None
    sizes: tuple[int, ...] | None = None


def read(table, limits=None):
    return read_fields(Example, table, "example", limits or {})


def test_good_values_pass_unchanged_and_lists_become_tuples():
    values, faults = read({"count": 3, "rate": 2, "sizes": [1, 2], "word": "green"})
    assert faults == []
    assert values == {"count": 3, "rate": 2, "sizes": (1, 2), "word": "green"}


@pytest.mark.parametrize(
    ("table", "code", "field"),
    [
        ({}, "missing", "example.count"),
        ({"count": None}, "missing", "example.count"),
        ({"count": True}, "not_whole_number", "example.count"),
        ({"count": 1.0}, "not_whole_number", "example.count"),
        ({"count": "3"}, "not_whole_number", "example.count"),
        ({"count": 1, "rate": float("nan")}, "not_number", "example.rate"),
        ({"count": 1, "rate": float("inf")}, "not_number", "example.rate"),
        ({"count": 1, "rate": "fast"}, "not_number", "example.rate"),
        ({"count": 1, "flag": 1}, "not_true_false", "example.flag"),
        ({"count": 1, "word": "blue"}, "unknown_choice", "example.word"),
        ({"count": 1, "name": 7}, "not_text", "example.name"),
        ({"count": 1, "sizes": 7}, "not_list", "example.sizes"),
        ({"count": 1, "sizes": [1, "2"]}, "not_whole_number", "example.sizes"),
        ({"count": 1, "cuont": 2}, "unknown_key", "example.cuont"),
    ],
)
def test_each_wrong_value_is_one_fault_of_its_field(table, code, field):
    _, faults = read(table)
    assert [(fault.code, fault.field) for fault in faults] == [(code, field)]


def test_all_faults_are_told_at_once():
    _, faults = read({"count": "x", "rate": "y", "cuont": 1})
    assert {fault.field for fault in faults} == {"example.count", "example.rate", "example.cuont"}


def test_limits_name_both_ends_and_the_nearest_legal_value():
    _, faults = read({"count": 10**30, "sizes": [1, 0]}, {"count": (1, 100), "sizes": (1, 5)})
    assert [(f.field, f.value, f.values["nearest"]) for f in faults] == [
        ("example.count", 10**30, 100),
        ("example.sizes", 0, 1),
    ]


def test_a_misspelt_word_gets_the_nearest_choice_and_nonsense_gets_none():
    assert nearest("gren", ("red", "green")) == "green"
    assert nearest("zzzzzz", ("red", "green")) is None


def test_words_that_are_alike_come_best_first_whatever_their_case():
    assert nearest_words("GREN", ("Greed", "green", "red")) == ("green", "Greed", "red")
    assert nearest_words("gren", ("greed", "green", "red"), most=1) == ("green",)


@pytest.mark.parametrize(
    ("value", "code", "nearest_legal"),
    [(0, "out_of_range", 1), (9, "out_of_range", 8), (True, "not_whole_number", None), (2.0, "not_whole_number", None)],
)
def test_what_must_be_a_whole_number_between_limits(value, code, nearest_legal):
    fault = whole_number_fault("layout.tp", value, 1, 8)
    assert (fault.code, fault.field, fault.value) == (code, "layout.tp", value)
    assert fault.values.get("nearest") == nearest_legal
    assert whole_number_fault("layout.tp", 8, 1, 8) is None
