"""Leases made again from what runs: each witness believed for what only it knows, and contradictions told."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from allotment.addressing.address import parse_address, parse_prefix
from allotment.addressing.errors import InternalError
from allotment.addressing.lease import Owner
from allotment.addressing.plan import BlockPlan, Layer, NetworkPlan
from allotment.cri.messages import Sandbox
from allotment.node.namespaces import SeenNamespace
from allotment.node.orphans.adoption import Conflict, User
from allotment.node.rebuilding.cni_cache import read_cni_cache
from allotment.node.rebuilding.evidence import CachedAttachment, Evidence, RunningPod
from allotment.node.rebuilding.judgement import judge

if TYPE_CHECKING:
    from pathlib import Path

BLOCK = parse_prefix("10.1.0.0/24")
PLAN = NetworkPlan("blue", Layer.L3, (BLOCK,), (BlockPlan(BLOCK, 24, parse_address("10.1.0.1")),), 0.0)
WEB = Owner("blue", "web-sandbox", "eth0", "shop", "web-0", "uid-0", "blue")


def cached(owner: Owner = WEB, netns: str = "/run/netns/a", *addresses: str) -> CachedAttachment:
    return CachedAttachment(owner, netns, tuple(map(parse_address, addresses or ("10.1.0.5",))))


def seen(netns: str, *addresses: str, interface: str = "eth0") -> SeenNamespace:
    """A namespace that is there, with these addresses. What lies below /run is below /var/run, too."""
    return SeenNamespace(
        frozenset({netns, f"/var{netns}"}), tuple((parse_address(address), interface) for address in addresses)
    )


def running(container: str = "web-sandbox", netns: str = "/run/netns/a", *ips: str, **more) -> Sandbox:
    told = {"name": "web-0", "namespace": "shop", "uid": "uid-0", "ready": True, **more}
    return Sandbox(container, netns=netns, ips=tuple(map(parse_address, ips)), **told)


def heard(*witnesses, gone=()) -> Evidence:
    def those(kind):
        return tuple(item for item in witnesses if isinstance(item, kind))

    return Evidence(
        cached=those(CachedAttachment),
        sandboxes=those(Sandbox),
        pods=those(RunningPod),
        namespaces=those(SeenNamespace),
        gone=frozenset(gone),
    )


def claims(*witnesses, gone=()):
    found = judge([PLAN], heard(*witnesses, gone=gone))
    return {str(claim.address): claim for claim in found.claims}, found.remarks


def test_a_pod_that_both_witnesses_know_keeps_its_address_and_its_name() -> None:
    found, remarks = claims(cached(), seen("/run/netns/a", "10.1.0.5"))
    assert found["10.1.0.5"].owner == WEB
    assert found["10.1.0.5"].netns == "/run/netns/a"
    assert remarks == ()


def test_a_cached_pod_whose_namespace_is_gone_has_nothing_any_more() -> None:
    found, _ = claims(cached(), gone={"/run/netns/a"})
    assert found == {}


def test_a_cached_pod_that_names_no_namespace_is_believed() -> None:
    """libcni before 1.2 did not write it down; a lease too many ends with its DEL, one too few is a duplicate (I1)."""
    found, _ = claims(cached(netns=""))
    assert found["10.1.0.5"].owner == WEB


def test_a_cached_pod_whose_namespace_lives_is_believed_before_the_address_is_up() -> None:
    found, _ = claims(cached(), seen("/run/netns/a"))
    assert set(found) == {"10.1.0.5"}


def test_an_address_that_only_a_namespace_shows_is_held_for_it() -> None:
    found, remarks = claims(seen("/run/netns/b", "10.1.0.9"))
    assert found["10.1.0.9"].owner == Owner("blue", "netns-b", "eth0")
    assert "10.1.0.9" in remarks[0]


def test_of_two_that_claim_one_address_the_one_that_has_it_wins() -> None:
    stale = cached(replace(WEB, container_id="old-sandbox"), "/run/netns/b")
    for order in ((stale, cached()), (cached(), stale)):
        found, remarks = claims(*order, seen("/run/netns/a", "10.1.0.5"))
        assert found["10.1.0.5"].owner == WEB
        assert any("old-sandbox" in remark for remark in remarks)


def test_one_address_in_two_namespaces_is_said_and_given_to_nobody_else() -> None:
    found, remarks = claims(cached(), seen("/run/netns/a", "10.1.0.5"), seen("/run/netns/b", "10.1.0.5"))
    assert found["10.1.0.5"].owner == WEB
    assert any("conflict" in remark for remark in remarks)


def test_what_lies_in_no_block_of_ours_is_not_ours() -> None:
    found, _ = claims(cached(WEB, "/run/netns/a", "10.9.0.5"), seen("/run/netns/b", "192.0.2.1"))
    assert found == {}


def test_what_lies_in_no_block_yet_is_remembered_for_when_there_is_one() -> None:
    """I15: pods ran before the ledger was lost, in a network that is heard of only later."""
    evidence = heard(cached(), cached(WEB, "/run/netns/a", "10.9.0.5"), seen("/run/netns/b", "10.9.0.9"))
    wide = parse_prefix("10.9.0.0/24")
    blocks = (*PLAN.blocks, BlockPlan(wide, 24, parse_address("10.9.0.1")))
    before = judge([PLAN], evidence)
    assert before.unplaced == {("blue", parse_address("10.9.0.5")), (None, parse_address("10.9.0.9"))}
    assert not before.can_place([PLAN])

    more = replace(PLAN, blocks=blocks)
    assert before.can_place([more])
    after = judge([more], evidence)
    assert [str(claim.address) for claim in before.late(after)] == ["10.9.0.5", "10.9.0.9"]
    assert after.unplaced == frozenset()

    elsewhere = replace(more, name="red")
    after = judge([elsewhere], evidence)
    assert [str(claim.address) for claim in before.late(after)] == ["10.9.0.9"]
    assert not after.can_place([elsewhere])


def test_the_runtime_alone_tells_whose_an_address_is() -> None:
    found, remarks = claims(running("s1", "/var/run/netns/a", "10.1.0.5"), seen("/run/netns/a", "10.1.0.5"))
    assert found["10.1.0.5"].owner == Owner("blue", "s1", "eth0", "shop", "web-0", "uid-0")
    assert found["10.1.0.5"].netns == "/var/run/netns/a", "as the runtime's DEL will name it"
    assert remarks == ()


def test_the_runtime_is_believed_where_a_namespace_cant_be_looked_into() -> None:
    found, _ = claims(running("s1", "", "10.1.0.5"))
    assert found["10.1.0.5"].owner.container_id == "s1"
    found, _ = claims(running("s1", "", "10.1.0.5", host_network=True))
    assert found == {}


def test_what_is_configured_on_the_node_itself_is_no_pods() -> None:
    """CRI-O mounts the node's namespace for pods in the host's network; containerd doesn't."""
    proxy = running("s1", "/run/netns/host", host_network=True)
    found, remarks = claims(proxy, seen("/run/netns/host", "10.1.0.9", interface="cni0"))
    assert (found, remarks) == ({}, ())


