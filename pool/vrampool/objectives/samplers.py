"""Samplers and pruners as text: neither is kept by Optuna's storage, and both are needed wherever trials are sampled.

A spec is JSON. Optuna's own objects are pickled into it and opened by an unpickler that admits Optuna's and NumPy's own
classes and nothing else, since coordinator and workers hold the pool's credentials. The user's classes come by
import path, with the submitter's own folders to look in; what such a path gives is sent as an object where it can be.
"""

from __future__ import annotations

import base64
import importlib
import inspect
import json
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.search_space.group_decomposed import _GroupDecomposedSearchSpace

from vrampool.errors import InputError
from vrampool.objectives import admitted, sources
from vrampool.objectives.random_states import parts_of

#: Grids are listed in the spec; more points than fit into this are no grid any more.
LIMIT_BYTES = 8 * 1024**2


def dump_sampler(sampler: BaseSampler | str | None) -> str | None:
    """Return the spec of a sampler; None stands for Optuna's default.

    Args:
        sampler: An Optuna sampler, or "package.module:Class" of one without arguments (a function that makes one too).

    Raises:
        InputError: it is no sampler, is of a class outside Optuna, or holds something that cannot travel.
    """
    return _dump(sampler, BaseSampler, "sampler")


def dump_pruner(pruner: BasePruner | str | None) -> str | None:
    """Return the spec of a pruner, as `dump_sampler` does for samplers."""
    return _dump(pruner, BasePruner, "pruner")


def open_sampler(spec: str | None, *, seed: int = 0) -> BaseSampler:
    """Make the sampler of a spec.

    It comes with the random state it had where it was submitted: `RandomStates` sees to it that no two openings draw
    the same points. Grid and quasi-random samplers hand out points by number from an order that was fixed when they
    were made, and keep it.

    Args:
        spec: As `dump_sampler` made it; its signature has been checked.
        seed: Of the submission; seeds Optuna's default sampler.

    Raises:
        InputError: the spec holds something that is not admitted, or cannot be imported here.
    """
    if spec is None:
        return optuna.samplers.TPESampler(seed=seed % 2**32)
    sampler: BaseSampler = _open(spec, BaseSampler, "sampler")
    for part in parts_of(sampler):
        if isinstance(part, (IntersectionSearchSpace, _GroupDecomposedSearchSpace)):
            # What it has learned of the study that it was used with refers to that study's id in another database.
            vars(part).update(vars(type(part)(part._include_pruned)))
    return sampler


def open_pruner(spec: str | None) -> BasePruner:
    """Make the pruner of a spec; None: Optuna's default.

    Raises:
        InputError: the spec holds something that is not admitted, or cannot be imported here.
    """
    return optuna.pruners.MedianPruner() if spec is None else _open(spec, BasePruner, "pruner")


def _dump(value: Any, base: type, what: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        made = _by_path(value, base, what)
        try:
            return _dump(made, base, what)  # an object of Optuna's: the same one everywhere, and nothing to import
        except InputError:
            return json.dumps({"kind": "import", "target": value, "sys_path": sources.own_path()})
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if not isinstance(value, base):
        raise InputError(f"{what} must be an Optuna {what} or 'package.module:Class', not {name}")
    remedy = (
        f"submit it by import path: {what}='package.module:make_{what}', a function without arguments that makes it"
    )
    if kind.__module__.partition(".")[0] != "optuna":
        raise InputError(f"{what} {name} is not one of Optuna's own classes; {remedy}")
    try:
        body = pickle.dumps(value, protocol=5)
    except Exception as error:  # a lambda in constraints_func, gamma or weights
        raise InputError(f"{what} {name} cannot be sent to the workers: {error}; {remedy}") from error
    if len(body) > LIMIT_BYTES:
        raise InputError(f"{what} {name} takes {len(body)} bytes, over the limit of {LIMIT_BYTES}; {remedy}")
    try:
        admitted.loads(body)
    except admitted.NotAdmittedError as error:
        raise InputError(f"{what} {name} holds {error.name}, which is not Optuna's or NumPy's; {remedy}") from None
    return json.dumps(
        {"kind": "pickle", "class": name, "optuna": optuna.__version__, "body": base64.b64encode(body).decode()}
    )


def _open(spec: str, base: type, what: str) -> Any:
    try:
        content = json.loads(spec)
        kind = content["kind"]
    except (ValueError, TypeError, KeyError):
        raise InputError(f"the {what} of this submission cannot be read; submit again") from None
    if kind == "import":
        return _by_path(content["target"], base, what, content.get("sys_path") or ())
    if kind != "pickle":
        raise InputError(f"the {what} of this submission is of kind {kind!r}, which this version does not know")
    try:
        value = admitted.loads(base64.b64decode(content["body"]))
    except admitted.NotAdmittedError as error:
        raise InputError(
            f"the {what} of this submission holds {error.name}, which is not Optuna's or NumPy's"
        ) from None
    except Exception as error:
        raise InputError(
            f"the {what} {content.get('class')} of Optuna {content.get('optuna')} cannot be opened by "
            f"Optuna {optuna.__version__}: {error}"
        ) from error
    if not isinstance(value, base):
        raise InputError(f"the {what} of this submission is {type(value).__name__} and no {what}")
    return value


def _by_path(target: str, base: type, what: str, paths: Sequence[str] = ()) -> Any:
    """Import and make a sampler or pruner.

    Args:
        paths: Where the submitter keeps modules of his own. In a process that lives long such a module may have been
            imported from another submission's folder, or before it was edited: it is then imported anew.
    """
    module_name, colon, name = str(target).partition(":")
    if not colon or not name:
        raise InputError(f"{what} {target!r} must be 'package.module:Class'")
    before = list(sys.path)
    try:
        sys.path.extend(path for path in paths if path not in before)
        loaded = getattr(sys.modules.get(module_name), "__file__", None)
        if paths and loaded is not None and not sources.is_installed(Path(loaded)):
            del sys.modules[module_name]
            importlib.invalidate_caches()
        found: Any = importlib.import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{what} {target!r} cannot be imported: {error}; is it installed here?") from None
    except Exception as error:
        raise InputError(f"{what} {target!r} cannot be imported: it raised {type(error).__name__}: {error}") from error
    finally:
        sys.path[:] = before
    if inspect.isclass(found) or inspect.isroutine(found):
        try:
            found = found()
        except Exception as error:
            raise InputError(f"{what} {target!r} cannot be made without arguments: {error}") from error
    if not isinstance(found, base):
        raise InputError(f"{what} {target!r} gives {type(found).__name__}, which is no Optuna {what}")
    return found
