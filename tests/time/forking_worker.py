"""A worker that forks one trial, says whose process is whose, and waits to be killed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from test_forkserver import ForkDriver

driver = ForkDriver(Path(sys.argv[1]), ["json"])
story = driver.start(driver.spawn(), "def objective(trial):\n    import time\n    time.sleep(600)")
driver.until(lambda: "started" in story.kinds)
pids = {"server": driver.server.pid, "keeper": story.child.keeper_pid, "trial": story.child.pid}
print(json.dumps(pids), flush=True)
driver.until(lambda: False, limit_s=600)
