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

and an explanation of both, meant to be read from here to the end; rest after 7, 10 and 17.

     1  Names            to skip, and come back to
     2  Event loop       callbacks: now, later, when a socket is ready
     3  Future           a result that has not happened yet
     4  Task             a coroutine, driven by the futures it waits for
     5  Waiting          run, sleep, timeout, gather, threads
     6  Queue            work to do, and knowing when all of it is done
     7  Streams          names, connections, TLS, bytes
     8  URLs             one spelling for each address
     9  HTTP messages    bytes to responses
    10  HTTP client      connections kept and reused
    11  Documents        style sheets, sitemaps, and how bytes become text
    12  Links            what a page points to
    13  Robots           what a site asks of crawlers
    14  Records          how a URL ended
    15  Sites            no site too often
    16  Scope            what belongs to the crawl, and how to crawl
    17  Frontier         each URL once
    18  Asking           robots.txt, the journal, the server, another try
    19  Places           what a link's #place must lead to
    20  References       what pages refer to, let into the frontier
    21  Crawler          workers, rounds, what came of URLs
    22  Journal          the file that remembers how URLs ended
    23  Report           what was found, by kind and URL
    24  Command line     and, at the end, the way of a Ctrl-C through the whole file

You need to know: generators used as iterators, sockets ("a thing to connect, send and recv"), that
HTTP exists, and, from section 8 on, regular expressions (`*+`, `++`, `?+` do not backtrack).
"""

from __future__ import annotations  # crawl.py needs Python 3.11
import sys

if sys.version_info < (3, 11):
    sys.exit("crawl.py needs Python 3.11 or later; this is %d.%d" % sys.version_info[:2])

import argparse, errno, fcntl, heapq, html, io, itertools, json, math, os, re, select, selectors
import signal, socket, threading, time, unicodedata, zlib
from builtins import TimeoutError as TimeoutError  # ("X as X": importers find it here, too)
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from contextvars import copy_context
from functools import lru_cache, partial
from selectors import EVENT_READ, EVENT_WRITE
from types import GeneratorType, coroutine as coroutine
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast
from urllib.parse import quote, unquote

if TYPE_CHECKING:  # pragma: no cover (for mypy; importing ssl takes a while: see _tls_context())
    import ssl

# 1  Names
# ========

__all__ = """run create_task current_task get_running_loop sleep timeout wait_for gather to_thread
    Queue QueueEmpty QueueFull Future Task EventLoop CancelledError coroutine DeadlockError connect
    Stream fetch Client Response ResponseParser ProtocolError LimitError parse_url URL read_markup
    read_sheet Markup Robots Crawler CrawlError Options Record Journal Report""".split()

T = TypeVar("T")
Callback = Callable[..., object]
Coro = Coroutine[Any, Any, T]  # a coroutine that returns a T
_ignore: Callback = lambda *_: None    # for where a callback must stand
VERSION = "2.0"


# 2  Event loop
# =============
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
# The invariants. Callbacks run in one place (`_run`), one at a time, hence no locks. A tick runs
# the ready queue last; what is added meanwhile waits for the next tick, which polls first. So a
# callback that adds itself again starves nobody. And a loop that nothing could ever wake raises
# DeadlockError. The cost: a callback that computes for a second stops everything for a second.

TIMEOUT_SWEEP = 512  # entries: with fewer, it does not matter how many cancelled ones are kept
MAX_WAIT = 1.0       # seconds of one sleep: a signal just before a sleep is handled after it


class CancelledError(BaseException):
    """The task or future was cancelled. No Exception, so that `except Exception` lets it pass."""


class DeadlockError(RuntimeError):
    """Every task waits, and no socket, deadline or thread could wake one; says who waits where."""


class Handle:
    """A callback that waits for its turn, a deadline or a socket. Tasks (§4) have a run(), too."""

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


class EventLoop:
    """Waits with *selector* and runs callbacks; Futures (§3) and Tasks (§4) are built on them."""

    def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
        self._selector = selector or selectors.DefaultSelector()
        self._ready = deque[Any]()
        # A heap of (deadline, sequence number, handle): the number keeps equal deadlines in order.
        self._timeouts, self._sequence = list[Any](), itertools.count()
        self._sweep_at, self._stopping = TIMEOUT_SWEEP, False  # the size that calls for a sweep
        self.tasks = set[Any]()         # every unfinished Task (§4)
        self.current_task: Any = None   # the one that takes a step
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
        with suppress(OSError):  # a full pipe wakes as well
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
        # Cancelled handles stay until they are at the heap's top, or until the heap has doubled
        # since the last sweep: then a sweep takes them all out, in amortised O(1) each.
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

    def run_forever(self, until: Callable[[], object] = lambda: False) -> None:
        """Tick until stop() or *until()* says so. May raise DeadlockError."""
        if _running.loop is not None:
            raise RuntimeError("an event loop is running in this thread already")
        _running.loop = self
        try:
            while not (self._stopping or until()):
                self.tick()
        finally:
            self._stopping, _running.loop = False, None

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
        elif not (watching or threading.active_count() > 1 or ready):
            # (`ready` again, and last: a thread may have called in and ended just now.)
            raise DeadlockError("every task waits for something that can no longer happen:\n"
                                + "\n".join(task.where() for task in self.tasks))
        # (If there is work to do, and no socket is watched, a poll would find nothing.)
        if watching or not ready:
            for key, events in self._selector.select(wait):
                # key.data is the dict that _watch() changes: one callback may remove the next.
                for event in list(key.data):
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
        """Make run_forever() return before the next tick."""
        self._stopping = True

    def close(self) -> None:
        """Release what the loop holds. It cannot run any more."""
        for each in self._selector, self._wake_receiver, self._wake_sender:
            each.close()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Print context["message"] and the error context["exception"], which nobody caught."""
        with suppress(OSError):  # the terminal is gone: that should not end the loop
            print(context["message"], file=sys.stderr)
            error = context["exception"]
            sys.excepthook(type(error), error, error.__traceback__)

    def _watch(self, sock: Any, event: int, handle: Handle | None = None) -> bool:
        """Set *sock*'s handle for an event, or remove it (None); return whether there was one."""
        key = self._watched.get(sock)
        handles = key.data if key else {}
        before = handles.pop(event, None)
        if handle is not None:
            handles[event] = handle
        events = sum(handles)  # the keys, EVENT_READ (1) and EVENT_WRITE (2): a bit mask
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
        ended = list[Any]()
        waited.add_done_callback(ended.append)
        self.run_forever(lambda: ended)
        return waited.result()


# 3  Future
# =========
# The problem: with callbacks alone, a fetch of connect, send, recv, recv, ... is a chain of
# functions, each naming the next. Loops, `try` and local variables do not cross from one to
# another. The idea: a Future is a result that has not happened yet. Whoever will know the result
# resolves it, whoever wants it waits, and neither needs to know the other:
#
#                   set_result(x)      -> resolved    result() returns x
#       pending  -- set_exception(e)   -> failed      result() raises e
#                   cancel()           -> cancelled   result() raises CancelledError
#
# A future leaves "pending" once. Its callbacks go to the ready queue then; none is called at once.
#
# What is missing is a function that can stop in its middle and go on later with everything it
# had. Python has one, the generator: its frame (its variables, and the line it has reached) has
# memory of its own and survives. `yield` hands a value to whoever called send() (next() is
# send(None)) and leaves loops and `try` blocks as they are, until the next send(). Functions that
# stop like that are coroutines. They say `yield from future`, and are driven so:
#
#     def fetch():                           waiting = fetch()         nothing of it has run
#         answer = yield from future         waiting.send(None)        -> future: it stops here
#         print(answer)                      waiting.send(None)        prints future.result(), ends
#
# `yield from future` runs Future.__iter__ inside the coroutine. __iter__ yields the future itself,
# which comes out of the driver's send(): so the driver learns what is waited for. When that is
# done, it calls send() again, and what __iter__ then returns is the value of the expression.

class InvalidStateError(RuntimeError):
    """A future was asked for what its state does not allow."""


class _Failure:
    """The exception with which a future failed; its __del__ reports it if nobody looked at it."""

    def __init__(self, exception: BaseException, future: Future[Any]) -> None:
        self.loop, self.exception = future._loop, exception
        self.message = f"the exception of {future} was never retrieved"
        self.retrieved = not isinstance(exception, Exception)  # (CancelledError is not reported)

    def __del__(self) -> None:
        if not self.retrieved:
            self.loop.call_exception_handler({"message": self.message, "exception": self.exception})


class Future(Generic[T]):
    """A result to come, in one loop and its thread: pending, then resolved, failed or cancelled."""

    __slots__ = ("_loop", "_state", "_result", "_callbacks", "__weakref__")

    def __init__(self, *, loop: EventLoop | None = None) -> None:
        self._loop, self._state = loop or get_running_loop(), "pending"
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
        if self._state != "resolved":  # exception() itself raises if pending or cancelled
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
        """Make the future fail; an Exception that nobody ever looks at is printed in the end."""
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
        # A Task that waits needs no Handle, for it has a run() of its own.
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
# With coroutines inside coroutines, `yield from` is a pipe. While the outer one stands there,
# Python passes every send() and throw() straight to the inner one, and what that yields straight
# to the caller. A return value travels up one level, an exception as far as the first `except`:
#
#    Task --send--> fetch --yield from--> read --yield from--> Future.__iter__
#         <----------------------- future ------------------------ yield self
#
# `async def` and `await` are the same with two guards: `await` takes only what can be waited for (a
# generator needs @coroutine), and a coroutine that nobody awaits causes a warning. Here is a fetch
# in both styles, and what either does when it is driven by hand, as a Task drives it:
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
#     waiting = fetch(sock)    nothing of it has run
#     waiting.send(None)       -> <Future pending>: the request has left
#     loop.tick()              sleeps for a second at most; the answer resolves the future
#     waiting.send(None)       -> StopIteration(b"HTTP/1.0 200 OK\r\n\r\n"): it has returned
#
# A Task is itself a Future, resolved by the coroutine's `return` (which Python spells
# StopIteration): so one word, "wait", does for a byte, a pause and a whole crawl.
#
# Cancelling must reach a coroutine deep in its pipe, and release what it holds on the way out. Only
# an exception does that. cancel() cancels the future (which may be a task) that is waited for. Then
# CancelledError appears at that `await`, runs the `finally` blocks and, unless somebody catches it,
# ends the task. If no future is waited for, CancelledError comes
#
#    to a task that was woken already    at its next step
#    to the one that is running          at its next wait, or its return
#    to one that has not begun           instead of its first step
#
# The invariant: an unfinished task is running, or in the ready queue once, or among the callbacks
# of the one future in `_waiting_for`; and it is in the loop's `tasks`, which keeps it alive.

class Task(Future[T]):
    """Runs *coro*, beginning soon, in a copy of the context; is the Future of what it returns."""

    __slots__ = ("_coro", "_context", "_waiting_for", "_must_cancel", "_cancel_requests")

    def __init__(self, coro: Coro[T], *, loop: EventLoop | None = None) -> None:
        if not isinstance(coro, (GeneratorType, Coroutine)):
            raise TypeError(f"a coroutine was expected, got {coro!r}")
        super().__init__(loop=loop)
        self._coro: Any = coro
        self._context = copy_context()
        self._waiting_for: Future[Any] | None = None
        self._must_cancel, self._cancel_requests = False, 0  # _must: at the next step
        self._loop.tasks.add(self)
        self._loop._ready.append(self)

    def __repr__(self) -> str:
        return f"<Task {getattr(self._coro, '__qualname__', self._coro)} {self._state}>"

    def step(self) -> None:
        """Run the coroutine until it waits again or ends."""
        loop, must_cancel = self._loop, self._must_cancel
        loop.current_task, self._must_cancel, self._waiting_for = self, False, None
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
                if self._must_cancel:  # it was cancelled while it ran: now it waits
                    self._must_cancel = not awaited.cancel()
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
        # None meanwhile: if A waits for B, and B for A, their cancel()s would call each other.
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
        if self._cancel_requests == 0:
            self._must_cancel = False  # nobody else asked: no CancelledError comes any more
        return self._cancel_requests

    def where(self) -> str:
        """Return the task's repr(), and the lines at which it waits, the outermost first."""
        lines, inner = [repr(self)], self._coro
        while at := getattr(inner, "cr_frame", None):  # down the pipe
            lines.append(f"  {at.f_code.co_filename}:{at.f_lineno} in {at.f_code.co_qualname}")
            inner = inner.cr_await
        return "\n".join(lines)


Runnable = Coro[T] | Future[T]  # what run_until_complete() and gather() take


# 5  Waiting
# ==========
# The problem: futures and tasks are parts; a program wants verbs.
#
#     sleep        a future that resolves itself at a deadline
#     timeout      cancels the current task at one
#     gather       a future that the last of many resolves
#     to_thread    a future that a thread resolves, by way of the self-pipe
#     run          ticks until a task is done
#
# When a wait has ended, its deadline is cancelled; when `run` has returned, no task is left.

@coroutine
def _next_tick() -> Generator[None, None, None]:
    """Let the others run once: a bare `yield` is a wait for no future."""
    yield


async def sleep(delay: float, result: Any = None) -> Any:
    """Wait *delay* seconds (ValueError for NaN), return *result*; 0 lets others run once."""
    if delay <= 0:
        await _next_tick()
        return result
    waiter: Future[Any] = Future()
    timeout = get_running_loop().call_later(delay, waiter._resolve, result)
    try:
        return await waiter
    finally:
        timeout.cancel()


class TimeLimit:
    """`async with timeout(delay):` allows its block so many seconds; no limit if that is None."""

    def __init__(self, delay: float | None) -> None:
        self._delay, self._expired, self._timeout = delay, False, Handle(self._expire, ())

    async def __aenter__(self) -> None:
        loop = get_running_loop()
        self._task: Any = loop.current_task
        self._cancelling = self._task.cancelling()
        if self._delay is not None:
            self._timeout = loop.call_later(self._delay, self._expire)

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        self._timeout.cancel()
        # This limit takes back its own request to cancel. If more are left than at the entry,
        # somebody else asked, too, and CancelledError goes on. Requests to cancel the task:
        #     who asked                            at the entry  at the end  left
        #     this limit                           0             1           0    TimeoutError
        #     this limit, and Ctrl-C               0             2           1    it goes on
        #     Ctrl-C; in a `finally`, this limit   1             2           1    TimeoutError
        if self._expired:
            left = self._task.uncancel()
            if left <= self._cancelling and isinstance(error, CancelledError):
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
    """What gather() returns. Cancelling it cancels its children, which then ends it."""

    children: list[Future[Any]]
    cancel_requested = False

    def cancel(self) -> bool:
        # A list, so that any() does not stop at the first.
        if self.done() or not any([child.cancel() for child in self.children]):
            return False
        self.cancel_requested = True
        return True


