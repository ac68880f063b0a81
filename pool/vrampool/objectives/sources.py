"""Source files of objectives: found, hashed and read without running them.

A worker asks for the hash of code it will never import itself, and a mistyped name should be told before the user's
module has been imported for seconds. So modules are looked up on the path by hand; nothing here executes user code.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from vrampool.errors import ObjectiveError


def split_target(target: str) -> tuple[str, str]:
    """Split "FILE.py:name" or "package.module:name" into its two parts.

    Raises:
        ObjectiveError: there is no colon, or nothing on one side of it.
    """
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise ObjectiveError(f"objective {target!r} must be 'FILE.py:function' or 'package.module:function'")
    return place, name


def is_file(place: str) -> bool:
    """Return whether the part before the colon names a file (and not a module)."""
    return place.endswith(".py") or "/" in place


def find_module(name: str, sys_path: Iterable[str] = ()) -> Path | None:
    """Return the source file of a module, looked up in `sys_path` and then in this process's path; None: not found.

    Packages above it are located and not imported.
    """
    path = [*sys_path, *sys.path]
    found: importlib.machinery.ModuleSpec | None = None
    for part in name.split("."):
        # By its last name alone: with the whole one a package without __init__.py asks for its parent, as if imported.
        found = importlib.machinery.PathFinder.find_spec(part, path)
        if found is None:
            return None
        path = list(found.submodule_search_locations or ())
    if found is None or found.origin is None or not found.has_location:
        return None
    return Path(found.origin)


def find_source(target: str, sys_path: Iterable[str] = ()) -> Path | None:
    """Return the file that holds an import-path objective on this machine, or None."""
    place, _ = split_target(target)
    if not is_file(place):
        return find_module(place, sys_path)
    path = Path(place)
    return path if path.is_file() else None


def source_hash(target: str, sys_path: Iterable[str] = ()) -> str | None:
    """Return the SHA-256 of the file that holds an import-path objective here; None when it is not here.

    A worker compares it with the submission's: other code under the same name would run another search.
    """
    path = find_source(target, sys_path)
    if path is None:
        return None
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def top_level(path: Path, what: str) -> dict[str, ast.AST]:
    """Return what a source file defines or binds at its top level, by name.

    Raises:
        ObjectiveError: the file cannot be read, or is not Python.
    """
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except OSError as error:
        raise ObjectiveError(f"{what}: cannot read {path}: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:
        raise ObjectiveError(f"{what}: {path} is not valid Python: {error}") from None
    return dict(_bindings(tree.body))


def _bindings(body: list[ast.stmt]) -> Iterable[tuple[str, ast.AST]]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (
                (item.id, node) for target in targets for item in ast.walk(target) if isinstance(item, ast.Name)
            )
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((alias.asname or alias.name.split(".")[0], node) for alias in node.names)
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.For, ast.While)):
            inner = [*node.body, *getattr(node, "orelse", ()), *getattr(node, "finalbody", ())]
            inner += [item for handler in getattr(node, "handlers", ()) for item in handler.body]
            yield from _bindings(inner)


def own_path() -> tuple[str, ...]:
    """Return the entries of sys.path that are the user's own, made absolute.

    The interpreter's and the installed packages' are left out: a worker has those of its own environment, and the
    submitter's must not go in front of them.
    """
    paths = [Path(entry or ".").absolute() for entry in sys.path]
    return tuple(dict.fromkeys(str(path) for path in paths if path.is_dir() and not is_installed(path)))


def is_installed(path: Path) -> bool:
    """Return whether a folder or file belongs to the interpreter or to its installed packages."""
    path = path.resolve()
    if path in {Path(place).resolve() for place in sysconfig.get_paths().values()}:
        return True
    prefixes = {Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    below = any(path.is_relative_to(prefix / "lib") or path.is_relative_to(prefix / "lib64") for prefix in prefixes)
    return below or path.name in ("site-packages", "dist-packages")
