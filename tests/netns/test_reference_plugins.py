"""Under the reference plugins of two ages, driven by libcni as a container runtime drives them.

The plugins are containernetworking/plugins at the version that tests/reference/go.mod pins, and Debian's 1.1.1, which
speaks CNI up to 1.0.0. CASES C2 (DEL without a network namespace, GC alone), C5 (a DEL that fails half-way).
"""

import ipaddress
import json
import os
import subprocess

import pytest

from netns.pods import PodNode, connects, run
from nodes import until
from reference.driver import CniError, Runtime
from reference.fixtures import cnitool, debian_plugins, reference_plugins  # noqa: F401  # fixtures

pytestmark = [pytest.mark.root, pytest.mark.slow]

NETWORK = """\
apiVersion: allotment.dev/v1alpha1
kind: Network
metadata: {{name: {name}}}
spec:
  type: L3
  cooldownSeconds: 0
  subnets:
"""
SUBNETS = {
    "blue": ("10.77.0.0/24", "fd77::/64"),
    "pair": ("10.77.1.0/31", "fd77:1::/127"),
    "single": ("10.77.2.9/32", "fd77:2::9/128"),
    "split": ("10.77.3.0/30", "10.77.3.4/30"),
}
VERSIONS = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
GENERATIONS = {"reference_plugins": VERSIONS, "debian_plugins": VERSIONS[:-1]}
MAINS = {
    "ptp": {"type": "ptp"},
    "bridge": {"type": "bridge", "bridge": "cni0", "isGateway": True},
    "macvlan": {"type": "macvlan", "master": "uplink"},
}
ROUTES = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
ARGUMENTS = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_UID=0d9ee0fb"


def manifest(name, cidrs):
    lines = [f"    - {{cidr: '{cidr}', hostPrefixLength: {cidr.split('/')[1]}}}\n" for cidr in cidrs]
    return NETWORK.format(name=name) + "".join(lines)


@pytest.fixture(scope="module")
def node(launcher):
    with PodNode(launcher, {f"{name}.yaml": manifest(name, cidrs) for name, cidrs in SUBNETS.items()}) as node:
        node.start()
        run(*node.within, "ip", "link", "add", "uplink", "type", "veth", "peer", "name", "wire")
        for link in ("uplink", "wire"):
            run(*node.within, "ip", "link", "set", link, "up")
        yield node
        node.stop()


@pytest.fixture
def pods(node):
    """Two pods' network namespaces; after the test nothing may be leased."""
    yield [node.add_namespace(), node.add_namespace()]
    left = node.leased()
    for lease in left.values():
        # The next test shall not suffer for this one's failure.
        runtime = Runtime(node.folder, [node.bin], conflist({"type": "allotment"}, network=lease.network))
        runtime.environment = node.environment
        runtime.delete(lease.container, interface=lease.interface)
    assert left == {}


@pytest.fixture
def runtime(request, node, tmp_path):
    """Makes a `Runtime` of this node for plugins of a generation."""

    def make(generation, plugins):
        folders = [node.bin, request.getfixturevalue(generation)]
        return Runtime(tmp_path, folders, plugins, node.environment, node.within)

    return make


def conflist(main, *, version="1.0.0", network="blue", name=None, routes=(), more=()):
    ipam = {"type": "allotment", "network": network, "routes": list(routes)}
    return {"cniVersion": version, "name": name or network, "plugins": [{**main, "ipam": ipam}, *more]}


def in_pod(netns, interface="eth0"):
    """The global addresses that an interface really has."""
    links = json.loads(run("nsenter", f"--net={netns}", "ip", "-j", "address", "show", "dev", interface))
    found = [
        f"{info['local']}/{info['prefixlen']}"
        for link in links
        for info in link.get("addr_info", [])
        if info["scope"] == "global"
    ]
    return sorted(found, key=lambda text: ":" in text)


def told(result):
    return [entry["address"] for entry in result["ips"]]


CASES = [
    pytest.param(generation, main, version, id=f"{generation.split('_')[0]}-{main}-{version}")
    for generation, versions in GENERATIONS.items()
    for main in MAINS
    for version in versions
]


