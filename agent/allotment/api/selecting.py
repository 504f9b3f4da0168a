"""Which objects a label selector means."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from allotment.api.network import LabelSelector, Requirement

__all__ = ["selects"]


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Whether an object with these labels is selected. A selector that is missing or empty selects everything.

    As metav1.LabelSelector has it: all of its parts have to fit, and `NotIn` fits where the label is missing.
    """
    if selector is None:
        return True
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        _fits(need, labels) for need in selector.match_expressions
    )


def _fits(need: Requirement, labels: Mapping[str, str]) -> bool:
    match need.operator:
        case "In":
            return labels.get(need.key) in need.values
        case "NotIn":
            return labels.get(need.key) not in need.values
        case "Exists":
            return need.key in labels
        case "DoesNotExist":
            return need.key not in labels
