# SPDX-FileCopyrightText: 2026 The crawl.py authors
# SPDX-License-Identifier: 0BSD
"""What the tests share: a clock that jumps, a web server in a thread, simulated sites, leak checks.

A *site* is a dict from paths of http://h, or from whole URLs, to responses. A URL that it lacks
is a 404. A response is one of these:

    "<a href=/x>"                      a page
    "-> /x"                            a redirect
    404                                an empty page of that status
    OSError(...)                       no response, but this error
    (200, {"seconds": 9}, "text")      with header fields; it takes 9 s (by default 0.125 s)
    {"HEAD": 501, "GET": ""}           a different response to each method
    [503, ""]                          one after the other; the last one stays

These are what a newcomer needs:

    play(coroutine)                    its result, on a clock that jumps
    crawl_site(site, **options)        the Crawler that has crawled such a site on that clock: its
                                       .outcomes, .records, .requested, .lines() and .report
    outcome_of(record)                 "200", "404 broken" or "timed out x3": a value of .outcomes
    site                               a fixture: a web server in a thread; site.add("/", "text")
    crawl_servers(url, **options)      the Crawler that has crawled such servers
    run_main(*arguments)               the status, stdout and stderr of the command line, run here
    run_program(*arguments)            the same in a process of its own
    run_in_shell(command)              a recipe of README, in which `crawl` is the program
    crawl_with_journal(path, site)     crawl_site(), continuing a journal
    lib, log                           fixtures of tests that run here and on asyncio: their logs
                                       must be equal

The hardest to understand have an example each: Story with each_story, model_of_crawl with
by_the_rules, and kill_and_resume in test_crawl.py, Performance and check_linear here.
"""

from __future__ import annotations

import ast
import asyncio
import collections
import contextlib
import errno
import gc
import gzip
import inspect
import io
import json
import os
import pathlib
import pty
import random
import re
import selectors
import signal
import socket
import ssl
import subprocess
import sys
import termios
import textwrap
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

import crawl
from crawl import create_task, get_running_loop, sleep

# SELECTOR=PollSelector make test: use another selector of Python than the best one of this system.
if selector := os.environ.get("SELECTOR"):
    setattr(selectors, "DefaultSelector", getattr(selectors, selector))
HERE = pathlib.Path(__file__).parent
ROUNDS = int(os.environ.get("ROUNDS", "10000"))  # of random input; `make soak` runs more


