"""`allotment uninstall cluster` on a real API server: whatever was deleted before, nothing stays stuck."""

import json
from pathlib import Path

import pytest

from allotment.api.kinds import KINDS
from allotment.api.meta import (
    ADDRESSES_FINALIZER,
    ALLOCATIONS_FINALIZER,
    ANNOUNCED_FINALIZER,
    GUARD_FINALIZER,
    HELD_FINALIZER,
    NODE_FINALIZER,
)
from allotment.cli import Exit, main
from allotment.kube.removal import NAMESPACE
from cluster.access import KubectlError
from cluster.control_plane import ApiServer
from kube.proxy import Proxy
from nodes import until
from unit.api.cases import CASES

pytestmark = pytest.mark.slow

INSTALLATION = Path(__file__).resolve().parents[2] / "daemonset"
UNINSTALL = "allotment-uninstall"
FOREIGN = "example.com/audit"
FINALIZERS = {
    "Network": [GUARD_FINALIZER, ALLOCATIONS_FINALIZER, ADDRESSES_FINALIZER],
    "Allocation": [GUARD_FINALIZER, NODE_FINALIZER],
    "Claim": [GUARD_FINALIZER, NODE_FINALIZER],
    "Index": [HELD_FINALIZER],
    "IPAddress": [HELD_FINALIZER],
    "IPPrefix": [HELD_FINALIZER],
    "Advertisement": [ANNOUNCED_FINALIZER],
}
PODS_OF_OURS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@pytest.fixture(scope="module")
def server():
    """One of their own: the kinds go with each test."""
    with ApiServer() as server:
        yield server


def sample(kind):
    """A valid object of a kind, out of the table of all rules."""
    return next(case.new for case in CASES if case.new["kind"] == kind and not case.wrong and "status" not in case.new)


def path_of(kind, name=""):
    place = "namespaces/default/" if kind.namespaced else ""
    return f"/apis/allotment.dev/v1alpha1/{place}{kind.plural}/{name}".rstrip("/")


@pytest.fixture
def installed(server):
    """The installation, and an object of every kind with the finalizers that it gets, also of kinds yet to be held."""
    server.kubectl("apply", "--server-side", "-k", str(INSTALLATION))
    server.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
    for kind in KINDS:
        item = sample(kind.name)
        metadata = {**item["metadata"], "finalizers": FINALIZERS.get(kind.name, [GUARD_FINALIZER])}
        until(
            lambda kind=kind, item=item, metadata=metadata: (
                server.request("POST", path_of(kind), {**item, "metadata": metadata})[0] in (201, 409)
            ),
            f"no {kind.name} can be made",
        )
    server.kubectl("apply", "-k", str(INSTALLATION / "uninstall"))
    return server


def uninstall(server, *flags, url=""):
    """The command, as the Job runs it: with the rights that its account has."""
    kubeconfig = server.write_kubeconfig("uninstall", server.bound_token(UNINSTALL, UNINSTALL), url=url)
    return main(["uninstall", "cluster", "--kubeconfig", str(kubeconfig), *flags])


def names(server, resource, *selector):
    return [name for name in server.kubectl("get", resource, "-o", "name", *selector).split() if "allotment" in name]


def assert_gone(server):
    """Nothing of ours is left but the namespace, which is being deleted and has nothing in it that could hold it."""
    assert names(server, "crd") == []
    for resource in (
        "clusterrole",
        "clusterrolebinding",
        "validatingadmissionpolicy",
        "validatingadmissionpolicybinding",
    ):
        assert [name for name in names(server, resource) if not name.endswith("allotment-uninstall")] == [], resource
    status, namespace = server.request("GET", f"/api/v1/namespaces/{NAMESPACE}")
    assert status == 404 or namespace["status"]["phase"] == "Terminating"
    assert server.request("GET", PODS_OF_OURS)[1]["items"] == []
    # A namespace ends by its controller, which isn't there: the last word on it, so that the next test can begin.
    if status == 200:
        server.request("PUT", f"/api/v1/namespaces/{NAMESPACE}/finalize", {**namespace, "spec": {"finalizers": []}})
        until(lambda: server.request("GET", f"/api/v1/namespaces/{NAMESPACE}")[0] == 404, "the namespace stays")


def delete(server, *words):
    server.kubectl("delete", "--wait=false", *words)


def delete_installation(server):
    """What most will try first; the kinds hang, held by finalizers that nobody takes off any more."""
    with pytest.raises(KubectlError):
        server.kubectl("delete", "--timeout=2s", "-k", str(INSTALLATION))


ORDERS = {
    "by the command alone": lambda _: None,
    "namespace first": lambda server: delete(server, "namespace", NAMESPACE),
    "kinds first": lambda server: delete(server, "crd", "--all"),
    "agents first": lambda server: delete(server, "daemonset", "-n", NAMESPACE, "--all"),
    "networks first": lambda server: delete(server, "networks.allotment.dev", "--all"),
    "policies first": lambda server: delete(server, "validatingadmissionpolicybinding", "--all"),
    "all at once": delete_installation,
    "roles and kinds first": lambda server: (
        delete(server, "clusterrolebinding,clusterrole", "-l", "app.kubernetes.io/name=allotment"),
        delete(server, "crd", "--all"),
    ),
}


