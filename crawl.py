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
import os
import re
import select
import selectors
import signal
import socket
import threading
import time
import unicodedata
import zlib
from builtins import TimeoutError as TimeoutError  # "as": these names are part of this module
from collections.abc import (Awaitable, Callable, Coroutine, Generator, Iterable, Iterator,
                             Sequence, Sized)
from contextvars import copy_context
from selectors import EVENT_READ, EVENT_WRITE
from types import GeneratorType, coroutine as coroutine
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, TextIO, TypeVar, cast
from urllib.parse import unquote

if TYPE_CHECKING:  # pragma: no cover (for mypy; what speaks TLS imports it, which takes a while)
    import ssl

# 1  Vocabulary
# =============
#
# An `async def` function may stop in its middle, at an `await`, to wait. Sections 3 and 4 say how.

__all__ = """run create_task current_task sleep timeout wait_for gather to_thread Queue Future Task
    EventLoop CancelledError coroutine DeadlockError connect Stream fetch Client Response
    ResponseParser parse_url URL read_markup read_sheet Robots Crawler Options Record Journal
    Report""".split()

T = TypeVar("T")
Callback = Callable[..., object]
Coro = Coroutine[Any, Any, T]  # a coroutine that returns a T

VERSION = "2.0"


class CancelledError(BaseException):
    """The task or future was cancelled. No Exception, so that `except Exception` lets it pass."""


class DeadlockError(RuntimeError):
    """Every task waits, and no socket, deadline or thread could wake one; says who waits where."""


# 2  Event loop
# =============
#
# The problem: a crawler spends its life waiting. A page takes some 100 ms to arrive and less than
# one to look at, so one that waits for each page in turn idles 99 % of its time. Threads can wait
# in parallel, one blocking `recv` each. But a thread costs tens of kilobytes, and the kernel
# switches between threads at moments nobody chose, so everything shared needs a lock.
#
# The idea: ask the kernel to wait for all sockets at once. A non-blocking socket never waits:
# `recv` returns what is there or fails with BlockingIOError. The system call that waits, epoll on
# Linux, takes any number of sockets and one deadline, sleeps, and tells which sockets are
# readable or writable. What to do then is a function, registered beforehand: a callback. The loop
# sleeps, collects what is due, and calls it. That is one tick:
#
#        +--> poll: sockets that became ready ------> run their callbacks
#        |    heap: deadlines that have passed --+        |  (these mostly add more)
#        |    call_soon, threads, futures done --+--> ready queue
#        +------------------------ run each once <--------+
#
# The invariants. Callbacks run in one place (`_run`), one at a time, hence no locks. What they add
# to the ready queue waits for the next tick, which polls first: a callback that reschedules
# itself starves nobody. And a loop that nothing could ever wake raises DeadlockError. The cost:
# one poll per tick at most. A callback that computes for a second stops everything for a second.

TIMEOUT_SWEEP = 512  # entries: below that, cancelled timeouts are cheaper kept than swept
MAX_WAIT = 1.0       # seconds of one sleep: a signal that comes just before it waits so long


class Handle:
    """A callback that waits to be called: soon, or at a deadline. Tasks (4) have a run(), too."""

    __slots__ = ("callback", "args")

    def __init__(self, callback: Callback, args: tuple[Any, ...]) -> None:
        self.callback: Callback | None = callback
        self.args = args

    def run(self) -> None:
        """Call the callback, unless it was cancelled."""
        if self.callback is not None:
            self.callback(*self.args)

    def cancel(self) -> None:
        """Make sure that the callback is not called (any more)."""
        self.callback, self.args = None, ()


class _Running(threading.local):
    loop: EventLoop | None = None  # the one that runs in this thread; none in a forked child


_running = _Running()
os.register_at_fork(after_in_child=lambda: setattr(_running, "loop", None))


def get_running_loop() -> EventLoop:
    """Return the event loop that runs in this thread (each may run one), or raise RuntimeError."""
    if _running.loop is None:
        raise RuntimeError("no running event loop")
    return _running.loop


def _signals_may_wake() -> bool:
    """Return whether the program handles a signal, by a function not of Python's or this file's."""
    return any(callable(handler) and getattr(handler, "__module__", "") not in ("_signal", __name__)
               for handler in map(signal.getsignal, signal.valid_signals()))


