"""Models larger than the lease: as much on the device as the lease holds, the rest in host memory and on disk.

For inference and for models whose large part is frozen: parameters that were put off the device get no gradients.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vrampool.errors import InputError
from vrampool.training import runtime
from vrampool.units import format_bytes

if TYPE_CHECKING:
    import torch

#: Part of the lease for weights; the rest is for activations, and for the layer that is being moved.
WEIGHTS_SHARE = 0.75
#: Part of the host memory that is free now, shared among the trials of the host.
HOST_SHARE = 0.5


def lease_memory(*, weights_share: float = WEIGHTS_SHARE) -> dict[int | str, int]:
    """Return accelerate's `max_memory` for this trial: bytes of weights by device, from the trial's lease.

    On a GPU: device 0 gets a share of what torch may still allocate under the cap, "cpu" a share of free host memory.
    On the device "cpu" the lease is host memory. Outside a pool the device's free memory stands in for the lease.
    """
    if not 0 < weights_share <= 1:
        raise InputError(f"weights_share must be within (0, 1], not {weights_share}")
    psutil: Any = importlib.import_module("psutil")
    facts = runtime.current()
    slots = facts.slots if facts else 1
    host = int(psutil.virtual_memory().available * HOST_SHARE / max(1, slots))
    if facts is not None and facts.device == "cpu":
        used = psutil.Process().memory_info().rss
        return {"cpu": max(0, int((facts.lease_bytes - used) * weights_share)) if facts.lease_bytes else host}
    room = _device_room(facts)
    return {"cpu": host} if room is None else {0: int(room * weights_share), "cpu": host}


def load_offloaded(
    source: Any,
    *args: Any,
    max_memory: Mapping[int | str, int | str] | None = None,
    offload_folder: str | Path | None = None,
    no_split: Sequence[str] | None = None,
    dtype: torch.dtype | None = None,
    **kwargs: Any,
) -> Any:
    """Return a model in evaluation mode, spread over device, host memory and disk by accelerate's `device_map="auto"`.

    ::

        model = training.load_offloaded(AutoModelForCausalLM, "path/of/checkpoint")
        model = training.load_offloaded(lambda: AutoModelForCausalLM.from_config(config))

    Args:
        source: A class with `from_pretrained`, which is called with `args` and `kwargs`; or a module on the CPU; or a
            callable that makes one of `args` and `kwargs`.
        max_memory: Bytes (or text such as "2GiB") for weights by device; None: `lease_memory()`.
        offload_folder: Where weights go that no memory holds; None: a temporary folder, removed with the process.
        no_split: Names of module classes that stay on one device and are fetched whole, such as blocks with residual
            connections; None: what the model names itself.
        dtype: Of the parameters; None: as they are.

    Raises:
        InputError: accelerate is not installed.
    """
    accelerate = _accelerate()
    limits = dict(max_memory) if max_memory is not None else lease_memory()
    folder = str(offload_folder) if offload_folder is not None else _temporary_folder()
    if args and hasattr(source, "from_pretrained"):
        more = {} if dtype is None else {"dtype": dtype}
        return source.from_pretrained(
            *args, device_map="auto", max_memory=limits, offload_folder=folder, **more, **kwargs
        )
    model = _build(source, args, kwargs)
    if dtype is not None:
        model = model.to(dtype)
    names = list(no_split if no_split is not None else getattr(model, "_no_split_modules", None) or ())
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    device_map = accelerate.infer_auto_device_map(model, max_memory=limits, no_split_module_classes=names)
    _check_whole(device_map, limits, model)
    return _dispatch(accelerate, model.eval(), device_map, 0 if 0 in limits else "cpu", folder, names)


def _build(source: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    import torch

    if isinstance(source, torch.nn.Module):
        return source
    build: Callable[..., Any] = source
    model = build(*args, **kwargs)
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"load_offloaded needs a torch.nn.Module, but {source!r} made a {type(model).__name__}")
    return model


def _dispatch(
    accelerate: Any, model: Any, device_map: Mapping[str, Any], device: int | str, folder: str, names: Sequence[str]
) -> Any:
    """Put the parts where the map says, and let all of them compute on `device`."""
    # Classes that use their children's weights without calling them: all their weights are fetched beforehand.
    preload = [*names, "MultiheadAttention"]
    # A map of one entry for the whole model is not understood by `dispatch_model` if that is off the device.
    whole = device_map.get("")
    if whole == "disk":
        return accelerate.disk_offload(model, folder, device, preload_module_classes=preload)
    if whole == "cpu" and device != "cpu":
        return accelerate.cpu_offload(model, device, preload_module_classes=preload)
    return accelerate.dispatch_model(
        model,
        device_map=device_map,
        main_device=device,
        offload_dir=folder,
        preload_module_classes=preload,
        force_hooks=True,
    )


def _check_whole(device_map: Mapping[str, Any], limits: Mapping[int | str, Any], model: Any) -> None:
    """Give a hint when the device got nothing of the model: it would run, at the speed of the disk."""
    if 0 in limits and 0 not in device_map.values():
        size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        runtime.note_hint(
            "offload",
            f"no layer of the model ({format_bytes(size)}) fits in the {limits[0]} bytes of the lease that are for "
            "weights: ask for a larger `vram`",
        )


def _device_room(facts: runtime.TrialRuntime | None) -> int | None:
    """Return the bytes that torch may still allocate on the GPU; None without one."""
    import torch

    if not torch.cuda.is_available():
        return None
    free, _ = torch.cuda.mem_get_info()
    if facts is None or facts.cap_bytes is None:
        return free
    return max(0, min(free, facts.cap_bytes - torch.cuda.memory_allocated()))


_folders: list[Any] = []


def _temporary_folder() -> str:
    import tempfile

    # Kept until the process ends: the weights are read from it at each use of the model.
    folder = tempfile.TemporaryDirectory(prefix="vrampool-offload-")
    _folders.append(folder)
    return folder.name


def _accelerate() -> Any:
    try:
        return importlib.import_module("accelerate")
    except ModuleNotFoundError:
        raise InputError("load_offloaded needs accelerate: pip install 'vrampool[offload]'") from None
