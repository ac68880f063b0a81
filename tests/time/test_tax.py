"""What a trial costs beside its own run is measured for each, and shown."""

from __future__ import annotations

import pytest
from support.pools import facts_of

from vrampool.cli.look import _tax_words
from vrampool.messages import AttemptFacts


@pytest.mark.parametrize("start_method", [pytest.param("spawn", marks=pytest.mark.slow), "forkserver"])
def test_the_tax_is_in_the_facts_and_shown(make_pool, start_method):
    pool = make_pool(start_method=start_method, preload="json", max_trials=1)
    handle = pool.run(lambda trial: 0.0, 4)
    taxes = [facts_of(trial) for trial in handle.trials]
    for facts in taxes:
        assert facts.handover_s is not None and 0 <= facts.handover_s < 20
        assert facts.exit_s is not None and 0 < facts.exit_s <= (facts.run_s or 0) + 0.001
        assert facts.import_s is not None and facts.context_s is None
        assert (facts.spawn_s == 0.0) == facts.spare
    if start_method == "forkserver":
        assert taxes[-1].forked
    else:
        assert not any(facts.forked for facts in taxes)


def test_why_says_it_in_one_line():
    facts = AttemptFacts(end="complete", spare=True, spawn_s=0.0, import_s=1.314, handover_s=0.0123, exit_s=0.08)
    assert _tax_words(facts) == (
        "start-up: spawned, its process was waiting, imports 1.31 s ahead of it, hand-over 0.012 s, exit 0.08 s"
    )
    facts = AttemptFacts(end="complete", forked=True, spawn_s=0.05, import_s=0.0, handover_s=0.01, context_s=0.3)
    assert _tax_words(facts) == (
        "start-up: forked, waited 0.05 s for its process, hand-over 0.010 s, GPU context 0.30 s"
    )
