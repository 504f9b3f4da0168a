"""`allotment demo`: the main job, for real, on this machine, in a minute."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from typing import TYPE_CHECKING

from allotment.addressing.errors import InternalError
from allotment.cli import Exit
from allotment.cli.demo_stage import Answer, Stage

if TYPE_CHECKING:
    import argparse
    import subprocess
    from collections.abc import Callable

__all__ = ["configure", "run"]

_BURST = 40
_BLUE = """\
apiVersion: allotment.dev/v1alpha1
kind: Network
metadata:
  name: blue
spec:
  type: L3
  cooldownSeconds: 30
  subnets:
    - cidr: 10.99.0.0/24
      hostPrefixLength: 24
      exclude: [10.99.0.16/28]
    - cidr: fd00:99::/64
      hostPrefixLength: 64
"""
_GREEN = """\
apiVersion: allotment.dev/v1alpha1
kind: Network
metadata:
  name: green
spec:
  type: L3
  subnets:
    - cidr: 10.98.0.0/24
      hostPrefixLength: 24
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """There is nothing to choose."""
    parser.description = (
        "Starts an agent in a temporary folder, attaches two network namespaces through the reference plugin ptp, "
        "breaks things, and shows that nothing was lost. Needs root; leaves nothing behind."
    )


def run(_arguments: argparse.Namespace) -> Exit:
    """Play the demo from beginning to end; the first thing that is not as it should be ends it with an error."""
    began = time.perf_counter()
    with Stage() as stage:
        story = _Story(stage)
        for chapter in (
            story.start,
            story.attach,
            story.talk,
            story.kill,
            story.delete_while_down,
            story.explain,
            story.drain,
        ):
            chapter()
    print(
        f"\n{_bold('Done')} in {time.perf_counter() - began:.0f} s. The agent, the namespaces and the files are gone."
    )
    return Exit.OK


