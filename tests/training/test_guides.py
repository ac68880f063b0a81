"""The guides' code is what works: old and new side are both run."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from training.blocks import pool_is_built, run_blocks, scripts_of

DOCS = Path(__file__).parents[2] / "docs"
OPTUNA, RAY = DOCS / "from-optuna.md", DOCS / "from-ray-tune.md"
WITHOUT_POOL = [(OPTUNA, "optuna"), (OPTUNA, "torch-old"), (OPTUNA, "torch-new")]
WITH_POOL = [(OPTUNA, "pool"), (OPTUNA, "submit"), (RAY, "pool")]


def name(case):
    return case.stem if isinstance(case, Path) else case


@pytest.mark.parametrize("page", [OPTUNA, RAY], ids=name)
def test_every_python_block_is_part_of_a_script_and_compiles(page):
    scripts = scripts_of(page)
    assert "" not in scripts, "a block without a comment would never be run"
    known = {script for known_page, script in [*WITHOUT_POOL, *WITH_POOL, (RAY, "ray")] if known_page == page}
    assert set(scripts) == known
    for script, codes in scripts.items():
        compile("\n".join(codes), f"{page.name}:{script}", "exec")


@pytest.mark.parametrize(("page", "script"), WITHOUT_POOL, ids=name)
def test_the_side_without_the_pool_runs(page, script, tmp_path):
    if script.startswith("torch"):
        pytest.importorskip("torch")
    done = run_blocks(scripts_of(page)[script], tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not pool_is_built(), reason="the pool is not complete yet")
@pytest.mark.parametrize(("page", "script"), WITH_POOL, ids=name)
def test_the_side_with_the_pool_runs(page, script, tmp_path, pool_env):
    done = run_blocks(scripts_of(page)[script], tmp_path, env=pool_env, timeout_s=240)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: its side is only compiled")
def test_the_ray_side_runs(tmp_path):
    done = run_blocks(scripts_of(RAY)["ray"], tmp_path)
    assert done.returncode == 0, done.stderr