@pytest.mark.parametrize(("generation", "main", "version"), CASES)
def test_a_pod_comes_lives_and_goes(node, pods, runtime, generation, main, version):
    rt = runtime(generation, conflist(MAINS[main], version=version, routes=ROUTES if main != "macvlan" else ()))
    rt.status()

    first = rt.add("c1", pods[0], arguments=ARGUMENTS)
    second = rt.add("c2", pods[1])

    assert first["cniVersion"] == version
    assert in_pod(pods[0]) == told(first)
    assert in_pod(pods[1]) == told(second)
    assert len({*told(first), *told(second)}) == 4
    for address, cidr in zip(told(first), SUBNETS["blue"], strict=True):
        assert ipaddress.ip_interface(address).network == ipaddress.ip_network(cidr)
    assert [entry["gateway"] for entry in first["ips"]] == ["10.77.0.1", "fd77::1"]
    assert [entry.get("version") for entry in first["ips"]] == (["4", "6"] if version < "1" else [None, None])
    held = node.leased()
    assert set(held) == {text.split("/")[0] for text in told(first) + told(second)}
    assert {(lease.pod_namespace, lease.pod) for lease in held.values() if lease.container == "c1"} == {
        ("shop", "web-0")
    }

    if version >= "0.4":
        rt.check("c1", pods[0])
    rt.delete("c1", pods[0])
    rt.delete("c1", pods[0])
    assert set(node.leased()) == {text.split("/")[0] for text in told(second)}
    rt.delete("c2")  # the sandbox is gone: no network namespace to name (C2)
    rt.delete("c2")
    assert node.leased() == {}


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("main", ["ptp", "bridge"])
def test_pods_reach_each_other_on_both_families(node, pods, runtime, generation, main):
    rt = runtime(generation, conflist(MAINS[main], routes=ROUTES))
    rt.add("c1", pods[0])
    second = rt.add("c2", pods[1])
    for address in told(second):
        assert connects(pods[0], pods[1], address.split("/")[0])
    rt.delete("c1", pods[0])
    rt.delete("c2", pods[1])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("network", ["pair", "single"])
def test_ptp_with_a_block_too_small_for_a_gateway(node, pods, runtime, network, version):
    """169.254.1.1 and fe80::1, with default routes: the routes that `result` adds are what the plugin needs."""
    rt = runtime("reference_plugins", conflist(MAINS["ptp"], version=version, network=network, routes=ROUTES))
    result = rt.add("c1", pods[0])
    assert [entry["gateway"] for entry in result["ips"]] == ["169.254.1.1", "fe80::1"]
    assert in_pod(pods[0]) == told(result)
    if version >= "0.4":
        rt.check("c1", pods[0])
    run(*node.within, "ip", "address", "replace", "198.51.100.1/32", "dev", "uplink")
    run(*node.within, "ip", "address", "replace", "2001:db8::1/128", "dev", "uplink", "nodad")
    for outside in ("198.51.100.1", "2001:db8::1"):
        assert connects(pods[0], node.netns, outside)
    for address in told(result):
        assert connects(node.netns, pods[0], address.split("/")[0])
    rt.delete("c1", pods[0])


@pytest.mark.parametrize("generation", GENERATIONS)
def test_ptp_with_a_pair_and_no_default_route(node, pods, runtime, generation):
    rt = runtime(generation, conflist(MAINS["ptp"], network="pair"))
    result = rt.add("c1", pods[0])
    rt.check("c1", pods[0])
    # The node speaks from 169.254.1.1, which is on the pod's link; for IPv6 it would take an address of its own, to
    # which this pod has no route.
    assert connects(node.netns, pods[0], told(result)[0].split("/")[0])
    rt.delete("c1", pods[0])


def test_check_finds_a_lease_that_is_gone(node, pods, runtime):
    rt = runtime("reference_plugins", conflist(MAINS["ptp"]))
    rt.add("c1", pods[0])
    alone = Runtime(rt.folder, rt.plugins, conflist({"type": "allotment"}), node.environment, node.within)
    alone.delete("c1")  # takes libcni's result out of the cache as well
    with pytest.raises(CniError):
        rt.check("c1", pods[0])
    rt.delete("c1", pods[0])


def test_addresses_can_be_asked_for_by_capability_and_by_cni_args(node, pods, runtime):
    main = {**MAINS["ptp"], "capabilities": {"ips": True, "io.kubernetes.cri.pod-annotations": True}}
    rt = runtime("reference_plugins", conflist(main, version="1.1.0"))
    by_capability = rt.add("c1", pods[0], capabilities={"ips": ["10.77.0.50/24", "fd77::0050"]})
    assert told(by_capability) == ["10.77.0.50/24", "fd77::50/64"]
    annotations = {"allotment.dev/ips": json.dumps({"blue": ["fd77::51"], "red": ["10.0.0.1"]})}
    result = rt.add(
        "c2",
        pods[1],
        arguments="IP=10.77.0.51",
        capabilities={"io.kubernetes.cri.pod-annotations": annotations},
    )
    assert told(result) == ["10.77.0.51/24", "fd77::51/64"]
    with pytest.raises(CniError, match=r"10\.77\.0\.50") as caught:
        rt.add("c3", node.add_namespace(), capabilities={"ips": ["10.77.0.50"]})
    assert caught.value.code == 102
    rt.delete("c1", pods[0])
    rt.delete("c2", pods[1])


def test_bridge_keeps_to_one_block_and_says_so(node, pods, runtime):
    """A second block has a second gateway, which `bridge` refuses (DESIGN 7)."""
    rt = runtime("reference_plugins", conflist({**MAINS["bridge"], "bridge": "cni1"}, network="split"))
    only = rt.add("c1", pods[0])
    with pytest.raises(CniError, match="keeps to block") as caught:
        rt.add("c2", pods[1])
    assert caught.value.code == 101
    assert len(told(only)) == 1
    rt.delete("c1", pods[0])
    rt.delete("c2", pods[1])