class _Story:
    """The chapters, in order; each prints what it did and sees that it is true."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._addresses: dict[str, list[str]] = {}
        self._chapters = 0

    def start(self) -> None:
        """An agent on one node, told of two networks."""
        self._chapter("An agent on one node, told of two networks by two files")
        (self._stage.folder / "manifests" / "blue.yaml").write_text(_BLUE)
        (self._stage.folder / "manifests" / "green.yaml").write_text(_GREEN)
        self._stage.start_agent()
        self._say("blue   10.99.0.0/24 and fd00:99::/64, a few addresses excluded")
        self._say("green  10.98.0.0/24")
        self._say("Both are admitted: the agent's finalizer is on its Allocations.")

    def attach(self) -> None:
        """Two pods through the reference plugin."""
        self._chapter("Two pods get their addresses, through the reference plugin ptp")
        for pod in ("web-0", "web-1"):
            self._stage.add_namespace(f"{self._stage.node}-{pod}")
            added = self._stage.attach("ADD", pod)
            self._expect(added.code == 0 and len(added.addresses) == 2, f"ADD failed: {added.message}")
            again = self._stage.plugin("ADD", "blue", pod)
            self._expect(again.addresses == added.addresses, "a repeated ADD was answered differently")
            self._addresses[pod] = [text.split("/")[0] for text in added.addresses]
            checked = self._stage.attach("CHECK", pod, prev=added.body)
            self._expect(checked.code == 0, f"CHECK failed: {checked.message}")
            self._say(f"{pod}  {'  '.join(added.addresses)}")
        self._say("Asked again, each got the same answer; CHECK finds all in order.")

    def talk(self) -> None:
        """They reach each other on both families."""
        self._chapter("They reach each other")
        pods = [f"{self._stage.node}-{pod}" for pod in self._addresses]
        self._until(lambda: all(map(self._settled, (self._stage.node, *pods))), "an IPv6 address stays tentative")
        for address in self._addresses["web-1"]:
            done = self._stage.inside(
                f"{self._stage.node}-web-0", "ping", "-c", "3", "-i", "0.2", "-W", "3", address, check=False
            )
            self._expect(done.returncode == 0, f"no answer from {address}:\n{done.stdout}")
            average = re.search(r"= [\d.]+/([\d.]+)/", done.stdout)
            took = f", {average[1]} ms on average" if average else ""
            self._say(f"ping web-0 → web-1  {address:<16} answers{took}")

    def kill(self) -> None:
        """SIGKILL among forty requests."""
        self._chapter(f"The agent is killed (SIGKILL) among {_BURST} requests, and started again")
        calls = {f"burst-{number}": self._stage.begin("ADD", "blue", f"burst-{number}") for number in range(_BURST)}
        self._stage.stop_agent(signal.SIGKILL)
        self._stage.start_agent()
        answered = {pod: _ended(call) for pod, call in calls.items()}
        told = [address for answer in answered.values() for address in answer.addresses]
        self._expect(all(answer.code == 0 for answer in answered.values()), "an ADD failed")
        self._expect(len(set(told)) == len(told) == 2 * _BURST, "an address was given twice")
        repeated = {pod: self._stage.plugin("ADD", "blue", pod).addresses for pod in calls}
        kept = all(repeated[pod] == answered[pod].addresses for pod in calls)
        self._expect(kept, "an answered lease was lost")
        self._say(f"{_BURST} of {_BURST} requests were answered, {len(told)} addresses, none of them twice.")
        self._say("Asked again afterwards, every pod has what it was told: nothing was lost.")
        for pod in calls:
            self._stage.plugin("DEL", "blue", pod)

    def delete_while_down(self) -> None:
        """A pod ends while nobody answers."""
        self._chapter("A pod is deleted while the agent is down")
        self._stage.stop_agent()
        deleted = self._stage.attach("DEL", "web-1")
        self._expect(deleted.code == 0, f"DEL failed: {deleted.message}")
        kept = list((self._stage.folder / "run" / "spool").glob("*.del"))
        self._expect(len(kept) == 1, "the DEL was not kept in the spool")
        self._say("DEL succeeded at once: the pod can go. The shim kept the request in the spool.")
        self._stage.start_agent()
        self._until(
            lambda: not list((self._stage.folder / "run" / "spool").glob("*.del")), "the spool was not replayed"
        )
        held = self._stage.ask("leases", "--pod", "demo/web-1", "-o", "json")
        self._expect(json.loads(held) == [], "the lease is still there")
        self._say("The agent is back and has replayed it: web-1's addresses are released and cooling.")

    def explain(self) -> None:
        """The books."""
        address = self._addresses["web-1"][0]
        self._chapter(f"Who had {address}?")
        for line in self._stage.ask("explain", address).splitlines():
            self._say(line)
        self._say("")
        for line in self._stage.ask("history", "--address", address).splitlines():
            self._say(line)

    def drain(self) -> None:
        """The network is deleted; the finalizer goes with the last lease."""
        self._chapter("The network is deleted: it drains, and goes with its last lease")
        (self._stage.folder / "manifests" / "blue.yaml").unlink()
        refused = self._refused_add()
        self._say(f"ADD is refused with code {refused.body['code']}:")
        self._say(f"  “{refused.message}”")
        record = self._stage.folder / "state" / "allocations" / "blue.demo.yaml"
        self._expect("allotment.dev/node" in record.read_text(), "the finalizer went while a lease was left")
        self._say("web-0 still holds its lease, so the finalizer stays.")
        self._expect(self._stage.attach("DEL", "web-0").code == 0, "DEL failed")
        self._until(
            lambda: not record.exists() or "allotment.dev/node" not in record.read_text(), "the finalizer did not go"
        )
        self._say("web-0 is deleted, the last lease ends, and the finalizer is gone.")

    def _settled(self, namespace: str) -> bool:
        """Whether the kernel is done with looking for other owners of the addresses (RFC 4862, 5.4)."""
        return not self._stage.inside(namespace, "ip", "-6", "address", "show", "tentative").stdout

    def _refused_add(self) -> Answer:
        answers: list[Answer] = []

        def refused() -> bool:
            answers.append(self._stage.plugin("ADD", "blue", "late"))
            if answers[-1].code == 0:
                self._stage.plugin("DEL", "blue", "late")
            return answers[-1].code != 0

        self._until(refused, "the network went on giving addresses")
        return answers[-1]

    def _chapter(self, title: str) -> None:
        self._chapters += 1
        print(f"\n{_bold(f'{self._chapters}. {title}')}", flush=True)

    @staticmethod
    def _say(line: str) -> None:
        print(f"   {line}".rstrip(), flush=True)

    def _expect(self, holds: bool, otherwise: str) -> None:  # noqa: FBT001  # reads as a sentence at each call
        if not holds:
            log = (self._stage.folder / "agent.log").read_text()[-2000:]
            raise InternalError(f"the demo found something wrong: {otherwise}\nThe agent's log ends:\n{log}")

    def _until(self, holds: Callable[[], bool], otherwise: str, seconds: float = 10.0) -> None:
        limit = time.perf_counter() + seconds
        while not holds():
            self._expect(time.perf_counter() < limit, otherwise)
            time.sleep(0.05)


def _ended(call: subprocess.Popen[bytes]) -> Answer:
    output, _ = call.communicate(timeout=60)
    return Answer(call.returncode, json.loads(output))


def _bold(text: str) -> str:
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text