@pytest.mark.parametrize("before", ORDERS.values(), ids=ORDERS)
def test_nothing_is_stuck_whatever_was_deleted_before(installed, before, capsys):
    before(installed)
    assert uninstall(installed, "--yes", "--wait", "60") == Exit.OK, capsys.readouterr()
    assert_gone(installed)
    assert uninstall(installed, "--yes", "--wait", "60") == Exit.OK  # and again, with nothing there


def test_without_yes_it_only_says_what_it_would_do(installed, capsys):
    assert uninstall(installed) == Exit.OK
    said = capsys.readouterr().out
    network = f"networks.allotment.dev: {sample('Network')['metadata']['name']}"
    for words in ("allotment-system/allotment-agent", "allotment-node-finalizer", network, "nothing was removed"):
        assert words in said
    assert len(names(installed, "crd")) == len(KINDS)
    assert installed.request("GET", path_of(KINDS[0], sample(KINDS[0].name)["metadata"]["name"]))[0] == 200
    assert uninstall(installed, "--yes") == Exit.OK
    assert_gone(installed)
    assert uninstall(installed) == Exit.OK
    assert "there is nothing of ours" in capsys.readouterr().out


def test_a_pod_of_ours_that_is_not_gone_is_waited_for_and_with_force_no_longer(installed, capsys):
    """I4: an agent that runs gives addresses; nothing is taken from under it but on a person's word."""
    pod = {
        "metadata": {"name": "agent-x", "labels": {"app.kubernetes.io/name": "allotment"}},
        "spec": {"nodeName": "dead", "containers": [{"name": "agent", "image": "allotment"}]},
    }
    assert installed.request("POST", PODS_OF_OURS, {"apiVersion": "v1", "kind": "Pod", **pod})[0] == 201
    assert uninstall(installed, "--yes", "--wait", "1") == Exit.UNREACHABLE
    assert "agent-x on dead" in capsys.readouterr().err
    allocation = sample("Allocation")["metadata"]["name"]
    [kind] = [kind for kind in KINDS if kind.name == "Allocation"]
    found = installed.request("GET", path_of(kind, allocation))[1]
    assert NODE_FINALIZER in found["metadata"]["finalizers"]
    assert "deletionTimestamp" not in found["metadata"]
    assert uninstall(installed, "--yes", "--wait", "1", "--force") in (Exit.OK, Exit.UNREACHABLE)
    assert uninstall(installed, "--yes", "--wait", "30", "--force") == Exit.OK
    installed.request("DELETE", f"{PODS_OF_OURS}/agent-x?gracePeriodSeconds=0")
    assert_gone(installed)


def test_a_finalizer_of_somebody_else_is_left_and_told_of(installed, capsys):
    [kind] = [kind for kind in KINDS if kind.name == "Network"]
    path = path_of(kind, sample("Network")["metadata"]["name"])
    both = {"metadata": {"finalizers": [GUARD_FINALIZER, FOREIGN]}}
    merge = "application/merge-patch+json"
    assert installed.request("PATCH", path, both, content_type=merge)[0] == 200
    assert uninstall(installed, "--yes", "--wait", "2") == Exit.UNREACHABLE
    assert FOREIGN in capsys.readouterr().err
    assert installed.request("GET", path)[1]["metadata"]["finalizers"] == [FOREIGN]
    assert installed.request("PATCH", path, {"metadata": {"finalizers": []}}, content_type=merge)[0] == 200
    assert uninstall(installed, "--yes") == Exit.OK
    assert_gone(installed)


def test_an_api_server_that_fails_now_and_then_is_asked_again(installed, capsys):
    with Proxy(installed) as proxy:
        proxy.answer(429, retry_after=1, method="DELETE", path="policies", times=2)
        proxy.answer(500, method="GET", path="allotment.dev", times=2)
        proxy.lose_requests(method="GET", path="customresourcedefinitions")
        proxy.tear_answers(method="GET", path="/claims")
        proxy.lose_answers(method="DELETE", path="allotment.dev", times=4)
        proxy.lose_answers(method="PATCH", path="allotment.dev", times=4)
        assert uninstall(installed, "--yes", "--wait", "60", url=proxy.url) == Exit.OK, capsys.readouterr()
    assert_gone(installed)


def test_it_can_be_installed_again_afterwards(installed):
    assert uninstall(installed, "--yes") == Exit.OK
    assert_gone(installed)
    installed.kubectl("apply", "--server-side", "-k", str(INSTALLATION))
    assert json.loads(installed.kubectl("get", "daemonset", "-n", NAMESPACE, "-o", "json"))["items"]
    assert uninstall(installed, "--yes") == Exit.OK
    assert_gone(installed)
