"""The page in a real browser, on a made-up pool."""

from __future__ import annotations

import re

import pytest
from support.made_up_pool import MadeUpPool
from support.waiting import until

from vrampool.queueing import MpsState

LEFT_TOP = "article.card .plot"


def holds(page, condition: str) -> None:
    """Wait until an expression is true in the page. Playwright's own way would need `eval`, which the page forbids."""
    until(lambda: page.evaluate(condition), what=condition, timeout_s=30)


def ready(page):
    page.wait_for_selector("#cards .trials tbody tr")
    page.wait_for_selector("#link[data-state=live]")
    page.wait_for_selector("#cards .plot canvas")
    return page


@pytest.fixture(scope="module")
def shown(serve_all, open_for_all):
    """The page of three devices, for tests that only look."""
    feed = MadeUpPool(devices=3, slots=5, past_s=320, seed=4)
    feed.mps = {0: MpsState("on", clients=4), 1: MpsState("off", "nvidia-cuda-mps-control is not installed")}
    return ready(open_for_all(serve_all(feed).signed_in_url))


@pytest.fixture(scope="module")
def small(serve_all):
    """A server that tests share which act, or sign in."""
    return serve_all(MadeUpPool(devices=1, slots=3, past_s=30))


def canvas_ink(page, selector: str) -> int:
    """Count the pixels that are drawn in a chart."""
    return page.evaluate(
        """(selector) => { const c = document.querySelector(selector + " canvas");
        const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
        let n = 0; for (let i = 3; i < d.length; i += 4) if (d[i] > 40) n++; return n; }""",
        selector,
    )


def test_everything_of_the_pool_is_there(shown):
    page = shown
    assert page.locator("#cards > article").count() == 3
    text = page.locator("#cards > article").first.inner_text()
    assert re.search(r"GPU 0\b.*NVIDIA A100.*node-a", text, re.S) and "free of its 68.0 GiB" in text
    assert "SM" in text and " held" in text
    assert "MPS on, 4 trials" in text and page.locator("#cards .notes:visible").all_inner_texts() == [
        "MPS is off: nvidia-cuda-mps-control is not installed"
    ]
    tiles = page.locator("#tiles").inner_text()
    for word in ("Running", "Waiting\n3", "Out of memory\n11", "6 victim, 5 culprit", "300 MiB", "Start-up tax"):
        assert word in tiles, word
    assert page.locator("#queue tbody tr").count() == 3
    why = page.locator("#queue .reason").first.inner_text()
    assert re.match(r"waits for 44\.0 GiB: GPU \d has .* free, GPU \d has", why), "the sentence of `vrampool why`"
    studies = page.locator("#study-cards").inner_text()
    for word in ("resnet-cifar", "56 of 200", "Best value", "On the Pareto front", "2 victim, 2 culprit", "as learned"):
        assert word in studies, word


def test_curves_show_what_was_before_the_page_came_and_go_on(shown):
    page = shown
    assert canvas_ink(page, LEFT_TOP) > 20_000
    newest = "document.querySelector('#cards .plot').plot.rows.at(-1)[0]"
    first = page.evaluate(newest)
    oldest = page.evaluate("document.querySelector('#cards .plot').plot.rows[0][0]")
    assert first - oldest > 200, "the five minutes before"
    holds(page, f"{newest} > {first} + 1.5")
    page.get_by_role("button", name="30 min").click()
    holds(page, "document.querySelector('#cards .plot').plot.windowS === 1800")
    page.reload()
    ready(page)
    holds(page, "document.querySelector('#cards .plot').plot.windowS === 1800")


def test_the_cursor_names_the_trial_under_it(shown):
    page = shown
    box = page.locator(f"{LEFT_TOP} .u-over").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] * 0.9)
    readout = page.locator(".readout").first
    holds(page, "/ of [0-9.]+ GiB, allocated/.test(document.querySelector('.readout').innerText)")
    assert re.search(r"(translation|resnet-cifar) \d+: .* cap .*\d\d:\d\d:\d\d", readout.inner_text(), re.S)


def test_every_chart_is_read_with_keys_and_has_a_table_behind_it(shown):
    page = shown
    assert page.locator(".plot[role=img]:not([aria-label])").count() == 0
    chart = page.locator(LEFT_TOP).first
    assert "holds" in chart.get_attribute("aria-label")
    chart.focus()
    page.keyboard.press("ArrowLeft")
    holds(page, "/ holds .* of /.test(document.querySelector('#spoken').textContent)")
    page.keyboard.press("Escape")
    for summary in page.locator("#cards summary").all()[:1] + page.locator("#study-cards summary").all():
        summary.focus()
        page.keyboard.press("Enter")
    tables = page.locator("details[open] table")
    assert tables.count() == 7
    for table in tables.all():
        assert table.locator("tbody tr").count() > 3 and table.locator("caption").inner_text()
    assert page.locator("#study-cards .plot").count() == 6


