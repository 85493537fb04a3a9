"""A CSV as a file: what is refused as a whole, and what is forgiven."""

from pathlib import Path

import pytest

from tpdpdash.compare.table import MAX_CELL, OVERFLOW, parse_table, read_table
from tpdpdash.faults import InvalidInputError
from tpdpdash.text import fault_lines

HEADER = b"num_layers,hidden,step_time_s\n"


def codes(data):
    with pytest.raises(InvalidInputError) as caught:
        parse_table(data)
    assert all(fault_lines(caught.value.faults))
    return [fault.code for fault in caught.value.faults]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b"", ["file_empty"], id="empty"),
        pytest.param(b"\xef\xbb\xbf \n\n", ["file_empty"], id="byte order mark and blanks"),
        pytest.param(b"<!DOCTYPE html><html>", ["csv_is_markup"], id="html"),
        pytest.param(b"\x89PNG\r\n\x1a\n", ["not_utf8"], id="binary"),
        pytest.param("num_layers".encode("utf-16") + b"\x00", ["not_utf8"], id="half a character"),
        pytest.param(HEADER + b"1,2\x00,3\n", ["not_utf8"], id="nul byte"),
        pytest.param(HEADER + b'1,"2,3\n', ["csv_broken"], id="open quote"),
        pytest.param(HEADER + b"1," + b"9" * (MAX_CELL + 1) + b",3\n", ["csv_broken"], id="huge cell"),
        pytest.param(b"hidden,step_time_s\n1,2\n", ["csv_missing_column"], id="no layers"),
        pytest.param(b"num_layers,hidden,hidden,step_time_s\n", ["csv_duplicate_column"], id="column twice"),
        pytest.param(b"num_layers,hidden,tp\n1,2,3\n", ["csv_nothing_measured"], id="nothing measured"),
        pytest.param(
            b"a,a\n", ["csv_duplicate_column", "csv_missing_column", "csv_missing_column", "csv_nothing_measured"],
            id="every fault at once",
        ),
    ],
)  # fmt: skip
def test_a_file_that_is_no_table_of_runs_is_refused_with_every_fault(data, expected):
    assert codes(data) == expected


def test_a_missing_file_and_a_folder_are_faults(tmp_path):
    for path, code in ((tmp_path / "none.csv", "file_missing"), (tmp_path, "file_unreadable")):
        with pytest.raises(InvalidInputError) as caught:
            read_table(path)
        assert [fault.code for fault in caught.value.faults] == [code]


def test_a_table_without_an_end_is_refused_at_the_limit():
    with pytest.raises(InvalidInputError) as refused:
        read_table(Path("/dev/zero"))
    assert [fault.code for fault in refused.value.faults] == ["file_too_large"]


def test_byte_order_mark_blanks_capitals_crlf_and_empty_lines_are_forgiven():
    table = parse_table(b"\xef\xbb\xbf num_layers , Hidden,STEP_TIME_S\r\n\r\n 4 ,8, 1.5\r\n")
    assert table.rows == ({"num_layers": "4", "hidden": "8", "step_time_s": "1.5"},)


def test_short_rows_are_filled_and_long_ones_marked():
    short, long = parse_table(HEADER + b"4,8\n4,8,1,2\n").rows
    assert short["step_time_s"] == ""
    assert long[OVERFLOW] == "2"


def test_header_tells_runs_from_memory():
    assert parse_table(HEADER).kind == "runs"
    assert parse_table(b"num_layers,hidden,peak_gib\n").kind == "memory"
    assert parse_table(b"num_layers,hidden,peak_gib,step_time_s\n").kind == "runs"


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("num_layers\thidden\tstep_time_s\r\n48\t6144\t1.5\r\n", "utf-16"),
        ("num_layers;hidden;step_time_s\n48;6.144;1,5\n", "utf-8"),
        ("num_layers;hidden;step_time_s\n48;6144;1.5\n", "utf-8-sig"),
        ("num_layers|hidden|step_time_s\n48|6144|1.5\n", "utf-8"),
        ('"num_layers"\t"hidden"\t"step_time_s"\n"48"\t"6144"\t"1.5"\n', "utf-8"),
    ],
)
def test_what_spreadsheets_export_is_read(text, encoding):
    (row,) = parse_table(text.encode(encoding)).rows
    assert (row["num_layers"], row["step_time_s"]) == ("48", "1.5")


def test_decimal_commas_are_read_where_semicolons_set_cells_apart_and_nowhere_else():
    rows = parse_table(b"model_name;step_time_s;notes\na;1.234,5;x, y\n").rows
    assert rows[0] == {"model_name": "a", "step_time_s": "1234.5", "notes": "x, y"}
    assert parse_table(b'model_name,step_time_s\na,"51,200"\n').rows[0]["step_time_s"] == "51,200"


def test_a_table_may_name_its_models_instead_of_stating_their_sizes():
    assert parse_table(b"model_name,step_time_s\nllama-3-8b,1\n").kind == "runs"
