"""Variables that bind a child to its device. They must be there before the child imports anything.

A value that the user has set wins; where one of ours is needed beside it, it is added to his.
"""

from __future__ import annotations

from collections.abc import Mapping

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
#: Without these JAX and TensorFlow take most of the card at their start, whatever the trial needs.
_NO_PREALLOCATION = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
#: Both spellings are read by some torch: the second is the newer one.
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def cuda_env(visible: str, threads: int, env: Mapping[str, str]) -> dict[str, str]:
    """Return what a child on a GPU gets.

    Args:
        visible: The one device as CUDA takes it: a UUID, or an index in PCI order.
        threads: Threads for the child's own CPU work.
        env: The worker's environment, which holds what the user has set.
    """
    variables = {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    for name in _ALLOCATOR:
        variables[name] = _with_expandable_segments(env.get(name) or env.get(_other(name)) or "")
    for name, value in _NO_PREALLOCATION.items():
        variables[name] = env.get(name, value)
    return variables | _thread_env(threads, env)


def cpu_env(threads: int, env: Mapping[str, str]) -> dict[str, str]:
    """Return what a child on the CPU gets: no GPU in sight, so that nothing trains there unasked."""
    return {"CUDA_VISIBLE_DEVICES": ""} | _thread_env(threads, env)


def _thread_env(threads: int, env: Mapping[str, str]) -> dict[str, str]:
    # One that the user has set stands for all: OMP_NUM_THREADS=8 alone would else be undone by a smaller MKL one.
    if any(name in env for name in _THREADS):
        return {name: env[name] for name in _THREADS if name in env}
    return dict.fromkeys(_THREADS, str(max(1, threads)))


def _other(name: str) -> str:
    return _ALLOCATOR[1 - _ALLOCATOR.index(name)]


def _with_expandable_segments(options: str) -> str:
    if "expandable_segments" in options or "cudaMallocAsync" in options:
        return options
    return f"{options},expandable_segments:True" if options else "expandable_segments:True"
