"""The installation in a cluster is whole, fits the program's settings, and gives no more rights than are used."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from allotment.kube.removal import NAMESPACE
from allotment.node.settings import Settings

FOLDER = Path(__file__).parents[2] / "daemonset"
BASES = (FOLDER, FOLDER / "uninstall")
SETTINGS = Settings(node="n")
LABEL = "app.kubernetes.io/name"


def files(base: Path) -> list[Path]:
    """What a kustomization installs, file by file."""
    found: list[Path] = []
    name = next(path for path in base.glob("kustomization.y*ml"))
    for entry in yaml.safe_load(name.read_text())["resources"]:
        path = base / entry
        found += files(path) if path.is_dir() else [path]
    return found


@cache
def objects(base: Path) -> list[dict[str, Any]]:
    return [item for path in files(base) for item in yaml.safe_load_all(path.read_text())]


def pods(base: Path) -> dict[str, dict[str, Any]]:
    """Workloads' pods, by the workload's name."""
    kinds = ("DaemonSet", "Deployment", "Job")
    return {
        item["metadata"]["name"]: item["spec"]["template"]["spec"] for item in objects(base) if item["kind"] in kinds
    }


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


PODS = [pytest.param(pod, id=name) for base in BASES for name, pod in pods(base).items()]
CONTAINERS = [
    pytest.param(pod, one, id=f"{name}/{one['name']}")
    for base in BASES
    for name, pod in pods(base).items()
    for one in containers(pod)
]


@pytest.fixture
def agent():
    return pods(FOLDER)["allotment-agent"]


def named(pod: dict[str, Any], name: str) -> dict[str, Any]:
    [found] = [one for one in containers(pod) if one["name"] == name]
    return found


def mounts(pod: dict[str, Any], container: dict[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Where a container has the host's folders: its path to the host's, and how it is mounted."""
    volumes = {one["name"]: one.get("hostPath", {}).get("path", "") for one in pod["volumes"]}
    return {one["mountPath"]: (volumes[one["name"]], one) for one in container.get("volumeMounts", ())}


# -- what is installed


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.name)
def test_every_file_is_installed_by_its_kustomization(base):
    there = {path for path in base.glob("*.yaml") if path.name != "kustomization.yaml"}
    assert there <= set(files(base))
    if base == FOLDER:
        assert set((FOLDER / "crds").glob("*.yaml")) <= set(files(base))


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.name)
def test_the_image_is_named_in_one_place(base):
    kustomization = yaml.safe_load((base / "kustomization.yaml").read_text())
    assert [one["name"] for one in kustomization["images"]] == ["allotment"]
    assert {one["image"] for pod in pods(base).values() for one in containers(pod)} == {"allotment"}