def test_the_chart_of_memory_shows_what_was_predicted_asked_for_and_measured(shown):
    """Sizes lie on logarithmic axes: a large trial does not press the small ones into a corner."""
    page = shown
    chart = page.locator("#study-cards .plot").nth(1)
    chart.scroll_into_view_if_needed()
    chart.focus()
    page.keyboard.press("End")
    holds(page, "/predicted .* GiB, asked .* GiB, peak/.test(document.querySelector('#spoken').textContent)")
    scales = "['x', 'y'].map((name) => document.querySelectorAll('#study-cards .plot')[1].plot.u.scales[name].distr)"
    assert page.evaluate(scales) == [3, 3]
    facts = page.locator("#study-cards .facts").first.inner_text()
    assert re.search(r"Predictions off by\n[\d.]+ %\nmedian of \d+; \d+ asked for too little", facts)
    assert re.search(r"Reserved and not used\n[\d.]+ %", facts)


def test_a_value_far_worse_than_the_others_is_drawn_at_the_edge_and_told(shown):
    page = shown
    found = page.evaluate(
        """() => { const { plot } = document.querySelector("#study-cards .plot"); const before = plot.points;
        const values = [700, 2, 1.5, 1.2, 1.1, 1.3, 1.4, 1.6, 1.7, 1.25, 1.35, 1.45, 1.55, 900];
        plot.show(values.map((value, n) => [n * 60, value, n, n < 5]), true);
        const [, drawn, bests] = plot.data();
        const found = [Math.max(...drawn, ...bests), plot.legend, plot.describe(13), plot.describe(0)];
        plot.show(before, plot.minimize); return found; }"""
    )
    assert found[0] < 10 and "2 far worse at the edge" in found[1] and "900" in found[2] and "best 700" in found[3]


def test_the_whole_page_can_be_walked_with_the_tab_key(shown):
    page = shown
    page.reload()
    ready(page)
    met = []
    for _ in range(14):
        page.keyboard.press("Tab")
        met.append(page.evaluate("(document.activeElement.innerText || document.activeElement.className).trim()"))
    assert met[0] == "Skip to the devices"
    for word in ("Devices", "Auto", "Sign out", "5 min", "Pause", "Drain", "plot"):
        assert word in met


def test_names_roles_and_contrast_are_right(shown):
    """A part of what WCAG asks for: every control has a name, ids are unique, text stands out by 4.5 to 1."""
    page = shown
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found = page.evaluate(CHECKS)
        assert found == [], "\n".join([scheme, *found])


CHECKS = """() => {
  const wrong = [];
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) wrong.push(`id ${id} twice`);
  for (const e of document.querySelectorAll("button, a, input, [role=progressbar], article, section, nav, dialog")) {
    const by = e.getAttribute("aria-labelledby");
    const name = e.getAttribute("aria-label") || (by && document.getElementById(by)?.textContent) || e.innerText
      || document.querySelector(`label[for="${e.id}"]`)?.textContent;
    if (!name && e.checkVisibility()) wrong.push(`no name: ${e.outerHTML.slice(0, 80)}`);
  }
  const numbers = (text) => text.match(/[0-9.]+/g).map(Number);
  const linear = (v) => v / 255 <= .03928 ? v / 255 / 12.92 : ((v / 255 + .055) / 1.055) ** 2.4;
  const light = (rgb) => rgb.slice(0, 3).map(linear).reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const ground = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (c !== "rgba(0, 0, 0, 0)" && !/, 0\\.\\d+\\)$/.test(c)) return numbers(c); } return [255, 255, 255]; };
  const seen = new Set();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !e.checkVisibility()) continue;
    if (e.closest(".unseen, .skip, script, noscript")) continue;
    const [a, b] = [light(numbers(getComputedStyle(e).color)), light(ground(e))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    const key = `${e.tagName}.${e.className} ${getComputedStyle(e).color} on ${ground(e)}: ${ratio.toFixed(2)}`;
    if (ratio < 4.5 && !seen.has(key)) { seen.add(key); wrong.push(key); }
  }
  return wrong;
}"""


def test_at_phone_width_nothing_sticks_out(shown, picture):
    page = shown
    page.set_viewport_size({"width": 360, "height": 780})
    holds(page, "document.querySelector('#cards .plot canvas').getBoundingClientRect().width < 340")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    small = page.evaluate(
        "[...document.querySelectorAll('.bar button, .choice button')]"
        ".filter((e) => e.getBoundingClientRect().height < 30).map((e) => e.innerText)"
    )
    cut = page.evaluate(
        "[...document.querySelectorAll('.trials .name')].filter((e) => {"
        "const [name, number] = e.querySelectorAll('span span'); const end = number.getBoundingClientRect().right;"
        "return !/\\d/.test(number.textContent) || name.clientWidth < 20 || end > e.getBoundingClientRect().right + 1;"
        "}).map((e) => e.innerText)"
    )
    assert cut == [], "the number tells trials apart, and the study's name is seen"
    picture(page, "phone")
    page.set_viewport_size({"width": 1440, "height": 1000})
    assert small == [], "fingers need room"


