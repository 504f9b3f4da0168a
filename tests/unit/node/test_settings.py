"""Settings: where a value comes from, what is refused, and that an error names the place."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import pytest

from allotment.addressing.errors import ConfigError
from allotment.node.setting_kinds import ListenAddress
from allotment.node.settings import SETTINGS, Settings, add_arguments, load


def loaded(*argv: str, environ: dict[str, str] | None = None) -> Settings:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return load(parser.parse_args(argv), environ or {})


def test_the_defaults_are_those_of_the_documentation():
    settings = loaded("--node", "n")
    assert settings == Settings(node="n")
    assert settings.http == ListenAddress("127.0.0.1", 9733)
    assert settings.socket == Path("/run/allotment/cni.sock")
    assert settings.spool_dir == Path("/run/allotment/spool")
    assert settings.gc


def test_a_flag_goes_before_the_environment_before_the_file_before_the_default(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text('node = "of-file"\nhistory_rows = 1\nrequest_limit = 1\n')
    environ = {"ALLOTMENT_NODE": "of-environment", "ALLOTMENT_HISTORY_ROWS": "2", "ALLOTMENT_CONFIG": str(file)}
    settings = loaded("--node", "of-flag", environ=environ)
    assert (settings.node, settings.history_rows, settings.request_limit) == ("of-flag", 2, 1)
    assert settings.ballast_mib == Settings(node="x").ballast_mib


# One way of writing each setting that isn't its default: as text, as TOML, and what it means.
WRITTEN = {
    "config": None,
    "manifests": ("/m", '"/m"', Path("/m")),
    "kubeconfig": ("/k", '"/k"', Path("/k")),
    "node": ("node-7.example", '"node-7.example"', "node-7.example"),
    "state_dir": ("/s", '"/s"', Path("/s")),
    "socket": ("/s.sock", '"/s.sock"', Path("/s.sock")),
    "http": ("[::1]:80", '"[::1]:80"', ListenAddress("::1", 80)),
    "log_format": ("console", '"console"', "console"),
    "log_level": ("debug", '"debug"', "debug"),
    "gc": ("off", "false", False),
    "add_wait": ("0.5", "0.5", 0.5),
    "claim_wait": ("2.5", "2.5", 2.5),
    "request_limit": ("7", "7", 7),
    "drain_seconds": ("3", "3", 3.0),
    "history_rows": ("0", "0", 0),
    "ballast_mib": ("64", "64", 64),
    "netns_dir": ("/a:/b", '["/a", "/b"]', (Path("/a"), Path("/b"))),
    "cni_cache_dir": ("/c", '"/c"', Path("/c")),
    "runtime_socket": ("/r.sock", '"/r.sock"', (Path("/r.sock"),)),
    "boot_id_file": ("/b", '"/b"', Path("/b")),
}


def test_every_setting_has_a_case_below():
    assert set(WRITTEN) == {setting.name for setting in SETTINGS} == {f.name for f in dataclasses.fields(Settings)}


@pytest.mark.parametrize("name", [name for name, case in WRITTEN.items() if case])
def test_each_setting_means_the_same_as_flag_variable_and_key(name, tmp_path):
    text, toml, meaning = WRITTEN[name]
    setting = next(setting for setting in SETTINGS if setting.name == name)
    file = tmp_path / "a.toml"
    file.write_text(f"{setting.key} = {toml}\n")
    assert getattr(loaded(setting.flag, text), name) == meaning
    assert getattr(loaded(environ={setting.variable: text}), name) == meaning
    assert getattr(loaded("--config", str(file)), name) == meaning
    assert setting.kind.show(meaning) == text


def test_a_repeated_flag_adds_up_and_replaces_the_environment():
    settings = loaded("--netns-dir", "/a", "--netns-dir", "/b:/c", environ={"ALLOTMENT_NETNS_DIR": "/d"})
    assert settings.netns_dir == (Path("/a"), Path("/b"), Path("/c"))


def test_http_can_be_turned_off():
    assert loaded("--http", "off").http is None


def test_the_runtime_is_looked_for_in_a_cluster_unless_it_is_said_where():
    both = (Path("/run/containerd/containerd.sock"), Path("/run/crio/crio.sock"))
    assert loaded().runtime_sockets == loaded("--runtime-socket", "auto", "--manifests", "/m").runtime_sockets == both
    assert loaded("--manifests", "/m").runtime_sockets == loaded("--runtime-socket", "off").runtime_sockets == ()
    assert loaded("--manifests", "/m", "--runtime-socket", "/r").runtime_sockets == (Path("/r"),)


def test_an_empty_variable_is_as_good_as_none():
    assert loaded("--node", "n", environ={"ALLOTMENT_HTTP": ""}) == Settings(node="n")


def test_relative_paths_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert loaded("--state-dir", "state").state_dir == tmp_path / "state"


@pytest.mark.parametrize(
    ("flag", "value", "reason"),
    [
        ("--http", "9733", "neither off nor ADDRESS:PORT"),
        ("--http", "localhost:80", "neither off nor ADDRESS:PORT"),
        ("--http", "127.0.0.1:65536", "no port"),
        ("--http", "127.0.0.1:٣", "no port"),
        ("--node", "Node_1", "no node name"),
        ("--node", "a..b", "no node name"),
        ("--node", "a" * 254, "no node name"),
        ("--node", "a\n", "no node name"),
        ("--gc", "yes", "neither on nor off"),
        ("--add-wait", "-1", "no time"),
        ("--add-wait", "nan", "no time"),
        ("--add-wait", "inf", "no time"),
        ("--history-rows", "1e3", "no whole number"),
        ("--history-rows", "-1", "no whole number"),
        ("--request-limit", "0", "no whole number from 1 to 65536"),
        ("--request-limit", "9" * 5000, "no whole number"),
        ("--log-level", "loud", "not one of debug, info"),
        ("--state-dir", "", "a path is needed"),
        ("--state-dir", "a\0b", "NUL"),
        ("--socket", "/" + "x" * 107, "at most 107"),
        ("--runtime-socket", "/" + "x" * 107, "at most 107"),
    ],
)
def test_a_bad_value_is_refused_with_its_place_and_the_reason(flag, value, reason):
    with pytest.raises(ConfigError, match=f"^{flag}: .*{reason}"):
        loaded(f"{flag}={value}")
    if value:
        variable = "ALLOTMENT_" + flag[2:].replace("-", "_").upper()
        with pytest.raises(ConfigError, match=f"^{variable}: .*{reason}"):
            loaded(environ={variable: value})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("stat_dir = '/x'", "nobody knows the key 'stat_dir'; did you mean state_dir?"),
        ("zzzzz = 1", "nobody knows the key 'zzzzz'; known are add_wait, "),
        ("config = '/y'", "nobody knows the key 'config'"),
        ("gc = 1", "gc: on|off is needed, not a TOML int"),
        ("history_rows = true", "history_rows: NUMBER is needed, not true"),
        ("history_rows = 1.5", "history_rows: NUMBER is needed, not a TOML float"),
        ("history_rows = -1", "history_rows: '-1' is no whole number"),
        ("add_wait = nan", "add_wait: 'nan' is no time"),
        ("node = 7", "node: NAME is needed, not a TOML int"),
        ("netns_dir = [1]", "netns_dir: a list of strings is needed"),
        ("[gc]", "gc: on|off is needed, not a TOML dict"),
        ("this is not TOML", "is not TOML: "),
    ],
)
def test_a_bad_file_is_refused_with_its_path_and_the_reason(tmp_path, content, reason):
    file = tmp_path / "a.toml"
    file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        loaded("--config", str(file))
    assert str(file) in caught.value.message
    assert reason in caught.value.message


def test_a_file_that_is_missing_or_not_text_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no-such\.toml can't be read: No such file"):
        loaded("--config", str(tmp_path / "no-such.toml"))
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not TOML"):
        loaded("--config", str(tmp_path / "b.toml"))


def test_a_host_name_that_is_no_node_name_asks_for_one(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "my_host")
    with pytest.raises(ConfigError, match=r"the host's name: 'my_host' is no node name.*--node NAME"):
        loaded()


def test_a_command_can_take_some_of_the_flags():
    parser = argparse.ArgumentParser()
    add_arguments(parser, ["socket"])
    assert load(parser.parse_args(["--socket", "/a"]), {}).socket == Path("/a")
    with pytest.raises(SystemExit):
        parser.parse_args(["--node", "x"])