def test_what_belongs_to_no_namespace_is_found_by_its_label_when_it_is_removed():
    """`allotment uninstall cluster` knows roles and policies by the label alone."""
    kinds = ("ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    found = [item for item in objects(FOLDER) if item["kind"] in kinds]
    assert len(found) >= 6
    for item in found:
        assert item["metadata"].get("labels", {}).get(LABEL) == "allotment", item["metadata"]["name"]
    for item in objects(FOLDER / "uninstall"):  # nor does it take itself away
        assert item["metadata"].get("labels", {}).get(LABEL) != "allotment", item["metadata"]["name"]


def test_both_live_in_the_namespace_that_the_program_names():
    kustomization, away = (yaml.safe_load((base / "kustomization.yaml").read_text()) for base in BASES)
    assert kustomization["namespace"] == NAMESPACE
    assert away["namespace"] != NAMESPACE


# -- the pods


@pytest.mark.parametrize("pod", PODS)
def test_a_pod_goes_wherever_it_has_to_and_needs_no_other_network(pod):
    assert pod["hostNetwork"] is True
    assert pod["priorityClassName"] in ("system-node-critical", "system-cluster-critical")
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not any(pod.get(word) for word in ("hostPID", "hostIPC", "shareProcessNamespace"))


@pytest.mark.parametrize(("pod", "container"), CONTAINERS)
def test_a_container_may_little_and_has_its_share(pod, container):
    context = container["securityContext"]
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"]["drop"] == ["ALL"]
    assert "privileged" not in context
    assert "seccompProfile" not in context
    added = set(context["capabilities"].get("add", ()))
    wanted = {"NET_ADMIN", "NET_RAW", "SYS_ADMIN"} if container["name"] == "agent" else set()
    assert added == wanted
    assert set(container["resources"]["requests"]) == {"cpu", "memory"}
    assert "memory" in container["resources"]["limits"]
    # A CPU limit would have it stand still while pods wait for their addresses.
    assert "cpu" not in container["resources"]["limits"]


def test_the_plugin_goes_first_and_the_configuration_once_the_agent_answers(agent):
    [first] = agent["initContainers"]
    assert first["command"] == ["allotment", "install-cni", "--no-conf"]
    assert set(mounts(agent, first)) == {"/opt/cni/bin"}
    last = named(agent, "install-configuration")
    assert "allotment install-cni --wait" in last["command"][-1]
    assert set(mounts(agent, last)) == {"/opt/cni/bin", "/etc/cni/net.d", str(SETTINGS.socket.parent)}


def test_the_agent_is_told_its_node_and_watched(agent):
    container = named(agent, "agent")
    [node] = [one for one in container["env"] if one["name"] == "ALLOTMENT_NODE"]
    assert node["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
    assert SETTINGS.http is not None
    for probe, path in (("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")):
        asked = container[probe]["httpGet"]
        assert (asked["host"], asked["port"], asked["path"]) == (SETTINGS.http.host, SETTINGS.http.port, path)
    # A node whose agent is busy for a moment must not lose it.
    liveness = container["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 30
    assert agent["terminationGracePeriodSeconds"] > SETTINGS.drain_seconds


def test_the_agent_finds_its_folders_where_its_settings_have_them(agent):
    found = mounts(agent, named(agent, "agent"))
    written = {str(SETTINGS.socket.parent), str(SETTINGS.state_dir)}
    read = {str(SETTINGS.cni_cache_dir), *(str(path.parent) for path in SETTINGS.runtime_sockets)}
    assert set(found) == {*written, *read, str(SETTINGS.netns_dir[0])}
    for path, (host, mount) in found.items():
        assert path == host
        if path in read:
            assert mount["readOnly"] is True, path
    for path in (str(SETTINGS.netns_dir[0]), *(str(path.parent) for path in SETTINGS.runtime_sockets)):
        assert found[path][1]["mountPropagation"] == "HostToContainer", path


def test_what_clears_a_node_sees_what_was_put_there_and_has_no_token():
    pod = pods(FOLDER / "uninstall")["nodes"]
    assert pod["automountServiceAccountToken"] is False
    found = mounts(pod, pod["initContainers"][0])
    agent = pods(FOLDER)["allotment-agent"]
    for container in containers(agent):
        for host, mount in mounts(agent, container).values():
            if not mount.get("readOnly") and host != str(SETTINGS.netns_dir[0]):
                assert any(Path(host).is_relative_to(path) for path in found), host
    for path in ("/run", "/var/lib"):
        assert found[path][1]["mountPropagation"] == "HostToContainer"


# -- rights

READING = {"get", "list", "watch"}


def rules(base: Path, role: str) -> list[dict[str, Any]]:
    [found] = [item for item in objects(base) if item["kind"] == "ClusterRole" and item["metadata"]["name"] == role]
    return found["rules"]


def test_an_agent_has_no_right_by_a_wildcard_and_none_over_what_gives_rights():
    for rule in rules(FOLDER, "allotment-agent"):
        assert "*" not in str(rule)
        assert not {"escalate", "bind", "impersonate", "deletecollection"} & set(rule["verbs"])
        assert not {"secrets", "serviceaccounts", "configmaps", "pods/exec"} & set(rule["resources"])
        if rule["apiGroups"] == [""]:
            assert set(rule["verbs"]) <= READING, rule


def test_an_agent_never_writes_the_objects_that_people_make():
    for rule in rules(FOLDER, "allotment-agent"):
        if {"networks", "ipreservations", "ipamconfigs", "ipaddresspools"} & set(rule["resources"]):
            assert set(rule["verbs"]) <= READING, rule


def test_every_policy_is_bound_and_denies():
    policies = [item for item in objects(FOLDER) if item["kind"] == "ValidatingAdmissionPolicy"]
    bindings = {
        item["spec"]["policyName"]: item["spec"]["validationActions"]
        for item in objects(FOLDER)
        if item["kind"] == "ValidatingAdmissionPolicyBinding"
    }
    assert set(bindings) == {item["metadata"]["name"] for item in policies}
    assert {tuple(actions) for actions in bindings.values()} == {("Deny",)}
    assert {item["spec"]["failurePolicy"] for item in policies} == {"Fail"}
    held = {
        resource
        for item in policies
        for rule in item["spec"]["matchConstraints"]["resourceRules"]
        for resource in rule["resources"]
    }
    written = {
        resource
        for rule in rules(FOLDER, "allotment-agent")
        if rule["apiGroups"] == ["allotment.dev"] and not set(rule["verbs"]) <= READING
        for resource in rule["resources"]
    }
    assert written <= held, "RBAC gives a right over all nodes' objects that no policy holds to its own"


# -- the image


def test_the_image_is_made_of_a_base_of_ones_choice_and_holds_nothing_that_builds():
    lines = [line for line in (FOLDER / "Containerfile").read_text().splitlines() if not line.startswith("#")]
    stages = [number for number, line in enumerate(lines) if line.startswith("FROM ")]
    assert len(stages) == 2
    assert all("${BASE}" in lines[number] for number in stages)
    assert re.search(r"^ARG BASE=\S+:\S*slim", "\n".join(lines), re.MULTILINE)
    last = lines[stages[-1] :]
    assert not any(line.startswith("RUN") for line in last)
    assert [line for line in last if line.startswith("COPY")] == ["COPY --from=build /opt/allotment /opt/allotment"]
