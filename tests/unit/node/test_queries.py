"""What the agent answers to the CLI, on a real book and a real ledger."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from allotment.addressing.errors import ConfigError
from allotment.addressing.state import StateKind
from allotment.cni.exchange import Reply
from allotment.cni.frames import encode_reply
from allotment.node.inquiries.queries import ROOM
from allotment.node.view import FileProblem
from looking import World, allocation, network, reservation, view_of

BLUE = network()


@pytest.fixture
async def world(tmp_path):
    world = await World(tmp_path).start(BLUE, allocation(BLUE))
    yield world
    await world.stop()


async def test_a_fresh_node_says_so(world):
    status = await world.ask("status")
    assert status["node"] == "node-3"
    assert status["running"]
    assert status["ledger"]["state"] == "open"
    assert status["ledger"]["ledgerID"] == world.ledger.ledger_id
    assert (status["leases"], status["resting"], status["inFlight"]) == (0, 0, 0)
    assert [(entry["network"], entry["phase"]) for entry in status["networks"]] == [("blue", "serving")]
    assert status["networks"][0]["blocks"] == ["10.4.1.0/24", "fd00:4::/64"]


async def test_status_counts_leases_rests_and_uptime(world):
    await world.give("c1", "default/web-0")
    await world.give("c2", "default/web-1")
    await world.free("c2")
    world.clock.advance(60)
    status = await world.ask("status")
    assert (status["leases"], status["resting"], status["uptime"]) == (2, 2, 60.0)


async def test_status_counts_the_calls_in_flight(world):
    world.queries.count_in_flight(lambda: 3)
    assert (await world.ask("status"))["inFlight"] == 3


async def test_status_tells_problems_of_the_source_by_file_and_line(world):
    await world.see(
        BLUE,
        allocation(BLUE),
        problems=(FileProblem("blue.yaml", 7, "must be a number"),),
        doubted="the folder is empty",
    )
    source = (await world.ask("status"))["source"]
    assert source["problems"] == [{"file": "blue.yaml", "line": 7, "message": "must be a number"}]
    assert source["doubted"] == "the folder is empty"


async def test_a_drain_names_what_it_waits_for(world):
    await world.give("c1", "default/web-0")
    await world.see(BLUE, allocation(BLUE, deletionTimestamp="2023-11-14T22:00:00Z"))
    (blue,) = (await world.ask("status"))["networks"]
    assert blue["phase"] == "draining"
    assert blue["waitsFor"] == ["default/web-0"]
    assert blue["waitsForMore"] == 0
    assert blue["leases"] == 2


async def test_a_drain_names_a_few_and_counts_the_others(world):
    for number in range(10):
        await world.give(f"c{number}", f"default/web-{number}")
    await world.see(BLUE, allocation(BLUE, deletionTimestamp="2023-11-14T22:00:00Z"))
    (blue,) = (await world.ask("status"))["networks"]
    assert blue["waitsFor"] == [f"default/web-{number}" for number in range(8)]
    assert blue["waitsForMore"] == 2


async def test_a_closed_and_a_waiting_network_differ(world):
    red = network("red", subnets=[{"cidr": "10.5.0.0/24", "hostPrefixLength": 24}])
    closed = allocation(BLUE)
    closed["spec"]["closed"] = True
    await world.see(BLUE, closed, red)
    phases = {entry["network"]: entry["phase"] for entry in (await world.ask("status"))["networks"]}
    assert phases == {"blue": "closed", "red": "not admitted"}


async def test_closing_the_last_subnet_of_a_family_shows_as_closed(world):
    first, second = BLUE["spec"]["subnets"]
    shut = {**BLUE, "spec": {**BLUE["spec"], "subnets": [first, {**second, "closed": True}]}}
    await world.see(shut, allocation(BLUE))
    (blue,) = (await world.ask("status"))["networks"]
    assert blue["phase"] == "closed"
    assert "its IPv6 subnets all are" in blue["reason"]


async def test_leases_of_a_network_that_vanished_are_still_told(world):
    await world.give("c1", "default/web-0")
    await world.see()
    (gone,) = (await world.ask("status"))["networks"]
    assert (gone["phase"], gone["leases"]) == ("gone", 2)


@pytest.mark.parametrize(
    ("question", "containers"),
    [
        ({}, {"c1aaaa", "c2bbbb"}),
        ({"pod": "default/web-0"}, {"c1aaaa"}),
        ({"container": "c2bb"}, {"c2bbbb"}),
        ({"container": "c2"}, set()),  # too few characters to stand for an ID
        ({"address": "fd00:0004::0002"}, {"c1aaaa"}),
        ({"network": "blue", "pod": "default/web-1"}, {"c2bbbb"}),
        ({"network": "red"}, set()),
        ({"pod": "default/web-0", "container": "c2bbbb"}, set()),
    ],
)
async def test_every_filter_must_fit(world, question, containers):
    await world.give("c1aaaa", "default/web-0")
    await world.give("c2bbbb", "default/web-1")
    leases = (await world.ask("leases", **question))["leases"]
    assert {lease["container"] for lease in leases} == containers


async def test_a_malformed_question_is_refused_with_the_right_form(world):
    with pytest.raises(ConfigError, match="NAMESPACE/POD"):
        await world.ask("leases", pod="web-0")
    with pytest.raises(ConfigError, match="leading zeros"):
        await world.ask("leases", address="10.4.1.007")
    with pytest.raises(ConfigError, match="one version"):
        await world.ask("leases", colour="blue")


async def test_a_long_listing_comes_in_pieces_that_belong_together(world):
    """What is given or freed between two pieces doesn't change the listing that was begun."""
    world.queries._listings._room = 2000
    for number in range(12):
        await world.give(f"container-{number:02}")
    seen, page = [], await world.ask("leases")
    pieces = 1
    while page["more"]:
        seen += [lease["container"] for lease in page["leases"]]
        await world.free(f"container-{pieces:02}")
        await world.give(f"later-{pieces}")
        page = await world.ask("leases", more=page["more"])
        pieces += 1
    seen += [lease["container"] for lease in page["leases"]]
    assert pieces > 3
    assert sorted(seen) == sorted(2 * [f"container-{number:02}" for number in range(12)])


