# SPDX-FileCopyrightText: 2026 The crawl.py authors
# SPDX-License-Identifier: MIT
"""A web crawler, from the event loop up, in one file.

    python3 crawl.py xkcd.com

crawls a site, follows every link that stays on it, and reports what is broken.
The same file is a small typed asyncio (`import crawl`) and an explanation of
both. It is meant to be read from here to the end: each section needs only the
sections above it (but Task, 4, uses two fields of the loop that stand in 5).

     1  Vocabulary       limits, errors, a few types
     2  Event loop       callbacks: now, later, when a socket is ready
     3  Future           a result that has not happened yet
     4  Task             a coroutine, driven by the futures it waits for
     5  Waiting          run, sleep, timeout, gather, threads
     6  Queue            work to do, and knowing when all of it is done
     7  Streams          names, connections, TLS, bytes
     8  URLs             one spelling for each address
     9  HTTP messages    bytes to responses
    10  HTTP client      connections kept and reused
    11  Links            what a page points to
    12  Robots           what a site asks of crawlers
    13  Crawler          frontier, workers, redirects, retries, courtesy
    14  Report           the journal, and what was found, worst first
    15  Command line

         crawler  13-15      what to fetch next, and what was found
        ----------------
         HTTP      8-12      text and bytes; most of it does no I/O at all
        ----------------
         sockets   7         "would block" becomes "wait here"
        ----------------
         coroutines 3-6      code that can stop in the middle and go on
        ----------------
         event loop 2        one thread that waits for everything at once

What one needs to know: Python's generators as iterators, sockets as "a thing
to connect, send and recv", that HTTP exists, and from 8 on regular
expressions (`*+` is a `*` that never gives back what it took).
"""

from __future__ import annotations  # crawl.py needs Python 3.11 or later (old ones show this)

import sys

if sys.version_info < (3, 11):
    sys.exit("crawl.py needs Python 3.11 or later; this is %d.%d" % sys.version_info[:2])

import argparse
import collections
import contextlib
import contextvars
import encodings.idna
import errno
import functools
import heapq
import html.entities
import itertools
import json
import math
import os
import random
import re
import selectors
import signal
import socket
import ssl
import threading
import time
import traceback
import types
import unicodedata
import zlib
from builtins import TimeoutError as TimeoutError  # crawl.TimeoutError, as asyncio has it
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from types import coroutine as coroutine
from typing import Any, Generic, NamedTuple, NoReturn, TextIO, TypeVar, cast

__all__ = [
    "CallbackLoop", "CancelledError", "Client", "CrawlError", "Crawler",
    "DeadlockError", "EventLoop", "Frontier", "Future", "Handle", "InvalidStateError",
    "Journal", "LimitError", "Markup", "Node", "Page", "ProtocolError", "Queue",
    "QueueEmpty", "QueueFull", "Record", "Report", "Response", "ResponseParser",
    "Robots", "Scope", "Site", "Stream", "Task", "TimeLimit", "Timeout", "TimeoutError",
    "TruncatedError", "URL", "coroutine", "create_task", "current_task", "decode_page",
    "fetch", "finished", "gather", "get_running_loop", "lookup", "main",
    "open_connection", "parse_url", "read_markup", "resolve", "run", "sleep", "spelled",
    "timeout", "to_thread", "wait_for",
]

# 1  Vocabulary
# =============
#
# A coroutine is written here as a generator under `@coroutine` (types.coroutine), and
# calls another with `yield from` (3 and 4 say what that does): so every place where
# control may pass to others is visible, and the machinery is the generator's own.
# `async def` and `await` are the same thing with their own keywords, and add safety: a
# generator does not say whether it is meant to be iterated or waited for, so that a
# forgotten `yield from` is silent where a forgotten `await` is a warning. Either kind
# may wait for the other, and whoever uses this file may write either. `@coroutine` does
# two things: `await` takes such a generator, and a `yield from` in it takes an `async
# def`. A generator that is only called by a `yield from` of this file, and calls no
# `async def`, needs neither and is left bare. What a generator coroutine returns is
# annotated Waits[T]: it yields whatever it waits for, and in the end returns a T.
#
# Everything in an answer has a limit. The limits stand below, with the reason where it
# is not plain. What a site can make us remember has no limit of its own: at most it is
# what MAX_PAGES pages link to.

T = TypeVar("T")
Callback = Callable[..., object]
Context = contextvars.Context
Waits = Generator[Any, Any, T]

VERSION = "1.0"
USER_AGENT = f"crawl.py/{VERSION}"
PRODUCT = "crawl"            # the name that robots.txt knows us by
TIMEOUT_SWEEP = 512          # entries: below that, cancelled timeouts are cheaper kept than swept
CLOCK_RESOLUTION = 1e-9      # seconds: a deadline that close is now; clocks count nanoseconds
MAX_WAIT = 86_400.0          # seconds of one sleep of the loop: the kernel takes up to 24 days
MAX_URL = 8_000              # characters: what RFC 9110 section 4.1 asks everyone to support
MAX_HEAD = 65_536            # bytes: heads, trailers and what chunks carry beside data, together
MAX_FIELDS = 200             # header fields: ten times what large sites send
MAX_INTERIM = 10             # 1xx responses before the answer: 100 and 103 are the usual ones
MAX_BODY = 10 * 1024 * 1024  # bytes, on the wire and decoded: larger than any page worth reading
MAX_MEMBERS = 100            # parts of one compressed body: each costs a copy of the rest
MAX_ROBOTS = 512 * 1024      # characters of robots.txt: RFC 9309 section 2.5 wants 500 KiB
READ_SIZE = 65_536           # bytes: more at once makes malloc map and unmap memory each time
LOOKUP_TIMEOUT = 20.0        # seconds for a name: resolvers try a few times, for 5 seconds each
CONNECT_TIMEOUT = 10.0       # seconds to connect (a lost SYN is sent again), and for a wait of TLS
IDLE_TIMEOUT = 20.0          # seconds without a byte: longer than slow pages take to compute
FETCH_TIMEOUT = 30.0         # seconds for a whole fetch
MAX_PRESCAN = 1024           # bytes in which a page's meta charset counts, HTML section 13.2.3.2
MAX_SHOWN = 200              # characters of a server's words that are shown
MAX_DEPTH = 100              # links from a root: what is deeper is a calendar or another trap
MAX_PAGES = 1_000_000        # URLs fetched in one crawl: eleven days of it, at one a second
MAX_REPEATS = 4              # times that a path may hold one segment: /a/b/a/b/a/b/... is a trap
MAX_PAUSE = 300.0            # seconds that a Retry-After or a Crawl-delay may ask for
MAX_CIRCLE = 100             # redirects: a longer circle of them is not found to be one
MAX_ROBOTS_REDIRECTS = 5     # RFC 9309 section 2.3.1.2
MAX_SPELLINGS = 100_000      # links, as pages spell them, kept with what they mean: some 20 MB
MAX_SPELLING = 300           # characters of such a link
BACKOFF = 1.0                # seconds before the second try, doubled for each further one
GRACE = 5.0                  # seconds for what is in flight when the crawl is told to end
PROGRESS = 0.25              # seconds between two states of the progress line
MAX_REASONS = 20             # lines about what was not fetched
MAX_PATH = 12                # pages: of a longer click path only the first and last 4 are named
MAX_THREADS = 32             # threads for to_thread: asyncio's bound


class CancelledError(BaseException):
    """The task or future was cancelled. No Exception, so that `except Exception` lets it pass."""


class InvalidStateError(Exception):
    """A future was asked for what its state does not allow."""


class DeadlockError(RuntimeError):
    """Every task waits, and nothing is left that could wake one; says who waits where."""


class QueueEmpty(Exception):
    """get_nowait() found no item."""


class QueueFull(Exception):
    """put_nowait() found no place."""


class CrawlError(Exception):
    """There can be no crawl, or no more of it: a bad root, an unreachable one, a full disk."""


class ProtocolError(Exception):
    """The server's answer is not valid HTTP/1; says what was expected and what was seen."""


class TruncatedError(ProtocolError):
    """The connection ended before the answer did."""


class LimitError(ProtocolError):
    """Something in the answer is larger than it may be; says what, and the limit."""


# 2  Event loop
# =============
#
# The problem: a crawler spends its life waiting. A page takes some 100 ms to
# arrive and 100 microseconds to look at, so one that waits for each page in turn
# idles 99.9 % of its time. Threads can wait in parallel, one blocking `recv`
# each, but a thread costs tens of kilobytes and is switched by the kernel at
# moments nobody chose, so that everything shared wants a lock.
#
# The idea: ask the kernel to wait for all sockets at once. A non-blocking socket
# never waits: `recv` returns what is there or fails with BlockingIOError. The system
# call to wait for many is epoll on Linux (the `selectors` module picks each platform's
# best): it takes any number of sockets and one deadline, sleeps, and tells which are
# readable or writable. A waiting socket then costs an entry in a kernel table, which is
# why one thread can hold ten thousand of them. What to do when one is ready is a
# function, registered beforehand: a callback. The loop sleeps, collects what is due,
# calls it, and that is one tick:
#
#        +--> poll: sockets that became ready ------> run their callbacks
#        |    heap: deadlines that have passed --+        |  (these mostly add more)
#        |    call_soon, threads, futures done --+--> ready queue
#        +------------------------ run each once <--------+
#
# The invariants. Callbacks run in one place (`_run`), one at a time: in each tick those
# of ready sockets first, then the ready queue in its order. While one runs no other
# does, hence no locks. Of the ready queue a tick runs what stands there once the poll
# and the deadlines have added theirs; what is added meanwhile waits for the next tick,
# after the sockets were polled again, so that a callback which keeps rescheduling
# itself starves nobody. And section 5's EventLoop, if nothing could ever wake it, does
# not sleep for ever: it raises DeadlockError.
#
# The cost: O(1) per callback, O(log n) per deadline (a heap), at most one poll per
# tick, and that costs nothing for sockets that stay silent; to begin and to end
# watching one is a system call each. A callback that computes for a second stops
# everything for a second; that is the price of having no other threads.


class Handle:
    """A callback that waits to be called, inside *context* (by default a copy of the current one).

    A context holds what ContextVars are set to: each task's own globals. The ready
    queue takes anything with a run(), the heap of deadlines what has an obsolete() as
    well; this is the plainest.
    """

    __slots__ = ("callback", "args", "context")

    def __init__(self, callback: Callback, args: tuple[Any, ...],
                 context: Context | None = None) -> None:
        self.callback: Callback | None = callback
        self.args = args
        self.context = contextvars.copy_context() if context is None else context

    def run(self) -> None:
        """Call the callback, unless it was cancelled."""
        if self.callback is not None: self.context.run(self.callback, *self.args)

    def cancel(self) -> None:
        """Make sure that the callback is not called (any more). O(1)."""
        self.callback, self.args = None, ()

    def cancelled(self) -> bool:
        """Return whether cancel() was called."""
        return self.callback is None

    obsolete = cancelled  # would run() do nothing?

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {getattr(self.callback, '__qualname__', self.callback)}>"


class Timeout(Handle):
    """A Handle that becomes ready at *deadline*, in the loop's seconds: asyncio's TimerHandle."""

    __slots__ = ("deadline",)

    def __init__(self, deadline: float, callback: Callback, args: tuple[Any, ...]) -> None:
        super().__init__(callback, args)
        self.deadline = deadline


class _ThreadState(threading.local):
    """The one thing that is not a parameter: which loop runs in this thread."""

    loop: EventLoop | None = None


_thread_state = _ThreadState()


def _get_running_loop() -> EventLoop | None:
    """Return the event loop that runs in this thread, or None; asyncio's tests ask by this name."""
    return _thread_state.loop


def get_running_loop() -> EventLoop:
    """Return the event loop that runs in this thread (each may run one), or raise RuntimeError."""
    if _thread_state.loop is None: raise RuntimeError("no running event loop")
    return _thread_state.loop


_EVENTS = (selectors.EVENT_READ, selectors.EVENT_WRITE)


