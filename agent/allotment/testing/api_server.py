"""A small API server in this process, with the faults of a real one at the turn of a switch.

    async with ApiServer() as server:
        server.put(NETWORKS, network)
        async with Client(server.access, clock) as client: ...

It speaks HTTP/1.1 (TLS with `tls`) on loopback: get, list in pages, watch with bookmarks, create, merge patch, delete,
with the rules of `api_objects`. What it has no idea of: schemas, defaults, CEL, roles, admission, owners.
"""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import msgspec
from aiohttp import web

from allotment.kube.access import Access
from allotment.kube.objects import Kind
from allotment.kube.watch import decoder
from allotment.testing.api_objects import SERVED, Objects, Refusal

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from allotment.kube.resources import Resource

__all__ = ["ApiServer", "Fault", "Request"]

T = TypeVar("T", bound=Kind)
Verb = Literal["get", "list", "watch", "create", "patch", "delete"]
Fault = Literal["410", "410 event", "429", "500", "503", "401", "404", "lost", "cut", "stall", "empty", "garbage"]
"""What can go wrong.

`410`, `429` (with Retry-After 1), `500`, `503`, `401`, `404` (a kind that isn't served): the answer. `410 event`: an
ERROR event in a watch that was accepted. `lost`: it is done, and the line breaks instead of an answer. `cut`: the line
breaks, nothing is done. `stall`: no answer, ever. `empty`: a list without items. `garbage`: something that is no JSON.
"""


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came."""

    verb: str
    kind: str
    name: str
    namespace: str
    subresource: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class _Planned:
    fault: Fault
    verb: str
    kind: str
    times: int


class ApiServer:
    """Served while the context lasts, or between `start` and `stop`. `requests` are all that came.

    `tokens`, if there are any, are the ones it accepts. `unserved` holds kinds (`allocations.allotment.dev`) without
    a CRD. `delay` is how many seconds each answer takes.
    """

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self.objects = Objects()
        self.requests: list[Request] = []
        self.tokens: set[str] = set()
        self.unserved: set[str] = set()
        self.port = 0
        self._tls = tls
        self._planned: list[_Planned] = []
        self._changed = asyncio.Event()
        self._watches: dict[asyncio.Transport, _Watch] = {}
        self._runner: web.ServerRunner | None = None
        self._pages: dict[str, tuple[int, list[Any]]] = {}

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}"

    @property
    def access(self) -> Access:
        """How to reach it, with one of its tokens if it wants one; certificates aren't verified."""
        return Access(self.url, verify=False, token=next(iter(self.tokens), ""))

    @property
    def watches(self) -> list[str]:
        """The kinds that are watched now."""
        return [watch.kind for watch in self._watches.values()]

    async def start(self) -> None:
        """Listen; again on the same port after a `stop`."""
        server = web.Server(self._handle, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.05)  # 0 would be for ever
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._tls, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Go away, as by SIGKILL: every connection is cut. The objects stay."""
        if self._runner is not None:
            self.cut_watches()
            await self._runner.cleanup()
            self._runner = None

    # What others do to the objects.

    def put(self, resource: Resource[T], item: T | Mapping[str, Any]) -> T:
        """Make an object, or replace one's spec, status, labels, annotations and finalizers."""
        body: dict[str, Any] = msgspec.to_builtins(item)
        meta = {name: value for name, value in body["metadata"].items() if name not in {"uid", "resourceVersion"}}
        body = {**body, "metadata": meta}
        name, namespace = meta["name"], meta.get("namespace", "")
        try:
            before = self.objects.get(resource, name, namespace)
        except Refusal:
            stored = self.objects.create(resource, body)
        else:
            gone = dict.fromkeys(before.keys() - body.keys() - {"apiVersion", "kind"})
            change = gone | body | {"metadata": dict.fromkeys(("labels", "annotations", "finalizers")) | meta}
            self.objects.patch(resource, name, namespace, change)
            stored = self.objects.patch(resource, name, namespace, {"status": body.get("status")}, "status")
        self._wake()
        return _typed(resource, stored)

    def change(
        self, resource: Resource[T], name: str, change: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> None:
        """A merge patch by somebody else."""
        self.objects.patch(resource, name, namespace, dict(change), subresource)
        self._wake()

    def delete(self, resource: Resource[T], name: str, *, namespace: str = "") -> None:
        """Ask for an object to be deleted; it goes at once if nothing holds it."""
        self.objects.delete(resource, name, namespace)
        self._wake()

    def find(self, resource: Resource[T], name: str, *, namespace: str = "") -> T | None:
        """An object as it is now."""
        try:
            found = self.objects.get(resource, name, namespace)
        except Refusal:
            return None
        return _typed(resource, found)

    # Faults.

    def fail(self, fault: Fault, *, verb: Verb | Literal[""] = "", kind: str = "", times: int = 1) -> None:
        """Let the next `times` requests of that verb and kind (empty: any) go wrong."""
        self._planned.append(_Planned(fault, verb, kind, times))

    def heal(self) -> None:
        """Take back all that `fail` has planned."""
        self._planned.clear()

    def compact(self) -> None:
        """Forget the history: watches and pages from before get 410."""
        self.objects.compact()

    def cut_watches(self, *, mid_line: bool = False) -> None:
        """Break the lines of all watches, after half an event if so wished."""
        for transport, watch in self._watches.items():
            watch.ended = True
            if mid_line:
                half = b'{"type":"MODIFIED","object":{"metadata":{"na'
                transport.write(b"%x\r\n%s\r\n" % (len(half), half))
                transport.close()
            else:
                transport.abort()
        self._wake()

    def end_watches(self) -> None:
        """End all watches in order, as a server does after a while."""
        for watch in self._watches.values():
            watch.ended = True
        self._wake()

    def mute_watches(self) -> None:
        """Say nothing more on the watches there are, and leave their lines open."""
        for watch in self._watches.values():
            watch.muted = True

    def send(self, kind: str, *events: Mapping[str, Any] | bytes) -> None:
        """Put events, or raw bytes, into the watches of a kind, in one piece."""
        for watch in self._watches.values():
            if watch.kind == kind:
                lines = [event if isinstance(event, bytes) else json.dumps(event).encode() + b"\n" for event in events]
                watch.extra.append(b"".join(lines))
        self._wake()

    def bookmark(self, version: int | None = None) -> None:
        """Send each watch a bookmark, of the version of now if none is given."""
        for watch in self._watches.values():
            found = {"metadata": {"resourceVersion": str(version or self.objects.version), "creationTimestamp": None}}
            self.send(watch.kind, {"type": "BOOKMARK", "object": found})

    # Serving.

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _handle(self, http: web.BaseRequest) -> web.StreamResponse:
        try:
            request, resource = await self._parsed(http)
            self.requests.append(request)
            fault = self._fault(request)
            if fault == "stall":
                await asyncio.get_running_loop().create_future()
            if fault == "cut":
                return _abort(http)
            self._refuse(request, fault)
            if request.verb == "watch":
                return await self._watch(http, request, resource, fault)
            answer = self._answer(request, resource, empty=fault == "empty")
            self._wake()
            if fault == "lost":
                return _abort(http)
            return web.Response(status=201 if request.verb == "create" else 200, body=answer, content_type=_JSON)
        except Refusal as refusal:
            headers = {"Retry-After": "1"} if refusal.code == 429 else {}
            return web.json_response(refusal.status, status=refusal.code, headers=headers)

    async def _parsed(self, http: web.BaseRequest) -> tuple[Request, Resource[Any]]:
        parts = http.path.strip("/").split("/")
        group = parts[1] if parts[0] == "apis" else ""
        rest = parts[3:] if group else parts[2:]
        namespace = ""
        if rest and rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        plural, name, subresource, *_ = [*rest, "", "", ""]
        kind = f"{plural}.{group}" if group else plural
        resource = SERVED.get(kind)
        if resource is None or kind in self.unserved:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        verbs = {"GET": "get" if name else "list", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
        verb = "watch" if http.query.get("watch") else verbs[http.method]
        body = await http.read()
        return Request(verb, kind, name, namespace, subresource, http.query, http.headers, body), resource

    def _fault(self, request: Request) -> Fault | None:
        for planned in self._planned:
            if planned.verb in {"", request.verb} and planned.kind in {"", request.kind} and planned.times > 0:
                planned.times -= 1
                return planned.fault
        return None

    def _refuse(self, request: Request, fault: Fault | None) -> None:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if fault == "401" or (self.tokens and token not in self.tokens):
            raise Refusal(401, "Unauthorized", "Unauthorized")
        if fault == "404":
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        if fault in {"410", "429", "500", "503"}:
            status = HTTPStatus(int(fault))
            reason = {"410": "Expired", "429": "TooManyRequests", "500": "InternalError"}.get(
                fault, "ServiceUnavailable"
            )
            raise Refusal(status, reason, status.phrase)
        if fault == "garbage" and request.verb != "watch":
            raise Refusal(HTTPStatus.BAD_GATEWAY, "", "")

    def _answer(self, request: Request, resource: Resource[Any], *, empty: bool) -> bytes:
        name, namespace = request.name, request.namespace
        match request.verb:
            case "get":
                found = self.objects.get(resource, name, namespace)
            case "list":
                found = self._listed(request, resource, empty=empty)
            case "create":
                body = json.loads(request.body)
                if resource.group == "allotment.dev":
                    body.pop("status", None)
                found = self.objects.create(resource, body)
            case "patch":
                if request.headers.get("Content-Type") != "application/merge-patch+json":
                    raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", "only merge patches")
                found = self.objects.patch(resource, name, namespace, json.loads(request.body), request.subresource)
            case _:
                options = json.loads(request.body or b"{}")
                found = self.objects.delete(resource, name, namespace, options.get("preconditions"))
        return json.dumps(found).encode()

    def _listed(self, request: Request, resource: Resource[Any], *, empty: bool) -> dict[str, Any]:
        limit, more = int(request.query.get("limit", "0")), request.query.get("continue", "")
        if more:
            version, rest = self._pages.pop(more, (0, []))
            if version <= self.objects.floor:
                raise Refusal(410, "Expired", "The provided continue parameter is too old")
        else:
            version = self.objects.version
            rest = self.objects.list(resource, request.query.get("fieldSelector", ""), request.namespace)
        rest = [] if empty else rest
        page, rest = (rest[:limit], rest[limit:]) if limit else (rest, [])
        token = ""
        if rest:
            token = base64.b64encode(f"{version}/{len(self._pages)}/{len(rest)}".encode()).decode()
            self._pages[token] = (version, rest)
        return {
            "apiVersion": resource.api_version,
            "kind": f"{resource.kind}List",
            "metadata": {"resourceVersion": str(version), "continue": token},
            "items": page,
        }

    async def _watch(
        self, http: web.BaseRequest, request: Request, resource: Resource[Any], fault: Fault | None
    ) -> web.StreamResponse:
        selector = self.objects.selector(resource, request.query.get("fieldSelector", ""))
        version = int(request.query["resourceVersion"])
        old = version < self.objects.floor
        response = web.StreamResponse(headers={"Content-Type": _JSON})
        await response.prepare(http)
        transport = http.transport
        if not isinstance(transport, asyncio.Transport):  # it has hung up already
            return response
        if old or fault == "410 event":
            status = Refusal(410, "Expired", f"too old resource version: {version} ({self.objects.floor})").status
            await response.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
            return response
        if fault == "garbage":
            await response.write(b"<html>this is no JSON</html>\n")
        watch = self._watches[transport] = _Watch(resource.full_name, selector, request.namespace, version)
        try:
            with suppress(ConnectionError):
                while not watch.ended:
                    changed = self._changed
                    if text := watch.news(self.objects):
                        await response.write(text)
                    elif not watch.ended:
                        await changed.wait()
        finally:
            self._watches.pop(transport, None)
        return response


_JSON = "application/json"
_GRACE = 0.01  # seconds until a handler that still waits is cancelled; 0 would mean for ever


class _Watch:
    """One watch, and up to where it was told."""

    def __init__(self, kind: str, selector: dict[str, str], namespace: str, version: int) -> None:
        self.kind = kind
        self.selector = selector
        self.namespace = namespace
        self.version = version
        self.extra: list[bytes] = []
        self.ended = False
        self.muted = False

    def news(self, objects: Objects) -> bytes:
        if self.muted:
            return b""
        lines = []
        for change in objects.history:
            if change.kind == self.kind and change.version > self.version:
                event = change.seen_by(self.selector, self.namespace)
                if event is not None:
                    lines.append(json.dumps(event).encode() + b"\n")
        self.version = max(self.version, objects.version)
        lines += self.extra
        self.extra.clear()
        return b"".join(lines)


def _typed(resource: Resource[T], plain: dict[str, Any]) -> T:
    found: T = decoder(resource.type).decode(msgspec.json.encode(plain))
    return found


def _abort(http: web.BaseRequest) -> web.Response:
    """Break the line; the answer goes nowhere."""
    if http.transport is not None:
        http.transport.abort()
    return web.Response()
