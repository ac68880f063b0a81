"""The coordinator: the only one who creates trials. learn -> ask -> size -> enqueue -> observe -> retry -> stop."""

from vrampool.coordinator.loop import Coordinator as Coordinator

__all__ = ["Coordinator"]
