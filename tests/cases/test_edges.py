"""Addresses at the edges, and ranges of every size, as callers of a real agent meet them.

C31: an address that ends in `::` makes a name that ends in `-`, and the ADD fails.
C33: a /64 or larger is scanned address by address, and the daemon hangs.
C34: a network, broadcast or anycast address is handed out, or a /31 or /32 refused.
"""

import ipaddress
import sqlite3

import pytest

from nodes import allocation, manifest, until

# -- C34 and C31

TABLE = {
    # cidr: what L3 gives (its first usable address is the gateway), what L2 gives (without a gateway)
    "10.0.0.8/29": (["10.0.0.10", "10.0.0.14"], 5, ["10.0.0.9", "10.0.0.14"], 6),
    "10.0.1.4/30": (["10.0.1.6", "10.0.1.6"], 1, ["10.0.1.5", "10.0.1.6"], 2),
    "10.0.2.4/31": (["10.0.2.4", "10.0.2.5"], 2, ["10.0.2.4", "10.0.2.5"], 2),
    "10.0.3.4/32": (["10.0.3.4", "10.0.3.4"], 1, ["10.0.3.4", "10.0.3.4"], 1),
    "10.255.255.254/31": (["10.255.255.254", "10.255.255.255"], 2, ["10.255.255.254", "10.255.255.255"], 2),
    "255.255.255.252/30": (["255.255.255.254", "255.255.255.254"], 1, ["255.255.255.253", "255.255.255.254"], 2),
    "255.255.255.255/32": (["255.255.255.255", "255.255.255.255"], 1, ["255.255.255.255", "255.255.255.255"], 1),
    "fd00::8/125": (["fd00::a", "fd00::f"], 6, ["fd00::9", "fd00::f"], 7),
    "fd00:1::/126": (["fd00:1::2", "fd00:1::3"], 2, ["fd00:1::1", "fd00:1::3"], 3),
    "fd00:2::/127": (["fd00:2::", "fd00:2::1"], 2, ["fd00:2::", "fd00:2::1"], 2),
    "2001:db8::/128": (["2001:db8::", "2001:db8::"], 1, ["2001:db8::", "2001:db8::"], 1),
    "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128": (["ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"] * 2, 1) * 2,
}
NAMES = {cidr: f"net-{number}" for number, cidr in enumerate(TABLE)}


def edges(layer):
    length = {"hostPrefixLength": None} if layer == "L3" else {}
    return {
        f"{name}.yaml": manifest(
            "Network",
            name,
            {
                "type": layer,
                "cooldownSeconds": 0,
                "subnets": [{"cidr": cidr, **{key: int(cidr.split("/")[1]) for key in length}}],
            },
        )
        for cidr, name in NAMES.items()
    }


@pytest.mark.parametrize("layer", ["L3", "L2"])
def test_what_can_be_had_is_what_is_counted_no_more_and_no_less(make_node, layer):
    """C34: over sizes and both ends of the number space, until nothing is left; C31: `::` is an address like others."""
    node = make_node(edges(layer))
    node.start()
    uses = {use["network"]: use for use in node.cli("utilization", code=0)}
    for cidr, row in TABLE.items():
        (first, last), count = row[:2] if layer == "L3" else row[2:]
        name = NAMES[cidr]
        given = [node.give(f"{name}-{number}", of=name) for number in range(count)]
        refused = node.refuse(f"{name}-more", of=name)

        assert [len(addresses) for addresses in given] == [1] * count
        assert (given[0][0], given[-1][0]) == (first, last), cidr
        assert refused.code == 101
        assert f"{count} of {count} in use" in refused.message
        use = uses[name]
        assert int(use["available"]) == count
        assert int(use["capacity"]) == int(use["available"]) + int(use["reserved"])

    node.kill()
    node.start()
    assert len(node.leases()) == sum(row[1 if layer == "L3" else 3] for row in TABLE.values())
    for cidr, name in NAMES.items():
        for number in range(TABLE[cidr][1 if layer == "L3" else 3]):
            node.free(f"{name}-{number}", of=name)
    assert node.leases() == []


GATEWAYS = {
    # cidr: the L3 result's gateway, and the length of the address
    "10.0.0.8/29": ("10.0.0.9", 29),
    "10.0.1.4/30": ("10.0.1.5", 30),
    "10.0.2.4/31": ("169.254.1.1", 31),
    "10.0.3.4/32": ("169.254.1.1", 32),
    "fd00::8/125": ("fd00::9", 125),
    "fd00:1::/126": ("fd00:1::1", 126),
    "fd00:2::/127": ("fe80::1", 127),
    "2001:db8::/128": ("fe80::1", 128),
}


def test_the_edges_themselves_cannot_be_asked_for_and_the_gateway_is_never_given(make_node):
    """C34: asked for by value, each is refused, with what it is."""
    node = make_node(edges("L3"))
    node.start()
    for cidr, (gateway, length) in GATEWAYS.items():
        name, prefix = NAMES[cidr], ipaddress.ip_network(cidr)
        [told] = node.call("ADD", "c1", of=name).body["ips"]
        assert (told["gateway"], int(told["address"].split("/")[1])) == (gateway, length), cidr
        if length >= prefix.max_prefixlen - 1:
            continue
        refusals = {prefix[0]: "subnet-router anycast address" if prefix.version == 6 else "network address"}
        refusals[prefix[1]] = "gateway"
        if prefix.version == 4:
            refusals[prefix[-1]] = "broadcast address"
        for address, what in refusals.items():
            refused = node.refuse("asks", of=name, config={"runtimeConfig": {"ips": [str(address)]}})
            assert (refused.code, what in refused.message) == (102, True), refused


