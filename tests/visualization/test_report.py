"""`vrampool report`: one file that says where memory and time went, and what to change."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser

import pytest
from matplotlib.image import imread
from rich.console import Console
from support.commands import call
from support.studies import GIB, attempt, recorded_study, study_of

from vrampool.cli.explain import print_model
from vrampool.memory.explaining import Driver
from vrampool.reports.advice import advise
from vrampool.reports.content import make_report
from vrampool.reports.page import write_page
from vrampool.reports.picture import write_picture
from vrampool.storage import open_storage
from vrampool.storage.marks import ATTEMPT
from vrampool.units import MIB, format_bytes
from vrampool.visualization.attempts import read_attempts
from vrampool.visualization.palette import DARK

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Reads a page: its text, its tooltips, what it would fetch; fails where tags do not close."""

    def __init__(self, text):
        super().__init__()
        self.open, self.words, self.fetched, self.tips = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "action", "data") and not value.startswith("#"):
                self.fetched.append(value)
        assert tag not in ("script", "iframe", "object"), tag

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)
            if self.open[-2:] == ["g", "title"]:
                self.tips.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def report():
    releases = [{"number": number, "residue_bytes": 0, "back_s": 0.1} for number in range(12)]
    releases[3]["residue_bytes"] = 300 * MIB
    return make_report(recorded_study("resnet", 12), releases)


@pytest.fixture(scope="module")
def page(report, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "new" / "report.html"
    steps = []
    write_page(report, path, lambda what, part: steps.append(part))
    assert steps == sorted(steps) and steps[-1] == 1.0, "progress only goes on"
    return path.read_text()


def test_the_page_fetches_nothing_and_runs_nothing(page):
    assert Page(page).fetched == []
    assert re.findall(r"url\((?!#)", page) == []
    assert "default-src 'none'" in page


def test_the_page_tells_of_every_attempt_where_it_is_pointed_at_and_in_a_table(page):
    found = Page(page)
    for number in range(12):
        assert any(tip.startswith(f"trial {number}: ") for tip in found.tips), number
    assert "trial 3: out of memory (culprit), asked for 9.0 GiB, leased 9.0 GiB" in " ".join(found.tips)
    assert "All 12 attempts" in found.text
    assert "resnet50" in found.text


def test_the_page_has_every_picture_with_words_for_those_who_do_not_see_it(page):
    labels = re.findall(r'role="img" aria-label="([^"]+)"', page)
    assert [label.partition(".")[0] for label in labels] == [
        "Memory of the devices over time",
        "Asked for and measured",
        "Memory against each parameter",
        "Where memory ran out",
        "Trials per hour",
        "Start-up tax",
    ]


def test_no_colour_of_the_light_theme_is_left_in_the_pictures(page):
    """Each is a variable, which has another value where the reader likes it dark."""
    pictures = " ".join(re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))
    assert [colour for colour in DARK if colour in pictures] == []
    names = set(re.findall(r"var\((--[a-z]+)\)", pictures))
    light, _, dark = page.partition("prefers-color-scheme: dark")
    assert [name for name in names - {"--font"} if f"{name}:" not in light or f"{name}:" not in dark] == []


def test_the_residue_is_told_and_without_a_pool_said_to_be_unknown(report):
    residue = next(tile for tile in report.tiles if tile.name == "residue")
    assert (residue.value, residue.note) == ("300 MiB", "after 1 of 12 ends")
    alone = make_report(recorded_study("resnet", 3), None)
    assert next(tile for tile in alone.tiles if tile.name == "residue").value == "unknown"


def test_the_picture_has_all_sections_under_each_other(report, tmp_path):
    write_picture(report, tmp_path / "report.png")
    pixels = imread(tmp_path / "report.png")
    assert pixels.shape[0] > 2 * pixels.shape[1]


# ---- the command ---------------------------------------------------------------------------------------


def test_the_command_needs_no_pool_that_runs(capsys, tmp_path):
    storage = open_storage(f"sqlite:///{tmp_path / 'study.db'}", create_schema=True)
    import optuna

    study = optuna.create_study(study_name="digits", storage=storage)
    study.add_trials([attempt(number, 2.0, params={"batch": number + 1}) for number in range(6)])
    done = call(capsys, "report", "digits", "-o", tmp_path / "out" / "r.html", "--state-dir", tmp_path)
    assert done.code == 0, done
    assert f"wrote {tmp_path}/out/r.html" in done.out and done.err == "", "quiet where nobody watches"
    assert Page((tmp_path / "out" / "r.html").read_text()).text.count("complete") >= 6
    done = call(capsys, "report", "nothing", "--state-dir", tmp_path)
    assert (done.code, done.err) == (2, "error: there is no study 'nothing'; known: digits\n")
    done = call(capsys, "report", "digits", "-o", "/proc/nobody/r.html", "--state-dir", tmp_path)
    assert done.code == 2 and "cannot write /proc/nobody/r.html" in done.err


def test_without_any_storage_the_command_says_what_to_name(capsys, tmp_path):
    done = call(capsys, "report", "digits", "--state-dir", tmp_path / "none")
    assert done.code == 2 and "name its storage with --storage" in done.err


