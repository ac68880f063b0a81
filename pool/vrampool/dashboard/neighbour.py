"""optuna-dashboard beside our page, where it is installed: its paths and ours do not meet.

It lets whoever reaches it rename and delete studies, so each of its requests needs the token.
"""

from __future__ import annotations

import importlib
from typing import Any

from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from vrampool.errors import InputError

#: What its page asks for. It knows no prefix.
_PATHS = ("/dashboard", "/api", "/static", "/csv", "/artifacts", "/incompatible-rdb-schema")


def optuna_dashboard(storage: Any) -> tuple[BaseRoute, ...]:
    """Return the routes under which optuna-dashboard shows the studies of a storage.

    Raises:
        InputError: it is not installed.
    """
    try:
        wsgi = importlib.import_module("optuna_dashboard").wsgi
        adapter = importlib.import_module("a2wsgi").WSGIMiddleware
    except ImportError as error:
        raise InputError(
            f"{error.name} is not installed: pip install optuna-dashboard a2wsgi, or leave out --optuna-dashboard"
        ) from None
    return (Mount("/", app=_Only(adapter(wsgi(storage)))),)


class _Only:
    """Lets pass what is the neighbour's; everything else does not exist."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if not any(path == known or path.startswith(f"{known}/") for known in _PATHS):
            raise HTTPException(404)
        await self._app({**scope, "root_path": ""}, receive, send)
