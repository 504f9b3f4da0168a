"""Each kind's path on the API server, and the type that its objects are decoded to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from allotment.addressing.errors import ConfigError
from allotment.api.allocation import Allocation
from allotment.api.claim import Claim
from allotment.api.ipamconfig import IPAMConfig
from allotment.api.meta import GROUP, VERSION
from allotment.api.names import is_subdomain
from allotment.api.network import Network
from allotment.api.numbered import IPAddress
from allotment.api.reservation import IPReservation
from allotment.kube.objects import Anything, Instance, Kind, Node, ObjectReference, Pod

if TYPE_CHECKING:
    import builtins

__all__ = [
    "ADDRESSES",
    "ALLOCATIONS",
    "CLAIMS",
    "CONFIGS",
    "INSTANCES",
    "NETWORKS",
    "NODES",
    "PODS",
    "RESERVATIONS",
    "VMS",
    "Resource",
    "key_of",
]

T = TypeVar("T", bound=Kind)


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """A kind as the API server serves it. `group` is empty for Kubernetes' core group."""

    group: str
    version: str
    plural: str
    kind: str
    type: builtins.type[T]
    namespaced: bool = False

    @property
    def api_version(self) -> str:
        """`apiVersion` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """`allocations.allotment.dev`, as RBAC rules and kubectl name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, *, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of an object, or of the collection where there is no name (of all namespaces, where that is empty).

        Raises:
            ConfigError: a name that no object can have (it would change the path's meaning).
        """
        for text in (namespace, name):
            if text and not is_subdomain(text):
                raise ConfigError(f"{text!r} is no name for an object ({self.kind}); use a-z, 0-9, dots and dashes")
        root = f"/apis/{self.group}" if self.group else "/api"
        place = f"/namespaces/{namespace}" if namespace and self.namespaced else ""
        rest = "".join(f"/{part}" for part in (name, subresource) if part)
        return f"{root}/{self.version}{place}/{self.plural}{rest}"

    def reference(self, item: T) -> ObjectReference:
        """What an Event says that it is about."""
        meta = item.metadata
        return ObjectReference(self.api_version, self.kind, meta.name, meta.namespace, meta.uid)


def key_of(namespace: str, name: str) -> str:
    """How an object is known among its kind: `name`, or `namespace/name`."""
    return f"{namespace}/{name}" if namespace else name


NETWORKS: Final[Resource[Network]] = Resource(GROUP, VERSION, "networks", "Network", Network)
ALLOCATIONS: Final[Resource[Allocation]] = Resource(GROUP, VERSION, "allocations", "Allocation", Allocation)
RESERVATIONS: Final[Resource[IPReservation]] = Resource(
    GROUP, VERSION, "ipreservations", "IPReservation", IPReservation
)
CONFIGS: Final[Resource[IPAMConfig]] = Resource(GROUP, VERSION, "ipamconfigs", "IPAMConfig", IPAMConfig)
CLAIMS: Final[Resource[Claim]] = Resource(GROUP, VERSION, "claims", "Claim", Claim, namespaced=True)
ADDRESSES: Final[Resource[IPAddress]] = Resource(GROUP, VERSION, "ipaddresses", "IPAddress", IPAddress)
PODS: Final[Resource[Pod]] = Resource("", "v1", "pods", "Pod", Pod, namespaced=True)
VMS: Final[Resource[Anything]] = Resource(
    "kubevirt.io", "v1", "virtualmachines", "VirtualMachine", Anything, namespaced=True
)
INSTANCES: Final[Resource[Instance]] = Resource(
    "kubevirt.io", "v1", "virtualmachineinstances", "VirtualMachineInstance", Instance, namespaced=True
)
NODES: Final[Resource[Node]] = Resource("", "v1", "nodes", "Node", Node)
