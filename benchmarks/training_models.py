"""What `gpu_training.py` trains, and how it looks at the card. Found beside that program, which is run as a file."""

from __future__ import annotations

import importlib
from typing import Any

Facts = dict[str, Any]


def make_network(dry: bool, device: str) -> Any:
    """Return a ResNet-50; in a dry run a few convolutions, for which torchvision is not needed."""
    import torch

    torch.manual_seed(0)
    if dry:
        layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
        )
        return torch.nn.Sequential(layers, torch.nn.Linear(8, 100)).to(device)
    torchvision: Any = importlib.import_module("torchvision")
    return torchvision.models.resnet50(num_classes=100).to(device)


def images(batch: int, size: int, device: str) -> tuple[Any, Any]:
    """Return random images of shape (batch, 3, size, size) and their classes, on the host as loaders give them."""
    import torch

    generator = torch.Generator().manual_seed(batch)
    x = torch.randn(batch, 3, size, size, generator=generator)
    y = torch.randint(0, 100, (batch,), generator=generator)
    return (x.pin_memory(), y.pin_memory()) if device == "cuda" else (x, y)


def device_used() -> int | None:
    """Return the bytes in use on the card as NVML tells, or None without it. Creates no context."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
        return int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(0)).used)
    except Exception:
        return None


def peaks(device: str) -> Facts:
    """Return the allocator's peaks of this process in bytes, and what the card shows now."""
    import torch

    if device != "cuda":
        return {"max_allocated_bytes": 0, "max_torch_reserved_bytes": 0, "device_used_bytes": None}
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    return {
        "max_allocated_bytes": torch.cuda.max_memory_allocated(),
        "max_torch_reserved_bytes": torch.cuda.max_memory_reserved(),
        "device_used_bytes": device_used(),
        "num_alloc_retries": stats.get("num_alloc_retries", 0),
    }
