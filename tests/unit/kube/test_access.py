"""Finding an API server, keeping credentials fresh, and what importing all that costs."""

from __future__ import annotations

import base64
import json
import subprocess
import sys

import pytest

from allotment.addressing.errors import ConfigError
from allotment.kube.access import Access, find_access
from allotment.kube.client import Client
from allotment.kube.failures import Unauthorized, Unreachable
from allotment.kube.resources import NETWORKS
from allotment.testing.api_server import ApiServer
from kube.following import CLOCK


@pytest.fixture
def kubeconfig(tmp_path):
    """Writes a kubeconfig; `user` and `cluster` are its sections."""

    def write(user=None, cluster=None, **more):
        path = tmp_path / "kubeconfig"
        content = {
            "clusters": [{"name": "c", "cluster": {"server": "https://192.0.2.1:6443/", **(cluster or {})}}],
            "users": [{"name": "u", "user": user or {}}],
            "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "one",
            **more,
        }
        path.write_text(json.dumps(content))
        return path

    return write


async def test_a_kubeconfig_with_a_token(kubeconfig):
    access = await find_access(kubeconfig({"token": "t0"}, {"insecure-skip-tls-verify": True, "tls-server-name": "k"}))
    assert (access.server, access.token, access.verify) == ("https://192.0.2.1:6443", "t0", False)
    assert access.server_name == "k"
    assert "t0" not in repr(access)


async def test_a_kubeconfig_with_files_next_to_it(kubeconfig, tmp_path):
    for name in ("ca.crt", "token", "me.crt", "me.key"):
        (tmp_path / name).write_text("x")
    user = {"tokenFile": "token", "client-certificate": "me.crt", "client-key": "me.key"}
    access = await find_access(kubeconfig(user, {"certificate-authority": "ca.crt"}))
    assert access.token_file == tmp_path / "token"
    assert (access.ca, access.certificate, access.key) == tuple(tmp_path / n for n in ("ca.crt", "me.crt", "me.key"))


async def test_what_stands_in_a_kubeconfig_is_left_in_no_file(kubeconfig, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    secret = base64.b64encode(b"the key").decode()
    path = kubeconfig({"client-certificate-data": secret, "client-key-data": secret})
    for _ in range(2):
        access = await find_access(path)
        assert access.key == b"the key"
        assert list(scratch.iterdir()) == []
    assert "the key" not in repr(access)


async def test_the_named_context_is_used(kubeconfig):
    contexts = [{"name": name, "context": {"cluster": name, "user": name}} for name in ("one", "two")]
    path = kubeconfig(
        clusters=[{"name": name, "cluster": {"server": f"https://{name}"}} for name in ("one", "two")],
        users=[{"name": name, "user": {"token": name}} for name in ("one", "two")],
        contexts=contexts,
    )
    assert (await find_access(path)).token == "one"
    assert (await find_access(path, "two")).server == "https://two"
    with pytest.raises(ConfigError, match="three"):
        await find_access(path, "three")


async def test_a_plugin_gives_the_token_and_is_asked_again_after_a_401(kubeconfig, tmp_path):
    plugin = tmp_path / "plugin"
    plugin.write_text(
        "#!/bin/sh\n"
        f"n=$(cat {tmp_path}/n 2>/dev/null || echo 0)\nn=$((n + 1)); echo $n > {tmp_path}/n\n"
        'echo "{\\"apiVersion\\":\\"client.authentication.k8s.io/v1\\",\\"kind\\":\\"ExecCredential\\",'
        '\\"status\\":{\\"token\\":\\"t$n\\"}}"\n'
    )
    plugin.chmod(0o755)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}}
    async with ApiServer() as server:
        access = await find_access(kubeconfig(user, {"server": server.url}))
        assert access.token == "t1"
        server.tokens = {"t2"}
        async with Client(access, CLOCK) as client:
            await client.list(NETWORKS)
            assert len(server.requests) == 2
            await client.list(NETWORKS)
            assert len(server.requests) == 3
            server.tokens = {"none"}
            with pytest.raises(Unauthorized):
                await client.list(NETWORKS)
            assert len(server.requests) == 5  # once more, not for ever


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "there is no kubeconfig"),
        ("", "can't be used"),
        ("[]", "can't be used"),
        ("{}", "current-context"),
        ("a: [", "can't be used"),
        ("\x00", "can't be used"),
    ],
)
async def test_a_kubeconfig_that_makes_no_sense_is_named(tmp_path, text, words):
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        await find_access(path)
    assert str(path) in caught.value.message


