"""The CRDs on a real API server: its verdict on the table of objects, and what `kubectl` shows of them."""

from __future__ import annotations

import json
import re

import msgspec
import pytest

from allotment.api.decoding import decode
from allotment.api.kinds import KIND_OF, KINDS
from allotment.api.meta import API_VERSION
from allotment.api.validate import validate_update
from nodes import until
from unit.api.case import thing
from unit.api.cases import CASES, alloc, l3
from unit.api.pool_cases import POD, claim, index, indexes

TYPES = {kind.name: kind.type for kind in KINDS}
# What the API server says of a limit of one field, in its own words.
STRUCTURAL = re.compile(
    r"Required value|Unsupported value|Duplicate value|Too many|Too long|in body should (be|match|have)|"
    r"in body must be of type|lowercase RFC 1123"
)

# How the library begins what the API server can only tell in fewer words, and those.
GISTS = {
    "has host bits set": "has host bits set",
    "is not the usual form": "is not the usual form",
    "no two may share": "no two may share",
    "is reversed": "is reversed",
    "has no prefix length": "is not a prefix",
    "the prefix length must be": "is not a prefix",
    "leading zeros": "is not a prefix",
    "is an IPv4-mapped IPv6 address": "is not a prefix",
    "names a zone": "is not a prefix",
    "is a prefix where one address is expected": "is not an IP address",
    "in 10.4.0.0/24, not 33": "must be from the prefix length of 10.4.0.0/24 to 32",
    "in 10.4.0.0/24, not 23": "must be from the prefix length of 10.4.0.0/24 to 32",
    "is required on L3": "hostPrefixLength is required on L3",
    "may be removed only once it is closed": "may be removed only once it is closed",
}


@pytest.fixture(scope="module", autouse=True)
def no_policies(crds):
    """The kinds alone judge here; tests of other modules may have installed policies on the same server."""
    crds.kubectl("delete", "validatingadmissionpolicybinding", "--selector", "app.kubernetes.io/name=allotment")
    denied = claim("IPAddressPool", node="n1", pod=POD, vm="db")
    until(lambda: create(crds, denied, dry=True)[0] == 201, "the policies are still in force")


def path_of(raw, name=""):
    kind = KIND_OF[raw["kind"]]
    place = "namespaces/default/" if kind.namespaced else ""
    return f"/apis/{API_VERSION}/{place}{kind.plural}/{name}".rstrip("/")


def create(server, raw, *, dry=False):
    return server.request("POST", path_of(raw) + ("?dryRun=All" if dry else ""), raw)


def created(server, raw):
    status, body = create(server, raw)
    assert status == 201, body
    return body


def removed(server, raw):
    status, body = server.request("DELETE", path_of(raw, raw["metadata"]["name"]))
    assert status == 200, body


def updated(server, old, new):
    """The answer to a change from one object to another that is not carried out."""
    stored = created(server, old)
    try:
        place = path_of(new, new["metadata"]["name"])
        if "status" in old:
            status, stored = server.request("PUT", f"{place}/status", {**stored, "status": old["status"]})
            assert status == 200, stored
        version = {"resourceVersion": stored["metadata"]["resourceVersion"]}
        return server.request("PUT", f"{place}?dryRun=All", {**new, "metadata": {**new["metadata"], **version}})
    finally:
        removed(server, old)


def problems_of(case):
    found = list(decode(case.new, TYPES).problems)
    if case.old is not None:
        kind = TYPES[case.new["kind"]]
        found += validate_update(msgspec.convert(case.old, kind), msgspec.convert(case.new, kind))
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_api_server_judges_as_the_table_says(crds, case):
    status, body = create(crds, case.new, dry=True) if case.old is None else updated(crds, case.old, case.new)
    if not case.wrong or case.library_only:
        assert status in {200, 201}, body
        # Nothing is pruned, and the defaults that the API server fills in are those of the types.
        stored, written = (msgspec.convert(raw, TYPES[raw["kind"]]) for raw in (body, case.new))
        assert getattr(stored, "spec", None) == getattr(written, "spec", None)
        return
    assert status == 422, body
    causes = [cause for cause in body["details"]["causes"] if cause["field"] != "<nil>"]  # that more may be wrong
    library = {problem.field: problem.message for problem in problems_of(case)}
    for field, words in case.wrong:
        gists = [told for gist, told in GISTS.items() if gist in library[field]]
        # A rule on a list can't name the entry, so the path may end above it.
        nearest = [cause for cause in causes if f"{field}.".startswith((cause["field"] + ".", cause["field"] + "["))]
        said = [cause["message"] for cause in nearest]
        wanted = (case.server or words, *gists)
        assert any(STRUCTURAL.search(text) or any(words in text for words in wanted) for text in said), causes
    for cause in causes:  # and nothing is said of other fields
        assert any(f"{field}.".startswith((f"{cause['field']}.", f"{cause['field']}[")) for field in library), causes
    assert not any("evaluat" in cause["message"] or "no such" in cause["message"] for cause in causes), causes


