"""A worker that holds an MPS daemon, says whose process is whose, and waits to be killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from vrampool_worker.devices.mps import MpsDaemon, find_program

daemon = MpsDaemon("GPU-1", find_program(os.environ) or "", os.environ)
daemon.start()
daemon.await_start()
folder = Path(daemon.client_env(None)["CUDA_MPS_PIPE_DIRECTORY"]).parent
pids = [daemon.guard_pid, *(int(word) for word in (folder / "p" / "pid").read_text().split())]
print(json.dumps({"pids": pids, "folder": str(folder)}), flush=True)
signal.pause()
