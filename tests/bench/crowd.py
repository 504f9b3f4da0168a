"""Objects of other nodes, by the ten thousand: what a large cluster's API server holds beside an agent's own."""

from __future__ import annotations

import http.client
import ipaddress
import json
import ssl
import threading
from contextlib import closing
from itertools import chain, islice
from typing import TYPE_CHECKING

from bench.load import LoadError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster.control_plane import ApiServer

__all__ = ["ALLOCATIONS", "PODS", "fill", "pod"]

_CONNECTIONS = 12
_NODES = 500
_BLOCKS = ipaddress.ip_network("10.128.0.0/9")
ALLOCATIONS = "/apis/allotment.dev/v1alpha1/allocations"
PODS = "/api/v1/namespaces/default/pods"


def fill(server: ApiServer, *, allocations: int, pods: int, network: dict) -> None:
    """Make Allocations of `network` for that many other nodes, and pods that are bound to other nodes.

    Raises:
        LoadError: the API server refused one.
    """
    found = chain(_allocations(allocations, network), (_pod(number) for number in range(pods)))
    lock, failures = threading.Lock(), []

    def work() -> None:
        context = ssl.create_default_context(cafile=str(server.ca_file))
        connection = http.client.HTTPSConnection(server.address, server.port, context=context, timeout=120)
        headers = {"Authorization": f"Bearer {server.admin_token}", "Content-Type": "application/json"}
        with closing(connection):
            while not failures:
                with lock:
                    several = list(islice(found, 50))
                if not several:
                    return
                for path, item in several:
                    connection.request("POST", path, json.dumps(item), headers)
                    response = connection.getresponse()
                    text = response.read()
                    if response.status != 201:
                        failures.append(text.decode(errors="replace")[:500])
                        return

    threads = [threading.Thread(target=work) for _ in range(_CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise LoadError(f"an object of the crowd could not be made: {failures[0]}")


def pod(name: str, node: str) -> dict:
    """A small pod that is bound to the node."""
    containers = [{"name": "main", "image": "registry.example/app:1"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name.rsplit("-", 1)[0]}},
        "spec": {"nodeName": node, "containers": containers},
    }


def _pod(number: int) -> tuple[str, dict]:
    return PODS, pod(f"foreign-{number}", f"foreign-{number % _NODES}")


def _allocations(count: int, network: dict) -> Iterator[tuple[str, dict]]:
    name, uid = network["metadata"]["name"], network["metadata"]["uid"]
    for number, block in zip(range(count), _BLOCKS.subnets(new_prefix=26), strict=False):
        node = f"foreign-{number}"
        blocks = [{"cidr": str(block), "state": "Confirmed"}]
        spec = {"network": name, "networkUID": uid, "node": node, "type": "L3", "blocks": blocks}
        metadata = {"name": f"{name}.{node}", "finalizers": ["allotment.dev/guard"]}
        yield (
            ALLOCATIONS,
            {"apiVersion": "allotment.dev/v1alpha1", "kind": "Allocation", "metadata": metadata, "spec": spec},
        )