async def test_an_answer_fits_in_a_frame_however_long_the_names_are(world):
    pod = f"{'n' * 63}/{'p' * 253}"
    for number in range(110):
        await world.give(f"{number:03}{'c' * 60}", pod, netns="/run/netns/" + "d/" * 2000)
    raw = await world.queries.table()["leases"](b"{}")
    assert len(raw) > ROOM
    assert encode_reply(Reply(raw))  # refuses what is too long
    assert json.loads(raw)["more"]


async def test_a_listing_is_forgotten_after_a_while(tmp_path):
    world = await World(tmp_path).start(BLUE, allocation(BLUE))
    try:
        world.queries._listings._room = 1
        await world.give("c1")
        first = await world.ask("leases")
        assert first["more"]
        world.clock.advance(31)
        assert (await world.ask("leases", more=first["more"]))["expired"]
    finally:
        await world.stop()


# -- explain


async def facts_of(world, subject):
    return (await world.ask("explain", subject=subject))["addresses"]


async def test_explain_an_address_that_is_held_in_any_spelling(world):
    lease = (await world.give("c1", "default/web-0"))[1]
    for spelling in (str(lease.address), "FD00:0004:0:0::2", "fd00:4:0:0:0:0:0:2"):
        (facts,) = await facts_of(world, spelling)
        assert facts["state"] == StateKind.LEASED
        assert facts["lease"]["pod"] == "web-0"
        assert facts["lease"]["sequence"] == lease.sequence
        assert (facts["subnet"], facts["block"]) == ("fd00:4::/64", "fd00:4::/64")


