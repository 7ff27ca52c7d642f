# SPDX-FileCopyrightText: 2026 The crawl.py authors
# SPDX-License-Identifier: 0BSD
"""A web crawler, from the event loop up, in one file.

    python3 crawl.py xkcd.com

crawls a site, follows every link that stays on it, and reports what is broken.
The same file is a small typed asyncio, with an HTTP client and a crawler on it,

    import crawl

    async def main():
        page = await crawl.fetch("http://localhost:8765/")
        print(page.status, len(page.body))

    crawl.run(main())

and an explanation of both, meant to be read from here to the end.

     1  Vocabulary       a few types, names, errors
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
    13  Records          how a URL ended, and the file that remembers it
    14  Scope            what belongs to the crawl
    15  Sites            no site too often
    16  Nodes            what is known of a URL, and of places on pages
    17  Frontier         each URL once
    18  Crawler          workers, redirects, retries
    19  Report           what was found, worst first
    20  Command line

What one needs to know: Python's generators as iterators, sockets as "a thing
to connect, send and recv", that HTTP exists, and from 8 on regular
expressions (`*+` and `(?>...)` never give back what they took).
"""

from __future__ import annotations  # crawl.py needs Python 3.11 or later (old ones show this)

import sys

if sys.version_info < (3, 11):
    sys.exit("crawl.py needs Python 3.11 or later; this is %d.%d" % sys.version_info[:2])

import argparse
import array
import bisect
import collections
import contextlib
import errno
import functools
import heapq
import io
import itertools
import json
import math
import operator
import os
import re
import select
import selectors
import signal
import socket
import stringprep
import threading
import time
import unicodedata
import zlib
from builtins import TimeoutError as TimeoutError  # "as": these names are part of this module
from collections.abc import (Awaitable, Callable, Coroutine, Generator, Iterable, Iterator,
                             Sequence, Sized)
from contextvars import Context, copy_context
from types import CoroutineType, GeneratorType, coroutine as coroutine
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, TextIO, TypeVar, cast
from urllib.parse import unquote, unquote_to_bytes

if TYPE_CHECKING:  # pragma: no cover (for mypy; what speaks TLS imports it, which takes a while)
    import ssl

# 1  Vocabulary
# =============
#
# A function annotated with Waits[T] may stop in its middle to wait, and in the end returns a T: it
# is a coroutine, which 3 and 4 explain.
#
#     def doubled() -> Waits[int]:
#         number = yield from some_number()     # waits here; meanwhile others run
#         return 2 * number

__all__ = """run create_task current_task sleep timeout wait_for gather to_thread Queue Future Task
    EventLoop CancelledError coroutine DeadlockError open_connection Stream fetch Client Response
    ResponseParser parse_url URL read_markup read_sheet Robots Crawler Options Record Journal
    Report""".split()

T = TypeVar("T")
Callback = Callable[..., object]
Waits = Generator[Any, Any, T]
Runnable = Awaitable[T] | Waits[T]  # a coroutine, or a Future (3)

VERSION = "2.0"
MAX_SHOWN = 200  # characters of somebody else's words that are shown
PRODUCT = "crawl"  # the name that robots.txt knows us by: see product_of(), 12


class CancelledError(BaseException):
    """The task or future was cancelled. No Exception, so that `except Exception` lets it pass."""


class DeadlockError(RuntimeError):
    """Every task waits, and no socket, deadline or thread could wake one; says who waits where."""


# 2  Event loop
# =============
#
# The problem: a crawler spends its life waiting. A page takes some 100 ms to arrive and less than
# one to look at, so one that waits for each page in turn idles 99 % of its time.
# Threads can wait in parallel, one blocking `recv` each, but a thread costs tens of kilobytes
# and is switched by the kernel at moments nobody chose, so that everything shared wants a lock.
#
# The idea: ask the kernel to wait for all sockets at once. A non-blocking socket never waits:
# `recv` returns what is there or fails with BlockingIOError. The system call to wait for many
# is epoll on Linux (the `selectors` module picks each platform's best): it takes any number of
# sockets and one deadline, sleeps, and tells which are readable or writable. A waiting socket
# then costs an entry in a kernel table, which is why one thread can hold ten thousand of them.
# What to do when one is ready is a function, registered beforehand: a callback. The loop
# sleeps, collects what is due, calls it, and that is one tick:
#
#        +--> poll: sockets that became ready ------> run their callbacks
#        |    heap: deadlines that have passed --+        |  (these mostly add more)
#        |    call_soon, threads, futures done --+--> ready queue
#        +------------------------ run each once <--------+
#
# The invariants. Callbacks run in one place (`_run`), one at a time, hence no locks. What is
# added to the ready queue while it is being run waits for the next tick, which polls the sockets
# first, so that a callback which keeps rescheduling itself starves nobody. And a loop that
# nothing could ever wake does not sleep for ever: it raises DeadlockError.
#
# The cost: one poll per tick at most, and nothing for sockets that stay silent. A callback that
# computes for a second stops everything for a second.

TIMEOUT_SWEEP = 512       # entries: below that, cancelled timeouts are cheaper kept than swept
CLOCK_RESOLUTION = 1e-9   # seconds: a deadline this near has passed
MAX_WAIT = 1.0            # seconds of one sleep: a signal that comes just before it waits so long


class Handle:
    """A callback that waits to be called, inside *context* (by default a copy of the current one).

    A context holds what ContextVars are set to: each task's own globals. The ready queue holds
    anything with a run(): Tasks (4), too.
    """

    __slots__ = ("callback", "args", "context")

    def __init__(self, callback: Callback, args: tuple[Any, ...],
                 context: Context | None = None) -> None:
        self.callback: Callback | None = callback
        self.args = args
        self.context = copy_context() if context is None else context

    def run(self) -> None:
        """Call the callback, unless it was cancelled."""
        if self.callback is not None:
            self.context.run(self.callback, *self.args)

    def cancel(self) -> None:
        """Make sure that the callback is not called (any more)."""
        self.callback, self.args = None, ()

    def cancelled(self) -> bool:
        """Return whether cancel() was called, so that run() would do nothing."""
        return self.callback is None


class Timeout(Handle):
    """A Handle that becomes ready at *deadline*, in the loop's seconds: asyncio's TimerHandle."""

    __slots__ = ("deadline",)

    def __init__(self, deadline: float, callback: Callback, args: tuple[Any, ...],
                 context: Context | None) -> None:
        super().__init__(callback, args, context)
        self.deadline = deadline


_thread_state = threading.local()  # each thread's running loop; none runs in a forked child
if hasattr(os, "register_at_fork"):  # pragma: no branch (Windows, which cannot fork, has none)
    os.register_at_fork(after_in_child=functools.partial(setattr, _thread_state, "loop", None))


def _get_running_loop() -> EventLoop | None:  # asyncio's tests ask by this name
    """Return the event loop that runs in this thread, or None."""
    return getattr(_thread_state, "loop", None)


def get_running_loop() -> EventLoop:
    """Return the event loop that runs in this thread (each may run one), or raise RuntimeError."""
    loop = _get_running_loop()
    if loop is None:
        raise RuntimeError("no running event loop")
    return loop


class CallbackLoop:
    """The part of an event loop that waits, and runs callbacks.

    Section 5 adds what starts coroutines and calls the result EventLoop. *selector* does the
    waiting; a test may pass one that never sleeps, and override time(), too.
    """

    def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
        self._selector = selector or selectors.DefaultSelector()
        self._ready: collections.deque[Any] = collections.deque()
        # A heap of (deadline, sequence, timeout). The sequence number keeps equal deadlines in
        # order and the heap from ever comparing timeouts.
        self._timeouts: list[tuple[float, int, Timeout]] = []
        self._sequence = itertools.count()
        self._sweep_at = TIMEOUT_SWEEP  # heap size at which cancelled ones are dropped
        self._watched = 0               # sockets watched, the self-pipe not counted
        self._signals: dict[int, Any] = {}  # the handlers that add_signal_handler() replaced
        self._stopping = self._closed = False
        self.tasks: set[Any] = set()    # every unfinished Task (4),
        self.current_task: Any = None   # and the one taking a step
        # The self-pipe: a byte written to one end makes the other end readable, which is how a
        # thread or a signal ends a sleep in the selector.
        self._wake_receiver, self._wake_sender = socket.socketpair()
        for sock in (self._wake_receiver, self._wake_sender):
            sock.setblocking(False)
        drain = Handle(self._wake_receiver.recv, (4096,))
        self._selector.register(self._wake_receiver, selectors.EVENT_READ,
                                {selectors.EVENT_READ: drain})

    def time(self) -> float:
        """Return the loop's clock, in seconds: monotonic."""
        return time.monotonic()

    def call_soon(self, callback: Callback, *args: Any, context: Context | None = None) -> Handle:
        """Call callback(*args) after what is ready already; the Handle returned can cancel it."""
        handle = Handle(callback, args, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(self, callback: Callback, *args: Any) -> Handle:
        """Do what call_soon does, from any thread or signal handler: append() is atomic."""
        handle = self.call_soon(callback, *args)
        with contextlib.suppress(OSError):  # a full pipe wakes as well
            self._wake_sender.send(b"\0")
        return handle

    def call_later(self, delay: float, callback: Callback, *args: Any,
                   context: Context | None = None) -> Timeout:
        """Call callback(*args) after *delay* seconds; the Timeout returned can cancel it."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, deadline: float, callback: Callback, *args: Any,
                context: Context | None = None) -> Timeout:
        """Call callback(*args) once time() has reached *deadline* (ValueError for NaN)."""
        if math.isnan(deadline):
            raise ValueError(f"Invalid delay or deadline: {deadline!r} (not a number)")
        timeout = Timeout(deadline, callback, args, context)
        heapq.heappush(self._timeouts, (deadline, next(self._sequence), timeout))
        # Cancelled ones stay in the heap until they reach its top, or until it has doubled since
        # the last sweep, which takes them all out: amortised O(1) each.
        if len(self._timeouts) >= self._sweep_at:
            self._timeouts[:] = [item for item in self._timeouts if not item[2].cancelled()]
            heapq.heapify(self._timeouts)
            self._sweep_at = max(TIMEOUT_SWEEP, 2 * len(self._timeouts))
        return timeout

    def add_reader(self, sock: Any, callback: Callback, *args: Any) -> None:
        """Call callback(*args) in every tick in which *sock* is readable.

        A reader and a writer on one socket (or file descriptor) are independent. Both must be
        removed before it is closed: a new socket may get its descriptor.
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
        """Call callback(*args) in a tick after each signal *number*; for the main thread's loop.

        As long as there is one, a loop with nothing else to wait for sleeps, and is no deadlock.
        """
        before = signal.signal(
            number, lambda *_: cast(None, self.call_soon_threadsafe(callback, *args)))
        self._signals.setdefault(number, before or signal.SIG_DFL)  # None: it was not Python's

    def remove_signal_handler(self, number: int) -> bool:
        """Restore what handled the signal before; return whether there was a handler."""
        there = number in self._signals
        if there:
            signal.signal(number, self._signals.pop(number))
        return there

    def run_forever(self, ended: Sequence[Any] = ()) -> None:
        """Tick until stop(), or until *ended* holds something. May raise DeadlockError."""
        if self._closed:
            raise RuntimeError("Event loop is closed")
        if _get_running_loop() is not None:
            raise RuntimeError("this thread runs a loop already")
        _thread_state.loop = self
        try:
            self.tick()  # even after a stop(), as in asyncio
            while not (self._stopping or ended):
                self.tick()
        finally:
            self._stopping = False
            _thread_state.loop = None

    def tick(self) -> None:
        """Wait until something is ready, then run what is: the heart of the file."""
        ready, timeouts = self._ready, self._timeouts
        while timeouts and timeouts[0][2].cancelled():
            heapq.heappop(timeouts)
        wait = MAX_WAIT
        if ready or self._stopping:
            wait = 0.0
        elif timeouts:
            wait = min(max(0.0, timeouts[0][0] - self.time()), MAX_WAIT)
        elif not (self._watched or self._signals or threading.active_count() > 1 or ready):
            # A thread may have called in and ended during this line: so `ready` is asked last.
            raise DeadlockError("every task waits for something that can no longer happen:\n"
                                + "\n".join(task.where() for task in self.tasks))
        # With work to do and no socket there is no poll, for the self-pipe only ends sleeps.
        if self._watched or not ready:
            for key, events in self._selector.select(wait):
                for event in list(key.data):  # one may take off the other
                    if event & events and event in key.data:
                        self._run(key.data[event])
        if timeouts:
            now = self.time() + CLOCK_RESOLUTION
            while timeouts and timeouts[0][0] <= now:
                ready.append(heapq.heappop(timeouts)[2])
        for _ in range(len(ready)):
            self._run(ready.popleft())

    def _run(self, entry: Any) -> None:
        """Run one callback: its errors are reported and stop nobody else."""
        try:
            entry.run()
        except (Exception, CancelledError) as error:
            name = getattr(entry, "callback", entry)
            self.call_exception_handler({"message": f"exception in callback {name!r}",
                                         "exception": error})

    def stop(self) -> None:
        """Make run_forever() return after the current tick."""
        self._stopping = True

    def close(self) -> None:
        """Release what the loop holds, and drop what is pending. RuntimeError where it runs."""
        if _get_running_loop() is self:
            raise RuntimeError("cannot close a running event loop")
        for number in list(self._signals):
            self.remove_signal_handler(number)
        self._closed = True
        self._ready.clear()
        self._timeouts.clear()
        self._selector.close()
        for sock in (self._wake_receiver, self._wake_sender):
            sock.close()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Print context["message"] and the traceback of context["exception"], if any.

        Every error that nobody is there to catch ends here; replace the method on a loop to
        send them elsewhere.
        """
        with contextlib.suppress(OSError):  # the terminal is gone: that should not end the loop
            print(context["message"], file=sys.stderr)
            error = context.get("exception")
            if error is not None:
                sys.excepthook(type(error), error, error.__traceback__)

    def _watch(self, sock: Any, event: int, handle: Handle | None) -> bool:
        """Put *handle* on one side of a socket, or take it off; return whether one was there."""
        if self._closed:
            return False
        key = self._selector.get_map().get(sock)
        # Who waits for reading and who for writing. The selector holds this dict itself: what
        # is taken out of it is not called later in this tick.
        handles: dict[int, Handle] = key.data if key else {}
        before = handles.pop(event, None)
        if handle is not None:
            handles[event] = handle
        events = functools.reduce(operator.or_, handles, 0)
        if not key and events:
            self._selector.register(sock, events, handles)
        elif key and not events:
            self._selector.unregister(sock)
        elif key and events != key.events:
            self._selector.modify(sock, events, handles)
        self._watched += bool(handles) - bool(key)
        return before is not None


# 3  Future
# =========
#
# The problem: with callbacks alone, a fetch of connect, send, recv, recv, ... is a chain of
# functions, each naming the next. Loops, `try` and local variables do not cross from one
# callback to another, and a traceback shows the last link of the chain, never who began it.
#
# The idea: put "what happens next" into an object. A Future is a result that has not happened
# yet. Whoever will know the result resolves it, whoever wants it waits, and neither needs to
# know the other:
#
#                   set_result(x)      -> resolved    result() returns x
#       pending  -- set_exception(e)   -> failed      result() raises e
#                   cancel()           -> cancelled   result() raises CancelledError
#
# The invariants. A future leaves "pending" once and never returns to it. Its callbacks are not
# called there and then but moved to the ready queue, so that resolving runs nobody's code, a
# chain of thousands of futures needs no deep stack, and a callback added afterwards is still
# called.
#
# A future alone only changes where a callback is registered. What is missing is a function that
# can stop in its middle and go on later with everything it had. Python has one, the generator:
# its frame (its variables, and the line it has reached) survives suspension, in memory of its
# own and not on the thread's stack. `yield` hands a value to whoever called send() (next() is
# send(None)) and leaves loops and `try` blocks as they are, until the next send().
#
# Only Future.__iter__ yields futures. `yield from future` runs that method inside the function
# that says it: what it yields comes out of the send() to that function, and what it returns is
# the value of the expression (4 has the general rule). So a function that says
#
#       result = yield from future
#
# stops there, and the future itself comes out of the send() that was driving it: the driver
# learns what is being waited for. It calls send() again once that future is done; __iter__ then
# returns the future's result(), and with that the function goes on.
#
# Such functions are coroutines. `async def` and `await` make the same, and are safer: a forgotten
# `yield from` is silent where a forgotten `await` is a warning. Generators are used here because
# one can see how they work. One under `@coroutine` (types.coroutine) can be awaited in an
# `async def` function, and can itself `yield from` an `async def` coroutine; most of what only this
# file calls, with `yield from`, does without.

class InvalidStateError(Exception):
    """A future was asked for what its state does not allow."""


class _Failure:
    """The exception with which *name* failed; its __del__ reports it if nobody looked at it."""

    def __init__(self, exception: BaseException, loop: CallbackLoop, name: str) -> None:
        self.exception, self.loop, self.name = exception, loop, name
        # Each raise lengthens the traceback; who raises it goes back to this one. (Asyncio's tests
        # fail a future with None, which has none.)
        self.trace = getattr(exception, "__traceback__", None)
        # What is no Exception (CancelledError, SystemExit) is not reported.
        self.retrieved = not isinstance(exception, Exception)

    def __del__(self) -> None:
        if not self.retrieved:
            message = f"the exception of {self.name} was never retrieved"
            self.loop.call_exception_handler({"message": message, "exception": self.exception})


class Future(Generic[T]):
    """A result to come, in one loop and its thread: pending, then resolved, failed or cancelled."""

    __slots__ = ("_loop", "_state", "_result", "_callbacks", "__weakref__")

    def __init__(self, *, loop: CallbackLoop | None = None) -> None:
        self._loop: Any = loop or get_running_loop()
        self._state = "PENDING"
        # By state: None, the result, a _Failure, the args of the CancelledError.
        self._result: Any = None
        # What to put into the ready queue when done: Handles and waiting tasks.
        self._callbacks: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        return f"<{self.get_name()} {self._state.lower()}>"

    def get_name(self) -> str:
        """Return what it is called where it is spoken of."""
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
        if self._state != "RESOLVED":
            raise self._error()
        result: T = self._result
        return result

    def exception(self) -> BaseException | None:
        """Return what the future failed with, None if it was resolved; else raise as result()."""
        return None if self._state == "RESOLVED" else self._error()

    def set_result(self, result: T) -> None:
        """Resolve the future. Raises InvalidStateError unless it is pending."""
        self._finish("RESOLVED", result)

    def set_exception(self, exception: BaseException | type[BaseException]) -> None:
        """Make the future fail. Raises InvalidStateError unless it is pending.

        An exception that nobody asks for by the time the future is dropped is reported to the
        loop. StopIteration arrives as the cause of a RuntimeError, for inside a generator it
        would mean "the end".
        """
        if isinstance(exception, type):
            exception = exception()
        if isinstance(exception, StopIteration):
            cause, exception = exception, RuntimeError(
                "StopIteration means the end of a generator and cannot be raised into a Future")
            exception.__cause__ = exception.__context__ = cause
        self._fail(exception)

    def cancel(self, msg: Any = None) -> bool:
        """Have all who wait get CancelledError(msg); return False if it was done already."""
        if self._state != "PENDING":
            return False
        self._finish("CANCELLED", () if msg is None else (msg,))
        return True

    def add_done_callback(self, callback: Any, *, context: Context | None = None) -> None:
        """Have the loop call callback(self) when the future is done, or soon if it is."""
        # A Task, which has a run(), stands here itself while it waits.
        entry = callback if isinstance(callback, Future) else Handle(callback, (self,), context)
        if self._state != "PENDING":
            self._loop._ready.append(entry)
        else:  # a tuple, for nearly always it holds one
            self._callbacks += (entry,)

    def remove_done_callback(self, callback: Callable[[Any], object]) -> int:
        """Forget every registration of *callback*; return how many there were."""
        before = self._callbacks
        self._callbacks = tuple(entry for entry in before
                                if getattr(entry, "callback", None) != callback)
        return len(before) - len(self._callbacks)

    def __iter__(self) -> Waits[T]:
        """Wait here until the future is done; `yield from` gives its result."""
        if self._state == "PENDING":
            yield self
            if self._state == "PENDING":
                raise RuntimeError("a future was resumed before it was done: await it in a Task")
        return self.result()

    __await__ = __iter__

    def _finish(self, state: str, result: Any) -> None:
        """Leave the pending state: the one place where that happens."""
        if self._state != "PENDING":
            raise InvalidStateError(f"the future is done already: {self._state.lower()}")
        self._state, self._result = state, result
        self._loop._ready.extend(self._callbacks)
        self._callbacks = ()

    def _fail(self, exception: BaseException) -> None:
        self._finish("FAILED", None)
        self._result = _Failure(exception, self._loop, self.get_name())

    def _error(self) -> BaseException:
        """Return what it failed with, and mark it as seen; raise if it is pending or cancelled."""
        if self._state == "PENDING":
            raise InvalidStateError("the result is not there yet")
        if self._state == "CANCELLED":
            raise CancelledError(*self._result)
        self._result.retrieved = True
        return cast(BaseException, self._result.exception.with_traceback(self._result.trace))


def _resolve(future: Future[T], result: T | None = None) -> None:
    """Set the result, unless the future is done: its waiter may just have been cancelled."""
    if future._state == "PENDING":
        future._finish("RESOLVED", result)


# 4  Task
# =======
#
# The problem: a function that stops at `yield from future` needs somebody who calls send()
# again when the future is done, not before and not twice.
#
# The idea: a Task is that somebody. Each step sends None into the coroutine and gets back the
# next future it waits for; the task puts itself among that future's callbacks and is out of the
# way until then. That is all that happens between "recv would block" and the line after it:
#
#    recv -> BlockingIOError      coroutine: watch the socket, make a future,
#    yield from future            the future comes out of send()
#    step: add_done_callback      the task returns to the loop; others run
#    poll: readable -> callback   set_result moves the task to the ready queue
#    step: coroutine.send(None)   the coroutine goes on after its `yield from`
#    recv again -> bytes          being ready was a hint; recv decides
#
# With coroutines inside coroutines, `yield from` is a pipe: while a generator stands there,
# Python hands every send() and throw() that it gets straight to the inner one, and what that
# yields straight to whoever called, until the inner one returns. The innermost future comes out
# of the outermost send(), past everyone in between, and None goes down the same way; a return
# value travels up one joint, an exception as far as the first `except`:
#
#    Task --send--> fetch --yield from--> read --yield from--> Future.__iter__
#         <----------------------- future ------------------------ yield self
#
# A Task is itself a Future, resolved by the coroutine's `return` (which Python spells
# StopIteration): so a task can be waited for, and one word, "wait", does for a byte, a pause
# and a whole crawl.
#
# Cancelling must reach a coroutine that is suspended, deep in its pipe, and release what it
# holds on the way out. Only an exception does that: cancel() cancels the future being waited
# for, whose CancelledError then appears at the `yield from`, runs the `finally` blocks and, if
# nobody stops it, ends the task. (If that future is a task, it is cancelled, too;
# `_until_done`, in 5, waits without that.) It is a BaseException so that `except Exception`
# does not swallow it. Where no future is waited for, it comes
#
#    to a task that was woken already    at its next step
#    to the one that is running          at its next wait, or its return
#    to one that has not begun           instead of its first step
#
# The invariant: an unfinished task is running, or in the ready queue once, or among the
# callbacks of the one future in `_waiting_for`. The loop holds every unfinished task in
# `tasks`, so that none is garbage-collected in mid-wait.

class Task(Future[T]):
    """A coroutine being run by the loop, and the future of its return value.

    *coro* is a generator, with @coroutine or without, or an `async def` coroutine (TypeError
    for anything else). It takes its first step soon, from the ready queue, inside *context* (a
    copy of the current one by default).
    """

    __slots__ = ("_coro", "_context", "_waiting_for", "_throw", "_cancel_requests", "_name")

    def __init__(self, coro: Runnable[T], *, loop: CallbackLoop | None = None,
                 name: object = None, context: Context | None = None) -> None:
        if not isinstance(coro, (GeneratorType, Coroutine)):
            raise TypeError(f"a coroutine was expected, got {coro!r}")
        super().__init__(loop=loop)
        self._coro: Any = coro
        self._context = copy_context() if context is None else context
        self._waiting_for: Future[Any] | None = None
        self._throw: BaseException | None = None  # what the next step raises in the coroutine
        self._cancel_requests = 0  # that no uncancel() took back: a TimeLimit (5) counts them
        self._name = None if name is None else str(name)
        self._loop.tasks.add(self)
        self._loop._ready.append(self)

    def get_name(self) -> str:
        """Return the task's name: the coroutine's, unless it was given another."""
        return self._name or str(getattr(self._coro, "__qualname__", self._coro))

    def step(self) -> None:
        """Run the coroutine until it waits again or ends."""
        if self._state != "PENDING":
            raise InvalidStateError(f"step(): already done: {self!r}")
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
            self._fail(failure)
            loop.tasks.discard(self)
            if isinstance(failure, (KeyboardInterrupt, SystemExit)):
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

        CancelledError(msg) is raised where it waits, at its next step. The coroutine may catch
        it, to clean up or to refuse.
        """
        if self._state != "PENDING":
            return False
        # If self waits for task B, and B for a future: both count the request, and the future is
        # cancelled; its CancelledError ends B, and the end of B brings it to self. On the way down
        # they wait for nothing, or tasks in a circle would be gone through for ever.
        waiting: list[tuple[Task[Any], Any]] = []
        task: Any = self
        while isinstance(task, Task) and task._state == "PENDING":
            task._cancel_requests += 1
            waited, task._waiting_for = task._waiting_for, None
            waiting.append((task, waited))
            task = waited
        last, waited = waiting[-1]
        if waited is None or not waited.cancel(msg):
            last._throw = CancelledError() if msg is None else CancelledError(msg)
        for task, waited in reversed(waiting):
            task._waiting_for = waited
        return True

    def cancelling(self) -> int:
        """Return how often cancel() was called and not taken back."""
        return self._cancel_requests

    def uncancel(self) -> int:
        """Take one cancel() back, having dealt with it; return how many are left."""
        self._cancel_requests = max(0, self._cancel_requests - 1)
        if not self._cancel_requests and isinstance(self._throw, CancelledError):
            self._throw = None
        return self._cancel_requests

    def where(self) -> str:
        """Return the task's name and the lines at which it waits, outermost coroutine first."""
        lines, inner = [self.get_name()], self._coro
        # Down the pipe, to the one whose future is waited for.
        while frame := getattr(inner, "gi_frame", None) or getattr(inner, "cr_frame", None):
            code = frame.f_code
            lines.append(f"  {code.co_filename}:{frame.f_lineno} in {code.co_qualname}")
            inner = getattr(inner, "gi_yieldfrom", None) or getattr(inner, "cr_await", None)
        return "\n".join(lines)


# 5  Waiting
# ==========
#
# The problem: futures and tasks are parts; a program wants verbs. Call this blocking function
# without blocking. Wait a second. Give that at most thirty. Do these ten at once. Run it all.
#
# The idea: each verb is a few lines over the parts. A thread's result is a future that the thread
# resolves by way of the self-pipe. `sleep` is a future that resolves itself at a deadline.
# `timeout` cancels the current task at one, and turns the CancelledError it caused, and only that
# one, into TimeoutError: it counts the requests to cancel. `gather` is a future that the last of
# many resolves. `run` ticks until a task is done.
#
# The invariants. When a wait has ended, its deadline does nothing any more; when `run` has
# returned, there is no task.

def _ensure_future(awaitable: Runnable[T], loop: EventLoop | None = None) -> Future[T]:
    """Return a Future as it is, a coroutine as a new Task; TypeError for what is neither."""
    if not isinstance(awaitable, Future):
        return (loop or get_running_loop()).create_task(awaitable)
    if loop is not None and awaitable._loop is not loop:
        raise ValueError(f"{awaitable!r} belongs to a different loop")
    return awaitable


def to_thread(func: Callable[..., T], *args: Any, **kwargs: Any) -> Future[T]:
    """Return the Future of func(*args, **kwargs), run in a thread, in the current context.

    Each call has a thread of its own, a daemon: neither run() nor the program waits for one
    that never ends, and when the program ends it is cut off wherever it is. Cancelled, the call
    goes on, and its result is dropped. Raises OSError where no thread can be started.
    """
    loop, context = get_running_loop(), copy_context()
    future: Future[T] = loop.create_future()

    def work() -> None:
        settle: Callable[[Any], None] = future.set_result
        try:
            outcome: Any = context.run(func, *args, **kwargs)
        except BaseException as error:
            settle, outcome = future.set_exception, error
        loop.call_soon_threadsafe(lambda: None if future.done() else settle(outcome))

    try:
        threading.Thread(target=work, daemon=True).start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, f"no thread for a blocking call: {error}") from None
    return future


