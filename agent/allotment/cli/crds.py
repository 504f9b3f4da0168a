"""Writes the CRDs from the types: `python -m allotment.cli.crds [--check] [FOLDER]` (`make generate`)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from allotment.api.crd import files

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Write the files and remove what belongs to no kind; with --check say which are out of date (exit code 1)."""
    parser = argparse.ArgumentParser(prog="python -m allotment.cli.crds", description="Write the CRDs.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file is out of date")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("daemonset/crds"))
    arguments = parser.parse_args(argv)
    folder: Path = arguments.folder
    wanted = files()
    there = {path.name: path for path in folder.glob("*.y*ml")}
    stale = sorted({name for name, text in wanted.items() if _content(folder / name) != text} | there.keys() - wanted)
    for name in stale:
        path = folder / name
        if arguments.check:
            print(f"{path} is out of date: run `make generate`", file=sys.stderr)
        elif name in wanted:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[name], encoding="utf-8")
            print(f"wrote {path}")
        else:
            path.unlink()
            print(f"removed {path}")
    return 1 if arguments.check and stale else 0


def _content(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
