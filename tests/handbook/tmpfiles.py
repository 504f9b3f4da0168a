"""`systemd-tmpfiles --create NAME` on a stage whose machine has none: the folders of one file."""

import sys
from pathlib import Path

for line in Path("/etc/tmpfiles.d", sys.argv[-1]).read_text().splitlines():
    if line.startswith("d "):
        _, path, mode, *_ = line.split()
        Path(path).mkdir(parents=True, exist_ok=True)
        Path(path).chmod(int(mode, 8))