def test_each_interface_of_a_pod_has_its_own_leases() -> None:
    """Multus: the runtime tells of the first interface alone."""
    namespace = SeenNamespace(
        frozenset({"/run/netns/a"}), ((parse_address("10.1.0.5"), "eth0"), (parse_address("10.1.0.6"), "net1"))
    )
    found, _ = claims(running("s1", "/run/netns/a", "10.1.0.5"), namespace)
    assert {address: claim.owner.interface for address, claim in found.items()} == {
        "10.1.0.5": "eth0",
        "10.1.0.6": "net1",
    }


def test_a_sandbox_that_has_stopped_holds_what_its_namespace_still_shows() -> None:
    """Its DEL hasn't come yet. Once the namespace is gone, it has."""
    stopped = running("s1", "/run/netns/a", "10.1.0.5", ready=False)
    found, _ = claims(stopped, seen("/run/netns/a", "10.1.0.5"))
    assert found["10.1.0.5"].owner.container_id == "s1"
    found, _ = claims(stopped, gone={"/run/netns/a"})
    assert found == {}


@pytest.mark.parametrize("teller", ["the runtime", "libcni's cache"])
def test_the_real_address_wins_over_the_one_that_is_told(teller: str) -> None:
    tells = cached if teller == "libcni's cache" else running
    subject = WEB if tells is cached else WEB.container_id
    found, remarks = claims(tells(subject, "/run/netns/a", "10.1.0.7"), seen("/run/netns/a", "10.1.0.9"))
    assert {address: claim.owner.container_id for address, claim in found.items()} == {"10.1.0.9": "web-sandbox"}
    (remark,) = remarks
    assert teller in remark
    assert "10.1.0.7" in remark
    assert "10.1.0.9" in remark


