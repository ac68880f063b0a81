"""Checkpoints on disk: what counts as complete, who sees which, and what is removed when."""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
from pathlib import Path

import optuna
import pytest

import vrampool
from vrampool.checkpoints import Checkpoint, CheckpointFolder
from vrampool.errors import InputError
from vrampool.settings import load_settings


def write(checkpoint: Checkpoint, text: str) -> None:
    with checkpoint.save() as folder:
        (folder / "state").write_text(text)


def read(checkpoint: Checkpoint) -> str | None:
    return None if checkpoint.latest is None else (checkpoint.latest / "state").read_text()


def test_a_first_attempt_finds_nothing_and_makes_nothing(tmp_path: Path):
    checkpoint = Checkpoint(tmp_path / "root", 1)
    assert checkpoint.latest is None
    assert not (tmp_path / "root").exists()


def test_the_next_attempt_finds_the_newest_of_the_ones_before(tmp_path: Path):
    write(Checkpoint(tmp_path, 1), "first")
    second = Checkpoint(tmp_path, 2)
    assert read(second) == "first"
    write(second, "second")
    assert read(second) == "second"
    assert read(Checkpoint(tmp_path, 10)) == "second", "attempts are numbers, not words"


def test_an_attempt_thought_dead_does_not_see_and_not_touch_what_the_next_one_writes(tmp_path: Path):
    old, new = Checkpoint(tmp_path, 1), Checkpoint(tmp_path, 2)
    write(old, "old")
    write(new, "new")
    write(old, "old again")
    assert read(old) == "old again"
    assert read(new) == "new"
    assert read(Checkpoint(tmp_path, 3)) == "new"


def test_a_checkpoint_whose_writing_failed_is_none(tmp_path: Path):
    checkpoint = Checkpoint(tmp_path, 1)
    write(checkpoint, "good")
    with pytest.raises(OSError, match="full"), checkpoint.save() as folder:
        (folder / "state").write_text("half")
        raise OSError("the disk is full")
    assert read(checkpoint) == "good"
    assert [path.name for path in checkpoint.directory.iterdir()] == ["000001"]


def die_while_saving(folder: str) -> None:
    with Checkpoint(Path(folder), 1).save() as scratch:
        (scratch / "state").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_checkpoint_whose_writer_was_killed_is_none_and_the_next_attempt_clears_it_away(tmp_path: Path):
    write(Checkpoint(tmp_path, 1), "good")
    process = multiprocessing.get_context("fork").Process(target=die_while_saving, args=(str(tmp_path),))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert len(list((tmp_path / "1").iterdir())) == 2
    second = Checkpoint(tmp_path, 2)
    assert read(second) == "good"
    write(second, "better")
    assert list((tmp_path / "1").iterdir()) == []


@pytest.mark.parametrize("last", [1, 3])
def test_so_many_complete_ones_are_kept_over_all_attempts(tmp_path: Path, last: int):
    for attempt in (1, 2):
        for number in range(3):
            write(Checkpoint(tmp_path, attempt, last=last), f"{attempt}.{number}")
    left = sorted(path.read_text() for path in tmp_path.rglob("state"))
    assert left == ["1.2", "2.0", "2.1", "2.2"][-last:]


def test_a_half_removed_checkpoint_is_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The removal of a large one takes a while, and its process may be killed in the middle."""
    checkpoint = Checkpoint(tmp_path, 1)
    write(checkpoint, "one")
    monkeypatch.setattr("shutil.rmtree", lambda *args, **kwargs: None)
    write(checkpoint, "two")
    assert read(checkpoint) == "two"
    assert len(list(checkpoint._complete())) == 1


def test_threads_of_one_trial_may_save_at_once(tmp_path: Path):
    import threading

    checkpoint = Checkpoint(tmp_path, 1, last=100)
    gate = threading.Barrier(8)

    def save(number: int) -> None:
        gate.wait()
        write(checkpoint, str(number))

    threads = [threading.Thread(target=save, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path.read_text() for path in tmp_path.rglob("state")) == [str(number) for number in range(8)]


def test_it_is_a_path_for_its_owner_alone(tmp_path: Path):
    checkpoint = Checkpoint(tmp_path / "root", 2)
    assert Path(checkpoint) == tmp_path / "root" / "2"
    assert stat.S_IMODE(os.stat(checkpoint).st_mode) == 0o700


def test_an_objective_with_checkpoints_runs_without_a_pool():
    seen = []

    def objective(trial: optuna.Trial) -> float:
        checkpoint = vrampool.checkpoint(trial)
        assert checkpoint.latest is None
        write(checkpoint, str(trial.number))
        seen.append(Path(checkpoint))
        return float(read(checkpoint) or "nan")

    study = optuna.create_study()
    study.optimize(objective, 2)
    assert [trial.value for trial in study.trials] == [0.0, 1.0]
    assert seen[0] != seen[1]


def test_to_keep_none_at_all_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="at least 1"):
        vrampool.checkpoint(None, last=0)


# ---- the folder of a pool --------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(load_settings({"state_dir": tmp_path, "pool": "mine"}, env={}))


def test_it_lies_in_the_state_directory_or_where_the_settings_say(tmp_path: Path):
    env = {"VRAMPOOL_CHECKPOINT_DIR": str(tmp_path / "shared")}
    assert (
        CheckpointFolder(load_settings({"state_dir": tmp_path}, env={})).path == tmp_path / "checkpoints" / "vrampool"
    )
    assert CheckpointFolder(load_settings({"state_dir": tmp_path}, env=env)).path == tmp_path / "shared" / "vrampool"


def test_a_root_that_ended_leaves_nothing_and_others_their_own(folder: CheckpointFolder):
    for root in (1, 2):
        write(Checkpoint(folder.of_root("abc", root), 1), "x")
    folder.remove_root("abc", 1)
    assert not folder.of_root("abc", 1).exists() and folder.of_root("abc", 2).exists()
    folder.remove_root("abc", 2)
    assert folder.submissions() == []
    folder.remove_root("abc", 2)  # again, by another worker


def test_what_is_to_be_kept_stays(folder: CheckpointFolder):
    write(Checkpoint(folder.of_root("abc", 1), 1, keep=True), "precious")
    write(Checkpoint(folder.of_root("abc", 2), 1), "x")
    folder.remove_root("abc", 1)
    folder.remove_submission("abc")
    assert read(Checkpoint(folder.of_root("abc", 1), 1)) == "precious"
    assert not folder.of_root("abc", 2).exists()


@pytest.mark.parametrize("name", ["..", "../../etc", "a/b", "", ".", "a b", "é"])
def test_an_id_that_would_lead_elsewhere_is_refused(folder: CheckpointFolder, name: str):
    """Ids come from the database, where others may write."""
    with pytest.raises(ValueError, match="no id"):
        folder.remove_root(name, 0)


def test_a_link_is_removed_and_what_it_leads_to_stays(folder: CheckpointFolder, tmp_path: Path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    write(Checkpoint(folder.of_root("abc", 1), 1), "x")
    (folder.of_root("abc", 1) / "1" / "link").symlink_to(precious)
    (folder.of_root("abc", 1).parent / "2").symlink_to(precious)
    folder.remove_submission("abc")
    assert (precious / "file").exists()
