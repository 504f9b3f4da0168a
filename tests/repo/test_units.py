"""The systemd units are what systemd takes, and say what the agent is and needs."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from allotment.node.settings import Settings

UNITS = Path(__file__).parents[2] / "systemd"


class Unit(configparser.ConfigParser):
    """A unit file; a key that is given twice keeps its last value."""

    def __init__(self, name: str) -> None:
        super().__init__(strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
        self.optionxform = str
        self.read_string((UNITS / name).read_text())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_them(tmp_path):
    for path in UNITS.glob("allotment.*"):
        text = path.read_text()
        program = Unit(path.name)["Service"]["ExecStart"].split()[0] if path.suffix == ".service" else "-"
        (tmp_path / path.name).write_text(text.replace(program, "/bin/true"))  # it is not installed here
    units = [str(path) for path in tmp_path.iterdir() if path.suffix in (".service", ".socket")]
    ended = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_socket_is_where_the_agent_and_the_shim_look_for_it():
    unit = Unit("allotment.socket")["Socket"]
    settings = Settings(node="n")
    assert unit["ListenStream"] == str(settings.socket)
    assert unit["SocketMode"] == "0600"
    tmpfiles = (UNITS / "allotment.tmpfiles.conf").read_text()
    assert f"d {settings.spool_dir} 0700 root root" in tmpfiles


def test_the_service_is_watched_restarted_and_given_time_to_drain():
    unit = Unit("allotment.service")
    service = unit["Service"]
    settings = Settings(node="n")
    assert service["Type"] == "notify"
    assert service["Restart"] == "always"
    assert int(service["WatchdogSec"].removesuffix("s")) > 0
    assert int(service["TimeoutStopSec"].removesuffix("s")) > settings.drain_seconds
    assert f"/var/lib/{service['StateDirectory']}" == str(settings.state_dir)
    assert f"/run/{service['RuntimeDirectory']}" == str(settings.socket.parent)
    assert service["RuntimeDirectoryPreserve"] == "yes"  # the spool outlives the agent
    assert unit["Unit"]["Requires"] == "allotment.socket"
    assert int(service["LimitNOFILE"]) > 2 * settings.request_limit


def test_the_service_is_hardened():
    service = Unit("allotment.service")["Service"]
    for key in "NoNewPrivileges", "PrivateTmp", "ProtectHome", "ProtectKernelModules", "RestrictSUIDSGID":
        assert service[key] == "yes", key
    assert service["ProtectSystem"] == "strict"
    allowed = {"CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_DAC_OVERRIDE"}
    assert set(service["CapabilityBoundingSet"].split()) <= allowed
