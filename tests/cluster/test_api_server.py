"""The API server that tests run against: it answers, goes and comes back with its data, and leaves nothing behind."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from cluster.control_plane import ApiServer, KubectlError
from cluster.processes import Port
from nodes import until

DEFINITION = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.test.allotment.dev}
spec:
  group: test.allotment.dev
  scope: Cluster
  names: {plural: boats, singular: boat, kind: Boat}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
"""


def config_map(name, **data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def put(server, name, **data):
    status, body = server.request("POST", "/api/v1/namespaces/default/configmaps", config_map(name, **data))
    assert status == 201, body
    return body


def pod(name, node, account="default"):
    spec = {"nodeName": node, "serviceAccountName": account, "containers": [{"name": "c", "image": "none"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def programs_in(folder):
    """The processes that name this folder in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_it_answers_kubectl_and_requests(api_server):
    assert "default" in api_server.kubectl("get", "namespaces", "-o", "name")
    put(api_server, "answers", a="1")
    assert api_server.kubectl("get", "configmap", "answers", "-o", "jsonpath={.data.a}") == "1"
    api_server.kubectl("apply", "-f", "-", input=json.dumps(config_map("piped", b="2")))
    assert api_server.request("GET", "/api/v1/namespaces/default/configmaps/piped")[1]["data"] == {"b": "2"}
    with pytest.raises(KubectlError, match="NotFound"):
        api_server.kubectl("get", "configmap", "nobody")
    assert re.search(r"^apiserver_request_total", api_server.metrics(), re.MULTILINE)


def test_it_is_of_the_version_that_go_mod_pins(api_server):
    pinned = (Path(__file__).parent / "kubernetes" / "go.mod").read_text()
    version = api_server.request("GET", "/version")[1]["gitVersion"]
    assert f"k8s.io/kubernetes {version} " in pinned
    assert f"Client Version: {version}" in api_server.kubectl("version", "--client")


def test_a_node_s_user_may_what_a_kubelet_may(api_server):
    for node in ("n1", "n2"):
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}
        assert api_server.request("POST", "/api/v1/nodes", body, token=api_server.node_token(node))[0] == 201
    label = {"metadata": {"labels": {"colour": "blue"}}}
    patch = {"token": api_server.node_token("n1"), "content_type": "application/merge-patch+json"}
    assert api_server.request("PATCH", "/api/v1/nodes/n1", label, **patch)[0] == 200
    assert api_server.request("PATCH", "/api/v1/nodes/n2", label, **patch)[0] == 403
    assert api_server.request("GET", "/api/v1/nodes/n1", token="nobody's")[0] == 401


def test_a_bound_token_names_the_node_of_its_pod(api_server):
    api_server.kubectl("create", "serviceaccount", "sailor")
    api_server.kubectl("apply", "-f", "-", input=json.dumps(pod("sailing", "n1", "sailor")))
    token = api_server.bound_token("default", "sailor", pod="sailing")
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    status, body = api_server.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review, token=token)
    assert status == 201
    user = body["status"]["userInfo"]
    assert user["username"] == "system:serviceaccount:default:sailor"
    assert user["extra"]["authentication.kubernetes.io/node-name"] == ["n1"]


def test_it_comes_back_at_the_same_place_with_the_same_data(api_server):
    put(api_server, "kept", a="1")
    url = api_server.url
    api_server.stop()
    with pytest.raises(ConnectionRefusedError):
        api_server.request("GET", "/readyz")
    api_server.start()
    assert api_server.url == url
    assert api_server.kubectl("get", "configmap", "kept", "-o", "jsonpath={.data.a}") == "1"


def test_while_it_hangs_it_takes_connections_and_answers_nothing(api_server):
    api_server.hang()
    try:
        with socket.create_connection((api_server.address, api_server.port), timeout=5) as connection:
            connection.settimeout(0.3)
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            with pytest.raises(TimeoutError):
                connection.recv(1)
    finally:
        api_server.resume()
    assert api_server.request("GET", "/readyz")[0] == 200


def test_after_a_compaction_a_watch_from_before_is_told_410(api_server):
    before = put(api_server, "compacted", a="1")["metadata"]["resourceVersion"]
    put(api_server, "compacted-later", a="2")
    watch = "/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1&resourceVersion="
    api_server.compact()
    [event] = api_server.events(watch + before)
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
    assert "compacted" in api_server.kubectl("get", "configmaps", "-o", "name")


def test_what_was_asked_of_it_is_in_the_audit(api_server):
    token = api_server.node_token("n3")
    path = "/api/v1/nodes?fieldSelector=metadata.name%3Dn3"
    api_server.request("GET", path, token=token)
    assert api_server.events(f"{path}&watch=1&timeoutSeconds=1", token=token) == []
    api_server.request("GET", "/api/v1/secrets", token=token)
    asked = [(entry.verb, entry.path, entry.status) for entry in api_server.audit("system:node:n3")]
    assert asked == [
        ("list", path, 200),
        ("watch", f"{path}&watch=1&timeoutSeconds=1", 200),
        ("list", "/api/v1/secrets", 403),
    ]


def test_definitions_are_served_when_they_have_been_applied(api_server, tmp_path):
    (tmp_path / "boats.yaml").write_text(DEFINITION)
    api_server.apply_crds(tmp_path.glob("*.yaml"))
    boat = {"apiVersion": "test.allotment.dev/v1", "kind": "Boat", "metadata": {"name": "one"}}
    assert api_server.request("POST", "/apis/test.allotment.dev/v1/boats", boat)[0] == 201


def test_closed_it_leaves_nothing_behind():
    with ApiServer() as server:
        folder, port = server.folder, server.port
        assert len(programs_in(folder)) == 2
    assert not folder.exists()
    assert programs_in(folder) == []
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_a_server_that_cannot_start_says_why_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(AssertionError, match="unknown flag: --colour"):
        ApiServer(flags=("--colour=blue",))
    assert list(tmp_path.iterdir()) == []
    assert programs_in(tmp_path) == []


def test_it_dies_with_the_process_that_started_it(tmp_path):
    program = """
        from cluster.control_plane import ApiServer
        server = ApiServer()
        print(server.folder, flush=True)
        input()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "TMPDIR": str(tmp_path)},
    )
    with process:
        folder = Path(process.stdout.readline().strip())
        assert folder.is_relative_to(tmp_path)
        assert len(programs_in(folder)) == 2
        process.send_signal(signal.SIGKILL)
    until(lambda: not programs_in(folder), "etcd or the API server lives on")


@pytest.fixture
def short_path():
    """A folder below which sockets can have their paths, of 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="al-") as folder:
        yield Path(folder)


def test_a_test_run_that_is_ended_leaves_nothing_behind(short_path):
    command = [sys.executable, "-m", "pytest", "-q", f"{__file__}::{test_it_answers_kubectl_and_requests.__name__}"]
    environment = {**os.environ, "TMPDIR": str(short_path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as process:
        until(lambda: list(short_path.glob("al-run-*/al-api-*/etcd.sock")), "no API server is started")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert list(short_path.glob("al-*")) == []
    assert programs_in(short_path) == []


def test_a_port_is_nobody_else_s_while_it_is_held():
    port = Port()
    try:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port.number))
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            server.bind(("127.0.0.1", port.number))
            server.listen()
            socket.create_connection(("127.0.0.1", port.number)).close()
    finally:
        port.close()
