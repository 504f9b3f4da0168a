"""`journalctl -u allotment -o cat` on the stage: the log lines of the agent."""

import sys
from pathlib import Path

sys.stdout.write(Path("/run/allotment.log").read_text())