class EventLoop:
    """Waits with *selector*, and runs callbacks; and with them Futures (3) and Tasks (4)."""

    def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
        self._selector = selector or selectors.DefaultSelector()
        self._ready: collections.deque[Any] = collections.deque()
        # A heap of (deadline, sequence number, handle): the number keeps equal deadlines in order.
        self._timeouts: list[Any] = []
        self._sequence = itertools.count()
        self._sweep_at = TIMEOUT_SWEEP  # heap size at which cancelled ones are dropped
        self._stopping = False
        self.tasks: set[Task[Any]] = set()  # every unfinished Task (4),
        self.current_task: Any = None       # and the one taking a step
        # The self-pipe: a byte written to one end, by a thread or a signal, ends a sleep.
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_sender.setblocking(False)
        self._watched = self._selector.get_map()  # the sockets watched, this one, too
        self.add_reader(self._wake_receiver, self._wake_receiver.recv, 4096)

    def time(self) -> float:
        """Return the loop's clock, in seconds: monotonic."""
        return time.monotonic()

    def call_soon(self, callback: Callback, *args: Any) -> Handle:
        """Call callback(*args) after what is ready already; the Handle returned can cancel it."""
        handle = Handle(callback, args)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(self, callback: Callback, *args: Any) -> Handle:
        """Do what call_soon does, from any thread or signal handler: append() is atomic."""
        handle = self.call_soon(callback, *args)
        with contextlib.suppress(OSError):  # a full pipe wakes as well
            self._wake_sender.send(b"\0")
        return handle

    def call_later(self, delay: float, callback: Callback, *args: Any) -> Handle:
        """Call callback(*args) after *delay* seconds, soon if that is no time at all."""
        if delay <= 0:
            return self.call_soon(callback, *args)
        return self.call_at(self.time() + delay, callback, *args)

    def call_at(self, deadline: float, callback: Callback, *args: Any) -> Handle:
        """Call callback(*args) once time() has reached *deadline* (ValueError for NaN)."""
        if math.isnan(deadline):
            raise ValueError(f"a number of seconds was expected, not {deadline!r}")
        handle = Handle(callback, args)
        heapq.heappush(self._timeouts, (deadline, next(self._sequence), handle))
        # Cancelled ones stay until they reach the heap's top, or until it has doubled since the
        # last sweep, which takes them all out: amortised O(1) each.
        if len(self._timeouts) >= self._sweep_at:
            self._timeouts[:] = [item for item in self._timeouts if item[2].callback]
            heapq.heapify(self._timeouts)
            self._sweep_at = max(TIMEOUT_SWEEP, 2 * len(self._timeouts))
        return handle

    def add_reader(self, sock: Any, callback: Callback, *args: Any) -> None:
        """Call callback(*args) in each tick in which *sock* is readable, until it is removed."""
        self._watch(sock, EVENT_READ, Handle(callback, args))

    def add_writer(self, sock: Any, callback: Callback, *args: Any) -> None:
        """Call callback(*args) in every tick in which *sock* is writable."""
        self._watch(sock, EVENT_WRITE, Handle(callback, args))

    def remove_reader(self, sock: Any) -> bool:
        """Stop watching for readability; return whether it was watched."""
        return self._watch(sock, EVENT_READ)

    def remove_writer(self, sock: Any) -> bool:
        """Stop watching for writability; return whether it was watched."""
        return self._watch(sock, EVENT_WRITE)

    def run_forever(self, until: Callable[[], object] = bool) -> None:
        """Tick until stop(), or until *until()* is true. May raise DeadlockError."""
        if _running.loop is not None:
            raise RuntimeError("this thread runs an event loop already")
        _running.loop = self
        try:
            while not (self._stopping or until()):
                self.tick()
        finally:
            self._stopping = False
            _running.loop = None

    def tick(self) -> None:
        """Wait until something is ready, then run what is: the heart of the file."""
        ready, timeouts = self._ready, self._timeouts
        while timeouts and timeouts[0][2].callback is None:
            heapq.heappop(timeouts)
        wait, watching = MAX_WAIT, len(self._watched) > 1
        if ready:
            wait = 0.0
        elif timeouts:
            wait = min(max(0.0, timeouts[0][0] - self.time()), MAX_WAIT)
        elif not (watching or threading.active_count() > 1 or _signals_may_wake() or ready):
            # A thread may have called in and ended during this line: so `ready` is asked last.
            raise DeadlockError("every task waits for something that can no longer happen:\n"
                                + "\n".join(task.where() for task in self.tasks))
        # With work to do and no socket there is no poll, for the self-pipe only ends sleeps.
        if watching or not ready:
            for key, events in self._selector.select(wait):
                for event in list(key.data):  # one may take off the other
                    if event & events and event in key.data:
                        self._run(key.data[event])
        if timeouts:
            now = self.time()
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
        """Release what the loop holds. It cannot run any more."""
        self._selector.close()
        self._wake_receiver.close()
        self._wake_sender.close()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Print context["message"] and the traceback of context["exception"].

        Every error that nobody is there to catch ends here; another method may replace this one.
        """
        with contextlib.suppress(OSError):  # the terminal is gone: that should not end the loop
            print(context["message"], file=sys.stderr)
            error = context["exception"]
            sys.excepthook(type(error), error, error.__traceback__)

    def _watch(self, sock: Any, event: int, handle: Handle | None = None) -> bool:
        """Put *handle* on one side of a socket, or take it off; return whether one was there."""
        key = self._watched.get(sock)
        # The selector holds this dict itself: what is taken out of it is not called in this tick.
        handles = key.data if key else {}
        before = handles.pop(event, None)
        if handle is not None:
            handles[event] = handle
        events = sum(handles)
        if key is None or events != key.events:
            if key:
                self._selector.unregister(sock)
            if events:
                self._selector.register(sock, events, handles)
        return before is not None

    def create_future(self) -> Future[Any]:
        """Return a new pending Future of this loop."""
        return Future(loop=self)

    def create_task(self, coro: Coro[T]) -> Task[T]:
        """Return a new Task that begins to run *coro* soon."""
        return Task(coro, loop=self)

    def run_until_complete(self, future: Runnable[T]) -> T:
        """Run until a Future or coroutine is done; return its result, or raise its error."""
        waited = future if isinstance(future, Future) else self.create_task(future)
        ended: list[Any] = []
        waited.add_done_callback(ended.append)
        self.run_forever(ended.__len__)
        return waited.result()


# 3  Future
# =========
#
# The problem: with callbacks alone, a fetch of connect, send, recv, recv, ... is a chain of
# functions, each naming the next. Loops, `try` and local variables do not cross from one to
# another. The idea: a Future is a result that has not happened yet. Whoever will know the result
# resolves it, whoever wants it waits, and neither needs to know the other:
#
#                   set_result(x)      -> resolved    result() returns x
#       pending  -- set_exception(e)   -> failed      result() raises e
#                   cancel()           -> cancelled   result() raises CancelledError
#
# A future leaves "pending" once. Its callbacks move to the ready queue: resolving calls nobody.
#
# What is missing is a function that can stop in its middle and go on later with everything it
# had. Python has one, the generator: its frame (its variables, and the line it has reached) has
# memory of its own and survives. `yield` hands a value to whoever called send() (next() is
# send(None)) and leaves loops and `try` blocks as they are, until the next send().
#
# Only Future.__iter__ yields futures. `yield from future` runs that method inside the function
# that says it: what the method yields comes out of the send() to that function, and what it
# returns is the value of the expression. So a function that says `result = yield from future`
# stops there, and the future comes out of the send() that was driving it: the driver learns what
# is being waited for. It calls send() again once that future is done, and the function goes on
# with the future's result(). Such functions are coroutines.

class InvalidStateError(RuntimeError):
    """A future was asked for what its state does not allow."""


class _Failure:
    """The exception with which a future failed; its __del__ reports it if nobody looked at it."""

    def __init__(self, exception: BaseException, future: Future[Any]) -> None:
        self.loop, self.exception = future._loop, exception
        self.message = f"the exception of {future} was never retrieved"
        # What is no Exception (CancelledError, SystemExit) is not reported.
        self.retrieved = not isinstance(exception, Exception)

    def __del__(self) -> None:
        if not self.retrieved:
            self.loop.call_exception_handler({**vars(self)})  # (3.13.0 crashes without a copy)


class Future(Generic[T]):
    """A result to come, in one loop and its thread: pending, then resolved, failed or cancelled."""

    __slots__ = ("_loop", "_state", "_result", "_callbacks", "__weakref__")

    def __init__(self, *, loop: EventLoop | None = None) -> None:
        self._loop = loop or get_running_loop()
        self._state = "pending"
        self._result: Any = None  # once resolved, the result; once failed, a _Failure
        # What to put into the ready queue when done: Handles and waiting tasks.
        self._callbacks: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        return f"<Future {self._state}>"

    def done(self) -> bool:
        """Return whether the future is resolved, failed or cancelled."""
        return self._state != "pending"

    def cancelled(self) -> bool:
        """Return whether the future was cancelled."""
        return self._state == "cancelled"

    def result(self) -> T:
        """Return the result, or raise what it failed with, CancelledError or InvalidStateError."""
        if self._state != "resolved":
            raise cast(BaseException, self.exception())
        result: T = self._result
        return result

    def exception(self) -> BaseException | None:
        """Return what the future failed with, None if it was resolved; else raise as result()."""
        if self._state == "resolved":
            return None
        if self._state != "failed":
            raise CancelledError if self.cancelled() else InvalidStateError("it is still pending")
        self._result.retrieved = True
        return cast(BaseException, self._result.exception)

    def set_result(self, result: T) -> None:
        """Resolve the future. Raises InvalidStateError unless it is pending."""
        self._finish("resolved", result)

    def set_exception(self, exception: BaseException) -> None:
        """Make the future fail; an exception that nobody ever looks at is printed in the end."""
        self._finish("failed")
        self._result = _Failure(exception, self)

    def cancel(self) -> bool:
        """Have all who wait get CancelledError; return False if it was done already."""
        if self._state != "pending":
            return False
        self._finish("cancelled")
        return True

    def add_done_callback(self, callback: Any) -> None:
        """Have the loop call callback(self) when the future is done, or soon if it is."""
        # A Task, which has a run(), stands here itself while it waits.
        entry = callback if isinstance(callback, Future) else Handle(callback, (self,))
        if self._state != "pending":
            self._loop._ready.append(entry)
        else:  # a tuple, for nearly always it holds one
            self._callbacks += (entry,)

    def __iter__(self) -> Generator[Any, None, T]:
        """Wait here until the future is done; `yield from` and `await` give its result."""
        if self._state == "pending":
            yield self
        return self.result()

    __await__ = __iter__

    def _resolve(self, result: Any) -> None:
        """Set the result, unless the future is done: its waiter may just have been cancelled."""
        if not self.done():
            self.set_result(result)

    def _finish(self, state: str, result: Any = None) -> None:
        """Leave the pending state: the one place where that happens."""
        if self._state != "pending":
            raise InvalidStateError(f"the future is done already: {self._state}")
        self._state, self._result = state, result
        self._loop._ready.extend(self._callbacks)
        self._callbacks = ()


# 4  Task
# =======
#
# The problem: a function that stops at `yield from future` needs somebody who calls send() again
# when the future is done. The idea: a Task is that somebody. Each step sends None into the
# coroutine and gets back the next future it waits for; the task puts itself among that future's
# callbacks. That is all that happens between "recv would block" and the line after it:
#
#    recv -> BlockingIOError      coroutine: watch the socket, make a future,
#    yield from future            the future comes out of send()
#    step: add_done_callback      the task returns to the loop; others run
#    poll: readable -> callback   set_result moves the task to the ready queue
#    step: coroutine.send(None)   the coroutine goes on after its `yield from`
#    recv again -> bytes          being ready was a hint; recv decides
#
# With coroutines inside coroutines, `yield from` is a pipe: while a generator stands there,
# Python hands every send() and throw() straight to the inner one, and what that yields straight
# to the caller. A return value travels up one joint, an exception as far as the first `except`:
#
#    Task --send--> fetch --yield from--> read --yield from--> Future.__iter__
#         <----------------------- future ------------------------ yield self
#
# `async def` and `await` are the same with two guards: `await` takes only what can be waited for,
# and a coroutine that nobody awaits is a warning. Here is one fetch in both styles, and what
# becomes of either when it is driven by hand. A Task drives both; from here on it is the second:
#
#     @coroutine
#     def fetch(sock):                               async def fetch(sock):
#         sock.send(b"GET / HTTP/1.0\r\n\r\n")           sock.send(b"GET / HTTP/1.0\r\n\r\n")
#         answer = Future()                              answer = Future()
#         loop.add_reader(sock, answer.set_result, 1)    loop.add_reader(sock, answer.set_result, 1)
#         yield from answer                              await answer
#         loop.remove_reader(sock)                       loop.remove_reader(sock)
#         return sock.recv(100)                          return sock.recv(100)
#
#     waiting = fetch(sock)    nothing of it has run
#     waiting.send(None)       -> <Future pending>: the request has left
#     loop.tick()              sleeps until the answer is there, and resolves the future
#     waiting.send(None)       -> StopIteration(b"HTTP/1.0 200 OK\r\n\r\n"): it has returned
#
# A Task is itself a Future, resolved by the coroutine's `return` (which Python spells
# StopIteration): so one word, "wait", does for a byte, a pause and a whole crawl.
#
# Cancelling must reach a coroutine deep in its pipe, and release what it holds on the way out.
# Only an exception does that: cancel() cancels the future being waited for (a task, too), whose
# CancelledError then appears at the `await`, runs the `finally` blocks and, if nobody stops it,
# ends the task. Where no future is waited for, it comes
#
#    to a task that was woken already    at its next step
#    to the one that is running          at its next wait, or its return
#    to one that has not begun           instead of its first step
#
# The invariant: an unfinished task is running, or in the ready queue once, or among the callbacks
# of the one future in `_waiting_for`; and it is in the loop's `tasks`, which keeps it alive.

class Task(Future[T]):
    """The coroutine *coro*, run from soon on in a copy of the context, and its result's Future."""

    __slots__ = ("_coro", "_context", "_waiting_for", "_must_cancel", "_cancel_requests")

    def __init__(self, coro: Coro[T], *, loop: EventLoop | None = None) -> None:
        if not isinstance(coro, (GeneratorType, Coroutine)):
            raise TypeError(f"a coroutine was expected, got {coro!r}")
        super().__init__(loop=loop)
        self._coro: Any = coro
        self._context = copy_context()
        self._waiting_for: Future[Any] | None = None
        self._must_cancel = False  # whether the next step raises CancelledError in the coroutine
        self._cancel_requests = 0  # that no uncancel() took back: a TimeLimit (5) counts them
        self._loop.tasks.add(self)
        self._loop._ready.append(self)

    def __repr__(self) -> str:
        return f"<Task {getattr(self._coro, '__qualname__', self._coro)} {self._state}>"

    def step(self) -> None:
        """Run the coroutine until it waits again or ends."""
        loop, must_cancel = self._loop, self._must_cancel
        self._waiting_for, self._must_cancel = None, False
        loop.current_task = self
        try:
            if must_cancel:
                awaited = self._context.run(self._coro.throw, CancelledError())
            else:
                awaited = self._context.run(self._coro.send, None)
            if awaited is None:  # a bare `yield`: let the others run, then go on
                loop._ready.append(self)
            elif awaited._loop is not loop or awaited is self:
                raise RuntimeError(f"{self} cannot wait for {awaited}")
            else:
                awaited.add_done_callback(self)
                self._waiting_for = awaited
                # It may have been cancelled while it ran.
                self._must_cancel = self._must_cancel and not awaited.cancel()
        except StopIteration as stop:
            # If it must be cancelled, it was cancelled during its last step.
            self._finish("cancelled" if self._must_cancel else "resolved", stop.value)
        except CancelledError:
            self._finish("cancelled")
        except BaseException as failure:
            self.set_exception(failure)
            if not isinstance(failure, Exception):  # SystemExit, KeyboardInterrupt
                raise
        finally:
            loop.current_task = None
            if self._state != "pending":
                loop.tasks.discard(self)

    run = step  # what the ready queue calls

    def cancel(self) -> bool:
        """Raise CancelledError where the coroutine waits; return False if it has ended already."""
        if self._state != "pending":
            return False
        self._cancel_requests += 1
        # Meanwhile it waits for nothing, or tasks in a circle would hand this on for ever.
        waited, self._waiting_for = self._waiting_for, None
        if waited is None or not waited.cancel():
            self._must_cancel = True
        self._waiting_for = waited
        return True

    def cancelling(self) -> int:
        """Return how often cancel() was called and not taken back."""
        return self._cancel_requests

    def uncancel(self) -> int:
        """Take one cancel() back, having dealt with it; return how many are left."""
        self._cancel_requests = max(0, self._cancel_requests - 1)
        self._must_cancel &= self._cancel_requests > 0
        return self._cancel_requests

    def where(self) -> str:
        """Return the task's name and the lines at which it waits, outermost coroutine first."""
        lines, inner = [repr(self)], self._coro
        while frame := getattr(inner, "cr_frame", None):  # down the pipe
            code = frame.f_code
            lines.append(f"  {code.co_filename}:{frame.f_lineno} in {code.co_qualname}")
            inner = inner.cr_await
        return "\n".join(lines)