def test_a_list_may_select_by_the_selectable_fields(crds):
    objects = [
        alloc(f"{network}.{node}", network=network, node=node)
        for network in ("select-a", "select-b")
        for node in ("n1", "n2")
    ]
    for raw in objects:
        created(crds, raw)
    try:
        wanted = "?fieldSelector=spec.node%3Dn1,spec.network%3Dselect-b"
        status, body = crds.request("GET", f"/apis/{API_VERSION}/allocations{wanted}")
        assert (status, [item["metadata"]["name"] for item in body["items"]]) == (200, ["select-b.n1"])
        status, body = crds.request("GET", f"/apis/{API_VERSION}/allocations?fieldSelector=spec.type%3DL3")
        assert (status, body["message"]) == (400, "field label not supported: spec.type")
    finally:
        for raw in objects:
            removed(crds, raw)


def test_claims_are_selected_by_node_and_allocation_objects_by_pool(crds):
    objects = [
        claim("IPAddressPool", node="select-n1", pod=POD),
        index(7, "select-7", poolRef={"kind": "IndexPool", "name": "select"}),
    ]
    for raw, field in zip(objects, ("spec.node%3Dselect-n1", "spec.poolRef.name%3Dselect"), strict=True):
        created(crds, raw)
        try:
            _, body = crds.request("GET", f"{path_of(raw)}?fieldSelector={field}")
            assert [item["metadata"]["name"] for item in body["items"]] == [raw["metadata"]["name"]]
        finally:
            removed(crds, raw)


def condition(kind, status, reason):
    return {"type": kind, "status": status, "reason": reason, "lastTransitionTime": "2026-01-31T14:03:00Z"}


def shown(server, raw, status, *words):
    """The heads and the cells of the one line that kubectl shows of an object."""
    stored = created(server, raw)
    name = raw["metadata"]["name"]
    try:
        code, body = server.request("PUT", f"{path_of(raw, name)}/status", {**stored, "status": status})
        assert code == 200, body
        head, line = server.kubectl("get", KIND_OF[raw["kind"]].plural + ".allotment.dev", name, *words).splitlines()
    finally:
        removed(server, raw)
    starts = [found.start() for found in re.finditer(r"\S+(?: \S+)*", head)]
    bounds = list(zip(starts, [*starts[1:], None], strict=True))
    return {head[start:end].strip(): line[start:end].strip() for start, end in bounds}


def test_kubectl_shows_the_columns_of_pools_and_claims(crds):
    pool = shown(
        crds, indexes("1..5", name="cols"), {"allocated": 3, "conditions": [condition("Available", "True", "Free")]}
    )
    assert list(pool) == ["NAME", "ALLOCATED", "AVAILABLE", "AGE"]
    assert (pool["NAME"], pool["ALLOCATED"], pool["AVAILABLE"]) == ("cols", "3", "True")
    done = {"value": "64512", "conditions": [condition("Allocated", "True", "Allocated")]}
    mine = shown(crds, claim(), done)
    assert (mine["VALUE"], mine["ALLOCATED"], mine["POOL"]) == ("64512", "True", "asn")
    valid = {"conditions": [condition("Valid", "False", "OutOfRange")]}
    held = shown(crds, index(claimRef={"name": "leaf1"}), valid)
    assert (held["POOL"], held["INDEX"], held["CLAIM"], held["VALID"]) == ("asn", "65001", "leaf1", "False")


def test_kubectl_shows_the_columns_of_networks(crds):
    status = {"phase": "Ready", "networkID": 7, "inUse": "12", "available": str(2**70), "capacity": str(2**70)}
    line = shown(crds, l3("10.4.0.0/24", name="cols", transport="VXLAN"), status, "-o", "wide")
    assert (line["TYPE"], line["PHASE"], line["ID"], line["IN USE"]) == ("L3", "Ready", "7", "12")
    assert (line["AVAILABLE"], line["TRANSPORT"]) == (str(2**70), "VXLAN")


def test_kinds_have_their_short_names_and_one_category(crds, tmp_path):
    objects = [l3("10.4.0.0/24", name="shorts"), claim(), indexes("1", name="shorts")]
    for raw in objects:
        created(crds, raw)
    try:
        # What it has learnt of the server before may have been learnt before our kinds were there.
        everything = crds.kubectl("get", "allotment", "-o", "name", "--cache-dir", str(tmp_path))
        for raw in objects:
            kind = raw["kind"].lower()
            assert f"{kind}.allotment.dev/{raw['metadata']['name']}" in everything
        assert "shorts" in crds.kubectl("get", "net", "-o", "name")
        for kind in KINDS:
            for short in kind.short_names:
                crds.kubectl("get", short)
    finally:
        for raw in objects:
            removed(crds, raw)


def test_a_field_that_is_unknown_is_told_and_dropped(crds):
    raw = thing("IPAMConfig", "default", strictafinity=True)
    status, body = crds.request("POST", f"{path_of(raw)}?dryRun=All&fieldValidation=Strict", raw)
    assert status == 400
    assert "strictafinity" in body["message"]
    assert "strictafinity" not in json.dumps(create(crds, raw, dry=True)[1]["spec"])
