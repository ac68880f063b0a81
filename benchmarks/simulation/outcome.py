"""What is simulated, and what was seen."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Size:
    """What is simulated."""

    devices: int = 100
    trials: int = 1000  #: to run
    past: int = 0  #: trials that the study has already, of the same submission
    lasts_s: float = 60.0  #: mean of a log-normal distribution
    slots: int = 1  #: trials at once on a device
    sampler: str = "random"
    requests: str = "declared"  #: or "learned": nothing is declared, peaks follow from parameters
    message_s: float = 0.0002  #: how long a message and its answer travel
    seed: int = 1

    @property
    def wanted_per_s(self) -> float:
        """Trials a second that the devices could run if there was always one waiting."""
        return self.devices * self.slots / self.lasts_s


@dataclass(frozen=True)
class Turn:
    """One turn of the coordinator."""

    at_s: float  #: simulated, its start
    took_s: float  #: simulated
    cpu_s: float
    trials: int  #: in the study at its start
    created: int
    woken: bool  #: somebody had said that something changed; else it looked because it looks every second


@dataclass
class Outcome:
    """What was seen."""

    size: Size
    elapsed_s: float = 0.0  #: simulated, from the first turn to the last end
    ended: int = 0
    turns: list[Turn] = field(default_factory=list)
    ran: list[tuple[float, float]] = field(default_factory=list)  #: start and end of trials, simulated, by their start
    trips: dict[str, int] = field(default_factory=dict)  #: round trips by role
    bytes: dict[str, int] = field(default_factory=dict)  #: to and from the server by role
    hints: int = 0  #: calls to workers, and news to the coordinator
    asked: list[float] = field(default_factory=list)  #: when workers asked for a trial, simulated
    calls_again: int = 0  #: of the coordinator, to workers other than those it had called before
    server_s: float = 0.0  #: what the server worked for the pool, listeners included
    server_cpu_s: float = 0.0  #: its CPU time meanwhile by INFO, for whatever it was
    ooms: int = 0  #: attempts that needed more than they were given; each was made again
    fits: int = 0  #: of the model that learns requests, in a thread of its own
    fits_cpu_s: float = 0.0

    @property
    def cpu_s(self) -> float:
        """CPU time of the coordinator."""
        return sum(turn.cpu_s for turn in self.turns)

    @property
    def steady_turns(self) -> list[Turn]:
        """Turns for which somebody had called, once every device had been given trials."""
        return [turn for turn in self.turns if turn.woken and turn.at_s >= self.fill_s]

    @property
    def cpu_per_trial_s(self) -> float:
        """CPU time of the coordinator for each trial that it makes in those turns."""
        turns = self.steady_turns
        return sum(turn.cpu_s for turn in turns) / max(1, sum(turn.created for turn in turns))

    @property
    def first_look_s(self) -> float:
        """CPU time of the first look, which reads all trials that the study has."""
        return self.turns[0].cpu_s

    @property
    def idle_look_s(self) -> float:
        """CPU time of a look for which nobody had called; 0 where there was none."""
        looks = [turn.cpu_s for turn in self.turns if not turn.woken]
        return sum(looks) / len(looks) if looks else 0.0

    @property
    def _steady_s(self) -> tuple[float, float]:
        """From when every device has been given trials until there is none left to begin."""
        starts = [start_s for start_s, _ in self.ran]
        filled = min(self.size.devices * self.size.slots, len(starts) // 2)
        return starts[filled - 1], starts[-1]

    @property
    def questions(self) -> float:
        """Questions of workers for each trial that began, in the same while."""
        from_s, to_s = self._steady_s
        began = sum(from_s < start_s <= to_s for start_s, _ in self.ran)
        return sum(from_s < asked_s <= to_s for asked_s in self.asked) / max(1, began)

    @property
    def fill_questions(self) -> float:
        """Questions of workers for each trial that began before that: those that find nothing look every 2 s."""
        filled_s = self.fill_s
        return sum(asked_s <= filled_s for asked_s in self.asked) / sum(start_s <= filled_s for start_s, _ in self.ran)

    @property
    def per_s(self) -> float:
        """Trials that began each second, while devices had had their first and there were more to begin."""
        from_s, to_s = self._steady_s
        return sum(from_s < start_s <= to_s for start_s, _ in self.ran) / (to_s - from_s)

    @property
    def busy(self) -> float:
        """Share of the devices' time in which they ran trials, in the same while."""
        from_s, to_s = self._steady_s
        used_s = sum(max(0.0, min(end_s, to_s) - max(start_s, from_s)) for start_s, end_s in self.ran)
        return used_s / (self.size.devices * self.size.slots * (to_s - from_s))

    @property
    def fill_s(self) -> float:
        """How long it took until every device had been given trials."""
        return self._steady_s[0]

    @property
    def longest_turn_s(self) -> float:
        return max(turn.took_s for turn in self.turns)