Runnable = Coro[T] | Future[T]  # what run_until_complete() and gather() take


# 5  Waiting
# ==========
#
# The problem: futures and tasks are parts; a program wants verbs.
#
#     sleep        a future that resolves itself at a deadline
#     timeout      cancels the current task at one
#     gather       a future that the last of many resolves
#     to_thread    a future that a thread resolves, by way of the self-pipe
#     run          ticks until a task is done
#
# When a wait has ended, its deadline does nothing; when `run` has returned, there is no task.

@coroutine
def _next_tick(result: Any) -> Generator[None, None, Any]:
    """Let the others run once: a bare `yield` is a wait for no future."""
    yield
    return result


async def _sleep(delay: float, result: Any) -> Any:
    waiter: Future[Any] = Future()
    timeout = get_running_loop().call_later(delay, waiter._resolve, result)
    try:
        return await waiter
    finally:
        timeout.cancel()


def sleep(delay: float, result: Any = None) -> Coro[Any]:
    """Wait *delay* seconds (ValueError for NaN), return *result*; 0 lets others run once."""
    # (types.coroutine makes a coroutine, and is declared to make something that can do less.)
    return _next_tick(result) if delay <= 0 else _sleep(delay, result)  # pyright: ignore


class TimeLimit:
    """`async with timeout(delay):` allows its block so many seconds, any time if that is None."""

    def __init__(self, delay: float | None) -> None:
        self._delay, self._expired = delay, False
        self._timeout = Handle(self._expire, ())

    async def __aenter__(self) -> None:
        loop = get_running_loop()
        self._task: Any = loop.current_task
        self._cancelling = self._task.cancelling()
        if self._delay is not None:
            self._timeout = loop.call_later(self._delay, self._expire)

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        self._timeout.cancel()
        # We take our own request to cancel back. If no more are left than there were at the entry,
        # nobody else asked, and the error is ours:
        #
        #     requests at the entry, at the deadline, then    the error
        #     alone            0       1      0               becomes TimeoutError
        #     and Ctrl-C       0       2      1               goes on as it is
        #     two limits       0, 0    2      1, 0            goes on, to the outer one
        if self._expired and self._task.uncancel() <= self._cancelling \
                and isinstance(error, CancelledError):
            raise TimeoutError(f"timed out after {self._delay:g} s") from error

    def _expire(self) -> None:
        self._expired = self._task.cancel()


timeout = TimeLimit  # asyncio's name for making one


async def wait_for(fut: Awaitable[T], timeout: float | None) -> T:
    """Return the result of *fut*, or cancel it after *timeout* seconds and raise TimeoutError."""
    async with TimeLimit(timeout):
        return await fut


async def _until_done(future: Future[Any]) -> None:
    """Wait until *future* is done, whatever comes of it; a cancelled wait leaves it be."""
    if not future.done():
        waiter: Future[Any] = Future()
        future.add_done_callback(waiter._resolve)
        await waiter


def _outcome(future: Future[Any]) -> Any:
    """Return the result of a finished future, or its error as a value."""
    try:
        return future.result()
    except BaseException as error:
        return error


def create_task(coro: Coro[T]) -> Task[T]:
    """Run *coro* as a Task of the running loop, beginning soon."""
    return get_running_loop().create_task(coro)


class _Gathering(Future[list[Any]]):
    """What gather() returns: to cancel it is to cancel its children, which then end it."""

    children: list[Future[Any]]
    cancel_requested = False

    def cancel(self) -> bool:
        # A list, so that every child is cancelled.
        if self.done() or not any([child.cancel() for child in self.children]):
            return False
        self.cancel_requested = True
        return True


def gather(*awaitables: Runnable[Any], return_exceptions: bool = False) -> Future[list[Any]]:
    """Return the Future of all results, in the order of the arguments; coroutines become tasks.

    The first error makes it fail at once, and the others go on; with *return_exceptions* errors
    are results. Cancelling it cancels all of them, and it ends when they have ended.
    """
    children = [each if isinstance(each, Future) else create_task(each) for each in awaitables]
    outer = _Gathering(loop=children[0]._loop if children else None)
    outer.children = children
    left = len(awaitables)

    def child_done(child: Future[Any]) -> None:
        nonlocal left
        left -= 1
        outcome = _outcome(child)  # which also marks an error as retrieved
        if outer.done():
            return
        if child._state != "resolved" and not return_exceptions:
            outer.set_exception(outcome)
        elif not left and outer.cancel_requested:
            outer.set_exception(CancelledError())  # as in asyncio, it failed: it is not cancelled
        elif not left:
            outer.set_result([_outcome(child) for child in children])

    for child in children:
        child.add_done_callback(child_done)
    if not left:
        outer.set_result([])
    return outer


def to_thread(func: Callable[..., T], *args: Any, **kwargs: Any) -> Future[T]:
    """Return the Future of func(*args, **kwargs), run in a thread, in the current context.

    The thread is a daemon, cut off when the program ends. Cancelled, its result is dropped.
    """
    loop, context = get_running_loop(), copy_context()
    future: Future[T] = Future()

    def work() -> None:
        try:
            settle = functools.partial(future.set_result, context.run(func, *args, **kwargs))
        except BaseException as error:
            settle = functools.partial(future.set_exception, error)
        loop.call_soon_threadsafe(lambda: future.done() or settle())

    threading.Thread(target=work, daemon=True).start()
    return future


def current_task(loop: EventLoop | None = None) -> Task[Any] | None:
    """Return the task whose step is running now, None between steps."""
    return cast("Task[Any] | None", (loop or get_running_loop()).current_task)


def interrupt(number: int, frame: object) -> None:
    """Raise KeyboardInterrupt(number): a signal handler, which run() may replace by its own."""
    raise KeyboardInterrupt(number)


def _take_signals(handler: Callback) -> list[Any]:
    """Handle SIGINT and SIGTERM where KeyboardInterrupt would be raised; return who did before."""
    if threading.current_thread() is not threading.main_thread():
        return []  # only the main thread may
    return [(number, signal.signal(number, handler)) for number in (signal.SIGINT, signal.SIGTERM)
            if signal.getsignal(number) in (signal.default_int_handler, interrupt)]


def run(main: Coro[T], *, loop_factory: Callable[[], EventLoop] = EventLoop) -> T:
    """Run the coroutine *main* in a loop of its own; return its result or raise its error.

    When it has ended, tasks still running are cancelled and waited for.

    In the main thread it takes over SIGINT (Ctrl-C) and SIGTERM where Python's own handler, or
    interrupt(), has them. The first of them cancels *main*; if that ends cancelled, or had ended
    before, run() raises KeyboardInterrupt(number) when all is cleaned up. A second one raises
    KeyboardInterrupt wherever the program is, and nobody is waited for any more.
    """
    if _running.loop is not None:
        raise RuntimeError("run() cannot be called from a running event loop")
    signals: list[int] = []
    asked: list[bool] = []  # whether main was still there to be cancelled

    def on_signal(number: int, frame: object) -> None:
        signals.append(number)
        if len(signals) > 1:
            raise KeyboardInterrupt(number)
        loop.call_soon_threadsafe(lambda: asked.append(task.cancel()))

    with contextlib.closing(loop_factory()) as loop:
        task = loop.create_task(main)
        before = _take_signals(on_signal)
        try:
            return loop.run_until_complete(task)
        finally:
            try:
                while loop.tasks and len(signals) < 2:  # one may start others while it ends
                    tasks = set(loop.tasks)
                    for each in tasks:
                        each.cancel()
                    loop.run_forever(lambda: tasks.isdisjoint(loop.tasks))
            finally:
                for number_and_handler in before:
                    signal.signal(*number_and_handler)
                if signals and (task.cancelled() or not any(asked)):
                    raise KeyboardInterrupt(signals[0])


# 6  Queue
# ========
#
# The problem: workers need work handed to them, must wait when there is none, and somebody must
# know when all is done. "The queue is empty" does not say that: the last item may be in a
# worker's hands, and about to become ten more. The idea: count. `put` adds one to the unfinished,
# `task_done` takes one away, and `join` waits for zero. A worker puts what it found before it
# says that its item is done.
#
# A task that finds the queue empty (or full) stands in line with a future of its own. Waking it
# resolves that future and promises nothing: until its next step somebody else may have taken
# the item, so it looks again. The invariant: a wake-up is never lost. Who was woken, and cancelled
# before the next step, passes it on to the next in line.

class QueueEmpty(Exception):
    """get_nowait() found no item."""


class QueueFull(Exception):
    """put_nowait() found no place."""


_Line = collections.OrderedDict[Any, None]  # oldest first; any one leaves it in O(1)


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

    async def put(self, item: T) -> None:
        """Put an item in, waiting while the queue is full. Cancelled: it is not put."""
        await self._wait_in(self._putters, self.full)
        self.put_nowait(item)

    async def get(self) -> T:
        """Take the oldest item out, waiting while there is none. Cancelled: none is lost."""
        await self._wait_in(self._getters, self.empty)
        return self.get_nowait()

    def task_done(self) -> None:
        """Say that an item got from the queue is dealt with. ValueError if all were already."""
        if self._unfinished <= 0:
            raise ValueError("task_done() called too many times")
        self._unfinished -= 1
        if not self._unfinished:
            while self._joiners:
                self._wake(self._joiners)

    async def join(self) -> None:
        """Wait until task_done() was called for every item, those put meanwhile included."""
        if self._unfinished:  # it waits once, whatever is put after it was woken
            waiter: Future[None] = Future()
            self._joiners[waiter] = None
            await waiter

    def _wake(self, line: _Line) -> None:
        """Wake the first in line who still waits."""
        while line:
            waiter, _ = line.popitem(last=False)
            if not waiter.done():
                waiter.set_result(None)
                return

    async def _wait_in(self, line: _Line, blocked: Callable[[], bool]) -> None:
        """While *blocked()*, wait in *line* to be woken."""
        while blocked():
            waiter: Future[None] = Future()
            line[waiter] = None
            try:
                await waiter
            except BaseException:
                line.pop(waiter, None)
                if not waiter.cancelled() and not blocked():
                    self._wake(line)  # woken, but unable to use it: the next one may be
                raise


