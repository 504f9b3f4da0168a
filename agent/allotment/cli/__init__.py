"""The command `allotment`: a table of sub-commands, each in a module that is loaded only when it is called.

A sub-command's module has two functions: `configure(parser)` adds its flags, and `run(arguments)` does the work and
returns an `Exit`. `arguments.output` is the form asked for with -o (see `allotment.cli.output`). Errors of the tree
in `allotment.addressing.errors` may be raised; they become one line on standard error and an exit code here.
"""

from __future__ import annotations

import argparse
import difflib
import enum
import os
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol, cast

from allotment import __version__
from allotment.addressing.errors import AllotmentError, ConfigError, TryAgain

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["COMMANDS", "FORMS", "Command", "Exit", "command_parser", "main", "top_parser"]

FORMS: Final = ("table", "wide", "json", "yaml")


class Exit(enum.IntEnum):
    """What the exit code says; `allotment --help` lists the codes."""

    OK = 0
    PROBLEM = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    INTERRUPTED = 130


EXIT_MEANINGS: Final = {
    Exit.OK: "done, and all is well",
    Exit.PROBLEM: "done, and a problem was found; or it failed",
    Exit.USAGE: "the command line or a setting is wrong",
    Exit.UNREACHABLE: "the agent can't be reached or can't serve now; try again",
    Exit.NOT_FOUND: "nothing is known of what was asked for",
    Exit.INTERRUPTED: "interrupted from the keyboard",
}


@dataclass(frozen=True, slots=True)
class Command:
    """One sub-command: its name, the module below `allotment.cli`, and its line in the help."""

    name: str
    module: str
    help: str


COMMANDS: Final = (
    Command("agent", "agent", "run this node's agent"),
    Command("demo", "demo", "show what Allotment does, on this machine, in a minute"),
    Command("status", "status", "how the agent is, and its networks"),
    Command("leases", "leases", "who holds which address"),
    Command("explain", "explain", "all that is known of an address, a pod or a container"),
    Command("history", "history", "who held an address, and when and why it ended"),
    Command("utilization", "utilization", "how full networks and blocks are"),
    Command("doctor", "doctor", "compare memory, disk and kernel; works with the agent down"),
    Command("gc", "gc", "free the leases whose owner is gone, or show which they are"),
    Command("install-cni", "install", "put the CNI plugin and its configuration in place"),
    Command("uninstall", "uninstall", "remove all that is ours, from a node or from a cluster"),
)


class _Module(Protocol):
    """What a sub-command's module looks like."""

    def configure(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, arguments: argparse.Namespace) -> Exit: ...


class _HelpFormatter(argparse.HelpFormatter):
    """Lays help out for 80 columns whatever the terminal is, so that it reads the same everywhere.

    Paragraphs are filled one by one; one that has indented lines is a list, and kept as it is.
    """

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=24, width=79)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        paragraphs = text.split("\n\n")
        return "\n\n".join(part if "\n " in f"\n{part}" else fill(part, width, indent) for part in paragraphs)


def top_parser() -> argparse.ArgumentParser:
    """The parser of what stands before the sub-command; the rest of the line is left to that."""
    commands = "\n".join(f"  {command.name:<13} {command.help}" for command in COMMANDS)
    codes = "\n".join(f"  {code:<13d} {meaning}" for code, meaning in EXIT_MEANINGS.items())
    parser = argparse.ArgumentParser(
        prog="allotment",
        usage="allotment [-h] [--version] [-o FORM] COMMAND ...",
        description="Gives every pod its address, and keeps the books on it.",
        epilog=f"commands:\n{commands}\n\nexit codes:\n{codes}\n\n`allotment COMMAND --help` says more.",
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"allotment {__version__}")
    _add_output(parser, default="table")
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _add_output(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument("-o", "--output", choices=FORMS, default=default, metavar="FORM", help="|".join(FORMS))


def command_parser(command: Command) -> tuple[argparse.ArgumentParser, _Module]:
    """The parser of one sub-command, and its module, loaded now."""
    module = cast("_Module", import_module(f"allotment.cli.{command.module}"))
    parser = argparse.ArgumentParser(
        prog=f"allotment {command.name}",
        description=f"{command.help[0].upper()}{command.help[1:]}.",
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    _add_output(parser, default=argparse.SUPPRESS)
    module.configure(parser)
    return parser, module


def main(argv: Sequence[str] | None = None) -> int:
    """Run `allotment` with these arguments (the process's own, if None) and return the exit code."""
    top = top_parser()
    first = top.parse_args(argv)
    if first.command is None:
        top.print_help()
        return Exit.OK
    command = next((command for command in COMMANDS if command.name == first.command), None)
    if command is None:
        near = difflib.get_close_matches(first.command, [command.name for command in COMMANDS], n=1)
        top.error(f"there is no command {first.command!r}" + (f"; did you mean {near[0]}?" if near else ""))
    parser, module = command_parser(command)
    arguments = parser.parse_args(first.rest, argparse.Namespace(output=first.output))
    return _run(module, arguments)


def _run(module: _Module, arguments: argparse.Namespace) -> int:
    try:
        code = int(module.run(arguments))
        sys.stdout.flush()  # here, where a reader that is gone can still be dealt with
    except AllotmentError as error:
        print(f"allotment: {error.message}", file=sys.stderr)
        if error.details:
            print(error.details, file=sys.stderr)
        return _code(error)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:  # `allotment leases | head`: what was wanted has been read
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    return code


def _code(error: AllotmentError) -> Exit:
    if isinstance(error, ConfigError):
        return Exit.USAGE
    return Exit.UNREACHABLE if isinstance(error, TryAgain) else Exit.PROBLEM
