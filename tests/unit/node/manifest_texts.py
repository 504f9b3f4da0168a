"""Manifests as people write them, for the tests of the source that reads them."""

from __future__ import annotations

import json


def network(name: str = "blue", *subnets: str, layer: str = "L3", spec: str = "", meta: str = "") -> str:
    """`subnets` as `10.4.0.0/24`, with flags behind it: `10.4.0.0/24 closed: true`."""
    lines = []
    for subnet in subnets or ("10.4.0.0/24",):
        cidr, _, more = subnet.partition(" ")
        lines.append(f"    - cidr: {cidr}")
        if layer == "L3":
            lines.append(f"      hostPrefixLength: {64 if ':' in cidr else 28}")
        if more:
            lines.append(f"      {more}")
    return "\n".join(
        [
            "apiVersion: allotment.dev/v1alpha1",
            "kind: Network",
            "metadata:",
            f"  name: {name}",
            *([f"  {meta}"] if meta else []),
            "spec:",
            f"  type: {layer}",
            *([f"  {spec}"] if spec else []),
            "  subnets:",
            *lines,
            "",
        ]
    )


def allocation(name: str = "blue", node: str = "n1", *blocks: str, meta: dict[str, str] | None = None) -> str:
    return json.dumps(
        {
            "apiVersion": "allotment.dev/v1alpha1",
            "kind": "Allocation",
            "metadata": {"name": f"{name}.{node}", **(meta or {})},
            "spec": {
                "network": name,
                "node": node,
                "type": "L3",
                "blocks": [{"cidr": cidr, "state": "Confirmed"} for cidr in blocks or ("10.4.0.0/28",)],
            },
        },
        indent=1,
    )


def reservation(name: str = "keep", *cidrs: str) -> str:
    listed = ", ".join(cidrs or ("10.4.0.0/30",))
    return (
        "apiVersion: allotment.dev/v1alpha1\nkind: IPReservation\n"
        f"metadata: {{name: {name}}}\nspec: {{reservedCIDRs: [{listed}]}}\n"
    )
