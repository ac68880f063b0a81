"""What installing a way costs on disk: its packages and all that they need, as this interpreter has them."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

#: Every way needs what the objective imports, so that is counted for none.
_NOT_COUNTED = {"torch"}


def closure(packages: Iterable[str]) -> set[str]:
    """Return the names of installed packages that these need, themselves included."""
    todo = [Requirement(package) for package in packages]
    seen: set[tuple[str, frozenset[str]]] = set()
    found: set[str] = set()
    while todo:
        wanted = todo.pop()
        name = canonicalize_name(wanted.name)
        if (name, frozenset(wanted.extras)) in seen or name in _NOT_COUNTED:
            continue
        seen.add((name, frozenset(wanted.extras)))
        try:
            needs = metadata.distribution(name).requires or []
        except metadata.PackageNotFoundError:
            continue
        found.add(name)
        for line in needs:
            need = Requirement(line)
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *wanted.extras)):
                todo.append(need)
    return found


def size_mb(packages: Iterable[str]) -> tuple[int, float]:
    """Return how many packages these are with all that they need, and how many MB (10**6) of files."""
    names = closure(packages)
    return len(names), sum(_size(name) for name in names) / 1e6


def _size(name: str) -> int:
    distribution = metadata.distribution(name)
    paths = {Path(str(distribution.locate_file(file))) for file in distribution.files or ()}
    if not any(path.suffix == ".so" or path.name == "__init__.py" for path in paths):
        paths |= _sources(distribution)
    return sum(path.stat().st_size for path in paths if path.is_file() and path.suffix != ".pyc")


def _sources(distribution: metadata.Distribution) -> set[Path]:
    """Return the files of a package that was installed from its own folder, as this project is for its developers."""
    found: set[Path] = set()
    for file in distribution.files or ():
        if str(file).endswith(".pth"):
            for line in Path(str(distribution.locate_file(file))).read_text().splitlines():
                if line.startswith("/"):
                    found |= set(Path(line).glob("vrampool*/**/*"))
    return found
