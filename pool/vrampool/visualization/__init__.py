"""Pictures of what a pool did. Needs the extra `viz`: ``pip install 'vrampool[viz]'``."""

from vrampool.visualization.memory_timeline import plot_memory_timeline as plot_memory_timeline

__all__ = ["plot_memory_timeline"]