# 7  Streams
# ==========
#
# The problem: make "would block" read as "wait here". And nothing on a network may be waited for
# without a deadline: a name server, an address, a server may say nothing, or something for ever.
#
# The idea: one method, `_call`, tries a socket operation and, when it would block, waits for
# the socket and tries again: to shake hands, to send, to receive. A read waits before it tries:
#
#     write(request), drain()    send -> BlockingIOError, wait until writable, send -> all of it
#     read()                     wait until readable, recv -> some bytes
#     read()                     wait until readable, recv -> b"", the end
#
# The invariants. Between two reads the loop polls, so a fast peer holds up no other socket and no
# deadline. (Only what TLS has decrypted already is taken at once: the poll does not know of it.) A
# stream has no deadlines: who waits for it does so within a `timeout`, as connect() and 10 do.
# Interest in reading stays registered from one read to the next, which saves two system calls.

READ_SIZE = 65_536      # bytes: more at once makes malloc map and unmap memory each time
LOOKUP_TIMEOUT = 20.0   # seconds for a name: resolvers try a few times, for 5 seconds each
CONNECT_TIMEOUT = 10.0  # seconds to connect, with TLS, to one address: a lost SYN is sent again


class Stream:
    """A stream socket, plain or TLS, made non-blocking; one task may read, one write at a time."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._loop = get_running_loop()
        self._waiters: dict[int, Any] = {}  # by event: the last one waited for
        self._unsent = bytearray()

    async def read(self, size: int = READ_SIZE) -> bytes:
        """Wait for bytes and return those there are, up to *size*; b"" at the end of the stream.

        Raises OSError, also when TLS is cut off without its goodbye. Cancelled: no byte is lost.
        """
        if not getattr(self.sock, "pending", int)():  # TLS may have decrypted some already
            await self._until_ready(EVENT_READ)
        return await self._call(EVENT_READ, self.sock.recv, size)

    def readable(self) -> bool:
        """Return whether bytes, or the end, are there already; asks the kernel and never waits."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return poll.poll(0) != []

    def write(self, data: bytes) -> None:
        """Take *data* to be sent; wait for drain() to have it sent."""
        self._unsent += data

    async def drain(self) -> None:
        """Wait until all is sent (OSError). Cancelled: the rest stays for the next drain()."""
        while self._unsent:
            sent = await self._call(EVENT_WRITE, self.sock.send, self._unsent)
            del self._unsent[:sent]

    def close(self) -> None:
        """Close the socket, here and nowhere else; whoever waits gets ConnectionAbortedError."""
        if self.sock.fileno() >= 0:
            self._loop.remove_reader(self.sock)
            self._loop.remove_writer(self.sock)
            self.sock.close()
            for waiter in self._waiters.values():
                if not waiter.done():
                    waiter.set_exception(ConnectionAbortedError("the stream was closed"))

    async def _call(self, event: int, operation: Callable[..., T], *args: Any) -> T:
        """Return operation(*args), trying again whenever the socket is ready after it was not."""
        while True:
            try:
                return operation(*args)
            except OSError as error:  # TLS may have to read in order to write, and the reverse
                wanted = {"BlockingIOError": event, "SSLWantReadError": EVENT_READ,
                          "SSLWantWriteError": EVENT_WRITE}.get(type(error).__name__)
                if wanted is None:
                    raise
            await self._until_ready(wanted)

    def _until_ready(self, event: int) -> Future[None]:
        """Return a future that is resolved when the socket is readable, or writable."""
        waiter = self._waiters.get(event)
        if waiter and not waiter.done():
            raise RuntimeError("another task waits for this stream already")
        self._loop._watch(self.sock, event, Handle(self._wake, (event,)))
        waiter = self._waiters[event] = Future(loop=self._loop)
        return waiter

    def _wake(self, event: int) -> None:
        """Resume who waits; if nobody does, stop watching, or every tick would call this."""
        if self._waiters[event].done():
            self._loop._watch(self.sock, event)
        else:
            self._waiters[event].set_result(None)


async def lookup(host: str, port: int) -> list[Any]:
    """Return getaddrinfo's list of (family, kind, protocol, name, address) for a name or address.

    It blocks, so a thread calls it. Raises OSError (TimeoutError after LOOKUP_TIMEOUT).
    """
    async with TimeLimit(LOOKUP_TIMEOUT):
        # As bytes: Python would encode a str by its own IDNA first (see 8).
        return await to_thread(socket.getaddrinfo, host.strip("[]").encode(), port,
                               type=socket.SOCK_STREAM)


async def _connect(entry: Any, host: str, tls: ssl.SSLContext | None) -> Stream:
    """Return a stream to one address, as getaddrinfo gives it; leaves no socket if it fails."""
    stream = Stream(socket.socket(*entry[:3]))
    try:
        # The socket becomes writable when it is connected or has failed; SO_ERROR says which.
        code = stream.sock.connect_ex(entry[4])
        if code == errno.EINPROGRESS:
            await stream._until_ready(EVENT_WRITE)
            code = stream.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        stream.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            stream.sock = tls.wrap_socket(
                stream.sock, server_hostname=host.strip("[]").removesuffix("."),
                do_handshake_on_connect=False, suppress_ragged_eofs=False)  # a cut is an error
            await stream._call(EVENT_READ, stream.sock.do_handshake)
        return stream
    except BaseException:
        stream.close()
        raise


async def connect(host: str, port: int, *, ssl: ssl.SSLContext | None = None,
                  addresses: list[Any] | None = None) -> Stream:
    """Return a Stream to the first address of *host* that accepts; with *ssl*, a context, by TLS.

    *addresses* (by default those that lookup() finds) are tried in turn, for CONNECT_TIMEOUT
    each, and the one that accepts moves to the front. Raises the error of the last (OSError).
    """
    failure = OSError(f"{host} has no address")
    addresses = await lookup(host, port) if addresses is None else addresses
    for entry in list(addresses):
        try:
            async with TimeLimit(CONNECT_TIMEOUT):
                stream = await _connect(entry, host, ssl)
            addresses.sort(key=lambda other: other is not entry)  # it goes to the front
            return stream
        except OSError as error:
            failure = error
    raise failure


# 8  URLs
# =======
#
# The problem: a crawler remembers where it has been by the spelling of an address, and an address
# has endless spellings: relative ones, upper and lower case, `/./`, `:80`, `%2e`, tabs.
#
# The idea: do what browsers do, step by step (url.spec.whatwg.org, for http and https), so that
# each becomes the one spelling that a browser would request. On the page http://h/d/p:
#
#     ../a#x                   http://h/a
#     HTTP:\\H:80\b\%2e\c     http://h/b/c
#     //bücher.de?ü            http://xn--bcher-kva.de/?%C3%BC
#     http://0x7f.1/           a ValueError: nobody writes 127.0.0.1 like that
#
# The invariants. A URL holds printable ASCII only and no space: it can be put into a request, a
# log or a terminal as it is. User names and passwords are dropped at once. What is odd is a
# ValueError, never a guess at another host. Everything else (scope, pool, connection) looks at the
# parsed object, so no two parts read one address differently. parse_url(str(url)) == url.

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


_CONTROLS = bytes(range(33)).decode()  # and the space
_PORTS = {"http": 80, "https": 443}
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):")
_AUTHORITY = re.compile(r"(\[[^]]*\]|[^:]*)(?::([0-9]*))?")
_HOST = re.compile(r"(?:[a-z0-9_-]{1,63}[.])*[a-z0-9_-]{1,63}[.]?")
_NUMBER = re.compile(r"(?:.*[.])?(?:[0-9]+|0x[0-9a-f]*)[.]?")  # a host that can only be IPv4
# What is percent-encoded beside blanks, controls and all that is not ASCII: in a path " # < > ? ^ `
# { and }, in a query " # ' < and >.
_NOT_IN_PATH = re.compile(r"[^!$-;=@-\]_a-z|~]+")
_NOT_IN_QUERY = re.compile(r"[^!$-&(-;=?-~]+")


def _percent(match: re.Match[str]) -> str:
    return "%" + match[0].encode("utf-8", "replace").hex("%").upper()


@functools.lru_cache(1000)  # more hosts than most sites link to
def _parse_host(text: str) -> str:
    """Return the host of an authority as it is looked up and sent; ValueError if it is odd.

        EXAMPLE.com      example.com              [::FFFF]    [::ffff]
        bücher.de        xn--bcher-kva.de         127.1       ValueError: not four numbers
        straße.de        ValueError: the library's IDNA 2003 would ask strasse.de
    """
    host = text.lower()
    try:
        if len(host) > MAX_HOST or max(map(len, host.split("."))) > 63:  # before costly work
            raise ValueError
        if host.startswith("["):
            packed = socket.inet_pton(socket.AF_INET6, host[1:-1])
            low = f"{packed[12] << 8 | packed[13]:x}:{packed[14] << 8 | packed[15]:x}"
            address = socket.inet_ntop(socket.AF_INET6, packed)  # may end in 1.2.3.4
            return f"[{re.sub('[0-9]+[.].*', low, address)}]"
        # (Encoding takes long; the condition keeps one character from becoming eighteen before.)
        name = host.encode("idna" if unicodedata.is_normalized("NFKC", host) else "ascii").decode()
        if name != host and name.encode().decode("idna") != host or not _HOST.fullmatch(name):
            raise ValueError
        if _NUMBER.fullmatch(name):
            socket.inet_pton(socket.AF_INET, name)
        return name
    except (OSError, ValueError):
        raise ValueError(f"{text[:60]!r} is not a host") from None


