"""What a runtime may say, and what of it we take. CASES C2 and C5 (DEL), C20 (owners), C31 (addresses by value)."""

import json

import msgspec
import pytest

from allotment.addressing.address import Address, Family, parse_address
from allotment.addressing.errors import ConfigError, DecodeError, EnvironmentInvalid, VersionError
from allotment.addressing.lease import Owner
from allotment.cni.request import Verb, parse_request
from allotment.cni.versions import SUPPORTED

CONTAINER = "7f5a" * 16
ARGS = (
    "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;"
    f"K8S_POD_INFRA_CONTAINER_ID={CONTAINER};K8S_POD_UID=0d9ee0fb-6f9b-4d0a-9c1e-3a4b5c6d7e8f"
)


def variables(verb="ADD", **changes):
    """The environment of a call; a change to None takes the variable away."""
    env = {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": CONTAINER,
        "CNI_NETNS": "/run/netns/cni-1",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": "/opt/cni/bin",
        "CNI_ARGS": ARGS,
        **changes,
    }
    return {name: value for name, value in env.items() if value is not None}


def conf(**changes):
    """A configuration as `ptp` hands it on; a change to ... takes the field away."""
    whole = {
        "cniVersion": "1.1.0",
        "name": "blue",
        "type": "ptp",
        "ipam": {"type": "allotment"},
        **changes,
    }
    return json.dumps({key: value for key, value in whole.items() if value is not ...}).encode()


def addresses(*texts):
    return tuple(parse_address(text) for text in texts)


def test_an_add_of_a_kubernetes_runtime_is_read_whole():
    request = parse_request(variables(), conf(mtu=1400, unknown={"deep": [1, None]}))

    assert request.verb is Verb.ADD
    assert request.netns == "/run/netns/cni-1"
    assert request.cni_version == "1.1.0"
    assert request.main_type == "ptp"
    assert request.infra_container_id == CONTAINER
    assert not request.one_block
    assert request.owner() == Owner(
        network="blue",
        container_id=CONTAINER,
        interface="eth0",
        pod_namespace="shop",
        pod_name="web-0",
        pod_uid="0d9ee0fb-6f9b-4d0a-9c1e-3a4b5c6d7e8f",
        conf_name="blue",
    )


def test_the_network_is_ipam_network_else_the_name():
    assert parse_request(variables(), conf()).network == "blue"
    named = parse_request(variables(), conf(name="site-net", ipam={"type": "allotment", "network": "blue"}))
    assert (named.network, named.conf_name) == ("blue", "site-net")


@pytest.mark.parametrize("version", SUPPORTED)
def test_every_supported_version_is_taken(version):
    assert parse_request(variables(), conf(cniVersion=version)).cni_version == version
    assert parse_request(variables("DEL"), conf(cniVersion=version)).cni_version == version


@pytest.mark.parametrize("version", ["", "0.1.0", "0.2.0", "1.2.0", "2.0.0", "1.1", "1.1.0 ", ...])
def test_another_version_is_refused_with_code_1(version):
    with pytest.raises(VersionError) as caught:
        parse_request(variables(), conf(cniVersion=version))
    assert "1.1.0" in caught.value.details
    assert "cniVersion" in caught.value.message


def test_a_foreign_version_is_named_before_a_field_that_it_may_have_changed():
    with pytest.raises(VersionError, match=r"2\.0\.0"):
        parse_request(variables(), conf(cniVersion="2.0.0", ipam=["of", "another", "shape"]))


@pytest.mark.parametrize(
    ("verb", "version"), [("CHECK", "0.3.1"), ("GC", "1.0.0"), ("STATUS", "1.0.0"), ("STATUS", "0.4.0")]
)
def test_a_verb_that_the_version_does_not_have_is_refused(verb, version):
    body = conf(cniVersion=version, prevResult={}, **{"cni.dev/valid-attachments": []})
    with pytest.raises(VersionError, match=f"{verb} came with"):
        parse_request(variables(verb), body)


# -- the environment ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [None, "", "add", "ADDD", "ADD\n"])
def test_a_command_that_is_none_is_refused(command):
    with pytest.raises(EnvironmentInvalid, match="CNI_COMMAND"):
        parse_request(variables(CNI_COMMAND=command), conf())


BAD_IDS = ["-a", ".a", "a/b", "a b", "a\n", "é", "a\udcff", "x" * 254, "../../etc", "a\x00"]
BAD_INTERFACES = ["a/b", "a:b", "a b", "a\t", ".", "..", "x" * 16, "ééééééééé", "a\u2003b", "a\udcff", "a\x00"]
BAD_PATHS = ["run/netns/x", "/run/\nx", "/run/\x00x", "/" + "x" * 4096, "/\udcff"]


