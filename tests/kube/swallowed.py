"""Run in a network namespace of its own: drops every packet of a connection, and prints how long all that takes.

The kernels at both ends live on, and neither hears the other any more: no FIN, no RST, no acknowledgement.
"""

from __future__ import annotations

import asyncio
import json
import subprocess

from allotment.kube.client import Client
from allotment.kube.failures import Unreachable
from allotment.kube.resources import NETWORKS
from allotment.testing.api_server import ApiServer
from kube.following import CLOCK, following, until


def nft(text):
    subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True)


async def main():
    async with ApiServer() as server, Client(server.access, CLOCK) as client:
        network = server.put(NETWORKS, {"metadata": {"name": "red"}, "spec": {"type": "L2", "subnets": []}})
        async with following(client, NETWORKS) as shown:
            await shown.names("red")
            await until(lambda: server.watches, "nobody watches")
            began = CLOCK.seconds()
            chain = "chain c { type filter hook input priority 0;"
            rules = "\n".join(f"tcp {end} {server.port} drop" for end in ("dport", "sport"))
            nft(f"table ip t {{\n{chain}\n{rules}\n}}\n}}\n")
            try:
                await client.patch_status(NETWORKS, network, {"phase": "Ready"})
                raise AssertionError("the patch got through")
            except Unreachable:
                patch = CLOCK.seconds() - began
            lost = await shown.until(lambda it: it.lost_contact is not None, limit=60)
            watch = CLOCK.seconds() - began
            server.put(NETWORKS, {"metadata": {"name": "blue"}, "spec": {"type": "L2", "subnets": []}})
            nft("delete table ip t\n")
            lifted = CLOCK.seconds()
            await shown.names("red", "blue", limit=60)
            print(
                json.dumps(
                    {
                        "patch": patch,
                        "watch": watch,
                        "back": CLOCK.seconds() - lifted,
                        "since": lost.lost_contact - began,
                    }
                )
            )


asyncio.run(main())
