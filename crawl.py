#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# ///
# SPDX-FileCopyrightText: 2026 The crawl.py authors
# SPDX-License-Identifier: 0BSD
"""A web crawler in one file, written from the event loop up.

    python3 crawl.py xkcd.com

crawls a site: it follows the links that stay on the site, and reports what is broken. (With
./public instead of a URL, it checks the files of a folder before they are published.)
The file is also a library: a small typed asyncio, with an HTTP client and a crawler built on it:

    import crawl

    async def main():
        page = await crawl.fetch("http://localhost:8765/")
        print(page.status, len(page.body))

    crawl.run(main())

The file also explains both: it is meant to be read from here to the end. Good places to rest are
after sections 8 and 11. In an hour you can read sections 2 to 4, which lead from callbacks to
coroutines. A first reading, of half a day, is sections 2 to 8, 11, 17, 18, 21 and 22.

     1  Names            the public names, and what is used everywhere
     2  Event loop       callbacks: now, later, when a socket is ready
     3  Future           a result that is not available yet
     4  Task             a coroutine, driven by the futures it waits for
     5  Waiting          sleep, timeout, gather, threads
     6  Running          from the first task to the last, and Ctrl-C
     7  Queue            work to do, and knowing when all of it is done; semaphores
     8  Streams          names, connections, TLS, bytes
     9  URLs             one spelling for each address
    10  HTTP messages    from bytes to responses
    11  HTTP client      connections that are kept and reused
    12  Documents        what stylesheets and sitemaps refer to
    13  Links            what a page refers to, and how bytes become text
    14  Records          the outcome of each URL
    15  Scope            the options of a crawl, and which URLs belong to it
    16  Robots           what a site asks of crawlers
    17  Sites            request rates and robots.txt, origin by origin
    18  Frontier         each URL once, however many pages refer to it
    19  References       the URLs of a page, found without parsing each
    20  Fragments        the anchors of pages, and the links to them
    21  Requests         robots.txt, the journal, the server, retries
    22  Crawler          workers and rounds
    23  Journal          a file that remembers the outcome of each URL
    24  Report           the problems, by kind and by URL
    25  Command line     and, at the end, the path of a Ctrl-C through the whole file

You need to have used a generator in a `for` loop, and sockets to connect, send and receive. You
need to know what HTTP is for. From section 9 on you also need regular expressions.
"""

from __future__ import annotations  # annotations are not evaluated, so they may use later names
import sys

if sys.platform == "win32" or sys.version_info < (3, 11):
    sys.exit("crawl.py needs Python 3.11 or later on Linux or macOS (on Windows: WSL)")

import argparse
import codecs
import errno
import fcntl
import heapq
import html
import io
import itertools
import json
import math
import mimetypes
import os
import re
import select
import selectors
import shlex
import signal
import socket
import ssl
import threading
import time
import unicodedata
import zlib
from array import array
from builtins import TimeoutError as TimeoutError  # "X as X" lets importers find the name here
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import (
    Awaitable, Callable, Collection, Coroutine, Generator, Iterable, Iterator)
from contextlib import ExitStack, closing, suppress
from contextvars import copy_context
from functools import lru_cache, partial
from html.entities import html5
from selectors import EVENT_READ, EVENT_WRITE
from types import GeneratorType, coroutine
from typing import (
    Any, Concatenate, Generic, NamedTuple, NoReturn, ParamSpec, TypeVar, cast)
from urllib.parse import quote, unquote, unquote_to_bytes

# 1  Names
# ========

__all__ = [
    "run", "create_task", "current_task", "get_running_loop",           # a small asyncio
    "sleep", "timeout", "wait_for", "gather", "to_thread",
    "Queue", "QueueEmpty", "QueueFull", "Semaphore",
    "Future", "Task", "EventLoop",
    "CancelledError", "InvalidStateError", "coroutine", "DeadlockError",
    "connect", "Stream",
    "fetch", "Client", "Response", "ResponseParser",                    # HTTP
    "ProtocolError", "LimitError",
    "parse_url", "URL",                                                 # parsers
    "read_markup", "read_stylesheet", "Markup", "Robots",
    "Crawler", "CrawlError", "Options",                                 # a crawler
    "Record", "Page", "Journal", "Report"]

T = TypeVar("T")
P = ParamSpec("P")
Callback = Callable[..., object]
Coro = Coroutine[Any, Any, T]   # a coroutine that returns a T
Texts = str | Iterable[str]     # one string, or several
VERSION = "4.0"


# 2  Event loop
# =============
# The problem: a crawler spends its life waiting. A page takes some 100 ms to arrive and
# about 1 ms to process, so a crawler that waits for each page in turn idles 99 % of the
# time. Threads can wait in parallel, with one blocking `recv` each. But a thread costs
# tens of kilobytes, and the kernel switches between threads at arbitrary points, so all
# shared state needs a lock.
#
# The idea: ask the kernel to wait for all sockets at the same time. A non-blocking
# socket never waits: `recv` returns the bytes that have arrived, or fails with
# BlockingIOError. The system call that waits, epoll on Linux, takes any number of
# sockets and one deadline, sleeps, and returns the sockets that are readable or
# writable. For each event that it waits for, a program registers a function, the
# callback. The loop sleeps, collects the callbacks that are due, and calls them. That
# is one tick:
#
#        +--> poll: sockets that became ready ------> run their callbacks
#        |    heap: deadlines that have passed --+        |  (which mostly add more)
#        |    call_soon, threads, futures done --+--> ready queue
#        +------------------------ run each once <--------+
#
# The invariants. Callbacks run in one place (`_run`), one at a time, so they need no
# locks. A tick runs the ready queue last, and a callback that is added in the meantime
# waits for the next tick, which polls the sockets first, if any are watched. So a
# callback that adds itself again cannot starve the others. And a loop that has nothing
# to run raises DeadlockError, unless there is a socket, a deadline, another thread or a
# signal handler that could wake it. The cost: a callback that computes for a second
# stops everything for a second.

TIMEOUT_SWEEP = 512  # entries: a smaller heap is not swept for cancelled handles
MAX_WAIT = 1.0       # seconds: the longest sleep. A signal that arrives just before a sleep does
                     # not cut it short, and its handler runs when the sleep ends.
_EXITS = (SystemExit, KeyboardInterrupt)  # they leave the loop; any other exception is reported


class CancelledError(BaseException):
    """The task or future was cancelled.

    It is not an Exception, so `except Exception` does not catch it."""


class DeadlockError(RuntimeError):
    """Every task is waiting, and the loop knows of nothing that could wake one.

    There is no socket, no deadline, no other thread (of the module threading) and no
    signal handler. The message lists each task, and the lines at which its `async def`
    functions wait."""


class Handle:
    """A callback that waits for its turn, for a deadline or for a socket.

    Tasks (§4) have a run() method as well, so both fit into the ready queue."""

    __slots__ = ("callback", "args")

    def __init__(self, callback: Callback, args: tuple[Any, ...]):
        self.callback: Callback | None = callback
        self.args = args

    def run(self) -> None:
        """Call the callback, unless it was cancelled."""
        if self.callback is not None:
            self.callback(*self.args)

    def cancel(self) -> None:
        """Make sure that the callback is not called from now on."""
        self.callback = None
        self.args = ()


class _Running(threading.local):
    loop: EventLoop | None = None  # the loop that runs in this thread


_running = _Running()


def _say(text: str, end: str = "\n") -> None:
    """Print on stderr, if stderr can be written: a terminal that is gone should not end a loop."""
    with suppress(OSError, ValueError):  # ValueError: it was closed
        print(text, end=end, file=sys.stderr)


def get_running_loop() -> EventLoop:
    """Return the event loop that runs in this thread. Raises RuntimeError if there is none."""
    if _running.loop is None:
        raise RuntimeError(
            "no running event loop: call crawl.run(...), or, in an asyncio program, "
            "await asyncio.to_thread(crawl.run, ...), for example with crawl.fetch(url)")
    return _running.loop


def _has_signal_handler() -> bool:
    """Return whether the program has installed a signal handler, which might wake the loop."""
    handlers = map(signal.getsignal, signal.valid_signals())
    return any(callable(handler) and handler.__module__ not in (__name__, "_signal")
               for handler in handlers)


class EventLoop:
    """Waits with *selector* and runs callbacks. Futures (§3) and Tasks (§4) are built on it."""

    def __init__(self, selector: selectors.BaseSelector | None = None):
        self._selector = selector or selectors.DefaultSelector()
        self._ready = deque["Handle | Task[Any]"]()
        # A heap of (deadline, sequence number, handle). The number keeps equal
        # deadlines in order.
        self._timeouts = list[tuple[float, int, Handle]]()
        self._sequence = itertools.count()
        self._sweep_at = TIMEOUT_SWEEP  # the size of the heap at which it is swept
        self._stopping = False
        self.tasks = set["Task[Any]"]()                 # every unfinished Task (§4)
        self.current_task: Task[Any] | None = None      # the Task whose step is running
        # The self-pipe: when a thread or a signal handler writes a byte to it, the loop wakes.
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_sender.setblocking(False)
        self._watched = self._selector.get_map()  # all watched sockets, including the self-pipe
        self.add_reader(self._wake_receiver, self._wake_receiver.recv, 4096)

    def time(self) -> float:
        """Return the time of the loop's clock in seconds. The clock is monotonic."""
        return time.monotonic()

    def call_soon(self, callback: Callback, *args: Any) -> Handle:
        """Call callback(*args) after the callbacks that are already ready.

        The Handle that is returned can cancel the call. Raises RuntimeError if the loop
        is closed."""
        if self.is_closed():
            raise RuntimeError("the event loop is closed")
        handle = Handle(callback, args)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(self, callback: Callback, *args: Any) -> Handle:
        """Do the same as call_soon, from any thread or signal handler: append() is atomic."""
        handle = self.call_soon(callback, *args)
        with suppress(OSError):  # a full pipe wakes the loop as well
            self._wake_sender.send(b"\0")
        return handle

    def call_later(self, delay: float, callback: Callback, *args: Any) -> Handle:
        """Call callback(*args) after *delay* seconds, or soon if *delay* is not positive."""
        return self.call_at(self.time() + delay, callback, *args)

    def call_at(self, deadline: float, callback: Callback, *args: Any) -> Handle:
        """Call callback(*args) once time() has reached *deadline*. Raises ValueError for NaN.

        A cancelled handle stays in the heap until it reaches the top, or until a sweep
        removes it. A sweep comes here, when the heap is large and has doubled since the
        last one: O(1) each, amortised."""
        if math.isnan(deadline):
            raise ValueError(f"a delay or deadline must be a number of seconds, not {deadline!r}")
        handle = Handle(callback, args)
        heapq.heappush(self._timeouts, (deadline, next(self._sequence), handle))
        if len(self._timeouts) >= self._sweep_at:
            self._timeouts[:] = [item for item in self._timeouts if item[2].callback is not None]
            heapq.heapify(self._timeouts)
            self._sweep_at = max(TIMEOUT_SWEEP, 2 * len(self._timeouts))
        return handle

    def add_reader(self, sock: socket.socket, callback: Callback, *args: Any) -> None:
        """Call callback(*args) in every tick in which *sock* is readable.

        This ends when the callback is removed, or replaced by another add_reader()."""
        self._watch(sock, EVENT_READ, Handle(callback, args))

    def add_writer(self, sock: socket.socket, callback: Callback, *args: Any) -> None:
        """Call callback(*args) in every tick in which *sock* is writable, as in add_reader()."""
        self._watch(sock, EVENT_WRITE, Handle(callback, args))

    def remove_reader(self, sock: socket.socket) -> bool:
        """Stop watching for readability. Return whether the socket was watched for that."""
        return self._watch(sock, EVENT_READ)

    def remove_writer(self, sock: socket.socket) -> bool:
        """Stop watching for writability. Return whether the socket was watched for that."""
        return self._watch(sock, EVENT_WRITE)

    def run_forever(self, until: Callable[[], object] = lambda: False) -> None:
        """Tick until stop() is called or *until()* returns true. Raises RuntimeError if the loop
        is closed, or a loop runs in this thread already."""
        if _running.loop is not None or self.is_closed():
            raise RuntimeError("this event loop is closed, or a loop is already running here")
        _running.loop = self
        try:
            while not (self._stopping or until()):
                self.tick()
        finally:
            self._stopping = False
            _running.loop = None

    def tick(self) -> None:
        """Wait until something is ready, then run it. This is the heart of the file.

        Raises DeadlockError, with the where() of each task, if nothing is ready and nothing
        could wake the loop."""
        ready = self._ready
        timeouts = self._timeouts
        while timeouts and timeouts[0][2].callback is None:
            heapq.heappop(timeouts)
        watching = len(self._watched) > 1  # more than the self-pipe
        wait = MAX_WAIT
        if ready:
            wait = 0.0
        elif timeouts:
            wait = min(timeouts[0][0] - self.time(), MAX_WAIT)  # not positive: it has passed
        elif not (watching or threading.active_count() > 1 or ready or _has_signal_handler()):
            # `ready` is tested again: a thread may have called call_soon_threadsafe() after
            # the first test, and then ended.
            raise DeadlockError("every task waits for something that can no longer happen:\n"
                                + "\n".join(task.where() for task in self.tasks))
        # If callbacks are ready and no socket is watched, there is no need to poll: a byte
        # in the self-pipe can wait, because what it announces is in `ready` already.
        # (Polling would make a task switch a third slower.)
        if watching or not ready:
            self._poll(wait)
        while timeouts and timeouts[0][0] <= self.time():
            ready.append(heapq.heappop(timeouts)[2])
        for _ in range(len(ready)):
            self._run(ready.popleft())

    def _poll(self, wait: float) -> None:
        """Wait for about *wait* seconds, or until sockets are ready; then run their callbacks."""
        for key, events in self._selector.select(wait):
            # key.data is the dict that _watch() changes: one callback may remove the next.
            for event in list(key.data):
                if event & events and event in key.data:
                    self._run(key.data[event])

    def _run(self, entry: Handle | Task[Any]) -> None:
        """Run one callback. An error in it does not stop the others: it is reported, with
        the callback or the task. No reference to the entry is left (see the end of §4)."""
        try:
            entry.run()
        except _EXITS:
            raise
        except BaseException as error:
            name = getattr(entry, "callback", entry)
            self.call_exception_handler({"message": f"exception in callback {name!r}",
                                         "exception": error})
        finally:
            del entry

    def stop(self) -> None:
        """Make run_forever() return before the next tick."""
        self._stopping = True

    def is_closed(self) -> bool:
        """Return whether close() was called."""
        return self._wake_sender.fileno() < 0

    def close(self) -> None:
        """Release the loop's sockets. The loop cannot run any more."""
        self._selector.close()
        self._wake_receiver.close()
        self._wake_sender.close()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Print context["message"] and context["exception"], an error that nobody caught."""
        error = context["exception"]
        _say(context["message"])
        with suppress(OSError, ValueError):
            sys.excepthook(type(error), error, error.__traceback__)

    def _watch(self, sock: socket.socket, event: int, handle: Handle | None = None) -> bool:
        """Set the handle of *sock* for an event, or remove it; return whether it had one."""
        key = self._watched.get(sock)
        handles = key.data if key else {}
        before = handles.pop(event, None)
        if handle is not None:
            handles[event] = handle
        events = sum(handles)  # the keys, EVENT_READ (1) and EVENT_WRITE (2), form a bit mask
        if key is None or events != key.events:
            if key:
                self._selector.unregister(sock)
            if events:
                self._selector.register(sock, events, handles)
        return before is not None

    def create_future(self) -> Future[Any]:
        """Return a new pending Future of this loop."""
        return Future(loop=self)

    def create_task(self, coro: Coro[T], *, name: str | None = None) -> Task[T]:
        """Return a new Task that begins to run *coro* soon."""
        return Task(coro, loop=self, name=name)

    def run_until_complete(self, future: Runnable[T]) -> T:
        """Run until a Future or coroutine is done. Return its result or raise its error."""
        waited = future if isinstance(future, Future) else self.create_task(future)
        finished = self.create_future()  # resolved by a callback, so that the others run as well
        waited.add_done_callback(finished.set_result)
        self.run_forever(finished.done)
        return waited.result()


# 3  Future
# =========
# The problem: with callbacks alone, a fetch of connect, send, recv, recv, ... is a
# chain of functions in which each names the next. Loops, `try` and local variables
# cannot span several functions. The idea: a Future is a result that is not available
# yet. The producer sets the result, the consumer waits for it, and neither needs to
# know the other:
#
#                   set_result(x)      -> resolved    result() returns x
#       pending  -- set_exception(e)   -> failed      result() raises e
#                   cancel()           -> cancelled   result() raises CancelledError
#
# A future leaves the pending state once. Its callbacks then go to the ready queue; none
# of them is called immediately.
#
# What is missing is a function that can stop in the middle and later continue where it
# left off. Python has such functions, called generators. A generator's frame (its
# variables, and the line it has reached) has memory of its own and survives. `yield x`
# stops the function where it is, inside its loops and `try` blocks, and x becomes the
# value of the caller's send(). The next send() goes on from there. (next() is
# send(None).) A function that stops in this way is a coroutine. It waits with
# `yield from future`, and is driven like this:
#
#     def fetch():                           waiting = fetch()         none of it has run yet
#         response = yield from future       waiting.send(None)        -> future: it stops here
#         print(response)                    future.set_result("ok")   the response has arrived
#                                            waiting.send(None)        prints ok: StopIteration
#
# `yield from future` runs Future.__iter__ inside the coroutine. __iter__ yields the
# future itself, which comes out of the driver's send(), so the driver sees which future
# the coroutine is waiting for. When that future is done, the driver calls send() again,
# and the value that __iter__ then returns is the value of the `yield from` expression.
#
# Errors are not lost: an exception that nobody retrieves is reported when its future is
# freed, normally as soon as nothing refers to the future. These are not reported:
#
#     a cancellation, as in asyncio
#     SystemExit and KeyboardInterrupt, which leave the loop
#     an error that a gather() does not raise
#     an error that reaches a task in the same tick as its cancellation
#     an error in a thread whose to_thread() was cancelled, or whose loop has ended

class InvalidStateError(RuntimeError):
    """The operation is not valid in the current state of the future."""


class _Failure:
    """The exception of a failed future. If nobody retrieves it, __del__ reports it."""

    def __init__(self, exception: BaseException, future: Future[Any]):
        self.loop = future._loop
        self.exception = exception
        self.traceback = exception.__traceback__
        self.message = f"the exception of {future} was never retrieved"
        self.retrieved = isinstance(exception, (CancelledError, *_EXITS))  # never reported

    def __del__(self) -> None:
        if not self.retrieved:
            self.loop.call_exception_handler({"message": self.message, "exception": self.exception})


class Future(Generic[T]):
    """A result that is not available yet: pending, then resolved, failed or cancelled.

    A future belongs to one loop and to the thread of that loop."""

    __slots__ = ("_loop", "_state", "_result", "_failure", "_callbacks", "__weakref__")

    def __init__(self, *, loop: EventLoop | None = None):
        self._loop = loop or get_running_loop()
        self._state = "pending"
        self._result: Any = None                # once it is resolved
        self._failure: _Failure | None = None   # once it has failed
        # These go to the ready queue when the future is done: Handles, and waiting tasks.
        self._callbacks: tuple[Handle | Task[Any], ...] = ()

    def __repr__(self) -> str:
        return f"<Future {self._state}>"

    def get_loop(self) -> EventLoop:
        """Return the loop of the future."""
        return self._loop

    def done(self) -> bool:
        """Return whether the future is resolved, failed or cancelled."""
        return self._state != "pending"

    def cancelled(self) -> bool:
        """Return whether the future was cancelled."""
        return self._state == "cancelled"

    def result(self) -> T:
        """Return the result.

        Raises the exception of a failed future, CancelledError if the future was
        cancelled, and InvalidStateError if it is pending."""
        if self._state != "resolved":
            self.exception()  # raises if the future is pending or cancelled
        failure = self._failure
        if failure is not None:
            try:
                raise failure.exception.with_traceback(failure.traceback)
            finally:
                del self, failure  # the traceback holds this frame
        result: T = self._result
        return result

    def exception(self) -> BaseException | None:
        """Return the exception of a failed future, or None if the future was resolved.

        Raises CancelledError if the future was cancelled, and InvalidStateError if it is
        pending."""
        if self._state == "cancelled":
            raise CancelledError
        if self._state == "pending":
            raise InvalidStateError("the future is still pending")
        if self._failure is None:
            return None
        self._failure.retrieved = True
        return self._failure.exception

    def set_result(self, result: T) -> None:
        """Resolve the future. Raises InvalidStateError unless it is pending."""
        self._finish("resolved", result)

    def set_exception(self, exception: BaseException | type[BaseException]) -> None:
        """Make the future fail with *exception*, or with an instance if it is a class.

        Raises InvalidStateError unless the future is pending. If nobody retrieves the
        exception, by result(), exception() or `await`, it is reported."""
        if isinstance(exception, type):
            exception = exception()
        self._finish("failed")
        self._failure = _Failure(exception, self)

    def cancel(self) -> bool:
        """Cancel the future, so that every waiter gets CancelledError.

        Return False if the future is already done."""
        if self._state != "pending":
            return False
        self._finish("cancelled")
        return True

    def add_done_callback(self, callback: Any) -> None:
        """Have the loop call callback(self) once the future is done, or soon if it already is."""
        entry = callback  # a waiting Task, which needs no Handle because it has its own run()
        if not isinstance(callback, Future):
            entry = Handle(callback, (self,))
        if self._state != "pending":
            self._loop._ready.append(entry)
        else:
            self._callbacks += (entry,)  # a tuple, because there is nearly always only one

    def __iter__(self) -> Generator[Any, None, T]:
        """Wait until the future is done. The value of `yield from` and `await` is its result."""
        if self._state == "pending":
            yield self
        try:
            return self.result()
        finally:
            del self  # the traceback holds this frame

    __await__ = __iter__

    def _outcome(self) -> Any:
        """Return the result of a finished future, or its exception as a value."""
        if self._state == "resolved":
            return self._result
        if self._state == "cancelled":
            return CancelledError()
        return self.exception()  # not raised, so that no traceback holds this frame

    def _resolve(self) -> None:
        """Resolve the future unless it is done: its waiter may just have been cancelled."""
        if not self.done():
            self._finish("resolved")

    def _finish(self, state: str, result: Any = None) -> None:
        """Leave the pending state. This is the one place where that happens."""
        if self._state != "pending":
            raise InvalidStateError(f"the future is already {self._state}")
        self._state = state
        self._result = result
        self._loop._ready.extend(self._callbacks)
        self._callbacks = ()


# 4  Task
# =======
# The problem: a function that stops at `yield from future` needs a driver, which calls
# send() again when the future is done. The idea: a Task is that driver. Each step sends
# None into the coroutine, or raises an error there, and gets back the next future that
# the coroutine waits for. The task then adds itself to the callbacks of that future.
# This is all that happens between "recv would block" and the next line:
#
#    recv -> BlockingIOError      coroutine: watch the socket, make a future,
#    yield from future            the future comes out of send()
#    step: add_done_callback      the task returns to the loop; others run
#    poll: readable -> callback   set_result moves the task to the ready queue
#    step: coroutine.send(None)   the coroutine goes on after its `yield from`
#    recv again -> bytes          readiness is a hint: it may raise BlockingIOError again
#
# When one coroutine waits for another, `yield from` is a pipe. While the outer
# coroutine is suspended there, Python passes every send() and throw() straight to the
# inner one, and passes each value that the inner one yields straight to the caller. A
# return value travels up one level. An exception travels up to the first `except` that
# matches it:
#
#    Task --send--> fetch --yield from--> read --yield from--> Future.__iter__
#         <----------------------- future ------------------------ yield self
#
# `async def` and `await` do the same, with two safeguards: `await` accepts only
# awaitables (a generator needs @coroutine), and a coroutine that is never awaited
# causes a warning. Here is a fetch in both styles, and its behaviour when it is driven
# by hand, as a Task drives it:
#
#     @coroutine
#     def fetch(sock):                               async def fetch(sock):
#         sock.send(b"GET / HTTP/1.0\r\n\r\n")           sock.send(b"GET / HTTP/1.0\r\n\r\n")
#         answer = Future(loop=loop)                     answer = Future(loop=loop)
#         loop.add_reader(sock, answer.set_result, 1)    loop.add_reader(sock, answer.set_result, 1)
#         yield from answer                              await answer
#         loop.remove_reader(sock)                       loop.remove_reader(sock)
#         return sock.recv(100)                          return sock.recv(100)
#
#     waiting = fetch(sock)    none of it has run yet
#     waiting.send(None)       -> <Future pending>: the request has left
#     loop.tick()              sleeps for a second at most; the response resolves the future
#     waiting.send(None)       -> StopIteration(b"HTTP/1.0 200 OK\r\n\r\n"): it has returned
#
# A Task is itself a Future, resolved by the coroutine's `return` (which Python spells
# StopIteration). So waiting for a byte, for a pause or for a whole crawl looks the
# same.
#
# To cancel a task, the loop must stop the innermost coroutine of its pipe, and run each
# `finally` on the way out. An exception that is raised there does both. cancel()
# cancels the future (which may be a task) that the task waits for. Then CancelledError
# is raised at that `await`, runs the `finally` blocks and, unless something catches it,
# ends the task. (If the future is itself a task, that task may catch CancelledError and
# return a value. Then the `await` returns this value.) A task that is not waiting for a
# future gets CancelledError later:
#
#    if it was woken already      at its next step
#    if it is running             at its next wait, or it ends as cancelled if it returns before
#    if it has not begun          instead of its first step
#
# The invariant: an unfinished task is in one of three places. It is running, or it is
# in the ready queue once, or it is among the callbacks of the future in `_waiting_for`.
# It is always in the loop's `tasks`, which keeps it alive.

class Task(Future[T]):
    """Runs *coro*, beginning soon, in a copy of the current context.

    A Task is the Future of the value that the coroutine returns. Its *name*, which its
    repr() shows, is by default the __qualname__ of the coroutine. Raises TypeError if
    *coro* is not a coroutine (of `async def`, or a generator)."""

    __slots__ = ("_name", "_coro", "_context", "_waiting_for", "_must_cancel", "_cancel_requests")

    def __init__(self, coro: Coro[T], *, loop: EventLoop | None = None,
                 name: str | None = None):
        if not isinstance(coro, (GeneratorType, Coroutine)):
            raise TypeError(f"expected a coroutine, got {coro!r}")
        super().__init__(loop=loop)
        self._name = name or getattr(coro, "__qualname__", f"{coro}")   # for repr()
        self._coro = coro
        self._context = copy_context()
        self._waiting_for: Future[Any] | None = None
        self._must_cancel = False   # raise CancelledError at the next step
        self._cancel_requests = 0   # calls of cancel() that were not undone
        self._loop.tasks.add(self)
        self._loop._ready.append(self)

    def __repr__(self) -> str:
        return f"<Task {self._name} {self._state}>"

    def step(self, error: BaseException | None = None) -> None:
        """Resume the coroutine, with *error* if one is given, until it waits again or ends.

        If it yields anything but None or another future of this loop, RuntimeError is
        raised in it at the next step."""
        loop = self._loop
        if self._must_cancel:
            error = CancelledError()
            if self._waiting_for is not None:
                self._waiting_for._outcome()  # its failure, if any, counts as retrieved
        self._must_cancel = False
        self._waiting_for = None
        loop.current_task = self
        try:
            if error is not None:
                awaited = self._context.run(self._coro.throw, error)
            else:
                awaited = self._context.run(self._coro.send, None)
            if awaited is None:  # a bare `yield`: let the others run, then go on
                loop._ready.append(self)
            elif not isinstance(awaited, Future) or awaited._loop is not loop or awaited is self:
                loop.call_soon(self.step, RuntimeError(f"{self} cannot wait for {awaited}"))
            else:
                awaited.add_done_callback(self)
                self._waiting_for = awaited
                if self._must_cancel:  # the task was cancelled while it ran: now it waits
                    self._must_cancel = not awaited.cancel()
        except StopIteration as stop:
            # `_must_cancel` can be true only if cancel() was called during this last step.
            self._finish("cancelled" if self._must_cancel else "resolved", stop.value)
        except CancelledError:
            self._finish("cancelled")
        except BaseException as failure:
            self.set_exception(failure)
            if isinstance(failure, _EXITS):
                raise
        finally:
            loop.current_task = None
            if self._state != "pending":
                loop.tasks.discard(self)
            del self, error  # the traceback of the task's exception holds this frame

    run = step  # the name by which the ready queue calls it

    def cancel(self) -> bool:
        """Have CancelledError raised where the coroutine waits. Return False if it has ended.

        If two tasks wait for each other, cancel() does not end either of them, but it returns:
        `_waiting_for` is None while the awaited future's cancel() runs, so that the two do
        not call each other forever."""
        if self._state != "pending":
            return False
        self._cancel_requests += 1
        waited = self._waiting_for
        self._waiting_for = None
        if waited is None or not waited.cancel():
            self._must_cancel = True
        self._waiting_for = waited
        return True

    def cancelling(self) -> int:
        """Return how many calls of cancel() were not undone."""
        return self._cancel_requests

    def uncancel(self) -> int:
        """Undo one cancel(). Return how many remain."""
        self._cancel_requests = max(0, self._cancel_requests - 1)
        if not self._cancel_requests:
            self._must_cancel = False  # no request is left, so the next step raises no error
        return self._cancel_requests

    def where(self) -> str:
        """Return the task's repr() and the lines at which its `async def` functions wait.

        The outermost line is the first, and the list ends at the first generator."""
        lines = [repr(self)]
        inner: Any = self._coro
        while at := getattr(inner, "cr_frame", None):  # down the pipe
            lines.append(f"  {at.f_code.co_filename}:{at.f_lineno} in {at.f_code.co_qualname}")
            inner = inner.cr_await
        return "\n".join(lines)


Runnable = Coro[T] | Future[T]  # the types that run_until_complete() and gather() accept


# A note on memory. A future refers to its exception, the exception to its traceback,
# and the traceback to the frames that the exception has passed through. If one of these
# frames has a variable for the future, this is a reference cycle: nothing in it is
# freed before the garbage collector runs, and an exception that nobody retrieves is
# reported late. So the methods of Future and Task through which such an exception
# passes delete that variable (`del self`). The errors of connect(), and those of a
# stream that is closed while a task waits for it, are left to the garbage collector
# (§8).
#
# Each `await` of a failed future raises the same exception, and raising it makes its
# traceback longer. So result() first puts back the traceback that the exception had
# when the future failed.


# 5  Waiting
# ==========
# The problem: futures and tasks are low-level. Programs need operations that are built on them:
#
#     sleep        a future that resolves itself at a deadline
#     timeout      cancels the current task at a deadline
#     gather       a future that is resolved by the last of many
#     to_thread    a future that a thread resolves by way of the self-pipe
#
# The invariant: when a wait has ended, its deadline is cancelled.

@coroutine
def _next_tick() -> Generator[None, None, None]:
    """Let the other callbacks run once. A bare `yield` waits for no future."""
    yield


async def sleep(delay: float, result: Any = None) -> Any:
    """Wait *delay* seconds and return *result*. A delay of 0 lets the other callbacks run once.

    Raises ValueError if *delay* is NaN."""
    if delay <= 0:
        await _next_tick()
        return result
    waiter: Future[None] = Future()
    timeout = get_running_loop().call_later(delay, waiter._resolve)
    try:
        await waiter
        return result
    finally:
        timeout.cancel()


class TimeLimit:
    """`async with timeout(delay):` limits its block to *delay* seconds; None means no limit.

    At the deadline the block is cancelled. If CancelledError then leaves the block, the
    `async with` raises TimeoutError. A limit may be used again, but not inside its own
    block. Raises RuntimeError outside a task."""

    def __init__(self, delay: float | None):
        self._delay = delay
        self._task: Task[Any]           # the task that runs the block
        self._cancelling = 0            # its cancelling() when the block began
        self._expired = False           # whether this limit has cancelled it
        self._timeout = Handle(self._expire, ())    # not scheduled yet, but can be cancelled

    async def __aenter__(self) -> None:
        loop = get_running_loop()
        if loop.current_task is None:
            raise RuntimeError("timeout() needs a running task")
        self._task = loop.current_task
        self._cancelling = self._task.cancelling()
        self._expired = False
        if self._delay is not None:
            self._timeout = loop.call_later(self._delay, self._expire)

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        self._timeout.cancel()
        # The task counts the calls of its cancel(). This limit takes its own call back. If
        # the count is then higher than at the start, something else has called cancel() too:
        #
        #     cancel() was called by                count: at the start, at the end, taken back
        #     this limit                            0, 1, 0    raises TimeoutError
        #     this limit, and Ctrl-C                0, 2, 1    CancelledError goes on
        #     Ctrl-C before the block, this limit   1, 2, 1    raises TimeoutError
        if self._expired:
            left = self._task.uncancel()
            if left <= self._cancelling and isinstance(error, CancelledError):
                raise TimeoutError(f"timed out after {self._delay:g} s") from error

    def _expire(self) -> None:
        self._expired = self._task.cancel()


timeout = TimeLimit  # asyncio's name for it


async def wait_for(fut: Awaitable[T], timeout: float | None) -> T:
    """Return the result of *fut*. After *timeout* seconds, cancel it and raise TimeoutError.

    If *fut* is a task that catches the cancellation, its result is returned nevertheless."""
    try:
        async with TimeLimit(timeout):
            return await fut
    finally:
        del fut  # the traceback of its exception leads to this frame: see §4


def create_task(coro: Runnable[T], *, name: str | None = None) -> Task[T]:
    """Run *coro* as a Task of the running loop, beginning soon. Its repr() shows the *name*.

    A Future, such as that of to_thread(), is awaited by the task."""
    if isinstance(coro, Future):
        coro = wait_for(coro, None)
    return get_running_loop().create_task(coro, name=name)


class _Gathering(Future[list[Any]]):
    """The future that gather() returns.

    Its cancel() cancels its children, and returns whether one of them could be cancelled.
    After that, the future fails as soon as a child fails or is cancelled. If none does,
    or with *return_exceptions*, it fails when all have ended."""

    def __init__(self, children: list[Future[Any]]):
        super().__init__(loop=children[0]._loop if children else None)
        self.children = children
        self.cancel_requested = False

    def cancel(self) -> bool:
        if self.done():
            return False
        requested = False
        for child in self.children:
            if child.cancel():
                requested = True
                self.cancel_requested = True
        return requested


def gather(*awaitables: Runnable[Any], return_exceptions: bool = False) -> Future[list[Any]]:
    """Return the Future of all results, in the order of the arguments. Coroutines become tasks.

    If one of them fails or is cancelled, the future fails without waiting for the
    others, which keep running. With *return_exceptions* the future waits for all of
    them, and exceptions are among the results. Cancelling the future cancels those that
    have not ended."""
    children = [each if isinstance(each, Future) else create_task(each) for each in awaitables]
    outer = _Gathering(children)
    left = len(children)

    def child_done(child: Future[Any]) -> None:
        nonlocal left
        left -= 1
        outcome = child._outcome()  # which also marks an exception as retrieved
        if outer.done():
            return
        if child._state != "resolved" and not return_exceptions:
            outer.set_exception(outcome)
        elif not left and outer.cancel_requested:
            outer.set_exception(CancelledError())  # the future fails, as in asyncio
        elif not left:
            outer.set_result([child._outcome() for child in children])

    for child in children:
        child.add_done_callback(child_done)
    if not left:
        outer.set_result([])
    return outer


def to_thread(func: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
    """Return the Future of func(*args, **kwargs), called in a thread, in a copy of the context.

    The call begins immediately, and the number of threads has no limit. The thread is a
    daemon: it is killed when the program ends. Do not call input() there: it holds a
    lock on stdin, which the program needs to end. If the future is cancelled, the
    thread goes on and its result is dropped. settle() and work() share the variable
    `future`. settle() deletes it, because the traceback of an error leads to it (§4)."""
    loop = get_running_loop()
    context = copy_context()
    future = loop.create_future()

    def settle(method: Callback, outcome: object) -> None:
        nonlocal future
        if not future.done():
            method(outcome)
        del future

    def work() -> None:
        with suppress(RuntimeError):  # the loop may be closed by now
            try:
                result = context.run(func, *args, **kwargs)
            except BaseException as error:
                loop.call_soon_threadsafe(settle, future.set_exception, error)
            else:
                loop.call_soon_threadsafe(settle, future.set_result, result)

    threading.Thread(target=work, daemon=True).start()
    return future


def current_task(loop: EventLoop | None = None) -> Task[Any] | None:
    """Return the task whose step is running, or None between steps."""
    return (loop or get_running_loop()).current_task


# 6  Running
# ==========
# A program with tasks has to begin and to end somewhere. `run` makes a loop and ticks
# until the main task is done. It leaves no task behind: it cancels those that are still
# running and waits for them, so that their `finally` blocks run. There are three
# exceptions: a task that raises SystemExit or KeyboardInterrupt while it is cancelled, a
# task that waits for something that cannot happen, and any task after a second Ctrl-C.
#
# Ctrl-C is an end that comes from outside. Python would raise KeyboardInterrupt at the
# next bytecode, wherever that is: between taking a task from the ready queue and
# running it, say, and the task would be lost. So run() has a signal handler, which only
# cancels the main task.

def interrupt(number: int, frame: object) -> None:
    """Raise KeyboardInterrupt(number). run() may replace this signal handler with its own."""
    raise KeyboardInterrupt(number)


def _replace_handlers(handler: Callback) -> list[tuple[int, Any]]:
    """Install *handler* for SIGINT and SIGTERM, and return the old handlers.

    It replaces only Python's own handler and interrupt(). Any other handler stays."""
    if threading.current_thread() is not threading.main_thread():
        return []  # only the main thread may set handlers
    return [(number, signal.signal(number, handler)) for number in (signal.SIGINT, signal.SIGTERM)
            if signal.getsignal(number) in (signal.default_int_handler, interrupt)]


