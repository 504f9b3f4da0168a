"""Leases made again from what runs: libcni's cache and the namespaces, each believed for what only it knows."""

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
from allotment.node.rebuild import CachedAttachment, Observed, read_cni_cache, rebuild

if TYPE_CHECKING:
    from pathlib import Path

BLOCK = parse_prefix("10.1.0.0/24")
PLAN = NetworkPlan("blue", Layer.L3, (BLOCK,), (BlockPlan(BLOCK, 24, parse_address("10.1.0.1")),), 0.0)
WEB = Owner("blue", "web-sandbox", "eth0", "shop", "web-0", "uid-0", "blue")


def cached(owner: Owner = WEB, netns: str = "/run/netns/a", *addresses: str) -> CachedAttachment:
    return CachedAttachment(owner, netns, tuple(map(parse_address, addresses or ("10.1.0.5",))))


def seen(netns: str, address: str) -> Observed:
    return Observed(netns, "eth0", parse_address(address))


def claims(*witnesses, living=("/run/netns/a", "/run/netns/b")):
    found = rebuild(
        [PLAN],
        [item for item in witnesses if isinstance(item, CachedAttachment)],
        [item for item in witnesses if isinstance(item, Observed)],
        living=set(living),
    )
    return {str(claim.address): claim for claim in found.claims}, found.remarks


def test_a_pod_that_both_witnesses_know_keeps_its_address_and_its_name() -> None:
    found, remarks = claims(cached(), seen("/run/netns/a", "10.1.0.5"))
    assert found["10.1.0.5"].owner == WEB
    assert found["10.1.0.5"].netns == "/run/netns/a"
    assert remarks == ()


def test_a_cached_pod_whose_namespace_is_gone_has_nothing_any_more() -> None:
    found, _ = claims(cached(), living=())
    assert found == {}


def test_a_cached_pod_that_names_no_namespace_is_believed() -> None:
    """libcni before 1.2 did not write it down; a lease too many ends with its DEL, one too few is a duplicate (I1)."""
    found, _ = claims(cached(netns=""))
    assert found["10.1.0.5"].owner == WEB


def test_a_cached_pod_whose_namespace_lives_is_believed_before_the_address_is_up() -> None:
    found, _ = claims(cached())
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
    witnesses = [cached(), cached(WEB, "/run/netns/a", "10.9.0.5")], [seen("/run/netns/b", "10.9.0.9")]
    living = {"/run/netns/a", "/run/netns/b"}
    wide = parse_prefix("10.9.0.0/24")
    blocks = (*PLAN.blocks, BlockPlan(wide, 24, parse_address("10.9.0.1")))
    before = rebuild([PLAN], *witnesses, living=living)
    assert before.unplaced == {("blue", parse_address("10.9.0.5")), (None, parse_address("10.9.0.9"))}
    assert not before.can_place([PLAN])

    more = replace(PLAN, blocks=blocks)
    assert before.can_place([more])
    after = rebuild([more], *witnesses, living=living)
    assert [str(claim.address) for claim in before.late(after)] == ["10.9.0.5", "10.9.0.9"]
    assert after.unplaced == frozenset()

    elsewhere = replace(more, name="red")
    after = rebuild([elsewhere], *witnesses, living=living)
    assert [str(claim.address) for claim in before.late(after)] == ["10.9.0.9"]
    assert not after.can_place([elsewhere])


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
