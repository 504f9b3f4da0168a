"""Whatever stands in an environment or on standard input, it is parsed or refused by an error of ours; and DEL is never
refused once it says which container and interface it is about (DESIGN 7)."""

import json

import hypothesis.strategies as st
from hypothesis import example, given

from allotment.addressing.address import Family, Prefix
from allotment.addressing.errors import AllotmentError
from allotment.cni.answers import answer
from allotment.cni.request import CniRequest, Verb, parse_request
from allotment.cni.result import ToldAddress, add_result
from allotment.cni.versions import SUPPORTED, told_version

NAMES = [
    "cniVersion", "name", "type", "ipam", "network", "routes", "dst", "gw", "mtu", "scope", "isGateway",
    "runtimeConfig",
    "ips", "io.kubernetes.cri.pod-annotations", "allotment.dev/ips", "args", "cni", "dns", "nameservers", "prevResult",
    "interfaces", "interface", "address", "cni.dev/valid-attachments", "cni.dev/attachments", "containerID", "ifname",
]  # fmt: skip
TEXTS = st.sampled_from(
    [
        *SUPPORTED,
        "blue",
        "10.1.2.3",
        "fd00::3/64",
        "0.0.0.0/0",
        "::ffff:1.2.3.4",
        "bridge",
        '{"blue": ["10.1.2.4"]}',
        "a/b",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=10,
)
CONF = st.fixed_dictionaries(
    {"cniVersion": st.sampled_from(SUPPORTED), "name": st.sampled_from(["blue", "a/b"])},
    optional={name: JSON for name in NAMES if name not in ("cniVersion", "name")},
)
BODIES = st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()) | CONF.map(
    lambda value: json.dumps(value).encode()
)  # fmt: skip
VALUES = st.text(max_size=20) | st.sampled_from(["c1", "eth0", "/run/netns/x", "K8S_POD_NAME=web;IP=10.1.2.3", "a;b=c"])
VARIABLES = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS"]
ENVIRONMENTS = st.fixed_dictionaries(
    {"CNI_COMMAND": st.sampled_from([*Verb, "", "x"])}, optional=dict.fromkeys(VARIABLES, VALUES)
)
GOOD = {"CNI_CONTAINERID": "c1", "CNI_NETNS": "/run/netns/x", "CNI_IFNAME": "eth0"}


@given(ENVIRONMENTS, BODIES)
def test_everything_is_parsed_or_refused_by_an_error_that_can_be_answered(env, body):
    try:
        request = parse_request(env, body)
    except AllotmentError as error:
        told, code = answer(error, told_version(body), request_id="r1")
        assert code != 0
        assert json.loads(told)["code"] in (1, 4, 6, 7)
    else:
        assert isinstance(request, CniRequest)
        assert request.cni_version in SUPPORTED or request.verb is Verb.VERSION


@given(st.sampled_from(["ADD", "CHECK", "GC", "STATUS"]), CONF)
def test_what_is_let_in_is_well_formed(verb, conf):
    """What comes out of a strict verb can be a key, a label and a log field as it is (DESIGN 14)."""
    try:
        request = parse_request({**GOOD, "CNI_COMMAND": verb}, json.dumps(conf).encode())
    except AllotmentError:
        return
    for name in (request.network, request.conf_name, request.container_id, request.interface):
        assert name is None or "/" not in name
    families = [address.family for address in request.requested]
    assert len(families) == len(set(families))


@given(ENVIRONMENTS, BODIES)
@example({}, b"")
def test_del_is_never_refused_once_it_says_what_it_is_about(env, body):
    env = {"CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0", **env, "CNI_COMMAND": "DEL"}
    if not env["CNI_CONTAINERID"] or not env["CNI_IFNAME"]:
        return
    request = parse_request(env, body)
    assert request.container_id in ("", env["CNI_CONTAINERID"])
    assert request.interface in ("", env["CNI_IFNAME"])


@st.composite
def told_addresses(draw):
    family = draw(st.sampled_from(Family))
    address = draw(st.builds(lambda value: Prefix(family, value, family.bits).first, st.integers(0, family.top)))
    return ToldAddress(address, draw(st.integers(0, family.bits)), draw(st.none() | st.just(address)))


@given(st.sampled_from(SUPPORTED), st.lists(told_addresses(), max_size=3))
def test_what_add_tells_is_what_check_reads_back(version, told):
    """A result survives the way through a runtime's cache: CHECK sees exactly the addresses that ADD told."""
    add = CniRequest(verb=Verb.ADD, cni_version=version, network="blue")
    result = json.loads(add_result(add, told))
    if version.startswith("0.3"):
        return
    conf = {"cniVersion": version, "name": "blue", "prevResult": result}
    try:
        request = parse_request({**GOOD, "CNI_COMMAND": "CHECK"}, json.dumps(conf).encode())
    except AllotmentError as error:
        assert "IPv4-mapped" in error.message  # noqa: PT017  # such an address can't be leased in the first place
        return
    assert sorted(request.previous) == sorted(one.address for one in told)
