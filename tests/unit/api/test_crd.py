"""The CRDs that the types make."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from allotment.api.cel import Rule
from allotment.api.crd import RULES, definition, files, placed, schema_of
from allotment.api.kinds import KINDS
from allotment.cli import crds

FOLDER = Path(__file__).parents[3] / "daemonset/crds"
EACH = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def test_the_files_are_as_generated():
    assert {path.name: path.read_text() for path in FOLDER.iterdir()} == files(), "run `make generate`"
    assert all(yaml.safe_load(text) for text in files().values())


def test_the_check_tells_a_file_that_is_out_of_date_and_one_too_many(tmp_path, capsys):
    assert crds.main(["--check", str(tmp_path)]) == 1
    assert "networks.yaml is out of date: run `make generate`" in capsys.readouterr().err
    assert crds.main([str(tmp_path)]) == 0
    assert crds.main(["--check", str(tmp_path)]) == 0
    (tmp_path / "pods.yaml").write_text("of no kind any more")
    assert crds.main(["--check", str(tmp_path)]) == 1
    assert crds.main([str(tmp_path)]) == 0
    assert not (tmp_path / "pods.yaml").exists()
    (tmp_path / "claims.yaml").write_text("something else")
    assert crds.main(["--check", str(tmp_path)]) == 1


def test_each_rule_stands_somewhere():
    assert {place for kind in KINDS for _, place in placed(kind)} >= RULES.keys()


def each(schema, path=""):
    """All schemas within a schema, with their paths."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from each(inner, f"{path}.{name}")
    for word in ("items", "additionalProperties"):
        if word in schema:
            yield from each(schema[word], f"{path}[]")


@EACH
def test_no_rule_stands_at_the_root_or_at_the_metadata(kind):
    with_rules = [path for path, schema in each(schema_of(kind)) if "x-kubernetes-validations" in schema]
    assert all(re.match(r"\.(spec|status)\b", path) for path in with_rules)


@EACH
def test_a_rule_that_compares_with_the_old_value_stands_where_a_removed_field_is_seen(kind):
    """It would be skipped where a field is taken out: so not at an optional field, and not in a list without keys."""
    schemas = dict(each(schema_of(kind)))
    for path, schema in schemas.items():
        if any("oldSelf" in rule["rule"] for rule in schema.get("x-kubernetes-validations", ())):
            parent, _, name = path.rpartition(".")
            if path.endswith("[]"):
                assert schemas[path.removesuffix("[]")]["x-kubernetes-list-type"] == "map"
            elif path != ".spec":
                assert name in schemas[parent]["required"]


@EACH
def test_columns_and_selectable_fields_exist(kind):
    schemas = dict(each(schema_of(kind)))
    paths = [column.path for column in kind.columns] + list(kind.selectable)
    for path in paths:
        plain = re.sub(r"\[\?.*?\]", "[]", path)
        assert plain in schemas or plain == ".metadata.creationTimestamp"


@EACH
def test_what_is_selected_by_can_not_change(kind):
    """A selected field that changes looks to a watch like a deletion."""
    schemas = dict(each(schema_of(kind)))
    for path in kind.selectable:
        parents = [path[:end] for end in range(len(path)) if path[end] == "."] + [path]
        rules = [rule["rule"] for at in parents if at for rule in schemas[at].get("x-kubernetes-validations", ())]
        assert "self == oldSelf" in rules


def test_kinds_have_names_of_their_own():
    names = [definition(kind)["spec"]["names"] for kind in KINDS]
    called = [word for each in names for word in (each["plural"], each["singular"], *each.get("shortNames", ()))]
    assert len(called) == len(set(called))
    assert all(each["categories"] == ["allotment"] for each in names)


def test_a_message_with_a_value_is_an_expression():
    assert Rule("", "no value").message == ("message", "no value")
    assert Rule("", "'{self}' is not {self.a}").message == (
        "messageExpression",
        '"\'" + self + "\' is not " + self.a',
    )