@pytest.mark.parametrize("verb", ["ADD", "CHECK"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("CNI_CONTAINERID", bad) for bad in ["", None, *BAD_IDS]),
        *(("CNI_IFNAME", bad) for bad in ["", None, *BAD_INTERFACES]),
        *(("CNI_NETNS", bad) for bad in ["", None, *BAD_PATHS]),
        *(("CNI_ARGS", f"K8S_POD_NAME={bad}") for bad in BAD_IDS if bad != "é"),
        ("CNI_ARGS", "K8S_POD_UID=a/b"),
        ("CNI_ARGS", "K8S_POD_NAMESPACE=a b"),
        ("CNI_ARGS", "K8S_POD_INFRA_CONTAINER_ID=a b"),
        ("CNI_ARGS", "no pair"),
    ],
)
def test_a_bad_variable_is_refused_with_code_4_and_named(verb, name, value):
    with pytest.raises(EnvironmentInvalid) as caught:
        parse_request(variables(verb, **{name: value}), conf(prevResult={"ips": []}))
    assert caught.value.code == 4
    assert name in caught.value.message
    assert "\n" not in caught.value.message
    assert "\x00" not in caught.value.message
    assert len(caught.value.message) < 500


@pytest.mark.parametrize("good", ["a", "0", "a_b.c-d", "x" * 253])
def test_good_container_ids_are_taken(good):
    assert parse_request(variables(CNI_CONTAINERID=good), conf()).container_id == good


@pytest.mark.parametrize("good", ["e", "eth0.100", "x" * 15, "ééééééé", "..."])
def test_good_interfaces_are_taken(good):
    assert parse_request(variables(CNI_IFNAME=good), conf()).interface == good


def test_arguments_may_be_empty_repeated_unknown_or_end_in_a_separator():
    request = parse_request(variables(CNI_ARGS="MAC=;FOO=a=b;K8S_POD_NAME=old;K8S_POD_NAME=new;"), conf())
    assert (request.pod_name, request.pod_uid) == ("new", "")
    assert parse_request(variables(CNI_ARGS=None), conf()).pod_name == ""


# -- DEL never fails for what is missing (CASES C2, C5) ------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'"text"',
        b"[" * 100_000,
        b'{"type": "ptp"}',
        conf(cniVersion="9.9.9"),
        conf(cniVersion=11),
        conf(ipam="text", prevResult=[1], runtimeConfig=7, args=False, dns="x"),
        conf(ipam={"network": 7}),
        conf(ipam={"routes": "no"}, name=None),
        conf(name="no/file/name"),
        conf(type=["ptp"]),
    ],
)
@pytest.mark.parametrize("netns", [None, "", "not/absolute", "/run/netns/gone"])
def test_del_takes_any_configuration(body, netns):
    request = parse_request(variables("DEL", CNI_NETNS=netns), body)
    assert (request.container_id, request.interface) == (CONTAINER, "eth0")
    assert request.pod_uid.startswith("0d9ee0fb")
    assert request.cni_version in SUPPORTED
    assert request.netns == (netns if netns == "/run/netns/gone" else "")


@pytest.mark.parametrize(
    ("body", "network", "name"),
    [
        (b'{"type": "ptp"}', None, ""),
        (b"{", None, ""),
        (conf(), "blue", "blue"),
        (conf(ipam={"network": "red"}), "red", "blue"),
        (conf(ipam={"network": "red"}, name=...), "red", ""),
        (conf(ipam={"network": "not/a/name"}), "blue", "blue"),
        (conf(ipam=7), "blue", "blue"),
        (conf(name=7, ipam={"network": "red"}), "red", ""),
        (conf(name="a/b"), None, ""),
    ],
)
def test_del_reads_the_network_where_it_can(body, network, name):
    request = parse_request(variables("DEL"), body)
    assert (request.network, request.conf_name) == (network, name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("CNI_CONTAINERID", bad) for bad in BAD_IDS),
        *(("CNI_IFNAME", bad) for bad in BAD_INTERFACES),
    ],
)
def test_del_of_what_cannot_have_a_lease_names_nothing(name, value):
    """ADD refuses such a name, and the runtime must still get rid of the sandbox: its DEL finds nothing."""
    request = parse_request(variables("DEL", **{name: value}), conf())
    assert "" in (request.container_id, request.interface)


