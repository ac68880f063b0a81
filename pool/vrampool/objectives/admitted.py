"""An unpickler for processes that hold credentials: it makes Optuna's samplers and pruners, and calls nothing else."""

from __future__ import annotations

import io
import pickle
from typing import Any

#: Modules whose *classes* are admitted. Not all of Optuna: a storage's class, called, opens files and databases.
_CLASSES_OF = ("optuna.samplers", "optuna.pruners", "optuna.distributions", "optuna.search_space")
#: Everything else, by its exact name.
_NAMES = {
    ("builtins", "set"),
    ("builtins", "frozenset"),
    ("builtins", "complex"),
    ("builtins", "bytearray"),
    ("collections", "OrderedDict"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy.random._pickle", "__randomstate_ctor"),
    ("numpy.random._pickle", "__generator_ctor"),
    ("numpy.random._pickle", "__bit_generator_ctor"),
    ("numpy.random._mt19937", "MT19937"),
    ("numpy.random._pcg64", "PCG64"),
    ("numpy.random._pcg64", "PCG64DXSM"),
    ("numpy.random._philox", "Philox"),
    ("numpy.random._sfc64", "SFC64"),
    ("numpy.random.bit_generator", "SeedSequence"),
    ("numpy.random.bit_generator", "__pyx_unpickle_SeedSequence"),
    # Functions that Optuna's own samplers hold as their defaults.
    ("optuna.samplers._tpe.sampler", "default_gamma"),
    ("optuna.samplers._tpe.sampler", "hyperopt_default_gamma"),
    ("optuna.samplers._tpe.sampler", "default_weights"),
    ("optuna._gp.prior", "default_log_prior"),
}


class NotAdmittedError(pickle.UnpicklingError):
    """Raised before anything is imported or called, when a pickle names what is not on the list."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is not admitted")
        self.name = name


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, name: str) -> Any:
        # A dotted name would walk through a module's own imports, to `os` for example.
        if "." in name or not ((module_name, name) in _NAMES or _is_below(module_name, _CLASSES_OF)):
            raise NotAdmittedError(f"{module_name}.{name}")
        found = super().find_class(module_name, name)
        if (module_name, name) in _NAMES:
            return found
        # What a module of Optuna has imported is not its own.
        own = getattr(found, "__module__", None)
        if isinstance(found, type) and isinstance(own, str) and _is_below(own, _CLASSES_OF):
            return found
        raise NotAdmittedError(f"{module_name}.{name}")


def _is_below(module_name: str, roots: tuple[str, ...]) -> bool:
    return any(module_name == root or module_name.startswith(root + ".") for root in roots)


def loads(body: bytes) -> Any:
    """Open a pickle of a sampler or pruner.

    Raises:
        NotAdmittedError: it names anything that is not on the list.
    """
    return _Unpickler(io.BytesIO(body)).load()
