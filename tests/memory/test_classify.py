"""Which exceptions mean that memory ran out, and what their texts say."""

from __future__ import annotations

import pytest

from vrampool.memory import MemoryFault, MemoryKind, classify, classify_log
from vrampool.units import GIB, MIB

RUNTIME = ("builtins.RuntimeError", "builtins.Exception", "builtins.BaseException", "builtins.object")
TORCH = ("torch.OutOfMemoryError", *RUNTIME)
MEMORY = ("builtins.MemoryError", "builtins.Exception", "builtins.BaseException", "builtins.object")
PLAIN = ("builtins.Exception", "builtins.BaseException", "builtins.object")

NEW_TEXT = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 137.00 GiB is "
    "free. Including non-PyTorch memory, this process has 3.26 GiB memory in use. 2.80 GiB allowed; Of the allocated "
    "memory 2.00 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated."
)
FULL_TEXT = (
    "CUDA out of memory. Tried to allocate 50.00 MiB. GPU 0 has a total capacity of 23.64 GiB of which 12.25 MiB is "
    "free. Process 31337 has 20.00 GiB memory in use. Process 4711 has 3.50 GiB memory in use."
)
OLD_TEXT = (
    "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.80 GiB total capacity; 6.50 GiB already allocated; "
    "12.25 MiB free; 6.75 GiB allowed; 6.70 GiB reserved in total by PyTorch)"
)
ASYNC_TEXT = """Allocation on device 0 would exceed allowed memory. (out of memory)
Currently allocated     : 2.50 GiB
Requested               : 1.00 GiB
Device limit            : 139.80 GiB
Free (according to CUDA): 100.00 GiB
PyTorch limit (set by user-supplied memory fraction)
                        : 2.80 GiB"""


def raised(error: BaseException) -> MemoryFault | None:
    """Classify an exception as a child would describe it."""
    kind = type(error)
    mro = [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__]
    return classify(kind.__qualname__, kind.__module__, mro, str(error))


