"""What a trial costs beside its own run is measured for each, and shown."""

from __future__ import annotations

import pytest
from support.pools import facts_of


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
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
