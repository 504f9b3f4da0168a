"""Merge patches, against RFC 7396 itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from allotment.kube.merging import merge_patch, shows

SCALARS = st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "b"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4)


def applied(target, patch):
    """RFC 7396, section 2, as it is written there."""
    if not isinstance(patch, dict):
        return patch
    target = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        else:
            target[name] = applied(target.get(name), value)
    return target


@given(OBJECTS, OBJECTS)
def test_a_patch_leads_from_one_to_the_other(before, after):
    patch = merge_patch(before, after)
    assert applied(before, patch) == after
    assert shows(after, patch)


@given(OBJECTS, OBJECTS)
def test_what_a_patch_would_change_does_not_show_it(before, after):
    patch = merge_patch(before, after)
    found = applied(before, patch)
    if shows(before, patch):
        # Empty values and missing ones are the same to an API server; nothing else is.
        assert stripped(before) == stripped(found)


def stripped(value):
    if isinstance(value, dict):
        kept = {name: stripped(inner) for name, inner in value.items()}
        return {name: inner for name, inner in kept.items() if inner or (type(inner) is int and inner != 0)}
    if isinstance(value, list):
        return [stripped(inner) for inner in value]
    return value or ""


def test_defaults_that_a_server_fills_in_stand_in_no_way():
    wanted = {"metadata": {"finalizers": ["a"]}, "spec": {"blocks": [{"cidr": "10.0.0.0/26"}]}}
    found = {
        "metadata": {"finalizers": ["a"], "uid": "u"},
        "spec": {"blocks": [{"cidr": "10.0.0.0/26", "state": "Pending"}], "closed": False},
    }
    assert shows(found, wanted)
    assert not shows(found, {"metadata": {"finalizers": ["a", "b"]}})
    assert not shows(found, {"spec": {"blocks": []}})
    assert shows(found, {"spec": {"cede": []}})