async def test_a_password_is_refused(kubeconfig):
    with pytest.raises(ConfigError, match="use a token"):
        await find_access(kubeconfig({"username": "me", "password": "secret"}))


async def test_in_a_pod(tmp_path):
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(ConfigError, match="--kubeconfig"):
        await find_access(None, environment={}, service_account=tmp_path)
    with pytest.raises(ConfigError, match="token"):
        await find_access(None, environment=environment, service_account=tmp_path)
    (tmp_path / "token").write_text("t\n")
    (tmp_path / "ca.crt").write_text("x")
    access = await find_access(None, environment=environment, service_account=tmp_path)
    assert access == Access("https://[fd00::1]:443", ca=tmp_path / "ca.crt", token_file=tmp_path / "token")


async def test_a_token_file_as_the_kubelet_replaces_it(tmp_path):
    """A link to a folder that is replaced as a whole; what can't be read for a moment is left as it was."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(f"{name}\n")
    link = tmp_path / "data"
    link.symlink_to("one")
    async with ApiServer() as server:
        server.tokens = {"one"}
        async with Client(Access(server.url, token_file=link / "token"), CLOCK) as client:
            await client.list(NETWORKS)
            link.unlink()
            await client.list(NETWORKS)
            server.tokens = {"two"}
            link.symlink_to("two")
            count = len(server.requests)
            await client.list(NETWORKS)
            assert len(server.requests) == count + 1
        async with Client(Access(server.url, token_file=tmp_path / "none"), CLOCK) as client:
            with pytest.raises(Unreachable, match="token file"):
                await client.list(NETWORKS)


async def test_certificates_that_cannot_be_used_are_named(tmp_path):
    ca = tmp_path / "ca.crt"
    ca.write_text("no certificate")
    async with Client(Access("https://127.0.0.1:1", ca=ca), CLOCK) as client:
        with pytest.raises(ConfigError, match="certificates for https://127"):
            await client.list(NETWORKS)


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)


IMPORTED = """
import sys
import allotment.kube.access, allotment.kube.client, allotment.kube.reflector, allotment.kube.events
assert not [name for name in sys.modules if name.startswith("kubernetes_asyncio")]
import asyncio, json, pathlib, tempfile
path = pathlib.Path(tempfile.mkdtemp()) / "config"
path.write_text(json.dumps({
    "clusters": [{"name": "c", "cluster": {"server": "https://x"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "x",
}))
access = asyncio.run(allotment.kube.access.find_access(path))
path.unlink(); path.parent.rmdir()
assert access.token == "t"
left = [name for name in sys.modules if name.startswith("kubernetes_asyncio")]
assert not left, left
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
def test_the_models_of_kubernetes_asyncio_are_not_loaded():
    ended = run(IMPORTED)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) < 60 * 1024, "KiB; with the models it is 80 MiB"


@pytest.mark.slow
def test_the_whole_package_can_still_be_imported_afterwards():
    ended = run(
        "import asyncio, pathlib\n"
        "from allotment.kube.access import find_access\n"
        "try: asyncio.run(find_access(None, environment={}))\n"
        "except Exception: pass\n"
        "import kubernetes_asyncio.client.configuration as it\n"
        "from kubernetes_asyncio.config import load_kube_config\n"
        "import kubernetes_asyncio\n"
        "assert kubernetes_asyncio.client.CoreV1Api\n"
    )
    assert ended.returncode == 0, ended.stderr
