"""Objects stored under older, laxer CRDs: newer rules never stand in the way of their status and finalizers."""

from __future__ import annotations

import copy
import json

import msgspec
import pytest

from allotment.api.crd import definition
from allotment.api.kinds import KIND_OF, KINDS
from nodes import until
from unit.api.cases import CASES
from unit.api.pool_cases import indexes

pytestmark = pytest.mark.slow

GROUP = "older.allotment.dev"
VERSION = f"{GROUP}/v1alpha1"
LIMITS = (
    "x-kubernetes-validations", "enum", "pattern", "format", "default",
    "minLength", "maxLength", "minItems", "maxItems", "maxProperties", "minimum", "maximum",
)  # fmt: skip
FINALIZER = "allotment.dev/guard"


def ours(kind):
    """The definition of a kind in a group of its own, so that the tests that share the API server are left alone."""
    made = copy.deepcopy(definition(kind))
    made["metadata"]["name"] = f"{kind.plural}.{GROUP}"
    made["spec"]["group"] = GROUP
    return made


def lax(schema):
    """A schema without limits, rules and defaults, as an older version may have had."""
    if isinstance(schema, list):
        return [lax(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    fields = {name: lax(value) for name, value in schema.get("properties", {}).items()}
    plain = {word: lax(value) for word, value in schema.items() if word not in (*LIMITS, "properties")}
    if plain.get("x-kubernetes-list-type") == "set":
        plain["x-kubernetes-list-type"] = "atomic"
    return plain | ({"properties": fields} if fields else {})


def older(kind):
    made = ours(kind)
    schema = made["spec"]["versions"][0]["schema"]
    schema["openAPIV3Schema"] = lax(schema["openAPIV3Schema"])
    return made


def path_of(kind, name=""):
    place = "namespaces/default/" if kind.namespaced else ""
    return f"/apis/{VERSION}/{place}{kind.plural}/{name}".rstrip("/")


def apply(server, definitions):
    listed = {"apiVersion": "v1", "kind": "List", "items": definitions}
    server.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=json.dumps(listed))


def bad_objects():
    """Of each kind all objects that are refused when they are new, with names of their own unless the name is bad."""
    for number, case in enumerate(CASES):
        if case.old is None and case.wrong and not case.library_only:
            raw = copy.deepcopy({**case.new, "apiVersion": VERSION})
            if all(field != "metadata.name" for field, _ in case.wrong):
                raw["metadata"]["name"] = f"bad-{number}"
            raw["metadata"]["finalizers"] = [FINALIZER]
            yield case.name, raw


@pytest.fixture(scope="module")
def changed(api_server):
    """Bad objects that were stored before the rules came, by the name of their case."""
    apply(api_server, [older(kind) for kind in KINDS])
    stored = {}
    for kind in KINDS:
        until(lambda kind=kind: api_server.request("GET", path_of(kind))[0] == 200, f"{kind.plural} are not served")
    for name, raw in bad_objects():
        status, body = api_server.request("POST", path_of(KIND_OF[raw["kind"]]), raw)
        if status == 201:  # else it has not the right types, or no valid name, and could never be stored
            stored[name] = body
    pool = {**indexes("1..5", name="forward"), "apiVersion": VERSION}
    status, stored["forward"] = api_server.request("POST", path_of(KIND_OF["IndexPool"]), pool)
    assert status == 201
    apply(api_server, [ours(kind) for kind in KINDS])
    for kind in KINDS:
        refused = next((body for body in stored.values() if body["kind"] == kind.name), None)
        if refused is not None and kind.name != "IndexPool":
            until(lambda kind=kind, raw=refused: not accepted(api_server, kind, raw), f"{kind.plural} have no rules")
    bad = next(body for name, body in stored.items() if body["kind"] == "IndexPool" and name != "forward")
    until(lambda: not accepted(api_server, KIND_OF["IndexPool"], bad), "indexpools have no rules")
    yield stored
    for kind in KINDS:
        api_server.kubectl("delete", "crd", f"{kind.plural}.{GROUP}", "--wait=false")


def accepted(server, kind, raw):
    """Whether a new object of the same content would be accepted now."""
    name = raw["metadata"]["name"]
    fresh = {**raw, "metadata": {"name": name + "-2" if name.startswith("bad-") else name}}
    return server.request("POST", f"{path_of(kind)}?dryRun=All", fresh)[0] == 201


def patch(server, raw, change, subresource=""):
    place = path_of(KIND_OF[raw["kind"]], raw["metadata"]["name"]) + subresource
    return server.request("PATCH", place, change, content_type="application/merge-patch+json")


def test_most_bad_objects_could_be_stored(changed):
    """Else the tests below would look at nothing."""
    kinds = {raw["kind"] for raw in changed.values()}
    assert kinds == {kind.name for kind in KINDS} - {"Announcer"}  # which has no field that could be wrong
    assert len(changed) > 100


def test_an_object_that_breaks_newer_rules_gets_its_status_and_loses_its_finalizer(api_server, changed):
    stuck = {}
    for name, raw in changed.items():
        if name == "forward":
            continue
        kind = KIND_OF[raw["kind"]]
        steps = [patch(api_server, raw, {"metadata": {"labels": {"seen": "yes"}}})]
        if "subresources" in definition(kind)["spec"]["versions"][0]:
            steps.append(
                patch(api_server, raw, {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, "/status")
            )
        steps.append(api_server.request("DELETE", path_of(kind, raw["metadata"]["name"])))
        steps.append(patch(api_server, raw, {"metadata": {"finalizers": None}}))
        if any(status != 200 for status, _ in steps):
            stuck[name] = [body.get("message") for status, body in steps if status != 200]
        assert api_server.request("GET", path_of(kind, raw["metadata"]["name"]))[0] == 404 or name in stuck
    assert stuck == {}


def test_an_object_without_newer_fields_is_read_and_heals_forward(api_server, changed):
    raw = changed["forward"]
    assert "reclaimPolicy" not in raw["spec"]
    kind = KIND_OF["IndexPool"]
    old = msgspec.convert(raw, kind.type)  # as it was read before
    _, now = api_server.request("GET", path_of(kind, "forward"))
    assert now["spec"]["reclaimPolicy"] == "Recycle"
    assert msgspec.convert(now, kind.type).spec == old.spec
    status, body = patch(api_server, raw, {"spec": {"ranges": ["1..9"], "reclaimPolicy": "Retain"}})
    assert (status, body["spec"]) == (200, {"ranges": ["1..9"], "reclaimPolicy": "Retain", "cooldownSeconds": 0})


def test_a_change_of_the_bad_field_has_to_obey_the_newer_rule(api_server, changed):
    pool = {**indexes("1..5", name="obeys"), "apiVersion": VERSION}
    assert api_server.request("POST", path_of(KIND_OF["IndexPool"]), pool)[0] == 201
    status, body = patch(api_server, pool, {"spec": {"ranges": ["9..7"]}})
    assert (status, body["reason"]) == (422, "Invalid")
