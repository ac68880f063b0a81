"""`python -m vrampool_worker.child`: run one trial. A worker starts it; nobody else should."""

from __future__ import annotations

import sys

from vrampool_worker.child import run_trial

if __name__ == "__main__":
    run_trial(sys.argv[1:])
