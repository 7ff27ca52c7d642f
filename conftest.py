# SPDX-FileCopyrightText: 2026 The crawl.py authors
# SPDX-License-Identifier: 0BSD
"""What the tests share: a clock that jumps, a web server in a thread, a check for leaks."""

from __future__ import annotations

import contextlib
import errno
import inspect
import os
import pathlib
import random
import selectors
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

import crawl


def pytest_configure(config: pytest.Config) -> None:
    """Leave out what takes minutes, unless it is asked for; hide from children what they inherit.

    That is PYTHON variables, what makes Python's own words depend on a terminal, and that signals are
    ignored, as in what a shell runs in the background.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    for name in list(os.environ):
        if name.startswith("PYTHON") or name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "LINES"):
            del os.environ[name]
    config.option.markexpr = config.option.markexpr or "not soak"


# A key and a certificate for localhost and 127.0.0.1, good for nothing but these tests,
# from 2020 to 2120.
CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg7VHSWCcEzpxFIymG
5AXm8tCshC/qI0j470ve7s7tSm+hRANCAARoZ+ScoIJkporJF+BqcsE6xMhLugfZ
uPV5U1OU3Bo3b8HsdF67/QthpLQE1LUl+2ZTKx+ySIgmyaubjImsBAhd
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBbTCCAROgAwIBAgIHXxfUknvEBTAKBggqhkjOPQQDAjAUMRIwEAYDVQQDDAls
b2NhbGhvc3QwIBcNMjAwMTAxMDAwMDAwWhgPMjEyMDAxMDEwMDAwMDBaMBQxEjAQ
BgNVBAMMCWxvY2FsaG9zdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABGhn5Jyg
gmSmiskX4GpywTrEyEu6B9m49XlTU5TcGjdvwex0Xrv9C2GktATUtSX7ZlMrH7JI
iCbJq5uMiawECF2jTjBMMB0GA1UdDgQWBBRZQTqCv2rK/GVDw+Nz8tJQnIVe0DAP
BgNVHRMBAf8EBTADAQH/MBoGA1UdEQQTMBGCCWxvY2FsaG9zdIcEfwAAATAKBggq
hkjOPQQDAgNIADBFAiEA/LivztmLM5/d6JtBxkpjxdresas5WUw2Ho4bhmVnvSYC
IEL3rwRte2E3WzRXUZN3V6pXnb6Q1aqQvon0uNTRPDP7
-----END CERTIFICATE-----
"""


class JumpingSelector(selectors.DefaultSelector):
    """Does not sleep: told to wait until a deadline, it moves the clock there."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0 if timeout else timeout)
        if not events and timeout:
            self.now += timeout
        return events


class JumpingLoop(crawl.EventLoop):
    """An event loop in which an hour's sleep takes microseconds. For tests without sockets."""

    def __init__(self) -> None:
        self.clock = JumpingSelector()
        super().__init__(self.clock)
        self.reported: list[dict[str, Any]] = []

    def time(self) -> float:
        return self.clock.now

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.reported.append(context)


def play(main: Any) -> Any:
    """Run a coroutine on a clock that jumps; nothing may be reported to its loop."""
    loop = JumpingLoop()
    result = crawl.run(main, loop_factory=lambda: loop)
    assert loop.reported == []
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test: on a clock that jumps, or with the mark real_time on the real one."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    run = crawl.run if pyfuncitem.get_closest_marker("real_time") else play
    run(pyfuncitem.obj(**arguments))
    return True


FINE = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Server:
    """A web server in threads, one that listens and one for each connection; it answers as scripted.

    A page is a path and either the bytes of the whole answer, or a function that is
    called with the connection and may do to it what it likes. HEAD is answered with the
    head of those bytes, and with a 200 where there is a function.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.answers: dict[str, bytes | Callable[[socket.socket], None]] = {}
        self.requests: list[str] = []       # the paths asked for by GET, in order
        self.checked: list[str] = []        # and by HEAD
        self.heads: list[str] = []          # and the whole requests
        self.connections = 0
        self.head_status: int | None = None  # with which every HEAD is answered; 0: not at all
        self.tls = tls
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self.listener.getsockname()[1]
        self.url = f"http{'s' if tls else ''}://localhost:{self.port}"
        self.threads = [threading.Thread(target=self.listen)]
        self.open: set[socket.socket] = set()
        self.threads[0].start()
        self.add("/robots.txt", "", 404)

    def add(self, path: str, body: str | bytes = "", status: int = 200, **headers: str) -> None:
        """Answer *path* with a page."""
        body = body.encode() if isinstance(body, str) else body
        fields = {"Content-Type": "text/html", "Content-Length": str(len(body))}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.answers[path] = f"HTTP/1.1 {status} Words\r\n{head}\r\n".encode() + body

    def add_redirect(self, path: str, to: str, status: int = 302) -> None:
        """Answer *path* with a redirect."""
        self.add(path, "", status, Location=to)

    def listen(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):  # until others are closed
                    time.sleep(0.01)
                    continue
                return
            self.connections += 1
            self.open.add(connection)
            self.threads.append(threading.Thread(target=self.serve, args=(connection,)))
            self.threads[-1].start()

    def serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.tls:
                plain, connection = connection, self.tls.wrap_socket(connection, server_side=True)
                self.open.discard(plain)
                self.open.add(connection)
            while True:
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    data = connection.recv(65536)
                    if not data or data.startswith(b"\x16"):  # the end, or somebody who wants TLS
                        raise OSError
                    head += data
                method, path = head.decode().split(" ")[:2]
                self.heads.append(head.decode())
                answer = self.answers.get(path, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                if method == "HEAD":
                    self.checked.append(path)
                    if self.head_status is not None:
                        if not self.head_status:
                            break
                        answer = f"HTTP/1.1 {self.head_status} Words\r\nContent-Length: 0\r\n\r\n".encode()
                    head, end, _ = (FINE if callable(answer) else answer).partition(b"\r\n\r\n")
                    connection.sendall(head + end)
                    continue
                self.requests.append(path)
                if callable(answer):
                    answer(connection)
                else:
                    connection.sendall(answer)
        connection.close()

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in list(self.open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()


@pytest.fixture
def rng() -> random.Random:
    """What is random in a test. Where it fails, its seed is shown: SEED=that makes it fail again."""
    seed = os.environ.get("SEED", "1")
    print(f"SEED={seed}")
    return random.Random(seed)


Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two sockets that are connected with each other."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A listening socket; the test plays the server."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def full() -> Iterator[socket.socket]:
    """A listening socket that takes no connection any more: who tries waits."""
    with (socket.create_server(("127.0.0.1", 0), backlog=0) as server,
          socket.create_connection(server.getsockname())):
        yield server


@pytest.fixture
def closed() -> int:
    """A port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def silent_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A name server that answers when the test is over, without an address."""
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait() and [])
    yield
    over.set()


@pytest.fixture
def site() -> Iterator[Server]:
    """A web server on http://localhost."""
    with contextlib.closing(Server()) as server:
        yield server


@pytest.fixture
def tls_site(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A web server on https://localhost, whose certificate the program trusts."""
    path = tmp_path / "localhost.pem"
    path.write_text(CERTIFICATE)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    with contextlib.closing(Server(context)) as server:
        yield server


@pytest.fixture(autouse=True)
def no_leaks() -> Generator[None, None, None]:
    """Fail a test that leaves a descriptor or a thread behind."""
    descriptors = pathlib.Path("/proc/self/fd")
    before = len(list(descriptors.iterdir())), threading.active_count()
    yield
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(5)
    assert (len(list(descriptors.iterdir())), threading.active_count()) == before
