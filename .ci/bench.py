# SPDX-FileCopyrightText: 2026 The crawl.py authors
# SPDX-License-Identifier: 0BSD
"""make bench: crawl.py beside what the standard library offers, as ratios.

One site, served by another process on crawl.py's own event loop, is crawled in turns by crawl.py,
by asyncio streams with crawl.py's extractor, and by threads with urllib and html.parser. Then the
event loop takes turns with asyncio's. Each figure is the median of some rounds, and each round is
a process of its own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import datetime
import html.parser
import os
import pathlib
import platform
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
import tracemalloc
import urllib.parse
import urllib.request
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import crawl

PAGES, LINKS, WORKERS, ROUNDS = 2000, 60, 10, 5
LATE = 0.1  # seconds before each answer of the second server


# The site


def spans() -> str:
    """Return a listing such as real documentation is full of: 500 short tags without a link."""
    line = '<span class="k">def</span> <span class="nf">name</span><span class="p">(</span>\n'
    return f'<div class="highlight"><pre>{line * 166}</pre></div>'


def page(number: int) -> str:
    """Return the body of one page: some 13 KB of text with links, on each third with a listing."""
    rng = random.Random(number)
    parts = [
        "<!DOCTYPE html><html><head><title>A page</title>"
        "<link rel=stylesheet href=/x.css></head><body>"]
    for step in range(LINKS):
        other = (number * 10 + step) % PAGES if step < 10 else rng.randrange(PAGES)
        href = rng.choice(
            ('/p{}.html', 'p{}.html', './p{}.html', '/p{}.html#part', 'http://{host}/p{}.html'))
        parts.append(
            f'<li><p>{"some words " * 14}'
            f'<a class="link" href="{href.replace("{}", str(other))}">more</a></p></li>')
    listing = spans() if number % 3 == 0 else ""
    return "".join(parts) + listing + "</body></html>"


def serve(listener: socket.socket, late: float) -> None:
    """Answer every request, *late* seconds late; one event loop of crawl.py's for all of them."""
    host = "localhost:%d" % listener.getsockname()[1]
    answers = dict[bytes, bytes]()
    for number in range(PAGES):
        body = page(number).replace("{host}", host).encode()
        answers[f"/p{number}.html".encode()] = (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(body)
            + body)
    missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    loop = crawl.EventLoop()

    def accept() -> None:
        connection, _ = listener.accept()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)  # an answer fits at once
        loop.add_reader(connection, answer, connection)

    def answer(connection: socket.socket) -> None:
        try:
            request = connection.recv(65536)
        except ConnectionError:
            request = b""
        text = answers.get(request.split(b" ", 2)[1], missing) if request else b""
        if text and late:
            loop.call_later(late, connection.send, text)
        elif text:
            connection.send(text)
        else:
            loop.remove_reader(connection)
            connection.close()

    listener.setblocking(False)
    loop.add_reader(listener, accept)
    print(host, flush=True)
    loop.run_forever()


# Three crawlers; each returns the number of pages


def crawl_py(root: str, workers: int = WORKERS, most: int = PAGES) -> int:
    """The crawler of crawl.py, which reads at most so many pages."""

    async def main() -> int:
        report = crawl.Report()
        await crawl.Crawler(
            [root], max_tasks=workers, max_pages=most, pages_only=True,
            on_record=report.add).crawl()
        return report.pages

    return crawl.run(main())


