"""The doctor's look at what surrounds the leases: agent, state folder, spool, disk, and the plugin in its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from allotment.ledger.failures import free_bytes
from allotment.node.doctor.findings import Finding, Severity
from allotment.node.inquiries.kept import UNREADABLE, count_kept

if TYPE_CHECKING:
    from collections.abc import Iterator

    from allotment.node.inquiries.reports import StatusReport
    from allotment.node.settings import Settings

__all__ = ["agent_findings", "ledger_findings", "plugin_findings", "spool_findings"]

_LOW = 64 << 20
_SET_ASIDE = "ledger-*.set-aside"


def agent_findings(settings: Settings, status: StatusReport | None, down: str) -> list[Finding]:
    """Whether the agent answers, and serves. `down` says why it couldn't be asked."""
    where = str(settings.socket)
    if status is None:
        holder = _lock_holder(settings.state_dir)
        advice = "start the agent, or see in its log why it ended"
        if holder is not None:
            advice = f"process {holder} holds {settings.state_dir}: does it listen at another socket, or is it stuck?"
        return [Finding(Severity.PROBLEM, "socket", where, down, advice)]
    found: list[Finding] = []
    if status.not_serving:
        found.append(
            Finding(
                Severity.PROBLEM,
                "agent",
                where,
                f"the agent answers, but isn't ready: {status.not_serving}",
                "`allotment status` says more",
            )
        )
    if status.ledger.folder and Path(status.ledger.folder) != settings.state_dir:
        found.append(
            Finding(
                Severity.PROBLEM,
                "agent",
                where,
                f"its state folder is {status.ledger.folder}, and the one looked at here is {settings.state_dir}",
                f"say --state-dir {status.ledger.folder}",
            )
        )
    return found


def ledger_findings(settings: Settings, status: StatusReport | None) -> list[Finding]:
    """The state folder: room on the disk, the ballast, and what earlier trouble left."""
    return list(_ledger_findings(settings, status))


def _ledger_findings(settings: Settings, status: StatusReport | None) -> Iterator[Finding]:
    folder = settings.state_dir
    if not folder.is_dir():
        return
    if status is not None and status.ledger.state != "open":
        yield Finding(
            Severity.PROBLEM,
            "disk",
            str(folder),
            f"the ledger is {status.ledger.state}: {status.ledger.reason}",
            "free some space there"
            if status.ledger.state == "full"
            else "see to the disk; the agent goes on by itself",
        )
    free = free_bytes(folder)
    if free < _LOW:
        yield Finding(
            Severity.WARNING,
            "disk",
            str(folder),
            f"only {free >> 20} MiB are free there",
            "free some space before ADDs have to be refused",
        )
    if settings.ballast_mib and (folder / "ledger.db").exists() and not (folder / "ledger.ballast").exists():
        yield Finding(
            Severity.WARNING,
            "disk",
            str(folder / "ledger.ballast"),
            "the ballast is missing: it was given up when the disk was full, or could never be made",
            "free some space; the agent makes it again by itself",
        )
    for aside in sorted(folder.glob(_SET_ASIDE)):
        yield Finding(
            Severity.NOTE,
            "ledger",
            str(aside),
            f"a ledger was set aside here{_reason(aside)}",
            "keep it until you are sure that nothing is missing, then remove it",
        )
    if (folder / "ledger.rebuild").exists():
        yield Finding(
            Severity.WARNING,
            "ledger",
            str(folder),
            "the ledger has to be rebuilt from what runs before an ADD is served",
            "the agent does it when it starts; its log says what it waits for",
        )


def spool_findings(settings: Settings, *, running: bool) -> list[Finding]:
    """DELs that wait, and DELs that can't be read."""
    spool = count_kept(settings.spool_dir)
    found: list[Finding] = []
    if spool.waiting:
        found.append(
            Finding(
                Severity.WARNING if running else Severity.NOTE,
                "spool",
                spool.folder,
                f"{spool.waiting} kept DEL{'s wait' if spool.waiting > 1 else ' waits'} there",
                "the agent should have replayed them; see its log"
                if running
                else "the agent replays them at its start",
            )
        )
    if spool.unreadable:
        found.append(
            Finding(
                Severity.PROBLEM,
                "spool",
                str(Path(spool.folder) / UNREADABLE),
                f"{spool.unreadable} kept DEL{'s' if spool.unreadable > 1 else ''} can't be read",
                "what they meant is still held: look with `allotment gc`, then remove the files",
            )
        )
    return found


def plugin_findings(folder: Path, name: str, wanted: bytes) -> list[Finding]:
    """Whether the plugin is in the runtime's folder, can be run, and is the one that this release carries."""
    path = folder / name
    advice = f"run `allotment install-cni --no-conf --bin-dir {folder}`"
    try:
        content = path.read_bytes()
        executable = bool(path.stat().st_mode & 0o100)
    except OSError as error:
        what = f"the CNI plugin can't be read: {error.strerror}"
        return [Finding(Severity.PROBLEM, "plugin", str(path), what, advice)]
    if content != wanted:
        what = "the CNI plugin is not the one of this release"
        return [Finding(Severity.WARNING, "plugin", str(path), what, advice)]
    if not executable:
        return [Finding(Severity.PROBLEM, "plugin", str(path), "the CNI plugin can't be executed", advice)]
    return []


def _lock_holder(folder: Path) -> int | None:
    """The living process that has written itself down as the folder's owner."""
    try:
        pid = json.loads((folder / "agent.lock").read_bytes())["pid"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pid if isinstance(pid, int) and Path(f"/proc/{pid}").exists() else None


def _reason(aside: Path) -> str:
    try:
        text = (aside / "reason.txt").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
    return f": {text}"
