"""`vrampool dashboard`: how it starts, and how it says that it cannot."""

from __future__ import annotations

import socket
import sys

import pytest
from support.commands import call

from vrampool.dashboard.serving import bind


def refused(capsys, pool, *words: str) -> str:
    done = call(capsys, "dashboard", "--state-dir", pool.state_dir, *words)
    assert done.code == 2 and done.err.startswith("error: ") and len(done.err.splitlines()) <= 2, done.err
    assert "Traceback" not in done.err
    return done.err


def test_a_port_that_is_taken_is_named_with_the_way_out(capsys, pool):
    pool.device()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        text = refused(capsys, pool, "--port", str(port))
    assert f"port {port} on 127.0.0.1 is taken" in text and "--port 0" in text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--port", "70000"), "--port must be between 0 and 65535"),
        (("--host", "192.0.2.1"), "is no address of this machine"),
        (("--host", "no such host"), "is no address of this machine"),
    ],
)
def test_an_address_that_cannot_be_is_refused(capsys, pool, words, expected):
    assert expected in refused(capsys, pool, *words)


def test_a_token_that_is_too_short_is_refused(capsys, pool, tmp_path):
    (tmp_path / "token").write_text("short")
    assert "shorter than 16" in refused(capsys, pool, "--port", "0", "--token-file", str(tmp_path / "token"))


def test_without_a_pool_it_says_how_to_start_one(capsys, tmp_path):
    done = call(capsys, "dashboard", "--state-dir", tmp_path)
    assert done.code == 2 and "vrampool up" in done.err


def test_without_the_extra_it_says_how_to_install_it(capsys, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("vrampool.dashboard.", "starlette"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette", None)
    done = call(capsys, "dashboard", "--state-dir", tmp_path)
    assert done.code == 2 and "pip install 'vrampool[dashboard]'" in done.err


def test_a_listening_socket_is_not_left_to_children():
    listener = bind("127.0.0.1", 0)
    assert not listener.get_inheritable()
    listener.close()
