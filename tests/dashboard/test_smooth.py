"""The page stays smooth: 8 devices with 64 trials that come and go, and nothing keeps its main thread for 50 ms.

The browser's own long-task observer measures by the clock, so a machine that is busy with other tests makes any task
long. Which tasks were ours to answer for tells the browser's trace: it knows the processor time of each.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from support.made_up_pool import MadeUpPool
from support.waiting import until

LIMIT_MS = 50
OBSERVE = """window.longTasks = [];
new PerformanceObserver((list) => { for (const task of list.getEntries()) longTasks.push(Math.round(task.duration)); })
  .observe({ type: "longtask" });"""


@dataclass
class Tasks:
    """Tasks of the page's main thread. Milliseconds."""

    count: int
    longest_ms: float  #: by the processor's time
    observed: list[int]  #: tasks over 50 ms by the clock, as the browser's observer saw them
    guilty: list[float]  #: those of them that used so much of the processor


class Trace:
    """The browser's trace of what its main threads do."""

    def __init__(self, browser: Any) -> None:
        self._session = browser.new_browser_cdp_session()
        self._events: list[dict[str, Any]] = []
        self._complete = False
        self._session.on("Tracing.dataCollected", lambda told: self._events.extend(told["value"]))
        self._session.on("Tracing.tracingComplete", lambda _told: setattr(self, "_complete", True))

    def start(self) -> None:
        config = {"includedCategories": ["toplevel"], "excludedCategories": ["*"]}
        self._session.send("Tracing.start", {"transferMode": "ReportEvents", "traceConfig": config})

    def stop(self, page: Any) -> list[dict[str, Any]]:
        """Return the tasks of the busiest page's main thread."""
        self._session.send("Tracing.end")
        until(lambda: (page.evaluate("1"), self._complete)[1], what="the trace", timeout_s=60)
        mains = {(e["pid"], e["tid"]) for e in self._events if e.get("args", {}).get("name") == "CrRendererMain"}
        tasks: dict[tuple[int, int], list[dict[str, Any]]] = {main: [] for main in mains}
        for event in self._events:
            main = (event.get("pid"), event.get("tid"))
            if main in tasks and event["name"].endswith("RunTask") and "tdur" in event:
                tasks[main].append(event)
        return max(tasks.values(), key=lambda found: sum(task["tdur"] for task in found))


def watch(browser: Any, page: Any, seconds: float) -> Tasks:
    """Let the page run while somebody moves the pointer over it, and return what its main thread did."""
    charts = page.locator("#cards .u-over")
    boxes = [charts.nth(place).bounding_box() for place in range(2)]
    page.evaluate(OBSERVE)
    trace = Trace(browser)
    trace.start()
    start = page.evaluate("performance.now()")
    step = 0
    while page.evaluate("performance.now()") < start + seconds * 1000:
        box = boxes[step // 40 % 2]
        page.mouse.move(box["x"] + box["width"] * (step % 40) / 40, box["y"] + box["height"] * 0.8)
        page.wait_for_timeout(100)
        step += 1
    observed = page.evaluate("longTasks")
    tasks = trace.stop(page)
    used = [task["tdur"] / 1000 for task in tasks]
    return Tasks(len(tasks), max(used), observed, [ms for ms in used if ms >= LIMIT_MS])


def smooth(serve_, open_page_, browser, seconds: float) -> Tasks:
    served = serve_(MadeUpPool(devices=8, slots=8, past_s=320))
    page = open_page_(served.url, viewport={"width": 1920, "height": 1200})
    # Charts that are not to be seen are not drawn: walk over the page once, so that all are there.
    for part in ("#studies", "#devices"):
        page.locator(part).scroll_into_view_if_needed()
    until(lambda: page.locator("#cards .plot canvas").count() >= 8, what="the devices' charts", timeout_s=40)
    before = page.evaluate("document.querySelector('#cards .plot').plot.rows.at(-1)[0]")
    tasks = watch(browser, page, seconds)
    after = page.evaluate("document.querySelector('#cards .plot').plot.rows.at(-1)[0]")
    assert after - before > seconds * 0.6, "the curves moved meanwhile"
    assert page.locator("#cards .trials tbody tr").count() > 40
    return tasks


@pytest.mark.slow
def test_for_some_seconds_no_task_takes_long(serve, open_page, browser):
    """The short version: other tests run beside it and slow the processor down, so it allows twice as much."""
    tasks = smooth(serve, open_page, browser, 4)
    assert tasks.count > 100, "the trace saw the page at work"
    assert tasks.longest_ms < 2 * LIMIT_MS


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_for_a_minute_no_task_takes_50_ms(serve, open_page, browser, artifacts):
    tasks = smooth(serve, open_page, browser, 60)
    (artifacts / "smooth.json").write_text(json.dumps(vars(tasks)))
    print(tasks)
    assert tasks.guilty == []