@pytest.mark.parametrize("main", MAINS)
def test_a_main_plugin_that_fails_after_us_leaves_no_lease(node, pods, runtime, main):
    unreachable = [{"dst": "10.0.0.0/8", "gw": "192.0.2.1"}]
    rt = runtime("reference_plugins", conflist(MAINS[main], routes=unreachable))
    with pytest.raises(CniError, match="failed to add route"):
        rt.add("c1", pods[0])
    assert node.leased() == {}


def test_the_same_add_again_gets_the_same_lease(node, pods, runtime):
    rt = runtime("reference_plugins", conflist({"type": "allotment"}, version="1.1.0"))
    first = rt.add("c1", pods[0])
    assert rt.add("c1", pods[0]) == first
    assert len(node.leased()) == 2
    rt.delete("c1", pods[0])


def test_an_agent_killed_between_add_and_del_loses_nothing(node, pods, runtime):
    """I2: what was told survives SIGKILL. C5: a DEL that finds no agent is kept, and done when there is one again."""
    rt = runtime("reference_plugins", conflist(MAINS["ptp"], version="1.1.0"))
    first = rt.add("c1", pods[0])
    rt.add("c2", pods[1])
    before = node.leased()
    node.kill()
    try:
        rt.environment = {**node.environment, "ALLOTMENT_TIMEOUT_MS": "300"}
        rt.delete("c2", pods[1])
        with pytest.raises(CniError) as caught:
            rt.add("c3", node.add_namespace())
        assert caught.value.code == 11
    finally:
        node.start()
    kept = {text.split("/")[0] for text in told(first)}
    until(lambda: set(node.leased()) == kept, "the DEL that was kept is not done")
    assert node.leased() == {address: before[address] for address in kept}
    rt.check("c1", pods[0])
    rt.delete("c1", pods[0])


# -- GC ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", GENERATIONS)
def test_libcni_deletes_the_attachments_that_are_not_valid(node, pods, runtime, generation):
    rt = runtime(generation, conflist(MAINS["ptp"]))
    first = rt.add("c1", pods[0])
    rt.add("c2", pods[1])
    rt.gc([("c1", "eth0")])
    assert set(node.leased()) == {text.split("/")[0] for text in told(first)}
    rt.gc([])


OWN_ENTRY = {"type": "allotment", "role": "gc"}


def test_the_gc_verb_frees_what_the_runtime_forgot(node, pods, runtime):
    """Main plugins don't pass GC on: our own entry in the list hears it (docs/decisions/0003). C2: GC alone."""
    rt = runtime("reference_plugins", conflist(MAINS["ptp"], version="1.1.0", more=[OWN_ENTRY]))
    other = Runtime(
        rt.folder / "cache",
        rt.plugins,
        conflist(MAINS["ptp"], version="1.1.0", name="other"),
        node.environment,
        node.within,
    )
    rt.status()
    first = rt.add("c1", pods[0])
    rt.check("c1", pods[0])
    rt.add("c2", pods[1])
    other.folder.mkdir(exist_ok=True)
    third = other.add("c3", node.add_namespace())
    rt.forget()

    rt.gc([("c1", "eth0")])
    assert set(node.leased()) == {text.split("/")[0] for text in told(first) + told(third)}
    rt.gc([("c1", "net1")])
    assert set(node.leased()) == {text.split("/")[0] for text in told(third)}
    other.conflist["plugins"].append(OWN_ENTRY)
    other.gc(None)
    assert node.leased() == {}


def test_the_result_passes_through_our_own_entry(node, pods, runtime):
    plain = runtime("reference_plugins", conflist(MAINS["ptp"], version="1.1.0", routes=ROUTES))
    with_entry = runtime("reference_plugins", conflist(MAINS["ptp"], version="1.1.0", routes=ROUTES, more=[OWN_ENTRY]))
    one = plain.add("c1", pods[0])
    plain.delete("c1", pods[0])
    two = with_entry.add("c2", pods[1])
    with_entry.delete("c2", pods[1])
    assert set(one) == set(two)
    assert [set(entry) for entry in one["ips"]] == [set(entry) for entry in two["ips"]]
    assert one["routes"] == two["routes"]


# -- cnitool -----------------------------------------------------------------------------------------------------------


def test_cnitool_adds_checks_and_deletes(node, pods, cnitool, reference_plugins, tmp_path):  # noqa: F811
    (tmp_path / "blue.conflist").write_text(json.dumps(conflist(MAINS["ptp"], version="1.1.0", more=[OWN_ENTRY])))
    environment = {
        **os.environ,
        **node.environment,
        "NETCONFPATH": str(tmp_path),
        "CNI_PATH": f"{node.bin}:{reference_plugins}",
    }

    def tool(verb):
        command = [*node.within, str(cnitool), verb, "blue", pods[0]]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    tool("status")
    result = json.loads(tool("add"))
    assert in_pod(pods[0]) == told(result)
    tool("check")
    tool("del")
    assert node.leased() == {}
