"""What the commands print, to the letter, in every form: from a real node on a clock that stands still."""

from __future__ import annotations

import msgspec
import pytest

from allotment.cli import FORMS, doctor, explain, gc, history, leases, status, utilization
from allotment.cli.output import render_document, render_rows
from allotment.node.doctor.examination import Examined, Skipped
from allotment.node.doctor.findings import Finding, Severity
from allotment.node.inquiries.kept import KeptDel
from allotment.node.inquiries.leftovers import Candidate
from allotment.node.inquiries.reports import (
    ExplainReport,
    HistoryReport,
    LeasesReport,
    StatusReport,
    UtilizationReport,
    decode_answer,
    time_of,
)
from allotment.node.view import FileProblem
from golden_file import matches_golden
from looking import World, allocation, network, reservation

WIDTH = 80


@pytest.fixture
async def world(tmp_path):
    """Two networks with some life behind them, one of them draining."""
    blue = network(
        subnets=[
            {"cidr": "10.4.1.0/24", "hostPrefixLength": 24, "exclude": ["10.4.1.64/26"]},
            {"cidr": "fd00:4::/64", "hostPrefixLength": 64},
        ]
    )
    red = network("red", subnets=[{"cidr": "10.5.0.0/29", "hostPrefixLength": 29}])
    objects = (blue, allocation(blue), red, allocation(red), reservation("infra", "10.4.1.0/28"))
    world = await World(tmp_path).start(*objects)
    await world.give("3f2a9c81d0b4e5f6a7b8", "default/web-0", netns="/run/netns/cni-1", ips=("10.4.1.20",))
    world.clock.advance(5000)
    await world.give("77aa9c81d0b4e5f6a7b8", "default/web-1", netns="/run/netns/cni-2")
    await world.give("aaaa9c81d0b4e5f6a7b8", "shop/cart-5d9f8", of="red", netns="/run/netns/cni-3")
    await world.give("bbbb9c81d0b4e5f6a7b8", "shop/cart-x2k4l", of="red", netns="/run/netns/cni-4")
    world.clock.advance(100)
    await world.free("77aa9c81d0b4e5f6a7b8", "default/web-1")
    world.clock.advance(11.5)
    await world.see(
        *objects[:3],
        allocation(red, deletionTimestamp="2023-11-14T22:00:00Z"),
        objects[4],
        network("green", subnets=[{"cidr": "10.6.0.0/16", "hostPrefixLength": 24}]),
        problems=(
            FileProblem("/etc/allotment/green.yaml", 12, "spec.subnets[0].cidr: '10.6.0.1/24' has host bits set"),
        ),
        unadmitted={"green": "nobody is newly admitted while /etc/allotment/green.yaml can't be read"},
    )
    yield world
    await world.stop()


async def asked(world, name, kind, **arguments):
    return decode_answer(await world.queries.table()[name](msgspec.json.encode(arguments)), kind)


def check(name: str, form: str, text: str) -> None:
    if form == "table":
        assert max(map(len, text.splitlines())) <= WIDTH, "too wide to be read at 80 columns"
    matches_golden(f"{name}.{form}.txt", text)


@pytest.mark.parametrize("form", FORMS)
async def test_leases(world, form):
    report = await asked(world, "leases", LeasesReport)
    now = time_of(world.clock.wall())
    check("leases", form, render_rows(leases.rows(report.leases), leases.columns(form, now), form))


@pytest.mark.parametrize("form", FORMS)
async def test_history(world, form):
    report = await asked(world, "history", HistoryReport)
    check("history", form, render_rows(history.rows(report.entries), history.columns(form), form))


@pytest.mark.parametrize("form", FORMS)
async def test_utilization(world, form):
    report = await asked(world, "utilization", UtilizationReport)
    rows = utilization.rows(report.networks, blocks=form != "table")
    check("utilization", form, render_rows(rows, utilization.columns(form), form))


@pytest.mark.parametrize("form", FORMS)
async def test_status(world, form):
    found = await asked(world, "status", StatusReport)
    report = msgspec.structs.replace(
        found,
        version="0.1.0",
        in_flight=2,
        ledger=msgspec.structs.replace(
            found.ledger,
            ledger_id="0b5c0f0e-58a7-4a3e-9d3c-2f1f5a8f9a10",
            folder="/var/lib/allotment",
            size=1_300_000,
            free=1_300_000_000,
            last_write=time_of(world.clock.wall()),
        ),
        source=msgspec.structs.replace(found.source, place="/etc/allotment"),
        spool=msgspec.structs.replace(found.spool, folder="/run/allotment/spool", waiting=2, unreadable=1),
    )
    document = {"problems": status.problems(report), **msgspec.to_builtins(report)}
    check("status", form, render_document(document, form, lambda: status.text(report, wide=form == "wide")))


