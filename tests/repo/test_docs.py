"""What our pages show is true: commands are run, configurations are read by what reads them, messages are said.

The conventions are those of `handbook.pages`.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
from typing import Any

import msgspec
import pytest
import yaml

from allotment.api.decoding import decode, is_ours
from allotment.cli import COMMANDS, command_parser
from allotment.cni.request import Verb, parse_request
from allotment.node.manifests.document import read_documents
from allotment.node.settings import load
from allotment.observe.clock import SystemClock
from handbook.matching import agrees
from handbook.messages import is_said
from handbook.pages import ROOT, Command, Fence, commands, fences, pages
from handbook.stage import Stage

PAGES = pages()
FENCES = [fence for page in PAGES for fence in fences(page)]
_PATIENCE = 30.0
_LOOKS = (
    *(f"allotment {name}" for name in ("status", "leases", "explain", "history", "utilization", "doctor")),
    *("ls ", "cat ", "curl ", "grep ", "journalctl "),
)
"""A command that begins so changes nothing, so it may be repeated until it prints what it shall."""


def of(language: str) -> list[Any]:
    return [pytest.param(fence, id=str(fence)) for fence in FENCES if fence.language == language]


def named(page):
    return page.stem


# -- commands ----------------------------------------------------------------------------------------------------------


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=named)
def test_what_a_page_does_can_be_done(page, tmp_path):
    with Stage(tmp_path) as stage:
        for command in commands(page):
            printed, code = _run(stage, command)
            where = f"{page.name}:{command.line}: {command.text}"
            assert code == command.code, f"{where}\nexits {code}, prints\n{printed}"
            if command.prints is not None:
                assert agrees(command.prints, printed), f"{where}\nshall print\n{command.prints}\nprints\n{printed}"


def _run(stage: Stage, command: Command) -> tuple[str, int]:
    printed, code = stage.run(command.text)
    clock = SystemClock("")
    until = clock.seconds() + _PATIENCE
    while command.prints is not None and command.text.startswith(_LOOKS) and clock.seconds() < until:
        if code == command.code and agrees(command.prints, printed):
            break
        printed, code = stage.run(command.text)
    return printed, code


@pytest.mark.parametrize(
    ("said", "printed", "same"),
    [
        ("10.4.0.2   web   5s", "10.4.0.2 web 1m 12s", True),
        ("10.4.0.2   web   5s", "10.4.0.3 web 5s", False),
        ("node x, up 0s (since 2026-11-29 23:59:04)", "node x, up 2h 3m (since 2027-01-01 00:00:00)", True),
        ("leases 0 held", "leases 2 held", False),
        ("free, last written\n   2026-11-29 23:59:05", "free, last written 2026-11-30 01:00:00", True),
        ("ledger open, 48.1 KiB", "ledger full, 48.1 KiB", False),
        ("one\n…\nthree", "one two three", True),
        ("one\n…\nthree", "one two", False),
        ("", "something", False),
        (
            '"request":"1ef421-3","verb":"ADD","milliseconds":2.672',
            '"request":"9c0d1e-41","verb":"ADD","milliseconds":11',
            True,
        ),
        ('"request":"1ef421-3","verb":"ADD"', '"request":"1ef421-3","verb":"DEL"', False),
    ],
)
def test_what_is_printed_is_told_from_what_is_not(said, printed, same):
    assert agrees(said, printed) is same


def test_what_the_program_says_is_told_from_what_it_does_not():
    assert is_said("the state folder … is in use by another agent")
    assert is_said("no answer from the agent at … in … ms: …; see that it runs on this node")
    assert not is_said("the state folder … is in use by another program")
    assert not is_said("in use by another agent … the state folder")


@pytest.mark.parametrize("fence", of("console"))
def test_a_session_is_run_or_says_that_it_is_not(fence):
    assert fence.mark in ("", "run")
    if fence.mark == "":
        assert "not run by our tests" in fence.before, "the line before it says so, and why"


def _commands_named() -> list[Any]:
    """Each call of `allotment …` that a page mentions in its text or shows in a session."""
    found: dict[str, str] = {}
    for page in PAGES:
        for text in re.findall(r"`(allotment [a-z][^`\n]*)`", page.read_text(encoding="utf-8")):
            found.setdefault(text, page.name)
    for fence in FENCES:
        if fence.language == "console":
            for line in fence.text.splitlines():
                call = re.match(r"[#$] (allotment [a-z][^|;&]*?)(?: \d?[<>].*|[|;&].*)?$", line)
                if call:
                    found.setdefault(call[1].strip(), fence.page.name)
    return [pytest.param(text, id=f"{page}: {text}") for text, page in found.items()]


@pytest.mark.parametrize("text", _commands_named())
def test_a_command_that_is_named_exists(text):
    _, name, *flags = shlex.split(text, comments=True)
    [command] = [command for command in COMMANDS if command.name == name]
    parser, _ = command_parser(command)
    parser.parse_args(flags)


# -- what the program reads --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fence", of("yaml"))
def test_a_manifest_is_read_without_a_word(fence):
    documents = read_documents(fence.text.encode())
    assert documents
    for document in documents:
        if is_ours(document.data):
            decoded = decode(document.data)
            assert (decoded.problems, decoded.warnings) == ((), ()), str(fence)
        else:
            assert document.data["kind"] == "NetworkAttachmentDefinition"
            _check_conf(json.loads(yaml.safe_load(fence.text)["spec"]["config"]))


@pytest.mark.parametrize("fence", of("json"))
def test_a_configuration_is_taken(fence):
    _check_conf(json.loads(fence.text))


def _check_conf(conf: dict[str, Any]) -> None:
    """Take each plugin of a list, or a single one, for a call of ADD as a runtime makes it."""
    ours = 0
    for plugin in conf.get("plugins", [conf]):
        if plugin["type"] != "allotment" and plugin.get("ipam", {}).get("type") != "allotment":
            continue
        ours += 1
        whole = {"cniVersion": conf["cniVersion"], "name": conf["name"], **plugin, "prevResult": {}}
        environment = {
            "CNI_COMMAND": "ADD",
            "CNI_CONTAINERID": "c1",
            "CNI_NETNS": "/run/netns/c1",
            "CNI_IFNAME": "eth0",
            "CNI_PATH": "/opt/cni/bin",
            "CNI_ARGS": "IgnoreUnknown=1",
        }
        request = parse_request(environment, msgspec.json.encode(whole))
        assert request.verb is Verb.ADD
        asks = any(key in plugin for key in ("runtimeConfig", "args"))
        assert bool(request.requested) == asks, "the addresses that it asks for are seen"
    assert ours, "there is something in it that names allotment"


@pytest.mark.parametrize("fence", of("toml"))
def test_a_settings_file_is_taken(fence, tmp_path):
    file = tmp_path / "agent.toml"
    file.write_text(fence.text)
    load(argparse.Namespace(config=str(file)), {})


# -- what the program says ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fence", of("text"))
def test_a_message_is_one_that_the_program_has(fence: Fence):
    """A message ends with a blank line, or with the block; within it lines are broken as they come."""
    for message in re.split(r"\n\s*\n", fence.text.strip()):
        assert is_said(" ".join(message.split())), f"{fence}: nobody says {message!r}"


# -- the pages themselves ----------------------------------------------------------------------------------------------


def test_every_block_is_of_a_kind_that_is_checked():
    kinds = {"console", "yaml", "json", "toml", "text", "hidden", ""}
    assert [str(fence) for fence in FENCES if fence.language not in kinds] == []


def test_there_is_something_to_check():
    assert sum(1 for page in PAGES for command in commands(page) if command.prints is not None) > 60
    for language in ("yaml", "json", "toml", "text"):
        assert of(language), language


@pytest.mark.parametrize("folder", ["guide", "operations"])
def test_every_page_is_to_be_found_from_its_folders_first_page(folder):
    [readme] = [page for page in PAGES if page.parent.name == folder and page.name == "README.md"]
    text = readme.read_text()
    others = [page.name for page in PAGES if page.parent == readme.parent and page != readme]
    assert others
    assert [name for name in others if f"({name})" not in text] == []


def test_what_proves_an_invariant_names_it():
    table = (ROOT / "docs/invariants.md").read_text()
    rows = re.findall(r"^\| (I\d+) .*\|(.*)\|$", table, re.MULTILINE)
    assert len(rows) > 10
    for name, proof in rows:
        files = re.findall(r"`(tests/[^`]+)`", proof)
        assert files, name
        for file in files:
            assert re.search(rf"\b{name}\b", (ROOT / file).read_text()), f"{file} doesn't name {name}"


def test_a_link_to_a_heading_leads_there():
    links = [
        (page, target, heading)
        for page in PAGES
        for target, heading in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text())
        if "://" not in target
    ]
    missing = [
        f"{page.name}: {target}#{heading}"
        for page, target, heading in links
        if heading not in _headings((page.parent / target if target else page).read_text())
    ]
    assert missing == []


def _headings(text: str) -> set[str]:
    """As GitHub names them: lower case, no punctuation, dashes for blanks."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