class CallbackLoop:
    """An event loop that knows callbacks and nothing else.

    Section 5 adds coroutines to it and calls the result EventLoop. *selector*
    does the waiting; a test may pass one that never sleeps, and override time(), too.
    """

    def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
        self._selector = selector or selectors.DefaultSelector()
        self._ready: collections.deque[Any] = collections.deque()
        # A heap of (deadline, sequence, entry); an entry is a Timeout or, in 5 and 7,
        # another thing with run() and obsolete(). The sequence number keeps equal
        # deadlines in order and the heap from ever comparing entries.
        self._timeouts: list[tuple[float, int, Any]] = []
        self._sequence = itertools.count()
        self._sweep_at = TIMEOUT_SWEEP  # heap size at which cancelled ones are dropped
        self._watched = -1              # sockets in the selector; adding the self-pipe makes it 0
        self._stopping = self._closed = False
        self._signals: dict[int, Any] = {}  # which signals are handled, and by whom before
        # The self-pipe: a byte written to one end makes the other end readable,
        # which is how a thread or a signal ends a sleep in the selector.
        self._wake_receiver, self._wake_sender = socket.socketpair()
        for sock in (self._wake_receiver, self._wake_sender): sock.setblocking(False)
        self.add_reader(self._wake_receiver, self._drain)

    # Asking for a call

    def time(self) -> float:
        """Return the loop's clock in seconds: monotonic, and the only clock there is."""
        return time.monotonic()

    def call_soon(self, callback: Callback, *args: Any, context: Context | None = None) -> Handle:
        """Call callback(*args) after what is ready already; the Handle returned can cancel it."""
        self._check_open()
        handle = Handle(callback, args, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(self, callback: Callback, *args: Any) -> Handle:
        """Do what call_soon does, from any thread or signal handler: append() is atomic."""
        handle = self.call_soon(callback, *args)
        with contextlib.suppress(OSError):  # a full pipe wakes as well; a closed loop needs none
            self._wake_sender.send(b"\0")
        return handle

    def call_later(self, delay: float, callback: Callback, *args: Any) -> Timeout:
        """Call callback(*args) after *delay* seconds; the Timeout returned can cancel it."""
        return self.call_at(self.time() + delay, callback, *args)

    def call_at(self, deadline: float, callback: Callback, *args: Any) -> Timeout:
        """Call callback(*args) once time() has reached *deadline*. O(log n).

        Raises ValueError for NaN, which no heap can order.
        """
        return self._add_timeout(deadline, Timeout(deadline, callback, args))

    def _add_timeout(self, deadline: float, entry: T) -> T:
        """Have *entry* run at *deadline*, and return it.

        Cancelled ones stay in the heap until they reach its top, or until the heap has
        doubled since the last sweep, which takes them all out: amortised O(1) each.
        """
        self._check_open()
        if math.isnan(deadline):
            raise ValueError(f"Invalid delay or deadline: {deadline!r} (not a number)")
        heapq.heappush(self._timeouts, (deadline, next(self._sequence), entry))
        if len(self._timeouts) >= self._sweep_at:
            self._timeouts[:] = [item for item in self._timeouts if not item[2].obsolete()]
            heapq.heapify(self._timeouts)
            self._sweep_at = max(TIMEOUT_SWEEP, 2 * len(self._timeouts))
        return entry

    def add_reader(self, sock: Any, callback: Callback, *args: Any) -> None:
        """Call callback(*args) in every tick in which *sock* is readable.

        A reader and a writer on one socket (or file descriptor) are independent.
        Both must be removed before it is closed: a new socket may get its descriptor.
        """
        self._watch(sock, selectors.EVENT_READ, Handle(callback, args))

    def add_writer(self, sock: Any, callback: Callback, *args: Any) -> None:
        """Call callback(*args) in every tick in which *sock* is writable."""
        self._watch(sock, selectors.EVENT_WRITE, Handle(callback, args))

    def remove_reader(self, sock: Any) -> bool:
        """Stop watching for readability; return whether it was watched."""
        return self._watch(sock, selectors.EVENT_READ, None)

    def remove_writer(self, sock: Any) -> bool:
        """Stop watching for writability; return whether it was watched."""
        return self._watch(sock, selectors.EVENT_WRITE, None)

    def add_signal_handler(self, number: int, callback: Callback, *args: Any) -> None:
        """Call callback(*args) in the loop whenever signal *number* arrives.

        Works in the main thread only (ValueError elsewhere), until the loop is closed.
        A signal to come does not count as something that could end a deadlock. Python
        runs signal handlers between two bytecodes only, so one that comes just before
        the loop falls asleep would wait for the end of that sleep; the byte that Python
        writes to the wake-up descriptor ends it.
        """
        before = signal.signal(number, lambda *_: self.call_soon_threadsafe(callback, *args))
        signal.set_wakeup_fd(self._wake_sender.fileno(), warn_on_full_buffer=False)
        self._signals.setdefault(number, before)

    # Running

    def run_forever(self) -> None:
        """Tick until stop() is called.

        Raises RuntimeError when a loop already runs in this thread. An EventLoop raises
        DeadlockError when nothing could ever happen again.
        """
        self._check_runnable()
        _thread_state.loop = cast("EventLoop", self)
        try:
            self.tick()  # even after a stop(), as in asyncio
            while not self._stopping: self.tick()
        finally:
            self._stopping = False
            _thread_state.loop = None

    def tick(self) -> None:
        """Wait until something is ready, then run what is: the heart of the file."""
        ready, timeouts = self._ready, self._timeouts
        while timeouts and timeouts[0][2].obsolete(): heapq.heappop(timeouts)
        wait = None
        if ready or self._stopping:
            wait = 0.0
        elif timeouts:
            wait = min(max(0.0, timeouts[0][0] - self.time()), MAX_WAIT)
        else:
            self._check_deadlock()
        # With work to do and no socket watched there is nothing to poll for: the
        # self-pipe only ends sleeps, and this tick has none.
        if self._watched or not ready:
            for key, events in self._selector.select(wait):
                for handle, event in zip(key.data, _EVENTS):
                    if handle is not None and events & event: self._run(handle)
        if timeouts:
            now = self.time() + CLOCK_RESOLUTION
            while timeouts and timeouts[0][0] <= now: ready.append(heapq.heappop(timeouts)[2])
        for _ in range(len(ready)): self._run(ready.popleft())

    def _run(self, entry: Any) -> None:
        """Run one callback: its errors are reported and stop nobody else."""
        try:
            entry.run()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self.call_exception_handler({"message": f"exception in callback {entry!r}",
                                         "exception": error})

    def stop(self) -> None:
        """Make run_forever() return after the current tick."""
        self._stopping = True

    def is_running(self) -> bool:
        """Return whether this loop runs in the calling thread."""
        return _thread_state.loop is self

    def close(self) -> None:
        """Release the selector and the self-pipe; pending callbacks are dropped.

        Closing twice is allowed. Raises RuntimeError while the loop runs.
        """
        if self.is_running(): raise RuntimeError("cannot close a running event loop")
        if not self._closed:
            self._closed = True
            for number, old in self._signals.items(): signal.signal(number, old or signal.SIG_DFL)
            if self._signals: signal.set_wakeup_fd(-1)
            self._ready.clear()
            self._timeouts.clear()
            self._selector.close()
            for sock in (self._wake_receiver, self._wake_sender): sock.close()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Print context["message"] and the traceback of context["exception"], if any.

        Every error that nobody is there to catch ends here; replace the method
        on a loop to send them elsewhere.
        """
        with contextlib.suppress(OSError):  # the terminal is gone: that should not end the loop
            print(context["message"], file=sys.stderr)
            if context.get("exception") is not None:
                traceback.print_exception(context["exception"], file=sys.stderr)

    # Inside

    def _check_open(self) -> None:
        if self._closed: raise RuntimeError("Event loop is closed")

    def _check_runnable(self) -> None:
        self._check_open()
        if _thread_state.loop is not None: raise RuntimeError("this thread runs a loop already")

    def _check_deadlock(self) -> None:
        """Do nothing; EventLoop raises DeadlockError where a sleep would last for ever."""

    def _watch(self, sock: Any, event: int, handle: Handle | None) -> bool:
        """Put *handle* on one side of a socket, or take it off; return whether one was there."""
        if handle is not None: self._check_open()
        if self._closed: return False
        key = self._selector.get_map().get(sock)
        # Reader, writer. The list is the selector's, and changed in place: what is
        # taken off in this tick is not called any more.
        handles: list[Handle | None] = key.data if key else [None, None]
        side = event == selectors.EVENT_WRITE
        before, handles[side] = handles[side], handle
        events = sum(bit for bit, entry in zip(_EVENTS, handles) if entry)
        if key: self._selector.unregister(sock)
        if events: self._selector.register(sock, events, handles)
        self._watched += bool(events) - bool(key)
        return before is not None

    def _drain(self) -> None:
        """Empty the self-pipe: it has done its work by being readable."""
        with contextlib.suppress(BlockingIOError):
            while self._wake_receiver.recv(4096): pass


# 3  Future
# =========
#
# The problem: with callbacks alone, a fetch of connect, send, recv, recv, ... is a
# chain of functions, each naming the next. Loops, `try` and local variables do
# not cross from one callback to another: the state has to be carried by hand, and
# a traceback shows the loop and the last link of the chain, never who began it.
#
# The idea: put "what happens next" into an object. A Future is a result that has
# not happened yet. Whoever will know the result resolves it, whoever wants it
# waits, and neither needs to know the other:
#
#                   set_result(x)      -> resolved    result() returns x
#       pending  -- set_exception(e)   -> failed      result() raises e
#                   cancel()           -> cancelled   result() raises CancelledError
#
# The invariants. A future leaves "pending" once and never returns to it. Its
# callbacks are not called there and then but moved to the ready queue, so that
# resolving runs nobody's code, a chain of thousands of futures needs no deep stack,
# and a callback added too late still comes. The cost: 72 bytes, and a third of a
# microsecond to make one and resolve it.
#
# A future alone only changes where a callback is registered: loops and `try` still do
# not cross it. What is missing is a function that can stop in its middle and go on
# later with everything it had. Python has one, the generator: its frame (its variables,
# and the line it has reached) survives suspension. `yield` hands a value to whoever
# called send() (next() is send(None)) and leaves loops and `try` blocks as they are, in
# memory of their own and not on the thread's stack, until the next send().
#
# The one `yield` of this file that hands out a future is in Future.__iter__, and
# `yield from future` runs that method inside the function that says it: what it yields
# comes out of this function's send(), and what it returns is the value of the
# expression (4 has the general rule). So a function that says
#
#       result = yield from future
#
# stops there, and the future itself comes out of the send() that was driving it:
# the driver learns what is being waited for. It calls send() again once that
# future is done. That send() brings only None; __iter__, the innermost frame, then
# returns the future's result(), and with that the function goes on.


class _Failure:
    """The exception of a failed future; reports it when dropped without a look.

    A __del__ on Future itself would cost every successful one a call.
    """

    __slots__ = ("loop", "name", "exception", "trace", "retrieved")

    def __init__(self, future: Future[Any], exception: BaseException) -> None:
        self.loop, self.name, self.exception = future._loop, future._label(), exception
        # Each raise would lengthen it, so _error() goes back to this. (None has none,
        # and asyncio's tests fail a future with None.)
        self.trace = getattr(exception, "__traceback__", None)
        # Nobody misses a cancellation, or an error that comes too late and is refused.
        self.retrieved = future.done() or isinstance(exception, CancelledError)

    def __del__(self) -> None:
        if self.retrieved: return
        message = f"the exception of {self.name} was never retrieved"
        self.loop.call_exception_handler({"message": message, "exception": self.exception})


class Future(Generic[T]):
    """A result to come: pending, then resolved, failed or cancelled.

    Belongs to one loop (by default the running one) and to its thread.
    """

    __slots__ = ("_loop", "_state", "_result", "_callbacks", "__weakref__")

    def __init__(self, *, loop: CallbackLoop | None = None) -> None:
        self._loop: Any = loop or get_running_loop()
        self._state = "PENDING"     # "PENDING", "RESOLVED", "FAILED" or "CANCELLED"
        # By state: None, the result, a _Failure, the args of the CancelledError.
        self._result: Any = None
        # What to put into the ready queue when done: Handles and waiting tasks.
        self._callbacks: tuple[Any, ...] | list[Any] = ()

    def __repr__(self) -> str:
        return f"<{self._label()} {self._state.lower()}>"

    def _label(self) -> str:
        return type(self).__name__

    def get_loop(self) -> Any:
        """Return the loop this future belongs to."""
        return self._loop

    def done(self) -> bool:
        """Return whether the future is resolved, failed or cancelled."""
        return self._state != "PENDING"

    def cancelled(self) -> bool:
        """Return whether the future was cancelled."""
        return self._state == "CANCELLED"

    def result(self) -> T:
        """Return the result, or raise what the future failed with.

        Raises CancelledError when cancelled, InvalidStateError while pending.
        """
        if self._state != "RESOLVED": raise self._error()
        result: T = self._result
        return result

    def exception(self) -> BaseException | None:
        """Return what the future failed with, None if it was resolved.

        Raises CancelledError when cancelled, InvalidStateError while pending.
        """
        return None if self._state == "RESOLVED" else self._error()

    def set_result(self, result: T) -> None:
        """Resolve the future. Raises InvalidStateError unless it is pending."""
        self._finish("RESOLVED", result)

    def set_exception(self, exception: BaseException | type[BaseException]) -> None:
        """Make the future fail. Raises InvalidStateError unless it is pending.

        An exception that nobody asks for by the time the future is dropped is
        reported to the loop. StopIteration arrives as the cause of a RuntimeError,
        for inside a generator it would mean "the end".
        """
        if isinstance(exception, type): exception = exception()
        if isinstance(exception, StopIteration):
            cause, exception = exception, RuntimeError(
                "StopIteration means the end of a generator and cannot be raised into a Future")
            exception.__cause__ = exception.__context__ = cause
        self._finish("FAILED", _Failure(self, exception))

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the future; return False if it was done already.

        Whoever waits for it gets CancelledError(msg).
        """
        if self._state != "PENDING": return False
        self._finish("CANCELLED", () if msg is None else (msg,))
        return True

    def add_done_callback(self, callback: Any, *, context: Context | None = None) -> None:
        """Have the loop call callback(self) when the future is done, or soon if it is.

        What has a run() is taken as it is: a task that waits stands here itself.
        """
        entry = callback if hasattr(callback, "run") else Handle(callback, (self,), context)
        if self._state != "PENDING":
            self._loop._ready.append(entry)
        elif isinstance(self._callbacks, list):
            self._callbacks.append(entry)
        else:  # nearly always the only one: a tuple is the smallest that holds it
            self._callbacks = [*self._callbacks, entry] if self._callbacks else (entry,)

    def remove_done_callback(self, callback: Callable[[Any], object]) -> int:
        """Forget every registration of *callback*; return how many there were."""
        before = self._callbacks
        self._callbacks = [entry for entry in before
                           if getattr(entry, "callback", None) != callback]
        return len(before) - len(self._callbacks)

    def __iter__(self) -> Waits[T]:
        """Wait here until the future is done; `yield from` gives its result."""
        if self._state == "PENDING":
            yield self
            if self._state == "PENDING":
                raise RuntimeError("a future was resumed before it was done: wait for it "
                                   "with 'yield from' or 'await' inside a Task")
        return self.result()

    __await__ = __iter__

    def _finish(self, state: str, result: Any) -> None:
        """Leave the pending state: the one place where that happens."""
        if self._state != "PENDING":
            raise InvalidStateError(f"the future is done already: {self._state.lower()}")
        self._state, self._result = state, result
        self._loop._ready.extend(self._callbacks)
        self._callbacks = ()

    def _error(self) -> BaseException:
        """Return what it failed with, and mark it as seen; raise if it is pending or cancelled."""
        if self._state == "PENDING": raise InvalidStateError("the result is not there yet")
        if self._state == "CANCELLED": raise CancelledError(*self._result)
        self._result.retrieved = True
        return cast(BaseException, self._result.exception.with_traceback(self._result.trace))


def resolve(future: Future[T], result: T | None = None) -> None:
    """Set the result, unless the future is done: its waiter may just have been cancelled."""
    if future._state == "PENDING": future._finish("RESOLVED", result)


# 4  Task
# =======
#
# The problem: a function that stops at `yield from future` needs somebody who
# calls send() again when the future is done, not before and not twice.
#
# The idea: a Task is that somebody. Each step sends None into the coroutine and
# gets back the next future it waits for; the task puts itself among that future's
# callbacks and is out of the way until then. That is all that happens between
# "recv would block" and the line after it:
#
#    recv -> BlockingIOError      coroutine: make a future, watch the socket,
#    yield from future            the future comes out of send()
#    step: add_done_callback      the task returns to the loop; others run
#    poll: readable -> callback   set_result moves the task to the ready queue
#    step: coroutine.send(None)   the coroutine goes on after its `yield from`
#    recv again -> bytes          being ready was a hint; recv decides
#
# With coroutines inside coroutines, `yield from` is a pipe: while a generator stands
# there, Python hands every send() and throw() that it gets straight to the inner one,
# and what that yields straight to whoever called, until the inner one returns. The
# innermost future comes out of the outermost send(), past everyone in between, and None
# goes down the same way; a return value travels up one joint, an exception as far as
# the first `except`:
#
#    Task --send--> crawl --yield from--> fetch --yield from--> Future.__iter__
#         <----------------------- future ------------------------- yield self
#
# A Task is itself a Future, resolved by the coroutine's `return` (which Python
# spells StopIteration): so a task can be waited for, and one word, "wait", does
# for a byte, a pause and a whole crawl.
#
# Cancelling must reach a coroutine that is suspended, deep in its pipe, and
# release what it holds on the way out. Only an exception does that: cancel()
# cancels the future being waited for, whose CancelledError then appears at the
# `yield from`, runs the `finally` blocks and, if nobody stops it, ends the task. (If
# that future is a task, it is cancelled in its turn; 5's `finished` waits without.)
# It is a BaseException so that `except Exception` does not swallow it. A task
# that was woken already gets it at its next step; a running one at its next wait, and
# if there is none it ends as cancelled; one that has not begun never enters its body.
#
# The invariant: an unfinished task is running, or in the ready queue once, or
# among the callbacks of the one future in `_waiting_for`. The loop (section 5's, which
# has `tasks` and `current_task`) holds every unfinished task, so that none is
# garbage-collected in mid-wait. The cost: 0.3 microseconds for a step through the ready
# queue, and for a task that sleeps 1 KB with all it holds.

class Task(Future[T]):
    """A coroutine being run by the loop, and the future of its return value.

    *coro* is a generator, with @coroutine or without, or an `async def` coroutine
    (TypeError for anything else). It takes its first step soon, from the ready queue,
    inside *context* (a copy of the current one by default).
    """

    __slots__ = ("_coro", "_context", "_waiting_for", "_throw", "_cancel_requests", "_name")

    def __init__(self, coro: Awaitable[T], *, loop: CallbackLoop | None = None,
                 name: object = None, context: Context | None = None) -> None:
        if not isinstance(coro, (types.GeneratorType, Coroutine)):
            raise TypeError(f"a coroutine was expected, got {coro!r}")
        super().__init__(loop=loop)
        self._coro: Any = coro
        self._context = contextvars.copy_context() if context is None else context
        self._waiting_for: Future[Any] | None = None
        self._throw: BaseException | None = None  # what the next step raises in the coroutine
        self._cancel_requests = 0  # that no uncancel() took back: a TimeLimit (5) counts them
        self._name = None if name is None else str(name)
        self._loop.tasks.add(self)
        self._loop._ready.append(self)

    def _label(self) -> str:
        return f"{type(self).__name__} {self.get_name()}"

    def get_name(self) -> str:
        """Return the task's name: the coroutine's, unless it was given another."""
        return self._name or str(getattr(self._coro, "__qualname__", self._coro))

    def step(self) -> None:
        """Run the coroutine until it waits again or ends."""
        if self._state != "PENDING": raise InvalidStateError(f"step(): already done: {self!r}")
        loop, error = self._loop, self._throw
        self._waiting_for = self._throw = None
        loop.current_task = self
        try:
            if error is None:
                awaited = self._context.run(self._coro.send, None)
            else:
                awaited = self._context.run(self._coro.throw, error)
        except StopIteration as stop:
            if self._throw is None:
                self._end("RESOLVED", stop.value)
            else:  # cancelled during its last step
                self._end("CANCELLED", self._throw.args)
        except CancelledError as cancelled:
            # Not the error itself: a cancelled task need not keep its frames alive.
            self._end("CANCELLED", cancelled.args)
        except BaseException as failure:
            self._end("FAILED", _Failure(self, failure))
            if isinstance(failure, (KeyboardInterrupt, SystemExit)):
                self._result.retrieved = True  # it goes on to whoever runs the loop
                raise
        else:
            self._wait_for(awaited)
        finally:
            loop.current_task = None

    run = step  # what the ready queue calls

    def _wait_for(self, awaited: Any) -> None:
        """Be called again when *awaited*, which the coroutine yielded, is done."""
        if awaited is None:  # a bare `yield`: let the others run, then go on
            self._loop._ready.append(self)
        elif not isinstance(awaited, Future) or awaited._loop is not self._loop or awaited is self:
            self._throw = RuntimeError(f"{self!r} cannot wait for {awaited!r}: a task waits for "
                                       "another future of its own loop")
            self._loop._ready.append(self)
        else:
            awaited.add_done_callback(self)
            self._waiting_for = awaited
            if self._throw is not None and awaited.cancel(*self._throw.args):
                self._throw = None  # it was cancelled while it ran

    def _end(self, state: str, result: Any) -> None:
        self._finish(state, result)
        self._loop.tasks.discard(self)

    def set_result(self, result: Any) -> None:
        """Raise RuntimeError, as set_exception does: only the coroutine ends a task."""
        raise RuntimeError("Task does not support set_result and set_exception operations")

    set_exception = cast(Any, set_result)

    def cancel(self, msg: Any = None) -> bool:
        """Ask the coroutine to end; return False if it has ended already.

        CancelledError(msg) is raised where it waits, at its next step. The coroutine
        may catch it, to clean up or to refuse. Asking again asks again.
        """
        if self._state != "PENDING": return False
        self._cancel_requests += 1
        if self._waiting_for is None or not self._waiting_for.cancel(msg):
            self._throw = CancelledError() if msg is None else CancelledError(msg)
        return True

    def cancelling(self) -> int:
        """Return how often cancel() was called and not taken back."""
        return self._cancel_requests

    def uncancel(self) -> int:
        """Take one cancel() back, having dealt with it; return how many are left."""
        self._cancel_requests = max(0, self._cancel_requests - 1)
        if not self._cancel_requests and isinstance(self._throw, CancelledError): self._throw = None
        return self._cancel_requests

    def where(self) -> str:
        """Return the task's name and the lines at which it waits, outermost coroutine first."""
        lines, inner = [self.get_name()], self._coro
        while inner is not None:  # down the pipe, to the one whose future is waited for
            frame = getattr(inner, "gi_frame", None) or getattr(inner, "cr_frame", None)
            if frame is not None:
                code = frame.f_code
                lines.append(f"  {code.co_filename}:{frame.f_lineno} in {code.co_qualname}")
            inner = getattr(inner, "gi_yieldfrom", None) or getattr(inner, "cr_await", None)
        return "\n".join(lines)


# 5  Waiting
# ==========
#
# The problem: futures and tasks are parts; a program wants verbs. Run this. Wait a
# second. Give it at most thirty. Do these ten at once. Call that blocking function
# without blocking.
#
# The idea: each verb is a few lines over the parts. `sleep` is a future that resolves
# itself at a deadline. `timeout` cancels the current task at one, and turns the
# CancelledError it caused, and only that one, into TimeoutError. `gather` is a
# future that the last of many resolves. A thread's result is a future that the
# thread resolves by way of the self-pipe.
#
# The invariants. However a wait ends, no deadline of it remains that would still do
# something; `run` leaves no task behind. Only a call that has begun in a thread cannot
# be stopped: it goes on, and its result is dropped. The cost: one object and one entry
# in the heap for each wait with a deadline. Four kinds of entry stand there: a Timeout
# calls a callback, an _Alarm resolves itself, a TimeLimit cancels a task, and a _Wait
# (7) fails.


@coroutine
def _await(awaitable: Awaitable[T]) -> Waits[T]:
    """Wait for *awaitable* and return its result: makes a coroutine of what has only __await__."""
    # Taken directly, for Task.where() can look into these, but not into an __await__().
    direct = isinstance(awaitable, (types.GeneratorType, types.CoroutineType))
    iterable: Any = awaitable if direct else awaitable.__await__()
    return cast(T, (yield from iterable))


def _ensure_future(awaitable: Awaitable[T], loop: EventLoop | None = None) -> Future[T]:
    """Return a Future as it is, any other awaitable as a new Task; TypeError for what is none."""
    if not isinstance(awaitable, Future):
        if isinstance(awaitable, Awaitable) and not isinstance(awaitable, Coroutine):
            awaitable = _await(awaitable)
        return (loop or get_running_loop()).create_task(awaitable)
    if loop is not None and awaitable._loop is not loop:
        raise ValueError(f"{awaitable!r} belongs to a different loop")
    return awaitable


class EventLoop(CallbackLoop):
    """A CallbackLoop that also runs coroutines: asyncio's event loop, in small."""

    def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
        super().__init__(selector)
        self.tasks: set[Task[Any]] = set()           # every unfinished task
        self.current_task: Task[Any] | None = None   # the one taking a step
        self._executor: Any = None                   # default thread pool, made when needed
        self._pool_threads: set[int] = set()         # idents of the default pool's threads
        self._jobs = 0                               # calls in any executor that have not ended

    def create_future(self) -> Future[Any]:
        """Return a new pending Future of this loop."""
        return Future(loop=self)

    def create_task(self, coro: Awaitable[T], **options: Any) -> Task[T]:
        """Return a new Task that begins to run *coro* soon; options are Task's."""
        self._check_open()
        return Task(coro, loop=self, **options)

    def run_until_complete(self, future: Awaitable[T]) -> T:
        """Run until *future* (a Future, or a coroutine made a Task) is done; return its result.

        Raises what it failed with; RuntimeError when stop() came first.
        """
        self._check_runnable()
        waited = _ensure_future(future, loop=self)
        waited.add_done_callback(self._stop_at_end)
        try:
            self.run_forever()
        finally:
            waited.remove_done_callback(self._stop_at_end)
        if not waited.done(): raise RuntimeError("Event loop stopped before Future completed.")
        return waited.result()

    def _stop_at_end(self, future: Future[Any]) -> None:
        error = None if future.cancelled() else future.exception()
        if not isinstance(error, (KeyboardInterrupt, SystemExit)): self.stop()  # those did

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> Future[T]:
        """Return the Future of func(*args), run by a concurrent.futures executor.

        None stands for a pool of threads of this loop's own. Cancelling the future
        keeps a call that has not begun from beginning; one that has goes on, and its
        result is dropped.
        """
        self._check_open()
        if executor is None:
            from concurrent.futures import ThreadPoolExecutor  # 10 ms that most runs save
            executor = self._executor = self._executor or ThreadPoolExecutor(
                MAX_THREADS, initializer=lambda: self._pool_threads.add(threading.get_ident()))
        future: Future[T] = self.create_future()
        job = executor.submit(func, *args)
        self._jobs += 1

        def finish() -> None:
            self._jobs -= 1
            if job.cancelled():
                future.cancel()
            elif not future.done():
                try:
                    future.set_result(job.result())
                except BaseException as error:
                    future.set_exception(error)

        def tell(_: object) -> None:  # in the executor's thread; in this one if the job has ended
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self.call_soon_threadsafe(finish)

        job.add_done_callback(tell)
        future.add_done_callback(lambda future: future.cancelled() and job.cancel())
        return future

    def close(self) -> None:
        """Release everything, the thread pool included; its idle threads end."""
        super().close()
        if self._executor is not None: self._executor.shutdown(wait=False)

    def _check_deadlock(self) -> None:
        """Raise DeadlockError, with who waits where, if nothing could wake the loop any more."""
        # Any thread outside the pool could call in, one of the pool while there are
        # jobs. One that has just ended may have done so: _ready is looked at last.
        others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
        if not (self._watched or self._jobs or others - self._pool_threads or self._ready):
            raise DeadlockError("every task waits for something that can no longer happen:\n"
                                + "\n".join(task.where() for task in self.tasks))


class _Alarm(Future[Any]):
    """A future that is its own Timeout: it resolves itself after *delay* seconds.

    Waiting with a deadline is what a crawler does most, so it is one object and not
    a future, a Timeout, its arguments and a context: 240 bytes less each time.
    """

    __slots__ = ()

    def __init__(self, loop: EventLoop, delay: float) -> None:
        super().__init__(loop=loop)
        loop._add_timeout(loop.time() + delay, self)

    obsolete = Future.done

    def run(self) -> None:
        resolve(self)


@coroutine
def sleep(delay: float, result: Any = None) -> Waits[Any]:
    """Wait *delay* seconds, then return *result*. 0 just lets the others run once.

    Raises ValueError for NaN.
    """
    if delay <= 0:
        yield
    else:
        yield from _Alarm(get_running_loop(), delay)
    return result


class TimeLimit:
    """A context manager that allows its block *delay* seconds (None: any time).

    `with` in generator coroutines, `async with` in `async def` ones. When the time is
    up the current task is cancelled, and the CancelledError that leaves the block is
    turned into TimeoutError. A cancellation from elsewhere passes as it is.
    It can be entered once.
    """

    # It is its own Timeout, as an _Alarm is: 240 bytes less, too.
    __slots__ = ("_delay", "_task", "_cancelling", "_expired", "_left")

    def __init__(self, delay: float | None) -> None:
        self._delay = delay
        self._task: Any = None
        self._expired = self._left = False

    def __repr__(self) -> str:
        return f"<TimeLimit of {self._delay} s>"

    def __enter__(self) -> TimeLimit:
        loop = get_running_loop()
        task = loop.current_task
        if task is None: raise RuntimeError("a time limit should be used inside a task")
        if self._task is not None: raise RuntimeError("a time limit can be entered only once")
        self._task, self._cancelling = task, task._cancel_requests
        if self._delay is not None and self._delay <= 0:
            # From the heap it would come after a bare `yield` in the block.
            loop._ready.append(self)
        elif self._delay is not None:
            loop._add_timeout(loop.time() + self._delay, self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._left = True
        # No more requests than before, our own taken back: then the error is ours.
        if self._expired and self._task.uncancel() <= self._cancelling \
                and isinstance(error, CancelledError):
            raise TimeoutError(f"timed out after {self._delay:g} s") from error

    async def __aenter__(self) -> TimeLimit:
        return self.__enter__()

    async def __aexit__(self, *failure: Any) -> None:
        self.__exit__(*failure)

    def obsolete(self) -> bool:
        """Return whether the block has been left."""
        return self._left

    def run(self) -> None:
        """Cancel the task: the time is up."""
        if not self._left: self._expired = self._task.cancel()


timeout = TimeLimit  # asyncio's name for making one


@coroutine
def finished(future: Future[Any]) -> Waits[None]:
    """Wait until *future* is done; its error is not raised, and a cancelled wait leaves it be."""
    if future.done(): return
    waiter = get_running_loop().create_future()
    future.add_done_callback(lambda _: resolve(waiter))
    yield from waiter


@coroutine
def wait_for(fut: Awaitable[T], timeout: float | None) -> Waits[T]:
    """Return the result of *fut*, or raise TimeoutError after *timeout* seconds.

    In that case, or when wait_for itself is cancelled, *fut* is cancelled and waited
    for before the error is raised. With *timeout* <= 0 what is not done already is
    cancelled at once (and not waited for by a wait_for that is itself cancelled); None
    waits for any time.
    """
    if timeout is not None and timeout <= 0:
        future = _ensure_future(fut)
        if future.done(): return future.result()
        future.cancel()
        yield from finished(future)
        try:
            return future.result()
        except CancelledError as error:
            raise TimeoutError from error
    with TimeLimit(timeout):
        return (yield from _await(fut))


def _outcome(future: Future[Any]) -> Any:
    """Return the result of a finished future, or its error as a value."""
    try:
        return future.result()
    except BaseException as error:
        return error


class _Gathering(Future[list[Any]]):
    """The future that gather() returns; cancelling it cancels its children."""

    def __init__(self, children: Iterable[Future[Any]], loop: EventLoop | None) -> None:
        super().__init__(loop=loop)
        self.children = list(children)
        self.left = len(self.children)
        self.cancel_error: CancelledError | None = None

    def cancel(self, msg: Any = None) -> bool:
        # A list, so that every child is cancelled.
        if self.done() or not any([child.cancel(msg) for child in self.children]): return False
        self.cancel_error = CancelledError() if msg is None else CancelledError(msg)
        return True


def gather(*awaitables: Awaitable[Any], return_exceptions: bool = False) -> Future[list[Any]]:
    """Return the Future of all results, in the order of the arguments.

    Coroutines become tasks. The first error makes it fail at once, and the others
    go on; with *return_exceptions* errors are results like any other. Cancelling it
    cancels all of them.
    """
    loop: EventLoop | None = None
    futures: dict[Any, Future[Any]] = {}  # an awaitable given twice is run once
    for awaitable in awaitables:
        if awaitable not in futures:
            futures[awaitable] = _ensure_future(awaitable, loop)
            loop = futures[awaitable].get_loop()
    outer = _Gathering(futures.values(), loop)

    def child_done(child: Future[Any]) -> None:
        outer.left -= 1
        outcome = _outcome(child)  # which also marks an error as retrieved
        if outer.done(): return
        if child._state != "RESOLVED" and not return_exceptions:
            outer.set_exception(outcome)
        elif outer.left == 0 and outer.cancel_error is not None:
            outer.set_exception(outer.cancel_error)  # as in asyncio, it failed; it is not cancelled
        elif outer.left == 0:
            outer.set_result([_outcome(futures[awaitable]) for awaitable in awaitables])

    for child in outer.children: child.add_done_callback(child_done)
    if not futures: outer.set_result([])
    return outer


def current_task(loop: EventLoop | None = None) -> Task[Any] | None:
    """Return the task whose step is running now, None between steps."""
    return (loop or get_running_loop()).current_task


def create_task(coro: Awaitable[T], **options: Any) -> Task[T]:
    """Run *coro* as a Task of the running loop, beginning soon."""
    return get_running_loop().create_task(coro, **options)


def _once(tasks: dict[Any, Task[T]], work: Callable[..., Awaitable[T]], *key: Any) -> Waits[T]:
    """Return what work(*key) gives. It is done once for all callers.

    Whoever comes after it failed begins it anew. *tasks* holds its Task by key;
    cancelling a caller does not cancel that.
    """
    task = tasks.get(key)
    if task is None or task._state in ("FAILED", "CANCELLED"):
        task = tasks[key] = create_task(work(*key))
        task.add_done_callback(_outcome)  # looks at its error: all who waited may have left
    yield from finished(task)
    return task.result()


def to_thread(func: Callable[..., T], *args: Any, **kwargs: Any) -> Future[T]:
    """Return the Future of func(*args, **kwargs), run in a thread, in the current context.

    Cancelled as run_in_executor's is.
    """
    call = functools.partial(contextvars.copy_context().run, func, *args, **kwargs)
    return get_running_loop().run_in_executor(None, call)


def _end_tasks(loop: EventLoop) -> None:
    """Cancel every task of a loop that has stopped, and run it until they have ended."""
    tasks = list(loop.tasks)
    # One that a KeyboardInterrupt hit on its way from the queue to its step, or from
    # there to its future, is in no queue and waits for nothing: it would never run
    # again.
    queued = set(loop._ready)
    loop._ready.extend([task for task in tasks if task not in queued and (
        task._waiting_for is None or task._waiting_for.done())])
    for task in tasks: task.cancel()
    for outcome in loop.run_until_complete(gather(*tasks, return_exceptions=True)):
        if isinstance(outcome, Exception):
            loop.call_exception_handler({"message": "a task failed when run() ended it",
                                         "exception": outcome})


def run(main: Awaitable[T], *, loop_factory: Callable[[], EventLoop] = EventLoop) -> T:
    """Run the coroutine *main* in a loop of its own; return its result or raise its error.

    When it ends, in whichever way, tasks still running are cancelled and waited for
    (their errors are reported to the loop), and the loop, made by *loop_factory*, is
    closed. Raises DeadlockError when nothing could happen any more, RuntimeError where
    a loop is running already.
    """
    if _thread_state.loop is not None:
        raise RuntimeError("run() cannot be called from a running event loop")
    with contextlib.closing(loop_factory()) as loop:
        try:
            return loop.run_until_complete(loop.create_task(main))
        finally:
            while loop.tasks: _end_tasks(loop)  # one may start others while it ends


# 6  Queue
# ========
#
# The problem: workers need work handed to them, must wait when there is none, and
# somebody must know when all is done. "The queue is empty" does not say that: the
# last item may be in a worker's hands, and about to become ten more.
#
# The idea: count. `put` adds one to the unfinished, `task_done` takes one away, and
# `join` waits for zero. A worker puts what it found before it says that the item
# is done, so the count is zero only when nothing is queued and nobody works.
#
# A task that finds the queue empty (or full) stands in line with a future of its own.
# Waking it resolves that future and promises nothing: until its next step somebody else
# may have taken the item, so it looks again, and waits again.
#
# The invariant: a wake-up is never lost. A getter that was woken, and cancelled before
# its next step, cannot use its wake-up, so it passes it on to the next in line; so does
# a putter. The cost: O(1) for each call, amortised: a wait pays for its wake-up.


_Line = collections.OrderedDict[Future[None], None]  # oldest first; any one leaves it in O(1)


class Queue(Generic[T]):
    """A first-in first-out queue between tasks, with asyncio's names.

    *maxsize* <= 0 means without a bound; otherwise put() waits while it is full.
    """

    def __init__(self, maxsize: int = 0) -> None:
        self.maxsize = maxsize
        self._items: collections.deque[T] = collections.deque()
        self._unfinished = 0            # items put for which task_done() was not called
        # Who waits for an item, for a place, for the last task_done().
        self._getters, self._putters, self._joiners = _Line(), _Line(), _Line()

    def qsize(self) -> int:
        """Return how many items wait in the queue."""
        return len(self._items)

    def empty(self) -> bool:
        """Return whether no item waits."""
        return not self._items

    def full(self) -> bool:
        """Return whether maxsize items wait."""
        return 0 < self.maxsize <= len(self._items)

    def put_nowait(self, item: T) -> None:
        """Put an item in, or raise QueueFull."""
        if self.full(): raise QueueFull
        self._items.append(item)
        self._unfinished += 1
        self._wake(self._getters)

    def get_nowait(self) -> T:
        """Take the oldest item out, or raise QueueEmpty."""
        if not self._items: raise QueueEmpty
        self._wake(self._putters)
        return self._items.popleft()

    @coroutine
    def put(self, item: T) -> Waits[None]:
        """Put an item in, waiting while the queue is full. Cancelled: it is not put."""
        yield from self._line_up(self._putters, self.full)
        self.put_nowait(item)

    @coroutine
    def get(self) -> Waits[T]:
        """Take the oldest item out, waiting while there is none. Cancelled: none is lost."""
        yield from self._line_up(self._getters, self.empty)
        return self.get_nowait()

    def task_done(self) -> None:
        """Say that an item got from the queue is dealt with.

        Raises ValueError when called more often than items were put.
        """
        if self._unfinished <= 0: raise ValueError("task_done() called too many times")
        self._unfinished -= 1
        if not self._unfinished:
            while self._joiners: self._wake(self._joiners)

    @coroutine
    def join(self) -> Waits[None]:
        """Wait until task_done() was called for every item, those put meanwhile included.

        By the time it returns, others may have been put, by tasks that ran after the
        last task_done().
        """
        yield from self._line_up(self._joiners, lambda: self._unfinished > 0, once=True)

    def _wake(self, line: _Line) -> None:
        """Wake the first in line who still waits."""
        while line:
            waiter, _ = line.popitem(last=False)
            if not waiter.done(): return waiter.set_result(None)

    def _line_up(self, line: _Line, blocked: Callable[[], bool], once: bool = False) -> Waits[None]:
        """While *blocked()*, wait in *line* to be woken; with *once*, one time at most.

        join() waits once: it is over when it is woken, whatever was put since.
        """
        while blocked():
            waiter = get_running_loop().create_future()
            line[waiter] = None
            try:
                yield from waiter
            except BaseException:
                line.pop(waiter, None)
                if not waiter.cancelled() and not blocked():
                    self._wake(line)  # woken, but unable to use it: the next one may be
                raise
            if once: return


# 7  Streams
# ==========
#
# The problem: make "would block" read as "wait here". And nothing on a network may be
# waited for without a deadline: a name server that is silent, an address that swallows
# packets, a server that accepts and then says nothing.
#
# The idea: one method, `_call`, tries a socket operation and, when it would block,
# waits for the socket and tries again. The TLS handshake, sending and receiving are
# that method with different operations. TLS needs nothing more: its
# "want read" is another spelling of "would block", and because the operation comes
# first and the wait second, bytes that were decrypted already are never waited for.
#
# The invariants. Each wait has a deadline, which is part of the future waited for
# (`_Wait`). A stream closes its socket in one place.
#
# The cost: five system calls for a request (a look at the kept connection, send, recv
# in vain, poll, recv), and some 6 KB for a connection at work, a third of them the
# generators between the worker and the socket. Interest in reading stays registered
# from one read to the next, which saves two system calls and some 4 microseconds.


class _Wait(_Alarm):
    """A future that fails with TimeoutError unless it is done in *delay* seconds."""

    __slots__ = ()

    def run(self) -> None:
        if not self.done(): self.set_exception(TimeoutError("no answer for too long"))


class Stream:
    """A stream socket, plain or TLS, made non-blocking; one task may read, one write at a time."""

    __slots__ = ("sock", "timeout", "_fd", "_loop", "_reader", "_watching", "_unsent")

    def __init__(self, sock: socket.socket, timeout: float = IDLE_TIMEOUT) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.timeout = timeout          # seconds that one wait may last
        self._fd = sock.fileno()        # what the selector knows the socket by, TLS or not
        self._loop = get_running_loop()
        self._reader: _Wait | None = None
        self._watching = False          # whether the selector watches it for reading
        self._unsent = bytearray()

    @coroutine
    def read(self, size: int = READ_SIZE) -> Waits[bytes]:
        """Wait for bytes and return those there are, up to *size*; b"" at the end of the stream.

        Raises OSError (ssl.SSLError when TLS is cut off without its goodbye), and
        TimeoutError after self.timeout seconds without a byte. Cancelled: none is lost.
        """
        return (yield from self._call(self._readable, self.sock.recv, size))

    def write(self, data: bytes) -> None:
        """Take *data* to be sent; wait for drain() to have it sent."""
        self._unsent += data

    @coroutine
    def drain(self) -> Waits[None]:
        """Wait until all that was written is sent. Raises as read() does.

        Cancelled: what was not sent stays for the next drain().
        """
        while self._unsent:
            sent = yield from self._call(self._writable, self.sock.send, self._unsent)
            del self._unsent[:sent]

    @coroutine
    def start_tls(self, context: ssl.SSLContext, host: str) -> Waits[None]:
        """Speak TLS from here on, with a server that proves to be *host*; raises ssl.SSLError."""
        self.sock = context.wrap_socket(self.sock, server_hostname=host, suppress_ragged_eofs=False,
                                        do_handshake_on_connect=False)
        yield from self._call(self._readable, self.sock.do_handshake)

    def spoken(self) -> bool:
        """Return whether there is something to read now, or the end."""
        try:
            socket.socket.recv(self.sock, 1, socket.MSG_PEEK)  # beneath TLS
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def close(self) -> None:
        """Close the socket: the one place where that happens. Closing twice is allowed."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            self._fd = -1
            self.sock.close()

    def _call(self, usual_wait: Callable[[], Iterable[Any]], operation: Callable[..., T],
              *args: Any) -> Waits[T]:
        """Return operation(*args), trying again whenever the socket is ready after it was not.

        *usual_wait* is what "would block" waits for; TLS says itself what it wants.
        """
        while True:
            try:
                return operation(*args)
            except BlockingIOError:
                wait = usual_wait
            except ssl.SSLWantReadError:
                wait = self._readable
            except ssl.SSLWantWriteError:
                wait = self._writable
            yield from wait()

    def _readable(self) -> Future[None]:
        if not self._watching:
            self._watching = True
            self._loop.add_reader(self._fd, self._wake)
        self._reader = _Wait(self._loop, self.timeout)
        return self._reader

    def _wake(self) -> None:
        """Resume the reader; where nobody reads, watch no more."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
        else:
            self._watching = False  # or this would be called in every tick
            self._loop.remove_reader(self._fd)

    def _writable(self) -> Waits[None]:
        writer = _Wait(self._loop, self.timeout)
        self._loop.add_writer(self._fd, resolve, writer)
        try:
            yield from writer
        finally:
            self._loop.remove_writer(self._fd)


@coroutine
def lookup(host: str, port: int) -> Waits[list[Any]]:
    """Return getaddrinfo's list of (family, kind, protocol, name, address) for *host*.

    It runs in a thread, for getaddrinfo blocks and has no deadline. The thread is a
    daemon of its own and not one of the pool's, so that a name server which never
    answers delays neither other lookups nor the end of the program. Raises OSError for
    an unknown or impossible name, UnicodeError for one that cannot be encoded,
    TimeoutError after LOOKUP_TIMEOUT seconds.
    """
    labels = host.removesuffix(".").split(".")
    if len(host) > 253 or not all(0 < len(label) < 64 for label in labels):
        raise socket.gaierror(socket.EAI_NONAME,
                              "a name has at most 253 characters, its labels 1 to 63")
    loop = get_running_loop()
    answer: Future[Any] = _Wait(loop, LOOKUP_TIMEOUT)

    def work() -> None:
        try:
            # As bytes: a str Python would first encode by its own, older IDNA (see 8).
            name = host.strip("[]").encode()
            found: Any = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            found = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(resolve, answer, found)

    threading.Thread(target=work, daemon=True).start()
    outcome = yield from answer
    if isinstance(outcome, BaseException): raise outcome
    return cast("list[Any]", outcome)


@coroutine
def open_connection(host: str, port: int, *, ssl: ssl.SSLContext | None = None,
                    addresses: Iterable[Any] = ()) -> Waits[tuple[Stream, Stream]]:
    """Connect to the first address of *host* that accepts, and return (stream, stream).

    The pair is asyncio's reader and writer; both are the one Stream. With *ssl*, a
    context, it speaks TLS. *addresses* (by default those that lookup() finds) are tried
    in turn; connecting, and each wait of the TLS handshake, may last CONNECT_TIMEOUT
    seconds. The error of the last is raised (OSError). Cancelled, it closes the socket.
    """
    failure: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in addresses or (yield from lookup(host, port)):
        sock = stream = None
        try:
            sock = socket.socket(family, kind, protocol)
            stream = Stream(sock, CONNECT_TIMEOUT)
            # Not by _call, for connect is not tried again: the socket becomes writable
            # when it is connected or has failed, and SO_ERROR says which.
            with contextlib.suppress(BlockingIOError): sock.connect(address)
            yield from stream._writable()
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code: raise OSError(code, os.strerror(code))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if ssl is not None: yield from stream.start_tls(ssl, host.strip("[]").removesuffix("."))
            stream.timeout = IDLE_TIMEOUT
            return stream, stream
        except BaseException as error:
            opened = stream or sock
            if opened is not None: opened.close()
            if not isinstance(error, OSError): raise
            failure = error
    raise failure


# 8  URLs
# =======
#
# The problem: a crawler remembers where it has been by the spelling of an address,
# and an address has endless spellings: relative ones, upper and lower case, `/./`,
# `:80`, `%2e`, backslashes, tabs, an IPv4 address written as one octal number.
#
# The idea: do what browsers do, step by step (url.spec.whatwg.org, for http and
# https), so that each becomes the one spelling that a browser would request (on pages
# in UTF-8; elsewhere browsers write queries in the page's own charset).
#
# The invariants. A URL holds printable ASCII only and no space: it can be put into a
# request, a log or a terminal as it is. User names and passwords are dropped at
# once. Whatever cannot be understood with certainty is a ValueError, never a guess
# at another host. Everything else (scope, pool, connection) looks at the parsed
# object, so that no two parts can read one address differently. The cost: some 4
# microseconds where the host was met before, so section 13 parses most addresses once.


class URL(NamedTuple):
    """An http or https URL, normalised and without fragment; str() spells it."""

    origin: str     # "http://host" or "https://host:8443"; the default port is left out
    scheme: str
    host: str       # ASCII; IPv6 in brackets
    port: int
    target: str     # what the request line asks for: "/path" or "/path?query"

    def __str__(self) -> str:
        return self.origin + self.target


_CONTROLS = "".join(map(chr, range(33)))  # and the space
_PORTS = {"http": 80, "https": 443}
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):")
_AUTHORITY = re.compile(r"(\[[^]]*\]|[^:]*)(?::([0-9]*))?")
_NO_HOST = re.compile(r"[^!-~]|[#%/:<>?@[\\\]^|]")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_NO_PATH = re.compile(r"[^!$-;=@-\]_a-z|~]+")       # to be percent-encoded in a path,
_NO_QUERY = re.compile(r"[^!$-&(-;=?-~]+")          # and in a query
_IGNORED = re.compile("[\u00ad\u034f\u200b\u2060\ufe00-\ufe0f\ufeff]")  # by IDNA 2003 and 2008
_UNCERTAIN = re.compile("[\u00df\u1e9e\u03c2\u200c\u200d]")              # different in the two
_SURROGATES = re.compile("[\ud800-\udfff]")


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode())