def pytest_configure(config: pytest.Config) -> None:
    """Reset what child processes would inherit from the environment of the test run.

    These are the PYTHON variables, the variables that make Python's messages depend on a
    terminal, and ignored signals, which a shell passes to the programs in its background.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    for name in list(os.environ):
        if name.startswith("PYTHON") or name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "LINES"):
            del os.environ[name]


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

# Certificates of the same key: one that expired in 2001, and one for other.test.
EXPIRED = """\
-----BEGIN CERTIFICATE-----
MIIBXjCCAQWgAwIBAgIBATAKBggqhkjOPQQDAjAUMRIwEAYDVQQDDAlsb2NhbGhv
c3QwHhcNMDAwMTAxMDAwMDAwWhcNMDEwMTAxMDAwMDAwWjAUMRIwEAYDVQQDDAls
b2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAARoZ+ScoIJkporJF+Bq
csE6xMhLugfZuPV5U1OU3Bo3b8HsdF67/QthpLQE1LUl+2ZTKx+ySIgmyaubjIms
BAhdo0gwRjAPBgNVHRMBAf8EBTADAQH/MB0GA1UdDgQWBBRZQTqCv2rK/GVDw+Nz
8tJQnIVe0DAUBgNVHREEDTALgglsb2NhbGhvc3QwCgYIKoZIzj0EAwIDRwAwRAIg
dDMgPaOUw2QcGu9eW/5YLh8V/8zbhDJu6pjuszEjZFsCICetl4h/d4cy8ERiL/ym
+NWSMfz4MmJIu+gfAI5QXdiN
-----END CERTIFICATE-----
"""
FOR_ANOTHER_HOST = """\
-----BEGIN CERTIFICATE-----
MIIBZDCCAQqgAwIBAgIBAjAKBggqhkjOPQQDAjAVMRMwEQYDVQQDDApvdGhlci50
ZXN0MCAXDTIwMDEwMTAwMDAwMFoYDzIxMjAwMTAxMDAwMDAwWjAVMRMwEQYDVQQD
DApvdGhlci50ZXN0MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEaGfknKCCZKaK
yRfganLBOsTIS7oH2bj1eVNTlNwaN2/B7HReu/0LYaS0BNS1JftmUysfskiIJsmr
m4yJrAQIXaNJMEcwDwYDVR0TAQH/BAUwAwEB/zAdBgNVHQ4EFgQUWUE6gr9qyvxl
Q8Pjc/LSUJyFXtAwFQYDVR0RBA4wDIIKb3RoZXIudGVzdDAKBggqhkjOPQQDAgNI
ADBFAiEA4hgMI2Z0SzJCDu+wbOxlviVJh4fg/ugZrzeLZ9tR1zUCIEZqY0VGcMo+
yVuIBz9kTTRvTKF8Rk+n7laJtTiesnJV
-----END CERTIFICATE-----
"""


class JumpingSelector(selectors.DefaultSelector):
    """Does not sleep: instead of waiting for a deadline, it moves the clock there.

    It remembers whether a socket was watched then: real sockets need real time."""

    now = 0.0
    watched_sockets = False

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0 if timeout else timeout)
        if not events and timeout and timeout > 0:
            if len(self.get_map()) > 1:  # more than the self-pipe
                self.watched_sockets = True
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
    assert not loop.clock.watched_sockets, "a test that uses sockets needs the mark real_time"
    return result


def play_asyncio(main: Any) -> None:
    """Run a coroutine on asyncio, on a clock that jumps."""
    with asyncio.Runner(loop_factory=JumpingAsyncioLoop) as runner:
        runner.run(main)


Log = Callable[..., None]


def traces_of(function: Callable[..., Any], **arguments: Any) -> list[list[tuple[Any, ...]]]:
    """Run an `async def` test on crawl.py and on asyncio. Return what each run has logged."""
    traces = []
    for lib, run in ((crawl, play), (asyncio, play_asyncio)):
        trace = list[tuple[Any, ...]]()

        def log(*words: Any, lib: Any = lib, trace: Any = trace) -> None:
            shown = [type(word).__name__ if isinstance(word, BaseException) else word
                     for word in words]
            trace.append((round(lib.get_running_loop().time(), 6), *shown))

        run(function(lib=lib, log=log, **arguments))
        traces.append(trace)
    return traces


def attempt(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a call, or the name of the exception that it raises."""
    try:
        return call(*arguments)
    except BaseException as error:
        return type(error).__name__


