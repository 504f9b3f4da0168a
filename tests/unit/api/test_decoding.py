"""Reading what a person wrote: everything that is wrong is named, with its place."""

from __future__ import annotations

from allotment.api.decoding import decode
from allotment.api.network import Network
from unit.api.cases import l2, l3, sub, thing


def fields(problems):
    return [problem.field for problem in problems]


def test_all_faults_of_form_come_at_once():
    raw = l3("10.4.0.0/24", cooldownSeconds="30", mtu=7, allowedUses="Pod")
    raw["metadata"] = {"labels": {"a": 1}}
    del raw["spec"]["type"]
    assert sorted(fields(decode(raw).problems)) == [
        "metadata.labels.a",
        "metadata.name",
        "spec.allowedUses",
        "spec.cooldownSeconds",
        "spec.mtu",
        "spec.type",
    ]


def test_all_broken_rules_come_at_once():
    raw = l2(sub("10.4.0.0/24", None, gateway="10.5.0.1", exclude=["10.6.0.1"]), "10.4.0.128/25", name="Flat")
    assert sorted(fields(decode(raw).problems)) == [
        "metadata.name",
        "spec.subnets[0].exclude[0]",
        "spec.subnets[0].gateway",
        "spec.subnets[1].cidr",
    ]


def test_an_unknown_field_is_a_warning_with_the_nearest_known_name():
    raw = l3(sub("10.4.0.0/24", Exclude=["10.4.0.1"]), cooldownseconds=3, nothingLikeIt=1)
    decoded = decode(raw)
    assert isinstance(decoded.resource, Network)
    assert decoded.problems == ()
    told = {problem.field: problem.message for problem in decoded.warnings}
    assert "did you mean cooldownSeconds?" in told["spec.cooldownseconds"]
    assert "did you mean exclude?" in told["spec.subnets[0].Exclude"]
    assert "the fields here are" in told["spec.nothingLikeIt"]


def test_null_counts_as_missing_and_status_is_passed_over():
    raw = l3(sub("10.4.0.0/24", exclude=None), cooldownSeconds=None)
    raw["status"] = {"phase": 7}
    raw["metadata"] |= {"managedFields": [{}], "creationTimestamp": None}
    decoded = decode(raw)
    assert decoded.problems == decoded.warnings == ()
    assert decoded.resource.spec.subnets[0].exclude == ()


def test_a_number_where_text_is_needed_says_to_quote_it():
    raw = l3("10.4.0.0/24")
    raw["metadata"]["name"] = 10
    assert [problem.message for problem in decode(raw).problems] == [
        'must be text, not the number 10; put it in quotes: "10"'
    ]


def test_version_kind_and_form_of_the_whole():
    assert fields(decode({**l3("10.4.0.0/24"), "apiVersion": "allotment.dev/v2"}).problems) == ["apiVersion"]
    assert fields(decode({**l3("10.4.0.0/24"), "kind": ["x"]}).problems) == ["kind"]
    assert fields(decode({**l3("10.4.0.0/24"), "spec": [1]}).problems) == ["spec"]
    assert fields(decode({**l3("10.4.0.0/24"), "metadata": "blue"}).problems) == ["metadata"]


def test_a_deletion_timestamp_must_be_a_time():
    raw = thing("IPAMConfig", "default")
    raw["metadata"]["deletionTimestamp"] = "2026-01-31T14:03:00Z"
    assert decode(raw).resource.metadata.deleting
    raw["metadata"]["deletionTimestamp"] = "soon"
    assert fields(decode(raw).problems) == ["metadata.deletionTimestamp"]


def test_a_namespace_is_warned_of():
    raw = l3("10.4.0.0/24")
    raw["metadata"]["namespace"] = "default"
    decoded = decode(raw)
    assert decoded.resource is not None
    assert fields(decoded.warnings) == ["metadata.namespace"]


def test_numbers_that_no_integer_holds():
    raw = l3("10.4.0.0/24")
    raw["metadata"]["generation"] = 1 << 70
    assert "64 bits" in decode(raw).problems[0].message