def _parse_path(path: str) -> str:
    """Return an absolute path with its dot segments resolved and unsafe characters encoded."""
    if "/." not in path and "%" not in path and not _NOT_IN_PATH.search(path):
        return path
    segments, dots = list[str](), ""
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
    another scheme or more than MAX_URL characters.
    """
    text = re.sub("[\t\n\r]", "", reference.strip(_CONTROLS)).partition("#")[0]
    match = _SCHEME.match(text)
    scheme = match[1].lower() if match else base.scheme if base else ""
    if scheme not in _PORTS:
        raise UnfetchableError(f"{scheme[:20] or 'no scheme'}: neither http nor https")
    if len(text) > MAX_URL:
        raise UnfetchableError(f"longer than {MAX_URL} characters")
    head, mark, query = text[match.end() if match else 0:].partition("?")
    head = head.replace("\\", "/")
    if head.startswith("//"):
        authority, _, path = head.lstrip("/").partition("/")
        found = _AUTHORITY.fullmatch(authority.rpartition("@")[2])
        if found is None or int(found[2] or 0) > 65535:
            raise ValueError(f"{authority.rpartition('@')[2]!r} is not a host and a port")
        host, port = _parse_host(found[1]), int(found[2] or _PORTS[scheme])
        origin = f"{scheme}://{host}" + (f":{port}" if port != _PORTS[scheme] else "")
        path = "/" + path
    elif match or base is None:
        raise ValueError(f"// was expected behind {scheme}:")
    else:
        origin, _, host, port, target = base
        directory, base_mark, base_query = target.partition("?")
        path = directory[:directory.rfind("/") + 1] + head if head else directory
        if head.startswith("/"):
            path = head
        elif not (head or mark):
            mark, query = base_mark, base_query
    target = _parse_path(path) + mark + _NOT_IN_QUERY.sub(_percent, query)
    if len(origin) + len(target) > MAX_URL:
        raise UnfetchableError(f"longer than {MAX_URL} characters")
    return URL(origin, scheme, host, port, target)


# 9  HTTP messages
# ================
#
# The problem: a response is a head of text lines and a body of bytes, and nothing marks the body's
# end but what the head says about it. A client that guesses wrong takes the rest of one answer
# for the beginning of the next.
#
# The idea: a parser that does no I/O. It is fed what the network gave, in pieces of any size,
# and says when a response is complete. Inside it is a coroutine of its own kind, a generator that
# waits for bytes: each bare `yield` means "more bytes", and no Task ever sees it.
#
#     parser = ResponseParser()
#     parser.feed(b"HTTP/1.1 200 OK\r\nContent-Le")       False
#     parser.feed(b"ngth: 5\r\n\r\nhel")                   False
#     parser.feed(b"lo")                                   True
#     parser.response.body                                 b"hello"
#
# Where a body ends is decided in one place, `_framing` (RFC 9112 section 6.3):
#
#     the answer to HEAD, 1xx, 204, 304      there is none
#     Transfer-Encoding: chunked             each piece says its length, 0 is the last
#     Content-Length: n                      after n bytes
#     neither                                when the server closes the connection
#
# The invariants. Every byte is accounted for: an end before the length is reached, two lengths
# that differ, or a Transfer-Encoding that is not plain chunked or has a length beside it, are
# errors; bytes after the end are nobody's answer, and the connection is not used again. Each
# piece has a limit. The cost: linear in the bytes, however they are cut.

MAX_HEAD = 65_536            # bytes: a head, a chunk's first line, a section of trailers
MAX_BODY = 10 * 1024 * 1024  # bytes, on the wire and decoded: larger than any page worth reading
MAX_DROPPED = 65_536         # bytes not wanted: to read them is cheaper than another connection


class ProtocolError(Exception):
    """The server's answer is not valid HTTP/1; says what was expected and what was seen."""


class TruncatedError(ProtocolError):
    """The connection ended before the answer did."""


class LimitError(ProtocolError):
    """Something in the answer is larger than it may be; says what, and the limit."""


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
        self.content_type, self.body, self.reusable = headers.get("content-type", ""), b"", False


_FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*+([^\r\n\0]*+)")
_STATUS_LINE = re.compile(r"HTTP/1\.([0-9]) ([1-9][0-9][0-9])(?: ([^\r\n\0]*))?\r?")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?\r\n")  # at most 64 bits
_LINE_END = re.compile(rb"\n")
_EMPTY_LINE = re.compile(rb"(?:^|\n)\r?\n")


def _parse_fields(text: str) -> dict[str, str]:
    """Return the fields of a head, or of what comes after a body in chunks."""
    fields: dict[str, str] = {}
    # A field may go on in the next line, behind blanks: obsolete, but met.
    for line in filter(None, re.sub("\n[ \t]+", " ", text.replace("\r\n", "\n")).split("\n")):
        match = _FIELD.fullmatch(line)
        if match is None:
            raise ProtocolError(f"a header field was expected, not {line[:60]!r}")
        name, value = match[1].lower(), match[2].rstrip(" \t")
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    return fields


def _parse_head(text: str) -> Response:
    """Return the Response whose head is *text*: status line and fields, RFC 9112, 4 and 5."""
    line, _, fields = text.partition("\n")
    match = _STATUS_LINE.fullmatch(line)
    if match is None:
        raise ProtocolError(f"an HTTP/1 status line was expected, not {line[:60]!r}")
    return Response(int(match[1]), int(match[2]), match[3] or "", _parse_fields(fields))


def _framing(method: str, response: Response) -> int | str:
    """Return where the body ends: its length, "chunked" or "close"."""
    coding, length = map(response.headers.get, ("transfer-encoding", "content-length"))
    if length is not None and not re.fullmatch("[0-9]{1,18}", length):  # less than 2**63
        raise ProtocolError(f"one Content-Length was expected, not {length!r}")
    if method == "HEAD" or response.status < 200 or response.status in (204, 304):
        return 0
    if coding is not None:
        if coding.lower() != "chunked" or response.version == 0 or length:
            raise ProtocolError(f"Transfer-Encoding {coding!r} leaves the body's end in doubt")
        return "chunked"
    return int(length) if length else "close"


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
                 max_body: int = MAX_BODY) -> None:
        self.response: Response | None = None   # once its head is there
        self._buffer = bytearray()              # received and not yet parsed
        self._ended = False                     # no more will be received
        self._max_body = max_body
        self._parsing = self._parse(method, wanted)

    def feed(self, data: bytes) -> bool:
        """Parse *data* (b"" is the end of the stream); return whether .response is complete.

        Raises ProtocolError (TruncatedError, LimitError). After True or an error the parser is
        not to be fed again.
        """
        self._buffer += data
        self._ended = not data
        # next() gives None while it waits for more, and "complete" once it has returned.
        return next(self._parsing, "complete") == "complete"

    def _parse(self, method: str, wanted: Callable[[Response], bool]) -> Iterator[None]:
        """Parse one response; each `yield` waits for feed()."""
        while True:
            head = yield from self._take_through(_EMPTY_LINE, "head")
            if not head.strip():  # an empty line before it is allowed
                continue
            response = _parse_head(head.decode("latin-1"))
            framing = _framing(method, response)
            if response.status >= 200:
                break
        self.response, keep = response, wanted(response)
        if not keep and (not isinstance(framing, int) or framing > MAX_DROPPED):
            return
        if framing == "chunked":
            body = yield from self._chunks()
        else:
            while framing == "close" and not self._ended:
                self._check_size(len(self._buffer))
                yield
            size = framing if isinstance(framing, int) else len(self._buffer)
            if keep:
                self._check_size(size)
            body = yield from self._take(size)
        if keep:
            coding = response.headers.get("content-encoding", "").lower()
            response.body = _decode(body, coding, self._max_body)
        response.reusable = (response.version >= 1 and framing != "close" and not self._buffer
                             and "close" not in response.headers.get("connection", "").lower())

    def _need(self, size: int) -> Iterator[None]:
        """Wait until the buffer holds *size* bytes."""
        while len(self._buffer) < size:
            if self._ended:
                raise TruncatedError("the connection was closed before the response ended")
            yield

    def _take(self, size: int) -> Generator[None, None, bytes]:
        """Wait for *size* bytes and take them out of the buffer."""
        yield from self._need(size)
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def _take_through(self, end: re.Pattern[bytes], what: str) -> Generator[None, None, bytes]:
        """Take all up to *end* out of the buffer; LimitError for more than MAX_HEAD bytes."""
        start = 0
        while True:
            match = end.search(self._buffer, start)
            size = match.end() if match else len(self._buffer)
            if size > MAX_HEAD:
                raise LimitError(f"a {what} of more than {MAX_HEAD} bytes")
            if match:
                return (yield from self._take(size))
            start = max(0, size - 2)  # an end may have begun there
            yield from self._need(size + 1)

    def _check_size(self, size: int) -> None:
        if size > self._max_body:
            raise LimitError(f"a body of more than {self._max_body} bytes")

    def _chunks(self) -> Generator[None, None, bytes]:
        """Return a body that comes in chunks, RFC 9112 section 7.1; trailers are dropped."""
        body, size, received = bytearray(), 1, 0
        while size:
            line = yield from self._take_through(_LINE_END, "chunk's first line")
            match = _CHUNK_SIZE.fullmatch(line)
            if match is None:
                raise ProtocolError(f"a chunk size in hexadecimal was expected, not {line[:40]!r}")
            size = int(match[1], 16)
            received += len(line) + size
            self._check_size(received)
            if size:
                chunk = yield from self._take(size + 2)
                if not chunk.endswith(b"\r\n"):
                    raise ProtocolError(f"the end of a chunk was expected, not {chunk[size:]!r}")
                body += chunk[:size]
        trailers = yield from self._take_through(_EMPTY_LINE, "trailer section")
        _parse_fields(trailers.decode("latin-1"))  # are they fields?
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
# The invariants. A stream is in the pool or with one task, never both.
#
#     kept      if its response was read to the end, and it may be reused
#     closed    otherwise, cancelled requests included; when there are too many; and when it is
#               taken and there is something to read: the server's end of it, or no answer of ours
#
# The server may still close it, or send a stray message, just as the next request leaves: so a
# request that fails on a kept connection before a whole head came back is sent again, on a fresh
# one in the end (RFC 9112, 9.3.1).

FETCH_TIMEOUT = 30.0  # seconds for a whole fetch
MAX_IDLE = 100        # connections kept, by default: a process may often have 256 files open


def _tls_context() -> ssl.SSLContext:
    """Return how to speak TLS: certificates are checked, and a cut-off stream is an error."""
    import ssl  # here, for it takes a while
    context = ssl.create_default_context()
    context.hostname_checks_common_name = False  # RFC 9110 section 4.3.4
    # Python 3.11.2 mistakes a connection that was cut for the end of the body.
    context.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
    # DHE lets the server choose how long the client computes: seconds, if it wants.
    context.set_ciphers(":".join(cipher["name"] for cipher in context.get_ciphers()
                                 if not cipher["name"].startswith("DHE-")))
    return context


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
        self.user_agent = usual["User-Agent"] = fields["User-Agent"]
        # What every request says: without the user's *headers*, and with them.
        self._usual_fields, self._fields = ["".join(
            f"{name}: {value}\r\n" for name, value in some.items()) for some in (usual, fields)]
        # Idle streams, the longest idle first, and their origins.
        self.pool: collections.OrderedDict[Stream, str] = collections.OrderedDict()
        self.lookups: dict[Any, Task[Any]] = {}  # by host and port
        self._tls: ssl.SSLContext | None = None

    async def fetch(self, url: URL, method: str = "GET", own_headers: bool = True,
                    wanted: Callable[[Response], bool] = _always) -> Response:
        """Return the response to one request of *method*; redirects are not followed.

        *method* must be one that may be sent twice, such as GET or HEAD. *own_headers* says
        whether the client's *headers* are sent, which may be secrets between the user and some
        hosts; the User-Agent always is. The body is read if *wanted(response)*, called when the
        head is there, is true. Raises OSError (TimeoutError after self.timeout seconds)
        when there is no answer, ProtocolError when it is broken. Cancelled, it closes the
        connection.
        """
        request = (f"{method} {url.target} HTTP/1.1\r\nHost: {url.origin.partition('//')[2]}\r\n"
                   f"{self._fields if own_headers else self._usual_fields}\r\n").encode()
        async with TimeLimit(self.timeout):
            while True:
                kept = self._take_idle(url.origin)
                parser = ResponseParser(method, wanted, self.max_body)
                try:
                    stream = kept or await self._new_stream(url)
                    return await self._exchange(stream, url.origin, request, parser)
                except (OSError, ProtocolError):
                    if not kept or parser.response:
                        raise

    def close(self) -> None:
        """Close every idle connection; the client may go on being used."""
        while self.pool:
            self.pool.popitem()[0].close()

    def _take_idle(self, origin: str) -> Stream | None:
        """Take the stream that was used last out of the pool, if one has nothing to say."""
        while stream := next((stream for stream, its_origin in reversed(self.pool.items())
                              if its_origin == origin), None):
            del self.pool[stream]
            if not stream.readable():
                return stream
            stream.close()
        return None

    async def _exchange(self, stream: Stream, origin: str, request: bytes,
                        parser: ResponseParser) -> Response:
        """Send *request* and return its response; the stream goes into the pool or is closed."""
        try:
            stream.write(request)
            await stream.drain()
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
        """Return a new stream. A host is looked up once, until connecting to it fails."""
        if url.scheme == "https" and self._tls is None:
            self._tls = _tls_context()
        tls = self._tls if url.scheme == "https" else None
        key = url.host, url.port
        if key not in self.lookups:
            self.lookups[key] = create_task(lookup(*key))
            self.lookups[key].add_done_callback(_outcome)  # looks at its error, if nobody else does
        task = self.lookups[key]
        try:
            await _until_done(task)
            return await connect(*key, ssl=tls, addresses=task.result())
        except OSError:
            self.lookups.pop(key, None)
            raise


