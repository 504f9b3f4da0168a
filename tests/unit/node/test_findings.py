"""What the doctor finds, judged from looks that are made up."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from allotment.addressing.address import parse_address, parse_prefix
from allotment.addressing.errors import ConfigError
from allotment.addressing.intervals import IntervalSet
from allotment.addressing.lease import Owner
from allotment.node.doctor.findings import (
    Severity,
    compare_books,
    earlier_boots,
    held_twice,
    lasting,
    misplaced,
    namespaces_gone,
    remembered_without_lease,
    without_lease,
)
from allotment.node.inquiries.leftovers import confirmed, named, whose_namespace_is_gone
from allotment.node.inquiries.reports import LeaseReport, time_of
from allotment.node.namespaces import SeenNamespace
from allotment.node.orphans.evidence import namespace_gone
from allotment.node.rebuilding.evidence import CachedAttachment

BLOCKS = IntervalSet.of(parse_prefix("10.4.1.0/24"), parse_prefix("fd00:4::/64"))
GATEWAYS = IntervalSet.of(parse_address("10.4.1.1"))
BOOT = "boot-1"


def lease(number: int, **changes: object) -> LeaseReport:
    """Lease `number`, of 10.4.1.`number`."""
    made = LeaseReport(
        network="blue",
        address=f"10.4.1.{number}",
        block="10.4.1.0/24",
        container=f"container-{number}",
        interface="eth0",
        pod_namespace="default",
        pod=f"web-{number}",
        pod_uid=f"uid-{number}",
        conf_name="blue-net",
        kind="pod",
        sequence=number,
        given=time_of(1_700_000_000),
        boot=BOOT,
        seconds=1000.0,
        netns=f"/run/netns/cni-{number}",
    )
    return replace(made, **changes)


def namespace(path: str, *addresses: str) -> SeenNamespace:
    return SeenNamespace(frozenset({path}), tuple((parse_address(text), "eth0") for text in addresses))


# -- memory and disk


def test_what_agrees_is_no_finding():
    assert compare_books([lease(2), lease(3)], [lease(3), lease(2)]) == ()


@pytest.mark.parametrize(
    ("disk", "memory", "said"),
    [
        ([lease(2)], [], "the agent knows nothing of it"),
        ([], [lease(2)], "it is not on disk"),
        ([lease(2)], [lease(2, container="other", sequence=9)], "the agent lease 9"),
        ([lease(2)], [lease(2, netns="/elsewhere")], "lease 2"),
    ],
)
def test_what_only_one_side_knows_is_found(disk, memory, said):
    (finding,) = compare_books(disk, memory)
    assert finding.severity is Severity.PROBLEM
    assert said in finding.what
    assert finding.where == "10.4.1.2 in network blue"


def test_a_lease_that_begins_or_ends_between_looks_is_no_finding():
    """Its beginning spoils one look and its end another; the third agrees."""
    begins = compare_books([lease(2)], [])
    well = compare_books([lease(2)], [lease(2)])
    ends = compare_books([], [lease(2)])
    for looks in ((begins, well, ends), (begins, ends, well), (well, begins, ends), (begins, ends, begins)):
        assert lasting(*looks) == ()
    assert lasting(begins, begins, begins) == begins


def test_another_lease_of_the_address_is_another_finding():
    """A busy address is given anew between looks: that isn't one lease that lasts."""
    first = compare_books([lease(2)], [])
    second = compare_books([lease(2, sequence=7, container="next")], [])
    assert lasting(first, second, second) == ()


def test_an_address_with_two_owners_is_found():
    """I1"""
    (finding,) = held_twice([lease(2), lease(2, sequence=9), lease(3)], "the agent")
    assert "lease 2 of pod default/web-2, lease 9" in finding.what
    assert held_twice([lease(2), lease(2, network="red")], "the agent") == ()


def test_leases_of_an_earlier_boot_are_a_problem_only_while_the_agent_runs():
    leases = [lease(2), lease(3, boot="boot-0"), lease(4, boot="boot-0", kind="tunnel")]
    (finding,) = earlier_boots(leases, BOOT, running=True)
    assert finding.severity is Severity.PROBLEM
    assert "10.4.1.3" in finding.what
    assert "10.4.1.4" not in finding.what
    (finding,) = earlier_boots(leases, BOOT, running=False)
    assert finding.severity is Severity.NOTE
    assert earlier_boots([lease(2)], BOOT, running=True) == ()


# -- kernel


def test_a_pod_with_its_leased_address_is_well():
    assert without_lease([lease(2)], [namespace("/run/netns/cni-2", "10.4.1.2")], BLOCKS, GATEWAYS) == ()


def test_an_address_of_ours_without_a_lease_is_found():
    (finding,) = without_lease([], [namespace("/run/netns/x", "10.4.1.9", "192.0.2.1", "10.4.1.1")], BLOCKS, GATEWAYS)
    assert finding.where == "10.4.1.9 on eth0 in /run/netns/x"
    assert "has no lease" in finding.what


def test_an_address_that_is_leased_to_another_namespace_is_found():
    """I1: two pods use one address."""
    seen = [namespace("/run/netns/cni-2", "10.4.1.2"), namespace("/run/netns/thief", "10.4.1.2")]
    (finding,) = without_lease([lease(2)], seen, BLOCKS, GATEWAYS)
    assert finding.where == "10.4.1.2 on eth0 in /run/netns/thief"
    assert "leased to pod default/web-2" in finding.what


