"""The table of valid and invalid objects, against the library."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from allotment.api.decoding import decode
from allotment.api.kinds import KINDS
from allotment.api.validate import validate, validate_update
from unit.api.cases import CASES

if TYPE_CHECKING:
    from allotment.api.shape import Problem
    from unit.api.case import Case

TYPES = {kind.name: kind.type for kind in KINDS}


def judge(case: Case) -> list[Problem]:
    decoded = decode(case.new, TYPES)
    problems = list(decoded.problems)
    if case.old is not None:
        kind = TYPES[case.old["kind"]]
        problems += validate_update(msgspec.convert(case.old, kind), msgspec.convert(case.new, kind))
    return problems


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_library_judges_as_the_table_says(case):
    problems = judge(case)
    if not case.wrong:
        assert problems == []
    for field, words in case.wrong:
        assert any(problem.field == field and words in problem.message for problem in problems), problems


@pytest.mark.parametrize("case", [case for case in CASES if not case.wrong], ids=lambda case: case.name)
def test_a_valid_object_is_valid_again_when_it_is_written_and_read(case):
    resource = decode(case.new, TYPES).resource
    again = msgspec.json.decode(msgspec.json.encode(resource), type=type(resource))
    assert again == resource
    assert validate(again) == ()


def test_names_in_the_table_are_unique():
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))


def test_validate_checks_limits_of_single_fields_also_on_objects_from_elsewhere():
    network = decode(next(case.new for case in CASES if case.name == "cooldown 1200")).resource
    spoiled = msgspec.json.decode(
        msgspec.json.encode(network).replace(b'"cooldownSeconds":1200', b'"cooldownSeconds":5000'), type=type(network)
    )  # decoding takes it: an object stored before a limit was tightened must stay readable
    assert [problem.field for problem in validate(spoiled)] == ["spec.cooldownSeconds"]