async def fetch(url: str, **options: Any) -> Response:
    """Return the response to GET *url*, which needs its http:// or https://.

    Redirects are not followed; options are Client's. Raises ValueError for what is no URL,
    otherwise what Client.fetch raises.
    """
    with contextlib.closing(Client(**options)) as client:
        return await client.fetch(parse_url(url))


# 11  Links
# =========
#
# The problem: find what a page points to in markup that nobody checked, at a price that does not
# exceed the fetching, and without being fooled by comments, scripts or quoted text.
#
# The idea: one regular expression is matched all over the page by findall(), and gives only the
# tags that may lead somewhere. Few are left, so it costs little to look at those closely. On
#
#     <p>The <a class="top" href="/b#c">first</a>, the <A HREF='/d&amp;e'>second</A>
#     <link rel=icon href=i.png> <!-- <a href=/no> --> <script src=s.js>"<a href=/no>"</script>
#
# this becomes of it:
#
#     findall() gives                                  what that refers to
#     ('"/b#c', "", "", "")                            the link /b#c (but for the quote before it)
#     ("", "A HREF='/d&amp;e'", "", "")                the link /d&e
#     ("", "link rel=icon href=i.png", "", "")         the asset i.png
#     ("", "", "", "")                                 (the comment, stepped over)
#     ("", "script src=s.js", "script", '"<a h...')    the asset s.js
#
# The invariant: linear time, whatever the page. No repetition that could go far gives back what it
# took: `*+` of one character, `(?>(?:...)*)` of a group (3.11.4 takes `(?:...)*+` wrongly). And at
# a `<` and a letter the whole tag matches and is behind us, however it goes on. The cost: some 6
# microseconds per KB, where html.parser takes 130.

MAX_SHOWN = 200  # characters of somebody else's words that are shown
PRODUCT = "crawl"  # the name that robots.txt knows us by: see product_of(), 12
MAX_REFERENCES = 100_000  # of a page, sitemap or sheet: a second of work (a sitemap has 50,000)
MAX_ATTRIBUTES = 100      # of an element: those that count stand first
LARGE_PAGE = 1_000_000    # bytes: to replace what is wrong in more than that could take seconds


def _check_count(references: Sized, length: int = 0) -> None:
    """Raise LimitError if these are too many, with a base of so many characters before each."""
    limit = MAX_REFERENCES * 500 // max(500, length)
    if len(references) > limit:
        raise LimitError(f"more than {limit} references")


# The expression does what the HTML standard's tokenizer does (section 13.2.5), as far as links need
# it: a quote opens a value only behind a "=", and of scripts and titles only the end tag counts.
_BLANK = r"\t-\r\x20"
_VALUE = rf"""(?>"[^"]*+"?|'[^']*+'?|[^{_BLANK}>]*+)"""
_ATTRIBUTES = rf"[^>=]*+(?>(?:=[{_BLANK}]*+{_VALUE}[^>=]*+)*)"
_TAG = re.compile(rf"""<
    (?=[a-zA-Z!?])                                              # to save time: no </a>,
    (?!(?!xmp)[a-z0-9]{{1,4}}+(?>[ ]class="[^"<]*+"|)>)           # no <p>, and no <i class="x">
    (?: a[ ](?>class="[^"]*+"[ ]|)                              # of <a class="x" href="/b#c">,
        href=("[^"&{_BLANK}]*+)"{_ATTRIBUTES}>                  # the usual link, captures "/b#c
      | ((?i:a|area|audio|base|embed|frame|img|input|link|meta|object|source|track|video|
            (script|style|iframe|noembed|noframes|template|textarea|title|xmp|plaintext))
        (?=[{_BLANK}/>]){_ATTRIBUTES})>                         # of <IMG SRC=f> captures IMG SRC=f,
        (?(3)((?s:.*?))(?:</(?i:\3)(?=[{_BLANK}/>])|\Z))        # and the text up to </style>
      | !--(?:-?>|(?s:.*?)(?:--!?>|\Z))                         # <!-- ... -->
      | [!?][^>]*+                                              # <!doctype html>, <?php ... ?>
      | [a-zA-Z][^{_BLANK}/>]*+{_ATTRIBUTES}                    # or <p title="<a href=/no>">
    )""", re.VERBOSE | re.ASCII)
# Of "a href=/b class='x'" it makes the pairs a and nothing, href and /b, class and x.
_PAIR = re.compile(rf"""([^{_BLANK}/][^{_BLANK}/=]*+)
    (?>[{_BLANK}]*+=[{_BLANK}]*+(?>"([^"]*+)"?|'([^']*+)'?|([^{_BLANK}>]*+))|)""", re.VERBOSE)
_ENTITY = re.compile("&#?[0-9a-zA-Z]{1,40};")


@functools.lru_cache(1000)
def _character(entity: str) -> str:
    import html  # here, for many pages have none
    decoded = html.unescape(entity)
    return decoded if len(decoded) < 3 else entity  # of &notit; it decodes &not, too


def _unescape(value: str) -> str:
    """Decode entities that end in ";", each alone: html.unescape takes "?a=1&copy=3" for a sign."""
    return _ENTITY.sub(lambda match: _character(match[0]), value) if "&" in value else value


class Markup(NamedTuple):
    """What a page, sitemap or sheet, or one tag, refers to: as written, with entities decoded."""

    links: tuple[str, ...] = ()     # of a, area, frames, some link elements; of a sitemap
    assets: tuple[str, ...] = ()    # images, scripts, styles and the like
    base: str | None = None         # what they are relative to, itself relative to the page
    nofollow: frozenset[str] = frozenset()  # the robots' names that are asked not to follow links


_DOUBLE, _SINGLE = (rf"{quote}[^{quote}\\\n]*+(?>(?:\\(?s:.)[^{quote}\\\n]*+)*)" for quote in "\"'")
_SHEET = re.compile(rf"""
    /\*(?s:.*?)(?:\*/|\Z)                           # a comment, stepped over
  | @namespace[^;]*+
  | (?:@import\s*+(?=["'])|url\(\s*+)({_DOUBLE}"|{_SINGLE}'|[^"'()\s]*+)       # captures "a.png"
  | (?:{_DOUBLE}|{_SINGLE})["']?+                   # another string, stepped over
    """, re.VERBOSE | re.IGNORECASE)


def read_sheet(text: str) -> Markup:
    """Return what a style sheet uses: its url() and @import, but for those with escapes."""
    values = [value.strip("\"'") for value in _SHEET.findall(text) if "\\" not in value]
    return Markup(assets=tuple(filter(None, values)))


_LOC = re.compile(r"<(?:(?!image:)\w+:)?loc\b[^<>]*+>\s*+(?:<!\[CDATA\[)?\s*+([^<\s]++)")


def read_sitemap(text: str) -> Markup:
    """Return the URLs that a sitemap, or an index of sitemaps, lists; of other XML nothing."""
    return Markup(tuple(_unescape(url.removesuffix("]]>")) for url in _LOC.findall(text)))


_REFRESH = re.compile(
    r"""\s*+[0-9.]++[\s;,]++(?:url\s*+=\s*+)?(?:"([^"]*+)|'([^']*+)|(.*\S))""", re.IGNORECASE)
_NOFOLLOW = re.compile(r"\bnofollow\b|(?:^|,)\s*+none\b", re.IGNORECASE)
_CANDIDATE = re.compile(r"([^\s,]\S*+)(?>(?<!,)\s[^,]*+|)")  # of "i.png, j.png 2x" i.png, and j.png


@functools.lru_cache(1000)  # a site's pages share many tags
def _read_tag(tag: str) -> Markup:
    """Return what a captured tag refers to; of two attributes of one name the first counts."""
    pairs: dict[str, str] = {}
    for match in itertools.islice(_PAIR.finditer(tag), MAX_ATTRIBUTES):
        pairs.setdefault(match[1], match[2] or match[3] or match[4] or "")
    element = next(iter(pairs)).lower()
    values = collections.defaultdict(str, {
        name.lower(): _unescape(value) for name, value in reversed(pairs.items())})
    rel, text = values["rel"].lower(), values["content"]
    if element == "base":
        return Markup(base=values.get("href"))
    if element == "meta" and values["http-equiv"].lower() == "refresh":
        found = _REFRESH.match(text)
        return Markup((found[found.lastindex or 0],) if found else ())
    if element == "meta":
        return Markup(nofollow=frozenset([values["name"].lower()] * bool(_NOFOLLOW.search(text))))
    source = ("href" if element in ("a", "area", "link") else
              "data" if element == "object" else "src")
    named = [values[name] for name in (source, "poster") if name in values]
    choices = _CANDIDATE.findall(f"{values['srcset']}, {values['imagesrcset']}")
    named += [choice.rstrip(",") for choice in choices]
    shown = element not in ("a", "area", "frame", "iframe")
    if element == "input" and values["type"].lower() != "image":
        named = []
    elif element == "link" and not re.search("stylesheet|icon|preload|manifest", rel):
        shown = "alternate" in rel and "hreflang" not in values  # a feed
        named *= bool(re.search("next|prev|canonical|alternate", rel))
    return Markup(assets=tuple(named)) if shown else Markup(tuple(named))