def test_each_spelling_of_an_address_is_the_same_address(make_node):
    """C31: keys are made of values, one to one: what looks different is refused as the same, and kept once."""
    subnet = {"cidr": "fd00::/64", "hostPrefixLength": 64}
    node = make_node({"blue.yaml": manifest("Network", "blue", {"type": "L3", "subnets": [subnet]})})
    node.start()
    ask = lambda text: {"runtimeConfig": {"ips": [text]}}  # noqa: E731
    assert node.give("c1", config=ask("fd00::0005")) == ("fd00::5",)
    for spelling in ("fd00::5", "FD00:0:0:0:0:0:0:5", "fd00:0000:0000:0000:0000:0000:0000:0005", "fd00::0.0.0.5/64"):
        refused = node.refuse("c2", config=ask(spelling))
        assert (refused.code, "is held by pod test/c1" in refused.message) == (102, True), refused
    assert node.refuse("c2", config=ask("fd00::")).code == 102
    assert node.give("c3", config=ask("fd00:0:0:0:1::")) == ("fd00::1:0:0:0",)
    assert node.cli("explain", "fd00:0:0:0:1::", code=0)["addresses"][0]["lease"]["container"] == "c3"
    node.stop()
    with sqlite3.connect(f"file:{node.state / 'ledger.db'}?mode=ro", uri=True) as ledger:
        assert sorted(ledger.execute("SELECT address FROM lease")) == [("fd00::1:0:0:0",), ("fd00::5",)]
    ledger.close()


# -- C33

HUGE = ("10.0.0.0/8", "fd00::/32", "fd01::/64", "fd02::/8")
ALL_OUT = ("11.0.0.0/8", "fc00::/64")
CALLS = 60


def test_huge_ranges_cost_no_more_than_small_ones(make_node):
    """C33: time and memory of the agent itself, for /8, /32 and /64, empty, with holes, and excluded to the last."""
    holes = [f"10.{number}.0.0/16" for number in range(1, 255)]

    def network(name, cidr, **more):
        subnets = [{"cidr": cidr, "hostPrefixLength": int(cidr.split("/")[1]), **more}]
        return manifest("Network", name, {"type": "L3", "cooldownSeconds": 0, "subnets": subnets})

    manifests = {f"huge-{number}.yaml": network(f"huge-{number}", cidr) for number, cidr in enumerate(HUGE[:3])}
    manifests |= {
        f"out-{number}.yaml": network(f"out-{number}", cidr, exclude=[cidr]) for number, cidr in enumerate(ALL_OUT)
    }
    manifests["holes.yaml"] = network("holes", "12.0.0.0/8", exclude=[text.replace("10.", "12.", 1) for text in holes])
    manifests["small.yaml"] = network("small", "13.0.0.0/16")
    node = make_node(manifests)
    node.start()

    def cost(of, *, ok=True):
        """Processor time and memory of many ADDs, DELs and the questions about them."""
        before = node.usage()
        for number in range(CALLS):
            assert node.call("ADD", f"c{number}", of=of).ok is ok
        for number in range(CALLS):
            node.free(f"c{number}", of=of)
        node.status()
        node.cli("utilization", code=0)
        after = node.usage()
        return after.cpu_seconds - before.cpu_seconds, after.resident_kib - before.resident_kib

    cost("small")
    baseline, _ = cost("small")
    for name in (*(f"huge-{number}" for number in range(3)), "holes"):
        time, memory = cost(name)
        assert time < 3 * baseline + 0.2, f"{name}: {CALLS} ADDs and DELs took {time} s, in a small one {baseline} s"
        assert memory < 4096, f"{name}: {memory} KiB more"
    for name in ("out-0", "out-1"):
        time, memory = cost(name, ok=False)
        assert time < 3 * baseline + 0.2, f"{name}: {CALLS} refusals took {time} s"
        assert memory < 4096, f"{name}: {memory} KiB more"
        assert " 0 cooling, " in node.refuse("more", of=name).message


def test_a_range_full_to_its_last_address_refuses_at_once(make_node):
    """C33: the last address is found, and its absence is known without a search."""
    subnets = [{"cidr": "10.0.0.0/23", "hostPrefixLength": 23}]
    spec = {"type": "L3", "cooldownSeconds": 0, "subnets": subnets}
    node = make_node({"blue.yaml": manifest("Network", "blue", spec)})
    node.start()
    for number in range(509):
        node.give(f"c{number}")
    before = node.usage().cpu_seconds
    for _ in range(CALLS):
        assert node.refuse("more").code == 101
    assert node.usage().cpu_seconds - before < CALLS * 0.01 + 0.1
    node.free("c400")
    assert node.give("last") == ("10.0.1.146",)
    assert node.refuse("more").message.startswith("no IP addresses available in network blue on n1: 509 of 509 in use")


def test_blocks_of_one_address(make_node):
    """C33: block size 1, a thousand of them."""
    subnets = [{"cidr": "10.0.0.0/22", "hostPrefixLength": 32}]
    blocks = [f"10.0.{number >> 8}.{number & 255}/32" for number in range(0, 1024, 8)]
    node = make_node(
        {
            "blue.yaml": manifest("Network", "blue", {"type": "L3", "cooldownSeconds": 0, "subnets": subnets}),
            "blue.n1.yaml": allocation("blue", *blocks),
        }
    )
    node.start()
    until(lambda: node.finalizers() == ["allotment.dev/node"], "the finalizer is not put on")
    node.serving()
    given = [node.give(f"c{number}")[0] for number in range(len(blocks))]
    assert sorted(given, key=ipaddress.ip_address) == [block.split("/")[0] for block in blocks]
    assert f"{len(blocks)} of {len(blocks)} blocks" in node.refuse("more").message
    node.free("c7")
    assert node.give("again") == (given[7],)