def _ipv4(host: str) -> str:
    """Return "a.b.c.d" for any spelling in up to four decimal, octal or hexadecimal numbers."""
    parts = host.removesuffix(".").split(".")
    if len(parts) > 4 or not all(map(_NUMBER.fullmatch, parts)):
        raise ValueError("it is not an IPv4 address")
    *numbers, last = [int("0" + part[2:], 16) if part[:2] == "0x" else
                      int(part, 8 if part[0] == "0" else 10) for part in parts]
    value = last + sum(number << (24 - 8 * i) for i, number in enumerate(numbers))
    if max([0, *numbers]) > 255 or last >= 256 ** (4 - len(numbers)):
        raise ValueError("it is not an IPv4 address")
    return ".".join(map(str, value.to_bytes(4, "big")))


def _ipv6(text: str) -> str:
    """Return the shortest spelling (RFC 5952) of what stands in the brackets."""
    try:
        packed = socket.inet_pton(socket.AF_INET6, text)
    except (OSError, UnicodeError):
        raise ValueError("it is not an IPv6 address") from None
    groups = ":".join(f"{packed[i] << 8 | packed[i + 1]:x}" for i in range(0, 16, 2))
    zeros = max(re.findall(r"\b0(?::0)+\b", groups), key=len, default="")
    if zeros: groups = re.sub(":{3,4}", "::", re.sub(rf"\b{zeros}\b", "::", groups, count=1))
    return groups


