"""Takes an installation out of a cluster: who could still act on it first, the namespace it ran in last.

1. Agents and controller are deleted, and waited for: they put finalizers on, and may give addresses until they end.
2. The admission policies, which let nobody else take `allotment.dev/node` off.
3. Our objects, of every kind, in every namespace. With nobody left who gives anything, our finalizers (all that begin
   with `allotment.dev/`) guard nothing any more and are taken off; others' stay, and are told of.
4. The kinds, the roles, and the namespace.

Each step says nothing of what is gone already, so it can begin anywhere, be repeated, and follow a deletion that
somebody else began in another order. Kinds that are being deleted still serve their objects.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from allotment.addressing.errors import TryAgain
from allotment.api.kinds import KINDS
from allotment.api.meta import GROUP, VERSION
from allotment.kube.backoff import Backoff
from allotment.kube.failures import ApiFailure, Conflict, NotFound, Unauthorized, Unserved
from allotment.kube.objects import Anything
from allotment.kube.resources import PODS, Resource, key_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from allotment.kube.client import Client
    from allotment.kube.objects import Kind

__all__ = ["NAMESPACE", "Removal", "without_ours"]

NAMESPACE: Final = "allotment-system"
_LABEL: Final = "app.kubernetes.io/name=allotment"
_AT_ONCE: Final = 16
_SHOWN: Final = 5


def _resource(group: str, version: str, plural: str, kind: str, *, namespaced: bool = False) -> Resource[Anything]:
    return Resource(group, version, plural, kind, Anything, namespaced)


_WORKLOADS: Final = (
    (_resource("apps", "v1", "daemonsets", "DaemonSet", namespaced=True), "allotment-agent"),
    (_resource("apps", "v1", "deployments", "Deployment", namespaced=True), "allotment-controller"),
)
_ADMISSION: Final = "admissionregistration.k8s.io"
_POLICIES: Final = (
    _resource(_ADMISSION, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding"),
    _resource(_ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy"),
)
_OURS: Final = tuple(
    _resource(GROUP, VERSION, kind.plural, kind.name, namespaced=kind.namespaced)
    for kind in reversed(KINDS)  # networks and pools, which others refer to, come first there
)
_CRDS: Final = _resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition")
_RBAC: Final = "rbac.authorization.k8s.io"
_ROLES: Final = (
    _resource(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding"),
    _resource(_RBAC, "v1", "clusterroles", "ClusterRole"),
)
_NAMESPACES: Final = _resource("", "v1", "namespaces", "Namespace")


def without_ours(finalizers: Iterable[str]) -> list[str]:
    """The finalizers that are somebody else's."""
    return [name for name in finalizers if not name.startswith(f"{GROUP}/")]


