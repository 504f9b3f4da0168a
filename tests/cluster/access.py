"""What tests ask of an API server, whoever they are: through kubectl, through bare requests, of its log and audit."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cluster.builder import api_server_programs
from cluster.fabric import connect
from cluster.processes import until_true

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from cluster.fabric import Place

__all__ = ["Access", "Audited", "KubectlError"]

PATIENCE = 30.0
"""Seconds that a request may take."""
ADMIN_TOKEN = "admin-token"


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


class Access:
    """How to ask an API server, with all rights unless a token says otherwise; what it needs lies in `folder`."""

    def __init__(self, folder: Path, address: str, port: int, ca_file: Path, place: Place | None) -> None:
        self.folder = folder
        self.address, self.port = address, port
        self.url = f"https://{address}:{port}"
        self.ca_file = ca_file
        self.admin_token = ADMIN_TOKEN
        self._place = place
        self._tls = ssl.create_default_context(cafile=str(ca_file))
        self.kubeconfig = self.write_kubeconfig("admin", ADMIN_TOKEN)

    def kubectl(self, *arguments: str, input: str | None = None, limit: float = 60.0) -> str:  # noqa: A002  # as in subprocess.run
        """What kubectl prints, run as the admin. Raises KubectlError."""
        ended = subprocess.run(
            [*self.kubectl_command(), *arguments],
            input=input,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
        if ended.returncode != 0:
            raise KubectlError(arguments, ended.stderr.strip())
        return ended.stdout

    def kubectl_command(self) -> list[str]:
        """What goes before kubectl's arguments."""
        within = () if self._place is None else self._place.within
        settings = (f"KUBECONFIG={self.kubeconfig}", f"KUBECACHEDIR={self.folder / 'kubectl'}", f"HOME={self.folder}")
        return [*within, "env", *settings, str(api_server_programs() / "kubectl")]

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

        Raises OSError.
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
        connection = http.client.HTTPSConnection(self.address, self.port, context=self._tls, timeout=PATIENCE)
        if self._place is not None:
            plain = connect(self._place.netns, (self.address, self.port), timeout=PATIENCE)
            connection.sock = self._tls.wrap_socket(plain, server_hostname=self.address)
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
        """The log of `apiserver`, `etcd`, and where they are, `controller-manager` and `scheduler`."""
        return self.folder / f"{name}.log"
