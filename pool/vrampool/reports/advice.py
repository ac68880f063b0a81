"""What to change: each piece of advice where its sign is seen in the attempts' facts, with the evidence. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from vrampool.memory.explaining import Driver, Record
from vrampool.messages import EndKind, Verdict
from vrampool.units import MIB, format_bytes
from vrampool.visualization.attempts import Attempt, StudyAttempts
from vrampool.visualization.measures import NOTABLE_RESIDUE_BYTES, startup_tax, throughput

#: Words in a parameter's name that say that it sets the size of activations.
_ACTIVATIONS = ("batch", "bs", "seq", "len", "context", "resolution", "image", "img", "crop", "tokens")
#: Of what torch reserved, this part unused at the peak is a gap worth closing; the share of attempts that show it.
_GAP = 0.3
_GAP_BYTES = 256 * MIB
_OFTEN = 0.2


@dataclass(frozen=True)
class Advice:
    """One thing to change."""

    title: str  #: what was seen, in some words
    evidence: str  #: the numbers behind it
    action: str  #: what to do
    weight: float = 1.0  #: how much it matters, for the order: about the part of memory or time that it is about


def advise(study: StudyAttempts, drivers: Sequence[Driver] = (), record: Record | None = None) -> list[Advice]:
    """Return what to change, what matters most first; empty where nothing stands out.

    Args:
        study: Its attempts.
        drivers: What drives their memory.
        record: How well requests did, as `vrampool explain` tells it; None: nothing is said of that.
    """
    found = [advice for rule in _RULES for advice in rule(study)]
    found += _activations(study, drivers)
    found += _reserved(study, record) if record is not None else ()
    return sorted(found, key=lambda advice: -advice.weight)


# ---- memory of the trials ------------------------------------------------------------------------------


def _gap(study: StudyAttempts) -> Iterator[Advice]:
    rows = [(a, *pair) for a in study.measured if (pair := _torch(a)) is not None]
    wide = [(a, reserved, used) for a, reserved, used in rows if reserved - used >= max(_GAP_BYTES, _GAP * reserved)]
    if not rows or len(wide) < max(2, _OFTEN * len(rows)):
        return
    lost = median(1 - used / reserved for _, reserved, used in wide)
    worst = max(wide, key=lambda item: item[1] - item[2])
    yield Advice(
        "PyTorch reserves much more than it uses",
        f"in {len(wide)} of {len(rows)} attempts; there {lost:.0%} of the reserved memory was never allocated at the "
        f"peak (trial {worst[0].number}: {format_bytes(worst[1])} reserved, {format_bytes(worst[2])} allocated)",
        "The allocator's cache is broken into pieces: keep input shapes the same from step to step (pad, bucket, drop "
        "the last batch). expandable_segments is on unless your PYTORCH_ALLOC_CONF turns it off.",
        lost,
    )


def _torch(attempt: Attempt) -> tuple[int, int] | None:
    facts = attempt.facts
    if facts is None or not facts.max_torch_reserved_bytes or facts.max_allocated_bytes is None:
        return None
    return facts.max_torch_reserved_bytes, facts.max_allocated_bytes


def _activations(study: StudyAttempts, drivers: Sequence[Driver]) -> Iterator[Advice]:
    strong = [
        driver
        for driver in drivers
        if driver.direction == "grows" and driver.factor >= 2 and driver.share >= 0.2 and _sets_activations(driver.name)
    ]
    if not strong:
        return
    ooms = [a for a in study.attempts if a.out_of_memory]
    driver = strong[0]
    evidence = (
        f"{driver.name} alone makes the memory {driver.factor:.1f} times as large from its low to its high values"
    )
    if ooms:
        evidence += f", and {len(ooms)} attempts ran out of memory"
    yield Advice(
        f"Activations dominate: memory grows with {driver.name}",
        evidence,
        "Train large batches in parts with gradient accumulation (vrampool.training.effective_batch), in half "
        "precision (vrampool.training.mixed_precision), or with checkpointing of activations; "
        "the results of the search stay comparable.",
        driver.share + (0.5 if ooms else 0.0),
    )


def _sets_activations(name: str) -> bool:
    words = name.lower().replace("-", "_").split("_")
    return any(sign in words or (len(sign) > 3 and sign in name.lower()) for sign in _ACTIVATIONS)


def _alloc_retries(study: StudyAttempts) -> Iterator[Advice]:
    tight = [
        a for a in study.measured if a.facts is not None and a.facts.num_alloc_retries and a.end == EndKind.COMPLETE
    ]
    if len(tight) < max(2, 0.1 * len(study.measured)):
        return
    yield Advice(
        "Trials ran at the edge of their lease",
        f"in {len(tight)} attempts that completed, PyTorch emptied its cache and tried again before it got memory, "
        "which stalls the card each time",
        "Ask for more with vram=, or leave it at 'auto': such peaks count as lower bounds and later requests grow.",
        0.3,
    )


def _out_of_memory(study: StudyAttempts) -> Iterator[Advice]:
    verdicts = Counter(a.verdict or "unknown" for a in study.attempts if a.end == EndKind.OOM)
    total = len(study.attempts)
    victims = verdicts[Verdict.VICTIM]
    if victims:
        yield Advice(
            "Others took the memory of trials",
            f"{victims} of {total} attempts ran out of memory below their lease: another program used the card",
            "Keep the card for the pool, or give the pool less of it with --budget: then there is room for others.",
            0.4 + victims / total,
        )
    if verdicts[Verdict.HOST]:
        yield Advice(
            "Host memory ran out",
            f"{verdicts[Verdict.HOST]} attempts ended because the host had no memory left, not the device",
            "Fewer workers in data loaders, less kept in memory, or fewer trials at once on this host (--max-trials).",
            0.5 + verdicts[Verdict.HOST] / total,
        )
    culprits = verdicts[Verdict.CULPRIT] + verdicts[Verdict.UNKNOWN]
    declared = [a for a in study.attempts if _is_declared(a)]
    if culprits >= max(3, 0.1 * total) and len(declared) > 0.5 * total:
        yield Advice(
            "Requests were too small",
            f"{culprits} of {total} attempts needed more than their lease and ran again with more",
            "Leave vram at 'auto', which learns from what was measured, or declare more.",
            0.3 + culprits / total,
        )
    infeasible = sum(a.end == EndKind.INFEASIBLE for a in study.attempts)
    if infeasible >= max(2, 0.05 * total):
        yield Advice(
            "Part of the search space fits no device",
            f"{infeasible} of {total} trials needed more than the largest budget of the pool",
            "Narrow the space to what fits, or make such trials smaller: accumulation, half precision, offloading "
            "(vrampool.training), or add a larger device.",
            0.2 + infeasible / total,
        )


def _too_generous(study: StudyAttempts) -> Iterator[Advice]:
    rows = [a for a in study.measured if _is_declared(a) and a.end == EndKind.COMPLETE]
    if len(rows) < 5:
        return
    used = median((a.memory.peak_bytes or 0) / (a.memory.request_bytes or 1) for a in rows)
    if used > 0.5:
        return
    largest = max(a.memory.peak_bytes or 0 for a in rows)
    yield Advice(
        "Trials asked for more than they use",
        f"half of {len(rows)} trials held {used:.0%} or less of what was asked for; the largest peak was "
        f"{format_bytes(largest)}",
        "Leave vram at 'auto': requests then follow what is measured, and more trials fit beside each other.",
        1 - used,
    )


def _reserved(study: StudyAttempts, record: Record) -> Iterator[Advice]:
    """Much was reserved and not used, by the figure of `vrampool explain`; on the CPU also what was held in vain."""
    if record.ahead_bytes is not None:
        rows = [a for a in study.measured if a.memory.ahead]
        yield Advice(
            "Processes held modules that the objective does not need",
            f"{len(rows)} of {len(study.measured)} attempts ran where modules had been imported ahead, and held "
            f"{format_bytes(record.ahead_bytes)} more than the others; requests follow the largest",
            "Leave them out: start the pool with --preload '' (or with what the objective does import).",
            0.6,
        )
    over, count = record.over_reserved, len(study.measured)
    if over is None or over < 1 or count < 10 or any(True for rule in (_too_generous, _unlearned) for _ in rule(study)):
        return
    yield Advice(
        "Much more was reserved than was held",
        f"over their time {1 + over:.2f} times what {count} attempts held was reserved for them",
        "Requests are generous while little is known: more trials make them closer (vrampool explain shows how far off "
        "they are), and so does vram= where you know better, with bounds such as 1GiB..4GiB.",
        over / (1 + over) * 0.5,
    )


def _is_declared(attempt: Attempt) -> bool:
    """True when the user has said what the trial needs (see `memory.requests`)."""
    return bool(attempt.memory.request_bytes) and "declared" in attempt.memory.request_reason


def _unlearned(study: StudyAttempts) -> Iterator[Advice]:
    """Requests follow the largest peak only: nothing is learned from parameters."""
    rows = [a for a in study.measured if a.memory.request_bytes and a.memory.request_reason.startswith("the largest")]
    if len(rows) < 20 or any(a.memory.predicted_bytes for a in study.attempts):
        return
    used = median((a.memory.peak_bytes or 0) / (a.memory.request_bytes or 1) for a in rows)
    if used > 0.7:
        return
    yield Advice(
        "Nothing was learned from the parameters",
        f"each of {len(rows)} trials asked for the largest peak before it, and half held {used:.0%} of that or less",
        "Install scikit-learn where the coordinator runs (pip install 'vrampool[learn]'): then requests follow what "
        "the parameters of a trial make it need.",
        1 - used,
    )


def _residue(study: StudyAttempts) -> Iterator[Advice]:
    left = [a for a in study.attempts if (a.residue_bytes or 0) >= NOTABLE_RESIDUE_BYTES]
    if not left:
        return
    worst = max(left, key=lambda attempt: attempt.residue_bytes or 0)
    yield Advice(
        "Memory did not come back",
        f"after {len(left)} of {len(study.ended)} attempts; trial {worst.number} left "
        f"{format_bytes(worst.residue_bytes)} behind",
        "Something that a trial started lives on, or another program began meanwhile: `vrampool status` names what "
        "holds memory; look for daemons, servers and data-loader processes that the objective starts.",
        0.6,
    )


# ---- time ----------------------------------------------------------------------------------------------


def _startup(study: StudyAttempts) -> Iterator[Advice]:
    tax = startup_tax(study)
    if len(tax.numbers) < 5 or tax.share < 0.2:
        return
    spawn, hand = tax.median_s("spawn_s"), tax.median_s("handover_s")
    cold = len(tax.numbers) - tax.spares
    evidence = f"{tax.share:.0%} of the attempts' time; median start {spawn:.2f} s, hand-over {hand:.2f} s"
    if spawn > hand:
        evidence += f"; {cold} of {len(tax.numbers)} found no process waiting"
        action = "Start more processes ahead (--spares 2), and let them import what your objective imports (--preload)."
    else:
        action = (
            "The time between hand-over and the objective's first line goes into its imports: preload them "
            "(--preload), or import in the function what only some trials need."
        )
    yield Advice(
        "Start-up is a large part of the time", evidence, f"{action} Longer trials pay it less often.", tax.share
    )


def _idle_memory(study: StudyAttempts) -> Iterator[Advice]:
    """Few at once, although the memory would have held more."""
    rows = [a for a in study.measured if a.facts is not None and a.facts.budget_bytes]
    if len(rows) < 8:
        return
    budget = max(a.facts.budget_bytes or 0 for a in rows if a.facts is not None)
    peak = median(a.memory.peak_bytes or 0 for a in rows)
    per_device = max(throughput(study).running) / max(1, len(study.devices))
    room = budget / max(peak, 1)
    alone = sum(not a.memory.request_bytes for a in rows)
    if room < 4 or per_device > room / 2 or alone < 0.5 * len(rows):
        return
    yield Advice(
        "The devices were used by few trials at once",
        f"at most {per_device:.1f} at once on a device, which would hold about {room:.0f} trials of "
        f"{format_bytes(int(peak))}; {alone} of {len(rows)} attempts had a device to themselves",
        "Call trial.report() once a trial has been through a whole round, or declare vram=: until then a trial about "
        "which nothing is known keeps its device for itself.",
        0.5,
    )


# ---- what the trials said themselves -------------------------------------------------------------------


def _hints(study: StudyAttempts) -> Iterator[Advice]:
    counts = Counter(hint for a in study.attempts if a.facts is not None for hint in a.facts.hints)
    by_sign: dict[str, list[tuple[str, int]]] = {}
    for hint, count in counts.items():
        by_sign.setdefault(hint.split("(")[0].split(":")[0][:40], []).append((hint, count))
    for rows in by_sign.values():
        hint = max(rows, key=lambda item: item[1])[0]
        seen = sum(count for _, count in rows)
        title, _, action = hint.partition(": ")
        yield Advice(
            _sentence(title.partition(" (")[0]),
            f"seen in {seen} of {len(study.attempts)} attempts",
            _sentence(action or title),
            0.4,
        )


def _failures(study: StudyAttempts) -> Iterator[Advice]:
    texts = Counter(
        a.facts.text.strip().splitlines()[0][:200]
        for a in study.attempts
        if a.facts is not None and a.end == EndKind.FAILED and a.facts.text.strip()
    )
    if not texts:
        return
    text, count = texts.most_common(1)[0]
    if count >= max(3, 0.1 * len(study.attempts)):
        yield Advice(
            "Many trials fail in the same way",
            f"{count} of {len(study.attempts)}: {text}",
            "See the end of one with `vrampool logs`, and prune such parameters in the objective, or mend it.",
            0.3 + count / len(study.attempts),
        )


def _sentence(text: str) -> str:
    return text.strip()[:1].upper() + text.strip()[1:]


_RULES: tuple[Callable[[StudyAttempts], Iterator[Advice]], ...] = (
    _gap,
    _alloc_retries,
    _out_of_memory,
    _too_generous,
    _unlearned,
    _residue,
    _startup,
    _idle_memory,
    _hints,
    _failures,
)
