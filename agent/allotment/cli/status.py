"""`allotment status`: how the agent is, and its networks. Problems come first."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import msgspec

from allotment.cli import Exit
from allotment.cli.informant import add_places, informant
from allotment.cli.output import Column, paint, render_rows, show_document
from allotment.cli.times import ago, local, span
from allotment.node.inquiries.reports import Phase

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from allotment.node.inquiries.reports import NetworkReport, ProblemReport, SourceReport, StatusReport

__all__ = ["configure", "problems", "run", "text"]

_WIDTH = 79
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `status`."""
    add_places(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Show the status; `Exit.PROBLEM` when something is wrong.

    Raises:
        AllotmentError: the agent answers, but not with a status.
    """
    with informant(arguments) as asked:
        report = asked.status()
    wrong = problems(report)
    document = {"problems": wrong, **msgspec.to_builtins(report)}
    show_document(document, arguments.output, lambda: text(report, wide=arguments.output == "wide"))
    return Exit.PROBLEM if wrong else Exit.OK


def problems(report: StatusReport) -> list[str]:
    """What is wrong, the worst first; a network that drains or is closed is not."""
    return list(_problems(report))


def _problems(report: StatusReport) -> Iterator[str]:
    ledger, source = report.ledger, report.source
    if not report.running:
        yield f"the agent is down: {report.down}"
        if ledger.reason:
            yield ledger.reason
    elif ledger.state != "open":
        yield f"the ledger is {ledger.state}: {ledger.reason}"
    if report.not_serving and report.not_serving != source.doubted:
        yield f"the agent isn't ready: {report.not_serving}"
    if source.doubted:
        yield f"the source is doubted: {source.doubted}"
    yield from map(_placed, source.problems)
    for network in report.networks if report.running else ():
        if network.phase is Phase.NOT_ADMITTED:
            yield network.reason
        elif network.phase is Phase.GONE and network.leases:
            yield f"network {network.network} is unknown here, but {_count(network.leases, 'lease')} of it are held"
    if report.spool.unreadable:
        yield f"the spool {report.spool.folder} has {_count(report.spool.unreadable, 'DEL')} that can't be read"


def text(report: StatusReport, *, wide: bool) -> str:
    """The status for a person."""
    wrong = problems(report)
    lines: list[str] = []
    if wrong:
        lines.append(paint(f"{_count(len(wrong), 'problem')}:", "red"))
        for problem in wrong:
            lines += textwrap.wrap(problem, _WIDTH, initial_indent="  ! ", subsequent_indent="    ")
        lines.append("")
    lines += _head(report, wide=wide)
    if report.networks:
        lines += ["", *_networks(report, wide=wide)]
    return "\n".join(lines) + "\n"


def _head(report: StatusReport, *, wide: bool) -> list[str]:
    agent = "agent down"
    if report.running:
        agent = f"agent {report.version}"
        if report.uptime is not None:
            agent += f", up {span(report.uptime)}"
        if report.started is not None:
            agent += f" (since {local(report.started)})"
    spool = report.spool
    kept = _count(spool.waiting, "DEL") + " kept" if spool.waiting else "empty"
    told = [("node", f"{report.node}, {agent}")]
    if report.running or not report.ledger.reason:
        told.append(("source", _source(report.source)))
    told += [
        ("ledger", _ledger(report)),
        ("leases", f"{report.leases} held, {report.resting} resting"),
        ("spool", f"{kept}, in {spool.folder}" if spool.waiting else kept),
    ]
    if report.running:
        told.append(("requests", f"{report.in_flight} in flight"))
    if report.source.warnings:
        told += _warnings(report.source, wide=wide)
    lines: list[str] = []
    for title, value in told:
        lines += textwrap.wrap(
            value, _WIDTH, initial_indent=f"{title:<11}", subsequent_indent=" " * 11, break_on_hyphens=False
        )
    return lines


def _source(source: SourceReport) -> str:
    if source.kind == "ledger":
        return "the objects that the ledger keeps, as they were last known"
    state = "doubted" if source.doubted else "in step" if source.synced else "not read yet"
    if source.out_of_contact is not None:
        state += f", out of contact for {span(source.out_of_contact)}"
    if source.problems:
        state += f", {_count(len(source.problems), 'problem')}"
    return f"{source.kind} {'at' if source.kind == 'cluster' else 'in'} {source.place}: {state}"


def _warnings(source: SourceReport, *, wide: bool) -> list[tuple[str, str]]:
    if not wide:
        return [("warnings", f"{_count(len(source.warnings), 'warning')} about the source; -o wide shows them")]
    return [("warnings" if number == 0 else "", _placed(each)) for number, each in enumerate(source.warnings)]


def _placed(problem: ProblemReport) -> str:
    """What is wrong or odd, behind the file and line that it stands in."""
    place = f"{problem.file}:{problem.line}" if problem.line else problem.file
    return f"{place}: {problem.message}"


def _ledger(report: StatusReport) -> str:
    ledger = report.ledger
    if ledger.last_write is None:
        return f"none in {ledger.folder}"
    parts = [ledger.state, f"{_size(ledger.size)} in {ledger.folder}", f"{_size(ledger.free)} free"]
    past = f" ({ago(ledger.last_write, report.asked)})" if report.asked is not None and not report.running else ""
    parts.append(f"last written {local(ledger.last_write)}{past}")
    if ledger.last_error:
        parts.append(f"last error: {ledger.last_error}")
    return ", ".join(parts)


def _networks(report: StatusReport, *, wide: bool) -> list[str]:
    columns = (
        Column("network", "NETWORK"),
        Column("type", "TYPE"),
        Column("phase", "PHASE"),
        Column("leases", "LEASES", right=True),
        Column("blocks", "BLOCKS", text=lambda blocks: _some(blocks, None if wide else 2)),
        Column("subnets", "SUBNETS", wide=True, text=", ".join),
    )
    rows = [msgspec.to_builtins(network) for network in report.networks]
    table = render_rows(rows, columns, "wide" if wide else "table").splitlines()
    lines = [paint(table[0], "bold")]
    for network, line in zip(report.networks, table[1:], strict=True):
        lines.append(line)
        for remark in _remarks(network):
            lines += textwrap.wrap(remark, _WIDTH, initial_indent="  ", subsequent_indent="  ")
    return lines


def _remarks(network: NetworkReport) -> Iterator[str]:
    """Below a network's line: why it gives nothing, and what a drain waits for."""
    if network.phase in (Phase.DRAINING, Phase.CLOSED, Phase.GONE):
        yield network.reason
    if network.phase in (Phase.DRAINING, Phase.GONE):
        if not network.leases:
            yield "no lease is left"
        else:
            more = f" and {network.waits_for_more} more" if network.waits_for_more else ""
            yield f"{_count(network.leases, 'lease')} left: {', '.join(network.waits_for)}{more}"


def _some(items: tuple[str, ...], limit: int | None) -> str:
    shown = items if limit is None else items[:limit]
    more = len(items) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _size(size: float) -> str:
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"
