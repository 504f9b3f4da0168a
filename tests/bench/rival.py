"""host-local: the IPAM plugin that everybody has, as the measure."""

from __future__ import annotations

import ipaddress
import json
from typing import TYPE_CHECKING

from bench.agent import NETWORK, SUBNET, call_environment
from bench.load import Plugin
from reference.build import reference_plugins

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["host_local"]


def host_local(name: str, folder: Path, namespace: str, leases: int) -> Plugin:
    """host-local with a store below `folder` that holds `leases` leases.

    The leases are written as host-local writes them (one file per address: container ID, line break, interface; and
    the address given last), because to make some thousands by calling it would take minutes.
    """
    store = folder / name / NETWORK
    store.mkdir(parents=True)
    first = ipaddress.ip_network(SUBNET)[2]  # its .1 is the gateway
    for number in range(leases):
        (store / str(first + number)).write_text(f"held-{number}\r\neth0")
    (store / "last_reserved_ip.0").write_text(str(first + leases - 1))
    ipam = {"type": "host-local", "ranges": [[{"subnet": SUBNET}]], "dataDir": str(folder / name)}
    conf = folder / name / "conf.json"
    conf.write_text(json.dumps({"cniVersion": "1.1.0", "name": NETWORK, "type": "ptp", "ipam": ipam}))
    return Plugin("host-local", reference_plugins() / "host-local", conf, call_environment(f"{name}-@N@", namespace))