# ---- what to change ------------------------------------------------------------------------------------


def titles(trials, drivers=(), releases=()):
    return [advice.title for advice in advise(read_attempts(study_of(trials), releases), drivers)]


def test_a_study_in_order_gets_no_advice():
    trials = [
        attempt(number, 60.0, predicted_bytes=2 * GIB, max_torch_reserved_bytes=GIB, max_allocated_bytes=GIB)
        for number in range(10)
    ]
    assert titles(trials) == []


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ("PyTorch reserves much more than it uses", {"max_torch_reserved_bytes": 4 * GIB, "max_allocated_bytes": GIB}),
        ("Trials ran at the edge of their lease", {"num_alloc_retries": 3}),
        ("Others took the memory of trials", {"end": "oom", "verdict": "victim"}),
        ("Host memory ran out", {"end": "oom", "verdict": "host"}),
        ("Requests were too small", {"end": "oom", "verdict": "culprit", "predicted_bytes": None}),
        ("Part of the search space fits no device", {"end": "infeasible"}),
        ("Trials asked for more than they use", {"predicted_bytes": None, "peak_bytes": GIB // 2}),
        (
            "Nothing was learned from the parameters",
            {
                "predicted_bytes": None,
                "peak_bytes": GIB,
                "reason": "the largest peak of 9 trials, 2.4 GiB, and 25 % more",
            },
        ),
        ("Start-up is a large part of the time", {"spawn_s": 40.0, "spare": False}),
        (
            "The devices were used by few trials at once",
            {"request_bytes": None, "predicted_bytes": None, "peak_bytes": GIB, "run_s": 1.0},
        ),
        ("Torch.backends.cudnn.benchmark is on", {"hints": ["torch.backends.cudnn.benchmark is on: leave it off"]}),
        ("Many trials fail in the same way", {"end": "failed", "text": "ValueError: no"}),
    ],
)
def test_each_sign_is_answered_with_advice(words, facts):
    common = {"run_s": 60.0, "predicted_bytes": 2 * GIB}
    trials = [attempt(number * 2.0, **(common | facts)) for number in range(20)]
    assert words in titles(trials)


def test_memory_that_grows_with_the_batch_is_answered_with_accumulation_and_half_precision():
    trials = [attempt(number, 60.0, predicted_bytes=2 * GIB) for number in range(10)]
    drivers = [Driver("batch_size", 6.0, 0.7, "grows"), Driver("width", 5.0, 0.3, "grows")]
    (advice,) = advise(read_attempts(study_of(trials)), drivers)
    assert advice.title == "Activations dominate: memory grows with batch_size"
    assert "effective_batch" in advice.action and "mixed_precision" in advice.action
    assert titles(trials, [Driver("learning_rate", 6.0, 0.9, "grows"), Driver("absolute", 3.0, 0.9, "grows")]) == []


def test_memory_that_stayed_behind_is_told_with_the_worst_trial():
    trials = [attempt(number, 60.0, predicted_bytes=2 * GIB) for number in range(10)]
    releases = [{"number": 4, "residue_bytes": GIB, "back_s": 0.1}]
    (advice,) = advise(read_attempts(study_of(trials), releases))
    assert advice.evidence == "after 1 of 10 attempts; trial 4 left 1.0 GiB behind"


@pytest.mark.parametrize("ahead_s", [4.0, 0.0], ids=["some had modules imported ahead", "none had"])
def test_explain_and_the_report_say_the_same_of_memory_reserved_or_held_in_vain(ahead_s):
    """An objective without torch, on the CPU: a third of its trials ran where torch was imported all the same."""
    common = {"device": "cpu", "request_bytes": 480 * MIB, "predicted_bytes": 60 * MIB, "run_s": 10.0}
    common |= {"lease_bytes": 900 * MIB, "lease_at_end_bytes": 900 * MIB, "reason": "predicted 60 MiB from n"}
    trials = [
        attempt(number * 10.0, **common, import_s=ahead_s if number % 3 == 0 else 0.0,
                peak_bytes=(260 if number % 3 == 0 and ahead_s else 50) * MIB + number * MIB // 4)
        for number in range(12)
    ]  # fmt: skip
    found = make_report(study_of(trials), None)
    over, more = found.explanation.record.over_reserved, found.explanation.record.ahead_bytes
    assert over == pytest.approx(12 * 480 / sum(trial.user_attrs[ATTEMPT]["peak_bytes"] / MIB for trial in trials) - 1)
    tile = next(tile for tile in found.tiles if tile.name == "reserved")
    assert tile.value == f"\u00d7{1 + over:.2f}"
    console = Console(file=io.StringIO(), width=200)
    print_model(found.explanation, console)
    told = console.file.getvalue()
    assert f"Over their time {1 + over:.2f} times what trials held was reserved for them." in told
    advice = {item.title: item for item in found.advice}
    assert f"{1 + over:.2f} times" in advice["Much more was reserved than was held"].evidence
    assert ("Processes held modules that the objective does not need" in advice) is bool(ahead_s) is (more is not None)
    if more is not None:
        assert f"Some held {format_bytes(more)} more than others" in told
        assert format_bytes(more) in advice["Processes held modules that the objective does not need"].evidence