@pytest.mark.parametrize("name", ["CNI_CONTAINERID", "CNI_IFNAME"])
def test_del_has_to_say_what_it_is_about(name):
    with pytest.raises(EnvironmentInvalid, match=name):
        parse_request(variables("DEL", **{name: None}), conf())


def test_del_leaves_out_what_is_malformed_in_the_arguments_and_keeps_the_rest():
    args = "nonsense;K8S_POD_NAME=a/b;K8S_POD_NAMESPACE=shop;K8S_POD_UID=" + "x" * 300
    request = parse_request(variables("DEL", CNI_ARGS=args), conf())
    assert (request.pod_namespace, request.pod_name, request.pod_uid) == ("shop", "", "")


# -- addresses asked for -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "fields"),
    [
        ("", {"runtimeConfig": {"ips": ["10.1.2.3"]}}),
        ("", {"runtimeConfig": {"ips": ["10.1.2.3/24"]}}),
        ("", {"args": {"cni": {"ips": ["10.1.2.3/32"]}}}),
        ("IP=10.1.2.3", {}),
        ("IP=10.1.2.3/16", {}),
        (
            "",
            {"runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"allotment.dev/ips": '{"blue": ["10.1.2.3"]}'}}},
        ),
        ("IP=10.1.2.3", {"runtimeConfig": {"ips": ["10.1.2.3"]}, "args": {"cni": {"ips": ["10.1.2.3"]}}}),
    ],
)
def test_an_address_can_be_asked_for_in_every_way(args, fields):
    request = parse_request(variables(CNI_ARGS=args), conf(**fields))
    assert request.requested == (Address(Family.V4, 0x0A010203),)


def test_addresses_are_merged_by_value_in_order_of_precedence():
    """C31: `::5` and `::0005` are one address."""
    request = parse_request(
        variables(CNI_ARGS="IP=fd00::0005"),
        conf(
            runtimeConfig={
                "ips": ["fd00::5/64"],
                "io.kubernetes.cri.pod-annotations": {
                    "other": "x",
                    "allotment.dev/ips": '{"red": ["10.9.9.9"], "blue": ["FD00:0::5", "10.1.2.3"]}',
                },
            },
        ),
    )
    assert request.requested == addresses("fd00::5", "10.1.2.3")


def test_several_addresses_in_cni_args_are_separated_by_commas():
    request = parse_request(variables(CNI_ARGS="IP=10.1.2.3/24, fd00::"), conf())
    assert request.requested == addresses("10.1.2.3", "fd00::")


def test_args_win_over_cni_args():
    """CNI CONVENTIONS: who understands `args` must ignore the same in CNI_ARGS."""
    request = parse_request(variables(CNI_ARGS="IP=10.1.2.4"), conf(args={"cni": {"ips": ["10.1.2.3"]}}))
    assert request.requested == addresses("10.1.2.3")


def test_two_of_one_family_are_refused_naming_both_and_where():
    with pytest.raises(ConfigError) as caught:
        parse_request(variables(CNI_ARGS="IP=10.1.2.4"), conf(runtimeConfig={"ips": ["10.1.2.3"]}))
    for part in ("10.1.2.3", "runtimeConfig.ips", "10.1.2.4", "CNI_ARGS IP"):
        assert part in caught.value.message


