"""Who runs under MPS, and whose fault a fault was."""

from __future__ import annotations

import pytest

from vrampool.units import GIB
from vrampool_worker.mps_rules import Ended, Judgement, MpsRules, Sort, sort_of


def rules(mode: str = "on", share: float = 0.8) -> MpsRules:
    return MpsRules(mode, int(80 * GIB * share), 80 * GIB)


def cleared(*objectives: str, mode: str = "on") -> MpsRules:
    made = rules(mode)
    for objective in objectives:
        made.canary_ended(objective, well=True, cap_read_back=True)
        assert made.why_outside(objective, alone=False) == ""
    return made


def ended(name: str, sort: Sort = Sort.OWN, *, objective: str = "a", at_s: float = 0.0) -> Ended:
    return Ended(name, objective, sort, at_s)


@pytest.mark.parametrize(
    ("text", "sort"),
    [
        ("CUDA error: an illegal memory access was encountered", Sort.OWN),
        ("CUDA error: unspecified launch failure", Sort.OWN),
        ("CUDA error: misaligned address", Sort.OWN),
        ("CUDA error: the remote procedural call between the MPS server and the MPS client failed", Sort.SHARED),
        ("CUDA error: MPS client failed to connect to the MPS control daemon or the MPS server", Sort.SHARED),
        ("cudaErrorMpsRpcFailure", Sort.SHARED),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", Sort.REFUSED),
        ("CUDA error: device-side assert triggered", Sort.NONE),  # measured: the neighbour goes on
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, ...)`", Sort.VAGUE),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", Sort.VAGUE),
        ("CUDA error: unknown error", Sort.VAGUE),
        ("CUDA error: invalid argument", Sort.NONE),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", Sort.NONE),
        ("ValueError: lr must be positive", Sort.NONE),
        ("", Sort.NONE),
    ],
)
def test_errors_are_told_apart_by_their_text(text, sort):
    assert sort_of(text, None) is sort


def test_a_crash_without_words_may_be_a_fault():
    assert sort_of("", 6) is Sort.OWN and sort_of("", 11) is Sort.OWN
    assert sort_of("", 9) is Sort.NONE, "SIGKILL is somebody's order"


def test_the_first_trial_of_an_objective_runs_outside():
    made = rules()
    assert made.why_outside("a", alone=False) == "its objective has not run well outside MPS yet"
    made.canary_ended("a", well=False, cap_read_back=True)
    assert made.why_outside("a", alone=False)
    made.canary_ended("a", well=True, cap_read_back=False)
    assert made.why_outside("a", alone=False) == ""
    assert made.why_outside("b", alone=False), "each objective has its own"


def test_a_trial_that_has_the_card_to_itself_gains_nothing():
    assert cleared("a").why_outside("a", alone=True) == "it has the card to itself"


def test_auto_wants_the_cap_read_back_and_room_on_the_card():
    made = rules("auto")
    made.canary_ended("a", well=True, cap_read_back=False)
    assert made.why_outside("a", alone=False)
    made.canary_ended("a", well=True, cap_read_back=True)
    assert made.why_outside("a", alone=False) == ""
    assert rules("auto", 0.85).why_outside("a", alone=False) == (
        "the budget is 85 % of the card; with --mps auto it may be at most 80 %"
    )
    assert rules("on", 0.85).refusal == ""


def test_a_fault_that_harms_nobody_is_the_trials_own():
    judgement = cleared("a", "b").judge([ended("a/1")], {"b/2": "b"})
    assert (judgement.victims, judgement.culprit, judgement.shared) == ((), "a/1", False)


def test_one_that_was_told_of_it_late_is_a_victim_of_the_earlier_fault():
    """It was loading data when the others failed."""
    made = cleared("a", "b")
    made.judge([ended("a/1", at_s=0.0)], {"b/2": "b"})
    judgement = made.judge([ended("b/2", objective="b", at_s=20.0)], {})
    assert (judgement.victims, judgement.culprit, judgement.leaves) == (("b/2",), "a/1", ("a",))
    assert made.why_outside("b", alone=False) == "" and "left MPS" in made.why_outside("a", alone=False)


def test_a_fault_of_its_own_much_later_is_its_own():
    made = cleared("a", "b")
    made.judge([ended("a/1", at_s=0.0)], {"b/2": "b"})
    assert made.judge([ended("b/2", objective="b", at_s=500.0)], {}).culprit == "b/2"


def test_the_one_with_an_error_of_its_own_is_the_culprit():
    made = cleared("a", "b", "c")
    judgement = made.judge([ended("a/1"), ended("b/2", Sort.SHARED, objective="b")], {"c/3": "c"})
    assert judgement == Judgement(
        ("b/2", "c/3"), "a/1", ("a",), (), "a fault of a/1 took down all clients of MPS on this card"
    )
    assert made.why_outside("a", alone=False).startswith("its objective left MPS: a fault of a/1")
    assert made.why_outside("b", alone=False) == ""


def test_one_that_joined_in_the_middle_of_a_fault_is_a_victim_of_it():
    """Seen on a card: its first product failed, in cuBLAS's words, while five others were told of an illegal access."""
    made = cleared("a", "b")
    met = [ended("a/1"), ended("b/1", Sort.VAGUE, objective="b")]
    found = made.judge(met, {})
    assert (found.victims, found.culprit, found.leaves) == (("b/1",), "a/1", ("a",))
    assert made.why_outside("b", alone=False) == ""


def test_a_vague_error_of_one_trial_alone_is_its_own_and_changes_nothing():
    made = cleared("a", "b")
    found = made.judge([ended("a/1", Sort.VAGUE)], {"b/1": "b"})
    assert (found.victims, found.culprit, found.leaves, found.shared) == ((), "a/1", (), False)
    assert made.why_outside("a", alone=False) == ""
    later = made.judge([ended("b/1", Sort.VAGUE, objective="b", at_s=9.0)], {})
    assert later.victims == (), "nobody is excused by it"


def test_several_vague_errors_at_once_are_one_fault_of_somebody():
    made = cleared("a", "b")
    found = made.judge([ended("a/1", Sort.VAGUE), ended("b/1", Sort.VAGUE, objective="b")], {"a/2": "a"})
    assert set(found.victims) == {"a/1", "b/1", "a/2"} and found.culprit is None


def test_where_all_are_told_the_same_each_is_a_suspect_and_all_are_tried_again():
    made = cleared("a", "b", "c")
    judgement = made.judge([ended("a/1"), ended("b/2", objective="b")], {"c/3": "c"})
    assert judgement.victims == ("a/1", "b/2", "c/3") and judgement.culprit is None
    assert judgement.suspects == ("a", "b") and judgement.leaves == ()
    for objective in ("a", "b"):
        assert made.why_outside(objective, alone=False) == "its objective has not run well outside MPS yet"
    assert made.why_outside("c", alone=False) == ""


def test_the_innocent_come_back_and_who_is_twice_under_suspicion_stays_out():
    made = cleared("a", "b", "c")
    made.judge([ended("a/1"), ended("b/2", objective="b")], {})
    for objective in ("a", "b"):  # this time its retry did no harm
        made.canary_ended(objective, well=True, cap_read_back=True)
    judgement = made.judge([ended("a/5"), ended("c/6", objective="c")], {})
    assert judgement.leaves == ("a",) and judgement.suspects == ("c",)


def test_one_objective_alone_is_to_blame_whichever_trial_it_was():
    made = cleared("a")
    judgement = made.judge([ended("a/1"), ended("a/2"), ended("a/3")], {})
    assert judgement.victims == ("a/1", "a/2", "a/3") and judgement.leaves == ("a",)
    made.canary_ended("a", well=True, cap_read_back=True)
    assert "left MPS" in made.why_outside("a", alone=False), "for good"


def test_when_the_daemon_ended_nobody_is_to_blame():
    made = cleared("a", "b")
    judgement = made.judge([ended("a/1", Sort.SHARED), ended("b/2", Sort.SHARED, objective="b")], {})
    assert judgement.victims == ("a/1", "b/2") and judgement.culprit is None
    assert made.why_outside("a", alone=False) == ""


def test_who_came_while_the_server_ended_after_a_fault_is_a_victim_of_it():
    """Seen on a card: four clients met the fault, and two that came in that moment were told that the card is busy."""
    found = rules().judge([ended("a/5", Sort.REFUSED), ended("a/1"), ended("a/2"), ended("a/3", Sort.REFUSED)], {})
    assert set(found.victims) == {"a/1", "a/2", "a/3", "a/5"} and found.culprit is None and found.shared


def test_who_is_not_let_in_is_tried_again_and_nobody_else_is_ended():
    found = rules().judge([ended("a/1", Sort.REFUSED)], {"b/1": "b"})
    assert found.victims == ("a/1",) and found.culprit is None and not found.shared
    assert found.text == "MPS did not let a/1 in"


def test_a_card_that_lets_nobody_in_is_used_without_mps():
    made = rules()
    for at_s in (0.0, 700.0, 800.0):
        made.judge([ended("a/1", Sort.REFUSED, at_s=at_s)], {})
    assert not made.refusal, "two of them within ten minutes"
    found = made.judge([ended("a/1", Sort.REFUSED, at_s=900.0)], {})
    assert found.victims == ("a/1",) and "not used on this card any more" in found.text
    assert made.why_outside("a", alone=False) == "it did not let clients in, 3 times within 10 minutes"


def test_who_came_between_a_fault_and_its_late_victims_is_one_of_them():
    made = rules()
    made.judge([ended("a/1")], {"b/1": "b"})
    found = made.judge([ended("b/1", Sort.SHARED, objective="b", at_s=9.0), ended("c/1", Sort.REFUSED, at_s=9.5)], {})
    assert set(found.victims) == {"b/1", "c/1"} and found.culprit == "a/1"
