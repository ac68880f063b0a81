"""Servers and browsers for tests of the page."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.made_up_pool import MadeUpPool
from support.pools import LivePool, PoolMaker
from support.surroundings import own_settings
from support.waiting import until

from vrampool.dashboard.app import Dashboard
from vrampool.dashboard.security import Access
from vrampool.dashboard.serving import Server, bind

__all__ = ["own_settings"]

TOKEN = "a-token-for-tests-only-of-some-length"
ARTIFACTS = Path(__file__).parents[2] / "artifacts" / "dashboard"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


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


class Servers:
    """Starts servers of the page, and ends them."""

    def __init__(self) -> None:
        self._running: list[tuple[Server, threading.Thread]] = []

    def __call__(self, source: Any = None, *, host: str = "127.0.0.1", more: Any = (), **options: Any) -> Served:
        """Serve the page of a source; as if it were bound to `host`."""
        source = MadeUpPool(devices=2, slots=3, past_s=30) if source is None else source
        listener = bind("127.0.0.1", 0)
        port = listener.getsockname()[1]
        dashboard = Dashboard(source, Access(TOKEN, host=host, port=port, **options), source, more)
        server = Server(dashboard)
        thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
        thread.start()
        self._running.append((server, thread))
        until(lambda: server.started, what="a server")
        return Served(dashboard, port, source)

    def close(self) -> None:
        for server, _ in self._running:
            server.should_exit = True
        for _, thread in self._running:
            thread.join(10)
            assert not thread.is_alive(), "the server does not end while pages are open"


@pytest.fixture
def serve() -> Iterator[Servers]:
    """Serve the page of a source; all servers end with the test."""
    servers = Servers()
    yield servers
    servers.close()


@pytest.fixture(scope="module")
def serve_all() -> Iterator[Servers]:
    """Serve for all tests of a module, those that only look."""
    servers = Servers()
    yield servers
    servers.close()


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


class Pages:
    """Opens pages. None may have had an error, or asked anybody else than its server, when they are closed."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser
        self._contexts: list[Any] = []
        self.errors: list[str] = []
        self.outside: list[str] = []

    def __call__(self, url: str, **options: Any) -> Any:
        options.setdefault("viewport", {"width": 1440, "height": 1000})
        context = self._browser.new_context(**options)
        self._contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        own = (url.partition("#")[0], "data:")
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda told: self.errors.append(told.text) if told.type in ("error", "warning") else None)
        page.on("request", lambda sent: None if sent.url.startswith(own) else self.outside.append(sent.url))
        page.goto(url)
        return page

    def close(self) -> None:
        for context in self._contexts:
            context.close()
        assert self.errors == [], "the console has errors"
        assert self.outside == [], "the page asked somebody else"


@pytest.fixture
def open_page(browser: Any) -> Iterator[Pages]:
    """Open pages; they are closed with the test."""
    pages = Pages(browser)
    yield pages
    pages.close()


@pytest.fixture(scope="module")
def open_for_all(browser: Any) -> Iterator[Pages]:
    """Open pages for all tests of a module, those that only look."""
    pages = Pages(browser)
    yield pages
    pages.close()


@pytest.fixture(scope="session")
def artifacts() -> Path:
    """Where pictures and figures are kept, for people to look at."""
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    return ARTIFACTS


@pytest.fixture
def picture(artifacts: Path) -> Callable[[Any, str], Path]:
    """Keep a picture of a page."""

    def take(page: Any, name: str) -> Path:
        page.screenshot(path=str(artifacts / f"{name}.png"))
        return artifacts / f"{name}.png"

    return take


# ---- pools -------------------------------------------------------------------------------------------


@pytest.fixture(scope="package")
def pool(own_settings: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePool]:
    """A pool that runs."""
    maker = PoolMaker(lambda: tmp_path_factory.mktemp("pool"))
    yield maker()
    maker.close()
