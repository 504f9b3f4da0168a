"""The few fields of Kubernetes' own kinds that we read. What isn't named here is dropped while decoding."""

# No postponed annotations here: msgspec reads the types when a class is made.
from typing import Protocol

import msgspec

from allotment.api.meta import ObjectMeta, Record

__all__ = [
    "Anything",
    "Instance",
    "InstanceStatus",
    "Kind",
    "Node",
    "NodeStatus",
    "ObjectReference",
    "Pod",
    "PodIP",
    "PodSpec",
    "PodStatus",
]


class Kind(Protocol):
    """Any object of the API server: what `Resource` and `Client` need of it."""

    @property
    def metadata(self) -> ObjectMeta:
        """Its name, UID, resourceVersion and so on."""
        ...


class PodIP(Record, frozen=True):
    """core/v1 PodIP."""

    ip: str = ""


class PodSpec(Record, frozen=True):
    """core/v1 PodSpec: where it runs, and whether in the node's own network."""

    node_name: str = ""
    host_network: bool = False


class PodStatus(Record, frozen=True):
    """core/v1 PodStatus."""

    phase: str = ""
    pod_ips: tuple[PodIP, ...] = msgspec.field(default=(), name="podIPs")


class Pod(Record, frozen=True):
    """core/v1 Pod."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class InstanceStatus(Record, frozen=True):
    """The status of KubeVirt's VirtualMachineInstance: how far it is, and on which node."""

    phase: str = ""
    node_name: str = ""


class Instance(Record, frozen=True):
    """KubeVirt's VirtualMachineInstance: a virtual machine that is started."""

    metadata: ObjectMeta
    status: InstanceStatus = InstanceStatus()


class NodeStatus(Record, frozen=True):
    """core/v1 NodeStatus: what pods may have of it, as Kubernetes' quantities."""

    allocatable: dict[str, str] = msgspec.field(default_factory=dict)


class Node(Record, frozen=True):
    """core/v1 Node: that it is there, under which UID, its labels and what pods may have of it."""

    metadata: ObjectMeta
    status: NodeStatus = NodeStatus()


class Anything(Record, frozen=True):
    """An object of whatever kind: its metadata alone."""

    metadata: ObjectMeta


class ObjectReference(Record, frozen=True):
    """core/v1 ObjectReference: the object that something is about."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
