"""A setting without a valid value is told by where it came from: what was typed, a variable, a key of the file."""

from __future__ import annotations

import pytest
from support.commands import call


def test_an_option_overrides_a_variable_and_that_the_file_and_what_is_in_force_is_named(
    tmp_path, capsys, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "vrampool.toml"
    file.write_text("spares = 100\nmax_trials = 0\n")

    def told(*options: str) -> str:
        state = tmp_path / "state"
        done = call(capsys, "run", "operator:neg", "--trials", "1", "--config", file, "--state-dir", state, *options)
        assert done.code == 2 and done.err.count("\n") == 1 and not state.exists(), done
        return done.err

    assert told().startswith(f"error: key 'spares' of {file}: spares must be at most 64, not 100")
    monkeypatch.setenv("VRAMPOOL_SPARES", "99")
    assert told().startswith("error: variable VRAMPOOL_SPARES: spares must be at most 64, not 99")
    assert told("--spares", "98").startswith("error: --spares must be at most 64, not 98")
    monkeypatch.setenv("VRAMPOOL_SPARES", "1")
    monkeypatch.setenv("VRAMPOOL_SPARE_MEMORY", "much")
    assert told("--max-trials", "1").startswith("error: variable VRAMPOOL_SPARE_MEMORY: spare_memory 'much'")