def _to_ascii(label: str) -> str:
    """Return one label of an international name in its ASCII form.

    The standard library knows IDNA 2003, browsers use its successor. Where the two
    could name different hosts (sharp s, joiners, characters that are younger than
    2003) the label is refused.
    """
    label = _IGNORED.sub("", label)
    if label.isascii() and label[:4].lower() != "xn--": return label
    if len(label) > 63: raise ValueError(f"{label[:63]!r}... is too long for a label of a name")
    if label.isascii():
        name = label[4:].lower().encode().decode("punycode")
        if name.isascii() or _to_ascii(name) != label.lower():
            raise ValueError(f"{label!r} is not the ASCII form of a name")
        return label
    # Twice, for folding may undo the normal form.
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", label).casefold())
    name = encodings.idna.nameprep(label)
    if name != folded or "." in name or _UNCERTAIN.search(label) or any(
            unicodedata.ucd_3_2_0.category(char) == "Cn" for char in name):
        raise ValueError(f"{label!r} may mean different hosts to different programs")
    return name if name.isascii() else "xn--" + name.encode("punycode").decode()


@functools.lru_cache(1000)  # more than most sites link to; a name costs 4 microseconds
def _parse_host(text: str) -> str:
    """Return the host of an authority as it is looked up and sent."""
    if text.startswith("["): return f"[{_ipv6(text[1:-1])}]"
    if "%" in text:
        from urllib.parse import unquote_to_bytes  # 3 ms that most runs save
        text = unquote_to_bytes(text).decode()
    host = ".".join(map(_to_ascii, re.split("[.\u3002\uff0e\uff61]", text))).lower()
    if not host or _NO_HOST.search(host): raise ValueError("it is not a name")
    return _ipv4(host) if _NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2]) else host


def _parse_path(path: str) -> str:
    """Return an absolute path with its dot segments resolved and unsafe characters encoded."""
    segments: list[str] = []
    for part in path[1:].split("/"):
        dots = part.lower().replace("%2e", ".")
        if dots == "..":
            del segments[-1:]
        elif dots != ".":
            segments.append(_NO_PATH.sub(_percent, part))
    if dots in (".", ".."): segments.append("")  # it ends with a slash, then
    return "/" + "/".join(segments)


def parse_url(reference: str, base: URL | None = None) -> URL:
    """Return the URL that *reference* means on the page *base*; raise ValueError if none.

    WHATWG URL, section 4.4, for the schemes http and https; others are refused.
    """
    if len(reference) > MAX_URL: raise ValueError(f"a URL of more than {MAX_URL} characters")
    text = reference.strip(_CONTROLS).replace("\t", "").replace("\n", "").replace("\r", "")
    text = _SURROGATES.sub("\ufffd", text.partition("#")[0])
    match = _SCHEME.match(text)
    scheme = match[1].lower() if match else base.scheme if base else ""
    if scheme not in _PORTS:
        raise ValueError(f"{scheme or text!r}: only http and https URLs can be fetched")
    head, mark, query = text[match.end() if match else 0:].partition("?")
    head = head.replace("\\", "/")
    # "http:x" is relative on a page of that scheme, and a host elsewhere.
    if head.startswith("//") or base is None or scheme != base.scheme:
        authority, _, path = head.lstrip("/").partition("/")
        found = _AUTHORITY.fullmatch(authority.rpartition("@")[2])
        if found is None or int(found[2] or 0) > 65535:
            raise ValueError(f"{authority.rpartition('@')[2]!r} is not a host and a port")
        try:
            host = _parse_host(found[1])
        except ValueError as error:
            raise ValueError(f"{found[1][:60]!r} is not a host: {error}") from None
        port = int(found[2] or _PORTS[scheme])
        origin = f"{scheme}://{host}" + (f":{port}" if port != _PORTS[scheme] else "")
        path = "/" + path
    else:
        origin, _, host, port, target = base
        directory, base_mark, base_query = target.partition("?")
        path = head if head.startswith("/") else directory[:directory.rfind("/") + 1] + head
        if not head:
            path = directory
            if not mark: mark, query = base_mark, base_query
    target = _parse_path(path) + mark + _NO_QUERY.sub(_percent, query)
    if len(target) > MAX_URL: raise ValueError(f"a URL of more than {MAX_URL} characters")
    return URL(origin, scheme, host, port, target)


_UNRESERVED = re.compile("%(2[dDeE]|3[0-9]|[46][1-9a-fA-F]|[57][0-9aA]|5[fF]|7[eE])")


def _identity(text: str) -> str:
    """Return what is equal for URLs that differ in needless escapes: %7E is ~. RFC 3986, 2.3.

    parse_url() leaves both as they are, for browsers request what they are given.
    """
    return _UNRESERVED.sub(lambda match: chr(int(match[1], 16)), text) if "%" in text else text


# 9  HTTP messages
# ================
#
# The problem: a response is a head of text lines and a body of bytes, and nothing
# marks the body's end but what the head says about it. A client that guesses wrong
# takes the rest of one answer for the beginning of the next.
#
# The idea: a parser that does no I/O. It is fed what the network gave, in pieces of
# any size, and says when a response is complete. Inside it is a coroutine again,
# one that waits for bytes instead of futures: a bare `yield` wherever the grammar of
# HTTP/1.1 (RFC 9112) needs bytes that are not there yet.
#
# Where a body ends is decided in one place, `_framing`:
#
#     the answer to HEAD, 1xx, 204, 304      there is none
#     Transfer-Encoding: chunked             each piece says its length, 0 is the last
#     Content-Length: n                      after n bytes
#     neither                                when the server closes the connection
#
# The invariants. Every byte is accounted for: an end before the length is reached, two
# lengths that differ, or a Transfer-Encoding that is not plain chunked or has a length
# beside it, are errors; bytes after the end are nobody's answer, and the connection is
# not used again. No part grows without a bound. Numbers are digits and nothing else
# (`int` takes "+5", "5_0" and Arabic digits). The cost: linear in the bytes, however
# they are cut into pieces; some 7 microseconds for a page of 12 KB.


def _always(_: object) -> bool:
    return True


class Response:
    """The answer to one request."""

    __slots__ = ("version", "status", "reason", "headers", "body", "reusable")

    def __init__(self, version: int, status: int, reason: str, headers: dict[str, str]) -> None:
        self.version = version      # 1 for HTTP/1.1
        self.status = status
        self.reason = reason
        self.headers = headers      # names in lower case; repeated fields joined by ", "
        self.body = b""             # decoded; empty when it was not wanted
        self.reusable = False       # whether the connection can take another request


_STATUS_LINE = re.compile(r"HTTP/1\.([0-9]) ([1-9][0-9][0-9])(?: ([^\r\n\0]*))?")
_FIELD = re.compile(r"^([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*+([^\r\n\0]*+)$", re.MULTILINE)
_FOLD = re.compile(r"\n[ \t]+")  # a field continued on the next line: obsolete, but met
_HEAD_END = re.compile(rb"\n\r?\n")
_LINE_END = re.compile(rb"\n")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?\r\n")  # at most 64 bits
_DIGITS = re.compile("[0-9]{1,18}")  # less than 2**63


def _parse_head(text: str) -> Response:
    """Return the Response whose head is *text*: status line and fields, RFC 9112, 4 and 5."""
    line, _, fields = text.replace("\r\n", "\n").rstrip("\n").partition("\n")
    match = _STATUS_LINE.fullmatch(line)
    if match is None: raise ProtocolError(f"an HTTP/1 status line was expected, not {line[:60]!r}")
    fields = _FOLD.sub(" ", fields)
    pairs = _FIELD.findall(fields)
    if len(pairs) != fields.count("\n") + bool(fields):
        wrong = next(line for line in fields.split("\n") if not _FIELD.fullmatch(line))
        raise ProtocolError(f"a header field was expected, not {wrong[:60]!r}")
    if len(pairs) > MAX_FIELDS: raise LimitError(f"more than {MAX_FIELDS} header fields")
    headers: dict[str, str] = {}
    for name, value in pairs:
        name, value = name.lower(), value.rstrip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return Response(int(match[1]), int(match[2]), match[3] or "", headers)


def _framing(method: str, response: Response) -> int | str:
    """Return where the body ends: its length, "chunked" or "close". RFC 9112 section 6.3."""
    coding = response.headers.get("transfer-encoding")
    length = response.headers.get("content-length")
    lengths = [] if length is None else [part.strip(" \t") for part in length.split(",")]
    if not all(map(_DIGITS.fullmatch, lengths)) or len(set(map(int, lengths))) > 1:
        raise ProtocolError(f"one Content-Length was expected, not {length!r}")
    if method == "HEAD" or response.status < 200 or response.status in (204, 304): return 0
    if coding is not None:
        if coding.lower() != "chunked" or response.version == 0 or lengths:
            raise ProtocolError(f"Transfer-Encoding {coding!r} leaves the body's end in doubt")
        return "chunked"
    return int(lengths[0]) if lengths else "close"


def _decode(body: bytes, coding: str, limit: int) -> bytes:
    """Undo a Content-Encoding of gzip or deflate; LimitError for more than *limit* bytes."""
    if coding in ("", "identity") or not body: return body
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise ProtocolError(f"Content-Encoding {coding!r} was not asked for")
    # 47: gzip or zlib, by the first bytes; -15: the bare deflate that some servers send
    # under that name. A zlib stream begins with 8 in the low bits and a multiple of 31.
    bare = coding == "deflate" and (body[0] & 15 != 8 or int.from_bytes(body[:2], "big") % 31)
    decoded = bytearray()
    try:
        for _ in range(MAX_MEMBERS):  # a gzip file may have several
            unzip = zlib.decompressobj(-15 if bare else 47)
            decoded += unzip.decompress(body, limit + 1 - len(decoded))
            if len(decoded) > limit: raise LimitError(f"a decoded body of more than {limit} bytes")
            if not unzip.eof: raise TruncatedError("the compressed body ends too early")
            body = unzip.unused_data.lstrip(b"\0")  # padding
            if not body: return bytes(decoded)
    except zlib.error as error:
        raise ProtocolError(f"the {coding} body is corrupt: {error}") from None
    raise LimitError(f"a compressed body of more than {MAX_MEMBERS} members")


class ResponseParser:
    """Takes the bytes of a connection, in pieces of any size, and makes a Response of them.

    *method* is the request's. *wanted(response)* is asked when the head is complete: a
    body that is not wanted is read, and dropped, only if its length is known and it
    came whole with the head, for then the connection can be used again. *max_body* is
    in bytes, on the wire and decoded (0: MAX_BODY).
    """

    __slots__ = ("response", "buffer", "ended", "_method", "_budget", "_wanted", "_max_body",
                 "_parsing")

    def __init__(self, method: str = "GET", wanted: Callable[[Response], bool] = _always,
                 max_body: int = 0) -> None:
        self.response: Response | None = None
        self.buffer = bytearray()           # received and not yet parsed
        self.ended = False                  # no more will be received
        self._budget = MAX_HEAD             # bytes for heads, trailers and long chunk sizes
        self._method, self._wanted = method, wanted
        self._max_body = max_body or MAX_BODY
        self._parsing = self._parse()

    def feed(self, data: bytes) -> bool:
        """Parse *data* (b"" is the end of the stream); return whether the response is complete.

        Then it is in .response, which before that may hold an interim one or lack its
        body. Raises ProtocolError, of which TruncatedError means that the end came too
        early and LimitError that something is larger than it may be. After True or an
        error the parser is not to be fed again.
        """
        self.buffer += data
        self.ended = not data
        return next(self._parsing, "complete") == "complete"  # each yield gives None

    def _parse(self) -> Iterator[None]:
        """Parse one response; each `yield` waits for feed()."""
        for _ in range(MAX_INTERIM + 1):
            head = yield from self._take_through(_HEAD_END, "head")
            # Empty lines before it are borne, RFC 9112 section 2.2.
            self.response = response = _parse_head(head.decode("latin-1").lstrip("\r\n"))
            framing = _framing(self._method, response)
            if response.status >= 200 or response.status == 101: break  # after 101 comes no HTTP
        else:
            raise LimitError(f"more than {MAX_INTERIM} interim responses")
        wanted = self._wanted(response)
        if not wanted and (not isinstance(framing, int) or framing > len(self.buffer)): return
        if framing == "chunked":
            body = yield from self._chunks()
        else:
            while framing == "close" and not self.ended:
                self._check_size(len(self.buffer))
                yield
            size = framing if isinstance(framing, int) else len(self.buffer)
            if wanted: self._check_size(size)
            body = yield from self._take(size)
        if wanted:
            coding = response.headers.get("content-encoding", "").lower()
            response.body = _decode(body, coding, self._max_body)
        connection = response.headers.get("connection", "").lower()
        response.reusable = (response.version >= 1 and response.status >= 200 and not self.buffer
                             and framing != "close" and "close" not in connection)

    def _need(self, size: int) -> Iterator[None]:
        """Wait until the buffer holds *size* bytes."""
        while len(self.buffer) < size:
            if self.ended:
                missing = size - len(self.buffer)
                raise TruncatedError("the connection was closed before the response ended "
                                     f"({missing} bytes or more are missing)")
            yield

    def _take(self, size: int) -> Generator[None, None, bytes]:
        """Wait for *size* bytes and take them out of the buffer."""
        yield from self._need(size)
        taken = bytes(self.buffer[:size])
        del self.buffer[:size]
        return taken

    def _take_through(self, end: re.Pattern[bytes], what: str) -> Generator[None, None, bytes]:
        """Wait for *end* within what is left of the head's budget; take all up to there."""
        start = 0
        while True:
            match = end.search(self.buffer, start)
            size = match.end() if match else len(self.buffer)
            if size > self._budget: raise LimitError(f"a {what} of more than {MAX_HEAD} bytes")
            if match:
                self._budget -= size
                return (yield from self._take(size))
            start = max(0, size - 2)  # an end may have begun there
            yield from self._need(size + 1)

    def _check_size(self, size: int) -> None:
        if size > self._max_body: raise LimitError(f"a body of more than {self._max_body} bytes")

    def _chunks(self) -> Generator[None, None, bytes]:
        """Return a body that comes in chunks, RFC 9112 section 7.1; trailers are dropped."""
        body = bytearray()
        while True:
            line = yield from self._take_through(_LINE_END, "chunk's first line")
            match = _CHUNK_SIZE.fullmatch(line)
            if match is None:
                raise ProtocolError(f"a chunk size in hexadecimal was expected, not {line[:40]!r}")
            size = int(match[1], 16)
            if size == 0: break
            # The line was charged whole; up to 16 bytes and twice its chunk are given
            # back. So plain chunks are free, however many, and extensions (what follows
            # a ";") stay bounded.
            self._budget += min(len(line), 16 + 2 * size)
            self._check_size(len(body) + size)
            chunk = yield from self._take(size + 2)
            if not chunk.endswith(b"\r\n"):
                raise ProtocolError(f"the end of a chunk was expected, not {chunk[size:]!r}")
            body += chunk[:size]
        while line not in (b"\r\n", b"\n"):
            line = yield from self._take_through(_LINE_END, "trailer section")
        return bytes(body)