def _end_tasks(loop: EventLoop) -> None:
    """Cancel all tasks and run until they have ended. A task may start others while it ends."""
    while loop.tasks:
        tasks = set(loop.tasks)
        for each in tasks:
            each.cancel()
        loop.run_forever(lambda: tasks.isdisjoint(loop.tasks))


def run(main: Coro[T], *, loop_factory: Callable[[], EventLoop] = EventLoop) -> T:
    """Run the coroutine *main* in a loop of its own. Return its result or raise its error.

    When *main* has ended, run() cancels the tasks that are still running and waits for
    them. In the main thread, run() handles SIGINT (Ctrl-C) if Python's own handler is
    installed, and SIGTERM if interrupt() is, as in the command line. The first signal
    cancels *main*. Then run() cleans up, and raises KeyboardInterrupt(number) if *main*
    was cancelled, or had ended before the signal. If *main* has caught the cancellation,
    run() returns its result or raises its error. A second signal raises
    KeyboardInterrupt immediately, and run() does not wait for tasks (but a task may catch
    it). A signal handler that *main* has installed stays when run() ends."""
    signals = list[tuple[int, bool]]()  # their numbers, and whether main had ended

    def on_signal(number: int, frame: object) -> None:
        signals.append((number, task.done()))
        if len(signals) > 1:
            raise KeyboardInterrupt(number)
        loop.call_soon_threadsafe(task.cancel)

    with closing(loop_factory()) as loop:
        task = loop.create_task(main)
        handlers = _replace_handlers(on_signal)
        try:
            # After one Ctrl-C, CancelledError comes from here. After two,
            # KeyboardInterrupt comes from wherever the program is.
            return loop.run_until_complete(task)
        finally:
            try:
                if len(signals) < 2:
                    _end_tasks(loop)
            finally:
                for number, before in handlers:
                    if signal.getsignal(number) is on_signal:  # main may have replaced it
                        signal.signal(number, before)
                if signals:
                    number, main_had_ended = signals[0]
                    if main_had_ended or task.cancelled():
                        raise KeyboardInterrupt(number)  # in place of any outcome


# 7  Queue
# ========
# The problem: workers take work and wait when there is none, and the program must know
# when all of it is done. An empty queue does not prove that: a worker may still hold
# the last item, which may be about to become ten more. The idea: count. `put` adds one
# to the unfinished items, `task_done` subtracts one, and `join` waits for zero. A
# worker puts the items that it has found before it reports its own item as done.
#
# A task that finds the queue empty (or full) waits in line with a future of its own.
# Waking the task does not reserve the item for it: another task may take the item
# first, so the task looks again. The invariant: a wake-up is never lost. If a woken
# task is cancelled before its next step, it passes the wake-up on to the next task in
# line, unless the item is already gone. (Then the next task would wake for nothing, and
# lose its place in the line.)
#
# A Semaphore limits how many tasks do something at the same time. Its tasks wait in
# such a line as well. But here a wake-up hands over a place: release() gives it to the
# first task in line. So a task that releases its place and wants it back immediately
# waits behind the tasks in line.

class QueueEmpty(Exception):
    """get_nowait() found no item."""


class QueueFull(Exception):
    """put_nowait() found the queue full."""


_Line = OrderedDict[Future[None], None]  # waiting tasks, oldest first; each can leave in O(1)


def _wake(line: _Line) -> bool:
    """Wake the first task in line that is still waiting. Return whether there was one."""
    while line:
        waiter, _ = line.popitem(last=False)
        if not waiter.done():
            waiter.set_result(None)
            return True
    return False


async def _wait_in(line: _Line, pass_on: Callable[[], object]) -> None:
    """Wait in *line* until woken. If the caller is cancelled after that, call pass_on()."""
    waiter: Future[None] = Future()
    line[waiter] = None
    try:
        await waiter
    except BaseException:
        line.pop(waiter, None)
        if waiter.done() and not waiter.cancelled():
            pass_on()
        raise


class Queue(Generic[T]):
    """A first-in first-out queue between tasks, of at most *maxsize* items (0: unbounded)."""

    def __init__(self, maxsize: int = 0):
        self.maxsize = maxsize
        self.unfinished = 0             # items that were put and are not done
        self._items = deque[T]()
        self._getters = _Line()         # tasks that wait to get an item
        self._putters = _Line()         # tasks that wait to put an item
        self._joiners = _Line()         # tasks that wait for the last task_done()

    def qsize(self) -> int:
        """Return how many items are in the queue."""
        return len(self._items)

    def empty(self) -> bool:
        """Return whether the queue holds no item."""
        return not self.qsize()

    def full(self) -> bool:
        """Return whether the queue holds *maxsize* items."""
        return 0 < self.maxsize <= self.qsize()

    def put_nowait(self, item: T) -> None:
        """Put an item into the queue. Raises QueueFull."""
        if self.full():
            raise QueueFull
        self._items.append(item)
        self.unfinished += 1
        _wake(self._getters)

    def get_nowait(self) -> T:
        """Take the oldest item out of the queue. Raises QueueEmpty."""
        if self.empty():
            raise QueueEmpty
        _wake(self._putters)
        return self._items.popleft()

    async def put(self, item: T) -> None:
        """Put an item into the queue, and wait while it is full.

        If this raises CancelledError, the item was not put."""
        while self.full():
            await _wait_in(self._putters, lambda: self.full() or _wake(self._putters))
        self.put_nowait(item)

    async def get(self) -> T:
        """Take the oldest item out, and wait while the queue is empty.

        If this raises CancelledError, no item was taken."""
        while self.empty():
            await _wait_in(self._getters, lambda: self.empty() or _wake(self._getters))
        return self.get_nowait()

    def task_done(self) -> None:
        """Mark an item from the queue as done. Raises ValueError if all were done already."""
        if not self.unfinished:
            raise ValueError("task_done() called too many times")
        self.unfinished -= 1
        while self._joiners and not self.unfinished:
            _wake(self._joiners)

    async def join(self) -> None:
        """Wait until all items are done, including those that are put in the meantime."""
        # Not `while`: when all items were done, the wait is over, even if new ones follow.
        if self.unfinished:
            await _wait_in(self._joiners, lambda: None)


class Semaphore:
    """A number of places, each of which one task can hold: first come, first served.

    `async with semaphore:` holds a place during its block. Semaphore(1) is a lock.
    Raises ValueError if *value*, the number of places, is negative."""

    def __init__(self, value: int = 1):
        if value < 0:
            raise ValueError(f"a semaphore has at least 0 places, got {value}")
        self._free = value      # places that no task holds; while tasks wait, there are none
        self._line = _Line()    # tasks that wait for a place

    def locked(self) -> bool:
        """Return whether acquire() would have to wait."""
        return self._free == 0

    async def acquire(self) -> bool:
        """Take a place, and wait until there is one. Return True.

        If this raises CancelledError, no place was taken."""
        if self._free:
            self._free -= 1
        else:
            await _wait_in(self._line, self.release)
        return True

    def release(self) -> None:
        """Hand a place over to the task that has waited longest. If none waits, it is free."""
        if not _wake(self._line):
            self._free += 1

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *exception: object) -> None:
        self.release()


# 8  Streams
# ==========
# The problem: "would block" must become "wait here". And every wait on a network needs
# a deadline, because name servers, addresses and servers may never answer, and a server
# may send forever. The idea: one method, `_call`, tries a socket operation (handshake,
# send, recv). If that would block, it waits for the socket and tries again. A read
# waits before it tries:
#
#     write(request), drain()    send -> BlockingIOError, wait until writable, send -> all sent
#     read()                     wait until readable, recv -> some bytes
#     read()                     wait until readable, recv -> b"", the end
#
# The invariants. A read waits for a poll before it takes bytes. So a peer that sends
# fast delays no other socket and no deadline. (Bytes that TLS has already decrypted are
# returned at once, because a poll does not see them.) A stream has no deadlines:
# callers wrap their waits in a `timeout`, as connect() and §11 do. After a read the
# socket stays registered, which saves two system calls if another read follows. It is
# unregistered when bytes arrive and nobody waits.
#
# A name may have several addresses, and the first may be dead: packets to it are
# dropped, and the client hears nothing before its deadline. Happy Eyeballs (RFC 8305)
# is a race. It starts with the first address. Whenever 0.25 s pass without news, or an
# attempt fails, the next address joins in. The first attempt that connects wins:
#
#     0.00 s    [2001:db8::1]  a task: connect ..................... cancelled: its socket is closed
#     0.25 s    192.0.2.1      a task:       connect ..... connected at 0.29 s: it wins
#               192.0.2.2                                            not tried
#
# With callbacks, this race needs a flag, a timer, a list of sockets, and code for each
# order in which things can happen. Here, each attempt is a task that knows nothing of
# the others. A Queue and a timeout wait for the next attempt to end. When the race ends,
# or connect() is cancelled, the other tasks are cancelled, and each closes its socket.

READ_SIZE = 65_536      # bytes: large, to save system calls
LOOKUP_TIMEOUT = 20.0   # seconds to look up a name: resolvers make a few attempts of 5 seconds each
CONNECT_TIMEOUT = 10.0  # seconds for one address, and for TLS: enough to resend a lost packet
ATTEMPT_DELAY = 0.25    # seconds until the next address joins the race: RFC 8305 section 5


