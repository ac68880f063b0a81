"""Who may look and who may act, and what a browser is told to allow.

Three walls, each for an attack of its own: the Host header is checked, so that a page of another site cannot reach us
under its own name (DNS rebinding); what changes anything needs the token and our own Origin (a forged form has
neither); and the policy lets our page load nothing from elsewhere and run no script but ours.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
import socket
from collections.abc import Collection
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vrampool.errors import InputError

TOKEN_FILE = "dashboard-token"  # noqa: S105 - the name of a file
SHORTEST_TOKEN = 16
_PUBLIC = frozenset({"/", "/healthz", "/login", "/logout", "/favicon.ico"})
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def load_token(path: Path) -> str:
    """Return the token kept in a file; make one for the file's owner alone where there is none.

    Raises:
        InputError: the file cannot be read or made, or its token is too short.
    """
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
                    file.write(secrets.token_urlsafe(32) + "\n")
            except FileExistsError:
                pass  # another dashboard was quicker
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot use the token file {path}: {error}; name another with --token-file") from None
    if len(token) < SHORTEST_TOKEN:
        raise InputError(
            f"the token in {path} is shorter than {SHORTEST_TOKEN} characters; remove the file for a new one"
        )
    return token


def is_loopback(host: str) -> bool:
    """True when nobody beyond this machine can reach a server bound to this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Access:
    """Decides about requests.

    Args:
        token: Who has it may act.
        host: Address the server is bound to. Beyond loopback the token is needed to look, too.
        port: Of the server; browsers keep cookies of all ports of a host together.
        allowed_hosts: More names under which people reach it, for example that of a proxy.
    """

    def __init__(self, token: str, *, host: str = "127.0.0.1", port: int = 0, allowed_hosts: Collection[str] = ()):
        self.wide = not is_loopback(host)
        self.cookie = f"vrampool-{port}"
        self._token = token.encode()
        self._session = hmac.new(self._token, b"vrampool dashboard session", hashlib.sha256).hexdigest()
        own = {socket.gethostname(), socket.getfqdn()} if self.wide else set()
        self._hosts = {name.lower().rstrip(".") for name in (host, "localhost", *own, *allowed_hosts)}

    def knows_host(self, value: str) -> bool:
        """True when the Host header names us. A number is no name that another site could have pointed at us."""
        name = urlsplit(f"//{value}").hostname if value and "@" not in value and "/" not in value else None
        if name is None:
            return False
        try:
            ipaddress.ip_address(name)
            return True
        except ValueError:
            return name.rstrip(".") in self._hosts

    def is_token(self, value: str) -> bool:
        return hmac.compare_digest(value.encode(), self._token)

    def has_token(self, headers: Headers) -> bool:
        """True when the request carries the token: in a header, or as the session's cookie."""
        kind, _, value = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self.is_token(value.strip()):
            return True
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return False
        found = cookies.get(self.cookie)
        return found is not None and hmac.compare_digest(found.value.encode(), self._session.encode())

    def session_cookie(self, *, secure: bool) -> str:
        """Return the header that signs a browser in. The cookie is made from the token and does not tell it."""
        return f"{self.cookie}={self._session}; Path=/; HttpOnly; SameSite=Strict; Max-Age=2592000" + (
            "; Secure" if secure else ""
        )

    def no_cookie(self) -> str:
        """Return the header that signs a browser out."""
        return f"{self.cookie}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0"

    def refusal(self, method: str, path: str, headers: Headers) -> tuple[int, str] | None:
        """Return status and text when a request is refused, else None. What is not known to be harmless needs more."""
        if not self.knows_host(headers.get("host", "")):
            return 421, "this name is not known here; start the dashboard with --allow-host NAME to allow it"
        reads = method in ("GET", "HEAD")
        if not reads and not _same_origin(headers):
            return 403, "only the dashboard's own page may send this"
        if (path in _PUBLIC or path.startswith("/assets/")) and (reads or path in ("/login", "/logout")):
            return None
        known = path in ("/events", "/metrics") or path.startswith("/pool/")
        if (self.wide or not reads or not known) and not self.has_token(headers):
            return 401, "sign in with the token"
        return None


def _same_origin(headers: Headers) -> bool:
    """True for our own page, and for programs: they send no Origin, and no cookie by accident."""
    site = headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    if origin is None:
        return True
    return urlsplit(origin).netloc.lower() == headers.get("host", "").lower()


class Guard:
    """ASGI middleware: asks `Access` about each request, and adds the headers that bind the browser."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("content-security-policy", _POLICY)
                if "cache-control" not in headers:
                    headers["cache-control"] = "no-store"
            await send(message)

        refused = self._access.refusal(scope["method"], scope["path"], Headers(scope=scope))
        if refused is not None:
            status, text = refused
            await JSONResponse({"error": text}, status)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)