@pytest.mark.parametrize(
    ("type_name", "module", "mro", "text"),
    [
        ("RuntimeError", "builtins", RUNTIME, "CUDA out of memory. Tried to allocate 2.00 GiB"),
        ("OutOfMemoryError", "torch", TORCH, "CUDA out of memory. Tried to allocate 50.00 MiB"),
        ("torch.OutOfMemoryError", "torch", TORCH, "no figures at all"),
        ("OutOfMemoryError", "torch.cuda", ("torch.cuda.OutOfMemoryError", *RUNTIME), OLD_TEXT),
        ("MyOom", "user", ("user.MyOom", *TORCH), "wrapped by a subclass"),
        (
            "RuntimeError",
            "builtins",
            RUNTIME,
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        ),
        ("RuntimeError", "builtins", RUNTIME, "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        ("RuntimeError", "builtins", RUNTIME, "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        ("RuntimeError", "builtins", RUNTIME, "CUDA error: out of memory\nCUDA kernel errors might be reported later"),
        ("AcceleratorError", "torch", ("torch.AcceleratorError", *RUNTIME), "CUDA error: out of memory"),
        ("RuntimeError", "builtins", RUNTIME, "CUDA driver error: out of memory"),
        ("RuntimeError", "builtins", RUNTIME, "HIP out of memory. Tried to allocate 1.00 GiB"),
        (
            "RuntimeError",
            "builtins",
            RUNTIME,
            "NVML_SUCCESS == r INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp:838",
        ),
        ("DistBackendError", "torch.distributed", RUNTIME, "NCCL error: Cuda failure 2 'out of memory'"),
        (
            "RuntimeError",
            "builtins",
            RUNTIME,
            "Caught RuntimeError in replica 1 on device 1.\nCUDA out of memory. Tried",
        ),
        ("RuntimeError", "builtins", RUNTIME, "Triton Error [CUDA]: out of memory"),
        (
            "OutOfMemoryError",
            "cupy.cuda.memory",
            ("cupy.cuda.memory.OutOfMemoryError", *MEMORY),
            "Out of memory allocating",
        ),
        ("MemoryError", "builtins", MEMORY, "std::bad_alloc: out_of_memory: CUDA error: cudaErrorMemoryAllocation"),
        (
            "XlaRuntimeError",
            "jaxlib.xla_extension",
            RUNTIME,
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 bytes",
        ),
        (
            "XGBoostError",
            "xgboost.core",
            ("xgboost.core.XGBoostError", *PLAIN),
            "cudaErrorMemoryAllocation: out of memory",
        ),
        (
            "LightGBMError",
            "lightgbm.basic",
            ("lightgbm.basic.LightGBMError", *PLAIN),
            "[CUDA] out of memory /src/cuda.cu 20",
        ),
        ("CudaAPIError", "numba.cuda", ("numba.cuda.CudaAPIError", *PLAIN), "results in CUDA_ERROR_OUT_OF_MEMORY"),
        (
            "ResourceExhaustedError",
            "tensorflow.python.framework.errors_impl",
            PLAIN,
            "OOM when allocating tensor on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
        ),
    ],
)
def test_device_memory_ran_out(type_name, module, mro, text):
    fault = classify(type_name, module, mro, text)
    assert fault is not None and fault.kind == MemoryKind.CUDA


@pytest.mark.parametrize(
    ("type_name", "module", "mro", "text"),
    [
        ("MemoryError", "builtins", MEMORY, ""),
        (
            "_ArrayMemoryError",
            "numpy._core._exceptions",
            MEMORY,
            "Unable to allocate 1.86 GiB for an array with shape (9,)",
        ),
        (
            "RuntimeError",
            "builtins",
            RUNTIME,
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
        ),
        (
            "RuntimeError",
            "builtins",
            RUNTIME,
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
            "allocate 8000000000 bytes. Error code 12 (Cannot allocate memory)",
        ),
        (
            "RuntimeError",
            "builtins",
            RUNTIME,
            "Caught RuntimeError in DataLoader worker process 0.\n[enforce fail at alloc_cpu.cpp:1",
        ),
        ("RuntimeError", "builtins", RUNTIME, "DataLoader worker (pid 4711) is killed by signal: Killed. "),
        (
            "RuntimeError",
            "builtins",
            RUNTIME,
            "DataLoader worker (pid(s) 4711) is killed by signal: Bus error. It is possible",
        ),
        (
            "RuntimeError",
            "builtins",
            RUNTIME,
            "unable to mmap 800 bytes from file <torch_1>: Cannot allocate memory (12)",
        ),
        ("RuntimeError", "builtins", RUNTIME, "can't start new thread"),
        ("OSError", "builtins", ("builtins.OSError", *PLAIN), "[Errno 12] Cannot allocate memory"),
        (
            "ImportError",
            "builtins",
            ("builtins.ImportError", *PLAIN),
            "libtorch.so: failed to map segment from shared object",
        ),
        (
            "ResourceExhaustedError",
            "tensorflow.python.framework.errors_impl",
            PLAIN,
            "OOM when allocating tensor on /job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu",
        ),
    ],
)
def test_host_memory_ran_out(type_name, module, mro, text):
    fault = classify(type_name, module, mro, text)
    assert fault is not None and fault.kind == MemoryKind.HOST


@pytest.mark.parametrize(
    ("type_name", "module", "mro", "text"),
    [
        ("ValueError", "builtins", ("builtins.ValueError", *PLAIN), "my config says: CUDA out of memory is possible"),
        ("OutOfMemoryError", "redis.exceptions", PLAIN, "OOM command not allowed when used memory > 'maxmemory'."),
        ("OutOfMemory", "psycopg.errors", PLAIN, "out of shared memory"),
        ("OutOfMemoryError", "__main__", ("__main__.OutOfMemoryError", *RUNTIME), "the user's own, of the same name"),
        ("AcceleratorError", "torch", ("torch.AcceleratorError", *RUNTIME), "CUDA error: device-side assert triggered"),
        ("RuntimeError", "builtins", RUNTIME, "CUDA error: an illegal memory access was encountered"),
        ("RuntimeError", "builtins", RUNTIME, "CUDA error: no CUDA-capable device is detected"),
        ("RuntimeError", "builtins", RUNTIME, "mat1 and mat2 shapes cannot be multiplied"),
        ("OSError", "builtins", ("builtins.OSError", *PLAIN), "[Errno 28] No space left on device"),
        ("ImportError", "builtins", ("builtins.ImportError", *PLAIN), "cannot allocate memory in static TLS block"),
        ("XlaRuntimeError", "jaxlib.xla_extension", RUNTIME, "INTERNAL: something else"),
        ("KeyError", "builtins", ("builtins.KeyError", *PLAIN), "'CUDA_ERROR_OUT_OF_MEMORY'"),
    ],
)
def test_something_else_went_wrong(type_name, module, mro, text):
    assert classify(type_name, module, mro, text) is None


@pytest.mark.parametrize(
    ("text", "asked", "allowed", "free", "in_use"),
    [
        (NEW_TEXT, 2 * GIB, int(2.8 * GIB), 137 * GIB, int(3.26 * GIB)),
        (FULL_TEXT, 50 * MIB, None, int(12.25 * MIB), None),
        (OLD_TEXT, 20 * MIB, int(6.75 * GIB), int(12.25 * MIB), None),
        (ASYNC_TEXT, GIB, int(2.8 * GIB), 100 * GIB, None),
        ("CUDA out of memory. Tried to allocate 512 bytes", 512, None, None, None),
        ("CUDA error: out of memory", None, None, None, None),
    ],
)
def test_figures_are_read_from_the_text(text, asked, allowed, free, in_use):
    fault = classify("RuntimeError", "builtins", RUNTIME, text)
    assert fault == MemoryFault(MemoryKind.CUDA, asked, allowed, free, in_use)


def test_cupy_and_numpy_name_figures_too():
    text = "Out of memory allocating 1,000,000 bytes (allocated so far: 400,000 bytes, limit set to: 500,000 bytes)."
    fault = classify("OutOfMemoryError", "cupy.cuda.memory", ("cupy.cuda.memory.OutOfMemoryError", *MEMORY), text)
    assert (fault.asked_bytes, fault.allowed_bytes) == (1_000_000, 500_000)
    fault = classify("_ArrayMemoryError", "numpy", MEMORY, "Unable to allocate 1.50 GiB for an array with shape (9,)")
    assert fault.asked_bytes == int(1.5 * GIB)


def test_errors_that_python_itself_raises_are_known_by_their_real_classes():
    with pytest.raises(MemoryError) as caught:
        bytearray(2**62)
    assert raised(caught.value).kind == MemoryKind.HOST
    assert raised(ValueError("CUDA out of memory")) is None


def test_torchs_own_class_is_known_under_its_real_name():
    torch = pytest.importorskip("torch")
    assert raised(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB")).asked_bytes == GIB


def test_torchs_cpu_allocator_raises_what_we_expect():
    torch = pytest.importorskip("torch")
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**46)
    fault = raised(caught.value)
    assert (fault.kind, fault.asked_bytes) == (MemoryKind.HOST, 2**48)


def test_a_fault_survives_the_way_from_child_to_parent():
    fault = classify("RuntimeError", "builtins", RUNTIME, NEW_TEXT)
    assert MemoryFault.from_dict(fault.to_dict()) == fault
    assert MemoryFault.from_dict({"device": "host", "asked_bytes": "many"}) == MemoryFault(MemoryKind.HOST)


@pytest.mark.parametrize(
    "tail", ["libgomp: Thread creation failed: Resource", "what():  std::bad_alloc\n", "MemoryError\n"]
)
def test_the_output_of_a_dead_process_may_tell_of_host_memory(tail):
    assert classify_log(tail).kind == MemoryKind.HOST


def test_other_output_does_not():
    assert classify_log("epoch 3\nSegmentation fault\n") is None