@pytest.mark.parametrize(
    ("args", "fields", "named"),
    [
        ("", {"runtimeConfig": {"ips": ["10.1.2.300"]}}, "runtimeConfig.ips"),
        ("", {"runtimeConfig": {"ips": ["10.1.2.03"]}}, "10.1.2.3"),
        ("", {"runtimeConfig": {"ips": ["::ffff:10.1.2.3"]}}, "10.1.2.3"),
        ("", {"runtimeConfig": {"ips": ["10.1.2.3/33"]}}, "prefix length"),
        ("", {"runtimeConfig": {"ips": ["10.1.2.3/"]}}, "prefix length"),
        ("", {"runtimeConfig": {"ips": ["10.1.2.3/" + "9" * 5000]}}, "too long"),
        ("", {"runtimeConfig": {"ips": ["1.2.3." + "9" * 5000]}}, "too long"),
        ("", {"runtimeConfig": {"ips": "10.1.2.3"}}, "runtimeConfig.ips"),
        ("", {"runtimeConfig": {"ips": [7]}}, "runtimeConfig.ips[0]"),
        ("", {"args": {"cni": {"ips": ["fd00::%eth0"]}}}, "zone"),
        ("IP=somewhere", {}, "CNI_ARGS IP"),
        *(
            (
                "",
                {"runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"allotment.dev/ips": bad}}},
                "allotment.dev/ips",
            )
            for bad in ("10.1.2.3", '["10.1.2.3"]', '{"blue": "10.1.2.3"}', '{"blue": ["10.1"]}', "{" * 99_999)
        ),
    ],
)
def test_a_bad_address_is_refused_with_code_7_and_its_place(args, fields, named):
    with pytest.raises(ConfigError) as caught:
        parse_request(variables(CNI_ARGS=args), conf(**fields))
    assert caught.value.code == 7
    assert named in caught.value.message
    assert len(caught.value.message) < 500


def test_null_is_as_good_as_absent():
    fields = ["ipam", "isGateway", "runtimeConfig", "args", "dns", "type"]
    request = parse_request(variables(), conf(**dict.fromkeys(fields)))
    assert request == parse_request(variables(), conf(**dict.fromkeys(fields, ...)))


# -- the rest of a configuration -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"type": "bridge", "isGateway": True}, True),
        ({"type": "bridge", "isDefaultGateway": True}, True),
        ({"type": "bridge", "isGateway": False}, False),
        ({"type": "bridge"}, False),
        ({"type": "ptp", "isGateway": True}, False),
    ],
)
def test_bridge_with_a_gateway_wants_one_block(fields, expected):
    assert parse_request(variables(), conf(**fields)).one_block is expected


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("name", 7, "name"),
        ("ipam", "x", "ipam"),
        ("ipam", {"network": 7}, "ipam.network"),
        ("ipam", {"routes": {}}, "ipam.routes"),
        ("ipam", {"routes": [{}]}, "ipam.routes[0]"),
        ("ipam", {"routes": [{"dst": "10.0.0.0/8", "mtu": -1}]}, "ipam.routes[0].mtu"),
        ("ipam", {"routes": [{"dst": "10.0.0.0/8"}, {"dst": "10.0.0.1/8"}]}, "ipam.routes[1]"),
        ("ipam", {"routes": [{"dst": "10.0.0.0"}]}, "ipam.routes[0]"),
        ("ipam", {"routes": [{"dst": "10.0.0.0/8", "gw": "fd00::1"}]}, "ipam.routes[0]"),
        ("isGateway", "yes", "isGateway"),
        ("dns", {"nameservers": "1.1.1.1"}, "dns.nameservers"),
        ("cniVersion", 1.1, "cniVersion"),
    ],
)
def test_a_wrong_type_is_refused_by_path(field, value, path):
    with pytest.raises(ConfigError) as caught:
        parse_request(variables(), conf(**{field: value}))
    assert path in caught.value.message


@pytest.mark.parametrize("name", [..., "", "a/b", "-a", "x" * 254])
def test_add_needs_a_name_that_cni_allows(name):
    with pytest.raises(ConfigError, match="name"):
        parse_request(variables(), conf(name=name, ipam={"network": "blue"}))


@pytest.mark.parametrize("verb", ["ADD", "CHECK", "GC"])
@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"x": ' + b"[" * 100_000])
def test_what_is_no_json_is_refused_with_code_6(verb, body):
    with pytest.raises(DecodeError) as caught:
        parse_request(variables(verb), body)
    assert caught.value.code == 6


# -- CHECK, GC, STATUS, VERSION --------------------------------------------------------------------------------------


def test_check_reads_the_addresses_of_its_own_interface():
    previous = {
        "interfaces": [{"name": "veth1"}, {"name": "eth0", "sandbox": "/x"}, {"name": "net1", "sandbox": "/x"}],
        "ips": [
            {"address": "10.1.2.3/24", "interface": 1},
            {"address": "fd00::3/64"},
            {"address": "10.9.9.9/24", "interface": 2},
        ],
    }
    request = parse_request(variables("CHECK"), conf(prevResult=previous))
    assert request.previous == addresses("10.1.2.3", "fd00::3")


@pytest.mark.parametrize("previous", [None, ..., {"ips": [{"address": 7}]}, {"ips": [{"address": "x"}]}, []])
def test_check_needs_a_previous_result_that_can_be_read(previous):
    with pytest.raises(ConfigError, match="prevResult"):
        parse_request(variables("CHECK"), conf(prevResult=previous))


# -- the GC entry of our conflist (docs/decisions/0003) ----------------------------------------------------------------


def entry(**fields):
    return conf(type="allotment", ipam=..., role="gc", **fields)


