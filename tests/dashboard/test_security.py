"""Who may look, who may act, and what a browser is bound to: against a real server."""

from __future__ import annotations

import stat

import pytest

from vrampool.dashboard.security import Access, is_loopback, load_token
from vrampool.errors import InputError

DATA = ("/events", "/metrics", "/pool/session", "/pool/history?device=node-a/GPU-0&window=300")
STOP = {"action": "stop", "study": "resnet-cifar"}


@pytest.fixture(scope="module")
def near_server(serve_all):
    """Bound to loopback."""
    return serve_all(allowed_hosts=["gpu.lab"])


@pytest.fixture
def near(near_server):
    near_server.source.done.clear()
    return near_server


@pytest.fixture(scope="module")
def wide(serve_all):
    """As if it were bound to all addresses."""
    return serve_all(host="0.0.0.0")


def signed_in(served) -> dict[str, str]:
    return {"authorization": f"Bearer {served.token}"}


# ---- looking -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", DATA)
def test_on_loopback_everybody_may_look(near, path):
    assert near.ask(path).status == 200


@pytest.mark.parametrize("path", DATA)
def test_bound_wider_looking_needs_the_token(wide, path):
    refused = wide.ask(path)
    assert refused.status == 401 and b"resnet" not in refused.body
    assert wide.ask(path, authorization="Bearer wrong").status == 401
    assert wide.ask(path, **signed_in(wide)).status == 200


def test_bound_wider_the_empty_page_comes_without_it_so_that_one_can_sign_in(wide):
    for path in ("/", "/assets/app.js", "/healthz"):
        assert wide.ask(path).status == 200


def test_the_token_in_an_address_is_of_no_use(wide):
    """Addresses are kept in logs and histories, and sent to others as the referrer."""
    for query in (f"?token={wide.token}", f"?access_token={wide.token}"):
        assert wide.ask(f"/metrics{query}").status == 401


# ---- signing in --------------------------------------------------------------------------------------


def test_signing_in_gives_a_cookie_that_scripts_and_other_sites_do_not_get(wide):
    answer = wide.ask("/login", "POST", content={"token": wide.token})
    cookie = answer.headers["set-cookie"]
    assert answer.status == 204
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and f"vrampool-{wide.port}=" in cookie
    assert wide.token not in cookie, "the cookie does not tell the token"
    assert wide.ask("/pool/session", cookie=cookie.partition(";")[0]).json["signed_in"] is True


@pytest.mark.parametrize("content", [{"token": "wrong"}, {"token": ""}, {"token": None}, {}, {"token": "wrong\u00e9"}])
def test_a_wrong_token_signs_nobody_in(near, content):
    answer = near.ask("/login", "POST", content=content)
    assert answer.status == 403 and "set-cookie" not in answer.headers


@pytest.mark.parametrize("cookie", ["vrampool-{port}=", "vrampool-{port}={token}", "vrampool-{port}=x; a=b", "%%%"])
def test_a_made_up_cookie_signs_nobody_in(wide, cookie):
    made_up = cookie.format(port=wide.port, token=wide.token)
    assert wide.ask("/pool/session", cookie=made_up).status == 401


# ---- acting ------------------------------------------------------------------------------------------


def test_stopping_needs_the_token_on_loopback_too(near):
    assert near.ask("/pool/do", "POST", content=STOP).status == 401
    assert near.source.done == []
    assert near.ask("/pool/do", "POST", content=STOP, **signed_in(near)).json == {"done": "resnet-cifar: stop"}
    assert near.source.done == [("stop", "resnet-cifar")]


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
def test_another_site_can_make_nobodys_browser_act(near, headers):
    assert near.ask("/pool/do", "POST", content=STOP, **signed_in(near), **headers).status == 403
    assert near.source.done == []


def test_our_own_page_may(near):
    own = {"origin": near.url.rstrip("/"), "sec_fetch_site": "same-origin", "host": f"127.0.0.1:{near.port}"}
    assert near.ask("/pool/do", "POST", content=STOP, **signed_in(near), **own).status == 200


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        ({"action": "stop"}, "application/json", 400),
        ([1], "application/json", 400),
        ({"action": "explode", "study": "digits"}, "application/json", 409),
        (STOP, "text/plain", 415),
        ({"action": "stop", "study": "x" * 5000}, "application/json", 413),
    ],
)
def test_a_wrong_request_is_refused_in_words(near, content, kind, status):
    answer = near.ask("/pool/do", "POST", content=content, content_type=kind, **signed_in(near))
    assert answer.status == status and answer.json["error"]


def test_methods_and_paths_that_are_unknown_need_the_token_and_lead_nowhere(near):
    for method, path in (("GET", "/api/studies"), ("DELETE", "/pool/do"), ("POST", "/metrics"), ("PUT", "/")):
        assert near.ask(path, method).status == 401, path
        assert near.ask(path, method, **signed_in(near)).status in (404, 405), path
    assert near.ask("/assets/../security.py").status in (401, 404)
    assert near.ask("/assets/%2e%2e/security.py").status == 404


# ---- the browser's bounds ----------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "", "a@127.0.0.1", "127.0.0.1.evil.example"])
def test_a_name_that_is_not_ours_is_refused(near, host):
    """A site may point its own name at 127.0.0.1; then its page would be of our origin."""
    assert near.ask("/pool/session", host=host).status == 421


@pytest.mark.parametrize("host", ["localhost:1", "LOCALHOST", "127.0.0.1:9", "[::1]:80", "192.168.0.7", "gpu.lab"])
def test_our_own_names_numbers_and_allowed_names_are_known(near, host):
    assert near.ask("/pool/session", host=host).status == 200


@pytest.mark.parametrize("path", ["/", "/assets/app.js", "/pool/session", "/metrics", "/nowhere"])
def test_every_answer_binds_the_browser(near, path):
    headers = near.ask(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-content-type-options"] == "nosniff"
    assert "server" not in headers


# ---- the token ---------------------------------------------------------------------------------------


def test_a_token_is_made_once_for_its_owner_alone(tmp_path):
    path = tmp_path / "state" / "token"
    token = load_token(path)
    assert len(token) >= 32 and load_token(path) == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("content", ["", "short\n", b"\xff\xfe" * 20])
def test_a_token_file_that_cannot_serve_is_refused_with_its_name(tmp_path, content):
    path = tmp_path / "token"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match="token"):
        load_token(path)


def test_what_loopback_is():
    assert all(map(is_loopback, ["127.0.0.1", "127.9.9.9", "::1", "localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "192.168.0.1", "gpu.lab", ""]))
    assert not Access("x" * 20, host="127.0.0.1").wide and Access("x" * 20, host="0.0.0.0").wide