def gather(*awaitables: Runnable[Any], return_exceptions: bool = False) -> Future[list[Any]]:
    """Return the Future of all results, in the order of the arguments; coroutines become tasks.

    The first that fails or is cancelled makes it fail at once, and the others go on. With
    *return_exceptions* it waits for all, and errors are results. Cancelling it cancels all."""
    children = [each if isinstance(each, Future) else create_task(each) for each in awaitables]
    outer = _Gathering(loop=children[0]._loop if children else None)
    outer.children, left = children, len(children)

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

    The thread is a daemon, cut off when the program ends. A cancelled future drops its result."""
    loop, context = get_running_loop(), copy_context()
    future: Future[T] = Future()

    def work() -> None:
        try:
            settle = partial(future.set_result, context.run(func, *args, **kwargs))
        except BaseException as error:
            settle = partial(future.set_exception, error)
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
    """Let *handler* handle SIGINT and SIGTERM, where run() says so; return who handled them."""
    if threading.current_thread() is not threading.main_thread():
        return []  # only the main thread may
    return [(number, signal.signal(number, handler)) for number in (signal.SIGINT, signal.SIGTERM)
            if signal.getsignal(number) in (signal.default_int_handler, interrupt)]


def _end_tasks(loop: EventLoop) -> None:
    """Cancel all tasks and run until they have ended; one may start others while it ends."""
    while loop.tasks:
        tasks = set(loop.tasks)
        for each in tasks:
            each.cancel()
        loop.run_forever(lambda: tasks.isdisjoint(loop.tasks))


def run(main: Coro[T], *, loop_factory: Callable[[], EventLoop] = EventLoop) -> T:
    """Run the coroutine *main* in a loop of its own; return its result or raise its error.

    When *main* has ended, tasks still running are cancelled and waited for. In the main thread
    run() takes over SIGINT (Ctrl-C) and SIGTERM if Python's own handler, or interrupt(), has them.
    The first signal cancels *main*. If *main* ends cancelled, or had ended already, run() cleans up
    and raises KeyboardInterrupt(number). A second one raises it at once; no task is waited for."""
    signals = list[tuple[int, bool]]()  # their numbers, and whether main had ended

    def on_signal(number: int, frame: object) -> None:
        signals.append((number, task.done()))
        if len(signals) > 1:
            raise KeyboardInterrupt(number)
        loop.call_soon_threadsafe(task.cancel)

    with closing(loop_factory()) as loop:
        task = loop.create_task(main)
        before = _take_signals(on_signal)
        try:
            return loop.run_until_complete(task)  # after one Ctrl-C: CancelledError comes from here
        finally:  # after two: KeyboardInterrupt, from the middle of whatever ran
            try:
                if len(signals) < 2:
                    _end_tasks(loop)
            finally:
                for number_and_handler in before:
                    signal.signal(*number_and_handler)
                if signals:
                    number, main_had_ended = signals[0]
                    if main_had_ended or task.cancelled():
                        raise KeyboardInterrupt(number)  # in place of any outcome


# 6  Queue
# ========
# The problem: workers need work, must wait when there is none, and somebody must know when all is
# done. "The queue is empty" does not say that: the last item may be in a worker's hands, and about
# to become ten more. The idea: count. `put` adds one to the unfinished, `task_done` takes one away,
# and `join` waits for zero. A worker puts what it found before it says that its item is done.
#
# A task that finds the queue empty (or full) stands in line with a future of its own. Waking it
# resolves that future and promises nothing: until its next step somebody else may have taken
# the item, so it looks again. The invariant: a wake-up is never lost. A task that was woken, and is
# cancelled before its next step, passes the wake-up on to the next in line.

class QueueEmpty(Exception):
    """get_nowait() found no item."""


class QueueFull(Exception):
    """put_nowait() found no place."""


_Line = OrderedDict[Any, None]  # oldest first; any one leaves it in O(1)


class Queue(Generic[T]):
    """A first-in first-out queue between tasks, of *maxsize* items (0: without a bound)."""

    def __init__(self, maxsize: int = 0) -> None:
        self.maxsize, self._items, self.unfinished = maxsize, deque[T](), 0  # put, and not done
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
        self.unfinished += 1
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
        if self.unfinished <= 0:
            raise ValueError("task_done() called too many times")
        self.unfinished -= 1
        if not self.unfinished:
            while self._joiners:
                self._wake(self._joiners)

    async def join(self) -> None:
        """Wait until no item is unfinished; items that are put during the wait count, too."""
        if self.unfinished:  # (it does not wait again for items that are put after it was woken)
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
                    self._wake(line)  # it was woken, and takes nothing
                raise


# 7  Streams
# ==========
# The problem: "would block" must become "wait here". And nothing on a network may be waited for
# without a deadline: a name server, an address, a server may say nothing, or talk for ever.
# The idea: one method, `_call`, tries a socket operation (handshake, send, recv). If that would
# block, it waits for the socket and tries again. A read waits before it tries:
#
#     write(request), drain()    send -> BlockingIOError, wait until writable, send -> all of it
#     read()                     wait until readable, recv -> some bytes
#     read()                     wait until readable, recv -> b"", the end
#
# The invariants. Between two reads the loop polls, so a fast peer holds up no other socket and no
# deadline. (What TLS has decrypted already is taken at once, for a poll does not see it.) A stream
# has no deadlines: who waits for it does so within a `timeout`, as connect() and §10 do.
# Interest in reading stays registered from one read to the next, which saves two system calls.

READ_SIZE = 65_536      # bytes: for more than 128 KB malloc maps and unmaps memory each time
LOOKUP_TIMEOUT = 20.0   # seconds for a name: resolvers try a few times, for 5 seconds each
CONNECT_TIMEOUT = 10.0  # seconds to connect, with TLS, to one address: a lost SYN is sent again


class Stream:
    """A stream socket, plain or TLS, made non-blocking; one task may read, one write at a time."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock, self._loop = sock, get_running_loop()
        self._waiters, self._unsent = dict[int, Any](), bytearray()  # waiters: by event

    async def read(self, size: int = READ_SIZE) -> bytes:
        """Wait for bytes and return those there are, up to *size*; b"" at the end of the stream.

        Raises OSError, also when TLS is cut off without its goodbye. Cancelled: no byte is lost."""
        if not getattr(self.sock, "pending", lambda: 0)():  # only TLS: bytes decrypted already
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
        """Return operation(*args), once the socket is ready for it (TLS may read to send)."""
        while True:
            try:
                return operation(*args)
            except OSError as error:  # by name, for ssl may not be loaded
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

    It blocks, so a thread calls it. Raises OSError (TimeoutError after LOOKUP_TIMEOUT)."""
    async with TimeLimit(LOOKUP_TIMEOUT):
        # As bytes: Python would encode a str by its own IDNA first (see §8).
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
        if tls is not None:  # its socket has the same descriptor
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
    each, and the one that accepts moves to the front. Raises the error of the last (OSError)."""
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


# Here is a place to rest: the small asyncio is complete. The next sections speak HTTP with it.

# 8  URLs
# =======
# The problem: a crawler remembers where it has been by the spelling of an address, and an address
# has endless spellings: relative ones, upper and lower case, `/./`, `:80`, `%2e`, tabs.
# The idea: go the steps that browsers go (url.spec.whatwg.org, for http, https and UTF-8), so that
# each spelling becomes the one that a browser would request, or an error. On the page http://h/d/p:
#
#     ../a#x                   http://h/a
#     HTTP:\\H:80\b\%2e\c     http://h/b/c
#     //bücher.de?ü            http://xn--bcher-kva.de/?%C3%BC
#     http://0x7f.1/           a ValueError: nobody writes 127.0.0.1 like that
#
# The invariants. A URL holds printable ASCII only and no space: it can be put into a request, a
# log or a terminal as it is. User names and passwords are dropped at once. What is odd is a
# ValueError, never a guess at another host. And parse_url(str(url)) == url.

MAX_URL = 8_000  # characters: what RFC 9110 section 4.1 asks everyone to support
MAX_HOST = 253   # characters: what the DNS can ask for


class UnfetchableError(ValueError):
    """It may well be a URL, but not one that is fetched here; the message says why."""


class URL(NamedTuple):
    """An http or https URL, normalised and without fragment; str() spells it.

    origin      "http://host" or "https://host:8443"; the default port is left out
    host        ASCII; IPv6 in brackets
    target      what the request line asks for: /path or /path?query"""

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
# Each leaves some characters as they are: as browsers do in a path, in a query; printable ASCII.
_escape_path = partial(quote, safe="!$%&'()+*,/:;=@[\\]|", errors="replace")
_escape_query = partial(quote, safe="!$%&()+*,/:;=?@[\\]^`{|}", errors="replace")
_escape = partial(quote, safe="".join(map(chr, range(32, 127))), errors="replace")


@lru_cache(1000)  # more hosts than most sites link to. (You may skip to parse_url().)
def _parse_host(text: str) -> str:
    """Return the host of an authority as it is looked up and sent; ValueError if it is odd.

        EXAMPLE.com      example.com              [::FFFF]    [::ffff]
        bücher.de        xn--bcher-kva.de         127.1       ValueError: not four numbers
        straße.de        ValueError: the library would ask for strasse.de"""
    host = text.lower()
    try:
        if len(host) > MAX_HOST or max(map(len, host.split("."))) > 63:  # 1. its length
            raise ValueError
        if host.startswith("["):  # 2. IPv6
            packed = socket.inet_pton(socket.AF_INET6, host[1:-1])
            return f"[{socket.inet_ntop(socket.AF_INET6, packed)}]"
        name = host
        if not host.isascii():  # 3. other letters
            # What NFKC, or the library's IDNA and back, would change, as ß into ss, is refused.
            if not unicodedata.is_normalized("NFKC", host) or (
                    host.encode("idna").decode("idna") != host):
                raise ValueError
            name = host.encode("idna").decode()
        if len(name) > MAX_HOST or not re.fullmatch("(?:[a-z0-9_-]{1,63}(?:[.]|$))+", name):
            raise ValueError  # 4. the characters of a name
        if re.fullmatch("(?:.*[.])?(?:[0-9]+|0x[0-9a-f]*)[.]?", name):  # 5. IPv4
            socket.inet_pton(socket.AF_INET, name)
        return name
    except (OSError, ValueError):
        raise ValueError(f"{text[:60]!r} is not a host") from None


def _parse_path(path: str) -> str:
    """Return an absolute path with its dot segments resolved and unsafe characters encoded."""
    path = _escape_path(path)
    if "/." not in path and "%" not in path:
        return path
    segments, dots = list[str](), ""
    for part in path[1:].split("/"):
        dots = part.lower().replace("%2e", ".")
        if dots == "..":
            del segments[-1:]
        elif dots != ".":
            segments.append(part)
    if dots in (".", ".."):
        segments.append("")  # it ends with a slash, then
    return "/" + "/".join(segments)


def _trim(reference: str) -> str:
    """Return a reference without controls and blanks around it, tabs, line ends and fragment."""
    return re.sub("[\t\n\r]", "", reference.strip(_CONTROLS)).partition("#")[0]


def parse_url(reference: str, base: URL | None = None) -> URL:
    """Return the URL that *reference* means on the page *base*; raise ValueError if none.

    WHATWG URL, section 4.4, for the schemes http and https. UnfetchableError, a ValueError, for
    another scheme, or none, or more than MAX_URL characters."""
    text = _trim(reference)  # say HTTP:\\H:80\b\%2e\c?d
    match = _SCHEME.match(text)  # 1. the scheme: http
    scheme = match[1].lower() if match else (base.scheme if base else "")
    if scheme not in _PORTS:
        raise UnfetchableError(f"{scheme[:20] or 'no scheme'}: neither http nor https")
    head, mark, query = (text[match.end():] if match else text).partition("?")  # 2. the query: d
    head = head.replace("\\", "/")  # //H:80/b/%2e/c
    if head.startswith("//"):  # 3. the host and the path: h, /b/%2e/c
        authority, _, path = head.lstrip("/").partition("/")  # as browsers take ///h
        found = _AUTHORITY.fullmatch(authority.rpartition("@")[2])
        if found is None or int(found[2] or 0) > 65535:
            raise ValueError(f"{authority.rpartition('@')[2]!r} is not a host and a port")
        host, port = _parse_host(found[1]), int(found[2] or _PORTS[scheme])
        origin = f"{scheme}://{host}" + (f":{port}" if port != _PORTS[scheme] else "")
        path = "/" + path
    elif match or base is None:  # a scheme, but no // (without both, 1 has raised)
        raise ValueError(f"// was expected behind {scheme}:")
    else:  # the page's host
        origin, _, host, port, target = base
        path = target.partition("?")[0]
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


# 9  HTTP messages
# ================
# The problem: a response is a head of text lines and a body of bytes, and only the head tells where
# the body ends. A client that guesses wrong takes the rest of one answer for the next one's head.
#
# The idea: a parser that does no I/O. It is fed what the network gave, in pieces of any size,
# and says when a response is complete. Inside it is a coroutine, too, a generator that no Task ever
# sees: here a bare `yield` waits for more bytes.
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
# The invariants. Every byte is accounted for. It is an error if the stream ends too early, if there
# are two lengths, or if a body's Transfer-Encoding is not plain chunked or has a length beside it.
# Bytes after the end belong to no answer, and the connection is not used again. Each head, body,
# chunk line and trailer has a limit. The cost: linear in the bytes, however they are cut.

MAX_HEAD = 65_536            # bytes: a head, a chunk's first line, a section of trailers
MAX_BODY = 10 * 1024 * 1024  # bytes, on the wire and decoded: larger than any page worth reading
MAX_DROPPED = 65_536         # bytes not wanted: to read them is cheaper than another connection
_always: Callback = lambda response: True   # wants every body