# 10  HTTP client
# ===============
#
# The problem: a new connection costs one round trip, a TLS one two or three and a
# millisecond of arithmetic, and a crawler asks the same server again and again.
#
# The idea: keep what is not in use. The pool holds idle streams by origin, and a
# request takes the one used last or else connects. One request at a time on each:
# no pipelining, so an answer can never belong to another question.
#
# The invariants. A stream is in the pool or with one task, never both; it goes back
# only if its response was read to the end and it may be reused, and is closed
# otherwise, cancelled requests included. It is used again only while it is silent: what
# came after a response is no answer to the next request. A server may close an idle
# connection at any moment, also while the request is on its way: a request that fails
# on a reused connection before the first byte came back is sent once more, on a fresh
# one (RFC 9112 section 9.3.1: GET is idempotent). The cost of keeping one: an entry in
# the selector, and now and then a request that is sent in vain.


class Client:
    """HTTP/1.1 requests over a pool of connections. close() it in the end.

    *headers* are sent with every request (but for fetch(own_headers=False)), in place
    of or beside the usual ones (ValueError for what is no header field); *timeout* is
    in seconds for one fetch, from lookup to last byte; *max_body* in bytes, on the wire
    and decoded (0: MAX_BODY).
    """

    def __init__(self, headers: dict[str, str] | None = None, timeout: float = FETCH_TIMEOUT,
                 max_body: int = MAX_BODY) -> None:
        usual = {"User-Agent": USER_AGENT, "Accept": "*/*", "Accept-Encoding": "gzip, deflate"}
        # One spelling of each name, so that the user's fields take the place of the
        # usual ones.
        fields = usual | {name.title(): value for name, value in (headers or {}).items()}
        for name, value in fields.items():
            field = f"{name}: {value}"
            if not _FIELD.fullmatch(field) or not value.isprintable() or name == "Host":
                raise ValueError(f"a header 'Name: value' (not Host) was expected, not {field!r}")
        self.timeout, self.max_body = timeout, max_body
        self.opened = 0                 # connections made
        usual["User-Agent"] = fields["User-Agent"]
        # What every request says: without the user's *headers*, and with them.
        self._fields = ["".join(f"{name}: {value}\r\n" for name, value in some.items())
                        for some in (usual, fields)]
        self._pool: dict[str, list[Stream]] = {}
        self._lookups: dict[Any, Task[list[Any]]] = {}  # by host and port
        self._tls: ssl.SSLContext | None = None

    @coroutine
    def fetch(self, url: URL, method: str = "GET", wanted: Callable[[Response], bool] = _always,
              max_body: int = 0, own_headers: bool = True) -> Waits[Response]:
        """Return the response to one request of *method*; redirects are not followed.

        *method* must be one that may be sent twice, such as GET or HEAD. *own_headers*
        says whether the client's *headers* are sent, which may be secrets between the
        user and some hosts; the User-Agent always is. The body is read if
        *wanted(response)*, called when the head is there, is true. One of more than
        *max_body* bytes (0: the client's limit) raises LimitError, a ProtocolError.
        Raises OSError (ssl.SSLError, TimeoutError, socket.gaierror among them) when
        there is no answer, ProtocolError when it is broken. Cancelled, or after
        self.timeout seconds, the connection is closed.
        """
        request = (f"{method} {url.target} HTTP/1.1\r\nHost: {url.origin.partition('//')[2]}\r\n"
                   f"{self._fields[own_headers]}\r\n").encode()
        with TimeLimit(self.timeout):
            pool = self._pool.setdefault(url.origin, [])
            while pool and pool[-1].spoken(): pool.pop().close()
            while True:
                parser = ResponseParser(method, wanted, max_body or self.max_body)
                reused = bool(pool)
                stream = pool.pop() if pool else (yield from self._connect(url))
                try:
                    return (yield from self._exchange(stream, pool, request, parser))
                except (OSError, TruncatedError):
                    if not reused or parser.buffer or parser.response:
                        raise
                    while pool: pool.pop().close()  # as old and likely as dead; now it connects

    def idle(self) -> int:
        """Return how many connections wait to be used again."""
        return sum(map(len, self._pool.values()))

    def close(self) -> None:
        """Close every idle connection; the client may go on being used."""
        for pool in self._pool.values():
            while pool: pool.pop().close()

    def _exchange(self, stream: Stream, pool: list[Stream], request: bytes,
                  parser: ResponseParser) -> Waits[Response]:
        """Send *request* and return its response; the stream goes into the pool or is closed."""
        try:
            stream.write(request)
            yield from stream.drain()
            while not parser.feed((yield from stream.read())): pass
            return cast(Response, parser.response)
        finally:
            if parser.response and parser.response.reusable: pool.append(stream)
            else: stream.close()

    def _connect(self, url: URL) -> Waits[Stream]:
        """Return a new stream; a host and port is looked up once, unless that failed."""
        addresses = yield from _once(self._lookups, lookup, url.host, url.port)
        if url.scheme == "https" and self._tls is None:
            self._tls = ssl.create_default_context()
            self._tls.set_alpn_protocols(["http/1.1"])
            self._tls.hostname_checks_common_name = False  # RFC 9110 section 4.3.4
            # Debian's Python takes a connection that was cut off for the end of the body.
            self._tls.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
        tls = self._tls if url.scheme == "https" else None
        stream, _ = yield from open_connection(url.host, url.port, ssl=tls, addresses=addresses)
        self.opened += 1
        return stream


@coroutine
def fetch(url: str, **options: Any) -> Waits[Response]:
    """Return the response to GET *url*, which needs its http:// or https://.

    Redirects are not followed; options are Client's. Raises ValueError for what is no
    URL, otherwise what Client.fetch raises.
    """
    with contextlib.closing(Client(**options)) as client:
        return (yield from client.fetch(parse_url(url)))


# 11  Links
# =========
#
# The problem: find what a page points to in markup that nobody checked, at a price
# that does not exceed the fetching, and without being fooled by comments, scripts
# or quoted text that look like links.
#
# The idea: one regular expression, matched all over the page, that does what the
# HTML standard's tokenizer does (section 13.2.5) as far as links need it. It takes a
# link's value out, and steps over as a whole whatever may hold a `<` that is no tag:
# comments, the text of scripts and the like, quoted attribute values.
#
# The invariant: linear time, whatever the page. Every unbounded repetition in `_TAGS`
# is possessive and every alternative that begins
# at a `<` and then fails does so before the next `<`, or leaves the rest of the page to
# an alternative that takes it all. The cost: some 4 microseconds per KB, where
# html.parser takes 150.

_VALUE = r"""(?:"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z)|[^\s>"'][^\s>]*+)?+"""
_ATTRIBUTE = rf"[^\s/>][^\s/>=]*+(?:\s*+=\s*+{_VALUE})?+[\s/]*+"
_REST = rf"[\s/]*+(?:{_ATTRIBUTE})*+"  # of a tag, up to its >


# Inside <!-- a script may hold <script>...</script> without ending, section 13.2.5.20.
_SCRIPT = r"""(?i:cript)(?=[\s/>])%s>(?:[^<]++
    |<!--(?!-?>)(?:[^<-]++|-(?!->)|<(?!/?(?i:script)[\s/>])
        |<(?i:script)[\s/>](?:[^<-]++|-(?!->)|<(?!/(?i:script)[\s/>]))*+(?:<(?=/)|\Z|(?=-->)))*+
    |<(?!/(?i:script)[\s/>]))*+""" % _REST


def _raw_text(name: str) -> str:
    """Return a pattern for an element whose content is text, after its first letter."""
    return rf"(?i:{name[1:]})(?=[\s/>]){_REST}>[^<]*+(?:<(?!/(?i:{name})[\s/>])[^<]*+)*+"


# One group captures what is wanted: of a and area the href, with the last letter of its
# name so that an empty one is not nothing; of base, meta, frame and iframe the tag
# without its first letter: <a class=x href="/b"> is captured as f="/b, <a href> as f,
# <base href=/c> as ase href=/c. In double quotes a fragment is left out: many links
# lead to places of the same few pages, and so each page is captured once. It saves a
# fifth of the time for a page of Python's documentation.
#
# Most tags are none of these, so they are rejected first: end tags (whose attributes,
# which nobody writes, are not stepped over), those of one or two characters and no
# attributes, and the usual ones with nothing but a class: these hide nothing. It saves
# a third of the time, and a quarter more where a program's text is coloured by classes.
# Then by first letter.
_TAGS = re.compile(rf"""<
    (?!/|[a-zA-Z0-9]{{1,2}}+>|(?:div|span|code|p|li|td|em)[ ]class="[^"<]*+">)(?:
        [aAbBfFiImM](?:(?<=[aA])(?:[rR][eE][aA])?+[\s/]++
                       (?:(?![hH][rR][eE][fF][\s/>=]){_ATTRIBUTE})*+[hH][rR][eE])?+
        (   (?<=[eE])[fF](?:\s*+=\s*+(?:
                "[^"\#]*+(?:(?<=[&\0- ])\#[^"\#]*+)*+(?="|\#[^"]*+")  # &# begins no fragment
                | '[^']*+(?=') | [^\s>"'][^\s>]*+(?=[\s>]) | (?=>)) | (?!\s*+=))
          | (?:(?<=[bB])(?i:ase) | (?<=[mM])(?i:eta) | (?<=[fF])(?i:rame))[\s/]{_REST}(?=>)
          | (?<=[iI]){_raw_text("iframe")})
        (?:(?:\#[^"]*+)?+["']?+{_REST}>|(?=</)|\Z)                         # the last two: of iframe
      | (?=[!?nNpPsStTxX])(?:
            [sS](?=[cCtTvV])(?:{_SCRIPT} | {_raw_text("style")}
                   | (?i:vg)(?=[\s/>]){_REST}>\s*+<(?i:title){_REST}>)      # here it is no raw text
          | [tT](?=[iIeE])(?:
                {_raw_text("title")} | {_raw_text("textarea")} | {_raw_text("template")})
          | [nN](?:{_raw_text("noembed")} | {_raw_text("noframes")})
          | [xX]{_raw_text("xmp")} | [pP](?i:laintext)[\s/>](?s:.*+)
          | !--(?:-?>|[^-]*+(?:-(?!-!?>)[^-]*+)*+(?:--!?>|\Z))                  # a comment
          | [!?][^>]*+)
      | [a-zA-Z][a-zA-Z0-9]*+(?!>)[^\s/>]*+{_REST}(?:>|\Z))""", re.VERBOSE | re.ASCII)
_REFRESH = re.compile(r"""\s*+[0-9.]++(?:\s*+[;,]\s*+|\s++(?![;,]))(?:url\s*+=\s*+)?+"""
                      r"""(?:"([^"]*)|'([^']*)|(.+))""", re.ASCII | re.IGNORECASE | re.DOTALL)
_CHARSET = re.compile(rb"""charset\s*+=\s*+["']?+\s*+([A-Za-z0-9_:.+-]++)""", re.I)
# Python has codecs that are not for pages (unicode_escape, idna, UTF-32), and UTF-7
# hides tags.
_WEB_CHARSET = re.compile("(?!utf[^a-z0-9]*(?:7|32))(?:utf|iso|latin|windows|cp|koi8|euc|shift|"
                          "sjis|gb|big5|mac|ascii|us-ascii|tis|ks|ibm|hz)", re.IGNORECASE)
_META_CHARSET = re.compile(rb"<meta[^>]*?[\s;\"']" + _CHARSET.pattern, re.I)
_PAIR = re.compile(
    r"""(>|[^\s/>][^\s/>=]*+)(?:\s*+=\s*+("[^"]*+"?|'[^']*+'?|[^\s>]*+))?+""", re.ASCII)
_OF_USE = re.compile(f"refresh|robots|{PRODUCT}|&", re.IGNORECASE)  # in a meta; & may spell them
_OPENING = re.compile(r"""[fF]\s*=?\s*["']?""", re.ASCII)
# "max-image-preview: none" is about something else.
_NOFOLLOW = re.compile(r"(?<!preview:)(?<!preview: )\b(?:nofollow|none)\b", re.I)
_ENTITY = re.compile(r"&(#[0-9]{1,9}+(?![0-9]);?|#[xX][0-9a-fA-F]{1,9}+(?![0-9a-fA-F]);?"
                     r"|[0-9a-zA-Z]++(?:;|(?!=)))")


def _unescape(value: str) -> str:
    """Decode the entities of an attribute: "&copy=2" is none there, HTML section 13.2.5.73."""
    return _ENTITY.sub(lambda match: html.unescape(match[0]) if match[1][0] == "#" else
                       html.entities.html5.get(match[1], match[0]), value)


def _attribute(tag: str, name: str) -> str | None:
    """Return the value of the first attribute *name* of a captured tag, None if it has none."""
    for found, value in _PAIR.findall(tag):
        if found == ">": break
        if found.lower() == name:
            if value[:1] in ('"', "'"): value = value.strip(value[0])
            return _unescape(value).replace("\0", "\ufffd")
    return None


def spelled(captured: str) -> str | None:
    """Return the reference in a captured link or frame; None if it holds none."""
    if captured[1:3] == '="':  # nearly always
        reference = captured[3:]
    elif captured[:4].lower() in ("rame", "fram"):
        return _attribute(captured, "src")
    else:
        reference = captured[cast("re.Match[str]", _OPENING.match(captured)).end():]
    if "&" in reference: reference = _unescape(reference)
    return reference.replace("\0", "\ufffd") if "\0" in reference else reference


