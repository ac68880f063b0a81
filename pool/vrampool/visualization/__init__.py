"""Pictures of what a pool did. They need the extra `viz`: ``pip install 'vrampool[viz]'``.

The functions here return plotly figures, as Optuna's `optuna.visualization` does; those of the same names in
`vrampool.visualization.matplotlib` draw with matplotlib. `plot_memory_timeline` writes a file.
"""

from vrampool.visualization.interactive import plot_oom_map as plot_oom_map
from vrampool.visualization.interactive import plot_startup_tax as plot_startup_tax
from vrampool.visualization.interactive import plot_trials_per_hour as plot_trials_per_hour
from vrampool.visualization.interactive import plot_vram_prediction as plot_vram_prediction
from vrampool.visualization.interactive import plot_vram_slice as plot_vram_slice
from vrampool.visualization.interactive import plot_vram_timeline as plot_vram_timeline
from vrampool.visualization.memory_timeline import plot_memory_timeline as plot_memory_timeline

__all__ = [
    "plot_memory_timeline",
    "plot_oom_map",
    "plot_startup_tax",
    "plot_trials_per_hour",
    "plot_vram_prediction",
    "plot_vram_slice",
    "plot_vram_timeline",
]
