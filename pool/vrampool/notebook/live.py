"""Shows a card in a notebook and keeps it up to date: while `wait` waits, or from a thread beside the reader's work."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from vrampool.notebook.card import CardState, to_html, to_text

#: Pause between two updates: each reads the study.
UPDATE_S = 1.0


class Shown(Protocol):
    """What is shown: a handle."""

    def card(self) -> CardState: ...

    @property
    def study_name(self) -> str: ...


class _View:
    """One state as IPython displays it."""

    def __init__(self, state: CardState) -> None:
        self._state = state

    def _repr_html_(self) -> str:
        return to_html(self._state)

    def __repr__(self) -> str:
        return to_text(self._state)


def in_notebook() -> bool:
    """True in a kernel, which shows HTML; False in a script and in IPython's terminal."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


class LiveCard:
    """One card in one output of the notebook. `update` replaces what it shows; the last state stays in the file."""

    def __init__(self) -> None:
        self._display: Any = None

    def update(self, state: CardState) -> None:
        """Show a state; the first call makes the output."""
        from IPython import display as ipython

        display: Any = ipython.display
        if self._display is None:
            self._display = display(_View(state), display_id=True)
        else:
            self._display.update(_View(state))


@contextmanager
def waiting(handle: Shown) -> Iterator[Callable[[bool], None]]:
    """Show a card while the block waits. Yields a call for every look, `look(last)`, that does nothing elsewhere.

    An interrupt is passed on, so that the cells after this one do not run as if the study had ended; the card says that
    the study goes on.
    """
    if not in_notebook():
        yield lambda _last: None
        return
    card = LiveCard()
    shown_s = -UPDATE_S
    state: CardState | None = None

    def look(last: bool) -> None:
        nonlocal shown_s, state
        now_s = time.monotonic()
        if last or now_s - shown_s >= UPDATE_S:
            shown_s = now_s
            state = handle.card()
            card.update(state)

    try:
        yield look
    except KeyboardInterrupt:
        if state is not None:
            card.update(replace(state, note=_interrupted(handle.study_name)))
        raise


def _interrupted(study_name: str) -> str:
    return (
        "Interrupted; the study goes on. handle.wait() waits again, handle.stop() ends it, and after a restart of the "
        f"kernel pool.attach({study_name!r}) finds it."
    )


class Painter:
    """Keeps a displayed card up to date from a thread, until the submission has ended or another card replaces it.

    Args:
        handle: What is shown.
        is_final: Whether a state is the last one.
    """

    def __init__(self, handle: Shown, is_final: Callable[[CardState], bool]) -> None:
        self._handle = handle
        self._is_final = is_final
        self._card = LiveCard()
        self._stopped = threading.Event()
        self._painting = threading.Lock()

    def start(self) -> None:
        """Show the card in the output of this cell, and go on from a thread if there is more to come."""
        self.paint()
        if not self._stopped.is_set():
            # In a context of its own: an update goes by its display's id, sent in the name of the cell that runs then.
            # Programs that execute notebooks hear only that cell.
            threading.Thread(target=self._go_on, name="vrampool-card", daemon=True).start()

    def stop(self) -> None:
        """Leave the card as it is."""
        self._stopped.set()

    def paint(self) -> None:
        """Bring the card up to date; when it shows the end, it is left at that."""
        with self._painting:
            if self._stopped.is_set():
                return
            state = self._handle.card()
            self._card.update(state)
            if self._is_final(state):
                self._stopped.set()

    def _go_on(self) -> None:
        while not self._stopped.wait(UPDATE_S):
            try:
                self.paint()
            except Exception:  # the pool was closed, or the kernel ends: the card keeps its last state
                return