def decode_page(body: bytes, content_type: str) -> tuple[str, str]:
    """Return a page's text and charset: by its BOM, *content_type*, its meta, or UTF-8."""
    charset = "utf-16" if body[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    if charset == "utf-8" and body[:3] != b"\xef\xbb\xbf":
        match = (_CHARSET.search(content_type.encode("latin-1", "replace"))
                 or _META_CHARSET.search(body[:MAX_PRESCAN]))
        charset = match[1].decode() if match else charset
        if match and match.re is _META_CHARSET and re.match("utf[^a-z0-9]*16", charset, re.I):
            charset = "utf-8"  # the bytes that said it were not UTF-16
    if not _WEB_CHARSET.match(charset): charset = "utf-8"
    try:
        return body.decode(charset, "replace"), charset.lower()
    except (LookupError, UnicodeError):  # no codec has that name, or it failed
        return body.decode("utf-8", "replace"), "utf-8"


class Markup(NamedTuple):
    """What a page says about where to go next."""

    links: list[str]        # and frames: as captured, each once; see spelled()
    base: URL               # what they are relative to
    refresh: str            # where a meta refresh leads, decoded
    nofollow: bool          # whether a robots meta asks not to follow the links


def read_markup(text: str, page: URL) -> Markup:
    """Return the links of an HTML page and what else it says about them. Never fails."""
    tags = dict.fromkeys(_TAGS.findall(text))
    tags.pop("", None)  # what was stepped over
    base, refresh, nofollow = None, "", False
    for tag in [tag for tag in tags if tag[0] in "aAeE"]:  # of (b)ase and (m)eta
        del tags[tag]
        if tag[0] in "aA":  # of base: the first href counts
            if base is None: base = _attribute(tag, "href")
            continue
        if not _OF_USE.search(tag): continue  # saves 5 % of the time
        content = _attribute(tag, "content") or ""  # of meta
        refreshes = (_attribute(tag, "http-equiv") or "").lower() == "refresh"
        match = _REFRESH.match(content) if refreshes else None
        if match: refresh = match[1] or match[2] or match[3] or ""
        if (_attribute(tag, "name") or "").lower() in ("robots", PRODUCT):
            nofollow = nofollow or bool(_NOFOLLOW.search(content))
    with contextlib.suppress(ValueError):
        if base is not None: page = parse_url(base, page)
    return Markup(list(tags), page, refresh, nofollow)


# 12  Robots
# ==========
#
# The problem: a site says in /robots.txt what crawlers may fetch (RFC 9309), and says
# it in a file that people wrote by hand, for the crawler that they had in mind.
#
# The idea: groups of rules are headed by the names they are for; those with our name
# count, all of them together, or else those for "*". Of the rules that match a URL the
# one with the longest pattern wins, of two as long the one that allows. "*" stands for
# any characters, a final "$" for the end.
#
# The invariants. Every file can be read: a line that says nothing known says nothing.
# Where two spellings of an address are one page (%7E is ~), a rule against either
# forbids both. The cost: a pass over the rules for each URL, 0.3 microseconds for a
# rule.

_ESCAPED = re.compile("%[0-9a-fA-F]{2}")


def _upper_escapes(text: str) -> str:
    return _ESCAPED.sub(lambda match: match[0].upper(), text)


def _comparable(path: str) -> str:
    """Return *path* with everything escaped that parse_url() escapes, in one spelling."""
    path, mark, query = _SURROGATES.sub("\ufffd", path).partition("?")
    return _upper_escapes(_NO_PATH.sub(_percent, path) + mark + _NO_QUERY.sub(_percent, query))


def _matches(pattern: str, path: str) -> bool:
    """Return whether a robots pattern matches the beginning of *path*, in linear time."""
    anchored = pattern.endswith("$")
    # A "$" elsewhere than at the end is a plain one, and rule() writes those as %24.
    first, *others = pattern.removesuffix("$").replace("$", "%24").split("*")
    if not path.startswith(first): return False
    at = len(first)
    for part in others:
        found = path.find(part, at)
        if found < 0: return False
        at = found + len(part)
    return not anchored or at == len(path) or bool(others) and path.endswith(others[-1])


class Robots:
    """The rules of one robots.txt for one *product* name."""

    def __init__(self, text: str, product: str = PRODUCT, failure: str = "") -> None:
        self.failure = failure  # why there are no rules, and nothing is allowed
        groups: dict[str, list[tuple[str, str]]] = {}  # by name; "" stands for "*"
        names: set[str] = set()
        rules_began = True
        for line in re.split("[\r\n]+", text.removeprefix("\ufeff")[:MAX_ROBOTS]):
            line = line.partition("#")[0].strip()
            key, _, value = line.partition(":") if ":" in line else line.partition(" ")
            key, value = key.strip().lower(), value.strip()
            if key == "user-agent":
                if rules_began: names = set()
                rules_began = False
                token = cast("re.Match[str]", re.match("[a-zA-Z_-]*", value))[0].lower()
                if value == "*" or token == product.lower(): names.add(token)
                for name in names: groups.setdefault(name, [])
            elif key in ("allow", "disallow", "crawl-delay"):
                rules_began = rules_began or key != "crawl-delay"  # for that ends no list of names
                for name in names: groups[name].append((key, value))
        # Longest first, and of equals "allow" first: the first match decides. RFC
        # 9309 section 2.2.2 compares without needless escapes, Google's parser with
        # them. The stricter is taken: they are undone in what forbids, kept in what
        # allows.
        mine = groups.get(product.lower(), groups.get("", []))
        self.rules = sorted(((key, _comparable(value if key == "allow" else _identity(value)))
                             for key, value in mine if value and key != "crawl-delay"),
                            key=lambda rule: (-len(_identity(rule[1])), rule[0]))
        delays = [float(value) for key, value in mine
                  if key == "crawl-delay" and re.fullmatch("[0-9]{1,6}(?:[.][0-9]{1,6})?", value)]
        self.delay = max(delays, default=0.0)  # seconds between requests that the site asks for

    def rule(self, target: str) -> str | None:
        """Return the rule that forbids a path with query, None if it is allowed."""
        if self.failure: return self.failure
        if not self.rules or target == "/robots.txt": return None
        target = target.replace("*", "%2A").replace("$", "%24")  # RFC 9309 section 2.2.3
        path = _upper_escapes(target)  # the rest of it parse_url() has escaped
        plain = _identity(_comparable(target))
        for key, pattern in self.rules:
            if _matches(pattern, path if key == "allow" else plain):
                return None if key == "allow" else f"Disallow: {pattern[:MAX_SHOWN]}"
        return None


# 13  Crawler
# ===========
#
# The problem: fetch every page of a site once, many at a time, and stop when there
# are no more, without asking one host for more than it likes to give.
#
# The idea: a queue, the frontier, between the pages and the workers. A worker takes a
# URL from it, fetches it, puts every URL on the page that nobody has seen into the
# frontier, and only then says that its URL is done:
#
#        roots --> frontier --> worker: fetch --> page --> links --+
#                     ^                            |               |
#                     |                          record       seen? in scope?
#                     +----------- new URLs ------------------------+
#
# The roots are the URLs that a crawl begins with. One without a scheme is guessed to be
# https, and tried as http if that cannot be reached. At most `max_redirect` redirects
# in a row are followed; `Node.hops` counts them from the last link on.
#
# The frontier's `join` returns when every URL put in is done, and since only a URL in
# hand can add others, that is the end of the crawl. It comes: a try ends, for fetches
# have a deadline (and if `on_page` returns); each URL is tried finitely often, and is
# new once (twice, if at first it was a root whose https was guessed); and `max_pages`
# at most are fetched: what is taken from the frontier after that is skipped, and adds
# nothing.
#
# A redirect is not followed on the spot: its target goes into the frontier like a
# link, through the same checks of scope, robots.txt and delay. So two paths to one page
# join there, and the page is fetched once:
#
#        /old -> 301 --+
#                      +--> /new, fetched once
#        <a href=/new>-+
#
# A redirect that ends its chain, being one too many or closing a circle, is recorded at
# once if a link or a root led to it, and else set aside (`_exhausted`): a link to it
# would begin a new chain, and may yet be found. (A circle stays one; the rule is kept
# simple.) It comes back into the frontier when a link to it, or to one before it, makes
# the chain shorter: `hops` only ever falls, so at most `max_redirect` times. What is
# still set aside at the end of the crawl is recorded then.
#
# `seen_urls` needs no lock: control passes to another task only at a `yield from`, and
# between looking a URL up and entering it `Crawler.add` has none.
#
# Courtesy is one moment for each site: before its `next_turn` nobody asks it for a
# page. A request sets that to the delay from now, a Retry-After to as far ahead as it
# says, if that is later. Who comes too early stands in the site's line, and one Timeout
# lets the first of it go when the time has come. That promises nothing: if somebody
# else was faster, or a pause came, the same comparison sends the node back into the
# line. So where there is a delay, no stall and no pause ends in a burst.
#
# The invariants:
# - Each URL that is asked for ends as one record, an answer or an error. (A guess that
#   is given up ends as one with the reason; if others led to it, too, it goes on as
#   their URL and gets a second.) One that is not to be fetched gets a record with the
#   reason, and another if a later link lets it in. What nobody had asked for when the
#   crawl was told to end gets none, and is found again by the next.
# - What waits for another try goes back into the frontier by a Timeout: no worker and
#   no connection sleeps (but where robots.txt is tried again: those that need it wait).
# - An error in this code, or in a callback, ends the crawl with its traceback instead
#   of leaving `join` waiting.
# - A page is recorded after its links were added: if its record is there, so are those
#   of its links that are not fetched. So the records of a crawl that was killed, added
#   again in their order, restore its frontier.
#
# The cost: a Node for each URL to be fetched, a string for every other one.

# References that mean something else on each page (empty, ?query, #fragment), or might
# (with a tab or newline inside).
_OF_ITS_PAGE = re.compile(r"[\0- ]*(?:https?:)?(?:[?#]|\Z)|[^\t\n\r]*+[\t\n\r]", re.IGNORECASE)
_REDIRECTS = frozenset([301, 302, 303, 307, 308])
_RETRIED = frozenset([408, 429, 500, 502, 503, 504])
_UNPRINTABLE = re.compile("[^ -~]")
_NO_RULES = Robots("")


def _printable(text: str) -> str:
    """Return *text* with everything that a terminal might obey, or mistake, as \\xNN."""
    return _UNPRINTABLE.sub(lambda match: "".join(f"\\x{byte:02x}" for byte in match[0].encode(
        "utf-8", "surrogatepass")), text[:MAX_SHOWN])


def _explain(error: BaseException) -> str:
    """Return an error in words that fit on a line."""
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return _printable(words or type(error).__name__)


PROBLEMS = ("broken", "timed out", "refused", "bad certificate", "over a limit",
            "too many redirects", "blocked", "not finished")


class Record(NamedTuple):
    """How one URL ended; its line in the journal holds the fields that are not empty.

    error is in words, and kind says which of PROBLEMS it is; skipped is the reason why
    the URL was not fetched; seconds is the time from the request to the end of the
    answer, size the bytes of the decoded body; parent is the page, or the redirect,
    that led here first; links is what this page links to and the crawl may fetch,
    num_urls of them, of which num_new_urls came into the frontier by it; encoding is
    the charset; insecure marks a redirect from https down to http.
    """

    url: str
    status: int = 0  # of HTTP; 0: there was no answer
    error: str = ""
    kind: str = ""
    skipped: str = ""
    next_url: str = ""  # where it redirects to
    content_type: str = ""
    encoding: str = ""
    size: int = 0
    seconds: float = 0.0
    tries: int = 0
    depth: int = 0  # links from a root
    parent: str = ""
    num_urls: int = 0
    num_new_urls: int = 0
    links: tuple[str, ...] = ()
    insecure: bool = False


class Page(NamedTuple):
    """What Crawler(on_page=...) is called with."""

    record: Record
    headers: dict[str, str]  # names in lower case
    body: bytes              # Content-Encoding undone; record.encoding names the charset


class Site:
    """What is known of one origin: when it may be asked, and who waits for that."""

    def __init__(self, url: URL) -> None:
        self.url = url              # one of its URLs
        self.delay = 0.0            # seconds between two requests
        self.next_turn = 0.0        # loop time before which it is not to be asked
        self.line: collections.deque[Node] = collections.deque()  # who waits for that


class Node:
    """One URL that links point to; the way back to a root leads through the parents.

    text            the URL
    site            its origin
    parent          the Node that led here first
    depth           links from a root
    hops            redirects in a row that led here
    next_node       the Node that it redirects to
    referrers       how many pages link here
    second, third   two of those pages, beside the parent
    tries           fetches so far
    counted         whether Crawler.num_fetched counts it
    done            whether it has ended: recorded, skipped or given up
    role            "root" (and what roots redirect to), "guessed" (a root whose https is a
                    guess), "external" (asked for, not read) or ""
    """

    __slots__ = ("text", "site", "parent", "depth", "hops", "next_node", "referrers", "second",
                 "third", "tries", "counted", "done", "role")

    def __init__(self, text: str, site: Site, parent: Node | None = None, depth: int = 0,
                 hops: int = 0) -> None:
        self.text, self.site, self.parent, self.depth = text, site, parent, depth
        self.hops, self.role = hops, ""
        self.next_node: Node | None = None
        self.second: Node | None = None  # two names take a third of the memory of a tuple
        self.third: Node | None = None
        self.referrers = self.tries = 0
        self.counted = self.done = False

    @property
    def url(self) -> URL:
        """The URL, put together when it is needed: as a string it takes a third of the memory."""
        return self.site.url._replace(target=self.text[len(self.site.url.origin):])

    def path(self, length: int | None = None) -> list[Node]:
        """Return the nodes that led here, from a root or *length* steps ago, and this one."""
        nodes = [self]
        while nodes[-1].parent and len(nodes) - 1 != length: nodes.append(nodes[-1].parent)
        return nodes[::-1]


_NOWHERE = cast(Node, object())  # what a reference means that will not be fetched


def _retry_after(headers: dict[str, str]) -> float:
    """Return for how many seconds a server wants to be left alone, RFC 9110 section 10.2.3.

    A date counts from the server's own Date: no other clock is read here.
    """
    value = headers.get("retry-after", "")
    if _DIGITS.fullmatch(value): return min(float(value), MAX_PAUSE)
    with contextlib.suppress(ValueError):
        from calendar import timegm  # 2 ms that most runs save
        until, now = (timegm(time.strptime(text, "%a, %d %b %Y %H:%M:%S GMT"))
                      for text in (value, headers.get("date", "")))
        return max(0.0, min(until - now, MAX_PAUSE))
    return 0.0


def _scope_key(url: URL) -> tuple[str, int]:
    """Return the host without "www.", and the port, 0 if it is the scheme's own."""
    host = url.host
    if host.count(".") > 1: host = host.removeprefix("www.")  # www.com is not the host com
    return host, 0 if url.port == _PORTS[url.scheme] else url.port


class Scope:
    """What is crawled: which hosts and, of their URLs, which.

    A host stands here with its port, as `_scope_key` returns them.
    """

    def __init__(self, include: str, exclude: str, subdomains: bool, external: bool) -> None:
        try:
            self.include = re.compile(include)              # what a URL must hold
            self.exclude = re.compile(exclude or r"(?!)")   # and what not; (?!) is in no text
        except (re.error, OverflowError, RecursionError) as error:
            raise CrawlError(
                f"include or exclude is no regular expression: {_explain(error)}") from None
        self.subdomains = subdomains                        # whether hosts below a host count as it
        self.external = external                            # whether other hosts' URLs are checked
        self.hosts: set[tuple[str, int]] = set()
        self.named: set[tuple[str, int]] = set()            # those of them that the roots name

    def add(self, url: URL, named: bool = False) -> None:
        """Take in the host of a root (*named*), or of what a root redirects to."""
        self.hosts.add(_scope_key(url))
        if named: self.named.add(_scope_key(url))

    def covers(self, url: URL, named: bool = False) -> bool:
        """Return whether *url* is on one of the hosts, or of those *named*."""
        host, port = _scope_key(url)
        hosts = self.named if named else self.hosts
        return (host, port) in hosts or self.subdomains and any(
            host.endswith(f".{upper}") and port == its_port for upper, its_port in hosts)

    def objection(self, url: URL) -> str:
        """Return why *url* is out of scope, "" if it is in it."""
        text = str(url)
        if not self.covers(url):
            return "excluded" if self.external and self.exclude.search(text) else "other host"
        if not self.include.search(text) or self.exclude.search(text): return "excluded"
        if url.target.count("/") <= MAX_REPEATS: return ""
        segments = filter(None, url.target.partition("?")[0].split("/"))
        repeats = max(collections.Counter(segments).values(), default=0)
        return "a path that repeats itself" if repeats > MAX_REPEATS else ""


class Frontier(Queue[Node]):
    """The URLs to be fetched: those in the queue, and those that will come back to it.

    What will come back counts as unfinished all the while, so that join() waits for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._loop = get_running_loop()
        # What will bring back one node, or the first in the line of a site.
        self._timeouts: dict[Node | Site, Timeout] = {}

    def postpone(self, node: Node, until: float) -> None:
        """Have a node that was got come back at *until*, or in its turn if that comes later."""
        if until > node.site.next_turn:
            self._timeouts[node] = self._loop.call_at(until, self._come_back, node)
        else:
            node.site.line.append(node)
            if node.site not in self._timeouts: self._admit_at(node.site, node.site.next_turn)

    def postponed(self) -> list[Node]:
        """Return the nodes that will come back."""
        return [node for entry in self._timeouts
                for node in (entry.line if isinstance(entry, Site) else [entry])]

    def next_deadline(self) -> float:
        """Return when the next will come back, in the loop's time; ValueError if none will."""
        return min(timeout.deadline for timeout in self._timeouts.values())

    def hurry(self) -> None:
        """Let all in lines come back; who must wait all the same is postponed again."""
        for site in [entry for entry in self._timeouts if isinstance(entry, Site)]:
            while site.line: self._come_back(site.line.popleft())

    def clear(self) -> None:
        """Take all out, also those that would have come back."""
        for _ in [*self._items, *self.postponed()]: self.task_done()
        self._items.clear()
        for entry, timeout in self._timeouts.items():
            timeout.cancel()
            if isinstance(entry, Site): entry.line.clear()
        self._timeouts.clear()

    def _come_back(self, node: Node) -> None:
        self._timeouts.pop(node, None)
        self.put_nowait(node)
        self.task_done()

    def _admit_at(self, site: Site, when: float) -> None:
        self._timeouts[site] = self._loop.call_at(when, self._admit, site)

    def _admit(self, site: Site) -> None:
        """Let the first in a site's line come back, if the site may be asked by now."""
        del self._timeouts[site]
        if not site.line: return  # hurry() has emptied it
        now = self._loop.time()
        if now + CLOCK_RESOLUTION < site.next_turn: return self._admit_at(site, site.next_turn)
        self._come_back(site.line.popleft())
        if site.line: self._admit_at(site, now + site.delay)


def _phrase(status: int) -> str:
    """Return the usual words for a status, for servers that send none."""
    from http import HTTPStatus  # 2 ms that most runs save
    return HTTPStatus(status).phrase if status in set(HTTPStatus) else ""


def _location(response: Response) -> str | None:
    """Return where a redirect says that it leads, taken as UTF-8, as browsers do."""
    location = response.headers.get("location")
    try:
        return location and location.encode("latin-1").decode()
    except UnicodeError:
        return location


def _is_page(response: Response) -> bool:
    kind = re.split("[;,]", response.headers.get("content-type", "text/html"))[0].strip().lower()
    return 200 <= response.status < 300 and kind in ("text/html", "application/xhtml+xml")


_NO_URL = "no http or https URL"
_NO_HTTPS = "https cannot be reached"  # of a guess
_HAS_SCHEME = re.compile("[a-zA-Z][a-zA-Z0-9+.-]*://")


class Crawler:
    """Crawls from *roots*: every page in scope once, at most *max_tasks* at a time.

    To be made and used inside a running loop:
    `yield from Crawler(["xkcd.com"]).crawl()`. A root without a scheme is tried with
    https first. Raises CrawlError for a root that is no URL, a header that is no header
    field, and an *include* or *exclude* that is no regular expression.

    Scope: the roots' hosts, those that the roots redirect to, with *subdomains* those
    below them; URLs in which the regular expression *include* is found and *exclude* is
    not; *depth* links from a root; *max_pages* URLs fetched. With *external*, links
    that leave the hosts are asked for, too; their answers are not read, their redirects
    not followed, their robots.txt not asked for. A URL asked for in this way stays
    unread, even if a root redirects to its host later.
    *headers* are sent to the hosts named in *roots* and, with *subdomains*, those below
    them, but not to hosts that these lead to. *robots* says whether robots.txt is
    obeyed.

    *timeout* is in seconds for a whole fetch, *max_body* in bytes, *delay* in seconds
    between two fetches from one origin (its Crawl-delay may be longer; robots.txt is
    not counted). A URL that fails with an error that may pass is tried *max_tries*
    times; *max_redirect* redirects in a row are followed.

    *on_record* is called with each Record as soon as there is one, *on_page* before
    that with the Page of each page in scope; if it returns an awaitable, that is
    awaited.
    """

    def __init__(self, roots: Iterable[str], *, max_tasks: int = 10, max_redirect: int = 10,
                 max_tries: int = 3, timeout: float = FETCH_TIMEOUT, delay: float = 0.0,
                 depth: int = MAX_DEPTH, max_pages: int = MAX_PAGES, max_body: int = MAX_BODY,
                 include: str = "", exclude: str = "", subdomains: bool = False,
                 external: bool = False, robots: bool = True, headers: dict[str, str] | None = None,
                 on_record: Callable[[Record], object] = _always,
                 on_page: Callable[[Page], object] = _always) -> None:
        self.roots = [roots] if isinstance(roots, str) else list(roots)
        self.max_tasks, self.max_tries = max(1, max_tasks), max(1, max_tries)
        self.max_redirect, self.max_pages, self.depth = max_redirect, max_pages, depth
        try:
            self.client = Client(headers, timeout, max_body)
            urls = [self._parse_root(text) for text in self.roots]
        except ValueError as error:
            raise CrawlError(_explain(error)) from None
        self.scope = Scope(include, exclude, subdomains, external)
        self.delay, self.robots, self.on_record, self.on_page = delay, robots, on_record, on_page
        self.loop, self.frontier = get_running_loop(), Frontier()
        self.seen_urls: dict[str, Node] = {}         # every URL that is, or was, to be fetched
        self.rejected: dict[str, str] = {}           # why others that were met are not
        self.skipped: collections.Counter[str] = collections.Counter()  # how many, by reason
        self.sites: dict[str, Site] = {}             # by origin
        self._rules: dict[Any, Task[Robots]] = {}    # the fetches of robots.txt, by site
        self.in_flight: dict[Node, tuple[float, Any]] = {}  # since when, and by which task
        self.num_fetched = 0                         # URLs asked for, or given up unasked
        self.stopping = False
        self.notes: list[str] = []                   # what the user should know about the roots
        self._told: set[tuple[str, str]] = set()     # (URL, reason) of skips of an earlier crawl
        self._exhausted: dict[Node, Record] = {}     # redirects that ended their chains
        # What links mean, by directory; under an origin, those that mean the same in
        # all its directories. It saves a third of the time where links are relative.
        self._meanings: dict[str, dict[str, Node]] = {}
        self._num_meanings = 0
        for text, url in zip(self.roots, urls):
            self._add_root(url, "root" if _HAS_SCHEME.match(text) else "guessed")

    # The roots and the frontier

    def _parse_root(self, text: str) -> URL:
        return parse_url(text if _HAS_SCHEME.match(text) else f"https://{text}")

    def _add_root(self, url: URL, role: str) -> None:
        self.scope.add(url, named=True)
        root = cast(Node, self.add(url, None))  # to what has no parent there is no objection
        if root.role != "root": root.role = role

    def add(self, url: URL, parent: Node | None, *, depth: int = 0, hops: int = 0,
            nofollow: bool = False) -> Node | None:
        """Return the Node of *url*, put into the frontier if new; None if it is not to be fetched.

        *parent* led to it, by a link or by the last of *hops* redirects; *depth* counts
        only where there is no parent.
        """
        text = str(url)
        key = _identity(text)
        node = self.seen_urls.get(key)
        if node: return node
        reason = "nofollow" if nofollow else self.scope.objection(url) if parent else ""
        outside = self.scope.external and reason == "other host"
        if outside: reason = ""
        if parent: depth = parent.depth + (hops == 0)
        if not reason and depth > self.depth and not outside: reason = "depth"
        known = self.rejected.get(key)
        # The first reason stays, but "nofollow" gives way to "other host": _widen() may
        # yet let in what was refused as that.
        if reason and known and (known, reason) != ("nofollow", "other host"): return None
        if known: self._take_back(key)
        if reason:
            self.rejected[key] = reason
            self._skip(text, parent, reason, depth)
            return None
        if url.origin not in self.sites: self.sites[url.origin] = Site(url)
        node = self.seen_urls[key] = Node(text, self.sites[url.origin], parent, depth, hops)
        if outside: node.role = "external"
        if not self.stopping: self.frontier.put_nowait(node)
        return node

    def _skip(self, text: str, parent: Node | None, reason: str, depth: int) -> None:
        """Say that a URL is not fetched, and why."""
        self.skipped[reason] += 1
        if (text, reason) not in self._told:
            led_here = parent.text if parent else ""
            self.on_record(Record(text, skipped=reason, depth=depth, parent=led_here))

    def _take_back(self, key: str) -> None:
        """Forget that a URL was rejected, if it was."""
        if key in self.rejected: self.skipped[self.rejected.pop(key)] -= 1

    def _skip_no_url(self, text: str, page: Node) -> None:
        """Say, once, that what a page refers to is no URL that could be fetched."""
        key = f"\0{text}"  # which is no URL, either
        if key not in self.rejected:
            self.rejected[key] = _NO_URL
            self._skip(text, page, _NO_URL, page.depth + 1)

    # The workers

    @coroutine
    def crawl(self) -> Waits[None]:
        """Fetch until nothing is left, or until stop() and the end of what is in flight.

        To be called once; replay() comes before it.
        Cancelled, it cuts off what is in flight; each such URL gets a record that says
        so. An error in a callback, or in this code, ends the crawl and comes out here.
        """
        workers = [create_task(self._work()) for _ in range(self.max_tasks)]
        everyone = gather(*workers)
        joined = create_task(self.frontier.join())
        everyone.add_done_callback(lambda _: joined.cancel())  # a worker ends only by an error
        try:
            yield from finished(joined)
            if everyone.done(): everyone.result()  # raises it
        finally:
            complete = joined.done() and not joined.cancelled() and not self.stopping
            self.stop()
            rest: list[Future[Any]] = [joined, *workers, *self._rules.values()]
            for waited in rest: waited.cancel()
            try:
                yield from gather(*rest, return_exceptions=True)
            finally:  # also when it is cancelled here
                self.client.close()
                self._record_rest(complete)

    def stop(self) -> None:
        """Take no more URLs: crawl() returns when those in flight have ended."""
        self.stopping = True
        self.frontier.clear()

    @coroutine
    def _work(self) -> Waits[None]:
        """Take URLs from the frontier and see to them, one after the other, for ever."""
        while True:
            node = yield from self.frontier.get()
            # What replay() put there may have been fetched by an earlier crawl.
            again = None if node.done else (yield from self._fetch(node))
            self.in_flight.pop(node, None)
            node.done = again is None and node not in self._exhausted
            if again is None or self.stopping: self.frontier.task_done()
            else: self.frontier.postpone(node, again)

    def _fetch(self, node: Node) -> Waits[float | None]:
        """See to one URL and make its record; return when to try again, None if that was all."""
        self.in_flight[node] = self.loop.time(), self.loop.current_task
        node.tries += 1
        try:
            if not (yield from self._is_allowed(node)): return None
            if self.loop.time() + CLOCK_RESOLUTION < node.site.next_turn:
                node.tries -= 1  # it comes back; this was no try
                return node.site.next_turn
            response = yield from self._ask(node)
        except (OSError, ProtocolError) as error:
            return self._failed(node, error)
        if response.status in _RETRIED and node.tries < self.max_tries: return self._back_off(node)
        record = self._answered(node, response)
        if record is None: return None
        if record.encoding:  # only a page in scope has one
            work = self.on_page(Page(record, response.headers, response.body))
            if isinstance(work, (Awaitable, Generator)):
                # As a Task: a bare generator cannot wait for an `async def`.
                yield from _ensure_future(cast("Awaitable[Any]", work))
        self.on_record(record)
        return None

    def _is_allowed(self, node: Node) -> Waits[bool]:
        """Return whether robots.txt and the page limit let a URL be fetched; say so if not.

        Asks for robots.txt if nobody has, and learns the site's delay from it.
        """
        site, robots = node.site, _NO_RULES
        if self.robots and node.role != "external" and not self._comes_too_late(node):
            robots = yield from _once(self._rules, self._load_robots, site)
            if node.role == "guessed": node.role = "root"  # https it is
        site.delay = max(site.delay, self.delay, min(robots.delay, MAX_PAUSE))
        rule = robots.rule(node.url.target)
        if not rule and not self._comes_too_late(node): return True
        reason = f"robots.txt: {rule}" if rule else "page limit"
        self._skip(node.text, node.parent, reason, node.depth)
        return False

    def _comes_too_late(self, node: Node) -> bool:
        """Return whether the page limit was reached before a URL was asked for."""
        return not node.counted and self.num_fetched >= self.max_pages

    def _ask(self, node: Node) -> Waits[Response]:
        """Return the answer for a URL, and set when its site may be asked next."""
        site, url, now = node.site, node.url, self.loop.time()
        site.next_turn = now + site.delay
        self._count(node)
        # Its time begins here: that of robots.txt was not its own.
        self.in_flight[node] = now, self.loop.current_task
        response = yield from self.client.fetch(
            url, wanted=_is_page if node.role != "external" else lambda _: False,
            own_headers=self.scope.covers(url, named=True))
        self._pause(site, response)
        return response

    def _count(self, node: Node) -> None:
        """Count a URL, once, as fetched; at the page limit let all in lines come, to be skipped."""
        if node.counted: return
        node.counted = True
        self.num_fetched += 1
        if self.num_fetched == self.max_pages: self.frontier.hurry()

    def _pause(self, site: Site, response: Response) -> None:
        """Leave a site alone for as long as its answer asks for."""
        if response.status in _RETRIED:
            site.next_turn = max(site.next_turn, self.loop.time() + _retry_after(response.headers))

    def _back_off(self, node: Node) -> float:
        """Return the loop time of the next try: in 1, 2, 4, ... seconds, give or take 50 %."""
        return self.loop.time() + BACKOFF * (1 << node.tries - 1) * random.uniform(0.5, 1.5)

    # The rules of a site

    @coroutine
    def _load_robots(self, site: Site) -> Waits[Robots]:
        """Fetch robots.txt, RFC 9309 section 2.3.1.

        A status of 500 or more that persists forbids everything, any other but 200
        nothing. Without an answer the URL fails that asked for it.
        """
        for tries in range(self.max_tries):
            if tries:
                pause = BACKOFF * (1 << tries - 1)
                yield from sleep(max(pause, site.next_turn - self.loop.time()))
            response = yield from self._fetch_robots(parse_url("/robots.txt", site.url))
            self._pause(site, response)
            if response.status < 500: break
        else:
            return Robots("", failure=f"{response.status} {_phrase(response.status)}")
        return Robots(response.body.decode("utf-8", "replace") if response.status == 200 else "")

    def _fetch_robots(self, url: URL) -> Waits[Response]:
        """Return the answer, or a redirect out of scope, to nowhere, or one too many."""
        for _ in range(MAX_ROBOTS_REDIRECTS + 1):
            response = yield from self.client.fetch(
                url, max_body=MAX_BODY,  # the user's limit is for pages, and may be small
                own_headers=self.scope.covers(url, named=True))
            if response.status not in _REDIRECTS: break
            target = url
            with contextlib.suppress(ValueError):
                target = parse_url(_location(response) or "", url)
            if target == url or not self.scope.covers(target): break
            url = target
        return response

    # What came of it

    def _record(self, node: Node, **fields: Any) -> Record:
        return Record(node.text, tries=node.tries, depth=node.depth,
                      parent=node.parent.text if node.parent else "", **fields)

    def _record_rest(self, complete: bool) -> None:
        """Deal with what has not ended: of a crawl that is *complete*, redirects set aside."""
        for node in [node for node in self.seen_urls.values() if not node.done]:
            if complete:
                self.on_record(self._exhausted[node])
            elif node.counted:
                words = "the crawl was interrupted"
                self.on_record(self._record(node, error=words, kind="not finished"))
            else:  # it is found again by whoever goes on
                self.skipped["the crawl was ended"] += 1

    def _seconds(self, node: Node) -> float:
        """Return for how long a node has been in flight, in seconds, to the millisecond."""
        return round(self.loop.time() - self.in_flight[node][0], 3)

    def _failed(self, node: Node, error: Exception) -> float | None:
        """Deal with a fetch that got no answer, or half of one; return when to try again."""
        certificate = isinstance(error, ssl.SSLCertVerificationError)
        if getattr(error, "errno", 0) in (errno.EMFILE, errno.ENFILE) and (
                len(self.in_flight) > 1 or self.client.idle()):
            self.client.close()  # no descriptor is left, which is not this URL's fault: wait
            node.tries -= 1      # until others have ended, in effect with fewer workers
            return self.loop.time() + BACKOFF
        unreachable = isinstance(error, OSError) and not certificate
        if node.role == "guessed" and node.tries == 1 and unreachable:
            self.notes.append(
                f"{node.site.url.origin} cannot be reached ({_explain(error)}); http is tried")
            self._skip(node.text, None, _NO_HTTPS, 0)
            if not self._fall_back(node):
                self.num_fetched -= node.counted
                return None
        kind = ("timed out" if isinstance(error, TimeoutError) else
                "bad certificate" if certificate else "refused" if unreachable else
                "over a limit" if isinstance(error, LimitError) else "broken")
        transient = (unreachable or isinstance(error, TruncatedError)) and \
            getattr(error, "errno", 0) != socket.EAI_NONAME
        if transient and node.tries < self.max_tries: return self._back_off(node)
        if self._comes_too_late(node):  # it was robots.txt that failed, and others were faster
            self._skip(node.text, node.parent, "page limit", node.depth)
            return None
        self._count(node)
        words, seconds = _explain(error), self._seconds(node)
        self.on_record(self._record(node, error=words, kind=kind, seconds=seconds))
        return None

    def _fall_back(self, guess: Node) -> bool:
        """Crawl from http in place of a guess that failed; return whether others led to it, too."""
        guess.role = ""
        wanted = guess.referrers > 0 or any(
            node.next_node is guess for node in self.seen_urls.values())
        if not wanted: del self.seen_urls[_identity(guess.text)]
        self._add_root(parse_url(f"http{guess.text[5:]}"), "root")
        return wanted

    def _answered(self, node: Node, response: Response) -> Record | None:
        """Return the record of an answer: a page, a redirect, something else, or an error."""
        status, headers = response.status, response.headers
        fields: dict[str, Any] = {
            "status": status, "content_type": _printable(headers.get("content-type", "")),
            "size": len(response.body), "seconds": self._seconds(node)}
        if status >= 400:
            fields["error"] = f"{status} {_printable(response.reason or _phrase(status))}"
            fields["kind"] = "blocked" if status in (401, 403, 429) else "broken"
        elif status in _REDIRECTS:
            self._redirected(node, _location(response), fields)
            if fields.get("kind") == "too many redirects" and node.hops:
                self._exhausted[node] = self._record(node, **fields)
                return None
        elif _is_page(response) and node.role != "external":
            text, fields["encoding"] = decode_page(response.body, headers.get("content-type", ""))
            known = len(self.seen_urls)
            fields["links"] = self._follow(node, text, headers)
            fields["num_urls"] = len(fields["links"])
            fields["num_new_urls"] = len(self.seen_urls) - known
        return self._record(node, **fields)

    def _redirected(self, node: Node, location: str | None, fields: dict[str, Any]) -> None:
        """Put a redirect's target into the frontier; say in *fields* what is wrong with it."""
        try:
            if location is None: raise ValueError("it has no Location")
            url = node.url
            target = parse_url(location, url)
        except ValueError as error:
            fields.update(error=f"a redirect that leads nowhere: {_explain(error)}", kind="broken")
            return
        insecure = (url.scheme, target.scheme) == ("https", "http")
        fields.update(next_url=str(target), insecure=insecure)
        if node.role == "external": return
        if node.role: self._widen(node, target)
        step = self.seen_urls.get(_identity(str(target)))
        for _ in range(MAX_CIRCLE):  # does the target lead back here?
            if step is None or step is node: break
            step = step.next_node
        if step is node or node.hops >= self.max_redirect:
            path = " -> ".join([*[link.text for link in node.path(node.hops)], str(target)])
            kind = "too many redirects"
            circle = ", in a circle" if step is node else ""
            fields.update(error=f"{kind}{circle}: {path}", kind=kind)
        else:
            node.next_node = self.add(target, node, hops=node.hops + 1)
            if node.role and node.next_node: node.next_node.role = "root"

    def _widen(self, node: Node, target: URL) -> None:
        """Take the host that a root redirects to into the scope."""
        if self.scope.covers(target): return
        self.scope.add(target)
        admitted = [key for key, reason in self.rejected.items()
                    if reason == "other host" and not self.scope.objection(parse_url(key))]
        for key in admitted:  # met before this root's answer
            self._take_back(key)
            self.add(parse_url(key), None, depth=node.depth + 1)  # who linked there was not kept
        self._meanings, self._num_meanings = {}, 0
        self.notes.append(f"{node.text} redirects to {target}, which is crawled, too")

    def _follow(self, page: Node, text: str, headers: dict[str, str]) -> tuple[str, ...]:
        """Put what a page links to into the frontier; return those links that may be fetched."""
        links, base, refresh, nofollow = read_markup(text, page.url)
        nofollow = nofollow or bool(_NOFOLLOW.search(headers.get("x-robots-tag", "")))
        folder = base.target.partition("?")[0].rpartition("/")[0]
        if self._num_meanings > MAX_SPELLINGS: self._meanings, self._num_meanings = {}, 0
        everywhere = self._meanings.setdefault(base.origin, {})
        here = self._meanings.setdefault(f"{base.origin}{folder}/", {})
        # At the last depth, and under nofollow, a link may be _NOWHERE that on another
        # page becomes a Node: that is not kept.
        keeping = page.depth < self.depth and not nofollow
        nodes: dict[Node, None] = {}
        for link in links:
            node = everywhere.get(link) or here.get(link)
            if node is None:
                reference, node = spelled(link), _NOWHERE
                if reference is not None:
                    node = self._find(reference, base, folder, page, nofollow)
                if keeping and len(link) < MAX_SPELLING:
                    self._num_meanings += 1
                    if reference is None or reference.startswith(("/", "http://", "https://")):
                        everywhere[link] = node
                    elif reference[:1] == "." or not _OF_ITS_PAGE.match(reference):
                        here[link] = node
            nodes[node] = None
        if refresh: nodes[self._find(refresh, base, folder, page, nofollow)] = None
        nodes.pop(_NOWHERE, None)
        if nofollow: return ()
        self._refer(page, nodes)
        return tuple([node.text for node in nodes])

    def _find(self, reference: str, base: URL, folder: str, page: Node, nofollow: bool) -> Node:
        """Return the Node that a reference means; _NOWHERE if it will not be fetched.

        Parsing one takes 4 microseconds. Most mean a URL that is known already, and,
        simply joined to the *folder* of *base*, are spelled as it is in `seen_urls`; to
        find that takes 1 microsecond. What needs more (dots inside, escapes, capitals
        in the host) is spelled as no Node is, and parsed.
        """
        path = reference.partition("#")[0]
        if path[:1] == "/":
            text = f"{base.scheme}:{path}" if path[1:2] == "/" else base.origin + path
        elif ":" in path or path[:1] == "?" or len(path) > MAX_SPELLING:
            text = path
        elif path:
            while path[:3] == "../": path, folder = path[3:], folder.rpartition("/")[0]
            text = f"{base.origin}{folder}/{path}"
        else:
            text = str(base)
        known = self.seen_urls.get(text)
        if known: return known
        try:
            url = parse_url(reference, base)
        except ValueError:
            self._skip_no_url(_printable(reference.partition("#")[0]), page)
            return _NOWHERE
        return self.add(url, page, nofollow=nofollow) or _NOWHERE

    def _refer(self, page: Node, nodes: Iterable[Node]) -> None:
        """Note that *page* links to *nodes*, which begins a new chain where they are redirects."""
        for node in nodes:
            node.referrers += 1
            if node.third is None and page is not node.parent:
                if node.second is None: node.second = page
                else: node.third = page
            hops, step = 0, cast("Node | None", node)
            while step and step.hops > hops and not self.stopping:
                step.hops = hops
                if self._exhausted.pop(step, None) is not None:
                    step.tries = 0
                    self.frontier.put_nowait(step)
                hops, step = hops + 1, step.next_node

    # Going on where another crawl ended, and explaining

    def replay(self, record: Record) -> bool:
        """Do what was done when *record* was made; return whether its URL is thereby done.

        With the records of an earlier crawl, in their order, crawl() then goes on where
        that one ended. Raises ValueError where one holds what is no URL.
        """
        if record.skipped:
            key = (f"\0{record.url}" if record.skipped == _NO_URL else
                   _identity(str(parse_url(record.url))))
            known = self.seen_urls.get(key)
            self._told.add((record.url, record.skipped))
            if record.skipped == _NO_HTTPS and known and known.role == "guessed":
                self.skipped[_NO_HTTPS] += 1
                if not self._fall_back(known): known.done = True
            elif known is None:
                self._take_back(key)
                self.skipped[record.skipped] += 1
                self.rejected[key] = record.skipped
            return False
        parent = self.seen_urls.get(_identity(record.parent))
        node = self.add(parse_url(record.url), parent, depth=record.depth)
        if node is None or node.done or record.kind == "not finished": return False
        node.done = True
        self._count(node)
        if record.next_url: self._redirected(node, record.next_url, {})
        for text in record.links:
            child = self.seen_urls.get(text) or self.add(parse_url(text), node)
            if child: self._refer(node, [child])
        return True

    @coroutine
    def why(self, text: str) -> Waits[str]:
        """Return why crawl() does not fetch the URL *text* where it finds it; "" if it does.

        *text* without a scheme is taken as a root is. Asks for robots.txt where that
        decides; raises OSError or ProtocolError if it fails.
        """
        try:
            url = self._parse_root(text)
        except ValueError as error:
            return str(error)
        root = _identity(str(url)) in self.seen_urls
        reason = "" if root else self.scope.objection(url)
        if reason == "other host" and self.scope.external: return ""
        if reason or not self.robots: return reason
        with contextlib.closing(self.client):
            try:
                robots = yield from self._load_robots(Site(url))
            except OSError as error:
                if _HAS_SCHEME.match(text) or isinstance(error, ssl.SSLCertVerificationError):
                    raise
                robots = yield from self._load_robots(Site(parse_url(f"http://{text}")))
        rule = robots.rule(url.target)
        return f"robots.txt: {rule}" if rule else ""

    def describe(self) -> str:
        """Return what the crawl is doing: each fetch in flight, where it waits, what comes next."""
        now = self.loop.time()
        timeouts = [entry for entry in self.loop._timeouts if not entry[2].obsolete()]
        lines = [f"{self.num_fetched} URLs asked for, {self.frontier.qsize()} queued, "
                 f"{len(self.frontier.postponed())} to be asked for later, "
                 f"{self.client.idle()} of {self.client.opened} connections idle"]
        for node, (began, task) in self.in_flight.items():
            left = max(0.0, self.client.timeout + began - now)
            state = f"{left:.1f} s left" if node.counted else "first robots.txt"
            lines.append(f"{node.text}: for {now - began:.1f} s, {state}")
            lines.append(task.where())
        for deadline, _, entry in heapq.nsmallest(3, timeouts):
            lines.append(f"in {deadline - now:.1f} s: {entry!r}")
        return "\n".join(lines)


# 14  Report
# ==========
#
# The problem: a crawl learns what it learns in the order of the answers. Whoever has to
# act on it wants the worst first, and where it stands; and a crash should lose none of
# it.
#
# The idea: two things are made of the records. The journal keeps them, one line of JSON
# each, handed to the kernel as the URL ends; nothing else is needed to go on after a
# crash. The report puts what was found into the order in which one acts on it: what is
# broken and where the links to it stand, redirects that links should be made to skip,
# and the numbers.
#
# The invariants. A journal holds whole lines, but for a last one that a crash cut off.
# The report keeps only those records that it may have to print. The cost: 9
# microseconds for the line of a page with 60 links.


_BEGINNING = b'{"url": "'  # of each line
_TYPES = list(map(type, Record("")))


def _parse_record(line: bytes) -> Record:
    fields = json.loads(line)
    if type(fields.get("seconds")) is int: fields["seconds"] += 0.0  # jq writes 2.0 as 2
    record = Record(**fields | {"links": tuple(fields.get("links", ()))})
    if list(map(type, record)) != _TYPES or set(map(type, record.links)) - {str}:
        raise ValueError("a field of another type was expected")
    return record


class Journal:
    """A file with one JSON object a line, one line for each Record; "-" is stdout.

    read() drops a last line that a crash cut off, so it comes before write(). One crawl
    at a time may use the file. Raises CrawlError for what cannot be opened or written,
    or is in use.
    """

    def __init__(self, path: str) -> None:
        import fcntl  # Windows has none, and can import the rest
        self.path = path
        try:
            self._file = os.dup(1) if path == "-" else os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            self._regular = path != "-" and os.path.isfile(path)
            if self._regular: fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            busy = isinstance(error, BlockingIOError)
            reason = "another crawl writes there" if busy else _explain(error)
            raise CrawlError(f"{path}: {reason}") from None

    def read(self) -> Iterator[Record]:
        """Yield the records that it holds; ValueError for a line that is none."""
        if not self._regular: return
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                torn = not line.endswith(b"\n")
                try:
                    record = _parse_record(line)
                except (ValueError, TypeError, AttributeError, RecursionError) as error:
                    # A crash cuts a line off, and may leave zeros at the end.
                    if torn and _BEGINNING.startswith(line.rstrip(b"\0")[:len(_BEGINNING)]):
                        os.ftruncate(self._file, file.tell() - len(line))
                        return
                    raise ValueError(f"line {number}: {_explain(error)}") from None
                yield record
                if torn:  # whole but for its end: cut off there, or left so by an editor
                    os.write(self._file, b"\n")
                    return

    def write(self, record: Record) -> None:
        """Append one record; a line that does not fit on the disk is taken back whole.

        Raises CrawlError, or BrokenPipeError when the reader of stdout has left.
        """
        fields = {name: value for name, value in zip(Record._fields, record) if value}
        line = json.dumps(fields).encode() + b"\n"
        written = 0
        try:
            while written < len(line): written += os.write(self._file, line[written:])
        except BrokenPipeError:
            raise
        except OSError as error:
            if self._regular: os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise CrawlError(f"{self.path} cannot be written: {_explain(error)}") from None

    def close(self) -> None:
        """Close the file; another crawl may use it."""
        os.close(self._file)


def _count_of(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _listing(label: str, items: list[str], columns: int, rest: str = "",
             comma: str = ", ") -> Iterator[str]:
    """Yield a list on one line or, where *columns* (0: any number) are too few, on one each."""
    line = f"    {label} {comma.join(items)}{rest}"
    if not columns or len(line) <= columns or len(items) == 1:
        yield line
    else:
        yield f"    {label}"
        for item in [*items[:-1], items[-1] + rest]: yield f"      {item}"


def _story(node: Node, record: Record, columns: int) -> Iterator[str]:
    """Yield the lines about one problem: what it is, who links there, a way that leads there."""
    yield f"  {record.url}"
    yield f"    {record.error or f'{record.status} to {record.next_url}'}"
    if node.parent and node.parent.next_node is node:
        yield from _listing("redirected from", [node.parent.text], columns)
    pages = [page.text for page in (node.parent, node.second, node.third)
             if page and page.next_node is not node]
    more = node.referrers - len(pages)
    rest = f" and {more} more" if more > 0 else ""
    if pages: yield from _listing("linked from", pages, columns, rest)
    path = [step.text for step in node.path()]
    if len(path) > MAX_PATH: path[4:-4] = ["..."]
    if len(path) > 2: yield from _listing("path", path, columns, comma=" > ")


class Report:
    """What the records of a crawl amount to."""

    def __init__(self) -> None:
        self.problems: list[Record] = []
        self.outdated: list[Record] = []    # permanent redirects
        self.statuses: collections.Counter[int] = collections.Counter()
        self.size = self.old = 0            # bytes; records of an earlier crawl

    def add(self, record: Record, old: bool = False) -> None:
        """Take in one record, which may be of an earlier crawl."""
        if record.skipped: return  # the crawler counts these
        self.old += old
        self.size += record.size
        self.statuses[record.status] += 1
        if record.kind: self.problems.append(record)
        elif record.status in (301, 308): self.outdated.append(record)

    def progress(self, crawler: Crawler, seconds: float, columns: int) -> str:
        """Return one line about a crawl that has gone on for *seconds*, cut to *columns*."""
        done, now, state = self.statuses.total(), crawler.loop.time(), ""
        if crawler.in_flight:
            began, oldest = min((began, node.text)
                                for node, (began, _) in crawler.in_flight.items())
            state = f", {now - began:.1f} s {oldest}"
        elif waiting := len(crawler.frontier.postponed()):
            state = f", {waiting} wait, the next for {crawler.frontier.next_deadline() - now:.0f} s"
        return (f"{done} done, {crawler.frontier.qsize()} queued, "
                f"{len(crawler.in_flight)} in flight, {_count_of(len(self.problems), 'problem')}, "
                f"{(done - self.old) / max(seconds, 0.001):.0f}/s{state}")[:columns - 1]

    def print(self, crawler: Crawler, seconds: float, file: TextIO, brief: bool = False) -> None:
        """Print the problems and, unless *brief*, outdated links and numbers."""
        terminal = file.isatty()
        columns = os.get_terminal_size(file.fileno()).columns if terminal else 0
        colours = terminal and not os.environ.get("NO_COLOR")

        def section(title: str, colour: int, nodes: list[tuple[Node, Record]]) -> None:
            if not nodes: return
            title = f"{title} ({len(nodes)})"
            print(f"\x1b[1;{colour}m{title}\x1b[0m" if colours else title, file=file)
            for node, record in sorted(nodes, key=lambda pair: -pair[0].referrers):
                for line in _story(node, record, columns): print(line, file=file)

        def found(records: list[Record]) -> list[tuple[Node, Record]]:
            return [(crawler.seen_urls[_identity(str(parse_url(record.url)))], record)
                    for record in records]  # parsed, for somebody may have edited the journal

        for kind in PROBLEMS:
            section(kind, 31, found([record for record in self.problems if record.kind == kind]))
        if not brief:
            section("redirects worth updating", 33,
                    [pair for pair in found(self.outdated) if pair[0].referrers])
            for line in self._numbers(crawler, seconds): print(line, file=file)

    def _numbers(self, crawler: Crawler, seconds: float) -> Iterator[str]:
        """Yield the lines at the end: how much, how fast, and what was not fetched."""
        yield from crawler.notes
        new = self.statuses.total() - self.old
        pages = sum(self.statuses[status] for status in range(200, 300))
        yield (f"{_count_of(pages, 'page')}, {self.size / 1e6:.1f} MB in {seconds:.1f} s, "
               f"{new / max(seconds, 0.001):.0f} URLs/s, "
               f"{_count_of(len(self.problems), 'problem')}, "
               f"{_count_of(crawler.client.opened, 'connection')}"
               + (f", {_count_of(self.old, 'URL')} done before" if self.old else ""))
        yield "statuses: " + ", ".join(f"{count} x {status or 'no answer'}"
                                       for status, count in sorted(self.statuses.items()))
        reasons = (+crawler.skipped).most_common()
        for reason, count in reasons[:MAX_REASONS]: yield f"not fetched: {count} ({reason})"
        others = sum(count for _, count in reasons[MAX_REASONS:])
        if others: yield f"not fetched: {others} (other reasons)"


# 15  Command line
# ================
#
# The problem: people call this, and read; programs call it, and look at one number.
#
# The idea: the report goes to stdout (unless the journal does), what is said on the way
# to stderr, and the exit status says how it went: 0 all is well, 1 something is broken,
# 2 it could not crawl (wrong use, no root that answers, or none that may be fetched, a
# journal that cannot be written), 130 interrupted by Ctrl-C, 143 by SIGTERM. For --why,
# 1 is "not fetched"; 1 also says that whoever read the output left before its end.
#
# The invariant: what cannot be crawled is said in one line, and never as a traceback.


_DEFAULTS = cast("dict[str, Any]", Crawler.__init__.__kwdefaults__)  # of the options of Crawler


def _number(kind: Callable[[str], T], expected: str, pattern: str) -> Callable[[str], T]:
    """Return what reads the number of an option, or says what was expected."""
    def read(text: str) -> T:
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"{expected} was expected, not {text!r}")
        return kind(text)
    return read


_SECONDS = r"[0-9]{1,9}(\.[0-9]{1,9})?"
_whole = _number(int, "a whole number", "[0-9]{1,9}")
_positive = _number(int, "a whole number above 0", "(?!0+$)[0-9]{1,9}")
_seconds = _number(float, "a number of seconds", _SECONDS)
_limit = _number(float, "a number of seconds above 0", rf"(?![0.]+$){_SECONDS}")


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon: raise argparse.ArgumentTypeError(f"'Name: value' was expected, not {text!r}")
    return name, value.strip()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"crawl.py: {message} (crawl.py --help lists the options)\n")