def test_what_is_told_of_another_ones_real_address_is_no_conflict() -> None:
    found = judge(
        [PLAN],
        heard(
            running("s1", "/run/netns/a", "10.1.0.5"), running("s2", "", "10.1.0.5"), seen("/run/netns/a", "10.1.0.5")
        ),
    )
    assert [claim.owner.container_id for claim in found.claims] == ["s1"]
    assert found.conflicts == ()
    assert any("s2" in remark for remark in found.remarks)


def test_two_that_really_have_one_address_are_a_conflict_and_the_older_has_the_lease() -> None:
    older = running("s2", "/run/netns/b", "10.1.0.5", name="db-0", uid="uid-1", created_ns=1)
    younger = running("s1", "/run/netns/a", "10.1.0.5", created_ns=2)
    found = judge([PLAN], heard(younger, older, seen("/run/netns/a", "10.1.0.5"), seen("/run/netns/b", "10.1.0.5")))
    assert [claim.owner.container_id for claim in found.claims] == ["s2"]
    assert found.conflicts == (
        Conflict(
            "blue",
            parse_address("10.1.0.5"),
            (
                User("shop/db-0", "s2", "shop", "db-0", "uid-1"),
                User("shop/web-0", "s1", "shop", "web-0", "uid-0"),
            ),
        ),
    )


def test_of_two_that_have_one_address_it_is_his_who_is_told_to_have_it() -> None:
    intruder = running("s2", "/run/netns/b", "10.1.0.6", name="db-0", uid="uid-1", created_ns=1)
    rightful = running("s1", "/run/netns/a", "10.1.0.5", created_ns=2)
    both = seen("/run/netns/b", "10.1.0.5", "10.1.0.6")
    found = judge([PLAN], heard(intruder, rightful, seen("/run/netns/a", "10.1.0.5"), both))
    held = {str(claim.address): claim.owner.container_id for claim in found.claims}
    assert held == {"10.1.0.5": "s1", "10.1.0.6": "s2"}
    assert [str(conflict.address) for conflict in found.conflicts] == ["10.1.0.5"]


def test_an_address_in_an_overlap_is_held_in_both_networks() -> None:
    """Which one it was given in, the runtime doesn't say; libcni does."""
    red = replace(PLAN, name="red")
    evidence = heard(running("s1", "/run/netns/a"), seen("/run/netns/a", "10.1.0.5"))
    assert [claim.owner.network for claim in judge([PLAN, red], evidence).claims] == ["blue", "red"]
    remembered = cached(replace(WEB, container_id="s1", network="red"), "/run/netns/a")
    evidence = replace(evidence, cached=(remembered,))
    assert [claim.owner.network for claim in judge([PLAN, red], evidence).claims] == ["red"]


def test_a_pod_of_which_only_the_api_server_knows_keeps_its_address() -> None:
    pod = RunningPod("shop", "web-9", frozenset({"uid-9"}), (parse_address("10.1.0.9"),))
    found, remarks = claims(pod, running("s1", "/run/netns/a", "10.1.0.5"), seen("/run/netns/a", "10.1.0.5"))
    assert found["10.1.0.9"].owner == Owner("blue", "pod-uid-9", "eth0", "shop", "web-9", "uid-9")
    assert any("shop/web-9" in remark for remark in remarks)