class ProtocolError(Exception):
    """The server's answer is not valid HTTP/1; says what was expected and what was seen."""


class TruncatedError(ProtocolError):
    """The connection ended before the answer did."""


class LimitError(ProtocolError):
    """Something in the answer is larger than it may be; says what, and the limit."""


class Response:
    """The answer to one request.

    version         1 for HTTP/1.1
    status, reason  200 and "OK"
    headers         by name in lower case; those of repeated fields joined by ", "
    content_type    one of them, "" if it is not there
    body            decoded; empty when it was not wanted
    text            in a crawl, the body of a document that was read (§14), as a str
    reusable        whether the connection can take another request
    error           in a crawl (§18), what came in place of an answer; status is 0 then"""

    def __init__(self, version: int, status: int, reason: str, headers: dict[str, str],
                 error: Exception | None = None) -> None:
        self.version, self.status, self.reason, self.headers = version, status, reason, headers
        self.error, self.content_type = error, headers.get("content-type", "")
        self.body, self.text, self.reusable = b"", "", False


_FOLD = re.compile("\n[ \t]+")  # a field may go on in the next line: obsolete, but met
_FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*+([^\r\n\0]*+)")
_HEAD_END, _LINE_END, _TRAILERS_END = map(re.compile, (rb"\n\r?\n", rb"\n", rb"(?:^|\n)\r?\n"))


def _parse_fields(text: str) -> dict[str, str]:
    """Return the fields of a head, or of what comes after a body in chunks."""
    fields = dict[str, str]()
    for line in filter(None, _FOLD.sub(" ", text.replace("\r\n", "\n")).split("\n")):
        match = _FIELD.fullmatch(line)
        if match is None:
            raise ProtocolError(f"a header field was expected, not {line[:60]!r}")
        name, value = match[1].lower(), match[2].rstrip(" \t")
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    return fields


def _parse_head(text: str) -> Response:
    """Return the Response whose head is *text*: status line and fields, RFC 9112, 4 and 5."""
    line, _, fields = text.partition("\n")
    match = re.fullmatch("HTTP/1[.]([0-9]) ([1-9][0-9][0-9])(?: ([^\r\n\0]*))?\r?", line)
    if match is None:
        raise ProtocolError(f"an HTTP/1 status line was expected, not {line[:60]!r}")
    return Response(int(match[1]), int(match[2]), match[3] or "", _parse_fields(fields))


def _framing(method: str, response: Response) -> int | str:
    """Return where the body ends: its length, "chunked" or "close"."""
    coding, length = map(response.headers.get, ("transfer-encoding", "content-length"))
    if length is not None and not (length.isdecimal() and len(length) < 19):  # 2**63 has 19
        raise ProtocolError(f"one Content-Length was expected, not {length!r}")
    if method == "HEAD" or response.status < 200 or response.status in (204, 304):
        return 0
    if coding is not None:
        if coding.lower() != "chunked" or response.version == 0 or length:
            raise ProtocolError(f"Transfer-Encoding {coding!r} leaves the body's end in doubt")
        return "chunked"
    return "close" if length is None else int(length)


def _decode(body: bytes, coding: str, limit: int) -> bytes:
    """Undo a Content-Encoding of gzip; LimitError for more than *limit* bytes."""
    if coding in ("", "identity") or not body:
        return body
    if coding != "gzip":
        raise ProtocolError(f"Content-Encoding {coding!r} was not asked for")
    unzip = zlib.decompressobj(31)  # a gzip header, and 32 KB of window
    try:
        decoded = unzip.decompress(body, limit + 1)
    except zlib.error as error:
        raise ProtocolError(f"the gzip body is corrupt: {error}") from None
    if len(decoded) > limit:
        raise LimitError(f"a decoded body of more than {limit} bytes (max_body)")
    if not unzip.eof:
        raise TruncatedError("the compressed body ends too early")
    if unzip.unused_data.strip(b"\0"):  # zeros are padding
        raise ProtocolError("something follows the end of the gzip body")
    return decoded


