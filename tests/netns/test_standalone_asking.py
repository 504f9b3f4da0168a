"""Standalone mode from outside: which address an ADD gets, how one is asked for, and what a refusal says."""

import json
import re

import pytest

from netns.test_standalone import network
from nodes import manifest, until

SMALL = network("blue", "10.4.0.0/29", "fd00:4::/125")
"""Five addresses of IPv4 for pods, six of IPv6."""


@pytest.fixture
def blue(make_node):
    node = make_node({"blue.yaml": SMALL})
    node.start()
    return node


# -- asked for

FOUR_WAYS = {
    "the capability ips": lambda address: {"config": {"runtimeConfig": {"ips": [address]}}},
    "args.cni.ips": lambda address: {"config": {"args": {"cni": {"ips": [address]}}}},
    "CNI_ARGS IP": lambda address: {"CNI_ARGS": f"IgnoreUnknown=1;IP={address};K8S_POD_NAMESPACE=a;K8S_POD_NAME=b"},
    "the pod's annotation": lambda address: {
        "config": {
            "runtimeConfig": {
                "io.kubernetes.cri.pod-annotations": {
                    "allotment.dev/ips": json.dumps({"blue": [address], "x": ["::1"]})
                }
            }
        }
    },
}


SAID_IN = dict(
    zip(FOUR_WAYS, ("runtimeConfig.ips", "args.cni.ips", "CNI_ARGS IP", "annotation allotment.dev/ips"), strict=True)
)


@pytest.mark.parametrize("way", FOUR_WAYS)
def test_an_address_can_be_asked_for(make_node, way):
    """The other family is given as always; a prefix length is read past; by every way the refusals are the same."""
    ask = FOUR_WAYS[way]
    node = make_node(
        {
            "blue.yaml": network("blue", ("10.4.0.0/28", {"exclude": ["10.4.0.8"]}), "fd00:4::/125", cooldown=1000),
            "reserved.yaml": manifest("IPReservation", "printers", {"reservedCIDRs": ["10.4.0.9/32"]}),
        }
    )
    node.start()
    assert node.give("c1", **ask("10.4.0.5")) == ("10.4.0.5", "fd00:4::2")
    assert node.give("c2", **ask("fd00:4::7/125")) == ("10.4.0.2", "fd00:4::7")
    assert node.give("c1", **ask("10.4.0.5")) == ("10.4.0.5", "fd00:4::2"), "the retry is told the same"
    node.give("gone", **ask("10.4.0.7"))
    node.free("gone")

    refusals = {
        "10.4.0.5": "10.4.0.5 is held by pod ",
        "fd00:4::7": "fd00:4::7 is held by pod ",
        "10.4.0.8": "10.4.0.8 is excluded by network blue",
        "10.4.0.9": "10.4.0.9 is covered by an IPReservation",
        "10.4.0.7": "10.4.0.7 is cooling: released ",
        "10.4.0.1": "10.4.0.1 is the gateway of block 10.4.0.0/28",
        "10.4.0.0": "10.4.0.0 is the network address of block 10.4.0.0/28",
        "10.4.0.15": "10.4.0.15 is the broadcast address of block 10.4.0.0/28",
        "fd00:4::": "fd00:4:: is the subnet-router anycast address of block fd00:4::/125",
        "192.0.2.1": "192.0.2.1 does not belong to network blue (its subnets: 10.4.0.0/28, fd00:4::/125)",
    }
    for address, says in refusals.items():
        refused = node.refuse("c3", **ask(address))
        assert (refused.code, refused.message.startswith(says)) == (102, True), refused
    assert "(container c1, interface eth0)" in node.refuse("c3", **ask("10.4.0.5")).message

    for nonsense in ("10.4.0", "10.4.0.05", "10.4.0.5/33", "::ffff:10.4.0.5", "fd00:4::1%eth0", ""):
        refused = node.call("ADD", "c3", **ask(nonsense))
        if nonsense or way != "CNI_ARGS IP":  # an empty value there is as good as none
            assert refused.code == 7, (nonsense, refused)
            assert SAID_IN[way] in refused.message
    assert len(node.leases()) == (6 if way == "CNI_ARGS IP" else 4), "a refusal left something behind"