def test_the_gc_entry_is_told_from_an_ipam_call():
    add = parse_request(variables(), entry(prevResult={"cniVersion": "1.1.0", "ips": [], "x": 1}))
    assert add.passes_through
    assert json.loads(add.previous_result) == {"cniVersion": "1.1.0", "ips": [], "x": 1}
    assert parse_request(variables("DEL"), entry()).passes_through
    assert parse_request(variables("DEL"), entry(dns=7, name=7)).passes_through
    assert parse_request(variables("CHECK"), entry()).passes_through
    assert parse_request(variables("CHECK"), entry(prevResult="unread")).passes_through


@pytest.mark.parametrize("previous", [..., None])
def test_the_gc_entry_must_not_stand_first(previous):
    with pytest.raises(ConfigError, match="must stand after"):
        parse_request(variables(), entry(prevResult=previous))


def test_a_del_cut_down_to_its_type_is_no_gc_entry():
    assert not parse_request(variables("DEL"), b'{"type": "allotment"}').passes_through


def test_a_call_with_ipam_is_an_ipam_call_whatever_its_role():
    assert not parse_request(variables(), conf(role="gc")).passes_through
    assert not parse_request(variables(), conf(role="master")).passes_through
    assert not parse_request(variables("DEL"), conf(role="gc")).passes_through


@pytest.mark.parametrize("verb", ["ADD", "CHECK"])
def test_a_role_that_there_is_not_is_refused(verb):
    with pytest.raises(ConfigError, match="'gcc'"):
        parse_request(variables(verb), conf(ipam=..., role="gcc", prevResult={}))


def test_a_role_that_there_is_not_holds_no_del_gc_or_status_back():
    assert not parse_request(variables("DEL"), conf(ipam=..., role="gcc")).passes_through
    parse_request({"CNI_COMMAND": "STATUS"}, conf(ipam=..., role="gcc"))
    parse_request({"CNI_COMMAND": "GC"}, conf(ipam=..., role="gcc", **{"cni.dev/valid-attachments": []}))


def gc(**lists):
    keys = {"valid": "cni.dev/valid-attachments", "older": "cni.dev/attachments"}
    return conf(**{keys[name]: value for name, value in lists.items()})


A = {"containerID": "a", "ifname": "eth0"}
B = {"containerID": "b", "ifname": "net1"}


@pytest.mark.parametrize(
    ("body", "valid"),
    [
        (gc(valid=[A, B], older=[A, B]), {("a", "eth0"), ("b", "net1")}),
        (gc(older=[B]), {("b", "net1")}),
        (gc(valid=[]), set()),
        (gc(valid=None, older=None), set()),
        (gc(valid=None, older=[A]), {("a", "eth0")}),
        (gc(valid=[A], older=[B]), {("a", "eth0"), ("b", "net1")}),
    ],
)
def test_gc_reads_the_valid_attachments_under_either_key(body, valid):
    """null is how a Go runtime writes an empty list; of two lists the more careful reading is taken."""
    request = parse_request({"CNI_COMMAND": "GC", "CNI_PATH": "/x"}, body)
    assert request.valid_attachments == valid
    assert (request.conf_name, request.container_id) == ("blue", "")


@pytest.mark.parametrize(
    "body", [conf(), gc(valid={}), gc(valid="x"), gc(valid=[{"containerID": "a"}]), gc(valid=[None]), gc(older=[7])]
)
def test_gc_without_a_list_it_can_read_is_refused_and_never_taken_for_an_empty_one(body):
    """I8: a source that can't be read is never taken for an empty one."""
    with pytest.raises(ConfigError, match=r"cni\.dev/"):
        parse_request({"CNI_COMMAND": "GC"}, body)


def test_status_minds_the_version_alone():
    request = parse_request({"CNI_COMMAND": "STATUS"}, conf(name=..., ipam=7, dns=[]))
    assert (request.verb, request.network) == (Verb.STATUS, None)
    with pytest.raises(VersionError):
        parse_request({"CNI_COMMAND": "STATUS"}, b"{")


@pytest.mark.parametrize(
    ("body", "version"), [(b"", "1.1.0"), (b'{"cniVersion": "1.0.0"}', "1.0.0"), (b'{"cniVersion": "7"}', "7")]
)
def test_version_is_always_understood(body, version):
    assert parse_request({"CNI_COMMAND": "VERSION"}, body).cni_version == version


def test_a_request_cannot_be_changed_after_it_was_checked():
    request = parse_request(variables(), conf())
    with pytest.raises(AttributeError):
        request.container_id = "other"
    assert msgspec.structs.asdict(request)["container_id"] == CONTAINER


def test_a_call_without_network_has_no_owner():
    with pytest.raises(ValueError, match="network"):
        parse_request(variables("DEL"), b"{}").owner()