async def test_status_with_the_agent_down(world):
    found = await asked(world, "status", StatusReport)
    now = world.clock.wall()
    report = msgspec.structs.replace(
        found,
        running=False,
        down="no agent listens at /run/allotment/cni.sock; is it running?",
        ledger=msgspec.structs.replace(
            found.ledger,
            state="closed",
            folder="/var/lib/allotment",
            size=1_300_000,
            free=1_300_000_000,
            last_write=time_of(now - 7400),
        ),
        source=msgspec.structs.replace(found.source, kind="ledger", problems=()),
        asked=time_of(now),
    )
    check("status-down", "table", status.text(report, wide=False))


SUBJECTS = {
    "held": "10.4.1.20",
    "cooling": "FD00:4:0::0003",
    "gateway": "10.4.1.1",
    "reserved": "10.4.1.9",
    "excluded": "10.4.1.70",
    "free": "10.4.1.33",
    "edge": "10.4.1.255",
    "draining": "10.5.0.2",
    "elsewhere": "10.6.0.5",
    "pod": "default/web-1",
    "container": "3f2a",
}


@pytest.mark.parametrize("name", SUBJECTS)
async def test_explain(world, name):
    report = await asked(world, "explain", ExplainReport, subject=SUBJECTS[name])
    assert explain.known(report)
    check(f"explain-{name}", "table", explain.text(report, time_of(world.clock.wall()), gone=lambda _: False))


async def test_explain_an_address_whose_namespace_is_gone(world):
    report = await asked(world, "explain", ExplainReport, subject="10.4.1.20")
    now = time_of(world.clock.wall())
    check("explain-leftover", "table", explain.text(report, now, gone=lambda _: True))
    kept = [KeptDel("0001.del", "3f2a9c81d0b4e5f6a7b8", "eth0", "blue", world.clock.boot)]
    check("explain-spooled", "table", explain.text(report, now, kept=kept, gone=lambda _: True))


@pytest.mark.parametrize("form", ["json", "yaml"])
async def test_explain_for_programs(world, form):
    report = await asked(world, "explain", ExplainReport, subject="10.4.1.20")
    check("explain", form, render_document(msgspec.to_builtins(report), form, str))


@pytest.mark.parametrize("form", FORMS)
async def test_gc(world, form):
    report = await asked(world, "leases", LeasesReport, network="red")
    candidates = [Candidate(lease, f"its network namespace {lease.netns} is gone") for lease in report.leases]
    now = time_of(world.clock.wall())
    outcomes = {candidates[0].lease.sequence: "freed", candidates[1].lease.sequence: "it is free already"}
    for name, done in (("gc-dry-run", {}), ("gc", outcomes)):
        columns = gc.columns(form, leases.columns(form, now), freed=bool(done))
        check(name, form, render_rows(gc.rows(candidates, done), columns, form))


EXAMINED = Examined(
    checked=("socket", "ledger", "files and spool", "memory against disk", "boot of each lease"),
    findings=(
        Finding(
            Severity.PROBLEM,
            "namespace",
            "10.4.1.20 in network blue",
            "pod default/web-0 holds it, and its network namespace /run/netns/cni-1 is gone",
            "`allotment gc` shows such leases, and frees them with --yes",
        ),
        Finding(
            Severity.NOTE,
            "ledger",
            "/var/lib/allotment/ledger-20231114T221320Z.set-aside",
            "a ledger was set aside here: the ledger is damaged: row 7 missing from index",
            "keep it until you are sure that nothing is missing, then remove it",
        ),
    ),
    skipped=(Skipped("kernel", "looking into network namespaces needs root"),),
)


@pytest.mark.parametrize("form", FORMS)
def test_doctor(form):
    check("doctor", form, render_document(msgspec.to_builtins(EXAMINED), form, lambda: doctor.text(EXAMINED)))


def test_doctor_finds_nothing():
    well = Examined(checked=("socket", "ledger"), findings=(), skipped=())
    check("doctor-well", "table", doctor.text(well))


async def test_warnings_are_counted_and_shown_where_there_is_room(tmp_path):
    world = await World(tmp_path).start(network(), allocation(network()))
    await world.see(warnings=(FileProblem("blue.yaml", 7, "Network blue: spec.coolDown is unknown"),))
    report = await asked(world, "status", StatusReport)
    await world.stop()
    assert "warnings   1 warning about the source; -o wide shows them\n" in status.text(report, wide=False)
    assert "warnings   blue.yaml:7: Network blue: spec.coolDown is unknown\n" in status.text(report, wide=True)
