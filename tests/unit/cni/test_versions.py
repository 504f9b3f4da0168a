"""The versions we speak."""

import json

import pytest

from allotment.cni.versions import SUPPORTED, told_version, version_result


def test_version_lists_what_we_speak_and_repeats_what_was_asked():
    assert json.loads(version_result(b'{"cniVersion": "1.0.0"}')) == {
        "cniVersion": "1.0.0",
        "supportedVersions": ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"],
    }
    assert json.loads(version_result(b'{"cniVersion": "2.0.0"}'))["cniVersion"] == "2.0.0"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"cniVersion": 7}', b"[" * 100_000])
def test_version_is_answered_whatever_is_said(body):
    assert json.loads(version_result(body)) == {"cniVersion": "1.1.0", "supportedVersions": list(SUPPORTED)}
    assert told_version(body) == "1.1.0"


@pytest.mark.parametrize("version", SUPPORTED)
def test_an_answer_is_in_the_version_that_was_asked_in(version):
    assert told_version(json.dumps({"cniVersion": version, "name": 7}).encode()) == version
