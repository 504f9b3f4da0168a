"""Compares text with a file in tests/golden. `UPDATE_GOLDEN=1 pytest …` writes the files; then read the difference."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"


def matches_golden(name: str, text: str) -> None:
    """Assert that `text` is what the file holds."""
    path = FOLDER / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