def test_what_the_api_server_says_of_a_pod_that_the_runtime_knows_is_out_of_date() -> None:
    pod = RunningPod("shop", "web-0", frozenset({"mirror", "uid-0"}), (parse_address("10.1.0.9"),))
    found, _ = claims(pod, running("s1", "/run/netns/a", "10.1.0.5"), seen("/run/netns/a", "10.1.0.5"))
    assert set(found) == {"10.1.0.5"}


def test_without_a_runtime_the_api_server_names_the_pod_in_a_namespace() -> None:
    pod = RunningPod("shop", "web-9", frozenset({"uid-9"}), (parse_address("10.1.0.9"),))
    found, _ = claims(pod, seen("/run/netns/b", "10.1.0.9"))
    assert found["10.1.0.9"].owner == Owner("blue", "netns-b", "eth0", "shop", "web-9", "uid-9")


def test_in_a_network_of_claims_nobody_gets_a_lease_under_a_made_up_name() -> None:
    """The Claim holds the address, and gives the lease back to the container that it names."""
    claimed = replace(PLAN, claimed=True)
    pod = RunningPod("shop", "web-9", frozenset({"uid-9"}), (parse_address("10.1.0.9"),))
    assert judge([claimed], heard(pod, seen("/run/netns/b", "10.1.0.5"))).claims == ()
    found = judge([claimed], heard(running("s1", "/run/netns/b"), seen("/run/netns/b", "10.1.0.5")))
    assert [claim.owner.container_id for claim in found.claims] == ["s1"]


def cache_file(folder: Path, name: str, **changes: object) -> None:
    """A file as libcni writes it (cniCacheV1)."""
    config = {"cniVersion": "1.0.0", "name": "blue", "plugins": [{"type": "ptp", "ipam": {"type": "allotment"}}]}
    content = {
        "kind": "cniCacheV1",
        "containerId": "web-sandbox",
        "config": base64.b64encode(json.dumps(changes.pop("config", config)).encode()).decode(),
        "ifName": "eth0",
        "networkName": "blue",
        "netns": "/run/netns/a",
        "cniArgs": [["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", "web-0"], ["K8S_POD_UID", "uid-0"]],
        "result": {"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.5/24"}, {"address": "fd00::5/64"}]},
        **changes,
    }
    (folder / "results").mkdir(exist_ok=True)
    (folder / "results" / name).write_text(json.dumps(content))


def test_the_cache_is_read_as_libcni_writes_it(tmp_path: Path) -> None:
    cache_file(tmp_path, "blue-web-sandbox-eth0")
    (found,) = read_cni_cache(tmp_path)
    assert found == CachedAttachment(WEB, "/run/netns/a", (parse_address("10.1.0.5"), parse_address("fd00::5")))


def test_a_network_named_in_ipam_goes_before_the_lists_name(tmp_path: Path) -> None:
    config = {"name": "list", "plugins": [{"type": "ptp", "ipam": {"type": "allotment", "network": "blue"}}]}
    cache_file(tmp_path, "x", config=config, networkName="list")
    (found,) = read_cni_cache(tmp_path)
    assert (found.owner.network, found.owner.conf_name) == ("blue", "list")


def test_what_asked_somebody_else_is_passed_over(tmp_path: Path) -> None:
    cache_file(tmp_path, "x", config={"name": "blue", "type": "ptp", "ipam": {"type": "host-local"}})
    assert read_cni_cache(tmp_path) == ()


def test_a_file_that_is_half_there_is_passed_over_and_the_rest_is_read(tmp_path: Path) -> None:
    cache_file(tmp_path, "b-whole")
    (tmp_path / "results" / "a-half").write_text('{"kind": "cniCac')
    assert len(read_cni_cache(tmp_path)) == 1


def test_no_cache_is_no_witness_and_an_unreadable_one_stops_everything(tmp_path: Path) -> None:
    """I8: a source that can't be read is never taken for an empty one."""
    assert read_cni_cache(tmp_path / "missing") == ()
    (tmp_path / "results").write_text("not a folder")
    with pytest.raises(InternalError, match="results"):
        read_cni_cache(tmp_path)
