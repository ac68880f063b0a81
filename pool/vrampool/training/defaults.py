"""Settings of torch that suit many trials side by side; the child applies them before user code runs.

Each can be overridden: by an argument, by a variable in the submission's `env=`, or by the objective itself, which runs
later and simply sets what it wants.
"""

from __future__ import annotations

import importlib.util
import os
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vrampool.errors import InputError

#: Variables of the user that override the defaults here: "0", "1", or a number.
CUDNN_BENCHMARK = "VRAMPOOL_CUDNN_BENCHMARK"
SEED = "VRAMPOOL_SEED"
THREADS = "VRAMPOOL_TORCH_THREADS"
#: Variables that the libraries under torch read themselves; a value given there is left alone.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


@dataclass(frozen=True)
class AppliedSettings:
    """What was set; None: left as it was."""

    seed: int | None = None
    cudnn_benchmark: bool | None = None
    threads: int | None = None
    expandable_segments: bool = False


def apply_settings(
    *,
    seed: int | None = None,
    threads: int | None = None,
    cudnn_benchmark: bool = False,
    expandable_segments: bool = True,
    env: Mapping[str, str] | None = None,
) -> AppliedSettings:
    """Set seeds and torch's switches for one trial. Without torch in the process only the seeds are set.

    Args:
        seed: Of `random`, NumPy and torch; None: not seeded. `VRAMPOOL_SEED` gives another, or "off".
        threads: For torch's operators on the CPU; None, or OMP_NUM_THREADS in `env`: left as they are.
        cudnn_benchmark: Trying algorithms in a search costs time for each new shape, and memory for their workspaces.
        expandable_segments: Let the allocator grow its blocks in place. A value in PYTORCH_ALLOC_CONF is left alone,
            and after the first use of the GPU nothing is changed.
        env: Where overrides are read; None: `os.environ`.

    Raises:
        InputError: a variable has no valid value.
    """
    env = os.environ if env is None else env
    seed = _number(env, SEED, seed)
    cudnn_benchmark = bool(_number(env, CUDNN_BENCHMARK, int(cudnn_benchmark)))
    if THREADS in env or not any(name in env for name in _THREAD_VARIABLES):
        threads = _number(env, THREADS, threads)
    else:
        threads = None
    if seed is not None:
        _seed_all(seed)
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return AppliedSettings(seed)
    torch.backends.cudnn.benchmark = cudnn_benchmark
    if threads is not None:
        torch.set_num_threads(threads)
    expandable = expandable_segments and _expand_segments(torch, env)
    return AppliedSettings(seed, cudnn_benchmark, threads, expandable)


def threads_for(cores: int, slots: int) -> int:
    """Return the CPU threads of each trial when `slots` of them share `cores`; at least one."""
    return max(1, cores // max(1, slots))


def _number(env: Mapping[str, str], name: str, default: int | None) -> int | None:
    text = env.get(name)
    if text is None:
        return default
    if name == SEED and text.lower() == "off":
        return None
    try:
        value = int(text)
    except ValueError:
        value = -1
    least = 1 if name == THREADS else 0
    if value < least or (name == CUDNN_BENCHMARK and value > 1):
        raise InputError(f"variable {name} must be a whole number of {least} or more, not {text!r}")
    return value


def _seed_all(seed: int) -> None:
    random.seed(seed)
    # Imported if it is installed: an objective that imports it later would otherwise start from chance.
    if "numpy" in sys.modules or importlib.util.find_spec("numpy"):
        import numpy

        numpy.random.seed(seed % 2**32)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        # For a GPU that is not in use yet torch keeps the seed until it is: no context is created.
        torch.manual_seed(seed % 2**63)


def _expand_segments(torch: Any, env: Mapping[str, str]) -> bool:
    """Turn expandable segments on where nothing else was asked for; return whether they are on by us."""
    if any("expandable_segments" in env.get(name, "") for name in _ALLOCATOR_VARIABLES):
        return False
    # The public-looking name warns from torch 2.11 on; before 2.9 it is the only one.
    change = getattr(getattr(torch, "_C", None), "_accelerator_setAllocatorSettings", None)
    change = change or getattr(torch.cuda.memory, "_set_allocator_settings", None)
    if change is None or torch.cuda.is_initialized() or not torch.backends.cuda.is_built():
        return False
    change("expandable_segments:True")
    return True