async def end_of(waited: Any) -> Any:
    """Return the result of an awaitable, or the name of the exception that it raises."""
    try:
        return await waited
    except BaseException as error:
        return type(error).__name__


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a row of a table by its values: pytest itself would call a list "arguments3"."""
    if val is None or callable(val) or isinstance(val, str | bytes | int | float):
        return None  # pytest shows them
    words = val if isinstance(val, list | tuple) else [val]
    return re.sub(r"\s+", " ", " ".join(map(str, words)))[:60]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test on a clock that jumps, or on the real one if marked real_time.

    If it takes *lib* and *log*, run it on crawl.py and on asyncio: the logs must be equal."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {
        name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    if "lib" in arguments:
        del arguments["lib"], arguments["log"]
        ours, theirs = traces_of(pyfuncitem.obj, **arguments)
        assert ours == theirs != []
        return True
    run = crawl.run if pyfuncitem.get_closest_marker("real_time") else play
    run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture
def lib() -> None:
    """crawl in the first run of the test, and asyncio in the second: see pytest_pyfunc_call."""


@pytest.fixture
def log() -> None:
    """A function that logs the time and its arguments, for both runs of the test."""


class Server:
    """A web server in threads: one listens, and each connection has its own.

    A page is a path and either the bytes of the whole response, or a function that is called
    with the connection and the head of the request and may do with the connection what it
    likes. HEAD is answered with the head of those bytes, and with a 200 where there is a function.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.answers: dict[str, bytes | Callable[[socket.socket, str], None]] = {}
        self.requests: list[str] = []  # the paths requested with GET, in order
        self.checked: list[str] = []  # and by HEAD
        self.heads: list[str] = []  # and the whole requests
        self.connections = 0
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
                answer = self.answers.get(
                    path, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                if method == "HEAD":
                    self.checked.append(path)
                    page = with_body(b"") if callable(answer) else answer
                    connection.sendall(page.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
                    continue
                self.requests.append(path)
                if callable(answer):
                    answer(connection, head.decode())
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


Site = dict[str, Any]


def url_of(path: str) -> str:
    """Return the URL of a path of http://h. A URL is returned as it is."""
    return f"http://h{path}" if path.startswith("/") else path


def path_of(url: str) -> str:
    """Return the path of a URL of http://h. Other URLs are returned as they are."""
    return url.removeprefix("http://h") if url.startswith("http://h/") else url


def outcome_of(record: crawl.Record) -> str:
    """Return an outcome in short: "200", "HEAD 200", "404 broken", "timed out x3" or "depth"."""
    tries = f"x{record.tries}" * (record.tries > 1)
    method = ("HEAD" if record.tries == 1 else "GET") * record.is_check
    words = (method, str(record.status or ""), record.kind or record.skipped, tries)
    return " ".join(filter(None, words))


class SimulatedClient:
    """Answers for a site, on a clock that jumps, and remembers the requests."""

    def __init__(self, site: Site) -> None:
        self.site = {
            url_of(path): answer[:] if isinstance(answer, list) else answer
            for path, answer in site.items()}
        self.requests: list[tuple[float, str]] = []  # with GET: the time, and the path or URL
        self.checked: list[str] = []  # with HEAD, which takes no time
        self.trusted: dict[str, bool] = {}  # whether the user's headers were sent there
        self.pool = dict[Any, str]()
        self.user_agent = "crawl"

    @staticmethod
    def parts_of(answer: Any) -> Any:
        """Return the status, the header fields and the body of an answer. An error has status 0."""
        if isinstance(answer, str):
            target = answer.removeprefix("-> ")
            return (200, {}, answer) if target == answer else (302, {"location": target}, "")
        if isinstance(answer, tuple):
            return answer
        return answer if isinstance(answer, int) else 0, {}, ""

    async def fetch(self, url: crawl.URL, method: str = "GET", own_headers: bool = True,
                    wanted: Any = None, max_body: int | None = None) -> crawl.Response:
        answer, path = self.site.get(str(url), 404), path_of(str(url))
        self.trusted[path] = own_headers
        if url.target == "/robots.txt" and str(url) not in self.site:
            await sleep(0)
            return crawl.Response(1, 404, "Not Found", {})  # takes no time, and is not noted
        if method == "HEAD":
            self.checked.append(path)
        else:
            self.requests.append((get_running_loop().time(), path))
        if isinstance(answer, dict):
            answer = answer[method]
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        status, headers, body = self.parts_of(answer)
        await sleep(0 if method == "HEAD" else headers.get("seconds", 0.125))
        for _ in range(headers.get("ticks", 0)):
            await sleep(0)
        if isinstance(answer, Exception):
            raise answer
        response = crawl.Response(1, status, "Words", {"content-type": "text/html"} | headers)
        if method == "GET" and (wanted is None or wanted(response)):
            return response._replace(body=body if isinstance(body, bytes) else body.encode())
        return response

    def close(self) -> None:
        pass


class RecordingCrawler(crawl.Crawler):
    """A crawler that keeps the records it emits, and may use a simulated *client*."""

    def __init__(self, roots: str | Sequence[str], client: Any = None, **options: Any) -> None:
        self.emitted: list[crawl.Record] = []
        self.report = crawl.Report()
        super().__init__(roots, **{"on_record": self.keep} | options)
        self.client: Any = client or self.fetcher.client
        self.fetcher.client = self.client

    @property
    def seen_urls(self) -> dict[str, crawl.Node]:
        """The Nodes of all URLs, by their texts."""
        return self.frontier.seen_urls

    def keep(self, record: crawl.Record) -> None:
        self.emitted.append(record)
        self.report.add(record)

    @property
    def records(self) -> dict[str, crawl.Record]:
        """The emitted records, by path or URL."""
        return {path_of(record.url): record for record in self.emitted}

    @property
    def outcomes(self) -> dict[str, str]:
        """The outcome of each path or URL, in short."""
        return {path: outcome_of(record) for path, record in self.records.items()}

    @property
    def requested(self) -> list[str]:
        """The paths that were requested with GET, in order."""
        return [path for _, path in self.client.requests]

    def lines(self, brief: bool = False) -> list[str]:
        """The report, with paths instead of the URLs of http://h."""
        return [line.replace("http://h/", "/") for line in self.report.lines(self, 1.0, brief)]


def finished(crawler: RecordingCrawler) -> RecordingCrawler:
    """Return a finished crawler. It has left nothing behind, and has emitted each URL once."""
    assert not crawler.in_flight
    assert crawler.num_waiting() == 0
    assert get_running_loop().tasks == {crawl.current_task()}
    assert len(crawler.records) == len(crawler.emitted)
    return crawler


def crawler_and_task(site: Site | SimulatedClient, *roots: str,
                     **options: Any) -> tuple[RecordingCrawler, Any]:
    """Begin to crawl a simulated site; return the crawler and its task."""
    client = SimulatedClient(site) if isinstance(site, dict) else site
    crawler = RecordingCrawler([url_of(root) for root in roots or ["/"]], client, **options)
    return crawler, create_task(crawler.crawl())


def crawl_site(site: Site | SimulatedClient, *roots: str, **options: Any) -> RecordingCrawler:
    """Crawl a simulated site from its "/" or from *roots*, with the program's own defaults."""

    async def main() -> RecordingCrawler:
        crawler, task = crawler_and_task(site, *roots, **options)
        await task
        return finished(crawler)

    result: RecordingCrawler = play(main())
    return result


def crawl_with_journal(path: pathlib.Path, site: Site, *roots: str, stop_after: int = 0,
                       **options: Any) -> RecordingCrawler:
    """Crawl a simulated site, continuing a journal; perhaps *stop_after* so many requests."""

    async def main() -> RecordingCrawler:
        with contextlib.closing(crawl.Journal(str(path), resume=True)) as journal:
            crawler, task = crawler_and_task(site, *roots, journal=journal, **options)
            while stop_after and not task.done() and len(crawler.client.requests) < stop_after:
                await sleep(0.01)
            if stop_after:
                task.cancel()
            with contextlib.suppress(crawl.CancelledError):
                await task
        return crawler

    result: RecordingCrawler = play(main())
    return result


def crawl_servers(*roots: str, loop: crawl.EventLoop | None = None,
                  **options: Any) -> RecordingCrawler:
    """Crawl real servers, perhaps in a *loop* that measures."""

    async def main() -> RecordingCrawler:
        crawler = RecordingCrawler(roots, **options)
        await crawler.crawl()
        return finished(crawler)

    return crawl.run(main(), loop_factory=lambda: loop or crawl.EventLoop())


def project_file(name: str) -> str:
    """Return a file of the project."""
    return (HERE / name).read_text("utf-8")


def slow_answer(seconds: float, body: str = "", status: int = 200,
                **headers: str) -> tuple[int, dict[str, Any], str]:
    """An answer that takes so many seconds."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, {"seconds": seconds} | fields, body


def too_many_requests(after: str = "") -> tuple[int, dict[str, Any], str]:
    """A 429, with its Retry-After."""
    return 429, {"retry-after": after}, ""


def request_times(crawler: RecordingCrawler, path: str) -> list[float]:
    """Return the times at which a path was requested."""
    return [moment for moment, other in crawler.client.requests if other == path]


CSS = "text/css"


def answer_of_type(content_type: str,
                   body: str | bytes = "") -> tuple[int, dict[str, Any], str | bytes]:
    """An answer of some type."""
    return 200, {"content-type": content_type}, body


ZOO: Site = {  # which the essays of crawl.py crawl, from section 12 on
    "http://zoo.org/robots.txt": "User-agent: *\nDisallow: /staff/",
    "http://zoo.org/": "<a href=/cats/><a href=/birds#owl>"
    "<a href=http://cam.org/lion><img src=/map.png>",
    "http://zoo.org/cats/": "<a href=/map.png><a href=/staff/keys><img src=http://cam.org/lion>",
    "http://zoo.org/birds": "<p id=parrot>",
    "http://zoo.org/map.png": answer_of_type("image/png"),
    "http://cam.org/lion": "-> http://cam.org/lion.jpg"}


def site_of_pages(count: int) -> Site:
    """A site of *count* pages, all linked from the root of http://h."""
    links = "".join(f"<a href=/{number}>" for number in range(1, count))
    return {f"/{number}": "" for number in range(1, count)} | {"/": links}


def request_gaps(crawler: RecordingCrawler) -> list[float]:
    """Return the seconds between one request and the next."""
    moments = [moment for moment, _ in crawler.client.requests]
    return [after - before for before, after in zip(moments, moments[1:])]


def run_program(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run crawl.py as a user does."""
    return subprocess.run(
        [sys.executable, str(HERE / "crawl.py"), *arguments], capture_output=True,
        text=True, timeout=60, **options)


def run_main(*arguments: str) -> tuple[int, str, str]:
    """Run main; return its status and its output on stdout and stderr."""
    with (
            contextlib.redirect_stdout(io.StringIO()) as out,
            contextlib.redirect_stderr(io.StringIO()) as err):
        status = crawl.main(list(arguments))
    return status, out.getvalue(), err.getvalue()


def journal_lines(path: pathlib.Path) -> list[dict[str, Any]]:
    """Return the records of a journal."""
    return [json.loads(line) for line in path.read_text().splitlines()]


class Expression(NamedTuple):
    """A regular expression of crawl.py, and the method of re.Pattern by which it is used."""

    pattern: re.Pattern[Any]
    method: str

    def seconds(self, text: str) -> float:
        """Return the processor time that the expression needs for a text: the best of three.

        A time below 10 ms is not measured again: it is never too long.
        """
        subject: Any = text.encode() if isinstance(self.pattern.pattern, bytes) else text
        arguments = [subject[:0], subject] if self.method == "sub" else [subject]
        times = list[float]()
        while len(times) < 3 and (not times or times[0] > 0.01):
            began = time.process_time()
            found = getattr(self.pattern, self.method)(*arguments)
            if self.method == "finditer":
                collections.deque(found, maxlen=0)
            times.append(time.process_time() - began)
        return min(times)


# The expressions that crawl.py has as text, or in local variables. (`pattern` is the user's own.)
EXPRESSIONS_BY_NAME: dict[str, list[str]] = {
    "tags": [crawl._HTML_TAGS, crawl._XML_TAGS], "pattern": []}


def expressions() -> list[Expression]:
    """Return every regular expression of crawl.py, with each method by which it is used."""
    names = vars(crawl)
    found = dict[Expression, None]()
    used = set[re.Pattern[Any]]()
    for node in ast.walk(ast.parse((HERE / "crawl.py").read_text("utf-8"))):
        match node:
            case ast.Call(ast.Attribute(ast.Name("re"), "compile"), [ast.Name(name), *_]):
                patterns = [re.compile(text, crawl._FLAGS) for text in EXPRESSIONS_BY_NAME[name]]
                method = "findall"
            case ast.Call(ast.Attribute(ast.Name("re"), method), [first, *_]) if method in (
                    "match", "fullmatch", "search", "findall", "finditer", "sub", "split"):
                patterns = [re.compile(eval(ast.unparse(first), names))]
            case ast.Call(ast.Attribute(ast.Name(name), method)) if isinstance(
                    names.get(name), re.Pattern):
                patterns = [names[name]]
            case _:
                continue
        for pattern in patterns:
            used.add(pattern)
            found[Expression(pattern, method)] = None
    for value in names.values():  # those that are passed on, or stand in a list
        for pattern in value if isinstance(value, list) else [value]:
            if isinstance(pattern, re.Pattern) and pattern not in used:
                found[Expression(pattern, "finditer")] = None
    return list(found)


def text_of(tree: Any, rng: random.Random) -> str:
    """Return a text that a parsed expression, or a part of it, may match."""
    text = ""
    for code, value in tree:
        match str(code):
            case "LITERAL":
                text += chr(value)
            case "RANGE":
                text += chr(rng.choice(value))
            case "IN" if str(value[0][0]) != "NEGATE":
                text += text_of([rng.choice(value)], rng)
            case "CATEGORY":
                text += " " if str(value) == "CATEGORY_SPACE" else "a"
            case "BRANCH":
                text += text_of(rng.choice(value[1]), rng)
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                least, most, inner = value
                for _ in range(min(max(least, rng.randrange(3)), most)):
                    text += text_of(inner, rng)
            case "SUBPATTERN":
                text += text_of(value[-1], rng)
            case "ATOMIC_GROUP":
                text += text_of(value, rng)
            case "ASSERT" | "ASSERT_NOT":
                text += rng.choice(["", text_of(value[1], rng)])
            case "GROUPREF_EXISTS":
                text += text_of(value[1], rng)
            case "ANY" | "IN" | "NOT_LITERAL":
                text += rng.choice("ab0 <-")
            case "AT" | "GROUPREF":
                pass
            case unknown:
                raise NotImplementedError(unknown)
    return text


def parts_of(tree: Any) -> Iterator[Any]:
    """Yield a parsed expression and all its parts."""
    if isinstance(tree, re._parser.SubPattern):  # type: ignore[attr-defined]
        yield tree
    if isinstance(tree, (re._parser.SubPattern, tuple, list)):  # type: ignore[attr-defined]
        for part in tree:
            yield from parts_of(part)


def check_linear(expression: Expression, size: int, texts: int, rng: random.Random) -> None:
    """Check that the time that an expression needs is linear in the size of a text.

    The *texts* repeat a piece, up to *size* characters: what parts of the expression match, or a
    few of the characters that stand in it. For <a (?:b|c)*> a text may be "<a " + 1000 * "bc", and
    then with 2000 * "bc": the time may not be more than three times that of the half.
    """
    pattern = expression.pattern
    tree = re._parser.parse(pattern.pattern, pattern.flags)  # type: ignore[attr-defined]
    parts = list(parts_of(tree))
    letters = sorted({"a", " ", *"".join(text_of(part, rng) for part in parts)})
    for number in range(texts):
        before, after, *pieces = (text_of(rng.choice(parts), rng) for _ in range(5))
        piece = "".join(pieces[: rng.randrange(1, 4)])[:200] or "a"
        if number % 2:
            piece = "".join(rng.choices(letters, k=rng.randrange(1, 7)))
        before *= rng.randrange(2)
        after *= rng.randrange(2)
        half = 16  # the size is doubled from here, so that an exponential time is noticed early
        expected = 0.0
        while half <= size:
            text = before + piece * (half // len(piece)) + after
            seconds = expression.seconds(text)
            noise = 1e-7 * size  # 10 ms for 100 KB: the time of a shorter text is not compared
            for _ in range(5):  # on a busy machine, measure both again
                if seconds < noise or seconds <= 3 * expected:
                    break
                expected = max(expected, expression.seconds(text[: len(text) // 2]))
                seconds = min(seconds, expression.seconds(text))
            assert seconds < noise or seconds <= 3 * expected, (
                f"twice the text takes {seconds / (expected or 0.001):.0f} times as long: "
                f"{before!r} + {half // len(piece)} * {piece!r} + {after!r}")
            half *= 2
            expected = max(seconds, noise / 3)


@contextlib.contextmanager
def linear_time() -> Iterator[None]:
    """Fail if the block takes seconds of CPU time. Linear code takes milliseconds."""
    began = time.process_time()
    yield
    assert time.process_time() - began < 5


def check_claim(claim: Callable[[list[Any]], object], parts: list[Any]) -> None:
    """Check a claim about a list of parts. If it fails, print the fewest parts that fail."""

    def fails(some: list[Any]) -> bool:
        try:
            claim(some)
        except Exception:
            return True
        return False

    if fails(parts):
        size = len(parts)
        while size:
            for start in range(len(parts) - size, -1, -size):
                if fails(fewer := parts[:start] + parts[start + size :]):
                    parts = fewer
            size //= 2
        print("it fails for", *parts, sep="\n    ")
        claim(parts)


class CountingLoop(crawl.EventLoop):
    """Calls *then* before the callback or step with the number *at*, counted from now."""

    at, then = 0, staticmethod(lambda: None)

    def _run(self, entry: Any) -> None:
        self.at -= 1
        if self.at == 0:
            self.then()
        super()._run(entry)


class MeteredLoop(crawl.EventLoop):
    """A loop that notes how long its longest callback kept the processor, in seconds."""

    longest = 0.0

    def _run(self, entry: Any) -> None:
        began = time.thread_time()
        super()._run(entry)
        self.longest = max(self.longest, time.thread_time() - began)


def output_of(program: str, path: pathlib.Path) -> str:
    """Run a program that lies beside crawl.py. Return its stdout; it must not print on stderr."""
    (path / "crawl.py").symlink_to(HERE / "crawl.py")
    (path / "program.py").write_text(textwrap.dedent(program))
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=path, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.stdout


def say_nothing(connection: socket.socket, request: str = "") -> None:
    """Say nothing until the client leaves."""
    connection.recv(1)


def answer_and(data: bytes,
               then: Callable[[socket.socket], None]) -> Callable[[socket.socket, str], None]:
    """Answer with *data* and do something *then*."""

    def answer(connection: socket.socket, request: str) -> None:
        connection.sendall(data)
        then(connection)

    return answer


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
GZIPPED = gzip.compress(b"zipped")


def with_body(body: bytes, *fields: bytes) -> bytes:
    """Return a response of *body* and its length, with other *fields*."""
    head = OK + b"".join(field + b"\r\n" for field in fields)
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def terminal_output(*arguments: str, columns: int = 80, stream: str = "stdout",
                    shown: bytearray | None = None) -> str:
    """Run main with stdout (or stderr) on a pseudo-terminal. Return its output, also in *shown*."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    shown = bytearray() if shown is None else shown

    def watch() -> None:
        with contextlib.suppress(OSError):  # EIO is how a terminal ends
            while True:
                shown.extend(os.read(ours, 65536))

    watcher = threading.Thread(target=watch)
    watcher.start()
    with open(theirs, "w") as terminal, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", io.StringIO())
        patch.setattr(sys, "stderr", io.StringIO())
        patch.setattr(sys, stream, terminal)
        crawl.main(list(arguments))
    watcher.join()
    os.close(ours)
    return shown.decode().replace("\r\n", "\n")


def run_in_shell(script: str, *arguments: str, shell: Sequence[str] = ("/bin/sh",),
                 **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell, in which `crawl` runs crawl.py, in an otherwise empty environment."""
    script = f'crawl() {{ "$PYTHON" "$CRAWL" "$@"; }}; {script}'
    environment |= {"PYTHON": sys.executable, "CRAWL": str(HERE / "crawl.py")}
    return subprocess.run(
        [*shell, "-c", script, "sh", *arguments], capture_output=True, text=True,
        encoding="utf-8", timeout=60, env={"PATH": os.defpath} | environment)


def interrupted_crawl(site: Server, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start a crawl of a page that links to a silent one; return when that is in flight."""
    asked = threading.Event()

    def ask(connection: socket.socket, request: str) -> None:
        asked.set()
        say_nothing(connection)

    site.add("/", "<a href=/silent><a href=/next>")
    site.answers["/silent"] = site.answers["/next"] = ask
    process = subprocess.Popen(
        [sys.executable, str(HERE / "crawl.py"), site.url, *arguments], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    assert asked.wait(60)
    return process


class JumpingAsyncioLoop(asyncio.SelectorEventLoop):
    """asyncio's event loop on a clock that jumps."""

    def __init__(self) -> None:
        self.clock = JumpingSelector()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


Plan = list[tuple[Any, ...]]


KINDS = ["put", "get", "get", "join", "sleep", "sleep", "fail", "cancel", "gather", "gather",
         "finally"]
if sys.version_info >= (3, 11, 7):  # before, asyncio's did not count earlier cancellations
    KINDS += ["timeout", "timeout"]
if sys.version_info >= (3, 13):  # before, asyncio's took nothing back
    KINDS += ["uncancel"]


def random_plan(rng: random.Random, depth: int = 0) -> Plan:
    """Return random steps for a task: a few waits, some nested; no two end at the same moment."""
    plan: Plan = []
    for _ in range(rng.randrange(1, 5)):
        kind = rng.choice(KINDS)
        if kind in ("timeout", "gather", "finally"):
            if depth < 2:
                # asyncio.timeout(0) swallows a cancellation that is on its way; crawl.timeout(0)
                # does not.
                delays = (rng.random() * 2,) if kind == "timeout" else (0, rng.random() * 2)
                plan.append((
                    kind, rng.randrange(4), rng.choice(delays),
                    [random_plan(rng, depth + 1) for _ in range(1 + (kind == "gather"))]))
        else:
            plan.append((kind, rng.randrange(4), rng.choice((0, rng.random() * 2))))
    return plan


class Performance:
    """One run of a made-up program under *lib*: some tasks and two queues.

    A program has a Plan for each task, and a plan a tuple for each step: [("sleep", 0, 1.5),
    ("put", 1, 0)] sleeps for 1.5 s, and then puts an item into the second queue."""

    def __init__(self, lib: Any, log: Callable[..., None]) -> None:
        self.lib, self.log, self.began = lib, log, lib.get_running_loop().time()
        self.queues: list[Any] = [lib.Queue(1), lib.Queue()]
        self.tasks: list[Any] = []

    async def run(self, program: list[Plan]) -> None:
        """Perform the program; what is not done after 100 seconds is cancelled until it is."""
        for number, plan in enumerate(program):
            self.tasks.append(self.lib.create_task(self.act(str(number), plan)))
        await self.lib.sleep(100)
        while not all(task.done() for task in self.tasks):
            for task in self.tasks:
                task.cancel()
            await self.lib.sleep(10)
        self.log(
            [task.cancelled() or type(task.exception()).__name__ for task in self.tasks],
            [queue.qsize() for queue in self.queues])

    async def act(self, name: str, plan: Plan) -> str:
        """Do one step after the other, and log how and when each ended."""
        for number, (kind, what, *rest) in enumerate(plan):
            try:
                outcome = await self.do(f"{name}.{number}", kind, what, *rest)
            except (TimeoutError, KeyError, self.lib.CancelledError) as error:
                outcome = error
            seconds = self.lib.get_running_loop().time() - self.began
            self.log(name, number, kind, outcome, round(seconds, 6))
            if isinstance(outcome, (KeyError, self.lib.CancelledError)) and what:
                raise outcome
        return name

    async def do(self, name: str, kind: str, what: int, delay: float,
                 inner: Sequence[Plan] = ()) -> Any:
        """Perform one step of a plan, and return an entry for the transcript."""
        queue = self.queues[what % 2]
        match kind:
            case "put":
                return await queue.put(name)
            case "get":
                item = await queue.get()
                queue.task_done()
                return item
            case "join":
                return await queue.join()
            case "sleep":
                return await self.lib.sleep(delay)
            case "fail":
                raise KeyError(name)
            case "cancel":
                return self.tasks[what % len(self.tasks)].cancel()
            case "uncancel":
                return self.lib.current_task().uncancel()
            case "timeout":
                async with self.lib.timeout(delay):
                    return await self.act(name, inner[0])
            case "gather":
                parts = [
                    self.lib.create_task(self.act(name + letter, part))
                    for letter, part in zip("ab", inner)]
                self.tasks.extend(parts)
                return await self.lib.gather(*parts, return_exceptions=what > 1)
            case _:  # a clean-up that waits
                try:
                    await self.act(name, inner[0])
                finally:
                    await self.lib.sleep(delay)


@pytest.fixture
def loop() -> Any:
    """A loop on a clock that jumps; what is reported to it a test has to expect, and to clear."""
    loop = JumpingLoop()
    yield loop
    loop.close()
    assert loop.reported == []


@pytest.fixture
def rng() -> random.Random:
    """The random numbers of a test. A failing test shows its SEED; setting it repeats the test."""
    seed = os.environ.get("SEED", "1")
    print(f"SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry almost immediately."""
    monkeypatch.setattr(crawl, "BACKOFF", 0.0001)


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
    """A listening socket whose backlog is full: a connect to it waits."""
    with (
            socket.create_server(("127.0.0.1", 0), backlog=0) as server,
            socket.create_connection(server.getsockname())):
        yield server


@pytest.fixture
def closed() -> int:
    """A port on which no server listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def silent_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A name server that answers only after the test, and without an address."""
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
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    text = CERTIFICATE.partition("-----END PRIVATE KEY-----\n")[2]
    with server_with_certificate(text, path) as server:
        yield server


@contextlib.contextmanager
def server_with_certificate(text: str, path: pathlib.Path) -> Iterator[Server]:
    """A web server on https://localhost with a certificate; *path* holds it for SSL_CERT_FILE."""
    path.write_text(CERTIFICATE.partition("-----BEGIN CERT")[0] + text)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path)
    with contextlib.closing(Server(context)) as server:
        yield server


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Make a temporary folder the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def no_garbage_collector() -> Iterator[None]:
    """Switch the garbage collector off: only reference counts free objects."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def no_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test depend on a name server: only localhost and addresses exist."""
    original = socket.getaddrinfo

    def local_names(host: bytes | str, *rest: Any, **more: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if re.search("[a-z]", name) and name != "localhost" and ":" not in name:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return original(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", local_names)


@pytest.fixture(autouse=True)
def fresh_tls_context() -> None:
    """Let each test decide, by SSL_CERT_FILE, which certificates are trusted."""
    crawl._tls_context.cache_clear()


@pytest.fixture(autouse=True)
def no_leaks() -> Generator[None, None, None]:
    """Fail a test that leaves a descriptor or a thread behind."""
    before = len(os.listdir("/dev/fd")), threading.active_count()
    yield
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(5)
    assert (len(os.listdir("/dev/fd")), threading.active_count()) == before