def test_ways_that_agree_are_one_and_ways_that_differ_are_refused(blue):
    both = {"config": {"runtimeConfig": {"ips": ["10.4.0.5"]}, "args": {"cni": {"ips": ["10.4.0.5", "fd00:4::5"]}}}}
    assert blue.give("c1", **both) == ("10.4.0.5", "fd00:4::5")
    differ = {"config": {"runtimeConfig": {"ips": ["10.4.0.3"]}, "args": {"cni": {"ips": ["10.4.0.4"]}}}}
    refused = blue.refuse("c2", **differ)
    assert refused.code == 7
    assert "10.4.0.3 (runtimeConfig.ips) and 10.4.0.4 (args.cni.ips)" in refused.message


# -- given


def test_never_used_ones_go_first_and_then_the_longest_idle(blue):
    """I3."""
    for number in range(5):
        blue.give(f"c{number}")
    for number in (3, 0, 4):
        blue.free(f"c{number}")
    assert [blue.give(f"d{number}")[0] for number in range(3)] == ["10.4.0.5", "10.4.0.2", "10.4.0.6"]


def test_dual_stack_is_all_or_nothing(make_node):
    """With one family exhausted, or one asked-for address taken, nothing of the other is given, held or burnt."""
    node = make_node({"blue.yaml": network("blue", "10.4.0.0/29", "fd00:4::/126")})
    node.start()
    assert [node.give(f"c{number}") for number in range(2)] == [("10.4.0.2", "fd00:4::2"), ("10.4.0.3", "fd00:4::3")]
    for _ in range(10):
        refused = node.refuse("c3")
        assert refused.code == 101
        assert "IPv6: 2 of 2 in use" in refused.message
    node.free("c0")
    refused = node.refuse("c3", config={"runtimeConfig": {"ips": ["10.4.0.4", "fd00:4::3"]}})
    assert refused.code == 102
    assert node.give("c3") == ("10.4.0.4", "fd00:4::2")
    assert len(node.leases()) == 4


def test_two_subnets_are_two_blocks_filled_one_after_the_other(make_node):
    node = make_node({"blue.yaml": network("blue", "10.5.0.4/30", "10.4.0.0/29")})
    node.start()
    body = [node.call("ADD", f"c{number}").body["ips"] for number in range(3)]
    assert body == [
        [{"address": "10.5.0.6/30", "gateway": "10.5.0.5"}],
        [{"address": "10.4.0.2/29", "gateway": "10.4.0.1"}],
        [{"address": "10.4.0.3/29", "gateway": "10.4.0.1"}],
    ]
    rows = {row["block"]: row["inUse"] for row in node.cli("utilization", code=0)}
    assert rows == {None: "3", "10.5.0.4/30": "1", "10.4.0.0/29": "2"}


EXHAUSTED = re.compile(
    r"no IP addresses available in network blue on n1: 4 of 5 in use, 1 cooling \(next in (\d+) s\), 1 of 1 blocks; "
    r"no further block: this node has all of it; add a subnet to Network blue"
)


def test_exhaustion_says_in_numbers_what_would_help(make_node):
    node = make_node({"blue.yaml": network("blue", "10.4.0.0/29", cooldown=600)})
    node.start()
    for number in range(5):
        node.give(f"c{number}")
    node.free("c2")
    refused = node.refuse("c9")
    assert refused.code == 101
    matched = EXHAUSTED.fullmatch(refused.message)
    assert matched, refused.message
    assert 590 <= int(matched[1]) <= 600
    assert node.run("ADD", "c9").message == refused.message or EXHAUSTED.fullmatch(node.run("ADD", "c9").message)
    assert node.call("STATUS").ok, "exhaustion is no reason to call the node not ready"


BRIDGE = {"config": {"type": "bridge", "isGateway": True}}


def test_under_bridge_a_node_keeps_one_block_and_exhaustion_says_so(make_node):
    node = make_node({"blue.yaml": network("blue", "10.4.0.4/30", "10.5.0.0/29")})
    node.start()
    assert node.give("c1", **BRIDGE) == ("10.4.0.6",)
    refused = node.refuse("c2", **BRIDGE)
    assert refused.code == 101
    assert refused.message == (
        "no IP addresses available in network blue on n1: 1 of 1 in use, 0 cooling, 1 of 2 blocks; no further block: "
        "under the bridge plugin, which takes one gateway, network blue keeps to block 10.4.0.4/30"
    )
    asked = {"config": {**BRIDGE["config"], "runtimeConfig": {"ips": ["10.5.0.3"]}}}
    refused = node.refuse("c2", **asked)
    assert (refused.code, "already uses block 10.4.0.4/30" in refused.message) == (102, True)
    assert node.give("c2") == ("10.5.0.2",), "another main plugin is not held to that"
    assert node.give("c3", config={"type": "bridge"}) == ("10.5.0.3",), "nor is a bridge without a gateway"


