"""An L2 network on a whole cluster: pods of two nodes on one wire, with addresses by Claim (ADR 0011).

Allotment is installed as people install it; the reference plugin `bridge` makes the interfaces, in one bridge of each
node with a link to all others. The controller's part is played by `claim_controller`.
"""

import json

import pytest

from allotment.kube.access import Access
from claim_controller import InThread
from cluster.cluster import Cluster
from cluster.installation import Installation
from cluster.workloads import agrees, kill_agent, pods, ready, running, sandboxes, sound
from kube.cluster_agent import allocation, network
from kube.following import CLOCK
from nodes import until

pytestmark = [pytest.mark.slow, pytest.mark.root]

BLOCKS = {"n1": ("10.81.0.0/24",), "n2": ("10.81.1.0/24",)}
FLAT = "flat"
SUBNET = "10.82.0.0/24"
HOSTS = {"n1": "10.82.0.251", "n2": "10.82.0.252"}
"""What the nodes have there, so that their kubelets can probe the pods."""
CONFIGURATION = {
    "cniVersion": "1.0.0",
    "name": FLAT,
    "plugins": [{"type": "bridge", "bridge": "flat0", "ipam": {"type": "allotment"}}],
}


@pytest.fixture(scope="module")
def cluster():
    with Cluster("n1", "n2", pod_network=False) as cluster:
        cluster.fabric.add_flat_links()
        for name, node in cluster.nodes.items():
            node.place.ip(
                "link add flat0 type bridge\nlink set eth1 master flat0\nlink set flat0 up\n"
                f"addr add {HOSTS[name]}/24 dev flat0\n"
            )
        yield cluster


@pytest.fixture(scope="module")
def installed(cluster, tmp_path_factory):
    """Allotment with the network, into which all new pods go."""
    installed = Installation(cluster, tmp_path_factory.mktemp("installation"), BLOCKS)
    installed.make(network(FLAT, type="L2", subnets=[{"cidr": SUBNET, "exclude": ["10.82.0.248/29"]}]))
    [made] = [one for one in cluster.get("networks") if one["metadata"]["name"] == FLAT]
    for name, node in cluster.nodes.items():
        installed.make(allocation(made, name))
        # The runtime takes the first by name.
        node.run("tee", "/etc/cni/net.d/05-flat.conflist", input=json.dumps(CONFIGURATION))
    installed.blocks = {name: (*blocks, SUBNET) for name, blocks in BLOCKS.items()}
    return installed


@pytest.fixture(scope="module", autouse=True)
def controller(cluster, installed):
    access = Access(cluster.api.url, ca=cluster.api.ca_file, token=cluster.api.admin_token)
    with InThread(access, CLOCK, netns=cluster.fabric.control_plane.netns) as controller:
        yield controller


def claimed(cluster):
    """What each Claim of a pod was given, by the pod's name."""
    return {
        claim["spec"]["pod"]["name"]: claim.get("status", {}).get("value")
        for claim in cluster.get("claims", "-n", "default")
    }


def test_pods_of_two_nodes_are_on_one_wire_with_an_address_each(cluster, installed):
    """I1, I2, I4."""
    with running(installed, "Deployment", "flat", 8):
        agrees(installed, "flat")
        shown = {one["metadata"]["name"]: one["status"]["podIP"] for one in pods(installed, "flat")}
        assert claimed(cluster) == shown
        leases = {name: installed.held(name) for name in BLOCKS}
        assert all(leases.values()), "all pods are on one node"
        asker = leases["n1"][0]
        for asked in leases["n2"]:
            answer = cluster.nodes["n1"].run(
                *("nsenter", f"--net={asker['netns']}"),
                *("curl", "--silent", "--max-time", "5", f"http://{asked['address']}:8080/"),
            )
            assert answer.split() == [asked["pod"].removeprefix("default/"), asker["address"]]
        sound(installed)
    until(lambda: claimed(cluster) == {}, "Claims are left of pods that are gone")
    until(lambda: cluster.get("ipaddresses.allotment.dev") == [], "addresses are left of pods that are gone")


def test_agents_and_sandboxes_that_die_without_the_api_server_lose_no_address(cluster, installed):
    """I1, I2, I5, I11: who lives keeps his address; what is owed for who died is done once there is a server again."""
    with running(installed, "StatefulSet", "kept", 6, serviceName="kept", podManagementPolicy="Parallel"):
        before = claimed(cluster)
        with cluster.api.away():
            for node in BLOCKS:
                kill_agent(installed, node)
            dying = sandboxes(cluster.nodes["n1"])
            assert dying
            cluster.nodes["n1"].run("pkill", "-KILL", "-x", "pause")
            until(lambda: not dying & sandboxes(cluster.nodes["n1"]), "the sandboxes live")
        ready(installed, "kept", 6)
        sound(installed)
        agrees(installed, "kept")
        after = claimed(cluster)
        stayed = {one["metadata"]["name"] for one in pods(installed, "kept") if one["spec"]["nodeName"] == "n2"}
        assert stayed
        assert {name: after[name] for name in stayed} == {name: before[name] for name in stayed}
    until(lambda: claimed(cluster) == {}, "Claims are left of pods that are gone")
    until(lambda: cluster.get("ipaddresses.allotment.dev") == [], "addresses are left of pods that are gone")
