"""Where an import-path objective's source lies, without importing anything on the way."""

from __future__ import annotations

import sys

import pytest

from vrampool.objectives.sources import find_module


@pytest.mark.parametrize("marked", [True, False], ids=["packages", "namespace packages"])
def test_a_module_in_packages_is_found_and_none_of_them_is_imported(tmp_path, marked):
    folder = tmp_path / "outer_of_test" / "inner"
    folder.mkdir(parents=True)
    (folder / "search.py").touch()
    if marked:
        for package in (folder.parent, folder):
            (package / "__init__.py").write_text("raise RuntimeError('imported')")
    assert find_module("outer_of_test.inner.search", [str(tmp_path)]) == folder / "search.py"
    assert find_module("outer_of_test.inner.other", [str(tmp_path)]) is None
    assert find_module("outer_of_test", [str(tmp_path)]) == (folder.parent / "__init__.py" if marked else None)
    assert not [name for name in sys.modules if name.startswith("outer_of_test")]


def test_what_is_no_file_is_not_found(tmp_path):
    assert find_module("sys", []) is None
    assert find_module("nowhere_at_all.module", [str(tmp_path)]) is None
