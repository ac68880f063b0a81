"""The Redis server as the simulation sees it: a real one, and how long it worked for each call."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from vrampool.queueing import connect

COORDINATOR, WORKERS = "coordinator", "worker"


class Server:
    """Counts the round trips and bytes of each role, and lets calls wait for each other in simulated time.

    The server does one thing at a time. What it works for a call is read from the kernel; in simulated time a call
    begins when those before it are done.

    Args:
        url: Of a real server that serves nobody else.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._admin = connect(url, role="admin")
        pid = int(self._admin.info("server")["process_id"])
        self._schedstat = os.open(f"/proc/{pid}/schedstat", os.O_RDONLY)
        self._clients: list[redis.Redis] = []
        self.trips: Counter[str] = Counter()
        self.free_at_s = 0.0  #: simulated; when it is done with all that it was asked so far
        self.busy_s = 0.0  #: simulated and real: what it worked for all calls
        self._seen_s = self._worked_s()

    def client(self, role: str) -> redis.Redis:
        """Return a connection of a role; what goes over it is counted for that role."""
        client = connect(self._url, role=role)
        client.ping()
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in [*self._clients, self._admin]:
            client.close()
        os.close(self._schedstat)

    @contextmanager
    def keeping(self, key: str) -> Iterator[None]:
        """Have a key live on within the block, whatever end it is given: its clock is the real one."""
        done = threading.Event()

        def keep() -> None:
            while not done.wait(0.5):
                self._admin.persist(key)

        keeper = threading.Thread(target=keep, daemon=True)
        keeper.start()
        try:
            yield
        finally:
            done.set()
            keeper.join()

    # ---- time ----------------------------------------------------------------------------------------

    def took(self) -> float:
        """Return how long it worked since this was asked last; telling listeners goes on after it has answered."""
        worked_s = self._worked_s()
        took_s, self._seen_s = worked_s - self._seen_s, worked_s
        return took_s

    def charge(self, took_s: float, now_s: float) -> float:
        """Let it work for so long on calls that come at `now_s`; return when they are answered."""
        self.busy_s += took_s
        self.free_at_s = max(self.free_at_s, now_s) + took_s
        return self.free_at_s

    def cpu_s(self) -> float:
        """Return its CPU time of user and system so far, as it tells itself, for whatever reason it worked."""
        cpu = self._admin.info("cpu")
        return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])

    def _worked_s(self) -> float:
        return int(os.pread(self._schedstat, 64, 0).split()[0]) / 1e9

    # ---- round trips and bytes -----------------------------------------------------------------------

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count round trips of all connections within the block."""
        kind: Any = self._admin.connection_pool.connection_class
        send = kind.send_packed_command
        trips = self.trips

        def counted(connection: Any, *args: Any, **kwargs: Any) -> Any:
            trips[str(connection.client_name).removeprefix("vrampool-")] += 1
            return send(connection, *args, **kwargs)

        kind.send_packed_command = counted
        try:
            yield
        finally:
            kind.send_packed_command = send

    def bytes(self) -> Counter[str]:
        """Return how many bytes went to and from each role so far, as the server counts them."""
        found: Counter[str] = Counter()
        for client in self._admin.client_list():
            role = client["name"].removeprefix("vrampool-")
            found[role] += int(client["tot-net-in"]) + int(client["tot-net-out"])
        return found

    def all_bytes(self) -> int:
        """Return how many bytes went to and from everybody so far; RQ renames the connections that it is given."""
        stats = self._admin.info("stats")
        return int(stats["total_net_input_bytes"]) + int(stats["total_net_output_bytes"])
