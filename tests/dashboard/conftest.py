"""Servers and browsers for tests of the page."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.made_up_pool import MadeUpPool
from support.pools import LivePool, PoolMaker
from support.waiting import until

from vrampool.dashboard.app import Dashboard
from vrampool.dashboard.security import Access
from vrampool.dashboard.serving import Server, bind

TOKEN = "a-token-for-tests-only-of-some-length"
PICTURES = Path(__file__).parents[2] / "artifacts" / "dashboard"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="package", autouse=True)
def own_settings() -> Iterator[None]:
    """The developer's own settings stay out of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("VRAMPOOL_") or name in ("GPU_MEM_FRACTION", "CUDA_VISIBLE_DEVICES"):
                patch.delenv(name)
        yield


@dataclass
class Answer:
    """What a server answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Served:
    """A dashboard that is served in this process."""

    dashboard: Dashboard
    port: int
    source: Any

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    @property
    def signed_in_url(self) -> str:
        return f"{self.url}#token={TOKEN}"

    @property
    def token(self) -> str:
        return TOKEN

    def ask(self, path: str, method: str = "GET", *, content: Any = None, **headers: str) -> Answer:
        """Send one request. Names of headers are written with '_' for '-'."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        body = None if content is None else json.dumps(content)
        if body is not None:
            sent.setdefault("content-type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            told = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, told, b"" if path == "/events" else answer.read())
        finally:
            connection.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Serve the page of a source; all servers end with the test."""
    running: list[tuple[Server, threading.Thread]] = []

    def start(source: Any = None, *, host: str = "127.0.0.1", more: Any = (), **options: Any) -> Served:
        source = MadeUpPool(devices=2, slots=3, past_s=30) if source is None else source
        listener = bind("127.0.0.1", 0)
        port = listener.getsockname()[1]
        dashboard = Dashboard(source, Access(TOKEN, host=host, port=port, **options), source, more)
        server = Server(dashboard)
        thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
        thread.start()
        running.append((server, thread))
        until(lambda: server.started, what="a server")
        return Served(dashboard, port, source)

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive(), "the server does not end while pages are open"


# ---- browsers ----------------------------------------------------------------------------------------


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if found is None:
        pytest.skip("no Chromium here: make browser")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield launched
        launched.close()


@dataclass
class Watch:
    """What a page did that it must not."""

    errors: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open pages. At the end of the test none may have had an error, or asked anybody else than its server."""
    watch = Watch()
    contexts = []

    def open_at(url: str, **options: Any) -> Any:
        options.setdefault("viewport", {"width": 1440, "height": 1000})
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        home = url.partition("#")[0]
        page.on("pageerror", lambda error: watch.errors.append(str(error)))
        page.on("console", lambda told: watch.errors.append(told.text) if told.type in ("error", "warning") else None)
        own = (home, "data:")
        page.on("request", lambda sent: None if sent.url.startswith(own) else watch.outside.append(sent.url))
        page.watch = watch
        page.goto(url)
        return page

    yield open_at
    for context in contexts:
        context.close()
    assert watch.errors == [], "the console has errors"
    assert watch.outside == [], "the page asked somebody else"


@pytest.fixture
def picture() -> Callable[[Any, str], Path]:
    """Keep a picture of a page, for people to look at."""

    def take(page: Any, name: str) -> Path:
        PICTURES.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(PICTURES / f"{name}.png"))
        return PICTURES / f"{name}.png"

    return take


# ---- pools -------------------------------------------------------------------------------------------


@pytest.fixture(scope="package")
def pool(own_settings: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePool]:
    """A pool that runs."""
    maker = PoolMaker(lambda: tmp_path_factory.mktemp("pool"))
    yield maker()
    maker.close()