class EventLoop(CallbackLoop):
    """A CallbackLoop that also runs coroutines."""

    def create_future(self) -> Future[Any]:
        """Return a new pending Future of this loop."""
        return Future(loop=self)

    def create_task(self, coro: Runnable[T], **options: Any) -> Task[T]:
        """Return a new Task that begins to run *coro* soon; options are Task's."""
        if self._closed:
            raise RuntimeError("Event loop is closed")
        return Task(coro, loop=self, **options)

    def run_until_complete(self, future: Runnable[T]) -> T:
        """Run until *future* (a Future, or a coroutine made a Task) is done; return its result.

        Raises what it failed with; RuntimeError when stop() came first.
        """
        waited, ended = _ensure_future(future, loop=self), list[Any]()
        waited.add_done_callback(ended.append)
        self.run_forever(ended)
        if not waited.done():
            raise RuntimeError("Event loop stopped before Future completed.")
        return waited.result()

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> Future[T]:
        """Return the Future of func(*args), run by *executor*, one of concurrent.futures'.

        A thread waits for it (or runs it, if that is None). Cancelling the future keeps a call that
        has not begun from beginning. The executor is the caller's, to be shut down in the end.
        """
        if executor is None:
            return to_thread(func, *args)
        job = executor.submit(func, *args)
        future: Future[T] = to_thread(job.result)
        future.add_done_callback(lambda future: future.cancelled() and job.cancel())
        return future


@coroutine
def sleep(delay: float, result: Any = None) -> Waits[Any]:
    """Wait *delay* seconds (ValueError for NaN), return *result*; 0 lets others run once."""
    if delay <= 0:
        yield
        return result
    loop = get_running_loop()
    waiter = loop.create_future()
    timeout = loop.call_later(delay, _resolve, waiter, result)
    try:
        return (yield from waiter)
    finally:
        timeout.cancel()


class TimeLimit:
    """A context manager that allows its block *delay* seconds (None: any time).

    `with` in generator coroutines, `async with` in `async def` ones. When the time is up the
    current task is cancelled, and the CancelledError that leaves the block is turned into
    TimeoutError. A cancellation from elsewhere passes as it is:

        deadline -> cancel() -> CancelledError -> uncancel(): 0 are left -> TimeoutError
        another's   cancel() -> CancelledError ------------------------> CancelledError

    Entering it raises RuntimeError outside of a task, or a second time, and ValueError for NaN.
    """

    __slots__ = ("_delay", "_task", "_cancelling", "_expired", "_timeout")

    def __init__(self, delay: float | None) -> None:
        self._delay = delay
        self._task: Any = None
        self._timeout: Handle | None = None
        self._expired = False

    def __enter__(self) -> TimeLimit:
        loop = get_running_loop()
        task = loop.current_task
        if task is None:
            raise RuntimeError("a time limit should be used inside a task")
        if self._task is not None:
            raise RuntimeError("a time limit can be entered only once")
        self._task, self._cancelling = task, task._cancel_requests
        if self._delay is not None and self._delay <= 0:
            # The heap would let the block run on past a bare `yield` first.
            self._timeout = loop.call_soon(self._expire, context=task._context)
        elif self._delay is not None:
            self._timeout = loop.call_later(self._delay, self._expire, context=task._context)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._timeout:
            self._timeout.cancel()
        # We take our own request to cancel back. If no more are left than there were at the entry,
        # nobody else asked, and the error is ours:
        #
        #     requests at the entry, at the deadline, then     the error
        #     alone            0       1      0                becomes TimeoutError
        #     and Ctrl-C       0       2      1                goes on as it is
        #     two limits       0, 0    2      1, 0             goes on, to the outer one
        if self._expired and self._task.uncancel() <= self._cancelling \
                and isinstance(error, CancelledError):
            raise TimeoutError(f"timed out after {self._delay:g} s") from error

    async def __aenter__(self) -> TimeLimit:
        return self.__enter__()

    async def __aexit__(self, *failure: Any) -> None:
        self.__exit__(*failure)

    def _expire(self) -> None:
        self._expired = self._task.cancel()


timeout = TimeLimit  # asyncio's name for making one


@coroutine
def _until_done(future: Future[Any]) -> Waits[None]:
    """Wait until *future* is done; its error is not raised, and a cancelled wait leaves it be."""
    if future.done():
        return
    waiter = get_running_loop().create_future()
    future.add_done_callback(lambda _: _resolve(waiter))
    yield from waiter


@coroutine
def wait_for(fut: Awaitable[T], timeout: float | None) -> Waits[T]:
    """Return the result of *fut*, or raise TimeoutError after *timeout* seconds.

    In that case, or when wait_for itself is cancelled, *fut* is cancelled and waited for before
    an error is raised (if it returns something all the same, that is the result). With *timeout*
    <= 0 what is not done already is cancelled before it begins; None waits for any time.
    """
    with TimeLimit(timeout):
        if timeout is not None and timeout <= 0:
            fut = _ensure_future(fut)  # its first step comes after the limit's cancel()
        return cast(T, (yield from cast(Any, fut)))


def _outcome(future: Future[Any]) -> Any:
    """Return the result of a finished future, or its error as a value."""
    try:
        return future.result()
    except BaseException as error:
        return error


class _Gathering(Future[list[Any]]):
    """The future that gather() returns."""

    def __init__(self, children: Iterable[Future[Any]], loop: EventLoop | None) -> None:
        super().__init__(loop=loop)
        self.children = dict.fromkeys(children)  # those not yet done, in their order
        self.cancel_error: CancelledError | None = None

    def cancel(self, msg: Any = None) -> bool:
        # A list, so that every child is cancelled.
        if self.done() or not any([child.cancel(msg) for child in self.children]):
            return False
        self.cancel_error = CancelledError() if msg is None else CancelledError(msg)
        return True


def gather(*awaitables: Runnable[Any], return_exceptions: bool = False) -> Future[list[Any]]:
    """Return the Future of all results, in the order of the arguments.

    Coroutines become tasks. The first error makes it fail at once, and the others go on; with
    *return_exceptions* errors are results like any other. Cancelling it cancels all of them.
    """
    loop: EventLoop | None = None
    futures: dict[Any, Future[Any]] = {}
    for awaitable in dict.fromkeys(awaitables):  # one that is given twice is run once
        futures[awaitable] = _ensure_future(awaitable, loop)
        loop = futures[awaitable].get_loop()
    outer = _Gathering(futures.values(), loop)

    def child_done(child: Future[Any]) -> None:
        del outer.children[child]
        outcome = _outcome(child)  # which also marks an error as retrieved
        if outer.done():
            return
        if child._state != "RESOLVED" and not return_exceptions:
            outer.set_exception(outcome)
        elif not outer.children and outer.cancel_error is not None:
            outer.set_exception(outer.cancel_error)  # as in asyncio, it failed; it is not cancelled
        elif not outer.children:
            outer.set_result([_outcome(futures[awaitable]) for awaitable in awaitables])

    context = copy_context()  # one for all: there may be thousands
    for child in outer.children:
        child.add_done_callback(child_done, context=context)
    if not futures:
        outer.set_result([])
    return outer


def current_task(loop: EventLoop | None = None) -> Task[Any] | None:
    """Return the task whose step is running now, None between steps."""
    return cast("Task[Any] | None", (loop or get_running_loop()).current_task)


def create_task(coro: Runnable[T], **options: Any) -> Task[T]:
    """Run *coro* as a Task of the running loop, beginning soon."""
    return get_running_loop().create_task(coro, **options)


def run(main: Runnable[T], *, loop_factory: Callable[[], EventLoop] = EventLoop) -> T:
    """Run the coroutine *main* in a loop of its own; return its result or raise its error.

    When it ends, in whichever way, tasks still running are cancelled and waited for (an error
    of theirs is reported as one that nobody has seen), and the loop, made by *loop_factory*, is
    closed. Raises DeadlockError, and RuntimeError in a running loop.
    """
    if _get_running_loop() is not None:
        raise RuntimeError("run() cannot be called from a running event loop")
    with contextlib.closing(loop_factory()) as loop:
        try:
            return loop.run_until_complete(loop.create_task(main))
        finally:
            ending: BaseException | None = None
            while tasks := list(loop.tasks):  # one may start others while it ends
                for task in tasks:
                    task.cancel()
                for task in tasks:
                    try:
                        loop.run_until_complete(_until_done(task))
                    except (KeyboardInterrupt, SystemExit) as error:
                        ending = error  # and the others are cleaned up first
            if ending:
                raise ending


# 6  Queue
# ========
#
# The problem: workers need work handed to them, must wait when there is none, and somebody must
# know when all is done. "The queue is empty" does not say that: the last item may be in a
# worker's hands, and about to become ten more.
#
# The idea: count. `put` adds one to the unfinished, `task_done` takes one away, and `join`
# waits for zero. A worker puts what it found before it says that the item is done, so the count
# is zero only when nothing is queued and nobody works.
#
# A task that finds the queue empty (or full) stands in line with a future of its own. Waking it
# resolves that future and promises nothing: until its next step somebody else may have taken
# the item, so it looks again, and waits again.
#
# The invariant: a wake-up is never lost. A getter that was woken, and cancelled before its next
# step, cannot use its wake-up, so it passes it on to the next in line; so does a putter.

class QueueEmpty(Exception):
    """get_nowait() found no item."""


class QueueFull(Exception):
    """put_nowait() found no place."""


_Line = collections.OrderedDict[Future[None], None]  # oldest first; any one leaves it in O(1)


class Queue(Generic[T]):
    """A first-in first-out queue between tasks, of *maxsize* items (0: without a bound)."""

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
        if self.full():
            raise QueueFull
        self._items.append(item)
        self._unfinished += 1
        self._wake(self._getters)

    def get_nowait(self) -> T:
        """Take the oldest item out, or raise QueueEmpty."""
        if not self._items:
            raise QueueEmpty
        self._wake(self._putters)
        return self._items.popleft()

    @coroutine
    def put(self, item: T) -> Waits[None]:
        """Put an item in, waiting while the queue is full. Cancelled: it is not put."""
        yield from self._wait_in(self._putters, self.full)
        self.put_nowait(item)

    @coroutine
    def get(self) -> Waits[T]:
        """Take the oldest item out, waiting while there is none. Cancelled: none is lost."""
        yield from self._wait_in(self._getters, self.empty)
        return self.get_nowait()

    def task_done(self) -> None:
        """Say that an item got from the queue is dealt with. ValueError if all were already."""
        if self._unfinished <= 0:
            raise ValueError("task_done() called too many times")
        self._unfinished -= 1
        if not self._unfinished:
            while self._joiners:
                self._wake(self._joiners)

    @coroutine
    def join(self) -> Waits[None]:
        """Wait until task_done() was called for every item, those put meanwhile included."""
        if self._unfinished:  # it waits once, whatever is put after it was woken
            waiter = get_running_loop().create_future()
            self._joiners[waiter] = None
            yield from waiter

    def _wake(self, line: _Line) -> None:
        """Wake the first in line who still waits."""
        while line:
            waiter, _ = line.popitem(last=False)
            if not waiter.done():
                return waiter.set_result(None)

    def _wait_in(self, line: _Line, blocked: Callable[[], bool]) -> Waits[None]:
        """While *blocked()*, wait in *line* to be woken."""
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


# 7  Streams
# ==========
#
# The problem: make "would block" read as "wait here". And nothing on a network may be waited
# for without a deadline: a name server that is silent, an address that swallows packets, a
# server that accepts and then says nothing, or says something for ever.
#
# The idea: one method, `_call`, tries a socket operation and, when it would block, waits for
# the socket and tries again: to shake hands, to send, to receive. A read waits before it tries:
#
#     write(request), drain()    send -> BlockingIOError, wait until writable, send -> all of it
#     read()                     wait until readable, recv -> some bytes
#     read()                     wait until readable, recv -> b"", the end
#
# The invariants. Between two reads the loop polls, even if bytes are there: a fast peer holds up no
# other socket and no deadline. (Only what TLS has decrypted already is taken at once, for the
# poll does not know of it.) A stream has no deadlines of its own: who waits for it does so within
# a `timeout`, as section 10 and open_connection() do.
#
# The cost: a request is a send, a recv and its share of two polls (and on a kept connection a look
# whether it is readable). Interest in reading stays registered from one read to the next, which
# saves two system calls each time.

