"""`python -m bench` runs every benchmark there is."""

from __future__ import annotations

import sys

from bench.binpack import main

if __name__ == "__main__":
    sys.exit(main())