class ResponseParser:
    """Takes the bytes of a connection, in pieces of any size, and makes a Response of them.

    *method* is that of the request. *wanted(response)* is asked when the head is complete. If it
    says no, a body known to have at most MAX_DROPPED bytes is read and dropped, so that the
    connection can be used again; any other is left unread. *max_body* is in bytes."""

    def __init__(self, method: str = "GET", wanted: Callback = _always,
                 max_body: int = MAX_BODY) -> None:
        self.response: Response | None = None   # once its head is there
        self._buffer, self._ended = bytearray(), False  # bytes not yet parsed; are they the last?
        self._max_body = max_body
        self._parsing = self._parse(method, wanted)

    def feed(self, data: bytes) -> bool:
        """Parse *data* (b"" is the end of the stream); return whether .response is complete.

        Raises ProtocolError (TruncatedError, LimitError). After an error, or True, feed no more."""
        self._buffer += data
        self._ended = not data
        # next() gives None at each `yield`, and "complete" once the generator has returned.
        return next(self._parsing, "complete") == "complete"

    def _parse(self, method: str, wanted: Callback) -> Iterator[None]:
        """Parse one response; each `yield` waits for feed()."""
        while True:
            head = yield from self._take_through(_HEAD_END, "head")
            if not head.strip():  # empty lines before it are allowed
                continue
            response = _parse_head(head.lstrip(b"\r\n").decode("latin-1"))
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
            raise LimitError(f"a body of more than {self._max_body} bytes (max_body)")

    def _chunks(self) -> Generator[None, None, bytes]:
        """Return a body that comes in chunks, RFC 9112 section 7.1; trailers are dropped."""
        body, size, received = bytearray(), 1, 0
        while size:
            line = yield from self._take_through(_LINE_END, "chunk's first line")
            # A size has at most 64 bits.
            match = re.fullmatch(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?\r\n", line)
            if match is None:
                raise ProtocolError(f"a chunk size in hexadecimal was expected, not {line[:40]!r}")
            size = int(match[1], 16)
            received += len(line) + size + 2
            self._check_size(received)
            if size:
                chunk = yield from self._take(size + 2)
                if not chunk.endswith(b"\r\n"):
                    raise ProtocolError(f"the end of a chunk was expected, not {chunk[size:]!r}")
                body += chunk[:size]
        trailers = yield from self._take_through(_TRAILERS_END, "trailer section")
        _parse_fields(trailers.decode("latin-1"))  # are they fields?
        return bytes(body)


# 10  HTTP client
# ===============
# The problem: a new connection costs one round trip, with TLS two or three and a millisecond of
# arithmetic, and a crawler asks the same server again and again.
# The idea: keep the connections that are not in use. The pool holds idle streams with their
# origins; a request takes its origin's stream that was used last, or else connects. A stream
# carries one request at a time (no pipelining): no answer can belong to another question.
#
# The invariants. A stream is in the pool or with one task, never both.
#
#     kept      if its response was read to the end, and it may be reused
#     closed    otherwise, as after a cancelled request; also if it is the oldest of too many, or
#               readable when it is taken: that is its end, or bytes nobody asked for
#
# The server may close a kept stream, or send a stray message, just as the next request leaves. So a
# request that fails there before a valid head came back is sent on a new stream (RFC 9112, 9.3.1).

FETCH_TIMEOUT = 30.0  # seconds for a whole fetch
MAX_IDLE = 100        # connections kept: some systems let a process open only 256 files


def _tls_context() -> ssl.SSLContext:
    """Return how to speak TLS: certificates are checked, and a cut-off stream is an error."""
    import ssl  # here, for it takes a while
    context = ssl.create_default_context()
    # Python 3.11.2 mistakes a connection that was cut for the end of the body.
    context.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
    # As OpenSSL does, but without DHE: there the server says how long the client computes.
    context.set_ciphers("DEFAULT:!DHE")
    return context


class Client:
    """HTTP/1.1 requests over a pool of connections. close() it in the end.

    *headers* are added to the usual ones, or replace those of the same name (ValueError if one is
    no header field, or Host). *timeout* is in seconds for one fetch, from lookup to last byte,
    *max_body* in bytes; *max_idle* connections are kept."""

    def __init__(self, headers: dict[str, str] | None = None, timeout: float = FETCH_TIMEOUT,
                 max_body: int = MAX_BODY, max_idle: int = MAX_IDLE) -> None:
        usual = {"User-Agent": f"crawl.py/{VERSION}", "Accept": "*/*", "Accept-Encoding": "gzip"}
        # One spelling of each name, so that the user's fields replace the usual ones.
        fields = usual | {name.title(): value for name, value in (headers or {}).items()}
        for name, value in fields.items():
            field = f"{name}: {value}"
            if not _FIELD.fullmatch(field) or not value.isprintable() or name == "Host":
                raise ValueError(f"a header 'Name: value' (not Host) was expected, not {field!r}")
        self.timeout, self.max_body, self.max_idle = timeout, max_body, max_idle
        self.user_agent = usual["User-Agent"] = fields["User-Agent"]
        # The header lines of requests: [False] without, [True] with the user's *headers*.
        self._fields = ["".join(f"{name}: {value}\r\n" for name, value in some.items())
                        for some in (usual, fields)]
        # Idle streams, the longest idle first, with their origins; addresses by host and port.
        self.pool, self.lookups = OrderedDict[Stream, str](), dict[Any, Task[Any]]()
        self._tls: ssl.SSLContext | None = None

    async def fetch(self, url: URL, method: str = "GET", own_headers: bool = True,
                    wanted: Callback = _always) -> Response:
        """Return the response to one request of *method*; redirects are not followed.

        *method* must be one that may be sent twice, such as GET or HEAD. *own_headers* says whether
        to send the client's *headers*, which may be secrets between the user and some hosts; the
        User-Agent is sent in any case. The body is read if *wanted(response)*, called when the head
        is there, is true. Raises OSError (TimeoutError after self.timeout seconds) if there is no
        answer, ProtocolError if it is broken or cut off. Cancelled, it closes the connection."""
        request = (f"{method} {url.target} HTTP/1.1\r\nHost: {url.origin.partition('//')[2]}\r\n"
                   f"{self._fields[own_headers]}\r\n").encode()
        async with TimeLimit(self.timeout):
            kept = self._take_idle(url.origin)
            while True:
                parser = ResponseParser(method, wanted, self.max_body)
                try:
                    stream = kept or await self._new_stream(url)
                    return await self._exchange(stream, url.origin, request, parser)
                except (OSError, ProtocolError):
                    if not kept or parser.response:
                        raise
                    kept = None  # it was stale: once more

    def close(self) -> None:
        """Close every idle connection; the client may go on being used."""
        while self.pool:
            self.pool.popitem()[0].close()

    def _take_idle(self, origin: str) -> Stream | None:
        """Take out the stream of *origin* used last; those that are readable are closed."""
        while stream := next((each for each, its_origin in reversed(self.pool.items())
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
        """Return a new stream. Host and port are looked up once, and anew after an OSError."""
        tls = None
        if url.scheme == "https":
            tls = self._tls = self._tls or _tls_context()
        key = url.host, url.port
        if key not in self.lookups:
            self.lookups[key] = create_task(lookup(*key))  # shared: a cancelled fetch leaves it be
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

    Redirects are not followed; options are Client's. Raises ValueError, or as Client.fetch does."""
    with closing(Client(**options)) as client:
        return await client.fetch(parse_url(url))


# The first evening may end here. Tomorrow begins with a site that has two broken links:
#
#     http://zoo.org/robots.txt   forbids /staff/
#     http://zoo.org/             links to /cats/, /birds#owl, http://cam.org/lion, shows /map.png
#     http://zoo.org/cats/        links to /map.png and /staff/keys, shows http://cam.org/lion
#     http://zoo.org/birds        has a parrot with an id, and no owl
#     http://cam.org/lion         redirects to http://cam.org/lion.jpg, which is not there
#
# A URL that is met is admitted to a round (a batch of URLs), or left out. First comes the root: it
# may redirect to another host; then its pages; then (CHECKS) what is only checked; then places:
#
#     round 0    /                    a page: held, until all hosts of the crawl are known
#     round 1    /                    admits /cats/, /birds to round 1, /map.png to CHECKS, no lion
#                /cats/               admits /staff/keys, /map.png to round 1, the lion to CHECKS
#                /birds, /map.png     a page without links, and an image: admit nothing
#                /staff/keys          is forbidden by robots.txt
#     CHECKS     cam.org/lion         redirects: admits lion.jpg to this round
#                cam.org/lion.jpg     404: broken
#     the end    /birds#owl           (with --fragments) /birds has only a parrot: broken
#
# The URLs that are admitted to the present round are queued. Each worker is a task with this loop:
#
#     while node := await queue.get():
#         answer = await self._answer(node)       from robots.txt, the journal, or the server: §18
#         if answer:                              else the URL is queued again, later
#             await self._take_in(node, answer)   admits what it refers to, §20; tells a Record, §14
#             queue.task_done()                   when this was said of all, the round ends

# 11  Documents
# =============
# The problem: find what a document refers to, as fast as it is fetched; and it may be in any
# charset, broken, or made to keep us busy. The idea: each kind of document has a reader, a function
# that searches its text with a regular expression and returns a Markup. In the style sheet
#
#     /* was: url(old.png) */ @import "base.css"; p { background: url(new.png) }
#
# read_sheet() takes out the comment, and finds base.css and new.png. HTML has its own section, at
# whose end stands the table of readers. The invariant: the time is linear in the text's length.
# No repetition gives back what it took (`*+` of characters, `(?>...*)` of groups); the few that
# may are used on short texts only. And a comment or script that has no end takes all the rest.

MAX_REFERENCES = 100_000  # of a document: a second of work (a sitemap may have 50,000)
MAX_JOINED = 20_000_000   # characters: each reference is joined to its base, which may be long
_CHARSET = re.compile(rb"""(?i:charset)\s*+=\s*+["']?+\s*+([A-Za-z0-9_:.+-]{1,40})""")
_META_CHARSET = re.compile(rb"(?i)<meta[^>]*?[\s;\"']" + _CHARSET.pattern)


def decode_page(body: bytes, content_type: str) -> tuple[str, str]:
    """Return a document's text and charset: by its BOM, else *content_type*, meta, or UTF-8."""
    charset = "utf-8"
    if body[:2] in (b"\xff\xfe", b"\xfe\xff"):
        charset = "utf-16"
    elif body[:3] != b"\xef\xbb\xbf":
        match = (_CHARSET.search(content_type.encode("latin-1", "replace"))
                 or _META_CHARSET.search(body[:1024]))  # HTML section 13.2.3.2
        # Python has codecs that are not for pages; UTF-16 is read only with a BOM.
        if match and not re.search(b"(?i)idna|punycode|escape|utf(?!-?8)", match[1]):
            charset = match[1].decode().lower()
    with suppress(LookupError, UnicodeError, OSError):  # no such codec, or it failed
        return body.decode(charset, "replace"), charset
    return body.decode("utf-8", "replace"), "utf-8"


class Markup(NamedTuple):
    """What a document refers to: as written, with entities decoded."""

    links: tuple[str, ...] = ()     # where one can go: pages, frames; all URLs of a sitemap
    assets: tuple[str, ...] = ()    # what is shown or used: images, scripts, styles
    base: str = ""                  # <base href>: links and assets are relative to it
    nofollow: frozenset[str] = frozenset()  # names of the robots that shall not follow its links


def _check_count(count: int, base: str = "") -> None:
    """Raise LimitError for too many tags or references, or too long a *base* to join to each."""
    if count > MAX_REFERENCES or count * len(base) > MAX_JOINED:
        raise LimitError(f"more than {MAX_REFERENCES} tags or references, or too long a base")


def _decode_entity(match: re.Match[str]) -> str:
    decoded = html.unescape(match[0])
    return decoded if len(decoded) < 3 else match[0]  # (&notit; is no entity: it gives "¬it;")


def _value_of(found: str) -> str:
    """Return a value as it is meant: without the quote that begins it, and entities decoded."""
    value = found.lstrip("\"'")  # (Only with ";": html.unescape sees one in "?a=1&copy=3".)
    return re.sub("&#?[0-9a-zA-Z]{1,40};", _decode_entity, value) if "&" in value else value


def read_sheet(text: str) -> Markup:
    """Return what a style sheet uses: its url() and @import, but for those with escapes."""
    text = re.sub(r"(?s)/\*.*?(?:\*/|\Z)|@namespace[^;]*+", "", text)
    values = re.findall(
        r"""(?i)(?:url\(\s*+|@import\s*+(?=["']))("[^"\n]*+|'[^'\n]*+|[^"'()\s]++)""", text)
    used = (value.lstrip("\"'") for value in values if "\\" not in value)
    return Markup(assets=tuple(filter(None, used)))


def read_sitemap(text: str) -> Markup:
    """Return the URLs in the loc elements of XML: of a sitemap, or an index of sitemaps."""
    # In <sm:loc> <![CDATA[http://h/]]></sm:loc> it finds http://h/]]>
    urls = re.findall(r"<(?:(?!image:)\w++:)?loc\b[^<>]*+>\s*+(?:<!\[CDATA\[)?\s*+([^<\s]++)", text)
    return Markup(tuple(_value_of(url.removesuffix("]]>")) for url in urls))


# 12  Links
# =========
# The problem: in HTML `<a href=/x>` is a link, but not in a comment or a script.
# The idea: one regular expression, _TAGS, matches comments, scripts, and tags that may refer. No
# tag is sought inside a match. (html.parser takes 20 x as long.) You may trust it, and skip to
# read_markup(), which gets its groups:
#
#     <a class="top" href="/birds#owl">     link: "/birds#owl    (the quote is taken off later)
#     <img alt='a > b' SRC=/d&amp;e>        tag: img alt='a > b' SRC=/d&amp;e>
#     <style>p { src: url(x) }</style>      tag: style>, raw: style, inside: p { src: url(x) }
#     <!-- <a href=/> -->                   nothing
#     <p class="x">                         no match
#
# The cost: other tags are not skipped, so that a link, or a comment, is found in their values, too.

MAX_TAG = 20_000    # characters of a tag that are read: an image written into it may have millions
# Which of Markup's fields an element adds to, by which attribute. (a and area: _LINK, for speed.)
_USES = {"frame": ("links", "src"), "iframe": ("links", "src"), "base": ("base", "href"),
         "object": ("assets", "data"), "link": ("", "href"), "meta": ("", "")}
_USES |= dict.fromkeys("audio embed img input script source track video".split(), ("assets", "src"))
# Elements in which nothing counts as a tag.
_RAW_NAMES = "script|style|iframe|noembed|noframes|template|textarea|title|xmp|plaintext"
# The parts of _TAGS. (_VALUE takes the first quote with it, _SEPARATOR the last.) In the first tag
#     _NAME  class      _VALUE  "top            _SEPARATOR  " and a blank
#                       _VALUE  "/birds#owl     _REST       ">
_NAME = r"[^\s/>\"'] [^\s/=>]*+"
_VALUE = r"""(?> "[^"]*+ (?=") | '[^']*+ (?=') | [^\s>]*+ )"""
_SEPARATOR = r"[\s/\"']*+"
_ATTRIBUTE = rf"(?> {_NAME} (?: \s*+ = \s*+ {_VALUE} )? {_SEPARATOR} )"
_REST = rf"{_SEPARATOR} (?> {_ATTRIBUTE}* ) (?: > | \Z )"
_LINK = rf"""
    (?i: a | area ) [\s/] {_SEPARATOR}     # `a `
    {_ATTRIBUTE}*?      # `class="top" `: one more each time, never one less, until href, or the end
    (?: (?i: href ) \s*+ = \s*+ (?P<link> {_VALUE} ) {_REST} | > | \Z )"""
_TAG = rf"""
    (?P<tag> (?i: (?P<raw> {_RAW_NAMES} ) | {'|'.join(_USES)} ) (?=[\s/>]) {_REST} )
    (?(raw)  # if the group `raw` has matched: up to its end tag, or the page's end
        (?P<inside> .*? ) (?: </ (?i: (?P=raw) ) (?=[\s/>]) | \Z ))"""
_COMMENT = r"[!?] (?: (?=--) .*? (?: --!?> | \Z ) | [^>]*+ )"
_TAGS = re.compile(  # `(?= ... )` passes over end tags, and short ones such as <b>, at once
    f"< (?= [a-zA-Z!?] [^>] [^>] ) (?: {_LINK} | {_TAG} | {_COMMENT} )",
    re.VERBOSE | re.ASCII | re.DOTALL)
_PAIR = re.compile(rf"({_NAME}) (?: \s*+ = \s*+ ({_VALUE}) )?", re.VERBOSE | re.ASCII)
# Of "i.png 2x, j.png 3x" it finds i.png and j.png. (It backtracks, but only over a word's commas.)
_SRCSET = re.compile(r"([^\s,](?:\S*[^\s,])?)(?:\s[^,]*+)?")


def _read_meta(values: dict[str, str]) -> tuple[str, list[str]]:
    """Return the link of a refresh, or the robot that is asked not to follow links."""
    text = values.get("content", "")
    if values.get("http-equiv", "").lower() == "refresh":  # with "5; url='/next'"
        found = re.match(
            r"""(?i)\s*+[0-9.]++[\s;,]++(?>(?:url\s*+=\s*+)?)("[^"]*+|'[^']*+|.++)""", text)
        return "links", ([found[1].lstrip("\"'")] if found else [])
    nofollow = re.search(r"(?i)\bnofollow\b|(?:^|,)\s*+none\b", text)
    return "nofollow", ([values["name"].lower()] if nofollow and "name" in values else [])


def _field_of(link: dict[str, str]) -> str:
    """Return what a link element is: an asset, a link, or, as with rel=search, neither."""
    rel = link.get("rel", "").lower()
    is_feed = "alternate" in rel and "hreflang" not in link
    if is_feed or re.search("stylesheet|icon|preload|manifest", rel):
        return "assets"  # which are only checked
    return "links" if re.search("alternate|next|prev|canonical", rel) else ""


@lru_cache(1000)  # a site's pages share many tags
def _read_tag(tag: str) -> tuple[str, list[str]]:
    """Return the field of Markup that a captured tag adds to ("": none), and what it adds."""
    values: dict[str, str] = {}
    for name, value in _PAIR.findall(tag):
        values.setdefault(name.lower(), _value_of(value))  # the first counts
    element = next(iter(values))  # the tag's name comes first
    if element == "meta":
        return _read_meta(values)
    field, attribute = _USES.get(element, ("", ""))
    if element == "link":
        field = _field_of(values)
    urls = [values[name] for name in (attribute, "poster") if name in values]
    return field, urls + _SRCSET.findall(values.get("srcset", ""))


def read_markup(text: str) -> Markup:
    """Return what an HTML page refers to; LimitError for more than MAX_REFERENCES matches."""
    fields: defaultdict[str, list[str]] = defaultdict(list)
    found = _TAGS.findall(text, 0, text.rfind(">") + 1)  # (a tag that is cut off is none)
    _check_count(len(found))
    for link, tag, raw, inside in found:  # the groups of _TAGS, in their order
        if link:
            fields["links"].append(_value_of(link[:MAX_TAG]))
        elif tag:
            field, values = _read_tag(tag[:MAX_TAG])
            fields[field] += values
            if raw.lower() == "style":
                fields["assets"] += read_sheet(inside).assets
    return Markup(tuple(fields["links"]), tuple(fields["assets"]), next(iter(fields["base"]), ""),
                  frozenset(fields["nofollow"]))


_READERS: dict[str, Callable[[str], Markup]] = {
    "text/html": read_markup, "application/xhtml+xml": read_markup,
    "text/css": read_sheet, "application/xml": read_sitemap, "text/xml": read_sitemap}


@lru_cache(1000)
def reader_of(content_type: str) -> Callable[[str], Markup] | None:
    """Return the reader for a content type, None if there is none."""
    return _READERS.get(re.split("[;,]", content_type or "text/html")[0].strip().lower())


# 13  Robots
# ==========
# The problem: a site says in /robots.txt what crawlers may fetch (RFC 9309), and says it in a
# file that people wrote by hand, for the crawler that they had in mind.
# The idea: a group of rules begins with the names that it is for. All groups with our name count;
# if there is none, those for "*" do. Of the rules that match a URL the one with the longest pattern
# wins, and of two as long the one that allows. In a pattern "*" stands for any characters, a final
# "$" for the end. A Crawl-delay is obeyed (§15); other lines are ignored. So with
#
#     User-agent: *
#     Disallow: /             this group is for others
#     User-agent: crawl
#     Disallow: /staff/       /staff/keys is forbidden
#     Allow: /staff/jobs      /staff/jobs/vet is allowed, for /staff/jobs is longer than /staff/
#     Disallow: /*.pdf$       /menu.pdf is forbidden, /menu.pdf?a=b is not: it does not match

MAX_ROBOTS = 512 * 1024  # characters of robots.txt: RFC 9309 section 2.5 wants 500 KiB
MAX_RULES = 5000         # rules that count, each tried on each URL: known files have some 3,000
MAX_SHOWN = 200          # characters of a rule, or other words that are not ours, that are shown
PRODUCT = "crawl"        # the name that robots.txt knows us by: see product_of()


def _respell(match: re.Match[str]) -> str:
    """Decode an escape if it stands for an unreserved character (RFC 3986, 2.3)."""
    character = unquote(match[0])
    return character if re.fullmatch("[a-zA-Z0-9._~-]", character) else match[0].upper()


def _comparable(path: str) -> str:
    """Return a path, or a pattern for paths, in the spelling that RFC 9309, 2.2.2, compares."""
    path, mark, query = path.partition("?")
    text = _escape_path(path) + mark + _escape_query(query)
    return re.sub("%[0-9a-fA-F]{2}", _respell, text)


def product_of(user_agent: str) -> str:
    """Return "MyBot" for "MyBot/2.0 (+http://me)": the name in robots.txt, RFC 9309, 2.2.1."""
    return re.split("[^a-zA-Z_-]", user_agent)[0]


def _parts(pattern: str) -> list[str]:
    """Return [" /", ".pdf "] for /*.pdf$: blanks, which no URL holds, mark the start and a "$"."""
    return re.sub("[$]$", " ", f" {pattern}").replace("$", "%24").split("*")


def _matches(parts: list[str], path: str) -> bool:
    """Return whether all parts stand in *path*, one behind the other: " /" and ".pdf " do so in
    " /menu.pdf ", and do not in " /menu.pdf?a=b "."""
    at = 0
    for part in parts:
        found = path.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return True


class Robots:
    """The rules of one robots.txt for the robot named *product*.

    rules       (allow or disallow, pattern, its parts): the first that matches decides
    delay       seconds between requests that the site asks for"""

    def __init__(self, text: str, product: str = PRODUCT) -> None:
        # Rules, and the delay, by the name that they are for: ours, or "*".
        groups, delays = dict[str, list[tuple[str, str]]](), dict[str, float]()
        names, rules_began, product = set[str](), True, product.lower()
        for line in re.split("[\r\n]+", text.removeprefix("\ufeff")[:MAX_ROBOTS]):
            line = line.partition("#")[0].strip()
            key, _, value = line.partition(":" if ":" in line else " ")
            key, value = key.strip().lower(), value.strip()
            if key == "user-agent":
                if rules_began:
                    names, rules_began = set(), False
                name = "*" if value == "*" else product_of(value).lower()
                if name in ("*", product):
                    names.add(name)
                    groups.setdefault(name, [])
            elif key in ("allow", "disallow"):
                rules_began = True
                for name in names if value else ():  # an empty Disallow forbids nothing
                    groups[name].append((key, _comparable(re.sub("[*]+", "*", value))))
            elif key == "crawl-delay" and re.fullmatch("[0-9]{1,6}([.][0-9]{1,6})?", value):
                delays |= dict.fromkeys(names, float(value))
        mine = product if product in groups else "*"
        rules, self.delay = groups.get(mine, []), delays.get(mine, 0.0)
        # The longest pattern first, and of two as long "allow" first.
        rules = sorted(rules[:MAX_RULES], key=lambda rule: (-len(rule[1]), rule[0]))
        self.rules = [(key, pattern, _parts(pattern)) for key, pattern in rules]

    def rule(self, target: str) -> str | None:
        """Return the rule that forbids a path with query, None if it is allowed."""
        if not self.rules or target == "/robots.txt":
            return None
        path = f" {_comparable(target).replace('*', '%2A').replace('$', '%24')} "
        for key, pattern, parts in self.rules:
            if _matches(parts, path):
                return None if key == "allow" else f"Disallow: {pattern[:MAX_SHOWN]}"
        return None


# 14  Records
# ===========
# The problem: report, callbacks and journal should all be told in the same words how a URL ended.
# The idea: one value says so, a Record. answer_of() makes it of a Response, and returns an Answer,
# which holds both. Of a URL's end the Record keeps
#
#     404 Not Found               status=404, kind="broken", error="404 Not Found"
#     302, Location: lion.jpg     status=302, next_url="http://cam.org/lion.jpg"
#     200, with a page            status=200, encoding="utf-8", links=("/cats/", ...), ...
#     no answer for 30 s          status=0, kind="timed out", error="..."
#     what robots.txt forbids     skipped="robots.txt: Disallow: /staff/" (from §18: no Response)

PROBLEMS = ("broken", "timed out", "refused", "bad certificate", "over a limit",
            "too many redirects", "blocked")
_REDIRECTS = (301, 302, 303, 307, 308)
_TEMPORARY = (408, 429, 500, 502, 503, 504)  # another try may go better


class CrawlError(Exception):
    """The crawl cannot begin (a bad root), or cannot go on (a full disk)."""


def _printable(text: str) -> str:
    """Return the beginning of foreign words, escaped: terminals might obey control characters."""
    return _escape(text)[:MAX_SHOWN]


def _explain(error: Any) -> str:
    """Return an error in words that fit on a line."""
    words = getattr(error, "strerror", "") or f"{error}"
    if hasattr(error, "verify_code"):
        words = f"the certificate cannot be trusted: {error.verify_message} (see SSL_CERT_FILE)"
    elif isinstance(error, re.error):
        words = f"{error.pattern!r} is no regular expression: {error}"
    return _printable(re.sub(r" [(]_ssl[.]c:[0-9]+[)]", "", words) or type(error).__name__)


def _kind_of(failure: Exception) -> str:
    return ("timed out" if isinstance(failure, TimeoutError) else
            "bad certificate" if hasattr(failure, "verify_code") else
            "refused" if isinstance(failure, OSError) else
            "over a limit" if isinstance(failure, LimitError) else "broken")


class Record(NamedTuple):
    """How one URL ended (in fields to look up). The journal holds those that are not empty."""

    url: str                        # as str(URL); or words that are no URL; or a place, url#id
    # How it ended
    status: int = 0                 # of HTTP; 0: there was no valid answer
    error: str = ""                 # what is wrong, in words
    kind: str = ""                  # which of PROBLEMS that is
    skipped: str = ""               # the reason why it was not fetched
    next_url: str = ""              # where it redirects to
    content_type: str = ""          # as the server sent it
    encoding: str = ""              # the charset: empty unless its body was read
    size: int = 0                   # bytes, decoded
    # How it was asked for
    is_check: bool = False          # whether it was only checked
    tries: int = 0                  # requests for the URL; or tries for robots.txt, if that failed
    at: float = 0.0                 # Unix time of the last request
    seconds: float = 0.0            # from there to the end of the answer
    # What led to it, and what it refers to
    parent: str = ""                # the page, or the redirect, that led to it
    depth: int = 0                  # links from a root
    links: tuple[str, ...] = ()     # what a page links to: at first as written, later URLs
    assets: tuple[str, ...] = ()    # what it shows or uses: likewise


class Answer(NamedTuple):
    """What came of asking for a URL: a Record, and what is needed to take it in."""

    record: Record
    base: URL                       # of its links and assets
    response: Response | None = None    # if the server was asked
    from_journal: bool = False


def _read(url: URL, response: Response, reader: Callable[[str], Markup]) -> tuple[Markup, str, URL]:
    """Return a document's Markup, its charset, and the base of its references; LimitError."""
    response.text, charset = decode_page(response.body, response.content_type)
    markup, base = reader(response.text), url
    with suppress(ValueError):
        base = parse_url(markup.base, url) if markup.base else url
    _check_count(len(markup.links) + len(markup.assets), f"{base}")
    return markup, charset, base


def answer_of(url: URL, response: Response, read: bool = True, product: str = PRODUCT,
              **fields: Any) -> Answer:
    """Return the Answer of a response, or of the error in its place.

    A page that is *read* gives assets, and links if *product* may follow them; both as written."""
    status, base, failure = response.status, url, response.error
    fields.update(status=status, size=len(response.body), content_type=response.content_type)
    if status >= 400:  # 404
        fields.update(kind="blocked" if status in (401, 403, 429) else "broken",
                      error=f"{status} {_printable(response.reason)}".rstrip())
    elif status in _REDIRECTS:  # 302
        location = response.headers.get("location", "").encode("latin-1")
        try:
            if not location:
                raise ValueError("it has no Location")
            target = parse_url(location.decode("utf-8", "replace"), url)  # as browsers take it
            fields.update(next_url=f"{target}")
        except ValueError as error:
            fields.update(kind="broken", error=f"a redirect that leads nowhere: {_explain(error)}")
    elif read and status and (reader := reader_of(response.content_type)):  # 200
        try:
            markup, charset, base = _read(url, response, reader)
            follow = markup.nofollow.isdisjoint(("robots", product.lower()))
            fields.update(encoding=charset, assets=markup.assets,
                          links=markup.links if follow else ())
        except LimitError as limit:
            failure = limit
    if failure:  # no answer, or a page that is too much
        fields.update(error=_explain(failure), kind=_kind_of(failure))
    return Answer(Record(f"{url}", **fields), base, response)


# 15  Sites
# =========
# The problem: a crawler is a guest. Some sites need pauses between requests (--delay, Crawl-delay),
# or say "not now" (429). While one site rests, the workers should ask others.
# The idea: a URL that may not be asked for yet stands in its site's line. If the site has a delay,
# one URL is asked for at a time. When the delay has passed, a timer calls the first URL in line: it
# goes through the queue to a worker, and meanwhile no other URL gets a turn. With a delay of 3 s:
#
#     at 1 s    workers bring /cats/, /birds    busy: /cats/ is asked for, /birds stands in line
#     at 2 s    /cats/ has ended                resting: free_at is 5 s, a timer is set
#     at 5 s    the timer                       /birds is called: it is queued
#     at 5 s    a worker brings /birds          busy: /birds is asked for, for it was called
#
# Answers also teach how to ask. Once a site of the crawl's hosts has answered 429, it has a learned
# delay, too, and so is asked for one URL at a time:
#
#     the site answers    it rests at least for          the delay that was learned
#     429                 Retry-After, or 2 s            doubles: 0.1 s, 0.2 s ... 2 s
#     anything else       the longer of its delays       shrinks by 3 %, and stays above 0

MAX_PAUSE = 300.0   # seconds that a Retry-After or a Crawl-delay may ask for
MIN_LEARNED = 0.1   # seconds: the delay after a site's first 429
MAX_LEARNED = 2.0   # seconds: the longest delay that is learned; few sites need more
REST = 2.0          # seconds to rest after a 429 without Retry-After


class Site:
    """An origin: its robots.txt, and when it is asked. Nodes are URLs that were met (§17)."""

    learned = free_at = 0.0         # the learned delay, in seconds; the loop time of the next turn
    asked = slowed = tries = 0      # requests under way; 429s heeded; tries for robots.txt
    called: Node | None = None      # the URL whose turn it is, on its way through the queue
    timer = Handle(_ignore, ())     # for the next turn, or for another try of robots.txt

    def __init__(self, url: URL, robots: Any, delay: float, requeue: Callback) -> None:
        self.url, self.delay, self.requeue = url, delay, requeue  # requeue(node): for a worker
        self.robots = robots    # Robots; or a Record of why it failed; None: not known yet
        self.line, self.waiting = deque[Any](), deque[Any]()  # for their turn; for robots.txt (§18)
        self._loop = get_running_loop()

    def pace(self) -> float:
        """Return the seconds between requests, one at a time; 0: any number at a time."""
        return max(self.delay, self.learned)

    def is_free(self) -> bool:
        """Return whether another URL may be asked for now."""
        is_busy = self.called or (self.asked and self.pace())
        return not is_busy and self.free_at <= self._loop.time()  # nor is it resting

    def take_turn(self, node: Node) -> bool:
        """Give *node* its turn, until end_turn(), and return True; or put it into the line."""
        if node is self.called:
            self.called = None
        elif self.line or not self.is_free():
            (self.line.appendleft if node.tries else self.line.append)(node)  # tried: it goes first
            self.advance()
            return False
        self.asked += 1
        return True

    def end_turn(self, is_slowed: bool, pause: float) -> None:
        """Note that a request has ended, by a 429 or not, with a Retry-After of *pause* seconds."""
        now, rest = self._loop.time(), ((pause or REST) if is_slowed else 0.0)
        self.asked -= 1
        self.slowed += is_slowed
        if not is_slowed:
            self.learned *= 0.97
        elif self.free_at <= now:  # further 429s while it rests do not double it again
            self.learned = min(max(MIN_LEARNED, 2 * self.learned), MAX_LEARNED)
        self.free_at = max(self.free_at, now + max(rest, self.pace()))
        self.advance()

    def advance(self) -> None:
        """Call the first in line if the site is free; if it rests, set a timer."""
        self.timer.cancel()
        if self.line and self.is_free():
            self.called = self.line.popleft()
            self.requeue(self.called)
        elif self.line and not (self.called or self.asked):  # (else a turn will end, and come here)
            self.timer = self._loop.call_at(self.free_at, self.advance)

    def release(self) -> None:
        """Queue all that wait for robots.txt: it is known, or another try of it is due (§18)."""
        while self.waiting:
            self.requeue(self.waiting.popleft())


# Now the crawl itself, one object that all workers share, of six layers:
#     Scope       covers(), objection()           Places        note_ids(), missing_places()
#     Frontier    admit(), follow(), requeue()    References    admit_references()
#     Asking      _answer(), tell()               Crawler       crawl(), by _rounds() and _work()

# 16  Scope
# =========
# The problem: pages refer to the whole web. Which of it belongs to the crawl?
# The idea: the host of a URL decides, and two patterns that are searched for in it. A link leads to
# a page, which is read. An asset, such as an image, is checked: is it there? So a URL is admitted
# as a page or as a check, or is left out. A style sheet on the crawl's hosts is a check, too, but
# is read, for what it uses. With the root http://zoo.org/ and --exclude 'pdf$'
#
#                               as a link          as an image
#     https://www.zoo.org/      page               check
#     http://cam.org/lion       other host         check
#     http://zoo.org:8080/      other host         check
#     http://zoo.org/menu.pdf   excluded           excluded

MAX_DEPTH = 100  # links from a root, if no depth is given


class Scope:
    """Decides which URLs are crawled: by their hosts, by two patterns, by depth. (Options: §21.)"""

    def __init__(self, roots: list[URL], options: Options) -> None:
        self.roots, self.options = roots, options
        self.include = re.compile(options.include)              # is found in the URLs of pages
        self.exclude = re.compile(options.exclude or "(?!)")    # is found in none; "(?!)" never is
        self.deepest = MAX_DEPTH if options.depth is None else options.depth
        self.hosts = set(map(self.host, roots))  # with ports, as host() returns them
        # Where secrets may go: to roots' hosts by https, by http only if the root says http.
        self.trusted = {(scheme, *self.host(url)) for url in roots
                        for scheme in ("https", url.scheme)}

    def host(self, url: URL) -> tuple[str, int]:
        """Return the host without "www." (not of www.com), and the port, 0 for the usual one."""
        host = url.host.removeprefix("www.") if url.host.count(".") > 1 else url.host
        return host, 0 if url.port == _PORTS[url.scheme] else url.port

    def covers(self, url: URL) -> bool:
        """Return whether *url* is on one of the hosts."""
        host, port = self.host(url)
        return (host, port) in self.hosts or (self.options.subdomains and any(
            host.endswith(f".{upper}") and port == its_port for upper, its_port in self.hosts))

    def objection(self, url: URL, depth: int, check: bool) -> str:
        """Return why *url* at *depth* is left out as a page (or as a *check*), "" if it is not."""
        if self.exclude.search(f"{url}"):
            return "excluded"
        if check or depth == 0:  # roots, and what they redirect to, need no --include
            return ""
        if not self.covers(url):
            return "other host"
        if not self.include.search(f"{url}"):
            return "excluded"
        return "depth" if depth > self.deepest else ""


# 17  Frontier
# ============
# The problem: ask once for each URL that belongs to the crawl, however many ways lead there.
# The idea: each URL that was met has one Node, in one round. Round 0 is for roots and what they
# redirect to, whose hosts are the scope; 1 is for pages, CHECKS for checks, NEVER for URLs that are
# left out. Another way to a URL can only move it to an earlier round. The zoo's root links to the
# lion, and shows the map; /cats/ shows the lion, and links to the map:
#
#     after              /cats/      /map.png       http://cam.org/lion
#     / was read         round 1     CHECKS         NEVER: "other host"
#     /cats/ was read    has ended   round 1        CHECKS

MAX_AHEAD = 100     # URLs of a chain of redirects that are looked at, to find a circle
CHECKS = 1 << 40    # the round of URLs that are only checked: later than any --depth
NEVER = 1 << 41     # the round of URLs that are left out


class Node:
    """A URL that was met; or a place on a page, url#id; or words that are no URL."""

    # How it was admitted, or why it was left out
    reason = ""                     # why the URL is left out
    site: Site                      # if it is not left out
    parent: Node | None = None      # the page that led to it, or the URL that redirects to it
    depth = hops = 0                # links from a root; redirects in a row that led here
    # How it was asked for (§18)
    is_check = False                # whether the URL is only checked
    tries = 0                       # requests so far: the first of a check is HEAD, others are GET
    # What came of it
    next_node: Node | None = None   # the target of a redirect
    ids: frozenset[str] | None = None   # of a page: its places, if they are known (§19)
    place_on: Node | None = None        # of a place: the Node of its page's URL

    def __init__(self, text: str) -> None:
        self.text = text
        self.round = NEVER      # in which the URL is asked for
        self.is_well = False    # whether it has ended, and is no problem and no redirect
        self.linked_from: list[str] = []    # the pages that refer to it; while is_well is False

    @property
    def url(self) -> URL:
        """The URL, if it is not left out; made anew, for it takes more memory than the text."""
        return URL(*self.site.url[:4], self.text[len(self.site.url.origin):])

    def ahead(self) -> list[Node]:
        """Return this node and those that redirects lead to from here, MAX_AHEAD at most."""
        nodes = [self]
        while (after := nodes[-1].next_node) and len(nodes) < MAX_AHEAD:
            nodes.append(after)
        return nodes


class Frontier(Scope):
    """The URLs that were met, and a queue of those to be asked for in the present round."""

    def __init__(self, roots: list[URL], options: Options) -> None:
        super().__init__(roots, options)
        self.round = -1  # none was begun
        self.queue = Queue[Node | None]()
        self.sites = dict[str, Site]()              # by origin
        self.seen_urls = dict[str, Node]()          # by URL; URL and #place; words that are no URL
        self.seen_links, self.seen_assets = dict[str, Node](), dict[str, Node]()  # as either: §20
        self.later = defaultdict[int, list[Node]](list)     # by the round that they wait for
        self._quota = {False: options.max_pages, True: options.max_pages}   # pages; checks

    def requeue(self, node: Node) -> None:
        """Put a URL back into the queue, which goes on counting it: as one item, never as none."""
        self.queue.put_nowait(node)
        self.queue.task_done()

    def begin(self, number: int) -> bool:
        """Queue the URLs of a round; return whether there are any."""
        self.round = number
        for node in self.later.pop(number, ()):
            if node.round == number:  # the node has not moved to an earlier round
                self.queue.put_nowait(node)
        return not self.queue.empty()

    def _round_of(self, url: URL, depth: int, check: bool, is_counted: bool) -> tuple[int, str]:
        """Return in which round to ask for *url* if there is no other way to it; if NEVER, why."""
        reason = self.objection(url, depth, check)
        if is_counted and not reason and not self._quota[check]:
            reason = "page limit"
        if reason or check:
            return (NEVER if reason else CHECKS), reason
        # With --depth each level has a round, so that a page is asked for at its least depth.
        return (min(depth, 1) if self.options.depth is None else depth), ""

    def _site_of(self, url: URL) -> Site:
        """Return the Site of a URL; one outside the scope is not asked for robots.txt."""
        if url.origin not in self.sites:
            robots = Robots("") if self.options.no_robots or not self.covers(url) else None
            self.sites[url.origin] = Site(url, robots, self.options.delay, self.requeue)
        return self.sites[url.origin]

    def admit(self, url: URL, parent: Node | None, depth: int, hops: int = 0, check: bool = False
              ) -> Node:
        """Admit *url*, as a page or as a *check*, or leave it out; return its Node.

        It is *depth* links from a root, after *hops* redirects in a row. The *parent* is the page
        that refers to it or, after a redirect, the URL that redirects to it; a root has none."""
        # 1. In which round would it be asked for? (/map.png, linked from /cats/: in round 1.)
        is_counted = depth > 0 and hops == 0  # (a root, or a redirect's target, is not)
        check = check or (self.options.external and not self.covers(url))
        its_round, reason = self._round_of(url, depth, check, is_counted)
        # 2. A known URL moves only to an earlier round, if its own has not begun. (The map does.)
        node = self.seen_urls.get(f"{url}")
        if node and (node.round <= its_round or node.round <= self.round):
            return node
        # 3. It is new, or moves.
        node = self.seen_urls[f"{url}"] = node or Node(f"{url}")
        node.parent, node.depth, node.hops = parent, depth, hops
        node.round, node.reason, node.is_check = its_round, reason, check
        # 4. Unless it is left out, it is queued now, or in its round.
        if not reason:
            node.site = self._site_of(url)
            if is_counted:  # (a check that becomes a page counts as both)
                self._quota[check] -= 1
            if its_round <= self.round:
                self.queue.put_nowait(node)
            else:
                self.later[its_round].append(node)
        return node

    def follow(self, node: Node, record: Record) -> Record:
        """Admit the target of a redirect; return its *record*, with the problem if there is one."""
        target = parse_url(record.next_url)
        if node.depth == 0:  # the scope grows
            self.hosts.add(self.host(target))
        known = self.seen_urls.get(record.next_url)
        ahead = known.ahead() if known else []
        if node in ahead:  # the way from the target would come back here
            problem = "in a circle: " + " -> ".join(step.text for step in [*ahead, ahead[0]])
        elif node.hops >= self.options.max_redirect:
            problem = f"more than {self.options.max_redirect} in a row"
        else:
            node.next_node = self.admit(target, node, node.depth, node.hops + 1, node.is_check)
            return record
        return record._replace(kind="too many redirects", error=f"redirects {problem}")


# The second evening may end here. Until a URL that was met is taken in (§21), it is in these
# places. In those with a * the queue counts it as unfinished; when none is, the round ends.
#
#       later        until its round begins (§17)
#     * queue        until a worker takes it (§17)
#     * in_flight    while the worker waits for an answer, perhaps of robots.txt (§21)
#     * waiting      until its site's robots.txt is known, or asked for again (§18)
#     * line         until its site calls it: it is its turn (§15)
#     * timers       until it is time for another try (§18)
#       held         from its answer in round 0 until round 1 (§21)

# 18  Asking
# ==========
# The problem: find out what came of one URL, by as few requests as may be.
# The idea: ask the server last. _answer() goes through these cases in order. It returns an Answer
# (§14), or None if the URL will be queued again. To begin with, a site's first URL asks for its
# robots.txt, and waits with all others till that is known, or (after 1 s, 2 s ...) asked for again.
#
#     1  robots.txt is not known yet                  None: it waits for that, or for another try
#     2  robots.txt failed, or forbids the URL        Answer
#     3  an earlier crawl's journal (§22) has it      Answer
#     4  it is not the URL's turn                     None: it stands in its site's line (§15)
#
# Else the server is asked, and the response decides:
#
#     5  429 of the crawl's hosts, and a try is left  None: it goes first in its line, which rests
#     6  a temporary failure, and a try is left       None: it is queued after 1 s, 2 s ...
#     7  HEAD failed, or found a sheet to be read     None: it is queued at once, for a GET
#     8  else                                         Answer

BACKOFF = 1.0         # seconds after the first try, on average; doubled for each later one, to 256
ROBOTS_REQUESTS = 6   # for a robots.txt: RFC 9309 section 2.3.1.2 wants five redirects followed


def _back_off(tries: int) -> float:
    return BACKOFF * 2.0 ** min(tries - 1, 8) * (0.5 + os.urandom(1)[0] / 256)


def _is_temporary(response: Response) -> bool:
    """Return whether another try may go better."""
    error = response.error
    # A wrong certificate and a host name that does not exist are final.
    is_final = hasattr(error, "verify_code") or getattr(error, "errno", 0) == socket.EAI_NONAME
    return (response.status in _TEMPORARY
            or (isinstance(error, (OSError, TruncatedError)) and not is_final))


class Asking(Frontier):
    """The frontier, and what servers answer."""

    def __init__(self, roots: list[URL], options: Options) -> None:
        super().__init__(roots, options)
        self.client = Client(options.headers, options.timeout, options.max_body,
                             max(MAX_IDLE, options.max_tasks))
        self.timers = list[Handle]()    # of further tries
        self.ages = list[float]()       # the times of the answers that were taken from the journal
        self._product = product_of(self.client.user_agent) or PRODUCT  # our name in robots.txt

    def tell(self, record: Record, from_journal: bool = False) -> None:
        """Hand a record to on_record and, unless the journal gave it, to the journal."""
        if self.options.journal and not from_journal:
            self.options.journal.write(record)
        self.options.on_record(record)

    async def _fetch(self, url: URL, method: str, wanted: Callback) -> Response:
        """Return the response to a request; without one, a Response with status 0 and the error."""
        try:
            trusted = (url.scheme, *self.host(url)) in self.trusted
            return await self.client.fetch(url, method, trusted, wanted)
        except (OSError, ProtocolError) as error:
            return Response(0, 0, "", {}, error)

    def _wants(self, node: Node, head: Response) -> bool:
        """Return whether a body is to be read, by its *head*: a page's, or a sheet's."""
        reader = reader_of(head.content_type) if 200 <= head.status < 300 else None
        if reader is read_sheet:
            return self.covers(node.url)
        return reader is not None and not node.is_check

    async def _answer(self, node: Node) -> Answer | None:
        """Return what came of a URL, or None if it is to be queued again: cases 1 to 8."""
        site, url = node.site, node.url
        if site.robots is None:  # 1
            site.waiting.append(node)
            if len(site.waiting) == 1:  # the first asks for it (and again, if that fails)
                await self._load_robots(site)
            return None
        if isinstance(site.robots, Record):  # 2 (each URL gets a copy)
            return Answer(site.robots._replace(url=node.text), url)
        if rule := site.robots.rule(url.target):
            return Answer(Record(node.text, skipped=f"robots.txt: {rule}"), url)
        if record := self._remembered(node):  # 3
            self.ages.append(record.at)
            return Answer(record, url, from_journal=True)
        return await self._request(node, url) if site.take_turn(node) else None  # 4

    async def _request(self, node: Node, url: URL) -> Answer | None:
        """Ask the server, in the URL's turn; return None if the URL is to be queued again."""
        loop, method = get_running_loop(), "HEAD" if node.is_check and not node.tries else "GET"
        at, began = time.time(), loop.time()
        node.tries += 1
        response = await self._fetch(url, method, partial(self._wants, node))
        is_slowed = response.status == 429 and self.covers(url)
        pause = self._pause(url, response)
        node.site.end_turn(is_slowed, pause)
        if node.tries < self.options.max_tries and _is_temporary(response):
            if is_slowed:  # 5
                self.requeue(node)
            else:  # 6
                self.timers.append(
                    loop.call_later(max(_back_off(node.tries), pause), self.requeue, node))
            return None
        is_wanted = self._wants(node, response)
        has_failed = response.status == 0 or response.status >= 400
        if method == "HEAD" and (has_failed or is_wanted):  # 7 (some servers refuse any HEAD)
            self.requeue(node)
            return None
        return answer_of(  # 8
            url, response, is_wanted, self._product, tries=node.tries, at=round(at, 3),
            seconds=round(loop.time() - began, 3), is_check=node.is_check)

    def _pause(self, url: URL, response: Response) -> float:
        """Return a response's Retry-After, in seconds; 0 if it has none that is heeded."""
        wish = response.headers.get("retry-after", "")
        # Only the crawl's hosts are heeded; and not in round 0, whose end all others wait for.
        is_heeded = wish.isdecimal() and self.covers(url) and self.round > 0
        return min(float(wish), MAX_PAUSE) if is_heeded else 0.0

    async def _load_robots(self, site: Site) -> None:
        """Ask for a site's robots.txt; then queue who waits for it, or later, to ask again.

        It has no Node: its redirects are followed here, within the scope. RFC 9309, 2.3.1:
            2xx                               brings rules
            429, 5xx, no valid response       after the last try, the site's URLs fail
            else                              all is allowed"""
        url = site.url._replace(target="/robots.txt")
        for _ in range(ROBOTS_REQUESTS):
            response = await self._fetch(url, "GET", lambda head: head.status < 300)
            record = answer_of(url, response, False).record
            if not (record.next_url and self.covers(url := parse_url(record.next_url))):
                break
        site.tries += 1
        if site.tries < self.options.max_tries and _is_temporary(response):
            site.timer = get_running_loop().call_later(_back_off(site.tries), site.release)
            return
        if 0 < response.status < 500 and response.status != 429:
            site.robots = Robots(response.body.decode("utf-8", "replace"), self._product)
            site.delay = max(site.delay, min(site.robots.delay, MAX_PAUSE))
        else:
            site.robots = record._replace(status=0, content_type="", skipped="robots.txt failed",
                                          error=f"robots.txt: {record.error}", tries=site.tries)
        site.release()

    def _remembered(self, node: Node) -> Record | None:
        """Return the journal's answer, if the URL would be asked for in the same way today."""
        journal = self.options.journal
        if not journal or node.depth == 0:  # a root, or what it redirects to
            return None
        if self.options.fragments and not node.is_check:  # a page is read, for its ids
            return None
        record = journal.find(node.text)
        # (What was a check, and is a page today, was not read.)
        return record if record and record.is_check == node.is_check else None


# 19  Places
# ==========
# The problem: with --fragments, a link to /birds#owl is broken if /birds has no place "owl".
# The idea: each place that a link names gets a Node (in §20), each page that is read notes its ids
# (in §21), and in the end both are compared. A page that was not read counts as having every place.
#
#     / links to /birds#owl    the place's Node has place_on, the Node of /birds
#     /birds is read           its Node has ids: {"parrot"}
#     the end                  no "owl": a Record (if /birds redirected, its target's ids would do)

def ids_of(text: str) -> frozenset[str]:
    """Return the places of a page to which a fragment can lead, and perhaps some more."""
    ids = re.findall(rf"(?ix) [\s\"'/] (?:id | name) \s*+ = \s*+ ({_VALUE})", text)
    return frozenset(map(_value_of, ids))


class Places(Asking):
    """The frontier, and the places, url#id, that links name."""

    def note_ids(self, page: Node, response: Response) -> None:
        """Note which places there are on a page that was read."""
        if reader_of(response.content_type) is read_markup:
            page.ids = ids_of(response.text)

    def places_of(self, links: Iterable[str], pages: dict[str, Node]) -> Iterator[Node]:
        """Yield the Nodes of places that links name; *pages*: by links without fragments."""
        for link in links:
            address, _, fragment = link.partition("#")
            fragment = fragment.partition(":~:")[0].strip()  # behind :~: is a text to be found
            if not re.match("(?i)(?:top)?$|[/!]", fragment):  # "#", "#top" and "#!/x" are no places
                page = pages[address]
                text = f"{page.text}#{_escape(fragment)}"
                place = self.seen_urls.setdefault(text, Node(text))
                place.place_on = page
                yield place

    def missing_places(self) -> Iterator[Record]:
        """Yield a record of each place that is missing on a page that was read."""
        for text, node in self.seen_urls.items():
            if node.place_on and not self.exclude.search(text):
                fragment, steps = text.partition("#")[2], node.place_on.ahead()
                ids = next((step.ids for step in steps if step.ids is not None), None)
                if ids is not None and ids.isdisjoint((fragment, unquote(fragment))):
                    yield Record(text, error=f"no id {_printable(fragment)!r} on the page",
                                 kind="broken", parent=min(node.linked_from))  # (§20 notes them)


# 20  References
# ==============
# The problem: a page refers to some 60 URLs, nearly all of them known. To parse each reference (§8)
# would more than double the time that a page takes.
# The idea: admit a URL once as a link, and once as an asset. Pages are read round by round: the
# first link to /birds brings it to its earliest round, and another link changes nothing. So what
# was met as a link is kept in `seen_links`, by its one spelling. A reference is joined to its page
# as mere text. That may be an odd spelling: then it is not found, and is parsed as if the URL were
# new. But it is never the one spelling of another URL. So on the zoo's /cats/
#
#     a, ./a, /cats/a    are joined to http://zoo.org/cats/a: parsed and admitted once, then found
#     x/../a             is joined to http://zoo.org/cats/x/../a: an odd spelling, parsed each time
#     mailto:me          stays as it is: no URL to fetch, but words that have a Node, with a reason

SLICE = 100  # references that are looked up between two ticks


def _join(base: URL, folder: str, reference: str) -> str:
    """Join a reference to the page *base* in *folder* (/d for http://h/d/p), as mere text."""
    first = reference[:1]
    if first == "/":  # /x, and //host/x
        return f"{base.scheme}:{reference}" if reference[:2] == "//" else base.origin + reference
    if first in ("", "?"):  # the page itself, and ?q on it
        page = base.target.partition("?")[0] if first else base.target
        return base.origin + page + reference
    if ":" in reference:  # http://host/x, and what may have a scheme
        return reference
    if first == "." and len(reference) < MAX_URL:  # ./x, and ../x (a longer one is parsed)
        reference = reference.removeprefix("./")
        while reference[:3] == "../":
            folder, reference = folder.rpartition("/")[0], reference[3:]
    return f"{base.origin}{folder}/{reference}"


class References(Places):
    """The frontier, and how it gets the URLs that pages refer to."""

    async def admit_references(self, page: Node, record: Record, base: URL) -> Record:
        """Admit what a page refers to; return its *record* with URLs for links and assets."""
        folder = base.target.partition("?")[0].rpartition("/")[0]
        links = await self._admit_each(page, record.links, base, folder, False)
        nodes = [*links.values()]
        if self.options.fragments:
            nodes += self.places_of(record.links, links)
        linked = [node.text for node in nodes]
        if self.options.pages_only:  # the record names them, for a --resume that may check them
            shown = [_join(base, folder, one.strip()) for one in record.assets]
        else:
            assets = await self._admit_each(page, record.assets, base, folder, True)
            nodes += assets.values()
            shown = [node.text for node in assets.values()]
        for node in set(nodes):
            if not node.is_well:  # the report names the pages that refer to a problem
                node.linked_from.append(page.text)
        return record._replace(links=tuple(dict.fromkeys(linked)),
                               assets=tuple(dict.fromkeys(shown)))

    async def _admit_each(self, page: Node, references: Iterable[str], base: URL, folder: str,
                          check: bool) -> dict[str, Node]:
        """Admit links, or assets (if *check*); return Nodes by references without fragments."""
        nodes, known = dict[str, Node](), self.seen_assets if check else self.seen_links
        for address in {reference.partition("#")[0]: None for reference in references}:
            node = known.get(_join(base, folder, address))
            if not node:
                node = self._parse_and_admit(page, address, base, check)
                known[node.text] = node  # by its one spelling: others are parsed each time
            nodes[address] = node
            if len(nodes) % SLICE == 0:
                await sleep(0)
        return nodes

    def _parse_and_admit(self, page: Node, reference: str, base: URL, check: bool) -> Node:
        try:
            url = parse_url(reference, base)
        except ValueError as error:
            words = _escape(_trim(reference)[:MAX_URL + 1]).rstrip()  # cut, but still no URL
            return self.seen_urls.get(words) or self._admit_words(page, words, error)
        return self.admit(url, page, page.depth + 1, 0, check)

    def _admit_words(self, page: Node, words: str, error: ValueError) -> Node:
        """Return a Node for words that are no URL: left out, or broken."""
        node = self.seen_urls[words] = Node(words)
        if isinstance(error, UnfetchableError):
            node.reason = f"{error}"
        elif self.exclude.search(words):
            node.reason = "excluded"
        else:
            self.tell(Record(words, error=f"no URL: {_explain(error)}", kind="broken",
                             depth=page.depth + 1, parent=page.text))
        return node


# 21  Crawler
# ===========
# The problem: fetch many pages at once, get over what fails, and stop when there are no more.
# The idea: workers run the loop that stands before §11. A redirect is not followed on the spot: its
# target is admitted like a link (§17). In round 0 only redirects are taken in; other answers are
# held until all hosts are known. A server's faults become Records; any other error ends the crawl.

class Options(NamedTuple):
    """How to crawl: Crawler's arguments by name. `crawl.py --help` explains most."""

    depth: int | None = None        # links from a root
    max_pages: int = 1_000_000      # and as many checks
    include: str = ""               # a pattern: only pages in whose URL it is found
    exclude: str = ""               # a pattern: no URL in which it is found
    subdomains: bool = False        # hosts below the roots' hosts, too
    external: bool = False          # check what links to other hosts lead to
    pages_only: bool = False        # do not check assets
    fragments: bool = False         # pages must have the places that links name
    no_robots: bool = False         # do not ask for robots.txt
    max_tasks: int = 10             # URLs fetched at a time
    max_redirect: int = 10          # redirects in a row
    max_tries: int = 3              # tries where an error may be temporary
    max_body: int = MAX_BODY        # bytes
    timeout: float = FETCH_TIMEOUT  # seconds for one fetch
    delay: float = 0.0              # seconds between two requests to a site
    headers: dict[str, str] | None = None   # for the roots' hosts alone; a User-Agent for all
    journal: Journal | None = None  # its answers replace the server's; it is told all others
    on_record: Callback = _ignore   # is called with each Record
    on_page: Callback = _ignore     # with Record and Response of a page just read; may be async


_LEAST = {"depth": 0, "max_pages": 1, "max_tasks": 1, "max_redirect": 0, "max_tries": 1,
          "max_body": 1, "timeout": 0.001, "delay": 0}  # what these options must be at least


class Crawler(References):
    """`await Crawler("xkcd.com").crawl()` fetches each page in scope once. *roots*: a URL, or more.

    The scope is the roots' hosts and those that they redirect to, with or without www. A root
    without a scheme is https; *given* are Options. Raises CrawlError for invalid roots, headers,
    patterns or numbers, TypeError for wrong names."""

    def __init__(self, roots: str | Iterable[str], **given: Any) -> None:
        options = Options(**given)
        for name, low in _LEAST.items():
            value = getattr(options, name)
            if value is not None and not low <= value < CHECKS:
                raise CrawlError(f"{name}: a number of at least {low} was expected, not {value!r}")
        try:
            scheme = "[a-zA-Z][a-zA-Z0-9+.-]*:(?![0-9])"  # (localhost:80 has none)
            super().__init__([parse_url(text if re.match(scheme, text) else f"https://{text}")
                              for text in ([roots] if isinstance(roots, str) else roots)], options)
        except (ValueError, re.error, OverflowError, RecursionError) as error:
            raise CrawlError(_explain(error))
        self.in_flight = dict[Node, float]()    # URLs whose answers workers wait for; since when
        self.held = dict[Node, Answer]()        # those of round 0 that are no redirects
        self.ended = False                      # whether all tasks have ended

    async def crawl(self) -> None:
        """Fetch until nothing is left, once. Raises what callbacks or Journal.write raise.

        Cancelled, it ends at once: URLs that were asked for, or taken in, get no record."""
        workers = [self._work() for _ in range(self.options.max_tasks)]
        tasks = list(map(create_task, (self._rounds(), *workers)))
        with closing(self.client):
            try:
                await gather(*tasks)  # the first error ends all
            finally:
                rest = gather(*tasks, *self.client.lookups.values(), return_exceptions=True)
                rest.cancel()
                await _until_done(rest)
                self.ended = True
                for each in self.timers + [site.timer for site in self.sites.values()]:
                    each.cancel()

    async def _rounds(self) -> None:
        """Begin the rounds: roots, pages, checks. Tell what was left out; send the workers home."""
        for url in self.roots:
            self.admit(url, None, 0)
        self.begin(0)
        await self.queue.join()     # until each root has an answer, and all hosts are known
        self.begin(1)               # no URL waits for it, but now answers are taken in:
        for node in self.held:      # those that were held, first
            self.queue.put_nowait(node)
        await self.queue.join()     # until its pages are read
        while self.begin(self.round + 1):  # with --depth: those of the next level
            await self.queue.join()
        self.begin(CHECKS)
        await self.queue.join()     # until cam.org/lion.jpg is checked
        left_out = (Record(node.text, skipped=node.reason)
                    for node in self.seen_urls.values() if node.reason)
        for record in itertools.chain(left_out, self.missing_places()):
            self.tell(record)
        for _ in range(self.options.max_tasks):
            self.queue.put_nowait(None)

    async def _work(self) -> None:
        """Take URLs from the queue, ask for each and take its answer in, until None comes."""
        while node := await self.queue.get():
            await sleep(0)  # poll, for what follows may be work, and need no server
            self.in_flight[node] = get_running_loop().time()
            answer = self.held.pop(node, None) or await self._answer(node)
            del self.in_flight[node]  # (not if the crawl is cut off: the report names these)
            if answer:
                await self._take_in(node, answer)
                self.queue.task_done()
            del answer  # its page is let go while the next is waited for
        self.queue.task_done()  # of None

    async def _take_in(self, node: Node, answer: Answer) -> None:
        """Admit the URLs that an answer leads to, and tell its Record."""
        if self.round == 0 and not answer.record.next_url:
            self.held[node] = answer
            return
        record = answer.record._replace(
            depth=node.depth, parent=node.parent.text if node.parent else "")
        if record.next_url:
            record = self.follow(node, record)
        elif record.encoding:  # it was read
            record = await self.admit_references(node, record, answer.base)
            if answer.response and not node.is_check:  # a page, from the server
                if self.options.fragments:
                    self.note_ids(node, answer.response)
                work: Any = self.options.on_page(record, answer.response)
                if hasattr(work, "__await__"):
                    await work
        self.tell(record, answer.from_journal)
        node.is_well = not (record.kind or record.next_url)

    def num_waiting(self) -> int:
        """Return how many URLs wait or are taken in (a moved one counts in its old round, too)."""
        held = len(self.held) if self.round == 0 else 0  # (later they are in the queue)
        later = sum(map(len, self.later.values()))
        return self.queue.unfinished - len(self.in_flight) + held + later

    def fetches(self) -> list[str]:
        """Return the URLs that are in flight, and for how long; the first is the oldest."""
        return [f"{get_running_loop().time() - began:.1f} s {node.text}"
                for node, began in self.in_flight.items()]

    def describe(self) -> str:
        """Return what the crawl is doing: each fetch in flight, then where each task is."""
        return "\n".join([f"{len(self.in_flight)} in flight, {self.num_waiting()} queued",
                          *self.fetches(), *[task.where() for task in get_running_loop().tasks]])


# 22  Journal
# ===========
# The problem: a long crawl may be cut off, and one that found problems is to be repeated.
# The idea: a journal gets a line of JSON for each record; of a URL's answers the last counts. A
# later crawl asks the journal before the server:
#
#     {"url": "http://zoo.org/", "status": 200, ...}         a root: the server is asked every time
#     {"url": "http://zoo.org/birds", "status": 200, ...}    definite: the journal's word stands
#     {"url": "http://zoo.org/map.png", "status": 503, ...}  temporary: the server is asked
#
# So --resume crawls from the roots again, and is soon where it was cut off. --recheck does so, too,
# but first forgets the problems, which may be mended by now, and what leads to them:
#
#     {"url": "http://cam.org/lion.jpg", "status": 404, "kind": "broken", ...}    a problem
#     {"url": "http://cam.org/lion", "next_url": "http://cam.org/lion.jpg", ...}  redirects to it
#     {"url": "http://zoo.org/cats/", "assets": ["http://cam.org/lion"], ...}     refers to either

def _parse_record(line: bytes) -> Record:
    if not line.endswith(b"}\n"):
        raise ValueError("a whole line was expected")
    record = Record(**json.loads(line))
    # JSON knows no tuples, and jq writes 2.0 as 2.
    record = record._replace(links=tuple(record.links), assets=tuple(record.assets),
                             at=float(record.at), seconds=float(record.seconds))
    # Each field must have the type that it has in an empty record.
    if (list(map(type, record)) != list(map(type, Record("")))
            or not all(isinstance(each, str) for each in record.links + record.assets)):
        raise ValueError("fields of other types were expected")
    if record.next_url:
        parse_url(record.next_url)  # ValueError if it is no URL
    return record


def _is_definite(record: Record) -> bool:
    """Return whether a record is definite: no temporary error, and no redirect that failed."""
    return record.status > 0 and not (
        record.status in _TEMPORARY or (record.kind and record.status in _REDIRECTS))


class Journal:
    """A file with one JSON object a line, one line for each Record.

    The file must be new or empty. With *resume* it may hold records: its definite answers replace
    the server's. With *recheck* problems, and what leads to them, are forgotten first. CrawlError
    for a file that cannot be opened, is used by another crawl, or is no journal."""

    def __init__(self, path: str, resume: bool = False, recheck: bool = False) -> None:
        self.path, self._files = path, ExitStack()
        self._offsets = dict[str, int]()    # by URL: where its last line begins that counts
        try:
            flags = os.O_WRONLY | os.O_APPEND | (0 if recheck else os.O_CREAT)
            self._file = os.open(path, flags, 0o666)
            self._files.callback(os.close, self._file)
            if os.path.isfile(path):  # (nobody can lock or resume a pipe)
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.getsize(path) and not (resume or recheck):
                    raise ValueError("it is not empty; --resume goes on with it")
                self._lines = self._files.enter_context(open(path, "rb"))
                self._index()
                if recheck:
                    self._forget_problems()
        except (OSError, ValueError) as error:
            self.close()
            what = "in use: " if isinstance(error, BlockingIOError) else ""
            raise CrawlError(f"{path}: {what}{_explain(error)}")

    def _index(self) -> None:
        """Note where each URL's last line begins; a line with "skipped" does not count."""
        start = 0
        for number, line in enumerate(self._lines, 1):
            try:
                record = _parse_record(line)
            except Exception as error:
                if start and not line.endswith(b"\n"):  # a crash cut it off
                    os.ftruncate(self._file, start)
                    break
                raise ValueError("no journal of a crawl (name another file): "
                                 f"line {number}: {_explain(error)}")
            if not record.skipped:
                self._offsets[record.url] = start
            start += len(line)

    def _forget_problems(self) -> None:
        """Forget problems, redirects that lead to one, and pages that refer to either."""
        problems, redirects = set[str](), dict[str, str]()
        for url, offset in self._offsets.items():
            record = self._record_at(offset)
            if record.kind:
                problems.add(url)
            if record.next_url:
                redirects[url] = record.next_url
        while more := {url for url in redirects if redirects[url] in problems} - problems:
            problems |= more  # redirects to the problems found so far
        for url, offset in list(self._offsets.items()):
            record = self._record_at(offset)
            if problems & {url, *record.links, *record.assets}:
                del self._offsets[url]

    def _record_at(self, offset: int) -> Record:
        self._lines.seek(offset)
        return _parse_record(self._lines.readline())

    def find(self, url: str) -> Record | None:
        """Return the last answer for *url* if it is definite, else None."""
        record = self._record_at(self._offsets[url]) if url in self._offsets else None
        return record if record and _is_definite(record) else None

    def write(self, record: Record) -> None:
        """Append one record, or raise CrawlError."""
        fields = {name: value for name, value in record._asdict().items() if value}
        line = json.dumps(fields).encode() + b"\n"
        try:
            while line:
                line = line[os.write(self._file, line):]
        except OSError as error:
            raise CrawlError(f"{self.path} cannot be written: {_explain(error)}")

    def close(self) -> None:
        """Close the file; another crawl may use it."""
        self._files.close()


# 23  Report
# ==========
# The problem: answers come in any order; an owner wants to see what is wrong, and where to mend it.
# The idea: print problems by kind and URL. The Record says what is wrong, the Node which pages link
# there; and as they may link to what redirects there, lines() follows redirects backwards.
#
#     broken (2)
#       http://cam.org/lion.jpg
#         404 Not Found
#         redirected from http://cam.org/lion
#         linked from http://zoo.org/, http://zoo.org/cats/
#       http://zoo.org/birds#owl
#         no id 'owl' on the page
#         linked from http://zoo.org/
#     6 URLs asked for, 3 pages read, 0.0 MB
#     statuses: 4 x 200, 1 x 302, 1 x 404
#     not fetched: 1 (robots.txt)
#     2 problems (1.0 s, 6 URLs/s)

def _count_of(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _several(texts: Iterable[str]) -> str:
    several = sorted(set(texts))
    return ", ".join(several[:3]) + (f" and {len(several) - 3} more" if several[3:] else "")


class Report:
    """Takes a crawl's records and sums them up."""

    def __init__(self) -> None:
        self.problems, self.statuses, self.size = list[Record](), Counter[int](), 0  # in bytes
        self.skipped, self.pages = Counter[str](), 0  # by reason; how many were read

    def add(self, record: Record) -> None:
        """Take in one record."""
        if record.kind:
            self.problems.append(record)
        if record.skipped:
            self.skipped[record.skipped.partition(":")[0]] += 1
        elif record.status or record.tries:  # a place, or words that are no URL, have neither
            self.statuses[record.status] += 1
        self.size += record.size
        self.pages += bool(record.encoding and not record.is_check)

    def lines(self, crawler: Crawler, seconds: float, brief: bool = False) -> Iterator[str]:
        """Yield the problems, how old the journal is, and, unless *brief*, the numbers."""
        redirects = defaultdict[Node, list[Node]](list)  # such as {lion.jpg: [lion]}
        for start in crawler.seen_urls.values():
            for step in start.ahead()[1:]:
                redirects[step].append(start)
        for kind in PROBLEMS:
            found = sorted(record for record in self.problems if record.kind == kind)
            if found:
                yield f"{kind} ({len(found)})"
            for record in found:
                node = crawler.seen_urls[record.url]
                yield from self._story(record, [node, *redirects[node]])
        if crawler.ages:
            yield (f"{_count_of(len(crawler.ages), 'answer')} from the journal, the oldest of "
                   f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(min(crawler.ages)))}")
        if not brief:
            yield from self._numbers(crawler, seconds)

    def _story(self, record: Record, ways: list[Node]) -> Iterator[str]:
        """Yield the lines about one problem. *ways*: its own Node, and all that redirect there."""
        yield f"  {record.url}"
        yield f"    {record.error}"
        if redirects := _several(way.text for way in ways[1:]):
            yield f"    redirected from {redirects}"
        if pages := _several(page for way in ways for page in way.linked_from):
            yield f"    linked from {pages}"

    def _numbers(self, crawler: Crawler, seconds: float) -> Iterator[str]:  # (you may skim it)
        names, queued = [node.text for node in crawler.in_flight], crawler.num_waiting()
        if names or queued:
            yield f"cut off: {queued} queued, {len(names)} in flight {_several(names)}".rstrip()
        for origin, site in sorted(crawler.sites.items()):
            if site.slowed or site.delay > crawler.options.delay:
                yield f"{origin} was asked slowly: {site.slowed} x 429, set delay {site.delay:g} s"
        yield (f"{_count_of(self.statuses.total(), 'URL')} asked for, "
               f"{_count_of(self.pages, 'page')} read, {self.size / 1e6:.1f} MB")
        yield "statuses: " + ", ".join(
            f"{count} x {status or 'no answer'}" for status, count in sorted(self.statuses.items()))
        for reason, count in sorted(self.skipped.items()):
            hint = "; --external checks them" if reason == "other host" else ""
            yield f"not fetched: {count} ({reason}{hint})"
        yield (f"{_count_of(len(self.problems), 'problem')} "
               f"({seconds:.1f} s, {self.statuses.total() / max(seconds, 0.001):.0f} URLs/s)")


# 24  Command line
# ================
# The problem: people read the output, programs the exit status. Either may stop the crawl early.
# The idea: the report goes to stdout, all else to stderr. A crawl has four ways to end:
#
#     all is well; something is broken     a report                 status 0; 1
#     nothing is crawled; a full disk      a report, and a reason   2
#     Ctrl-C (or SIGTERM); a second one    a report; none           130 (143)
#     nobody reads on                      a part of the report     1

PROGRESS = 0.25         # seconds between two states of the progress line
_CLEAR = "\r\x1b[K"    # clears that line on a terminal


def _say(text: str, end: str = "\n") -> None:
    """Print on stderr, if that can be written."""
    with suppress(OSError):
        print(text, end=end, file=sys.stderr, flush=True)


async def _show_progress(crawler: Crawler, report: Report) -> None:
    """Say on the terminal, again and again, how far the crawl is."""
    try:
        while True:
            columns = os.get_terminal_size(sys.stderr.fileno()).columns
            line = (f"{report.statuses.total()} done, {crawler.num_waiting()} queued, "
                    f"{_count_of(len(report.problems), 'problem')} "
                    f"{''.join(crawler.fetches()[:1])}")
            _say(f"{_CLEAR}{line[:columns - 1]}", end="")
            await sleep(PROGRESS)
    finally:
        _say(_CLEAR, end="")


async def _crawl(crawler: Crawler, report: Report, live: bool) -> None:
    """Crawl. Ctrl-\\ (SIGQUIT) prints what is going on; if *live*, a line shows the progress."""
    loop = get_running_loop()
    before = signal.signal(signal.SIGQUIT, lambda *_: loop.call_soon_threadsafe(
        lambda: _say(f"{_CLEAR * live}{crawler.describe()}")))
    if live:
        create_task(_show_progress(crawler, report))  # until run() cancels it
    try:
        await crawler.crawl()
    finally:
        signal.signal(signal.SIGQUIT, before)


def _crawl_and_report(options: argparse.Namespace) -> int:
    """Crawl, print the report, return the exit status; CrawlError if nothing could be crawled."""
    report = Report()

    def on_record(record: Record) -> None:
        report.add(record)
        if options.verbose:
            what = record.error or f"{record.skipped or record.status} {record.next_url}".rstrip()
            parent = f" (from {record.parent})" if record.parent else ""
            _say(f"{record.url[:MAX_SHOWN]} {what}{parent}")

    given: Any = {name: value for name, value in vars(options).items() if name in Options._fields}
    given |= {"headers": dict(options.headers), "on_record": on_record,
              "include": "|".join(options.include), "exclude": "|".join(options.exclude)}
    crawler = Crawler(options.roots, **given)  # before FILE is begun, for it may fail
    with ExitStack() as files:
        if options.file is not None:
            journal = Journal(options.file, options.resume, options.recheck)
            files.enter_context(closing(journal))
            crawler.options = crawler.options._replace(journal=journal)
        live = sys.stderr.isatty() and not (options.verbose or options.quiet)
        began = time.monotonic()
        try:
            run(_crawl(crawler, report, live))
        finally:  # after an error, too
            lines = report.lines(crawler, time.monotonic() - began, options.quiet)
            for line in lines if crawler.ended else ():  # (after a second Ctrl-C tasks are left)
                print(line, flush=True)
    if not (any(report.statuses) and (report.pages or report.problems)):  # (status 0: no answer)
        why = [record.error for record in report.problems] + [*report.skipped, "no page was found"]
        raise CrawlError(f"nothing could be crawled: {why[0]} "
                         f"({' '.join(options.roots)}; a root without http:// is https)")
    return bool(report.problems)


def header(text: str) -> list[str]:
    """Return the name and the value of "Name: value"; ValueError without a colon."""
    name, value = text.split(":", 1)
    return [name, value.strip()]


def _parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Return the options, or exit. (It is a list.)"""
    parser = argparse.ArgumentParser(
        prog="crawl.py", usage="crawl.py [options] URL ...", allow_abbrev=False,
        description="Crawl web sites and report what is broken.", epilog="Exit status: 0 all "
        "is well, 1 something is broken, 2 could not crawl, 130 Ctrl-C, 143 SIGTERM. Ctrl-\\ "
        "prints what is going on, and the crawl goes on.")
    parser.set_defaults(**{**Options._field_defaults, "include": [], "exclude": [], "headers": []})
    add = parser.add_argument
    number, seconds = partial(add, type=int, metavar="N"), partial(add, type=float, metavar="S")
    flag, pattern = partial(add, action="store_true"), partial(add, action="append", metavar="RE")
    add("roots", nargs="+", metavar="URL", help="where to start; https, unless it says http://")
    number("--depth", help="links from a root, level by level (if not given, 100)")
    number("--max-pages", help="pages, and as many checks, besides roots, redirects (%(default)s)")
    pattern("--include", help="only pages in whose URL this is found, and roots (repeatable)")
    pattern("--exclude", help="leave out each URL in which this is found (repeatable)")
    flag("--subdomains", help="hosts below the roots' hosts, too")
    flag("--external", help="check linked URLs on other hosts, too")
    flag("--pages-only", help="do not check images, scripts and the like")
    flag("--fragments", help="pages must have the ids that links name (#id)")
    flag("--no-robots", help="do not ask for robots.txt")
    number("--max-tasks", help="URLs fetched at a time (%(default)s)")
    number("--max-redirect", help="redirects in a row (%(default)s)")
    number("--max-tries", help="tries where an error may be temporary (%(default)s)")
    number("--max-body", metavar="BYTES", help="size of a page, sent or unpacked (%(default)s)")
    seconds("--timeout", help="seconds for a whole fetch (%(default)g)")
    seconds("--delay", help="seconds between two requests to a site (%(default)g)")
    add("-H", type=header, action="append", dest="headers", metavar="'Name: value'",
        help="send this field to the hosts named here alone (a User-Agent to all)")
    add("-o", dest="file", metavar="FILE.jsonl", help="write a line for each URL to a new file")
    flag("--resume", help="with -o: go on with FILE, and ask only for the rest")
    flag("--recheck", help="the same, but look again at what was broken")
    flag("-v", dest="verbose", help="a line on stderr for each URL")
    flag("-q", dest="quiet", help="print nothing but problems, and how old a journal is")
    add("--version", action="version", version=f"crawl.py {VERSION}", help="print the version")
    options = parser.parse_intermixed_args(arguments)
    if (options.resume or options.recheck) and options.file is None:
        parser.error("--resume and --recheck need -o FILE")
    return options


def main(arguments: list[str]) -> int:
    """Do what *arguments* (sys.argv[1:]) ask for, in the main thread; return the exit status."""
    try:
        try:
            status = _crawl_and_report(_parse_arguments(arguments))
        except SystemExit as end:  # of wrong use, --help and --version
            status = cast(int, end.code)
        sys.stdout.flush()  # here, where an error of a full disk is still caught
        return status
    except KeyboardInterrupt as end:
        return 128 + int(end.args[0] if end.args else signal.SIGINT)
    except BrokenPipeError:
        return 1  # whoever read it has seen enough
    except (OSError, CrawlError) as error:
        _say(f"crawl.py: {_explain(error)}")
        return 2


if __name__ == "__main__":  # pragma: no cover (the tests see it in children)
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
        signal.signal(signal.SIGTERM, interrupt)
    # Python makes them None if their descriptors are closed.
    sys.stdout, sys.stderr = sys.stdout or io.StringIO(), sys.stderr or io.StringIO()
    # sys.exit() would write once more to stdout, which may be full or closed.
    os._exit(main(sys.argv[1:]))

# The end
# =======
# The way of a Ctrl-C leads back through the whole file:
#
#     the kernel interrupts epoll, and Python calls run()'s handler                         §5
#     which says call_soon_threadsafe(task.cancel): a byte in the self-pipe                 §2
#     the loop wakes; the task that crawls waits for gather(), which is cancelled:          §5
#         each worker, and the future at the bottom of its pipe of coroutines               §4, §3
#     CancelledError rises from there: a stream in use is closed                            §10
#     until crawl() has seen all of them end, and closed what was idle                      §21
#     and run() raises KeyboardInterrupt: the report says what was cut off                  §5, §23
#     and main() returns 130 (143 if it was SIGTERM)                                        §24
#
# And section 2 began with a crawler that waits for each page in turn. From a server that takes
# 100 ms for an answer, this program gets 9.8 pages a second with --max-tasks 1, and idles 99 % of
# the time; with 100 it gets 848 (`make bench`): a tick waits for all of them, and there is no lock.