READ_SIZE = 65_536      # bytes: more at once makes malloc map and unmap memory each time
LOOKUP_TIMEOUT = 20.0   # seconds for a name: resolvers try a few times, for 5 seconds each
CONNECT_TIMEOUT = 10.0  # seconds to connect, with TLS, to one address: a lost SYN is sent again

# TLS may have to read in order to write, and the reverse, and says so by errors of ssl.
_TLS_WANTS = {"SSLWantReadError": selectors.EVENT_READ, "SSLWantWriteError": selectors.EVENT_WRITE}


class Stream:
    """A stream socket, plain or TLS, made non-blocking; one task may read, one write at a time."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._fd = sock.fileno()        # what the selector knows the socket by, TLS or not
        self._loop = get_running_loop()
        self._waiters: list[Any] = [None, None, None]  # by event: the last Future waited for
        self._unsent = bytearray()

    @coroutine
    def read(self, size: int = READ_SIZE) -> Waits[bytes]:
        """Wait for bytes and return those there are, up to *size*; b"" at the end of the stream.

        Raises OSError (ssl.SSLError when TLS is cut off without its goodbye). Cancelled: no
        byte is lost.
        """
        pending = getattr(self.sock, "pending", None)  # TLS may have decrypted some already
        if not (pending and pending()):
            yield from self._until_ready(selectors.EVENT_READ)
        return (yield from self._call(selectors.EVENT_READ, self.sock.recv, size))

    def readable(self) -> bool:
        """Return whether bytes, or the end, are there already; asks the kernel and never waits."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(0))

    def write(self, data: bytes) -> None:
        """Take *data* to be sent; wait for drain() to have it sent."""
        self._unsent += data

    @coroutine
    def drain(self) -> Waits[None]:
        """Wait until all is sent (OSError). Cancelled: the rest stays for the next drain()."""
        while self._unsent:
            sent = yield from self._call(selectors.EVENT_WRITE, self.sock.send, self._unsent)
            del self._unsent[:sent]

    @coroutine
    def start_tls(self, context: ssl.SSLContext, host: str) -> Waits[None]:
        """Speak TLS from here on, with a server that proves to be *host*; raises ssl.SSLError."""
        self.sock = tls = context.wrap_socket(
            self.sock, server_hostname=host, do_handshake_on_connect=False,
            suppress_ragged_eofs=False)  # an end without TLS's goodbye is an error
        yield from self._call(selectors.EVENT_READ, tls.do_handshake)

    def close(self) -> None:
        """Close the socket, here and nowhere else; whoever waits gets ConnectionAbortedError."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            self._fd = -1
            self.sock.close()
            for waiter in self._waiters:
                if waiter and not waiter.done():
                    waiter.set_exception(ConnectionAbortedError("the stream was closed"))

    def _call(self, event: int, operation: Callable[..., T], *args: Any) -> Waits[T]:
        """Return operation(*args), trying again whenever the socket is ready after it was not."""
        while True:
            try:
                return operation(*args)
            except BlockingIOError:
                wanted = event
            except OSError as error:
                wanted = _TLS_WANTS.get(type(error).__name__, 0)
                if not wanted:
                    raise
            yield from self._until_ready(wanted)

    def _until_ready(self, event: int) -> Future[None]:
        """Return a future that is resolved when the socket is readable, or writable."""
        if self._fd < 0:
            raise ConnectionAbortedError("the stream was closed")
        if self._waiters[event] and not self._waiters[event].done():
            raise RuntimeError("another task waits for this stream already")
        context = self._loop.current_task._context  # no copy: ten thousand tasks may wait here
        self._loop._watch(self._fd, event, Handle(self._wake, (event,), context))
        waiter: Future[None] = Future(loop=self._loop)
        self._waiters[event] = waiter
        return waiter

    def _wake(self, event: int) -> None:
        """Resume who waits; if nobody does, stop watching, or every tick would call this."""
        if self._waiters[event].done():
            self._loop._watch(self._fd, event, None)
        else:
            self._waiters[event].set_result(None)


@coroutine
def lookup(host: str, port: int) -> Waits[list[Any]]:
    """Return getaddrinfo's list of (family, kind, protocol, name, address) for *host*.

    *host* is a name, or an address such as 127.0.0.1 or [::1]. It is looked up in a thread, for
    getaddrinfo blocks and has no deadline. Raises OSError (TimeoutError after LOOKUP_TIMEOUT
    seconds).
    """
    # As bytes, for Python would encode a str by its own IDNA first (see 8).
    name = host.strip("[]").encode()
    with TimeLimit(LOOKUP_TIMEOUT):
        return (yield from to_thread(socket.getaddrinfo, name, port, type=socket.SOCK_STREAM))


def _connect(entry: Any, host: str, tls: ssl.SSLContext | None) -> Waits[Stream]:
    """Return a stream to one address, as getaddrinfo gives it; leaves no socket if it fails."""
    family, kind, protocol, _, address = entry
    sock = socket.socket(family, kind, protocol)
    stream = Stream(sock)
    try:
        # Not by _call, for connect is not tried again: the socket becomes writable when it is
        # connected or has failed, and SO_ERROR says which.
        code = sock.connect_ex(address)
        if code in (errno.EINPROGRESS, errno.EWOULDBLOCK):
            yield from stream._until_ready(selectors.EVENT_WRITE)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            yield from stream.start_tls(tls, host.strip("[]").removesuffix("."))
        return stream
    except BaseException:
        stream.close()
        raise


@coroutine
def open_connection(host: str, port: int, *, ssl: ssl.SSLContext | None = None,
                    addresses: list[Any] | None = None) -> Waits[tuple[Stream, Stream]]:
    """Connect to the first address of *host* that accepts, and return (stream, stream).

    The pair is asyncio's reader and writer; both are the one Stream. With *ssl*, a context, it
    speaks TLS. *addresses* (by default those that lookup() finds) are tried in turn, for
    CONNECT_TIMEOUT seconds each, and the one that accepts is moved to the front of the list.
    The error of the last is raised (OSError).
    """
    failure: OSError | None = None
    if addresses is None:
        addresses = yield from lookup(host, port)
    for entry in list(addresses):
        try:
            with TimeLimit(CONNECT_TIMEOUT):
                stream = yield from _connect(entry, host, ssl)
            addresses.sort(key=lambda other: other is not entry)  # it goes to the front
            return stream, stream
        except OSError as error:
            failure = error
    raise failure or OSError(f"{host} has no address")


# 8  URLs
# =======
#
# The problem: a crawler remembers where it has been by the spelling of an address, and an
# address has endless spellings: relative ones, upper and lower case, `/./`, `:80`, `%2e`,
# backslashes, tabs, an IPv4 address written as one octal number.
#
# The idea: do what browsers do, step by step (url.spec.whatwg.org, for http and https), so that
# each becomes the one spelling that a browser would request (but for queries on pages that are
# not in UTF-8, which browsers write in the page's own charset). On the page http://h/d/p:
#
#     ../a#x                   http://h/a
#     HTTP:\\H:80\b\%2e\c     http://h/b/c
#     //0x7f.1                 http://127.0.0.1/
#     //bücher.de?ü            http://xn--bcher-kva.de/?%C3%BC
#     http://a b/              a ValueError
#
# The invariants. A URL holds printable ASCII only and no space: it can be put into a request, a
# log or a terminal as it is. User names and passwords are dropped at once. Whatever cannot be
# understood with certainty is a ValueError, never a guess at another host. Everything else
# (scope, pool, connection) looks at the parsed object, so that no two parts can read one
# address differently. parse_url(str(url)) == url.

MAX_URL = 8_000  # characters: what RFC 9110 section 4.1 asks everyone to support
MAX_HOST = 253   # characters: what the DNS can ask for


class UnfetchableError(ValueError):
    """What may well be a URL, but is none that is fetched here; says why."""


class URL(NamedTuple):
    """An http or https URL, normalised and without fragment; str() spells it.

    origin      "http://host" or "https://host:8443"; the default port is left out
    host        ASCII; IPv6 in brackets
    target      what the request line asks for: "/path" or "/path?query"
    """

    origin: str
    scheme: str
    host: str
    port: int
    target: str

    def __str__(self) -> str:
        return self.origin + self.target


_CONTROLS = "".join(map(chr, range(33)))  # and the space
_PORTS = {"http": 80, "https": 443}
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):")
_AUTHORITY = re.compile(r"(\[[^]]*\]|[^:]*)(?::([0-9]*))?")
# What is percent-encoded beside blanks, controls and all that is not ASCII: in a path " # < > ? ^ `
# { and }, in a query " # ' < and >.
_NOT_IN_PATH = re.compile(r"[^!$-;=@-\]_a-z|~]+")
_NOT_IN_QUERY = re.compile(r"[^!$-&(-;=?-~]+")


def _percent(match: re.Match[str]) -> str:
    characters = re.sub("[\ud800-\udfff]", "\ufffd", match[0])
    return "%" + characters.encode().hex("%").upper()


def _parse_address(host: str) -> str:
    """Return an IP address, IPv6 in brackets or IPv4 in any notation, as browsers spell it."""
    try:
        if host.startswith("["):
            packed = socket.inet_pton(socket.AF_INET6, host[1:-1])
        else:
            numbers = re.sub(r"\b0x(?![0-9a-f])", "0", host.removesuffix("."))  # 0x is 0
            return socket.inet_ntoa(socket.inet_aton(numbers))
    except (OSError, UnicodeError):
        raise ValueError(f"{host[:60]} is not an IP address") from None
    # inet_ntop ends some like an IPv4 address (::ffff:1.2.3.4), which browsers do not.
    end = f"{packed[12] << 8 | packed[13]:x}:{packed[14] << 8 | packed[15]:x}"
    return f"[{re.sub('[0-9]+[.].*', end, socket.inet_ntop(socket.AF_INET6, packed))}]"


def _to_ascii(label: str) -> str:
    """Return one label of an international name in its ASCII form, RFC 3490.

    The standard library knows IDNA 2003, browsers use its successor. A name with one of the
    characters that are known to differ (sharp s, final sigma, joiners, what came after Unicode
    3.2, what stands for a dot) is refused.
    """
    if label.isascii():
        return label
    if len(label) > 59:  # it comes behind "xn--"; to encode it would take quadratic time
        raise ValueError(f"{label[:59]!r} is too long for a label of a name")
    doubtful = re.search("[\u00df\u1e9e\u03c2\u200c\u200d]", label)
    encoded = "" if doubtful else label.encode("idna").decode()
    if doubtful or "." in encoded or any(map(stringprep.in_table_a1, label)):
        raise UnfetchableError("a host name that programs take for different hosts")
    return encoded


@functools.lru_cache(1000)  # more than most sites link to; a name costs 4 microseconds
def _parse_host(text: str) -> str:
    """Return the host of an authority as it is looked up and sent.

        EX%41MPLE.com    example.com             0x7f.1           127.0.0.1
        bücher.de        xn--bcher-kva.de        [::FFFF:1.2.3.4] [::ffff:102:304]
        a b.com          ValueError              straße.de        UnfetchableError
    """
    if text.startswith("["):
        return _parse_address(text)
    if "%" in text:
        text = unquote_to_bytes(text).decode()
    # Before the work of encoding it. (One character may stand for eighteen.)
    if not text.isascii() and len(unicodedata.normalize("NFKC", text)) > MAX_HOST:
        raise ValueError(f"{text[:60]!r}... is longer than a host can be")
    host = ".".join(map(_to_ascii, re.split("[.\u3002\uff0e\uff61]", text))).lower()
    if not host or re.search(r"[^!-~]|[#%/:<>?@[\\\]^|]", host):
        raise ValueError(f"{text[:60]!r} is not a host")
    last = host.removesuffix(".").rpartition(".")[2]
    return _parse_address(host) if re.fullmatch("[0-9]+|0x[0-9a-f]*", last) else host


def _parse_path(path: str) -> str:
    """Return an absolute path with its dot segments resolved and unsafe characters encoded."""
    if "/." not in path and "%" not in path and not _NOT_IN_PATH.search(path):
        return path
    segments: list[str] = []
    for part in _NOT_IN_PATH.sub(_percent, path[1:]).split("/"):
        dots = part.lower().replace("%2e", ".")
        if dots == "..":
            del segments[-1:]
        elif dots != ".":
            segments.append(part)
    if dots in (".", ".."):
        segments.append("")  # it ends with a slash, then
    return "/" + "/".join(segments)


def parse_url(reference: str, base: URL | None = None) -> URL:
    """Return the URL that *reference* means on the page *base*; raise ValueError if none.

    WHATWG URL, section 4.4, for the schemes http and https. UnfetchableError, a ValueError, for
    another scheme, more than MAX_URL characters, or a doubtful host.
    """
    text = reference.strip(_CONTROLS).replace("\t", "").replace("\n", "").replace("\r", "")
    match = _SCHEME.match(text)
    scheme = match[1].lower() if match else base.scheme if base else ""
    if scheme not in _PORTS:
        raise UnfetchableError(f"{scheme[:20] or 'no scheme'}: neither http nor https")
    text = text.partition("#")[0]
    if len(text) > MAX_URL:
        raise UnfetchableError(f"longer than {MAX_URL} characters")
    head, mark, query = text[match.end() if match else 0:].partition("?")
    head = head.replace("\\", "/")
    # "http:x" is relative on a page of that scheme, and a host elsewhere.
    if head.startswith("//") or base is None or scheme != base.scheme:
        authority, _, path = head.lstrip("/").partition("/")
        found = _AUTHORITY.fullmatch(authority.rpartition("@")[2])
        if found is None or int(found[2] or 0) > 65535:
            raise ValueError(f"{authority.rpartition('@')[2]!r} is not a host and a port")
        host = _parse_host(found[1])
        port = int(found[2] or _PORTS[scheme])
        origin = f"{scheme}://{host}" + (f":{port}" if port != _PORTS[scheme] else "")
        path = "/" + path
    else:
        origin, _, host, port, target = base
        directory, base_mark, base_query = target.partition("?")
        path = head if head.startswith("/") else directory[:directory.rfind("/") + 1] + head
        if not head:
            path = directory
            if not mark:
                mark, query = base_mark, base_query
    target = _parse_path(path) + mark + _NOT_IN_QUERY.sub(_percent, query)
    if len(origin) + len(target) > MAX_URL:
        raise UnfetchableError(f"longer than {MAX_URL} characters")
    return URL(origin, scheme, host, port, target)


# 9  HTTP messages
# ================
#
# The problem: a response is a head of text lines and a body of bytes, and nothing marks the
# body's end but what the head says about it. A client that guesses wrong takes the rest of one
# answer for the beginning of the next.
#
# The idea: a parser that does no I/O. It is fed what the network gave, in pieces of any size,
# and says when a response is complete. Inside it is a coroutine again, one that waits for bytes
# instead of futures: a bare `yield` wherever the grammar of HTTP/1.1 (RFC 9112) needs bytes
# that are not there yet.
#
#     parser = ResponseParser()
#     parser.feed(b"HTTP/1.1 200 OK\r\nContent-Le")       False
#     parser.feed(b"ngth: 5\r\n\r\nhel")                   False
#     parser.feed(b"lo")                                   True
#     parser.response.body                                 b"hello"
#
# Where a body ends is decided in one place, `_framing`:
#
#     the answer to HEAD, 1xx, 204, 304      there is none
#     Transfer-Encoding: chunked             each piece says its length, 0 is the last
#     Content-Length: n                      after n bytes
#     neither                                when the server closes the connection
#
# The invariants. Every byte is accounted for: an end before the length is reached, two lengths
# that differ, or a Transfer-Encoding that is not plain chunked or has a length beside it, are
# errors; bytes after the end are nobody's answer, and the connection is not used again. No part
# grows without a bound. The cost: linear in the bytes, however they are cut into pieces.

MAX_HEAD = 65_536            # bytes: heads, trailers and what chunks carry beside data, together
MAX_BODY = 10 * 1024 * 1024  # bytes, on the wire and decoded: larger than any page worth reading
MAX_DROPPED = 65_536         # bytes not wanted: to read them is cheaper than another connection


class ProtocolError(Exception):
    """The server's answer is not valid HTTP/1; says what was expected and what was seen."""


class TruncatedError(ProtocolError):
    """The connection ended before the answer did."""


class LimitError(ProtocolError):
    """Something in the answer is larger than it may be; says what, and the limit."""

    response: Any = None  # the Response without its body, if its head was there


def _always(*_: object) -> bool:
    return True


class Response:
    """The answer to one request.

    version         1 for HTTP/1.1
    status, reason  200 and "OK"
    headers         by name in lower case; those of repeated fields joined by ", "
    content_type    one of them, "" if it is not there
    body            decoded; empty when it was not wanted
    reusable        whether the connection can take another request
    """

    def __init__(self, version: int, status: int, reason: str, headers: dict[str, str]) -> None:
        self.version, self.status, self.reason, self.headers = version, status, reason, headers
        self.content_type = headers.get("content-type", "")
        self.body, self.reusable = b"", False


_FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*+([^\r\n\0]*+)")
_FOLDED = re.compile(r"\n[ \t]+")  # a field may go on in the next line: obsolete, but met
_STATUS_LINE = re.compile(r"HTTP/1\.([0-9]) ([1-9][0-9][0-9])(?: ([^\r\n\0]*))?")
_LENGTHS = re.compile(r"[0-9]{1,18}(?:[ \t]*,[ \t]*[0-9]{1,18})*")  # each less than 2**63
_LINE_END = re.compile(rb"\n")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?\r\n")  # at most 64 bits


def _parse_fields(text: str) -> dict[str, str]:
    """Return the fields of a head, or of what comes after a body in chunks."""
    fields: dict[str, list[str]] = {}
    for line in filter(None, _FOLDED.sub(" ", text).split("\n")):
        match = _FIELD.fullmatch(line)
        if match is None:
            raise ProtocolError(f"a header field was expected, not {line[:60]!r}")
        fields.setdefault(match[1].lower(), []).append(match[2].rstrip(" \t"))
    return {name: ", ".join(values) for name, values in fields.items()}


def _parse_head(text: str) -> Response:
    """Return the Response whose head is *text*: status line and fields, RFC 9112, 4 and 5."""
    line, _, fields = text.replace("\r\n", "\n").rstrip("\n").partition("\n")
    match = _STATUS_LINE.fullmatch(line)
    if match is None:
        raise ProtocolError(f"an HTTP/1 status line was expected, not {line[:60]!r}")
    return Response(int(match[1]), int(match[2]), match[3] or "", _parse_fields(fields))


def _framing(method: str, response: Response) -> int | str:
    """Return where the body ends: its length, "chunked" or "close". RFC 9112 section 6.3."""
    coding = response.headers.get("transfer-encoding")
    length = response.headers.get("content-length")
    listed = length.split(",") if length and _LENGTHS.fullmatch(length) else []
    lengths = set(map(int, listed))
    if length is not None and len(lengths) != 1:
        raise ProtocolError(f"one Content-Length was expected, not {length!r}")
    if method == "HEAD" or response.status < 200 or response.status in (204, 304):
        return 0
    if coding is not None:
        if coding.lower() != "chunked" or response.version == 0 or lengths:
            raise ProtocolError(f"Transfer-Encoding {coding!r} leaves the body's end in doubt")
        return "chunked"
    return lengths.pop() if lengths else "close"


def _decode(body: bytes, coding: str, limit: int) -> bytes:
    """Undo a Content-Encoding of gzip; LimitError for more than *limit* bytes."""
    if coding in ("", "identity") or not body:
        return body
    if coding not in ("gzip", "x-gzip"):
        raise ProtocolError(f"Content-Encoding {coding!r} was not asked for")
    unzip = zlib.decompressobj(31)  # a gzip header, and 32 KB of window
    try:
        decoded = unzip.decompress(body, limit + 1)
    except zlib.error as error:
        raise ProtocolError(f"the {coding} body is corrupt: {error}") from None
    if len(decoded) > limit:
        raise LimitError(f"a decoded body of more than {limit} bytes")
    if not unzip.eof:
        raise TruncatedError("the compressed body ends too early")
    if unzip.unused_data.strip(b"\0"):  # zeros are padding
        raise ProtocolError(f"something follows the end of the {coding} body")
    return decoded


