"""The side that submits: check an objective before anything is created, and say how it travels."""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib
import inspect
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vrampool.errors import ObjectiveError
from vrampool.messages import ObjectiveRef
from vrampool.objectives import bundles, sources
from vrampool.objectives.loading import import_target

DEFAULT_BUNDLE_LIMIT_BYTES = 8 * 1024**2


def resolve(
    objective: Callable[..., Any] | str,
    *,
    workdir: str | os.PathLike[str] | None = None,
    bundle_limit_bytes: int = DEFAULT_BUNDLE_LIMIT_BYTES,
    allow_bundles: bool = True,
) -> tuple[ObjectiveRef, bytes | None]:
    """Check an objective and return how a worker's child finds it, and its bundle if it needs one.

    What another process can import travels by name; anything else (a notebook's function, a lambda, a closure, an
    object that can be called) is bundled with what it refers to.

    Args:
        objective: A callable of one trial, "FILE.py:name" or "package.module:name".
        workdir: Working directory of the trials; None: a scratch directory for each.
        bundle_limit_bytes: Largest bundle that is accepted.
        allow_bundles: False where the pool takes objectives by import path only.

    Raises:
        ObjectiveError: not found, not callable with one trial, asynchronous, too large, or impossible to bundle.
    """
    where = None if workdir is None else str(Path(workdir).expanduser().absolute())
    if isinstance(objective, str):
        return _by_name(objective, where), None
    _check_callable(objective, _name_of(objective))
    target = _importable(objective)
    if target is not None:
        return _by_name(target, where, checked=True), None
    name = _name_of(objective)
    if not allow_bundles:
        raise ObjectiveError(
            f"objective {name} cannot be imported by another process, and this pool takes no bundles: "
            "put it into a module and submit 'package.module:function'"
        )
    body = bundles.dump(objective, name, bundle_limit_bytes)
    reference = ObjectiveRef(
        kind="bundle",
        target=name,
        bundle_sha256=hashlib.sha256(body).hexdigest(),
        python=python_minor(),
        workdir=where,
        sys_path=sources.own_path(),
    )
    return reference, body


def python_minor() -> str:
    """Return this interpreter's "major.minor": a bundle holds byte code, which no other version runs."""
    return ".".join(platform.python_version_tuple()[:2])


def _by_name(target: str, workdir: str | None, *, checked: bool = False) -> ObjectiveRef:
    place, name = sources.split_target(target)
    if sources.is_file(place):
        path = Path(place).expanduser().absolute()
        if not path.is_file():
            raise ObjectiveError(f"objective {target!r}: there is no file {path}")
        target, paths = f"{path}:{name}", (str(path.parent), *sources.own_path())
    else:
        if not all(part.isidentifier() for part in place.split(".")):
            raise ObjectiveError(f"objective {target!r}: {place!r} is not the name of a module")
        paths = sources.own_path()
        found = sources.find_module(place, paths)
        if found is None:  # a command's own path does not hold the folder that its user stands in
            paths = (*paths, str(Path.cwd()))
            found = sources.find_module(place, paths)
        if found is None:
            raise ObjectiveError(
                f"objective {target!r}: there is no module {place!r}; looked in {', '.join(paths) or 'sys.path'}"
            )
        path = found
    if not checked:
        _check_source(target, name, path, paths)
    return ObjectiveRef(
        kind="import",
        target=target,
        source_sha256=sources.source_hash(target, paths),
        workdir=workdir,
        sys_path=paths,
    )


def _check_source(target: str, name: str, path: Path, paths: tuple[str, ...]) -> None:
    """Check a named objective by reading its source; the module is imported only where that cannot tell."""
    if path.suffix == ".py":
        names = sources.top_level(path, f"objective {target!r}")
        node = names.get(name.split(".")[0])
        if isinstance(node, ast.AsyncFunctionDef):
            raise ObjectiveError(_ASYNC.format(name=repr(target)))
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            _check_arguments(node, target)
            return
        if node is None and "*" not in names and "__getattr__" not in names:
            functions = [key for key, value in names.items() if isinstance(value, ast.FunctionDef)]
            near = difflib.get_close_matches(name, functions, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(functions) or 'no functions'}"
            raise ObjectiveError(f"objective {target!r}: {path.name} has no {name!r}{hint}")
    reference = ObjectiveRef(kind="import", target=target, sys_path=paths)
    before = list(sys.path)
    importlib.invalidate_caches()  # a notebook's process is old, and the file may be new
    try:
        found = import_target(reference)
    except ObjectiveError:
        raise
    except Exception as error:
        raise ObjectiveError(f"objective {target!r}: importing it raised {type(error).__name__}: {error}") from error
    finally:
        sys.path[:] = before
    _check_callable(found, repr(target))


def _check_arguments(node: ast.FunctionDef, target: str) -> None:
    positional = len(node.args.posonlyargs) + len(node.args.args)
    needed = positional - len(node.args.defaults)
    needed_by_name = sum(default is None for default in node.args.kw_defaults)
    if needed > 1 or needed_by_name or (positional == 0 and node.args.vararg is None):
        raise ObjectiveError(
            f"objective {target!r} must take one trial, but its signature is ({ast.unparse(node.args)})"
        )


_ASYNC = (
    "objective {name} is asynchronous; make it a plain function that returns the value (asyncio.run inside is fine)"
)


def _check_callable(objective: Any, name: str) -> None:
    if not callable(objective):
        raise ObjectiveError(f"objective {name} is {type(objective).__name__} and cannot be called")
    call = objective if inspect.isroutine(objective) else getattr(objective, "__call__", objective)  # noqa: B004
    for candidate in (inspect.unwrap(objective), getattr(objective, "func", None), call):
        if inspect.iscoroutinefunction(candidate) or inspect.isasyncgenfunction(candidate):
            raise ObjectiveError(_ASYNC.format(name=name))
        if inspect.isgeneratorfunction(candidate):
            raise ObjectiveError(f"objective {name} is a generator; return the value instead of yielding it")
    try:
        signature = inspect.signature(objective)
    except (TypeError, ValueError):  # some builtins have none; the first trial will tell
        return
    try:
        signature.bind(object())
    except TypeError:
        raise ObjectiveError(f"objective {name} must take one trial, but its signature is {signature}") from None


def _name_of(objective: Any) -> str:
    name = getattr(objective, "__qualname__", None) or getattr(
        getattr(objective, "func", None), "__qualname__", type(objective).__qualname__
    )
    return str(name).rpartition("<locals>.")[2]


def _importable(objective: Any) -> str | None:
    """Return "module:name" if a fresh process that imports the module finds this very object there."""
    module_name = getattr(objective, "__module__", None)
    name = getattr(objective, "__qualname__", None)
    if not isinstance(module_name, str) or not isinstance(name, str) or "<" in name:
        return None
    if module_name in ("__main__", "__mp_main__") or getattr(objective, "__self__", None) is not None:
        return None
    found: Any = sys.modules.get(module_name)
    path = getattr(found, "__file__", None)
    if found is None or path is None or sources.find_module(module_name, sources.own_path()) != Path(path):
        return None
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module_name}:{name}" if found is objective else None
