"""What a case of the table is, and how its objects are made."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

Raw = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A whole object (and, for an update, the one before it, with a status where the rule looks at it).

    `wrong` lists the field paths that must be refused, each with words that the message has to hold; empty means
    that the object must be accepted. `server` has the words of the API server where it can't say the library's;
    `library_only` says why an API server can't refuse it at all.
    """

    name: str
    new: Raw
    wrong: tuple[tuple[str, str], ...] = ()
    old: Raw | None = None
    server: str = ""
    library_only: str = ""


def thing(kind: str, name: str, **spec: Any) -> Raw:
    return {
        "apiVersion": "allotment.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": copy.deepcopy(spec),
    }


AT_ROOT = "a rule that compares metadata.name with the spec stands at the object's root, and would block its finalizers"