# -- L2, reservations, defaults


def test_an_l2_network_is_served_with_its_subnets_length_and_gateway(make_node):
    lan = network("lan", ("10.6.0.0/29", {"gateway": "10.6.0.4"}), ("fd06::/64", {"gateway": "fd06::1"}), layer="L2")
    bare = network("bare", "10.7.0.0/30", layer="L2")
    node = make_node({"lan.yaml": lan, "bare.yaml": bare})
    node.start()
    bodies = [node.call("ADD", f"c{number}", of="lan").body["ips"] for number in range(5)]
    assert [entry[0]["address"] for entry in bodies] == [f"10.6.0.{last}/29" for last in (1, 2, 3, 5, 6)]
    assert [entry[1]["address"] for entry in bodies] == [f"fd06::{last}/64" for last in (2, 3, 4, 5, 6)]
    assert {(entry[0]["gateway"], entry[1]["gateway"]) for entry in bodies} == {("10.6.0.4", "fd06::1")}
    refused = node.refuse("c9", of="lan")
    assert (refused.code, "IPv4: 5 of 5 in use" in refused.message) == (101, True)
    assert "this node has all of it; add a subnet to Network lan" in refused.message
    assert node.give("c1", of="bare") == ("10.7.0.1",)


def test_reservations_are_kept_from_everybody_live_and_disturb_nobody(make_node):
    """Overlapping and nested ones count once; what is held when one comes stays held."""
    node = make_node({"blue.yaml": network("blue", "10.4.0.0/28")})
    node.start()
    assert node.give("c1") == ("10.4.0.2",)
    before = node.cli("utilization")[0]
    assert (before["capacity"], before["reserved"], before["inUse"], before["available"]) == ("14", "1", "1", "12")

    node.write("one.yaml", manifest("IPReservation", "one", {"reservedCIDRs": ["10.4.0.0/29", "10.4.0.4/30"]}))
    node.write("two.yaml", manifest("IPReservation", "two", {"reservedCIDRs": ["10.4.0.6/31", "10.4.0.8/31"]}))
    until(lambda: node.cli("utilization")[0]["reserved"] == "9", "the reservations are not seen")
    after = node.cli("utilization")[0]
    assert (after["capacity"], after["inUse"], after["available"]) == ("14", "1", "5")
    assert node.give("c1") == ("10.4.0.2",)
    assert node.give("c2") == ("10.4.0.10",)
    node.free("c1")
    assert node.give("c3") == ("10.4.0.11",)
    assert "covered by an IPReservation" in node.refuse("c4", config={"runtimeConfig": {"ips": ["10.4.0.2"]}}).message

    node.remove("one.yaml")
    until(lambda: node.cli("utilization")[0]["reserved"] == "5", "the end of the reservation is not seen")
    assert node.give("c4", config={"runtimeConfig": {"ips": ["10.4.0.3"]}}) == ("10.4.0.3",)


def test_defaults_come_from_the_ipamconfig_and_a_networks_own_value_wins(make_node):
    plain = json.loads(network("plain", "10.4.0.4/30"))
    del plain["spec"]["cooldownSeconds"]
    own = network("own", "10.5.0.4/30", cooldown=0)

    def cooldown(of, address):
        return node.cli("explain", address)["addresses"][0]["cooldown"]

    node = make_node({"plain.yaml": json.dumps(plain), "own.yaml": own})
    node.start()
    assert (cooldown("plain", "10.4.0.6"), cooldown("own", "10.5.0.6")) == (30, 0)
    node.give("c1", of="plain")
    node.free("c1", of="plain")
    assert node.refuse("c2", of="plain").code == 101

    node.write("config.yaml", manifest("IPAMConfig", "default", {"cooldownSeconds": 0}))
    until(lambda: node.call("ADD", "c2", of="plain").ok, "the default is not taken up")
    node.write("config.yaml", manifest("IPAMConfig", "default", {"cooldownSeconds": 99}))
    until(lambda: cooldown("plain", "10.4.0.6") == 99, "the default is not taken up")
    assert cooldown("own", "10.5.0.6") == 0

    node.write("config.yaml", manifest("IPAMConfig", "default", {"strictAffinity": False, "autoAllocateBlocks": False}))
    [(file, line, message)] = until(node.problems, "what contradicts itself is taken")
    assert (file, line > 0) == ("config.yaml", True)
    assert "strictAffinity" in message
    assert cooldown("plain", "10.4.0.6") == 99, "the last good state is kept"