class Stream:
    """A stream socket, plain or TLS. Puts *sock* into non-blocking mode.

    sock        the socket, for example for getpeername() or shutdown()"""

    def __init__(self, sock: socket.socket):
        sock.setblocking(False)
        self.sock = sock
        self._loop = get_running_loop()
        self._waiters = defaultdict[int, list[Future[None]]](list)  # by event
        self._unsent = bytearray()

    async def read(self, size: int = READ_SIZE) -> bytes:
        """Wait for bytes and return up to *size* of them; b"" is the end of the stream.

        First sends the data that write() has buffered. Raises OSError, for example if
        the stream is closed. TLS may end without its closing message, close_notify, as
        with many servers; this is an end as well. If the caller is cancelled, no byte
        is lost."""
        await self.drain()
        # Only a TLS socket can hold bytes that are already decrypted.
        if not (isinstance(self.sock, ssl.SSLSocket) and self.sock.pending()):
            await self._until_ready(EVENT_READ)
        return await self._call(EVENT_READ, self.sock.recv, size)

    def readable(self) -> bool:
        """Ask the kernel whether bytes, or the end of the stream, have arrived. Never waits."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return poll.poll(0) != []

    def write(self, data: bytes) -> None:
        """Buffer *data*. Nothing is sent before drain() or the next read()."""
        self._unsent += data

    async def drain(self) -> None:
        """Wait until all buffered data is sent. Raises OSError.

        If the caller is cancelled, the rest stays buffered for the next drain()."""
        while self._unsent:
            sent = await self._call(EVENT_WRITE, self.sock.send, self._unsent)
            del self._unsent[:sent]

    def close(self) -> None:
        """Close the socket. Data that is still buffered is dropped.

        A waiting task gets ConnectionAbortedError."""
        if self.sock.fileno() >= 0:
            self._loop.remove_reader(self.sock)
            self._loop.remove_writer(self.sock)
            self.sock.close()
            for waiter in sum(self._waiters.values(), []):
                if not waiter.done():
                    waiter.set_exception(ConnectionAbortedError("the stream was closed"))

    async def _call(self, event: int, operation: Callable[..., T], *args: Any) -> T:
        """Try operation(*args) until it does not block, and return its result.

        Between attempts, wait for *event*, or for the event that TLS needs: TLS may
        have to read in order to send."""
        while True:
            try:
                return operation(*args)
            except BlockingIOError:
                wanted = event
            except ssl.SSLWantReadError:
                wanted = EVENT_READ
            except ssl.SSLWantWriteError:
                wanted = EVENT_WRITE
            await self._until_ready(wanted)

    def _until_ready(self, event: int) -> Future[None]:
        """Return a future that is resolved when the socket is readable, or writable."""
        if self.sock.fileno() < 0:
            raise ConnectionAbortedError("the stream is closed")
        self._loop._watch(self.sock, event, Handle(self._wake, (event,)))
        waiter = self._loop.create_future()
        self._waiters[event].append(waiter)
        return waiter

    def _wake(self, event: int) -> None:
        """Resume the waiting tasks. If no task waits, stop watching the socket: the loop would
        otherwise call this method in every tick."""
        waiters = self._waiters.pop(event, [])
        if all(waiter.done() for waiter in waiters):
            self._loop._watch(self.sock, event)
        for waiter in waiters:
            waiter._resolve()


Address = tuple[int, int, int, str, Any]  # family, kind, protocol, name, address


async def lookup(host: str, port: int) -> list[Address]:
    """Return the list of addresses that getaddrinfo() finds for a name or an address.

    getaddrinfo() blocks, so a thread calls it. Raises OSError (TimeoutError after
    LOOKUP_TIMEOUT seconds)."""
    async with TimeLimit(LOOKUP_TIMEOUT):
        # As bytes: Python would encode a str with IDNA 2003. (The host of a URL is in ASCII.)
        try:
            return list(await to_thread(
                socket.getaddrinfo, host.strip("[]").encode(), port, type=socket.SOCK_STREAM))
        except RuntimeError as error:  # the system gives this program no more threads
            raise OSError(errno.EAGAIN, f"{error}")


async def _connect(address: Address) -> Stream:
    """Return a stream to one address. If it fails or is cancelled, no socket stays open.

    Uses connect_ex(): the socket becomes writable when it is connected or has failed,
    and SO_ERROR says which. Then sets TCP_NODELAY, and ignores an error of that: on macOS,
    it fails if the server has reset the connection. Raises OSError (TimeoutError after
    CONNECT_TIMEOUT seconds)."""
    stream = Stream(socket.socket(*address[:3]))
    try:
        code = stream.sock.connect_ex(address[4])
        if code == errno.EINPROGRESS:
            await wait_for(stream._until_ready(EVENT_WRITE), CONNECT_TIMEOUT)
            code = stream.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        with suppress(OSError):
            stream.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return stream
    except BaseException:
        stream.close()
        raise


async def _race(addresses: list[Address]) -> Stream:
    """Return a stream to the address that connects first, and move that address to the front.

    If none connects, raises the first error that is a ConnectionError or a TimeoutError,
    which come from the network. If there is none, raises the first error: it may only
    mean that this machine has no IPv6. An attempt that is cancelled ends the race."""
    errors = list[BaseException]()
    waiting = list(addresses)
    attempts = {}   # the address of each attempt that has not won
    ended = Queue[Task[Stream]]()       # attempts that have connected or failed
    try:
        while len(errors) < len(addresses):
            if waiting:
                attempt = create_task(_connect(waiting[0]))
                attempt.add_done_callback(ended.put_nowait)
                attempts[attempt] = waiting.pop(0)
            with suppress(TimeoutError):
                first = await wait_for(ended.get(), ATTEMPT_DELAY if waiting else None)
                error = first.exception()
                if error is None:
                    winner = attempts.pop(first)
                    addresses.remove(winner)
                    addresses.insert(0, winner)
                    return first.result()
                errors.append(error)
        raise next((error for error in errors
                    if isinstance(error, (ConnectionError, TimeoutError))), errors[0])
    finally:
        for loser in attempts:
            if not (loser.cancel() or loser.cancelled() or loser.exception()):
                loser.result().close()  # it has connected as well


async def connect(host: str, port: int, *, ssl: ssl.SSLContext | None = None,
                  addresses: list[Address] | None = None) -> Stream:
    """Return a Stream to *host*; with *ssl*, a TLS stream.

    *addresses* (at least one; by default those that lookup() finds) race for the
    connection: each has CONNECT_TIMEOUT seconds, as has TLS, and the one that wins moves
    to the front of the list. The certificate must be for *host*, without brackets and
    without a dot at its end. If all fail, raises the OSError of one of them (TimeoutError
    after its time). If the caller is cancelled, no socket stays open. (RFC 8305)"""
    if addresses is None:
        addresses = await lookup(host, port)
    stream = await _race(addresses)
    if ssl is not None:
        try:
            async with TimeLimit(CONNECT_TIMEOUT):
                # wrap_socket() keeps the descriptor.
                stream.sock = ssl.wrap_socket(
                    stream.sock, server_hostname=host.strip("[]").removesuffix("."),
                    do_handshake_on_connect=False)
                await stream._call(EVENT_READ, stream.sock.do_handshake)
        except BaseException:
            stream.close()
            raise
    return stream


# This completes the small asyncio.

# 9  URLs
# =======
# The problem: a crawler recognises an address that it has seen by its spelling, and an
# address has endless spellings: relative ones, upper and lower case, `/./`, `:80`,
# `%2e`, tabs. The idea: take the same steps as browsers (url.spec.whatwg.org, for http,
# https and UTF-8). Each spelling becomes the one that a browser would request, or an
# error. (In two rare cases it does not: an IPv4 address inside an IPv6 address keeps
# its dots, and some names that browsers reject are let through.) On the page
# http://h/d/p:
#
#     ../a#x                   http://h/a
#     HTTP:\\H:80\b\%2e\c     http://h/b/c
#     //bücher.de?ü            http://xn--bcher-kva.de/?%C3%BC
#     //①②⑦.0.0.1              http://127.0.0.1/
#     http://0x7f.1/           a ValueError: nobody writes 127.0.0.1 like that
#
# The invariants. A URL consists of printable ASCII without spaces, so it can be put
# into a request, a log or a terminal as it is. User names and passwords are dropped. A
# doubtful spelling raises ValueError; parse_url() never guesses at another host. And
# parse_url(str(url)) == url.
#
# From here on there are regular expressions, with some less common forms. `*+`, `++`,
# `?+` and `(?>...)` never give back what they have matched (they do not backtrack), and
# `(?(name)...)` applies only if the group of that name has matched.

MAX_URL = 8_000  # characters: the length that RFC 9110 section 4.1 recommends supporting
MAX_HOST = 253   # characters: the longest name that the DNS can look up


class UnfetchableError(ValueError):
    """The reference may well be a URL, but crawl.py does not fetch it; the message says why."""


class URL(NamedTuple):
    """An http or https URL, normalised and without a fragment; str() returns its text.

    origin      "http://host" or "https://host:8443"; the default port is left out
    host        ASCII; IPv6 in brackets
    target      the text for the request line: /path or /path?query"""

    origin: str
    scheme: str
    host: str
    port: int
    target: str

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    def __str__(self) -> str:
        return self.origin + self.target


_CONTROLS = bytes(range(33)).decode()  # and the space
_PORTS = {"http": 80, "https": 443}
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):")
# Schemes that are reported as problems: file; one letter, as in C:\a.html; and names of
# at most 40 characters that are probably misspellings of http or https, such as hhttps,
# htp and ttps. It does not match git+http or x-safari-https.
_MISTYPED = re.compile("(?!https?$|.{41})(?:[^+-]*http[^+]*|(?=.*t)(?=.*p)[htps]+|file|[a-z])")
# A host and a port without a scheme, such as h.com:80/x. (tel:110 and com.app:/x are not.)
_HOST_AND_PORT = re.compile(r"(?i)(?:localhost|[^:.]*+[.][^:]*+):([1-9][0-9]{0,4})(?:[/?\\]|$)")
_AUTHORITY = re.compile(r"(\[[^]]*\]|[^:]*)(?::([0-9]{0,99}))?")
# These percent-encode a text. _escape_path leaves the characters alone that browsers leave
# alone in a path, _escape_query those that they leave alone in a query, and _escape all
# printable ASCII.
_escape_path = partial(quote, safe="!$%&'()+*,/:;=@[\\]|", errors="replace")
_escape_query = partial(quote, safe="!$%&()*+,/:;=?@[\\]^`{|}", errors="replace")
_escape = partial(quote, safe=bytes(range(32, 127)).decode(), errors="replace")


# A host can be written in any alphabet, but the DNS knows only ASCII. UTS 46 has the
# rules for turning one into the other. These characters have no effect in a host:
_IGNORED = re.compile("[\xad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u200b\u2060\u2064"
                      "\u3164\ufe00-\ufe0f\ufeff\uffa0\U0001bca0-\U0001bca3\U000e0100-\U000e01ef]")


def _map_character(character: str) -> str:
    """Return a character of a host as UTS 46 maps it, without transitional processing."""
    if character in "ßςẞ":
        return character.lower()
    mapped = unicodedata.normalize("NFKC", character).casefold()
    if "." in mapped and character not in ".\uff0e":  # such as ⒈, which would divide the name
        raise ValueError
    return mapped


def _encode_label(label: str) -> str:
    """Return a label of a host, such as "bücher", in ASCII. A label in ASCII stays as it is.

    Raises ValueError if the label has more than 63 characters. If it is not ASCII, it may
    not begin with xn-- or a combining mark, or have a character of the categories C
    (control, unassigned) or Z (blank). A zero-width joiner, of category C, is dropped
    after a character that is not ASCII."""
    if len(label) > 63:  # in ASCII it would be longer still, and punycode takes quadratic time
        raise ValueError
    if label.isascii():
        return label
    visible = re.sub("(?<=[^\0-\x7f])[\u200c\u200d]", "", label)
    kinds = [unicodedata.category(character)[0] for character in visible]
    if label.startswith("xn--") or kinds[0] == "M" or {"C", "Z"} & set(kinds):
        raise ValueError
    encoded = "xn--" + label.encode("punycode").decode()
    if len(encoded) > 63:
        raise ValueError
    return encoded


@lru_cache(1000)  # more hosts than most sites link to
def _parse_host(text: str) -> str:
    """Return the host of an authority as it is looked up and sent, or raise ValueError.

        EXAMPLE.com      example.com              [::FFFF]    [::ffff]
        b%C3%BCcher.de   xn--bcher-kva.de         127.1       ValueError: not four numbers
        straße.de        xn--strae-oqa.de         a℀b.com     ValueError: it means aa/cb.com"""
    try:
        if text.startswith("["):  # 1. IPv6
            packed = socket.inet_pton(socket.AF_INET6, text[1:-1])
            return f"[{socket.inet_ntop(socket.AF_INET6, packed)}]"
        name = unquote(text, errors="strict")
        if len(name) > 2 * MAX_HOST:  # a letter and an accent may become one character
            raise ValueError  # before normalising, which takes quadratic time for accents
        name = _IGNORED.sub("", name)
        name = unicodedata.normalize("NFKC", "".join(map(_map_character, name)))  # 2. one spelling
        name = ".".join(map(_encode_label, re.split("[.。]", name)))  # 3. in ASCII
        if len(name) > MAX_HOST or not re.fullmatch("(?:[a-z0-9_-]+(?:[.]|$))+", name):
            raise ValueError  # 4. the characters of a name
        if re.fullmatch("(?:.*[.])?(?:[0-9]+|0x[0-9a-f]*)[.]?", name):  # 5. IPv4
            socket.inet_pton(socket.AF_INET, name)
        return name
    except (OSError, ValueError):
        raise ValueError(f"{text[:60]!r} is not a host")


def _parse_authority(authority: str, scheme: str) -> tuple[str, int]:
    """Return the host and the port of "me:password@host:port". Raises ValueError."""
    host_and_port = authority.rpartition("@")[2]
    found = _AUTHORITY.fullmatch(host_and_port)
    if not found:
        raise ValueError(f"{host_and_port!r} is not a host and a port")
    port = int(found[2] or _PORTS[scheme])
    if port > 65535:
        raise ValueError(f"port {found[2][:20]} is not between 0 and 65535")
    return _parse_host(found[1]), port


def _parse_path(path: str) -> str:
    """Return an absolute path with its dot segments resolved and unsafe characters encoded."""
    path = _escape_path(path)
    if "/." not in path and "%" not in path:
        return path
    segments = list[str]()
    for part in path[1:].split("/"):
        dots = part.lower().replace("%2e", ".")
        if dots == "..":
            del segments[-1:]
        elif dots != ".":
            segments.append(part)
    if dots in (".", ".."):
        segments.append("")  # a path that ends with dots ends with a slash
    return "/" + "/".join(segments)


def _trim(reference: str) -> str:
    """Remove tabs and line ends from a reference, and controls and blanks from its ends."""
    return re.sub("[\t\n\r]", "", reference.strip(_CONTROLS))


def parse_url(reference: str, base: URL | None = None) -> URL:
    """Return the URL that *reference* means on the page *base* (WHATWG URL, section 4.4).

    Raises ValueError if the reference is not a URL, and if its scheme

        is mistyped, or file
        is there twice           http://http://, http://http//
        is missing               h.com:80/x: a host and a port up to 65535
        is not followed by //    http:x, which is relative for browsers

    The ValueError is an UnfetchableError if the reference may be good, but has another
    scheme, or no scheme and no *base*, or in its normal form more than MAX_URL
    characters."""
    text = _trim(reference).partition("#")[0]  # for example HTTP:\\H:80\b\%2e\c?d
    scheme = base.scheme if base else ""
    if match := _SCHEME.match(text):  # 1. the scheme: http
        found = _HOST_AND_PORT.match(text)
        if found and int(found[1]) <= 65535:
            raise ValueError(f"a scheme is missing: http:// or https:// before {text[:60]!r}")
        scheme = match[1].lower()
        text = text[match.end():]
    if _MISTYPED.fullmatch(scheme):
        raise ValueError(f"{scheme[:20]!r} is neither http nor https")
    if scheme not in _PORTS:
        raise UnfetchableError(f"{scheme[:20] or 'relative'} URL: neither http nor https")
    head, mark, query = text.partition("?")  # 2. the query: d
    head = head.replace("\\", "/")  # //H:80/b/%2e/c
    if head.startswith("//"):  # 3. the host and the path: h, /b/%2e/c
        head = head.lstrip("/")  # browsers read ///h as //h
        if re.match("(?i)https?(?::/|//)", head):
            raise ValueError("it has a scheme twice")
        authority, _, path = head.partition("/")
        host, port = _parse_authority(authority, scheme)
        origin = f"{scheme}://{host}"
        if port != _PORTS[scheme]:
            origin += f":{port}"
        path = "/" + path
    elif match or base is None:  # http:x (with neither scheme nor base, step 1 has raised)
        raise ValueError(f"expected // after {scheme}:")
    else:  # the host of the page
        origin, _, host, port, target = base
        path = base.path
        if head.startswith("/"):  # /x
            path = head
        elif head:  # x, and ../x
            path = path[:path.rfind("/") + 1] + head
        elif not mark:  # an empty reference: the page itself
            _, mark, query = target.partition("?")
    target = _parse_path(path) + mark + _escape_query(query)  # 4. in one spelling: /b/c?d
    if len(origin) + len(target) > MAX_URL:
        raise UnfetchableError(f"longer than {MAX_URL} characters")
    return URL(origin, scheme, host, port, target)


def host_of(url: URL) -> tuple[str, int]:
    """Return the host without "www." (www.com keeps it), and the port, or -1 for the default."""
    host = url.host
    if host.count(".") > 1:
        host = host.removeprefix("www.")
    return host, -1 if url.port == _PORTS[url.scheme] else url.port


# 10  HTTP messages
# =================
# The problem: a response is a head of text lines and a body of bytes, and only the head
# says how to find the end of the body. A client that guesses wrong takes the rest of
# one body for the next head.
#
# The idea: a parser that does no I/O. You feed it bytes as they arrive, in pieces of
# any size, and it says when a response is complete. Internally it is a coroutine as
# well: a plain generator that no Task ever drives. In it, a bare `yield` waits for more
# bytes.
#
#     parser = ResponseParser()
#     parser.feed(b"HTTP/1.1 200 OK\r\nContent-Le")       False
#     parser.feed(b"ngth: 5\r\n\r\nhel")                   False
#     parser.feed(b"lo")                                   True
#     parser.response.body                                 b"hello"
#
# One place decides where a body ends: `_framing` (RFC 9112 section 6.3).
#
#     the response to HEAD, 1xx, 204, 304    no body
#     Transfer-Encoding: chunked             each chunk gives its length; the last one has length 0
#     Content-Length: n                      after n bytes
#     neither                                when the server closes the connection
#
# Servers make mistakes, and a page should not be called broken because of one odd
# header. So a head with a mistake is read as most clients read it:
#
#     a line without a valid field name              is skipped
#     blanks before a colon or the first field       are dropped
#     the same Content-Length twice                  is used once
#     chunked                                        wins over a length, may be repeated, and
#                                                    may come in HTTP/1.0
#     the transfer coding identity                   is ignored
#
# But after a response whose head needed one of these rules, or whose 1xx head did, the
# connection is closed. So even if client and server read such a head differently, no
# byte of one response is taken for a byte of another. Other leniencies leave no doubt
# about where the head and the body end, so the connection stays open:
#
#     lines that end in LF alone                     are lines
#     a line that begins with a blank                continues the field above it
#     a status line without a reason, or with more
#         than one blank                             is read
#     control characters in a value                  stay, except NUL and CR
#     empty lines, or CRs, before the head           are skipped
#
# And these are errors:
#
#     a NUL, or a lone CR, in the head
#     two different Content-Lengths, or another transfer coding, where a body may follow
#     a body in br, zstd or compress, which were not requested, or in several codings
#     a body that ends early, according to its framing or to its compression
#
# Only the framing, and not TLS, says whether a body is complete. So nobody can know
# whether a body that ends with the connection was cut off.
#
# The invariants. If bytes follow a response, the connection is closed. Each head, body,
# chunk line and trailer has a limit. (The number of 1xx heads has none, except the
# deadline of the request.) The cost is linear in the number of bytes, however they are
# split.

MAX_HEAD = 65_536            # bytes of a head, a chunk's first line, or a section of trailers
MAX_BODY = 10 * 1024 * 1024  # bytes, both compressed and decoded: generous for HTML
MAX_DROPPED = 65_536         # bytes of an unwanted body: reading them costs less than reconnecting
GZIP_MAGIC = b"\x1f\x8b"     # the first bytes of a gzip file


Headers = dict[str, str]


class ProtocolError(Exception):
    """The response is not valid HTTP/1, is cut off or is too large. The message says
    what is wrong."""


class NotHTTPError(ProtocolError):
    """The server does not answer in HTTP/1."""


class TruncatedError(ProtocolError):
    """The connection ended before the response did."""


class LimitError(ProtocolError):
    """A part of the response exceeds a limit; the message names the part and the limit."""


class Response(NamedTuple):
    """The response to one request.

    version         1 for HTTP/1.1, 0 for HTTP/1.0
    status, reason  200 and "OK"
    headers         by name in lower case; the values of a repeated field are joined by ", ", or
                    by a line end if it is Location or Set-Cookie
    body            decoded; empty if it was not wanted
    reusable        whether the connection can take another request: see the leniencies in §10"""

    version: int
    status: int
    reason: str
    headers: Headers
    body: bytes = b""
    reusable: bool = False

    @property
    def content_type(self) -> str:
        """The Content-Type header, or "" if it is missing."""
        return self.headers.get("content-type", "")


Wanted = Callable[[Response], bool]     # says, once the head has arrived, whether to read the body
_read_all: Wanted = lambda response: True
_FOLD = re.compile("\n[ \t]+")  # a field may go on in the next line: obsolete, but still in use
_FIELD_NAME = "[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_FIELD = re.compile(rf"({_FIELD_NAME})([ \t]*+):[ \t]*+(.*+)")
_COMMA = "(?<![ \t])[ \t]*+,[ \t]*+"    # with the blanks around it; the look-behind saves time
_HEAD_END = re.compile(rb"\n\r?\n")
_LINE_END = re.compile(rb"\n")
_TRAILERS_END = re.compile(rb"(?:^|\n)\r?\n")


def _parse_head(text: str) -> tuple[Response, bool]:
    """Return the Response whose head is *text* (RFC 9112, sections 4 and 5), and
    whether another response may follow: not in HTTP/1.0, after "Connection: close", or
    after a line that had to be read leniently. A status is from 100 to 999."""
    line, _, rest = text.partition("\n")
    status_line = re.fullmatch("HTTP/1[.]([0-9]) +([1-9][0-9][0-9])(?: ++([^\r\n\0]*))?\r?", line)
    if not status_line:
        raise NotHTTPError(f"an HTTP/1 status line was expected, not {line[:60]!r}")
    version, status, reason = status_line.groups("")
    stays_open = version != "0"
    fields: Headers = {}
    for line in filter(None, _FOLD.sub(" ", rest.replace("\r\n", "\n")).split("\n")):
        if "\0" in line or "\r" in line:
            raise ProtocolError(f"a header field was expected, not {line[:60]!r}")
        match = _FIELD.fullmatch(line.lstrip(" \t"))  # a blank may begin the first field
        if not match or match[2] or line[0] in " \t":
            stays_open = False
        if not match:
            continue
        name = match[1].lower()
        value = match[3].rstrip(" \t")
        if name in fields:
            # A Location or a cookie may hold a comma.
            glue = "\n" if name in ("location", "set-cookie") else ", "
            value = fields[name] + glue + value
        fields[name] = value
    if "close" in fields.get("connection", "").lower():
        stays_open = False
    return Response(int(version), int(status), reason, fields), stays_open


def _framing(method: str, response: Response) -> tuple[int | str, bool]:
    """Return where the body ends (its length, "chunked" or "close"), and whether the head
    needs no leniency about its framing, which counts even if there is no body.

    Raises ProtocolError if the body needs a Content-Length that is not one number of at
    most 18 digits."""
    coding = response.headers.get("transfer-encoding", "").lower()
    length = response.headers.get("content-length")
    if "transfer-encoding" in response.headers:
        is_usual = coding == "chunked" and length is None
    else:
        is_usual = length is None or length.isdecimal()
    if method == "HEAD" or response.status < 200 or response.status in (204, 304):
        return 0, is_usual
    if coding:
        codings = set(re.split(_COMMA, coding)) - {"identity"}
        if codings == {"chunked"}:
            return "chunked", is_usual
        if codings:
            raise ProtocolError(f"Transfer-Encoding {coding!r} leaves the body's end in doubt")
    if length is None:
        return "close", is_usual
    lengths = set(re.split(_COMMA, length))
    number = lengths.pop()
    if lengths or not re.fullmatch("[0-9]{1,18}", number):  # 2**63 has 19 digits
        raise ProtocolError(
            f"one Content-Length of at most 18 digits was expected, not {length!r}")
    return int(number), is_usual


def _decode(body: bytes, coding: str, limit: int) -> bytes:
    """Undo the Content-Encoding of a body that is not empty, and return the decoded bytes.

    Bytes after the first gzip member are ignored, as in browsers. Servers also send
    names that mean no coding, such as utf-8: then the body is returned as it is. Raises
    ProtocolError, TruncatedError if the compressed body lacks its end, and LimitError
    for more than *limit* bytes."""
    if coding not in ("gzip", "x-gzip", "deflate"):
        if re.search(r"\b(?:br|zstd|compress|gzip|deflate)\b", coding):
            raise ProtocolError(f"Content-Encoding {coding!r} was not requested")
        return body
    if coding != "deflate":
        format_ = 31  # zlib's name of gzip
    elif body[0] & 15 == zlib.DEFLATED:
        format_ = 15  # with zlib's header, as RFC 9110, 8.4.1.2, requires
    else:
        format_ = -15  # without the header, as some servers send it
    unzip = zlib.decompressobj(format_)
    try:
        decoded = unzip.decompress(body, limit + 1)
    except zlib.error as error:
        raise ProtocolError(f"the {coding} body is corrupt: {error}")
    if len(decoded) > limit:
        raise LimitError(f"the decoded body exceeds {limit} bytes (max_body)")
    if not unzip.eof:
        raise TruncatedError("the compressed body ends too early")
    return decoded


Taking = Generator[None, None, bytes]   # takes bytes out of the buffer; `yield` waits for more


class ResponseParser:
    """Takes the bytes of a connection, in pieces of any size, and builds a Response from them.

    *method* is the method of the request. *wanted(response)* is called when the head is
    complete. If it returns false, a body that is known to have at most MAX_DROPPED
    bytes is read and dropped, so that the connection can be used again; any other body
    is left unread. *max_body* is in bytes."""

    def __init__(self, method: str = "GET", wanted: Wanted = _read_all,
                 max_body: int = MAX_BODY):
        self.response: Response | None = None   # once its head is complete
        self._buffer = bytearray()              # bytes that are not parsed yet
        self._ended = False                     # whether they are the last bytes of the stream
        self._reusable = True                   # false if a head, or a trailer, rules it out
        self._max_body = max_body
        self._parsing = self._parse(method, wanted)

    def feed(self, data: bytes) -> bool:
        """Parse *data* (b"" is the end of the stream); return whether .response is complete.

        Raises ProtocolError (TruncatedError, LimitError). After an error, or after
        True, the parser must not be fed any more."""
        self._buffer += data
        self._ended = not data
        try:
            next(self._parsing)
        except StopIteration:
            return True
        return False

    def close(self) -> None:
        """End the parsing: the bytes of an unfinished response are freed immediately.

        Otherwise they wait for the garbage collector, because the parser and its
        generator refer to each other."""
        self._parsing.close()

    def _parse(self, method: str, wanted: Wanted) -> Generator[None, None, None]:
        """Parse one response. Each `yield` waits for feed(). The status 101 is an error."""
        while True:
            head = yield from self._take_through(_HEAD_END, "head")
            if not head.strip(b"\r\n"):  # empty lines before the head are allowed
                continue
            response, stays_open = _parse_head(head.lstrip(b"\r\n").decode("latin-1"))
            if response.status == 101:
                raise ProtocolError("the server switched protocols, which was not requested")
            framing, is_usual = _framing(method, response)
            if not (stays_open and is_usual):
                self._reusable = False
            if response.status >= 200:
                break
        self.response = response
        keep = wanted(response)
        if isinstance(framing, int):
            if keep:
                self._check_size(framing)
            elif framing > MAX_DROPPED:
                return
            body = yield from self._take(framing)
        elif not keep:
            return
        elif framing == "chunked":
            body = yield from self._chunks()
        else:
            while not self._ended:
                self._check_size(len(self._buffer))
                yield
            body = bytes(self._buffer)
        if keep and body:
            coding = response.headers.get("content-encoding", "").lower()
            body = _decode(body, coding, self._max_body)
        self.response = response._replace(
            body=body if keep else b"",
            reusable=self._reusable and framing != "close" and not self._buffer)

    def _need(self, size: int) -> Iterator[None]:
        """Wait until the buffer holds *size* bytes."""
        while len(self._buffer) < size:
            if self._ended:
                start = bytes(self._buffer[:60]).lstrip()
                if not self.response and not b"HTTP/".startswith(start[:5]):
                    raise NotHTTPError(f"an HTTP/1 status line was expected, not {start!r}")
                raise TruncatedError("the connection was closed before the response ended")
            yield

    def _take(self, size: int) -> Taking:
        """Take *size* bytes out of the buffer."""
        yield from self._need(size)
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def _take_through(self, end: re.Pattern[bytes], what: str) -> Taking:
        """Take everything up to and including *end* out of the buffer, at most MAX_HEAD bytes."""
        start = 0
        while True:
            match = end.search(self._buffer, start)
            size = match.end() if match else len(self._buffer)
            if size > MAX_HEAD:
                raise LimitError(f"the {what} exceeds {MAX_HEAD} bytes")
            if match:
                return (yield from self._take(size))
            start = max(0, size - 2)  # the end mark may have begun there
            yield from self._need(size + 1)

    def _check_size(self, size: int) -> None:
        if size > self._max_body:
            raise LimitError(f"the body exceeds {self._max_body} bytes (max_body)")

    def _chunks(self) -> Taking:
        """Return a chunked body, RFC 9112 section 7.1. Unlike in a head, the line of a
        chunk and the chunk itself must end in CRLF. Trailers are not interpreted, and end
        the connection."""
        body = bytearray()
        size = 1
        while size:
            line = yield from self._take_through(_LINE_END, "chunk's first line")
            # A size has at most 64 bits.
            match = re.fullmatch(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?\r\n", line)
            if not match:
                raise ProtocolError(f"a chunk size in hexadecimal was expected, not {line[:40]!r}")
            size = int(match[1], 16)
            self._check_size(len(body) + size)
            if size:
                chunk = yield from self._take(size + 2)
                if not chunk.endswith(b"\r\n"):
                    raise ProtocolError(f"the end of a chunk was expected, not {chunk[size:]!r}")
                body += chunk[:size]
        trailers = yield from self._take_through(_TRAILERS_END, "trailer section")
        if trailers.strip():
            self._reusable = False
        return bytes(body)


# 11  HTTP client
# ===============
# The problem: a new connection costs one round trip; with TLS it costs two or three,
# and a millisecond of computation. And a crawler sends request after request to the
# same server. The idea: keep the connections that are not in use. The pool holds idle
# streams with their origins. A request takes the most recently used stream of its
# origin, or opens a new one. A stream carries one request at a time (no pipelining), so
# a response belongs to the request that was just sent. (A server may send one response
# too many. If it arrives after the next request was sent, no client can tell.)
#
# The invariant: a stream is in the pool or with one task, never both. It is
#
#     kept      if its response was read to the end and the connection may be reused
#     closed    otherwise, for example after a cancelled request; or if it is the least recently
#               used when the pool is full; or if it is readable when it is taken from the pool:
#               the server has closed it, or has sent bytes that belong to no request
#
# The server may close a kept stream, or send a stray message, just as the next request
# leaves. If a request on a kept stream fails before the head of its response has come
# back, it is sent once more, on a new stream (RFC 9112, 9.3.1).
#
# A site that is not published yet has no server, only files. A Folder answers in place
# of the server, as the hosts of static sites do, without a socket. For the files of
# public, which are to be published at https://zoo.org/docs/:
#
#     /docs/               public/index.html
#     /docs/owl            public/owl; or else public/owl.html; or else, if there is a file
#                          public/owl/index.html, 301: https://zoo.org/docs/owl/
#     /docs                301: https://zoo.org/docs/
#     /docs/a/../b         is /docs/b (§9); no URL leads out of public, but a symbolic link may
#     /cats/               is not covered: it belongs to another site

FETCH_TIMEOUT = 30.0  # seconds for one request, from the lookup to the last byte
MAX_IDLE = 100        # connections kept: some systems let a process open only 256 files


@lru_cache  # one for the whole program
def _tls_context() -> ssl.SSLContext:
    """Return the SSLContext: certificates are verified."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])  # some servers refuse a client that does not say so
    # Judge certificates as browsers do: without X509_STRICT, which Python 3.13 switched
    # on. The chain may end at any trusted certificate, even if that one is not
    # self-signed.
    context.verify_flags = ssl.VERIFY_X509_TRUSTED_FIRST | ssl.VERIFY_X509_PARTIAL_CHAIN
    # OpenSSL's defaults except DHE, in which the server decides how long the client must compute.
    context.set_ciphers("DEFAULT:!DHE")
    return context


