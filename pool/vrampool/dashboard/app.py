"""The web application: the page, its stream, its actions, and `/metrics`."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from vrampool._version import __version__
from vrampool.dashboard import metrics
from vrampool.dashboard.actions import Actions
from vrampool.dashboard.board import Board
from vrampool.dashboard.curves import WINDOWS
from vrampool.dashboard.poller import Poller
from vrampool.dashboard.security import Access, Guard
from vrampool.dashboard.source import Source
from vrampool.dashboard.stream import Client, Hub, dumps, encode
from vrampool.errors import VrampoolError

_log = logging.getLogger("vrampool.dashboard")
STATIC = Path(__file__).with_name("static")
#: No request of ours has a longer body.
_MOST_BODY = 4096
#: A wrong token costs the asker so long.
_WRONG_TOKEN_S = 0.5
#: A page that comes waits so long for what is now; then it gets what there is.
_FIRST_LOOK_S = 3.0


class Dashboard:
    """The application over one source.

    Args:
        source: What is shown.
        access: Who may look and act.
        actions: What may be done; None: nothing, the page shows no buttons.
        more: Routes of a neighbour, tried after our own; each of their requests needs the token.
    """

    def __init__(
        self, source: Source, access: Access, actions: Actions | None = None, more: tuple[BaseRoute, ...] = ()
    ) -> None:
        self.hub = Hub()
        self.board = Board(source)
        self.poller = Poller(self.board, self.hub.publish_soon, lambda: len(self.hub) > 0)
        self.hub.on_first = self.poller.wake
        self._access = access
        self._actions = actions
        self._has_neighbour = bool(more)
        self.app = Starlette(
            routes=[*self._routes(), *more],
            middleware=[Middleware(Guard, access=access), Middleware(_ZippedAnswers)],
            lifespan=self._lifespan,
            exception_handlers={HTTPException: _say},
        )

    def _routes(self) -> list[BaseRoute]:
        return [
            Route("/", self._page),
            Route("/healthz", self._health),
            Route("/login", self._login, methods=["POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/events", self._events),
            Route("/metrics", self._metrics),
            Route("/pool/session", self._session),
            Route("/pool/history", self._history),
            Route("/pool/do", self._do, methods=["POST"]),
            Mount("/assets", StaticFiles(directory=STATIC)),
        ]

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        self.hub.start()
        self.poller.start()
        try:
            yield
        finally:
            self.hub.close()
            await run_in_threadpool(self.poller.stop)

    # ---- the page ------------------------------------------------------------------------------------

    async def _page(self, _request: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})

    async def _health(self, _request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _session(self, request: Request) -> Response:
        """Say what this browser may do."""
        signed_in = self._access.has_token(request.headers)
        return JSONResponse(
            {
                "version": __version__,
                "may_act": signed_in and self._actions is not None,
                "acts": self._actions is not None,
                "signed_in": signed_in,
                "windows": sorted(WINDOWS),
                "optuna_dashboard": self._has_neighbour,
            }
        )

    async def _login(self, request: Request) -> Response:
        token = (await _body(request)).get("token")
        if not isinstance(token, str) or not self._access.is_token(token.strip()):
            await asyncio.sleep(_WRONG_TOKEN_S)
            raise HTTPException(403, "this is not the token; `vrampool dashboard` prints where it is kept")
        cookie = self._access.session_cookie(secure=request.url.scheme == "https")
        return Response(status_code=204, headers={"set-cookie": cookie})

    async def _logout(self, _request: Request) -> Response:
        return Response(status_code=204, headers={"set-cookie": self._access.no_cookie()})

    # ---- data ----------------------------------------------------------------------------------------

    async def _events(self, _request: Request) -> Response:
        await run_in_threadpool(self.poller.refresh, _FIRST_LOOK_S)  # else a page would see an empty pool first
        client = self.hub.join()
        if client is None:
            raise HTTPException(503, "too many pages are open")
        return StreamingResponse(
            self._stream(client),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    async def _stream(self, client: Client) -> AsyncIterator[bytes]:
        try:
            async for part in client.stream(lambda: encode("whole", self.board.whole())):
                yield part
        finally:
            self.hub.leave(client)

    async def _history(self, request: Request) -> Response:
        """Return a device's curve. Query: ``device`` (a card's key), ``window`` (seconds)."""
        try:
            window_s = int(request.query_params.get("window", ""))
        except ValueError:
            raise HTTPException(400, "window must be a number of seconds") from None
        key = request.query_params.get("device", "")
        found = await run_in_threadpool(self.board.history, key, window_s)
        if found is None:
            raise HTTPException(404, "there is no such device, or no such window")
        return Response(await run_in_threadpool(dumps, found), media_type="application/json")

    async def _metrics(self, _request: Request) -> Response:
        await run_in_threadpool(self.poller.refresh)
        body = await run_in_threadpool(lambda: metrics.exposition(self.board.figures()))
        return Response(body, headers={"content-type": metrics.CONTENT_TYPE})

    # ---- acting --------------------------------------------------------------------------------------

    async def _do(self, request: Request) -> Response:
        """Do something. Body: ``{"action": ..., "study": name}`` or ``{"action": ..., "worker": name}``."""
        if self._actions is None:
            raise HTTPException(404, "this dashboard only shows")
        asked = await _body(request)
        action = str(asked.get("action"))
        try:
            if isinstance(asked.get("study"), str):
                text = await run_in_threadpool(self._actions.study, action, asked["study"])
            elif isinstance(asked.get("worker"), str):
                text = await run_in_threadpool(self._actions.worker, action, asked["worker"])
            else:
                raise HTTPException(400, "name a study or a worker")
        except VrampoolError as error:
            raise HTTPException(409, str(error)) from None
        _log.warning("dashboard: %s", text)
        self.poller.wake()
        return JSONResponse({"done": text})


class _ZippedAnswers:
    """Zips answers, but not the stream: a zipped event would wait until its block is full."""

    def __init__(self, app: ASGIApp) -> None:
        self._plain = app
        self._zipping = GZipMiddleware(app, minimum_size=2048, compresslevel=5)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        zipped = scope["type"] == "http" and scope["path"] != "/events"
        await (self._zipping if zipped else self._plain)(scope, receive, send)


async def _body(request: Request) -> dict[str, Any]:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "send JSON")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BODY:
            raise HTTPException(413, "too long")
    try:
        content = json.loads(body)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise HTTPException(400, "send a JSON object")
    return content


async def _say(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)