async def test_explain_what_is_cooling_says_who_had_it_and_until_when(world):
    await world.give("c1", "default/web-0")
    await world.free("c1")
    world.clock.advance(10)
    (facts,) = await facts_of(world, "10.4.1.2")
    assert facts["state"] == StateKind.COOLING
    assert facts["coolingLeft"] == pytest.approx(20)
    assert facts["last"]["pod"] == "web-0"
    assert facts["last"]["ended"]["cause"] == "del"


async def test_explain_names_every_object_that_keeps_an_address_back(world):
    guarded = network(
        subnets=[{"cidr": "10.4.1.0/24", "hostPrefixLength": 24, "exclude": ["10.4.1.16/28"]}],
    )
    await world.see(
        guarded, allocation(guarded), reservation("infra", "10.4.1.0/27"), reservation("wide", "10.0.0.0/8")
    )
    (facts,) = await facts_of(world, "10.4.1.20")
    assert facts["state"] == StateKind.RESERVED
    assert facts["heldBack"] == [
        "Network blue excludes it in subnet 10.4.1.0/24",
        "IPReservation infra reserves it with 10.4.1.0/27",
        "IPReservation wide reserves it with 10.0.0.0/8",
    ]


@pytest.mark.parametrize(
    ("address", "state", "said"),
    [
        ("10.4.1.0", StateKind.EDGE, "network address of block 10.4.1.0/24"),
        ("10.4.1.1", StateKind.GATEWAY, "gateway of block 10.4.1.0/24"),
        ("10.4.1.255", StateKind.EDGE, "broadcast address of block 10.4.1.0/24"),
        ("fd00:4::", StateKind.EDGE, "subnet-router anycast address of block fd00:4::/64"),
        ("10.4.1.9", StateKind.NEVER_USED, None),
        ("192.0.2.1", StateKind.FOREIGN, None),
    ],
)
async def test_explain_what_nobody_holds(world, address, state, said):
    (facts,) = await facts_of(world, address)
    assert facts["state"] == state
    assert (said is None) == (not facts["heldBack"])
    if said is not None:
        assert said in facts["heldBack"][0]


async def test_explain_an_address_that_two_networks_have(world):
    """Networks may overlap; each is told of."""
    red = network("red")
    await world.see(BLUE, allocation(BLUE), red, allocation(red))
    await world.give("c1", "default/web-0", of="red")
    facts = await facts_of(world, "10.4.1.2")
    assert [(entry["network"], entry["state"]) for entry in facts] == [("blue", "never used"), ("red", "leased")]


async def test_explain_a_pod_and_a_container_with_their_past(world):
    await world.give("c1-old-one", "default/web-0")
    await world.free("c1-old-one")
    await world.give("c2-new-one", "default/web-0")
    pod = await world.ask("explain", subject="default/web-0")
    assert pod["kind"] == "pod"
    assert {facts["lease"]["container"] for facts in pod["addresses"]} == {"c2-new-one"}
    assert {entry["container"] for entry in pod["past"]} == {"c1-old-one"}
    container = await world.ask("explain", subject="c1-o")
    assert container["kind"] == "container"
    assert container["addresses"] == []
    assert {entry["container"] for entry in container["past"]} == {"c1-old-one"}


async def test_explain_what_nobody_knows_answers_with_the_networks_there_are(world):
    report = await world.ask("explain", subject="default/nobody")
    assert report["addresses"] == report["past"] == []
    assert report["networks"] == ["blue"]


async def test_a_subject_that_can_be_nothing_is_refused(world):
    for subject, said in (("abc", "too short"), ("10.4.1.0/24", "is a prefix"), ("a/b/c", "NAMESPACE/POD")):
        with pytest.raises(ConfigError, match=said):
            await world.ask("explain", subject=subject)


# -- history


