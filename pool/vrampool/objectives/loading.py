"""The process that runs the trial: from a reference to the function. Imports little, for it is part of the start."""

# Not pathlib here: it takes longer to import than all of this may.
# ruff: noqa: PTH113, PTH123

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from vrampool.errors import ObjectiveError
from vrampool.messages import ObjectiveRef

#: Where a bundle lies for the processes that the objective starts itself (`bundle_main`).
BUNDLE_VARIABLE = "VRAMPOOL_BUNDLE"


def load(reference: ObjectiveRef, bundle: bytes | None, *, bundle_file: str | None = None) -> Callable[[Any], Any]:
    """Return the objective. User code is imported here.

    Args:
        reference: As `resolve` made it.
        bundle: Body of a bundle; its signature has been checked by whoever hands it over.
        bundle_file: Where to keep the bundle for processes that the objective starts with multiprocessing's "spawn";
            None: they will not find what the notebook defined.

    Raises:
        ObjectiveError: it is not what was submitted: another Python, other source, another bundle, not callable.
        Exception: whatever importing the user's module raises, for example ModuleNotFoundError.
    """
    if reference.kind == "bundle":
        found = _open_bundle(reference, bundle, bundle_file)
    elif reference.kind == "import":
        found = import_target(reference)
        _check_source(reference, found)
    else:
        raise ObjectiveError(f"objective of unknown kind {reference.kind!r}; this worker is older than the submission")
    if not callable(found):
        raise ObjectiveError(f"objective {reference.target!r} is {type(found).__name__} and cannot be called")
    return found  # type: ignore[no-any-return]


def import_target(reference: ObjectiveRef) -> Any:
    """Import what "FILE.py:name" or "package.module:name" names, with `sys_path` in front of the path.

    Raises:
        ObjectiveError: the module has no such name, or the file is not there.
        Exception: whatever the import raises.
    """
    place, _, name = reference.target.rpartition(":")
    sys.path[:0] = [entry for entry in reference.sys_path if entry not in sys.path]
    found: Any = _import_file(place) if place.endswith(".py") or "/" in place else importlib.import_module(place)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ObjectiveError(f"objective {reference.target!r}: {place} has no {name!r}") from None
    return found


def _import_file(path: str) -> types.ModuleType:
    """Import a file under its own stem, so that its classes can be pickled and its siblings find it."""
    if not os.path.isfile(path):
        raise ObjectiveError(f"there is no file {path} on this machine; copy it there, or submit the function itself")
    folder, file_name = os.path.split(path)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = file_name.removesuffix(".py")
    present = sys.modules.get(name)
    if present is not None and getattr(present, "__file__", None) == path:
        return present
    if present is not None or "." in name or name in sys.stdlib_module_names:
        name = f"vrampool_objective_{name.replace('.', '_')}"  # `random.py` must not become the world's `random`
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ObjectiveError(f"{path} is not a Python source file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _check_source(reference: ObjectiveRef, found: Any) -> None:
    """Refuse source that is not what was submitted: it was edited, or differs between machines."""
    place = reference.target.rpartition(":")[0]
    path = place if place.endswith(".py") else getattr(sys.modules.get(place), "__file__", None)
    if reference.source_sha256 is None or path is None:
        return
    with open(path, "rb") as file:
        digest = _sha256(file.read())
    if digest != reference.source_sha256:
        raise ObjectiveError(f"{path} is not the file that was submitted: it was changed since; submit again")


def _sha256(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


def _open_bundle(reference: ObjectiveRef, bundle: bytes | None, bundle_file: str | None) -> Any:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if reference.python != here:
        # Before anything is opened: foreign byte code does not raise, it crashes the interpreter.
        raise ObjectiveError(
            f"objective {reference.target!r} was bundled by Python {reference.python} and this worker runs {here}: "
            "use the same version, or submit it by import path"
        )
    if bundle is None or _sha256(bundle) != reference.bundle_sha256:
        raise ObjectiveError(f"the bundle of objective {reference.target!r} did not arrive whole; submit again")
    sys.path[:0] = [entry for entry in reference.sys_path if entry not in sys.path]
    found = unpack(bundle)
    if bundle_file is not None:
        _become_main(found, bundle, bundle_file)
    return found


def unpack(bundle: bytes) -> Any:
    """Open a bundle whose signature was checked; tracebacks show its lines of source from then on."""
    import io
    import linecache
    import pickle

    file = io.BytesIO(bundle)
    found = pickle.load(file)  # noqa: S301  signed by the submitter
    if rest := file.read():
        import json

        for name, lines in json.loads(rest).items():
            known = {int(number): text for number, text in lines.items()}
            text = [known.get(number, "\n") for number in range(1, max(known) + 1)]
            linecache.cache[name] = (sum(map(len, text)), None, text, name)  # no time: it is not compared with a file
    return found


def _become_main(objective: Any, bundle: bytes, bundle_file: str) -> None:
    """Make what the bundle brought findable under `__main__`, here and in processes started with "spawn".

    Functions and classes of a notebook say they are `__main__`'s. Pickle takes such a name at its word, so
    `Pool.map(helper, ...)` or a DataLoader's worker looks there.
    """
    with open(bundle_file, "wb") as file:
        file.write(bundle)
    os.environ[BUNDLE_VARIABLE] = bundle_file
    main = types.ModuleType("__main__")
    # multiprocessing starts its children by importing the module that `__main__` says it is.
    main.__spec__ = importlib.util.find_spec("vrampool.objectives.bundle_main")
    main.__dict__.update(main_names(objective))
    _kept.append(sys.modules["__main__"])
    sys.modules["__main__"] = main


#: The interpreter's first `__main__`: its functions are still running and must not lose their globals.
_kept: list[types.ModuleType] = []


def main_names(objective: Any) -> dict[str, Any]:
    """Return what an objective from `__main__` knows there by name: its globals, itself, its class."""
    names: dict[str, Any] = {}
    function: Any = objective
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    holder = getattr(function, "__self__", None)
    function = getattr(function, "__func__", function)
    if not hasattr(function, "__globals__"):
        holder = function
        function = vars(type(function)).get("__call__")
    if holder is not None:
        kind = holder if isinstance(holder, type) else type(holder)
        names[kind.__name__] = kind
    space = getattr(function, "__globals__", {})
    if space.get("__name__") == "__main__":
        names.update((key, value) for key, value in space.items() if not key.startswith("__"))
    name = getattr(function, "__qualname__", "<")
    if getattr(function, "__module__", None) == "__main__" and "<" not in name and "." not in name:
        names.setdefault(name, function)
    return {key: value for key, value in names.items() if _is_plain(key)}


def _is_plain(name: str) -> bool:
    return name.isidentifier()
