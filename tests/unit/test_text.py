"""Faults become one line each, whatever a person wrote."""

import re
import string
from datetime import date, time
from pathlib import Path

from tpdpdash.faults import Fault, InvalidInputError
from tpdpdash.layout.rules import RULES
from tpdpdash.text import FAULT_TEXTS, fault_lines, fault_text, t

PACKAGE = Path(__file__).parents[2] / "tpdpdash"


def test_a_fault_is_one_line_that_names_field_value_and_nearest():
    values = {"divisor_name": "tp", "divisor": 3, "nearest": (15, 18)}
    fault = Fault(code="not_divisible", field="cluster.world_size", value=16, values=values)
    assert fault_text(fault) == "cluster.world_size is 16; it must be divisible by tp = 3; nearest: 15, 18"


def test_where_no_legal_value_is_near_nothing_is_said_of_one():
    values = {"choices": ("a", "b"), "nearest": ()}
    fault = Fault(code="unknown_choice", field="model.preset", value="foo", values=values)
    assert fault_text(fault) == "model.preset is foo; it must be one of a, b"
    device = Fault(code="unknown_device", field="cluster.device", value="foo", values={"nearest": None, "figures": "x"})
    assert "nearest" not in fault_text(device)


def test_hostile_values_are_escaped_and_bounded():
    hostile = Fault(code="not_whole_number", field="layout.tp", value="1\n\x1b[31m\ud800" + "x" * 5000)
    line = fault_text(hostile)
    assert line.isprintable()
    assert len(line) < 250


def test_a_date_or_time_of_a_toml_file_stands_as_it_is_written_there():
    for value, shown in ((date(2020, 1, 31), "2020-01-31"), (time(7, 30), "07:30:00")):
        assert fault_text(Fault(code="not_whole_number", field="training.steps", value=value)).endswith(f"not {shown}")


def test_an_error_carries_all_its_faults():
    faults = [Fault(code="missing", field="a"), Fault(code="missing", field="b")]
    assert fault_lines(InvalidInputError(faults).faults) == ["a is missing", "b is missing"]


def test_braces_in_a_message_without_values_stay():
    assert t("{plain}") == "{plain}"


def test_every_code_that_the_package_raises_has_a_sentence():
    raised = {rule.code for rule in RULES}
    for path in PACKAGE.rglob("*.py"):
        raised |= set(re.findall(r"Fault\(\s*code=\"([a-z0-9_]+)\"", path.read_text(encoding="utf-8")))
    assert len(raised) > 100
    assert raised <= set(FAULT_TEXTS), sorted(raised - set(FAULT_TEXTS))


def test_sentences_use_named_fields_only():
    for code, sentence in FAULT_TEXTS.items():
        names = [name for _, name, _, _ in string.Formatter().parse(sentence) if name is not None]
        assert all(name.isidentifier() for name in names), code
