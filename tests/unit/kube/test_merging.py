"""Merge patches, against RFC 7396 itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from allotment.kube.merging import applied, merge_patch

SCALARS = st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "b"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4)


def by_the_letter(target, patch):
    """RFC 7396, section 2, as it is written there."""
    if not isinstance(patch, dict):
        return patch
    if not isinstance(target, dict):
        target = {}
    target = dict(target)
    for name, value in patch.items():
        if value is None:
            if name in target:
                del target[name]
        else:
            target[name] = by_the_letter(target.get(name), value)
    return target


@given(OBJECTS, OBJECTS)
def test_a_patch_leads_from_one_to_the_other(before, after):
    patch = merge_patch(before, after)
    assert by_the_letter(before, patch) == after
    assert applied(before, patch) == after
    assert applied(after, patch) == after


@given(OBJECTS, OBJECTS)
def test_any_object_as_a_patch_is_applied_by_the_letter(target, patch):
    assert applied(target, {**patch, "a": None}) == by_the_letter(target, {**patch, "a": None})
