"""The process above a private MPS daemon: it ends the daemon, its server and all else below, when the worker ends.

Started by a worker as ``python -m vrampool_worker.mps_guard``. The daemon puts itself into the background, so a
parent-death signal of its own would not survive; this process is the subreaper it cannot get away from. It hears of
the worker's end in two ways, by the end of the socket and by its own parent-death signal.

Back over the socket, one JSON object a line: ``{"started": code}`` once the control program has put the daemon into the
background, ``{"ended": true}`` when nothing of it is left.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from types import FrameType

from vrampool_worker import process_tree

#: The daemon is asked to quit and has so long; then it is killed with all below it.
QUIT_S = 3.0
_LOOK_S = 0.5


class _Guard:
    def __init__(self, link_fd: int, program: str, folder: str) -> None:
        self._link_fd = link_fd
        self._program = program
        self._folder = folder
        self._ended = False

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        process_tree.set_name("vrampool-mps")
        try:
            started = subprocess.run([self._program, "-d"], stdin=subprocess.DEVNULL, check=False, timeout=20)
            self._say(started=started.returncode)
            self._watch()
            self._quit()
        except (OSError, subprocess.SubprocessError) as error:
            self._say(started=-1, why=str(error))
        finally:
            self._end_the_rest()
            shutil.rmtree(self._folder, ignore_errors=True)
            self._say(ended=True)

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        self._ended = True

    def _watch(self) -> None:
        """Wait until the worker is gone, or everything below is."""
        poller = select.poll()
        poller.register(self._link_fd, select.POLLIN | select.POLLHUP)
        while not self._ended and _anything_below():
            if poller.poll(_LOOK_S * 1000) and not self._read():
                self._ended = True

    def _read(self) -> bytes:
        try:
            return os.read(self._link_fd, 64)
        except OSError:
            return b""

    def _quit(self) -> None:
        subprocess.run([self._program], input=b"quit\n", check=False, timeout=QUIT_S, capture_output=True)
        end_s = time.monotonic() + QUIT_S
        while _anything_below() and time.monotonic() < end_s:
            time.sleep(0.02)

    def _end_the_rest(self) -> None:
        end_s = time.monotonic() + 10
        while _anything_below() and time.monotonic() < end_s:
            process_tree.end_all_below(os.getpid(), tidy_until_s=0.0)
            time.sleep(0.01)

    def _say(self, **words: object) -> None:
        try:
            os.write(self._link_fd, json.dumps(words).encode() + b"\n")
        except OSError:  # the worker is gone; the work is the same
            pass


def _anything_below() -> bool:
    """Wait for what has ended; say whether something below still lives."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def main(arguments: list[str]) -> None:
    link_fd, worker, program, folder = int(arguments[0]), int(arguments[1]), arguments[2], arguments[3]
    process_tree.become_subreaper()
    process_tree.die_with_parent(signal.SIGTERM, worker)
    os.set_inheritable(link_fd, False)
    _Guard(link_fd, program, folder).run()


if __name__ == "__main__":
    main(sys.argv[1:])
