"""The example that the demo runs: plain Optuna, real data, a good result."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import optuna
import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "digits.py"
GOOD_POINT = {"width": 16, "depth": 2, "batch_size": 32, "learning_rate": 3e-3, "dropout": 0.2}


@pytest.fixture(scope="module")
def digits():
    torch = pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("digits", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a network is slower on several, the more so on a busy machine
    yield module
    torch.set_num_threads(threads)


class Watched(optuna.trial.FixedTrial):
    """A trial with given parameters that keeps its reports and can be told to prune."""

    def __init__(self, params, prune_at=None):
        super().__init__(params)
        self.reports = []
        self._prune_at = prune_at

    def report(self, value, step):
        self.reports.append((step, value))

    def should_prune(self):
        return self.reports[-1][0] == self._prune_at


def test_a_good_point_is_learned_well_and_every_epoch_is_reported(digits):
    trial = Watched(GOOD_POINT)
    accuracy = digits.objective(trial)
    assert accuracy > 0.95
    assert trial.reports[-1] == (digits.EPOCHS - 1, accuracy)
    assert [step for step, _ in trial.reports] == list(range(digits.EPOCHS))


def test_a_trial_ends_where_it_is_pruned(digits):
    trial = Watched(GOOD_POINT, prune_at=1)
    with pytest.raises(optuna.TrialPruned):
        digits.objective(trial)
    assert len(trial.reports) == 2


def test_all_digits_of_the_real_data_are_there(digits):
    images, labels = digits.load_digits()
    assert images.shape == (1797, 1, digits.SIDE, digits.SIDE)
    assert (float(images.min()), float(images.max())) == (0.0, 1.0)
    assert sorted(set(labels.tolist())) == list(range(10))


def test_importing_the_example_does_nothing(tmp_path):
    """Workers import it in every trial's process; it must not print, write, or load scikit-learn."""
    pytest.importorskip("torch")
    program = "import sys, digits; print(sorted({'sklearn', 'scipy'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-B", "-c", f"import sys; sys.path.insert(0, {str(EXAMPLE.parent)!r}); {program}"],
        capture_output=True, text=True, cwd=tmp_path, check=True,
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr, list(tmp_path.iterdir())) == ("[]", "", [])
