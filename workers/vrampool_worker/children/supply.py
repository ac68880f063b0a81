"""Where a worker's children come from: spawned or forked, and with what imported ahead."""

from __future__ import annotations

import selectors
from collections.abc import Mapping

from vrampool.settings import Settings
from vrampool_worker.children.child import Child, spawn
from vrampool_worker.children.forkserver import ForkServer
from vrampool_worker.children.preloading import Preloading


class Supply:
    """Starts children, and learns what they should import ahead. Only the main loop calls it.

    Args:
        environment: All of the children's environment; it may change until the first one is started.
        settings: `start_method` and `preload` say how and with what.
    """

    def __init__(self, environment: Mapping[str, str], settings: Settings) -> None:
        self._environment = environment
        self._settings = settings
        self._preloading = Preloading(settings.preload_modules)
        self._server: ForkServer | None = None

    def start(self) -> None:
        """Start the process that trials are forked from, if they are. In the main thread."""
        if self._settings.start_method == "forkserver":
            self._server = ForkServer(self._environment, self._preloading.now)
            self._server.start()

    def register(self, selector: selectors.BaseSelector) -> None:
        """Join the main loop."""
        if self._server is not None:
            self._server.register(selector)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def spawn(self, full: bool) -> Child:
        """Start a child; unless it is `full`, it imports nothing ahead.

        Raises:
            OSError: no process, descriptor or memory is left.
        """
        modules = self._preloading.now if full else ()
        return spawn(self._environment, modules, self._settings, server=self._server)

    def cheap(self) -> bool:
        """Whether a child is ready almost at once."""
        return not self._preloading.now or (self._server is not None and self._server.ready)

    def soon(self, now_s: float) -> bool:
        """Whether children will be cheap in a moment, so that it is better to wait than to start one now."""
        return self._server is not None and self._server.imports(now_s)

    @property
    def trouble(self) -> str:
        """Return what is wrong with the process that trials are forked from, in words; empty: nothing."""
        return self._server.trouble if self._server is not None else ""

    @property
    def look_for(self) -> tuple[str, ...]:
        """Return the modules that trials are looked at for."""
        return self._preloading.everything

    def needs(self, submission_id: str) -> bool | None:
        """Whether a submission's trials need what full children import; None: none has shown it yet."""
        return self._preloading.needs(submission_id)

    def learn(self, submission_id: str, child: Child) -> None:
        """Have later children import what this one's trial had to import itself."""
        assert child.outcome is not None
        imported = child.outcome.imported
        if child.bare:
            self._preloading.note(submission_id, imported)
        self._preloading.seen(imported)
        if self._server is not None:
            self._server.include(self._preloading.now)
