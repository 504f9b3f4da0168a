"""An API server with its etcd: on this machine's loopback, or inside a network namespace of a whole cluster.

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
import ssl
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from cluster.builder import api_server_programs
from cluster.pki import Authority
from cluster.processes import Port, Program, until_true

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ApiServer", "Audited", "KubectlError"]

NODES = ("n1", "n2", "n3")
"""Nodes that there are users of, each with the rights of a kubelet."""
ISSUER = "https://kubernetes.default.svc"
SERVICES = "10.96.0.0/16,fd00:96::/112"

_PATIENCE = 30.0
_USERS = {
    "admin-token": ("admin", "system:masters"),
    "controller-manager-token": ("system:kube-controller-manager", ""),
    "scheduler-token": ("system:kube-scheduler", ""),
    "proxy-token": ("system:kube-proxy", ""),
}


class KubectlError(Exception):
    """kubectl failed; `message` is what it said."""

    def __init__(self, arguments: tuple[str, ...], message: str):
        super().__init__(f"kubectl {' '.join(arguments)}: {message}")
        self.message = message


@dataclass(frozen=True)
class Audited:
    """A request that the API server has answered, or to which the answer, a watch, has begun."""

    user: str
    """Empty for whoever was refused as unknown."""
    verb: str
    """Such as `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`."""
    path: str
    """With the query."""
    status: int
    user_agent: str


class ApiServer:
    """kube-apiserver and etcd with a folder of their own; a context manager that leaves nothing behind.

    They end with the thread that makes this. `within` goes before each command, such as `nsenter --net=…`; then
    `address` is the one to listen at, in that namespace, and `port` is fixed. Else it listens at 127.0.0.1, at a port
    that nobody else has. `service_accounts`: whether a pod must have a ServiceAccount, which a controller makes.
    """

    def __init__(
        self,
        *,
        address: str = "127.0.0.1",
        port: int | None = None,
        within: tuple[str, ...] = (),
        service_accounts: bool = False,
        flags: tuple[str, ...] = (),
    ):
        self._programs = api_server_programs()
        self._within = within
        self.folder = Path(tempfile.mkdtemp(prefix="al-api-"))
        self.admin_token = "admin-token"
        self._stack = contextlib.ExitStack()
        self._stack.callback(shutil.rmtree, self.folder)
        self._port = Port() if port is None else None
        if self._port is not None:
            self._stack.callback(self._port.close)
        self.address, self.port = address, port or self._port.number
        self.url = f"https://{address}:{self.port}"
        with self._undone_on_failure():
            self.authority = Authority(self.folder / "pki")
            self.ca_file = self.authority.certificate.cert
            self._tls = ssl.create_default_context(cafile=str(self.ca_file))
            self.kubeconfig = self.write_kubeconfig("admin", self.admin_token)
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
        until_true(
            lambda: self.request("GET", "/readyz")[0] == 200,
            "the API server is not ready",
            of=(self._etcd, self._server),
        )

    def stop(self) -> None:
        """Kill the API server: connections end, and new ones are refused until `start`."""
        if self._server is not None:
            self._server.end(signal.SIGKILL)
            self._server = None

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

    # -- asked

    def kubectl(self, *arguments: str, input: str | None = None, limit: float = 60.0) -> str:  # noqa: A002  # as in subprocess.run
        """What kubectl prints, run as the admin. Raises KubectlError."""
        command = [*self._within, str(self._programs / "kubectl"), *arguments]
        environment = {
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": str(self.folder / "kubectl"),
            "HOME": str(self.folder),
            "PATH": "/usr/bin:/bin",
        }
        ended = subprocess.run(
            command, input=input, capture_output=True, text=True, env=environment, timeout=limit, check=False
        )
        if ended.returncode != 0:
            raise KubectlError(arguments, ended.stderr.strip())
        return ended.stdout

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str | None = None,
        content_type: str = "application/json",
    ) -> tuple[int, object]:
        """The status and body (decoded if it is JSON) of one request, as the admin or whoever has the token.

        Only of an API server on this machine's loopback; elsewhere use kubectl. Raises OSError.
        """
        status, json_, text = self._ask(method, path, body, token, content_type)
        return status, json.loads(text) if json_ else text.decode()

    def events(self, path: str, *, token: str | None = None) -> list[dict]:
        """All events of a watch, until the server ends it: give its path a `timeoutSeconds`. Raises OSError."""
        status, _, text = self._ask("GET", path, None, token, "")
        assert status == 200, text
        return [json.loads(line) for line in text.splitlines()]

    def _ask(
        self, method: str, path: str, body: object, token: str | None, content_type: str
    ) -> tuple[int, bool, bytes]:
        """One request: status, whether the body is JSON, and the body."""
        connection = http.client.HTTPSConnection(self.address, self.port, context=self._tls, timeout=_PATIENCE)
        headers = {"Authorization": f"Bearer {token or self.admin_token}", "Content-Type": content_type}
        with contextlib.closing(connection):
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.headers.get_content_type() == "application/json", response.read()

    def metrics(self) -> str:
        """The API server's own metrics."""
        return self.request("GET", "/metrics")[1]

    def audit(self, user: str | None = None) -> list[Audited]:
        """The requests so far, those of one user alone if named, in the order of their answers."""
        answers: dict[str, dict] = {}
        with (self.folder / "audit.log").open() as lines:
            for line in lines:
                if line.endswith("\n"):  # else it is still being written
                    entry = json.loads(line)
                    answers.setdefault(entry["auditID"], entry)  # a watch has a second one, when it ends
        return [
            Audited(
                user=entry["user"].get("username", ""),
                verb=entry["verb"],
                path=entry["requestURI"],
                status=entry.get("responseStatus", {}).get("code", 0),
                user_agent=entry.get("userAgent", ""),
            )
            for entry in answers.values()
            if user in (None, entry["user"].get("username", ""))
        ]

    def apply_crds(self, files: Iterable[Path]) -> None:
        """Apply CustomResourceDefinitions, and wait until the API server serves each of their versions.

        For some seconds it answers 404, then 429, for a kind that it has just got.
        """
        words = [word for path in sorted(files) for word in ("--filename", str(path))]
        self.kubectl("apply", "--server-side", *words)
        definitions = json.loads(self.kubectl("get", "--output=json", *words))
        for definition in definitions.get("items", [definitions]):
            group, plural = definition["spec"]["group"], definition["spec"]["names"]["plural"]
            for version in definition["spec"]["versions"]:
                self._until_served(f"/apis/{group}/{version['name']}/{plural}")

    def _until_served(self, path: str) -> None:
        until_true(lambda: self.request("GET", f"{path}?limit=1")[0] == 200, f"{path} is not served", limit=30)

    # -- who asks

    @staticmethod
    def node_token(node: str) -> str:
        """The token of the kubelet of one of NODES."""
        return f"node-{node}-token"

    def bound_token(self, namespace: str, account: str, *, pod: str = "", node: str = "") -> str:
        """A token of a ServiceAccount as a pod has it, bound to that pod (and thereby to its node), or to a node."""
        bound = ["--bound-object-kind", "Pod" if pod else "Node", "--bound-object-name", pod or node]
        words = ["create", "token", account, "--namespace", namespace, *(bound if pod or node else [])]
        return self.kubectl(*words).strip()

    def write_kubeconfig(self, name: str, token: str, *, url: str = "") -> Path:
        """A kubeconfig for whoever has the token; `url` is another way to the server, such as a proxy."""
        path = self.folder / f"{name}.kubeconfig"
        cluster = {"server": url or self.url, "certificate-authority": str(self.ca_file)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
            "current-context": "test",
        }
        path.write_text(json.dumps(content))
        return path

    def log(self, name: str) -> Path:
        """The log of `apiserver` or `etcd`."""
        return self.folder / f"{name}.log"

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
            *(["--permit-port-sharing"] if self._port is not None else []),
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
            f"--service-cluster-ip-range={SERVICES}",
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
        connection = http.client.HTTPConnection("localhost", timeout=_PATIENCE)
        connection.sock = socket.socket(socket.AF_UNIX)
        with contextlib.closing(connection):
            connection.sock.connect(str(self.folder / "etcd.sock"))
            connection.request("POST", path, json.dumps(body))
            response = connection.getresponse()
            answer = json.loads(response.read())
            assert response.status == 200, answer
            return answer