class Client:
    """Sends HTTP/1.1 requests over a pool of connections. Call close() when you are done.

    *headers* are added to the usual ones (User-Agent, Accept and Accept-Encoding) or
    replace them. *timeout* is in seconds for one request, from the lookup to the last
    byte; *max_body* is in bytes. Raises ValueError if a header has a name that is not a
    field name (RFC 9110, 5.1), or a value that is not printable, or is Host,
    Content-Length or Transfer-Encoding. The message does not show the value, because it
    may be a secret.

    user_agent      the User-Agent that is sent
    max_idle        how many idle connections are kept
    pool            idle streams with their origins, the least recently used first
    addresses       of hosts, by host and port"""

    def __init__(self, headers: Headers | None = None, timeout: float = FETCH_TIMEOUT,
                 max_body: int = MAX_BODY):
        usual = {
            "User-Agent": f"crawl.py/{VERSION}",
            "Accept": "text/html, */*;q=0.8",   # with */* alone, some sites answer 404
            "Accept-Encoding": "gzip"}
        # Spell each name in one way, so that the user's fields replace the usual ones.
        fields = usual | {name.title(): value for name, value in (headers or {}).items()}
        for name, value in fields.items():
            fault = ""
            if not re.fullmatch(_FIELD_NAME, name):
                fault = "has a name that is not a field name"
            elif name in ("Host", "Content-Length", "Transfer-Encoding"):
                fault = "cannot be set"
            elif not value.isprintable():
                fault = "has a value that is not printable"
            if fault:
                word = re.split("[^a-zA-Z-]", name)[0]
                raise ValueError(f"the header that begins with {word!r} {fault}")
        self.timeout = timeout
        self.max_body = max_body
        self.user_agent = usual["User-Agent"] = fields["User-Agent"]
        self.max_idle = MAX_IDLE
        # The fields of a request, without and with the user's *headers*.
        self._usual = usual
        self._all = fields
        self.pool = OrderedDict[Stream, str]()
        self.addresses = dict[tuple[str, int], list[Address]]()

    async def fetch(self, url: URL | str, method: str = "GET", own_headers: bool = True,
                    wanted: Wanted = _read_all, max_body: int | None = None,
                    body: bytes = b"") -> Response:
        """Send one request and return the response. Redirects are not followed.

        url          a URL, or a str with its http:// or https://
        own_headers  whether to send the client's *headers*, which may hold secrets meant
                     only for some hosts; the User-Agent is always sent
        wanted       called with the response once the head has arrived; says whether to
                     read the body
        max_body     bytes that the response's body may have, by default self.max_body
        body         that of a POST or the like. A request that has one, or is neither
                     GET nor HEAD, is sent on a new connection, and never twice

        Raises ValueError if the *url* or the *method* is not valid, OSError if no
        response arrives (TimeoutError after self.timeout seconds), and ProtocolError if
        the response is malformed or truncated. If the caller is cancelled, the
        connection is closed. In any case the parser of the response is closed."""
        if isinstance(url, str):
            url = parse_url(url)
        if not re.fullmatch(_FIELD_NAME, method):
            raise ValueError(f"{method!r} is not a method")
        fields = self._all if own_headers else self._usual
        may_repeat = method in ("GET", "HEAD") and not body
        if not may_repeat:
            fields = fields | {"Content-Length": f"{len(body)}"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        request = (f"{method} {url.target} HTTP/1.1\r\nHost: {url.origin.partition('//')[2]}\r\n"
                   f"{lines}\r\n").encode() + body
        async with TimeLimit(self.timeout):
            kept = self._take_idle(url.origin) if may_repeat else None
            while True:
                parser = ResponseParser(
                    method, wanted, self.max_body if max_body is None else max_body)
                try:
                    stream = kept or await self._new_stream(url)
                    return await self._exchange(stream, url.origin, request, parser)
                except (OSError, ProtocolError):
                    if not kept or parser.response:
                        raise
                    kept = None  # the kept stream was stale: send the request once more
                finally:
                    parser.close()

    def close(self) -> None:
        """Close every idle connection. The client may still be used."""
        while self.pool:
            self.pool.popitem()[0].close()

    def _take_idle(self, origin: str) -> Stream | None:
        """Return the most recently used idle stream of *origin*, and remove it from the pool.

        Streams that are readable are closed and skipped. If none is left, return None."""
        while stream := next((each for each in reversed(self.pool) if self.pool[each] == origin),
                             None):
            del self.pool[stream]
            if not stream.readable():
                break
            stream.close()
        return stream

    async def _exchange(self, stream: Stream, origin: str, request: bytes,
                        parser: ResponseParser) -> Response:
        """Send *request* and return its response. The stream goes to the pool or is closed."""
        try:
            stream.write(request)
            while not parser.feed(await stream.read()):
                pass
            return cast(Response, parser.response)
        finally:
            if parser.response and parser.response.reusable:
                self.pool[stream] = origin
                if len(self.pool) > self.max_idle:
                    self.pool.popitem(last=False)[0].close()
            else:
                stream.close()

    async def _new_stream(self, url: URL) -> Stream:
        """Open a stream. The addresses of a host are cached until connecting to it fails."""
        tls = _tls_context() if url.scheme == "https" else None
        key = url.host, url.port
        if key not in self.addresses:
            self.addresses[key] = await lookup(*key)
        try:
            return await connect(*key, ssl=tls, addresses=self.addresses[key])
        except (OSError, CancelledError):  # for example, cancelled at the request's deadline
            self.addresses.pop(key, None)
            raise


class Folder:
    """The files of the folder *path*, in place of the server of a site. *start* is the start URL.

    In *path*, ~ is the home folder. If the path of *start* does not end in a slash, *start*
    names a file in the folder. If there is no such file, it names the folder itself. Types
    are those of the module mimetypes, with .xhtml, and with application/gzip for .gz.
    Raises ValueError if *path* is not a folder.

    url         the URL of the folder, which ends in a slash
    start       the start URL; that of the folder ends in a slash
    pages       the HTML files, sorted, each with its URL: /a/ for a/index.html"""

    def __init__(self, path: str, start: URL):
        path = os.path.expanduser(path)
        if not os.path.isdir(path):
            raise ValueError(f"{path!r} is not a folder")
        # In bytes, because the name of a file may be in any charset.
        self._path = os.fsencode(path)
        self._names = dict[bytes, frozenset[bytes]]()   # in each folder that was looked at
        # An instance, because the functions of the module read tables of this machine.
        self._types = mimetypes.MimeTypes().types_map[True] | {
            ".xhtml": "application/xhtml+xml", ".gz": "application/gzip"}
        folder, _, name = start.path.rpartition("/")
        self.start = start
        if name and not self._file(name):
            folder += f"/{name}"
            self.start = start._replace(target=f"{folder}/")
        self.url = start._replace(target=f"{folder}/")
        self.pages = self._html_files()

    def covers(self, url: URL) -> bool:
        """Return whether *url* is that of the folder, with its slash or without, or below it.

        It may be http or https, and with or without "www."."""
        is_below = f"{url.path}/".startswith(self.url.target)
        return host_of(url) == host_of(self.url) and is_below

    def file_of(self, url: URL) -> bytes | None:
        """Return the file for a URL that covers() accepts, or None if there is none."""
        name = url.path.removeprefix(self.url.target)
        if not name or name.endswith("/"):
            return self._file(f"{name}index.html")
        return self._file(name) or self._file(f"{name}.html")

    def fetch(self, url: URL, wanted: Wanted, max_body: int) -> Response:
        """Return the response for a URL that covers() accepts, as a static host would send it.

        *wanted* and *max_body* mean the same as for Client.fetch(). A file that may not
        be opened is a 403. Raises LimitError if a file that is read is too long."""
        file = self.file_of(url)
        if not file:
            below = url._replace(target=f"{url.path}/")
            if below.target == self.url.target or self.file_of(below):
                location = f"{below}{url.target.removeprefix(url.path)}"
                return Response(1, 301, "Moved Permanently", {"location": location})
            return Response(1, 404, "Not Found", {})
        _, extension = os.path.splitext(os.fsdecode(file).lower())
        try:
            with open(file, "rb") as opened:
                size = os.fstat(opened.fileno()).st_size
                head = Response(1, 200, "OK", {
                    "content-type": self._types.get(extension, "application/octet-stream"),
                    "content-length": f"{size}"})
                if not wanted(head):
                    return head
                body = opened.read(min(size, max_body) + 1)
        except OSError:
            return Response(1, 403, "Forbidden", {})
        if len(body) > max_body:
            raise LimitError(f"the file exceeds {max_body} bytes (max_body)")
        return head._replace(body=body)

    def _file(self, path: str) -> bytes | None:
        """Return the file with this *path* in the folder's URL, or None if it is not a regular
        file.

        Each name is looked up in the list of its folder: so upper and lower case count
        on every system, and ".." and "%2F" lead nowhere."""
        file = self._path
        for name in map(unquote_to_bytes, path.split("/")):
            if file not in self._names:
                self._names[file] = frozenset()
                with suppress(OSError):  # it is not a folder, or may not be read
                    self._names[file] = frozenset(os.listdir(file))
            if name not in self._names[file]:
                return None
            file = os.path.join(file, name)
        return file if os.path.isfile(file) else None  # not a pipe, which open() would wait for

    def _html_files(self) -> dict[bytes, URL]:
        files = list[bytes]()
        for folder, _, names in os.walk(self._path):  # links to other folders are not followed
            files += [os.path.join(folder, name) for name in names
                      if re.search(rb"(?i)[.](?:x?html|htm)\Z", name)]
        urls = dict[bytes, URL]()
        for file in sorted(filter(os.path.isfile, files)):
            # As _escape_path() does, and also % and \, which mean themselves in a file's name.
            target = quote(os.path.relpath(file, self._path), safe="!$&'(),*+/:;=@[]|")
            target = re.sub(r"(?:^|(?<=/))index[.]html\Z", "", target)
            urls[file] = self.url._replace(target=self.url.target + target)
        return urls


async def fetch(url: URL | str, headers: Headers | None = None, timeout: float = FETCH_TIMEOUT,
                max_body: int = MAX_BODY, method: str = "GET", body: bytes = b"") -> Response:
    """Return the response to a request for *url*, which needs its http:// or https://.

    Redirects are not followed. The other arguments, and the exceptions, are those of
    Client and of Client.fetch."""
    with closing(Client(headers, timeout, max_body)) as client:
        return await client.fetch(url, method, body=body)


# This is a good place to stop. The second part begins with a site that has two broken links:
#
#     http://zoo.org/robots.txt   forbids /staff/
#     http://zoo.org/             links to /cats/, /birds#owl and http://cam.org/lion, and embeds
#                                 the image /map.png
#     http://zoo.org/cats/        links to /map.png and /staff/keys, and embeds the image
#                                 http://cam.org/lion
#     http://zoo.org/birds        has a parrot with an id, and no owl
#     http://cam.org/lion         redirects to http://cam.org/lion.jpg, which does not exist
#
# Each URL that is discovered is admitted to a round (a batch of URLs), or is left out.
# The first round is for the root, which may redirect to another host. The next one is
# for the pages of the site, and the last one, CHECKS, is for URLs that are only
# checked. After it come the fragments:
#
#     round 0    /                    is requested: a page. Its result is held until the hosts of
#                                     the crawl are known: with several roots, another root might
#                                     redirect to one more host
#                /                    is processed: admits /cats/ and /birds to round 1, and
#                                     /map.png, an image, to CHECKS; leaves out the link to the
#                                     lion, on another host
#     round 1    /cats/               admits /staff/keys to round 1, and the lion, an image here,
#                                     to CHECKS; moves /map.png to round 1, because it is a link
#                /birds, /map.png     a page without links, and an image: neither admits a URL
#                /staff/keys          is forbidden by robots.txt
#     CHECKS     cam.org/lion         redirects: admits lion.jpg to this round
#                cam.org/lion.jpg     404: broken
#     the end    /birds#owl           (with --fragments) /birds has only a parrot: broken
#
# Three questions about each URL come first: does it belong to the crawl (§15), may it be
# requested (§16), and when (§17)? Then comes the life of /cats/ (§18 to §24).

# 12  Documents
# =============
# The problem: find what a document refers to, as fast as documents arrive. A document
# may be in any charset, malformed, or hostile. The idea: each kind of document has a
# reader, a function that searches its text with a regular expression and returns a
# Markup. In the stylesheet
#
#     /* was: url(old.png) */ @import "base.css"; p { background: url(new.png) }
#
# read_stylesheet() skips the comment, and finds base.css and new.png. HTML has its own
# section, which also has the table of readers.
#
# The invariant: the time is linear in the length of the text. Two things make a pattern
# slow. A repetition takes a lot of text, and gives it back one character at a time. Or
# a match fails at the end of the text, and is tried again one character later: in
# "/*/*/*/*", the pattern /\*.*?\*/ reads to the end from each /* and finds nothing. The
# repetitions here avoid both:
#
#     [^<>]*+ (?>...*)      never give back what they have taken
#     .*? (?: \*/ | \Z )    ends at the end of the text as well: a comment without its end
#                           extends to there, and so does a script
#     [^<>]*?               ends at the next tag
#     [0-9a-zA-Z]{1,40}     takes only a short text
#
# The memory is linear as well, but Python keeps 65 bytes for each repetition of a group
# until the repetition ends. _repeated() therefore repeats a group in batches of up to 99,
# and each batch frees its memory.

MAX_REFERENCES = 100_000  # in a page or a stylesheet: about a second of work
MAX_VALUE = 6 * MAX_URL   # characters of a value that are looked at: &#x2F; stands for one
MAX_LISTED = 1_000_000    # in a sitemap: reading them takes about a second. 50,000 pages, each
                          # with links to 19 other languages, are allowed


class Markup(NamedTuple):
    """The references in a document, as they are written, with entities decoded.

    links       to pages and frames; all URLs of a sitemap
    assets      images, scripts, stylesheets and the like
    base        <base href>: links and assets are relative to it
    nofollow    whether a robots meta tag says not to follow the links
    title       the text of the first title element, as it is written; in HTML, not one in an svg"""

    links: tuple[str, ...] = ()
    assets: tuple[str, ...] = ()
    base: str = ""
    nofollow: bool = False
    title: str = ""


def _check_count(count: int, most: int) -> None:
    """Raise LimitError for more than *most* tags or references."""
    if count > most:
        raise LimitError(f"more than {most} tags or references")


def _repeated(piece: str) -> str:
    """Return an expression that matches *piece* any number of times, and gives nothing back."""
    return rf"(?> (?> (?: {piece} ){{1,99}} )* )"


def _decode_entity(entity: str) -> str:
    """Return the text that &amp; or &#47; stands for in an attribute, even without a semicolon."""
    if entity[1] == "#":
        return html.unescape(entity)  # which drops control characters, such as &#1;
    # unescape() would also decode an entity that is only the beginning of a name:
    # "&notit;" would become "¬it;", which it does not mean in an attribute.
    return html5.get(entity[1:], entity)


def _without_quotes(value: str) -> str:
    """Return the value of an attribute, or a URL in a stylesheet, without its quotes."""
    if value[:1] in ('"', "'"):
        return value[1:].removesuffix(value[0])
    return value


def _decode_entities(value: str) -> str:
    """Return the value of an attribute with its entities decoded."""
    # "&copy" in "?a=1&copy=3" is not an entity: before "=", a letter or a digit, the
    # semicolon is needed.
    return re.sub(
        "&(?:#(?:[0-9]{1,40}(?![0-9])|[xX][0-9a-fA-F]{1,40}(?![0-9a-fA-F]));?"
        "|[0-9a-zA-Z]{1,40}(?:;|(?![=0-9a-zA-Z])))",
        lambda match: _decode_entity(match[0]), value)


def _value_of(value: str) -> str:
    """Return an attribute's value without its quotes, and with entities decoded.

    A value that is too long is cut. Without entities, it stays longer than any URL may be."""
    value = _without_quotes(value)
    if len(value) > MAX_VALUE:
        value = value[:MAX_VALUE]
    if "&" in value:
        return _decode_entities(value)
    return value


_CSS_COMMENT = r"/\* .*? (?: \*/ | \Z )"
_CSS_QUOTED = _repeated(r'[^"\\\n]++ | \\.')
_CSS_SINGLE_QUOTED = _repeated(r"[^'\\\n]++ | \\.")
# A string in quotes. A line end in it makes it invalid, unless a backslash precedes it.
_CSS_STRING = rf"""(?: " {_CSS_QUOTED} (?: " | \Z ) | ' {_CSS_SINGLE_QUOTED} (?: ' | \Z ) )"""
_CSS_STRINGS = _repeated(_CSS_STRING + """ | [^;"']++""")
_CSS_BLANKS = _repeated(r"\s++ | " + _CSS_COMMENT)
_CSS_URL = r"(?i:url)\( (?<! [\w\\#@-] .{4} ) (?<! [^\0-\x7f] .{4} ) \s*+"    # a whole word
# A URL without quotes. A blank, a quote or an opening parenthesis inside it makes it invalid.
_CSS_CHARACTERS = _repeated(r"""[^"'()\\\s]++ | \\.""")
_CSS_BARE = rf"""(?! [\s)] ) {_CSS_CHARACTERS} (?= \s*+ (?: \) | \Z ) )"""
_CSS_INVALID_URL = _repeated(r"[^)\\]++ | \\.")
_CSS_INVALID_STRING = _repeated(r"[^\\\n]++ | \\.")
# Only the URLs of the third line are captured. What the others match is skipped:
_CSS = re.compile(rf"""(?asx) {_CSS_COMMENT}                # /* url(a.png) */
    | (?i:@namespace) {_CSS_STRINGS}                        # @namespace svg "http://www.w3.org/"
    | (?: {_CSS_URL} | (?i:@import) {_CSS_BLANKS} (?= ["'] ) ) ( {_CSS_STRING} | {_CSS_BARE} )
    | {_CSS_URL} (?! ["'] ) {_CSS_INVALID_URL}              # url(a b)
    | {_CSS_STRING}                                         # content: "url(c)"
    | ["'] {_CSS_INVALID_STRING}                            # content: "url(c), without its end""")


def read_stylesheet(text: str) -> Markup:
    """Return the URLs in url() and @import in a stylesheet (CSS Syntax 3, section 4.3).

    Line ends are normalised, and only ASCII blanks count as blanks. URLs with escapes, and
    those that are only a fragment, are left out. Raises LimitError if there are too many."""
    # CSS Syntax 3, section 3.3
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n")
    values = _CSS.findall(text)
    used = [_without_quotes(value[:MAX_VALUE]) for value in values if value]
    urls = [url for url in used if url and "\\" not in url and url[0] != "#"]
    _check_count(len(urls), MAX_REFERENCES)
    return Markup(assets=tuple(urls))


def read_sitemap(text: str) -> Markup:
    """Return the URLs of a sitemap, or of an index of sitemaps.

    They are in its loc elements, with any prefix but image:, and in link elements with a
    prefix, such as xhtml:link. Raises LimitError if there are too many."""
    urls = re.findall(
        # In <sm:loc> <![CDATA[http://h/]]></sm:loc> it finds http://h/]]>
        r"""(?sx) <!-- .*? (?: --> | \Z )
        | < (?: (?!image:) \w++: )? loc \b [^<>]*+ > \s*+ (?: <!\[CDATA\[ )? \s*+
          ( [^<\s]++ (?: [ ] [^<\s]++ ){0,99} )
        | < \w++:link (?= \s ) [^<>]*? \s href \s*+ = \s*+ ( "[^"<>]++" | '[^'<>]++' )""", text)
    _check_count(len(urls), MAX_LISTED)
    texts = (text.removesuffix("]]>") for text in map("".join, urls) if text)
    return Markup(tuple(_value_of(text) for text in texts))


# 13  Links
# =========
# In HTML `<a href=/x>` is a link, but not inside a comment, a script or a quoted value.
# So the text has to be read as browsers read it, from tag to tag. The html.parser of
# the standard library does that, but one regular expression is ten times as fast. It
# begins at a `<`. What follows is one of four things, and findall() returns the groups
# on the right. The search goes on after the match, so no tag is found inside a comment,
# a script or another tag:
#
#     <a class="top" href="/birds#owl">    1  a link            link    "/birds#owl"
#     <!-- <a href=/> -->                  2  a comment         none
#     <img alt='a > b' SRC=/x>             3  a listed element  tag     img alt='a > b' SRC=/x>
#     <style>p { src: url(x) }</style>     3  the same          tag     style>
#                                                               raw     style
#                                                               inside  p { src: url(x) }
#     <p title="<a href=/>">               4  any other tag     other   p title="<a href=/>">
#     <p class="x">                           no match: it refers to nothing, and hides no tag
#
# In XML, `<title/>` is closed by its slash. In HTML the slash means nothing: all text
# up to `</title>` is its content. So there are two expressions, one for HTML and one for
# XML. An svg or math element in HTML is read like XML: the expression for HTML matches it
# up to its end tag, and its content is read with the one for XML.
#
# Some rare markup is read in another way than by browsers, because a rule for each kind
# would cost more time than it is worth. A tag inside the attributes of an end tag is
# found. The end of an svg inside an svg ends both, and so does the end of a script
# inside a script.

MAX_CACHED = 500    # characters: longer tags are not cached, because they are seldom repeated
MAX_ATTRIBUTES = 1000   # of a tag: real tags have about ten
MAX_CANDIDATES = 100    # in a srcset: real ones have about ten
# The field of Markup that an element adds to, and the attributes with references. (a
# and area are in _LINK, for speed.)
_USES = {
    "frame": ("links", "src"),
    "iframe": ("links", "src"),
    "base": ("base", "href"),
    "link": ("", "href"),
    "meta": ("",),
    "object": ("assets", "data"),
    "img": ("assets", "src", "srcset"),
    "source": ("assets", "src", "srcset"),
    "video": ("assets", "src", "poster"),
    "image": ("assets", "href", "xlink:href", "src", "srcset"),     # in HTML, it is an img
    "use": ("assets", "href", "xlink:href")}
_USES |= dict.fromkeys(["audio", "embed", "input", "script", "track"], ("assets", "src"))
_ELEMENTS = "|".join(_USES)
_META_IMAGES = {"og:image", "og:image:url", "og:image:secure_url", "twitter:image"}
# Elements whose content, up to the first end tag, is not searched for tags.
_RAW_NAMES = "script|style|iframe|noembed|noframes|template|textarea|title|xmp|plaintext"
# An attribute is a name, and perhaps a value, with its quotes. (_PAIR below is the same
# expression, with groups.)
#
#     class="top"   href='/birds#owl'   SRC=/d&amp;e   async
_NAME = r"[^\s/>] [^\s/=>]*+"
_VALUE = r"""(?> "[^"]*+" | '[^']*+' | [^\s>]*+ )"""
_ATTRIBUTE = rf"(?> {_NAME} (?: \s*+ = \s*+ {_VALUE} )? [\s/]*+ )"
# The rest of a tag: its attributes and its end. Nearly all tags have fewer than a hundred
# attributes, and need no batches.
_REST = rf"""
    [\s/]*+ (?> {_ATTRIBUTE}{{0,99}} ) (?: > | \Z | {_repeated(_ATTRIBUTE)} (?: > | \Z ) )"""
# 1. A link: one attribute after another, until href or the end. (A style attribute of a
#    link is not looked at: capturing all of these tags takes 7 % more time.)
_LINK = rf"""
    [aA] (?i: rea )? [\s/]++ {_ATTRIBUTE}{{0,1000}}?
    (?: (?i: href ) \s*+ = \s*+ (?P<link> {_VALUE} ) {_REST} | > | \Z )"""
# 2. <!-- a comment -->, <!-->, <!DOCTYPE html>, <?php ?>, and </ x>, which browsers take for
#    a comment.
_COMMENT = r"(?: [!?] | /(?![a-zA-Z]) ) (?: (?<=!) -- (?: -?> | .*? (?: --!?> | \Z ) ) | [^>]*+ )"
# 3. The tag of a listed element. If the group `raw` has matched, the text up to its end
#    tag, or up to the end of the page, is its content. `%(raw_names)s` and the like are
#    replaced from one of these tables:
_HTML = {
    "raw_names": f"{_RAW_NAMES}|svg|math",
    "closed": "",
    "cdata": ""}
_XML = {
    "raw_names": _RAW_NAMES,
    "closed": "(?<=/>) |",                          # a raw element without content: <title/>
    "cdata": r"!\[CDATA\[ .*? (?: ]]> | \Z ) |"}    # text in which < has no meaning
_TAG = rf"""
    (?P<tag> (?i: (?P<raw> %(raw_names)s ) | {_ELEMENTS} ) (?= [\s/>] | \Z ) {_REST} )
    (?(raw) (?: %(closed)s (?P<inside> .*? ) (?: </ (?i: (?P=raw) ) (?=[\s/>]) | \Z )))"""
# 4. Any other tag. Its attributes are matched so that the search does not go on inside
#    them. The look-ahead rejects the most frequent tags, which hide nothing: <li>, and
#    those with one or two values in double quotes, such as <p class="x">. It only saves
#    time, up to a third of it on a page of Python's documentation. It does not reject
#    values with "(", because any element may have a style attribute with url().
_QUOTED = r'"[\t-\r !#-\')-;=?-~]*+"'   # ASCII without < and > and (: faster than [^"<>(]
_SIMPLE = rf"\s [a-z]++ = {_QUOTED}"
_OTHER = rf"""
    (?! [a-z0-9]++ (?: > | {_SIMPLE} (?: > | {_SIMPLE} > ) ) )
    (?P<other> [a-zA-Z] [^\s/>]*+ {_REST} )"""
# More look-aheads save time, up to half of it: they reject </p>, <b> and a `<` in front
# of other characters. And the tag of a listed element is tried only if its first letter is
# the first letter of some name, its second the second of some name, and its third the
# third. zip() stops there, at the end of the shortest name.
_STARTS = "".join(f"[{''.join(letters)}]" for letters in zip(
    *_HTML["raw_names"].split("|"), *_USES))
_TAGS = rf"""
    < (?! / [a-zA-Z] ) (?= [a-zA-Z!?/] [^>] [^>] )
    (?: {_LINK} | %(cdata)s {_COMMENT} | (?i: (?= {_STARTS} ) ) {_TAG} | {_OTHER} )"""
_FLAGS = re.VERBOSE | re.ASCII | re.DOTALL
_HTML_TAGS = _TAGS % _HTML
_XML_TAGS = _TAGS % _XML
_NAME_END = re.compile(r"[\s/>]", _FLAGS)     # what ends the name of an element
_PAIR = re.compile(rf"({_NAME}) (?: \s*+ = \s*+ ({_VALUE}) )?", _FLAGS)
# In "i.png 2x, j.png 3x" it finds i.png and j.png. (`\S*` takes the rest of a word, and
# gives back only the commas at its end.)
_DESCRIPTORS = _repeated(r"[(] [^)]*+ (?: [)] | \Z ) | [^,(]++")
_SRCSET = re.compile(rf"([^\s,] (?: \S* [^\s,] )? ) (?: \s {_DESCRIPTORS} )?", re.VERBOSE)


def _parse_tag(tag: str) -> tuple[str, dict[str, str]]:
    """Return the name of the element of a captured tag, and its first MAX_ATTRIBUTES.

    Their values are decoded, except that of srcset, which is decoded when it is split."""
    element = _NAME_END.split(tag, 1)[0]
    values = dict[str, str]()
    for match in itertools.islice(_PAIR.finditer(tag, len(element)), MAX_ATTRIBUTES):
        name = match[1].lower()
        value = match[2] or ""
        if name not in values:  # the first one counts
            values[name] = _without_quotes(value) if name == "srcset" else _value_of(value)
    return element.lower(), values


def _read_meta(values: dict[str, str]) -> tuple[str, list[str]]:
    """Return the field of Markup that a meta element adds to ("" for none), and the values.

    A refresh without a URL adds nothing, nor does an image whose content is blank. Blanks
    at the ends of a value stay."""
    text = values.get("content", "")
    if values.get("http-equiv", "").lower() == "refresh":  # with "5; url='/next'"
        if found := re.match(
                r"""(?is)\s*+[0-9.]++[\s;,]++(?>(?:url\s*+=\s*+)?)("[^"]*+|'[^']*+|.++)""", text):
            return "links", [found[1].lstrip("\"'")]
    elif text.strip() and _META_IMAGES & {values.get("property"), values.get("name")}:
        return "assets", [text]
    elif (values.get("name", "").lower() == "robots"
          and re.search(r"(?i)\bnofollow\b|(?:^|,)\s*+none\b", text)):
        return "nofollow", [text]
    return "", []


def _field_of(link: dict[str, str]) -> str:
    """Return the field of Markup that a link element adds to, or "" (for example, rel=search)."""
    rel = link.get("rel", "").lower()
    is_feed = "alternate" in rel and "hreflang" not in link
    # Any word may end in icon or preload: apple-touch-icon, modulepreload.
    if is_feed or re.search(r"(?<![\w-])(?:stylesheet|manifest)|icon|preload", rel):
        return "assets"  # which are only checked
    if re.search(r"\b(?:alternate|next|prev(?:ious)?|canonical)\b", rel):
        return "links"
    return ""


def _read_tag(tag: str) -> tuple[str, list[str]]:
    """Return the field of Markup that a captured tag adds to ("" for none), and the values.

    Browsers request nothing for an empty value, nor for a `use` of a fragment of the
    page. A blank value counts."""
    element, values = _parse_tag(tag)
    if element == "meta":
        return _read_meta(values)
    field, *names = _USES.get(element, ("",))
    if element == "link":
        field = _field_of(values)
    urls = list[str]()
    for name in names:
        if name == "srcset":
            candidates = itertools.islice(
                _SRCSET.finditer(values.get(name, "")), MAX_CANDIDATES)
            urls += [_value_of(match[1]) for match in candidates]
        elif values.get(name) and not (element == "use" and values[name].startswith("#")):
            urls.append(values[name])
    return field, urls


_read_short_tag = lru_cache(1000)(_read_tag)  # a site's pages share many tags


def read_markup(text: str, tags: str = _HTML_TAGS) -> Markup:
    """Return the references of an HTML page. Raises LimitError if there are too many of
    them, or of tags that may have one.

    *tags* is _XML_TAGS if the page is XHTML. A tag after the last > does not count."""
    fields = defaultdict[str, list[str]](list)
    # compile() keeps what it has compiled.
    found = re.compile(tags, _FLAGS).findall(text, 0, text.rfind(">") + 1)
    if len(found) > MAX_REFERENCES:  # tags that are merely skipped do not count
        _check_count(sum(1 for link, tag, *_ in found if link or tag), MAX_REFERENCES)
    for link, tag, raw, inside, other in found:  # the groups of _TAGS, in their order
        if link:
            fields["links"].append(_value_of(link))
            continue
        if tag:
            field, values = (_read_short_tag if len(tag) <= MAX_CACHED else _read_tag)(tag)
            fields[field] += values
        if "url(" in tag + other:  # perhaps in a style attribute
            _, attributes = _parse_tag(tag + other)
            fields["assets"] += read_stylesheet(attributes.get("style", "")).assets
            _check_count(len(fields["assets"]), MAX_REFERENCES)
        if raw:  # which most tags do not have
            name = raw.lower()
            if name == "style":
                fields["assets"] += read_stylesheet(inside).assets
            elif name == "title":
                fields["title"].append(inside)
            elif name in ("svg", "math"):
                drawing = read_markup(inside, _XML_TAGS)
                fields["links"] += drawing.links
                fields["assets"] += drawing.assets
    _check_count(len(fields["links"]) + len(fields["assets"]), MAX_REFERENCES)
    return Markup(
        links=tuple(fields["links"]), assets=tuple(fields["assets"]),
        base=next(iter(fields["base"]), ""),
        nofollow="nofollow" in fields,
        title=next(iter(fields["title"]), ""))


_READ_BEFORE = 4096     # bytes: a meta element names the charset within these
_META = re.compile(
    rf"<!-- (?: -?> | .*? (?: --> | \Z ) ) | < (meta (?=[\s/]) {_REST})", _FLAGS | re.IGNORECASE)
_CHARSET = re.compile(r"""(?ai)charset\s*+=\s*+["']?+\s*+([a-z0-9_:.+-]{1,40})""")
# An XML declaration, or the first rule of a stylesheet.
_ENCODING = re.compile(
    r"""(?ai)\A(?:<\?xml[^>]*?\sencoding\s*+=\s*+["']|@charset ")([a-z0-9_:.+-]{1,40})""")
# Labels that Python does not know, or reads differently from browsers (WHATWG Encoding
# Standard), by the codec that browsers use. Python's own names are among them.
_LABELS = {
    "cp1252": "ascii iso8859-1",
    "cp1254": "iso8859-9",
    "cp874": "iso8859-11 tis-620 windows-874",
    "cp932": "shift_jis windows-31j",
    "cp949": "euc_kr windows-949",
    "big5hkscs": "big5",
    "gb18030": "gb2312 gbk",
    "iso8859-8": "logical visual"}
_CODECS = {label: codec for codec, labels in _LABELS.items() for label in labels.split()}
_ISO_8859 = re.compile("iso-?8859-?([0-9]{1,2})(?:-?[ie])?")     # iso88591, iso-8859-8-i


@lru_cache(1000)
def _codec_of(label: str) -> str:
    """Return Python's codec for a label of a charset, or "" if there is none."""
    label = _ISO_8859.sub(r"iso8859-\1", label.strip().lower())
    if re.fullmatch("[a-z0-9_:.+-]{1,40}", label):  # Python ignores odd characters
        with suppress(LookupError, UnicodeError):
            codec = codecs.lookup(_CODECS.get(label, label.removeprefix("x-"))).name
            # Python has codecs that are not for pages.
            if not re.search("idna|punycode|escape|utf-7|utf-32", codec):
                return _CODECS.get(codec, codec)
    return ""


def _labels_of(body: bytes, content_type: str) -> Iterator[str]:
    """Yield the labels of a document's charset, the most important first."""
    if body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        yield "utf-16"
    if body.startswith(codecs.BOM_UTF8):
        yield "utf-8"
    yield from _CHARSET.findall(content_type)[:3]
    start = body[:_READ_BEFORE].decode("latin-1")
    declared = list[str]()
    for tag in _META.findall(start):  # "" for a comment
        _, values = _parse_tag(tag)
        declared.append(values.get("charset", ""))
        if values.get("http-equiv", "").lower() == "content-type":
            declared += _CHARSET.findall(values.get("content", ""))
    declared += _ENCODING.findall(start)
    for label in declared:
        # Even a label such as UTF-16 means UTF-8 here: it was found in bytes of ASCII.
        yield "utf-8" if _codec_of(label).startswith("utf") else label


def decode_page(body: bytes, content_type: str) -> tuple[str, str]:
    """Return the text of a document, and the label of its charset in lower case.

    The charset is the first known one of those that these name: the BOM,
    *content_type*, a meta element, the XML declaration or @charset. If none does, it is
    UTF-8 if the body is valid UTF-8, and windows-1252 if not (HTML section 13.2.3.2; CSS
    Syntax 3, section 3.2)."""
    for label in _labels_of(body, content_type):
        if codec := _codec_of(label):
            with suppress(LookupError, UnicodeError, OSError):  # not for text, or it failed
                return body.decode(codec, "replace"), label.strip().lower()
    try:
        return body.decode("utf-8"), "utf-8"
    except UnicodeError:
        return body.decode("cp1252", "replace"), "windows-1252"


Reader = Callable[[str], Markup]
read_xhtml = partial(read_markup, tags=_XML_TAGS)
_READERS: dict[str, Reader] = {
    "text/html": read_markup,
    "application/xhtml+xml": read_xhtml,
    "text/css": read_stylesheet,
    "application/xml": read_sitemap,
    "text/xml": read_sitemap}
# The root element decides how an XML document is read, whatever its type. Comments,
# declarations, and a DOCTYPE, which may hold further declarations, may come before it:
#
#     <?xml version="1.0"?> <!-- a sitemap --> <sm:urlset xmlns:sm="...">
#     <!DOCTYPE html [ <!ENTITY owl "an owl"> ]> <html>
_ROOT_ELEMENT = re.compile(
    r"""(?sx) [\s\ufeff]*+
    (?> (?: (?: <!-- .*? --> | <\? .*? \?> | <! (?!--) [^\[>]*+ (?: \[ .*? \] \s*+ )? > ) \s*+ )* )
    < (?: \w++ : )? (\w++)""")
SITEMAPS = ("urlset", "sitemapindex")


def root_element_of(text: str) -> str:
    """Return the name of the root element of a document, without its prefix.

    Return "" if there is none within _READ_BEFORE characters."""
    match = _ROOT_ELEMENT.match(text[:_READ_BEFORE])
    return match[1] if match else ""


@lru_cache(1000)  # a site sends few content types, and each is looked up several times a page
def _type_of(content_type: str) -> str:
    """Return the media type in a Content-Type header, or text/html if there is none."""
    return re.split(r"[;,\s]", content_type.strip())[0].lower() or "text/html"


def reader_of(url: URL, content_type: str) -> Reader | None:
    """Return the reader for a document by its type, or None if there is none.

    /x.xml.gz is XML, unless its type says that it is HTML: servers say application/gzip."""
    media_type = _type_of(content_type)
    if media_type != "text/html" and re.search(r"(?i)[.]xml[.]gz(\?|$)", url.target):
        return read_sitemap
    return _READERS.get(media_type)


def reader_for(text: str, reader: Reader) -> Reader | None:
    """Return the reader for a document in HTML or XML by its root element. *reader* is that
    of its type. It is returned if no root element is found, and for HTML and stylesheets
    unless the root is that of a sitemap.

    Return None if XML has another root element, as RSS has."""
    root = root_element_of(text)
    if root in SITEMAPS and reader is not read_stylesheet:
        return read_sitemap
    if reader is not read_sitemap or not root:
        return reader
    return read_xhtml if root == "html" else None


# 14  Records
# ===========
# Each URL ends as a Record. This is the one form in which the callbacks, the journal
# and the report get its outcome. A server may say anything, so the texts in a Record are
# escaped, and descriptions are cut. (Only the title may hold non-ASCII characters.
# Links and assets are still as the page wrote them, until §19 has found out which URLs
# they mean.)
# result_of() builds the Record from a Response (§10). It returns a Result: the Record
# and, if a document was read, the Page. Some outcomes:
#
#     404 Not Found               status=404, kind="broken", error="404 Not Found"
#     302, Location: lion.jpg     status=302, next_url="http://cam.org/lion.jpg"
#     200, with a page            status=200, encoding="utf-8", links=("/cats/", ...), ...
#     no response within 30 s     status=0, kind="timed out", error="..."
#     forbidden by robots.txt     skipped="forbidden by robots.txt: Disallow: /staff/" (from §21)

MAX_SHOWN = 200     # characters of untrusted text, such as a reason or a rule, that are shown
PROBLEMS = (  # the kinds, in the order of the report
    "broken",
    "timed out",
    "refused",
    "bad certificate",
    "over a limit",
    "too many redirects",
    "blocked",
    "moved")
NOFOLLOW = "links not followed (nofollow)"
TOO_LARGE = "too large to search"
# The reasons why a URL was not requested, or the links of a page were not followed,
# each with the option that changes it, in the order of the report.
REASONS = {
    "forbidden by robots.txt": "--no-robots",
    "robots.txt failed": "--no-robots",
    NOFOLLOW: "--no-robots",
    "too many links from the start": "--depth",
    "over the page limit": "--max-pages",
    "on another host": "--external",
    "not included": "--external",
    "excluded": "--exclude"}
_REDIRECTS = (301, 302, 303, 307, 308)
_PERMANENT = (301, 308)
_BLOCKED = (401, 403, 429, 999)  # 999 is what LinkedIn sends to crawlers
_TEMPORARY = (408, 429, 500, 502, 503, 504,  # a retry may succeed
              520, 521, 522, 523, 524)       # Cloudflare's statuses for a failure of the site


class CrawlError(Exception):
    """The crawl cannot begin (an invalid root), or cannot go on (a full disk).

    Each argument is a line for the user."""


def _printable(text: str) -> str:
    """Return untrusted text, truncated and escaped: it could contain terminal controls."""
    return _escape(text)[:MAX_SHOWN]


def _title_of(markup: Markup) -> str:
    """Return the title of a page: decoded, with single blanks, printable, and truncated."""
    text = html.unescape(markup.title[:10 * MAX_SHOWN])  # more than that are blanks or entities
    text = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(text.split())[:MAX_SHOWN]


# The reasons that versions of OpenSSL give if a server does not speak TLS.
_NO_TLS = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")


def _lacks_tls(error: Exception | None) -> bool:
    """Return whether a request failed because the server does not speak TLS."""
    return isinstance(error, ssl.SSLError) and any(name in f"{error}" for name in _NO_TLS)


def _is_unknown_host(error: Exception | None) -> bool:
    """Return whether a request failed because its host does not exist."""
    return isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME


def _explain(error: Exception) -> str:
    """Return a description of an error that fits on a line: the words of the system in lower
    case, without the place in _ssl.c, or words of our own. For a certificate, it holds
    OpenSSL's reason and, if the certificate is self-signed (codes 18, 19) or its issuer is
    unknown (20, 21), what to do."""
    text = f"{error}" or type(error).__name__
    if isinstance(error, ssl.SSLCertVerificationError):
        text = f"certificate not trusted ({error.verify_message})"
        if error.verify_code in (18, 19):
            text += "; set SSL_CERT_FILE=ca.pem to trust it"
        if error.verify_code in (20, 21):
            text += ("; the server does not send its intermediate certificate, or SSL_CERT_FILE "
                     "has to name your own authority, or this Python has no certificates installed")
    elif _lacks_tls(error):
        text = "the server does not speak TLS"
    elif _is_unknown_host(error):
        text = "host not found"
    elif isinstance(error, OSError) and error.strerror:
        text = error.strerror.lower()
    return _printable(re.sub(r" [(]_ssl[.]c:[0-9]+[)]", "", text))


class Record(NamedTuple):
    """The outcome of one URL. The journal leaves out the fields that have their defaults.

    url             as str(URL); or text that cannot be requested; or url#fragment
    status          of HTTP; 0: there was no response that could be used
    error           a description of what is wrong
    kind            the kind of problem: one of PROBLEMS
    skipped         why the URL was not requested; if there is a status, why its body was not
                    read, or why the target of its redirect was not requested
    next_url        the target of a redirect, perhaps with a #fragment
    content_type    as the server sent it, but escaped, and cut at MAX_SHOWN
    encoding        the charset; empty unless the body was read
    nofollow        whether it has links, and says not to follow them
    size            bytes, decoded
    is_check        whether the URL was only checked
    tries           requests for the URL, or attempts to get its robots.txt, if that failed;
                    0 if it was not requested, like a file of a folder
    at              Unix time of the last request
    seconds         from then until the end of the response
    parent          the page, or the redirect, that led to the URL
    depth           links from a root
    links           as the document writes them; in emitted records, as URLs
    assets          written like links; None: not looked for
    title           of a page, cut at MAX_SHOWN: printable, but perhaps not in ASCII"""

    url: str
    status: int = 0
    error: str = ""
    kind: str = ""
    skipped: str = ""
    next_url: str = ""
    content_type: str = ""
    encoding: str = ""
    nofollow: bool = False
    size: int = 0
    is_check: bool = False
    tries: int = 0
    at: float = 0.0
    seconds: float = 0.0
    parent: str = ""
    depth: int = 0
    links: tuple[str, ...] = ()
    assets: tuple[str, ...] | None = None
    title: str = ""

    @property
    def reason(self) -> str:
        """The reason in `skipped`, one of REASONS or another, without its detail."""
        return self.skipped.partition(":")[0]


class Page(NamedTuple):
    """A document that was read: an HTML page, a sitemap or a stylesheet.

    headers     as in Response
    body        decoded, in bytes
    text        the body as text
    base        the URL to which its links and assets are relative
    is_html     whether it was read as HTML or XHTML"""

    headers: Headers
    body: bytes
    text: str
    base: URL
    is_html: bool


class Result(NamedTuple):
    """The result of requesting a URL.

    record          its Record
    page            the Page, if a document was read now
    from_journal    whether the Record is that of an earlier crawl"""

    record: Record
    page: Page | None = None
    from_journal: bool = False


NO_RESPONSE = Response(0, 0, "", {})    # stands beside an error, in place of a response
# Each relative reference may become a URL that begins with the page's own path and
# query, so a page of a megabyte could become a gigabyte of URLs. This is the limit of
# the product: the length of that path and query, times the number of such references.
MAX_JOINED = 6_000_000  # characters


def _next_url(url: URL, response: Response) -> str:
    """Return the target of a redirect, with its fragment, which replaces that of the link even if
    it is empty: so /a# keeps its #.

    Heads are decoded as latin-1 (§10). As in browsers, each byte above 127 is encoded: é
    is %E9. The same Location twice is one. Raises UnfetchableError if the target is a
    mailto: URL or the like, and ProtocolError unless the redirect has one valid Location."""
    location, *others = set(response.headers.get("location", "").split("\n"))
    try:
        if not location or others:
            raise ValueError("one Location was expected")
        location = quote(location.encode("latin-1"), safe=bytes(range(128)))
        _, mark, fragment = location.partition("#")
        return f"{parse_url(location, url)}{mark}{_escape(fragment)}"
    except UnfetchableError:
        raise
    except ValueError as error:
        raise ProtocolError(f"a redirect that leads nowhere: {_explain(error)}")


def _failed(record: Record, failure: Exception) -> Record:
    """Return a record with the kind and the description of a failure.

    An OSError of any other kind, such as a reset or an unknown host, is "refused", unless
    the server does not speak TLS."""
    kind = "broken"
    if isinstance(failure, TimeoutError):
        kind = "timed out"
    elif isinstance(failure, ssl.SSLCertVerificationError):
        kind = "bad certificate"
    elif isinstance(failure, OSError) and not _lacks_tls(failure):
        kind = "refused"
    elif isinstance(failure, LimitError):
        kind = "over a limit"
    return record._replace(kind=kind, error=_explain(failure))


def hint_of(url: URL, response: Response, error: Exception | None, is_root: bool) -> str:
    """Return "; try https://..." or "; try http://..." if the server probably speaks
    the other scheme, or ""."""
    is_odd = isinstance(error, NotHTTPError) or (is_root and response.status == 400)
    if url.scheme == "http" and is_odd:
        return f"; try https{url.origin.removeprefix('http')}/"
    if _lacks_tls(error):
        return f"; try http{url.origin.removeprefix('https')}/"
    return ""


def _check_joined(base: URL, references: tuple[str, ...]) -> None:
    """Raise LimitError if the relative references of a document exceed MAX_JOINED."""
    length = len(base.target)
    if len(references) * length > MAX_JOINED:
        count = sum(not _SCHEME.match(reference) for reference in references)
        if count * length > MAX_JOINED:
            raise LimitError(f"its path and query, times its {count} relative references, exceed "
                             f"{MAX_JOINED} characters")


def result_of(url: URL, response: Response, error: Exception | None = None, read: bool = True,
              follow: bool = True, accept: Collection[int] = ()) -> Result:
    """Return the Result of a response, or of an *error* and NO_RESPONSE.

    If *read* is true and the response is a document, the Record holds its links and
    assets as they are written; a base that is not a valid URL is among the links. From a
    document that says nofollow, it holds links only if *follow* is true. A status of 400
    or more is a problem, unless it is in *accept*; other statuses are not, even if they
    are unusual, such as 300, 304 and 305."""
    status = response.status
    record = Record(
        f"{url}", status, size=len(response.body),
        content_type=_printable(response.content_type))
    if error is not None:
        return Result(_failed(record, error))
    if status in accept:
        return Result(record)
    if status >= 400:  # 404
        kind = "blocked" if status in _BLOCKED else "broken"
        reason = f"{status} {_printable(response.reason)}".rstrip()
        return Result(record._replace(kind=kind, error=reason))
    try:
        if status in _REDIRECTS:  # 302
            return Result(record._replace(next_url=_next_url(url, response)))
        reader = reader_of(url, response.content_type)
        if reader is None or not read:
            return Result(record)
        text, charset = decode_page(response.body, response.content_type)  # 200
        reader = reader_for(text, reader)
        if reader is None:
            return Result(record)
        markup = reader(text)
        base = url
        if markup.base:
            try:
                base = parse_url(markup.base, url)
            except ValueError:  # it is reported like a link
                markup = markup._replace(links=(*markup.links, markup.base))
        _check_joined(base, markup.links + markup.assets)
    except UnfetchableError as reason:  # a redirect to mailto:me is not a problem
        return Result(record._replace(skipped=f"{reason}"))
    except ProtocolError as failure:
        return Result(_failed(record, failure))
    nofollow = markup.nofollow and markup.links != ()
    links = () if nofollow and not follow else markup.links
    record = record._replace(
        encoding=charset, nofollow=nofollow, links=links, assets=markup.assets,
        title=_title_of(markup))
    is_html = reader in (read_markup, read_xhtml)
    return Result(record, Page(response.headers, response.body, text, base, is_html))


# 15  Scope
# =========
# The first question about a URL: does it belong to the crawl? Pages refer to the whole
# web. The Options say which part of it is wanted. The host of a URL decides, together
# with its depth and the --include and --exclude patterns. A link leads to a page, which
# is read. An asset, such as an image, is only checked: does it exist? So a URL is
# admitted as a page or as a check, or is left out for a reason. With the root
# http://zoo.org/ and --exclude 'pdf$':
#
#                               as a link          as an image
#     https://www.zoo.org/      page               check
#     http://cam.org/lion       on another host    check
#     http://zoo.org:8080/      on another host    check
#     http://zoo.org/menu.pdf   excluded           excluded
#
# A stylesheet on the crawl's hosts is admitted as a check, but it is also read, to find
# the URLs that it uses. With --external, links that lead out are admitted as checks: to
# other hosts, and to pages that --include leaves out. If a folder stands for the site,
# the URLs of its files are in scope, and no others.

MAX_DEPTH = 100  # links from a root, if no depth is given


class Options(NamedTuple):
    """The keyword arguments of Crawler.

    depth           links from a root; at MAX_DEPTH, pages are read as they are found, and
                    otherwise level by level
    max_pages       pages to read, in addition to the roots and the targets of redirects; the
                    same limit applies to checks
    include         regular expressions: in addition to the roots, and to the sitemaps in an
                    index, read only pages whose URL matches one
    exclude         regular expressions: URLs that match one are left out
    folder          the path of a folder: its files are the site of the root, and no request
                    is sent for them. None: there is none
    subdomains      whether the subdomains of the roots' hosts are in scope
    external        whether links to other hosts, and to pages that `include` leaves out,
                    are checked
    pages_only      whether assets are left unchecked
    fragments       whether to check that the fragments of links exist
    moved           whether links to URLs that have moved for good are problems
    accept          statuses from 400 to 999 that are not problems (except of robots.txt)
    no_robots       whether robots.txt is ignored
    max_tasks       URLs requested at a time
    max_redirect    redirects in a row
    max_tries       requests for a URL whose failure may be temporary
    max_body        bytes of a body or a file that is read
    timeout         seconds for one request
    delay           seconds between two requests to a server (§17 calls it a site)
    headers         sent only to the roots' hosts; a User-Agent to all
    journal         its definite results are reused; new records are added
    on_record       gets each Record
    on_page         gets the Record and the Page of each page that is read now, and not
                    those of stylesheets that are checks; may be a coroutine function"""

    depth: int = MAX_DEPTH
    max_pages: int = 1_000_000
    include: Texts = ()
    exclude: Texts = ()
    folder: str | None = None
    subdomains: bool = False
    external: bool = False
    pages_only: bool = False
    fragments: bool = False
    moved: bool = False
    accept: Collection[int] = frozenset()
    no_robots: bool = False
    max_tasks: int = 10
    max_redirect: int = 10
    max_tries: int = 3
    max_body: int = MAX_BODY
    timeout: float = FETCH_TIMEOUT
    delay: float = 0.0
    headers: Headers | None = None
    journal: Journal | None = None
    on_record: Callable[[Record], None] = lambda record: None
    on_page: Callable[[Record, Page], object] | None = None


_LEAST = {  # the least values of these options
    "depth": 0,
    "max_pages": 1,
    "max_tasks": 1,
    "max_redirect": 0,
    "max_tries": 1,
    "max_body": 1,
    "timeout": 0.001,
    "delay": 0}


def takes(options: Callable[P, object]) -> Callable[
        [Callable[..., None]], Callable[Concatenate[Any, Texts, P], None]]:
    """Return a decorator that returns the method unchanged. It tells type checkers that the
    method takes the parameters of *options*, so that they reject Crawler(url, depth="x")."""
    return lambda method: method


_LOCAL = re.compile(r"(?i)(?:(?:[^/:?#]*[.])?localhost|127[.0-9]*|\[::1\])[.]?(?:[:/?#]|$)")


def _without_user(text: str) -> str:
    """Return a root without its user name and password, which are not shown."""
    return re.sub("(?s)^.*@", "***@", text)


def _refuse_path(text: str) -> None:
    """Raise CrawlError if a root is the path of a file or a folder. Name a command that works
    for the folder, or the folder of the file, if it exists.

    public, public/ and docs/html are folders if they are there; x.org and localhost are
    hosts. What begins with a dot, a slash, ~ (the home folder) or file: is a path."""
    first = text.partition("/")[0]
    is_host = re.search("[.:]", first) or _LOCAL.match(text)
    if not re.match("[./~]|file:", text) and (is_host or not os.path.isdir(text)):
        return
    path = os.path.expanduser(re.sub("^file:(?://[^/]*)?", "", text))
    if not re.match("[./]", path):
        path = f"./{path}"
    advice = "there is no such folder"
    if os.path.exists(path):
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        advice = f"to check a folder, give it alone: crawl.py {shlex.quote(folder)}"
    raise CrawlError(f"{_without_user(text)!r} is not a URL; {advice}")


def _refuse_user(text: str) -> None:
    """Raise CrawlError for a root with a user name."""
    if re.match(r"(?:[^?#@/\\:]*+:)?[/\\]*+[^?#@/\\]*+@", text):
        raise CrawlError(f"{_without_user(text)!r} contains a user name; send it with "
                         "-H 'Authorization: Basic ...' instead (base64 of user:password)")


def _parse_root(text: str) -> URL:
    """Return the URL of a root. Without a scheme, a root is https, or http if on this machine.

    Raises CrawlError, also for a path and for a URL with a user name."""
    _refuse_path(text)
    _refuse_user(text)
    scheme = ""
    if _LOCAL.match(text):
        scheme = "http://"
    elif not re.match(f"{_SCHEME.pattern}(?![0-9])", text):  # h:80 has no scheme
        scheme = "https://"
    try:
        return parse_url(scheme + text)
    except ValueError as error:
        if "@" in text:  # the error may show a password
            raise CrawlError(f"{_without_user(text)!r} cannot be crawled: it is not a URL")
        raise CrawlError(f"{text!r} cannot be crawled: {error}")


def _compile(option: str, patterns: Texts) -> list[re.Pattern[str]]:
    """Return the compiled patterns. Raises CrawlError, which names the option and the pattern,
    also for a pattern that is not in ASCII, because URLs are."""
    compiled = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if not pattern.isascii():
            raise CrawlError(f"--{option} {pattern[:60]!a} is not in ASCII. URLs are in ASCII, "
                             "with %C3%A9 for \\xe9 and punycode in hosts")
        try:
            compiled.append(re.compile(pattern))
        except (re.error, OverflowError, RecursionError) as error:
            raise CrawlError(f"--{option} {pattern[:60]!r} is not a regular expression: {error}")
    return compiled


class Scope:
    """Decides which URLs belong to the crawl: by host, by patterns and by depth.

    folder      the Folder that stands for the site, if there is one: then the URLs that it
                covers are in scope, and no others"""

    def __init__(self, roots: list[URL], options: Options, folder: Folder | None = None):
        self.folder = folder
        self._options = options
        self._include = _compile("include", options.include)
        self._exclude = _compile("exclude", options.exclude)
        self.hosts = set(map(host_of, roots))     # grows with the redirects of roots
        # Where secrets may go: to the roots' hosts, always by https, and by http if the
        # root itself is http.
        self._trusted = {(scheme, host_of(url)) for url in roots
                         for scheme in ("https", url.scheme)}

    def folder_for(self, url: URL) -> Folder | None:
        """Return the folder if it answers for *url*, which is then never requested."""
        if self.folder and self.folder.covers(url):
            return self.folder
        return None

    def covers(self, url: URL) -> bool:
        """Return whether *url* is in the folder or, without one, on one of the crawl's hosts."""
        if self.folder:
            return self.folder.covers(url)
        host, port = host_of(url)
        return (host, port) in self.hosts or (self._options.subdomains and any(
            host.endswith(f".{parent}") and port == its_port for parent, its_port in self.hosts))

    def trusts(self, url: URL) -> bool:
        """Return whether to send the user's headers, which may hold secrets, to *url*."""
        return self.folder is None and (url.scheme, host_of(url)) in self._trusted

    def excludes(self, text: str) -> re.Pattern[str] | None:
        """Return the first --exclude pattern that is found in *text*, or None."""
        for pattern in self._exclude:
            if pattern.search(text):
                return pattern
        return None

    def objection(self, url: URL, depth: int, check: bool, listed: bool = False) -> str:
        """Say why *url* at *depth* may not be a page (or, if *check*, a check), or return "".

        The reason is one of REASONS. A check, a root and the target of a root's redirect may
        only be excluded. Then come the host, --include and --depth, in this order. A sitemap
        that is *listed* in an index of sitemaps needs no --include."""
        if self.excludes(f"{url}"):
            return "excluded"
        if check or depth == 0:
            return ""
        if not self.covers(url):
            return "on another host"
        is_included = listed or not self._include or any(
            pattern.search(f"{url}") for pattern in self._include)
        if not is_included:
            return "not included"
        if depth > self._options.depth:
            return "too many links from the start"
        return ""


# 16  Robots
# ==========
# The second question: may the URL be requested? A site says in /robots.txt what
# crawlers may fetch (RFC 9309). People write these files by hand, and no two are alike.
# A group of rules begins with the names of the crawlers to which it applies. All groups
# that contain our name apply; if there are none, the groups for "*" do. Of the rules
# that match a URL, the one with the longest pattern wins; if two are equally long, the
# one that allows the URL wins. In a pattern, "*" stands for any characters, and a final
# "$" for the end. So with
#
#     User-agent: *
#     Disallow: /             this group is for others
#     User-agent: crawl
#     Disallow: /staff/       /staff/keys is forbidden
#     Allow: /staff/jobs      /staff/jobs/vet is allowed: /staff/jobs is the longer match
#     Disallow: /*.pdf$       /menu.pdf is forbidden; /menu.pdf?a=b does not match
#
# A Crawl-delay is not in the RFC, but sites use it, so it is obeyed (§17). If it stands
# between two names, the delay belongs to the names above it, and the rules that follow
# belong to all names of the group (RFC 9309, 2.2.4). Other lines are ignored.

MAX_ROBOTS = 512 * 1024  # characters of robots.txt: RFC 9309 section 2.5 requires 500 KiB
MAX_RULES = 5000         # rules that are used; each may be tried on every URL. Known files have
                         # some 3,000
# A key, a colon or a blank, and a value; not a comment. The file may begin with a BOM.
_ROBOTS_LINE = re.compile(r"(?:^|[\r\n])[\ufeff \t]*+([a-zA-Z-]++)(?:[ \t]*+:|[ \t])([^#\r\n]*+)")
PRODUCT = "crawl"        # our name in robots.txt: see product_of()


def _comparable(path: str) -> str:
    """Return a path, or a pattern for paths, as it is spelled for comparison (RFC 9309, 2.2.2)."""
    path, mark, query = path.partition("?")
    text = _escape_path(path) + mark + _escape_query(query)
    # quote() leaves the unreserved characters of RFC 3986, 2.3, as they are.
    return re.sub("%[0-9a-fA-F]{2}", lambda match: quote(unquote_to_bytes(match[0]), ""), text)


def product_of(user_agent: str) -> str:
    """Return "MyBot" for "MyBot/2.0 (+http://me)": the product token of RFC 9309, 2.2.1."""
    return re.split("[^a-zA-Z_-]", user_agent)[0]


def _group_for(product: str, lines: list[tuple[str, str]]) -> tuple[list[tuple[str, str]], float]:
    """Return the rules, in order, and the Crawl-delay that the lines of a robots.txt have
    for *product*; if they do not name it, those that they have for "*".

    A line is a key and a value. A rule is a pair: "allow" or "disallow", and a pattern, in
    which several "*" in a row become one. The delay is not limited here."""
    rules = defaultdict[str, list[tuple[str, str]]](list)   # by name: *product*, or "*"
    delays = defaultdict[str, float](float)
    names = set[str]()  # those of the group that is being read
    rules_began = True
    for key, value in lines:
        key = key.lower()
        value = value.strip()
        if key == "user-agent":
            if rules_began:
                names = set()
                rules_began = False
            name = "*" if value == "*" else product_of(value).lower()
            if name in ("*", product):
                names.add(name)
                rules[name] += []  # a group without rules counts as well
        elif key in ("allow", "disallow"):
            rules_began = True
            if value:  # an empty Disallow forbids nothing
                rule = key, _comparable(re.sub("[*]+", "*", value))
                for name in names:
                    rules[name].append(rule)
        elif key == "crawl-delay" and re.fullmatch("(?=.)[0-9]*([.][0-9]+)?", value):
            delays |= dict.fromkeys(names, float(value))
    name = product if product in rules else "*"
    return rules[name], delays[name]


def _parts_of(pattern: str) -> list[str]:
    """Return the parts of a pattern for _matches(): [" /", ".pdf "] for /*.pdf$.

    A URL never contains a blank, so a blank can stand for the start of the path, and
    another blank for its end."""
    return re.sub("[$]$", " ", f" {pattern}").replace("$", "%24").split("*")


def _matches(parts: list[str], path: str) -> bool:
    """Return whether all parts occur in *path*, in order.

    " /" and ".pdf " occur in " /menu.pdf ", but not in " /menu.pdf?a=b "."""
    at = 0
    for part in parts:
        at = path.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


class Robots:
    """The rules of one robots.txt for the crawler named *product*.

    Of a *text* longer than MAX_ROBOTS, the whole lines are used, because half a rule would
    be another rule. If there are several delays, the last one is used, and of the rules
    the first MAX_RULES.

    rules       (allow or disallow, pattern as _comparable() spells it, its parts): the first
                that matches decides
    delay       the Crawl-delay: seconds between requests; 0 if there is none"""

    def __init__(self, text: str, product: str = PRODUCT):
        if len(text) > MAX_ROBOTS:
            text = text[:max(text.rfind(end, 0, MAX_ROBOTS) for end in "\r\n") + 1]
        rules, self.delay = _group_for(product.lower(), _ROBOTS_LINE.findall(text))
        # Longer patterns come first; of two that are equally long, "allow" comes first.
        rules = sorted(rules[:MAX_RULES], key=lambda rule: (-len(rule[1]), rule[0]))
        self.rules = [(key, pattern, _parts_of(pattern)) for key, pattern in rules]

    def rule(self, target: str) -> str | None:
        """Return the rule that forbids a path and query, or None if they are allowed."""
        if not self.rules or target == "/robots.txt":
            return None
        path = f" {_comparable(target).replace('*', '%2A').replace('$', '%24')} "
        for key, pattern, parts in self.rules:
            if _matches(parts, path):
                return f"Disallow: {pattern[:MAX_SHOWN]}" if key == "disallow" else None
        return None


# 17  Sites
# =========
# The third question: when may the URL be requested? Some sites need pauses between
# requests (--delay, Crawl-delay), or say "not now" (429). While one site rests, the
# workers should send requests to others.
#
# The idea: a queue that knows the sites. Each site has its own line of waiting URLs.
# get() picks a site that may be asked now, and takes the first URL of its line. This
# begins a turn of the site, which lasts until end_turn(). In a turn one URL is
# requested. A URL that needs another turn goes back to the front of its line. A site
# with a delay has one turn at a time, and rests after each request. If the delay is 3 s:
#
#     at 1 s    put(/cats/), put(/birds)      both wait in the line of zoo.org
#     at 1 s    get() in one worker           /cats/: its turn begins
#     at 1 s    get() in another worker       waits: zoo.org is busy
#     at 2 s    the turn of /cats/ ends       zoo.org rests: free_at is 5 s, and a timer is set
#     at 5 s    the timer                     zoo.org is free: the waiting get() takes /birds
#
# In the first turn of a site that is in scope, its robots.txt is requested, and the
# redirects of robots.txt are followed (§21). Until it is known, there is one turn at a
# time. Once it is known, the first URL follows without a rest.
#
# The responses to its URLs also change how fast a site is asked. Its pace is the number
# of seconds that it rests after each request. Without a delay it is 0, and any number
# of requests may run at a time. After the first 429 it is more than 0, and they run one
# at a time:
#
#     the response    the site rests for at least    its pace
#     429             Retry-After (§21), or 2 s      doubles, up to 2 s: 0.1 s, 0.2 s ...
#     anything else   its pace                       shrinks by 3 %, but not below the delay
#
# A host outside the crawl that says nothing but 429 should not hold up the crawl. After
# ten 429s in a row, its URLs are not retried, and it rests only for its pace.

MAX_PAUSE = 300.0   # seconds: a longer Retry-After or Crawl-delay is shortened to this
MIN_PACE = 0.1      # seconds: the pace after the first 429 of a site without a delay
REST = 2.0          # seconds of rest after a 429 without Retry-After: few sites need more. 429s do
                    # not make the pace greater than this either
PATIENCE = 10       # 429s in a row, after which another host does not hold up the crawl any more


class Site:
    """The state of an origin: its robots.txt, and when it may get the next request.

    url             any URL of the origin
    robots          its rules, once they are known
    failure         the outcome of a robots.txt that has failed
    robots_tries    attempts to get robots.txt
    delay           seconds between requests, from --delay or robots.txt
    pace            seconds between requests now, at first *delay*; 0: any number at a time
    slowed          429s in a row
    turns           turns that have not ended
    free_at         the loop time until which the site rests
    waiting         URLs that wait for a turn: Nodes (§18)
    timer           tells the queue that the site has rested"""

    def __init__(self, url: URL, robots: Robots | None, delay: float):
        self.url = url
        self.robots = robots
        self.failure: Record | None = None
        self.robots_tries = 0
        self.delay = delay
        self.pace = delay
        self.slowed = 0
        self.turns = 0
        self.free_at = 0.0
        self.waiting = deque["Node"]()
        self.timer: Handle | None = None

    def is_busy(self) -> bool:
        """Return whether the next turn must wait for the end of another."""
        is_known = self.robots is not None or self.failure is not None
        return self.turns > 0 and (self.pace > 0 or not is_known)

    def rest(self, seconds: float) -> None:
        """Begin no turn before this number of seconds has passed."""
        self.free_at = max(self.free_at, get_running_loop().time() + seconds)

    def adapt(self, is_slowed: bool, pause: float) -> None:
        """Adapt the pace to a response, and rest. *is_slowed* says whether the response
        was a 429; *pause* is its Retry-After in seconds, or 0 if there was none.

        A 429 while the site rests does not double the pace: another 429, to a request that
        was in flight at the same time, has just done that. The Fetcher (§21) counts `slowed`."""
        if not is_slowed:
            self.pace = max(self.delay, 0.97 * self.pace)
            self.rest(self.pace)
            return
        if self.free_at <= get_running_loop().time():
            doubled = max(MIN_PACE, 2 * self.pace)
            self.pace = max(self.pace, min(doubled, REST))
        self.rest(max(self.pace, pause if pause else REST))


class PoliteQueue(Queue["Node"]):
    """A Queue of URLs. Each waits for a turn of its site, and get() goes round the sites."""

    def __init__(self) -> None:
        super().__init__()
        self._free = OrderedDict[Site, None]()  # the sites whose first URL may be taken now

    def qsize(self) -> int:
        """Return the number of sites whose first URL may be taken now."""
        return len(self._free)

    def put_nowait(self, node: Node) -> None:
        """Put a URL at the end of its site's line."""
        self.unfinished += 1
        node.site.waiting.append(node)
        self._update(node.site)

    def get_nowait(self) -> Node:
        """Begin a turn of a free site, and take its first URL. Raises QueueEmpty."""
        if self.empty():
            raise QueueEmpty
        site, _ = self._free.popitem(last=False)
        site.turns += 1
        node = site.waiting.popleft()
        self._update(site)
        return node

    def put_back(self, node: Node) -> None:
        """Put a URL that was taken, and needs another turn, at the front of its site's line."""
        node.site.waiting.appendleft(node)
        self._update(node.site)

    def end_turn(self, site: Site) -> None:
        """End a turn of a site."""
        site.turns -= 1
        self._update(site)

    def _update(self, site: Site) -> None:
        """Find out whether a site is free; if it has to rest first, set a timer.

        For a free site, each call wakes one task that waits in get()."""
        if site.timer:
            site.timer.cancel()
        loop = get_running_loop()
        if not site.waiting or site.is_busy():
            self._free.pop(site, None)  # put_nowait(), put_back() or end_turn() will call this
        elif site.free_at > loop.time():
            self._free.pop(site, None)
            site.timer = loop.call_at(site.free_at, self._update, site)
        else:
            self._free.setdefault(site)  # a site that is free already keeps its place
            _wake(self._getters)


# 18  Frontier
# ============
# Now the life of /cats/ can begin: the zoo's root refers to it. It should end as one
# Record, however many pages refer to it. So each seen URL has one Node, which is in one
# round. Round 0 is for the roots and their redirect targets; their hosts define the
# scope. Round 1 is for pages (with a --depth other than 100 there is a round for each
# level), CHECKS is for checks, and NEVER is for URLs that are left out:
#
#     round 0 < round 1 < round 2 ... < CHECKS < NEVER        a URL only moves to the left
#
# The zoo's root links to the lion and shows the map; /cats/ shows the lion and links to
# the map:
#
#     after              /cats/      /map.png       http://cam.org/lion
#     / was read         round 1     CHECKS         NEVER: "on another host"
#     /cats/ was read    is done     round 1        CHECKS

CHECKS = 1 << 40    # the round of URLs that are only checked: later than any --depth
NEVER = 1 << 41     # the round of URLs that are left out


class Node:
    """A seen URL, a URL with a fragment, or a text that cannot be requested, such as mailto:me.

    How the URL was admitted, or why it was left out:
    round           the round in which it is requested; None for a text that is not a URL
    reason          why the URL is left out, or ""
    site            its Site, unless the URL is left out
    parent          the page, or the redirect, that led to it; "" for a root, and for a file that
                    no link has led to
    is_linked       whether another page (§19), or a redirect, refers to it
    depth           links from a root
    hops            redirects in a row that led to it

    How it is requested (§21):
    is_check        whether the URL is only checked
    tries           requests so far

    The outcome:
    next_node       the target of a redirect, or None
    fragment        the fragment in the Location of a redirect
    sitemap         the root element if it is one of SITEMAPS
    anchors         of a page that was read, see anchors_of(); else None
    is_well         whether it ended without a problem or a redirect
    linked_from     the pages that refer to it; when it is well, no more are added"""

    __slots__ = ("text", "round", "reason", "site", "parent", "is_linked", "depth", "hops",
                 "is_check", "tries", "next_node", "fragment", "sitemap", "anchors", "is_well",
                 "linked_from")

    def __init__(self, text: str):
        self.text = text
        self.round: int | None = None
        self.reason = ""
        self.site: Site
        self.parent = ""
        self.is_linked = False
        self.depth = 0
        self.hops = 0
        self.is_check = False
        self.tries = 0
        self.next_node: Node | None = None
        self.fragment = ""
        self.sitemap = ""
        self.anchors: array[int] | None = None
        self.is_well = False
        self.linked_from = list[str]()

    @property
    def url(self) -> URL:
        """The URL, if it was admitted. It is rebuilt on each access, to save memory."""
        return URL(*self.site.url[:4], self.text[len(self.site.url.origin):])

    def ahead(self) -> list[Node]:
        """Return this node and the nodes that its redirects lead to. (follow() prevents loops.)"""
        nodes = [self]
        while after := nodes[-1].next_node:
            nodes.append(after)
        return nodes


Nodes = dict[str, Node]


class Frontier:
    """The seen URLs, and the queue of those to request in the current round.

    round       the number of the round; -1 before the first
    scope       the Scope
    queue       the PoliteQueue of URLs in the current round
    seen_urls   Nodes, by their text
    sites       by origin, and by whether the folder answers in place of the server
    later       Nodes, by the round they wait for
    _left       how many more URLs may be admitted, as a "page" and as a "check" each"""

    def __init__(self, scope: Scope, options: Options):
        self.round = -1
        self.scope = scope
        self.queue = PoliteQueue()
        self.seen_urls: Nodes = {}
        self.sites = dict[tuple[str, bool], Site]()
        self.later = defaultdict[int, list[Node]](list)
        self._options = options
        self._left = {"page": options.max_pages, "check": options.max_pages}

    def begin(self, number: int) -> None:
        """Queue the URLs of a round."""
        self.round = number
        for node in self.later.pop(number, ()):
            if node.round == number:  # the node has not moved to an earlier round
                self.queue.put_nowait(node)

    def admit(self, url: URL, parent: Node | None, depth: int, hops: int = 0, check: bool = False
              ) -> Node:
        """Admit *url*, as a page or as a *check*, or leave it out. Return its Node.

        It is *depth* links from a root, after *hops* redirects in a row. The *parent*
        is the page that refers to it or, after a redirect, the URL that redirects to
        it; a root has none, nor has a file that no link has led to. With --external, a
        link that leads out becomes a check. The limits of --max-pages count here."""
        # 1. In which round would it be requested? (/map.png, linked from /cats/: in round 1.)
        listed = parent is not None and parent.sitemap == "sitemapindex"
        reason = self.scope.objection(url, depth, check, listed)
        if self._options.external and reason in ("on another host", "not included"):
            check = True
            reason = ""
        kind = "check" if check else "page"
        counts = depth > 0 and not hops  # roots and redirect targets do not count
        if not reason and counts and not self._left[kind]:
            reason = "over the page limit"
        its_round = depth  # with --depth there is a round for each level
        if reason:
            its_round = NEVER
        elif check:
            its_round = CHECKS
        elif self._options.depth == MAX_DEPTH:
            its_round = min(depth, 1)
        # 2. A seen URL stays in its round unless the new round is earlier. (Its old round
        #    is then later than the current one, so it has not been requested yet.)
        node = self.seen_urls.get(f"{url}") or Node(f"{url}")
        if node.round is not None and node.round <= its_round:
            return node
        # 3. It is new, or moves.
        self.seen_urls[node.text] = node
        if parent:
            node.parent = parent.text
        node.depth = depth
        node.hops = hops
        node.round = its_round
        node.reason = reason
        node.is_check = check
        # 4. Unless it is left out, it is queued now, or in its round.
        if not reason:
            node.site = self._site_of(url)
            if counts:  # a check that becomes a page counts as both
                self._left[kind] -= 1
            if its_round == self.round:
                self.queue.put_nowait(node)
            else:
                self.later[its_round].append(node)
        return node

    def _site_of(self, url: URL) -> Site:
        """Return the Site of a URL. Those of a folder have no delay, but may have a robots.txt."""
        is_file = self.scope.folder_for(url) is not None
        key = url.origin, is_file
        if key not in self.sites:
            # Outside the scope, robots.txt is not requested.
            is_ruled = self.scope.covers(url._replace(target="/robots.txt"))
            robots = Robots("") if self._options.no_robots or not is_ruled else None
            self.sites[key] = Site(url, robots, 0.0 if is_file else self._options.delay)
        return self.sites[key]

    def follow(self, node: Node, record: Record) -> Record:
        """Admit the target of a redirect, or leave it out. Return the *record* of the redirect.

        In a loop, or after too many redirects, the returned record has a kind and an error."""
        target = parse_url(record.next_url)
        if node.depth == 0:  # the scope grows
            self.scope.hosts.add(host_of(target))
        problem = f"more than {self._options.max_redirect} redirects in a row"
        if node.hops < self._options.max_redirect:
            following = self.admit(target, node, node.depth, node.hops + 1, node.is_check)
            if node not in following.ahead():  # otherwise the target already leads back here
                node.next_node = following
                following.is_linked = True
                return record
            problem = "redirect loop"
        return record._replace(kind="too many redirects", error=problem)

    def left_out(self) -> Iterator[Record]:
        """Yield a record of each URL that was left out. Must be called after the last round."""
        for node in self.seen_urls.values():
            if node.reason:
                yield Record(node.text, skipped=node.reason, depth=node.depth,
                             parent=node.parent)


# 19  References
# ==============
# The root's Record says "/cats/", as the page wrote it. A page has some 60 references,
# and nearly all of their URLs have been seen before. Parsing each of them (§9) can take
# as long as all other work on the page. The idea: a URL is parsed and admitted when it
# is first seen as a link, and once more when it is first seen as an asset. After that,
# references to it are only looked up. A second parse would change nothing, because pages
# are read round by round: a link that is found later never means an earlier round. There
# are two exceptions. A URL that was first seen more than MAX_DEPTH links away stays left
# out, even if a shorter way turns up later. So does a sitemap that --include leaves out,
# if a page links to it before an index of sitemaps lists it.
#
# A reference is joined to its page as plain text, and the result is looked up. An
# unusual spelling is not found there, and is parsed. The lookup never finds a wrong
# Node, because the two tables hold only normal spellings, and parsing a normal spelling
# gives the same text again. On the zoo's /cats/
#
#     a, ./a, ../cats/a        are joined to http://zoo.org/cats/a: parsed once, then found
#     ././a                    is joined to http://zoo.org/cats/./a: odd, parsed each time
#     mailto:me                is looked up as it is: its Node says why it is not requested
#
# References are resolved in two ways, here and in parse_url(), because it saves up to half
# of the time that a page takes.

# The user name and password of a reference, which are never shown. They may also stand behind
# two schemes, as in http://https://me:password@host/ and view-source:https://me:password@host/.
_USER = re.compile(r"""(?ix) ^( (?: [a-z0-9+.-]*:?[/\\]+ | [a-z0-9+.-]+:(?=(?:https?|ftp):) )?
    (?: (?:https?|ftp):[/\\]* )* ) (?<=[:/\\]) [^/\\?\#]*@""")
SLICE = 100  # references that are looked up between two ticks


def _join(base: URL, folder: str, reference: str) -> str:
    """Join a reference to the page *base* in *folder* (/d for http://h/d/p), as plain text.

    In a reference of more than MAX_URL characters "../" may stay, because it would take
    quadratic time, and the reference is parsed anyway."""
    if not reference:  # the page itself
        return f"{base}"
    if reference[:2] == "//":  # //host/x
        return f"{base.scheme}:{reference}"
    if reference[0] == "?":
        return f"{base.origin}{base.path}{reference}"
    if reference[0] == "/":  # /x
        return f"{base.origin}{reference}"
    if ":" in reference:  # http://host/x, and other text that may have a scheme
        return reference
    reference = reference.removeprefix("./")
    while reference[:3] == "../" and len(reference) < MAX_URL:
        folder = folder.rpartition("/")[0]
        reference = reference[3:]
    return f"{base.origin}{folder}/{reference}"


class References:
    """Admits the references of pages to the frontier.

    *emit* is called with the record of each reference that is not a valid URL."""

    def __init__(self, frontier: Frontier, fragments: Fragments, options: Options,
                 emit: Callable[[Record], None]):
        self._frontier = frontier
        self._fragments = fragments
        self._options = options
        self._emit = emit
        # The Nodes of links, and those of assets, by the normal spelling of their URLs.
        self._seen_links: Nodes = {}
        self._seen_assets: Nodes = {}

    async def admit(self, referrer: Node, record: Record, base: URL) -> Record:
        """Admit the URLs that a page refers to. Return its *record*, with these URLs in it.

        With --fragments, the URLs with fragments follow its links, except those that the
        page itself has. Its assets become () if there were none, and None with --pages-only."""
        links = await self._admit_each(referrer, record.links, base, False)
        nodes = list(links.values())
        if self._options.fragments:
            nodes += await self._fragments.admit(referrer, record.links, links)
        link_urls = [node.text for node in nodes]
        asset_urls = None
        if not self._options.pages_only:
            assets = await self._admit_each(referrer, record.assets or (), base, True)
            nodes += assets.values()
            asset_urls = tuple(dict.fromkeys(node.text for node in assets.values()))
        for node in set(nodes):
            if node is not referrer:
                node.is_linked = True
            if not node.is_well:  # the report names the pages that refer to a problem
                node.linked_from.append(referrer.text)
        return record._replace(links=tuple(dict.fromkeys(link_urls)), assets=asset_urls)

    async def _admit_each(self, referrer: Node, references: Iterable[str], base: URL, check: bool
                          ) -> Nodes:
        """Admit links, or assets (if *check*), at the depth of the page + 1. Return their Nodes,
        by reference without its fragment: each is looked up once. Others run after each
        SLICE of them.

        Text without a scheme that is not a URL here may be one on another page, so it is
        not kept in the tables."""
        known = self._seen_assets if check else self._seen_links
        folder = base.path.rpartition("/")[0]
        nodes = {}
        # Each reference once, without its fragment, in order.
        for address in dict.fromkeys([reference.partition("#")[0] for reference in references]):
            node = known.get(_join(base, folder, address))
            if not node:
                node = self._parse_and_admit(referrer, address, base, check)
                if _SCHEME.match(node.text):
                    known[node.text] = node  # other spellings are parsed each time
            nodes[address] = node
            if not len(nodes) % SLICE:
                await sleep(0)
        return nodes

    def _parse_and_admit(self, referrer: Node, reference: str, base: URL, check: bool) -> Node:
        """Return the Node of a reference. If it cannot be requested, leave it out or report it.

        Then the text of its Node is escaped and cut, with *** in place of a user name, and
        its round is None: the report recognises a text that is not a URL by that."""
        try:
            return self._frontier.admit(
                parse_url(reference, base), referrer, referrer.depth + 1, 0, check)
        except ValueError as error:
            seen_urls = self._frontier.seen_urls
            text = _escape(_USER.sub(r"\1***@", _trim(reference))[:MAX_URL + 1])
            node = seen_urls.get(text)
            if not node:
                node = seen_urls[text] = Node(text)
                node.parent = referrer.text
                node.depth = referrer.depth + 1
                if self._frontier.scope.excludes(text):
                    node.reason = "excluded"
                elif isinstance(error, UnfetchableError):
                    node.reason = f"{error}"
                else:
                    self._emit(Record(text, error=f"not a URL: {_explain(error)}", kind="broken",
                                      depth=node.depth, parent=referrer.text))
            return node


# 20  Fragments
# =============
# The root also links to /birds#owl. With --fragments, this needs an anchor on /birds:
# an element whose id is owl, or <a name=owl>. The link may be found long before /birds
# is read, or long after. So, except for fragments that the page itself has, nothing is
# decided until the last round has ended. Until then, three things are collected:
#
#     when a page is read        the hashes of its anchors, in its Node
#     when a redirect is read    the fragment in its Location, which replaces that of the link
#     when a link is found       a Node for /birds#owl, under the Node of /birds
#
# At the end each fragment is looked up in the page that a browser would show.

MAX_ANCHORS = 100_000   # of a page: the fragments of a page with more cannot be checked
# An anchor is searched for wherever it may be, even in a comment or a script: a link
# that is wrongly called well costs less than one that is wrongly called broken. So the
# expressions need not know where a tag really begins. The search goes on inside
# a value in quotes, because its first quote may be one that a script has left open.
_ANCHOR_VALUE = r"""(?: (?= ( "[^"]*+" | '[^']*+' ) ) | ( [^\s>"'] [^\s>]*+ ) )"""
# In <p class=x id="owl"> these find a d, look back for " i", and then on for ="owl". There is
# one for each case of the d: a search for one letter is six times as fast as one for two.
_IDS = [re.compile(rf"""{d} (?<= [\s"'/] [iI] {d} ) \s*+ = \s*+ {_ANCHOR_VALUE}""", _FLAGS)
        for d in "dD"]
# In <a title="a > b" name=owl>, the value of title is skipped. A value that holds "<a " is
# not: in <script>s='<a title="'</script> <a name=owl>, its first quote was left open.
_IN_QUOTES = _repeated(r'[^"<]++ | <(?![aA][\s/])')
_IN_SINGLE_QUOTES = _repeated(r"[^'<]++ | <(?![aA][\s/])")
_NAME_OF_A = re.compile(rf"""
    < [aA] (?= [\s/] )
    (?> = \s*+ (?: " {_IN_QUOTES} " | ' {_IN_SINGLE_QUOTES} ' ) | [^<>=nN]++ | [^<>] ){{0,1000}}?
    (?<= [\s"'/] ) (?i:name) \s*+ = \s*+ {_ANCHOR_VALUE}""", _FLAGS)


def anchors_of(text: str) -> array[int] | None:
    """Return the hashes of the anchors of a page in HTML or XHTML: the value of each id,
    the name of each <a>, and "top", which every page has.

    Return None if there are more than MAX_ANCHORS."""
    anchors = array("q", [hash("top")])
    for expression in (*_IDS, _NAME_OF_A):
        for match in expression.finditer(text):
            anchors.append(hash(_value_of(match[1] or match[2])))
            if len(anchors) > MAX_ANCHORS + 1:
                return None
    return anchors


def fragment_of(reference: str) -> str:
    """Return the fragment of a link or a redirect.

    For a fragment that does not name an element, such as "#" or "#!/x", return "top",
    which every page has."""
    # After ":~:" comes a text fragment.
    fragment = _trim(reference.partition("#")[2].partition(":~:")[0])
    if re.match(f"(?is)(?:top)?$|[/!]|.{{{MAX_URL}}}", fragment):  # or it is too long
        return "top"
    return fragment


def _anchors_named(fragment: str) -> set[int]:
    """Return the hashes of the anchors that a fragment may name: as it is written, and decoded."""
    return {hash(fragment), hash(unquote(fragment))}


class Fragments:
    """The fragments that links name, for --fragments."""

    def __init__(self, frontier: Frontier):
        self._frontier = frontier
        # The Nodes of fragments, by the Node of the URL before the #.
        self._nodes = defaultdict[Node, list[Node]](list)

    async def admit(self, referrer: Node, links: Iterable[str], nodes: Nodes) -> list[Node]:
        """Return the Nodes of the fragments that links name, except "top" and those that
        *referrer* itself has. They are among the frontier's seen URLs.

        *nodes* holds the Nodes of the links, by reference without its fragment."""
        seen_urls = self._frontier.seen_urls
        own = set(referrer.anchors or ())
        admitted = list[Node]()
        for number, link in enumerate(links, 1):
            if not number % SLICE:
                await sleep(0)
            fragment = fragment_of(link)
            target = nodes[link.partition("#")[0]]
            if fragment == "top" or (target is referrer and own & _anchors_named(fragment)):
                continue
            text = f"{target.text}#{_escape(fragment)}"
            node = seen_urls.get(text)
            if not node:
                node = seen_urls[text] = Node(text)
                self._nodes[target].append(node)
            admitted.append(node)
        return admitted

    def records(self) -> Iterator[Record]:
        """Yield a record of each fragment that does not exist, is excluded or is not checked.

        Its parent is the first, in order, of the pages that link to it, and its depth that
        of the URL before the #, but at least 1. If the page is a problem or was left out,
        its fragments have no record, unless they are excluded. The set of a page's anchors
        is made once, although many URLs may redirect to it. Must be called after the last
        round."""
        shown_last = None
        anchors = set[int]()
        for linked, nodes in self._nodes.items():
            redirected = ""
            for last in linked.ahead():  # a browser shows the last page and fragment
                if last.fragment:
                    redirected = last.fragment
            if last is not shown_last:
                shown_last = last
                anchors = set(last.anchors or ())
            for node in nodes:
                fragment = redirected or node.text.partition("#")[2]
                record = Record(
                    node.text, parent=min(node.linked_from), depth=max(1, linked.depth))
                if self._frontier.scope.excludes(node.text):
                    yield record._replace(skipped="excluded")
                elif last.anchors is None:
                    if last.is_well:  # otherwise the page is a problem, or was left out
                        yield record._replace(skipped="fragment not checked")
                elif not anchors & _anchors_named(fragment):
                    yield record._replace(
                        kind="broken", error=f"no id {_printable(fragment)!r} on the page")


# 21  Requests
# ============
# /cats/ has been admitted, round 1 has begun, and zoo.org may be asked: a worker has
# taken the URL from the queue, which began a turn of its site. Now its outcome has to
# be found with few requests, and without bodies that nobody reads. The idea: ask the
# server last. fetch() uses the turn. It tries these cases in order, and returns a
# Result (§14), or Again if the URL needs another turn:
#
#     line of the site ----> worker: cases 1 to 8 ----> Result, and its Record
#             ^                        |
#             +------ (a timer) <------+ Again
#
#     1  robots.txt has failed                   Result: that failure
#     2  robots.txt is not known yet             robots.txt is requested; Again
#     3  robots.txt forbids the URL              Result
#     4  the folder answers for it               Result (§11), without a request
#     5  the journal of an earlier crawl has it  Result (§23)
#
# Otherwise the URL is requested from the server, and the response decides:
#
#     6  a failure that may be temporary         Again after 1 s, 2 s ..., or after Retry-After if
#                                                that is longer; after a 429, when the site has
#                                                rested
#     7  HEAD failed or redirects, or the URL    Again, this time with GET
#        is a stylesheet of the crawl's hosts
#     8  anything else                           Result
#
# An image whose server refuses HEAD has two turns: HEAD, 405, Again; GET, 200, Result.
# /cats/ needs one turn.
#
# Until it has a Record, an admitted URL waits in one of these places: in `later` (§18),
# in the line of its site, in a timer, or with a worker. A result that cannot be emitted
# yet waits in `_held` or in `_moved` (§22). (If a URL moves to an earlier round, an
# entry stays behind in `later`, and begin() skips it.)

BACKOFF = 1.0         # seconds to wait after the first attempt; then 2, 4, 8 ... 256
ROBOTS_REQUESTS = 6   # for one robots.txt: five redirects, as RFC 9309, 2.3.1.2, asks for at least


class Again(NamedTuple):
    """In place of a Result: the URL needs another turn, after *pause* seconds."""

    pause: float = 0.0


def _back_off(tries: int) -> float:
    """Return how many seconds to wait after *tries* attempts."""
    return BACKOFF * 2.0 ** min(tries - 1, 8)


class Fetcher:
    """Finds the outcome of URLs: from robots.txt, an earlier crawl's journal, or the server.

    client      the Client that sends the requests
    ages        the Unix times of the responses that were taken from the journal
    readings    for each file of the folder, the Nodes under which it was read: /a and /a.html"""

    def __init__(self, frontier: Frontier, options: Options):
        self.client = Client(options.headers, options.timeout, options.max_body)
        self.client.max_idle = max(MAX_IDLE, options.max_tasks)
        self.ages = list[float]()
        self.readings = defaultdict[bytes | None, list[Node]](list)
        self._frontier = frontier
        self._scope = frontier.scope
        self._options = options

    async def _send(self, url: URL, method: str, wanted: Wanted, max_body: int
                    ) -> tuple[Response, Exception | None]:
        """Return the response of the server, or of the folder, or NO_RESPONSE and the error."""
        try:
            if folder := self._scope.folder_for(url):
                response = folder.fetch(url, wanted, max_body)
            else:
                response = await self.client.fetch(
                    url, method, self._scope.trusts(url), wanted, max_body)
            if response.body.startswith(GZIP_MAGIC):  # a file such as /sitemap.xml.gz
                body = _decode(response.body, "gzip", self._options.max_body)
                response = response._replace(body=body)
            return response, None
        except (OSError, ProtocolError) as error:
            return NO_RESPONSE, error.with_traceback(None)  # a traceback holds frames: see §4

    def _may_retry(self, response: Response, error: Exception | None, tries: int) -> bool:
        """Return whether to send another request after *tries* attempts.

        A bad certificate, a server that does not speak TLS and a host name that does not
        exist are final. A refused connection is retried once, because the server may be
        starting. If there are no more descriptors, the idle connections are closed, and
        after the last attempt CrawlError is raised."""
        is_final = (isinstance(error, ssl.SSLCertVerificationError) or _lacks_tls(error)
                    or _is_unknown_host(error)
                    or (isinstance(error, ConnectionRefusedError) and tries > 1))
        is_temporary = (response.status in _TEMPORARY
                        or (isinstance(error, (OSError, TruncatedError)) and not is_final))
        is_full = isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
        if is_full:
            self.client.close()  # idle connections have descriptors as well
        if tries < self._options.max_tries and is_temporary:
            return True
        if is_full:
            raise CrawlError("too many open files: raise the limit (ulimit -n) or lower "
                             "--max-tasks")
        return False

    def _wants(self, url: URL, is_check: bool, head: Response | Record) -> bool:
        """Return whether to read the body of a response: of a page, or of a stylesheet."""
        reader = reader_of(url, head.content_type)
        if not reader or not 200 <= head.status < 300:
            return False
        if reader is read_stylesheet:
            return self._scope.covers(url)
        return not is_check

    def _reads(self, node: Node, url: URL, head: Response) -> bool:
        """Return whether to read the body of the response for a node.

        A download is not read. It has a Content-Length above --max-body, is XML or has no
        type, and is neither a root nor listed in a sitemap."""
        if not self._wants(url, node.is_check, head):
            return False
        length = head.headers.get("content-length", "")
        if not length.isdecimal() or int(length) <= self._options.max_body:
            return True
        parent = self._frontier.seen_urls.get(node.parent)
        is_expected = node.depth == 0 or (parent is not None and parent.sitemap != "")
        is_odd = not head.content_type or reader_of(url, head.content_type) is read_sitemap
        return is_expected or not is_odd

    async def fetch(self, node: Node) -> Result | Again:
        """Use the turn of a URL: cases 1 to 8. The Record has the is_check of the Node, unless
        robots.txt forbids the URL, which was then not checked. (§22 sets its depth and
        parent.)"""
        site = node.site
        url = node.url
        if site.failure is not None:  # 1: robots.txt has failed
            return Result(site.failure._replace(url=node.text, is_check=node.is_check))
        if site.robots is None:  # 2: robots.txt is not known yet
            await self._load_robots(site)
            return Again()
        if rule := site.robots.rule(url.target):  # 3: robots.txt forbids it
            return Result(Record(node.text, skipped=f"forbidden by robots.txt: {rule}"))
        if folder := self._scope.folder_for(url):  # 4: the folder answers
            response, error = await self._send(
                url, "GET", partial(self._reads, node, url), self._options.max_body)
            result = self._result(node, url, response, error)
            if result.page:
                self.readings[folder.file_of(url)].append(node)
            return result
        if record := self._remembered(node):  # 5: the journal has it
            return Result(record, from_journal=True)
        return await self._request(node, url)

    async def _request(self, node: Node, url: URL) -> Result | Again:
        """Request a URL from its server: cases 6 to 8.

        Retry-After is obeyed only on the crawl's hosts, and not in round 0, where one slow
        root would hold up the whole crawl. A status that is accepted is not retried. A
        host outside the crawl that says nothing but 429 gets no retries, but a GET still
        follows a HEAD. `seconds` is that of the loop's clock; times are rounded to
        milliseconds."""
        loop = get_running_loop()
        method = "HEAD" if node.is_check and not node.tries else "GET"
        at = time.time()
        began = loop.time()
        node.tries += 1
        wanted = partial(self._reads, node, url)
        response, error = await self._send(url, method, wanted, self._options.max_body)
        seconds = loop.time() - began
        is_covered = self._scope.covers(url)
        is_slowed = response.status == 429
        if is_slowed:
            node.site.slowed += 1
        else:
            node.site.slowed = 0
        is_hopeless = node.site.slowed >= PATIENCE and not is_covered
        retry_after = response.headers.get("retry-after", "")
        pause = 0.0
        if retry_after.isdecimal() and is_covered and self._frontier.round > 0:
            pause = min(float(retry_after), MAX_PAUSE)
        node.site.adapt(is_slowed and not is_hopeless, pause)
        # 6: a temporary failure
        is_final = is_hopeless or response.status in self._options.accept
        if not is_final and self._may_retry(response, error, node.tries):
            return Again() if is_slowed else Again(max(_back_off(node.tries), pause))
        # 7: some servers refuse any HEAD, or redirect it elsewhere.
        if method == "HEAD" and (error or response.status >= 300 or wanted(response)):
            return Again()
        result = self._result(node, url, response, error)  # 8: the end
        return result._replace(record=result.record._replace(
            tries=node.tries, at=round(at, 3), seconds=round(seconds, 3)))

    def _result(self, node: Node, url: URL, response: Response, error: Exception | None) -> Result:
        """Return the Result of a URL that has its response. Note in its Node what the page is.

        Unless on_page needs them, the body and the text of the page are dropped."""
        read = self._reads(node, url, response)
        record, page, _ = result_of(
            url, response, error, read, self._options.no_robots, self._options.accept)
        record = record._replace(is_check=node.is_check)
        if not read and self._wants(url, node.is_check, response):
            record = record._replace(skipped=TOO_LARGE)
        if record.error:
            hint = hint_of(url, response, error, node.depth == 0)
            record = record._replace(error=record.error + hint)
        if page:
            if not page.is_html:
                root = root_element_of(page.text)
                if root in SITEMAPS:
                    node.sitemap = root
            elif self._options.fragments:
                node.anchors = anchors_of(page.text)
            if not self._options.on_page:
                page = page._replace(body=b"", text="")
        return Result(record, page)

    async def _load_robots(self, site: Site) -> None:
        """Request the robots.txt of a site. If that fails but may be retried, the site rests.

        robots.txt has no Node, so its redirects are followed here, even to other hosts.
        Then the last response decides (RFC 9309, 2.3.1):
            2xx                                  gives rules
            429, 500 or more, no valid response  after the last attempt, the site's URLs fail
            anything else                        everything is allowed

        The URLs fail as robots.txt did if the site refuses connections, has a bad
        certificate or speaks the other scheme. Otherwise only robots.txt has failed: they
        are skipped as "robots.txt failed", with its URL and what is wrong as the error."""
        url = site.url._replace(target="/robots.txt")
        for _ in range(ROBOTS_REQUESTS):
            response, error = await self._send(
                url, "GET", lambda head: head.status < 300, MAX_BODY)
            record = result_of(url, response, error, read=False).record
            if not record.next_url:
                break
            url = parse_url(record.next_url)
        site.robots_tries += 1
        tries = site.robots_tries
        if self._may_retry(response, error, tries):
            site.rest(_back_off(tries))
            return
        if 0 < response.status < 500 and response.status != 429:
            product = product_of(self.client.user_agent) or PRODUCT  # our name in robots.txt
            site.robots = Robots(response.body.decode("utf-8", "replace"), product)
            if not self._scope.folder_for(url):
                site.pace = site.delay = max(site.delay, min(site.robots.delay, MAX_PAUSE))
        else:
            record = record._replace(status=0, content_type="", tries=tries)
            hint = hint_of(url, response, error, is_root=False)
            is_refused = record.kind in ("refused", "bad certificate")
            if url.origin == site.url.origin and (is_refused or hint):
                site.failure = record._replace(error=record.error + hint)
            else:  # only robots.txt has failed, not the server
                site.failure = record._replace(
                    skipped="robots.txt failed",
                    error=f"{url}: {record.error}; --no-robots ignores robots.txt")

    def _remembered(self, node: Node) -> Record | None:
        """Return the journal's record if the URL would be requested and read the same way now.

        Return None for roots and their redirect targets, which are always requested, and
        with --fragments for pages: a journal does not hold their anchors. XML with an
        unknown root element was looked at, and would not be read now either."""
        options = self._options
        if not options.journal or node.depth == 0 or (options.fragments and not node.is_check):
            return None
        record = options.journal.find(node.text)
        if record is None:
            return None
        was_read = record.encoding != ""
        # The earlier crawl may have had other hosts in scope, and not read a stylesheet.
        would_be_read = self._wants(node.url, node.is_check, record)
        lacks_assets = was_read and record.assets is None and not options.pages_only
        has_links = record.links != ()
        has_other_links = record.nofollow and has_links != options.no_robots
        was_accepted = record.status >= 400 and not record.kind
        is_other_xml = not was_read and reader_of(node.url, record.content_type) is read_sitemap
        if (record.is_check != node.is_check or lacks_assets or has_other_links
                or (was_read != would_be_read and not is_other_xml)
                or record.size > options.max_body or record.skipped == TOO_LARGE
                or was_accepted != (record.status in options.accept)):
            return None
        return record


# 22  Crawler
# ===========
# /cats/ has its Result. What happens to it? The Crawler puts the parts together: it has
# to fetch many pages at the same time, survive failures, and stop when there are no
# more. Its workers run the loop in _work(). A redirect is not followed on the spot: its
# target is admitted like a link (§18). A failure of a server becomes a Record; any
# other error ends the crawl.
#
# The hosts of the crawl are known only when the last root has stopped redirecting.
# Until then the result of a root, unless it is a redirect, is put into `_held`. Then
# the held URLs are queued once more, one after the other in the order of the roots, and
# a worker that gets one takes its result from there. So the records of start pages come
# in the same order in each crawl. Round 1 begins when all of these URLs are done.
#
# The HTML files of a folder that no link has led to are admitted when the pages are
# done, and before the checks. As roots, they would all be held in memory.
#
# At the end the queue is empty and all workers wait in get(). They are cancelled.

class Crawler:
    """`await Crawler("xkcd.com").crawl()` finds the outcome of each URL once.

    *roots* is a URL, or several URLs. Without a scheme, a root is https, or http on
    this machine. The other arguments are the fields of Options. The scope consists of
    the hosts of the roots, and of the hosts that they redirect to, with or without www.;
    with *folder*, of the URLs of its files. Raises CrawlError for an invalid root,
    header, pattern, number or folder, and TypeError for an unknown argument.

    options     the Options
    frontier    the Frontier: .seen_urls has all URLs, .sites the origins
    fetcher     the Fetcher: .client sends the requests
    in_flight   the URLs that workers have, with the loop time at which they took them
    ended       whether all tasks of the crawl have ended"""

    @takes(Options)
    def __init__(self, roots: Texts, **given: Any):
        options = self.options = Options(**given)
        for name, least in _LEAST.items():
            value = getattr(options, name)
            if not least <= value < CHECKS:
                bound = "less than 2**40" if value > least else f"at least {least}"
                raise CrawlError(f"--{name.replace('_', '-')} must be {bound}, got {value!r}")
        texts = [roots] if isinstance(roots, str) else list(roots)
        self._roots = list(map(_parse_root, texts))
        for status in options.accept:
            if not 400 <= status <= 999:
                raise CrawlError(f"--accept takes statuses from 400 to 999, got {status}")
        folder = self._open_folder()
        scope = Scope(self._roots, options, folder)
        self.frontier = Frontier(scope, options)
        self._fragments = Fragments(self.frontier)
        self._references = References(self.frontier, self._fragments, options, self._emit)
        for url in self._roots:
            if pattern := scope.excludes(f"{url}"):
                raise CrawlError(f"--exclude {pattern.pattern!r} leaves out the start URL {url}")
        if folder:
            self._roots = [folder.start]
            if folder.pages and not folder.file_of(folder.start):
                self._roots = []  # the other files are read all the same
        try:
            self.fetcher = Fetcher(self.frontier, options)
        except ValueError as error:
            raise CrawlError(f"-H: {error}")
        self.in_flight = dict[Node, float]()
        self.ended = False
        self._hosts_are_known = False   # whether every root has stopped redirecting
        self._held = dict[Node, Result]()   # the results of roots other than redirects, until the
                                            # hosts are known
        # With --moved: the results of URLs that have moved for good, until the outcomes of
        # their targets are known.
        self._moved = dict[Node, Result]()

    def _open_folder(self) -> Folder | None:
        """Return the Folder of the option. Raises CrawlError."""
        if self.options.folder is None:
            return None
        if len(self._roots) != 1:
            raise CrawlError(f"--folder needs one start URL, got {len(self._roots)}")
        try:
            return Folder(self.options.folder, self._roots[0])
        except ValueError as error:
            raise CrawlError(f"--folder: {error}")

    async def crawl(self) -> None:
        """Crawl until no URL is left. May be called only once. An exception in a
        callback or in the journal ends the crawl and is raised.

        If the caller is cancelled, the crawl ends immediately: URLs that were in flight
        get no record, unless their callback catches the cancellation. A task whose callback
        does so once is cancelled once more. The URLs in `_moved` are emitted."""
        workers = [create_task(self._work()) for _ in range(self.options.max_tasks)]
        tasks = [create_task(self._rounds(workers)), *workers]
        with closing(self.fetcher.client):
            try:
                await gather(*tasks)
            except BaseException as error:  # the first error, or a cancellation, ends the crawl
                for task in tasks:
                    task.cancel()
                await gather(*tasks, return_exceptions=True)
                self.ended = True
                if isinstance(error, CancelledError):
                    self._emit_moved()
                raise
            self.ended = True

    def _emit(self, record: Record, from_journal: bool = False) -> None:
        """Pass a record to on_record and, unless it came from the journal, to the journal."""
        if self.options.journal and not from_journal:
            self.options.journal.write(record)
        self.options.on_record(record)

    async def _rounds(self, workers: Iterable[Task[None]]) -> None:
        """Run the rounds. The files of a folder that no link has led to come before CHECKS.
        Then emit what was left out, and end the workers."""
        frontier = self.frontier
        folder = frontier.scope.folder
        for url in self._roots:
            frontier.admit(url, None, 0)
        await self._run_rounds(0)
        self._hosts_are_known = True
        for url in self._roots:  # in their order, whichever has responded first
            end = frontier.seen_urls[f"{url}"].ahead()[-1]
            if end in self._held:
                frontier.queue.put_nowait(end)
                await frontier.queue.join()
        if folder:
            await self._run_rounds(CHECKS - 1)
            for file, url in folder.pages.items():
                if file not in self.fetcher.readings:
                    frontier.admit(url, None, max(1, frontier.round))  # no round comes twice
            await frontier.queue.join()
        await self._run_rounds(CHECKS)
        ends = itertools.chain(frontier.left_out(), self._fragments.records())
        for number, record in enumerate(ends, 1):
            self._emit(record)
            if not number % SLICE:
                await sleep(0)
        self._emit_moved()
        for worker in workers:  # all of them wait for the queue
            worker.cancel()

    async def _run_rounds(self, last: int) -> None:
        """Run the rounds up to the one with the number *last*, one after the other."""
        while self.frontier.later and min(self.frontier.later) <= last:
            self.frontier.begin(min(self.frontier.later))
            await self.frontier.queue.join()

    def _emit_moved(self) -> None:
        """Emit the records of URLs that have moved for good, as problems if pages refer to them.

        The error names the first URL ahead that has not moved for good as well. If the
        redirects lead to a problem, only that is one."""
        for node, result in self._moved.items():
            record = result.record
            nodes = node.ahead()
            if node.linked_from and (nodes[-1].is_well or nodes[-1].reason):
                target = next(each for each in nodes if each not in self._moved)
                record = record._replace(kind="moved", error=f"moved to {target.text}")
            self._emit(record, result.from_journal and record.kind == result.record.kind)
        self._moved.clear()

    async def _work(self) -> None:
        """Take URLs from the queue, fetch each one and process the result.

        A worker that is cancelled while it waits for a URL returns."""
        loop = get_running_loop()
        queue = self.frontier.queue
        while True:
            try:
                node = await queue.get()
            except CancelledError:
                return
            self.in_flight[node] = loop.time()
            await sleep(0)  # let the loop poll, because the lines below may never wait
            result: Result | Again
            if node in self._held:
                result = self._held.pop(node)
            else:
                result = await self.fetcher.fetch(node)
            queue.end_turn(node.site)
            if isinstance(result, Again):
                if result.pause:
                    loop.call_later(result.pause, queue.put_back, node)
                else:
                    queue.put_back(node)
            else:
                await self._admit_and_emit(node, result)
                queue.task_done()
            # Not in a `finally`: after an interruption, the report names the URLs still
            # in flight.
            del self.in_flight[node], result  # free the page before waiting for the next URL

    async def _admit_and_emit(self, node: Node, result: Result) -> None:
        """Admit the URLs that a result leads to, call on_page if a page was read now, and
        emit the Record. Until the hosts are known, hold the result, unless it is a redirect.
        A Record from the journal is written again only if its kind has changed."""
        if not (self._hosts_are_known or result.record.next_url):
            self._held[node] = result
            return
        record = await self._admit(node, result)
        if result.page and not node.is_check and self.options.on_page:
            work = self.options.on_page(record, result.page)
            if isinstance(work, Awaitable):
                await work
        if result.from_journal:
            self.fetcher.ages.append(record.at)
        if self.options.moved and record.status in _PERMANENT and node.next_node:
            self._moved[node] = result._replace(record=record)
        else:
            # A redirect may have become a problem, for example with a lower --max-redirect.
            self._emit(record, result.from_journal and record.kind == result.record.kind)
        node.is_well = not (record.kind or record.next_url)

    async def _admit(self, node: Node, result: Result) -> Record:
        """Admit the URLs that a result leads to. Return its Record, with these URLs in it."""
        record = result.record._replace(depth=node.depth, parent=node.parent)
        if record.next_url:
            if "#" in record.next_url:
                node.fragment = fragment_of(record.next_url)
            return self.frontier.follow(node, record)
        if record.encoding:  # a document was read, now or by an earlier crawl
            base = result.page.base if result.page else node.url
            return await self._references.admit(node, record, base)
        return record

    def num_waiting(self) -> int:
        """Return how many URLs wait. A URL that moved to another round may be counted twice."""
        return (self.frontier.queue.unfinished - len(self.in_flight) + len(self._held)
                + len(self._moved) + sum(map(len, self.frontier.later.values())))

    def fetches(self) -> list[str]:
        """Return the URLs in flight, each with the seconds since a worker took it, oldest first.

        Then come the sites that rest while URLs wait for them. Raises RuntimeError if
        no loop is running."""
        now = get_running_loop().time()
        fetches = [f"{now - began:.1f} s {node.text}" for node, began in self.in_flight.items()]
        for site in self.frontier.sites.values():
            if site.waiting and site.free_at > now:
                fetches.append(f"{site.url.origin} rests for {math.ceil(site.free_at - now)} s")
        return fetches

    def describe(self) -> str:
        """Return the state of the crawl: the lines at which tasks wait, then fetches()."""
        return "\n".join([*map(Task.where, get_running_loop().tasks), *self.fetches(),
                          f"{len(self.in_flight)} in flight, {self.num_waiting()} queued"])


# 23  Journal
# ===========
# The Record of /cats/ becomes a line of JSON in a journal, if there is one. A long
# crawl may be interrupted, and a crawl that found problems is repeated when they are
# fixed. In both cases the next crawl looks in the journal before it asks the server. For
# a URL with several lines, the last one is used. Lines of URLs that were not requested
# are ignored.
#
#     {"url": "http://zoo.org/", "status": 200, ...}         a root: always requested
#     {"url": "http://zoo.org/birds", "status": 200, ...}    definite: the journal's answer is used,
#                                                            unless --fragments needs the anchors
#     {"url": "http://zoo.org/map.png", "status": 503, ...}  a problem other than 404 and 410, which
#                                                            may be temporary: requested again
#
# So --resume crawls from the roots again, and soon reaches the point of the
# interruption.

_TYPES = {name: type(value) for name, value in Record("", assets=())._asdict().items()}


def _has_type(value: Any, kind: type) -> bool:
    """Return whether a value from JSON stands for a *kind*, and its text is printable.

    Raises OverflowError for an integer of 400 digits."""
    if kind is tuple:  # JSON has no tuples
        return isinstance(value, list) and all(_has_type(each, str) for each in value)
    if kind is str:
        return isinstance(value, str) and value.isprintable()
    is_whole = kind is float and type(value) is int  # jq 1.6 writes 2.0 as 2
    return (type(value) is kind or is_whole) and math.isfinite(value)


def _parse_record(line: bytes) -> Record:
    """Return the Record of a line. Raises an exception of some kind if the line is not valid.

    It must be a JSON object with } at its end and a line end. Its fields must be those of
    a Record, with the right types, `kind` one of PROBLEMS, and `at` plus `seconds` a time
    for localtime()."""
    if not line.endswith(b"}\n"):
        raise ValueError("not a JSON object")
    fields = json.loads(line)
    for name, value in fields.items():
        if not _has_type(value, _TYPES[name]) or (name == "kind" and value not in PROBLEMS):
            raise ValueError(f"{name} cannot be {json.dumps(value)[:60]}")
        if isinstance(value, list):
            fields[name] = tuple(value)
    record = Record(**fields)
    time.localtime(record.at + record.seconds)
    return record


def refuse_stdout(path: str) -> None:
    """Raise CrawlError if *path* is the file to which the report goes."""
    with suppress(OSError):  # there is no such file, or no stdout
        if os.path.isfile(path) and os.path.samestat(os.stat(path), os.fstat(1)):
            raise CrawlError(f"{path} is where the report goes; choose another file or a pipe")


class Journal:
    """A file with one JSON object on each line, one line for each Record.

    If *path* is "-", it is stdout. Otherwise the file must be new or empty, unless
    *resume* is true. Then it may hold records, and the definite ones replace requests.
    A pipe or a device, such as /dev/null, is only written to. Raises CrawlError if the
    file cannot be opened, is in use by another crawl, or is not a journal."""

    def __init__(self, path: str, resume: bool = False):
        self.path = path
        self._offsets = dict[str, int]()    # by URL: the offset of the last line that counts
        try:
            refuse_stdout(path)
            with ExitStack() as files:  # closes the files, unless all goes well
                to_stdout = path == "-"
                self._file = files.enter_context(open(
                    1 if to_stdout else path, "ab", buffering=0, closefd=not to_stdout))
                if os.path.isfile(path) and not to_stdout:  # a pipe cannot be locked or resumed
                    fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.path.getsize(path) and not resume:
                        raise ValueError(
                            "exists; use --resume to continue it or choose another file")
                    self._lines = files.enter_context(open(path, "rb"))
                    self._index()
                self._files = files.pop_all()
        except BlockingIOError:
            raise CrawlError(f"{path} is in use by another crawl")
        except OSError as error:
            raise CrawlError(f"{path} cannot be opened: {_explain(error)}")
        except ValueError as error:
            raise CrawlError(f"{path} {error}")

    def _index(self) -> None:
        """Store the offset of each URL's last line that counts. Lines of URLs that were
        not requested do not count, such as those of files in a folder, nor do redirects
        to a target that parse_url() refuses. A last line that was cut off, by a crash or
        a full disk, is removed. If it is the only one, it must look like the beginning of
        a record and not like a whole one, because the file may be another program's.

        Raises ValueError, with its number, for a line that is not valid."""
        start = 0
        for number, line in enumerate(self._lines, 1):
            begins_a_record = line[:9] == b'{"url": "'[:len(line)] and not line.endswith(b"}")
            if not line.endswith(b"\n") and (start or begins_a_record):
                self._file.truncate(start)
                break
            try:
                record = _parse_record(line)
            except Exception as error:
                raise ValueError(f"is not a crawl.py journal (line {number}: {_explain(error)})")
            if record.tries and (record.status or not record.skipped):
                with suppress(ValueError):  # an earlier version took its target for a URL
                    if record.next_url:
                        parse_url(record.next_url)
                    self._offsets[record.url] = start
            start += len(line)

    def find(self, url: str) -> Record | None:
        """Return the last record of *url* if it is definite: no problem, or a 404 or a 410.

        Otherwise return None."""
        if url in self._offsets:
            self._lines.seek(self._offsets[url])
            record = _parse_record(self._lines.readline())
            if record.kind == "" or record.status in (404, 410):
                return record
        return None

    def write(self, record: Record) -> None:
        """Append one record. Raises CrawlError, or BrokenPipeError if it is for stdout."""
        fields = {name: value for name, value in record._asdict().items()
                  if value != Record._field_defaults.get(name)}
        line = json.dumps(fields).encode() + b"\n"
        try:
            while line:
                line = line[self._file.write(line):]
        except OSError as error:
            if self.path == "-" and isinstance(error, BrokenPipeError):
                raise
            raise CrawlError(f"{self.path} cannot be written: {_explain(error)}")

    def close(self) -> None:
        """Close the file. Another crawl may use it from now on."""
        self._files.close()


# 24  Report
# ==========
# Finally the Record of /cats/ is counted. Records arrive in any order, but the owner of
# a site wants to see what is wrong and where to fix it. So the report prints the
# problems by kind. The Record says what is wrong, and the Node says which pages refer
# to the URL. A page may refer to a redirect that leads to the problem, so lines()
# follows redirects backwards. This is the report of the zoo:
#
#     broken (2)
#       http://cam.org/lion.jpg
#         404 Not Found
#         redirected from http://cam.org/lion
#         found on http://zoo.org/, http://zoo.org/cats/
#       http://zoo.org/birds#owl
#         no id 'owl' on the page
#         found on http://zoo.org/
#
#     6 URLs requested, 3 pages read
#     statuses: 4 x 200, 1 x 302, 1 x 404
#     not searched for links: 1 x image/png
#     not requested:
#                1  forbidden by robots.txt         --no-robots
#     2 problems on 3 pages, 1.0 s
#
# The invariant: no URL that was found is lost silently. (README lists what is not
# searched for URLs.) A URL or a page can drop out of the crawl in the following ways, and
# the report counts it or, if it is a problem, shows it. (-q leaves out what is only
# counted.) The last column names the option that changes this, if there is one:
#
#     for a reason in REASONS (§14)               not requested             see there
#     if robots.txt has failed, not the server    a problem as well
#     its scheme is not http or https, and does
#         not look mistyped; or it has more
#         than MAX_URL characters                 not requested
#     its fragment cannot be checked, because the
#         page was not read, or has too many
#         anchors                                 not requested
#     no reader knows its content type, or its
#         root element                            not searched for links
#     it is XML or without a type, and longer
#         than --max-body                         too large to search       --max-body
#     it exceeds a limit, which may be one of
#         --max-body, --timeout                   a problem
#     a chain of redirects is too long            a problem                 --max-redirect
#     it is not a valid URL                       a problem                 --exclude
#     its result came from the journal            results from the journal  leave out --resume
#     the crawl was interrupted, or could not
#         go on (what was left out is then
#         not counted, or not all of it)          interrupted, or on stderr --resume
#
# Assets are not counted with --pages-only: their URLs are not even parsed. Fragments of
# a page that is a problem, or was left out, are not counted either: the page is.

def _count_of(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _counts(counter: Counter[Any]) -> str:
    return ", ".join(
        f"{count} x {name or 'no response'}" for name, count in sorted(counter.items()))


def _several(texts: Iterable[str]) -> str:
    several = sorted(set(texts))
    rest = f" and {len(several) - 3} more" if several[3:] else ""
    return ", ".join(several[:3]) + rest


def _ways_to(problem: Node, redirects: dict[Node, list[Node]]) -> Iterator[str]:
    """Yield lines with the redirects and pages that lead to a problem.

    *redirects* holds, for each Node, the Nodes that redirect to it."""
    nodes = [problem]
    for node in nodes:  # which grows: the redirects to the problem, and those to them
        nodes += redirects.get(node, ())
    if starts := _several(node.text for node in nodes[1:]):
        yield f"    redirected from {starts}"
    if pages := _several(page for node in nodes for page in node.linked_from):
        yield f"    found on {pages}"


def _leads_on(record: Record, frontier: Frontier) -> bool:
    """Return whether the page of a record links to another page of the site."""
    for link in record.links:
        node = frontier.seen_urls[link.partition("#")[0]]
        is_url = node.round is not None
        if is_url and node.text != record.url and frontier.scope.covers(parse_url(node.text)):
            return True
    return False


def _unlinked_files(readings: Iterable[list[Node]]) -> list[str]:
    """Return the URLs of HTML files to which no link and no redirect leads.

    *readings* are, for each file, the Nodes under which it was read."""
    return [nodes[0].text for nodes in readings
            if not any(node.is_linked or node.depth == 0 for node in nodes)]


OUTAGE = 10  # if this many URLs have no usable response for one reason, print the reason once


class Report:
    """Counts and summarises the records of a crawl.

    *known* are the URLs of problems that do not count. Those of start URLs, and of the
    URLs to which they redirect, count nevertheless.

    problems    the Records of problems that count
    known       the known URLs that are still problems, as they come
    fixed       the known URLs that have a result without a problem, as they come
    roots       the Records of roots, or of their redirect targets
    statuses    of all results, also of the journal's; 0: no usable response
    looked_up   results from a folder
    skipped     URLs that were not requested, by reason
    unread      pages without a reader, by content type
    too_large   downloads that were not read, by content type
    moved       links and assets that have moved for good, without those of kind "moved"
    pages       pages that were read, including sitemaps"""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self.problems = list[Record]()
        self.known = list[str]()
        self.fixed = list[str]()
        self.roots = list[Record]()
        self.statuses = Counter[int]()
        self.looked_up = 0
        self.skipped = Counter[str]()
        self.unread = Counter[str]()
        self.too_large = Counter[str]()
        self.moved = 0
        self.pages = 0
        self._known = set(known)

    def add(self, record: Record) -> None:
        """Count one record."""
        if record.depth == 0 and not record.next_url:
            self.roots.append(record)
        is_known = record.url in self._known
        if is_known and record.kind and record.depth > 0:
            self.known.append(record.url)
        elif record.kind:
            self.problems.append(record)
        elif is_known and record.status:
            self.fixed.append(record.url)
        shown_type = _type_of(record.content_type) if record.content_type else "?"
        if record.skipped == TOO_LARGE:
            self.too_large[shown_type] += 1
        elif record.skipped:
            self.skipped[record.reason] += 1
        # Missing anchors and invalid URLs have no tries. If only robots.txt has failed,
        # its URLs do not count as requested; if the server itself has failed, they do.
        if record.status or (record.tries and not record.skipped):
            self.statuses[record.status] += 1
            if not record.tries:
                self.looked_up += 1
        if record.status in _PERMANENT and record.depth > 0 and record.kind != "moved":
            self.moved += 1
        if record.nofollow and not record.links:  # with --no-robots there are some
            self.skipped[NOFOLLOW] += 1
        if not record.is_check:
            if record.encoding:
                self.pages += 1
            elif 0 < record.status < 400 and not (
                    record.kind or record.next_url or record.skipped):
                self.unread[shown_type] += 1

    def lines(self, crawler: Crawler, seconds: float, brief: bool = False) -> Iterator[str]:
        """Yield the problems, known and fixed ones, the age of the journal, and, unless
        *brief*, the numbers, after an empty line if there are problems.

        The problems of a kind are sorted by error and by record. In an outage the error
        comes first and once, and URLs in scope have no lines that say where they were
        found."""
        nodes = crawler.frontier.seen_urls
        redirects = defaultdict[Node, list[Node]](list)  # {lion.jpg: [lion]}
        for start in nodes.values():
            if start.next_node:
                redirects[start.next_node].append(start)
        for kind in PROBLEMS:
            found = sorted((record.error, record) for record in self.problems
                           if record.kind == kind)
            if found:
                yield f"{kind} ({len(found)})"
            for error, group in itertools.groupby(found, lambda pair: pair[0]):
                records = [record for _, record in group]
                # URLs without a response that could be used, for one reason
                is_outage = len(records) >= OUTAGE and records[0].tries and not records[0].status
                if is_outage:
                    yield f"{kind}, {len(records)} URLs: {error}"
                for record in records:
                    node = nodes[record.url]
                    yield f"  {record.url}"
                    if not is_outage:
                        yield f"    {error}"
                    if not (is_outage and crawler.frontier.scope.covers(node.url)):
                        yield from _ways_to(node, redirects)
        if self.known:
            yield f"known ({len(self.known)})"
        for url in sorted(self.known):
            yield f"  {url}"
        for url in sorted(self.fixed):
            yield f"fixed: {url}"
        if ages := crawler.fetcher.ages:
            oldest = time.strftime("%Y-%m-%d %H:%M", time.localtime(min(ages)))
            yield f"{_count_of(len(ages), 'result')} from the journal, the oldest from {oldest}"
        if not brief:
            if self.problems or self.known:
                yield ""
            yield from self._numbers(crawler, seconds)

    def failures(self) -> Iterator[str]:
        """Yield a line for each root that could not be crawled, with the reason, or one line
        if there is no root (a folder without a start page).

        Yield nothing if there is something to report: a server has responded, and a
        problem was found or a page was read whose links could be followed."""
        if any(self.statuses) and (self.problems or self.pages > self.skipped[NOFOLLOW]):
            return
        for record in self.roots:
            reason = record.reason
            why = record.error or record.skipped
            if not why and record.nofollow:
                reason = why = NOFOLLOW
            elif not why:
                why = f"expected a page, got {record.status} {record.content_type}"
            if reason in REASONS and not record.error:
                why += f"; {REASONS[reason]} changes that"
            yield f"cannot crawl {record.url}: {why}"
        if not self.roots:  # a folder without a start page
            yield "found no page whose links may be followed"

    def _numbers(self, crawler: Crawler, seconds: float) -> Iterator[str]:
        """Yield the summary: interruption, requests, statuses, files without a link to
        them, start pages without a link to the site, and everything that was left out."""
        queued = crawler.num_waiting()
        if crawler.in_flight or queued:
            in_flight = _several(node.text for node in crawler.in_flight)
            yield f"interrupted: {queued} queued; in flight: {in_flight or 'none'}"
        requested = self.statuses.total() - len(crawler.fetcher.ages) - self.looked_up
        pages = f"{_count_of(self.pages, 'page')} read"
        folder = crawler.frontier.scope.folder
        if folder:
            yield (f"{self.looked_up} files and URLs looked up in "
                   f"{_printable(f'{crawler.options.folder}')}, {pages}")
            if requested:
                yield f"{_count_of(requested, 'URL')} requested"
            unlinked = _unlinked_files(crawler.fetcher.readings.values())
            if unlinked and not (crawler.in_flight or queued):
                files = [url.removeprefix(f"{folder.url}") for url in unlinked]
                yield f"no link leads to: {_several(files)}"
        else:
            yield f"{_count_of(requested, 'URL')} requested, {pages}"
        if self.statuses:
            yield f"statuses: {_counts(self.statuses)}"
        if self.moved:
            yield f"moved for good: {_count_of(self.moved, 'URL')}"
        for record in self.roots:
            if record.encoding and not (record.nofollow or _leads_on(record, crawler.frontier)):
                yield (f"no links found on {record.url} to other pages of the site: does it need "
                       "JavaScript, or was another page meant?")
        if self.unread:
            yield f"not searched for links: {_counts(self.unread)}"
        if self.too_large:
            yield f"{TOO_LARGE}: {_counts(self.too_large)}    --max-body"
        if self.skipped:
            yield "not requested:"
        for reason in dict.fromkeys([*REASONS, *sorted(self.skipped)]):
            if count := self.skipped[reason]:
                yield f"{count:12}  {reason:32}{REASONS.get(reason, '')}".rstrip()
        yield (f"{_count_of(len(self.problems), 'problem')} on {_count_of(self.pages, 'page')}, "
               f"{seconds:.1f} s")


# 25  Command line
# ================
# People read the output, programs read the exit status, and both may stop the crawl.
# The report goes to stdout, and everything else to stderr. (With --output -, the journal
# goes to stdout and the report to stderr. --help and --version go to stdout.) A crawl
# ends in one of these ways:
#
#     it found no problem                        a report                          status 0
#     it found a problem                         a report                          1
#     no start URL could be crawled              a line on stderr for each         2
#     it could not go on, as with a full disk    a report, and a line on stderr    2
#     an exception that nobody expected          a report, and a traceback         2
#     Ctrl-C (or SIGTERM)                        a report                          130 (143)
#     Ctrl-C again                               no report, or a part of it        130 (143)
#     the reader of stdout closed the pipe       a part of the report              1

PROGRESS = 0.25         # seconds between two updates of the progress line
_CLEAR = "\r\x1b[K"     # clears that line on a terminal


async def _show_progress(crawler: Crawler, report: Report) -> None:
    """Show the progress of the crawl on the terminal, in one line, until cancelled.

    The line has the numbers of URLs that are done and queued, the number of problems, and
    the oldest of fetches(). It ends before the last column (80 if the width is unknown)."""
    try:
        while True:
            columns = os.get_terminal_size(sys.stderr.fileno()).columns
            if not columns:  # the terminal does not know its size
                columns = 80
            line = (f"{report.statuses.total()} done, {crawler.num_waiting()} queued, "
                    f"{_count_of(len(report.problems), 'problem')} "
                    f"{''.join(crawler.fetches()[:1])}")
            _say(f"{_CLEAR}{line[:columns - 1]}", end="")
            await sleep(PROGRESS)
    finally:
        _say(_CLEAR, end="")


async def _crawl(crawler: Crawler, report: Report, live: bool) -> None:
    """Crawl. Ctrl-\\ (SIGQUIT) prints the state of the crawl; if *live*, a line shows progress."""
    wake = get_running_loop().call_soon_threadsafe
    before = signal.signal(
        signal.SIGQUIT, lambda *_: wake(lambda: _say(f"\n{crawler.describe()}")))
    if live:
        create_task(_show_progress(crawler, report))  # until run() cancels it
    try:
        await crawler.crawl()
    finally:
        signal.signal(signal.SIGQUIT, before)


def _crawler_for(options: argparse.Namespace) -> Crawler:
    """Return a Crawler with the options of the command line. Raises CrawlError."""
    given = {name: getattr(options, name) for name in Options._fields}
    given["headers"] = dict(options.header)
    roots = options.roots
    if len(roots) == 1 and re.match("[./~]", roots[0]) and options.folder is None:
        path = os.path.expanduser(roots[0])
        if os.path.isdir(path):
            given["folder"] = path
            roots = ["http://localhost/"]
    return Crawler(roots, **given)


def _lines_of(path: str) -> list[str]:
    """Return the lines of a text file in UTF-8, with or without a BOM, without blanks at their
    ends. Raises CrawlError."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            return [line.strip() for line in file]
    except (OSError, ValueError) as error:  # such as a UnicodeError
        raise CrawlError(f"{path} cannot be read: {_explain(error)}")


def _crawl_and_report(options: argparse.Namespace) -> int:
    """Crawl, print the report and return the exit status. Raises CrawlError, with a line
    for each root, if nothing could be crawled.

    The file of known problems may not be the one to which stdout goes. The report is
    printed after any error, if the crawl has ended. With `verbose`, each record is a line
    on stderr. Progress is shown on a terminal, unless `verbose` or `quiet` is set."""
    known = list[str]()
    if options.known is not None:
        refuse_stdout(options.known)
        known = _lines_of(options.known)  # of a report, or with a URL on each line
    report = Report(known)

    def on_record(record: Record) -> None:
        report.add(record)
        if options.verbose:
            outcome = (f"skipped: {record.skipped}" if record.skipped else
                       record.error or f"{record.status} {record.next_url}".rstrip())
            parent = f" (from {record.parent})" if record.parent else ""
            _say(f"{record.url} {outcome}{parent} {record.title}".rstrip())

    options.on_record = on_record
    failures = list[str]()
    with ExitStack() as files:
        if options.output is not None:
            options.journal = files.enter_context(closing(
                Journal(options.output, options.resume)))
        crawler = _crawler_for(options)
        stream = sys.stderr if options.output == "-" else sys.stdout
        live = sys.stderr.isatty() and not (options.verbose or options.quiet)
        began = time.monotonic()
        try:
            run(_crawl(crawler, report, live))
            failures = list(report.failures())
        finally:  # also after an error
            # After a second Ctrl-C some tasks have not ended: then there is no report.
            if crawler.ended and not failures:
                for line in report.lines(crawler, time.monotonic() - began, options.quiet):
                    print(line, file=stream, flush=True)
    if failures:
        raise CrawlError(*failures)
    return 1 if report.problems else 0


# The options of Crawler, by group, each with its description.
_OPTIONS = {
    "what to crawl": {
        "depth": "follow at most N links in a row from a start URL (%(default)s)",
        "max_pages": "read at most N pages besides the start URLs, and check at most N other "
                     "URLs (%(default)s)",
        "include": "read only pages whose URL matches RE (repeatable)",
        "exclude": "leave out URLs that match RE (repeatable)",
        "folder": "read the files of the start URL's site from the folder DIR",
        "subdomains": "crawl the subdomains of the start URLs' hosts as well"},
    "what to check": {
        "external": "check links to other hosts, and those that --include leaves out, as well",
        "fragments": "check that the #fragments of links exist",
        "moved": "report links to URLs that have moved for good",
        "accept": "statuses that are not problems, such as 403,999 (repeatable)",
        "pages_only": "do not check images, scripts, stylesheets and other assets",
        "no_robots": "ignore robots.txt and robots meta tags"},
    "how to request": {
        "max_tasks": "request at most N URLs at a time (%(default)s)",
        "delay": "wait S seconds between two requests to a server (%(default)g)",
        "timeout": "give up on a request after S seconds (%(default)g)",
        "max_tries": "send at most N requests if a failure may be temporary (%(default)s)",
        "max_redirect": "follow at most N redirects in a row (%(default)s)",
        "max_body": "reject a page of more than N bytes, compressed or not (%(default)s)"}}


_EXAMPLES = """\
examples:
  crawl.py example.com                          all pages and their assets
  crawl.py ./public                             a site in a folder
  crawl.py --external --fragments example.com   also other sites, and #fragments
  crawl.py -q -o site.jsonl example.com         print only problems, and journal

Exit status: 0 no problems, 1 problems, 2 cannot crawl, 130 Ctrl-C, 143 SIGTERM.
Ctrl-\\ prints what the crawl is waiting for, and the crawl goes on."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Report a usage error in one line."""
        raise CrawlError(f"error: {message}; try --help")


def _statuses(text: str) -> list[int]:
    """Return the numbers in "403,999"."""
    if not re.fullmatch("[0-9]{1,9}(?:,[0-9]{1,9})*", text):
        raise argparse.ArgumentTypeError(
            f"statuses with commas between them were expected, not {text!r}")
    return [int(number) for number in text.split(",")]


def _header(text: str) -> tuple[str, str]:
    """Return the name and the value in "Name: value"."""
    name, colon, value = text.partition(":")
    if not colon:  # the text may be a secret
        raise argparse.ArgumentTypeError("a header is 'Name: value', but there is no colon")
    return name, value.strip()


def _parser() -> _Parser:
    """Return the parser of the command line."""
    kinds: dict[type, dict[str, Any]] = {
        bool: {"action": "store_true"},
        type(None): {"metavar": "DIR"},
        tuple: {"action": "append", "default": [], "metavar": "RE"},
        frozenset: {"action": "extend", "type": _statuses, "default": [], "metavar": "STATUS,..."},
        int: {"type": int, "metavar": "N"},
        float: {"type": float, "metavar": "S"}}
    parser = _Parser(
        prog="crawl.py", usage="crawl.py [options] URL ...", allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter, description="Crawl websites and "
        "report what is broken.", epilog=_EXAMPLES)
    parser.set_defaults(**Options._field_defaults)
    parser.add_argument("roots", nargs="*", metavar="URL", help="start here (https:// is assumed, "
                        "or http:// on this machine), or ./FOLDER")
    for title, texts in _OPTIONS.items():
        group = parser.add_argument_group(title)
        for name, text in texts.items():
            group.add_argument(f"--{name.replace('_', '-')}", help=text,
                               **kinds[type(Options._field_defaults[name])])
    group.add_argument(  # to the last group, how to request
        "-H", "--header", action="append", default=[], type=_header, metavar="'Name: value'",
        help="send a header to the start URLs' hosts (repeatable)")
    add = parser.add_argument_group("output").add_argument
    flag = partial(add, action="store_true")
    add("-o", "--output", metavar="FILE", help="write a line of JSON for each URL to a new file, "
        "or to stdout if FILE is -; then the report goes to stderr")
    flag("--resume", help="with -o: continue FILE, and request start URLs and what it lacks")
    add("--known", metavar="FILE", help="the problems in an earlier report do not count")
    flag("-q", "--quiet", help="print only problems, and the age of a resumed FILE")
    flag("-v", "--verbose", help="print a line on stderr for each URL")
    add("-K", "--config", action="append", default=[], metavar="FILE",
        help="read options from FILE, one on each line (repeatable)")
    add("-V", "--version", action="version", version=f"crawl.py {VERSION}",
        help="print the version")
    return parser


def _read_config(path: str, parser: _Parser) -> list[str]:
    """Return the options and URLs in a file, as arguments of the command line.

    Each line is an option, a URL, or a comment after #. The value of an option begins
    after the first blank, and ends with the line. To find mistakes, each line is parsed, and
    a Crawler made of it, by itself. Raises CrawlError, which does not show the text of a
    line, because it may be a secret."""
    arguments = list[str]()
    for number, line in enumerate(_lines_of(path), 1):
        if not line or line.startswith("#"):
            continue
        try:
            name, blank, value = line.partition(" ")
            if blank and re.fullmatch("-[a-zA-Z]|--[a-z-]+", name):
                line = f"{name}={value.strip()}"
            elif blank and not re.match("[./~]", name):
                parser.error("a blank in a URL")
            given = parser.parse_args([line])
            if given.config:
                parser.error("-K in a file")
            if given.folder is not None:
                given.roots = ["localhost"]
            _crawler_for(given)
        except (CrawlError, SystemExit):  # SystemExit: --help
            raise CrawlError(f"{path}, line {number}: this is neither an option with a valid "
                             "value, nor a URL, nor a comment; try --help")
        arguments.append(line)
    return arguments


def _parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Return the options. Exits after --help and --version. Raises CrawlError for wrong usage.

    URLs on the command line replace those of a -K file."""
    parser = _parser()
    options = parser.parse_intermixed_args(arguments)
    for path in options.config:
        configured = _read_config(path, parser)
        if options.roots:  # the command line wins
            configured = [line for line in configured if line.startswith("-")]
        arguments = [*configured, *arguments]
        options = parser.parse_intermixed_args(arguments)
    if not options.roots:
        parser.error("the following arguments are required: URL")
    if options.resume and options.output in (None, "-"):
        parser.error("--resume needs -o FILE")
    return options


def main(arguments: list[str]) -> int:
    """Run the program with *arguments* (sys.argv[1:]), and return the exit status: 0 after
    --help and --version.

    Each argument of a CrawlError is printed on a line of stderr, escaped; so is an
    OSError, such as a full disk. Must be called in the main thread. The caller installs
    signal handlers, and ends the program."""
    try:
        status = 0
        with suppress(SystemExit):  # from --help or --version
            status = _crawl_and_report(_parse_arguments(arguments))
        sys.stdout.flush()  # here, so that an error such as a full disk is still caught
        return status
    except KeyboardInterrupt as end:
        return 128 + int(end.args[0] if end.args else signal.SIGINT)
    except BrokenPipeError:
        return 1  # the reader closed the pipe
    except OSError as error:
        _say(f"crawl.py: {_explain(error)}")
    except CrawlError as error:
        for line in error.args:
            _say(f"crawl.py: {_escape(line)}")
    except Exception as error:  # of a callback, or a bug
        sys.excepthook(type(error), error, error.__traceback__)
    return 2


if __name__ == "__main__":  # pragma: no cover (the tests run it in child processes)
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
        signal.signal(signal.SIGTERM, interrupt)
    # Python sets them to None if their descriptors are closed.
    sys.stdout = sys.stdout or io.StringIO()
    sys.stderr = sys.stderr or io.StringIO()
    # sys.exit() would write once more to stdout, which may be full or closed.
    os._exit(main(sys.argv[1:]))

# The end
# =======
# A Ctrl-C travels through the whole file:
#
#     the kernel interrupts epoll, and Python calls run()'s handler                         §6
#     which calls call_soon_threadsafe(task.cancel): a byte in the self-pipe                §2
#     the loop wakes; task.cancel() goes on to gather(), for which that task waits          §5
#         and to each worker, and to the future that the worker waits for                   §4, §3
#     CancelledError rises from there: a stream in use is closed                            §11
#     until crawl() has seen all of them end, and has closed the idle streams               §22
#     and run() raises KeyboardInterrupt: the report names the URLs in flight               §6, §24
#     and main() returns 130 (143 if it was SIGTERM)                                        §25
#
# Readers of the chapter "A Web Crawler With asyncio Coroutines" (500 Lines or Less, by
# A. Jesse Jiryu Davis and Guido van Rossum) know its three stages: callbacks,
# generators and coroutines. Its point is that a callback has to keep its state in a
# table, and a coroutine only needs its local variables: see Crawler._work, which may
# stop at each `await`. That holds for a crawler ten times as large. What a crawler for
# real sites adds is not concurrency. It is courtesy, other people's mistakes, and a
# good report.