async def test_history_tells_who_had_an_address_at_a_time_held_or_ended(world):
    """'Who had 10.4.1.7 at 14:03?' finds a lease that ended since, and one that is held still."""
    await world.give("c1", "default/web-0", ips=("10.4.1.7",))
    world.clock.advance(100)
    await world.free("c1")
    world.clock.advance(100)
    await world.give("c2", "default/web-1", ips=("10.4.1.7",))
    begin = 1_700_000_000

    async def at(offset: int) -> list[str]:
        time = datetime.fromtimestamp(begin + offset, tz=UTC)
        report = await world.ask("history", address="10.4.1.7", at=time.isoformat())
        return [entry["container"] for entry in report["entries"]]

    assert await at(50) == ["c1"]
    assert await at(150) == []
    assert await at(200) == ["c2"]
    assert await at(90_000) == ["c2"]
    assert await at(-5) == []


async def test_history_is_newest_first_and_says_when_it_was_cut(world):
    for number in range(4):
        await world.give(f"c{number}")
        world.clock.advance(5)
        await world.free(f"c{number}")
    await world.give("c9")
    report = await world.ask("history", limit=4)
    assert report["cut"]
    assert [entry["container"] for entry in report["entries"]] == ["c9", "c9", "c3", "c3"]
    assert [entry["ended"] is None for entry in report["entries"]] == [True, True, False, False]
    whole = await world.ask("history", limit=10)
    assert not whole["cut"]
    assert len(whole["entries"]) == 10


@pytest.mark.parametrize("limit", [0, 1001])
async def test_a_limit_that_no_answer_could_hold_is_refused(world, limit):
    with pytest.raises(ConfigError, match="--limit"):
        await world.ask("history", limit=limit)


# -- utilization


async def test_utilization_is_exact_for_a_v6_block_of_any_size(world):
    await world.give("c1")
    v4, v6 = (await world.ask("utilization"))["networks"]
    assert (v4["family"], v4["capacity"], v4["inUse"], v4["available"]) == (4, "254", "1", "252")
    assert v6["capacity"] == str(2**64 - 1)
    assert v6["available"] == str(2**64 - 3)  # less the gateway and the lease
    assert v6["blocks"][0]["block"] == "fd00:4::/64"


async def test_utilization_of_one_network(world):
    assert (await world.ask("utilization", network="red"))["networks"] == []
    assert len((await world.ask("utilization", network="blue"))["networks"]) == 2


# -- gc


async def test_gc_frees_the_very_lease_that_is_named(world):
    lease = (await world.give("c1", "default/web-0"))[0]
    item = {"network": "blue", "address": str(lease.address), "sequence": lease.sequence}
    report = await world.ask("gc", items=[item], detail="its namespace is gone")
    assert [freed["address"] for freed in report["freed"]] == [str(lease.address)]
    assert world.book.at("blue", lease.address) is None
    entry = (await world.ask("history", address=str(lease.address)))["entries"][0]
    assert entry["ended"] == {**entry["ended"], "cause": "operator", "detail": "its namespace is gone"}
    again = await world.ask("gc", items=[item], detail="again")
    assert again["freed"] == []
    assert "free already" in again["kept"][0]["why"]


async def test_gc_never_frees_a_newer_lease_of_the_address(world):
    """I7: the address has since gone to another owner."""
    old = (await world.give("c1", ips=("10.4.1.7",)))[0]
    await world.free("c1")
    world.clock.advance(60)
    new = (await world.give("c2", ips=("10.4.1.7",)))[0]
    item = {"network": "blue", "address": "10.4.1.7", "sequence": old.sequence}
    report = await world.ask("gc", items=[item], detail="stale")
    assert report["freed"] == []
    assert "another owner" in report["kept"][0]["why"]
    assert world.book.at("blue", new.address) == new


async def test_everything_but_gc_only_looks(world):
    await world.give("c1", "default/web-0")
    before = world.book.snapshot().canonical()
    for name, arguments in (
        ("status", {}),
        ("leases", {}),
        ("explain", {"subject": "10.4.1.2"}),
        ("explain", {"subject": "10.4.1.77"}),
        ("history", {}),
        ("utilization", {}),
    ):
        await world.ask(name, **arguments)
    assert world.book.snapshot().canonical() == before


def test_the_view_helper_refuses_broken_manifests():
    """So that no test above passes for want of a network."""
    with pytest.raises(AssertionError):
        view_of(network(subnets=[]))