def read_markup(text: str) -> Markup:
    """Return what an HTML page refers to; LimitError for more than MAX_REFERENCES tags."""
    links: list[str] = []
    assets: list[str] = []
    base, nofollow = None, frozenset[str]()
    found = dict.fromkeys(_TAG.findall(text.replace("\0", "\ufffd")))
    _check_count(found)
    for usual, tag, kind, style in found:
        if usual:
            links.append(usual[1:])
        elif tag:  # a long one, an image in itself, is not worth caching
            part = _read_tag(tag) if len(tag) < 500 else _read_tag.__wrapped__(tag)
            links += part.links
            assets += part.assets
            assets += read_sheet(style).assets if kind.lower() == "style" else ()
            base = part.base if base is None else base
            nofollow |= part.nofollow
    return Markup(tuple(links), tuple(assets), base, nofollow)


_ID = re.compile(r"""[\s"'/](?:id|name)\s*+=\s*+("[^"]*+|'[^']*+|[^\s>"']++)""", re.IGNORECASE)


def ids_of(text: str) -> frozenset[str]:
    """Return the places of a page to which a fragment can lead, and perhaps some more."""
    return frozenset(_unescape(found.strip("\"'")) for found in _ID.findall(text))


_CHARSET = re.compile(rb"""charset\s*+=\s*+["']?+\s*+([A-Za-z0-9_:.+-]{1,40})""", re.IGNORECASE)
_META_CHARSET = re.compile(rb"<meta[^>]*?[\s;\"']" + _CHARSET.pattern, re.IGNORECASE)
# Python has codecs that are not for pages (unicode_escape, idna, UTF-7, which hides tags).
_WEB_CHARSET = re.compile(b"iso|latin|windows|cp|koi8|euc|shift|sjis|gb|big5|mac|ascii|us-ascii|"
                          b"tis|ks|ibm|hz", re.IGNORECASE)


def decode_page(body: bytes, content_type: str) -> tuple[str, str]:
    """Return a page's text and charset: by its BOM, *content_type*, its meta, or UTF-8.

    What is wrong is replaced; more than LARGE_PAGE bytes that are wrong are read as UTF-8.
    """
    charset, errors = "utf-8", "replace" if len(body) <= LARGE_PAGE else "strict"
    if body[:2] in (b"\xff\xfe", b"\xfe\xff"):
        charset = "utf-16"
    elif body[:3] != b"\xef\xbb\xbf":
        match = (_CHARSET.search(content_type.encode("latin-1", "replace"))
                 or _META_CHARSET.search(body[:1024]))  # HTML section 13.2.3.2
        if match and _WEB_CHARSET.match(match[1]):
            charset = match[1].decode().lower()
    with contextlib.suppress(LookupError, UnicodeError, OSError):  # no such codec, or it failed
        return body.decode(charset, errors), charset
    return body.decode("utf-8", "replace"), "utf-8"


# What a document is decides who reads it: the one place that knows kinds.
_READERS: dict[str, Callable[[str], Markup]] = {
    "text/html": read_markup, "application/xhtml+xml": read_markup, "text/css": read_sheet,
    "application/xml": read_sitemap, "text/xml": read_sitemap}


@functools.lru_cache(1000)
def reader_of(content_type: str) -> Callable[[str], Markup] | None:
    """Return who reads a body of this type, None if nobody does."""
    return _READERS.get(re.split("[;,]", content_type or "text/html")[0].strip().lower())


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
MAX_RULES = 5000         # rules: the first ones count, for each is tried on each URL


_UNRESERVED = re.compile("%(?:2[de]|3[0-9]|[46][1-9a-f]|[57][0-9a]|5f|7e)", re.IGNORECASE)


def _comparable(path: str) -> str:
    """Return a path, or a pattern of one, as RFC 9309, 2.2.2, compares it.

    All that parse_url() escapes is escaped, what needs no escape (RFC 3986, 2.3) is not.
    """
    path, mark, query = re.sub("[*]+", "*", path).partition("?")
    text = _NOT_IN_PATH.sub(_percent, path) + mark + _NOT_IN_QUERY.sub(_percent, query)
    text = _UNRESERVED.sub(lambda match: unquote(match[0]), text)
    return re.sub("%..", lambda match: match[0].upper(), text)


def _matches(parts: list[str], path: str) -> bool:
    """Return whether *path* holds the parts of a pattern, one behind the other."""
    at = 0
    for part in parts:
        at = path.find(part, at) + len(part)
        if at < len(part):
            return False
    return True


def product_of(user_agent: str) -> str:
    """Return "MyBot" for "MyBot/2.0 (+http://me)": the name in robots.txt, RFC 9309, 2.2.1."""
    return re.split("[^a-zA-Z_-]", user_agent)[0]


class Robots:
    """The rules of one robots.txt for the robot named *product*.

    rules       (allow or disallow, pattern, its parts): the first that matches decides
    dropped     how many more there were than MAX_RULES
    delay       seconds between requests that the site asks for
    """

    def __init__(self, text: str, product: str = PRODUCT) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}  # ours, and that of "*", which is named ""
        names, rules_began, product = set[str](), True, product.lower()
        for line in re.split("[\r\n]+", text.removeprefix("\ufeff")[:MAX_ROBOTS]):
            line = line.partition("#")[0].strip()
            key, _, value = line.partition(":" if ":" in line else " ")
            key, value = key.strip().lower(), value.strip()
            if key == "user-agent":
                if rules_began:
                    names, rules_began = set(), False
                token = product_of(value).lower()
                if value == "*" or token == product:
                    names.add(token)
                    groups.setdefault(token, [])
            elif key in ("allow", "disallow", "crawl-delay"):
                rules_began |= key != "crawl-delay"  # that may stand among the names
                for name in names:
                    groups[name].append((key, value))
        mine = groups.get(product, groups.get("", []))
        rules = [(key, _comparable(value)) for key, value in mine if value and key != "crawl-delay"]
        self.dropped = max(0, len(rules) - MAX_RULES)
        # Longest first, and of equals "allow" first. A newline is put before patterns and paths, so
        # that they begin together, and a "$" behind each path; only at its end a pattern has one.
        self.rules = [(key, text, f"\n{text[:-1].replace('$', '%24')}{text[-1]}".split("*"))
                      for key, text in sorted(
                          rules[:MAX_RULES], key=lambda rule: (-len(rule[1]), rule[0]))]
        self.delay = max([float(value) for key, value in mine if key == "crawl-delay"
                          and re.fullmatch("[0-9]{1,6}(?:[.][0-9]{1,6})?", value)], default=0.0)

    def rule(self, target: str) -> str | None:
        """Return the rule that forbids a path with query, None if it is allowed."""
        if not self.rules or target == "/robots.txt":
            return None
        path = f"\n{_comparable(target).replace('*', '%2A').replace('$', '%24')}$"
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


def _location(response: Response) -> str:
    """Return where a redirect says that it leads, taken as UTF-8, as browsers do."""
    return response.headers.get("location", "").encode("latin-1").decode("utf-8", "replace")


def record_of(url: URL, outcome: Response | Exception, read: bool = True, product: str = PRODUCT,
              fragments: bool = False, **fields: Any) -> tuple[Record, URL, frozenset[str]]:
    """Return the Record of how a request for *url* ended, the base of its references, and its ids.

    *outcome* is a response or an error of Client.fetch. References, which the record holds as
    written, are those of a page or a sitemap if *read* is true, and of a sheet, as a robot named
    *product* takes them; ids are there with *fragments* only. *fields* are the record's, too.
    """
    base, ids = url, frozenset[str]()
    if isinstance(outcome, Response):
        status = outcome.status
        fields.update(status=status, size=len(outcome.body),
                      content_type=_printable(outcome.content_type))
        reader = reader_of(outcome.content_type) if 200 <= status < 300 else None
        if status >= 400:
            fields.update(kind="blocked" if status in (401, 403, 429) else "broken",
                          error=f"{status} {_printable(outcome.reason)}".rstrip())
        elif status in _REDIRECTS:
            fields.update(next_url=_location(outcome))
        elif reader and (read or reader is read_sheet):
            text, charset = decode_page(outcome.body, outcome.content_type)
            try:
                markup = reader(text)
                if markup.base is not None:
                    with contextlib.suppress(ValueError):
                        base = parse_url(markup.base, url)
                _check_count(markup.links + markup.assets, len(str(base)))
            except LimitError as error:
                return record_of(url, error, **fields)
            if fragments and reader is read_markup:
                ids = ids_of(text)
            nofollow = not markup.nofollow.isdisjoint(("robots", product.lower()))
            if reader is read_markup or reader is read_sitemap and markup.links:
                fields.update(encoding=charset)
            fields.update(nofollow=nofollow, links=markup.links, assets=markup.assets)
    else:
        fields.update(error=_explain(outcome), kind=(
            "timed out" if isinstance(outcome, TimeoutError) else
            "bad certificate" if hasattr(outcome, "verify_code") else
            "refused" if isinstance(outcome, OSError) else
            "over a limit" if isinstance(outcome, LimitError) else "broken"))
    return Record(str(url), **fields), base, ids


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
        self.robots: Any = None   # Robots or Exception; None: it was not asked for
        self.delay = delay              # seconds between requests that the user or the site wants,
        self.learned = self.learned_most = 0.0  # and that its 429s seem to want, now and at most
        self.next_turn = 0.0            # loop time before which it is not to be asked
        self.in_flight = 0              # requests that have not ended
        self.line: list[tuple[float, int, Node]] = []   # a heap: loop time, sequence, who waits
        self._sequence = itertools.count()
        self._loop = get_running_loop()
        self._timer: Handle | None = None

    @property
    def pace(self) -> float:
        """Seconds between requests, which then come one at a time; 0: as many as there are."""
        return max(self.delay, self.learned)

    def is_free(self, due: float) -> bool:
        """Return whether a URL with that time may be asked for now: with a delay, one at a time."""
        alone = not self.in_flight or not self.pace
        return alone and max(due, self.next_turn) <= self._loop.time() + 1e-9

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