class ResponseParser:
    """Takes the bytes of a connection, in pieces of any size, and makes a Response of them.

    *method* is the request's. *wanted(response)* is asked when the head is complete: a body
    that is not wanted is read, and dropped, only if it is known to have at most MAX_DROPPED
    bytes, for then the connection can be used again. *max_body* is in bytes.
    """

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

        It is in .response (earlier that may be an interim one, or one without its body). Raises
        ProtocolError (TruncatedError, LimitError). After True or an error the parser is not to
        be fed again.
        """
        self.buffer += data
        self.ended = not data
        # next() gives None while it waits for more, and "complete" once it has returned.
        return next(self._parsing, "complete") == "complete"

    def _parse(self) -> Iterator[None]:
        """Parse one response; each `yield` waits for feed()."""
        while True:
            head = yield from self._take_through(re.compile(rb"\n\r?\n"), "head")
            # One empty line before it is allowed.
            self.response = response = _parse_head(head.decode("latin-1").lstrip("\r\n"))
            framing = _framing(self._method, response)
            if response.status >= 200 or response.status == 101:  # after 101 comes no HTTP
                break
        wanted = self._wanted(response)
        if not wanted and (not isinstance(framing, int) or framing > MAX_DROPPED):
            return
        if framing == "chunked":
            body = yield from self._chunks()
        else:
            while framing == "close" and not self.ended:
                self._check_size(len(self.buffer))
                yield
            size = framing if isinstance(framing, int) else len(self.buffer)
            if wanted:
                self._check_size(size)
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
                raise TruncatedError("the connection was closed before the response ended")
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
            if size > self._budget:
                raise LimitError(f"a {what} of more than {MAX_HEAD} bytes")
            if match:
                self._budget -= size
                return (yield from self._take(size))
            start = max(0, size - 2)  # an end may have begun there
            yield from self._need(size + 1)

    def _check_size(self, size: int) -> None:
        if size > self._max_body:
            raise LimitError(f"a body of more than {self._max_body} bytes")

    def _chunks(self) -> Generator[None, None, bytes]:
        """Return a body that comes in chunks, RFC 9112 section 7.1; trailers are dropped."""
        body = bytearray()
        while True:
            line = yield from self._take_through(_LINE_END, "chunk's first line")
            match = _CHUNK_SIZE.fullmatch(line)
            if match is None:
                raise ProtocolError(f"a chunk size in hexadecimal was expected, not {line[:40]!r}")
            size = int(match[1], 16)
            if size == 0:
                break
            # The line was charged whole. Up to 16 bytes and twice its chunk are given back:
            # plain chunks cost nothing, extensions (after a ";") stay bounded.
            self._budget += min(len(line), 16 + 2 * size)
            self._check_size(len(body) + size)
            chunk = yield from self._take(size + 2)
            if not chunk.endswith(b"\r\n"):
                raise ProtocolError(f"the end of a chunk was expected, not {chunk[size:]!r}")
            body += chunk[:size]
        trailers = b""
        while line not in (b"\r\n", b"\n"):
            line = yield from self._take_through(_LINE_END, "trailer section")
            trailers += line
        _parse_fields(trailers.decode("latin-1").replace("\r\n", "\n"))  # are they fields?
        return bytes(body)


# 10  HTTP client
# ===============
#
# The problem: a new connection costs one round trip, a TLS one two or three and a millisecond
# of arithmetic, and a crawler asks the same server again and again.
#
# The idea: keep what is not in use. The pool holds idle streams by origin, and a request takes
# the one used last or else connects. One request at a time on each: no pipelining, so an answer
# can never belong to another question.
#
# The invariants. A stream is in the pool or with one task, never both. (In the pool, `_drop` is its
# reader, until the next read() puts its own in that one's place.)
#
#     kept      if its response was read to the end, and it may be reused
#     closed    otherwise, cancelled requests included; when there are too many; and when there is
#               something to read on an idle one: the server's end of it, or no answer of ours
#
# The server may still close it, or send a stray message, just as the next request leaves: so a
# request that fails on a reused connection before a whole head came back is sent once more, on a
# fresh one (RFC 9112, 9.3.1).

FETCH_TIMEOUT = 30.0  # seconds for a whole fetch
MAX_IDLE = 256        # connections kept, by default: a process may usually have 1,024 files open


def _shared(tasks: dict[Any, Task[T]], work: Callable[..., Runnable[T]], *key: Any) -> Waits[T]:
    """Return what work(*key) returns, done once for all callers; after a failure, done anew.

    *tasks* holds its Task by key; cancelling a caller leaves it running.
    """
    task = tasks.get(key)
    if task is None or task._state in ("FAILED", "CANCELLED"):
        task = tasks[key] = create_task(work(*key))
        task.add_done_callback(_outcome)  # looks at its error: all who waited may have left
    yield from _until_done(task)
    return task.result()


class Client:
    """HTTP/1.1 requests over a pool of connections. close() it in the end.

    *headers* are sent with every request (but for fetch(own_headers=False)), in place of or
    beside the usual ones (ValueError for what is no header field); *timeout* is in seconds for
    one fetch, from lookup to last byte; *max_body* in bytes; *max_idle* connections are kept.
    """

    def __init__(self, headers: dict[str, str] | None = None, timeout: float = FETCH_TIMEOUT,
                 max_body: int = MAX_BODY, max_idle: int = MAX_IDLE) -> None:
        usual = {"User-Agent": f"crawl.py/{VERSION}", "Accept": "*/*", "Accept-Encoding": "gzip"}
        # One spelling of each name, so that the user's fields replace the usual ones.
        fields = usual | {name.title(): value for name, value in (headers or {}).items()}
        for name, value in fields.items():
            field = f"{name}: {value}"
            if not _FIELD.fullmatch(field) or not value.isprintable() or name == "Host":
                raise ValueError(f"a header 'Name: value' (not Host) was expected, not {field!r}")
        self.timeout, self.max_idle = timeout, max_idle
        self.max_body = min(max_body, 1 << 40)  # zlib takes 63 bits
        self.opened = 0                 # connections made
        self.user_agent = usual["User-Agent"] = fields["User-Agent"]
        # What every request says: without the user's *headers*, and with them.
        self._usual_fields, self._fields = ["".join(
            f"{name}: {value}\r\n" for name, value in some.items()) for some in (usual, fields)]
        self.pool: dict[Stream, str] = {}  # idle streams, the longest idle first: their origins
        self.lookups: dict[Any, Task[list[Any]]] = {}  # by host and port
        self._tls: ssl.SSLContext | None = None

    @coroutine
    def fetch(self, url: URL, method: str = "GET", wanted: Callable[[Response], bool] = _always,
              max_body: int = 0, own_headers: bool = True) -> Waits[Response]:
        """Return the response to one request of *method*; redirects are not followed.

        *method* must be one that may be sent twice, such as GET or HEAD. *own_headers* says
        whether the client's *headers* are sent, which may be secrets between the user and some
        hosts; the User-Agent always is. The body is read if *wanted(response)*, called when the
        head is there, is true. One of more than *max_body* bytes (0: the client's limit) raises
        LimitError, a ProtocolError. Raises OSError (TimeoutError after self.timeout seconds)
        when there is no answer, ProtocolError when it is broken. Cancelled, it closes the
        connection.
        """
        request = (f"{method} {url.target} HTTP/1.1\r\nHost: {url.origin.partition('//')[2]}\r\n"
                   f"{self._fields if own_headers else self._usual_fields}\r\n").encode()
        fresh = False  # whether only a new connection will do
        with TimeLimit(self.timeout):
            while True:
                kept = None if fresh else self._take_idle(url.origin)
                try:
                    stream = kept or (yield from self._new_stream(url))
                    parser = ResponseParser(method, wanted, max_body or self.max_body)
                    return (yield from self._exchange(stream, url.origin, request, parser))
                except (OSError, ProtocolError) as error:
                    if getattr(error, "errno", 0) in (errno.EMFILE, errno.ENFILE) and self.pool:
                        self.close()  # no descriptor is left: idle connections make room
                    elif not kept or parser.response:
                        raise
                    fresh = True

    def close(self) -> None:
        """Close every idle connection; the client may go on being used."""
        for stream in list(self.pool):
            self._drop(stream)

    def _take_idle(self, origin: str) -> Stream | None:
        """Take the stream that was used last out of the pool, if one has nothing to say."""
        while stream := next((stream for stream, its_origin in reversed(self.pool.items())
                              if its_origin == origin), None):
            del self.pool[stream]
            if not stream.readable():
                return stream
            stream.close()
        return None

    def _drop(self, stream: Stream) -> None:
        """Close a stream that is idle, or was until just now."""
        self.pool.pop(stream, None)
        stream.close()

    def _exchange(self, stream: Stream, origin: str, request: bytes,
                  parser: ResponseParser) -> Waits[Response]:
        """Send *request* and return its response; the stream goes into the pool or is closed."""
        try:
            stream.write(request)
            yield from stream.drain()
            while not parser.feed((yield from stream.read())):
                pass
            return cast(Response, parser.response)
        except LimitError as error:
            error.response = parser.response
            raise
        finally:
            if parser.response and parser.response.reusable:
                self.pool[stream] = origin
                get_running_loop().add_reader(stream.sock, self._drop, stream)
                if len(self.pool) > self.max_idle:
                    self._drop(next(iter(self.pool)))
            else:
                stream.close()

    def _new_stream(self, url: URL) -> Waits[Stream]:
        """Return a new stream. A host is looked up once, until connecting to it fails."""
        key = url.host, url.port
        if url.scheme == "https" and self._tls is None:
            import ssl
            self._tls = ssl.create_default_context()
            self._tls.hostname_checks_common_name = False  # RFC 9110 section 4.3.4
            # Python 3.11.2 mistakes a connection that was cut for the end of the body.
            self._tls.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
            self._tls.set_alpn_protocols(["http/1.1"])
        tls = self._tls if url.scheme == "https" else None
        addresses = yield from _shared(self.lookups, lookup, *key)
        try:
            stream, _ = yield from open_connection(*key, ssl=tls, addresses=addresses)
        except OSError:
            self.lookups.pop(key, None)
            raise
        self.opened += 1
        return stream


@coroutine
def fetch(url: str, **options: Any) -> Waits[Response]:
    """Return the response to GET *url*, which needs its http:// or https://.

    Redirects are not followed; options are Client's. Raises ValueError for what is no URL,
    otherwise what Client.fetch raises.
    """
    with contextlib.closing(Client(**options)) as client:
        return (yield from client.fetch(parse_url(url)))


# 11  Links
# =========
#
# The problem: find what a page points to in markup that nobody checked, at a price that does
# not exceed the fetching, and without being fooled by comments, scripts or quoted text that
# look like links.
#
# The idea: one regular expression is matched all over the page by findall(), and gives only the
# tags that lead somewhere. Few are left, and many of them are alike, so it costs little to look
# at those as closely as a browser does. On the page
#
#     <p>The <a class="top" href="/b#c">first</a>, the <A HREF='/d&amp;e'>second</A>
#     <link rel=icon href=i.png> <!-- <a href=/no> --> <script src=s.js>"<a href=/no>"</script>
#
# this becomes of it:
#
#     findall() gives                      _parse_tag makes of that        in the Markup
#     ('"/b', "")                          (only the quote is taken off)   links   /b
#     ("", "A HREF='/d&amp;e'")            a, href /d&e                    links   /d&e
#     ("", "link rel=icon href=i.png")     link, rel icon, href i.png      assets  i.png
#     ("", "")                             (the comment, stepped over)
#     ("", 'script src=s.js>"<a href..')   script, src s.js                assets  s.js
#
# The invariant: linear time, whatever the page. No repetition that could go far gives back what it
# took: `*+` of one character, `(?>(?:...)*)` of a group (3.11.4 takes `(?:...)*+` wrongly). And at
# a `<` and a letter the whole tag matches and is behind us, however it goes on; but for end tags,
# <p>, <div class="x"> and the like, of which no more is looked at than up to the next `<`. The
# cost: some 4 microseconds per KB, where html.parser takes 150.

MAX_REFERENCES = 100_000  # of a page, sitemap or sheet: a second of work (a sitemap has 50,000)

# What pages show or use, their assets: elements and attributes, as the HTML standard's index
# lists them. Links are the href of a and area, and the src of frames.
_ASSETS = {
    "audio": ["src"], "embed": ["src"], "img": ["src", "srcset"], "input": ["src"],
    "link": ["href", "imagesrcset"], "object": ["data"], "script": ["src"],
    "source": ["src", "srcset"], "track": ["src"], "video": ["src", "poster"]}

# The expression does what the HTML standard's tokenizer does (section 13.2.5), as far as links need
# it, and captures one of two things: the reference of a usual link, or a tag. Of its parts the
# first that fits is taken. (End tags are no tags here, so a link in an attribute of one would be
# found.)

# In <a class="x" href=/b>: _VALUE is "x", and then /b; _ATTRIBUTE all of class="x" and the blank
# behind it; _REST everything between <a and >.
_VALUE = r"""(?>"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z)|[^\s>"'][^\s>]*+|)"""
_ATTRIBUTE = rf"[^\s/>][^\s/>=]*+(?>\s*+=\s*+{_VALUE}|)[\s/]*+"
_REST = rf"(?=[\s/>])[\s/]*+(?>(?:{_ATTRIBUTE})*)"


def _with_text(*names: str) -> str:
    """Return a pattern for elements, up to their end tags, in which nothing counts as a tag."""
    return "|".join(rf"(?i:{name}){_REST}>[^<]*+(?>(?:<(?!/(?i:{name})[\s/>])[^<]*+)*)"
                    for name in names)


@functools.cache  # compiled at its first use: that takes 5 ms
def _tags(fragments: bool) -> re.Pattern[str]:
    """Return the expression; with *fragments*, it captures those of usual links, too.

    Without them /b#c and /b#d are one link. What is said to save time could go, and nothing else
    would be found.
    """
    end = "" if fragments else r"\#"
    return re.compile(rf"""<
        (?=[^/])                                        # to save time: no end tag, nor
        (?![a-zA-Z0-9]{{1,2}}+>)                          # <p>, nor
        (?!(?:div|span|code|p|li|td|em)[ ]class="[^"<]*+">)      # <div class="x">
    (?:
        a[ ](?>(?:(?:class|title|id|rel)="[^"]*+"[ ])*) # the usual link, <a class="x" href="/b#c">
        href=("[^"{end}&\0-\x20]*+)(?>\#[^"]*+|)        # captures "/b, of a mere "#c" the quote,
        (?:">|"{_REST}>)                                # and goes on to the >
    |
        (?=[aAbBeEfFiIlLmMoOsStTvV])                    # (to save time)
        (
            (?i:(?!script)(?:a|area|base|frame|meta|{"|".join(_ASSETS)}))   # <IMG SRC=f>
            {_REST}(?=>)                                # captures IMG SRC=f
        |
            {_with_text("script", "style", "iframe")}   # captures script src=s>...
        )
    |
        (?=[!?tTnNxX])                                  # (to save time)
        (?:
            {_with_text("title", "textarea", "template", "noembed", "noframes", "xmp")}
        |
            !--(?:-?>|[^-]*+(?>(?:-(?!-!?>)[^-]*+)*)(?:--!?>|\Z))       # <!-- ... -->
        |
            [!?][^>]*+                                  # <!doctype html>, <?php ... ?>
        )
    |
        [a-zA-Z][^\s/>]*+[\s/]*+                        # any other tag, <p title="<a href=/no>">,
        (?>(?:{_ATTRIBUTE})*)(?:>|\Z)                   # to the > or the end of the page
    )""", re.VERBOSE | re.ASCII)


# &amp; and &#38; and &#x26; and &copy, but not &copy=
_ENTITY = re.compile(r"&(?:#[0-9]{1,9}+(?![0-9]);?|#[xX][0-9a-fA-F]{1,9}+(?![0-9a-fA-F]);?"
                     r"|[0-9a-zA-Z]{1,40}+(?:;|(?!=)))")
# Of "a href=/b class='x'" the pairs href, /b and class, 'x'; of "script>..." one without a name.
_PAIR = re.compile(
    r"""([^\s/>][^\s/>=]*+)(?>\s*+=\s*+("[^"]*+"?|'[^']*+'?|[^\s>]*+)|)|>(?s:.*)""", re.ASCII)
# All attributes that are looked at.
_LOOKED_AT = {"href", "rel", "hreflang", "http-equiv", "name", "content"}.union(*_ASSETS.values())


@functools.lru_cache(1000)
def _character(entity: str) -> str:
    import html.entities  # here, for many pages have none
    numeric = entity.startswith("&#")
    return html.unescape(entity) if numeric else html.entities.html5.get(entity[1:], entity)


def _unescape(value: str) -> str:
    """Decode the entities of an attribute: "&copy=2" is none there, HTML section 13.2.5.73."""
    return _ENTITY.sub(lambda match: _character(match[0]), value) if "&" in value else value


@functools.lru_cache(1000)  # a site's pages share many tags
def _parse_tag(tag: str) -> tuple[str, dict[str, str]]:
    """Return the name and the attributes of a captured tag; of two of one name the first counts."""
    attributes: dict[str, str] = {}
    element = cast("re.Match[str]", _PAIR.match(tag))[1]
    for name, value in _PAIR.findall(tag, len(element)):
        name = name.lower()
        if name in _LOOKED_AT and name not in attributes:
            quoted = value[:1] in ('"', "'")
            attributes[name] = _unescape(value.strip(value[0]) if quoted else value)
    return element.lower(), attributes


def _strings(end: str) -> str:
    """Return a pattern for the strings of a sheet; those that nothing closes have this *end*."""
    return "|".join(rf"{quote}(?>[^{quote}\\\n]*+(?:\\(?s:.)[^{quote}\\\n]*+)*)(?:{quote}{end})"
                    for quote in "\"'")


_SHEET = re.compile(rf"""
    /\*(?>[^*]*+(?:\*(?!/)[^*]*+)*)                 # /* a comment: stepped over, like the next
  | @namespace[^;]*+
  | (?:@import\s*+(?=["'])|url\(\s*+)              # what follows is captured, quoted or bare
    ((?>{_strings("")})|(?>[^"'()\\\s]*+(?:\\.[^"'()\\\s]*+)*))
  | (?>(?:(?:{_strings("|")})\s*+){{1,1000}})        # other strings: stepped over
    """, re.VERBOSE | re.IGNORECASE)
_CSS_ESCAPE = re.compile(r"\\(?:([0-9a-fA-F]{1,6})\s?|\n|(.))")


def read_sheet(text: str) -> list[str]:
    """Return what a style sheet uses: the references of its url() and @import. Never fails."""
    def character(match: re.Match[str]) -> str:
        code = int(match[1] or "0", 16)
        return (chr(code) if code < 0x110000 else "\ufffd") if match[1] else match[2] or ""
    values = [found[1:-1] if found[:1] in ('"', "'") else found for found in _SHEET.findall(text)]
    return [_CSS_ESCAPE.sub(character, value) for value in values if value]


_ID = re.compile(r"""[\s"'/](?:id|name)\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s>"']++))""", re.I)


def ids_of(text: str) -> frozenset[str]:
    """Return the places of a page to which a fragment can lead, and perhaps some more."""
    return frozenset(_unescape(one or other or bare) for one, other, bare in _ID.findall(text))


_CANDIDATE = re.compile(r"([^\s,]\S*+)(?>(?<!,)\s[^,]*+|)")  # of "i.png, j.png 2x" i.png, and j.png


def _assets_of(element: str, attributes: dict[str, str]) -> Iterator[str]:
    """Yield the references of one tag to what its page shows or uses."""
    for name in _ASSETS.get(element, ()):
        if name.endswith("srcset"):
            for candidate in _CANDIDATE.findall(attributes.get(name, "")):
                yield candidate.rstrip(",")
        elif name in attributes:
            yield attributes[name]


# Kinds of `link` elements: _PAGES lead to pages, unless one of _SHOWN is there, too; _HINTS to
# nothing; all others, and _SHOWN, are assets.
_PAGES = {"next", "prev", "canonical"}
_SHOWN = re.compile("stylesheet|icon|preload|manifest")  # as in apple-touch-icon
_HINTS = {"dns-prefetch", "preconnect", "pingback", "edituri", "profile"}


@functools.lru_cache(1000)
def _use_of(rel: str, hreflang: bool) -> str:
    """Return as what a link element's href counts: "link", "asset" or ""."""
    kinds = set(rel.lower().split())
    if _SHOWN.search(rel.lower()):
        return "asset"
    if kinds & _PAGES or hreflang and "alternate" in kinds:  # the page in another language
        return "link"
    return "asset" if kinds and kinds.isdisjoint(_HINTS) else ""


class Markup(NamedTuple):
    """What a page, sitemap or sheet refers to: references as written, with entities decoded."""

    base: URL               # what they are relative to
    links: list[str] = []   # of a, area, frames, some link; fragments may be missing unless wanted
    assets: list[str] = []  # images, scripts, styles and the like
    refresh: str = ""       # where a meta refresh leads
    nofollow: bool = False  # whether it asks not to follow the links
    ids: frozenset[str] = frozenset()   # the places to which a fragment can lead, if wanted


def _check_count(references: Sized, base: URL) -> None:
    limit = MAX_REFERENCES * 500 // max(500, len(base.target))  # each URL may be as long as that
    if len(references) > limit:
        raise LimitError(f"more than {limit} references")


_REFRESH = re.compile(
    r"""\s*+[0-9.]++[\s;,]++(?:url\s*+=\s*+)?["']?([^"']*+)""", re.ASCII | re.IGNORECASE)
_NOFOLLOW = re.compile(r"\bnofollow\b|(?:^|,)\s*+none\b", re.IGNORECASE)


def read_markup(text: str, page: URL, product: str = PRODUCT, fragments: bool = False) -> Markup:
    """Return what an HTML page refers to, read as a robot named *product*.

    Raises LimitError for MAX_REFERENCES or more tags that differ (fewer if the page's path and
    query are longer than 500 characters); whatever else it is, it can be read.
    """
    links: list[str] = []
    assets: list[str] = []
    base, refresh, nofollow = None, "", False
    found = dict.fromkeys(_tags(fragments).findall(text.replace("\0", "\ufffd")))
    _check_count(found, page)
    for usual, tag in found:
        if usual:
            links.append(usual[1:])
        elif tag:  # a long one is a script, not worth caching
            element, attributes = _parse_tag(tag) if len(tag) < 500 else _parse_tag.__wrapped__(tag)
            if element == "base":
                base = attributes.get("href") if base is None else base
            elif element == "meta":
                content = attributes.get("content", "")
                match = _REFRESH.match(content)
                if match and attributes.get("http-equiv", "").lower() == "refresh":
                    refresh = match[1].strip()
                elif attributes.get("name", "").lower() in ("robots", product.lower()):
                    nofollow = nofollow or bool(_NOFOLLOW.search(content))
            elif element == "style":
                assets += read_sheet(tag)
            elif element in ("a", "area", "frame", "iframe"):
                name = "src" if "frame" in element else "href"
                links += [attributes[name]] if name in attributes else []
            elif element == "link" and (use := _use_of(
                    attributes.get("rel", "")[:MAX_SHOWN], "hreflang" in attributes)) != "asset":
                links += [attributes["href"]] if use and "href" in attributes else []
            else:
                assets += _assets_of(element, attributes)
    with contextlib.suppress(ValueError):
        if base is not None:
            page = parse_url(base, page)
    ids = ids_of(text) if fragments else frozenset()
    return Markup(page, links, assets, refresh, nofollow, ids)


_LOC = re.compile(r"<(?:\w+:)?loc\b[^<>]*+>\s*+(?:<!\[CDATA\[)?\s*+([^<\s]++)")


def read_sitemap(text: str) -> list[str]:
    """Return the URLs that a sitemap, or an index of sitemaps, lists; [] for other XML."""
    return [_unescape(url.removesuffix("]]>")) for url in _LOC.findall(text)]


_CHARSET = re.compile(rb"""charset\s*+=\s*+["']?+\s*+([A-Za-z0-9_:.+-]++)""", re.I)
_META_CHARSET = re.compile(rb"<meta[^>]*?[\s;\"']" + _CHARSET.pattern, re.I)
# Python has codecs that are not for pages (unicode_escape, idna, UTF-32), and UTF-7 hides tags.
_WEB_CHARSET = re.compile("(?!utf[^a-z0-9]*(?:7|32))(?:utf|iso|latin|windows|cp|koi8|euc|shift|"
                          "sjis|gb|big5|mac|ascii|us-ascii|tis|ks|ibm|hz)", re.IGNORECASE)


def decode_page(body: bytes, content_type: str) -> tuple[str, str]:
    """Return a page's text and charset: by its BOM, *content_type*, its meta, or UTF-8."""
    charset = "utf-16" if body[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    if charset == "utf-8" and body[:3] != b"\xef\xbb\xbf":
        match = _CHARSET.search(content_type.encode("latin-1", "replace"))
        meta = None if match else _META_CHARSET.search(body[:1024])  # HTML section 13.2.3.2
        if match:
            charset = match[1].decode()
        elif meta and not meta[1].lower().startswith(b"utf"):  # it was read as ASCII
            charset = meta[1].decode()
    if not _WEB_CHARSET.match(charset):
        charset = "utf-8"
    try:
        return body.decode(charset, "replace"), charset.lower()
    except (LookupError, UnicodeError, OSError):  # no such codec, or it failed
        return body.decode("utf-8", "replace"), "utf-8"


# 12  Robots
# ==========
#
# The problem: a site says in /robots.txt what crawlers may fetch (RFC 9309), and says it in a
# file that people wrote by hand, for the crawler that they had in mind.
#
# The idea: groups of rules are headed by the names they are for; those with our name count, all
# of them together, or else those for "*". Of the rules that match a URL the one with the
# longest pattern wins, of two as long the one that allows. "*" stands for any characters, a
# final "$" for the end. A Crawl-delay is kept to (15); other lines are ignored. So with
#
#     User-agent: *
#     Disallow: /
#     User-agent: crawl
#     Disallow: /shop/
#     Allow: /shop/sale
#     Disallow: /*.pdf$
#
# the first group is for others, and for us
#
#     /shop/hats         is forbidden by /shop/
#     /shop/sale/hats    is allowed: /shop/sale is longer
#     /price.pdf         is forbidden by /*.pdf$
#     /price.pdf?a=b     is allowed: no pattern matches it

MAX_ROBOTS = 512 * 1024  # characters of robots.txt: RFC 9309 section 2.5 wants 500 KiB
MAX_RULES = 1000         # rules: those that follow do not count, for each is tried on each URL
_ESCAPED = re.compile("%[0-9a-fA-F]{2}")


def _capital_escapes(path: str) -> str:
    return _ESCAPED.sub(lambda match: match[0].upper(), path)


def _comparable(pattern: str) -> str:
    """Return *pattern* with everything escaped that parse_url() escapes."""
    path, mark, query = pattern.partition("?")
    escaped = _NOT_IN_PATH.sub(_percent, path) + mark + _NOT_IN_QUERY.sub(_percent, query)
    return _capital_escapes(escaped)


def _matches(parts: list[str], path: str) -> bool:
    """Return whether a pattern, split at its "*"s, matches the beginning of *path*."""
    at = len(parts[0])
    if not path.startswith(parts[0]):
        return False
    for part in parts[1:]:
        at = path.find(part, at) + len(part)
        if at < len(part):
            return False
    return True


def product_of(user_agent: str) -> str:
    """Return "MyBot" for "MyBot/2.0 (+http://me)": the name in robots.txt, RFC 9309, 2.2.1."""
    return cast("re.Match[str]", re.match("[a-zA-Z_-]*", user_agent))[0]


class Robots:
    """The rules of one robots.txt for the robot named *product*."""

    def __init__(self, text: str, product: str = PRODUCT) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}  # by name; "" stands for "*"
        names: set[str] = set()
        rules_began = True
        for line in re.split("[\r\n]+", text.removeprefix("\ufeff")[:MAX_ROBOTS]):
            line = line.partition("#")[0].strip()
            key, _, value = line.partition(":" if ":" in line else " ")
            key, value = key.strip().lower(), value.strip()
            if key == "user-agent":
                if rules_began:
                    names, rules_began = set(), False
                token = product_of(value).lower()
                if value == "*" or token == product.lower():
                    names.add(token)
                    groups.setdefault(token, [])
            elif key in ("allow", "disallow", "crawl-delay"):
                rules_began |= key != "crawl-delay"  # that may stand among the names
                for name in names:
                    groups[name].append((key, value))
        mine = groups.get(product.lower(), groups.get("", []))
        rules = [(key, _comparable(value)) for key, value in mine
                 if value and key != "crawl-delay"][:MAX_RULES]
        # Longest first, and of equals "allow" first: the first match decides. Only at the end of a
        # pattern a "$" is one: that of /*.pdf$ fits the one that rule() puts behind each path.
        self.rules = [(key, pattern, f"{pattern[:-1].replace('$', '%24')}{pattern[-1]}".split("*"))
                      for key, pattern in sorted(rules, key=lambda rule: (-len(rule[1]), rule[0]))]
        delays = [float(value) for key, value in mine
                  if key == "crawl-delay" and re.fullmatch("[0-9]{1,6}(?:[.][0-9]{1,6})?", value)]
        self.delay = max(delays, default=0.0)  # seconds between requests that the site asks for

    def rule(self, target: str) -> str | None:
        """Return the rule that forbids a path with query, None if it is allowed."""
        if not self.rules or target == "/robots.txt":
            return None
        # RFC 9309, 2.2.3. (Google's parser, too, takes %7E for another character than ~.)
        path = _capital_escapes(target).replace("*", "%2A").replace("$", "%24") + "$"
        for key, pattern, parts in self.rules:
            if _matches(parts, path):
                return None if key == "allow" else f"Disallow: {pattern[:MAX_SHOWN]}"
        return None


# 13  Records
# ===========
#
# (From here on it is about crawling. What becomes of a reference:
#
#     in scope (14), and new (17)?  ->  a Node (16), in the queue or in its site's line (15)
#     ->  a worker asks for it (18)  ->  a Record (13), in the journal and in the report (19))
#
# The problem: everything that wants to know what came of a URL (the report, the callbacks of a
# program, the journal) should be told in the same words.
#
# The idea: how a URL ended is one value, a Record, of numbers and words only:
#
#     record_of(http://h/a, <404 Not Found>)          kind "broken", error "404 Not Found"
#     record_of(http://h/b, ConnectionRefusedError)   kind "refused", error "Connection refused"
#     record_of(http://h/, <200, a page>)             links ("a", "b"), as written; 17 makes
#                                                     ("http://h/a", "http://h/b") of that

PROBLEMS = ("broken", "timed out", "refused", "bad certificate", "over a limit",
            "too many redirects", "blocked", "not finished")  # the last in older journals only
_REDIRECTS = frozenset([301, 302, 303, 307, 308])
_MAY_PASS = frozenset([408, 429, 500, 502, 503, 504])
_UNPRINTABLE = re.compile("[^ -~]")


class CrawlError(Exception):
    """There can be no crawl, or no more of it: a bad root, a full disk."""


def _printable(text: str) -> str:
    """Return *text* with everything that a terminal might obey, or mistake, as \\xNN."""
    return _UNPRINTABLE.sub(lambda match: "\\x" + match[0].encode("utf-8", "surrogatepass").hex(
        " ").replace(" ", "\\x"), text[:MAX_SHOWN])


def _explain(error: BaseException) -> str:
    """Return an error in words that fit on a line."""
    words = str(error)
    if getattr(error, "verify_message", ""):  # of ssl.SSLCertVerificationError
        words = f"its certificate cannot be trusted: {getattr(error, 'verify_message')}"
    elif getattr(error, "library", ""):  # of ssl.SSLError, which names a line of C, too
        words = f"TLS: {str(getattr(error, 'reason')).lower().replace('_', ' ')}"
    elif isinstance(error, OSError) and error.strerror:
        words = error.strerror
    elif isinstance(error, re.error):
        words = f"{error.pattern!r} is no regular expression: {words}"
    return _printable(re.sub(r" \(_ssl\.c:[0-9]+\)", "", words) or type(error).__name__)


class Record(NamedTuple):
    """How one URL ended; its line in the journal holds the fields that are not empty.

    url             a URL in its one spelling, or what is none, in one of its own
    status          of HTTP; 0: there was no answer
    error           in words
    kind            which of PROBLEMS it is
    skipped         the reason why it was not fetched
    method          HEAD or GET if it was only asked for and not read
    next_url        where it redirects to
    content_type    as the server sent it, made printable
    encoding        the charset, of pages and sitemaps only
    size            bytes, decoded
    at, seconds     Unix time of the request; from there to the end of the answer
    tries           how often it was tried by that method (a 429 at first may not count)
    depth           links from a root
    parent          the page, or the redirect, that let it in
    nofollow        whether the links are not to be followed
    links, assets   what a page refers to, and what it shows or uses: as written, or like url
    """

    url: str
    status: int = 0
    error: str = ""
    kind: str = ""
    skipped: str = ""
    method: str = ""
    next_url: str = ""
    content_type: str = ""
    encoding: str = ""
    size: int = 0
    at: float = 0.0
    seconds: float = 0.0
    tries: int = 0
    depth: int = 0
    parent: str = ""
    nofollow: bool = False
    links: tuple[str, ...] = ()
    assets: tuple[str, ...] = ()

    def is_definite(self) -> bool:
        """Return whether this is an answer that stands, and nothing that may pass."""
        return 0 < self.status < 500 and self.status not in (408, 429)


_KINDS = {"text/html": "page", "application/xhtml+xml": "page", "text/css": "sheet",
          "application/xml": "sitemap", "text/xml": "sitemap"}


@functools.lru_cache(1000)
def _kind_of(content_type: str) -> str:
    """Return as what a body of this type is read, "" if it is not."""
    return _KINDS.get(re.split("[;,]", content_type or "text/html")[0].strip().lower(), "")


def _location(response: Response) -> str:
    """Return where a redirect says that it leads, taken as UTF-8, as browsers do."""
    return response.headers.get("location", "").encode("latin-1").decode("utf-8", "replace")


def _markup_of(url: URL, response: Response, read: bool, product: str, fragments: bool
               ) -> tuple[Markup, str]:
    """Return what a body refers to, if it is a sheet or to be *read*, and the charset of a page."""
    kind = _kind_of(response.content_type)
    if not kind or not read and kind != "sheet":
        return Markup(url), ""
    text, encoding = decode_page(response.body, response.content_type)
    if kind == "page":
        return read_markup(text, url, product, fragments), encoding
    if kind == "sheet":
        return Markup(url, assets=read_sheet(text)), ""
    links = read_sitemap(text)
    return Markup(url, links), encoding if links else ""  # without links: other XML


def record_of(url: URL, outcome: Response | Exception, read: bool = True, product: str = PRODUCT,
              fragments: bool = False, **fields: Any) -> tuple[Record, Markup]:
    """Return the Record of how a request for *url* ended, and what its answer refers to.

    *outcome* is a response or an error of Client.fetch. References, which the record holds as
    written, are those of a page or a sitemap if *read* is true, and of a sheet, as a robot named
    *product* takes them; with *fragments*, links have theirs. *fields* are the record's, too.
    """
    markup = Markup(url)
    if isinstance(outcome, LimitError) and outcome.response and _kind_of(
            outcome.response.content_type) == "sitemap":
        outcome = outcome.response  # too large for a sitemap: it is a file
    if isinstance(outcome, Response):
        status = outcome.status
        fields.update(status=status, size=len(outcome.body),
                      content_type=_printable(outcome.content_type))
        if status >= 400:
            fields.update(kind="blocked" if status in (401, 403, 429) else "broken",
                          error=f"{status} {_printable(outcome.reason)}".rstrip())
        elif status in _REDIRECTS:
            fields.update(next_url=_location(outcome))
        elif 200 <= status < 300:
            try:
                markup, encoding = _markup_of(url, outcome, read, product, fragments)
                _check_count(markup.links + markup.assets, markup.base)
            except LimitError as error:
                return record_of(url, error, **fields)
            nofollow = markup.nofollow or encoding and _NOFOLLOW.search(
                outcome.headers.get("x-robots-tag", ""))
            links = markup.links + [markup.refresh] * bool(markup.refresh)
            fields.update(encoding=encoding, nofollow=bool(nofollow),
                          links=tuple(links), assets=tuple(markup.assets))
    else:
        fields.update(error=_explain(outcome), kind=(
            "timed out" if isinstance(outcome, TimeoutError) else
            "bad certificate" if hasattr(outcome, "verify_code") else
            "refused" if isinstance(outcome, OSError) else
            "over a limit" if isinstance(outcome, LimitError) else "broken"))
    return Record(str(url), **fields), markup


def target_of(record: Record, url: URL) -> tuple[Record, URL | None]:
    """Return the record of a redirect from *url* with its target spelled, and the target.

    If it leads to no http or https URL, the record says so, and the target is None.
    """
    try:
        if not record.next_url:
            raise ValueError("it has no Location")
        target = parse_url(record.next_url, url)
    except ValueError as error:
        words = f"a redirect that leads nowhere: {_explain(error)}"
        return record._replace(error=words, kind="broken",
                               next_url=_printable(record.next_url)), None
    return record._replace(next_url=str(target), error="", kind=""), target


# The journal. The problem: a crawl learns much and slowly. A crash should lose none of it, and
# another run should not ask again for what is known.
#
# The idea: a file keeps the records, one line of JSON each, handed to the kernel as the URL ends;
# and it answers in the server's place: a definite answer that stands there is taken as if it had
# just come.
#
#     {"url": "http://h/", "status": 200, ..., "links": ["http://h/a", "http://h/b"]}
#                                            a root: is asked for again in every run
#     {"url": "http://h/a", "status": 404, ...}    the answer, where /a would be asked for
#     {"url": "http://h/b", "status": 503, ...}    none: it may have passed, /b is asked again
#
# So to go on after a crash, or with another depth or one more root, is to crawl from the roots
# again: it needs no code of its own. With --recheck some answers are forgotten first: what was
# broken, the redirects that lead there, and what refers to either.
#
# The invariants. A journal holds whole lines, but for a last one that a crash cut off: a crawl
# that is killed loses no answer (a machine that loses power may), only what was queued or in
# flight, and the next one finds that again. An answer is definite if asking again would most
# likely give the same: not if there was none, or none that could be taken whole, nor 408, 429, 500
# and up. Of two the last counts.

_BEGINNING = b'{"url":'  # of each line
_TYPES = list(map(type, Record("")))


def _parse_record(line: bytes) -> Record:
    if not line.endswith(b"}\n"):
        raise ValueError("a whole line was expected")
    record = Record(**json.loads(line))
    record = record._replace(  # JSON knows no tuples, and jq writes 2.0 as 2
        links=tuple(record.links), assets=tuple(record.assets),
        at=float(record.at), seconds=float(record.seconds))
    if list(map(type, record)) != _TYPES or set(map(type, record.links + record.assets)) - {str}:
        raise ValueError("a field of another type was expected")
    if max(record.status, record.size, record.tries, record.depth, record.at) >= 1 << 60:
        raise ValueError("smaller numbers were expected")
    if record.kind not in ("", *PROBLEMS) or any(
            isinstance(value, str) and _UNPRINTABLE.search(value) for value in record):
        raise ValueError("a known kind and printable words were expected")
    return record


class Journal:
    """A file with one JSON object a line, one line for each Record; "-" is stdout.

    What the file holds is taken in at once, and answers for the server when a Crawler has the
    journal: but with *recheck*, for which there must be a file, not for problems, for redirects
    that lead to one, nor for what refers to either. One crawl at a time may use the file. Raises
    CrawlError for what cannot be opened or read, is in use, or is no journal.
    """

    def __init__(self, path: str, recheck: bool = False) -> None:
        import fcntl  # Windows has none, and can import the rest
        self.path = path
        self._answers: dict[str, int] = {}  # where in the file a URL's last definite one begins
        self._files = contextlib.ExitStack()
        try:
            self._file = os.dup(1) if path == "-" else os.open(
                path, os.O_WRONLY | os.O_APPEND | (0 if recheck else os.O_CREAT), 0o666)
            self._files.callback(os.close, self._file)
            if path != "-" and os.path.isfile(path):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._lines = self._files.enter_context(open(path, "rb"))
                problems = self._read()
                if recheck:
                    self._forget(problems)
        except (OSError, ValueError) as error:
            self.close()
            busy = "another crawl writes there" if isinstance(error, BlockingIOError) else ""
            raise CrawlError(f"{path}: {busy or _explain(error)}") from None

    def _read(self) -> set[str]:
        """Note where answers begin; return the problems. ValueError for what is no record."""
        start, problems = 0, set()
        for number, line in enumerate(self._lines, 1):
            try:
                record = _parse_record(line)
            except Exception as error:
                # A crash cuts a line off, and may leave zeros at the end.
                beginning = line.rstrip(b"\0")[:len(_BEGINNING)]
                if start and not line.endswith(b"\n") and _BEGINNING.startswith(beginning):
                    os.ftruncate(self._file, start)  # only where a whole record says it is ours
                    break
                raise ValueError("no journal of a crawl (name another file): "
                                 f"line {number}: {_explain(error)}") from None
            if record.is_definite():
                self._answers[record.url] = start
            problems.discard(record.url)
            if record.kind:
                problems.add(record.url)
            start += len(line)
        return problems

    def _forget(self, problems: set[str]) -> None:
        """Have *problems* asked for again, redirects that lead there, and what refers to either."""
        sources: dict[str, list[str]] = {}
        for url in self._answers:
            sources.setdefault(self._record(url).next_url, []).append(url)
        wrong = list(problems)
        for url in wrong:  # which grows
            wrong += sources.pop(url, ())
        again = set(wrong)
        for url in list(self._answers):
            record = self._record(url)
            if not again.isdisjoint((url, *record.links, *record.assets)):
                del self._answers[url]

    def _record(self, url: str) -> Record:
        self._lines.seek(self._answers[url])
        return _parse_record(self._lines.readline())

    def find(self, url: str, read: bool = True) -> Record | None:
        """Return the last definite answer for *url*, or None; if *read*, not to a mere check."""
        record = self._record(url) if url in self._answers else None
        return None if record and read and record.method else record

    def write(self, record: Record) -> None:
        """Append one record; a line that does not fit on the disk is taken back whole.

        Raises CrawlError, or BrokenPipeError when the reader of stdout has left.
        """
        fields = {name: value for name, value in zip(Record._fields, record) if value}
        line = json.dumps(fields).encode() + b"\n"
        written = 0
        try:
            while written < len(line):
                written += os.write(self._file, line[written:])
        except BrokenPipeError:
            raise
        except OSError as error:
            with contextlib.suppress(OSError):  # from a device nothing can be taken back
                os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise CrawlError(f"{self.path} cannot be written: {_explain(error)}") from None

    def close(self) -> None:
        """Close the file; another crawl may use it."""
        self._files.close()


# 14  Scope
# =========
#
# The problem: pages refer to the whole web. Which of it belongs to the crawl?
#
# The idea: ask a URL for its host and its spelling. What is read is on the hosts of the roots, or
# on those that the roots redirect to, and passes two patterns; what pages show may be on any
# host. How deep it is, and what led there, is asked in 17. (All options of a crawl stand at the
# end, for everything below knows them: who knows --help may pass over them.)
#
#     root http://h.de/, --exclude 'pdf$'     as a link         as an image
#     http://h.de/a                           yes               yes
#     https://www.h.de/                       yes               yes
#     http://other/a                          other host        yes
#     http://h.de:8080/a                      other host        yes
#     http://h.de/a.pdf                       excluded          excluded
#     http://h.de/a/b/a/b/a/b/a/b/a/b/        repeats itself    yes

def _patterns(given: str | Iterable[str]) -> list[re.Pattern[str]]:
    return [re.compile(text) for text in ([given] if isinstance(given, str) else given)]


class Scope:
    """Which URLs are crawled: those on certain hosts that two sets of patterns let pass."""

    def __init__(self, roots: list[URL], include: str | Iterable[str] = (),
                 exclude: str | Iterable[str] = (), subdomains: bool = False) -> None:
        self.include = _patterns(include)   # one of them a page's URL must hold
        self.exclude = _patterns(exclude)   # and none of these
        self.subdomains = subdomains        # whether hosts below a host count as it
        self.hosts = set(map(self._host, roots))        # with ports, as _host() returns them
        # Where secrets may go: to roots' hosts, by http only if the root says http.
        self._trusted = {(scheme, *self._host(url)) for url in roots
                         for scheme in ("https", url.scheme)}

    def _host(self, url: URL) -> tuple[str, int]:
        """Return the host without "www.", and the port, 0 if it is the scheme's own."""
        host = url.host
        if host.count(".") > 1:  # www.com is not the host com
            host = host.removeprefix("www.")
        return host, 0 if url.port == _PORTS[url.scheme] else url.port

    def add(self, url: URL) -> None:
        """Take in the host of what a root redirects to."""
        self.hosts.add(self._host(url))

    def trusts(self, url: URL) -> bool:
        """Return whether secrets may go to *url*."""
        return (url.scheme, *self._host(url)) in self._trusted

    def covers(self, url: URL) -> bool:
        """Return whether *url* is on one of the hosts."""
        host, port = self._host(url)
        return (host, port) in self.hosts or self.subdomains and any(
            host.endswith(f".{upper}") and port == its_port for upper, its_port in self.hosts)

    def excludes(self, text: str) -> bool:
        """Return whether nothing of this spelling is to be asked for."""
        return any(pattern.search(text) for pattern in self.exclude)

    def objection(self, url: URL, text: str, read: bool = True) -> str:
        """Return why *url*, spelled *text*, is not to be read, or checked if not *read*; or ""."""
        if self.exclude and self.excludes(text):
            return "excluded"
        if not read:
            return ""
        if not self.covers(url):
            return "other host"
        if self.include and not any(pattern.search(text) for pattern in self.include):
            return "excluded"
        # A path that holds one segment five times is a trap: /a/b/a/b/a/b/...
        path = url.target.partition("?")[0]
        if path.count("/") > 4:
            counts = collections.Counter(filter(None, path.split("/")))
            if max(counts.values(), default=0) > 4:
                return "a path that repeats itself"
        return ""


_LEAST = {"max_tasks": 1, "max_redirect": 0, "max_tries": 1, "max_pages": 1, "max_body": 1,
          "timeout": 0.001, "delay": 0, "depth": 0}


class Options(NamedTuple):
    """How to crawl: the arguments of Crawler after the roots, by name.

    max_tasks       URLs fetched at a time
    max_redirect    redirects in a row
    max_tries       tries of what fails with an error that may pass
    max_pages       URLs read (a redirect and its target are one), and as many others
    max_body        bytes of a page
    timeout         seconds for a whole fetch
    delay           seconds from the end of a request to the next one to its origin, robots.txt not
                    counted (its Crawl-delay may be longer)
    depth           links from a root, followed level by level; None: MAX_DEPTH, in any order,
                    which is faster
    include         a regular expression, or several: one must be found in a page's URL
    exclude         the same: none may be found, in the URL of anything but a root
    subdomains      hosts below the roots' hosts are theirs, too
    external        what links to other hosts lead to is asked for, too
    pages_only      what pages show is not, nor are sheets read
    fragments       pages must have the places that links lead to
    robots          robots.txt of the hosts that are crawled is asked for and kept to
    headers         sent over https to the roots' hosts, with or without www, over http where a
                    root says so; the User-Agent to all, its first letters being the name that
                    robots.txt must use
    journal         what it knows is not asked for again, except roots, what they redirect to, and
                    with fragments pages
    on_record       called with each Record as soon as there is one (of refused URLs in the end); no
                    coroutine function
    on_page         called before that with the Record and the Response of each page or sitemap that
                    was fetched; if it returns a coroutine or a Future, that is waited for
    """

    max_tasks: int = 10
    max_redirect: int = 10
    max_tries: int = 3
    max_pages: int = 1_000_000
    max_body: int = MAX_BODY
    timeout: float = FETCH_TIMEOUT
    delay: float = 0.0
    depth: int | None = None
    include: str | Iterable[str] = ()
    exclude: str | Iterable[str] = ()
    subdomains: bool = False
    external: bool = False
    pages_only: bool = False
    fragments: bool = False
    robots: bool = True
    headers: dict[str, str] | None = None
    journal: Journal | None = None
    on_record: Callable[[Record], object] = _always
    on_page: Callable[[Record, Response], object] = _always

    def check(self) -> None:
        """Raise CrawlError for a number that is none, or too small; TypeError for wrong types."""
        for name, least in _LEAST.items():
            value, whole = getattr(self, name), name not in ("timeout", "delay")
            kinds = int if whole else (int, float)
            if (name, value) != ("depth", None) and not (
                    isinstance(value, kinds) and least <= value < math.inf):
                words = f"a {'whole ' * whole}number of at least {least} was expected"
                raise CrawlError(f"{name}: {words}, not {value!r}")
        if not (callable(self.on_record) and callable(self.on_page)
                and isinstance(self.journal, Journal | None)):
            raise TypeError("on_record and on_page must be functions, journal a Journal")


# 15  Sites
# =========
#
# The problem: a crawler is a guest. A site may want pauses between requests (--delay, Crawl-delay),
# or say "not now" (429); a URL that failed should wait before its next try (as long as a
# Retry-After says); and while one site rests, the workers have others to ask.
#
# The idea: a URL that may not be asked for yet stands in its site's line, and no worker waits with
# it. (Workers do wait while a site's robots.txt is fetched.) A site with a delay is asked one URL
# at a time, the next one delay after the last one ended; so neither a slow lookup nor another try
# can make two requests leave together. With a delay of 2:
#
#     time    a worker brings     in line       why
#     0       /a                                it is asked for
#     0       /b, /c              /b /c         /a is under way
#     1                           /b /c         /a has ended: 1 + 2 is when /b comes back
#     3       /b                  /c            it is asked for; 503 at 4, Retry-After: 6
#     6       /c                  /b            4 + 2
#     10      /b
#
# A site of ours that answers 429 gets a delay of 0.1 s; each further 429 may double it, up to 2.2
# s, and each other answer but 503 takes 8 % off it. So what a server's limit allows is found, and
# nearly kept to. One URL that always says 429, with --max-tries 3:
#
#     tries so far    the delay becomes    it comes back
#     0               0.1 s                as soon as that allows: a 429 at first is no try
#     1               0.2 s                after a second or so
#     2               0.2 s                after a rest of 2.2 s, ahead of the site's other URLs
#     3               0.2 s                no more: it is blocked
#
# The invariant: a line that is not empty moves on. Who brings a URL, a worker (18), calls
#
#     take_turn     which puts the URL in line, or lets it be asked for
#     end_turn      when its request has ended
#     advance       whatever has become of the URL: sets the timer for the first in line
#
# so there is a timer, or a worker that will set one.

MAX_PAUSE = 300.0   # seconds that a Retry-After or a Crawl-delay may ask for
FIRST_DELAY = 0.1   # seconds between requests to a site that has said 429; doubled if it does again
MAX_LEARNED = 2.2   # seconds to which that may grow: no usual limit is below one in two seconds
BACKOFF = 1.0  # seconds, on average, before the second try; doubled for each further one, up to 256


def _retry_after(outcome: Response | Exception) -> float:
    """Return for how many seconds a response asks to be left alone (0 if it names a date)."""
    value = outcome.headers.get("retry-after", "") if isinstance(outcome, Response) else ""
    return min(float(value), MAX_PAUSE) if re.fullmatch("[0-9]{1,18}", value) else 0.0


def _back_off(outcome: Response | Exception, tries: int) -> float | None:
    """Return how many seconds to wait before another try; None if that would give the same."""
    if isinstance(outcome, Response):
        passing = outcome.status in _MAY_PASS
    else:
        passing = isinstance(outcome, (OSError, TruncatedError)) and not (
            hasattr(outcome, "verify_code") or getattr(outcome, "errno", 0) == socket.EAI_NONAME)
    if not passing:
        return None
    # Scattered, so that what failed together does not come back together.
    seconds: float = BACKOFF * 2 ** min(tries - 1, 8) * (0.5 + os.urandom(1)[0] / 256)
    return max(seconds, _retry_after(outcome))


class Site:
    """An origin: its robots.txt, and when it may be asked; *come_back* is given who has waited."""

    def __init__(self, url: URL, delay: float, come_back: Callable[[Node], object]) -> None:
        self.url, self.come_back = url, come_back       # one of its URLs
        self.robots: Robots | Exception | None = None   # None: it was not asked for
        self.delay = delay              # seconds between requests that the user or the site wants,
        self.learned = self.learned_most = 0.0  # and that its 429s seem to want, now and at most
        self.next_turn = 0.0            # loop time before which it is not to be asked
        self.in_flight = 0              # requests that have not ended
        self.line: list[tuple[float, int, Node]] = []   # a heap: loop time, sequence, who waits
        self._sequence = itertools.count()
        self._loop = get_running_loop()
        self._timer: Timeout | None = None

    @property
    def pace(self) -> float:
        """Seconds between requests, which then come one at a time; 0: as many as there are."""
        return max(self.delay, self.learned)

    def is_free(self, due: float) -> bool:
        """Return whether a URL with that time may be asked for now: with a delay, one at a time."""
        alone = not self.in_flight or not self.pace
        return alone and max(due, self.next_turn) <= self._loop.time() + CLOCK_RESOLUTION

    def take_turn(self, node: Node) -> bool:
        """Return whether *node* may be asked for now, until end_turn(); else it stands in line."""
        free = self.is_free(node.due)
        if free:
            self.in_flight += 1
        else:
            self.line_up(node)
        return free

    def end_turn(self) -> None:
        """Say that a request has ended, however it did."""
        self.in_flight -= 1
        self.pause(self.pace)

    def pause(self, seconds: float) -> None:
        """Allow no request for so long."""
        self.next_turn = max(self.next_turn, self._loop.time() + seconds)

    def speed_up(self, status: int) -> None:
        """Take 8 % off the delay learned, if this was an answer: thirty make 0.1 s go away."""
        if status not in (0, 503):
            self.learned = self.learned * 0.92 if self.learned > FIRST_DELAY / 10 else 0.0

    def slow_down(self, node: Node, learned: float, wait: float | None, max_tries: int
                  ) -> float | None:
        """Learn from a 429 of *node*, asked for when the delay was *learned*.

        Return for how many seconds *node* waits: *wait*, if nothing is special.
        """
        # `tries` is 1 at two 429s of a URL, the first, which is no try, and the next: so one that
        # always says 429 doubles the delay no further. Nor does a request that was under way when
        # another one doubled it.
        if node.tries == 1 and learned >= self.learned:
            self.learned = min(max(FIRST_DELAY, 2 * self.learned), MAX_LEARNED)
            self.learned_most = max(self.learned_most, self.learned)
        if not node.due:  # its first answer, row 1 of the table: no try
            node.tries, wait = 0, 0.0
        if node.tries == max_tries - 1:  # row 3: one try is left
            self.pause(MAX_LEARNED)
            wait = -math.inf  # before all others
        return wait

    def line_up(self, node: Node) -> None:
        """Put *node* in line: by the time of its next try, others by the time they come here."""
        since = node.due or self._loop.time()
        heapq.heappush(self.line, (since, next(self._sequence), node))

    def next_due(self) -> float:
        """Return the loop time before which the first in line does not come back."""
        return max(self.next_turn, self.line[0][0])

    def advance(self) -> None:
        """Have the line move on in due time: whenever something has become of a URL."""
        if self.line:
            self.stop_timer()
            self._timer = self._loop.call_at(self.next_due(), self._let_out)

    def stop_timer(self) -> None:
        """Let nobody come back any more."""
        if self._timer:
            self._timer.cancel()

    def _let_out(self) -> None:
        """Have the first in line come back, or all whose time has come if there is no delay."""
        while self.line and self.is_free(self.line[0][0]):
            self.come_back(heapq.heappop(self.line)[2])
            if self.pace:
                return  # the worker that gets it calls advance()
        if not self.pace:
            self.advance()


def load_robots(site: Site, ask: Callable[[URL], Waits[Response]], product: str, max_tries: int
                ) -> Waits[Robots | Exception]:
    """Have a site's robots.txt asked for, RFC 9309 section 2.3.1; return its rules or why it fails.

    200 brings rules, other statuses mean none. 429, 500 or more, no answer or a broken one is a
    failure, after *max_tries* tries if it may pass, and then that of every URL there.
    """
    tries = 0
    while True:
        outcome: Any
        try:
            outcome = yield from ask(parse_url("/robots.txt", site.url))
            if outcome.status < 500 and outcome.status != 429:
                return Robots(outcome.body.decode("utf-8", "replace"), product)
            failure: Exception = OSError(f"{outcome.status} {outcome.reason}")
        except (OSError, ProtocolError) as error:
            outcome = failure = error
        tries += 1
        wait = _back_off(outcome, tries)
        if wait is None or tries >= max_tries:
            return failure
        yield from sleep(wait)


# 16  Nodes
# =========
#
# The problem: of each URL that is asked for the crawl has to remember how it came there, who refers
# to it, and what is still to be done; and there may be a million of them.
#
# The idea: a Node with slots. The way back to a root leads through the parents: a page's links, and
# the redirects (hops) between them. For a link on http://h/a to /old, which redirects to /new:
#
#     http://h/     parent None         depth 0  hops 0    round 0
#     http://h/a    parent http://h/    depth 1  hops 0    round 1    linked_from http://h/
#     http://h/old  parent http://h/a   depth 2  hops 0    round 1    linked_from http://h/a
#     http://h/new  parent http://h/old depth 2  hops 1    round 1    linked_from nobody
#
# (With --fragments there are also nodes for places on pages: see Places.)

CHECKS = math.inf  # the last round, of what is only asked for and not read
NEVER = -1.0       # the round of what is no URL: it is not asked for


class Node:
    """One URL that is asked for; the way back to a root leads through the parents.

    text            the URL
    site            its origin
    parent          the Node that let it in
    depth           links from a root
    hops            redirects in a row that led here
    round           when it is asked for: 0 a root, CHECKS what is not read, between them a page,
                    NEVER what is no URL
    method          how it is asked for in the last round: GET where HEAD failed or found a sheet
    next_node       the Node that it redirects to
    referrers       how many pages refer to it
    linked_from     the first three of them
    tries           how often it was tried by this method (a 429 at first may not count)
    due             loop time of its next try, if there was one
    allowed         whether robots.txt was asked, and allows it
    """

    __slots__ = ("text", "site", "parent", "depth", "hops", "round", "method", "next_node",
                 "referrers", "linked_from", "tries", "due", "allowed")

    def __init__(self, text: str, site: Site, parent: Node | None = None, depth: int = 0) -> None:
        self.text, self.site, self.parent, self.depth = text, site, parent, depth
        self.round, self.method, self.due = CHECKS, "HEAD", 0.0
        self.hops = self.referrers = self.tries = 0
        self.allowed = False
        self.next_node: Node | None = None
        self.linked_from: tuple[Node, ...] = ()

    @property
    def url(self) -> URL:
        """The URL, put together when it is needed: as a string it takes a third of the memory."""
        return URL(*self.site.url[:4], self.text[len(self.site.url.origin):])

    @property
    def read(self) -> bool:
        """Whether it is read, and not only asked for."""
        return self.round != CHECKS

    def path(self, length: int | None = None) -> list[Node]:
        """Return the nodes that led here, from a root or *length* steps ago, and this one."""
        nodes = [self]
        while nodes[-1].parent and len(nodes) - 1 != length:
            nodes.append(nodes[-1].parent)
        return nodes[::-1]

    def ahead(self) -> Iterator[Node]:
        """Yield this node and what it redirects to, a hundred at most, for it may be a ring."""
        node: Node | None = self
        for _ in range(100):
            if node is None:
                return
            yield node
            node = node.next_node

    def nearest_linked(self) -> Node:
        """Return the first, back through its redirects, that pages refer to; or the last there."""
        node = self
        while node.hops and node.parent and not node.referrers:
            node = node.parent
        return node


# With --fragments, a link to a place on a page is judged when both are known, and forgotten if all
# is well. If http://h/a has an id "news", and http://h/i.png was not read:
#
#     <a href="/a#news">     note() or add(), whichever comes last, sees that it is right
#     <a href="/a#old">      is kept, and found by missing(): http://h/a#old is broken
#     <a href="/i.png#x">    is kept, and not reported: nobody knows its ids

class Places:
    """What --fragments looks at: the places that pages have, and those that links lead to."""

    def __init__(self) -> None:
        # Hashes of a page's ids, in order, by URL; None: it redirects to a place, so all are right.
        self.ids: dict[str, array.array[int] | None] = {}
        self.links: dict[str, dict[str, Node]] = {}  # by URL and fragment, unless it was found

    def has(self, url: str, fragment: str) -> bool:
        """Return whether a page has a place of that name, as it is written or unquoted."""
        ids = self.ids[url]
        return ids is None or any(wanted in ids[(at := bisect.bisect_left(ids, wanted)):at + 1]
                                  for wanted in (hash(fragment), hash(unquote(fragment))))

    def add(self, url: str, ids: frozenset[str]) -> None:
        """Note what places a page has; forget links that are right."""
        self.ids[url] = array.array("q", sorted(map(hash, ids)))
        for fragment in list(links := self.links.get(url, {})):
            if self.has(url, fragment):
                del links[fragment]

    def note(self, page: Node, url: str, fragment: str) -> None:
        """Note that *page* links to a place of *url*."""
        fragment = fragment.partition(":~:")[0].strip()
        if (fragment.lower() in ("", "top") or fragment[0] in "/!" or len(fragment) > MAX_URL
                or url in self.ids and self.has(url, fragment)):
            return
        links = self.links.setdefault(url, {})
        text = f"{url}#{re.sub('[^ -~]+', _percent, fragment)}"
        node = links.setdefault(fragment, Node(text, page.site, page, page.depth + 1))
        if page not in node.linked_from[-1:]:
            node.linked_from += (page,) * (node.referrers < 3)
            node.referrers += 1

    def missing(self, seen_urls: dict[str, Any]) -> Iterator[tuple[Node, str]]:
        """Yield what links lead to and no page has, through redirects, with its fragment."""
        for url, links in self.links.items():
            node = seen_urls.get(url)
            steps = node.ahead() if isinstance(node, Node) else ()
            page = next((step.text for step in steps if step.text in self.ids), None)
            for fragment, wrong in links.items():
                if page and not self.has(page, fragment):
                    yield wrong, fragment


# 17  Frontier
# ============
#
# The problem: of what pages refer to let in all that belongs to the crawl, and ask for each URL
# once, however many ways lead to it.
#
# The idea: the crawl goes in rounds: first the roots, then pages, last what is only checked. A URL
# has one state, the round in which it is asked for, and a way to it can only make that earlier. A
# root links to /a and shows /b; /a links to /b and to another host:
#
#     what happens                    the states:  http://h/   /a      /b        http://other/
#     round 0, the roots                           0
#     the root was read                            0           1       CHECKS
#     round 1, pages: /a was read                  0           1       1         "other host"
#     round CHECKS                                 0           1       1         "other host"
#
# `seen_urls` holds each URL that was met, with its Node, or with the reason why it is refused.
# `admit` asks what the way by which it is met allows: to read it, in round 1 (with a depth, in the
# round of its level: so what a crawl of three levels reads does not depend on who answered
# first); only to check it, in the last round, with HEAD; or nothing, for a reason:
#
#     known so far                  this way allows      from there on
#     nothing                       to read, to check    a Node of that round
#     nothing                       nothing              refused, for that reason
#     refused by _PASSING           to read              a Node of that round
#     refused                       to check             a Node of the last round
#     a Node                        an earlier round     a Node of that round
#     anything                      no more than that    what it was
#
# (What --exclude or robots.txt forbids is refused whatever the way, roots and --exclude aside.) So
# a page that is linked from below --depth is refused, and if one further up links to it, too,
# becomes a Node all the same. A Node is queued when its round comes. Refused URLs are told in the
# end, when none can be let in any more. What is no http or https URL stands there as well, refused
# or broken.
#
# `seen_urls` needs no lock: control passes to another task only at a `yield from` or a `yield`,
# and in `admit`, which looks a URL up and enters it, there is none.
#
# The invariant: a URL is unfinished until it has ended, be it with a worker or in a line; so `join`
# returns when every URL of the round has ended, and not before. (A root that fails in the first
# round waits apart, to be queued with the second.)

SLICE = 0.05        # seconds of parsing a page's references between two ticks
MAX_DEPTH = 100     # links from a root, by default: there is no end to some sites
# Reasons against one way to read a URL, which another link may not have.
_PASSING = frozenset(["depth", "page limit", "nofollow", "only shown"])


def spell_other(reference: str) -> str:
    """Return the one spelling of a reference that parse_url() refuses; it refuses that, too.

    Without fragment and blanks around it, scheme and host in small letters, printable, and cut off
    one character behind MAX_URL.
    """
    text = re.sub("[\t\n\r]", "", reference).strip(_CONTROLS).partition("#")[0]
    shown = text[:MAX_URL + 1].rstrip(" ")
    text = re.sub("[^ -~]+", _percent, shown + "%20" * (len(shown) < len(text)))[:MAX_URL + 1]
    return re.sub(r"^[a-zA-Z][a-zA-Z0-9+.-]*:(//[^/?]*)?", lambda match: match[0].lower(), text)


class Frontier:
    """The URLs that were met, and a queue of those to be asked for in the present round."""

    def __init__(self, scope: Scope, options: Options) -> None:
        self.scope, self.options = scope, options
        self.queue: Queue[Node | None] = Queue()
        # By URL its Node, or the reason why it is refused.
        self.seen_urls: dict[str, Any] = {}
        self.untold: collections.deque[Record] = collections.deque()  # of what is no URL
        self.sites: dict[str, Site] = {}        # by origin
        self.round = 0.0
        self.roots_known = False                # whether it is known where the roots redirect to
        self.late_roots: list[Node] = []        # those that failed once: they hold up nobody
        self.later = collections.defaultdict[float, list[Node]](list)  # by round, not begun yet
        self.places = Places() if options.fragments else None
        # How many URLs to be read, or not, may yet be let in.
        self._left = {True: options.max_pages, False: options.max_pages}

    def begin(self, number: float) -> bool:
        """Queue the URLs of a round, and what is late; return whether there are any."""
        self.round = number
        # Some of the later ones have moved to an earlier round.
        later = [node for node in self.later.pop(number, ()) if node.round == number]
        for node in self.late_roots + later:
            self.queue.put_nowait(node)
        self.late_roots = []
        return not self.queue.empty()

    def admit(self, url: URL, parent: Node | None = None, hops: int = 0, read: bool = True,
              reason: str = "") -> Node | str:
        """Let *url* in as far as this way to it allows; return its Node, or why it is refused.

        *parent* led to it: by a reference, or by the last of *hops* redirects. It is to be *read*,
        or only to be checked, unless there is a *reason* against this way.
        """
        text = str(url)
        known = self.seen_urls.get(text)
        depth = parent.depth + (not hops) if parent else 0
        objection = self.scope.objection(url, text, read) if parent else ""
        if self.options.external and objection == "other host":
            read, objection = False, ""
        by_level = self.options.depth is not None
        number = CHECKS if not read else depth if by_level else min(depth, 1)
        if isinstance(known, Node) and known.round <= max(number, self.round):
            return known  # no earlier than it was, or it is being asked for
        site = self.sites.get(url.origin)
        reason = objection or reason or self._limit(url, site, depth, hops, read)
        if reason:
            if known is None or known in _PASSING:
                known = self.seen_urls[text] = reason
            return known
        if not hops:
            self._left[read] -= 1
        if isinstance(known, Node):  # which moves to an earlier round
            node = known
            self._give_back(node)
        else:
            if not site:
                site = self.sites[url.origin] = Site(url, self.options.delay, self._come_back)
            node = self.seen_urls[text] = Node(text, site)
            node.allowed = isinstance(site.robots, Robots)
        node.parent, node.depth, node.hops, node.round = parent, depth, hops, number
        if number <= self.round:
            self.queue.put_nowait(node)
        else:
            self.later[number].append(node)
        return node

    def _limit(self, url: URL, site: Site | None, depth: int, hops: int, read: bool) -> str:
        """Return which limit is in the way of a URL that belongs to the crawl, "" if none is."""
        if site and isinstance(site.robots, Robots):
            rule = site.robots.rule(url.target)
            if rule:
                return f"robots.txt: {rule}"
        if depth > (MAX_DEPTH if self.options.depth is None or not read else self.options.depth):
            return "depth"
        return "page limit" if not hops and not self._left[read] else ""

    def _give_back(self, node: Node) -> None:
        """Give the place of a URL under the limit to another."""
        self._left[node.read] += not node.hops

    def refuse(self, node: Node, reason: str) -> None:
        """Refuse a URL that was let in, and got from the queue."""
        self._give_back(node)
        self.seen_urls[node.text] = reason
        self.queue.task_done()

    def retry(self, node: Node, due: float) -> None:
        """Have *node*, which was got from the queue, come back for another try."""
        node.due = due
        if self.roots_known:
            node.site.line_up(node)
        else:
            self.late_roots.append(node)
            self.queue.task_done()

    def _come_back(self, node: Node) -> None:
        self.queue.put_nowait(node)
        self.queue.task_done()  # it was got before, and put again

    def widen(self, url: URL) -> None:
        """Take the host to which a root redirects into the scope."""
        if not self.scope.covers(url):
            self.scope.add(url)
            for text in [text for text, known in self.seen_urls.items() if known == "other host"]:
                del self.seen_urls[text]  # where it is met again it is judged anew

    def follow(self, node: Node, record: Record) -> Record:
        """Let in what a redirect leads to; return its *record*, with what is wrong, if so."""
        fragment = record.next_url.partition("#")[2]
        record, target = target_of(record, node.url)
        if target is None:
            return record
        if self.places and fragment:
            self.places.ids[node.text] = None
        if node.depth == 0:
            self.widen(target)
        known = self.seen_urls.get(record.next_url)
        circle = isinstance(known, Node) and node in known.ahead()
        if circle or node.hops >= self.options.max_redirect:
            path = " -> ".join([*[link.text for link in node.path(node.hops)], str(target)])
            kind = "too many redirects"
            words = f"{kind}{', in a circle' * circle}: {path}"
            return record._replace(error=words, kind=kind)
        known = self.admit(target, node, node.hops + 1, node.read)
        node.next_node = known if isinstance(known, Node) else None
        return record

    def admit_references(self, page: Node, record: Record, base: URL) -> Waits[Record]:
        """Let in what a page's *record* refers to, relative to *base*; return it with URLs.

        While it is not known where the roots redirect to, nothing is let in.
        """
        linked = yield from self._admit_each(page, record.links, base, True,
                                             "nofollow" if record.nofollow else "")
        shown = yield from self._admit_each(page, record.assets, base, False,
                                            "only shown" if self.options.pages_only else "")
        for node in (linked | shown).values() if self.roots_known else ():
            if node.__class__ is Node:
                if node.referrers < 3:
                    node.linked_from += (page,)
                node.referrers += 1
        return record._replace(links=tuple(linked), assets=tuple(shown))

    def _admit_each(self, page: Node, references: Sequence[str], base: URL, read: bool,
                    reason: str) -> Waits[dict[str, Any]]:
        """Return what references mean, by URL, or by the spelling of what is none.

        Most are known already, and to parse each would take most of the time. So a reference is
        first joined to its page's folder as mere text, and looked up: all keys are in their one
        spelling, so what is found there is what parsing would give. On http://h/d/p

            /a      http://h/a      b     http://h/d/b      ../c    http://h/c
            //i/    http://i/       ?q    is parsed         ""      http://h/d/p
        """
        found: dict[str, Any] = {}
        seen_urls, places, origin = self.seen_urls, self.places, base.origin
        path = base.target.partition("?")[0].rpartition("/")[0]
        folder, own = f"{origin}{path}/", str(base)
        ending = time.monotonic() + SLICE
        for reference in references:
            if places:
                reference, _, fragment = reference.partition("#")
            # 1. What would its URL be?
            first = reference[:1]
            if first == "/":
                text = (f"{base.scheme}:" if reference[1:2] == "/" else origin) + reference
            elif ":" in reference or first == "?":
                text = reference
            elif not first:
                text = own
            elif first == "." and len(reference) < MAX_URL:
                upper, rest = path, reference.removeprefix("./")
                while rest[:3] == "../":
                    upper, rest = upper.rpartition("/")[0], rest[3:]
                text = f"{origin}{upper}/{rest}"
            else:
                text = folder + reference
            # 2. Is that unknown, or may this way to it allow more?
            known = seen_urls.get(text)
            if known.__class__ is Node:
                wanted = read and known.round == CHECKS
            else:
                wanted = known is None or (known in _PASSING if read else not reason)
            if wanted:  # 3. Then it is parsed and admitted.
                if time.monotonic() > ending:
                    yield
                    ending = time.monotonic() + SLICE
                text, known = self._admit_one(page, reference, base, read, reason)
            found[text] = known
            if places and fragment:
                places.note(page, text, fragment)
        return found

    def _admit_one(self, page: Node, reference: str, base: URL, read: bool, reason: str
                   ) -> tuple[str, Any]:
        """Parse a reference; return the URL that it means, and its Node, or why it is refused."""
        try:
            url = parse_url(reference, base)
        except ValueError as error:
            text = spell_other(reference)
            known = self.seen_urls.get(text)
            if known is None and self.roots_known:
                known = "excluded" if self.scope.excludes(text) else str(error)
                if known != "excluded" and not isinstance(error, UnfetchableError):
                    known = Node(text, page.site, page, page.depth + 1)
                    known.round = NEVER
                    words = f"no URL: {_explain(error)}"
                    self.untold.append(Record(text, error=words, kind="broken", depth=known.depth,
                                              parent=page.text))
                self.seen_urls[text] = known
            return text, known
        return str(url), self.admit(url, page, 0, read, reason) if self.roots_known else None

    def told_last(self) -> Iterator[Record]:
        """Yield a record of each place that is missing, and of each URL that is refused."""
        for node, fragment in self.places.missing(self.seen_urls) if self.places else ():
            self.seen_urls[node.text] = node
            words = f"no id {_printable(fragment)!r} on the page"
            yield Record(node.text, error=words, kind="broken", depth=node.depth,
                         parent=node.linked_from[0].text)
        for text, known in self.seen_urls.items():
            if isinstance(known, str):
                yield Record(text, skipped=known)

    def num_waiting(self) -> int:
        """Return how many URLs are queued, stand in line, or wait for their round."""
        return (self.queue.qsize() + len(self.late_roots)
                + sum(len(site.line) for site in self.sites.values())
                + sum(map(len, self.later.values())))


# 18  Crawler
# ===========
#
# The problem: fetch many pages at once, get over what fails, and stop when there are no more.
#
# The idea: workers, all alike. Each takes a URL from the frontier, finds out what came of it, takes
# that in, and only then says that its URL is done. What a worker does with one:
#
#     may it be asked for? does the journal know? is it its site's turn?    _answer
#     a request; some failures come back for another try                    _request, _comes_back
#     the answer becomes a record; what it leads to is let in               _take_in
#     and it is written and told                                            _tell
#
# A page's redirect is not followed on the spot: its target is let in like a link, through the
# same checks of scope, robots.txt and delay (both count as one page). So two ways join there:
#
#        /old -> 301 --+
#                      +--> /new, fetched once
#        <a href=/new>-+
#
# The roots come first, in a round of their own, for where they redirect to belongs to the scope.
# What their pages refer to is let in when each root was answered, or has failed once.
#
# The crawl ends, for everything has a bound:
#
#     URLs         each is let in once, max_pages to be read and as many to be checked   admit
#     redirects    max_redirect in a row                                                 follow
#     tries        max_tries, twice that where HEAD becomes GET, and one for a 429  _comes_back
#     time         a fetch has a deadline; a pause is at most MAX_PAUSE, a back-off (6.4 minutes),
#                  or the delay
#
# (*on_page* must return.) Each URL that was asked for ends as one Record. Errors of the network
# (caught in `_request` and `load_robots`) and of parse_url() become records: any other, in this
# code or in a callback, ends the crawl, which raises it.

_HAS_SCHEME = re.compile("[a-zA-Z][a-zA-Z0-9+.-]*:(?![0-9])")  # not localhost:8000


class Answer(NamedTuple):
    """What came of *url*, from the server or (a Record) from the journal."""

    url: URL
    outcome: Response | Exception | Record
    at: float = 0.0         # Unix time of the request
    seconds: float = 0.0    # from there to the end of the answer


class Crawler:
    """Crawls from *roots*, a URL or several: every page in scope once.

    To be made and used inside a running loop: `yield from Crawler(["xkcd.com"]).crawl()`. A
    root without a scheme is https; *options* are those of Options. Raises CrawlError for invalid
    roots, headers, patterns or numbers, TypeError for what is no option, no journal, no function.

    Its scope: the roots' hosts and those that the roots redirect to, with or without www. An
    error that a callback raises ends the crawl, which raises it.
    """

    def __init__(self, roots: str | Iterable[str], **options: Any) -> None:
        self.options = Options(**options)
        self.options.check()
        try:
            self._roots = [parse_url(text if _HAS_SCHEME.match(text) else f"https://{text}")
                           for text in ([roots] if isinstance(roots, str) else roots)]
            self.scope = Scope(self._roots, self.options.include, self.options.exclude,
                               self.options.subdomains)
            self.client = Client(self.options.headers, self.options.timeout, self.options.max_body,
                                 max(MAX_IDLE, self.options.max_tasks))
        except (ValueError, re.error, OverflowError, RecursionError) as error:
            raise CrawlError(_explain(error)) from None
        self.loop = get_running_loop()
        self.frontier = Frontier(self.scope, self.options)
        self.in_flight: dict[Node, tuple[float, Any]] = {}  # since when, and by which task
        self._product = product_of(self.client.user_agent) or PRODUCT  # our name in robots.txt
        self._loading: dict[Any, Task[Any]] = {}    # the fetches of robots.txt, by site
        self._root_pages: list[Any] = []  # _admit_references' arguments, for those it puts off

    @coroutine
    def crawl(self) -> Waits[None]:
        """Fetch until nothing is left. To be called once.

        Cancelled, it ends at once: `in_flight` names what was being asked for, of which there is
        no record. Raises what a callback raised, and what Journal.write does.
        """
        tasks = [create_task(self._rounds())]
        tasks += [create_task(self._work()) for _ in range(self.options.max_tasks)]
        try:
            yield from gather(*tasks)  # the first error ends all
        finally:
            rest = gather(*tasks, *self._loading.values(), *self.client.lookups.values(),
                          return_exceptions=True)
            rest.cancel()
            try:
                yield from _until_done(rest)
            finally:  # also when it is cancelled here
                for site in self.frontier.sites.values():
                    site.stop_timer()
                self.client.close()

    def _work(self) -> Waits[None]:
        """Take URLs from the frontier and see to them, one after the other, until None comes."""
        while node := (yield from self.frontier.queue.get()):
            self.in_flight[node] = self.loop.time(), self.loop.current_task
            answer = yield from self._answer(node)
            node.site.advance()
            # Poll before working: an answer from the journal has needed no wait, and a hundred of
            # them in a row would keep all requests and answers waiting.
            yield
            if answer:
                yield from self._take_in(node, answer)
                self.frontier.queue.task_done()
            del self.in_flight[node], answer  # a page is not held while the next is waited for

    def _rounds(self) -> Waits[None]:
        """Have the roots asked, the pages, what is only checked; then send the workers home."""
        frontier = self.frontier
        for url in self._roots:
            frontier.admit(url)
        yield from frontier.queue.join()
        frontier.roots_known, level = True, 1
        while self._root_pages:
            yield from self._admit_references(*self._root_pages.pop(0))
        while frontier.begin(level):
            yield from frontier.queue.join()
            level += 1
        frontier.begin(CHECKS)
        yield from frontier.queue.join()
        for number, record in enumerate(frontier.told_last()):
            self._tell(record)
            if not number % 1000:
                yield
        for _ in range(self.options.max_tasks):
            frontier.queue.put_nowait(None)

    def _answer(self, node: Node) -> Waits[Answer | None]:
        """Return what came of a URL; None: it was refused, or will come back."""
        site, url = node.site, node.url
        if self.options.robots and self.scope.covers(url):
            if site.robots is None:
                site.robots = yield from _shared(self._loading, self._load_robots, site)
            if isinstance(site.robots, Exception):
                return Answer(url, site.robots)
            site.delay = max(site.delay, min(site.robots.delay, MAX_PAUSE))
            rule = None if node.allowed else site.robots.rule(url.target)
            if rule:
                self.frontier.refuse(node, f"robots.txt: {rule}")
                return None
            node.allowed = True
        # Roots, and what they redirect to, are asked for in every crawl.
        known = (self.options.journal and node.depth and not (node.read and self.frontier.places)
                 and self.options.journal.find(node.text, node.read))
        if known and not (known.method == "HEAD" and self._wants(node, known)):
            return Answer(url, known)
        if not site.take_turn(node):
            return None
        try:
            return (yield from self._request(node, url))
        finally:
            site.end_turn()

    def _wants(self, node: Node, answer: Response | Record) -> bool:
        """Return whether the body of an answer is to be read: a sheet's also of what is checked."""
        kind = _kind_of(answer.content_type) if 200 <= answer.status < 300 else ""
        if kind == "sheet":
            return not self.options.pages_only and self.scope.covers(node.url)
        return node.read and bool(kind)

    def _load_robots(self, site: Site) -> Waits[Robots | Exception]:
        """Return the rules of a site, or why there are none; redirects stay within the scope."""
        def ask(url: URL) -> Waits[Response]:
            for _ in range(self.options.max_redirect + 1):
                response = yield from self.client.fetch(
                    url, "GET", lambda response: response.status == 200, MAX_BODY,
                    own_headers=self.scope.trusts(url))
                _, target = target_of(Record("", next_url=_location(response)), url)
                if response.status not in _REDIRECTS or not target or not self.scope.covers(target):
                    break
                url = target
            return response
        return load_robots(site, ask, self._product, self.options.max_tries)

    def _request(self, node: Node, url: URL) -> Waits[Answer | None]:
        """Ask the server; return None if the URL will come back for another try."""
        node.tries += 1
        began, at, learned = self.loop.time(), time.time(), node.site.learned
        self.in_flight[node] = began, self.loop.current_task  # anew: robots.txt is not counted
        outcome: Response | Exception
        try:
            outcome = yield from self.client.fetch(
                url, "GET" if node.read else node.method,
                functools.partial(self._wants, node), own_headers=self.scope.trusts(url))
        except (OSError, ProtocolError) as error:
            outcome = error
        if self._comes_back(node, outcome, learned):
            return None
        return Answer(url, outcome, at, self.loop.time() - began)

    def _comes_back(self, node: Node, outcome: Response | Exception, learned: float) -> bool:
        """Have a URL come back if it is to be tried again; return whether it is.

        *learned* is the delay that its site's 429s had led to when it was asked for.

            a HEAD that failed, or finds a sheet    at once, as GET (or after a Retry-After)
            429 on our hosts                        as the table in 15 says
            503, no answer, ...                     after a back-off, if it has tries left
            anything else                           never
        """
        site, status = node.site, outcome.status if isinstance(outcome, Response) else 0
        now, wait = self.loop.time(), _back_off(outcome, node.tries)
        if status != 429:
            site.speed_up(status)
        else:
            site.pause(_retry_after(outcome))
            if self.scope.covers(node.url):
                wait = site.slow_down(node, learned, wait, self.options.max_tries)
        if not node.read and node.method == "HEAD" and status != 429 and (
                not 0 < status < 400
                or isinstance(outcome, Response) and self._wants(node, outcome)):
            # Some servers know GET only, and fail HEAD in any way.
            node.method, node.tries, wait = "GET", 0, _retry_after(outcome)
        if wait is None or node.tries >= self.options.max_tries:
            return False
        self.frontier.retry(node, now + wait)
        return True

    def _take_in(self, node: Node, answer: Answer) -> Waits[None]:
        """Make what came of a URL its record, let in what it leads to, write it and tell it."""
        base, outcome = answer.url, answer.outcome
        way: Any = {"depth": node.depth, "parent": node.parent.text if node.parent else ""}
        if isinstance(outcome, Record):
            record = outcome._replace(**way)
            if not node.read and record.encoding:  # a page's answer, for what is only checked
                record = record._replace(method="GET", encoding="", nofollow=False, links=(),
                                         assets=())
        else:
            record, markup = record_of(
                base, outcome, node.read, self._product, bool(self.frontier.places),
                tries=node.tries, at=round(answer.at, 3), seconds=round(answer.seconds, 3),
                method="" if node.read else node.method, **way)
            if outcome is node.site.robots:
                record = record._replace(error=f"robots.txt: {record.error}")
            base = markup.base
            if self.frontier.places and record.encoding:
                self.frontier.places.add(node.text, markup.ids)
        if record.encoding or record.assets:
            record = yield from self._admit_references(node, record, base)
        elif record.status in _REDIRECTS:
            record = self.frontier.follow(node, record)
        if isinstance(outcome, Response) and record.encoding:  # only pages and sitemaps have one
            try:
                work: Any = self.options.on_page(record, outcome)
                if hasattr(work, "__await__") or isinstance(work, GeneratorType):
                    # As a Task: a bare generator cannot wait for an `async def`.
                    yield from _ensure_future(work)
            except Exception as error:
                error.add_note(f"on_page was called for {record.url}")
                raise
        self._tell(record, not isinstance(outcome, Record))

    def _admit_references(self, node: Node, record: Record, base: URL) -> Waits[Record]:
        """Let in what a page refers to, a root's later; return its record with URLs."""
        record = yield from self.frontier.admit_references(node, record, base)
        while self.frontier.untold:
            self._tell(self.frontier.untold.popleft())
            yield
        if not self.frontier.roots_known:
            self._root_pages.append((node, record, base))
        return record

    def _tell(self, record: Record, fresh: bool = True) -> None:
        """Write a record, unless the journal gave it, and hand it on."""
        if fresh and self.options.journal:
            self.options.journal.write(record)
        if isinstance(self.options.on_record(record), (GeneratorType, CoroutineType)):
            raise TypeError("on_record must be a function: nobody would run a coroutine of its")

    def waits_for(self) -> str:
        """Return which fetch takes longest, or which URL waits; "" if there is none."""
        if self.in_flight:
            node, (began, _) = min(self.in_flight.items(), key=lambda item: item[1][0])
            return f"{self.loop.time() - began:.1f} s {node.text}"
        waiting = [site for site in self.frontier.sites.values() if site.line]
        first = min(waiting, key=Site.next_due, default=None)
        return "" if first is None else (
            f"{sum(len(site.line) for site in waiting)} wait, {first.line[0][2].text} for "
            f"{max(0.0, first.next_due() - self.loop.time()):.0f} s")

    def describe(self) -> str:
        """Return what the crawl is doing: each fetch in flight, then where in this file it is."""
        lines = [f"{len(self.in_flight)} in flight, {self.frontier.num_waiting()} queued, "
                 f"{len(self.client.pool)} connections idle"]
        lines += [f"{node.text}: for {self.loop.time() - began:.1f} s"
                  for node, (began, _) in self.in_flight.items()]
        lines += [task.where() for _, task in self.in_flight.values()]
        return "\n".join(lines if self.in_flight else [*lines, self.waits_for()])


# 19  Report
# ==========
#
# The problem: answers come in any order; who mends a site wants the worst first, and the pages to
# be mended:
#
#     broken (1)
#       http://h/news/2025.html
#         404 Not Found
#         linked from http://h/news/, http://h/old, http://h/team and 3 more
#         path http://h/ > http://h/news/ > http://h/news/2025.html
#     8 pages, 0.1 MB, 3 URLs only asked for in 0.2 s, 60 URLs/s, 1 problem
#     statuses: 11 x 200, 1 x 404
#     not fetched: 12 (other host)
#
# The idea: keep the records of problems and count all; print the problems by kind and, of each
# kind, first what most pages refer to.

MAX_ALIKE = 10  # problems of one kind, host and error that are shown: more tell nothing new


def _count_of(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _story(node: Node, record: Record) -> Iterator[str]:
    """Yield the lines about one problem: what it is, what refers to it, a way that leads there."""
    if record.kind == "too many redirects":  # the links to the first of them are to be mended
        node = node.path(node.hops)[0]
    yield f"  {node.text}"
    yield f"    {record.error}"
    if node.hops and node.parent:
        yield f"    redirected from {node.parent.text}"
    referred = node.nearest_linked()
    more = referred.referrers - len(referred.linked_from)
    if referred.referrers:
        pages = ", ".join(page.text for page in referred.linked_from)
        yield f"    linked from {pages}" + f" and {more} more" * (more > 0)
    path = node.path()
    if len(path) > 2:
        yield f"    path {' > '.join(step.text for step in path)}"


class Report:
    """What the records of a crawl amount to."""

    def __init__(self) -> None:
        self.problems: list[Record] = []
        self.statuses: collections.Counter[int] = collections.Counter()
        self.skipped: collections.Counter[str] = collections.Counter()  # URLs, by reason
        self.pages = self.files = self.checked = 0  # read; not read; only asked for
        self.size = 0                       # bytes
        self.first_end = ""                 # what came of the first URL that is no redirect

    def add(self, record: Record) -> None:
        """Take in one record."""
        if record.kind:
            self.problems.append(record)
        if record.skipped:
            self.skipped[record.skipped] += 1
        elif record.status or record.tries:
            self.statuses[record.status] += 1
        if not self.first_end and (record.kind or not record.next_url):
            self.first_end = record.error or record.skipped or f"is {record.content_type}"
        self.size += record.size
        self.pages += bool(record.encoding)
        self.checked += bool(record.method)
        self.files += not record.encoding and not record.method and 200 <= record.status < 300

    def progress(self, crawler: Crawler, seconds: float, columns: int) -> str:
        """Return one line about a crawl that has gone on for *seconds*, cut to *columns*."""
        done, state = self.statuses.total(), crawler.waits_for()
        return (f"{done} done, {crawler.frontier.num_waiting()} queued, "
                f"{_count_of(len(self.problems), 'problem')}" + f", {state}" * bool(state)
                + f", {done / max(seconds, 0.001):.0f}/s")[:columns - 1]

    def print(self, crawler: Crawler, seconds: float, file: TextIO, brief: bool = False) -> None:
        """Print the problems and, unless *brief*, the numbers."""
        for kind in PROBLEMS:
            found = [(cast(Node, crawler.frontier.seen_urls[record.url]), record)
                     for record in self.problems if record.kind == kind]
            if found:
                print(f"{kind} ({len(found)})", file=file)
            alike: collections.Counter[str] = collections.Counter()
            for node, record in sorted(found, key=lambda pair: -pair[0].nearest_linked().referrers):
                what = f"{node.site.url.origin}: {record.status or record.error}"
                alike[what] += 1
                if alike[what] <= MAX_ALIKE:
                    print(*_story(node, record), sep="\n", file=file)
            for what, count in alike.items():
                if count > MAX_ALIKE:
                    print(f"  ... and {count - MAX_ALIKE} more of {what}", file=file)
        if not brief:
            print(*self._numbers(crawler, seconds), sep="\n", file=file)

    def _numbers(self, crawler: Crawler, seconds: float) -> Iterator[str]:
        """Yield the lines at the end: how much, how fast, and what was not fetched."""
        names = [node.text for node in crawler.in_flight]
        queued = crawler.frontier.num_waiting()
        if names or queued:
            shown = ", ".join(names[:3] + ["..."] * (len(names) > 3))
            yield f"cut off: {len(names)} in flight{f' ({shown})' * bool(names)}, {queued} queued"
        for site in crawler.frontier.sites.values():
            if site.delay > crawler.options.delay:
                yield f"{site.url.origin} asks for a Crawl-delay of {site.delay:g} s"
            if site.learned_most:
                pause = max(site.delay, site.learned_most)
                yield f"{site.url.origin} said 429: slowed down, at most to once in {pause:.2g} s"
        yield (f"{_count_of(self.pages, 'page')}, {self.size / 1e6:.1f} MB"
               + f", {_count_of(self.files, 'other file')}" * bool(self.files)
               + f", {_count_of(self.checked, 'URL')} only asked for" * bool(self.checked)
               + f" in {seconds:.1f} s, {self.statuses.total() / max(seconds, 0.001):.0f} URLs/s, "
               f"{_count_of(len(self.problems), 'problem')}")
        yield "statuses: " + ", ".join(f"{count} x {status or 'no answer'}"
                                       for status, count in sorted(self.statuses.items()))
        for reason, count in self.skipped.most_common():
            yield f"not fetched: {count} ({reason})"


# 20  Command line
# ================
#
# The problem: people call this, and read; programs call it, and look at one number. And both may
# have seen enough before it has come to its end.
#
# The idea: the report goes to stdout (unless the journal does), what is said on the way to
# stderr, and the exit status (--help lists them) says how it went. What cannot be crawled is said
# in one line, and never as a traceback. How it ends before its time is told below, at _crawl.

PROGRESS = 0.25  # seconds between two states of the progress line


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"'Name: value' was expected, not {text!r}")
    return name, value.strip()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"crawl.py: {message} (crawl.py --help lists the options)\n")


def _options(arguments: list[str]) -> argparse.Namespace:
    """Return the options, or exit."""
    parser = _Parser(
        prog="crawl.py", allow_abbrev=False,
        description="Crawl web sites and report what is broken.", epilog="Exit status: 0 all "
        "is well, 1 something is broken, 2 could not crawl, 130 Ctrl-C, 143 SIGTERM. Ctrl-\\ "
        "prints what is going on, and the crawl goes on.")
    parser.set_defaults(**Options()._asdict())
    add = parser.add_argument
    add("roots", nargs="+", metavar="URL", help="where to start; https, unless it says http://")
    add("--depth", type=int, metavar="N", help="links from a root, level by level (100; any order)")
    add("--max-pages", type=int, metavar="N", help="pages, and as many other URLs (%(default)s)")
    add("--include", metavar="RE", action="append", default=[],
        help="only roots, and pages in whose URL this (or another) is found (all)")
    add("--exclude", metavar="RE", action="append", default=[],
        help="no URLs but roots in which this (or another) is found (none)")
    add("--subdomains", action="store_true", help="hosts below the roots' hosts, too")
    add("--external", action="store_true", help="ask also for what links to other hosts lead to")
    add("--pages-only", action="store_true", help="do not ask for images, scripts and the like")
    add("--fragments", action="store_true", help="look whether pages have what #fragments name")
    add("--no-robots", dest="robots", action="store_false", help="do not ask for robots.txt")
    add("--max-tasks", type=int, metavar="N", help="URLs fetched at a time (%(default)s)")
    add("--max-redirect", type=int, metavar="N", help="redirects in a row (%(default)s)")
    add("--max-tries", type=int, metavar="N", help="tries where an error may pass (%(default)s)")
    add("--max-body", type=int, metavar="BYTES", help="size of a page, unpacked (%(default)s)")
    add("--timeout", type=float, metavar="S", help="seconds for a whole fetch (%(default)g)")
    add("--delay", type=float, metavar="S", help="seconds between two requests to a site (0)")
    add("-H", type=_header, action="append", default=[], dest="headers", metavar="'Name: value'",
        help="send this field to the hosts named here, not to those they redirect to")
    add("-o", dest="journal", metavar="FILE.jsonl",
        help="append a line for each URL, and do not ask for what FILE knows; - is stdout")
    add("--recheck", action="store_true",
        help="with -o, ask again what was broken, with what leads and refers to it")
    add("-v", dest="verbose", action="store_true", help="a line on stderr for each URL")
    add("-q", dest="quiet", action="store_true", help="print nothing but problems")
    add("--version", action="version", version=f"crawl.py {VERSION}", help="print the version")
    options = parser.parse_intermixed_args(arguments)
    if options.recheck and options.journal in (None, "-"):
        parser.error("--recheck needs -o FILE")
    return options


def _say(*words: object, end: str = "\n") -> None:
    """Print on stderr, if that can be written."""
    with contextlib.suppress(OSError):
        print(*words, end=end, file=sys.stderr, flush=True)


_CLEAR = "\r\x1b[K"  # the terminal's line, on which the progress stands


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


# Ctrl-C is a task.cancel(). This is its way, which is also the way back through this file:
#
#     the kernel interrupts epoll, and Python calls `interrupt`                         20
#     which says call_soon_threadsafe(task.cancel): a byte in the self-pipe             2
#     the loop wakes; the task that crawls waits for gather(), which is cancelled:      5
#         each worker, and the future at the bottom of its pipe of coroutines           4, 3
#     CancelledError rises from there: a stream is closed, a site's turn ended          10, 15
#     until crawl() has seen all of them end, and closed what was idle                  18
#     and `_crawl` returns: the report says what was cut off, and the status is 130     19, 20
#
# So a crawl that is ended leaves nothing open, for every `finally` on that way has run. While it is
# on its way, or a write blocks because nobody reads it, a second signal ends the program at once;
# so does the first where there is no crawl yet, or no more. One that the caller ignores stays
# ignored.

def _crawl(options: argparse.Namespace, journal: Journal | None, report: Report
           ) -> Waits[tuple[Crawler, float, int]]:
    """Crawl until the end, or until a signal; return the crawler, the seconds and the signal."""
    loop, task = get_running_loop(), cast("Task[Any]", current_task())

    def on_record(record: Record) -> None:
        report.add(record)
        if options.verbose:
            _say(record.url, record.skipped and f"not fetched: {record.skipped}"
                 or record.error or f"{record.status} {record.next_url}".rstrip())

    def interrupt(number: int, _: object) -> None:
        """End the crawl; leave the next signal to who dealt with them before."""
        # Here, and not in a callback: a write that nobody reads may block the loop.
        for each in {signal.SIGINT, signal.SIGTERM} & before.keys():
            signal.signal(each, before[each])
        loop.call_soon_threadsafe(task.cancel, number)

    def describe(_: int, __: object) -> None:
        loop.call_soon_threadsafe(lambda: _say(_CLEAR * live + crawler.describe()))

    given = {**vars(options), "headers": dict(options.headers), "journal": journal,
             "on_record": on_record}
    crawler = Crawler(options.roots, **{name: given[name] for name in Options._fields})
    live = sys.stderr.isatty() and not (options.verbose or options.quiet or (
        options.journal == "-" and sys.stdout.isatty()))
    handlers = {signal.SIGINT: interrupt, signal.SIGTERM: interrupt, signal.SIGQUIT: describe}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()
              if signal.getsignal(number) is not signal.SIG_IGN}
    began, ended_by = loop.time(), 0
    if live:
        create_task(_show_progress(crawler, report, began))  # until run() cancels it
    try:
        yield from crawler.crawl()
    except CancelledError as cancelled:
        ended_by = cancelled.args[0]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return crawler, loop.time() - began, ended_by


