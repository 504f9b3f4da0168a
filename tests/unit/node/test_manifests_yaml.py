"""YAML read as JSON, with lines."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allotment.node.manifests.document import NODE_LIMIT, ManifestError, read_documents


def read(text: str):
    return [document.data for document in read_documents(text.encode())]


def broken(text: str | bytes) -> ManifestError:
    with pytest.raises(ManifestError) as caught:
        read_documents(text.encode() if isinstance(text, str) else text)
    return caught.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("True", "True"),
        ("true", True),
        ("null", None),
        ("~", None),
        ("", None),
        ("Null", "Null"),
        ("010", "010"),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("12:30:45", "12:30:45"),
        ("2026-01-01", "2026-01-01"),
        ("2026-01-31T14:03:00Z", "2026-01-31T14:03:00Z"),
        (".5", ".5"),
        (".inf", ".inf"),
        ("-5", -5),
        ("0", 0),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("10.4.0.0/16", "10.4.0.0/16"),
        ("fd00::5", "fd00::5"),
        ("'5'", "5"),
        ('"true"', "true"),
        ("!!str 5", "5"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_plain_words_mean_what_they_mean_in_json(text, value):
    assert read(f"a: {text}\n") == [{"a": value}]
    assert type(read(f"a: {text}\n")[0]["a"]) is type(value)


def test_several_documents_empty_ones_left_out():
    assert read("---\na: 1\n---\n# nothing\n---\nb: 2\n...\n") == [{"a": 1}, {"b": 2}]
    assert read("") == read("# a comment alone\n") == []


def test_a_byte_order_mark_is_no_part_of_it():
    assert read("\ufeffa: 1") == [{"a": 1}]


TEXT = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Cn"), exclude_characters="\u2028\u2029\x7f\ufeff")
)
KEY = st.from_regex(r"[a-z]{1,8}", fullmatch=True)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEY, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=50, deadline=None)
@given(JSON)
def test_json_is_read_as_json(value):
    text = json.dumps({"x": value}, ensure_ascii=False, indent=1)
    assert read(text) == [{"x": value}]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: [", 2, "not valid YAML"),
        ("a: 1\n\tb: 2", 2, "not valid YAML"),
        ("a: b\n c: d", 2, "not valid YAML"),
        ("a: 1\nb: 2\na: 3", 3, "'a' is given twice"),
        ("a: 1\nb: \x00", 2, "control characters"),
        ("a: &x\n  - *x", 2, "inside of what it refers to"),
        ("a: *x", 1, "refers to nothing"),
        ("b: {x: &x 1}\n---\na: *x", 3, "refers to nothing"),
        ("a:\n  <<: {b: 1}", 2, "merge keys"),
        ("a: !!python/object:os.system x", 1, "tag"),
        ("a: !mine {b: 1}", 1, "tag"),
        ("? [a]\n: b", 1, "a key must be plain text"),
        ("{? {a: 1} : 2}", 1, "a key must be plain text"),
        ("a: &x b\n*x : c", 2, "a key must be plain text"),
    ],
)
def test_what_is_refused_says_its_line(text, line, words):
    error = broken(text)
    assert (error.line, words in error.message) == (line, True), error.message


def test_bytes_that_are_no_text():
    error = broken(b"a: 1\nb: \xff\n")
    assert error.line == 2
    assert "UTF-8" in error.message


def test_aliases_are_followed_but_a_bomb_of_them_is_counted():
    assert read("a: &x {n: 1}\nb: [*x, *x]") == [{"a": {"n": 1}, "b": [{"n": 1}, {"n": 1}]}]
    bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 30)
    )
    assert f"more than {NODE_LIMIT}" in broken(bomb).message
    deep = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 100))
    assert "deep" in broken(deep).message


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_depth_is_bounded_without_falling_over(opening):
    assert broken(opening * 100_000)


def test_lines_of_fields():
    text = "# head\na:\n  b:\n  - c: 1\n  - c: 2\n    d: x\n"
    (document,) = read_documents(text.encode())
    assert document.line == 2
    assert document.line_of(("a", "b", 1, "d")) == 6
    assert document.line_of(("a", "b", 1, "missing", "more")) == 5
    assert document.line_of(()) == 2
