"""The real agent in cluster mode, with the rights that its installation gives it; and a controller's part, by hand."""

import json
from pathlib import Path

from agents import Agent

INSTALLATION = Path(__file__).resolve().parents[2] / "daemonset"
NAMESPACE = "allotment-system"
ACCOUNT = "allotment-agent"
GUARD = "allotment.dev/guard"
OURS = "allotment.dev/node"


class ClusterAgent(Agent):
    """An agent of the node `node`, with a token that is bound to it; `url` is another way to the server."""

    def __init__(self, launcher, server, node, *, url="", **more):
        super().__init__(launcher, manifests={}, node=node, **more)
        # The pods of these tests are nobody's; a runtime that the machine happens to have knows nothing of them.
        self._flags = ["--runtime-socket", "off", *self._flags]
        token = server.bound_token(NAMESPACE, ACCOUNT, node=node)
        self.kubeconfig = server.write_kubeconfig(f"agent-{node}", token, url=url)

    def arguments(self):
        flags = super().arguments()
        at = flags.index("--manifests")
        flags[at : at + 2] = ["--kubeconfig", self.kubeconfig]
        return flags


def install(server):
    """What `kubectl apply -k daemonset` installs, but for the pods."""
    for name in ("namespace", "rbac", "policy"):
        server.kubectl(
            "apply", "--server-side", "--namespace", NAMESPACE, "--filename", str(INSTALLATION / f"{name}.yaml")
        )


def add_node(server, name):
    """A Node object."""
    server.kubectl("create", "--filename", "-", input=json.dumps(object_("v1", "Node", name)))


def object_(api_version, kind, name, **more):
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, **more.pop("metadata", {})}, **more}


def create(server, item):
    """Make an object of ours; what comes back."""
    plural = {"Network": "networks", "Allocation": "allocations", "IPReservation": "ipreservations"}[item["kind"]]
    status, answer = server.request("POST", f"/apis/allotment.dev/v1alpha1/{plural}", item)
    assert status == 201, answer
    return answer


def get(server, plural, name):
    """The object as it is, None if there is none."""
    status, answer = server.request("GET", f"/apis/allotment.dev/v1alpha1/{plural}/{name}")
    return answer if status == 200 else None


def patch(server, plural, name, change, *, token=None, subresource=""):
    """A merge patch; the status code and what comes back."""
    path = f"/apis/allotment.dev/v1alpha1/{plural}/{name}{subresource}"
    return server.request("PATCH", path, change, token=token, content_type="application/merge-patch+json")


def delete(server, plural, name):
    server.request("DELETE", f"/apis/allotment.dev/v1alpha1/{plural}/{name}")


def remove_left(server, name):
    """Remove the Allocations and Networks with this in their names that a test has left, whoever holds them."""
    for plural in ("allocations", "networks"):
        for item in server.request("GET", f"/apis/allotment.dev/v1alpha1/{plural}")[1]["items"]:
            if name in item["metadata"]["name"]:
                patch(server, plural, item["metadata"]["name"], {"metadata": {"finalizers": []}})
                delete(server, plural, item["metadata"]["name"])


def network(name, cidr="10.71.0.0/16", length=26, **spec):
    subnets = [{"cidr": cidr, "hostPrefixLength": length}]
    spec = {"type": "L3", "subnets": subnets, "cooldownSeconds": 0, **spec}
    return object_("allotment.dev/v1alpha1", "Network", name, metadata={"finalizers": [GUARD]}, spec=spec)


def allocation(of, node, *blocks, finalizers=(GUARD,)):
    """What the controller makes: the node's blocks of a network."""
    name = of["metadata"]["name"]
    return object_(
        "allotment.dev/v1alpha1",
        "Allocation",
        f"{name}.{node}",
        metadata={"finalizers": list(finalizers)},
        spec={
            "network": name,
            "networkUID": of["metadata"]["uid"],
            "node": node,
            "type": of["spec"]["type"],
            "blocks": [{"cidr": cidr, "state": "Confirmed"} for cidr in blocks],
        },
    )