def _options(arguments: list[str]) -> argparse.Namespace:
    """Return the options; underscores do for dashes. Exits with 2, and one line, for wrong use."""
    parser = _Parser(
        prog="crawl.py", allow_abbrev=False,
        description="Crawl web sites and report what is broken.",
        epilog="Exit status: 0 all is well, 1 something is broken, 2 could not crawl, "
               "130 ended by Ctrl-C, 143 by SIGTERM.")
    parser.set_defaults(**_DEFAULTS)
    parser.add_argument("roots", nargs="+", metavar="URL",
                        help="where to start; without http:// or https://, https is tried first")
    add = parser.add_argument_group("what to fetch").add_argument
    add("--depth", type=_whole, metavar="N", help="links from a root (%(default)s)")
    add("--max-pages", type=_whole, metavar="N", help="URLs fetched (%(default)s)")
    add("--include", metavar="RE", help="only URLs in which this regular expression is found (all)")
    add("--exclude", metavar="RE", help="no URLs in which this regular expression is found (none)")
    add("--subdomains", action="store_true", help="hosts below the roots' hosts, too (no)")
    add("--external", action="store_true",
        help="check links that leave the site, too; their pages are not read (no)")
    add("--no-robots", dest="robots", action="store_false",
        help="do not ask for robots.txt (it is obeyed)")
    add("--why", metavar="URL",
        help="crawl nothing; say whether this URL would be fetched, and why not")
    add = parser.add_argument_group("how to fetch").add_argument
    add("--max-tasks", type=_positive, metavar="N", help="URLs fetched at a time (%(default)s)")
    add("--max-redirect", type=_whole, metavar="N", help="redirects in a row (%(default)s)")
    add("--max-tries", type=_positive, metavar="N",
        help="tries for a URL that fails with an error that may pass (%(default)s)")
    add("--max-body", type=_positive, metavar="BYTES",
        help="size of a page, on the wire and unpacked (%(default)s)")
    add("--timeout", type=_limit, metavar="S", help="seconds for a whole fetch (%(default)g)")
    add("--delay", type=_seconds, metavar="S",
        help="seconds between two requests to a site (0; its Crawl-delay if that is longer)")
    add("-H", type=_header, action="append", default=[], dest="headers", metavar="'Name: value'",
        help="send this field to the hosts named here, not to those they redirect to (none)")
    add("--user-agent", default=USER_AGENT, metavar="TEXT",
        help="what to call itself (%(default)s)")
    add = parser.add_argument_group("what to say").add_argument
    add("-o", dest="journal", metavar="FILE.jsonl",
        help="append a JSON object for each URL as it ends, and go on where FILE ends; "
             "- is stdout (none)")
    add("-v", dest="verbose", action="store_true",
        help="a line on stderr for each URL as it ends (no)")
    add("-q", dest="quiet", action="store_true", help="print nothing but problems (no)")
    add("--version", action="version", version=f"crawl.py {VERSION}", help="print the version")
    return parser.parse_intermixed_args([
        re.sub("^--[a-z_]+", lambda match: match[0].replace("_", "-"), argument)
        for argument in arguments])