def _crawl_and_report(arguments: list[str]) -> int:
    """Crawl, say what came of it, and return the exit status."""
    try:
        options = _options(arguments)
    except SystemExit as end:  # of wrong use, --help and --version
        return cast(int, end.code)
    report = Report()
    journal = None if options.journal is None else Journal(options.journal, options.recheck)
    with contextlib.closing(journal) if journal else contextlib.nullcontext():
        crawler, seconds, ended_by = run(_crawl(options, journal, report))
    if not ended_by and (set(report.statuses) <= {0} or not report.problems and not report.pages):
        hint = "" if all(map(_HAS_SCHEME.match, options.roots)) else (
            "; write http://... if that is meant")
        raise CrawlError(
            f"nothing could be crawled: {report.first_end} ({' '.join(options.roots)}{hint})")
    out = sys.stderr if options.journal == "-" else sys.stdout
    report.print(crawler, seconds, out, options.quiet)
    if journal and report.problems and not options.quiet and options.journal != "-":
        print("when they are mended: the same command with --recheck looks at them again", file=out)
    return 128 + ended_by if ended_by else 1 if report.problems else 0


def main(arguments: list[str]) -> int:
    """Do what *arguments*, without the program's name, ask for; return the exit status.

    To be called in the main thread; while it crawls, SIGINT, SIGTERM and SIGQUIT are handled.
    """
    try:
        status = _crawl_and_report(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        return 1  # whoever read it has seen enough
    except (OSError, CrawlError) as error:
        _say(f"crawl.py: {_explain(error)}")
        return 2


if __name__ == "__main__":  # pragma: no cover (the tests see it in children)
    for ending in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(ending) is not signal.SIG_IGN:
            signal.signal(ending, lambda number, _: os._exit(128 + number))
    # They are None where their descriptors are closed.
    sys.stdout, sys.stderr = sys.stdout or io.StringIO(), sys.stderr or io.StringIO()
    # Not sys.exit(): what stdout or stderr, being full or closed, did not take is given up.
    os._exit(main(sys.argv[1:]))

# The end: section 2 began with a crawler that waits for each page in turn. From a server that takes
# 100 ms for an answer (`make bench` measures it), this program gets 9.8 pages a second with
# --max-tasks 1, and idles 99 % of its time. With --max-tasks 100 it gets 852, though the first come
# alone, and still idles 85 %. One thread, no lock, and one tick that waits for all at once.
