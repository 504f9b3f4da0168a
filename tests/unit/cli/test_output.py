"""The four forms of output say the same, the same way each time, and keep to their lines."""

from __future__ import annotations

import io
import json

import pytest
import yaml

from allotment.cli.output import Column, paint, render_document, render_rows, show_rows

COLUMNS = (
    Column("address", "ADDRESS"),
    Column("count", "COUNT", right=True),
    Column("held", "HELD"),
    Column("age", "AGE", text=lambda seconds: f"{seconds:.0f}s"),
    Column("uid", "UID", wide=True),
)
ROWS = (
    {"address": "10.0.0.1", "count": 5, "held": True, "age": 3.2, "uid": "u-1"},
    {"address": "fd00::1", "count": 12345, "held": False, "age": None},
)


def test_a_table_lines_up_and_leaves_wide_columns_out():
    assert render_rows(ROWS, COLUMNS, "table").splitlines() == [
        "ADDRESS    COUNT   HELD   AGE",
        "10.0.0.1       5   yes    3s",
        "fd00::1    12345   no     -",
    ]


def test_wide_has_them_all():
    assert render_rows(ROWS, COLUMNS, "wide").splitlines() == [
        "ADDRESS    COUNT   HELD   AGE   UID",
        "10.0.0.1       5   yes    3s    u-1",
        "fd00::1    12345   no     -     -",
    ]


def test_json_and_yaml_give_the_values_themselves_under_the_keys_in_order():
    for found in json.loads(render_rows(ROWS, COLUMNS, "json")), yaml.safe_load(render_rows(ROWS, COLUMNS, "yaml")):
        assert found[0] == ROWS[0]
        assert found[1] == {**ROWS[1], "uid": None}
        assert list(found[0]) == [column.key for column in COLUMNS]


def test_names_from_outside_cannot_move_the_cursor_or_break_the_table():
    text = render_rows([{"address": "a\x1b[2Jb\nc\u2028d\x9b"}], COLUMNS[:1], "table")
    assert text.splitlines()[1:] == ["a\\x1b[2Jb\\nc\\u2028d\\x9b"]
    text = render_rows([{"address": "a\x1b\n"}], COLUMNS[:1], "json")
    assert "\x1b" not in text


def test_lists_are_joined_and_nothing_is_a_dash():
    rows = [{"address": ["10.0.0.1", "fd00::1"]}, {"address": []}, {"address": ""}, {"address": 0}]
    assert render_rows(rows, COLUMNS[:1], "table").splitlines()[1:] == ["10.0.0.1,fd00::1", "-", "-", "0"]


def test_an_empty_table_is_said_on_standard_error_and_an_empty_list_is_a_list(capsys):
    show_rows([], COLUMNS, "table", empty="no leases")
    assert capsys.readouterr() == ("", "no leases\n")
    show_rows([], COLUMNS, "json")
    assert json.loads(capsys.readouterr().out) == []


def test_a_document_is_words_for_people_and_a_mapping_for_programs():
    document = {"ready": True, "networks": ("a", "b")}
    assert render_document(document, "table", lambda: "all is well") == "all is well\n"
    assert json.loads(render_document(document, "json", str)) == {"ready": True, "networks": ["a", "b"]}
    assert yaml.safe_load(render_document(document, "yaml", str)) == {"ready": True, "networks": ["a", "b"]}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "coloured"),
    [
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": ""}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_colour_is_for_terminals_that_want_it(monkeypatch, stream, environ, coloured):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert paint("bad", "red", stream) == ("\x1b[31mbad\x1b[0m" if coloured else "bad")
