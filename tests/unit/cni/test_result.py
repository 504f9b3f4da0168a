"""Results in the shape of each CNI version, and CHECK's comparison."""

import json

import pytest

from allotment.addressing.address import parse_address, parse_prefix
from allotment.addressing.errors import CheckFailed, ConfigError
from allotment.addressing.lease import Lease, Moment, Owner
from allotment.cni.request import CniRequest, Dns, Route, Verb
from allotment.cni.result import ToldAddress, add_result, check, passed_through
from allotment.cni.versions import SUPPORTED

V4 = ToldAddress(parse_address("10.1.2.3"), 24, parse_address("10.1.2.1"))
V6 = ToldAddress(parse_address("fd00::3"), 64, parse_address("fd00::1"))
ROUTES = (
    Route(parse_prefix("0.0.0.0/0"), mtu=1400, advmss=1360, priority=10, table=100, scope=0),
    Route(parse_prefix("fd00:9::/32"), parse_address("fd00::9")),
)


def add(version="1.1.0", **fields):
    return CniRequest(verb=Verb.ADD, cni_version=version, network="blue", **fields)


def told(request, *addresses):
    return json.loads(add_result(request, addresses))


@pytest.mark.parametrize("version", ["0.3.0", "0.3.1", "0.4.0"])
def test_before_1_0_an_address_says_its_version(version):
    assert told(add(version), V6, V4) == {
        "cniVersion": version,
        "ips": [
            {"version": "4", "address": "10.1.2.3/24", "gateway": "10.1.2.1"},
            {"version": "6", "address": "fd00::3/64", "gateway": "fd00::1"},
        ],
    }


@pytest.mark.parametrize("version", ["1.0.0", "1.1.0"])
def test_from_1_0_it_does_not(version):
    assert told(add(version), V6, V4) == {
        "cniVersion": version,
        "ips": [
            {"address": "10.1.2.3/24", "gateway": "10.1.2.1"},
            {"address": "fd00::3/64", "gateway": "fd00::1"},
        ],
    }


@pytest.mark.parametrize("version", SUPPORTED)
def test_routes_have_what_their_version_knows(version):
    routes = told(add(version, routes=ROUTES), V4, V6)["routes"]
    default = {"dst": "0.0.0.0/0"}
    if version == "1.1.0":
        default |= {"mtu": 1400, "advmss": 1360, "priority": 10, "table": 100, "scope": 0}
    assert routes == [default, {"dst": "fd00:9::/32", "gw": "fd00::9"}]


def test_a_route_of_a_family_without_address_is_left_out():
    assert told(add(routes=ROUTES), V6)["routes"] == [{"dst": "fd00:9::/32", "gw": "fd00::9"}]
    assert "routes" not in told(add(routes=ROUTES[:1]), V6)


LINK_LOCAL = parse_address("169.254.1.1")
ON_LINK = {"dst": "0.0.0.0/0", "gw": "0.0.0.0", "scope": 253, "priority": 1_000_000}
DEFAULT = Route(parse_prefix("0.0.0.0/0"))


@pytest.mark.parametrize("version", SUPPORTED)
def test_ptp_is_given_a_way_to_a_gateway_outside_the_prefix(version):
    """tests/netns proves with the real plugin that this is what it takes."""
    pair = ToldAddress(V4.address, 31, LINK_LOCAL)
    single = ToldAddress(V4.address, 32, LINK_LOCAL)
    ptp = add(version, main_type="ptp", routes=(DEFAULT,))

    assert told(ptp, pair)["routes"] == [ON_LINK, {"dst": "0.0.0.0/0"}]
    assert told(ptp, single)["routes"] == [
        ON_LINK,
        {"dst": "10.1.2.3/32", "gw": "169.254.1.1"},
        {"dst": "0.0.0.0/0"},
    ]
    assert told(ptp, V4)["routes"] == [{"dst": "0.0.0.0/0"}]
    assert "routes" not in told(add(version, main_type="ptp"), pair)


@pytest.mark.parametrize("main", ["bridge", "macvlan", "ipvlan", ""])
def test_other_plugins_are_not(main):
    assert told(add(main_type=main, routes=(DEFAULT,)), ToldAddress(V4.address, 32, LINK_LOCAL))["routes"] == [
        {"dst": "0.0.0.0/0"}
    ]


def test_an_ipv6_gateway_is_on_every_link():
    single = ToldAddress(V6.address, 128, parse_address("fe80::1"))
    request = add(main_type="ptp", routes=(Route(parse_prefix("::/0")),))
    assert told(request, single)["routes"] == [{"dst": "::/0"}]


def test_dns_is_passed_on_as_it_was_said_and_left_out_when_it_says_nothing():
    assert told(add(dns=Dns(nameservers=("10.1.2.53",), search=("a.example",))), V4)["dns"] == {
        "nameservers": ["10.1.2.53"],
        "search": ["a.example"],
    }
    assert "dns" not in told(add(dns=Dns()), V4)
    assert "dns" not in told(add(), V4)


def test_an_address_without_gateway_says_none():
    assert told(add(), ToldAddress(V4.address, 32))["ips"] == [{"address": "10.1.2.3/32"}]


def test_the_gc_entry_passes_the_result_on_in_the_version_asked_for():
    previous = b'{"cniVersion": "0.4.0", "interfaces": [{"name": "eth0"}], "foreign": 1e3}'
    request = add(passes_through=True, previous_result=previous)
    assert json.loads(passed_through(request)) == {
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "eth0"}],
        "foreign": 1000.0,
    }
    with pytest.raises(ConfigError, match="prevResult"):
        passed_through(add(passes_through=True, previous_result=b"[1]"))


# -- CHECK -----------------------------------------------------------------------------------------------------------

OWNER = Owner("blue", "c1", "eth0")


def lease(text):
    address = parse_address(text)
    block = parse_prefix("10.1.2.0/24" if address.family == 4 else "fd00::/64")
    return Lease(address, block, OWNER, 1, Moment("boot", 1.0), 1.0)


def check_request(*previous):
    return CniRequest(
        verb=Verb.CHECK,
        cni_version="1.1.0",
        container_id="c1",
        interface="eth0",
        network="blue",
        previous=tuple(parse_address(text) for text in previous),
    )


def test_check_passes_when_the_leases_are_what_add_told():
    check(check_request("10.1.2.3", "fd00::3"), [lease("10.1.2.3"), lease("fd00::3")])
    check(check_request("fd00::0003"), [lease("fd00::3")])


@pytest.mark.parametrize(
    ("previous", "held", "named"),
    [
        (["10.1.2.3"], [], ["10.1.2.3", "no lease"]),
        (["10.1.2.3"], ["10.1.2.4"], ["10.1.2.3", "10.1.2.4"]),
        (["10.1.2.3", "fd00::3"], ["10.1.2.3"], ["fd00::3"]),
        (["10.1.2.3"], ["10.1.2.3", "fd00::3"], ["fd00::3"]),
        ([], ["10.1.2.3"], ["10.1.2.3", "no address"]),
        ([], [], ["no lease"]),
    ],
)
def test_check_names_the_address_that_differs(previous, held, named):
    with pytest.raises(CheckFailed) as caught:
        check(check_request(*previous), [lease(text) for text in held])
    for part in [*named, "c1", "eth0", "blue"]:
        assert part in caught.value.message
