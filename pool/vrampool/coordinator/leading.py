"""Who leads: by a lease in Redis with an epoch, and by a token in the storage. Who leads must reach both."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable
from typing import Any

from vrampool.queueing import JobQueue, Leadership, StaleLeaderError, TransientRedisError
from vrampool.storage import Catalog, storage_of

_log = logging.getLogger("vrampool.coordinator")

#: A leader that the storage has not answered for so long lets another one try, which may reach it.
PATIENCE_S = 4.0


class Lead:
    """One coordinator's leadership, as far as it has it.

    Args:
        leadership: The lease in Redis.
        storage: The pool's storage.
        pool: The pool's name.
        name: The coordinator's, for people.
        queue: What only a leader may enqueue in.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        leadership: Leadership,
        storage: Any,
        pool: str,
        name: str,
        queue: JobQueue,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._leadership = leadership
        self._storage = storage
        self._catalog = Catalog(storage)
        self._pool = pool
        self._name = name
        self._queue = queue
        self._clock = clock
        self._renewed_at_s = -math.inf
        self._silent_since_s: float | None = None  # of the storage
        self._in_doubt = False
        self.epoch: int | None = None  #: of the leadership; None: another one leads, or nobody

    def hold(self) -> bool:
        """Lead, or go on leading. False while another coordinator does.

        Raises:
            StaleLeaderError: the lease ran out; another one may lead by now.
        """
        now_s = self._clock()
        if self.epoch is None:
            return self._take()
        if now_s - self._renewed_at_s > self._leadership.ttl_s / 4:
            if not self._leadership.renew():
                raise StaleLeaderError("the coordinator's lease ran out")
            self._renewed_at_s = now_s
        return True

    def _take(self) -> bool:
        now_s = self._clock()
        if self._in_doubt:
            self._catalog.submissions(states=())  # raises as long as the storage does not answer here
            self.storage_answers()
        epoch = self._leadership.acquire()
        if epoch is None:
            return False
        # Redis says who leads, the storage who creates trials. Whoever stood still between the two writes sees
        # that he does not lead any more, and the one who does will find the storage taken and write it again.
        storage_of(self._storage).database.lead(self._pool, f"{epoch} {self._name}")
        if not self._leadership.renew():
            return False
        self.epoch = epoch
        self._queue.lead(epoch)
        self._renewed_at_s = now_s
        _log.info("%s leads with epoch %s", self._name, epoch)
        return True

    def lost(self) -> None:
        """Another coordinator leads."""
        self.epoch = None

    def storage_answers(self) -> None:
        self._silent_since_s = None
        self._in_doubt = False

    def storage_is_silent(self) -> bool:
        """The storage did not answer. True when that lasts: the leadership is given up, for whoever does reach it."""
        now_s = self._clock()
        if self._silent_since_s is None:
            self._silent_since_s = now_s
        if now_s - self._silent_since_s < PATIENCE_S or self._leadership.epoch is None:
            return False
        _log.warning("the storage has not answered for %.0f s: another coordinator may lead", PATIENCE_S)
        self._in_doubt = True
        self.release()
        return True

    def release(self) -> None:
        """Let another one lead at once."""
        self.epoch = None
        with contextlib.suppress(TransientRedisError):  # it runs out by itself
            self._leadership.release()