def test_a_namespace_may_be_found_at_another_path_than_the_lease_names():
    seen = SeenNamespace(
        frozenset({"/run/netns/cni-2", "/var/run/netns/cni-2"}), ((parse_address("10.4.1.2"), "eth0"),)
    )
    assert without_lease([lease(2, netns="/var/run/netns/cni-2")], [seen], BLOCKS, GATEWAYS) == ()


def test_a_lease_whose_address_is_not_there_is_found_once_it_is_old_enough():
    seen = [namespace("/run/netns/cni-2")]
    (finding,) = misplaced([lease(2)], seen, (BOOT, 1100.0))
    assert "not configured" in finding.what
    assert misplaced([lease(2)], seen, (BOOT, 1010.0)) == ()
    assert misplaced([lease(3)], seen, (BOOT, 1100.0)) == ()  # a namespace that wasn't seen proves nothing


def test_a_namespace_that_is_gone_is_found_and_one_that_cannot_be_judged_is_not():
    answers = {"/run/netns/cni-2": True, "/run/netns/cni-3": False, "/run/netns/cni-4": None}
    found = namespaces_gone([lease(2), lease(3), lease(4), lease(2, boot="boot-0")], BOOT, answers.get)
    assert [finding.where for finding in found] == ["10.4.1.2 in network blue"]


def test_one_namespace_that_is_gone_is_one_finding():
    pair = [lease(2), lease(3, netns="/run/netns/cni-2", address="fd00:4::2")]
    (finding,) = namespaces_gone(pair, BOOT, lambda _: True)
    assert finding.where == "10.4.1.2 in network blue, fd00:4::2 in network blue"


def test_what_the_runtime_remembers_and_nobody_leased_is_found():
    """Only while its namespace is there: libcni's cache outlives pods."""

    def remembered(number: int) -> CachedAttachment:
        owner = Owner("blue", f"container-{number}", "eth0")
        return CachedAttachment(owner, f"/run/netns/cni-{number}", (parse_address(f"10.4.1.{number}"),))

    there = {"/run/netns/cni-2": False, "/run/netns/cni-3": False, "/run/netns/cni-4": True}
    found = remembered_without_lease([lease(2)], [remembered(number) for number in (2, 3, 4, 5)], there.get)
    assert [finding.where for finding in found] == ["10.4.1.3 in network blue"]


# -- the evidence itself


def test_a_path_is_gone_only_when_its_folder_is_there_without_it(tmp_path):
    """I8: what can't be looked at proves nothing."""
    (tmp_path / "left-behind").touch()
    (tmp_path / "there").symlink_to("/proc/self/ns/net")
    (tmp_path / "file").touch()
    assert namespace_gone(str(tmp_path / "absent")) is True
    assert namespace_gone(str(tmp_path / "left-behind")) is True
    assert namespace_gone(str(tmp_path / "there")) is False
    assert namespace_gone(str(tmp_path / "no-folder" / "x")) is None
    assert namespace_gone(str(tmp_path / "file" / "x")) is None
    assert namespace_gone("/proc/999999999/ns/net") is None
    assert namespace_gone("") is None
    assert namespace_gone("relative/path") is None


# -- what gc may free


def gone_but_3(path: str) -> bool | None:
    return None if not path else path != "/run/netns/cni-3"


def test_gc_takes_leases_of_this_boot_whose_namespace_is_gone_and_no_young_ones():
    """I8: never a lease younger than two minutes."""
    leases = [
        lease(2),
        lease(3),
        lease(4, seconds=1900.0),
        lease(5, boot="boot-0"),
        lease(6, kind="tunnel"),
        lease(7, netns=""),
    ]
    found = whose_namespace_is_gone(leases, gone_but_3, boot=BOOT, seconds=2000.0)
    assert [candidate.lease.sequence for candidate in found] == [2]


def test_when_every_namespace_is_gone_the_look_is_doubted():
    """I8: an empty answer from a source that should not be empty is doubted."""
    with pytest.raises(ConfigError, match="--all-gone"):
        whose_namespace_is_gone([lease(2), lease(4)], gone_but_3, boot=BOOT, seconds=2000.0)
    believed = whose_namespace_is_gone([lease(2), lease(4)], gone_but_3, boot=BOOT, seconds=2000.0, believe=True)
    assert len(believed) == 2


def test_only_what_both_looks_show_is_confirmed():
    """I7, I8: by sequence number, so a lease that was given anew between the looks is not freed."""
    first = whose_namespace_is_gone([lease(2), lease(3), lease(4)], gone_but_3, boot=BOOT, seconds=2000.0)
    later = [lease(2), lease(3), lease(4, sequence=40, seconds=1000.0)]
    second = whose_namespace_is_gone(later, gone_but_3, boot=BOOT, seconds=2030.0)
    assert [candidate.lease.sequence for candidate in confirmed(first, second)] == [2]


def test_a_named_lease_in_use_is_not_freed_without_force():
    with pytest.raises(ConfigError, match="--force"):
        named([lease(3)], gone_but_3)
    assert [candidate.lease.sequence for candidate in named([lease(3)], gone_but_3, force=True)] == [3]
    assert [candidate.why for candidate in named([lease(7, netns="")], gone_but_3)] == ["named by the operator"]