def _say(*words: object, end: str = "\n") -> None:
    """Print on stderr, if that can be written."""
    with contextlib.suppress(OSError): print(*words, end=end, file=sys.stderr, flush=True)


def _why(crawler: Crawler, url: str) -> Waits[int]:
    """Say why a URL is not fetched; return the exit status."""
    try:
        reason = yield from crawler.why(url)
    except (OSError, ProtocolError) as error:
        raise CrawlError(f"robots.txt cannot be had: {_explain(error)}") from None
    verdict = f"not fetched: {reason}" if reason else "fetched, where a link leads to it"
    print(f"{_printable(url)}: {verdict}")
    return 1 if reason else 0


def _resume(crawler: Crawler, report: Report, journal: Journal) -> None:
    """Go on where the crawl that wrote *journal* ended."""
    try:
        for record in journal.read():
            if crawler.replay(record): report.add(record, old=True)
    except (OSError, ValueError) as error:
        raise CrawlError(f"{journal.path} is no journal of a crawl: {error}") from None


_CLEAR = "\r\x1b[K"  # the terminal's line, on which the progress stands


@coroutine
def _show_progress(crawler: Crawler, report: Report, began: float) -> Waits[None]:
    """Say on the terminal, again and again, how far the crawl is; it began at *began*."""
    try:
        while True:
            columns = os.get_terminal_size(sys.stderr.fileno()).columns
            line = report.progress(crawler, crawler.loop.time() - began, columns)
            _say(f"{_CLEAR}{line}", end="")
            yield from sleep(PROGRESS)
    finally:
        _say(_CLEAR, end="")


def _obey_signals(crawler: Crawler, live: bool) -> list[int]:
    """Let SIGINT and SIGTERM end the crawl, and SIGQUIT describe it.

    Returns the list to which the first two are appended as they come.
    """
    loop, task, clear = crawler.loop, cast("Task[Any]", current_task()), _CLEAR if live else ""
    signals: list[int] = []

    def end(number: int) -> None:
        """Let what is in flight end; the second time, or after GRACE seconds, cut it off."""
        if signals: task.cancel()
        elif live: _say(f"{clear}ending, in {GRACE:g} s at most; once more: at once")
        signals.append(number)
        crawler.stop()
        loop.call_later(GRACE, task.cancel)

    for number in (signal.SIGINT, signal.SIGTERM): loop.add_signal_handler(number, end, number)
    loop.add_signal_handler(signal.SIGQUIT, lambda: _say(clear + crawler.describe()))
    return signals


@coroutine
def _crawl(options: argparse.Namespace, journal: Journal | None) -> Waits[int]:
    """Crawl (or, for --why, do not), say what came of it, and return the exit status."""
    report = Report()
    headers = {"User-Agent": options.user_agent, **dict(options.headers)}
    given = {**vars(options), "headers": headers}
    crawler = Crawler(options.roots, **{name: given[name] for name in _DEFAULTS})
    if options.why is not None: return (yield from _why(crawler, options.why))
    live = sys.stderr.isatty() and not options.verbose and not options.quiet and not (
        options.journal == "-" and sys.stdout.isatty())

    def on_record(record: Record) -> None:
        if journal: journal.write(record)
        report.add(record)
        if options.verbose:
            _say(record.url, record.skipped and f"not fetched: {record.skipped}"
                 or record.error or record.next_url or record.status)

    if journal: _resume(crawler, report, journal)
    signals = _obey_signals(crawler, live)  # only now: before this the loop does not tick
    crawler.on_record = on_record  # only now: what was replayed is in the journal
    began = crawler.loop.time()
    progress = create_task(_show_progress(crawler, report, began)) if live else None
    try:
        yield from crawler.crawl()
    except CancelledError:
        if not signals: raise
    finally:
        if progress:
            progress.cancel()
            yield from finished(progress)
    if set(report.statuses) <= {0} and not signals:  # no answer at all
        reasons = [record.error for record in report.problems] or list(+crawler.skipped) or [
            "the journal has no answer for it, and counts it as done"]
        raise CrawlError(f"nothing could be crawled: {reasons[0]} ({' '.join(options.roots)})")
    out = sys.stderr if options.journal == "-" else sys.stdout
    report.print(crawler, crawler.loop.time() - began, out, options.quiet)
    return 128 + signals[0] if signals else 1 if report.problems else 0


def _drop_unwritten() -> None:
    """Throw away what stdout or stderr, being full or closed, did not take: the status says so.

    Python would try once more at its exit, and make the exit status 120.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def main(arguments: list[str]) -> int:
    """Do what *arguments*, without the program's name, ask for; return the exit status.

    Raises SystemExit for wrong use, --help and --version.
    """
    # They are None where the descriptors are closed.
    sys.stdout = sys.stdout or open(os.devnull, "w")
    sys.stderr = sys.stderr or open(os.devnull, "w")
    try:
        options = _options(arguments)
        wanted = options.journal is not None and options.why is None
        journal = Journal(options.journal) if wanted else None
        with contextlib.closing(journal) if journal else contextlib.nullcontext():
            status = run(_crawl(options, journal))
        sys.stdout.flush()
        return status
    except (OSError, CrawlError) as error:
        if isinstance(error, BrokenPipeError):
            return 1  # whoever read it has seen enough
        _say(f"crawl.py: {_explain(error)}")
        return 2
    except (KeyboardInterrupt, CancelledError):
        return 130
    finally:
        _drop_unwritten()


if __name__ == "__main__": sys.exit(main(sys.argv[1:]))
