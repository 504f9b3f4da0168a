"""Label selectors, as Kubernetes reads them."""

import pytest

from allotment.api.network import LabelSelector, Requirement
from allotment.api.selecting import selects

LABELS = {"zone": "a", "disk": "ssd"}


def need(key, operator, *values):
    return LabelSelector(match_expressions=(Requirement(key, operator, values),))


@pytest.mark.parametrize(
    ("selector", "fits"),
    [
        (None, True),
        (LabelSelector(), True),
        (LabelSelector({"zone": "a"}), True),
        (LabelSelector({"zone": "a", "disk": "hdd"}), False),
        (LabelSelector({"rack": ""}), False),
        (need("zone", "In", "a", "b"), True),
        (need("zone", "In", "b"), False),
        (need("rack", "In", ""), False),
        (need("zone", "NotIn", "b"), True),
        (need("zone", "NotIn", "a"), False),
        (need("rack", "NotIn", "a"), True),
        (need("disk", "Exists"), True),
        (need("rack", "Exists"), False),
        (need("rack", "DoesNotExist"), True),
        (need("disk", "DoesNotExist"), False),
        (LabelSelector({"zone": "a"}, (Requirement("disk", "DoesNotExist"),)), False),
    ],
)
def test_a_selector_selects(selector, fits):
    assert selects(selector, LABELS) is fits
