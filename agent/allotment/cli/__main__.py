"""`python -m allotment.cli` is `allotment`."""

from __future__ import annotations

import sys

from allotment.cli import main

sys.exit(main())
