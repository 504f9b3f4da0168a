"""The versions we speak."""

import json

import pytest

from allotment.cni.versions import SUPPORTED, asked_version, told_version, version_result


def test_version_lists_what_we_speak_and_repeats_what_was_asked():
    assert json.loads(version_result("1.0.0")) == {
        "cniVersion": "1.0.0",
        "supportedVersions": ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"],
    }
    assert json.loads(version_result("2.0.0"))["cniVersion"] == "2.0.0"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"cniVersion": 7}', b"[" * 100_000])
def test_version_is_answered_whatever_is_said(body):
    told = json.loads(version_result(asked_version(body)))
    assert told == {"cniVersion": "1.1.0", "supportedVersions": list(SUPPORTED)}
    assert told_version(body) == "1.1.0"


@pytest.mark.parametrize("version", SUPPORTED)
def test_an_answer_is_in_the_version_that_was_asked_in(version):
    assert told_version(json.dumps({"cniVersion": version, "name": 7}).encode()) == version


def test_a_version_is_cut_before_it_is_repeated():
    body = json.dumps({"cniVersion": "9" * 1_000_000}).encode()
    assert len(asked_version(body)) == 64
    assert told_version(body) == "1.1.0"
