"""Errors as a runtime gets them; the one place where that is decided."""

import json

import pytest

from allotment.addressing import errors
from allotment.addressing.errors import AllotmentError, ConfigError, Exhausted, InternalError
from allotment.cni.answers import answer

TREE = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, AllotmentError)]


def test_success_says_nothing():
    assert answer(None, "1.1.0") == (b"", 0)


@pytest.mark.parametrize("kind", TREE)
def test_every_error_is_told_by_its_code(kind):
    body, code = answer(kind("what happened", details="where to look"), "0.4.0", request_id="r1")
    told = json.loads(body)
    assert code != 0
    assert told["cniVersion"] == "0.4.0"
    assert told["code"] == kind.code
    assert told["msg"] == "what happened"
    assert told["details"].startswith("where to look")


def test_details_are_left_out_when_there_are_none():
    assert json.loads(answer(Exhausted("full"), "1.1.0", request_id="r1")[0]) == {
        "cniVersion": "1.1.0",
        "code": 101,
        "msg": "full",
    }


@pytest.mark.parametrize("error", [ValueError("secret"), KeyError("secret"), TimeoutError("secret"), RecursionError()])
def test_a_foreign_error_is_ours_to_explain_and_tells_the_runtime_only_the_request(error):
    body, code = answer(error, "1.1.0", request_id="r-17")
    told = json.loads(body)
    assert code != 0
    assert told["code"] == InternalError.code
    assert "r-17" in told["details"]
    assert b"secret" not in body


@pytest.mark.parametrize("version", ["", "9.9.9", "0.2.0", "x" * 1_000_000])
def test_an_answer_to_an_unknown_version_is_in_our_newest(version):
    assert json.loads(answer(ConfigError("x"), version)[0])["cniVersion"] == "1.1.0"


def test_a_text_from_outside_can_neither_break_nor_swell_an_answer():
    body, _ = answer(ConfigError("a\udcff\n\x00" + "x" * 1_000_000, details="y" * 1_000_000), "1.1.0")
    assert len(body) < 10_000
    assert json.loads(body)["msg"].startswith("a\\udcff\n\x00x")