def streams(root: str) -> int:
    """asyncio's streams, one connection for each worker, and crawl.py's extractor."""
    url = crawl.parse_url(root)
    seen = {root}
    queue = asyncio.Queue[crawl.URL]()
    meanings = dict[str, crawl.URL]()

    async def worker() -> None:
        reader, writer = await asyncio.open_connection(url.host, url.port, limit=1 << 20)
        while True:
            target = await queue.get()
            writer.write(f"GET {target.target} HTTP/1.1\r\nHost: {url.origin[7:]}\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = int(head.partition("content-length:")[2].partition("\r\n")[0])
            text, _ = crawl.decode_page(await reader.readexactly(length), "text/html")
            for link in crawl.read_markup(text).links:
                if link not in meanings:
                    meanings[link] = crawl.parse_url(link, target)
                if str(meanings[link]) not in seen:
                    seen.add(str(meanings[link]))
                    queue.put_nowait(meanings[link])
            queue.task_done()

    async def main() -> None:
        queue.put_nowait(url)
        workers = [asyncio.create_task(worker()) for _ in range(WORKERS)]
        await queue.join()
        for task in workers:
            task.cancel()

    asyncio.run(main())
    return len(seen)


class Links(html.parser.HTMLParser):
    """Collects the links of a page."""

    def __init__(self, base: str) -> None:
        super().__init__()
        self.base = base
        self.found = set[str]()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            for name, value in attributes:
                if name == "href" and value is not None:
                    self.found.add(
                        urllib.parse.urldefrag(urllib.parse.urljoin(self.base, value))[0])


def threads(root: str) -> int:
    """A pool of threads, urllib.request, html.parser and urljoin."""
    seen, lock, left, done = {root}, threading.Lock(), 1, threading.Event()

    def work(url: str) -> None:
        nonlocal left
        with urllib.request.urlopen(url) as response:
            parser = Links(url)
            parser.feed(response.read().decode())
        with lock:
            fresh = parser.found - seen
            seen.update(fresh)
            left += len(fresh) - 1
            if left == 0:
                done.set()
        for link in fresh:
            pool.submit(work, link)

    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        pool.submit(work, root)
        done.wait()
    return len(seen)


# Six measures of an event loop. Each takes a module, crawl or asyncio, and returns how many there
# are in a second, or bytes.


def timed(count: int, main: Callable[[], Coroutine[Any, Any, None]], module: Any) -> float:
    async def run() -> float:
        began = time.perf_counter()
        await main()
        return time.perf_counter() - began

    seconds: float = module.run(run())
    return count / seconds


def switches(module: Any) -> float:
    async def spin() -> None:
        for _ in range(1000):
            await module.sleep(0)

    async def main() -> None:
        await module.gather(*[spin() for _ in range(100)])

    return timed(100_000, main, module)


def spawns(module: Any) -> float:
    async def nothing() -> None:
        pass

    async def main() -> None:
        for _ in range(100):
            await module.gather(*[nothing() for _ in range(300)])

    return timed(30_000, main, module)


def timeouts(module: Any) -> float:
    async def main() -> None:
        for _ in range(30_000):
            async with module.timeout(10):
                pass

    return timed(30_000, main, module)


def handovers(module: Any) -> float:
    async def main() -> None:
        there, back = module.Queue(), module.Queue()

        async def echo() -> None:
            while True:
                await back.put(await there.get())

        module.create_task(echo())
        for number in range(15_000):
            await there.put(number)
            await back.get()

    return timed(30_000, main, module)


def echoes(module: Any) -> float:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        near: Any = ours
        far: Any = theirs
        if module is crawl:
            near, far = crawl.Stream(ours), crawl.Stream(theirs)

        async def pass_on(end: Any, data: bytes = b"") -> bytes:
            """Send data, if there is any, and return what the other end sends."""
            if isinstance(end, crawl.Stream):
                if data:
                    end.write(data)
                    await end.drain()
                return await end.read()
            loop = asyncio.get_running_loop()
            if data:
                await loop.sock_sendall(end, data)
            return await loop.sock_recv(end, 65536)

        async def echo() -> None:
            data = await pass_on(far)
            while True:
                data = await pass_on(far, data)

        task = module.create_task(echo())
        for _ in range(5000):
            await pass_on(near, b"x" * 100)
        task.cancel()
        await module.sleep(0)
        near.close()
        far.close()

    return timed(10_000, main, module)


def bytes_per_sleeper(module: Any) -> float:
    async def main() -> float:
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        tasks = [module.create_task(module.sleep(1000)) for _ in range(5000)]
        await module.sleep(0)
        used = tracemalloc.get_traced_memory()[0] - before
        for task in tasks:
            task.cancel()
        return used / 5000

    used: float = module.run(main())
    return used


# Taking turns

CRAWLERS = {"crawl.py": crawl_py, "asyncio streams": streams, "threads, urllib": threads}
MEASURES = {
    "task switches a second": switches,
    "tasks spawned a second": spawns,
    "timeouts a second": timeouts,
    "queue hand-overs a second": handovers,
    "socket echoes a second": echoes,
    "bytes a sleeping task": bytes_per_sleeper}


def run(*arguments: str) -> str:
    """Run this file in a process of its own, and return what it prints."""
    return subprocess.run(
        [sys.executable, __file__, *arguments], stdout=subprocess.PIPE, check=True, text=True
    ).stdout


def medians(names: Iterable[str], arguments: Callable[[str], tuple[str, ...]]
            ) -> dict[str, float]:
    """Measure each name in turns, and return its median."""
    rounds = [{name: float(run(*arguments(name))) for name in names} for _ in range(ROUNDS)]
    return {name: statistics.median(figures[name] for figures in rounds) for name in names}


def pin(core: int) -> None:
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {core})