class Removal:
    """One removal from the cluster that `client` talks to. `say` is told what went, in words for a person."""

    def __init__(self, client: Client, say: Callable[[str], None]) -> None:
        self._client = client
        self._say = say
        self._objects: Counter[str] = Counter()

    async def show(self) -> bool:
        """Say what `run` would remove; returns whether there is anything."""
        found = False
        async for resource, items in self._found():
            found = True
            names = ", ".join(sorted(key_of(item.metadata.namespace, item.metadata.name) for item in items)[:_SHOWN])
            more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
            self._say(f"would remove: {resource.full_name}: {names}{more}")
        return found

    async def run(self, *, force: bool, wait: float) -> None:
        """Remove all of it. `wait` (seconds) bounds each step; with `force` pods that are not gone then are left be.

        Raises:
            TryAgain: a step wasn't done in that time; the message says what stands in the way.
            ApiFailure: the API server can't be asked, or refuses.
        """
        await self._until(self._workloads_gone, wait, give_up=force)
        await self._until(lambda: self._gone(_POLICIES), wait)
        await self._until(self._objects_gone, wait)
        await self._until(self._kinds_gone, wait)
        await self._until(lambda: self._gone(_ROLES), wait)
        await self._until(self._namespace_going, wait)

    # -- steps: each does what it can, and returns what is still in the way, empty when it is done

    async def _workloads_gone(self) -> str:
        for resource, name in _WORKLOADS:
            await self._end(resource, await self._one(resource, name, NAMESPACE))
        pods = (await self._client.list(PODS, namespace=NAMESPACE, label_selector=_LABEL)).items
        if not pods:
            return ""
        where = ", ".join(sorted(f"{pod.metadata.name} on {pod.spec.node_name or 'no node'}" for pod in pods)[:_SHOWN])
        return (
            f"{len(pods)} pods of ours are not gone: {where}; a node that is off for good: delete its Node object, or "
            "say --force"
        )

    async def _gone(self, resources: tuple[Resource[Anything], ...]) -> str:
        left = [item.metadata.name for resource in resources for item in await self._end_all(resource)]
        return f"not gone yet: {', '.join(left[:_SHOWN])}" if left else ""

    async def _objects_gone(self) -> str:
        left: Counter[str] = Counter()
        others: set[str] = set()
        began = bool(self._objects)
        for resource in _OURS:
            for item in await self._end_all(resource):
                left[resource.full_name] += 1
                others.update(without_ours(item.metadata.finalizers))
        if not began:
            self._objects = left
        if not left:
            for name, count in sorted(self._objects.items()):
                self._say(f"gone: {count} {name}")
            return ""
        held = f"; held by finalizers that aren't ours: {', '.join(sorted(others))}" if others else ""
        return f"not gone yet: {', '.join(f'{count} {name}' for name, count in sorted(left.items()))}{held}"

    async def _kinds_gone(self) -> str:
        left = [item for item in await self._listed(_CRDS) if item.metadata.name.endswith(f".{GROUP}")]
        await self._at_once(self._end(_CRDS, item) for item in left)
        return f"not gone yet: {', '.join(item.metadata.name for item in left[:_SHOWN])}" if left else ""

    async def _namespace_going(self) -> str:
        """Its end is waited for by nobody: nothing of ours is in it that could be held."""
        await self._end(_NAMESPACES, await self._one(_NAMESPACES, NAMESPACE))
        return ""

    # -- single objects

    async def _end_all(self, resource: Resource[Anything]) -> tuple[Anything, ...]:
        """Delete all of a kind that are ours, and take our finalizers off; those that there were."""
        items = await self._listed(resource)
        await self._at_once(self._end(resource, item) for item in items)
        return items

    async def _end(self, resource: Resource[Anything], item: Anything | None) -> None:
        """Delete it; if that was done, take our finalizers off. What has changed meanwhile is looked at again."""
        if item is None:
            return
        meta = item.metadata
        try:
            if not meta.deleting:
                await self._client.delete(resource, item)
                if resource not in _OURS:  # of those there may be thousands
                    self._say(f"deleted: {resource.kind} {key_of(meta.namespace, meta.name)}")
            elif (rest := without_ours(meta.finalizers)) != list(meta.finalizers):
                await self._client.patch_finalizers(resource, item, rest)
        except (Conflict, NotFound):
            pass

    async def _at_once(self, ends: Iterable[Awaitable[None]]) -> None:
        """Several at once; the first failure ends it, once the others have come to their end."""
        room = asyncio.Semaphore(_AT_ONCE)

        async def one(end: Awaitable[None]) -> None:
            async with room:
                await end

        failures = await asyncio.gather(*map(one, ends), return_exceptions=True)
        for failure in failures:
            if failure is not None:
                raise failure

    # -- looking

    async def _found(self) -> AsyncIterator[tuple[Resource[Anything], tuple[Kind, ...]]]:
        for resource, name in _WORKLOADS:
            if item := await self._one(resource, name, NAMESPACE):
                yield resource, (item,)
        for resource in (*_POLICIES, *_OURS, *_ROLES):
            if items := await self._listed(resource):
                yield resource, items
        if kinds := tuple(item for item in await self._listed(_CRDS) if item.metadata.name.endswith(f".{GROUP}")):
            yield _CRDS, kinds
        if item := await self._one(_NAMESPACES, NAMESPACE):
            yield _NAMESPACES, (item,)

    async def _listed(self, resource: Resource[Anything]) -> tuple[Anything, ...]:
        """All of a kind of ours, those with our label of the others; none of a kind that isn't served."""
        selector = "" if resource.group == GROUP or resource is _CRDS else _LABEL
        try:
            return (await self._client.list(resource, label_selector=selector)).items
        except Unserved:
            return ()

    async def _one(self, resource: Resource[Anything], name: str, namespace: str = "") -> Anything | None:
        try:
            return await self._client.get(resource, name, namespace=namespace)
        except NotFound:
            return None

    async def _until(self, step: Callable[[], Awaitable[str]], wait: float, *, give_up: bool = False) -> None:
        """Repeat a step until nothing is in its way. A policy that was just deleted forbids for a moment more."""
        clock = self._client.clock
        end = clock.seconds() + wait
        backoff = Backoff(clock, first=0.1, most=2.0)
        told = ""
        while True:
            pause = 0.0
            try:
                in_the_way = await step()
                if not in_the_way:
                    return
            except ApiFailure as failure:
                if not isinstance(failure, TryAgain) or isinstance(failure, Unauthorized):
                    raise
                in_the_way, pause = failure.message, failure.retry_after
            if clock.seconds() >= end:
                if not give_up:
                    raise TryAgain(in_the_way)
                self._say(f"not waited for any longer: {in_the_way}")
                return
            if in_the_way != told and not in_the_way.startswith("not gone yet"):
                self._say(f"waiting: {in_the_way}")
                told = in_the_way
            await backoff.pause(pause)
