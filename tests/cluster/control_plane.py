"""An API server with its etcd, on this machine's loopback or in a cluster; and what makes a control plane of it.

    with ApiServer() as server:
        server.kubectl("get", "namespaces")

It is a real one, with Kubernetes' own rules (RBAC, Node authorizer, NodeRestriction, admission policies), but nobody
else is there unless a cluster is built around it: no controller removes what belongs to a deleted object, empties a
deleted namespace, makes ServiceAccounts or runs pods. So pods may be made without a ServiceAccount.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import signal
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

from cluster.access import ADMIN_TOKEN, PATIENCE, Access, Audited, KubectlError
from cluster.builder import api_server_programs, cluster_programs
from cluster.fabric import SERVICES
from cluster.pki import Authority
from cluster.processes import Port, Program, until_true

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster.fabric import Place

__all__ = ["ApiServer", "Audited", "ControlPlane", "KubectlError"]

NODES = ("n1", "n2", "n3")
"""Nodes that there are users of, each with the rights of a kubelet."""
ISSUER = "https://kubernetes.default.svc"

_USERS = {
    ADMIN_TOKEN: ("admin", "system:masters"),
    "controller-manager-token": ("system:kube-controller-manager", ""),
    "scheduler-token": ("system:kube-scheduler", ""),
    "proxy-token": ("system:kube-proxy", ""),
}


class ApiServer(Access):
    """kube-apiserver and etcd with a folder of their own; a context manager that leaves nothing behind.

    They end with the thread that makes this. With a `place` it listens there, at port 6443; else at 127.0.0.1, at a
    port that nobody else has. `service_accounts`: whether a pod must have a ServiceAccount, which a controller makes.
    """

    def __init__(
        self, *, place: Place | None = None, service_accounts: bool = False, flags: tuple[str, ...] = ()
    ) -> None:
        self._programs = api_server_programs()
        self._within = () if place is None else place.within
        self._stack = contextlib.ExitStack()
        folder = Path(tempfile.mkdtemp(prefix="al-api-"))
        self._stack.callback(shutil.rmtree, folder)
        self._held = Port() if place is None else None
        if self._held is not None:
            self._stack.callback(self._held.close)
        with self._undone_on_failure():
            self.authority = Authority(folder / "pki")
            address, port = ("127.0.0.1", self._held.number) if place is None else (place.address, 6443)
            super().__init__(folder, address, port, self.authority.certificate.cert, place)
            self._command = self._apiserver_command(service_accounts, flags)
            self._etcd = self._start_etcd()
            self._stack.callback(self._etcd.end)
            self._server: Program | None = None
            self._stack.callback(self.stop)
            self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End both and remove their folder."""
        self._stack.close()

    # -- its life

    def start(self) -> None:
        """Start the API server, with the data that etcd has, and wait until it is ready; nothing if it runs."""
        if self._server is not None:
            return
        self._server = Program("kube-apiserver", self._command, log=self.log("apiserver"), within=self._within)
        programs = (self._etcd, self._server)
        until_true(lambda: self.request("GET", "/readyz")[0] == 200, "the API server is not ready", of=programs)
        # Custom resources come later, each by itself: until then it has none, or "storage is (re)initializing".
        until_true(self._serves_custom_resources, "the API server does not serve its custom resources", of=programs)

    def _serves_custom_resources(self) -> bool:
        status, found = self.request("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
        if status != 200:
            return False
        specs = [definition["spec"] for definition in found["items"]]
        paths = [
            f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}?limit=1"
            for spec in specs
            for version in spec["versions"]
            if version["served"]
        ]
        return all(self.request("GET", path)[0] == 200 for path in paths)

    def stop(self) -> None:
        """Kill the API server: connections end, and new ones are refused until `start`."""
        if self._server is not None:
            self._server.end(signal.SIGKILL)
            self._server = None

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """It is stopped within."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def hang(self) -> None:
        """Stop the API server in its tracks: connections stay, new ones are taken up, and nothing is answered."""
        self._server.halt()

    def resume(self) -> None:
        """Let it go on after `hang`."""
        self._server.send(signal.SIGCONT)

    def compact(self) -> int:
        """Forget all revisions but the last, and return that: who goes on from an earlier one is told 410.

        The API server restarts, since it remembers recent changes itself.
        """
        self.stop()
        revision = int(self._ask_etcd("/v3/kv/range", {"key": "AA=="})["header"]["revision"])
        self._ask_etcd("/v3/kv/compaction", {"revision": str(revision), "physical": True})
        self.start()
        return revision

    # -- how it is started

    @contextlib.contextmanager
    def _undone_on_failure(self):
        try:
            yield
        except BaseException:
            self.close()
            raise

    @property
    def _etcd_url(self) -> str:
        return f"unix://{self.folder}/etcd.sock"

    def _start_etcd(self) -> Program:
        # What it advertises must be a host and a port. Nobody uses that of a member alone: peers it has none, and the
        # API server has been told where it listens.
        unused = "http://localhost:2379"
        command = [
            self._programs / "etcd",
            *("--data-dir", self.folder / "etcd"),
            *("--listen-client-urls", self._etcd_url, "--advertise-client-urls", unused),
            *("--listen-peer-urls", f"unix://{self.folder}/peer.sock", "--initial-advertise-peer-urls", unused),
            *("--initial-cluster", f"default={unused}"),
            "--unsafe-no-fsync",
            *("--log-level", "warn"),
        ]
        return Program("etcd", command, log=self.log("etcd"), within=self._within)

    def _apiserver_command(self, service_accounts: bool, flags: tuple[str, ...]) -> list:
        names = ("DNS:localhost", "DNS:kubernetes", "DNS:kubernetes.default", "DNS:kubernetes.default.svc")
        addresses = ("IP:127.0.0.1", "IP:10.96.0.1", *({f"IP:{self.address}"} - {"IP:127.0.0.1"}))
        own = self.authority.issue("apiserver", "/CN=kube-apiserver", names=names + addresses)
        kubelets = self.authority.issue("kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client")
        self.token_key, public = self.authority.key_pair("service-accounts")
        return [
            self._programs / "kube-apiserver",
            f"--etcd-servers={self._etcd_url}",
            *(f"--bind-address={self.address}", f"--advertise-address={self.address}", f"--secure-port={self.port}"),
            *(["--permit-port-sharing"] if self._held is not None else []),
            *(f"--tls-cert-file={own.cert}", f"--tls-private-key-file={own.key}", f"--client-ca-file={self.ca_file}"),
            f"--kubelet-client-certificate={kubelets.cert}",
            f"--kubelet-client-key={kubelets.key}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-account-issuer={ISSUER}",
            f"--service-account-key-file={public}",
            f"--service-account-signing-key-file={self.token_key}",
            f"--token-auth-file={self._write_users()}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            *([] if service_accounts else ["--disable-admission-plugins=ServiceAccount"]),
            f"--service-cluster-ip-range={','.join(SERVICES)}",
            "--allow-privileged=true",
            "--profiling=false",
            f"--audit-policy-file={self._write_audit_policy()}",
            f"--audit-log-path={self.folder / 'audit.log'}",
            *flags,
        ]

    def _write_users(self) -> Path:
        users = dict(_USERS)
        users |= {self.node_token(node): (f"system:node:{node}", "system:nodes") for node in NODES}
        path = self.folder / "users.csv"
        lines = [f'{token},{name},{name},"{groups}"' for token, (name, groups) in users.items()]
        path.write_text("\n".join(lines) + "\n")
        return path

    def _write_audit_policy(self) -> Path:
        own = {"level": "None", "users": ["system:apiserver"]}
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [own, {"level": "Metadata"}],
        }
        path = self.folder / "audit-policy.json"
        path.write_text(json.dumps(policy))
        return path

    def _ask_etcd(self, path: str, body: dict) -> dict:
        """One call of etcd's JSON gateway; https://etcd.io/docs/v3.6/dev-guide/api_grpc_gateway/."""
        connection = http.client.HTTPConnection("localhost", timeout=PATIENCE)
        connection.sock = socket.socket(socket.AF_UNIX)
        with contextlib.closing(connection):
            connection.sock.connect(str(self.folder / "etcd.sock"))
            connection.request("POST", path, json.dumps(body))
            response = connection.getresponse()
            answer = json.loads(response.read())
            assert response.status == 200, answer
            return answer


class ControlPlane:
    """An API server at a place of a cluster, with the controller manager and the scheduler; all end with our thread."""

    def __init__(self, place: Place) -> None:
        self.api = ApiServer(place=place, service_accounts=True)
        with contextlib.ExitStack() as stack:
            stack.callback(self.api.close)
            programs = cluster_programs()
            controllers = [
                programs / "kube-controller-manager",
                f"--kubeconfig={self.api.write_kubeconfig('controller-manager', 'controller-manager-token')}",
                f"--service-account-private-key-file={self.api.token_key}",
                f"--root-ca-file={self.api.ca_file}",
                "--use-service-account-credentials=true",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
                "--allocate-node-cidrs=false",
                "--node-monitor-grace-period=20s",
            ]
            scheduler = [
                programs / "kube-scheduler",
                f"--kubeconfig={self.api.write_kubeconfig('scheduler', 'scheduler-token')}",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
            ]
            for name, command in (("controller-manager", controllers), ("scheduler", scheduler)):
                program = Program(name, command, log=self.api.log(name), within=place.within)
                stack.callback(program.end)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """End all of it and remove its folder."""
        self._stack.close()