@contextlib.contextmanager
def serving(late: float) -> Iterator[str]:
    """Yield the root of a server's site."""
    server = subprocess.Popen(
        [sys.executable, __file__, "serve", str(late)], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield f"http://{server.stdout.readline().strip()}/p0.html"
    finally:
        server.kill()
        server.wait()


def main() -> None:
    with serving(0) as root:
        print(
            f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, "
            f"one core, "
            f"{datetime.date.today()}; {PAGES} pages, {WORKERS} at a time, medians of {ROUNDS}\n")
        figures = medians(CRAWLERS, lambda name: ("crawl", name, root))
        print("| crawler | pages a second | ratio |\n|---|--:|--:|")
        for name, figure in figures.items():
            print(f"| {name} | {figure:,.0f} | {figure / figures['asyncio streams']:.2f} |")
        print("\n| event loop | crawl.py | asyncio | ratio |\n|---|--:|--:|--:|")
        for name in MEASURES:
            figures = medians(["crawl", "asyncio"], lambda module: ("loop", name, module))
            print(
                f"| {name} | {figures['crawl']:,.0f} | {figures['asyncio']:,.0f} | "
                f"{figures['crawl'] / figures['asyncio']:.2f} |",
                flush=True)
    with serving(LATE) as root:
        print(
            f"\n| pages that come after {LATE:g} s | a second | of the time idle |\n|---|--:|--:|")
        for workers, most in (1, 100), (100, PAGES):
            rate, idle = map(float, run("late", root, str(workers), str(most)).split())
            print(f"| {workers} at a time | {rate:,.1f} | {idle:.1%} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        pin(0)
        serve(socket.create_server(("127.0.0.1", 0), backlog=128), float(sys.argv[2]))
    elif sys.argv[1:2] == ["crawl"]:
        pin(1)
        began = time.perf_counter()
        pages = CRAWLERS[sys.argv[2]](sys.argv[3])
        assert pages == PAGES, pages
        print(pages / (time.perf_counter() - began))
    elif sys.argv[1:2] == ["late"]:
        pin(1)
        began, busy = time.perf_counter(), time.process_time()
        pages = crawl_py(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        seconds = time.perf_counter() - began
        print(pages / seconds, 1 - (time.process_time() - busy) / seconds)
    elif sys.argv[1:2] == ["loop"]:
        pin(1)
        print(MEASURES[sys.argv[2]](crawl if sys.argv[3] == "crawl" else asyncio))
    else:
        main()
