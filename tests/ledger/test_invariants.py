"""Whatever happens in whatever order: the ledger never gives away what is not there, and gets everything back."""

from __future__ import annotations

from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from support.paper_card import PaperCard

from vrampool.units import GIB, MIB
from vrampool_worker.ledger import Earmark

amounts = st.integers(1, 64).map(lambda step: step * 128 * MIB)
shares = st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0])


class Card(RuleBasedStateMachine):
    """Trials that start, grow, shrink and end as they like, on a card that a stranger may share."""

    running = Bundle("running")
    ended = Bundle("ended")

    @initialize(
        budget=st.sampled_from([20 * GIB, 24 * GIB]), reserved=st.sampled_from([0, 512 * MIB]), tells=st.booleans()
    )
    def begin(self, budget, reserved, tells):
        self.card = PaperCard(24 * GIB, budget, give_back_s=30.0)
        self.card.driver_reserved_bytes = reserved
        self.card.tells = tells
        self.serial = 0
        self.leases = {}
        self.alone = set()
        self.unmeasured = set()
        self.strangers_came = False
        self.reports_stayed_away = False
        self.late_s = 0
        self.left_bytes = 0
        self.awaited = {}
        self.card.look()

    # -- trials --------------------------------------------------------------------------------------------------

    @rule(target=running, request=amounts, measured=st.booleans(), started=st.booleans())
    def start(self, request, measured, started):
        return self._start(request, measured, started)

    @rule(target=running, measured=st.booleans())
    def start_alone(self, measured):
        idle = not self.leases
        name = self._start(None, measured, True)
        assert idle or name == multiple()
        return name

    def _start(self, request, measured, started):
        card = self.card
        free_bytes = card.free_bytes
        self.serial += 1
        name = f"t{self.serial}"
        decision = card.ledger.grant(name, request, label=name, now_s=card.now_s)
        assert decision.reason
        assert not decision.granted or decision.lease_bytes <= free_bytes
        if not decision.granted:
            return multiple()
        assert not self.alone, "nothing starts beside one that runs alone"
        self.leases[name] = decision.lease_bytes
        if request is None:
            self.alone.add(name)
        if not measured:
            self.unmeasured.add(name)
        card.holds[name], card.figures[name] = 0, 0 if measured else None
        if started:
            card.ledger.confirm_started(name)
        return name

    @rule(name=running, share=shares, late=st.booleans(), seconds=st.sampled_from([0, 0.1, 0.5]))
    def use(self, name, share, late, seconds):
        """Hold a part of the lease, as the cap has it; the report of it may come later."""
        self.card.ledger.confirm_started(name)
        self.card.holds[name] = int(self.leases[name] * share)
        if not late:
            self._report(name)
        self.time_passes(seconds)

    @rule(name=running)
    def report(self, name):
        self._report(name)

    def _report(self, name):
        if name not in self.unmeasured:
            self.card.figures[name] = self.card.holds[name]

    @rule(name=running)
    def first_report(self, name):
        decision = self.card.ledger.report_first(name, self.card.holds[name] or None, self.card.now_s)
        assert decision.lease_bytes >= min(self.card.holds[name], self.leases[name])
        if decision.granted:
            self.alone.discard(name)
        self.leases[name] = decision.lease_bytes

    @rule(name=running, share=shares)
    def shrink(self, name, share):
        assume(name not in self.alone)
        self._report(name)
        known = self.card.figures[name]
        decision = self.card.ledger.shrink(name, int(self.leases[name] * share), self.card.now_s, measured_bytes=known)
        assert (known or 0) <= decision.lease_bytes <= self.leases[name]
        self.leases[name] = decision.lease_bytes
        self.card.holds[name] = min(self.card.holds[name], decision.lease_bytes)  # what the lower cap enforces

    @rule(name=running, amount=amounts)
    def grow(self, name, amount):
        free_bytes = self.card.ledger.snapshot(self.card.now_s).free_bytes
        before_bytes = self.leases[name]
        decision = self.card.ledger.grow(name, amount, self.card.now_s)
        assert decision.lease_bytes >= before_bytes
        others_blocked = self.card.ledger.state[0] != "ready" or len(self.alone) > 0
        held_bytes = max(self.card.ledger.measured(name) or 0, before_bytes) - before_bytes
        assert others_blocked or decision.lease_bytes - before_bytes <= free_bytes + held_bytes
        self.leases[name] = decision.lease_bytes

    @rule(target=ended, name=consumes(running), left=shares)
    def end(self, name, left):
        self.card.end(name, leaves_bytes=int(self.card.holds[name] * left))
        self.alone.discard(name)
        self.awaited[name] = self.card.now_s
        return name

    @rule(name=ended, seconds=st.sampled_from([0, 0.5, 31]))
    def memory_comes_back(self, name, seconds):
        self.time_passes(seconds)
        self.card.holds[name] = 0

    def _look(self, seconds):
        """Read the card after a while, and settle what can be settled, as a worker does with every reading."""
        self.card.pass_time(seconds, every_s=seconds)
        for name, ended_s in list(self.awaited.items()):
            release = self.card.ledger.settle(name, self.card.reading(), self.card.now_s)
            if release is None:
                assert self.card.now_s - ended_s < 30
                continue
            assert release.reason
            del self.leases[name], self.awaited[name]
            self.left_bytes += self.card.holds[name]
            if self.card.tells and self.card.now_s - ended_s < 30 and not self.strangers_came and not self.unmeasured:
                late = (max(0, figure - self.card.holds[other]) for other, figure in self.card.figures.items())
                assert self.card.holds[name] <= 64 * MIB + sum(late), "a lease came back before its memory did"

    # -- the world -----------------------------------------------------------------------------------------------

    @rule(amount=st.integers(0, 24).map(lambda step: step * GIB))
    def stranger(self, amount):
        room_bytes = self.card.total_bytes - self.card.driver_reserved_bytes - sum(self.card.holds.values())
        self.card.strangers_bytes = max(0, min(amount, room_bytes))
        self.strangers_came = True

    @rule(seconds=st.sampled_from([0.1, 0.5, 3, 70]))
    def time_passes(self, seconds):
        late = any(figure not in (None, self.card.holds[name]) for name, figure in self.card.figures.items())
        self.late_s = self.late_s + seconds if late else 0
        self.reports_stayed_away |= self.late_s > 1.5
        step_s = 0.5 if seconds < 10 else 5
        while seconds > 0:
            self._look(min(step_s, seconds))
            seconds -= step_s

    @rule(request=st.one_of(st.none(), amounts), kept=st.booleans())
    def earmark(self, request, kept):
        self.card.ledger.keep_for(Earmark("sub1-31", request, "t31") if kept else None)
        offer = self.card.ledger.offer(self.card.now_s)
        assert offer.room_bytes <= offer.free_bytes and (kept or offer.room_bytes == offer.free_bytes)

    @rule(act=st.sampled_from(["pause", "drain", "blind", "quarantine"]), request=amounts)
    def administer(self, act, request):
        """Nothing starts on a device that is stopped; in the end it is resumed, or the rest would be dull."""
        getattr(self.card.ledger, act)(*(("x", self.card.now_s) if act in ("blind", "quarantine") else ("x",)))
        assert self._start(request, True, True) == multiple()
        self.card.ledger.resume()
        self.card.look()

    # -- always --------------------------------------------------------------------------------------------------

    @invariant()
    def leases_never_exceed_the_budget(self):
        assert sum(self.leases.values()) <= self.card.ledger.budget_bytes

    @invariant()
    def the_books_say_what_was_decided(self):
        shown = {lease.lease_id: lease.lease_bytes for lease in self.card.ledger.snapshot(self.card.now_s).leases}
        assert shown == self.leases

    @invariant()
    def an_offer_is_never_more_than_what_was_physically_free(self):
        reading = self.card.ledger._accounts.reading
        if reading.used_bytes is not None:
            room_bytes = self.card.ledger.budget_bytes - self.card.driver_reserved_bytes - reading.used_bytes
            assert self.card.free_bytes <= max(0, room_bytes)

    @invariant()
    def an_offer_leaves_every_trial_its_lease(self):
        assert self.card.free_bytes <= self.card.ledger.budget_bytes - sum(self.leases.values())

    @invariant()
    def no_stranger_is_made_up(self):
        """Only what dead trials left behind is believed to be others'.

        Not so where reports stayed away for long, nor where a trial that nobody measures has ever grown: from outside
        that looks the same as memory of a dead one which does not come back.
        """
        if not self.strangers_came and not self.reports_stayed_away and not self.unmeasured:
            assert self.card.ledger.strangers_bytes <= self.left_bytes

    @invariant()
    def everything_is_said_in_a_sentence(self):
        for request in (None, GIB, 30 * GIB):
            assert self.card.ledger.explain(request, self.card.now_s)

    def teardown(self):
        """Everything comes back: with all trials gone and all memory back, the whole budget is free again."""
        if not hasattr(self, "card"):
            return
        card = self.card
        for name in list(card.figures):
            self.end(name, 0)
        for name in card.holds:
            card.holds[name] = 0
        card.strangers_bytes = 0
        card.ledger.resume()
        self._look(0.5)
        assert not self.leases, "a lease was never given back"
        card.pass_time(61, every_s=30)
        assert card.free_bytes == card.ledger.budget_bytes - (card.driver_reserved_bytes if card.tells else 0)
        assert card.ledger.offer(card.now_s).idle


TestInvariants = Card.TestCase
TestInvariants.settings = settings(max_examples=400, stateful_step_count=50, deadline=None)
