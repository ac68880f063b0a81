"""A pool in a notebook: the example runs, its cards are live and stay, an interrupt leaves the study running."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from support.commands import call
from support.pools import FAST, LivePool
from support.waiting import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
LIMIT_S = 120.0


def html_of(outputs):
    """Return the HTML of an output's cards."""
    return [output["data"]["text/html"] for output in outputs if "text/html" in output.get("data", {})]


@pytest.fixture
def own_pool(monkeypatch, tmp_path, capsys):
    """The pool that `vrampool.Pool()` of a kernel finds or starts; it is ended with the test."""
    settings = {**FAST, "state_dir": tmp_path / "state", "share": 1}
    for name, value in settings.items():
        monkeypatch.setenv(f"VRAMPOOL_{name.upper()}", str(value))
    yield tmp_path / "state"
    assert call(capsys, "down", "--state-dir", tmp_path / "state").code == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_example_runs_and_its_cards_show_the_end(own_pool, tmp_path):
    notebook = nbformat.read(EXAMPLE, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    NotebookClient(notebook, timeout=LIMIT_S, resources={"metadata": {"path": str(tmp_path)}}).execute()
    submitted = next(cell for cell in notebook.cells if "pool.submit(" in cell.source)
    (card,) = html_of(submitted.outputs)
    assert "8 of 8 finished" in card and "done" in card, "the card of an earlier cell shows the end"
    assert "random-features: done, 8/8 finished" in submitted.outputs[-1]["data"]["text/plain"]
    waited = next(cell for cell in notebook.cells if cell.source.startswith("handle.wait()"))
    assert "8 of 8 finished" in html_of(waited.outputs)[0]
    assert "best error" in waited.outputs[-1]["text"]
    pictures = [
        output for cell in notebook.cells for output in cell.get("outputs", []) if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 2
    assert "'done'" in notebook.cells[-2].outputs[-1]["data"]["text/plain"], "found again by its name"


def test_the_saved_example_is_one_that_ran():
    """Who reads it on a web page sees the cards and pictures without running anything."""
    notebook = nbformat.read(EXAMPLE, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert any("8 of 8 finished" in card for cell in code for card in html_of(cell.outputs))
    text = EXAMPLE.read_text()
    assert os.path.expanduser("~") not in text and "/tmp/" not in text, "no path of the machine it ran on"


class Kernel:
    """A kernel of IPython, driven as a notebook does."""

    def __init__(self, cwd):
        self.manager = KernelManager()
        self.manager.kernel_spec.argv[0] = sys.executable
        self.manager.start_kernel(cwd=str(cwd))
        self.connect()

    def connect(self):
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=LIMIT_S)

    def restart(self):
        self.client.stop_channels()
        self.manager.restart_kernel(now=True)
        self.connect()

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def start(self, code):
        return self.client.execute(code, store_history=False)

    def outputs(self, request, *, until_words=None):
        """Return what a request puts out until it is idle, or until some words are in it."""
        found = []
        deadline_s = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline_s:
            message = self.client.get_iopub_msg(timeout=LIMIT_S)
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return found
            found.append(content | {"kind": kind})
            if until_words is not None and until_words in str(content):
                return found
        raise AssertionError(f"no end of {found}")


@pytest.fixture
def kernel(tmp_path):
    made = Kernel(tmp_path)
    yield made
    made.close()


def test_an_interrupt_returns_the_prompt_and_the_study_goes_on_over_a_restart_of_the_kernel(
    pool: LivePool, kernel, tmp_path
):
    begin = f"""
import vrampool
pool = vrampool.Pool(state_dir={str(pool.state_dir)!r})
"""
    submit = f"""
def objective(trial):
    import time
    from pathlib import Path
    while not Path({str(tmp_path / "go")!r}).exists():
        time.sleep(0.01)
    return 0.25
handle = pool.submit(objective, 2, study_name="interrupted", vram="100MiB")
handle.wait()
"""
    request = kernel.start(begin + submit)
    kernel.outputs(request, until_words="2 running")
    kernel.manager.interrupt_kernel()
    rest = kernel.outputs(request)
    assert rest[-1]["kind"] == "error" and rest[-1]["ename"] == "KeyboardInterrupt"
    cards = [content for content in rest if content["kind"] == "update_display_data"]
    assert "Interrupted; the study goes on" in cards[-1]["data"]["text/html"]
    assert "pool.attach" in cards[-1]["data"]["text/plain"]
    progress = pool.pool.attach("interrupted").progress()
    assert (progress.state, progress.running) == ("open", 2)
    kernel.restart()
    request = kernel.start(begin + 'handle = pool.attach("interrupted")\nhandle')
    shown = kernel.outputs(request)
    assert any("2 running" in str(content) for content in shown), shown
    (tmp_path / "go").touch()
    request = kernel.start("print(handle.wait().best_value)")
    assert any(content.get("text") == "0.25\n" for content in kernel.outputs(request))
    until(lambda: pool.pool.attach("interrupted").progress().final, what="its end")


def test_in_a_script_nothing_is_displayed(pool: LivePool, capsys):
    handle = pool.run(lambda trial: 1.0)
    assert capsys.readouterr().out == ""
    handle._ipython_display_()
    assert f"{handle.study_name}: done, 1/1 finished (1 complete), 0 running" in capsys.readouterr().out
    assert "1 of 1 finished" in handle._repr_html_()


def test_a_handle_knows_what_came_back_and_its_pictures_show_it(pool: LivePool):
    from vrampool.visualization import plot_vram_timeline
    from vrampool.visualization.attempts import read_attempts

    handle = pool.run(lambda trial: 1.0)
    pool.idle()
    (attempt,) = read_attempts(handle).attempts
    assert attempt.residue_bytes is not None and attempt.back_s is not None
    assert attempt.facts is not None and attempt.facts.budget_bytes == pool.device().budget_bytes
    assert "ran" in plot_vram_timeline(handle).data[0].text