def test_light_and_dark_follow_the_system_until_one_is_chosen(shown, picture):
    page = shown
    ground = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="light")
    light = page.evaluate(ground)
    picture(page, "light")
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(ground)
    assert light != dark
    picture(page, "dark")
    page.get_by_role("button", name="Colours: as the system has them").click()
    assert page.evaluate(ground) == light
    page.reload()
    ready(page)
    assert page.evaluate(ground) == light, "the choice is kept"


# ---- signing in and acting ---------------------------------------------------------------------------


def test_a_visitor_sees_no_buttons_and_signs_in_with_the_token(small, open_page):
    page = ready(open_page(small.url))
    assert page.get_by_role("button", name="Pause").count() == 0
    page.get_by_role("button", name="Sign in").click()
    page.get_by_label("Token").fill("not the token")
    page.locator("#sign-in button[type=submit]").click()
    holds(page, "document.querySelector('#sign-in-error').textContent.includes('not the token')")
    open_page.errors.clear()  # the browser logs the refusal; it is what was asked for
    page.get_by_label("Token").fill(small.token)
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Pause").wait_for()
    page.get_by_role("button", name="Sign out").click()
    holds(page, "![...document.querySelectorAll('button')].some((e) => e.innerText === 'Pause')")


def test_bound_wider_nothing_is_shown_until_the_token_is_given(serve, open_page):
    served = serve(MadeUpPool(devices=1, slots=3, past_s=30), host="0.0.0.0")
    page = open_page(served.url)
    page.locator("#sign-in[open]").wait_for()
    assert page.locator("article").count() == 0
    open_page.errors.clear()  # 401: the browser logs it
    page.keyboard.press("Escape")
    page.get_by_label("Token").fill(served.token)
    page.keyboard.press("Enter")
    ready(page)


def test_the_token_of_a_link_leaves_the_address_at_once(small, open_page):
    served = small
    asked = []
    page = open_page("about:blank")
    page.on("request", lambda sent: asked.append(f"{sent.url} {sent.headers.get('referer')}"))
    page.goto(served.signed_in_url)
    ready(page)
    open_page.outside.clear()  # the page was about:blank first
    page.get_by_role("button", name="Sign out").wait_for()
    assert page.url == served.url
    assert [line for line in asked if served.token in line] == []


def test_pausing_asks_first_then_does_it_and_what_cannot_be_done_is_said(small, open_page, picture):
    page = ready(open_page(small.signed_in_url))
    card = page.locator("#cards > article").first
    card.get_by_role("button", name="Pause").click()
    assert "takes no new trials" in page.locator("#confirm").inner_text()
    picture(page, "confirm")
    page.get_by_role("button", name="Leave it").click()
    assert small.source.done == []
    card.get_by_role("button", name="Pause").click()
    page.locator("#confirm-do").click()
    card.locator(".chip", has_text="paused").wait_for()
    assert small.source.done == [("pause", "node-a-0-abc123")]
    assert "From the dashboard" in card.inner_text()
    card.get_by_role("button", name="Resume").wait_for()
    # What cannot be done is said in the dialog.
    page.locator("#study-cards article", has_text="digits").wait_for()
    small.source.study = refuse
    page.locator("#study-cards article", has_text="translation").get_by_role("button", name="Stop").first.click()
    page.locator("#confirm-do").click()
    holds(page, "document.querySelector('#confirm-error').textContent.includes('nothing left to stop')")
    open_page.errors.clear()  # 409: the browser logs it


def refuse(_action: str, name: str) -> str:
    from vrampool.errors import InputError

    raise InputError(f"study {name} has nothing left to stop")


def test_a_name_full_of_markup_is_text(serve, open_page):
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    feed = MadeUpPool(devices=1, slots=3, past_s=30)
    plain = feed.studies
    feed.studies = lambda: [renamed(item, evil) for item in plain()[:1]]
    page = ready(open_page(serve(feed).url))
    page.locator("#study-cards h3").wait_for()
    assert page.locator("#study-cards h3").inner_text() == evil
    assert page.locator("img, #study-cards script").count() == 0


def renamed(reading, name):
    import dataclasses

    return dataclasses.replace(reading, name=name)


def test_without_a_worker_it_says_how_to_start_one(serve, open_page):
    page = open_page(serve(MadeUpPool(devices=0, past_s=10)).url)
    page.get_by_text("vrampool worker --gpu all").first.wait_for()