async def load_robots(site: Site, ask: Callable[[URL], Awaitable[Response]], product: str,
                      max_tries: int) -> Robots | Exception:
    """Have a site's robots.txt asked for, RFC 9309 section 2.3.1; return its rules or why it fails.

    200 brings rules, other statuses mean none. 429, 500 or more, no answer or a broken one is a
    failure, after *max_tries* tries if it may pass, and then that of every URL there.
    """
    tries = 0
    while True:
        outcome: Any
        try:
            outcome = await ask(parse_url("/robots.txt", site.url))
            if outcome.status < 500 and outcome.status != 429:
                return Robots(outcome.body.decode("utf-8", "replace"), product)
            failure: Exception = OSError(f"{outcome.status} {outcome.reason}")
        except (OSError, ProtocolError) as error:
            outcome = failure = error
        tries += 1
        wait = _back_off(outcome, tries)
        if wait is None or tries >= max_tries:
            return failure
        await sleep(wait)


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
        nodes: list[Node] = [self]
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
# `seen_urls` needs no lock: control passes to another task only at an `await`, and
# in `admit`, which looks a URL up and enters it, there is none.
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

    async def admit_references(self, page: Node, record: Record, base: URL) -> Record:
        """Let in what a page's *record* refers to, relative to *base*; return it with URLs.

        While it is not known where the roots redirect to, nothing is let in.
        """
        linked = await self._admit_each(page, record.links, base, True,
                                        "nofollow" if record.nofollow else "")
        shown = await self._admit_each(page, record.assets, base, False,
                                       "only shown" if self.options.pages_only else "")
        for node in (linked | shown).values() if self.roots_known else ():
            if node.__class__ is Node:
                if node.referrers < 3:
                    node.linked_from += (page,)
                node.referrers += 1
        return record._replace(links=tuple(linked), assets=tuple(shown))

    async def _admit_each(self, page: Node, references: Sequence[str], base: URL, read: bool,
                          reason: str) -> dict[str, Any]:
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
        for whole in references:
            reference, _, fragment = whole.partition("#")
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
            known: Any = seen_urls.get(text)
            if known.__class__ is Node:
                wanted = read and known.round == CHECKS
            else:
                wanted = known is None or (known in _PASSING if read else not reason)
            if wanted:  # 3. Then it is parsed and admitted.
                if time.monotonic() > ending:
                    await sleep(0)
                    ending = time.monotonic() + SLICE
                text, known = self._admit_one(page, whole, base, read, reason)
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


async def _shared(tasks: dict[Any, Task[T]], work: Callable[..., Coro[T]], *key: Any) -> T:
    """Return what work(*key) returns, done once for all callers; after a failure, done anew.

    *tasks* holds its Task by key; cancelling a caller leaves it running.
    """
    task = tasks.get(key)
    if task is None or task._state in ("failed", "cancelled"):
        task = tasks[key] = create_task(work(*key))
        task.add_done_callback(_outcome)  # looks at its error: all who waited may have left
    await _until_done(task)
    return task.result()


class Answer(NamedTuple):
    """What came of *url*, from the server or (a Record) from the journal."""

    url: URL
    outcome: Response | Exception | Record
    at: float = 0.0         # Unix time of the request
    seconds: float = 0.0    # from there to the end of the answer


class Crawler:
    """Crawls from *roots*, a URL or several: every page in scope once.

    To be made and used inside a running loop: `await Crawler(["xkcd.com"]).crawl()`. A
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

    async def crawl(self) -> None:
        """Fetch until nothing is left. To be called once.

        Cancelled, it ends at once: `in_flight` names what was being asked for, of which there is
        no record. Raises what a callback raised, and what Journal.write does.
        """
        tasks = [create_task(self._rounds())]
        tasks += [create_task(self._work()) for _ in range(self.options.max_tasks)]
        try:
            await gather(*tasks)  # the first error ends all
        finally:
            rest = gather(*tasks, *self._loading.values(), *self.client.lookups.values(),
                          return_exceptions=True)
            rest.cancel()
            try:
                await _until_done(rest)
            finally:  # also when it is cancelled here
                for site in self.frontier.sites.values():
                    site.stop_timer()
                self.client.close()

    async def _work(self) -> None:
        """Take URLs from the frontier and see to them, one after the other, until None comes."""
        while node := await self.frontier.queue.get():
            self.in_flight[node] = self.loop.time(), self.loop.current_task
            answer = await self._answer(node)
            node.site.advance()
            # Poll before working: an answer from the journal has needed no wait, and a hundred of
            # them in a row would keep all requests and answers waiting.
            await sleep(0)
            if answer:
                await self._take_in(node, answer)
                self.frontier.queue.task_done()
            del self.in_flight[node], answer  # a page is not held while the next is waited for

    async def _rounds(self) -> None:
        """Have the roots asked, the pages, what is only checked; then send the workers home."""
        frontier = self.frontier
        for url in self._roots:
            frontier.admit(url)
        await frontier.queue.join()
        frontier.roots_known, level = True, 1
        while self._root_pages:
            await self._admit_references(*self._root_pages.pop(0))
        while frontier.begin(level):
            await frontier.queue.join()
            level += 1
        frontier.begin(CHECKS)
        await frontier.queue.join()
        for number, record in enumerate(frontier.told_last()):
            self._tell(record)
            if not number % 1000:
                await sleep(0)
        for _ in range(self.options.max_tasks):
            frontier.queue.put_nowait(None)

    async def _answer(self, node: Node) -> Answer | None:
        """Return what came of a URL; None: it was refused, or will come back."""
        site, url = node.site, node.url
        if self.options.robots and self.scope.covers(url):
            if site.robots is None:
                site.robots = await _shared(self._loading, self._load_robots, site)
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
            return await self._request(node, url)
        finally:
            site.end_turn()

    def _wants(self, node: Node, answer: Response | Record) -> bool:
        """Return whether the body of an answer is to be read: a sheet's also of what is checked."""
        reader = reader_of(answer.content_type) if 200 <= answer.status < 300 else None
        if reader is read_sheet:
            return not self.options.pages_only and self.scope.covers(node.url)
        return node.read and reader is not None

    async def _load_robots(self, site: Site) -> Robots | Exception:
        """Return the rules of a site, or why there are none; redirects stay within the scope."""
        async def ask(url: URL) -> Response:
            hops = 0
            while True:
                response = await self.client.fetch(
                    url, "GET", self.scope.trusts(url), lambda response: response.status == 200)
                _, target = target_of(Record("", next_url=_location(response)), url)
                if (response.status not in _REDIRECTS or not target
                        or not self.scope.covers(target) or hops == self.options.max_redirect):
                    return response
                url, hops = target, hops + 1
        return await load_robots(site, ask, self._product, self.options.max_tries)

    async def _request(self, node: Node, url: URL) -> Answer | None:
        """Ask the server; return None if the URL will come back for another try."""
        node.tries += 1
        began, at, learned = self.loop.time(), time.time(), node.site.learned
        self.in_flight[node] = began, self.loop.current_task  # anew: robots.txt is not counted
        outcome: Response | Exception
        try:
            outcome = await self.client.fetch(
                url, "GET" if node.read else node.method, self.scope.trusts(url),
                functools.partial(self._wants, node))
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

    async def _take_in(self, node: Node, answer: Answer) -> None:
        """Make what came of a URL its record, let in what it leads to, write it and tell it."""
        base, outcome = answer.url, answer.outcome
        way: Any = {"depth": node.depth, "parent": node.parent.text if node.parent else ""}
        if isinstance(outcome, Record):
            record = outcome._replace(**way)
            if not node.read and record.encoding:  # a page's answer, for what is only checked
                record = record._replace(method="GET", encoding="", nofollow=False, links=(),
                                         assets=())
        else:
            record, base, ids = record_of(
                base, outcome, node.read, self._product, bool(self.frontier.places),
                tries=node.tries, at=round(answer.at, 3), seconds=round(answer.seconds, 3),
                method="" if node.read else node.method, **way)
            if outcome is node.site.robots:
                record = record._replace(error=f"robots.txt: {record.error}")
            if self.frontier.places and record.encoding:
                self.frontier.places.add(node.text, ids)
        if record.encoding or record.assets:
            record = await self._admit_references(node, record, base)
        elif record.status in _REDIRECTS:
            record = self.frontier.follow(node, record)
        if isinstance(outcome, Response) and record.encoding:  # only pages and sitemaps have one
            try:
                work: Any = self.options.on_page(record, outcome)
                if hasattr(work, "__await__"):
                    await work
            except Exception as error:
                error.add_note(f"on_page was called for {record.url}")
                raise
        self._tell(record, not isinstance(outcome, Record))

    async def _admit_references(self, node: Node, record: Record, base: URL) -> Record:
        """Let in what a page refers to, a root's later; return its record with URLs."""
        record = await self.frontier.admit_references(node, record, base)
        while self.frontier.untold:
            self._tell(self.frontier.untold.popleft())
            await sleep(0)
        if not self.frontier.roots_known:
            self._root_pages.append((node, record, base))
        return record

    def _tell(self, record: Record, fresh: bool = True) -> None:
        """Write a record, unless the journal gave it, and hand it on."""
        if fresh and self.options.journal:
            self.options.journal.write(record)
        self.options.on_record(record)

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


async def _show_progress(crawler: Crawler, report: Report, began: float) -> None:
    """Say on the terminal, again and again, how far the crawl is; it began at *began*."""
    try:
        while True:
            columns = os.get_terminal_size(sys.stderr.fileno()).columns
            line = report.progress(crawler, crawler.loop.time() - began, columns)
            _say(f"{_CLEAR}{line}", end="")
            await sleep(PROGRESS)
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

def _leave(number: int, _: object) -> NoReturn:
    os._exit(128 + number)  # pragma: no cover (the tests see it in children)


async def _crawl(options: argparse.Namespace, journal: Journal | None, report: Report
           ) -> tuple[Crawler, float, int]:
    """Crawl until the end, or until a signal; return the crawler, the seconds and the signal."""
    loop, task, ended_by = get_running_loop(), cast("Task[Any]", current_task()), 0

    def on_record(record: Record) -> None:
        report.add(record)
        if options.verbose:
            _say(record.url, record.skipped and f"not fetched: {record.skipped}"
                 or record.error or f"{record.status} {record.next_url}".rstrip())

    def interrupt(number: int, _: object) -> None:
        """End the crawl; the next signal ends the program."""
        # Here, and not in a callback: a write that nobody reads may block the loop.
        for each in {signal.SIGINT, signal.SIGTERM} & before.keys():
            signal.signal(each, _leave)
        nonlocal ended_by
        ended_by = number
        loop.call_soon_threadsafe(task.cancel)

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
    began = loop.time()
    if live:
        create_task(_show_progress(crawler, report, began))  # until run() cancels it
    try:
        await crawler.crawl()
    except CancelledError:
        pass
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
            signal.signal(ending, _leave)
    # They are None where their descriptors are closed.
    sys.stdout, sys.stderr = sys.stdout or io.StringIO(), sys.stderr or io.StringIO()
    # Not sys.exit(): what stdout or stderr, being full or closed, did not take is given up.
    os._exit(main(sys.argv[1:]))

# The end: section 2 began with a crawler that waits for each page in turn. From a server that takes
# 100 ms for an answer (`make bench` measures it), this program gets 9.8 pages a second with
# --max-tasks 1, and idles 99 % of its time. With --max-tasks 100 it gets 852, though the first come
# alone, and still idles 85 %. One thread, no lock, and one tick that waits for all at once.
