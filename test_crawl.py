# SPDX-FileCopyrightText: 2026 The crawl.py authors
# SPDX-License-Identifier: 0BSD
"""The claims of crawl.py and of README, in two orders.

Read conftest.py first: its docstring names the helpers that nearly all tests use.

First come tests of one part of the program, under the sections of crawl.py:

     2  Event loop
     3  Future
     4  Task
     5  Waiting
     6  Running
     7  Queue
     8  Streams
     9  URLs
    10  HTTP messages
    11  HTTP client
    12  Documents
    13  Links
    14  Records
    15  Scope
    16  Robots
    17  Sites
    18  Frontier
    19  References
    20  Fragments
    21  Requests
    22  Crawler
    23  Journal
    24  Report
    25  Command line

Then come tests that crawl a site, a server or a folder, and those of the command line. They stand
under the headings of README, and below these under words of README, such as the rows of its tables:

    Install
    Check a site
    What it reads and what it checks
        Your site
    A site in a folder
    What it reports
        broken | bad certificate | over a limit | too many redirects | ten or more URLs |
        the other scheme | Nothing is lost silently
    Exit status
        Ctrl-C
    Options
        --depth | --max-pages | --exclude | --external | --fragments | --moved | --accept
        | --pages-only | --no-robots | --max-tasks | --delay | --timeout | --max-tries | -H
        | --known | -v | -K
    The journal
        --resume | do not count | field
    Before you crawl a site
        Load | robots.txt | Other hosts | Your name | robots.txt that fails | Secrets
        | Certificates | Retries
    Recipes
    What it looks at and what it does not do
        XML | header fields
    Use it as a library
        on_page | on_record | To stop a crawl
    Differences from asyncio
    How it is tested

Under each come the plain case, tables of cases, and then edges and faults of earlier versions.
Many claims are names of rows, which `pytest -k` finds as well as those of tests. Most differences
from asyncio are held in sections 2 to 8.
`test_this_file_has_the_order_of_crawl_and_readme` compares all three.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextvars
import errno
import functools
import gc
import gzip
import importlib.util
import inspect
import io
import itertools
import json
import math
import os
import pickle
import re
import resource
import select
import selectors
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import textwrap
import threading
import time
import types
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from random import Random
from typing import Any, cast
from xml.etree import ElementTree

import pytest
from pytest import raises

import crawl
from conftest import (
    CERTIFICATE, CHUNKED, CSS, EXPIRED, FOR_ANOTHER_HOST, GZIPPED, HERE, OK, ROUNDS, ZOO,
    CountingLoop, Expression, Log, JumpingAsyncioLoop, JumpingLoop, MeteredLoop, Pair,
    Performance, Plan, RecordingCrawler, Server, SimulatedClient, Site, url_of,
    crawler_and_task, run_program, server_with_certificate, crawl_servers, request_gaps,
    attempt, end_of, play_asyncio, check_claim, check_linear, expressions, terminal_output,
    crawl_with_journal, slow_answer, linear_time, journal_lines, request_times, site_of_pages,
    random_plan, play, output_of, too_many_requests, run_main, answer_and, run_in_shell, path_of,
    say_nothing, crawl_site, interrupted_crawl, project_file, answer_of_type, with_body)
from crawl import CancelledError, Queue, create_task, get_running_loop, sleep

each = pytest.mark.parametrize
Patch = pytest.MonkeyPatch
full_disk = pytest.mark.skipif(
    not os.path.exists("/dev/full"), reason="this system has no device that is always full")
in_checkout = pytest.mark.skipif(
    not (HERE / ".readme").is_dir(), reason="the five files stand alone, without .readme")
real_time = pytest.mark.real_time  # of an `async def` test: not on the clock that jumps


# 2  Event loop
# =============


def test_callbacks_run_in_the_order_in_which_they_were_scheduled(loop: JumpingLoop) -> None:
    seen: list[int] = []
    for number in range(3):
        loop.call_soon(seen.append, number)
    loop.tick()
    assert seen == [0, 1, 2]


def test_callbacks_added_during_a_tick_run_in_the_next_one(loop: JumpingLoop) -> None:
    seen: list[str] = []
    loop.call_soon(lambda: loop.call_soon(seen.append, "newcomer"))
    loop.tick()
    assert seen == []
    loop.tick()
    assert seen == ["newcomer"]


def test_timeouts_run_by_deadline_and_equal_ones_in_order(loop: JumpingLoop) -> None:
    seen: list[str] = []
    loop.call_later(2, seen.append, "late")
    loop.call_later(1, seen.append, "first")
    loop.call_at(1, seen.append, "second")
    loop.call_later(3, loop.stop)
    loop.run_forever()
    assert seen == ["first", "second", "late"]
    assert loop.time() == 3


def test_a_deadline_that_is_not_a_number_is_refused(loop: JumpingLoop) -> None:
    with raises(ValueError, match="nan"):
        loop.call_later(float("nan"), print)


def test_cancelled_timeouts_do_not_pile_up(loop: JumpingLoop) -> None:
    loop.call_later(1, print)
    for _ in range(10 * crawl.TIMEOUT_SWEEP):
        loop.call_later(3600, print).cancel()
    assert len(loop._timeouts) <= crawl.TIMEOUT_SWEEP


def test_a_callback_that_is_falsy_is_called_like_any_other(loop: JumpingLoop) -> None:
    class Log(list[str]):
        def __call__(self, item: str) -> None:
            self.append(item)

    log = Log()
    loop.call_later(1, log, "called")
    for _ in range(crawl.TIMEOUT_SWEEP):
        loop.call_later(1, int)
    loop.tick()
    assert log == ["called"]


def test_a_loop_with_only_cancelled_timeouts_is_deadlocked(loop: JumpingLoop) -> None:
    loop.call_later(3600, print).cancel()
    with raises(crawl.DeadlockError):
        loop.run_forever()
    assert loop.time() == 0


def test_a_loop_may_sleep_for_years(loop: JumpingLoop) -> None:
    """In short sleeps: selectors do not take an infinite number."""
    loop.call_later(math.inf, print)
    loop.tick()
    assert loop.time() == crawl.MAX_WAIT


@each("error", [ZeroDivisionError, pytest.fail.Exception])
def test_a_callback_that_raises_is_reported_and_does_not_stop_the_others(
        loop: JumpingLoop, error: type[BaseException]) -> None:
    def fail() -> None:
        raise error("mine")

    seen: list[int] = []
    loop.call_soon(fail)
    loop.call_soon(seen.append, 1)
    loop.tick()
    assert seen == [1]
    assert isinstance(loop.reported.pop()["exception"], error)


def test_an_error_that_nobody_catches_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    loop = crawl.EventLoop()
    loop.call_soon(math.sqrt, -1)
    loop.tick()
    loop.close()
    printed = capsys.readouterr().err
    assert printed.startswith("exception in callback <built-in function sqrt>\n")
    assert printed.count("ValueError: ") == 1


@each("function, error", [
    ("sys.stderr.write", OSError(errno.EIO, "Input/output error")),
    ("sys.stderr.write", ValueError("I/O on closed file")),
    ("sys.excepthook", OSError(errno.ENOSPC, "No space left on device"))])
def test_an_error_that_cannot_be_printed_does_not_end_the_loop(
        function: str, error: Exception, monkeypatch: Patch) -> None:
    def fail(*arguments: object) -> None:
        calls.append("failed")
        raise error

    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(function, fail)
    loop = crawl.EventLoop()
    calls: list[str] = []
    loop.call_soon(math.sqrt, -1)
    loop.call_soon(calls.append, "still")
    loop.tick()
    loop.close()
    assert set(calls) == {"failed", "still"}


@each("error", [KeyboardInterrupt, SystemExit])
def test_a_callback_may_end_the_program(loop: JumpingLoop, error: type[BaseException]) -> None:
    def leave() -> None:
        raise error

    loop.call_soon(leave)
    with raises(error):
        loop.run_forever()
    with raises(RuntimeError):
        get_running_loop()


def test_stopping_does_not_lose_the_rest_of_the_tick(loop: JumpingLoop) -> None:
    seen: list[int] = []
    loop.call_soon(loop.stop)
    loop.call_soon(seen.append, 1)
    loop.run_forever()
    assert seen == [1]


def test_a_reader_and_a_writer_on_one_socket_are_independent(loop: JumpingLoop, pair: Pair) -> None:
    ours, theirs = pair
    seen: list[str] = []
    loop.add_reader(ours, seen.append, "readable")
    loop.add_writer(ours, seen.append, "writable")
    loop.tick()
    assert seen == ["writable"]
    assert loop.remove_writer(ours)
    assert not loop.remove_writer(ours)
    theirs.send(b"x")
    loop.tick()
    assert seen == ["writable", "readable"]
    assert loop.remove_reader(ours)
    assert not loop.remove_reader(ours)


def test_a_second_reader_replaces_the_first(loop: JumpingLoop, pair: Pair) -> None:
    ours, theirs = pair
    seen: list[int] = []
    loop.add_reader(ours, seen.append, 1)
    loop.add_reader(ours, seen.append, 2)
    theirs.send(b"x")
    loop.tick()
    assert seen == [2]


def test_a_callback_that_reschedules_itself_does_not_starve_sockets(
        loop: JumpingLoop, pair: Pair) -> None:
    ours, theirs = pair
    ticks: list[int] = []

    def again() -> None:
        ticks.append(1)
        loop.call_soon(again)

    loop.call_soon(again)
    loop.add_reader(ours, loop.stop)
    theirs.send(b"x")
    loop.run_forever()
    assert len(ticks) == 1


def test_a_full_self_pipe_still_wakes_the_loop() -> None:
    loop, calls = crawl.EventLoop(), list[int]()
    for number in range(10_000):  # bytes, one for each call: more than the pipe holds
        loop.call_soon_threadsafe(calls.append, number)
    with raises(BlockingIOError):
        loop._wake_sender.send(b"is it full?")
    loop.tick()
    loop.close()
    assert calls == list(range(10_000))


def test_a_closed_loop_takes_no_callbacks() -> None:
    loop = crawl.EventLoop()
    assert not loop.is_closed()
    loop.close()
    assert loop.is_closed()
    for call in (loop.call_soon, loop.call_soon_threadsafe):
        with raises(RuntimeError, match="closed"):
            call(print)
    with raises(RuntimeError, match="closed"):
        loop.run_forever()


async def test_a_loop_cannot_run_inside_a_running_one(loop: JumpingLoop) -> None:
    with raises(RuntimeError, match="already"):
        loop.run_forever()
    sleeping = sleep(0, "slept")
    with raises(RuntimeError, match="running"):
        crawl.run(sleeping)
    assert await crawl.to_thread(crawl.run, sleeping) == "slept", "another thread may run one"


@real_time
async def test_a_loop_that_was_woken_sleeps_again() -> None:
    get_running_loop().call_soon_threadsafe(int)
    await sleep(0.001)
    assert get_running_loop()._selector.select(0) == []


def test_a_reader_removed_in_its_tick_is_not_called(loop: JumpingLoop, pair: Pair) -> None:
    seen: list[bool] = []
    for ours, other in (pair, pair[::-1]):
        loop.add_reader(ours, lambda other=other: seen.append(loop.remove_reader(other)))
        other.send(b"x")
    loop.tick()
    assert seen == [True]
    assert loop.reported == []


@each("delay", [0, -0.5, -3600])
def test_a_callback_whose_delay_is_not_positive_is_called_soon(
        delay: float, loop: JumpingLoop) -> None:
    called: list[str] = []
    loop.call_later(delay, called.append, "later")
    loop.call_soon(called.append, "soon")
    assert called == []
    loop.tick()
    assert sorted(called) == ["later", "soon"]
    assert loop.time() == 0


def test_a_cancelled_callback_is_not_called_even_if_its_tick_has_begun(loop: JumpingLoop) -> None:
    called: list[str] = []
    handles: list[crawl.Handle] = []
    for call in (loop.call_soon, functools.partial(loop.call_later, 1)):
        call(lambda: handles[-1].cancel())
        handles.append(call(called.append, "cancelled"))
        call(called.append, "called")
        loop.tick()
    assert called == ["called", "called"]


@each("new_loop", [asyncio.new_event_loop, crawl.EventLoop])
def test_as_in_asyncio_the_loop_ticks_once_more_after_its_main_task(new_loop: Any) -> None:
    ticks: list[int] = []

    def tick() -> None:
        ticks.append(1)
        loop.call_soon(tick)

    async def main() -> None:
        loop.call_soon(tick)

    with closing(new_loop()) as loop:
        loop.run_until_complete(main())
    assert len(ticks) == 1


def test_a_thread_that_ends_just_as_the_loop_looks_for_it_is_no_deadlock(
        loop: JumpingLoop, monkeypatch: Patch) -> None:
    def count_when_the_thread_has_ended() -> int:
        loop.call_soon_threadsafe(loop.stop)  # the last act of the thread
        return 1

    monkeypatch.setattr(threading, "active_count", count_when_the_thread_has_ended)
    loop.run_forever()


def test_two_tasks_that_wait_for_one_another_are_a_deadlock() -> None:
    async def wait(other: int) -> None:
        await tasks[other]

    async def main() -> None:
        tasks.extend([create_task(wait(1)), create_task(wait(0))])
        await tasks[0]

    tasks: list[Any] = []
    with raises(crawl.DeadlockError, match="in test_two_tasks_that_wait.*wait"):
        crawl.run(main())


def test_a_program_that_waits_for_a_signal_is_not_deadlocked() -> None:
    async def main() -> str:
        loop, woken = get_running_loop(), crawl.Future[str]()
        signal.signal(
            signal.SIGALRM, lambda *_: loop.call_soon_threadsafe(woken.set_result, "woken"))
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        return await woken

    try:
        assert crawl.run(main()) == "woken"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def test_the_command_line_still_detects_a_deadlock(monkeypatch: Patch) -> None:
    """Its own signal handlers do not count as something that can wake the loop."""
    async def wait_for_nothing(crawler: crawl.Crawler) -> None:
        await crawl.Future[None]()

    monkeypatch.setattr(crawl.Crawler, "crawl", wait_for_nothing)
    status, _, err = run_main("http://127.0.0.1:1/")
    assert "DeadlockError: every task waits" in err
    assert status == 2


def test_a_thread_that_ends_without_a_callback_leaves_a_deadlock(monkeypatch: Patch) -> None:
    """While it runs it might still call back, so the loop waits for its end."""
    ended = list[str]()

    def end_silently() -> None:
        time.sleep(0.02)
        ended.append("thread")

    async def main() -> None:
        threading.Thread(target=end_silently).start()
        await get_running_loop().create_future()

    monkeypatch.setattr(crawl, "MAX_WAIT", 0.05)
    with raises(crawl.DeadlockError):
        crawl.run(main())
    assert ended == ["thread"]


def test_fetch_in_a_program_of_asyncio_explains_how_to_call_it() -> None:
    async def main() -> None:
        with raises(RuntimeError, match=r"await asyncio.to_thread\(crawl.run, "):
            await crawl.fetch("http://h/")

    asyncio.run(main())


# 3  Future
# =========


async def test_a_future_leaves_the_pending_state_once(lib: Any, log: Log) -> None:
    leave: list[Callable[[Any], object]] = [
        lambda future: future.set_result(5),
        lambda future: future.set_exception(KeyError()),
        lambda future: future.set_exception(KeyError),
        lambda future: future.cancel()]
    for first in leave:
        future = lib.get_running_loop().create_future()
        for step in (bool, first, *leave):
            log(attempt(step, future), future.done(), future.cancelled())
            log(attempt(future.result), attempt(future.exception))


def test_repr_of_a_future_shows_its_state(loop: JumpingLoop) -> None:
    future = loop.create_future()
    assert repr(future) == "<Future pending>"
    future.set_result(5)
    assert repr(future) == "<Future resolved>"


async def test_callbacks_are_called_by_the_loop_also_when_added_late(lib: Any, log: Log) -> None:
    future = lib.get_running_loop().create_future()
    for number in range(3):
        future.add_done_callback(lambda done, number=number: log(number, done is future))
    future.set_result(None)
    log("not yet")
    await lib.sleep(0)
    future.add_done_callback(lambda done: log("late", done is future))
    log("not yet")
    await lib.sleep(0)


@each("retrieve, reported", [(False, ["lost"]), (True, [])], ids=["lost", "retrieved"])
def test_only_an_exception_that_nobody_retrieves_is_reported(
        retrieve: bool, reported: list[str], loop: JumpingLoop) -> None:
    future = loop.create_future()
    future.set_exception(ValueError("lost"))
    if retrieve:
        future.exception()
    del future
    gc.collect()
    assert [str(context["exception"]) for context in loop.reported] == reported
    loop.reported.clear()


# 4  Task
# =======


async def test_generator_and_native_coroutines_await_one_another(lib: Any, log: Log) -> None:
    @crawl.coroutine
    def generator(value: int) -> Any:
        got = yield from lib.sleep(1, value)
        return (yield from native(got)) if got else "end"

    async def native(value: int) -> Any:
        return await generator(value - 1)

    log(await generator(3))
    log(await native(3))


def test_the_essays_fetch_does_the_same_in_both_styles(pair: Pair) -> None:
    """The two functions stand side by side in section 4."""
    lines = project_file("crawl.py").splitlines()
    first = lines.index("#     @coroutine")
    rows = [line.ljust(100) for line in lines[first : first + 8]]
    column = rows[1].index("async def")
    transcript = "\n".join(lines[first + 8 : first + 13])
    for text in (
            "\n".join(row[6:column] for row in rows),
            "\n".join(row[column:] for row in rows[1:])):
        loop, (sock, server) = crawl.EventLoop(), pair
        names: dict[str, Any] = {"coroutine": crawl.coroutine, "loop": loop, "Future": crawl.Future}
        exec(text, names)
        waiting = names["fetch"](sock)
        assert repr(waiting.send(None)) in transcript
        assert server.recv(100).startswith(b"GET / ")
        server.send(b"HTTP/1.0 200 OK\r\n\r\n")
        loop.tick()
        with raises(StopIteration) as returned:
            waiting.send(None)
        assert repr(returned.value.value)[2:-1] in transcript
        loop.close()


async def test_a_task_is_the_future_of_what_its_coroutine_returns_or_raises(
        lib: Any, log: Log) -> None:
    async def end(outcome: BaseException | str) -> str:
        await lib.sleep(1)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    for outcome in ("slept", KeyError()):
        task = lib.create_task(end(outcome))
        log(task.done(), await end_of(task), task.done(), attempt(task.exception))


@each("error", [KeyboardInterrupt, SystemExit])
def test_a_task_may_end_the_program(loop: JumpingLoop, error: type[BaseException]) -> None:
    async def leave() -> None:
        raise error

    loop.create_task(leave())
    with raises(error):
        loop.run_forever()


async def sleep_and_fail(keep: object) -> None:
    """Fail with KeyError, holding *keep* in a variable."""
    await sleep(0)
    raise KeyError


def test_an_error_of_a_task_that_nobody_retrieves_is_reported_with_its_name(
        loop: JumpingLoop) -> None:
    loop.create_task(sleep_and_fail(None))
    loop.tick()
    loop.tick()
    gc.collect()
    assert loop.reported.pop()["message"] == (
        "the exception of <Task sleep_and_fail failed> was never retrieved")


def test_a_background_task_that_fails_is_reported_immediately(
        loop: JumpingLoop, no_garbage_collector: None) -> None:
    loop.create_task(sleep_and_fail(None))
    loop.tick()
    assert loop.reported == []
    loop.tick()
    assert isinstance(loop.reported.pop()["exception"], KeyError)


def fail_now(keep: object) -> None:
    """Fail with KeyError, as sleep_and_fail() does, but in a thread."""
    raise KeyError


def awaiting(start: Callable[[object], Any]) -> Callable[[object], Any]:
    """Return a function that awaits what *start* returns, and expects KeyError."""
    async def wait(keep: object) -> None:
        with raises(KeyError):
            await start(keep)

    return wait


async def await_gathered_exceptions(keep: object) -> None:
    await crawl.gather(sleep_and_fail(keep), return_exceptions=True)


async def await_cancelled_task(keep: object) -> None:
    task = create_task(sleep_and_fail(keep))
    await sleep(0)
    task.cancel()
    with raises(CancelledError):
        await task


async def look_at_the_exception(keep: object) -> None:
    task = create_task(sleep_and_fail(keep))
    await sleep(0.01)
    assert isinstance(task.exception(), KeyError)


WAITS = {
    "a task": awaiting(lambda keep: create_task(sleep_and_fail(keep))),
    "gather": awaiting(lambda keep: crawl.gather(sleep_and_fail(keep), sleep(0))),
    "gather that returns exceptions": await_gathered_exceptions,
    "wait_for": awaiting(lambda keep: crawl.wait_for(sleep_and_fail(keep), 5)),
    "a cancelled task": await_cancelled_task,
    "a thread": awaiting(lambda keep: crawl.to_thread(fail_now, keep)),
    "the task of a thread": awaiting(lambda keep: create_task(crawl.to_thread(fail_now, keep))),
    "exception()": look_at_the_exception}


@each("wait", WAITS)
@real_time
async def test_objects_that_a_failed_task_held_are_freed_immediately(
        wait: str, no_garbage_collector: None) -> None:
    class Kept:
        pass

    kept = Kept()
    freed: list[int] = []
    weakref.finalize(kept, freed.append, 1)
    waiting = create_task(WAITS[wait](kept))
    del kept
    await waiting
    del waiting
    for _ in range(1000):  # a thread may need a moment to end
        await sleep(0)
        if freed:
            break
        time.sleep(0.001)
    assert freed == [1]


async def test_the_traceback_of_a_failed_task_does_not_grow_with_each_await() -> None:
    task = create_task(sleep_and_fail(None))
    lengths = set[int]()
    for _ in range(3):
        with raises(KeyError) as caught:
            await task
        lengths.add(len(caught.traceback))
    assert len(lengths) == 1


@each("failing", [pytest.fail.Exception, GeneratorExit])
async def test_any_exception_but_an_exit_becomes_the_outcome_of_its_task(
        failing: type[BaseException]) -> None:
    async def fail() -> None:
        raise failing("mine")

    (result,) = await crawl.gather(fail(), return_exceptions=True)
    assert type(result) is failing


async def test_repr_of_a_task_shows_its_name() -> None:
    task = create_task(sleep(0), name="pause")
    assert repr(task) == "<Task pause pending>"
    assert task.get_loop() is get_running_loop()
    await task
    unnamed = create_task(Queue[int]().join())
    await unnamed
    assert repr(unnamed) == "<Task Queue.join resolved>"


def test_a_cancellation_is_not_an_exception_that_a_program_catches() -> None:
    assert not issubclass(CancelledError, Exception)


def test_only_coroutines_become_tasks(loop: JumpingLoop) -> None:
    with raises(TypeError, match="expected a coroutine, got 5"):
        loop.create_task(5)  # type: ignore[arg-type]


@each("ticks", range(4))
async def test_cancelling_raises_at_the_wait_and_runs_finally(
        lib: Any, log: Log, ticks: int) -> None:
    """Before the first step, while the task waits, after it was woken, and after its end."""
    future = lib.get_running_loop().create_future()

    async def worker() -> None:
        try:
            log("began")
            await future
            log("went on")
        finally:
            log("cleaned up")

    task = lib.create_task(worker())
    for tick in range(ticks):
        await lib.sleep(0)
        if tick == 1:
            future.set_result(None)
    log(task.cancel(), task.cancelling())
    log(await end_of(task), task.cancelled(), task.cancel())


async def test_a_task_that_is_cancelled_while_it_runs_is_cancelled_at_its_next_wait_or_end(
        lib: Any, log: Log) -> None:
    async def cancel_and(wait: bool) -> None:
        log(lib.current_task().cancel())
        if wait:
            await lib.sleep(1)
        log("not reached" if wait else "the end")

    for wait in (True, False):
        task = lib.create_task(cancel_and(wait))
        log(await end_of(task), task.cancelled())


async def test_a_task_that_ignores_a_cancel_can_be_cancelled_again(lib: Any, log: Log) -> None:
    async def stubborn() -> str:
        for _ in range(2):
            with suppress(lib.CancelledError):
                await lib.sleep(3600)
        return "finished anyway"

    task = lib.create_task(stubborn())
    for _ in range(2):
        await lib.sleep(0)
        task.cancel()
    log(await end_of(task), task.cancelling())


async def test_one_cancel_reaches_the_end_of_a_chain_of_hundreds_of_tasks() -> None:
    async def wait(other: Any) -> None:
        await other

    tasks = [create_task(sleep(3600))]
    for _ in range(900):
        tasks.append(create_task(wait(tasks[-1])))
    await sleep(1)
    tasks[-1].cancel()
    await crawl.gather(*tasks, return_exceptions=True)
    assert all(task.cancelled() and task.cancelling() == 1 for task in tasks)
    assert get_running_loop().time() == 1


async def test_a_cancel_that_is_undone_before_the_next_step_has_no_effect() -> None:
    task: Any = crawl.current_task()
    assert task.uncancel() == 0
    task.cancel()
    task.cancel()
    assert task.uncancel() == 1
    assert task.uncancel() == 0
    await sleep(1)
    task.cancel()
    task.cancel()
    assert task.uncancel() == 1
    with raises(CancelledError):
        await sleep(1)


async def test_a_task_cannot_wait_for_an_object_that_is_not_a_future_of_its_loop(
        lib: Any, log: Log) -> None:
    @crawl.coroutine
    def odd(value: object) -> Any:
        yield value

    async def guarded(value: object) -> str:
        try:
            log(await end_of(odd(value)))
            return "goes on"
        finally:
            log("cleaned up")

    async def itself() -> None:
        await lib.current_task()

    foreign: Any = JumpingLoop() if lib is crawl else JumpingAsyncioLoop()
    for value in (foreign.create_future(), 5):
        log(await lib.create_task(guarded(value)))
    foreign.close()
    log(await end_of(lib.create_task(itself())))


async def test_a_waiting_task_is_kept_alive_by_its_loop_and_by_nothing_else() -> None:
    done: list[int] = []
    waiters: list[weakref.ref[crawl.Future[None]]] = []

    async def background() -> None:
        waiter = get_running_loop().create_future()
        waiters.append(weakref.ref(waiter))
        await waiter
        done.append(1)

    task = weakref.ref(create_task(background()))
    await sleep(0)
    gc.collect()
    waiter = waiters[0]()
    assert waiter is not None
    waiter.set_result(None)
    await sleep(1)
    assert done == [1]
    del waiter
    gc.collect()
    assert task() is None


async def test_a_task_runs_in_a_copy_of_the_context(lib: Any, log: Log) -> None:
    variable = contextvars.ContextVar[str]("variable")

    async def change() -> None:
        log(variable.get())
        variable.set("inner")
        await lib.sleep(0)
        log(variable.get())

    variable.set("outer")
    await lib.create_task(change())
    log(variable.get())


def test_a_deadlock_error_lists_the_waiting_tasks_and_their_lines() -> None:
    async def inner() -> None:
        await get_running_loop().create_future()

    async def outer() -> None:
        await inner()

    with raises(crawl.DeadlockError) as caught:
        play(crawl.wait_for(outer(), None))
    lines = str(caught.value).splitlines()
    assert any("in test_a_deadlock_error" in line and "outer" in line for line in lines)
    assert any("inner" in line and "test_crawl.py" in line for line in lines)


@each("kind", ["future", "task", "gathering"])
async def test_a_failure_that_comes_with_a_cancellation_is_not_reported(kind: str) -> None:
    failing: Any = get_running_loop().create_future()
    waited = failing
    if kind == "task":
        waited = create_task(failing)
    elif kind == "gathering":
        waited = crawl.gather(failing)
    task = create_task(crawl.wait_for(waited, None))
    await sleep(0)
    failing.set_exception(KeyError())
    while not waited.done():
        await sleep(0)
    task.cancel()
    del failing, waited
    with raises(CancelledError):
        await task
    gc.collect()


# 5  Waiting
# ==========


async def test_sleep_takes_its_time_and_not_more(lib: Any, log: Log) -> None:
    for delay in (0, -1, 1.5):
        log(await lib.sleep(delay, "result"))
    tasks: list[Any] = []
    lib.get_running_loop().call_later(1, lambda: tasks[0].cancel())  # just before the sleep ends
    tasks.append(lib.create_task(lib.sleep(1)))
    log(await end_of(tasks[0]))


def test_a_sleep_that_is_cancelled_leaves_no_deadline(loop: JumpingLoop) -> None:
    async def main() -> None:
        sleeper = create_task(sleep(3600))
        await sleep(0)
        sleeper.cancel()
        await get_running_loop().create_future()

    with raises(crawl.DeadlockError):
        loop.run_until_complete(main())
    assert loop.time() == 0


async def test_the_error_of_a_timeout_says_its_delay() -> None:
    with raises(TimeoutError, match="timed out after 2 s"):
        async with crawl.timeout(2):
            await sleep(3600)


async def test_a_timeout_raises_at_its_deadline_and_lets_other_errors_through(
        lib: Any, log: Log) -> None:
    async def limited(outer: float | None, inner: float | None, pause: float) -> None:
        async with lib.timeout(outer), lib.timeout(inner):
            try:
                log(await lib.sleep(pause, "slept"))
            except lib.CancelledError:
                if pause == 99:
                    raise KeyError from None
                raise

    for limits in ((1, 2, 9), (2, 1, 9), (5, 3, 1), (None, None, 1), (1, None, 99)):
        task = lib.create_task(limited(*limits))
        log(await end_of(task), task.cancelling())
    task = lib.create_task(limited(2, 3, 9))
    await lib.sleep(1)
    log(task.cancel(), await end_of(task))
    await lib.sleep(10)  # no deadline is left
    log(lib.current_task().cancelling())


async def test_a_timeout_does_not_swallow_a_cancellation_that_is_on_its_way() -> None:
    async def cancel_and_wait() -> None:
        cast(Any, crawl.current_task()).cancel()
        async with crawl.timeout(0):
            await sleep(1)

    with raises(CancelledError):
        await create_task(cancel_and_wait())


async def test_wait_for_returns_the_result_or_cancels_and_waits(lib: Any, log: Log) -> None:
    async def slow() -> None:
        try:
            await lib.sleep(3600)
        finally:
            await lib.sleep(1)
            log("cleaned up")

    log(await lib.wait_for(lib.sleep(1, "early"), 2))
    log(await end_of(lib.wait_for(slow(), 1)))


async def test_gather_returns_results_in_order_or_the_first_failure_while_the_others_go_on(
        lib: Any, log: Log) -> None:
    async def fail(after: float) -> None:
        await lib.sleep(after)
        raise KeyError(after)

    same = lib.create_task(lib.sleep(1, "same"))
    log(await lib.gather(lib.sleep(2, "slow"), same, same))
    log(await lib.gather())
    slow = lib.create_task(lib.sleep(3, "slow"))
    log(await end_of(lib.gather(slow, fail(1), fail(2))))
    log(await slow)
    gc.collect()  # the second error, which nobody retrieves, counts as retrieved
    for each_result in await lib.gather(fail(1), lib.sleep(1, 1), return_exceptions=True):
        log(each_result)


async def test_cancelling_gather_cancels_its_children(lib: Any, log: Log) -> None:
    for options in ({}, {"return_exceptions": True}):
        children = [lib.create_task(lib.sleep(3600)) for _ in range(2)]
        everyone = lib.gather(*children, **options)
        await lib.sleep(0)
        log(everyone.cancel(), await end_of(everyone))
        await lib.sleep(0)
        log([child.cancelled() for child in children], everyone.cancel())


async def test_the_result_of_a_thread_whose_future_was_cancelled_is_dropped() -> None:
    go = threading.Event()
    future = crawl.to_thread(go.wait)
    future.cancel()
    go.set()
    while threading.active_count() > 1:
        await sleep(0)
    await sleep(0)  # the result has come by now
    assert future.cancelled()


@real_time
async def test_to_thread_passes_every_argument() -> None:
    assert await crawl.to_thread(dict, [("a", 0)], func=1, self=2) == {"a": 0, "func": 1, "self": 2}


@real_time
async def test_to_thread_runs_elsewhere_and_in_the_same_context() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")

    def work(*, add: int) -> tuple[int, int]:
        return variable.get() + add, threading.get_ident()

    variable.set(1)
    value, thread = await crawl.to_thread(work, add=2)
    assert value == 3
    assert thread != threading.get_ident()
    with raises(ZeroDivisionError):
        await crawl.to_thread(lambda: 1 / 0)


def test_a_program_does_not_wait_for_a_thread_that_never_ends(tmp_path: Path) -> None:
    output = output_of("""
        import crawl, threading
        async def main():
            crawl.to_thread(threading.Event().wait)
        crawl.run(main())
        print("ended")
        """, tmp_path)
    assert output == "ended\n"


def test_a_thread_may_wait_for_another_process(tmp_path: Path) -> None:
    output = output_of("""
        import concurrent.futures, crawl
        async def main():
            with concurrent.futures.ProcessPoolExecutor(1) as executor:
                return await crawl.to_thread(executor.submit(pow, 2, 100).result)
        if __name__ == "__main__":
            print(crawl.run(main()))
        """, tmp_path)
    assert output == f"{2 ** 100}\n"


def test_a_timeout_outside_a_task_is_an_error(loop: JumpingLoop) -> None:
    def enter() -> None:
        with raises(RuntimeError, match="needs a running task"):
            crawl.timeout(1).__aenter__().send(None)
        loop.stop()

    loop.call_soon(enter)
    loop.run_forever()


def test_a_failed_thread_that_nobody_awaits_is_reported_at_once(
        loop: JumpingLoop, no_garbage_collector: None) -> None:
    async def main() -> None:
        crawl.to_thread(math.sqrt, -1)
        while threading.active_count() > 1:
            await sleep(0)
        await sleep(0)  # the error has come by now
        assert isinstance(loop.reported.pop()["exception"], ValueError)

    loop.run_until_complete(main())


@real_time
async def test_an_exit_or_an_error_in_an_executor_is_raised_at_once() -> None:
    def fail(error: BaseException) -> None:
        time.sleep(0.05)  # so that the loop waits by then
        raise error

    with concurrent.futures.ThreadPoolExecutor() as executor:
        for error in (KeyError(), SystemExit()):
            began = time.monotonic()
            with raises(type(error)):
                await crawl.wait_for(crawl.to_thread(executor.submit(fail, error).result), 5)
            assert time.monotonic() - began < crawl.MAX_WAIT - 0.1


async def test_a_timeout_of_0_cancels_its_block_only_where_it_waits_longer_than_a_tick() -> None:
    async with crawl.timeout(0):
        await sleep(0)
    with raises(TimeoutError):
        async with crawl.timeout(0):
            await sleep(0)
            await sleep(1)


async def test_wait_for_with_a_timeout_of_0_still_begins_to_run_its_coroutine() -> None:
    steps: list[str] = []

    async def work() -> None:
        steps.append("began")
        await sleep(1)
        steps.append("went on")

    with raises(TimeoutError):
        await crawl.wait_for(work(), 0)
    assert steps == ["began"]


# 6  Running
# ==========


def test_a_task_that_fails_while_run_ends_it_is_reported(loop: JumpingLoop) -> None:
    async def background() -> None:
        with suppress(CancelledError):
            await sleep(3600)
        raise ValueError("not cleaned up")

    async def main() -> None:
        create_task(background())
        await sleep(1)

    crawl.run(main(), loop_factory=lambda: loop)
    gc.collect()
    assert str(loop.reported.pop()["exception"]) == "not cleaned up"


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM])
def ending(request: pytest.FixtureRequest) -> Iterator[int]:
    """A signal that raises KeyboardInterrupt; run() is to give it back its handler."""
    number = int(request.param)
    before = signal.signal(number, crawl.interrupt)
    yield number
    assert signal.signal(number, before) is crawl.interrupt


@each("times, moment, cleaned_up", [
    (1, "main", ["main", "child"]),
    (1, "child", ["main", "child"]),
    (2, "main", ["main"]),
    (2, "child", ["main"])])
def test_a_signal_cancels_the_main_task_and_a_second_one_ends_run(
        ending: int, times: int, moment: str, cleaned_up: list[str]) -> None:
    """In a step of the main task, or while another cleans up; it comes once, or twice."""
    seen: list[str] = []

    async def part(name: str) -> None:
        try:
            if name == "main":
                create_task(part("child"))
                await sleep(0)
            if name == moment == "main":
                for _ in range(times):
                    signal.raise_signal(ending)
            await sleep(0 if name == "main" else 3600)
        finally:
            if name == moment == "child":
                for _ in range(times):
                    signal.raise_signal(ending)
            seen.append(name)

    with raises(KeyboardInterrupt) as caught:
        crawl.run(part("main"))
    assert caught.value.args == (ending,)
    assert seen == cleaned_up


@each("handler", [signal.SIG_IGN, signal.SIG_DFL, lambda *_: None])
def test_run_keeps_a_signal_handler_that_main_has_installed(handler: Any) -> None:
    async def main() -> None:
        signal.signal(signal.SIGINT, handler)

    try:
        crawl.run(main())
        assert signal.getsignal(signal.SIGINT) == handler
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_outside_of_run_a_signal_is_a_keyboard_interrupt(ending: int) -> None:
    with raises(KeyboardInterrupt) as caught:
        signal.raise_signal(ending)
    assert caught.value.args == (ending,)


@each("number, outcome", [(4, 2), (-1, "ValueError")], ids=["result", "error"])
def test_a_main_task_that_ignores_the_signal_ends_as_it_would_without(
        ending: int, number: float, outcome: object) -> None:
    async def main() -> float:
        signal.raise_signal(ending)
        with raises(CancelledError):
            await sleep(3600)
        return math.sqrt(number)

    assert attempt(crawl.run, main()) == outcome


def test_a_signal_that_the_program_handles_is_left_alone() -> None:
    async def handlers() -> list[Any]:
        return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    mine: Any = lambda *_: None
    before = signal.signal(signal.SIGINT, mine)
    try:
        assert crawl.run(handlers()) == [mine, signal.SIG_DFL]
    finally:
        signal.signal(signal.SIGINT, before)
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.extend(crawl.run(handlers())))
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler, signal.SIG_DFL]


@each("watched", [False, True])
def test_every_finally_is_run_at_whatever_moment_a_signal_comes(
        watched: bool, rng: Random, pair: Pair) -> None:
    async def worker(queue: Queue[int]) -> None:
        begun.append("worker")
        try:
            while True:
                await queue.put(await queue.get())
                await sleep(rng.choice((0, 0, 0.0001)))
        finally:
            ended.append("worker")

    async def main() -> None:
        try:
            if watched:
                get_running_loop().add_reader(pair[0], print)
            queue: Queue[int] = Queue()
            queue.put_nowait(1)
            threading.Timer(rng.random() / 200, signal.pthread_kill, (here, signal.SIGINT)).start()
            await crawl.gather(*[worker(queue) for _ in range(3)])
        finally:
            ended.append("main")

    here = threading.get_ident()
    for _ in range(50):
        begun, ended = list[str](), list[str]()
        with raises(KeyboardInterrupt):
            crawl.run(main())
        assert sorted(ended) == ["main", *begun]


def test_run_returns_the_result_and_ends_every_task_and_those_that_it_starts() -> None:
    ended: list[str] = []

    async def background(name: str, *others: str) -> None:
        try:
            await sleep(3600)
        finally:
            if others:
                create_task(background(*others))
                await sleep(1)
            ended.append(name)

    async def main() -> int:
        create_task(background("first", "second", "third"))
        await sleep(1)
        return 42

    assert play(main()) == 42
    assert ended == ["first", "second", "third"]


def test_run_raises_the_cancelled_error_of_a_main_task_that_cancels_itself() -> None:
    async def main() -> None:
        cast(Any, crawl.current_task()).cancel()
        await sleep(1)

    with raises(CancelledError):
        play(main())


def test_a_program_of_asyncio_fetches_in_a_thread(site: Server) -> None:
    site.add("/", "hello")

    async def main() -> crawl.Response:
        return await asyncio.to_thread(crawl.run, crawl.fetch(site.url))

    assert asyncio.run(main()).body == b"hello"


# 7  Queue
# ========


@each("size", [-1, 0, 1, 2])
async def test_a_queue_returns_items_in_order_and_makes_putters_wait_while_it_is_full(
        lib: Any, log: Log, size: int) -> None:
    queue = lib.Queue(size)
    log(queue.empty(), queue.full(), queue.qsize(), attempt(queue.get_nowait))
    putters = [lib.create_task(queue.put(number)) for number in range(4)]
    await lib.sleep(1)
    log([putter.done() for putter in putters], queue.full(), queue.qsize())
    log(attempt(queue.put_nowait, "one more"))
    for _ in range(4):
        log(await queue.get(), queue.qsize(), queue.full())
    await lib.gather(*putters)


@each("moment", ["before", "after", "a tick after"])
async def test_cancelling_a_getter_does_not_lose_the_item_put_at_any_moment(
        lib: Any, log: Log, moment: str) -> None:
    queue = lib.Queue()
    first, second = lib.create_task(queue.get()), lib.create_task(queue.get())
    await lib.sleep(0)
    if moment == "before":
        queue.put_nowait("item")
    first.cancel()
    if moment == "after":
        queue.put_nowait("item")
    await lib.sleep(0)
    if moment == "a tick after":
        queue.put_nowait("item")
    log(await second, first.cancelled())


async def test_a_semaphore_hands_its_places_over_in_the_order_of_the_tasks() -> None:
    semaphore = crawl.Semaphore(2)
    assert not semaphore.locked()
    assert await semaphore.acquire()
    assert await semaphore.acquire()
    assert semaphore.locked()
    order = list[int]()

    async def hold(number: int) -> None:
        async with semaphore:
            order.append(number)

    tasks = [create_task(hold(number)) for number in range(5)]
    await sleep(0)
    semaphore.release()
    assert semaphore.locked(), "the place belongs to the first task, even before its next step"
    await crawl.gather(*tasks)
    assert order == [0, 1, 2, 3, 4]
    assert not semaphore.locked()
    with raises(ValueError, match="a semaphore has at least 0 places, got -1"):
        crawl.Semaphore(-1)


async def test_a_semaphore_keeps_its_places_whatever_is_cancelled_when(rng: Random) -> None:
    kinds = set[type]()
    for _ in range(ROUNDS // 50):
        semaphore = crawl.Semaphore(2)
        inside = set[int]()
        waiting, entered = list[int](), list[int]()

        async def hold(number: int, ticks: int) -> None:
            waiting.append(number)
            async with semaphore:
                entered.append(number)
                inside.add(number)
                assert len(inside) <= 2
                try:
                    for _ in range(ticks):
                        await sleep(0)
                finally:
                    inside.remove(number)

        tasks = [create_task(hold(number, rng.randrange(4))) for number in range(6)]
        for _ in range(rng.randrange(12)):
            if rng.randrange(3) == 0:
                rng.choice(tasks).cancel()
            await sleep(0)
        outcomes = await crawl.gather(*tasks, return_exceptions=True)
        kinds |= {type(outcome) for outcome in outcomes}
        assert entered == [number for number in waiting if number in entered], "first come"
        await crawl.wait_for(crawl.gather(semaphore.acquire(), semaphore.acquire()), 1)
        assert semaphore.locked()
    assert kinds == {type(None), CancelledError}


async def test_a_putter_that_is_cancelled_when_woken_wakes_the_next_putter(
        lib: Any, log: Log) -> None:
    queue = lib.Queue(1)
    queue.put_nowait(0)
    first, second = lib.create_task(queue.put(1)), lib.create_task(queue.put(2))
    await lib.sleep(0)
    log(queue.get_nowait())
    first.cancel()
    await second
    log(queue.get_nowait())


async def test_a_wake_up_for_nothing_costs_no_place_in_line() -> None:
    """The task that was woken is cancelled, and another has taken its item or its room."""
    queue: Queue[int] = Queue(1)
    first, second, third = [create_task(queue.get()) for _ in range(3)]
    await sleep(0)
    queue.put_nowait(0)
    assert queue.get_nowait() == 0
    first.cancel()
    await sleep(1)
    queue.put_nowait(2)
    assert await second == 2
    queue.put_nowait(3)
    assert await third == 3
    queue.put_nowait(0)
    first_put, second_put, third_put = [create_task(queue.put(number)) for number in (1, 2, 3)]
    await sleep(0)
    queue.get_nowait()
    queue.put_nowait(0)
    first_put.cancel()
    await sleep(1)
    assert [queue.get_nowait(), await queue.get(), await queue.get()] == [0, 2, 3]
    await crawl.gather(second_put, third_put)


async def test_join_waits_until_every_item_is_done(lib: Any, log: Log) -> None:
    queue = lib.Queue()
    log(await end_of(queue.join()))
    for _ in range(2):
        queue.put_nowait(1)
        queue.put_nowait(2)
        joiners = [lib.create_task(queue.join()) for _ in range(2)]
        await lib.sleep(1)
        for _ in range(2):
            queue.task_done()
            await lib.sleep(1)
            log([joiner.done() for joiner in joiners])
    log(attempt(queue.task_done))


def test_the_error_of_one_task_done_too_many_says_so() -> None:
    with raises(ValueError, match="too many"):
        Queue[int]().task_done()


async def test_a_cancelled_getter_leaves_the_line() -> None:
    def count() -> int:
        gc.collect()
        return sum(type(one) is crawl.Future for one in gc.get_objects())

    queue: Queue[int] = Queue()
    before = count()
    for _ in range(1000):
        with suppress(TimeoutError):
            await crawl.wait_for(queue.get(), 1)
    assert count() - before < 10


def test_made_up_programs_run_as_they_do_under_asyncio(rng: Random) -> None:
    programs = [[random_plan(rng) for _ in range(rng.randrange(1, 5))] for _ in range(ROUNDS // 5)]

    def transcripts(lib: Any, programs: list[list[Plan]]) -> list[list[str]]:
        async def main(some: list[list[Plan]]) -> None:
            for program in some:
                lines: list[str] = []

                def log(*words: Any) -> None:
                    lines.append(re.sub(r"Error\([^)]*\)", "Error", repr(words)))

                await Performance(lib, log).run(program)
                result.append(lines)

        result: list[list[str]] = []
        # 500 in one run: after some months a clock no longer shows nanoseconds.
        for start in range(0, len(programs), 500):
            if lib is crawl:  # not play(): it reports errors whose waiter is cancelled in that tick
                crawl.run(main(programs[start : start + 500]), loop_factory=JumpingLoop)
            else:
                play_asyncio(main(programs[start : start + 500]))
        return result

    def same(steps: list[tuple[int, Any]]) -> None:
        program = [[step for number, step in steps if number == task] for task in range(5)]
        (ours,), (theirs,) = transcripts(crawl, [program]), transcripts(asyncio, [program])
        for number, (our_line, their_line) in enumerate(itertools.zip_longest(ours, theirs)):
            assert our_line == their_line, "this differs first; before it:\n" + "\n".join(
                ours[:number])

    for program, ours, theirs in zip(
            programs, transcripts(crawl, programs), transcripts(asyncio, programs)):
        if ours != theirs:
            check_claim(
                same, [(number, step) for number, plan in enumerate(program) for step in plan])


# 8  Streams
# ==========


@real_time
async def test_closing_a_stream_drops_the_bytes_that_are_not_sent(pair: Pair) -> None:
    stream = crawl.Stream(pair[0])
    stream.write(b"unsent")
    stream.close()
    assert pair[1].recv(9) == b""


@real_time
async def test_a_stream_reads_the_bytes_that_were_sent_until_the_end(server: socket.socket) -> None:
    stream = await crawl.connect(*server.getsockname())
    peer, _ = server.accept()
    stream.write(b"ques")
    stream.write(b"tion")
    await stream.drain()
    assert peer.recv(100) == b"question"
    for part in (b"one", b"two"):
        get_running_loop().call_later(0.001, peer.send, part)
        assert await stream.read() == part
    peer.close()
    assert await stream.read() == b""
    stream.close()


@real_time
async def test_reading_from_a_closed_stream_is_an_os_error(pair: Pair) -> None:
    stream = crawl.Stream(pair[0])
    stream.close()
    with raises(ConnectionAbortedError, match="the stream is closed"):
        await stream.read()


@real_time
async def test_read_sends_the_bytes_that_write_has_buffered(pair: Pair) -> None:
    ours, theirs = pair
    with closing(crawl.Stream(ours)) as stream:
        stream.write(b"ping")
        theirs.setblocking(False)
        with raises(BlockingIOError):
            theirs.recv(9)  # nothing is sent before drain() or read()
        reading = create_task(stream.read())
        await sleep(0)
        assert theirs.recv(9) == b"ping"
        theirs.send(b"pong")
        assert await reading == b"pong"


def address_of(server: socket.socket | int) -> crawl.Address:
    """Return the address of a server, or of a port here, in the form that getaddrinfo() returns."""
    address = ("127.0.0.1", server) if isinstance(server, int) else server.getsockname()
    return (socket.AF_INET, socket.SOCK_STREAM, 0, "", address)


async def test_the_next_address_is_tried_immediately_when_an_attempt_fails(
        closed: int, server: socket.socket) -> None:
    refused, there = address_of(closed), address_of(server)
    addresses = [refused, refused, there]
    (await crawl.connect("name", 80, addresses=addresses)).close()
    assert addresses == [there, refused, refused], "the one that worked is tried first next time"
    assert get_running_loop().time() == 0


async def test_two_addresses_that_connect_in_one_tick_leave_one_socket(
        server: socket.socket, monkeypatch: Patch) -> None:
    streams: list[crawl.Stream] = []
    original = crawl._connect

    async def slow(address: crawl.Address) -> crawl.Stream:
        await sleep(3600 - get_running_loop().time())  # both end at the same moment
        streams.append(await original(address))
        return streams[-1]

    monkeypatch.setattr(crawl, "_connect", slow)
    stream = await crawl.connect("name", 80, addresses=[address_of(server)] * 2)
    await sleep(1)
    assert len(streams) == 2
    assert [each for each in streams if each.sock.fileno() >= 0] == [stream]
    stream.close()


class Renegotiating(socket.socket):
    """A socket whose first send wants to read, or first recv to write, as TLS may."""

    asked = False

    def ask(self, want: type[ssl.SSLError]) -> None:
        if not self.asked:
            self.asked = True
            raise want

    def send(self, data: Any, flags: int = 0) -> int:
        self.ask(ssl.SSLWantReadError)
        return super().send(data, flags)

    def recv(self, size: int, flags: int = 0) -> bytes:
        self.ask(ssl.SSLWantWriteError)
        return super().recv(size, flags)


@real_time
async def test_a_read_for_which_tls_has_to_write_waits_until_that_is_possible(pair: Pair) -> None:
    ours, theirs = pair
    with closing(crawl.Stream(Renegotiating(fileno=ours.detach()))) as stream:
        with suppress(BlockingIOError):
            while True:  # until nothing more can be written
                socket.socket.send(stream.sock, bytes(100_000))
        theirs.send(b"bytes")
        reading = create_task(stream.read())
        await sleep(0.001)
        assert not reading.done()
        theirs.setblocking(False)
        with suppress(BlockingIOError):
            while theirs.recv(100_000):
                pass
        assert await reading == b"bytes"


@real_time
async def test_closing_a_stream_wakes_the_tasks_that_wait_for_it(pair: Pair) -> None:
    stream = crawl.Stream(pair[0])
    stream.write(bytes(8_000_000))
    reading, sending = create_task(stream.read()), create_task(stream.drain())
    await sleep(0.001)
    stream.close()
    for task in (reading, sending):
        with raises(ConnectionAbortedError, match="closed"):
            await task
    with raises(OSError):
        await stream.drain()


@real_time
async def test_a_peer_that_sends_faster_than_we_read_does_not_delay_timeouts(pair: Pair) -> None:
    loop, (ours, theirs) = get_running_loop(), pair
    theirs.setblocking(False)
    stream, reads, over = crawl.Stream(ours), 0, list[int]()
    loop.add_writer(theirs, lambda: theirs.send(bytes(100_000)))
    while not over:
        await stream.read(1)
        reads += 1
        if reads == 100:  # so this is called, though there is always something to read
            loop.call_later(0, over.append, 1)
    assert reads <= 102
    loop.remove_writer(theirs)
    stream.close()


@each("step, limit, end", [
    ("each of two addresses", 10, 10.25), ("the handshake", 10, 10), ("the lookup", 20, 20)])
async def test_each_step_of_connecting_times_out_after_its_own_seconds(
        step: str, limit: int, end: float, full: socket.socket, server: socket.socket,
        silent_names: None) -> None:
    tls, loop = crawl._tls_context(), cast(JumpingLoop, get_running_loop())
    steps: dict[str, Any] = {
        "each of two addresses": lambda: crawl.connect("h", 1, addresses=[address_of(full)] * 2),
        "the handshake": lambda: crawl.connect("h", 1, ssl=tls, addresses=[address_of(server)]),
        "the lookup": lambda: crawl.lookup("h", 1)}
    with raises(TimeoutError, match=f"timed out after {limit} s"):
        await steps[step]()
    assert loop.time() == end
    loop.clock.watched_sockets = False  # on purpose: a server that is silent needs no real time


@real_time
async def test_read_returns_at_most_the_requested_number_of_bytes(pair: Pair) -> None:
    ours, theirs = pair
    with closing(crawl.Stream(ours)) as stream:
        reading = create_task(stream.read())
        await sleep(0)
        reading.cancel()
        with raises(CancelledError):
            await reading
        theirs.send(b"answer")
        assert (await stream.read(3), await stream.read(9)) == (b"ans", b"wer")


@real_time
async def test_bytes_that_a_cancelled_drain_has_not_sent_are_sent_by_the_next(
        rng: Random, pair: Pair) -> None:
    stream, message = crawl.Stream(pair[0]), rng.randbytes(8_000_000)
    stream.write(message)
    sending = create_task(stream.drain())
    await sleep(0)
    sending.cancel()
    with raises(CancelledError):
        await sending
    with pair[1].makefile("rb") as incoming:
        receiving = crawl.to_thread(incoming.read)
        await stream.drain()
        stream.close()
        assert await receiving == message


@real_time
async def test_two_tasks_that_read_from_a_stream_share_its_bytes(pair: Pair) -> None:
    ours, theirs = pair
    with closing(crawl.Stream(ours)) as stream:
        readers = [create_task(stream.read(1)) for _ in range(2)]
        await sleep(0)
        theirs.send(b"xy")
        assert await crawl.gather(*readers) == [b"x", b"y"]


@real_time
async def test_closing_a_stream_twice_does_not_close_the_next_socket_with_its_descriptor(
        pair: Pair) -> None:
    loop, (ours, theirs) = get_running_loop(), pair
    descriptor, stream = ours.fileno(), crawl.Stream(ours)
    stream.close()
    with theirs.dup() as again:
        assert again.fileno() == descriptor
        loop.add_reader(again, print)
        stream.close()
        assert loop.remove_reader(again)


@real_time
async def test_a_stream_that_nobody_reads_is_not_watched(pair: Pair) -> None:
    loop, (ours, theirs) = get_running_loop(), pair
    with closing(crawl.Stream(ours)) as stream:
        loop.call_later(0.001, theirs.send, b"answer")
        assert await stream.read() == b"answer"
        theirs.send(b"unasked")
        while ours in loop._selector.get_map():  # otherwise each tick would report it
            await sleep(0.001)
        assert await stream.read() == b"unasked"
        loop.call_later(0.001, theirs.send, b"more")
        assert await stream.read() == b"more"


class StrictSelector(selectors.DefaultSelector):
    """Complains about closed sockets, as kqueue would, and counts what was unregistered."""

    unregistered = 0

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        assert fileobj.fileno() >= 0, "a socket was closed before it was unregistered"
        self.unregistered += 1
        return super().unregister(fileobj)

    def select(self, timeout: float | None = None) -> Any:
        for key in self.get_map().values():
            assert cast(socket.socket, key.fileobj).fileno() >= 0, "a closed socket is watched"
        return super().select(timeout)


def test_a_loop_never_watches_a_closed_socket(site: Server, closed: int) -> None:
    """Whether a stream is read to its end, reset, timed out, cancelled or refused."""
    site.add("/", "".join(f"<a href=/{name}>" for name in ("a", "cut", "silent", "b")))
    site.add("/a")
    site.answers["/cut"] = lambda connection, _: connection.close()
    site.answers["/silent"] = say_nothing
    selector = StrictSelector()

    async def main() -> None:
        crawler = crawl.Crawler(
            [site.url, f"http://127.0.0.1:{closed}"], no_robots=True, timeout=0.2, max_tries=1)
        await crawler.crawl()
        waiting = create_task(crawl.fetch(f"{site.url}/silent"))
        await sleep(0.05)
        waiting.cancel()
        await crawl.gather(waiting, return_exceptions=True)

    crawl.run(main(), loop_factory=lambda: crawl.EventLoop(selector))
    assert selector.unregistered > 5


@real_time
@each("victim", ["the race", "the first attempt", "the last attempt", "all attempts"])
async def test_a_race_that_is_cancelled_in_any_tick_leaves_no_socket_open(
    victim: str, full: socket.socket, server: socket.socket, monkeypatch: Patch) -> None:
    monkeypatch.setattr(crawl, "ATTEMPT_DELAY", 0.0)
    loop = get_running_loop()
    most, outcomes = 0, set[type]()
    before = os.listdir("/dev/fd")
    for moment in range(24):
        addresses = [address_of(full), address_of(full), address_of(server)]
        race = create_task(crawl.connect("h", 1, addresses=addresses))
        others, begun = {race, crawl.current_task()}, dict[Any, None]()
        for _ in range(moment):
            await sleep(0)
            begun |= dict.fromkeys(loop.tasks - others)  # in their order: one in a tick
        attempts = [task for task in begun if not task.done()]
        most = max(most, len(attempts))
        victims = {
            "the race": [race],
            "the first attempt": attempts[:1],
            "the last attempt": attempts[-1:],
            "all attempts": attempts}
        for task in victims[victim]:
            task.cancel()
        (outcome,) = await crawl.gather(race, return_exceptions=True)
        outcomes.add(type(outcome))
        if isinstance(outcome, crawl.Stream):
            outcome.close()
        for _ in range(3):  # in which the cancelled attempts end
            await sleep(0)
        assert len(os.listdir("/dev/fd")) == len(before), moment
    assert most == 3
    assert outcomes == {crawl.Stream, CancelledError}


async def error_of_addresses(codes: list[int], monkeypatch: Patch) -> int | None:
    """Return the errno with which connect() fails if each address fails with one of *codes*."""
    failures = iter(codes)
    monkeypatch.setattr(socket.socket, "connect_ex", lambda *_: next(failures))
    with raises(OSError) as caught:
        await crawl.connect("h", 0, addresses=[address_of(0) for _ in codes])
    return caught.value.errno


@each("code", [errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETUNREACH, errno.EHOSTUNREACH,
               errno.EACCES, errno.EINVAL])
async def test_an_address_out_of_reach_does_not_hide_the_error_of_another(
        code: int, monkeypatch: Patch) -> None:
    """As on a machine without IPv6."""
    refused = errno.ECONNREFUSED
    for codes in ([code, refused], [refused, code]):
        assert await error_of_addresses(codes, monkeypatch) == refused
    assert await error_of_addresses([code], monkeypatch) == code


async def test_of_two_addresses_out_of_reach_the_error_of_the_first_is_raised(
        monkeypatch: Patch) -> None:
    for codes in ([errno.EHOSTUNREACH, errno.ENETUNREACH], [errno.ENETUNREACH, errno.EHOSTUNREACH]):
        assert await error_of_addresses(codes, monkeypatch) == codes[0]


@real_time
async def test_a_connection_that_was_reset_at_once_is_reported_as_reset(
        server: socket.socket, monkeypatch: Patch) -> None:
    """On macOS, setsockopt fails on a connection that the server has reset."""
    errors = [OSError(errno.EINVAL, "Invalid argument")]

    def fail(*_: Any) -> None:
        raise errors.pop()

    monkeypatch.setattr(socket.socket, "setsockopt", fail)
    stream = await crawl.connect("h", 1, addresses=[address_of(server)])
    assert not errors
    theirs, _ = server.accept()
    monkeypatch.undo()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    theirs.close()
    with closing(stream), raises(ConnectionResetError):
        await stream.read()


@real_time
async def test_a_name_that_the_dns_cannot_hold_is_not_found() -> None:
    for host in ("a" * 64 + ".test", "a." * 130, "two..dots.", "nul\0", "no.such.host.invalid"):
        with raises(OSError):
            await crawl.lookup(host, 80)
        assert all(timeout.callback is None for _, _, timeout in get_running_loop()._timeouts)
    assert (await crawl.lookup("[::1]", 80))[0][4][0] == "::1"


def test_a_lookup_that_ends_after_its_loop_is_dropped(monkeypatch: Patch) -> None:
    """Its thread would otherwise print that the loop is closed."""
    go, answered = threading.Event(), threading.Event()

    def answer_late(*_: Any, **__: Any) -> list[Any]:
        go.wait()
        answered.set()
        return []

    async def main() -> None:
        create_task(crawl.lookup("localhost", 80))
        await sleep(0)

    monkeypatch.setattr(socket, "getaddrinfo", answer_late)
    crawl.run(main())
    assert not answered.is_set()
    go.set()
    assert answered.wait(5)


@real_time
async def test_tls_may_need_to_read_in_order_to_write(pair: Pair) -> None:
    ours, theirs = pair
    with closing(crawl.Stream(Renegotiating(fileno=ours.detach()))) as stream:
        stream.write(b"x")
        draining = create_task(stream.drain())
        await sleep(0.001)
        assert not draining.done()
        theirs.send(b"go on")
        await draining
        assert theirs.recv(9) == b"x"


@real_time
@each("code", [socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_NONAME])
async def test_a_lookup_that_fails_is_an_os_error_whatever_the_reason(
        code: int, monkeypatch: Patch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise socket.gaierror(code, "words")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with raises(OSError) as caught:
        await crawl.lookup("h", 80)
    assert caught.value.errno == code


@real_time
async def test_bytes_that_tls_has_decrypted_are_read_without_another_poll(tls_site: Server) -> None:
    tls_site.add("/", "hello")
    stream = await crawl.connect("localhost", tls_site.port, ssl=ssl.create_default_context())
    stream.write(b"GET / HTTP/1.1\r\n\r\n")
    data = b""
    async with crawl.timeout(9):
        while not data.endswith(b"hello"):
            data += await stream.read(3)
    stream.close()
    assert data.startswith(b"HTTP/1.1 200")


@real_time
async def test_a_name_may_end_in_a_dot_for_its_certificate(tls_site: Server) -> None:
    listening = address_of(tls_site.listener)
    tls = crawl._tls_context()
    (await crawl.connect("localhost.", 1, ssl=tls, addresses=[listening])).close()


def test_the_certificate_of_an_ipv6_address_is_compared_without_brackets(tls_site: Server) -> None:
    listening = address_of(tls_site.listener)
    with raises(ssl.SSLCertVerificationError, match="IP address mismatch.*'::1'"):
        crawl.run(crawl.connect("[::1]", 1, ssl=crawl._tls_context(), addresses=[listening]))


async def test_each_further_address_joins_after_a_quarter_of_a_second(
        full: socket.socket, server: socket.socket) -> None:
    silent = address_of(full)
    (await crawl.connect("name", 80, addresses=[silent, silent, address_of(server)])).close()
    loop: Any = get_running_loop()
    assert loop.time() == 0.5
    loop.clock.watched_sockets = False  # on purpose: a server that is silent needs no real time


@real_time
async def test_a_lookup_for_which_there_is_no_thread_is_an_os_error(monkeypatch: Patch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with raises(OSError, match="can't start new thread"):
        await crawl.lookup("localhost", 80)


# 9  URLs
# =======


BASE = crawl.parse_url("http://example.com/dir/page.html?x=1")


@each("reference, meaning", [
    ("", "http://example.com/dir/page.html?x=1"), ("#top", "http://example.com/dir/page.html?x=1"),
    ("?y", "http://example.com/dir/page.html?y"), ("?", "http://example.com/dir/page.html?"),
    ("other", "http://example.com/dir/other"), ("../up", "http://example.com/up"),
    ("../../../up", "http://example.com/up"), ("./a/./b/../c/", "http://example.com/dir/a/c/"),
    (".", "http://example.com/dir/"), ("..", "http://example.com/"),
    ("%2e%2E/x", "http://example.com/x"), ("/abs?q#f", "http://example.com/abs?q"),
    ("//host", "http://host/"), ("///host/a", "http://host/a"),
    ("http:\\\\host\\path?a\\b", "http://host/path?a\\b"),
    (" \t\n/a\tb\n ", "http://example.com/ab"), ("HTTP://EXAMPLE.com:80/", "http://example.com/"),
    ("https://h:443", "https://h/"), ("http://h:/", "http://h/"),
    ("http://h:0081/", "http://h:81/"), ("http://user:secret@h/", "http://h/"),
    ("http://a@b@h/", "http://h/"),
    ("/caf\u00e9 \"<>`{}^|", "http://example.com/caf%C3%A9%20%22%3C%3E%60%7B%7D%5E|"),
    ("?caf\u00e9 \"<>'`{}", "http://example.com/dir/page.html?caf%C3%A9%20%22%3C%3E%27`{}"),
    ("http://1.2.3.4/", "http://1.2.3.4/"), ("http://h.1.x/", "http://h.1.x/"),
    ("//a_b-c.de./", "http://a_b-c.de./"), ("http://[::1]:81/", "http://[::1]:81/"),
    ("http://[2001:DB8:0:0:8a2e:0370:7334:ff]/", "http://[2001:db8::8a2e:370:7334:ff]/"),
    ("http://[1:0:0:2:0:0:0:3]/", "http://[1:0:0:2::3]/"),
    ("http://[::ffff:102:304]/", "http://[::ffff:1.2.3.4]/"),
    ("http://b\u00fccher.example/", "http://xn--bcher-kva.example/"),
    ("http://B\u00dcCHER.example/", "http://xn--bcher-kva.example/"),
    ("http://xn--fa-hia.example/", "http://xn--fa-hia.example/"),
    ("http://fa\u00df.example/", "http://xn--fa-hia.example/"),
    ("http://FA\u1e9e.example/", "http://xn--fa-hia.example/"),
    ("http://\u03c3\u03c2.example/", "http://xn--3xab.example/"),
    ("http://b%C3%BCcher.example/", "http://xn--bcher-kva.example/"),
    ("http://ex%61mple/", "http://example/"), ("http://\uff45\uff58ample/", "http://example/"),
    ("http://a\uff0eexample/", "http://a.example/"),
    ("http://a\u3002example/", "http://a.example/"), ("http://a\u00adb/", "http://ab/"),
    ("http://a\U000e0100.com/", "http://a.com/"), ("http://a\u115f.com/", "http://a.com/"),
    ("http://\u2460\u2461\u2466.0.0.1/", "http://127.0.0.1/"),
    ("http://\u0646\u0627\u0645\u0647\u200c\u0627\u06cc/", "http://xn--mgba3gch31f060k/")])
def test_a_reference_means_the_url_that_a_browser_would_request(
        reference: str, meaning: str) -> None:
    url = crawl.parse_url(reference, BASE)
    assert str(url) == meaning
    assert crawl.parse_url(meaning) == url, "a normal form is its own normal form"


@each("reference", [
    "mailto:me@example.com", "javascript:alert(1)", "file:///etc/passwd", "ftp://h/",
    "data:,x", "http:relative", "http:/h", "http://", "http:///", "http://h:65536/",
    "http://h:x/", "http://h:-1/", "http://a b/", "http://a^b/", "http://a..b/",
    "http://%ff/", "http://a%00b/", "http://a+b/", "http://[::1/", "http://[x]/",
    "http://[\u00e9]/", "http://1.2.3.256/", "http://1.2.3.4.5/", "http://127.1/",
    "http://0x7f.0.0.1/", "http://08.0.0.1/", "http://017700000001/", "http://1.2.3.4./",
    "http://a\u200db/", "//\u2488", "http://a\u2100b.com/", "http://a\u2024b.com/",
    "http://\u0301a.com/", "http://xn--\u00fc.com/", "http://\ue000.com/",
    "http://\u0661 b/", "http://" + "\u6f22" * 64 + "/", "http://" + "a" * 64 + ".de/",
    "http://" + "\u6f22." * 100 + "de/", "http://" + "a." * 126 + "de/",
    "/" + "x" * crawl.MAX_URL])
def test_an_ambiguous_or_invalid_address_is_refused(reference: str) -> None:
    with raises(ValueError):
        print(crawl.parse_url(reference, BASE))


def test_a_host_has_at_most_253_characters_and_63_in_a_label() -> None:
    longest = ".".join(["a" * 63] * 3 + ["b" * 61])
    assert crawl.parse_url(f"http://{longest}/").host == longest
    label = "a" * 55 + "\u00fc"
    assert len(crawl.parse_url(f"http://{label}/").host) == 63
    with raises(ValueError, match="is not a host"):
        crawl.parse_url(f"http://a{label}/")


@each("reference", ["/" + "x" * 9000, "\u00e9" * 200], ids=["a long one", "on a long base"])
def test_a_reference_whose_url_would_be_too_long_is_unfetchable(reference: str) -> None:
    base = crawl.parse_url("/" + "\u00e9" * 1200 + "/", BASE)
    with raises(crawl.UnfetchableError, match="longer than 8000"):
        crawl.parse_url(reference, base)


@each("reference", [
    "mailto:me@h", "data:" + "x" * 9000, "slack://h/", "git+https://h/x", "tel:110", "sms:1",
    "skype:x", "doi:10.1000/1", "isbn:9783161484100", "com.example.app:/x", "com.example.app:x",
    "doi.org:10.1000/1", "h.com:80x", "h.com:0", "h.com:99999", "x-safari-https://a.b/",
    "touch-https://a.b/", "microsoft-edge-https://a.b/", "urn:isbn:1"])
def test_a_reference_with_another_scheme_is_unfetchable(reference: str) -> None:
    scheme = reference.partition(":")[0]
    with raises(crawl.UnfetchableError, match=re.escape(f"{scheme} URL: neither")):
        crawl.parse_url(reference, BASE)


@each("reference", [
    r"C:\Users\me\a.html", r"d:\x.png", "c:/x", "localhost:1313/docs/", "LOCALHOST:80",
    "example.com:8080/x", "example.com:8080?x", "example.com:8080#x", "a.example.com:65535",
    "https-foo://h/", "hhttps://h/", "htp://h/", "ttps://h/", "hhtp://h/", "file:///C:/a.html",
    "http://exa mple.com/", "http:x", "http://h:99999/", "//[x", "http://"])
def test_an_invalid_url_is_not_called_unfetchable(reference: str) -> None:
    with raises(ValueError) as caught:
        crawl.parse_url(reference, BASE)
    assert not isinstance(caught.value, crawl.UnfetchableError)


@each("reference", [
    "http://" + "".join(map(chr, range(0x4E00, 0x5E00))) + "/",
    "http://" + "\u00fc." * 9000, "../" * 900_000, "\t" * 3_000_000,
    "http://" + "\ufdfa" * 63, "http://" + "\ufdfa." * 120 + "x/"])
def test_a_hostile_address_takes_no_longer_than_its_size(reference: str) -> None:
    with linear_time(), suppress(ValueError):
        crawl.parse_url(reference, BASE)


def test_many_links_to_hosts_that_are_too_long_take_no_more_than_their_length() -> None:
    name = "".join(chr(0x4E00 + number) for number in range(2270))
    with linear_time():
        for number in range(100):
            with raises(ValueError):
                crawl.parse_url(f"http://{name}/{number}")


@each("url", ["http://http/", "http://https/x", "http://http:8080/x", "http://httpd//x",
              "http://h/http://x"])
def test_a_host_may_be_called_http(url: str) -> None:
    assert str(crawl.parse_url(url)) == url


# 10  HTTP messages
# =================


def parse_response(raw: bytes, method: str = "GET", pieces: int = 0) -> crawl.Response:
    """Return the parser's response to *raw* and the end, fed whole or in pieces of a size."""
    parser = crawl.ResponseParser(method)
    size = pieces or len(raw) or 1
    for start in range(0, len(raw), size):
        if parser.feed(raw[start : start + size]):
            break
    else:
        assert parser.feed(b"")
    assert parser.response is not None
    return parser.response


ANSWERS = [
    (with_body(b"hello"), b"hello", True),
    (with_body(b""), b"", True),
    (with_body(b"hello", b"Connection: Close"), b"hello", False),
    (with_body(b"hello", b"X: folded\r\n  line", b"Y:\t value \t", b"Z: a: b"), b"hello", True),
    (b"\r\n\r\n" + OK + b"Content-Length: 05\r\n\r\nhello", b"hello", True),
    (OK + b"\r\nuntil the end", b"until the end", False),
    (b"HTTP/1.0 200 OK\nContent-Length: 2\n\nok", b"ok", False),
    (b"HTTP/1.1 204 None\r\nContent-Length: 5\r\n\r\n", b"", True),
    (b"HTTP/1.1 304 Same\r\nContent-Length: 5\r\n\r\n", b"", True),
    (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", b"ok", True),
    (OK + b"Transfer-Encoding:\r\nContent-Length: 2\r\n\r\nok", b"ok", False),
    (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + with_body(b"ok"),
     b"ok", True),
    (CHUNKED + b"5\r\nhello\r\n6;ext=\"1\"\r\n world\r\n0\r\nTrailer: x\r\n\r\n",
     b"hello world", False),
    (CHUNKED + b"0\r\n\r\n", b"", True),
    (CHUNKED + b"0a\r\n0123456789\r\n10\r\n0123456789abcdef\r\n0\r\nTrailer: x\n\n",
     b"01234567890123456789abcdef", False),
    (with_body(GZIPPED, b"Content-Encoding: gzip"), b"zipped", True),
    (with_body(GZIPPED + b"\0", b"Content-Encoding: GZip"), b"zipped", True),
    *[(with_body(b"plain", b"Content-Encoding: " + coding), b"plain", True)
      for coding in (b"identity", b"none", b"utf-8")],
    (with_body(GZIPPED, b"Content-Encoding: x-gzip"), b"zipped", True),
    # Only the first member of a gzipped body is read.
    (with_body(GZIPPED + GZIPPED, b"Content-Encoding: gzip"), b"zipped", True),
    (with_body(GZIPPED + b"<!-- cached -->", b"Content-Encoding: gzip"), b"zipped", True),
    *[(with_body(zlib.compress(b"zipped", *how), b"Content-Encoding: deflate"), b"zipped", True)
      for how in ((-1, 15), (-1, 9), (-1, -15), (0, -15))],
    (with_body(b"", b"Content-Encoding: gzip"), b"", True),
    # Leniencies, after which the connection is closed.
    (with_body(b"hello", b"X Powered By: x"), b"hello", False),
    (with_body(b"hello", b"no colon"), b"hello", False),
    (with_body(b"hello", b" X: a blank before the first field"), b"hello", False),
    (with_body(b"hello", b"X-Blank : x"), b"hello", False),
    (with_body(b"hello", b"Content-Length: 5"), b"hello", False),
    (OK + b"Content-Length: 5, 5\r\n\r\nhello", b"hello", False),
    (OK + b"Content-Length : 5\r\n\r\nhello", b"hello", False),
    (with_body(b"hello", b"Location: /a", b"Location: /a"), b"hello", True),
    (CHUNKED[:-2] + b"Content-Length: 3\r\n\r\n5\r\nhello\r\n0\r\n\r\n", b"hello", False),
    (CHUNKED[:-2] + CHUNKED[17:] + b"5\r\nhello\r\n0\r\n\r\n", b"hello", False),
    (OK + b"Transfer-Encoding: chunked, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", b"hello", False),
    (b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
     b"hello", False),
    (with_body(b"hello", b"Transfer-Encoding: identity"), b"hello", False),
    (CHUNKED + b"5\r\nhello\r\n0\r\nno colon\r\n\r\n", b"hello", False),
    (b"HTTP/1.1 103 Hints\r\nno colon\r\n\r\n" + with_body(b"hello"), b"hello", False),
    (b"HTTP/1.1 103 Hints\r\nX: y\r\n\r\n" + with_body(b"hello", b"no colon"), b"hello", False),
    (b"HTTP/1.1 204 None\r\nContent-Length: 5, 5\r\n\r\n", b"", False),
    (b"HTTP/1.1 304 Same\r\nTransfer-Encoding: identity\r\n\r\n", b"", False),
    (CHUNKED[:-2] + b"Content-Length:\r\n\r\n5\r\nhello\r\n0\r\n\r\n", b"hello", False)]


@each("raw, body, reusable", ANSWERS)
def test_a_response_is_the_same_however_it_is_cut(raw: bytes, body: bytes, reusable: bool) -> None:
    for pieces in (0, 1, 2, 3, 7):
        response = parse_response(raw, pieces=pieces)
        assert (response.body, response.reusable) == (body, reusable)
    for cut in range(1, len(raw)):
        parser = crawl.ResponseParser()
        assert parser.feed(raw[:cut]) or parser.feed(raw[cut:]) or parser.feed(b"")
        assert parser.response
        assert parser.response.body == body


@each("line, parts", [
    (b"HTTP/1.1 200 OK", (1, 200, "OK")),
    (b"HTTP/1.1 200", (1, 200, "")),
    (b"HTTP/1.0 404 Not  Here", (0, 404, "Not  Here")),
    (b"HTTP/1.1  404   Not Found", (1, 404, "Not Found"))])
def test_a_status_line_gives_the_version_the_status_and_the_reason(
        line: bytes, parts: tuple[int, int, str]) -> None:
    assert parse_response(line + b"\r\nContent-Length: 0\r\n\r\n")[:3] == parts


@each("fields, headers", [
    (b"Empty:", {"empty": ""}),
    (b"Y:\t value \t", {"y": "value"}),
    (b"X-Long: folded\r\n \t line", {"x-long": "folded line"}),
    (b"set-cookie: a=b: c\r\nSET-COOKIE:d", {"set-cookie": "a=b: c\nd"}),
    (b"Content-Length : 0", {"content-length": "0"}),
    (b"no name\r\nConnection: keep-alive", {"connection": "keep-alive"}),
    (b" Location: /x\r\nY: z", {"location": "/x", "y": "z"})])
def test_the_headers_of_a_response_are_those_that_the_server_sent(
        fields: bytes, headers: crawl.Headers) -> None:
    assert parse_response(OK + fields + b"\r\n\r\n").headers == headers


DELIMITED = [(raw, body) for raw, body, _ in ANSWERS if b"until the end" not in raw]


@each("raw, body", DELIMITED)
def test_bytes_after_a_response_end_the_connection(raw: bytes, body: bytes) -> None:
    response = parse_response(raw + b"HTTP/1.1 200 OK\r\n")
    assert response.body == body
    assert not response.reusable


@each("raw", [raw for raw, _ in DELIMITED])
def test_a_truncated_response_is_never_taken_for_a_complete_one(raw: bytes) -> None:
    for end in range(len(raw)):
        with raises(crawl.TruncatedError):
            parse_response(raw[:end])


@each("raw, complaint", [
    (b"SSH-2.0-OpenSSH\r\n\r\n", "status line"), (b"HTTP/2 200\r\n\r\n", "status line"),
    (b"HTTP/1.1 099 Low\r\n\r\n", "status line"),
    (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n", "switched protocols"),
    (OK + b"X: a\rb\r\n\r\n", "header field"), (OK + b"X: a\0b\r\n\r\n", "header field"),
    (OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "Content-Length"),
    (OK + b"Content-Length: 5, 6\r\n\r\nhello", "Content-Length"),
    (OK + b"Content-Length: +5\r\n\r\nhello", "Content-Length"),
    (OK + b"Content-Length: 0000000000000000005\r\n\r\nhello", "Content-Length"),
    (OK + b"Content-Length: 5_0\r\n\r\nhello", "Content-Length"),
    (OK + b"Content-Length: 5\x0c\r\n\r\nhello", "Content-Length"),
    (OK + b"Content-Length:\r\n\r\nhello", "Content-Length"),
    (OK + b"Transfer-Encoding: gzip\r\n\r\n", "in doubt"),
    (OK + b"Transfer-Encoding: chunked, gzip\r\n\r\n", "in doubt"),
    (CHUNKED[:-2] + b"Transfer-Encoding: gzip\r\n\r\n0\r\n\r\n", "in doubt"),
    (CHUNKED + b"xyz\r\n", "chunk size in hexadecimal was expected, not b'xyz"),
    (CHUNKED + b"5\nhello\r\n0\r\n\r\n", "chunk size"),
    (CHUNKED + b"5\r\nhelloXX0\r\n\r\n", "end of a chunk"),
    *[
        (with_body(b"x", b"Content-Encoding: " + coding), "was not requested")
        for coding in (b"br", b"zstd", b"compress", b"gzip, gzip", b"identity, gzip", b"gzip, br")],
    (with_body(b"raw deflate", b"Content-Encoding: deflate"), "corrupt"),
    (with_body(GZIPPED, b"Content-Encoding: deflate"), "corrupt"),
    (with_body(zlib.compress(b"hello"), b"Content-Encoding: gzip"), "corrupt"),
    (OK + b"Content-Encoding: gzip\r\n\r\n" + GZIPPED[:-1], "ends too early"),
    (with_body(b"\x1f\x8bxxxx", b"Content-Encoding: gzip"), "corrupt"),
    (with_body(GZIPPED[:-8] + bytes(8), b"Content-Encoding: gzip"), "corrupt"),  # its CRC
    (with_body(GZIPPED[:-8] + bytes(4), b"Content-Encoding: gzip"), "corrupt"),
    (with_body(zlib.compress(b"x")[:-1] + b"x", b"Content-Encoding: deflate"), "corrupt")])
def test_a_response_that_is_not_http_is_refused_with_the_bytes_that_were_seen(
        raw: bytes, complaint: str) -> None:
    for pieces in range(8):
        with raises(crawl.ProtocolError, match=re.escape(complaint)):
            parse_response(raw, pieces=pieces)


@each("raw, complaint", [
    (OK + b"X: " + b"x" * crawl.MAX_HEAD + b"\r\n\r\n", "the head exceeds 65536 bytes"),
    (OK + b"x" * crawl.MAX_HEAD, "the head exceeds"),
    (OK + b"X: y\r\n" * 20000 + b"\r\n", "the head exceeds"),
    (CHUNKED + b"1;" + b"x" * 65536 + b"\r\ny\r\n", "chunk's first line exceeds"),
    (CHUNKED + b"0\r\n" + b"X: y\r\n" * 20000, "trailer section exceeds"),
    (CHUNKED + (b"ffff\r\n" + b"x" * 65535 + b"\r\n") * 200, "the body exceeds"),
    (CHUNKED + b"FFFFFFFFFFFFFFFF\r\n", "the body exceeds"),
    (OK + b"Content-Length: 999999999999\r\n\r\n", "the body exceeds"),
    (OK + b"\r\n" + b"x" * (crawl.MAX_BODY + 1), "the body exceeds"),
    (with_body(gzip.compress(bytes(crawl.MAX_BODY + 1)), b"Content-Encoding: gzip"),
     "the decoded body exceeds")])
def test_nothing_in_a_response_grows_without_a_bound(raw: bytes, complaint: str) -> None:
    with raises(crawl.LimitError, match=complaint):
        crawl.ResponseParser().feed(raw)  # before the connection ends


@each("line", [
    b"A:" + b" " * 60000 + b"\0", b"A: x" + b" " * 60000 + b"y\r\n z",
    b"A:" + b"\t " * 30000 + b"\r", b"\r\n".join([b"a:"] * 16_000),
    b"Content-Length: " + b"0," * 32_000 + b"0"])
def test_a_hostile_head_takes_no_longer_than_its_size(line: bytes) -> None:
    with linear_time(), suppress(crawl.ProtocolError):
        parse_response(OK + b"Content-Length: 0\r\n" + line + b"\r\n\r\n")


def test_a_head_that_comes_byte_by_byte_takes_no_longer_than_its_size() -> None:
    head = OK + b"A:\r\n" * 16_000
    with linear_time():
        for _ in range(4):
            parser = crawl.ResponseParser()
            for byte in head:
                assert not parser.feed(bytes([byte]))
            assert parser.feed(b"Content-Length: 0\r\n\r\n")


def test_ten_thousand_small_chunks_are_within_the_bounds() -> None:
    assert parse_response(CHUNKED + b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n").body == b"x" * 10_000
    with_extensions = (b"a;" + b"x" * 42 + b"\r\n0123456789\r\n") * 6000
    assert len(parse_response(CHUNKED + with_extensions + b"0\r\n\r\n").body) == 60_000


def test_max_body_counts_the_bytes_of_a_chunked_body_and_not_its_framing() -> None:
    body = b"1;a=b\r\nx\r\n" * 900 + b"0\r\n\r\n"
    assert crawl.ResponseParser(max_body=900).feed(CHUNKED + body)
    with raises(crawl.LimitError, match="the body exceeds 899 bytes"):
        crawl.ResponseParser(max_body=899).feed(CHUNKED + body)


def test_the_answer_to_head_has_no_body() -> None:
    assert parse_response(OK + b"Content-Length: 5\r\n\r\n", "HEAD").body == b""
    assert parse_response(OK + b"Content-Encoding: br\r\n\r\n", "HEAD").body == b""


def test_an_unwanted_body_is_read_and_dropped_if_it_is_small() -> None:
    parser = crawl.ResponseParser(wanted=lambda response: response.status != 200)
    assert parser.feed(OK + b"Content-Length: %d\r\n\r\n" % (crawl.MAX_DROPPED + 1))
    assert parser.response
    assert not parser.response.reusable
    parser = crawl.ResponseParser(wanted=lambda response: False)
    assert not parser.feed(OK + b"Content-Length: %d\r\n\r\n" % crawl.MAX_DROPPED)
    assert parser.feed(bytes(crawl.MAX_DROPPED))
    assert parser.response
    assert parser.response.body == b""
    assert parser.response.reusable


@each("coding, body", [
    (b"gzip", GZIPPED),
    (b"deflate", zlib.compress(b"zipped")),
    (b"deflate", zlib.compress(b"zipped", wbits=-15))])
def test_a_compressed_body_without_its_end_is_an_error_wherever_it_ends(
        coding: bytes, body: bytes) -> None:
    for end in range(1, len(body)):
        with raises(crawl.TruncatedError, match="the compressed body ends too early"):
            parse_response(with_body(body[:end], b"Content-Encoding: " + coding))


# 11  HTTP client
# ===============


def fetch_all(url: str, count: int = 1, **options: Any) -> list[crawl.Response]:
    """Fetch a URL several times with one client, and return the responses."""
    async def main() -> list[crawl.Response]:
        with closing(crawl.Client(**options)) as client:
            return [await client.fetch(crawl.parse_url(url)) for _ in range(count)]

    return crawl.run(main())


def test_a_connection_is_used_again(site: Server) -> None:
    site.add("/page", "hello")
    responses = fetch_all(site.url + "/page", 3)
    assert [response.body for response in responses] == [b"hello"] * 3
    assert site.connections == 1


def test_a_body_of_0_bytes_may_be_the_most_that_is_wanted(site: Server) -> None:
    site.add("/", "hello")
    site.add("/empty", "")
    assert crawl.run(crawl.fetch(f"{site.url}/empty", max_body=0)).body == b""
    with raises(crawl.LimitError):
        crawl.run(crawl.fetch(f"{site.url}/", max_body=0))


@real_time
async def test_a_request_that_fails_keeps_no_bytes(
        site: Server, monkeypatch: Patch, no_garbage_collector: None) -> None:
    parsers = list[weakref.ref[crawl.ResponseParser]]()

    class Parser(crawl.ResponseParser):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            parsers.append(weakref.ref(self))

    monkeypatch.setattr(crawl, "ResponseParser", Parser)
    site.answers["/half"] = lambda connection, _: connection.sendall(with_body(b"half")[:-2])
    assert await end_of(crawl.fetch(f"{site.url}/half", timeout=0.05)) == "TimeoutError"
    assert [parser() for parser in parsers] == [None]


def test_a_request_has_its_target_host_and_user_agent(site: Server) -> None:
    site.add("/page?q=1", "hello")
    fetch_all(site.url + "/page?q=1", headers={"X-Mine": "yes"})
    lines = site.heads[0].split("\r\n")
    assert lines[0] == "GET /page?q=1 HTTP/1.1"
    assert {
        f"Host: localhost:{site.port}", f"User-Agent: crawl.py/{crawl.VERSION}",
        "Accept-Encoding: gzip", "X-Mine: yes"} <= set(lines)


@each("name, value", [("Bad Name", "x"), ("X", "a\r\nInjected: yes"), ("X", "\x07")])
def test_an_invalid_header_field_is_refused(name: str, value: str) -> None:
    with raises(ValueError, match="header"):
        crawl.Client({name: value})


def test_a_reused_connection_that_died_is_replaced_silently(site: Server) -> None:
    def answer_once(connection: socket.socket, request: str) -> None:
        connection.sendall(with_body(b"hello"))
        site.answers["/page"] = die

    def die(connection: socket.socket, request: str) -> None:
        site.answers["/page"] = with_body(b"again")
        connection.close()

    site.answers["/page"] = answer_once
    responses = fetch_all(site.url + "/page", 2)
    assert [response.body for response in responses] == [b"hello", b"again"]
    assert site.connections == 2


def test_a_fresh_connection_that_dies_is_an_error(site: Server) -> None:
    site.answers["/page"] = lambda connection, _: connection.close()
    with raises(crawl.TruncatedError):
        fetch_all(site.url + "/page")
    assert site.requests == ["/page"]


@real_time
async def test_a_request_that_fails_on_a_kept_connection_is_sent_on_a_new_one(site: Server) -> None:
    site.add("/page", "hello")
    url = crawl.parse_url(site.url + "/page")
    with closing(crawl.Client()) as client:
        await crawl.gather(*[client.fetch(url) for _ in range(3)])
        assert site.connections == 3
        site.answers["/page"] = lambda connection, _: connection.close()
        with raises(crawl.TruncatedError):
            await client.fetch(url)
        assert (len(client.pool), site.connections, len(site.requests)) == (2, 4, 5)


@real_time
async def test_an_idle_connection_that_the_server_has_closed_is_closed_here(site: Server) -> None:
    site.add("/")
    with closing(crawl.Client()) as client:
        await client.fetch(site.url)
        (stream,) = client.pool
        stream.sock.shutdown(socket.SHUT_RD)  # as if the server had closed its side
        await client.fetch(site.url)
        assert stream.sock.fileno() < 0


@real_time
async def test_the_least_recently_used_idle_connections_are_closed() -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(closing(Server())) for _ in range(5)]
        client = stack.enter_context(closing(crawl.Client()))
        client.max_idle = 3
        for server in servers:
            await client.fetch(crawl.parse_url(server.url))
        assert list(client.pool.values()) == [server.url for server in servers[2:]]


@real_time
@each("failure, timeout", [(ConnectionRefusedError, 9), (TimeoutError, 0.1)])
async def test_a_name_is_looked_up_again_after_connecting_to_it_has_failed(
        failure: type[OSError], timeout: float, closed: int, full: socket.socket, site: Server,
        monkeypatch: Patch) -> None:
    site.add("/", "hello")
    first = address_of(closed if failure is ConnectionRefusedError else full)
    lookups = [first, address_of(site.port)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [lookups.pop(0)])
    with closing(crawl.Client(timeout=timeout)) as client:
        with raises(failure):
            await client.fetch("http://moved.test/")
        client.timeout = 9
        assert (await client.fetch("http://moved.test/")).body == b"hello"


@real_time
@each("body, late", [(b"good", b""), (b"x" * (crawl.READ_SIZE - 200), b""), (b"good", b"\n")])
@each("tls", [False, True])
async def test_bytes_after_a_response_are_not_the_next_response(
        body: bytes, late: bytes, tls: bool, site: Server, tls_site: Server) -> None:
    server, answered = tls_site if tls else site, threading.Event()

    def answer(connection: socket.socket, request: str) -> None:
        connection.sendall(with_body(body))
        connection.sendall(late or with_body(b"evil"))
        answered.set()

    server.answers["/page"] = answer
    with closing(crawl.Client()) as client:
        for _ in range(2):
            assert (await client.fetch(crawl.parse_url(server.url + "/page"))).body == body
            answered.wait()  # blocks the loop: no poll comes between the two
    assert server.connections == 2


@real_time
async def test_a_name_is_looked_up_once(site: Server, monkeypatch: Patch) -> None:
    lookups, original = list[Any](), socket.getaddrinfo

    def counting(*arguments: Any, **options: Any) -> Any:
        lookups.append(arguments[0])
        return original(*arguments, **options)

    site.add("/page", "hello")
    monkeypatch.setattr(socket, "getaddrinfo", counting)
    with closing(crawl.Client()) as client:
        for _ in range(2):  # the second time, five requests need new connections
            requests = [client.fetch(f"{site.url}/page") for _ in range(5 if lookups else 1)]
            await crawl.gather(*requests)
            client.close()
    assert lookups == [b"localhost"]


@real_time
async def test_a_lookup_that_fails_after_its_request_was_cancelled_is_not_reported(
        monkeypatch: Patch, capsys: pytest.CaptureFixture[str]) -> None:
    go, errors = threading.Event(), [socket.gaierror(socket.EAI_AGAIN, "later")]

    def fail_late(*_: Any, **__: Any) -> list[Any]:
        go.wait()
        raise errors.pop()

    monkeypatch.setattr(socket, "getaddrinfo", fail_late)
    with raises(TimeoutError):
        await crawl.fetch("http://h/", timeout=0.001)
    go.set()
    while threading.active_count() > 1:
        await sleep(0.001)
    await sleep(0)  # the thread may have ended in this tick
    gc.collect()
    assert not errors
    assert capsys.readouterr().err == ""


def test_a_post_has_a_body_and_a_connection_of_its_own(site: Server) -> None:
    async def post() -> None:
        with closing(crawl.Client()) as client:
            for body in (b"a=b\r\n\r\n", b""):
                await client.fetch(f"{site.url}/")
                await client.fetch(f"{site.url}/", "POST", body=body)

    site.add("/")
    crawl.run(post())
    assert site.connections == 3, "one is kept for GET"
    full, empty = [head for head in site.heads if head.startswith("POST / ")]
    assert full.endswith("Content-Length: 7\r\n\r\na=b\r\n\r\n")
    assert empty.endswith("Content-Length: 0\r\n\r\n")


def test_fetch_sends_a_body_with_any_method(site: Server) -> None:
    site.add("/")
    assert crawl.run(crawl.fetch(f"{site.url}/", method="PUT", body=b"x\r\n\r\n")).status == 200
    crawl.run(crawl.fetch(f"{site.url}/", body=b"GET /x HTTP/1.1\r\n\r\n"))
    put, get = site.heads
    assert put.startswith("PUT / ")
    assert put.endswith("Content-Length: 5\r\n\r\nx\r\n\r\n")
    assert get.startswith("GET / ")
    assert "Content-Length: 19\r\n" in get


def test_fetch_follows_no_redirect(site: Server) -> None:
    site.add_redirect("/old", "/new")
    assert crawl.run(crawl.fetch(site.url + "/old")).headers["location"] == "/new"


def test_https_is_http_over_tls(tls_site: Server) -> None:
    tls_site.add("/page", "hello " * 20_000)
    responses = fetch_all(tls_site.url + "/page", 2)
    assert [len(response.body) for response in responses] == [120_000] * 2
    assert tls_site.connections == 1


def test_tls_names_the_host_and_offers_no_dhe(server: socket.socket) -> None:
    """The server would choose how long its arithmetic takes."""

    def hello() -> bytes:
        connection, _ = server.accept()
        with connection:
            return connection.recv(10_000)[43:]  # behind heads, version and random

    async def main() -> bytes:
        said = crawl.to_thread(hello)
        with raises(OSError):
            await crawl.fetch(f"https://localhost:{server.getsockname()[1]}/")
        return await said

    said = crawl.run(main())
    start = 3 + said[0]  # behind the session
    end = start + int.from_bytes(said[start - 2 : start], "big")
    suites = {said[at : at + 2].hex() for at in range(start, end, 2)}
    assert b"localhost" in said
    assert "c02f" in suites
    assert not suites & {"0033", "0039", "0067", "006b", "009e", "009f", "ccaa"}


def test_certificates_are_judged_alike_by_every_python() -> None:
    flags = crawl._tls_context().verify_flags
    assert not flags & ssl.VERIFY_X509_STRICT
    assert flags & ssl.VERIFY_X509_PARTIAL_CHAIN


def end_without_close_notify(connection: socket.socket) -> None:
    """End the TCP connection of a TLS stream, but not the stream itself."""
    connection.shutdown(socket.SHUT_RDWR)


def test_without_a_length_the_end_of_a_tls_stream_is_that_of_the_body(tls_site: Server) -> None:
    tls_site.answers["/x"] = answer_and(OK + b"\r\nthe body", end_without_close_notify)
    assert [response.body for response in fetch_all(tls_site.url + "/x")] == [b"the body"]


@each("sent", [
    pytest.param(OK + b"Content-Ty", id="in the head"),
    pytest.param(OK + b"Content-Length: 9\r\n\r\n12345678", id="in a body with a length"),
    pytest.param(CHUNKED + b"9\r\n12345678", id="in a chunk"),
    pytest.param(CHUNKED + b"8\r\n12345678\r\n", id="before the last chunk")])
def test_a_tls_stream_that_ends_before_its_framing_is_an_error(
        sent: bytes, tls_site: Server) -> None:
    tls_site.answers["/x"] = answer_and(sent, end_without_close_notify)
    with raises(crawl.TruncatedError, match="closed before the response ended"):
        fetch_all(tls_site.url + "/x")


def test_bytes_that_are_not_tls_are_an_error_of_tls(tls_site: Server) -> None:
    def break_out(connection: socket.socket, request: str) -> None:
        connection.sendall(OK + b"\r\nhalf of the body")
        os.write(connection.fileno(), b"the rest in plain text")

    tls_site.answers["/plain"] = break_out
    with raises(ssl.SSLError):
        fetch_all(tls_site.url + "/plain")


@each("method", ["", "GE T", "GET / HTTP/1.1\r\nX: y\r\n\r\n"])
def test_a_method_that_is_not_a_word_is_refused(method: str) -> None:
    with raises(ValueError, match="is not a method"):
        crawl.run(crawl.fetch("http://localhost:1/", method=method))


@each("name", ["Host", "content-length", "Transfer-Encoding"])
def test_a_header_that_says_where_a_message_ends_cannot_be_set(name: str) -> None:
    with raises(ValueError, match="that begins with '[A-Z].*' cannot be set"):
        crawl.Client({name: "5"})


@each("name", ["user-agent", "USER-AGENT", "User-agent"])
def test_a_header_replaces_the_usual_one_in_whatever_case_it_is_written(
        name: str, site: Server) -> None:
    site.add("/")
    crawl.run(crawl.fetch(f"{site.url}/", {name: "me"}))
    fields = [line.partition(": ") for line in site.heads[0].split("\r\n")]
    assert [value for key, _, value in fields if key.lower() == "user-agent"] == ["me"]


def test_a_request_that_is_sent_once_more_has_what_is_left_of_its_timeout(
        site: Server, monkeypatch: Patch) -> None:
    def keep_open(connection: socket.socket, request: str) -> None:
        site.answers["/page"] = close
        connection.sendall(with_body(b""))

    def close(connection: socket.socket, request: str) -> None:
        site.answers["/page"] = wait
        now.append(20)
        connection.close()

    def wait(connection: socket.socket, request: str) -> None:
        now.append(31)
        if not select.select([connection], [], [], 5)[0]:  # the client has not left
            connection.sendall(with_body(b""))

    now = [0]
    monkeypatch.setattr(crawl.EventLoop, "time", lambda loop: now[-1])
    monkeypatch.setattr(crawl, "MAX_WAIT", 0.01)
    site.answers["/page"] = keep_open
    with raises(TimeoutError):
        fetch_all(site.url + "/page", 2, timeout=30)
    assert site.requests == ["/page"] * 3


def test_fetch_takes_the_options_of_the_client() -> None:
    of_client = dict(inspect.signature(crawl.Client).parameters)
    of_fetch = dict(inspect.signature(crawl.fetch).parameters)
    for name in ("url", "method", "body"):
        del of_fetch[name]
    assert list(of_fetch.values()) == list(of_client.values())


@real_time
async def test_a_tls_client_says_that_it_speaks_http_1_1(tls_site: Server) -> None:
    assert tls_site.tls is not None
    tls_site.tls.set_alpn_protocols(["http/1.1"])
    stream = await crawl.connect("localhost", tls_site.port, ssl=crawl._tls_context())
    assert cast(ssl.SSLSocket, stream.sock).selected_alpn_protocol() == "http/1.1"
    stream.close()


# 12  Documents
# =============


@each("stylesheet, references", [
    ("p { background: url(a.png), url( 'b c.png' ) URL(\"d.png\") }",
     ["a.png", "b c.png", "d.png"]),
    ("@import 'a.css'; @IMPORT \"b.css\" screen; @import url(c.css);", ["a.css", "b.css", "c.css"]),
    ("@namespace url(http://no); @namespace svg 'no'; p { src: url(a) }", ["a"]),
    ("/* url(no) */ p { src: url(a) } /* url(no)", ["a"]),
    # References with escapes are left out.
    ("p { src: url(a\\)b.woff) url(\\66oo) url('\\000041 b') url(\"c\\\nd\"), url(e) }", ["e"]),
    ("p { src: url(data:font/woff2;base64,AA==) }", ["data:font/woff2;base64,AA=="]),
    ("p { src: url() url('') url(#x) url( '#x' ) url(a) } <b>no css</b>", ["a"]),
    # Only a function whose whole name is url refers to something.
    ("p { src: no-url(b) curl(c) asset-url('x.png') _url(d) \u00e9url(e) u\\url(f) }", []),
    (".curl(x) { src: url(a) } #url(b) @url(c) 1url(d) URL( e )", ["a", "e"]),
    # An invalid URL refers to nothing.
    ("p { src: url(img/my photo.png) url(a'b.png) url(x(1).png) url(a) }", ["a"]),
    ("p { src: url(it's.png), url(a%20(1).jpg), url(a \\) b), url(c\"d), url(e) }", ["e"]),
    # A stylesheet may end anywhere.
    ("p { src: url(b c", []), ("p { src: url(a", ["a"]), ("p { src: url(", []), ("'", []), ("", []),
    ("p { src: url('a\"') url(\"b'\") url(a\u3000b.png) url(\xa0c) }",
     ['a"', "b'", "a\u3000b.png", "\xa0c"]),
    ("@namespace s \"http://w;x\"; p { src: url(a) }", ["a"]),
    ("p { src: url('b\n); x: url(a) } q { y: 'url(c)\n } r { src: url(d) }", ["a", "d"]),
    ("@import/**/\"x.css\"; @import /* ; */ 'y.css'; @import/**/url(z.css); @imports 'no'",
     ["x.css", "y.css", "z.css"]),
    ('p { src: url("i/*/a.png") } q { src: url(b/*.png) url(c) }', ["i/*/a.png", "b/*.png", "c"]),
    ("""p { content: "url(no) /*"; src: url(a) } q { content: 'it\\'s url(no)' }""", ["a"]),
    ("p { src: url('a\n) } q { src: url(b) url('c", ["b", "c"]),
    # A line may end in CR LF, in CR or in a form feed.
    ("p { content: 'a\\\r\nb'; src: url(c) }", ["c"]),
    ("p { src: url('d\re) } q { src: url('f\fg) } r { src: url(h) }", ["h"])])
def test_a_stylesheet_uses_the_urls_in_url_and_import(
        stylesheet: str, references: list[str]) -> None:
    assert crawl.read_stylesheet(stylesheet) == crawl.Markup(assets=tuple(references))


def test_a_sitemap_lists_urls() -> None:
    assert crawl.read_sitemap(
        "<urlset><url><loc> http://h/?a&amp;b\n</loc><lastmod>2026</lastmod></url>"
        "<url><sm:loc><![CDATA[http://h/c]]></sm:loc></url><location>x</location>"
        "<image:image><image:loc>http://h/i</image:loc></image:image></urlset>"
    ).links == ("http://h/?a&b", "http://h/c")
    assert crawl.read_sitemap("<loc>http://[::1]/?a[]=b</loc>").links == ("http://[::1]/?a[]=b",)
    assert crawl.read_sitemap("<rss><link>http://h/</link></rss>") == crawl.Markup()
    assert crawl.read_sitemap("<!-- <url><loc>http://h/old</loc></url> -->") == crawl.Markup()
    assert crawl.read_sitemap(
        "<url><loc>http://h/</loc><xhtml:link rel='alternate' hreflang='de' href='http://h/de'/>"
    ).links == ("http://h/", "http://h/de")
    assert crawl.read_sitemap('<x:link href="http://h/it\'s"/>').links == ("http://h/it's",)
    assert crawl.read_sitemap(f"<loc>http://h/&#{'9' * 5000};</loc>").links == (
        f"http://h/&#{'9' * 5000};",)


@each("piece", [
    "url(", '"', "'x", "/*", "/**/", "@import ", "url(\\", "url(a ", '"\\\n', "'\\",
    "url('\\", "url('x\n", '\\"', 'url(\\"', "<loc>&#9", "<loc>", "<loc", " id=", ' id="',
    "id='x' "])
def test_hostile_stylesheets_take_linear_time(piece: str) -> None:
    with linear_time():
        crawl.read_stylesheet(piece * (1_000_000 // len(piece)))
        crawl.read_sitemap(piece * (800_000 // len(piece)))


def test_a_sitemap_may_list_more_urls_than_a_page() -> None:
    assert (crawl.MAX_REFERENCES, crawl.MAX_LISTED) == (100_000, 1_000_000)
    assert len(crawl.read_sitemap("<loc>/x" * 100_001).links) == 100_001
    with raises(crawl.LimitError, match="^more than 100000 tags or references"):
        crawl.read_markup("<a href=/x>" * 100_001)


# 13  Links
# =========


def link_urls(markup: str, page: str = "http://t.test/d/p.html") -> list[str]:
    """Return the URLs that a page's links lead to."""
    found, base = crawl.read_markup(markup), crawl.parse_url(page)
    assert not found.nofollow
    with suppress(ValueError):
        base = crawl.parse_url(found.base or "", base)
    return list(dict.fromkeys(str(crawl.parse_url(reference, base)) for reference in found.links))


@each("markup", [
    '<a href="/x">', "<a href='/x'>", "<a href=/x>", "<A HREF=/x>", "<a\nhref\t=\n/x>",
    '<a/href="/x">', "<a title='>' href=/x id=z>", '<a data-href="/y" href="/x">',
    "<a href=/x href=/y>", "<area href=/x>", "<img alt=\"<a href='/y'>\"><a href=/x>",
    "<!-- > <a href=/y> --><a href=/x>", "<!--><a href=/x>", "<!---><a href=/x>",
    "<!-- --!><a href=/x>", "<a href=/x><!-- <a href=/y>",
    "<a href=/x><!--!><a href=/y>-->", "<a href=/x><!---!><a href=/y>-->",
    "<!--><a href=/x>-->", "<!---><a href=/x>-->", "<!----!><a href=/x>-->",
    "</ <a href=/y>><a href=/x>", "<//<a href=/y>><a href=/x>",
    "<script><!-- <a href=/y></script><a href=/x>", "<style><a href=/y></style><a href=/x>",
    "<textarea><a href=/y></textarea><a href=/x>", "<TITLE><a href=/y></title ><a href=/x>",
    "<template><a href=/y></template><a href=/x>", "<iframe src=/x><a href=/y></iframe>",
    "<noembed><a href=/y></noembed><noframes><a href=/y></noframes>"
    "<xmp><a href=/y></xmp><a href=/x>",
    "<!doctype x><?php <a href=/y>?><a href=/x>", "<a href=/x><a href='/y",
    "<abbr href=/y><a href=/x>", "</p><a href=/x>",
    "<frameset><FRAME name='y' SRC = '/x'></frameset>", "<base target=x><a href=/x>",
    "<a href><a href=/x>", "<![CDATA[<a href=/y>]]><a href=/x>",
    "<base href=//t.test/><a href=x>", "<base href='http://[x'><a href=/x>",
    "<base href=//t.test/><base href=/y/><a href=x>",
    '<a href="/x"><a href="/x#a"><a href="/x#b">',
    '<a href="/x#it\'s" title="<a href=/y>">', "<a href=/x title='<!-- '><a href=x",
    "<img <!-- x><a href=/x>", "<a href=/x><frame src=/y", "<a href=../x><base href=/y/z/",
    "<a =href=/y><a href=/x>", "<a/=/href=/x>", '<a class="z" hrefs="/y"><a href="/x">',
    '<a hre="/y" href="/x">', '<f="/y"><a href="/x">',
    '<a href="/x" title="<a href=/y>"><a href="/y'])
def test_the_links_of_a_page_are_those_that_a_browser_finds(markup: str) -> None:
    assert link_urls(markup) == ["http://t.test/x"]


@each("markup, links", [
    ("<p title='<a href=/no>'><a href=/x>", ["/x"]), ('<p data-tpl="<a href=/no>">', []),
    ('<b title="<!--">b</b><a href=/x>', ["/x"]), ('<b title="a > <script>"><a href=/x>', ["/x"]),
    ("<b title=it's><a href=/x>", ["/x"]), ("<b title='a>b' id=\"<\" lang=<a><a href=/x>", ["/x"]),
    ("<svg><title/></svg><a href=/x>", ["/x"]), ("<svg><style/></svg><a href=/x>", ["/x"]),
    ("<SVG><g><script href='a.js' /></g></SVG><a href=/x>", ["/x"]),
    ("<math><title /></math><a href=/x>", ["/x"]),
    ("<svg><title>a</title></svg><a href=/x>", ["/x"]),
    ("<svg><use href='/b#c'/><title/><a href=/y></svg><title/><a href=/in>", ["/y"]),
    ("<svg><a href=/x><title/></svg><math><title/><a href=/y>", ["/x", "/y"]),
    ("<title/><a href=/in>", []), ("<script src=/js/ /><a href=/in></script>", []),
    ("<svg></svg><title/><a href=/in>", []), ("<iframe poster=/b></iframe><frame srcset='/c'>", []),
    ("<a href=\"'q'\"><a href='\"r\"'>", ["'q'", '"r"'])])
def test_values_hold_no_markup_and_tags_after_them_are_found(markup: str, links: list[str]) -> None:
    assert crawl.read_markup(markup).links == tuple(links)


def test_in_xhtml_any_element_may_close_itself() -> None:
    text = "<title/><script src='/a.js' /><a href='/x'></a>"
    markup = crawl.read_markup(text, crawl._XML_TAGS)
    assert markup == crawl.Markup(("/x",), ("/a.js",))
    read: Any = crawl.reader_of(BASE, "application/xhtml+xml; charset=utf-8")
    assert read(text) == markup


@each("text, links", [
    ("<p><![CDATA[ <a href='/no'/> > ]]><a href='/x'/></p>", ("/x",)),
    ("<![CDATA[<a href='/no'/>]] >]]]><a href='/x'/>", ("/x",)),
    ("<a href='/x'/><![CDATA[ <a href='/no'/>", ("/x",)),
    ("<!-- <![CDATA[ --><a href='/x'/>", ("/x",))])
def test_a_cdata_section_of_xml_is_text(text: str, links: tuple[str, ...]) -> None:
    assert crawl.read_markup(text, crawl._XML_TAGS).links == links
    assert crawl.read_markup(f"<svg>{text}</svg>").links == links


def test_tags_that_are_merely_skipped_do_not_count(monkeypatch: Patch) -> None:
    monkeypatch.setattr(crawl, "MAX_REFERENCES", 3)
    assert len(crawl.read_markup('<b title="<">' * 9 + "<a href=/x>" * 3).links) == 3
    with raises(crawl.LimitError):
        crawl.read_markup("<a href=/x>" * 4)


def test_the_first_hundred_images_of_a_long_tag_are_found() -> None:
    data = "data:image/png;base64," + "A" * 100_000
    srcset = ", ".join([f"{data} 1w", *(f"/{number}.png {number}w" for number in range(2, 2000))])
    assets = crawl.read_markup(f'<img src="{data}" srcset="{srcset}">').assets
    assert assets[2:] == tuple(f"/{number}.png" for number in range(2, 101))


def test_the_first_thousand_attributes_of_a_tag_count() -> None:
    for others, assets in ((999, ("/x",)), (1000, ())):
        assert crawl.read_markup(f"<img {'a ' * others} src=/x>").assets == assets


@each("value, meaning", [
    ("/?a=1&amp;b=2", "/?a=1&b=2"), ("/?a=1&copy=3", "/?a=1&copy=3"), ("/&copy;", "/%C2%A9"),
    ("/a&#47;&#x2f;", "/a//"), ("/&amp", "/&"), ("/&ampb", "/&ampb"), ("/?&amp=b", "/?&amp=b"),
    ("/a&#47b&#x2Fg&#38", "/a/b/g&"), ("/?a&para_x", "/?a%C2%B6_x"), ("/a&amp;&amp;b", "/a&&b"),
    ("/&nosuch;", "/&nosuch;"), ("/&notit;", "/&notit;"), ("/x&#35;y", "/x"),
    ("/x&#47;#y", "/x/"), ("/x #y", "/x%20"), ("/&#9999999999;", "/%EF%BF%BD"), ("/it's", "/it's")])
def test_entities_are_decoded_as_in_an_attribute(value: str, meaning: str) -> None:
    assert link_urls(f'<a href="{value}">') == ["http://t.test" + meaning]


def test_a_value_that_is_as_long_as_a_url_is_decoded_to_its_end() -> None:
    for entity in ("&amp;", "&#38;", "&#x26;"):
        (link,) = crawl.read_markup(f"<a href='{entity * crawl.MAX_URL}'>").links
        assert link == "&" * crawl.MAX_URL
        (link,) = crawl.read_markup(f"<a href='{entity * 1_000_000}'>").links
        assert crawl.MAX_URL <= len(link) <= crawl.MAX_VALUE


@each("markup, assets", [
    ("<img src=/x>", ["/x"]), ("<img src=a src=b>", ["a"]), ("<img alt='>' src=a>", ["a"]),
    ("<img src='a&amp;b'>", ["a&b"]), ("<img>", []), ("<img src>", []), ("<imgs src=a>", []),
    ("<IMG SRC='/x' alt=y srcset='a.png 1x, b.png 2x,c.png'>", ["/x", "a.png", "b.png", "c.png"]),
    ("<img srcset='a,b 1x,c'>", ["a,b", "c"]), ("<img srcset='a (x, b, c'>", ["a"]),
    ("<img srcset=' , a 100w , b, c 2x'>", ["a", "b", "c"]),
    ("<img srcset='a (x, y) 2x, b'>", ["a", "b"]), ("<image src=a srcset='b 1x'>", ["a", "b"]),
    ("<picture><source srcset='a 1x'><img src=b></picture>", ["a", "b"]),
    ("<!-- <img src=a> --><p img src=b>", []), ("<template><img src=a></template>", []),
    ("<script>'<img src=/y>' + url(/z)</script>", []),
    ("<script src=/x>'<img src=/y>'</script>", ["/x"]),
    ("<style>p { background: url(/x) }</style>", ["/x"]),
    ("<video src=a poster=b><source src=c><track src=d></video>", ["a", "b", "c", "d"]),
    ("<audio src=a>", ["a"]), ("<embed src=a>", ["a"]), ("<object data=a>", ["a"]),
    ("<object data=a><a data=b><p data=c>", ["a"]), ("<input type=image src=a><input>", ["a"]),
    ("<iframe poster=a></iframe><audio srcset=b><track poster=c>", []), ("<base srcset=/x>", []),
    ("<iframe src=''><link rel=icon href=''><video src='' poster=''><embed src=''>", []),
    ("<object data=''><script src=''></script><img srcset='' src='  '>", ["  "]),
    ("<svg><image href=a><use href='/i.svg#home'/><use href='#own'/></svg>", ["a", "/i.svg#home"]),
    ("<svg><image xlink:href=a /><use xlink:href=b /></svg>", ["a", "b"]),
    ("<meta property=og:image content=/x>", ["/x"]), ("<link rel=search href=/x>", []),
    ("<link rel=stylesheet href=/x>", ["/x"]), ("<link rel='icon' href=/x sizes=any>", ["/x"]),
    ("<link rel='alternate stylesheet' hreflang=de href=/x>", ["/x"]),
    ("<link rel=alternate type=application/rss+xml href=/x>", ["/x"]),
    ("<link rel='apple-touch-icon' href=/x>", ["/x"]), ("<link rel=manifest href=/x>", ["/x"]),
    ("<link rel=modulepreload href=/x>", ["/x"]), ("<link rel=preload as=font href=/x>", ["/x"]),
    ("<link rel=wlwmanifest href=/x><link rel=kinetic-stylesheet href=/x>", []),
    ("<link rel='preview nextid' href=/x>", []), ("<link rel=pingback href=/x><link href=/x>", []),
    ("<link rel=preconnect href=//h>", []), ("<link rel='x DNS-Prefetch' href=//h>", [])])
def test_the_assets_of_a_page_are_those_that_its_elements_name(
        markup: str, assets: list[str]) -> None:
    found = crawl.read_markup(markup)
    assert found.assets == tuple(assets)
    assert found.links == ()


@each("markup", [
    "<link rel=next href=/x>", "<link rel=prev href=/x>", "<link rel=previous href=/x>",
    "<LINK REL=Canonical HREF=/x>", "<link rel=alternate hreflang=de href=/x>"])
def test_some_link_elements_lead_to_pages(markup: str) -> None:
    assert link_urls(markup) == ["http://t.test/x"]


@each("markup, target", [
    ("<meta http-equiv=refresh content='0; url=/x'>", "/x"),
    ('<META HTTP-EQUIV="Refresh" CONTENT="5;URL=\'/x\'">', "/x"),
    ("<meta http-equiv=refresh content='0,&quot;/x&quot;'>", "/x"),
    ('<meta http-equiv=refresh content="0;url=/it\'s">', "/it's"),
    ("<meta http-equiv=refresh content='9; url='>", None),
    ("<meta http-equiv=refresh content='5 ; '>", None),
    ("<meta http-equiv=refresh content='0; url=/a\nb'>", "/a\nb"),
    ("<meta http-equiv=refresh content='0; url=/a b '>", "/a b "),
    ("<meta http-equiv=refresh content='.5;url=/x'>", "/x"),
    ("<meta http-equiv=refresh content=5>", None), ("<meta name=refresh content='0;url=/x'>", None),
    ("<!-- <meta http-equiv=refresh content='0;url=/x'> -->", None)])
def test_a_refresh_leads_where_its_url_says(markup: str, target: str | None) -> None:
    assert crawl.read_markup(markup).links == ((target,) if target else ())


@each("markup, closed", [
    ("<meta name=robots content=nofollow", False), ("<base name=robots content=nofollow>", False),
    ("<meta name=googlebot content=nofollow>", False),
    ("<meta name='r&#111;bots' content=nofollow>", True),
    ("<meta name=robots content=noindex>", False), ('<meta name="ROBOTS" content="none">', True),
    ("<meta name=robots content='noindex, NOFOLLOW'>", True),
    ("<meta name=robots content='index, max-image-preview:none'>", False),
    ("<meta name=robots content='max-video-preview: none, nofollow'>", True),
    ("<meta name=keywords content='robots nofollo'>", False),
    ("<meta charset=utf-8 data-x><meta name=robots content=nofollow content=all>", True)])
def test_a_robots_meta_tag_may_close_the_links_of_its_page(markup: str, closed: bool) -> None:
    assert crawl.read_markup(markup) == crawl.Markup(nofollow=closed)


HOSTILE = [  # of these pages are made that a careless expression would need hours for
    "<svg><title/>", "<svg><title/></svg>", '<b a="<">', "<svg><use ", "<p id=x>", "0", " ",
    "<a ", "<a href", '<a href="', "<", "<!--", "--!", "<script>", "<script><!--<script>", "<b",
    "<abc", "<x:", "<img<", "<script<", "<scripts<", "<title<", '<style>\\"', "<style>'\\",
    "<a b=c ", "<img x='", "<a href=' ", "</script ", "<title>", "&amp", "<svg ", "<p =",
    "<x y='", '<a href="#', '<p class="', "<img srcset='a ,", "<script src=x", "<link rel=",
    "<p ", '<a ="x=">', "<base x", "<iframe ", "<meta a=", '<div class="x" =', '<a b="c" ',
    '<a b="c', '<a href="x">']


@each("piece", HOSTILE)
def test_a_hostile_page_takes_no_longer_than_its_size(piece: str) -> None:
    with linear_time():
        hostile = "<base><frame><meta name=robots refresh>" + piece * (1_000_000 // len(piece))
        for text in (
                hostile, hostile + ">",
                f"<meta http-equiv=refresh content='0{piece.replace(chr(39), '') * 50_000}'>"):
            with suppress(crawl.LimitError):
                crawl.read_markup(text)
        crawl.decode_page(b"", "charset=" + piece * 20_000)


@each("body, content_type, text, charset", [
    ("\u00e9".encode(), "text/html", "\u00e9", "utf-8"),
    ("\u00e9".encode("latin-1"), "text/html; charset=ISO-8859-1", "\u00e9", "iso-8859-1"),
    ("\u00e9".encode("utf-16be"), "text/html; charset=UTF-16BE", "\u00e9", "utf-16be"),
    (b"\x84\x31\xa4\x37", "text/html; charset=gb2312", "\ufffd", "gb2312"),
    (b"\x81\xe9", "text/html; charset=cp1252", "\ufffd\u00e9", "cp1252"),
    # A byte order mark comes first.
    (b"\xef\xbb\xbf\xc3\xa9", "text/html; charset=latin-1", "\ufeff\u00e9", "utf-8"),
    ("\u00e9".encode("utf-16"), "", "\u00e9", "utf-16"),
    (b"\xfe\xff\x00\xe9", "", "\u00e9", "utf-16"),
    # Without a known label, the bytes decide.
    (b"\xff", "", "\u00ff", "windows-1252"),
    (b"\x80\xe9", "text/html", "\u20ac\u00e9", "windows-1252"),
    (b"\xe9", "text/html; charset=" + "latin-1" * 6, "\u00e9", "windows-1252"),
    (b"\xc3\xa9", "text/html; charset=nonsense", "\u00e9", "utf-8"),
    (b"\xc3\xa9", "text/html; charset=cp99999", "\u00e9", "utf-8"),
    *[
        (b"\\x41+ADw-", f"text/html; charset={name}", "\\x41+ADw-", "utf-8")
        for name in (
            "unicode_escape", "undefined", "idna", "punycode", "utf-7", "utf_7", "u7",
            "utf-32", "rot13")]])
def test_a_page_is_decoded_with_its_charset(body: bytes, content_type: str, text: str,
                                            charset: str) -> None:
    assert crawl.decode_page(body, content_type) == (text, charset)


@each("start, end, content_type, meaning, charset", [
    ('<meta charset="latin-1">', b"\xe9", "", "\u00e9", "latin-1"),
    ("<!-- a -->\n" * 60 + "<p>", b"", "", "", "utf-8"),
    ("<!--><meta charset=cp1251>", b"\xef", "", "\u043f", "cp1251"),
    (f"{0:4050}<meta charset=cp1251>", b"\xef", "", "\u043f", "cp1251"),
    (" " * 4096 + '<meta charset="latin-1">', b"", "", "", "utf-8"),
    ("<meta http-equiv=Content-Type content='text/html; charset=cp866'>",
     b"\x80", "", "\u0410", "cp866"),
    ('<?xml version="1.0" encoding="iso-8859-2"?>', b"\xb1", "", "\u0105", "iso-8859-2"),
    ('@charset "koi8-r"; ', b"\xc1", "text/css", "\u0430", "koi8-r"),
    (' @charset "koi8-r"; ', b"\xc3\xa9", "text/css", "\u00e9", "utf-8"),
    ('@charset "koi8-r"; ', b"\xc3\xa9", "text/css; charset=utf-8", "\u00e9", "utf-8"),
    ('<meta charset="cp\x1b1251">', b"\xe9", "", "\u00e9", "windows-1252"),
    ('<meta charset="cp1251', b'\xe9">', "", '\u00e9">', "windows-1252"),
    ('<meta charset="a\0b">', b"\xe9", "", "\u00e9", "windows-1252"),
    ("<meta charset=nonsense>", b"\xe9", "", "\u00e9", "windows-1252"),
    # An unknown label gives way to the next source.
    ("<meta charset=cp1251>", b"\xef", "text/html; charset=foo", "\u043f", "cp1251"),
    ("<?xml version='1.0' encoding='cp1251'?>",
     b"\xef", "text/html; charset=utf8mb4", "\u043f", "cp1251"),
    # What can be read as ASCII is not UTF-16.
    ("<meta charset=utf-16>", b"\xc3\xa9", "text/html; charset=no", "\u00e9", "utf-8"),
    ("<meta charset=UTF-16>", b"", "", "", "utf-8"), ("<meta charset=utf16>", b"", "", "", "utf-8"),
    ("<meta charset=unicode>", b"\xc3\xa9", "", "\u00e9", "utf-8"),
    ("<?xml version='1.0' encoding='utf-16'?>", b"\xc3\xa9", "", "\u00e9", "utf-8")])
def test_a_page_may_name_its_charset_itself(start: str, end: bytes, content_type: str, meaning: str,
                                            charset: str) -> None:
    body = start.encode() + end
    assert crawl.decode_page(body, content_type) == (start + meaning, charset)


@each("text, encoding, labels", [
    ("\u20ac", "cp1252", "latin1 l1 iso8859-1 iso88591 iso-8859-1 us-ascii ascii windows-1252"),
    ("\u20ac\u011f", "cp1254", "latin5 iso-8859-9 iso88599 windows-1254"),
    ("\u05d0", "iso8859-8", "iso-8859-8-i iso-8859-8-e logical visual"),
    ("\uac02", "cp949", "euc-kr korean ks_c_5601-1987 ksc5601 windows-949"),
    ("\u6771", "gb18030", "chinese gb2312 gbk x-gbk gb18030"),
    ("\u6771", "big5", "big5 big5-hkscs csbig5"), ("\u6771", "euc-jp", "euc-jp x-euc-jp"),
    ("\u2460", "cp932", "csshiftjis ms932 ms_kanji shift-jis shift_jis sjis windows-31j x-sjis"),
    ("\u0e01\u20ac", "cp874", "iso-8859-11 iso885911 tis-620 windows-874"),
    ("\u20ac", "iso8859-15", "iso-8859-15 iso885915 l9"),
    ("\u03b1", "iso8859-7", "csisolatingreek ecma-118 greek greek8 iso-ir-126"),
    ("\u0451", "koi8-r", "cskoi8r koi8-r koi8_r"),
    ("\u0416", "cp1251", "windows-1251 cp1251 x-cp1251"), ("\xe9", "utf-16le", "utf-16 utf-16le")])
def test_a_charset_may_have_any_label_that_sites_send(
        text: str, encoding: str, labels: str) -> None:
    for label in labels.split():
        body = text.encode(encoding)
        assert crawl.decode_page(body, f"text/html; charset={label}") == (text, label)


def test_the_svg_elements_of_a_page_have_one_limit_of_references_together() -> None:
    page = ("<svg>" + "<use href=/a />" * 8 + "</svg>") * 15_000
    with raises(crawl.LimitError, match="^more than 100000 tags or references"):
        crawl.read_markup(page)


@each("name", crawl._RAW_NAMES.split("|"))
def test_there_are_no_tags_inside_raw_elements(name: str) -> None:
    assert crawl.read_markup(f"<{name}><a href=/no></{name}><a href=/yes>").links == ("/yes",)


# 14  Records
# ===========


def test_responses_and_records_can_be_pickled() -> None:
    response = crawl.Response(1, 200, "OK", {"set-cookie": "a=b\nc=d"}, b"body")
    record = crawl.Record("http://h/", 200, links=("http://h/a",))
    for value in (response, record):
        assert pickle.loads(pickle.dumps(value)) == value


@each("content_type", ["text/html", ""])
@each("start", ["", "\ufeff<?xml version='1.0'?>\n", "<!-- a > b -->\n<!DOCTYPE x>"])
def test_a_sitemap_that_is_not_labelled_as_one_is_read(content_type: str, start: str) -> None:
    body = f"{start}<sm:urlset><sm:url><sm:loc>/x</sm:loc></sm:url></sm:urlset>".encode()
    response = crawl.Response(1, 200, "OK", {"content-type": content_type}, body)
    assert crawl.result_of(BASE, response).record.links == ("/x",)


# 15  Scope
# =========


@each("url, options, reason", [
    ("http://example.com/x", {}, ""), ("http://www.example.com/x", {}, ""),
    ("https://example.com/x", {}, ""), ("http://example.com:8080/x", {}, "on another host"),
    ("http://sub.example.com/x", {}, "on another host"),
    ("http://a.sub.example.com/x", {"subdomains": True}, ""),
    ("http://notexample.com/x", {"subdomains": True}, "on another host"),
    ("http://sub.example.com:8080/x", {"subdomains": True}, "on another host"),
    ("http://exam.plecom/x", {"subdomains": True}, "on another host"),
    ("http://example.com./x", {}, "on another host"),
    ("http://example.com/blog/x", {"include": "/blog/"}, ""),
    ("http://example.com/x", {"include": "/blog/"}, "not included"),
    ("http://example.com/blog/x.pdf", {"include": "/blog/", "exclude": "pdf$"}, "excluded"),
    ("http://example.com/x", {"include": "/blog/|x"}, ""),
    ("http://example.com/x", {"exclude": "pdf$|x$"}, "excluded"),
    ("http://example.com" + "/a/b" * 5, {}, ""),
    ("http://example.com/x", {"depth": 0}, "too many links from the start")])
def test_the_scope_is_the_roots_host_widened_and_narrowed(
        url: str, options: dict[str, Any], reason: str) -> None:
    roots = [crawl.parse_url("http://www.example.com/")]
    scope = crawl.Scope(roots, crawl.Options(**options))
    assert scope.objection(crawl.parse_url(url), 1, check=False) == reason


def test_www_counts_as_part_of_the_name_before_a_top_level_domain() -> None:
    scope = crawl.Scope([crawl.parse_url("http://www.com/")], crawl.Options(subdomains=True))
    assert not scope.covers(crawl.parse_url("http://other.com/"))


@each("root, url, trusted", [
    ("https://h", "https://h/x", True), ("https://h", "http://h/x", False),
    ("http://h", "http://h/", True), ("http://h", "https://h/", True),
    ("https://h.de", "https://www.h.de/", True), ("https://www.h.de", "https://h.de/", True),
    ("https://h", "https://a.h/", False), ("https://h", "https://h:8443/", False),
    ("http://h:8080", "http://h:8080/", True), ("https://h", "https://other/", False)])
def test_headers_go_to_named_hosts_and_over_http_only_if_a_start_url_is_http(
        root: str, url: str, trusted: bool) -> None:
    scope = crawl.Scope([crawl.parse_url(root)], crawl.Options(subdomains=True))
    assert scope.trusts(crawl.parse_url(url)) == trusted


@each("text, url", [
    ("xkcd.com", "https://xkcd.com/"), ("10.0.0.1", "https://10.0.0.1/"),
    ("localhost.example.com", "https://localhost.example.com/"), ("h/@x", "https://h/@x"),
    ("127.example.com", "https://127.example.com/"), ("notlocalhost", "https://notlocalhost/"),
    ("localhost", "http://localhost/"), ("LOCALHOST:80/a", "http://localhost/a"),
    ("localhost?x", "http://localhost/?x"), ("localhost#x", "http://localhost/"),
    ("blog.localhost:8080", "http://blog.localhost:8080/"), ("[::1]:80", "http://[::1]/"),
    ("127.0.0.1:8000", "http://127.0.0.1:8000/"), ("127.9.9.9/x", "http://127.9.9.9/x"),
    ("http://localhost:9", "http://localhost:9/"), ("https://localhost", "https://localhost/")])
def test_a_root_without_a_scheme_is_https_or_on_this_machine_http(text: str, url: str) -> None:
    assert str(crawl._parse_root(text)) == url


def test_each_option_that_is_a_number_has_a_least_value() -> None:
    kinds = crawl.Options.__annotations__
    numbers = {name for name, kind in kinds.items()
               if getattr(kind, "__forward_arg__") in ("int", "float")}
    assert set(crawl._LEAST) == numbers


# 16  Robots
# ==========


@each("text, target, rule", [
    ("", "/x", None), ("Disallow: /", "/x", None), ("User-agent: *\nSitemap: /s", "/s", None),
    ("User-agent: *\nDisallow: /", "/x", "Disallow: /"), ("User-agent: *\nDisallow:", "/x", None),
    ("User-agent: *\nDisallow: /", "/robots.txt", None),
    ("User-agent: other\nDisallow: /", "/x", None), ("User-agent: 7\nDisallow: /", "/x", None),
    ("User-agent: CRAWL/2.0\nDisallow: /\n\nUser-agent: *\nAllow: /", "/x", "Disallow: /"),
    ("User-agent: *\nAllow: /%7E\nDisallow: /%7Eab", "/%7eabc", "Disallow: /~ab"),
    ("User-agent: crawl\nAllow: /\nUser-agent: *\nDisallow: /", "/x", None),
    ("User-agent: a\nUser-agent: crawl\nDisallow: /1\n"
     "User-agent: b\nDisallow: /2\nUser-agent: crawl\nDisallow: /3", "/3", "Disallow: /3"),
    ("User-agent: *\nDisallow: /a\nAllow: /a/b", "/a/b/c", None),
    ("User-agent: *\nAllow: /a/b\nDisallow: /a", "/a/c", "Disallow: /a"),
    ("User-agent: *\nDisallow: /a\nAllow: /a", "/a", None),
    ("User-agent: *\nDisallow: /*.pdf$", "/x/y.pdf", "Disallow: /*.pdf$"),
    ("User-agent: *\nDisallow: /*.pdf$", "/x/y.pdf?z", None),
    ("User-agent: *\nDisallow: /a*b*c", "/axxbxxcxx", "Disallow: /a*b*c"),
    ("User-agent: *\nDisallow: /fish$", "/fish", "Disallow: /fish$"),
    ("User-agent: *\nDisallow: /\u00e9", "/%c3%a9", "Disallow: /%C3%A9"),
    ("User-agent: *\nDisallow: /bar/%62%61%7A", "/bar/baz", "Disallow: /bar/baz"),
    ("User-agent: *\nDisallow: /private/", "/%70rivate/", "Disallow: /private/"),
    ("User-agent: *\nDisallow: /~joe", "/%7ejoe/x", "Disallow: /~joe"),
    ("User-agent: *\nDisallow: /a***b", "/axb", "Disallow: /a*b"),
    ("User-agent: *\nDisallow: /a%2fb", "/a/b", None),
    ("User-agent: *\nDisallow: /bar\nAllow: /bar/%62%61%7a", "/bar/%62%61%7A", None),
    ("\ufeffUser-agent: *  # all\r\nDisallow: /x # this\r\nnonsense\r\n", "/x", "Disallow: /x"),
    ("user-agent *\ndisallow /x", "/x", "Disallow: /x"),
    ("User-agent: *\nDisallow: */a", "/a", "Disallow: */a"),
    ("User-agent: *\nDisallow: /*ab*ab", "/xab", None),
    ("User-agent: crawl\nSitemap: /s\nUser-agent: b\nDisallow: /x", "/x", "Disallow: /x")])
def test_the_longest_matching_rule_of_our_groups_decides(
        text: str, target: str, rule: str | None) -> None:
    assert crawl.Robots(text).rule(target) == rule


def test_a_hostile_robots_file_takes_no_longer_than_its_size() -> None:
    with linear_time():
        crawl.Robots("user-agent: *\n" * 15_000 + "allow: /\n" * 15_000)
        agents = "".join(f"user-agent: a{number}\n" for number in range(15_000))
        crawl.Robots(agents + "allow: /\n" * 15_000)
        hostile = crawl.Robots("User-agent: *\nDisallow: /" + "*a" * 5000 + "b")
        assert hostile.rule("/" + "a" * 8000) is None
        stars = crawl.Robots("User-agent: *\nDisallow: /" + "*" * 500_000 + "b")
        assert not any(stars.rule("/" + "a" * 8000) for _ in range(1000))


@each("pattern, target", [
    ("/path/foo-%24", "/path/foo-$"), ("/a-%2A.html", "/a-*.html"), ("/a$b", "/a$b"),
    ("/<a>", "/%3Ca%3E"), ("/{x}/", "/%7Bx%7D/1"), ('/*"', "/a%22b"), ("/s?q='", "/s?q=%27a")])
def test_a_pattern_and_a_path_may_be_spelled_differently(pattern: str, target: str) -> None:
    assert crawl.Robots(f"User-agent: *\nDisallow: {pattern}").rule(target)


def test_a_crawl_delay_is_read_and_does_not_end_the_names_of_a_group() -> None:
    assert crawl.Robots("User-agent: *\nCrawl-delay: 2.5\nCrawl-delay: x").delay == 2.5
    assert crawl.Robots("User-agent: *\nCrawl-delay: .5\nCrawl-delay:\nCrawl-delay: .").delay == 0.5
    assert crawl.Robots("User-agent: *\nCrawl-delay: 1000000.1234567").delay == 1000000.1234567
    robots = crawl.Robots("User-agent: crawl\nCrawl-delay: 5\nUser-agent: b\nDisallow: /x")
    assert robots.rule("/x")
    assert robots.delay == 5


@each("agent, product", [
    ("crawl.py/1.0", "crawl"), ("MyBot/2.0 (+http://me.test)", "MyBot"),
    ("my-bot_x 3", "my-bot_x"), ("7", "")])
def test_the_first_letters_of_the_user_agent_are_our_name(agent: str, product: str) -> None:
    assert crawl.product_of(agent) == product
    robots = crawl.Robots(f"User-agent: {product or '*'}\nDisallow: /", product)
    assert robots.rule("/x") == "Disallow: /"


@each("other", ["", "User-agent: *\nDisallow: /\n"])
def test_an_empty_disallow_in_our_own_group_forbids_nothing(other: str) -> None:
    assert crawl.Robots(f"{other}User-agent: crawl\nDisallow:").rule("/x") is None
    assert crawl.Robots(f"User-agent: crawl\nDisallow: # nothing\n{other}").rule("/x") is None


def test_a_crawl_delay_applies_to_the_names_above_it_and_to_no_others() -> None:
    text = "User-agent: *\nCrawl-delay: 5\nUser-agent: crawl\nDisallow: /x"
    ours = crawl.Robots(text)
    assert (ours.delay, ours.rule("/x")) == (0, "Disallow: /x")
    theirs = crawl.Robots(text, "other")
    assert (theirs.delay, theirs.rule("/x")) == (5, "Disallow: /x")


def test_a_name_of_ones_own_is_not_bound_by_the_rules_for_crawl() -> None:
    text = "User-agent: crawl\nDisallow: /a\n\nUser-agent: *\nDisallow: /b"
    robots = crawl.Robots(text, "MyBot")
    assert [robots.rule(path) for path in ("/a", "/b")] == [None, "Disallow: /b"]


def test_a_robots_file_that_is_too_long_ends_with_its_last_whole_rule() -> None:
    path = "/" + "a" * 130
    rule = f"Disallow: {path}b\n"  # each beginning of this rule would forbid the path
    for shift in (0, 40, 80, 120):
        text = "#" * shift + "\nUser-agent: *\n" + rule * (crawl.MAX_ROBOTS // len(rule) + 1)
        assert crawl.Robots(text).rule(path) is None
    text = "User-agent: *\rDisallow: /x\r" + "#" * crawl.MAX_ROBOTS
    assert crawl.Robots(text).rule("/x") == "Disallow: /x"


# 17  Sites
# =========


async def test_a_site_that_begins_to_rest_is_not_taken_by_a_worker_that_was_woken() -> None:
    queue = crawl.PoliteQueue()
    site = crawl.Site(crawl.parse_url("http://h/"), crawl.Robots(""), delay=0)
    first, second = crawl.Node("http://h/1"), crawl.Node("http://h/2")
    first.site = second.site = site
    queue.put_nowait(first)
    assert await queue.get() is first
    worker = create_task(queue.get())
    await sleep(0)
    queue.put_nowait(second)  # which wakes the worker
    site.adapt(True, 60.0)
    queue.end_turn(site)
    with raises(crawl.QueueEmpty):
        queue.get_nowait()
    assert await worker is second
    assert get_running_loop().time() >= 60


class Busy(SimulatedClient):
    """Counts the requests that are under way, and remembers when each request to a host began."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.under_way = 0
        self.most_under_way = 0
        self.most_tasks = 0
        self.began: list[tuple[float, str, str]] = []  # the time, the method and the URL

    async def fetch(self, url: crawl.URL, method: str = "GET", *args: Any, **options: Any) -> Any:
        self.began.append((get_running_loop().time(), method, path_of(str(url))))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        self.most_tasks = max(self.most_tasks, len(get_running_loop().tasks))
        try:
            return await super().fetch(url, method, *args, **options)
        finally:
            self.under_way -= 1


@each("site, options, urls", [
    pytest.param(
        {"/": "".join(f"<a href=//{host}/{page}>" for host in range(500) for page in range(20))},
        {"external": True, "max_tries": 1}, 1 + 500 * 20, id="for their turn"),
    pytest.param(
        {"/": "".join(f"<a href=//{host}.h/{page}>" for host in range(200) for page in range(9))}
        | {f"http://{host}.h/robots.txt": [503, 404] for host in range(200)},
        {"subdomains": True}, 1 + 200 * 9, id="for robots.txt"),
    pytest.param(
        site_of_pages(5_000)
        | {f"/{page}": [(503, {"retry-after": "300"}, ""), ""] for page in range(1, 5_000)},
        {}, 5_000, id="for a retry")])
def test_urls_that_wait_cost_no_tasks(site: Site, options: dict[str, Any], urls: int) -> None:
    client = Busy(site)
    crawler = crawl_site(client, max_tasks=10, **options)
    assert len(crawler.outcomes) == urls
    assert client.most_tasks <= 10 + 3, "the workers, the rounds, crawl() and the test itself"
    retried = [answer for answer in site.values() if isinstance(answer, list)]
    assert len(client.requests) - len({url for _, url in client.requests}) == len(retried)


# 18  Frontier
# ============


class ReferringFrontier(crawl.Frontier):
    """A Frontier with the References that are admitted to it."""

    references: crawl.References


def frontier_and_root(**options: Any) -> tuple[ReferringFrontier, crawl.Node, list[crawl.Record]]:
    """Return a Frontier whose root was requested, the root's Node, and the records to come."""
    emitted: list[crawl.Record] = []
    url = crawl.parse_url("http://h/")
    given = crawl.Options(no_robots=True, **options)
    frontier = ReferringFrontier(crawl.Scope([url], given), given)
    fragments = crawl.Fragments(frontier)
    frontier.references = crawl.References(frontier, fragments, given, emitted.append)
    frontier.begin(0)
    root = frontier.admit(url, None, 0)
    assert frontier.queue.get_nowait() is root
    frontier.begin(1)
    return frontier, root, emitted


@each("url, ways, rounds", [
    ("http://other/", ["link", "image", "link"], [crawl.NEVER, crawl.CHECKS, crawl.CHECKS]),
    ("http://h/b", ["image", "link", "image"], [crawl.CHECKS, 1, 1]),
    ("http://h/a.pdf", ["link", "image"], [crawl.NEVER, crawl.NEVER])])
async def test_another_way_to_a_url_can_only_move_it_to_an_earlier_round(
        url: str, ways: list[str], rounds: list[int]) -> None:
    frontier, root, _ = frontier_and_root(exclude="pdf$")
    for way, number in zip(ways, rounds):
        node = frontier.admit(crawl.parse_url(url), root, 1, check=way == "image")
        assert (node.round, bool(node.reason)) == (number, number == crawl.NEVER)


async def test_many_redirects_to_one_url_are_followed_in_linear_time() -> None:
    """As on a site where each page leads to the login."""
    frontier, root, _ = frontier_and_root()
    login = "http://h/login"
    nodes = [frontier.admit(crawl.parse_url(f"http://h/{number}"), root, 1)
             for number in range(40_000)]
    record = crawl.Record("", 302, next_url=login)
    with linear_time():
        for node in nodes:
            frontier.follow(node, record)
    assert frontier.seen_urls[login].is_linked
    assert {node.next_node for node in nodes} == {frontier.seen_urls[login]}


# 19  References
# ==============


async def admit_references(frontier: ReferringFrontier, page: crawl.Node,
                           links: Sequence[str], assets: Sequence[str] = (),
                           base: str = "") -> crawl.Record:
    """Admit the references of a page; return its record."""
    record = crawl.Record(page.text, links=tuple(links), assets=tuple(assets))
    return await frontier.references.admit(page, record, crawl.parse_url(base, page.url))


async def test_mutated_references_mean_the_urls_that_parse_url_returns(rng: Random) -> None:
    pieces = [
        "a", "b.c", "..", "../", "/", "?", "q=1", "~", "http://h", "_", ".", "a/", "@", "#",
        "%41", ":", " ", "&", ";,!", "//h", "%2E", "%e2", "http:", "\\", "./", "\t", "://"]
    frontier, page, _ = frontier_and_root()
    for _ in range(ROUNDS):
        reference = re.sub("[ \t]+#", "#", "".join(rng.choices(pieces, k=rng.randrange(5))))
        base = rng.choice(("http://h/", "http://h/a", "http://h/a/b/c?x"))
        (found,) = (await admit_references(frontier, page, [reference], (), base)).links
        try:
            assert found == str(crawl.parse_url(reference, crawl.parse_url(base))), (
                reference, base)
        except ValueError:
            (again,) = (await admit_references(frontier, page, [found], (), base)).links
            for words in (found, again):  # as they were written, or with the scheme that they mean
                with raises(ValueError):
                    crawl.parse_url(words, crawl.parse_url(base))


async def test_a_reference_is_not_taken_for_another_like_its_url() -> None:
    frontier, page, _ = frontier_and_root()
    for reference, meaning in (
            ("//h//x", "http://h//x"), (" http://h//x", "http://h//x"), ("a//b", "http://h/a//b"),
            ("http://a b#x", "http://a b"), ("/x/../y", "http://h/y"), ("http://h ", "http://h/")):
        for _ in range(2):
            assert (await admit_references(frontier, page, [reference])).links == (meaning,)


@each("links", [
    ["http://h/x" + " " * 9000 + "y", "/x"],
    ["/x", "http://h/x" + " " * 9000 + "y"]])
def test_a_link_is_not_taken_for_one_that_is_too_long_and_begins_like_it(links: list[str]) -> None:
    markup = "".join(f"<a href='{link}'>" for link in links)
    assert crawl_site({"/": markup}).outcomes["/x"] == "404 broken"


def test_a_link_that_is_too_long_only_on_another_page_is_followed() -> None:
    folder = "/" + "d" * (crawl.MAX_URL - 20) + "/"
    reference = "<a href='a/" + "b" * 20 + ":c'>"
    crawler = crawl_site(
        {"/": f"<a href='{folder}'><a href=/q>", folder: reference, "/q": reference}, max_tasks=1)
    assert crawler.outcomes["/a/" + "b" * 20 + ":c"] == "404 broken"


def test_long_invalid_references_are_the_same_in_a_resumed_crawl(tmp_path: Path) -> None:
    long = "x" * 300
    site = {"/": "<a href=/p>", "/p": f"<a href='http://[{long}'><img src='data:,{long}'>"}
    first, again = (crawl_with_journal(tmp_path / "journal", site).outcomes for _ in range(2))
    assert first == again
    assert "broken" in first.values()


async def test_a_relative_reference_that_is_too_long_does_not_hide_another() -> None:
    frontier, root, _ = frontier_and_root()
    await admit_references(frontier, root, ["?page=2"], (), "http://h/" + "x" * 7990)
    assert (await admit_references(frontier, root, ["?page=2"])).links == ("http://h/?page=2",)
    assert frontier.seen_urls["http://h/?page=2"].reason == ""


@each("reference", [
    "x", "./x", "../d/x", "/d/x", "//h/d/x", "http://h/d/x", "?q", "#id", "mailto:me"])
def test_a_reference_to_a_seen_url_is_not_parsed_again(reference: str, monkeypatch: Patch) -> None:
    bases = list[str]()
    parse_url = crawl.parse_url

    def note_base(reference: str, base: crawl.URL | None = None) -> crawl.URL:
        bases.append(f"{base}")
        return parse_url(reference, base)

    monkeypatch.setattr(crawl, "parse_url", note_base)
    seen = ("http://h/d/1", "http://h/d/x", "http://h/d/1?q", "mailto:me")
    links = "".join(map("<a href={}>".format, seen))
    crawl_site({"/": links, "/d/1": f"<a href={reference}>", "/d/1?q": "", "/d/x": ""})
    assert "http://h/" in bases
    assert "http://h/d/1" not in bases


@each("links", [[f"//{number}.de/" for number in range(1600)],
                [f"//{number}.de/" if number % 8 else "/#" for number in range(1600)]],
      ids=["all of them new", "some of them known"])
async def test_other_tasks_run_while_links_are_parsed(links: list[str]) -> None:
    frontier, root, _ = frontier_and_root()
    record = crawl.Record(root.text, links=tuple(links))
    admitting = frontier.references.admit(root, record, root.url).__await__()
    assert len(list(admitting)) == len(set(links)) // crawl.SLICE


async def test_a_long_reference_costs_no_more_than_its_length() -> None:
    frontier, root, _ = frontier_and_root()
    with linear_time():
        await admit_references(frontier, root, ["../" * 3_000_000 + "x" * crawl.MAX_URL])
    reasons = [node.reason for node in frontier.seen_urls.values() if node.reason]
    assert reasons == [f"longer than {crawl.MAX_URL} characters"]


def test_an_asset_that_is_spelled_alike_in_two_folders_is_two_urls() -> None:
    picture = "<img src=x/y:z>"  # with a colon, but without a scheme
    crawler = crawl_site({"/": "<a href=/d/><a href=/e/>", "/d/": picture, "/e/": picture})
    assert crawler.client.checked == ["/d/x/y:z", "/e/x/y:z"]


async def test_an_invalid_reference_is_emitted_once_or_has_a_reason() -> None:
    frontier, page, emitted = frontier_and_root()
    long = "/" + "x" * 9000
    for links in (
            ["http://exa mple/", "mailto:x", "FTP://h", "tel:1", long, " http://\u0661 b/#x"],
            ["http://exa mple/#b", "//h:99999/", "//h:99999/#b", long[:8001]]):
        await admit_references(frontier, page, links, ["http://exa mple/"])
    assert [(record.url, record.kind, record.depth, record.parent) for record in emitted] == [
        (words, "broken", 1, "http://h/")
        for words in ("http://exa mple/", "http://%D9%A1 b/", "//h:99999/")]
    assert emitted[0].error == "not a URL: 'exa mple' is not a host"
    assert {
        url: node.reason for url, node in frontier.seen_urls.items() if node.reason} == {
        "mailto:x": "mailto URL: neither http nor https",
        "FTP://h": "ftp URL: neither http nor https",
        "tel:1": "tel URL: neither http nor https",
        long[:8001]: "longer than 8000 characters"}
    assert set(frontier.seen_urls[emitted[0].url].linked_from) == {"http://h/"}


# 20  Fragments
# =============


def hashes_of_anchors(markup: str) -> set[int]:
    """Return the hashes of the anchors of a page, without those that every page may have."""
    found = crawl.anchors_of(markup)
    assert found is not None
    return set(found) - {hash("top")}


@each("markup, anchors", [
    ("<h1 id=a><p class=x ID = 'b c'><a name=\"d&amp;e\">", {"a", "b c", "d&e"}),
    ("<a data-id=no xml:id=no title='no id'><meta name=no><input name=no><img name=no>", set()),
    ("<p title='a>b' id=c><span class=\"x\" id=\"d\"><h2 id=\"'end'-0\">", {"c", "d", "'end'-0"}),
    ('<p id="a<b"><p id=\'c > d\'><p class="x"id="e">', {"a<b", "c > d", "e"}),
    ('<a class="x" href="y" title="z"><a class="x" href="y" id="e">', {"e"}),
    ("<svg><title/><g id=f></svg><a id=g name=h>", {"f", "g", "h"}),
    ("<math><mi id=f></math><svg id=g><a name=h></svg><svg/><p id=i>", {"f", "g", "h", "i"}),
    ("<input a name=no><p a name=no><A name=yes><abbr name=no>", {"yes"}),
    # Names of <a> behind quotes and other signs
    ('<a title="a > b" name=one>', {"one"}),
    ('<a href="?q=a<b" name=two><a title="<a>" name="2">', {"two", "2"}),
    ("<a/name=three><a\nname\n=\n'four'><A\tNAME=FIVE/>", {"three", "four", "FIVE/"}),
    ("<a title=it's name=one><a title=\"it's\" name='two'><a ' name=three>",
     {"one", "two", "three"}),
    ("<a n=1 named=no nam=e name=one>", {"one"}),
    ("<a name = 'a<b>'><a name=\"\" id=x>", {"a<b>", "", "x"}),
    ("<a title='<b name=no>' href=x>", set()), ('<a href="x">text</a name=no> <b name=no>', set()),
    # Anchors behind a quote that text or a script has left open
    ("it's <p id=one> 5\" <a name=two>", {"one", "two"}),
    ("<script>s = '<a title=\"'</script><a name=one><p id=two title=\"x\">", {"one", "two"}),
    ("<script>s = \"<a href='\"</script><a name='one'>", {"one"}),
    ("<script>s = '<p id=\"'</script><p id=one title=\"x\">",
     {"'</script><p id=one title=", "one"}),
    ("<!-- don't --><p title=x id='a'><a class='\"' name=b>", {"a", "b"}),
    # What only looks like an anchor counts as well.
    ("<!-- <p id=a> --><script>'<p id=b>'</script><template><a name=c></template>",
     {"a", "b", "c"})])
def test_the_anchors_of_a_page_are_its_ids_and_the_names_of_a(
        markup: str, anchors: set[str]) -> None:
    assert hashes_of_anchors(markup) == {hash(anchor) for anchor in anchors}


def test_a_page_may_have_a_hundred_thousand_anchors(monkeypatch: Patch) -> None:
    assert crawl.MAX_ANCHORS == 100_000
    monkeypatch.setattr(crawl, "MAX_ANCHORS", 3)
    for count, checked in ((3, True), (4, False)):
        assert (crawl.anchors_of("<p id=a>" * count) is not None) == checked


@each("piece", [
    " id=", ' id="', "id='x' ", "/id=", "<a ", "<a n", "<a name", '<a ="', "<a ='", '<a "="',
    "<a =\"<a ='", '<a t="<b" ', "<a t='n' ", '"id="', "'id='\"", "<a/name", '<a name="',
    '<a\n="<a"'])
def test_the_search_for_anchors_takes_linear_time(piece: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(crawl, "MAX_ANCHORS", 1_000_000)  # so that the search goes to the end
    with linear_time():
        assert crawl.anchors_of(piece * (1_000_000 // len(piece)) + "<a name=end>") is not None


# 21  Requests
# ============


def test_the_seconds_of_a_record_do_not_include_those_of_robots_txt() -> None:
    crawler = crawl_site({"/robots.txt": slow_answer(9), "/": slow_answer(60.1234)})
    assert crawler.records["/"].seconds == 60.123


@each("ticks", [1, 2])
def test_a_url_discovered_in_the_tick_in_which_robots_txt_arrives_is_requested(ticks: int) -> None:
    site: Site = {
        f"/{n}": (200, {"ticks": n}, f"<a href=//s.h/no{n}><a href=//s.h/{n}0>") for n in range(9)}
    site |= {
        "/": "".join(f"<a href={n}>" for n in [*range(9), "//s.h/0"]),
        "http://s.h/robots.txt": (200, {"ticks": ticks}, "User-agent: *\nDisallow: /no")}
    assert crawl_site(site, subdomains=True, max_tasks=40).client.requests[-1][0] < 1


def test_the_timeout_of_a_request_begins_when_the_request_does(site: Server) -> None:
    site.add("/", "".join(f"<a href=/{number}>" for number in range(4)))
    for number in range(4):
        site.add(f"/{number}")
    timeout = 0.3
    crawler = crawl_servers(site.url, delay=0.2, timeout=timeout, max_tries=1)
    moments = [record.at for record in crawler.emitted]
    assert max(moments) - min(moments) > 2 * timeout, "some URLs waited for longer than that"
    assert set(crawler.outcomes.values()) == {"200"}


def test_between_the_robots_txt_and_the_first_page_of_a_site_others_get_their_turns() -> None:
    site = {f"http://{host}/{path}": "" for host in "ab" for path in ("", "robots.txt")}
    crawler = crawl_site(site, "http://a/", "http://b/", max_tasks=1)
    assert crawler.requested == [
        "http://a/robots.txt", "http://b/robots.txt", "http://a/", "http://b/"]


async def cancel_crawl(task: Any) -> None:
    """Cancel a crawl, and see that it leaves no task."""
    task.cancel()
    with raises(CancelledError):
        await task
    assert get_running_loop().tasks == {crawl.current_task()}


async def test_a_crawl_cancelled_while_robots_txt_is_awaited_leaves_no_task() -> None:
    crawler, task = crawler_and_task({"/robots.txt": slow_answer(9)})
    await sleep(1)
    await cancel_crawl(task)
    assert crawler.requested == ["/robots.txt"]
    assert crawler.emitted == []


# 22  Crawler
# ===========


def test_a_link_of_a_root_is_found_before_a_longer_way_to_its_target() -> None:
    """However many links the root has, and however long another root takes."""
    many = "".join(f"<a href=/{number}>" for number in range(1000))
    site: Site = {
        "/": f"<a href=/x>{many}<a href=/y>", "/x": "<a href=/y><a href=http://o/z>", "/y": "",
        "http://o/": slow_answer(5, "<a href=/z>"), "http://o/z": ""}
    site |= {f"/{number}": "" for number in range(1000)}
    for depth in (1, 2, 100):
        records = crawl_site(site, "/", "http://o/", depth=depth).records
        assert records["http://o/"].seconds == 5
        for path, parent in (("/y", "http://h/"), ("http://o/z", "http://o/")):
            assert (records[path].status, records[path].depth, records[path].parent) == (
                200, 1, parent)


async def test_an_error_in_a_worker_ends_a_crawl_whose_urls_wait() -> None:
    def fail(record: crawl.Record) -> None:
        if record.url == "http://h/999":
            raise ZeroDivisionError("a bug")

    site = site_of_pages(1000) | {
        f"/{number}": (503, {"retry-after": "300"}, "") for number in range(1, 999)}
    crawler, task = crawler_and_task(site, on_record=fail, max_tasks=3)
    with raises(ZeroDivisionError, match="a bug"):
        await task
    assert crawler.num_waiting() > 900
    assert get_running_loop().time() < 300


async def test_the_oldest_fetch_is_named_first() -> None:
    crawler, task = crawler_and_task(
        site_of_pages(3) | {"/1": slow_answer(9), "/2": slow_answer(9)})
    await sleep(5)
    fetches = crawler.fetches()
    await task
    assert fetches == ["4.9 s http://h/1", "4.9 s http://h/2"]


@each("answer, delay", [(too_many_requests("120"), 0), ("", 120.125)], ids=["429", "delay"])
async def test_the_state_of_a_crawl_names_the_sites_that_rest_and_for_how_long(
        answer: Any, delay: float) -> None:
    site: Site = {"/": "<a href=/a><a href=/b>", "/a": [answer, ""], "/b": ""}
    crawler, task = crawler_and_task(site, max_tasks=1, delay=delay)
    await sleep(20.25)
    assert crawler.fetches() == ["http://h rests for 100 s"]
    assert crawler.describe().splitlines()[-2:] == [
        "http://h rests for 100 s", "0 in flight, 2 queued"]
    await task


async def test_the_loop_ticks_between_urls_that_need_no_request() -> None:
    links = "".join(f"<a href=/no{number}>" for number in range(99))
    crawler, task = crawler_and_task(
        {"/": links, "/robots.txt": "User-agent:*\nDisallow:/no"}, max_tasks=1)
    tick, ticks = get_running_loop().tick, list[None]()

    def counted() -> None:
        ticks.append(None)
        tick()

    setattr(get_running_loop(), "tick", counted)
    await task
    assert crawler.requested == ["/robots.txt", "/"]
    assert len(ticks) > 99


# 23  Journal
# ===========


def test_a_journal_gives_the_last_answer_if_it_is_definite(tmp_path: Path) -> None:
    path = str(tmp_path / "journal")
    records = [
        crawl.Record("http://h/", 200, tries=1),
        crawl.Record("http://h/", 503, kind="broken", tries=3),
        crawl.Record("http://h/a", 404, tries=1),
        crawl.Record("http://h/a", 200, links=("\\x",), tries=1, seconds=0.5),
        crawl.Record("http://h/b", kind="timed out", tries=3),
        crawl.Record("mailto:x", skipped="no"),
        crawl.Record("http://h/i", 200, is_check=True, tries=1)]
    with closing(crawl.Journal(path)) as journal:
        for record in records:
            journal.write(record)
        assert journal.find("http://h/") is None, "the record was written after the file was opened"
    with closing(crawl.Journal(path, resume=True)) as journal:
        assert [journal.find(f"http://h/{page}") for page in ("", "a", "b", "i", "x")] == [
            None, records[3], None, records[6], None]
    assert os.stat(path).st_mode & 0o111 == 0


def test_a_torn_last_line_is_dropped_wherever_it_was_torn(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    record = b'{"url": "http://h/", "status": 200, "tries": 1}\n'
    for torn in [record[:size] for size in range(len(record) - 1)] + [
            record[:9] + b"\0" * 100, b"\0" * 100]:
        path.write_bytes(record + torn)
        with closing(crawl.Journal(str(path), resume=True)) as journal:
            assert journal.find("http://h/") == crawl.Record("http://h/", 200, tries=1)
            journal.write(crawl.Record("http://h/2"))
        assert path.read_bytes() == record + b'{"url": "http://h/2"}\n'


def random_json(rng: Random, depth: int = 3) -> Any:
    """Return a value of any of JSON's types."""
    kind = rng.randrange(9 if depth else 7)
    if kind == 7:
        return [random_json(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 8:
        return {rng.choice([*crawl.Record._fields, "x", ""]): random_json(rng, depth - 1)
                for _ in range(rng.randrange(4))}
    return [None, True, -1, 7, 1e300, "http://h/", "\x1b\u00e9\ud800"][kind]


def random_line(rng: Random) -> bytes:
    """Return a journal's line, or one that something has gone wrong with."""
    record: dict[str, Any] = {"url": f"http://h/{rng.randrange(9)}"} | rng.choice((
        {"status": 200, "encoding": "utf-8", "links": ["http://h/1"]},
        {"status": 404, "kind": "broken"},
        {"status": 301, "next_url": "http://h/2", "seconds": 0.1},
        {"skipped": "on another host"}))
    if not rng.randrange(8):
        record[rng.choice(crawl.Record._fields)] = random_json(rng)
    line = bytearray(json.dumps(record if rng.randrange(40) else random_json(rng)).encode() + b"\n")
    if not rng.randrange(8):
        line[rng.randrange(len(line))] ^= 1 << rng.randrange(8)
    return bytes(line)


def test_a_made_up_journal_is_read_or_left_unchanged(tmp_path: Path, rng: Random) -> None:
    path, ends = tmp_path / "journal", collections.Counter[str]()

    def taken_in_or_refused(lines: list[bytes]) -> None:
        text = b"".join(lines)
        path.write_bytes(text)
        try:
            with closing(crawl.Journal(str(path), resume=True)) as journal:
                for number in range(9):
                    record = journal.find(f"http://h/{number}")
                    assert record is None or record.url == f"http://h/{number}"
        except crawl.CrawlError as error:
            ends[str(error).partition(f"{path} ")[2][:24]] += 1
            assert path.read_bytes() == text
        else:  # all is there but what was torn behind a whole record
            left = path.read_bytes()
            torn = text.removeprefix(left)
            ends["torn" if torn else "whole"] += 1
            assert text == left + torn
            assert b"\n" not in torn
            assert left[-1:] == b"\n" or not left

    for _ in range(ROUNDS // 10):  # each of which opens, locks and closes a file
        *lines, last = [random_line(rng) for _ in range(rng.randrange(1, 6))]
        last = last[: rng.choice((len(last), rng.randrange(len(last) + 1)))] + rng.choice(
            (b"", bytes(9)))
        check_claim(taken_in_or_refused, [*lines, last])
    assert set(ends) == {"whole", "torn", "is not a crawl.py journal"[:24]}, ends


def test_a_journal_can_be_used_by_one_crawl_at_a_time(tmp_path: Path) -> None:
    with closing(crawl.Journal(str(tmp_path / "journal"))):
        with raises(crawl.CrawlError, match="is in use by another crawl"):
            crawl.Journal(str(tmp_path / "journal"))


def test_a_line_is_written_whole_however_few_bytes_each_write_takes(
        tmp_path: Path, monkeypatch: Patch) -> None:
    class Reluctant(io.FileIO):
        writes = 0

        def write(self, data: Any) -> int:
            self.writes += 1
            return super().write(data[:9])

    path = tmp_path / "journal"
    with closing(crawl.Journal(str(path))) as journal, Reluctant(path, "ab") as file:
        monkeypatch.setattr(journal, "_file", file)
        journal.write(crawl.Record("http://h/1"))
        assert file.writes == 3
    assert path.read_bytes() == b'{"url": "http://h/1"}\n'


def test_a_journal_that_is_refused_is_closed_and_unlocked(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text('{"url": "http://h/"}\n')
    with raises(crawl.CrawlError, match="exists") as refused:
        crawl.Journal(str(path))
    crawl.Journal(str(path), resume=True).close()
    assert refused.value.__traceback__ is not None  # which refers to the first journal


# 24  Report
# ==========


def test_the_zoo_is_reported_as_its_essay_says() -> None:
    lines = crawl_site(ZOO, "http://zoo.org/", fragments=True).lines()
    shown = "".join(f"#     {line}".rstrip() + "\n" for line in lines).replace("Words", "Not Found")
    assert shown in project_file("crawl.py")


def test_problems_are_reported_worst_first() -> None:
    certificate = ssl.SSLCertVerificationError("bad")
    certificate.verify_code, certificate.verify_message = 18, "self-signed"
    site: Site = {
        "/forbidden": 403, "/loop": "-> /loop", "/large": crawl.LimitError("large"),
        "/mistrusted": certificate, "/closed": OSError(errno.ECONNREFUSED, "refused"),
        "/slow": TimeoutError("slow"), "/gone": 404}
    crawler = crawl_site(site | {"/": "".join(f"<a href={path}>" for path in site)}, max_tries=1)
    assert re.findall("(?m)^([a-z ]+) [(]1[)]$", "\n".join(crawler.lines())) == [
        "broken", "timed out", "refused", "bad certificate", "over a limit",
        "too many redirects", "blocked"]


def test_a_report_shows_each_of_many_problems() -> None:
    site = {"/": "".join(f"<a href=/{number:02}>" for number in range(37))}
    shown = "\n".join(crawl_site(site, external=True).lines())
    assert shown.startswith("broken (37)\n  /00\n    404 Words\n    found on /\n  /01\n")
    assert shown.count("    404 Words\n    found on /\n") == 37


def test_a_problem_with_a_long_url_is_on_a_line_of_its_own() -> None:
    path = "/" + "x" * 7000
    assert f"  {path}" in crawl_site({"/": f"<a href={path}>"}).lines()


def test_a_long_chain_of_redirects_is_reported_in_linear_time() -> None:
    """Each redirect is also a link, so that the chain has no limit."""
    count = 3000
    site: Site = {f"/{number}": f"-> /{number + 1}" for number in range(count)}
    site["/"] = "".join(f"<a href=/{number}>" for number in range(count))
    crawler = crawl_site(site)
    with linear_time():
        lines = crawler.lines(brief=True)
    assert lines[:3] == ["broken (1)", f"  /{count}", "    404 Words"]
    assert lines[3] == f"    redirected from /0, /1, /10 and {count - 3} more"


# 25  Command line
# ================


SURROUNDINGS = [
    {}, {"PYTHONUNBUFFERED": "1"}, {"PYTHONIOENCODING": "ascii:strict", "LC_ALL": "C"},
    {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "0", "LC_ALL": "C", "HOME": "/nonexistent"}]


@each("environment", SURROUNDINGS)
@full_disk
@each("streams", ["2>/dev/full", "2>&-", "2>&1 >/dev/null | true", "<&- >&- 2>&-", ">&-"])
def test_status_and_journal_do_not_depend_on_readers_or_environment(
        streams: str, environment: dict[str, str], site: Server, tmp_path: Path) -> None:
    site.add("/")
    run_in_shell(
        'trap "" PIPE; '
        '(crawl -v -o "$1/journal" "$2"; echo $? >"$1/status"; (echo >&2 && echo) || : >"$1/lost") '
        + streams, str(tmp_path), site.url, **environment)
    assert (tmp_path / "status").read_text() == "0\n"
    assert (tmp_path / "lost").exists(), "a stream can be written"
    assert [line["url"] for line in journal_lines(tmp_path / "journal")] == [site.url + "/"]


def test_ctrl_c_is_handled_while_main_runs_and_no_longer(site: Server) -> None:
    def interrupt(connection: socket.socket, request: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        say_nothing(connection)

    ours = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
    before = [signal.getsignal(each) for each in ours]
    site.add("/", "<a href=/silent>")
    site.answers["/silent"] = interrupt
    status, out, _ = run_main(site.url)
    assert status == 130
    assert out.startswith(f"interrupted: 0 queued; in flight: {site.url}/silent\n1 URL requested")
    assert [signal.getsignal(each) for each in ours] == before


# Install
# =======


def test_the_file_can_be_run_by_itself(tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)  # which may have no other name
    path = HERE / "crawl.py"
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([path, "--version"], capture_output=True, text=True, env=environment)
    assert done.stdout == f"crawl.py {crawl.VERSION}\n"
    metadata = re.search("(?m)^# /// script\n# (.*)\n# ///$", project_file("crawl.py"))
    assert metadata
    assert metadata[1] == 'requires-python = ">=3.11"'


def test_the_file_says_which_python_it_needs(monkeypatch: Patch) -> None:
    code = compile(project_file("crawl.py"), str(HERE / "crawl.py"), "exec")
    for name, value in (("version_info", (3, 10, 13)), ("platform", "win32")):
        with monkeypatch.context() as patch, raises(SystemExit, match=r"needs Python 3\.11 .*WSL"):
            patch.setattr(sys, name, value)
            exec(code, {"__name__": "crawl"})
    assert "--depth" in run_in_shell('"$PYTHON" -OO "$CRAWL" --help').stdout


def test_main_prints_the_version_and_returns_0() -> None:
    assert run_main("--version") == (0, f"crawl.py {crawl.VERSION}\n", "")


# Check a site
# ============


@in_checkout
def test_the_program_prints_the_example_of_readme() -> None:
    """The first example of README: it can be repeated in a clone."""
    command = "$ python3 crawl.py .readme/site\n"
    example = project_file("README.md").partition(command)[2].partition("```")[0]
    done = run_program(".readme/site", cwd=HERE)
    assert done.returncode == 1
    example, printed = (
        re.sub(r"[0-9.]+(?= s$)", "N", text.strip()) for text in (example, done.stdout))
    assert printed == example


def test_a_start_url_on_this_machine_without_a_scheme_is_http_and_nothing_else_is_tried(
        site: Server, tls_site: Server) -> None:
    site.add("/")
    tls_site.add("/")
    assert list(crawl_servers(f"localhost:{site.port}").records) == [site.url + "/"]
    (failed,) = crawl_servers(f"localhost:{tls_site.port}", max_tries=1).emitted
    assert failed.error == "connection reset by peer"
    assert tls_site.requests == []


# What it reads and what it checks
# ================================


# A site, options (and perhaps roots), and the outcome of each URL. This one says that with
# --depth 1 the page behind a link is read, and the links on it are left out:
#
#     ({"/": "<a href=/a>", "/a": "<a href=/b>"}, {"depth": 1},
#      {"/": "200", "/a": "200", "/b": "too many links from the start"})
Story = tuple[Site, dict[str, Any], dict[str, str]]


def each_story(some: dict[str, Story]) -> pytest.MarkDecorator:
    """Parametrise a test with stories: {"a claim": Story, ...}. The claims name the rows."""
    return each("story", [pytest.param(story, id=claim) for claim, story in some.items()])


def crawl_story(story: Story) -> RecordingCrawler:
    """Crawl the site of a story, check the outcomes, and return the crawler."""
    site, options, ends = story
    crawler = crawl_site(
        site, *options.get("roots", ["/"]),
        **{name: value for name, value in options.items() if name != "roots"})
    assert crawler.outcomes == ends
    return crawler


LOOP = "302 too many redirects"
MAP = "application/xml"


@each_story({
    "a Windows path and a host without a scheme are broken": (
        {"/": r"<a href='C:\a.html'><img src='d:\x.png'><a href=localhost:1/a><a href=tel:5>"}, {},
        {"/": "200", r"C:\a.html": "broken", r"d:\x.png": "broken", "localhost:1/a": "broken",
         "tel:5": "tel URL: neither http nor https"}),
    "an empty source is the base of the page": (
        {"/": "<base href=/gone><iframe src='#x'></iframe><img src='#y'>"}, {},
        {"/": "200", "/gone": "404 broken"}),
    "an empty image is not a reference to its base": (
        {"/": "<base href=/gone><img src=''><script src=''></script><link rel=icon href=''>"},
        {}, {"/": "200"}),
    "a base that is not a URL to request is a link of the page": (
        {"/": "<base href=localhost:1/><a href=/a>", "/a": "<base href=mailto:x>"}, {},
        {"/": "200", "/a": "200", "localhost:1/": "broken",
         "mailto:x": "mailto URL: neither http nor https"}),
    "a use of the page itself is not a reference to its base": (
        {"/": "<base href=/gone><svg><use href=#z></svg><style>p { src: url(#w) }</style>"},
        {}, {"/": "200"}),
    "a gzip file that its name or its type calls a sitemap is read": (
        {"/": "<a href=/a.xml.gz><a href='/b.xml.gz?x'><a href=/c><a href=/d.gz><a href=/e.xml.gz>"
         "<a href=/f.xml.gz><a href=/g.XML.GZ><a href=/h.xml.gz><a href=/i.xml.gz>",
         "/a.xml.gz": answer_of_type("application/gzip", gzip.compress(b"<urlset><loc>http://h/1")),
         "/b.xml.gz?x": answer_of_type(
             "application/x-gzip; x=y", gzip.compress(b"<urlset><loc>http://h/2")),
         "/c": answer_of_type("text/xml", gzip.compress(b"<urlset><loc>http://h/3")),
         "/d.gz": answer_of_type("application/gzip", gzip.compress(b"<urlset><loc>http://h/no")),
         "/e.xml.gz": answer_of_type("application/gzip", gzip.compress(bytes(1000))),
         "/f.xml.gz": answer_of_type(MAP, b"\x1f\x8bnot gzip"),
         "/g.XML.GZ": answer_of_type("application/octet-stream", "<urlset><loc>http://h/4"),
         "/h.xml.gz": answer_of_type("text/html", gzip.compress(b"<urlset><loc>http://h/5")),
         "/i.xml.gz": answer_of_type("", gzip.compress(b"<urlset><loc>http://h/6"))},
        {"max_body": 100},
        {"/": "200", "/a.xml.gz": "200", "/b.xml.gz?x": "200", "/c": "200", "/d.gz": "200",
         "/e.xml.gz": "over a limit", "/f.xml.gz": "broken", "/g.XML.GZ": "200",
         "/h.xml.gz": "200", "/i.xml.gz": "200"}
        | {f"/{number}": "404 broken" for number in range(1, 7)}),
    "assets are checked after the last page": (
        {"/": "<img src=/logo.png><script src=//cdn/x.js></script><a href=/2>"
         "<link rel=icon href=/gone.ico>",
         "/2": "<img src=/logo.png><img src=/2><a href=/linked.png>",
         "/logo.png": answer_of_type("image/png"), "/linked.png": answer_of_type("image/png"),
         "http://cdn/x.js": 500}, {},
        {"/": "200", "/2": "200", "/linked.png": "200", "/logo.png": "HEAD 200",
         "http://cdn/x.js": "GET 500 broken x3", "/gone.ico": "GET 404 broken x2"}),
    "with pages_only assets are neither checked nor recorded": (
        {"/": "<img src=/logo.png><a href=/2><link rel=stylesheet href=/gone.css>",
         "/2": "<img src=/2>"},
        {"pages_only": True}, {"/": "200", "/2": "200"}),
    "robots.txt and exclude hold for assets": (
        {"/robots.txt": "User-agent: *\nDisallow: /private",
         "http://o/3": "",
         "/": "<img src=/private.png><img src=/a.pdf><img src=//o/b.pdf><img src=//o/3>"},
        {"exclude": "pdf$"},
        {"/": "200", "http://o/3": "HEAD 200", "/a.pdf": "excluded", "http://o/b.pdf": "excluded",
         "/private.png": "forbidden by robots.txt: Disallow: /private"}),
    "redirects of assets are confirmed by GET, followed and join pages": (
        {"/": "<img src=/moved><img src=/page.png><img src=/loop><a href=/page>",
         "/moved": "-> //cdn/new", "http://cdn/new": "-> /newer",
         "/page.png": "-> /page", "/page": "", "/loop": "-> /loop"}, {},
        {"/": "200", "/page": "200", "/moved": "GET 302 x2", "http://cdn/new": "GET 302 x2",
         "http://cdn/newer": "GET 404 broken x2", "/page.png": "GET 302 x2",
         "/loop": f"GET {LOOP} x2"}),
    "links to other hosts are checked through their redirects and are not read": (
        {"/": "<a href=//o/><a href=//o/gone><a href=//o/moved><a href=//o/x.pdf>",
         "http://o/": "<a href=/in>", "http://o/moved": "-> /else"},
        {"external": True, "pages_only": True, "exclude": "pdf$"},
        {"/": "200", "http://o/": "HEAD 200", "http://o/gone": "GET 404 broken x2",
         "http://o/moved": "GET 302 x2", "http://o/else": "GET 404 broken x2",
         "http://o/x.pdf": "excluded"}),
    "with pages_only and external links to other hosts are still checked": (
        {"/": "<img src=//cdn/x><a href=/next><img src=/logo>", "/next": "<a href=//cdn/x>",
         "http://cdn/x": ""},
        {"external": True, "pages_only": True},
        {"/": "200", "/next": "200", "http://cdn/x": "HEAD 200"}),
    "the target of a checked redirect is checked even if a page shows it": (
        {"/": "<img src=//o/b><a href=//o/a>", "http://o/a": "-> /b"},
        {"external": True, "pages_only": True},
        {"/": "200", "http://o/a": "GET 302 x2", "http://o/b": "GET 404 broken x2"}),
    "a link and an image that lead to one URL on another host give one record": (
        {"/": "<a href=//o/x><img src=//o/x>", "http://o/x": ""}, {},
        {"/": "200", "http://o/x": "HEAD 200"}),
    "stylesheets on the crawl's hosts are read and their assets are checked": (
        {"/": "<link rel=stylesheet href=/css/a.css><a href=/linked.css>"
         "<style>url(inline.woff)</style><img src=//o/other.css>",
         "http://o/other.css": answer_of_type(CSS, "p { src: url(/no.png) }"),
         "/css/a.css": answer_of_type(CSS, "@import 'b.css'; p { background: url(gone.png) }"),
         "/css/b.css": answer_of_type(
             "text/css; charset=x", "p { src: url(/font.woff) } q { src: url(a.css) }"),
         "/linked.css": answer_of_type(CSS, "p { background: url(/gone2.png) }"),
         "/font.woff": "", "/inline.woff": ""}, {},
        {"/": "200", "/linked.css": "200", "/css/a.css": "GET 200 x2", "/inline.woff": "HEAD 200",
         "http://o/other.css": "HEAD 200", "/gone2.png": "GET 404 broken x2",
         "/css/b.css": "GET 200 x2", "/css/gone.png": "GET 404 broken x2",
         "/font.woff": "HEAD 200"}),
    "a sitemap is read for links and an RSS feed is not": (
        {"/": "<a href=/index.xml><a href=/feed.xml>",
         "/index.xml": answer_of_type(MAP, "<sitemapindex><loc>http://h/map</loc></sitemapindex>"),
         "/map": answer_of_type("text/xml", "<urlset><loc>http://h/only</loc></urlset>"),
         "/feed.xml": answer_of_type("text/xml", "<rss><link>/no</link></rss>")}, {},
        {"/": "200", "/index.xml": "200", "/feed.xml": "200", "/map": "200",
         "/only": "404 broken"}),
    "a GET follows a 429": (
        {"/": "<img src=/x>", "/x": too_many_requests("60")}, {"max_tries": 2},
        {"/": "200", "/x": "GET 429 blocked x2"}),
    "a 429 of another host is retried soon": (
        {"/": "<img src=//o/x>", "http://o/x": too_many_requests("300")}, {"max_tries": 2},
        {"/": "200", "http://o/x": "GET 429 blocked x2"})})
def test_each_url_is_read_or_checked_as_what_refers_to_it_says(story: Story) -> None:
    crawler = crawl_story(story)
    rounds = [record.is_check for record in crawler.emitted if not record.skipped]
    assert rounds == sorted(rounds), "checks come last"
    assert crawler.client.requests[-1][0] < 99
    assert len(crawler.client.checked) == len(set(crawler.client.checked)) or "429" in str(
        crawler.outcomes)
    assert not any(path.endswith("//o/robots.txt") for path in crawler.requested)


@each_story({
    "each page is requested once however it is spelled": (
        {"/": "<a href=/a><a href=b/><a href=#top><a href=/a#x>",
         "/a": "<a href=/><a href='b/'><a href=b/>",
         "/b/": "<a href=../a><a href=c?q=1><a href=?p=2><a href=//h/%7Euser><a href=/~user>",
         "/b/c?q=1": "", "/b/?p=2": "", "/%7Euser": "", "/~user": ""}, {},
        dict.fromkeys(["/", "/a", "/b/", "/b/c?q=1", "/b/?p=2", "/%7Euser", "/~user"], "200")),
    "a relative reference is not taken for one of the root": (
        {"/": "<a href=/x><a href=/d/>", "/d/": "<a href=x>", "/x": "", "/d/x": ""}, {},
        {"/": "200", "/x": "200", "/d/": "200", "/d/x": "200"}),
    "a relative reference means another URL on another page": (
        {"/d/1": "<a href='?x'><a href='2'><a href='1?y'><a href='?x#z'><a href='\1?x'>",
         "/d/2": "<a href='?x'><a href='2'><a href=' ?x'><a href='?x#y'>"},
        {"roots": ["/d/1"]},
        {"/d/1": "200", "/d/1?x": "404 broken", "/d/2": "200", "/d/1?y": "404 broken",
         "/d/2?x": "404 broken"}),
    "frames and refreshes are followed": (
        {"/": "<iframe src=/frame></iframe><meta http-equiv=refresh content='0; url=/next'>",
         "/frame": "", "/next": "<meta http-equiv=refresh content='0; url=mailto:x'>"}, {},
        {"/": "200", "/frame": "200", "/next": "200",
         "mailto:x": "mailto URL: neither http nor https"}),
    "XHTML is read and a 300 and plain text are not": (
        {"/": answer_of_type(
             "application/xhtml+xml; charset=utf-8", "<a href='/choices' /><a href='/text' />"),
         "/choices": (300, {"location": "/elsewhere"}, "<a href=/never>"),
         "/text": answer_of_type("text/plain", "<a href=/never>")},
        {}, {"/": "200", "/choices": "300", "/text": "200"}),
    "the first content type decides": (
        {"/1": answer_of_type("text/html, text/html", "<a href=/x>"),
         "/2": answer_of_type("TEXT/HTML;charset=utf-8", "<a href=/y>"),
         "/3": answer_of_type("text/plain, text/html", "<a href=/z>")},
        {"roots": ["/1", "/2", "/3"]},
        {"/1": "200", "/2": "200", "/3": "200", "/x": "404 broken", "/y": "404 broken"}),
    "a nofollow page has no links and its assets are checked": (
        {"/": "<a href=/meta>",
         "/meta": "<meta name=robots content=nofollow><a href=/x><a href=/><img src=/logo>",
         "/logo": ""}, {},
        {"/": "200", "/meta": "200", "/logo": "HEAD 200"})})
def test_each_url_that_a_page_refers_to_is_requested_once(story: Story) -> None:
    crawler = crawl_story(story)
    assert len(crawler.requested) == len(set(crawler.requested))


def test_a_record_says_how_a_url_ended(site: Server) -> None:
    site.add(
        "/", gzip.compress(b"<a href=/gone>\xe9" * 3),
        Content_Type="Text/HTML; charset=Latin-1", Content_Encoding="gzip")
    site.add("/gone", "a page in words", 404)
    root, gone = crawl_servers(site.url).emitted
    assert root.links == (gone.url,)
    assert (root.depth, root.parent, root.tries, root.is_check) == (0, "", 1, False)
    assert (root.size, root.content_type, root.encoding) == (
        45, "Text/HTML; charset=Latin-1", "latin-1")
    assert abs(root.at - time.time()) < 60
    assert root.seconds >= 0
    assert round(root.at, 3) == root.at
    assert (gone.status, gone.error, gone.kind, gone.size) == (404, "404 Words", "broken", 0)
    assert (gone.depth, gone.parent) == (1, root.url)


def test_the_body_of_a_check_that_falls_back_to_get_is_not_read() -> None:
    crawler = crawl_site({"/": "<img src=/logo>", "/logo": {"HEAD": 501, "GET": "<a href=/x>"}})
    assert crawler.outcomes == {"/": "200", "/logo": "GET 200 x2"}
    assert crawler.records["/logo"].size == 0


@each("answer, end", [
    (399, "GET 399 x2"), (204, "HEAD 204"), (400, "GET 400 broken x2"), (404, "GET 404 broken x2"),
    (ConnectionResetError(), "GET refused x2"), (429, "GET 429 blocked x2")])
def test_a_check_sends_get_unless_head_succeeds(answer: Any, end: str) -> None:
    assert crawl_site({"/": "<img src=/i>", "/i": answer}, max_tries=1).outcomes["/i"] == end


def test_stylesheets_behind_redirects_and_on_subdomains_are_read() -> None:
    site: Site = {
        "http://h.de/": "<link rel=stylesheet href=/old><link rel=stylesheet href=//s.h.de/s>",
        "http://h.de/old": "-> /new",
        "http://h.de/new": answer_of_type(CSS, "p { src: url(/gone) }"),
        "http://s.h.de/s": answer_of_type(CSS, "p { src: url(/lost) }")}
    outcomes = crawl_site(site, "http://h.de/", subdomains=True).outcomes
    assert outcomes["http://h.de/gone"] == outcomes["http://s.h.de/lost"] == "GET 404 broken x2"


def test_a_response_that_is_not_a_page_is_not_read(site: Server) -> None:
    site.add("/", "<a href=/radio>")
    site.answers["/radio"] = answer_and(OK + b"Content-Type: audio/ogg\r\n\r\nmusic", say_nothing)
    record = crawl_servers(site.url, timeout=5, max_tries=1).records[site.url + "/radio"]
    assert (record.status, record.error, record.size) == (200, "", 0)


@each("content_type", [
    ";charset=utf-8", ", text/html", " ", "text/html\t;charset=utf-8", "text/html charset=utf-8"])
def test_a_content_type_that_names_no_type_means_html(content_type: str) -> None:
    crawler = crawl_site({"/": answer_of_type(content_type, "<a href=/x>"), "/x": ""})
    assert crawler.outcomes == {"/": "200", "/x": "200"}


def test_every_request_prefers_html(site: Server, tls_site: Server) -> None:
    site.add("/", f"<img src=/i><img src={tls_site.url}/x>")
    crawl_servers(site.url)
    heads = site.heads + tls_site.heads
    assert {head.split()[0] for head in heads} == {"GET", "HEAD"}
    assert len(tls_site.heads) == 2
    assert all("\r\nAccept: text/html, */*;q=0.8\r\n" in head for head in heads)


def test_a_server_that_always_answers_with_its_index_page_is_one_page() -> None:
    class Index(SimulatedClient):
        async def fetch(self, url: crawl.URL, *arguments: Any, **options: Any) -> Any:
            self.site[str(url)] = "<script src=js/app.js></script><img src=a.png><a href=/>"
            return await super().fetch(url, *arguments, **options)

    assert crawl_site(Index({})).outcomes == {
        "/": "200", "/js/app.js": "HEAD 200", "/a.png": "HEAD 200"}


# Your site
# ---------


@each_story({
    "the redirect target of a root need not be included": (
        {"/": "-> /en", "/en": "<a href=/a><a href=/b>", "/a": ""}, {"include": "a"},
        {"/": "302", "/en": "200", "/a": "200", "/b": "not included"}),
    "the hosts that a root redirects to are the scope": (
        {"/": "-> https://h/",
         "https://h/": "-> https://www.other.test/home",
         "https://www.other.test/home": "<a href=//other.test/x><a href=http://h/y>"
         "<a href=http://third/>",
         "https://other.test/x": "-> https://third/", "/y": ""}, {},
        {"/": "302", "https://h/": "302", "https://www.other.test/home": "200",
         "https://other.test/x": "302", "/y": "200",
         "http://third/": "on another host", "https://third/": "on another host"}),
    "redirects of pages do not widen the scope": (
        {"/": "<a href=/1><img src=/logo>", "/1": "-> /2", "/2": "-> /3", "/3": "-> http://o/",
         "http://o/": ""}, {"pages_only": True},
        {"/": "200", "/1": "302", "/2": "302", "/3": "302", "http://o/": "on another host"}),
    "sitemaps in an index are read even if they are not included": (
        {"/sitemap.xml": answer_of_type(
            "text/xml", "<sitemapindex><loc>/a.xml</loc><loc>//o/b.xml</loc></sitemapindex>"),
         "/a.xml": answer_of_type(
             "text/xml", "<urlset><loc>/docs/x</loc><loc>/c.xml</loc></urlset>"),
         "/docs/x": ""},
        {"roots": ["/sitemap.xml"], "include": "/docs/"},
        {"/sitemap.xml": "200", "/a.xml": "200", "http://o/b.xml": "on another host",
         "/docs/x": "200", "/c.xml": "not included"}),
    "a root that redirects to nothing is a problem": ({"/": "-> "}, {}, {"/": "302 broken"}),
    "a root that redirects to itself is a problem": ({"/": "-> /"}, {}, {"/": LOOP}),
    "a redirect to a mail address is skipped like a link to it": (
        {"/": "<a href=/away>", "/away": "-> mailto:x"}, {},
        {"/": "200", "/away": "302 mailto URL: neither http nor https"}),
    "a redirect to a telephone number is skipped like a link to it": (
        {"/": "<a href=/away>", "/away": "-> tel:1"}, {},
        {"/": "200", "/away": "302 tel URL: neither http nor https"}),
    "a root that redirects to a mail address is skipped": (
        {"/": "-> mailto:x"}, {}, {"/": "302 mailto URL: neither http nor https"}),
    "a root that redirects to no URL is a problem": ({"/": "-> http://["}, {}, {"/": "302 broken"}),
    "the redirect target of a root may be excluded": (
        {"/": "-> /login"}, {"exclude": "login"}, {"/": "302", "/login": "excluded"}),
    "roots are retried and obey robots.txt like all pages": (
        {"/robots.txt": "User-agent: *\nDisallow: /no", "/a": [503, ""], "/b": ""},
        {"roots": ["/a", "/b", "/no"]},
        {"/a": "200 x2", "/b": "200", "/no": "forbidden by robots.txt: Disallow: /no"}),
    "a root that fails at first has its pages on the first level": (
        {"/": [503, "<a href=/1>"], "/1": "<a href=/2>", "/2": ""}, {"depth": 1},
        {"/": "200 x2", "/1": "200", "/2": "too many links from the start"}),
    "include chooses among pages, neither among roots nor assets": (
        {"/": "<a href=/blog/1><a href=/other><img src=/logo>", "/blog/1": "", "/logo": ""},
        {"include": "blog"},
        {"/": "200", "/blog/1": "200", "/logo": "HEAD 200", "/other": "not included"}),
    "a URL must match include and no alternative of exclude": (
        {"/": "<a href=/a1><a href=/b2><a href=/c3><a href=/a4.pdf><a href=/b5.png>",
         "/a1": "", "/b2": ""},
        {"include": "a|b", "exclude": "pdf|png"},
        {"/": "200", "/a1": "200", "/b2": "200", "/c3": "not included",
         "/a4.pdf": "excluded", "/b5.png": "excluded"}),
    "flags and groups of a pattern do not act on the others": (
        {"/": "<a href=/A1><a href=/b1><a href=/aa1><a href=/c/c1>", "/A1": "", "/b1": ""},
        {"exclude": ["(?i)AA", "B", r"(.)/\1", r"(d)\1"]},
        {"/": "200", "/A1": "200", "/b1": "200", "/aa1": "excluded", "/c/c1": "excluded"}),
    "a mistyped scheme may be excluded and other schemes are counted": (
        {"/": "<a href=hhttps://x/><a href=slack://y><a href=git+https://h/x>"},
        {"exclude": "hhttps"},
        {"/": "200", "hhttps://x/": "excluded", "slack://y": "slack URL: neither http nor https",
         "git+https://h/x": "git+https URL: neither http nor https"}),
    "exclude holds for links, assets and redirects": (
        {"/": "<a href=/a><img src=/secret.png>", "/a": "-> /secret"}, {"exclude": "secret"},
        {"/": "200", "/a": "302", "/secret.png": "excluded", "/secret": "excluded"}),
    "every URL that is not requested has a reason": (
        {"/robots.txt": "User-agent: *\nDisallow: /private/\nAllow: /",
         "/": "<a href=//o/><a href=mailto:x><a href=/a.pdf><a href=/private/x><a href=/1>",
         "/1": "<a href=/2>", "/2": "<a href=/3>"},
        {"exclude": r"\.pdf$", "depth": 2},
        {"/": "200", "/1": "200", "/2": "200", "/a.pdf": "excluded",
         "http://o/": "on another host", "mailto:x": "mailto URL: neither http nor https",
         "/private/x": "forbidden by robots.txt: Disallow: /private/",
         "/3": "too many links from the start"})})
def test_each_url_is_read_or_left_out_for_a_reason(story: Story) -> None:
    assert set(crawl_story(story).client.checked) <= {"/logo"}


def test_references_of_start_urls_are_admitted_when_all_of_these_have_ended() -> None:
    """One of two redirects is late: URLs that were discovered before it are in scope."""
    crawler = crawl_site(
        {"http://a/": "<a href=http://c/1><a href=http://d/1>",
         "http://b/": (302, {"location": "http://c/", "seconds": 9}, ""),
         "http://c/": "", "http://c/1": "", "http://d/": "<a href=/1>", "http://d/1": "",
         "http://e/": [(503, {"retry-after": "60"}, ""), too_many_requests("60"), "-> http://d/"]},
        "http://a/", "http://b/", "http://e/")
    assert len(request_times(crawler, "http://e/")) == 3
    (first,), (second,) = request_times(crawler, "http://c/1"), request_times(crawler, "http://d/1")
    assert 9 < first < 10 and 9 < second < 10, "no Retry-After is waited for"
    assert {record.depth for record in crawler.emitted} == {0, 1}
    assert not any(record.skipped for record in crawler.emitted)


# A site in a folder
# ==================


Files = dict[str, str | bytes]


def files_in(folder: Path, files: Files) -> Path:
    """Write files, by their paths, into a new folder. Return the folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    folder.mkdir(exist_ok=True)
    return folder


def crawl_folder(folder: Path, root: str = "/", site: Site | None = None,
                 **options: Any) -> RecordingCrawler:
    """Crawl the files of a folder as http://h. What else is on the web is in *site*."""
    return crawl_site(site or {}, root, folder=str(folder), **options)


def test_a_folder_is_crawled_without_a_request(tmp_path: Path) -> None:
    folder = files_in(tmp_path / "public", {
        "index.html": "<a href=a><a href=/sub><a href=/gone><img src=i.png><link rel=stylesheet "
        "href=s.css><a href='a#lost'>",
        "a.html": "<p id=found><a href='#found'>", "sub/index.html": "", "i.png": "",
        "s.css": "p { background: url(j.png) }"})
    crawler = crawl_folder(folder, fragments=True)
    assert crawler.outcomes == {
        "/": "200", "/a": "200", "/sub": "301", "/sub/": "200", "/gone": "404 broken",
        "/i.png": "GET 200", "/s.css": "GET 200", "/j.png": "GET 404 broken",
        "/a#lost": "broken"}
    assert crawler.requested == crawler.client.checked == []
    assert {record.tries for record in crawler.emitted} == {0}
    assert crawler.lines()[-4:] == [
        f"8 files and URLs looked up in {folder}, 3 pages read",
        "statuses: 5 x 200, 1 x 301, 2 x 404", "moved for good: 1 URL",
        "3 problems on 3 pages, 1.0 s"]


@each("files, url, outcome", [
    pytest.param({"a": "", "a.html": ""}, "/a", "200 application/octet-stream", id="the file a"),
    pytest.param({"a.html": "", "a/index.html": ""}, "/a", "200 text/html", id="the file a.html"),
    pytest.param({"a/index.html": ""}, "/a?x=1", "301 http://h/a/?x=1", id="a redirect, its query"),
    pytest.param({"a/index.html": ""}, "/a/?x=1", "200 text/html", id="an index with a query"),
    pytest.param({"a/b.html": ""}, "/a/", "404", id="a folder without an index"),
    pytest.param({"a/b.html": ""}, "/a", "404", id="the same without a slash"),
    pytest.param({"a/index.html/b": ""}, "/a/", "404", id="an index that is a folder"),
    pytest.param({"a.html": ""}, "/a.html/", "404", id="a file with a slash"),
    pytest.param({"a.html": ""}, "/A.html", "404", id="another case"),
    pytest.param({"a.html": ""}, "//a.html", "404", id="an empty name"),
    pytest.param({"d/a.html": ""}, "/d%2Fa.html", "404", id="an encoded slash"),
    pytest.param({"a.html": ""}, "/x/..%2f..%2fa.html", "404", id="encoded parents"),
    pytest.param({"a.html": ""}, "/a.html%00", "404", id="NUL"),
    pytest.param({"a.html": ""}, "/" + "a" * 3000, "404", id="a name that is too long"),
    pytest.param({"100%.html": ""}, "/100%25.html", "200 text/html", id="a percent sign"),
    pytest.param({"a?b#c.html": ""}, "/a%3Fb%23c.html", "200 text/html", id="? and #"),
    pytest.param({"it's (1).html": ""}, "/it's%20(1).html", "200 text/html", id="a blank and ()"),
    pytest.param({"\u00e9.html": ""}, "/%C3%A9.html", "200 text/html", id="composed"),
    pytest.param({"\u00e9.html": ""}, "/e%CC%81.html", "404", id="decomposed where composed is"),
    pytest.param({"e\u0301.html": ""}, "/e%CC%81.html", "200 text/html", id="decomposed"),
    pytest.param({"\udcff.html": ""}, "/%FF.html", "200 text/html", id="not UTF-8"),
    pytest.param({"a:b.html": ""}, "/a:b.html", "200 text/html", id="a colon"),
    pytest.param({"a.htm": ""}, "/a.htm", "200 text/html", id="htm"),
    pytest.param({"a.XHTML": ""}, "/a.XHTML", "200 application/xhtml+xml", id="XHTML"),
    pytest.param({"a.xml": "<urlset/>"}, "/a.xml", "200 text/xml", id="xml"),
    pytest.param({"a.tar.gz": ""}, "/a.tar.gz", "200 application/gzip", id="gz"),
    pytest.param({"a.svg": ""}, "/a.svg", "200 image/svg+xml", id="svg")])
def test_a_folder_answers_as_a_static_host_does(
        files: Files, url: str, outcome: str, tmp_path: Path) -> None:
    folder = files_in(tmp_path / "public", files | {"index.html": f'<a href="http://h{url}">'})
    (record,) = [
        each for each in crawl_folder(folder, depth=1).emitted if each.parent == "http://h/"]
    assert f"{record.status} {record.next_url or record.content_type}".strip() == outcome


@each("suffix", ["html", "png"])
def test_only_a_regular_file_of_a_folder_is_a_file(suffix: str, tmp_path: Path) -> None:
    folder = files_in(tmp_path / "public", {"there": "", f"target.{suffix}": ""})
    os.mkfifo(folder / f"pipe.{suffix}")
    os.symlink("nowhere", folder / f"dangling.{suffix}")
    os.symlink(f"itself.{suffix}", folder / f"itself.{suffix}")
    os.symlink("/dev/zero", folder / f"device.{suffix}")
    os.symlink(f"target.{suffix}", folder / f"good.{suffix}")
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(folder)  # the path of a socket must be short
        listener.bind(f"socket.{suffix}")
        os.chdir("/")
        names = ("pipe", "dangling", "itself", "device", "socket", "good")
        links = "".join(f"<a href={name}.{suffix}><img src={name}.{suffix}?i>" for name in names)
        files_in(folder, {"index.html": links})
        outcomes = crawl_folder(folder).outcomes
    for name in names[:-1]:
        assert outcomes[f"/{name}.{suffix}"] == "404 broken"
        assert outcomes[f"/{name}.{suffix}?i"] == "GET 404 broken"
    assert outcomes[f"/good.{suffix}"] == "200"


def test_a_file_that_may_not_be_read_is_blocked_as_a_page_and_as_a_check(
        tmp_path: Path, monkeypatch: Patch) -> None:
    folder = files_in(tmp_path / "public", {
        "index.html": "<a href=a.html><img src=i.png>", "a.html": "", "i.png": ""})
    original = open

    def refuse(path: Any, *arguments: Any, **options: Any) -> Any:
        if path in (os.fsencode(folder / "a.html"), os.fsencode(folder / "i.png")):
            raise PermissionError(errno.EACCES, "Permission denied")
        return original(path, *arguments, **options)

    monkeypatch.setattr("builtins.open", refuse)
    assert crawl_folder(folder).outcomes == {
        "/": "200", "/a.html": "403 blocked", "/i.png": "GET 403 blocked"}


def test_of_a_huge_file_no_more_than_max_body_is_read(tmp_path: Path) -> None:
    folder = files_in(tmp_path / "public", {"index.html": "<a href=a.html><a href=b.iso>"})
    for name in ("a.html", "b.iso"):
        with open(folder / name, "wb") as file:
            file.truncate(20_000_000_000)  # a sparse file
    crawler = crawl_folder(folder, max_body=100)
    assert crawler.outcomes == {"/": "200", "/a.html": "over a limit", "/b.iso": "200"}
    assert crawler.records["/a.html"].error == "the file exceeds 100 bytes (max_body)"


def test_html_files_that_no_link_leads_to_are_read_and_named(tmp_path: Path) -> None:
    folder = files_in(tmp_path / "public", {
        "index.html": "<a href=/a>", "a.html": "", "404.html": "<a href=/404.html><img src=/x.png>",
        "old/a.HTM": "<a href=b.xhtml>", "old/b.xhtml": "", "old/index.html": "",
        "it's 100%.html": "", "notes.txt": ""})
    os.symlink("old", folder / "link")
    crawler = crawl_folder(folder)
    assert crawler.outcomes == {
        "/": "200", "/a": "200", "/404.html": "200", "/old/a.HTM": "200", "/old/b.xhtml": "200",
        "/old/": "200", "/it's%20100%25.html": "200", "/x.png": "GET 404 broken"}
    assert "no link leads to: 404.html, it's%20100%25.html, old/ and 1 more" in crawler.lines()


def test_a_file_behind_a_symbolic_link_to_a_folder_is_read_if_a_link_leads_there(
        tmp_path: Path) -> None:
    folder = files_in(tmp_path / "public", {"index.html": "<a href=link/a>"})
    files_in(tmp_path / "elsewhere", {"a.html": "", "b.html": ""})
    os.symlink("../elsewhere", folder / "link")
    assert crawl_folder(folder).outcomes == {"/": "200", "/link/a": "200"}


def test_a_file_is_linked_by_any_page_and_any_url_but_its_own(tmp_path: Path) -> None:
    folder = files_in(tmp_path / "public", {
        "index.html": "",
        "a.html": "<link rel=canonical href=/a.html><a href=b>",
        "b.html": "<link rel=canonical href=/b.html><a href=a.html><a href=c/index.html>",
        "c/index.html": "<a href=/d>", "d/index.html": "", "lonely.html": "<a href=lonely.html>"})
    assert "no link leads to: lonely.html" in crawl_folder(folder).lines()


@each("name", ["robots.txt.html", "robots.txt/index.html"])
def test_a_page_that_is_called_robots_txt_is_read_like_any_other(name: str, tmp_path: Path) -> None:
    folder = files_in(tmp_path / "public", {"index.html": "", name: "<a href=gone>"})
    crawler = crawl_folder(folder)
    assert [record.kind for record in crawler.report.problems] == ["broken"]
    assert f"no link leads to: {name.removesuffix('index.html')}" in crawler.lines()


def test_made_up_folders_are_read_by_the_rules(rng: Random, tmp_path: Path) -> None:
    """Each HTML file is read, each missing one is a problem, and those without a link are named."""
    names = ["index.html", "a.html", "b.html", "d/index.html", "d/c.html", "e.xhtml", "x.png"]
    spellings = ["/", "/a", "/a.html", "/b", "/d", "/d/", "/d/index.html", "/d/c", "/e.xhtml",
                 "/x.png", "/gone", "/A.html"]
    for number in range(max(30, ROUNDS // 200)):
        files = {name: rng.sample(spellings, rng.randrange(4))
                 for name in rng.sample(names, rng.randrange(1, 8))}
        pages = {name for name in files if name.endswith("html")}
        folder = files_in(tmp_path / f"{number}", {
            name: "".join(map("<a href={}>".format, links)) if name in pages else ""
            for name, links in files.items()})

        def file_of(url: str, files: Any = files) -> str | None:
            path = f"{url}index.html" if url.endswith("/") else url
            tried = [path, f"{path}.html", f"{path}/index.html"]
            return next((each_name[1:] for each_name in tried if each_name[1:] in files), None)

        crawler = crawl_folder(folder)
        links = [(name, url) for name in pages for url in files[name]]
        unlinked = pages - {  # a link to itself counts only if it is spelled in another way
            file_of(url) for name, url in links
            if url != f"/{name.removesuffix('index.html')}"}
        assert {os.fsdecode(file or b"").removeprefix(f"{folder}/")
                for file in crawler.fetcher.readings} == pages
        assert {path_of(record.url) for record in crawler.emitted if record.kind} == {
            *(url for _, url in links if not file_of(url)), *([] if pages else ["/"])}
        (line,) = [line for line in crawler.lines() if "no link leads to" in line] or [""]
        assert bool(line) == bool(unlinked - {"index.html"})
        if len(unlinked - {"index.html"}) == 1:
            (name,) = unlinked - {"index.html"}
            assert line == f"no link leads to: {name.removesuffix('index.html')}"


def test_a_file_that_was_read_at_a_depth_is_not_read_once_more(tmp_path: Path) -> None:
    folder = files_in(tmp_path / "public", {
        "index.html": "<a href=a>", "a.html": "<a href=b>", "b.html": "<a href=/s/>",
        "s/index.html": "", "u.html": "<a href=/s/><a href=v>", "v.html": "<a href=w>",
        "w.html": ""})
    for depth in (1, 3, 9, 100):
        outcomes = crawl_folder(folder, depth=depth).outcomes
        assert set(outcomes.values()) <= {"200", "too many links from the start"}


async def test_an_interrupted_crawl_of_a_folder_names_no_file_without_a_link(
        tmp_path: Path) -> None:
    folder = files_in(tmp_path / "public", {
        f"{number}.html": f"<a href={number + 1}.html>" for number in range(99)})
    crawler, task = crawler_and_task({}, "/", folder=str(folder))
    while len(crawler.emitted) < 50:
        await sleep(0)
    await cancel_crawl(task)
    lines = crawler.lines()
    assert lines[0].startswith("interrupted: ")
    assert "no link" not in "".join(lines)


def test_a_folder_without_an_index_is_read_all_the_same(tmp_path: Path) -> None:
    folder = files_in(tmp_path / "public", {"b.html": "<a href=a.html>", "a.html": ""})
    crawler = crawl_folder(folder)
    assert crawler.outcomes == {"/a.html": "200", "/b.html": "200"}
    assert "no link leads to: b.html" in crawler.lines()
    files_in(folder, {"b.html": "<a href=/>"})
    assert crawl_folder(folder).outcomes["/"] == "404 broken"
    (tmp_path / "empty").mkdir()
    assert crawl_folder(tmp_path / "empty").outcomes == {"/": "404 broken"}
    files_in(folder, {"b.html": "<a href=a.html>"})
    for url in ("https://me.github.io/docs", "https://me.github.io/docs/"):
        assert run_main("-q", "--folder", str(folder), url) == (0, "", "")
    assert run_main("--folder", str(folder), "--include", "nothing", "h.org") == (
        2, "", "crawl.py: found no page whose links may be followed\n")


@each("options, outcomes", [
    ({"depth": 0}, {"/": "200", "/a.html": "too many links from the start",
                    "/b.html": "too many links from the start"}),
    ({"include": "b"}, {"/": "200", "/a.html": "not included", "/b.html": "200"}),
    ({"exclude": "b"}, {"/": "200", "/a.html": "200", "/b.html": "excluded"}),
    ({"max_pages": 1}, {"/": "200", "/a.html": "200", "/b.html": "over the page limit"})])
def test_the_options_that_limit_a_crawl_count_for_files_without_a_link(
        options: dict[str, Any], outcomes: dict[str, str], tmp_path: Path) -> None:
    folder = files_in(tmp_path / "public", {"index.html": "", "a.html": "", "b.html": ""})
    assert crawl_folder(folder, **options).outcomes == outcomes


@each("url", ["https://me.github.io/docs/", "https://me.github.io/docs"])
def test_a_folder_stands_for_the_urls_under_which_it_will_be_published(
        url: str, tmp_path: Path) -> None:
    links = ("https://me.github.io/docs/a.html", "http://me.github.io/docs/a.html",
             "https://www.me.github.io/docs/a.html", "/docs/a.html", "a.html", "/docs",
             "/other/", "/docs2", "https://me.github.io:444/docs/", "https://github.io/docs/")
    folder = files_in(tmp_path / "public", {
        "index.html": "".join(f"<a href={link}>" for link in links) + "<img src=/logo.png>",
        "a.html": ""})
    crawler = crawl_folder(folder, url, {"https://me.github.io/logo.png": ""},
                           headers={"Cookie": "secret"}, subdomains=True)
    assert crawler.outcomes == {
        "https://me.github.io/docs/": "200", "https://me.github.io/docs": "301",
        "https://me.github.io/docs/a.html": "200", "http://me.github.io/docs/a.html": "200",
        "https://www.me.github.io/docs/a.html": "200",
        "https://me.github.io/other/": "on another host",
        "https://me.github.io/docs2": "on another host",
        "https://me.github.io:444/docs/": "on another host",
        "https://github.io/docs/": "on another host",
        "https://me.github.io/logo.png": "HEAD 200"}
    assert crawler.emitted[0].url == "https://me.github.io/docs/", "without a redirect"
    assert crawler.client.checked == ["https://me.github.io/logo.png"]
    assert crawler.client.trusted == {"https://me.github.io/logo.png": False}
    assert "1 URL requested" in crawler.lines()


def test_a_start_url_may_be_that_of_a_file_in_the_folder(tmp_path: Path) -> None:
    folder = files_in(tmp_path / "public", {
        "docs": "", "a/b.html": "<a href=/x>", "x.html": "<a href=b.html>", "index.html": ""})
    assert "/a/docs" in crawl_folder(folder, "/a/docs", depth=0).outcomes
    (folder / "b.html").touch()
    crawler = crawl_folder(folder, "/a/b.html?q", depth=0)
    assert crawler.outcomes["/a/b.html?q"] == "200"
    assert crawler.frontier.scope.folder is not None
    assert str(crawler.frontier.scope.folder.url) == "http://h/a/"


def test_robots_txt_of_a_folder_decides_what_is_read_and_asks_for_no_delay(tmp_path: Path) -> None:
    folder = files_in(tmp_path / "public", {
        "robots.txt": "User-agent: *\nDisallow: /no\nCrawl-delay: 10",
        "index.html": "<a href=no.html><a href=yes.html>", "no.html": "", "yes.html": ""})
    crawler = crawl_folder(folder, delay=7)
    assert crawler.outcomes == {
        "/": "200", "/yes.html": "200",
        "/no.html": "forbidden by robots.txt: Disallow: /no"}
    assert {(site.delay, site.pace) for site in crawler.frontier.sites.values()} == {(0, 0)}
    below = crawl_folder(
        folder, "http://h/docs/", site={"/robots.txt": "User-agent: *\nDisallow: /"})
    assert below.outcomes["/docs/no.html"] == "200"
    assert below.requested == []


def test_a_journal_neither_answers_for_a_folder_nor_takes_its_records_for_a_server(
        tmp_path: Path) -> None:
    folder = files_in(tmp_path / "public", {"index.html": "<a href=a.html>", "a.html": "new"})
    path = tmp_path / "journal"
    site: Site = {"/": "<a href=a.html>", "/a.html": ""}
    crawl_with_journal(path, site, folder=str(folder))
    assert crawl_with_journal(path, site).requested == ["/", "/a.html"]
    crawler = crawl_with_journal(path, site, folder=str(folder))
    assert crawler.records["/a.html"].size == 3
    assert crawl_with_journal(path, site).requested == ["/"]


def test_links_from_a_folder_lead_out_of_it_with_external(tmp_path: Path) -> None:
    folder = files_in(tmp_path / "public", {"index.html": "<a href=//o/a><a href=//o/gone>"})
    crawler = crawl_folder(folder, site={"http://o/a": ""}, external=True)
    assert crawler.outcomes == {
        "/": "200", "http://o/a": "HEAD 200", "http://o/gone": "GET 404 broken x2"}
    assert "2 URLs requested" in crawler.lines()


def test_a_crawl_of_a_folder_looks_up_no_name(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("a name"))
    monkeypatch.setattr(socket.socket, "connect_ex", lambda *_: pytest.fail("a connection"))
    folder = files_in(tmp_path / "public", {"index.html": "<a href=gone>", "old.html": ""})
    status, out, err = run_main("--folder", str(folder), "https://example.com/docs/")
    assert (status, err) == (1, "")
    assert f"3 files and URLs looked up in {folder}, 2 pages read\n" in out
    assert "no link leads to: old.html\n" in out


@each("argument, command", [
    ("public", "./public"), ("public/", "./public/"), ("docs/build", "./docs/build"),
    ("./public/index.html", "./public"), ("file:public", "./public"), ("file:///usr", "/usr"),
    ("file://localhost/usr", "/usr")])
def test_a_path_that_is_not_the_only_start_url_is_an_error_with_a_command_that_works(
        argument: str, command: str, folder: Path) -> None:
    files_in(folder, {"public/index.html": "", "docs/build/index.html": ""})
    assert run_main(argument) == (
        2, "", f"crawl.py: {argument!r} is not a URL; to check a folder, give it alone: crawl.py "
        f"{command}\n")


def test_a_folder_beside_another_start_url_is_an_error(folder: Path) -> None:
    files_in(folder, {"public/index.html": ""})
    for arguments in (["./public", "h"], ["h", "./public"], ["--folder", "public", "./public"]):
        assert run_main(*arguments) == (
            2, "", "crawl.py: './public' is not a URL; to check a folder, give it alone: "
            "crawl.py ./public\n")
    assert run_main("--folder", "public", "h", "g") == (
        2, "", "crawl.py: --folder needs one start URL, got 2\n")
    assert run_main("--folder", "", "h") == (2, "", "crawl.py: --folder: '' is not a folder\n")


@each("argument", ["example.com", "localhost"])
def test_a_folder_that_is_called_like_a_host_is_not_meant(argument: str, folder: Path) -> None:
    files_in(folder, {f"{argument}/index.html": ""})
    assert crawl.Crawler(argument)._roots[0].host == argument


def test_a_folder_may_be_the_only_argument(folder: Path, monkeypatch: Patch) -> None:
    files_in(folder, {"public/index.html": "<a href=http://localhost/a>", "public/a.html": ""})
    monkeypatch.setenv("HOME", str(folder))
    for argument in ("./public", f"{folder}/public/", "~/public"):
        status, out, err = run_main(argument)
        assert (status, err) == (0, "")
        assert "2 files and URLs looked up in " in out


# What it reports
# ===============


BROKEN: Site = {
    "/": "<a href=/a><a href=/secret><a href=/moved><a href=/found><a href=http://other.test/>",
    "/a": "".join(f"<a href=/a{number}>" for number in range(6)) + "<a href=/rare>",
    **{f"/a{number}": "<a href=/gone><a href=/moved>" for number in range(5)},
    "/a5": "<img src=/logo.png><a href=/file>" + "x" * 1_250_000,
    "/file": answer_of_type("text/plain"), "/secret": 403,
    "/moved": (301, {"location": "/moved2"}, ""), "/found": "-> /",
    "/moved2": (308, {"location": "/missing"}, "")}


def test_the_report_lists_problems_and_the_pages_on_which_they_were_found() -> None:
    crawler = crawl_site(BROKEN)
    lines = crawler.lines()
    problems = lines[: lines.index("")]
    assert problems == [
        "broken (4)", "  /gone", "    404 Words", "    found on /a0, /a1, /a2 and 2 more",
        "  /logo.png", "    404 Words", "    found on /a5", "  /missing", "    404 Words",
        "    redirected from /moved, /moved2", "    found on /, /a0, /a1 and 3 more",
        "  /rare", "    404 Words", "    found on /a", "blocked (1)", "  /secret",
        "    403 Words", "    found on /"]
    assert lines[len(problems) :] == [
        "", "17 URLs requested, 8 pages read",
        "statuses: 9 x 200, 1 x 301, 1 x 302, 1 x 308, 1 x 403, 4 x 404",
        "moved for good: 2 URLs", "not searched for links: 1 x text/plain",
        "not requested:", "           1  on another host                 --external",
        "5 problems on 8 pages, 1.0 s"]
    assert crawler.lines(brief=True) == problems


class Uneven(SimulatedClient):
    """Answers after delays that depend on *seed*, and records the requests."""

    def __init__(self, site: Site, seed: int) -> None:
        super().__init__(site)
        self.rng, self.order = Random(seed), dict[str, None]()

    async def fetch(self, url: crawl.URL, *arguments: Any, **options: Any) -> Any:
        self.order.setdefault(path_of(str(url)))
        await sleep(self.rng.random() * 5)
        return await super().fetch(url, *arguments, **options)


@each("seed", range(4))
def test_a_problem_names_all_redirects_and_pages_that_lead_there(seed: int) -> None:
    site = {
        "/": "<a href=/1><a href=/2><a href=/3>",
        "/1": "<a href=/old>", "/2": "<a href=/older>", "/3": "<a href=/gone>",
        "/old": "-> /gone", "/older": "-> /old", "/oldest": "-> /gone"}
    assert crawl_site(Uneven(site, seed)).lines(brief=True) == [
        "broken (1)", "  /gone", "    404 Words", "    redirected from /old, /older",
        "    found on /1, /2, /3"]
    site["/3"] = "".join(f"<a href=/old{number}>" for number in range(5))
    site |= {f"/old{number}": "-> /gone" for number in range(5)}
    assert crawl_site(Uneven(site, seed)).lines(brief=True)[-2:] == [
        "    redirected from /old, /old0, /old1 and 4 more", "    found on /1, /2, /3"]
    many = {f"/{101 + number * 37 % 190}": "<a href=/gone>" for number in range(190)}
    site = {"/": "".join(f"<a href={path}>" for path in many)} | many
    lines = crawl_site(Uneven(site, seed)).lines()
    assert "    found on /101, /102, /103 and 187 more" in lines


@each("path, roots, page", [("/gone", ["/gone", "/a"], "/a"), ("/a//b", ["/"], "/")])
def test_a_broken_start_url_and_an_oddly_spelled_url_are_reported(
        path: str, roots: list[str], page: str) -> None:
    crawler = crawl_site({"/a": "<a href=/gone>", "/": "<a href='/a//b'>"}, *roots)
    assert crawler.lines(brief=True) == [
        "broken (1)", f"  {path}", "    404 Words", f"    found on {page}"]


def test_a_broken_start_url_to_which_no_page_links_has_no_line_with_pages() -> None:
    assert crawl_site({}).lines(brief=True) == ["broken (1)", "  /", "    404 Words"]


def test_the_report_gives_the_error_of_a_start_url_under_its_url(site: Server, closed: int) -> None:
    site.add("/", "<a href=/gone>")
    down = f"http://127.0.0.1:{closed}/"
    status, out, err = run_main("--max-tries", "1", site.url, down)
    assert (status, err) == (1, "")
    assert f"  {down}\n    connection refused\n" in out
    assert "robots.txt" not in out


@each("error, words", [
    (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
     "connection reset by peer"),
    (OSError("plain"), "plain"),
    (OSError(), "OSError"),
    (ssl.SSLEOFError(8, "EOF in violation of protocol (_ssl.c:2580)"),
     "eof in violation of protocol"),
    (crawl.TruncatedError("a\x1b[31m"), "a%1B[31m"),
    (crawl.ProtocolError("x" * 999), "x" * crawl.MAX_SHOWN)])
def test_the_description_of_an_error_fits_on_a_line(error: Exception, words: str) -> None:
    assert crawl_site({"/": error}, max_tries=1).emitted[0].error == words


# broken
# ------


def test_references_that_are_not_urls_are_problems() -> None:
    crawler = crawl_site(
        {"/": "<a href='https://a b.com/'><a href=http://a.com:99999/><a href=htp://x/>"})
    assert crawler.lines(brief=True) == [
        "broken (3)", "  https://a b.com/", "    not a URL: 'a b.com' is not a host",
        "    found on /", "  htp://x/", "    not a URL: 'htp' is neither http nor https",
        "    found on /", "  http://a.com:99999/",
        "    not a URL: port 99999 is not between 0 and 65535", "    found on /"]


@each("link", [
    "http://http://example.com/", "https://https//x", "https://http//x", "//http://x",
    "http:\\\\https://x", "https://HTTPS:/x", "http:///http//x"])
def test_a_scheme_twice_is_broken(link: str) -> None:
    crawler = crawl_site({"/": f"<a href='{link}'>"})
    (record,) = [each for each in crawler.emitted if each.kind]
    assert (record.kind, record.parent) == ("broken", "http://h/")
    assert record.error == "not a URL: it has a scheme twice"


@each("answer, kind, tries", [
    (b"", "broken", 3),
    (OK + b"Content-Length: 9\r\n\r\nhalf", "broken", 3),
    (b"nonsense\r\n\r\n", "broken", 1),
    (OK + b"Content-Length: 99999999\r\n\r\n", "over a limit", 1)])
def test_a_malformed_response_is_a_record(site: Server, impatient: None, answer: bytes,
                                          kind: str, tries: int) -> None:
    site.answers["/"] = answer_and(answer, then=socket.socket.close)
    (record,) = crawl_servers(site.url).emitted
    assert (record.kind, record.tries, record.status) == (kind, tries, 0)
    assert record.error


@each("site, options, error", [
    ({"/": "-> /1", "/1": "-> /2"}, {"max_redirect": 1}, "more than 1 redirects in a row"),
    ({"/": "-> /1"}, {"max_redirect": 0}, "more than 0 redirects in a row"),
    ({"/": "-> /"}, {}, "redirect loop"),
    ({"/": "-> /a", "/a": "-> /"}, {}, "redirect loop"),
    ({"/": (302, {}, "")}, {}, "a redirect that leads nowhere: one Location was expected"),
    ({"/": (302, {"location": "/a\n/b"}, "")}, {},
     "a redirect that leads nowhere: one Location was expected"),
    ({"/": "-> file:///x"}, {}, "a redirect that leads nowhere: 'file' is neither http nor https")])
def test_a_redirect_that_fails_says_why(site: Site, options: dict[str, Any], error: str) -> None:
    records = crawl_site(site, **options).emitted
    assert [record.error.replace("http://h", "") for record in records if record.kind] == [error]


def test_a_gzipped_sitemap_that_lacks_its_end_is_broken_and_requested_again() -> None:
    cut = gzip.compress(b"<urlset><loc>http://h/1</loc></urlset>")[:-1]
    site: Site = {"/a.xml.gz": answer_of_type("application/gzip", cut), "/1": ""}
    crawler = crawl_site(site, "/a.xml.gz")
    assert crawler.outcomes == {"/a.xml.gz": "broken x3"}
    assert crawler.records["/a.xml.gz"].error == "the compressed body ends too early"


# bad certificate
# ---------------


@each("certificate, trusted, reason", [
    (EXPIRED, True, "(certificate has expired)"),
    (FOR_ANOTHER_HOST, True, "(Hostname mismatch, certificate is not valid for 'localhost'.)"),
    (CERTIFICATE.partition("-----END PRIVATE KEY-----\n")[2], False,
     "(self-signed certificate); set SSL_CERT_FILE=ca.pem to trust it")])
def test_a_certificate_that_is_not_valid_is_a_bad_certificate(
    certificate: str, trusted: bool, reason: str, tmp_path: Path, monkeypatch: Patch) -> None:
    path = tmp_path / "certificate.pem"
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
    with server_with_certificate(certificate, path) as server:
        (record,) = crawl_servers(server.url, no_robots=True).emitted
    assert (record.kind, record.tries) == ("bad certificate", 1)
    shown = record.error.replace("self signed", "self-signed")
    assert shown == f"certificate not trusted {reason}"


def test_the_error_of_a_handshake_names_no_line_of_openssl(site: Server, impatient: None) -> None:
    (record,) = crawl_servers(site.url.replace("http:", "https:"), no_robots=True).emitted
    assert record.kind == "refused"
    # The end of a handshake is an error, in words that depend on the version of OpenSSL.
    assert re.match(r"\[ssl: |tls/ssl connection has been closed", record.error)
    assert "_ssl.c" not in record.error


# over a limit
# ------------


@each("content_type, body", [
    ("text/html", "<a href=/{}>"),
    ("text/html", "<img src={}>"),
    ("text/html", "<img srcset='{} 1x, {} 2x'>"),
    ("text/html", "<style>p {{ background: url({}) }}</style>"),
    ("text/css", "p {{ background: url({}) }}"),
    ("application/xml", "<urlset><loc>http://h/{}</loc>")])
def test_a_page_with_too_many_references_is_over_a_limit(
        content_type: str, body: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(crawl, "MAX_REFERENCES", 4)
    monkeypatch.setattr(crawl, "MAX_LISTED", 4)
    response = crawl.Response(1, 200, "OK", {"content-type": content_type})

    def record_of(references: int) -> crawl.Record:
        numbers = range(1, references // body.count("{}") + 1)
        text = "".join(body.format(number, -number) for number in numbers)
        return crawl.result_of(BASE, response._replace(body=text.encode())).record

    within = record_of(4)
    assert within.kind == ""
    assert len(within.links + (within.assets or ())) == 4
    for references in (6, 8, 16):
        beyond = record_of(references)
        assert beyond.kind == "over a limit"
        assert beyond.error.startswith("more than 4 tags or")
        assert not beyond.links
        assert not beyond.assets
        assert beyond.status == 200


def test_a_page_with_a_long_path_and_many_references_is_over_a_limit() -> None:
    """A hostile page of a megabyte would otherwise become a gigabyte of URLs."""
    base = f"<base href=http://o/?{'a' * 7900}>"
    links = "".join(f"<a href={number}>" for number in range(1000))
    response = crawl.Response(1, 200, "OK", {"content-type": "text/html"}, (base + links).encode())
    record = crawl.result_of(BASE, response).record
    assert (record.kind, record.links) == ("over a limit", ())
    assert record.error == (
        "its path and query, times its 1000 relative references, exceed 6000000 characters")
    url = crawl.parse_url("/" + "a" * 7900, BASE)
    for loc, kind in ((b"<loc>http://h/</loc>", ""), (b"<loc>a</loc>", "over a limit")):
        body = b"<urlset>" + loc * 1000
        sitemap = response._replace(headers={"content-type": "text/xml"}, body=body)
        record = crawl.result_of(url, sitemap).record
        assert (record.kind, len(record.links)) == (kind, 0 if kind else 1000)


@each("path, kind", [("/" + "a" * 5999, ""), ("/" + "a" * 6000, "over a limit")])
def test_a_path_times_its_links_and_images_may_be_six_million_characters(
        path: str, kind: str) -> None:
    body = "<a href=x>" * 500 + "<img src=y>" * 500
    response = crawl.Response(1, 200, "OK", {"content-type": "text/html"}, body.encode())
    assert crawl.result_of(crawl.parse_url(path, BASE), response).record.kind == kind


@each("body, fields, size", [
    ("x" * 99, {}, 99),
    (gzip.compress(bytes(1000)), {"Content_Encoding": "gzip"}, 1000),
    ("<urlset>" + "<loc>" * 20, {"Content_Type": "text/xml"}, 108)])
def test_a_page_of_more_than_max_body_bytes_is_over_a_limit(
        body: Any, fields: dict[str, Any], size: int, site: Server) -> None:
    """Also if it is so only unpacked."""
    site.add("/", body, **fields)
    kinds = [crawl_servers(site.url, max_body=most).emitted[0].kind for most in (size - 1, size)]
    assert kinds == ["over a limit", ""]


@each("page, content_type", [
    ("<a href=/a>", "text/html"), ("<a href=/a>", CSS), ("<link rel=stylesheet href=/a>", CSS)])
def test_max_body_holds_for_pages_and_stylesheets(
        page: str, content_type: str, site: Server) -> None:
    site.add("/", page)
    site.add("/a", "x" * 99, Content_Type=content_type)
    kinds = [
        crawl_servers(site.url, max_body=most).records[f"{site.url}/a"].kind for most in (98, 99)]
    assert kinds == ["over a limit", ""]


@each("index, root", [
    pytest.param("", "/a.xml", id="a start URL"),
    pytest.param("<urlset><loc>/a.xml</loc>", "/", id="in a sitemap")])
def test_a_start_url_and_what_a_sitemap_lists_stay_over_a_limit(
        index: str, root: str, tmp_path: Path) -> None:
    folder = files_in(tmp_path / "public", {"index.html": index, "a.xml": "<urlset>" + " " * 1000})
    crawler = crawl_folder(folder, root, max_body=500)
    assert crawler.outcomes["/a.xml"] == "over a limit"


# too many redirects
# ------------------


@each_story({
    "redirects join and are not followed twice": (
        {"/": "<a href=/old><a href=/older><a href=/new>",
         "/old": (308, {"location": "new#fragment"}, ""), "/new": "",
         "/older": (301, {"location": "http://h/old"}, "")},
        {}, {"/": "200", "/old": "308", "/older": "301", "/new": "200"}),
    "as many redirects as max_redirect allows are followed": (
        {"/": "<a href=/b><a href=/a>", "/b": "-> /c", "/a": "-> /b", "/c": ""},
        {"max_redirect": 1, "max_tasks": 1},
        {"/": "200", "/b": "302", "/a": "302", "/c": "200"}),
    "each status of a redirect is followed, and no other": (
        {"/": "".join(f"<a href=/{status}>" for status in range(300, 309))}
        | {f"/{status}": (status, {"location": f"/to{status}"}, "") for status in range(300, 309)},
        {}, {path: path[1:] for path in map("/{}".format, range(300, 309))} | {"/": "200"}
        | {f"/to{status}": "404 broken" for status in (301, 302, 303, 307, 308)}),
    "a circle of redirects is a problem": (
        {"/": "<a href=/old>", "/old": "-> /a", "/a": "-> /b", "/b": "-> /a"}, {},
        {"/": "200", "/old": "302", "/a": "302", "/b": LOOP}),
    "a long circle of redirects is found": (
        {f"/{number}": f"-> /{(number + 1) % 102}" for number in range(102)}
        | {"/": "".join(f"<a href=/{number}>" for number in range(102))},
        {}, {"/": "200", **{f"/{number}": "302" for number in range(102)}, "/101": LOOP})})
def test_redirects_are_followed_once_up_to_a_limit_and_never_in_a_loop(story: Story) -> None:
    crawler = crawl_story(story)
    assert len(crawler.requested) == len(set(crawler.requested))


def test_too_many_redirects_name_the_pages_with_the_link() -> None:
    site = {"/": "<a href=/0>", "/0": "-> /1", "/1": "-> /2", "/2": "-> /"}
    assert crawl_site(site, max_redirect=2).lines(brief=True) == [
        "too many redirects (1)", "  /2", "    more than 2 redirects in a row",
        "    redirected from /0, /1", "    found on /"]


# ten or more URLs
# ----------------


def problems_of_an_outage(urls: list[str]) -> list[str]:
    """Return the problems of a page whose links to *urls* fail for the same reason."""
    down = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
    site: Site = dict.fromkeys(urls, down) | {"/": "".join(f"<a href={url}>" for url in urls)}
    return crawl_site(site, external=True, max_tries=1).lines(brief=True)


@each("count, times", [(9, 9), (10, 1)])
def test_ten_urls_without_a_response_give_one_reason_once(count: int, times: int) -> None:
    urls = [f"http://o/{number}" for number in range(count)]
    assert "\n".join(problems_of_an_outage(urls)).count("connection reset by peer") == times


def test_in_an_outage_only_the_urls_of_other_hosts_have_pages() -> None:
    first, ours, last = [
        [f"{host}/{number}" for number in range(4)] for host in ("http://g", "", "http://o")]
    assert problems_of_an_outage(first + ours + last) == [
        "refused (12)",
        "refused, 12 URLs: connection reset by peer",
        *[line for url in first for line in (f"  {url}", "    found on /")],
        *[f"  {url}" for url in ours],
        *[line for url in last for line in (f"  {url}", "    found on /")]]


# the other scheme
# ----------------


def test_a_400_gets_no_hint_over_https_or_if_it_is_not_a_start_url() -> None:
    link: Any = (400, {}, "use <a href=https://h/>")
    crawler = crawl_site({"/": "<a href=/a>", "/a": link, "https://o/": 400}, "/", "https://o/")
    errors = {path: record.error for path, record in crawler.records.items()}
    assert errors == {"/": "", "/a": "400 Words", "https://o/": "400 Words"}
    assert crawler.records["/a"].size == 0, "its body was not read"


def always_reply(site: Server, reply: bytes | None) -> str:
    """Let a server answer every connection with these bytes, or a reset (None). Return its host."""

    def serve(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            connection.recv(65536)
            if reply is None:
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            else:
                connection.sendall(reply)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(65536)

    setattr(site, "serve", serve)
    return f"localhost:{site.port}"


TLS_ALERT = b"\x15\x03\x01\x00\x02\x02\x16"
PLAIN_400 = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno"


@each("scheme, reply, why", [
    ("http://", TLS_ALERT, "an HTTP/1 status line was expected, not .*; try https://{}/"),
    ("", TLS_ALERT, "an HTTP/1 status line was expected, not .*; try https://{}/"),
    ("http://", b"\x80" * 99, "an HTTP/1 status line was expected, not .*; try https://{}/"),
    ("http://", None, "connection reset by peer"),
    ("https://", PLAIN_400, "the server does not speak TLS; try http://{}/"),
    ("", b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n",
     "http://{}/robots.txt: 503 Busy; --no-robots ignores robots.txt"),
    ("", b"HTTP/1.1 503 Busy; try later\r\nContent-Length: 0\r\n\r\n",
     "http://{}/robots.txt: 503 Busy; try later; --no-robots ignores robots.txt")])
def test_a_wrong_scheme_is_recognised_and_the_right_one_is_named(
        scheme: str, reply: bytes | None, why: str, site: Server) -> None:
    host = always_reply(site, reply)
    status, out, err = run_main("--max-tries", "1", f"{scheme}{host}")
    assert (status, out) == (2, "")
    url = re.escape(f"{scheme or 'http://'}{host}/")
    assert re.fullmatch(f"crawl.py: cannot crawl {url}: {why.format(host)}\n", err)


@each("scheme", ["", "http://"])
def test_a_start_url_over_http_that_answers_400_keeps_its_status_and_gets_a_hint(
        scheme: str, site: Server) -> None:
    host = always_reply(site, PLAIN_400)
    status, out, err = run_main("--max-tries", "1", f"{scheme}{host}")
    assert (status, err) == (1, "")
    assert f"  http://{host}/\n    400 Bad Request; try https://{host}/\n" in out
    assert "statuses: 1 x 400\n" in out


# Nothing is lost silently
# ------------------------


NOFOLLOW = "<meta name=robots content='noindex, nofollow'>"
NOT_READ: dict[str, tuple[Site, dict[str, Any], str]] = {  # a site, options, a line of the report
    "a URL that robots.txt forbids": (
        {"/": "<a href=/no>", "/robots.txt": "User-agent: *\nDisallow: /no"}, {},
        "           1  forbidden by robots.txt         --no-robots"),
    "a URL whose robots.txt failed": (
        {"/": "<a href=//a.h/>", "http://a.h/robots.txt": 503, "/robots.txt": ""},
        {"subdomains": True}, "           1  robots.txt failed               --no-robots"),
    "a page whose robots meta tag closes its links": (
        {"/": "<a href=/a>", "/a": f"{NOFOLLOW}<a href=/gone>"}, {},
        "           1  links not followed (nofollow)   --no-robots"),
    "a URL that is too deep": (
        {"/": "<a href=/a>", "/a": "<a href=/b><a href=/c>"}, {"depth": 1},
        "           2  too many links from the start   --depth"),
    "a page beyond the limit": (
        site_of_pages(5), {"max_pages": 3},
        "           1  over the page limit             --max-pages"),
    "an asset beyond the limit": (
        {"/": "<img src=/1><img src=/2>", "/1": ""}, {"max_pages": 1},
        "           1  over the page limit             --max-pages"),
    "a link to another host": (
        {"/": "<a href=//o/><a href=//o/#x>"}, {},
        "           1  on another host                 --external"),
    "a page that is not included": (
        site_of_pages(4), {"include": "2"},
        "           2  not included                    --external"),
    "a URL that is excluded": (
        {"/": "<a href=/a.pdf><img src=/b.pdf><a href='htp://x.pdf/'>"}, {"exclude": "pdf"},
        "           3  excluded                        --exclude"),
    "a URL with another scheme": (
        {"/": "<a href=tel:1><a href=tel:2><a href=slack://x>"}, {}, "           2  tel URL"),
    "a URL that is too long": (
        {"/": f"<a href=/{'x' * crawl.MAX_URL}>"}, {}, "           1  longer than 8000 characters"),
    "a fragment whose page was not read": (
        {"/": "<a href=/a.txt#x>", "/a.txt": answer_of_type("text/plain")},
        {"fragments": True}, "           1  fragment not checked"),
    "a page of a type that has no reader": (
        {"/": "<a href=/a><a href=/b><a href=/c>", "/a": answer_of_type("text/plain"),
         "/b": answer_of_type("Application/PDF ; x=y"), "/c": answer_of_type("text/plain")},
        {}, "not searched for links: 1 x application/pdf, 2 x text/plain"),
    "a page over a limit": (
        {"/": "<a href=/a>", "/a": crawl.LimitError("a body of more than 9 bytes (max_body)")},
        {}, "    a body of more than 9 bytes (max_body)"),
    "text that is not a URL": (
        {"/": "<a href='http://a b/'>"}, {}, "    not a URL: 'a b' is not a host")}


@each("site, options, line", [pytest.param(*case, id=claim) for claim, case in NOT_READ.items()])
def test_the_report_has_a_line_for_everything_that_was_not_read(
        site: Site, options: dict[str, Any], line: str) -> None:
    assert line in crawl_site(site, **options).lines()


@each("body", [
    "<rss><loc>Berlin</loc></rss>", "<feed><link href='/no'/></feed>",
    "<xsl:stylesheet><a href='/no'/></xsl:stylesheet>", "<Error><Code>NoSuchKey</Code></Error>"])
def test_xml_with_another_root_element_is_counted_and_not_requested_again(
        body: str, tmp_path: Path) -> None:
    site: Site = {"/": "<a href=/p>", "/p": answer_of_type("text/xml", body)}
    for requested in (["/", "/p"], ["/"]):
        crawler = crawl_with_journal(tmp_path / "journal", site)
        assert crawler.outcomes == {"/": "200", "/p": "200"}
        assert "not searched for links: 1 x text/xml" in crawler.lines()
        assert crawler.requested == requested


@each("path, content_type, shown", [
    ("/a.xml", "application/xml", "application/xml"), ("/dump.xml.gz", "application/gzip",
     "application/gzip"), ("/x", "", "?")])
def test_a_download_that_is_too_large_to_search_has_a_row_of_its_own(
        path: str, content_type: str, shown: str, site: Server, tmp_path: Path) -> None:
    field = f"Content-Type: {content_type}\r\n" if content_type else ""
    head = f"HTTP/1.1 200 OK\r\n{field}Content-Length: 20000000\r\n\r\n".encode()
    site.answers[path] = answer_and(head, say_nothing)  # there is no body to read
    site.add("/", f"<a href={path}>")
    journal = tmp_path / "journal"
    for _ in range(2):
        status, out, err = run_main("-o", str(journal), "--resume", site.url)
        assert (status, err) == (0, "")
        assert f"too large to search: 1 x {shown}    --max-body\n" in out
    site.answers[path] = f"HTTP/1.1 200 OK\r\n{field}Content-Length: 99\r\n\r\n{'x':99}".encode()
    status, out, err = run_main("-o", str(journal), "--resume", "--max-body", "99", site.url)
    assert "too large" not in out


def test_urls_that_are_left_out_are_emitted_at_the_end() -> None:
    crawler = crawl_site(
        {"/": "<a href=/a><a href=/b><a href=//o/>", "/a": "-> /excluded", "/b": "-> /forbidden",
         "/robots.txt": "User-agent: *\nDisallow: /forbidden"},
        exclude="excluded")
    assert list(crawler.records) == ["/", "/a", "/b", "/forbidden", "http://o/", "/excluded"]
    assert crawler.emitted[-1] == crawl.Record(
        "http://h/excluded", skipped="excluded", parent="http://h/a", depth=1)


def test_links_and_assets_that_have_moved_for_good_are_counted(tmp_path: Path) -> None:
    moved = {"location": "/new"}
    site: Site = {
        "/": (308, {"location": "/home"}, ""),
        "/home": "<a href=/a><img src=/b><a href=/c>",
        "/a": (301, moved, ""), "/b": (308, moved, ""), "/c": (302, moved, ""), "/new": ""}
    for _ in range(2):  # the second time, the journal has most of the results
        crawler = crawl_with_journal(tmp_path / "journal", site)
        assert "moved for good: 2 URLs" in crawler.lines()
    assert not any("moved" in line for line in crawl_site({"/": ""}).lines())


@each("page, leads_on", [
    ("<img src=/i><div id=app></div>", False),
    ("<a href=#main>Skip</a><a href=/>Home</a><a href=''>", False),
    ("<noscript>This needs <a href=https://enable-javascript.com/>JavaScript</a>", False),
    ("<a href=mailto:me@h><a href=javascript:open()><a href='http://[x'>", False),
    ("<a href=/i>", True), ("<a href=/1#x>", True), ("<a href=//h:80/1>", True),
    ("<meta name=robots content=nofollow><a href=#x>", True)])
@each("options", [{}, {"external": True}, {"fragments": True}, {"depth": 0}, {"pages_only": True}])
def test_a_start_page_that_leads_to_no_other_page_is_named(
        page: str, leads_on: bool, options: dict[str, Any]) -> None:
    site: Site = {"/": page, "/i": "", "/1": "", "http://o/": "<a href=/2>", "http://o/2": ""}
    lines = crawl_site(site, "/", "http://o/", **options).lines()
    named = [line for line in lines if "no links" in line]
    assert named == ["no links found on / to other pages of the site: does it need JavaScript, or "
                     "was another page meant?"] * (not leads_on)


# Exit status
# ===========


def test_a_site_without_problems_is_status_0(site: Server) -> None:
    site.add("/")
    status, out, _ = run_main(site.url)
    assert status == 0
    assert "1 page read" in out
    assert run_main("-q", site.url) == (0, "", "")


def test_what_was_skipped_or_has_moved_does_not_make_status_1(site: Server) -> None:
    site.add("/robots.txt", "User-agent: *\nDisallow: /no")
    site.add("/", "<a href=/no><a href=mailto:me><a href=/old><a href=/pdf>")
    site.add_redirect("/old", "/", 301)
    site.add("/pdf", Content_Type="application/pdf")
    status, out, _ = run_main(site.url)
    assert status == 0
    for line in ("1  forbidden by robots.txt", "1  mailto URL", "moved for good: 1", "1 x app"):
        assert line in out


@each("environment", SURROUNDINGS)
def test_wrong_use_is_status_2_in_any_alphabet(environment: dict[str, str]) -> None:
    done = run_in_shell("crawl --depth $(printf 'caf\\303\\251') h", **environment)
    assert done.returncode == 2
    assert "try --help" in done.stderr


@full_disk
@each("streams", ["2>/dev/full", "2>&-"])
def test_wrong_use_is_status_2_if_nobody_can_be_told(streams: str) -> None:
    assert run_in_shell(f"crawl --nonsense h {streams}").returncode == 2


@each("arguments, complaint", [
    (["http://[x"], "'http://[x' cannot be crawled: '[x' is not a host"),
    (["http://localhost:99999/"],
     "'http://localhost:99999/' cannot be crawled: port 99999 is not between 0 and 65535"),
    (["ftp:/h/"], "'ftp:/h/' cannot be crawled: ftp URL: neither http nor https"),
    (["HTTP:h"], "'HTTP:h' cannot be crawled: expected // after http:"),
    (["https://user:pass/word@h/"], "'***@h/' cannot be crawled: it is not a URL"),
    (["hhttps://h/"], "'hhttps://h/' cannot be crawled: 'hhttps' is neither http nor https"),
    (["-o", "/no/folder/x", "h"], "/no/folder/x cannot be opened: no such file or directory"),
    (["--exclude", "(", "h"],
     "--exclude '(' is not a regular expression: missing ), unterminated subpattern "
     "at position 0"),
    (["--include", "b", "--include", r"a\.(", "h"],
     r"--include 'a\\.(' is not a regular expression: missing ), unterminated subpattern "
     "at position 3"),
    (["--timeout", "inf", "h"], "--timeout must be less than 2**40, got inf"),
    (["-H", "Foo Bar: secret", "h"],
     "-H: the header that begins with 'Foo' has a name that is not a field name"),
    (["--header", "host: secret", "h"], "-H: the header that begins with 'Host' cannot be set"),
    (["-H", "Cookie: secret\n", "-H", "Cookie: secret\nx", "h"],
     "-H: the header that begins with 'Cookie' has a value that is not printable"),
    (["-H", "X: a\tb", "h"],
     "-H: the header that begins with 'X' has a value that is not printable"),
    (["-H", "Cookie secret=x; url=http://x", "h"],
     "-H: the header that begins with 'Cookie' has a name that is not a field name"),
    (["-H", "Cookie=secret", "h"],
     "error: argument -H/--header: a header is 'Name: value', but there is no colon; try --help"),
    *[
        (["--accept", text, "h"],
         "error: argument --accept: statuses with commas between them were expected, not "
         f"{text!r}; try --help")
        for text in ("403;999", "4xx", "", "403,", "-1", "403, 999")],
    *[
        (["--accept", "403", "--accept", f"404,{status}", "h"],
         f"--accept takes statuses from 400 to 999, got {status}")
        for status in (200, 399, 1000)],
    *[
        ([url], f"{shown} contains a user name; send it with -H 'Authorization: Basic ...' instead "
         "(base64 of user:password)")
        for url, shown in [("http://me:secret@h/", "'***@h/'"), ("me:secret@h:80/@x", "'***@x'")]],
    (["./nowhere"], "'./nowhere' is not a URL; there is no such folder"),
    (["~/site\x1b[31m"], r"'~/site\x1b[31m' is not a URL; there is no such folder"),
    (["--folder", "nowhere", "h"], "--folder: 'nowhere' is not a folder"),
    (["--known", "nowhere", "h"], "nowhere cannot be read: no such file or directory"),
    (["--known", "a\0b", "h"], "a%00b cannot be read: embedded null byte"),
    (["-K", "nowhere", "h"], "nowhere cannot be read: no such file or directory"),
    (["--resume", "h"], "error: --resume needs -o FILE; try --help"),
    (["-o", "-", "--resume", "h"], "error: --resume needs -o FILE; try --help"),
    ([], "error: the following arguments are required: URL; try --help"),
    (["--max-tasks", "x", "h"], "error: argument --max-tasks: invalid int value: 'x'; try --help"),
    (["--timeout", "x", "h"], "error: argument --timeout: invalid float value: 'x'; try --help"),
    *[
        ([option, "h"], f"error: unrecognized arguments: {option}; try --help")
        for option in ("--nonsense", "--recheck", "--user-agent", "--max_tasks", "--max-p")],
    pytest.param(
        ["--x\x1b\udcff", "h"], "error: unrecognized arguments: --x%1B?; try --help",
        id="an argument that is not printable"),
    (["http://localhost/", "--exclude", "cal"],
     "--exclude 'cal' leaves out the start URL http://localhost/")])
def test_invalid_arguments_are_status_2_and_say_what_is_wrong(
        arguments: list[str], complaint: str) -> None:
    assert run_main(*arguments) == (2, "", f"crawl.py: {complaint}\n")


def test_each_start_url_that_fails_has_a_line() -> None:
    long = f"127.0.0.1:2/{'a' * 300}"
    status, out, err = run_main("--max-tries", "1", "http://127.0.0.1:1", "h.invalid", long)
    assert (status, out) == (2, "")
    assert sorted(err.splitlines()) == [
        "crawl.py: cannot crawl http://127.0.0.1:1/: connection refused",
        f"crawl.py: cannot crawl http://{long}: connection refused",
        "crawl.py: cannot crawl https://h.invalid/: host not found"]


@each("seconds", [(1, 9), (9, 1)])
def test_lines_about_start_urls_are_in_the_order_of_the_command_line(
        seconds: tuple[int, int]) -> None:
    first, second = seconds
    site: Site = {
        "/a": slow_answer(first), "http://o/b": "-> /c", "http://o/c": slow_answer(second)}
    named = [line for line in crawl_site(site, "/a", "http://o/b").lines() if "no links" in line]
    assert [line.split()[4] for line in named] == ["/a", "http://o/c"]
    site = {
        "/a": slow_answer(first, content_type="text/plain"),
        "http://o/b": slow_answer(second, content_type="text/plain")}
    failures = [*crawl_site(site, "/a", "http://o/b").report.failures()]
    assert [line.split()[2] for line in failures] == ["http://h/a:", "http://o/b:"]


@each("options, answer, why", [
    ([], {"body": "%PDF", "Content_Type": "application/pdf"},
     "/: expected a page, got 200 application/pdf"),
    (["--exclude", "login"], {"body": "", "status": 302, "Location": "/login"},
     "/login: excluded; --exclude changes that"),
    (["--max-body", "9"], {"body": "x" * 10}, "/: the body exceeds 9 bytes (max_body)")])
def test_a_start_url_without_a_readable_page_is_status_2(
        options: list[str], answer: dict[str, Any], why: str, site: Server) -> None:
    site.add("/", **answer)
    line = f"crawl.py: cannot crawl {site.url}{why}\n"
    assert run_main("--max-tries", "1", *options, site.url) == (2, "", line)


def test_a_start_url_that_must_not_be_followed_is_status_2(site: Server) -> None:
    site.add("/", f"{NOFOLLOW}<a href=/gone><a href=/lost>")
    assert run_main(site.url) == (
        2, "", f"crawl.py: cannot crawl {site.url}/: links not followed (nofollow); --no-robots "
        "changes that\n")
    assert run_main("--no-robots", site.url)[0] == 1
    site.add("/", f"{NOFOLLOW}<a href=/gone><img src=/lost.png>")
    assert run_main(site.url)[0] == 1, "its assets are checked"
    site.add("/", f"{NOFOLLOW}no link")
    assert run_main(site.url)[0] == 0, "nothing is lost"


def test_a_start_url_that_redirects_to_a_server_that_is_down_has_a_problem(site: Server) -> None:
    site.add_redirect("/", "http://127.0.0.1:1/")
    status, out, _ = run_main("--max-tries", "1", site.url)
    assert status == 1
    assert "    connection refused\n    redirected from" in out


@each("error, status, said", [
    pytest.param(BrokenPipeError(), 1, "", id="a reader that has left"),
    pytest.param(OSError(errno.ENOSPC, "Full"), 2, "crawl.py: full\n", id="a full disk")])
def test_the_status_tells_why_the_report_cannot_be_written(
        error: OSError, status: int, said: str, site: Server) -> None:
    class Stdout(io.StringIO):
        def flush(self) -> None:
            raise error

    site.add("/")
    with redirect_stdout(Stdout()), redirect_stderr(io.StringIO()) as errors:
        assert crawl.main([site.url]) == status
    assert errors.getvalue() == said


@full_disk
def test_a_full_disk_is_status_2_and_a_reader_that_left_status_1(site: Server) -> None:
    site.add("/")
    done = run_in_shell(f"crawl {site.url} >/dev/full")
    assert (done.returncode, done.stderr) == (2, "crawl.py: no space left on device\n")
    assert run_in_shell("crawl --version >/dev/full").returncode == 2
    assert run_in_shell(f"{{ crawl {site.url}; echo $? >&2; }} | true").stderr == "1\n"


def test_an_exception_that_nobody_expected_is_a_traceback_and_status_2(
        site: Server, monkeypatch: Patch) -> None:
    def fail(*arguments: Any) -> None:
        raise MemoryError("enough")

    site.add("/")
    monkeypatch.setattr(crawl, "read_markup", fail)
    monkeypatch.setitem(crawl._READERS, "text/html", fail)
    status, out, err = run_main(site.url)
    assert status == 2
    assert out.startswith("interrupted: 0 queued; in flight: ")
    assert err.startswith("Traceback (most recent call last):")
    assert err.endswith("MemoryError: enough\n")


def test_a_crawl_without_descriptors_closes_idle_connections_and_tries_again() -> None:
    closed = list[float]()

    class Client(SimulatedClient):
        def close(self) -> None:
            closed.append(get_running_loop().time())

    for code in (errno.EMFILE, errno.ENFILE):
        site = {"/": [OSError(code, "Too many open files"), ""]}
        assert crawl_site(Client(site)).outcomes == {"/": "200 x2"}
    assert closed == [0.125, 1.25] * 2, "after the failure, and at the end"


def test_a_crawl_that_runs_out_of_descriptors_stops_and_says_so(site: Server) -> None:
    site.add("/", "".join(f"<a href=/{number}>" for number in range(60)))
    site.answers |= {f"/{number}": say_nothing for number in range(60)}
    done = run_program("--max-tasks", "60", "--max-tries", "1", site.url,
                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32)))
    assert done.returncode == 2
    assert "oo many open files" not in done.stdout
    assert done.stderr == (
        "crawl.py: too many open files: raise the limit (ulimit -n) or lower --max-tasks\n")
    assert " requested, " in done.stdout


async def test_running_out_of_descriptors_for_robots_txt_stops_the_crawl() -> None:
    _, task = crawler_and_task({"/robots.txt": OSError(errno.EMFILE, "Too many open files")})
    with raises(crawl.CrawlError, match="too many open files"):
        await task


# Ctrl-C
# ------


@each("columns, width", [(70, 70), (0, 80)])  # some terminals do not know their size
def test_a_terminal_shows_progress_in_one_line(columns: int, width: int, site: Server,
                                               monkeypatch: Patch) -> None:
    def answer_when_that_was_shown_twice(connection: socket.socket, request: str) -> None:
        for _ in range(60_000):
            if shown.count(b"2 done, 0 queued, 1 problem ") > 1:
                break
            time.sleep(0.001)
        connection.sendall(with_body(b""))

    shown = bytearray()
    long = "/" + "x" * 100
    site.add("/", f"<a href=/gone><a href={long}><a href=/later>")
    site.answers |= dict.fromkeys([long, "/later"], answer_when_that_was_shown_twice)
    monkeypatch.setattr(crawl, "PROGRESS", 0.01)
    *states, end = terminal_output(
        site.url, stream="stderr", columns=columns, shown=shown).split("\r\x1b[K")[1:]
    assert end == ""
    assert not [state for state in states if "\n" in state]
    assert max(map(len, states)) == width - 1
    pattern = r"2 done, 0 queued, 1 problem \d+\.\d s http://localhost:\d+/x"  # not /later
    assert [state for state in states if re.match(pattern, state)]


@each("option", ["-v", "-q"])
def test_quiet_and_verbose_show_no_progress(option: str, site: Server) -> None:
    site.add("/")
    assert "0 queued" in terminal_output(site.url, stream="stderr")
    assert "queued" not in terminal_output(site.url, option, stream="stderr")


@each("arguments, status", [((), 130), ((signal.SIGTERM,), 143)])
def test_a_signal_before_the_crawl_ends_the_program_without_a_report(
        arguments: tuple[Any, ...], status: int, monkeypatch: Patch) -> None:
    def interrupted(story: Any) -> None:
        story.close()
        raise KeyboardInterrupt(*arguments)

    monkeypatch.setattr(crawl, "run", interrupted)
    assert run_main("http://h/") == (status, "", "")


@each("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_crawl_with_a_report_and_a_journal(
        number: int, status: int, site: Server, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    process = interrupted_crawl(site, "-o", str(path), "--max-tasks", "1")
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (status, "")
    assert out.startswith(f"interrupted: 1 queued; in flight: {site.url}/silent\n")
    assert [record["url"] for record in journal_lines(path)] == [site.url + "/"]


@each("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@each("arguments", [["-v"], []])
def test_a_second_signal_ends_a_program_that_nobody_reads(
        number: int, status: int, arguments: list[str], site: Server) -> None:
    site.add(
        "/", "".join(f"<a href=http://exa%20mple{number}/{'x' * 180}>" for number in range(4000)))
    reader, writer = os.pipe()
    process = subprocess.Popen([sys.executable, str(HERE / "crawl.py"), site.url, *arguments],
                               stdout=writer, stderr=writer)
    while select.select([], [writer], [], 0)[1]:  # until the pipe is full
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    with suppress(subprocess.TimeoutExpired):
        process.wait(0.1)  # where no crawl goes on (any more), the first is enough
    process.send_signal(number)
    assert process.wait(timeout=60) == status
    os.close(reader)
    os.close(writer)


@each("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_the_caller_ignores_stays_ignored(number: int, site: Server) -> None:
    def interrupt(connection: socket.socket, request: str) -> None:
        process.send_signal(number)
        connection.sendall(with_body(b"", b"Content-Type: text/html"))

    site.answers["/"] = interrupt
    process = subprocess.Popen(
        [sys.executable, str(HERE / "crawl.py"), site.url], stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_IGN))
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.startswith("1 URL requested, 1 page read")


def test_a_ctrl_c_in_any_tick_of_a_crawl_gives_a_report(monkeypatch: Patch) -> None:
    site: Site = {"/": slow_answer(0, "<a href=/1><img src=/2>"), "/1": slow_answer(0), "/2": 404}
    monkeypatch.setattr(crawl, "Client", lambda *_: SimulatedClient(site))
    tick = crawl.EventLoop.tick
    numbers = itertools.count()
    interrupted_at = -1

    def interrupting_tick(loop: crawl.EventLoop) -> None:
        if next(numbers) == interrupted_at:
            signal.raise_signal(signal.SIGINT)
        tick(loop)

    monkeypatch.setattr(crawl.EventLoop, "tick", interrupting_tick)
    status, out, _ = run_main("--no-robots", "http://h/")
    ticks = next(numbers)
    assert status == 1
    assert "1 problem on 2 pages" in out
    assert ticks > 20
    statuses = Counter[int]()
    for interrupted_at in range(1, ticks):  # in tick 0 the crawl has not begun
        numbers = itertools.count()
        status, out, err = run_main("--no-robots", "http://h/")
        statuses[status] += 1
        assert re.search(r"[0-9] problems? on [0-9] pages?, [0-9.]+ s\n$", out)
        assert not err
    # In one tick the crawl ends before it can be cancelled.
    assert statuses == {130: ticks - 2, 1: 1}


async def test_the_report_of_a_cancelled_crawl_names_urls_in_flight() -> None:
    crawler, task = crawler_and_task(
        site_of_pages(9) | {f"/{number}": slow_answer(9) for number in range(1, 9)}, max_tasks=4)
    await sleep(0.5)
    await cancel_crawl(task)
    assert crawler.outcomes == {"/": "200"}
    assert crawler.lines()[0] == "interrupted: 4 queued; in flight: /1, /2, /3 and 1 more"


async def test_the_report_of_a_cancelled_crawl_counts_urls_that_wait_for_a_delay() -> None:
    crawler, task = crawler_and_task(site_of_pages(9), delay=5)
    await sleep(7)
    await cancel_crawl(task)
    assert crawler.lines()[0] == "interrupted: 7 queued; in flight: none"


@each("roots, waiting", [(["/"], 2), (["/1", "/slow"], 1), (["/i", "/slow"], 1)])
async def test_the_report_of_a_cancelled_crawl_counts_urls_that_wait_for_a_round(
        roots: list[str], waiting: int) -> None:
    crawler, task = crawler_and_task(
        {"/": "<a href=/1><img src=/i>", "/1": 503, "/slow": slow_answer(9)}, *roots)
    await sleep(0.4)
    await cancel_crawl(task)
    assert crawler.num_waiting() == waiting


async def test_urls_that_wait_for_a_retry_are_queued_and_not_in_flight() -> None:
    site = site_of_pages(501) | {
        f"/{number}": [(503, {"retry-after": "300"}, ""), ""] for number in range(1, 501)}
    crawler, task = crawler_and_task(site)
    await sleep(100)
    assert crawler.in_flight == {}
    assert crawler.num_waiting() == 500
    assert crawler.fetches() == []
    assert crawler.describe().endswith("\n0 in flight, 500 queued")
    assert crawler.lines()[0] == "interrupted: 500 queued; in flight: none"
    await task
    assert crawler.num_waiting() == 0


async def test_a_crawl_interrupted_while_the_links_of_its_start_urls_are_admitted_says_so() -> None:
    links = "".join(f"<a href=mailto:{number}@h>" for number in range(20 * crawl.SLICE))
    crawler, task = crawler_and_task({"/": links})
    await sleep(0.125)  # until the page has arrived
    while "mailto:0@h" not in crawler.seen_urls:
        await sleep(0)
    await cancel_crawl(task)
    assert crawler.lines()[0] == "interrupted: 0 queued; in flight: /"


async def test_an_interrupted_resumed_crawl_never_counts_less_than_no_requests(
        tmp_path: Path) -> None:
    """Whatever the tick: the loop ticks while the links of a page are admitted."""
    path = tmp_path / "journal"
    links = "".join(f"<a href=/{number}>" for number in range(crawl.SLICE))
    site: Site = {"/": links} | {f"/{number}": links for number in range(crawl.SLICE)}

    async def crawl_for(seconds: float, ticks: int) -> list[str]:
        with closing(crawl.Journal(str(path), resume=True)) as journal:
            crawler, task = crawler_and_task(site, journal=journal)
            await sleep(seconds)
            for _ in range(ticks):
                await sleep(0)
            task.cancel()
            with suppress(CancelledError):
                await task
            return crawler.lines()

    await crawl_for(100, 0)
    for ticks in range(20):
        lines = await crawl_for(0.125, ticks)  # the root has just answered
        assert [line for line in lines if line.startswith("interrupted: ")]
        (requested,) = [line for line in lines if " requested, " in line]
        assert re.match("[0-9]+ URLs? requested", requested)


def answer_after_sigquit(connection: socket.socket, request: str) -> None:
    """Send SIGQUIT to this program, and answer once it has printed the state of its crawl."""
    os.kill(os.getpid(), signal.SIGQUIT)
    for _ in range(500):
        if "in flight" in cast(io.StringIO, sys.stderr).getvalue():
            break
        time.sleep(0.01)
    connection.sendall(with_body(b"", b"Content-Type: text/html"))


def test_sigquit_prints_where_the_crawl_waits_and_the_crawl_goes_on(site: Server) -> None:
    site.add("/", "".join(f"<a href=/{number}>" for number in range(9)))
    for number in range(9):
        site.add(f"/{number}")
    site.answers["/0"] = answer_after_sigquit
    before = signal.getsignal(signal.SIGQUIT)
    status, out, err = run_main("--max-tasks", "1", site.url)
    *tasks, fetch, state = err.splitlines()
    assert [line for line in tasks if "crawl.py:" in line and " in Client." in line]
    assert re.fullmatch(rf"\d+\.\d s {re.escape(site.url)}/0", fetch)
    assert state == "1 in flight, 8 queued"
    assert status == 0
    assert out.startswith("10 URLs requested, 10 pages read")
    assert signal.getsignal(signal.SIGQUIT) == before


# Options
# =======


def test_file_and_readme_name_the_same_options() -> None:
    table = re.findall(r"^\| `(--?[a-zA-Z-]+)", project_file("README.md"), re.MULTILINE)
    shown = re.findall(r"^  (--?[a-zA-Z-]+)", run_program("--help").stdout, re.MULTILINE)
    assert set(table) == set(shown) - {"-h"}


def test_the_readme_says_the_defaults_of_the_options() -> None:
    defaults = crawl.Options()._asdict() | {"depth": crawl.MAX_DEPTH}
    rows = re.findall(
        r"^\| `--([a-z-]+) (?:N|S|BYTES)` .*\| (\d+) \|$", project_file("README.md"), re.MULTILINE)
    assert {name.replace("-", "_"): float(value) for name, value in rows} == {
        name: defaults[name] for name in crawl._LEAST}


ARGUMENTS = [
    ("--depth=7", "depth", 7), ("--max-pages=7", "max_pages", 7),
    ("--include=7", "include", ["7"]), ("--exclude=7", "exclude", ["7"]),
    ("--subdomains", "subdomains", True), ("--external", "external", True),
    ("--fragments", "fragments", True), ("--moved", "moved", True),
    ("--folder=7", "folder", "7"), ("--accept=403,999", "accept", [403, 999]),
    ("--no-robots", "no_robots", True), ("--pages-only", "pages_only", True),
    ("--max-tasks=7", "max_tasks", 7), ("--max-redirect=0", "max_redirect", 0),
    ("--max-tries=7", "max_tries", 7), ("--max-body=7", "max_body", 7),
    ("--timeout=0.7", "timeout", 0.7), ("--delay=0.00", "delay", 0.0),
    ("--delay=3", "delay", 3.0), ("-HX:7", "headers", {"X": "7"})]


@each("option, name, value", ARGUMENTS)
def test_each_option_sets_one_argument_of_the_crawler(
        option: str, name: str, value: object, monkeypatch: Patch) -> None:
    given: dict[str, Any] = {}

    def crawler(roots: list[str], **options: Any) -> None:
        given.update(options)
        raise crawl.CrawlError("seen enough")

    defaults: dict[str, Any] = {
        **crawl.Options()._asdict(), "headers": {}, "include": [], "exclude": [], "accept": []}
    monkeypatch.setattr(crawl, "Crawler", crawler)
    assert run_main("h", option, "other") == (2, "", "crawl.py: seen enough\n")
    assert given.pop("on_record") is not defaults.pop("on_record")
    assert given == defaults | {name: value}


def test_the_command_line_has_the_options_of_the_crawler() -> None:
    named = {name for _, name, _ in ARGUMENTS}
    assert named == set(crawl.Options._fields) - {"journal", "on_record", "on_page"}, (
        "add a row to ARGUMENTS")
    shown = set(re.findall(r"^  --([a-z-]+)", run_program("--help").stdout, re.MULTILINE))
    options = {name.replace("_", "-") for name in crawl.Options._fields}
    by_other_names = {"headers", "journal", "on-record", "on-page"}
    assert options - shown == by_other_names
    assert shown - options == {"resume", "known"}


def test_help_fits_on_a_terminal_and_says_what_the_exit_status_means() -> None:
    done = run_program("--help")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert len(lines) <= 66, "make the text of an option shorter"
    assert max(map(len, lines)) <= 80
    groups = ["what to crawl:", "what to check:", "how to request:", "output:", "examples:"]
    assert [line for line in lines if line in groups] == groups
    end = ("Exit status: 0 no problems, 1 problems, 2 cannot crawl, 130 Ctrl-C, 143 SIGTERM. "
           "Ctrl-\\ prints what the crawl is waiting for, and the crawl goes on.")
    assert end in " ".join(done.stdout.split())


@each("name, value", [
    *[(name, math.floor(least) if name == "timeout" else least - 1)
      for name, least in crawl._LEAST.items()],
    ("delay", math.nan)])
def test_a_number_that_is_too_small_is_refused_with_the_name_of_its_option(
        name: str, value: Any) -> None:
    option = name.replace("_", "-")
    with raises(crawl.CrawlError, match=f"^--{option} must be at least .*, got {value}"):
        crawl.Crawler("http://h/", **{name: value})


# --depth
# -------


@each("depth, waits", [(2, True), (99, True), (100, False), (101, True)])
def test_with_any_depth_but_100_a_level_waits_for_the_one_before(depth: int, waits: bool) -> None:
    crawler = crawl_site(
        {"/": "<a href=/slow><a href=/a>", "/slow": slow_answer(9), "/a": "<a href=/b>", "/b": ""},
        depth=depth)
    assert [moment > 9 for moment in request_times(crawler, "/b")] == [waits]


def test_links_to_other_hosts_are_checked_however_deep_they_are() -> None:
    pages = {f"/{n}": f"<a href=/{n + 1}><a href=//o/{n}>" for n in range(9)}
    outcomes = crawl_site(pages, "/0", external=True, depth=8).outcomes
    assert {outcomes[f"http://o/{n}"] for n in range(9)} == {"GET 404 broken x2"}


# --max-pages
# -----------


@each_story({
    "checks have a limit as well": (
        {"/": "<img src=/1><img src=/2><img src=/3>", "/1": "", "/2": ""}, {"max_pages": 2},
        {"/": "200", "/1": "HEAD 200", "/2": "HEAD 200", "/3": "over the page limit"}),
    "stylesheets that import one another have a limit": (
        {f"/{number}": answer_of_type(CSS, f"@import '/{number + 1}';") for number in range(150)}
        | {"/": "<link rel=stylesheet href=/0>"},
        {"max_pages": 120},
        {f"/{number}": "GET 200 x2" for number in range(120)}
        | {"/": "200", "/120": "over the page limit"}),
    "the number of pages has a limit, roots aside": (
        site_of_pages(5), {"max_pages": 2},
        {"/": "200", "/1": "200", "/2": "200",
         "/3": "over the page limit", "/4": "over the page limit"}),
    "redirects do not use up the page limit": (
        {"/": "-> /a", "/a": "-> /b", "/b": "<a href=/c><a href=/d>", "/c": "-> /e", "/e": ""},
        {"max_pages": 1, "max_tasks": 1},
        {"/": "302", "/a": "302", "/b": "200", "/c": "302", "/e": "200",
         "/d": "over the page limit"}),
    "a URL that robots.txt forbids counts once": (
        {f"/{number}": f"<a href=/{number + 1}><a href=/no.jpg><img src=/no.jpg>"
         for number in range(9)}
        | {"/robots.txt": "User-agent: *\nDisallow: /no", "/9": ""},
        {"roots": ["/0"], "max_pages": 9},
        {f"/{number}": "200" for number in range(9)}
        | {"/no.jpg": "forbidden by robots.txt: Disallow: /no", "/9": "over the page limit"})})
def test_max_pages_limits_pages_and_checks_but_not_start_urls_and_redirects(story: Story) -> None:
    crawl_story(story)


# --exclude
# ---------


def test_any_pattern_of_exclude_that_matches_any_start_url_is_an_error() -> None:
    with raises(crawl.CrawlError, match="^--exclude 'x' leaves out the start URL http://h/x$"):
        crawl.Crawler(["http://h/", "http://h/x"], exclude=["no", "x"])


@each("option", ["include", "exclude"])
def test_a_pattern_that_is_not_in_ascii_is_refused(option: str) -> None:
    options: dict[str, Any] = {option: ["caf\u00e9"]}
    with raises(crawl.CrawlError, match="URLs are in ASCII, with %C3%A9"):
        crawl.Crawler("http://h/", **options)


# --external
# ----------


@each("external, outcome, left_out", [
    (False, "not included", ["           1  not included                    --external"]),
    (True, "GET 404 broken x2", [])])
def test_with_external_pages_that_include_leaves_out_are_checked(
        external: bool, outcome: str, left_out: list[str]) -> None:
    site: Site = {"/docs/": "<a href=/docs/a><a href=/gone>", "/docs/a": "", "/x": ""}
    crawler = crawl_site(site, "/docs/", include="/docs/", external=external)
    assert crawler.outcomes == {"/docs/": "200", "/docs/a": "200", "/gone": outcome}
    assert [line for line in crawler.lines() if "not included" in line] == left_out
    assert ("/gone" in crawler.client.checked) == external


# --fragments
# -----------


def missing_fragments(site: Site, **options: Any) -> list[tuple[str, str, list[str]]]:
    """Return the missing fragments, their errors, and the pages that link to them."""
    crawler = crawl_site(site, fragments=True, **options)
    return [
        (path_of(record.url), record.error,
         [*map(path_of, dict.fromkeys(crawler.seen_urls[record.url].linked_from))])
        for record in crawler.emitted
        if "#" in record.url]


def test_a_link_to_a_missing_fragment_is_broken() -> None:
    assert sorted(missing_fragments({
        "/": "<p id=here><a href=#here><a href='#nowhere'>"
        "<a href=/a#good><a href=/a#bad><a href=/b>",
        "/a": "<a name=good><a href=/#here><a href=/#lost>",
        "/b": "<a href='/a#bad'><a href=/a#bad><img src=/a#i>"})) == [
        ("/#lost", "no id 'lost' on the page", ["/a"]),
        ("/#nowhere", "no id 'nowhere' on the page", ["/"]),
        ("/a#bad", "no id 'bad' on the page", ["/", "/b"])]


def test_a_fragment_is_as_deep_as_its_page_but_never_a_root() -> None:
    site: Site = {"/": "<a href=#x><a href=/a>", "/a": "<a href=/b>", "/b": "<a href=#x>"}
    records = crawl_site(site, fragments=True).records
    assert (records["/#x"].depth, records["/b#x"].depth) == (1, 2)


@each("fragment", [
    "", "top", "TOP", "/route", "!route", ":~:text=x", "caf%C3%A9", "caf\u00e9",
    "caf&eacute;", "a:~:text=x", " a "])
def test_fragments_that_do_not_name_an_element_are_not_checked(fragment: str) -> None:
    assert missing_fragments({"/": f"<p id=a><p id=caf\u00e9><a href=' #{fragment}'>"}) == []


@each("links, redirects, page, broken", [
    ("<a href=/old#a>", {"/old": "-> /new#b"}, "<p id=b>", []),
    ("<a href=/old#a>", {"/old": "-> /new#b"}, "<p id=a>", ["/old#a"]),
    ("<a href=/older#a>", {"/older": "-> /old#c", "/old": "-> /new#b"}, "<p id=b>", []),
    ("<a href=/older#a>", {"/older": "-> /old#c", "/old": "-> /new"}, "<p id=c>", []),
    ("<a href=\"/new#'e'-0\">", {}, "<h2 id=\"'e'-0\">", []),
    ("<a href='/new#sec\ntion'>", {}, "<p id=section>", []),
    ("<a href=/old#a>", {"/old": "-> /new#top"}, "<p id=b>", []),
    ("<a href=/old#a>", {"/old": "-> /new#"}, "<p id=b>", []),
    ("<a href=/old#a>", {"/old": "-> /new#!/route"}, "<p id=b>", []),
    ("<a href=/old#a>", {"/old": "-> /new#:~:text=b"}, "<p id=b>", []),
    ("<a href=/old#a>", {"/old": "-> /new#b:~:text=b"}, "<p id=a>", ["/old#a"]),
    ("<a href=/new#description>", {}, "<meta name=description>", ["/new#description"])])
def test_the_fragment_of_a_redirect_replaces_that_of_the_link(
        links: str, redirects: Site, page: str, broken: list[str]) -> None:
    found = missing_fragments({"/": links, "/new": page} | redirects)
    assert [url for url, _, _ in found] == broken


@each_story({
    "a redirect without a fragment passes that of the link on": (
        {"/": "<a href=/old#x><a href=/older#y><a href=/new#w>", "/new": "<p id=x>",
         "/old": "-> /new", "/older": "-> /old"}, {},
        {"/": "200", "/new": "200", "/old": "302", "/older": "302", "/older#y": "broken",
         "/new#w": "broken"}),
    "fragments of redirects in a circle are not checked": (
        {f"/{number}": f"-> /{(number + 1) % 120}" for number in range(120)}
        | {"/": "".join(f"<a href=/{number}#x>" for number in range(120))}, {},
        {"/": "200", "/119": LOOP} | {f"/{number}": "302" for number in range(119)}),
    "a fragment of a page that was not read is not checked": (
        {"/": "<a href=/gone#x><a href=//o/#x><a href=/txt#x><a href=//p/#x>", "http://o/": "",
         "/txt": answer_of_type("text/plain")}, {"external": True},
        {"/": "200", "/gone": "404 broken", "/txt": "200", "http://o/": "HEAD 200",
         "http://p/": "GET 404 broken x2", "http://o/#x": "fragment not checked",
         "/txt#x": "fragment not checked"}),
    "a fragment may be excluded": (
        {"/": "<a href='http://a b/'><a href=#gone><a href='http://c d/'>"},
        {"exclude": "a b|gone"},
        {"/": "200", "http://c d/": "broken", "http://a b/": "excluded", "/#gone": "excluded"}),
    "a fragment is not checked if a redirect leads to something that is not HTML": (
        {"/": "<a href=/old#x><a href=/lost#x>", "/old": "-> /txt", "/lost": "-> /gone",
         "/txt": answer_of_type("text/plain")}, {},
        {"/": "200", "/old": "302", "/txt": "200", "/lost": "302", "/gone": "404 broken",
         "/old#x": "fragment not checked"}),
    "the fragments of an XHTML page are checked": (
        {"/": answer_of_type("application/xhtml+xml", "<script src='x.js'/><p id='owl'/>"
                             "<a href='#owl'/><a href='#lost'/>")},
        {"pages_only": True}, {"/": "200", "/#lost": "broken"})})
def test_a_fragment_is_looked_up_on_the_page_that_a_browser_shows(story: Story) -> None:
    site, options, ends = story
    crawl_story((site, {"fragments": True} | options, ends))


def test_a_page_with_too_many_anchors_counts_as_having_every_anchor(monkeypatch: Patch) -> None:
    monkeypatch.setattr(crawl, "MAX_ANCHORS", 3)
    markup = "".join(f"<p id=a{number}>" for number in range(9))
    assert crawl.anchors_of(markup) is None
    crawler = crawl_site({"/": f"{markup}<a href=#x>"}, fragments=True)
    assert crawler.outcomes == {"/": "200", "/#x": "fragment not checked"}


# --moved
# -------


TO_C = (301, {"location": "/c"}, "")
A_MOVED: Site = {"/": "<a href=/a>", "/a": (301, {"location": "/b"}, ""), "/b": ""}


@each("changes, problems", [
    pytest.param({}, ["/a moved to /b"], id="to a page"),
    pytest.param({"/": "<img src=/a>"}, ["/a moved to /b"], id="an image"),
    pytest.param({"/a": (308, {"location": "/b"}, "")}, ["/a moved to /b"], id="by 308"),
    pytest.param({"/a": "-> /b"}, [], id="for a time only"),
    pytest.param({"/b": TO_C, "/c": ""}, ["/a moved to /c"], id="twice"),
    pytest.param({"/b": "-> /c", "/c": ""}, ["/a moved to /b"], id="and on for a time"),
    pytest.param({"/": "<a href=/a><a href=/b>", "/b": TO_C, "/c": ""},
                 ["/a moved to /c", "/b moved to /c"], id="each link of a chain"),
    pytest.param({"/b": 404}, ["/b 404 Words"], id="to a problem"),
    pytest.param({"/b": "-> /c"}, ["/c 404 Words"], id="to a redirect to a problem"),
    pytest.param({"/a": (301, {"location": "//o/"}, "")}, ["/a moved to http://o/"],
                 id="to a URL that is left out"),
    pytest.param({"/a": (301, {"location": "mailto:x"}, "")}, [], id="to a mail address"),
    pytest.param({"/": TO_C, "/c": ""}, [], id="a start URL to which no page refers"),
    pytest.param({"/": TO_C, "/c": "<a href=/>"}, ["/ moved to /c"],
                 id="a start URL to which a page refers")])
def test_links_to_urls_that_have_moved_for_good_are_problems_with_moved(
        changes: Site, problems: list[str]) -> None:
    crawler = crawl_site(A_MOVED | changes, moved=True)
    found = [f"{record.url} {record.error}" for record in crawler.report.problems]
    assert sorted(line.replace("http://h/", "/") for line in found) == problems
    assert not any(record.kind == "moved" for record in crawl_site(A_MOVED | changes).emitted)


def test_moved_links_are_reported_with_their_pages_and_are_not_counted_once_more() -> None:
    assert crawl_site(A_MOVED, moved=True).lines() == [
        "moved (1)", "  /a", "    moved to /b", "    found on /", "",
        "3 URLs requested, 2 pages read", "statuses: 2 x 200, 1 x 301",
        "1 problem on 2 pages, 1.0 s"]


def test_a_moved_link_of_a_journal_is_judged_anew(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    for moved, requested, lines in (
            (True, ["/", "/a", "/b"], 3), (False, ["/", "/a"], 5), (False, ["/"], 6),
            (True, ["/"], 8), (True, ["/", "/a"], 10)):
        crawler = crawl_with_journal(path, A_MOVED, moved=moved)
        assert crawler.requested == requested
        assert (crawler.outcomes["/a"] == "301 moved") == moved
        assert len(journal_lines(path)) == lines


async def test_an_interrupted_crawl_emits_the_moved_urls_that_wait() -> None:
    crawler, task = crawler_and_task(
        A_MOVED | {"/": "<a href=/a><a href=/slow>", "/slow": slow_answer(9)}, moved=True)
    await sleep(5)
    assert crawler.num_waiting() == 1
    await cancel_crawl(task)
    assert crawler.lines()[:8] == [
        "moved (1)", "  /a", "    moved to /b", "    found on /", "",
        "interrupted: 0 queued; in flight: /slow", "3 URLs requested, 2 pages read",
        "statuses: 2 x 200, 1 x 301"]


# --accept
# --------


@each("options, outcomes, status", [
    ({}, {"/": "200", "/a": "403 blocked", "/i": "GET 999 blocked x2"}, 1),
    ({"accept": [403, 999]}, {"/": "200", "/a": "403", "/i": "GET 999 x2"}, 0),
    ({"accept": [403]}, {"/": "200", "/a": "403", "/i": "GET 999 blocked x2"}, 1)])
def test_an_accepted_status_is_not_a_problem_but_still_a_status(
        options: dict[str, Any], outcomes: dict[str, str], status: int) -> None:
    crawler = crawl_site({"/": "<a href=/a><img src=/i>", "/a": 403, "/i": 999}, **options)
    assert crawler.outcomes == outcomes
    assert bool(crawler.report.problems) == bool(status)
    assert "statuses: 1 x 200, 1 x 403, 1 x 999" in crawler.lines()
    assert "not searched" not in "".join(crawler.lines())


def test_after_an_accepted_head_the_status_of_get_decides() -> None:
    site: Site = {"/": "<img src=/i><img src=/j>",
                  "/i": {"HEAD": 403, "GET": ""}, "/j": {"HEAD": 403, "GET": 404}}
    assert crawl_site(site, accept=[403]).outcomes == {
        "/": "200", "/i": "GET 200 x2", "/j": "GET 404 broken x2"}


def test_an_accepted_status_has_no_error_no_hint_and_no_retry() -> None:
    crawler = crawl_site({"/": "<a href=/a>", "/a": 503}, accept=[503])
    assert crawler.outcomes == {"/": "200", "/a": "503"}
    crawler = crawl_site({"/": 400}, accept=[400])
    assert (crawler.records["/"].error, crawler.records["/"].kind) == ("", "")
    assert [*crawler.report.failures()] == [
        "cannot crawl http://h/: expected a page, got 400 text/html"]


def test_accept_does_not_concern_robots_txt() -> None:
    crawler = crawl_site({"/": "", "/robots.txt": 503}, accept=[503])
    assert crawler.records["/"].skipped == "robots.txt failed"
    assert crawler.records["/"].tries == 3


def test_an_accepted_429_still_slows_the_pace() -> None:
    crawler = crawl_site({"/": "<a href=/a>", "/a": 429}, accept=[429])
    assert crawler.outcomes["/a"] == "429"
    assert crawler.frontier.sites["http://h", False].pace == crawl.MIN_PACE


# --pages-only
# ------------


def test_with_pages_only_the_images_of_no_page_or_linked_stylesheet_are_requested() -> None:
    site: Site = {"/": "<a href=/s><img src=/i>", "/s": answer_of_type(CSS, "p { src: url(/i) }")}
    crawler = crawl_site(site, pages_only=True)
    assert set(crawler.outcomes) == set(site)
    assert {record.assets for record in crawler.emitted} == {None}


def test_with_pages_only_a_record_has_no_assets(tmp_path: Path) -> None:
    site: Site = {"/": "<a href=/p>", "/p": "<img src='my photo.png'><base href=/d/>"}
    path = tmp_path / "journal"
    crawler = crawl_with_journal(path, site, pages_only=True)
    assert crawler.records["/p"].assets is None
    assert not any("assets" in line for line in journal_lines(path))
    again = crawl_with_journal(path, site)  # now assets count, so the page is requested again
    assert again.requested == ["/", "/p", "/d/my%20photo.png"]
    assert crawl_with_journal(path, site).requested == ["/"]
    assert [line["assets"] for line in journal_lines(path) if "assets" in line] == [
        [], ["http://h/d/my%20photo.png"], []]


# --no-robots
# -----------


NO = "User-agent: *\nDisallow: /"


@each("options", [(False, False, True, True, False), (True, False), (True, True, False, False)])
def test_a_page_that_is_not_followed_is_counted_and_followed_with_no_robots(
        options: tuple[bool, ...], tmp_path: Path) -> None:
    path = tmp_path / "journal"
    site: Site = {"/": "<a href=/a>", "/a": f"{NOFOLLOW}<a href=/gone>"}
    line = "           1  links not followed (nofollow)   --no-robots"
    for no_robots in options:  # in one journal
        crawler = crawl_with_journal(path, site, no_robots=no_robots)
        assert (line in crawler.lines()) == (not no_robots)
        assert ("/gone" in crawler.outcomes) == no_robots


def test_with_no_robots_robots_txt_is_not_requested() -> None:
    assert crawl_site({"/robots.txt": NO, "/": ""}, no_robots=True).requested == ["/"]


# --max-tasks
# -----------


def test_ten_urls_are_fetched_at_a_time() -> None:
    moments = [moment for moment, _ in crawl_site(site_of_pages(31)).client.requests]
    assert moments == [0] + [0.125] * 10 + [0.25] * 10 + [0.375] * 10


@each("tasks", [1, 4])
def test_no_more_than_max_tasks_requests_and_callbacks_run_at_a_time(tasks: int) -> None:
    calls = most_calls = 0

    async def on_page(record: crawl.Record, page: crawl.Page) -> None:
        nonlocal calls, most_calls
        calls += 1
        most_calls = max(most_calls, calls)
        await sleep(1)
        calls -= 1

    site: Site = {f"http://{name}.h/": "<a href=/1><a href=/2>" for name in "abcdefghij"}
    site |= {f"http://{name}.h/{number}": "" for name in "abcdefghij" for number in (1, 2)}
    site |= {f"http://{name}.h/robots.txt": slow_answer(3) for name in "abcdefghij"}
    site["http://h/"] = "".join(f"<a href=http://{name}.h/>" for name in "abcdefghij")
    site["http://h/robots.txt"] = 404
    crawler = crawl_site(Busy(site), subdomains=True, max_tasks=tasks, on_page=on_page)
    assert len(crawler.outcomes) == 31
    assert set(crawler.outcomes.values()) == {"200"}
    assert crawler.client.most_under_way == tasks
    assert most_calls == tasks


def test_with_one_task_the_times_of_the_records_do_not_overlap(monkeypatch: Patch) -> None:
    monkeypatch.setattr(time, "time", lambda: get_running_loop().time())
    site: Site = {
        "/": "<img src=/a><a href=/b><a href=/c><a href=/d>",
        "/robots.txt": slow_answer(5, status=404),
        "/b": [503, slow_answer(3)], "/c": [too_many_requests("9"), slow_answer(4)],
        "/d": slow_answer(2), "/a": {"HEAD": 405, "GET": slow_answer(1)}}
    crawler = crawl_site(site, max_tasks=1, delay=1)
    seconds = {path: record.seconds for path, record in crawler.records.items()}
    assert seconds == {"/": 0.125, "/a": 1, "/b": 3, "/c": 4, "/d": 2}
    spans = sorted((record.at, record.at + record.seconds) for record in crawler.emitted)
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:]))


def test_with_one_task_the_links_of_a_host_are_requested_in_their_order() -> None:
    site: Site = {
        "/": "<a href=/3><a href=/1><a href=/2>", "/3": "<a href=/9><a href=/5>",
        "/1": "<a href=/4>", "/2": ""}
    crawler = crawl_site(site, max_tasks=1)
    assert crawler.requested == ["/", "/3", "/1", "/2", "/9", "/5", "/4"]


def test_a_crawl_needs_no_more_connections_than_tasks(tls_site: Server, monkeypatch: Patch) -> None:
    monkeypatch.setattr(crawl, "MAX_IDLE", 1)  # a crawl keeps more, if it has more tasks
    tls_site.add("/", "<a href=/logo.png>" + "".join(f"<a href=/{n}>" for n in range(20)))
    for number in range(20):
        tls_site.add(f"/{number}")
    tls_site.add("/logo.png", bytes(50_000), Content_Type="image/png")
    crawler = crawl_servers(tls_site.url, max_tasks=3)
    assert len(crawler.emitted) == 1 + 20 + 1
    assert crawler.client.max_idle == 3
    assert tls_site.connections <= 3


def test_sites_take_turns_although_urls_are_added_to_them_all_the_time() -> None:
    site: Site = {
        f"http://{host}/{number}": f"<a href=http://a/{number + 1}><a href=http://b/{number + 1}>"
        for host in "ab" for number in range(9)}
    crawler = crawl_site(site, "http://a/0", "http://b/0", max_tasks=1)
    hosts = [crawl.parse_url(url).host for url in crawler.requested]
    assert hosts == ["a", "b"] * 10


# --delay
# -------


def test_with_a_delay_every_request_to_a_site_keeps_the_distance() -> None:
    site: Site = {
        "/": "<img src=/refused><img src=/late><a href=/failing><a href=/slowed><a href=/page>",
        "/refused": {"HEAD": 405, "GET": ""}, "/late": [503, ""], "/page": "",
        "/failing": [503, TimeoutError("late"), ""], "/slowed": [too_many_requests("1"), ""]}
    crawler = crawl_site(Busy(site), delay=2)
    moments = [moment for moment, _, path in crawler.client.began if path != "/robots.txt"]
    assert crawler.outcomes == {
        "/": "200", "/failing": "200 x3", "/slowed": "200 x2", "/page": "200",
        "/refused": "GET 200 x2", "/late": "GET 200 x2"}
    assert len(moments) == 11
    assert min(after - before for before, after in zip(moments, moments[1:])) >= 2


def test_each_site_has_its_own_delay_and_its_own_pauses() -> None:
    site: Site = {
        f"http://a{port}/{path}": "<a href=/1><a href=/2>"
        for port in ("", ":81") for path in ("", 1, 2)}
    crawler = crawl_site(site, "http://a/", "http://a:81/", delay=2)
    assert crawler.client.requests[:4] == [
        (0, "http://a/"), (0, "http://a:81/"), (2.125, "http://a/1"), (2.125, "http://a:81/1")]
    slowed = site | {"http://a/1": [too_many_requests("60"), ""]}
    crawler = crawl_site(slowed, "http://a/", "http://a:81/", max_tasks=1)
    assert [url for moment, url in crawler.client.requests if moment >= 60] == [
        "http://a/1", "http://a/2"]
    assert {"http://a:81/1", "http://a:81/2"} <= {
        url for moment, url in crawler.client.requests if moment < 2}


def test_a_slow_lookup_does_not_make_requests_leave_together(monkeypatch: Patch) -> None:
    moments: list[float] = []

    def slow(*_: Any, **__: Any) -> Any:
        time.sleep(0.3)
        moments.append(time.monotonic())
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", site.port))]

    def note(connection: socket.socket, request: str) -> None:
        moments.append(time.monotonic())
        connection.sendall(with_body(b"", b"Content-Type: text/html"))

    with closing(Server()) as site:
        monkeypatch.setattr(socket, "getaddrinfo", slow)
        site.answers |= {f"/{number}": note for number in range(4)}
        began = time.monotonic()
        crawl_servers(
            *[f"http://name.test:{site.port}/{number}" for number in range(4)], delay=0.1,
            no_robots=True)
    looked_up, *asked = moments
    assert looked_up - began >= 0.3
    assert len(asked) == 4
    assert min(after - before for before, after in zip(asked, asked[1:])) >= 0.1


def test_a_callback_that_waits_does_not_delay_the_next_turn_of_its_site() -> None:
    async def on_page(record: crawl.Record, page: crawl.Page) -> None:
        if record.depth > 0:  # the next round begins when the callback of the root has returned
            await sleep(100)
            ended.append(get_running_loop().time())

    ended = list[float]()
    crawler = crawl_site(site_of_pages(5), delay=0.25, max_tasks=10, on_page=on_page)
    assert min(ended) > 100
    assert request_gaps(crawler) == pytest.approx([0.375] * 4)


@each("delay, theirs, seconds", [(0, 3, 3), (1, 3, 3), (3, 1, 3), (1, 9999, 300)])
def test_the_longer_of_delay_and_crawl_delay_is_kept_up_to_300_seconds(
        delay: float, theirs: int, seconds: float) -> None:
    robots = f"User-agent: *\nCrawl-delay: {theirs}"
    crawler = crawl_site(site_of_pages(2) | {"/robots.txt": robots}, delay=delay)
    assert request_gaps(crawler)[1:] == [seconds + 0.125]


def test_robots_txt_and_its_redirects_do_not_wait_for_the_delay() -> None:
    site: Site = {"/robots.txt": [503, "-> /rules"], "/rules": "", "/": ""}
    crawler = crawl_site(site, delay=100)
    assert crawler.requested == ["/robots.txt", "/robots.txt", "/rules", "/"]
    assert crawler.client.requests[-1][0] < 5


# --timeout
# ---------


def test_a_fetch_ends_at_its_deadline_however_much_is_still_coming(site: Server) -> None:
    over = threading.Event()

    def drip(connection: socket.socket, request: str) -> None:
        connection.sendall(CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Type: text/html\r\n\r\n"))
        for _ in range(1000):  # ten seconds, unless the client leaves
            connection.sendall(b"1\r\nx\r\n")
            time.sleep(0.01)
        over.set()

    site.answers["/"] = drip
    (record,) = crawl_servers(site.url, timeout=0.3, max_tries=1, no_robots=True).emitted
    assert record.kind == "timed out"
    assert record.seconds >= 0.3
    assert not over.is_set()


def test_requests_on_kept_connections_and_over_tls_end_at_their_deadline(
        site: Server, tls_site: Server) -> None:
    def fall_silent(connection: socket.socket, request: str) -> None:
        connection.settimeout(3)  # so that the test ends even if the client waits for ever
        say_nothing(connection)

    for server in (site, tls_site):
        server.add("/", "<a href=/silent>")
        server.answers["/silent"] = fall_silent
        crawler = crawl_servers(server.url, timeout=0.3, max_tries=1, no_robots=True)
        record = crawler.records[server.url + "/silent"]
        assert (record.kind, record.error) == ("timed out", "timed out after 0.3 s")
        assert server.connections == 1


# --max-tries
# -----------


# -H
# --


def test_headers_are_sent_to_the_site(site: Server) -> None:
    site.add("/")
    assert crawl.main([site.url, "-q", "-H", "X-Word: a: b", "-H", "accept:text/html"]) == 0
    assert "X-Word: a: b\r\n" in site.heads[-1]
    assert "Accept: text/html\r\n" in site.heads[-1]
    assert "*/*" not in site.heads[-1]


# --known
# -------


@each("known", ["{report}", "{url}/gone\n{url}/fixed\n", "\ufeff{url}/gone\r\n{url}/fixed\r\n",
                "known (2)\n  {url}/gone\n  {url}/fixed\n"])
def test_problems_of_an_earlier_report_do_not_count(
        known: str, site: Server, tmp_path: Path) -> None:
    site.add("/", "<a href=/gone><a href=/fixed>")
    report = run_main(site.url)[1]
    site.add("/fixed")
    path = tmp_path / "known.txt"
    path.write_bytes(known.format(report=report, url=site.url).encode())
    status, out, err = run_main("-q", "--known", str(path), site.url)
    assert (status, err) == (0, "")
    assert out == f"known (1)\n  {site.url}/gone\nfixed: {site.url}/fixed\n"
    path.write_text(out)  # each report is a FILE for the next run
    assert run_main("-q", "--known", str(path), site.url)[:2] == (
        0, f"known (1)\n  {site.url}/gone\n")
    site.add("/", "<a href=/gone><a href=/new>")
    status, out, _ = run_main("--known", str(path), site.url)
    assert status == 1
    assert out.startswith(
        f"broken (1)\n  {site.url}/new\n    404 Not Found\n    found on {site.url}/\n"
        f"known (1)\n  {site.url}/gone\n\n3 URLs requested, 1 page read\n")


def test_a_known_problem_that_no_page_refers_to_is_neither_known_nor_fixed() -> None:
    report = crawl.Report(known=["http://h/gone"])
    crawl_site({"/": ""}, on_record=report.add)
    assert (report.known, report.fixed) == ([], [])


def test_a_file_of_known_problems_may_not_be_where_the_report_goes(
        site: Server, tmp_path: Path) -> None:
    site.add("/", "<a href=/gone>")
    path = tmp_path / "known.txt"
    done = run_in_shell('crawl -q --known "$1" "$2" >"$1"', str(path), site.url)
    assert done.returncode == 2
    assert f"{path} is where the report goes; choose another file" in done.stderr
    assert site.requests == []


def test_a_file_of_known_problems_must_be_text(tmp_path: Path) -> None:
    path = tmp_path / "known"
    path.write_bytes(b"\xff\xfe")
    status, out, err = run_main("--known", str(path), "h.invalid")
    assert (status, out) == (2, "")
    assert err.startswith(f"crawl.py: {path} cannot be read: 'utf-8' codec")


def test_a_known_problem_of_a_start_url_counts() -> None:
    report = crawl.Report(known=["http://h/", "http://h/a", "http://h/b"])
    crawl_site({"/": "-> /a"}, "/", "/b", on_record=report.add)
    assert sorted(record.url for record in report.problems) == ["http://h/a", "http://h/b"]
    assert report.known == []


def test_a_known_start_url_without_a_problem_is_fixed_but_never_a_fragment() -> None:
    report = crawl.Report(known=["http://h/", "http://h/i#x"])
    site: Site = {"/": "<a href=/i#x>", "/i": answer_of_type("image/png")}
    crawl_site(site, fragments=True, on_record=report.add)
    assert report.fixed == ["http://h/"]


# -v
# --


def test_verbose_prints_the_outcome_and_the_page_of_each_url(site: Server) -> None:
    site.add("/", "<a href=/gone><a href=mailto:x><a href=/old>")
    site.add_redirect("/old", "/")
    assert run_main("-v", "--max-tasks", "1", site.url)[2].replace(site.url, "").splitlines() == [
        "/ 200", "/gone 404 Not Found (from /)", "/old 302 / (from /)",
        "mailto:x skipped: mailto URL: neither http nor https (from /)"]


def test_the_title_of_a_page_is_in_the_journal_and_in_verbose_output(
        site: Server, tmp_path: Path) -> None:
    site.add("/", "<title>\u00dcber</title><a href=/a>")
    site.add("/a", "<title>A &amp; B</title>")
    path = tmp_path / "journal"
    err = run_main("-v", "-o", str(path), site.url)[2]
    assert err == f"{site.url}/ 200 \u00dcber\n{site.url}/a 200 (from {site.url}/) A & B\n"
    assert [line["title"] for line in journal_lines(path)] == ["\u00dcber", "A & B"]
    assert run_main("-o", str(path), "--resume", site.url)[0] == 0
    assert site.requests.count("/a") == 1


# -K
# --


@each("lines, arguments", [
    ("# a comment\n\nhttp://h/\n--exclude #[0-9]+$\n", ["http://h/", "--exclude=#[0-9]+$"]),
    ("\ufeff-q\r\n--depth 3\r\nhttp://h/\r\n", ["-q", "--depth=3", "http://h/"]),
    ("-H Authorization: Basic dTpw==\nhttp://h/", ["-HAuthorization: Basic dTpw==", "http://h/"]),
    ("  --exclude -draft$  \n\thttp://h/\n--exclude b", [
        "--exclude=-draft$", "http://h/", "--exclude=b"]),
    ("--exclude a b = 'c'\nhttp://h/", ["--exclude=a b = 'c'", "http://h/"]),
    ("--accept 403,999\n--accept 404\nhttp://h/\nhttp://g/", [
        "--accept=403,999,404", "http://h/", "http://g/"])])
def test_options_may_stand_in_a_file(lines: str, arguments: list[str], tmp_path: Path) -> None:
    path = tmp_path / "crawl.conf"
    path.write_bytes(lines.encode())
    found = vars(crawl._parse_arguments(["-K", str(path)]))
    assert found | {"config": []} == vars(crawl._parse_arguments(arguments))


def test_a_file_of_options_may_have_no_url_and_shows_no_secret(site: Server, folder: Path) -> None:
    site.add("/")
    files_in(folder, {
        "public/index.html": "", "secret.conf": "-H Authorization: Basic secret",
        "folder.conf": "--folder public\nhttps://me.github.io/docs/"})
    done = run_program("-K", "secret.conf", "-q", site.url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "Authorization: Basic secret\r\n" in site.heads[-1]
    assert "1 files and URLs looked up in public" in run_main("-K", "folder.conf")[1]
    status, out, err = run_main("-K", "secret.conf", "-K", "folder.conf", "--moved")
    assert (status, err) == (0, "")


def test_the_command_line_wins_over_a_file(tmp_path: Path) -> None:
    path = tmp_path / "crawl.conf"
    path.write_text("--depth 3\n--delay 2\nhttp://h/\n--exclude a\n-H A: 1\n-H B: 1")
    options = crawl._parse_arguments(
        ["--depth", "5", "-K", str(path), "http://g/", "--exclude", "b", "-H", "A: 2"])
    assert (options.depth, options.delay, options.roots, options.exclude) == (
        5, 2, ["http://g/"], ["a", "b"])
    assert dict(options.header) == {"A": "2", "B": "1"}


@each("line", [
    "--secret", "--depth secret", "--depth -1", "--depth", "-H secret", "-H A B: secret",
    "-H Host: secret", "--exclude (secret", "http://[secret", "http://me:secret@h/", "-q secret",
    "--accept 200", "./secret", "-K secret", "--folder secret\nhttp://h/", "-qo secret",
    "--header=A: secret", "-HA: secret", "http://h/secret x", "http://h/ # secret",
    "-H A: b\u2028secret"])
def test_a_mistake_in_a_file_of_options_is_named_by_its_line_and_not_shown(
        line: str, tmp_path: Path) -> None:
    path = tmp_path / "crawl.conf"
    path.write_text(f"# options\n-q\n{line}\nhttp://h/\n")
    status, out, err = run_main("-K", str(path))
    assert (status, out) == (2, "")
    assert re.fullmatch(rf"crawl.py: {path}, line [34]: .*\n", err)
    assert "secret" not in err


# The journal
# ===========


def test_the_journal_has_a_line_for_each_url(site: Server, tmp_path: Path) -> None:
    site.add("/", "<a href=/gone>")
    journal = tmp_path / "site.jsonl"
    began = time.time()
    crawl.main(["-q", "-o", str(journal), site.url])
    lines = journal_lines(journal)
    assert [line["url"] for line in lines] == [site.url + "/", site.url + "/gone"]
    assert lines[0]["links"] == [site.url + "/gone"]
    assert "error" not in lines[0]
    assert (lines[1]["status"], lines[1]["parent"], lines[1]["depth"]) == (404, site.url + "/", 1)
    assert began - 1 <= lines[0]["at"] <= lines[1]["at"] <= time.time() + 1


def test_a_record_is_written_to_the_journal_before_on_record_gets_it(tmp_path: Path) -> None:
    path, emitted = tmp_path / "journal", list[str]()

    def on_record(record: crawl.Record) -> None:
        emitted.append(record.url)
        assert emitted == [line["url"] for line in journal_lines(path)]

    crawl_with_journal(path, {"/": "<a href=/gone><a href=mailto:x>"}, on_record=on_record)
    assert len(emitted) == 3


def test_a_file_that_is_not_empty_needs_resume(site: Server, tmp_path: Path) -> None:
    site.add("/")
    path = tmp_path / "journal"
    path.write_text("")  # as good as none
    assert run_main("-o", str(path), site.url)[0] == 0
    written = path.read_bytes()
    assert run_main("-o", str(path), site.url) == (
        2, "", f"crawl.py: {path} exists; use --resume to continue it or choose another file\n")
    assert path.read_bytes() == written
    assert site.requests == ["/robots.txt", "/"]
    assert run_main("-o", str(path), "--resume", site.url)[0] == 0
    assert run_main("-o", f"{path}2", "--resume", site.url)[0] == 0, "a missing file is created"


@each("text", [
    "notes", "notes\n", "{}\n", "[]\n", "7\n", '{"url": 7}\n', "[" * 100_000 + "\n",
    '{"url": "http://h/", "links": 7}\n', '{"url": "http://h/", "unknown": 7}\n',
    '{"url": "http://h/", "status": "200"}\n', '{"url": "http://h/", "seconds": "x"}\n', "\n",
    '{"url"\n{"url": "http://h/"}\n', "\x00\n",
    # A line without its end is removed only if it is the beginning of a record.
    '{"url": "http://h/", "status": 200}', '{"status": 200, "url": "http://h/"}', "\0" * 1000,
    '{"name": "x", "url": "http://h/", "sta'])
def test_a_file_that_is_not_a_journal_is_refused_and_left_unchanged(
        text: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    status, _, err = run_main("-o", str(path), "--resume", "http://h.invalid/")
    assert status == 2
    assert re.search(r"notes.txt is not a crawl.py journal \(line 1: .", err)
    assert path.read_text() == text


@each("journal", ["/dev/stdout", "$1/both", "$1/hard"])
def test_a_journal_never_overwrites_the_report(journal: str, site: Server, tmp_path: Path) -> None:
    site.add("/")
    (tmp_path / "both").touch()
    os.link(tmp_path / "both", tmp_path / "hard")
    done = run_in_shell(f'crawl -o "{journal}" "$2" >"$1/both"', str(tmp_path), site.url)
    assert done.returncode == 2
    assert "is where the report goes; choose another file" in done.stderr
    assert (tmp_path / "both").read_text() == ""
    with pytest.MonkeyPatch.context() as patch, raises(crawl.CrawlError, match="the report goes"):
        patch.setattr(os.path, "samestat", lambda one, other: True)
        crawl.Journal(str(tmp_path / "both"))
    done = run_in_shell('crawl -o /dev/stdout "$1" | cat', site.url)
    assert done.stdout.startswith('{"url": ')
    assert "0 problems on 1 page" in done.stdout


@full_disk
def test_a_journal_need_not_be_a_regular_file_and_may_be_full() -> None:
    """Any number of crawls may have /dev/null for theirs."""
    null, same, full = map(crawl.Journal, ("/dev/null", "/dev/null", "/dev/full"))
    with closing(null), closing(same), closing(full):
        null.write(crawl.Record("http://h/"))
        assert same.find("http://h/") is None
        with raises(crawl.CrawlError, match="/dev/full cannot be written: no space left"):
            full.write(crawl.Record("http://h/"))


def test_a_full_disk_leaves_a_journal_that_can_be_resumed(site: Server, tmp_path: Path) -> None:
    site.add("/")
    path = tmp_path / "journal"
    assert run_program("-o", str(path), site.url).returncode == 0
    before = path.read_bytes()
    site.add("/", "<a href=/a>")
    site.add("/a")
    size = 2 * len(before) + 100  # room for the line of / and a part of one more
    done = run_program(
        "-o", str(path), "--resume", site.url,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
    assert done.returncode == 2
    assert path.read_bytes().startswith(before)
    assert done.stderr == f"crawl.py: {path} cannot be written: file too large\n"
    assert "1 page read" in done.stdout, "the pages that were read are reported"
    assert run_program("-o", str(path), "--resume", site.url).returncode == 0


def test_a_journal_on_stdout_leaves_the_report_to_stderr(site: Server, tmp_path: Path) -> None:
    site.add("/", "<a href=/gone>")
    for target in ("| cat", '>"$2/journal"; cat "$2/journal"'):
        done = run_in_shell(f'crawl -o - "$1" {target}', site.url, str(tmp_path))
        assert [json.loads(line)["url"] for line in done.stdout.splitlines()] == [
            f"{site.url}/", f"{site.url}/gone"]
        assert done.stderr.startswith(f"broken (1)\n  {site.url}/gone\n    404 Not Found\n")


def test_a_crawl_whose_journal_on_stdout_has_no_reader_any_more_ends_with_status_1(
        site: Server) -> None:
    site.add("/", "".join(f"<a href=/{number}>" for number in range(100)))
    done = run_in_shell('{ crawl -o - "$1"; echo $? >&2; } | head -n 1', site.url)
    assert done.stdout.count("\n") == 1
    assert "interrupted: " in done.stderr
    assert done.stderr.endswith("\n1\n")
    reader, writer = os.pipe()
    os.close(reader)
    with closing(crawl.Journal("-")) as journal, open(writer, "wb", buffering=0) as broken:
        setattr(journal, "_file", broken)
        with raises(BrokenPipeError):
            journal.write(crawl.Record("http://h/"))


def test_a_journal_whose_reader_has_closed_the_pipe_ends_the_crawl(
        site: Server, tmp_path: Path) -> None:
    site.add("/", "".join(f"<a href=/{number}>" for number in range(100)))
    done = run_in_shell(
        'mkfifo "$1" && { head -n 1 "$1" & crawl -o "$1" "$2"; }', str(tmp_path / "pipe"), site.url)
    assert done.stdout.startswith('{"url": ')
    assert done.returncode == 2
    assert "cannot be written: broken pipe" in done.stderr


def test_a_journal_is_continued_without_a_stdout(site: Server, tmp_path: Path) -> None:
    site.add("/")
    done = run_in_shell(
        'for each in 1 2; do crawl -q --resume -o "$1/journal" "$2" >&-; done',
        str(tmp_path), site.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(journal_lines(tmp_path / "journal")) == 2


# --resume
# --------


@each("status, kind, definite", [
    (0, "timed out", False), (200, "", True), (200, "over a limit", False), (301, "", True),
    (301, "moved", False), (301, "too many redirects", False), (400, "broken", False),
    (401, "blocked", False), (403, "blocked", False), (404, "broken", True), (408, "broken", False),
    (410, "broken", True), (429, "blocked", False), (500, "broken", False), (503, "broken", False),
    (999, "blocked", False)])
def test_of_the_problems_only_404_and_410_are_definite(
        status: int, kind: str, definite: bool, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    record = crawl.Record("http://h/", status, kind=kind, tries=1)
    with closing(crawl.Journal(str(path))) as journal:
        journal.write(record)
    with closing(crawl.Journal(str(path), resume=True)) as journal:
        assert (journal.find("http://h/") is not None) == definite


# For each claim a site and the crawls of it, one after the other in one journal. Each is a Story,
# whose site holds what has changed; an outcome from the journal begins with "journal".
RESUMED: dict[str, tuple[Site, list[Story]]] = {
    "a page that is a check now is requested again": (
        {"/": "<a href=//o/>", "http://o/": "<a href=/x>", "http://o/x": ""},
        [({}, {"roots": ["/", "http://o/"]}, {"/": "200", "http://o/": "200", "http://o/x": "200"}),
         ({}, {"external": True}, {"/": "200", "http://o/": "HEAD 200"})]),
    "a check that is a page now is requested again": (
        {"/": "<img src=/x>", "/x": answer_of_type("image/png")},
        [({}, {}, {"/": "200", "/x": "HEAD 200"}),
         ({"/": "<a href=/x>"}, {}, {"/": "200", "/x": "200"}),
         ({}, {}, {"/": "200", "/x": "HEAD 200"})]),
    "a page that is a root now is requested": (
        {"/": "<a href=//o/>", "http://o/": "<a href=/more>", "http://o/more": ""},
        [({}, {}, {"/": "200", "http://o/": "on another host"}),
         ({}, {"roots": ["/", "http://o/"]},
          {"/": "200", "http://o/": "200", "http://o/more": "200"})]),
    "a page that robots.txt forbids now is left out": (
        {"/": "<a href=/a>", "/a": "<a href=/b>", "/b": "", "/robots.txt": NO + "a"},
        [({}, {"no_robots": True}, {"/": "200", "/a": "200", "/b": "200"}),
         ({}, {}, {"/": "200", "/a": "forbidden by robots.txt: Disallow: /a"})]),
    "a redirect that failed is requested again": (
        {"/": "<a href=/p><a href=/x>", "/p": "-> /q", "/q": "-> /r", "/x": "-> /r", "/r": ""},
        [({"/x": "-> http://x y/"}, {"max_redirect": 1},
          {"/": "200", "/p": "302", "/q": LOOP, "/x": "302 broken"}),
         ({}, {}, {"/": "200", "/p": "journal 302", "/q": "302", "/x": "302", "/r": "200"})]),
    "a redirect that is a problem today is written": (
        {"/": "<a href=/p>", "/p": "-> /q", "/q": "-> /r", "/r": ""},
        [({}, {}, {"/": "200", "/p": "302", "/q": "302", "/r": "200"}),
         ({}, {"max_redirect": 1}, {"/": "200", "/p": "journal 302", "/q": f"journal {LOOP}"})]),
    "a redirect to what is not a URL is requested again": (
        {"/": "<a href=/long>", "/long": "-> http://["},
        [({}, {}, {"/": "200", "/long": "302 broken"}),
         ({}, {}, {"/": "200", "/long": "302 broken"})]),
    "a redirect to a mail address is not requested again": (
        {"/": "<a href=/mail>", "/mail": "-> mailto:a@b.c"},
        [({}, {}, {"/": "200", "/mail": "302 mailto URL: neither http nor https"}),
         ({}, {}, {"/": "200", "/mail": "journal 302 mailto URL: neither http nor https"})]),
    "a changed redirect of a root is followed": (
        {"http://old/": "<a href=/1>", "http://new/": "<a href=/1>"},
        [({"/": "-> http://old/"}, {},
          {"/": "302", "http://old/": "200", "http://old/1": "404 broken"}),
         ({"/": "-> http://new/"}, {},
          {"/": "302", "http://new/": "200", "http://new/1": "404 broken"})]),
    "a stylesheet still has its assets": (
        {"/": "<link rel=stylesheet href=/s>", "/s": answer_of_type(CSS, "p { src: url(/i) }")},
        [({}, {}, {"/": "200", "/s": "GET 200 x2", "/i": "GET 404 broken x2"}),
         ({}, {}, {"/": "200", "/s": "journal GET 200 x2", "/i": "journal GET 404 broken x2"})]),
    "a stylesheet is read again when its host becomes the crawl's": (
        {"/": "<link rel=stylesheet href=//o/s>", "http://o/": "",
         "http://o/s": answer_of_type(CSS, "p { src: url(/i) }")},
        [({}, {}, {"/": "200", "http://o/s": "HEAD 200"}),
         ({}, {"roots": ["/", "http://o/"]}, {"/": "200", "http://o/": "200"}
          | {"http://o/s": "GET 200 x2", "http://o/i": "GET 404 broken x2"}),
         ({}, {}, {"/": "200", "http://o/s": "HEAD 200"})]),
    "a page over the limit of today is requested again": (
        {"/": "<a href=/a>", "/a": "x" * 99},
        [({}, {"max_body": 100}, {"/": "200", "/a": "200"}),
         ({}, {"max_body": 99}, {"/": "200", "/a": "journal 200"}),
         ({}, {"max_body": 98}, {"/": "200", "/a": "200"})]),
    "what was accepted is requested again unless it is accepted today": (
        {"/": "<a href=/a>", "/a": 404},
        [({}, {"accept": [404]}, {"/": "200", "/a": "404"}),
         ({}, {"accept": [404]}, {"/": "200", "/a": "journal 404"}),
         ({}, {}, {"/": "200", "/a": "404 broken"}),
         ({}, {}, {"/": "200", "/a": "journal 404 broken"}),
         ({}, {"accept": [404]}, {"/": "200", "/a": "404"})]),
    "with fragments a page is requested again and an image is not": (
        {"/": "<a href=/a#x><img src=/i>", "/a": "", "/i": ""},
        [({}, {"fragments": True}, {"/": "200", "/a": "200", "/i": "HEAD 200", "/a#x": "broken"}),
         ({}, {"fragments": True},
          {"/": "200", "/a": "200", "/i": "journal HEAD 200", "/a#x": "broken"})]),
    "a fragment of something that is not HTML is not checked": (
        {"/": "<link rel=stylesheet href=/s><a href=/s#x><a href=/map#y>", "/i": "",
         "/s": answer_of_type(CSS, "p { src: url(/i) }"),
         "/map": answer_of_type(MAP, "<urlset><loc>http://h/i</loc></urlset>")},
        [({}, {"fragments": True}, {"/": "200", "/s": "200", "/map": "200", "/i": "200"}
          | {"/s#x": "fragment not checked", "/map#y": "fragment not checked"})] * 2)}


@each("claim", RESUMED)
def test_a_journal_answers_what_would_be_requested_in_the_same_way_today(
        claim: str, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    site, stories = RESUMED[claim]
    for changes, options, ends in stories:
        options = dict(options)
        roots = options.pop("roots", ["/"])
        crawler = crawl_with_journal(path, site | changes, *roots, **options)
        asked = {*crawler.requested, *crawler.client.checked}
        outcomes = {
            url: end if url in asked or not crawler.records[url].tries else f"journal {end}"
            for url, end in crawler.outcomes.items()}
        assert outcomes == ends
        kinds = {line["url"]: line.get("kind", "") for line in journal_lines(path)}
        assert kinds.items() >= {record.url: record.kind for record in crawler.emitted}.items()


PIECES: Site = {
    "/": "<a href=/a><a href=/old><a href=//else/><a href=/loop><a href=x:x>"
    "<a href=/meta><img src=/logo>",
    "/a": "<a href=/b><a href=/gone><a href=/x%7Ey><a href=/flaky><img src=/logo><img src=//cdn/x>",
    "/b": "<a href=/a><a href=/deep><a href=/x><a href='http://exa mple/'>",
    "/deep": "<a href=/deeper>", "/deeper": "<a href=/deepest>",
    "/old": (301, {"location": "/older"}, ""), "/older": "-> /b",
    "/loop": "-> /pool", "/pool": "-> /loop",
    "/meta": "<meta name=crawl content=none><a href=/x><a href=/y>",
    "/flaky": [503, ""], "/x%7Ey": OSError(111, "Connection refused"),
    "http://else/": "", "/logo": "-> /logo.png", "/logo.png": "",
    "/robots.txt": "User-agent: *\nDisallow: /y"}


def outcomes_of(crawler: RecordingCrawler) -> set[tuple[Any, ...]]:
    """Return what became of each URL, whatever the way to it."""
    return {
        (record.url, record.status, record.skipped, record.kind, record.links, record.assets)
        for record in crawler.emitted}


@each("options", [
    {}, {"max_tasks": 1}, {"depth": 3}, {"external": True}, {"pages_only": True},
    {"max_pages": 7, "max_tasks": 1}])
def test_a_crawl_that_was_interrupted_at_any_moment_can_be_resumed(
        options: dict[str, Any], tmp_path: Path) -> None:
    """The resumed crawl ends with the outcomes of an undisturbed one."""
    undisturbed = crawl_with_journal(tmp_path / "whole", PIECES, **options)
    for moment in range(1, len(undisturbed.requested) + 1):
        path = tmp_path / f"journal{moment}"
        first = crawl_with_journal(path, PIECES, stop_after=moment, **options)
        assert first.in_flight or first.num_waiting(), "it was interrupted"
        definite = {
            path_of(record.url)
            for record in first.emitted
            if record.status in (200, 404) or record.status in (301, 302) and not record.kind
        } - {"/"}
        then = crawl_with_journal(path, PIECES, **options)
        assert outcomes_of(then) == outcomes_of(undisturbed), moment
        assert definite.isdisjoint(then.requested)


def test_a_resumed_crawl_reports_the_age_of_the_oldest_answer(site: Server, tmp_path: Path) -> None:
    site.add("/", "<a href=/a><a href=/b><a href=/new>")
    path = tmp_path / "journal"
    path.write_text("".join(
        f'{{"url": "{site.url}/{name}", "status": 404, "kind": "broken", "tries": 1, "at": {at}}}\n'
        for name, at in (("a", 86400.0 * 2), ("b", 86400.0 * 3), ("other", 0.0))))
    status, out, err = run_main("-q", "-o", str(path), "--resume", site.url)
    oldest = time.strftime("%Y-%m-%d %H:%M", time.localtime(86400 * 2))
    assert status == 1
    assert err == ""
    assert f"\n2 results from the journal, the oldest from {oldest}\n" in out
    assert path.read_text().count('/a", "status') == 1, "what the file says is not written again"


def test_answers_from_the_journal_are_reported_like_responses(tmp_path: Path) -> None:
    first, second = [crawl_with_journal(tmp_path / "journal", BROKEN) for _ in range(2)]
    assert len(first.requested) > 10
    assert second.requested == ["/", "/secret"], "a blocked response is not definite"
    differing = set(second.lines()) - set(first.lines())
    assert len(differing) == 2
    assert "2 URLs requested, 8 pages read" in differing
    assert any(line.startswith("15 results from the journal, the oldest") for line in differing)


def test_ctrl_c_while_the_journal_is_read_ends_the_program(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    path.write_text('{"url": "http://h/"}\n' * 3)
    parse = json.loads

    def parse_and_interrupt(text: bytes) -> Any:
        signal.raise_signal(signal.SIGINT)
        return parse(text)

    monkeypatch.setattr(json, "loads", parse_and_interrupt)
    outcome = run_main("-o", str(path), "--resume", "http://[::1]:1/")
    assert outcome == (130, "", ""), "the crawl had not begun, so there is no report"


# do not count
# ------------


@each("end", [*range(1, 10), *range(10, 70, 3)])
def test_a_journal_whose_only_line_was_cut_off_is_continued(end: int, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    site = site_of_pages(2)
    crawl_with_journal(path, site)
    path.write_bytes(path.read_bytes()[:end])
    crawler = crawl_with_journal(path, site)
    assert crawler.requested == ["/", "/1"]
    assert [line["url"] for line in journal_lines(path)] == ["http://h/", "http://h/1"]


def test_a_journal_in_which_jq_has_written_whole_numbers_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    site = site_of_pages(2)
    crawl_with_journal(path, site)
    lines = [record | {"seconds": 2, "at": 1_700_000_000} for record in journal_lines(path)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert crawl_with_journal(path, site).requested == ["/"]


@each("field, value, complaint", [
    *[(field, value, f"{field} cannot be ") for field, value in (
        ("size", "1e400"), ("size", "true"), ("at", "NaN"), ("at", "Infinity"), ("at", "false"),
        ("kind", '"odd"'), ("links", '"abc"'), ("links", "[7]"), ("error", r'"\u001b[31m"'),
        ("title", '"\u200f"'), ("title", r'"\ud800"'), ("is_check", "1"), ("assets", "null"),
        ("url", "7"), ("status", '"200"'), ("seconds", '"x"'))],
    *[(field, value, "") for field, value in (  # Python says what is wrong
        ("size", "1" + "0" * 400), ("size", "1" + "0" * 5000), ("at", "1" + "0" * 400),
        ("at", "1e300"), ("at", "1e18"), ("seconds", "1e300"), ("links", "[" * 100_000))]])
def test_a_field_of_a_journal_that_cannot_be_is_one_message_with_the_line(
        field: str, value: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    lines = f'{{"url": "http://h/"}}\n{{"url": "http://h/2", "{field}": {value}}}\n'
    path.write_text(lines, encoding="utf-8")
    status, out, err = run_main("-o", str(path), "--resume", "http://h.invalid/")
    assert (status, out) == (2, "")
    assert re.fullmatch(rf"crawl.py: {path} is not .* [(]line 2: {complaint}.+[)]\n", err)


def test_a_redirect_of_a_journal_to_what_is_not_a_url_today_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    site: Site = {"/": "<a href=/a><a href=/b>", "/a": "-> /b", "/b": ""}
    path.write_text(
        '{"url": "http://h/a", "status": 301, "next_url": "/b"}\n'
        '{"url": "http://h/b", "status": 301, "next_url": "http://127.1/"}\n')
    crawler = crawl_with_journal(path, site)
    assert crawler.requested == ["/", "/a", "/b"]
    assert crawler.outcomes == {"/": "200", "/a": "302", "/b": "200"}


# field
# -----


def test_record_and_readme_name_the_same_fields() -> None:
    readme = project_file("README.md")
    table = readme.partition("| field | type | meaning |\n")[2].partition("\n\n")[0]
    types: dict[str, Any] = {
        "string": str, "number": (int, float), "boolean": bool,
        "arrays of string": (tuple, type(None))}
    named = [
        (name, types[kind.removesuffix("s")])
        for names, kind in re.findall(r"^\| (`.*?) \| (.*?) \|", table, re.MULTILINE)
        for name in re.findall("`([a-z_]+)`", names)]
    assert [name for name, _ in named] == list(crawl.Record._fields)
    assert all(isinstance(value, kind) for value, (_, kind) in zip(crawl.Record(""), named))


def test_the_seconds_of_a_record_end_with_the_response(monkeypatch: Patch) -> None:
    def result_of(*arguments: Any) -> crawl.Result:
        cast(JumpingLoop, get_running_loop()).clock.now += 5
        return real(*arguments)

    real = crawl.result_of
    monkeypatch.setattr(crawl, "result_of", result_of)
    assert crawl_site({"/": ""}, no_robots=True).records["/"].seconds == 0.125


def test_each_reference_of_a_record_is_there_once_and_in_its_normal_spelling() -> None:
    page = "<a href=/x><a href=./x><a href='#caf\u00e9'><img src=/i><img src=HTTP://H/i>"
    record = crawl_site({"/": page}, fragments=True).records["/"]
    assert record.links == ("http://h/x", "http://h/", "http://h/#caf%C3%A9")
    assert record.assets == ("http://h/i",)


@each("page, title", [
    ("<title>\u00dcber uns \u2013 \u0413\u043b\u0430\u0432\u043d\u0430\u044f</title>",
     "\u00dcber uns \u2013 \u0413\u043b\u0430\u0432\u043d\u0430\u044f"),
    ("<title>\n a &amp; b &lt;i&gt;\t\x1b[31m c\u200f </title>", "a & b <i> [31m c"),
    ("<svg><title>no</title></svg><TITLE class=x>yes</TITLE><title>no</title>", "yes"),
    ("<title/>one</title>", "one"),
    ("<title></title>", ""),
    ("<p>", ""),
    ("<title>" + "x" * 300 + "</title>", "x" * 200),
    ("<title>" + "&amp;" * 300 + "</title>", "&" * 200),
    ("<!-- <title>no</title> --><script>'<title>no</title>'</script>", "")])
def test_the_title_of_a_page_is_in_its_record(page: str, title: str) -> None:
    record = crawl_site({"/": page}).records["/"]
    assert record.title == title
    assert record._fields[-1] == "title"


def test_links_hold_text_that_is_not_a_url_escaped_and_without_its_password() -> None:
    crawler = crawl_site({"/": "<a href='http://me:secret@a b/\u00e9'>"})
    assert crawler.records["/"].links == ("http://***@a b/%C3%A9",)


# Before you crawl a site
# =======================


# Load
# ----


@each("tasks", [1, 2])
def test_a_retry_after_pauses_the_whole_site(tasks: int) -> None:
    crawler = crawl_site(site_of_pages(6) | {"/1": [too_many_requests("60"), ""]}, max_tasks=tasks)
    assert crawler.requested[: tasks + 1] == ["/", "/1", "/2"][: tasks + 1]
    assert crawler.client.requests[tasks + 1][0] == 60.25  # an answer takes 0.125 s
    assert [*crawler.outcomes.values()].count("200") == 5
    assert crawler.outcomes["/1"] == "200 x2"


@each("value, seconds", [
    ("", 0), ("7", 7), ("99999", 300), ("-5", 0), ("5_0", 0), ("soon", 0), ("\xb2", 0)])
def test_retry_after_is_a_number_of_seconds_up_to_a_limit(value: str, seconds: float) -> None:
    crawler = crawl_site(
        {"/": "<a href=/1>", "/1": slow_answer(0.001, status=503, retry_after=value)}, max_tries=2)
    assert request_gaps(crawler)[1] == pytest.approx(max(seconds, crawl.BACKOFF) + 0.001)


@each("site", [
    {"/": [too_many_requests("60"), ""]}, {"/": [(503, {"retry-after": "60"}, ""), ""]},
    {"/": "", "/robots.txt": [too_many_requests("60"), 404]}], ids=["429", "503", "robots.txt"])
def test_the_retry_after_of_a_start_url_or_of_robots_txt_is_not_obeyed(site: Site) -> None:
    crawler = crawl_site(site)
    assert crawler.records["/"].status == 200
    assert crawler.client.requests[-1][0] < 5


@each("delay", [0, 2])
def test_the_retry_after_of_another_status_delays_that_url_alone(delay: float) -> None:
    site = site_of_pages(5) | {"/1": (503, {"retry-after": "100"}, "")}
    crawler = crawl_site(site, max_tasks=1, delay=delay)
    assert crawler.requested == ["/", "/1", "/2", "/3", "/4", "/1", "/1"]
    first, second, third = request_times(crawler, "/1")
    assert 100 <= second - first < 103
    assert 100 <= third - second < 103
    assert request_times(crawler, "/4") == pytest.approx([4 * (delay + 0.125)])


@each("tasks", [1, 3, 10])
def test_a_site_that_said_429_gets_no_request_before_its_retry_after(tasks: int) -> None:
    """Even if other sites occupy every task meanwhile, and several requests were under way."""
    slow = {f"http://s/{number}": slow_answer(25) for number in range(30)}
    limited: Site = {f"http://l/{number}": "" for number in range(20)}
    limited |= {f"http://l/{number}": [too_many_requests("60"), ""] for number in range(0, 20, 4)}
    site = slow | limited | {
        "http://s/": "".join(map("<a href={}>".format, slow)),
        "http://l/": "".join(map("<a href={}>".format, limited))}
    crawler = crawl_site(Busy(site), "http://s/", "http://l/", max_tasks=tasks, max_tries=9)
    began = [moment for moment, _, url in crawler.client.began if url.startswith("http://l/")]
    first = min(moment for moment, url in crawler.client.requests if url == "http://l/0")
    assert not [moment for moment in began if first + 0.125 < moment < first + 60]
    others = [moment for moment, _, url in crawler.client.began if url.startswith("http://s/")]
    assert max(others) + 25 > first + 60, "the other site occupied the tasks meanwhile"
    assert set(crawler.outcomes.values()) == {"200", "200 x2"}


@each("tasks", [2, 10])
def test_after_a_429_a_site_gets_one_request_at_a_time(tasks: int) -> None:
    """Also when a URL that was to be retried comes back."""
    site: Site = {"/": "".join(f"<a href=/{number}>" for number in range(20))}
    site |= {f"/{number}": slow_answer(0.5) for number in range(20)}
    site["/0"] = [too_many_requests(), slow_answer(0.5)]
    site["/1"] = [slow_answer(0.5, status=503), slow_answer(0.5)]
    site["/2"] = [slow_answer(0.1, status=503), slow_answer(0.5)]

    class Watching(Busy):
        after_429 = 0

        async def fetch(self, url: crawl.URL, *args: Any, **options: Any) -> Any:
            response = await super().fetch(url, *args, **options)
            if get_running_loop().time() > 2:  # the requests before the 429 have ended
                self.after_429 = max(self.after_429, self.under_way + 1)
            return response

    client = Watching(site)
    crawler = crawl_site(client, max_tasks=tasks)
    assert client.after_429 == 1
    assert {path for path, end in crawler.outcomes.items() if end == "200 x2"} == {"/0", "/1", "/2"}
    assert {record.status for record in crawler.emitted} == {200}


class Limited(SimulatedClient):
    """A host says 429 as nginx's limit_req does: requests a second, and so many in advance."""

    last = excess = 0.0

    def __init__(self, site: Site, host: str, rate: float, burst: int) -> None:
        super().__init__(site)
        self.host, self.rate, self.burst = host, rate, burst

    async def fetch(self, url: crawl.URL, *arguments: Any, **options: Any) -> Any:
        response = await super().fetch(url, *arguments, **options)
        if url.host != self.host:
            return response
        now = get_running_loop().time()
        excess = max(0, self.excess - (now - self.last) * self.rate + 1) if self.last else 0
        if excess > self.burst:
            return response._replace(status=429, body=b"")
        self.last, self.excess = now, excess
        return response


@each("tasks", [10, 100])
@each("burst", [0, 1, 10])
@each("rate", [0.5, 1, 5, 20])
def test_a_site_that_says_429_is_read_at_its_pace(rate: float, burst: int, tasks: int) -> None:
    site = site_of_pages(100)
    if rate == 20 and burst == 10:
        site = {path: slow_answer(0.01, body) for path, body in site_of_pages(1000).items()}
    crawler = crawl_site(Limited(site, "h", rate, burst), max_tasks=tasks)
    assert {record.status for record in crawler.emitted} == {200}
    assert len(crawler.emitted) == len(site)
    fewest = (len(site) - burst - 2) / rate  # seconds: faster the server does not allow
    assert fewest <= crawler.client.requests[-1][0] < len(site) / rate * 1.7 + 30


def test_a_url_whose_turn_was_next_waits_when_a_429_comes() -> None:
    numbers = range(1, 100)
    site = {f"/{number}": {"HEAD": 405, "GET": [too_many_requests("60"), ""]} for number in numbers}
    crawler = crawl_site(site | {"/": "".join(f"<img src=/{number}>" for number in numbers)})
    assert not [moment for moment, _ in crawler.client.requests if 0.3 < moment < 60]


# robots.txt
# ----------


@each_story({
    "robots.txt is obeyed": (
        {"/robots.txt": "User-agent: *\nDisallow: /private",
         "/": "<a href=/private/x><a href=/public>", "/public": ""},
        {}, {"/": "200", "/public": "200"}
        | {"/private/x": "forbidden by robots.txt: Disallow: /private"}),
    "robots.txt may be behind five redirects": (
        {"/robots.txt": "-> /1", "/5": NO, "/": ""}
        | {f"/{number}": f"-> /{number + 1}" for number in range(1, 5)},
        {}, {"/": "forbidden by robots.txt: Disallow: /"}),
    "a robots.txt behind six redirects counts as missing": (
        {"/robots.txt": "-> /1", "/6": NO, "/": ""}
        | {f"/{number}": f"-> /{number + 1}" for number in range(1, 6)},
        {}, {"/": "200"}),
    "a robots.txt that redirects to an invalid URL counts as missing": (
        {"/robots.txt": "-> http://[", "/": ""}, {}, {"/": "200"}),
    "the Location of a robots.txt counts only with a redirect status": (
        {"/robots.txt": (200, {"location": "/elsewhere"}, NO), "/": ""}, {},
        {"/": "forbidden by robots.txt: Disallow: /"}),
    "a redirect of robots.txt may leave the scope": (
        {"/robots.txt": "-> http://o/robots.txt",
         "http://o/robots.txt": "User-agent: *\nDisallow: /a",
         "/": "<a href=/a>"},
        {}, {"/": "200", "/a": "forbidden by robots.txt: Disallow: /a"}),
    "a redirect of robots.txt may lead to any host in scope": (
        {"/robots.txt": 404, "/": "<a href=http://a.h/>",
         "http://a.h/robots.txt": "-> http://b.h/robots.txt", "http://b.h/robots.txt": NO},
        {"subdomains": True},
        {"/": "200", "http://a.h/": "forbidden by robots.txt: Disallow: /"})})
def test_a_url_that_robots_txt_forbids_is_not_requested(story: Story) -> None:
    crawler = crawl_story(story)
    assert crawler.requested.count("/robots.txt") <= 2


# Other hosts
# -----------


def site_with_links_to_another_host(links: int, answer: str | int) -> Site:
    """A page with links to http://o, each of which has the same answer."""
    urls = [f"http://o/{number}" for number in range(links)]
    return {"/": "".join(map("<a href={}>".format, urls))} | dict.fromkeys(urls, answer)


@each("tasks", [1, 10, 50])
def test_links_to_a_host_that_limits_its_rate_are_checked_at_its_pace(tasks: int) -> None:
    client = Limited(site_with_links_to_another_host(40, ""), "o", rate=5, burst=4)
    crawler = crawl_site(client, external=True, max_tasks=tasks)
    assert {record.status for record in crawler.emitted} == {200}
    assert len(crawler.emitted) == 41
    assert client.last > (40 - 4 - 1) / 5, "seconds: faster the host does not allow"


def test_a_host_that_always_says_429_does_not_hold_up_the_crawl() -> None:
    crawler = crawl_site(site_with_links_to_another_host(12, 429), external=True)
    client = crawler.client
    assert [record.kind for record in crawler.emitted].count("blocked") == 12
    assert max(moment for moment, _ in client.requests) < 10
    assert len(client.requests) + len(client.checked) < 30


def test_the_tenth_429_in_a_row_of_another_host_is_not_retried() -> None:
    site = {"/": "<a href=http://o/>", "http://o/": too_many_requests()}
    crawler = crawl_site(site, external=True, max_tries=20)
    assert crawler.records["http://o/"].tries == crawl.PATIENCE == 10


def test_a_host_that_answers_between_429s_keeps_its_retries() -> None:
    site: Site = {
        "/": "<a href=//o/0><a href=//o/1>", "http://o/0": [*[429] * 6, 404],
        "http://o/1": [*[429] * 6, ""]}
    crawler = crawl_site(site, external=True, max_tries=9, max_tasks=1)
    assert crawler.records["http://o/1"].status == 200


# Your name
# ---------


def test_the_first_word_of_the_user_agent_is_the_name_that_robots_txt_is_searched_for(
        site: Server) -> None:
    site.add("/robots.txt", "User-agent: MyBot\nDisallow: /\n\nUser-agent: *\nAllow: /", 200)
    crawler = crawl_servers(site.url, headers={"user-agent": "MyBot/2.0"})
    assert crawler.outcomes == {site.url + "/": "forbidden by robots.txt: Disallow: /"}
    (head,) = site.heads
    assert "User-Agent: MyBot/2.0\r\n" in head


# robots.txt that fails
# ---------------------


@each_story({
    **{f"where robots.txt is a {status} everything is allowed": (
        {"/robots.txt": (status, {}, NO), "/": ""}, {}, {"/": "200"})
       for status in (401, 404, 499)},
    **{f"where robots.txt is a {status} all urls of its site fail": (
        {"/robots.txt": status, "/a": ""}, {"roots": ["/a"], "max_tries": 2}, {"/a": end})
       for status, end in (
           (500, "broken x2"), (503, "broken x2"), (599, "broken"), (429, "blocked x2"))},
    "a robots.txt that fails once is requested again": (
        site_of_pages(3) | {"/robots.txt": [ConnectionResetError(errno.ECONNRESET, "reset"), 404]},
        {}, {"/": "200", "/1": "200", "/2": "200"})})
def test_the_urls_of_a_site_fail_with_its_robots_txt_unless_that_is_a_4xx(story: Story) -> None:
    crawl_story(story)


@each("answers, requests", [([""], 1), ([503, ""], 2), ([503, 503, 503], 3)])
def test_robots_txt_is_requested_once_for_a_site_and_retried(
        answers: list[Any], requests: int) -> None:
    pages = site_of_pages(50) | {"/robots.txt": answers}
    crawler = crawl_site(pages, *[f"/{number}" for number in range(1, 50)])
    assert crawler.requested.count("/robots.txt") == requests


def test_a_failed_robots_txt_is_named_and_is_not_a_definite_answer(tmp_path: Path) -> None:
    path, roots = tmp_path / "journal", ("/", "http://o/")
    site: Site = {"/": "<a href=//o/1>", "http://o/": "", "http://o/1": ""}
    crawl_with_journal(path, site, *roots)
    crawler = crawl_with_journal(path, site | {"http://o/robots.txt": 503}, *roots)
    record = crawler.records["http://o/1"]
    assert (record.kind, record.skipped) == ("broken", "robots.txt failed")
    assert record.error == "http://o/robots.txt: 503 Words; --no-robots ignores robots.txt"
    assert "http://o/1" not in crawl_with_journal(path, site, *roots).requested


REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


@each("answer, kind, error", [
    ("-> http://dead/robots.txt", "refused", "http://dead/robots.txt: connection refused"),
    (crawl.NotHTTPError("not HTTP"), "broken", "https://h/robots.txt: not HTTP"),
    (TimeoutError("timed out"), "timed out", "https://h/robots.txt: timed out")])
def test_a_robots_txt_that_fails_on_a_server_that_answers_is_named(
        answer: Any, kind: str, error: str) -> None:
    site = {"https://h/robots.txt": answer, "http://dead/robots.txt": REFUSED}
    (record,) = crawl_site(site, "https://h/").emitted
    assert (record.skipped, record.kind) == ("robots.txt failed", kind)
    assert record.error == f"{error}; --no-robots ignores robots.txt"


def test_a_check_whose_robots_txt_failed_is_marked_as_a_check() -> None:
    site: Site = {"/": "<img src=http://s.h/i>", "http://s.h/robots.txt": 503}
    crawler = crawl_site(site, subdomains=True)
    assert crawler.records["http://s.h/i"].is_check
    assert not crawler.records["/"].is_check


def test_a_failing_robots_txt_does_not_occupy_a_worker() -> None:
    links = "".join(f"<a href=http://s.h.de/{number}>" for number in range(9))
    site = site_of_pages(9) | {
        "http://h.de/": f"<a href=http://h/>{links}", "http://s.h.de/robots.txt": 503}
    crawler = crawl_site(site, "http://h.de/", "http://h/", subdomains=True, max_tasks=1)
    assert crawler.requested.count("http://s.h.de/robots.txt") == 3
    assert max(moment for moment, url in crawler.client.requests if url[0] == "/") < 2


def test_no_site_holds_up_the_others_by_robots_txt() -> None:
    site = {"http://a/robots.txt": [too_many_requests("300"), 404], "http://a/": ""}
    site |= {"http://b/": "<a href=/1>", "http://b/1": ""}
    crawler = crawl_site(site, "http://a/", "http://b/")
    assert crawler.requested.count("http://a/robots.txt") == 2
    assert crawler.client.requests[-1][0] < 5
    assert {record.status for record in crawler.emitted} == {200}


def test_max_body_does_not_apply_to_robots_txt_which_is_cut_off(site: Server) -> None:
    rules = "User-agent: *\nDisallow: /a\n" + "#" * crawl.MAX_ROBOTS + "\nDisallow: /b\n"
    site.add("/robots.txt", rules, 200, Content_Type="text/plain")
    site.add("/", "<a href=/a><a href=/b>")
    site.add("/b")
    outcomes = crawl_servers(site.url, max_body=100).outcomes
    assert outcomes[site.url + "/a"] == "forbidden by robots.txt: Disallow: /a"
    assert outcomes[site.url + "/b"] == "200"


# Secrets
# -------


def test_headers_are_for_the_hosts_that_were_named() -> None:
    site = {"/": "-> http://o/", "http://o/": "<a href=/a><a href=http://h/b><img src=//o/c>"}
    crawler = crawl_site(site, headers={"Cookie": "secret"})
    assert crawler.client.trusted == {
        "/": True, "/b": True, "/robots.txt": True, "http://o/robots.txt": False,
        "http://o/": False, "http://o/a": False, "http://o/c": False}


def test_a_user_agent_goes_to_other_hosts_with_head_as_well(site: Server) -> None:
    with closing(Server()) as other:
        other.add("/x")
        site.add("/", f"<a href={other.url}/x>")
        crawl_servers(site.url, headers={"User-Agent": "Mine/1", "X-Secret": "x"}, external=True)
        (head,) = other.heads
    assert head.startswith("HEAD /x ")
    assert "User-Agent: Mine/1\r\n" in head
    assert "X-Secret" not in head


def test_a_robots_txt_on_another_host_gets_no_secrets() -> None:
    site: Site = {"/robots.txt": "-> http://o/robots.txt", "http://o/robots.txt": "", "/": ""}
    assert crawl_site(site, headers={"Cookie": "secret"}).client.trusted == {
        "/robots.txt": True, "http://o/robots.txt": False, "/": True}


def test_no_output_shows_the_value_of_a_header(site: Server, tmp_path: Path) -> None:
    site.add("/", "<a href=/state><a href=/gone>")
    site.answers["/state"] = answer_after_sigquit
    path = tmp_path / "journal"
    _, out, err = run_main("-v", "-o", str(path), "-H", "Cookie: secret", site.url)
    assert "Cookie: secret\r\n" in site.heads[-1]
    assert "secret" not in out + err + path.read_text()


def test_passwords_in_links_are_not_shown(site: Server, tmp_path: Path) -> None:
    links = ["//me:secret@a b/", "ftp://me:secret@h/", "//me:secret@h/", "http:me:secret@h"]
    links += ["http:\\\\me:secret@[z/", "http:/me:secret@h/"]
    site.add("/", "".join(f"<a href='{link}'>" for link in links))
    journal = tmp_path / "journal"
    status, out, err = run_main("-v", "-o", str(journal), site.url)
    assert status == 1
    assert "secret" not in out + err + journal.read_text()
    assert "  //***@a b/\n" in out
    assert "ftp://***@h/ skipped: ftp URL" in err


@each("link, shown", [
    pytest.param(f"http://u:SECRET{'p' * 9000}@h:99999/", "http://***@h:99999/", id="cut"),
    ("http://http://u:SECRET@h/", "http://http://***@h/"),
    ("//http://u:SECRET@h", "//http://***@h"),
    ("ftp://ftp://u:SECRET@h", "ftp://ftp://***@h"),
    ("view-source:https://u:SECRET@h", "view-source:https://***@h"),
    ("ftp:me:SECRET@h/", "ftp:***@h/"),
    ("http:me:SECRET@[/", "http:***@[/")])
def test_a_password_in_an_odd_link_is_not_shown(link: str, shown: str) -> None:
    crawler = crawl_site({"/": f"<a href='{link}'>"})
    assert shown in crawler.records
    assert "SECRET" not in f"{crawler.emitted} {crawler.lines()}"


def test_a_server_cannot_write_to_the_terminal(site: Server) -> None:
    site.answers["/"] = b"HTTP/1.1 500 \x1b[31mred\x1b[0m\xc3\r\nContent-Length: 0\r\n\r\n"
    _, out, err = run_main(site.url, "--max-tries", "1", "-v")
    for printed in (out, err):
        assert "\x1b" not in printed
        assert "%1B[31mred%1B[0m" in printed


# Certificates
# ------------


TRUST_IT = "; set SSL_CERT_FILE=ca.pem to trust it"
THREE_CAUSES = (
    "; the server does not send its intermediate certificate, or SSL_CERT_FILE has to name your "
    "own authority, or this Python has no certificates installed")


@each("code, remedy", [(10, ""), (18, TRUST_IT), (19, TRUST_IT), (20, THREE_CAUSES),
                       (21, THREE_CAUSES), (62, "")])
def test_the_remedy_for_a_certificate_is_named_where_it_helps(code: int, remedy: str) -> None:
    certificate = ssl.SSLCertVerificationError("bad")
    certificate.verify_code, certificate.verify_message = code, "reason"
    (record,) = crawl_site({"/": certificate}).emitted
    assert record.error == f"certificate not trusted (reason){remedy}"


# Retries
# -------


def test_each_retry_waits_twice_as_long_as_the_one_before() -> None:
    crawler = crawl_site({"/": 503}, max_tries=11)
    assert [gap - 0.125 for gap in request_gaps(crawler)] == pytest.approx(
        [1, 2, 4, 8, 16, 32, 64, 128, 256, 256])
    crawler = crawl_site({"/robots.txt": 503})
    assert [gap - 0.125 for gap in request_gaps(crawler)] == [1, 2]


def test_a_refused_connection_is_retried_once() -> None:
    assert crawl_site({"/": REFUSED}, max_tries=9).outcomes == {"/": "refused x2"}
    assert crawl_site({"/": "", "/robots.txt": [REFUSED, ""]}).outcomes == {"/": "200"}
    assert crawl_site({"/robots.txt": REFUSED}, max_tries=9).outcomes == {"/": "refused x2"}


def test_urls_that_always_say_429_cost_three_requests() -> None:
    site = site_of_pages(1000) | {
        f"/{number}": slow_answer(0.01, status=429 if number <= 10 else 200)
        for number in range(1, 1000)}
    crawler = crawl_site(site)
    assert len(crawler.requested) == 990 + 30
    assert crawler.client.requests[-1][0] < 120
    assert set(crawler.outcomes.values()) == {"200", "429 blocked x3"}


@each_story({
    f"{answer!r}": ({"/": answer}, {}, {"/": end})
    for answer, end in (
        *[(status, f"{status} broken") for status in (400, 402, 404, 501)],
        *[(status, f"{status} blocked") for status in (401, 403)],
        *[(status, f"{status} broken x3")
          for status in (408, 500, 502, 503, 504, 520, 521, 522, 523, 524)],
        (429, "429 blocked x3"),
        (TimeoutError("late"), "timed out x3"),
        (crawl.TruncatedError("cut"), "broken x3"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "refused x2"),
        (socket.gaierror(socket.EAI_NONAME, "unknown"), "refused"),
        # On macOS, EAI_NONAME is 8: the number of SSLEOFError.
        (ssl.SSLEOFError(socket.EAI_NONAME, "EOF"), "refused x3"),
        (ConnectionResetError(socket.EAI_NONAME, "reset"), "refused x3"),
        (socket.gaierror(socket.EAI_AGAIN, "temporary failure"), "refused x3"),
        (crawl.LimitError("large"), "over a limit"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), "broken"),
        (ssl.SSLError(1, "[SSL: SSLV3_ALERT_HANDSHAKE_FAILURE] failure"), "refused x3"),
        ([503, ""], "200 x2"),
        ([crawl.TruncatedError("cut"), 404], "404 broken x2"))
} | {
    "a 429 counts as an attempt": (
        {"/": "<a href=/a><a href=/b>", "/a": [429, 503, ""], "/b": [503, 429, 429]}, {},
        {"/": "200", "/a": "200 x3", "/b": "429 blocked x3"})})
def test_temporary_failures_are_retried_and_each_outcome_has_its_kind(story: Story) -> None:
    crawl_story(story)


# Recipes
# =======


README = re.findall(r"^```(\w+)\n(.*?)^```", project_file("README.md"), re.MULTILINE | re.DOTALL)
RECIPES: list[str] = re.findall(
    r"^(?:- .*: |  )`((?:jq|python3) .*)`$", project_file("README.md"), re.MULTILINE)
RECIPES += [text for language, text in README if language in ("sh", "yaml")]
needs_jq = pytest.mark.skipif(
    shutil.which("jq", path=os.defpath) is None, reason="jq, which the recipe is for, is not here")


def test_the_commands_of_readme_hold_no_comment() -> None:
    """In an interactive zsh, which is what a Mac has, a comment is an error."""
    commands = "\n".join(RECIPES).splitlines()
    assert len(commands) > 15
    assert not [line for line in commands if re.search("(^|[ ])#[ ]", line)]


def recipe(word: str, url: str = "") -> str:
    """Return the first recipe of README that holds *word*, for the site with a URL."""
    found = [text for text in RECIPES if word in text][0]
    found = re.sub("(https://)?example.com", url, found.replace("python3 crawl.py", "crawl"))
    return found.replace(".readme", str(HERE / ".readme"))


@pytest.mark.skipif(shutil.which("git") is None, reason="git, which the recipe uses, is not here")
def test_the_recipe_for_changed_pages_crawls_each_that_still_exists(
        site: Server, folder: Path) -> None:
    def commit(**files: str) -> None:
        for name, text in files.items():
            # The name is in UTF-8, whatever the locale says.
            (folder / "public" / os.fsdecode(f"{name}.html".encode())).write_text(text)
        me = "-c user.name=x -c user.email=x@x"
        run_in_shell(f"git add -A; git {me} commit -qm x")

    (folder / "public").mkdir()
    run_in_shell("git init -q")
    commit(same="1", old="1", new="1")
    (folder / "public" / "old.html").unlink()
    commit(new="2", café="1")
    names = recipe("git -c").replace("xargs -0 -r crawl --max-tasks 4 --depth 1", "tr '\\0' '\\n'")
    shown = run_in_shell(names).stdout
    assert shown == "http://localhost:8000/café.html\nhttp://localhost:8000/new.html\n"
    crawling = recipe("git -c").replace("localhost:8000", f"localhost:{site.port}")
    done = run_in_shell(crawling.replace("-r crawl", '-r "$PYTHON" "$CRAWL"'))
    assert done.returncode == 123, "that of xargs: neither page is on the server"


SHELLS = ["/bin/sh"], ["dash"], ["bash"], ["zsh"], ["busybox", "sh"]
each_shell = each("shell", [shell for shell in SHELLS if shutil.which(shell[0])])


@each_shell
def test_the_recipe_for_each_night_shows_what_has_changed(
        shell: list[str], site: Server, folder: Path) -> None:
    site.add("/", "<a href=/gone>")
    night = recipe("old.txt", site.url)
    shown = [run_in_shell(night, shell=shell).stdout for _ in range(2)]
    assert f"\n+  {site.url}/gone\n" in shown[0]
    assert shown[1] == ""
    site.add("/gone")
    assert f"\n-  {site.url}/gone\n" in run_in_shell(night, shell=shell).stdout
    (folder / "old.txt").write_text("the report of the last night")
    unreachable = recipe("old.txt", "http://127.0.0.1:1")
    assert "cannot crawl" in run_in_shell(unreachable, shell=shell).stderr
    assert (folder / "old.txt").read_text() == "the report of the last night"


@each_shell
def test_the_recipe_for_ci_fails_only_for_new_problems(
        shell: list[str], site: Server, folder: Path) -> None:
    accept, each_time = recipe("> known.txt", site.url).splitlines()
    site.add("/", "<a href=/gone><img src=/lost.png>")
    assert run_in_shell(each_time, shell=shell).returncode == 2, "there is no list"
    assert run_in_shell(accept, shell=shell).returncode == 1
    assert run_in_shell(each_time, shell=shell).returncode == 0
    site.add("/", "<a href=/gone>")
    assert run_in_shell(each_time, shell=shell).returncode == 0, "one is fixed"
    site.add("/", "<a href=/gone><a href=/new>")
    done = run_in_shell(each_time, shell=shell)
    assert done.returncode == 1
    assert done.stdout.startswith(f"broken (1)\n  {site.url}/new\n    404 Not Found\n")
    site.add("/robots.txt", "User-agent: *\nDisallow: /")
    assert run_in_shell(each_time, shell=shell).returncode == 2


def test_the_recipe_for_github_lets_no_page_give_commands_and_has_the_status_of_the_crawl(
        site: Server, folder: Path) -> None:
    script = textwrap.dedent(recipe("::stop-commands", site.url).partition("- run: |\n")[2])
    script = script.replace("openssl rand -hex 16", "echo 1234")
    (folder / "known.txt").touch()
    for page, status in (("<a href='http://[::error::'>", 1), ("", 0)):
        site.add("/", page)
        done = run_in_shell(script, shell=("bash", "-e"))
        lines = done.stdout.splitlines()
        assert (lines[0], lines[-1]) == ("::stop-commands::1234", "::1234::")
        assert done.returncode == status


@in_checkout
@needs_jq
def test_the_recipe_for_fixed_problems_crawls_the_pages_that_referred_to_them(
        site: Server, folder: Path) -> None:
    """Also of a page that referred to it by way of a redirect, and of one with an odd URL."""
    site.add("/", "<a href=/a><a href=/b><a href=\"/c'\">")
    site.add("/a", "<a href=/gone><a href=/b>")
    site.add("/b", "<a href=/a>")
    site.add("/c'", "<a href=/old>")
    site.add_redirect("/old", "/gone", 301)
    assert run_main("-o", "site.jsonl", site.url)[0] == 1
    site.add("/gone")
    site.requests.clear()
    done = run_in_shell(recipe("sort -u").replace("-r crawl", '-r "$PYTHON" "$CRAWL"'))
    assert (done.returncode, done.stdout) == (0, "")
    assert sorted(site.requests) == ["/a", "/b", "/c'", "/gone", "/old", "/robots.txt"]


@needs_jq
@each("name, output", [
    ("select(.kind) |", [
        "broken: /a#no no id 'no' on the page", "broken: /gone 404 Not Found",
        "broken: /lost 404 Not Found"]),
    pytest.param("pages.jq", [
        "/a#no /", "/a#no /a", "/gone /a", "/lost /", "/lost /a"], marks=in_checkout),
    ("-o - ", ["/ ", "/a \u00dcber", "/oops Page not found"]),
    ("test(", ["/oops"]),
    ("$url", ["/", "/a"]),
    ("select(.skipped)", ["mailto URL: neither http nor https: mailto:me on /"])])
def test_the_recipes_for_jq_give_what_readme_says(
        name: str, output: list[str], site: Server, folder: Path) -> None:
    site.add("/", "<a href=/a#no><a href=/x><img src=/moved><a href=mailto:me><a href=/oops>")
    site.add("/a", "<title>\u00dcber</title><a href=#no><a href=/gone><a href=/x><img src=/lost>")
    site.add("/oops", "<title>Page not found</title><link rel=stylesheet href=/s><img src=/i>")
    site.add("/s", "p {}", Content_Type=CSS)
    site.add("/i")
    site.add_redirect("/x", "/a#no", 301)
    site.add_redirect("/moved", "/lost#x", 302)
    assert run_main("-o", "site.jsonl", "--fragments", site.url)[0] == 1
    done = run_in_shell(recipe(name, site.url), LC_ALL="C.UTF-8")
    assert done.returncode == 0
    assert sorted(done.stdout.replace(site.url, "").splitlines()) == output


@needs_jq
def test_the_recipe_for_mixed_content_names_page_and_asset(folder: Path) -> None:
    (folder / "site.jsonl").write_text(
        '{"url": "https://h/", "assets": ["http://h/a", "https://h/b"]}\n'
        '{"url": "http://h/", "assets": ["http://h/a"]}\n')
    assert run_in_shell(recipe("startswith")).stdout == "https://h/: http://h/a\n"


@in_checkout
@needs_jq
def test_the_junit_report_has_a_failure_for_each_problem(site: Server, folder: Path) -> None:
    site.add("/", "<a href=/gone><a href='http://a b/?<'>")
    run_main("-o", "site.jsonl", site.url)
    assert run_in_shell(recipe("junit.xml")).returncode == 0
    suite = ElementTree.parse("junit.xml").getroot()
    assert (suite.get("failures"), suite.get("tests")) == ("2", str(len(suite)))
    failures = {case.get("name"): case[0].get("message") for case in suite if len(case)}
    assert failures[f"{site.url}/gone"] == "404 Not Found"


@in_checkout
def test_the_picture_program_draws_each_request(folder: Path) -> None:
    (folder / "site.jsonl").write_text(
        '{"url": "http://h/", "at": 1.0, "seconds": 0.5}\n'
        '{"url": "http://h/x", "at": 1.1, "kind": "x"}\n')
    assert run_in_shell(recipe("timeline.py").replace("python3", '"$PYTHON"')).returncode == 0
    assert (folder / "timeline.svg").read_text().count("<rect") == 2


@in_checkout
def test_the_program_for_several_machines_compiles() -> None:
    """`make soak` runs it, where dask.distributed is there."""
    compile(project_file(".readme/several.py"), "several.py", "exec")


# What it looks at and what it does not do
# ========================================


NOT_LOOKED_AT = {  # each of README's words in backticks, and some others
    "forms": "<form action=/no><button formaction=/no></form>",
    "`cite`": "<q cite=/no></q><blockquote cite=/no></blockquote>",
    "`longdesc`": "<p longdesc=/no>", "`usemap`": "<p usemap=/no>",
    "`data-src`": "<img data-src=/no>",
    "`srcdoc`": "<iframe srcdoc='<a href=/no>'></iframe>",
    "`imagesrcset`": "<link rel=preload as=image imagesrcset='/no 1x'>",
    "`background=`": "<table background=/no></table>",
    "`xlink:href`": "<svg><a xlink:href=/no></a></svg>",
    "`image-set()`": "<style>p { background: image-set('/no' 1x) }</style>",
    "URLs with escapes": r"<style>p { background: url(/\6eo) }</style>",
    "shadow roots": "<div><template shadowrootmode=open><a href=/no></a></template></div>"}


@each("name", NOT_LOOKED_AT)
def test_what_readme_says_is_not_looked_at_is_not_requested(name: str) -> None:
    head = "| in | looked at | not looked at |\n|---|---|---|\n"
    table = project_file("README.md").partition(head)[2].partition("\n\n")[0]
    words = " ".join(line.split("|")[3] for line in table.splitlines())
    assert name in words
    in_header_fields = {"Refresh", "Link", "X-Robots-Tag"}
    assert set(re.findall("`([^`]+)`", words)) - in_header_fields == {
        name.strip("`") for name in NOT_LOOKED_AT if "`" in name}
    assert crawl_site({"/": NOT_LOOKED_AT[name]}).outcomes == {"/": "200"}


@each("name", ["og:image", "og:image:url", "og:image:secure_url", "twitter:image"])
@each("attribute", ["property", "name"])
def test_preview_images_are_assets(name: str, attribute: str) -> None:
    page = (f"<base href=/base><meta {attribute}={name} content=/x>"
            f"<meta {attribute}={name} content><meta {attribute}={name} content=' '>")
    assert crawl.read_markup(page).assets == ("/x",)


@each("markup, assets", [
    ('<p style="background: url(x.png)">', ("x.png",)),
    ("<P CLASS=a STYLE = 'a: url(\"x\"), url(y)'>", ("x", "y")),
    ("<div style='background: url(&quot;x&amp;y&quot;)'><img style='a: url(z)'>", ("x&y", "z")),
    ("<svg><g style='fill: url(#a); mask: url(/x)'></svg>", ("/x",)),
    ("<p style=a:url(x)>", ("x",)),
    ("<p data-style='url(no)' title='style=url(no)'><!-- <p style='url(no)'> -->", ()),
    ("<script>'<p style=\"url(no)\">'</script><template><p style='url(no)'></template>", ()),
    ("<p style='color: red'>url(no)</p>", ())])
def test_urls_in_style_attributes_are_assets(markup: str, assets: tuple[str, ...]) -> None:
    assert crawl.read_markup(markup).assets == assets
    assert crawl_site({"/": "<p style='background: url(/x.png)'>"}).outcomes == {
        "/": "200", "/x.png": "GET 404 broken x2"}


@each("text, links, left_out", [
    ("<img srcset='" + ", ".join(["/" + "x" * 300 + f"{n} {n}x" for n in range(8)]) + "'>", 8, 0),
    ("<a href='/?" + "&#120;" * 1200 + "'>", 1, 0),
    ("<a href='/" + "x" * 9000 + "'>", 0, 1)])
def test_a_long_value_is_read_whole_and_a_long_url_is_left_out(
        text: str, links: int, left_out: int) -> None:
    crawler = crawl_site({"/": text})
    assert len(crawler.outcomes) == 1 + links + left_out
    assert crawler.report.skipped == ({"longer than 8000 characters": 1} if left_out else {})


# XML
# ---


XHTML = "<html xmlns='http://www.w3.org/1999/xhtml'><p id='x'/><a href='/x'/><script/></html>"


@each("content_type", ["application/xml", "text/xml; charset=utf-8", "application/xhtml+xml"])
@each("start", [
    "", "\ufeff", " \n", "<?xml version='1.0'?>", "<!-- a > b --><!DOCTYPE html>",
    "<!DOCTYPE html [ <!ENTITY a '>'> <!ENTITY b ']'> ]>\n<?pi > ?>",
    "<!DOCTYPE html PUBLIC '-//W3C//DTD XHTML 1.0//EN' 'x.dtd'>", "<!-- " + "x" * 3900 + " -->"])
def test_xml_whose_root_element_is_html_is_read_as_a_page(content_type: str, start: str) -> None:
    site: Site = {
        "/": "<a href=/p#x><a href=/p#y>", "/p": answer_of_type(content_type, start + XHTML),
        "/x": ""}
    assert crawl_site(site, fragments=True).outcomes == {
        "/": "200", "/p": "200", "/x": "200", "/p#y": "broken"}


@each("content_type", ["application/xml", "text/xml", "text/html", ""])
@each("root", ["urlset", "sm:urlset", "sitemapindex"])
def test_a_document_whose_root_element_says_sitemap_is_one(content_type: str, root: str) -> None:
    body = f"<?xml version='1.0'?><!-- x --><{root}><sm:loc>/x</sm:loc><loc>/y</loc></{root}>"
    site: Site = {"/": "<a href=/p>", "/p": answer_of_type(content_type, body), "/x": "", "/y": ""}
    assert crawl_site(site).outcomes == {"/": "200", "/p": "200", "/x": "200", "/y": "200"}


@each("body", [
    "<!-- " + "x" * 4096 + " --><rss><loc>/x</loc></rss>", "Notice: x<br/><?xml?><rss>",
    "<!DOCTYPE x [ <rss>", "text", "<", ""])
def test_where_no_root_element_is_found_the_type_decides(body: str) -> None:
    site: Site = {"/": "<a href=/p>", "/p": answer_of_type("text/xml", body), "/x": ""}
    crawler = crawl_site(site)
    assert crawler.records["/p"].encoding == "utf-8"
    assert ("/x" in crawler.outcomes) == ("/x" in body)


def test_a_page_that_is_called_xml_gz_is_a_page() -> None:
    site: Site = {
        "/": "<a href=/src/dump.xml.gz>", "/src/dump.xml.gz": "<html><a href=/x>", "/x": ""}
    assert crawl_site(site).outcomes == {"/": "200", "/src/dump.xml.gz": "200", "/x": "200"}


# header fields
# -------------


def test_a_crawl_sends_no_referer(site: Server) -> None:
    site.add("/", "<a href=/x><img src=/i>")
    crawl_servers(site.url)
    assert len(site.heads) > 3
    assert "referer" not in "".join(site.heads).lower()


def test_header_fields_with_urls_are_not_looked_at() -> None:
    fields = {"refresh": "0; url=/no", "link": "</no>; rel=preload", "x-robots-tag": "nofollow"}
    assert crawl_site({"/": (200, fields, "<a href=/x>"), "/x": ""}).outcomes == {
        "/": "200", "/x": "200"}


@each("raw, path", [
    ("/\u00e9".encode(), "/%C3%A9"), (b"/caf\xe9", "/caf%E9"), (b"/a#\xe9", "/a#%E9"),
    (b"/same\r\nLocation: /same", "/same")])
def test_each_byte_of_a_location_above_127_is_encoded(raw: bytes, path: str, site: Server) -> None:
    site.answers["/"] = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: " + raw + b"\r\n\r\n"
    assert crawl_servers(site.url).emitted[0].next_url == site.url + path


# Use it as a library
# ===================


(AS_A_LIBRARY,) = [text for language, text in README if language == "python"]


def test_the_readmes_library_program_prints_the_size_of_each_page(
        site: Server, tmp_path: Path) -> None:
    site.add("/", "<a href=/x>")
    program = AS_A_LIBRARY.replace("http://localhost:8765", site.url)
    assert output_of(program, tmp_path) == f"{{'{site.url}/': 11}}\n"


def test_readme_lists_the_public_names() -> None:
    readme = project_file("README.md")
    table = readme.partition("| name | what it is |\n|---|---|\n")[2].partition("\n\n")[0]
    named = [
        name for line in table.splitlines() for name in re.findall(r"`(\w+)", line.split("|")[1])]
    assert sorted(crawl.__all__) == sorted(named), "one row for each name in __all__"
    assert all(getattr(crawl, name).__doc__ for name in named)


@each("kind", [crawl.Record, crawl.Page, crawl.Options, crawl.Result, crawl.Response,
               crawl.Markup, crawl.URL])
def test_each_field_of_a_public_class_is_explained(kind: Any) -> None:
    clear = {"Response": {"version", "status", "reason"}, "URL": {"scheme", "port"}}
    explained = re.findall(r"^([a-z_]+)   ", inspect.getdoc(kind) or "", re.MULTILINE)
    assert {*explained, *clear.get(kind.__name__, ())} == set(kind._fields)


TYPED = """\
from crawl import *
from crawl import Crawler, Page, Record, fetch

def good(record: Record) -> None: ...
def bad(record: int) -> None: ...
async def on_page(record: Record, page: Page) -> None: ...

run(Crawler("x", max_tasks=3, on_record=good, on_page=on_page, exclude=["a"]).crawl())
run(fetch("http://h/", headers={"A": "b"}, timeout=3))
Crawler("x", max_task=3)            # an error
Crawler("x", max_tasks="3")         # an error
Crawler("x", on_record=bad)         # an error
Crawler(["x"], on_page=good)        # an error
fetch("http://h/", time_out=3)      # an error
fetch("http://h/", timeout="3")     # an error
"""


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_type_checkers_find_wrong_names_and_types_of_options(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(TYPED)
    cache = Path(sys.prefix) / "mypy"  # which make test has filled
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache, program], cwd=HERE,
        capture_output=True, text=True)  # fmt: skip
    found = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error: " in line}
    lines = enumerate(TYPED.splitlines(), 1)
    assert found == {number for number, line in lines if "# an error" in line}, done.stdout


# on_page
# -------


@each("kind", ["function", "coroutine"])
def test_on_page_gets_each_page_with_its_record_headers_and_body(site: Server, kind: str) -> None:
    pages: list[tuple[crawl.Record, crawl.Page]] = []

    def at_once(*page: Any) -> None:
        pages.append(page)

    async def later(*page: Any) -> None:
        await sleep(0.001)
        pages.append(page)

    page_text = "<a href=/gone><a href=/image><link rel=stylesheet href=/s>"
    site.add("/", page_text, X_Word="yes")
    site.add("/image", b"\x89PNG", Content_Type="image/png")
    site.add("/s", "p {}", Content_Type=CSS)
    crawl_servers(site.url, on_page={"coroutine": later, "function": at_once}[kind])
    ((record, page),) = pages
    assert page.body.decode() == page.text == page_text
    assert page.headers["x-word"] == "yes"
    assert record.url == site.url + "/"
    assert record.links == (site.url + "/gone", site.url + "/image")


def test_the_result_of_on_page_is_awaited_if_it_is_awaitable() -> None:
    with socket.socket() as result:  # which has a send(), as generators have
        assert len(crawl_site({"/": ""}, on_page=lambda record, page: result).emitted) == 1
        crawl_site({"/": ""}, on_record=lambda record: result)


@each("options, moments", [
    ({}, {"/": 0.125, "/1": 10.25, "/2": 10.375, "/3": 10.5}),
    ({"depth": 9}, {"/": 0.125, "/1": 10.25, "/2": 20.375, "/3": 30.5})])
def test_a_round_begins_when_on_page_has_returned_for_the_round_before(
        options: dict[str, int], moments: dict[str, float]) -> None:
    called = dict[str, float]()

    async def on_page(record: crawl.Record, page: crawl.Page) -> None:
        called[record.url.removeprefix("http://h")] = get_running_loop().time()
        await sleep(10)

    site: Site = {"/": "<a href=/1>", "/1": "<a href=/2>", "/2": "<a href=/3>", "/3": ""}
    crawl_site(site, on_page=on_page, **options)
    assert called == moments


@each("stubborn", [False, True])
async def test_a_crawl_cancelled_during_on_page_has_not_finished_the_page(stubborn: bool) -> None:
    async def for_ever(*page: Any) -> None:
        try:
            await sleep(3600)
        except CancelledError:
            if not stubborn:
                raise
            await sleep(60)

    crawler, task = crawler_and_task({"/": ""}, on_page=for_ever)
    await sleep(1)
    await cancel_crawl(task)
    assert crawler.emitted == []
    assert crawler.lines()[0] == "interrupted: 0 queued; in flight: /"


async def test_no_page_is_kept_after_its_callback() -> None:
    pages: dict[str, Any] = {"none": object()}  # to which nothing else refers
    site: Site = {"/": "<a href=/page><a href=/slow>", "/page": "", "/slow": slow_answer(60)}
    _, task = crawler_and_task(
        site, on_page=lambda record, page: pages.update({path_of(record.url): page}))
    await sleep(30)
    counts = {path: sys.getrefcount(page) for path, page in pages.items()}
    assert len(set(counts.values())) == 1, counts
    await task


# on_record
# ---------


async def test_the_record_of_a_request_is_emitted_while_a_worker_has_the_url() -> None:
    had: dict[str, bool] = {}

    def on_record(record: crawl.Record) -> None:
        had[path_of(record.url)] = record.url in {node.text for node in crawler.in_flight}

    site: Site = {"/": "<a href=/page>", "/page": "", "/gone": 404}
    crawler, task = crawler_and_task(site, "/", "/gone", on_record=on_record)
    await task
    assert had == {"/": True, "/gone": True, "/page": True}


@each("callback, site", [
    ("on_record", {"/": "<a href=/a><a href=/b>"}),
    ("on_page", {"/": "<a href=/a><a href=/b>"}),
    ("on_record", {"/robots.txt": NO})])
async def test_an_error_in_a_callback_ends_the_crawl_with_it(callback: str, site: Site) -> None:
    seen: list[Any] = []

    def fail(*arguments: Any) -> None:
        seen.append(arguments)
        raise OSError("my disk")

    options: dict[str, Any] = {callback: fail}
    _, task = crawler_and_task(site, **options)
    with raises(OSError, match="my disk"):
        await task
    assert get_running_loop().tasks == {crawl.current_task()}
    assert len(seen) == 1


# To stop a crawl
# ---------------


async def test_a_crawl_has_ended_only_when_all_its_tasks_have() -> None:
    async def on_page(record: crawl.Record, page: crawl.Page) -> None:
        for _ in range(2):  # gather() cancels the worker, and then crawl() does
            with suppress(CancelledError):
                await sleep(3600)
        await sleep(10)  # cleans up
        raise CancelledError

    crawler, task = crawler_and_task({"/": ""}, on_page=on_page)
    await sleep(1)
    task.cancel()
    await sleep(5)
    assert not crawler.ended
    assert not task.done()
    with raises(CancelledError):
        await task
    assert crawler.ended


@each("seconds", [0.01, 0.2, 100, 350])
async def test_a_cancelled_crawl_with_many_waiting_urls_ends_immediately(seconds: float) -> None:
    """While URLs wait for robots.txt, a turn, a retry or a callback; nothing is reported."""
    site = site_of_pages(1000) | {
        f"/{number}": [(503, {"retry-after": "300"}, ""), ""] for number in range(1, 1000)}
    site |= {"http://s/robots.txt": slow_answer(50), "http://s/": "<a href=/1>", "/robots.txt": 404}
    crawler, task = crawler_and_task(site, "/", "http://s/", max_tasks=20)
    await sleep(seconds)
    began = get_running_loop().time()
    await cancel_crawl(task)
    assert get_running_loop().time() == began
    assert crawler.ended


@each("tls", [False, True])
def test_a_crawl_cancelled_at_any_step_leaves_nothing_behind(
        tls: bool, site: Server, tls_site: Server, impatient: None) -> None:
    """Redirected, retried, chunked, kept alive: no socket, no thread, no task, no deadline."""
    server = tls_site if tls else site
    tries: collections.Counter[int] = collections.Counter()
    step = 0
    unavailable = b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"

    def flaky(connection: socket.socket, request: str) -> None:
        tries[step] += 1
        connection.sendall(unavailable if tries[step] == 1 else with_body(b""))

    server.add(
        "/", "<a href=/old><a href=/flaky><a href=/chunked><a href=//other.test/><img src=/logo>")
    server.add_redirect("/old", "/older")
    server.add_redirect("/older", "/chunked")
    server.answers["/flaky"] = flaky
    server.answers["/chunked"] = (
        OK + b"Content-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"9\r\n<a href=/\r\n2\r\n>x\r\n0\r\n\r\n")

    async def main() -> bool:
        loop = get_running_loop()
        crawler = RecordingCrawler([server.url], max_tasks=2)
        task = create_task(crawler.crawl())
        loop.then, loop.at = task.cancel, step  # type: ignore[attr-defined]
        with suppress(CancelledError):
            await task
        while len(loop.tasks) > 1:  # a lookup, which others may be waiting for
            await sleep(0)
        assert len(loop._watched) == 1
        assert all(entry.callback is None for _, _, entry in loop._timeouts)
        assert not len(crawler.client.pool)
        assert all(record.status for record in crawler.emitted if not record.skipped)
        return task.cancelled()

    cancelled = True
    while cancelled:
        step += 1
        cancelled = crawl.run(main(), loop_factory=CountingLoop)
    assert step > 30
    assert tries[step] == 2, "when it was not cancelled, the crawl retried"


# Differences from asyncio
# ========================


PROGRAMS = {  # written for asyncio; each pair is a line of it, and that line for crawl.py
    "a rate limiter": ("""
async def call(limit, number, log):
    async with limit:
        log.append(number)
        await asyncio.sleep(0.001)

async def main(port):
    limit, log = asyncio.Semaphore(2), []
    async with asyncio.timeout(5):
        await asyncio.gather(*[call(limit, number, log) for number in range(6)])
    print(log, limit.locked())
""", {}),
    "a port scanner": ("""
async def is_open(port):
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), 2)
    except OSError:
        return False
    writer.close()
    return True

async def main(port):
    print(await asyncio.gather(is_open(port), is_open(1)))
""", {'reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), 2)':
          'writer = await asyncio.wait_for(asyncio.connect("127.0.0.1", port), 2)'}),
    "a client of a protocol with lines": ("""
async def main(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for word in (b"hello", b"bye"):
        writer.write(b"GET /%b HTTP/1.1\\r\\n\\r\\n" % word)
        await writer.drain()
        line = await reader.readline()
        print(line)
    writer.close()
""", {'reader, writer = await asyncio.open_connection("127.0.0.1", port)':
          'reader = writer = await asyncio.connect("127.0.0.1", port)',
      'line = await reader.readline()': """line = b""
        while not line.endswith(b"\\n"):
            line += await reader.read()"""})}


@each("name", PROGRAMS)
def test_a_program_for_asyncio_does_the_same_on_crawl(name: str, site: Server) -> None:
    """After its import line, and the lines that are listed here, were changed."""
    program, changes = PROGRAMS[name]
    ported = program
    for theirs, ours in changes.items():
        assert ported.count(theirs) == 1
        ported = ported.replace(theirs, ours)
    site.answers = {"/hello": b"HELLO\n", "/bye": b"BYE\n"}
    outputs = list[str]()
    for module, text in ((asyncio, program), (crawl, ported)):
        names: dict[str, Any] = {"asyncio": module}
        exec(text, names)
        run: Any = module.run
        with redirect_stdout(io.StringIO()) as out:
            run(names["main"](site.port))
        outputs.append(out.getvalue())
    assert outputs[0] == outputs[1] != ""


# How it is tested
# ================


def test_one_page_or_server_does_not_stop_the_others(site: Server) -> None:
    others = {"/big", "/fine"}
    records: dict[str, crawl.Record] = {}
    flooded = 0  # bytes, while the others were requested

    def flood(connection: socket.socket, request: str) -> None:
        nonlocal flooded
        connection.sendall(CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Type: text/html\r\n\r\n"))
        while others:
            flooded += connection.send(b"1000\r\n" + b"x" * 4096 + b"\r\n")
            time.sleep(0.001)
        connection.close()

    def on_record(record: crawl.Record) -> None:
        path = record.url.removeprefix(site.url)
        others.discard(path)
        records[path] = record

    site.answers["/flood"] = flood
    site.add("/big", "".join(f"<a href=/{number}>x</a>" for number in range(5000)))
    site.add("/", "<a href=/flood><a href=/big><a href=/fine>")
    site.add("/fine", "")
    loop = MeteredLoop()
    crawl_servers(site.url, loop=loop, max_tries=1, depth=1, timeout=300, on_record=on_record)
    kinds = {path: record.kind for path, record in records.items() if not record.skipped}
    assert kinds == {"/": "", "/fine": "", "/big": "", "/flood": "broken"}
    assert len(records["/big"].links) == 5000
    assert flooded > 0
    assert loop.longest < 0.5  # of processor time


def url_parses_to_itself(pieces: list[str]) -> None:
    """A URL is printable ASCII, in its one spelling."""
    with suppress(ValueError):
        url = crawl.parse_url("".join(pieces), BASE)
        assert re.fullmatch("[!-~]+", str(url))
        assert crawl.parse_url(str(url)) == url


def readers_return_text(pieces: list[str]) -> None:
    """The references of a page, a stylesheet and a sitemap are text."""
    for read in (crawl.read_markup, crawl.read_stylesheet, crawl.read_sitemap):
        found = read("".join(pieces))
        assert all(isinstance(reference, str) for reference in found.links + found.assets)


def robots_decide(pieces: list[str]) -> None:
    """A robots.txt forbids by a rule of its own, and has a delay."""
    robots = crawl.Robots("".join(pieces))
    for path in ("/", "/a", "/a/%2F?$", "/*a$"):
        rule = robots.rule(path)
        assert rule is None or rule.startswith("Disallow: ")
        assert robots.delay >= 0


def response_does_not_depend_on_cuts(pieces: list[str]) -> None:
    """A response is one, or a documented error, and the same however it is cut."""

    def outcome(size: int) -> Any:
        try:
            return parse_response("".join(pieces).encode("latin-1"), pieces=size).body
        except crawl.ProtocolError as error:
            return str(error)

    assert outcome(0) == outcome(1) == outcome(7)


@each("claim, pieces", [
    (url_parses_to_itself, [
        "", "//", "http://", "https://", "/", "xn--", "\uff41", "\uff0e", "\u3002",
        "\u00fc", "\u6f22", "\u00ad", "\u2024", "0x7f", "1", ".", "..", "%2e", "%C3", "@",
        ":", ":80", "[::1]", "?", "#", "\\", "\t", " ", "a" * 64, "\u00e9" * 50,
        "b/" * 3999, "&", ";", "=", "A", "'", "\ud800", "\u0600", "\u2fff"]),
    (readers_return_text, [
        "<a href=", "'", '"', ">", "<!--", "-->", "<script>", "</script>", " ", "x",
        "<base href=", "&#", ";", "=", "<meta name=robots content=", "<img src=", "srcset=",
        ", ", "<script src=", "<link rel=", "<iframe src=", "</iframe",
        "<meta http-equiv=refresh content='0;", "\0", "&amp", "<style>", "url(", "@import",
        "\\", "/*", "<loc>", "<![CDATA[", "]]>"]),
    (robots_decide, [
        "User-agent: ", "*", "crawl", "\n", "Disallow: ", "Allow:", "/", "a", "%2f", "%",
        "$", "Crawl-delay:", "9", "#", "\r", "\ufeff", " ", ":", "\u00e9"]),
    (response_does_not_depend_on_cuts, [
        "HTTP/1.1 200 OK\r\n", "HTTP/1.1 100 Go\r\n", "HTTP/1.0 404 \r\n", "\r\n",
        "\r\n\r\n", "\n", "\r", "Transfer-Encoding: chunked\r\n", "Content-Length: 5\r\n",
        "Content-Encoding: gzip\r\n", "hello", "5\r\nhello\r\n", "0\r\n\r\n", "5;x\r\n",
        "A: b\r\n", " folded\r\n", GZIPPED.decode("latin-1"), "\0", "\xff"])])
def test_made_up_input_raises_only_the_documented_errors(
        claim: Callable[[list[str]], None], pieces: list[str], rng: Random) -> None:
    for _ in range(ROUNDS // 4):
        check_claim(claim, rng.choices(pieces, k=rng.randrange(14)))


def plant_faults(server: Server) -> set[tuple[str, str]]:
    """Make a small documentation site on a server; return its faults: their kinds and URLs."""
    server.add("/robots.txt", "User-agent: *\nDisallow: /private/", 200)
    server.add("/", """
        <link rel=stylesheet href=/style.css><link rel=canonical href=/><p id=top-links>
        <a href=/guide/><a href=/api/#calls><a href=/sitemap.xml><a href=/private/x>
        <a href=mailto:me@h><a href='http://exa mple.com/'><a href=/loop><a href=/old#install>""")
    server.add("/guide/", """
        <link rel=alternate hreflang=de href=/de/><link rel=next href=/guide/2>
        <link rel=preload href=/gone.js><h1 id=install>x</h1><a href=#instal>
        <a href=../api/#missing><img src=/logo.png srcset='/gone.png 2x'><a href=/secret>
        <style>p { background: url(/gone-inline.png) }</style>""")
    server.add(
        "/api/", "<a name=calls></a><a href=/guide/#install><iframe src=/gone-frame></iframe>")
    server.add("/style.css", "@import 'more.css'; p { src: url(gone.woff) }", Content_Type=CSS)
    server.add("/more.css", "p { background: url('/logo.png') }", Content_Type=CSS)
    server.add("/logo.png", b"png", Content_Type="image/png")
    listed = f"<loc>{server.url}/gone-listed</loc><loc>{server.url}/guide/2</loc>"
    server.add("/sitemap.xml", f"<urlset>{listed}</urlset>", Content_Type="application/xml")
    server.add("/guide/2", "<a href=/moved>")
    server.add("/secret", "", 403)
    server.add_redirect("/loop", "/loop2")
    server.add_redirect("/loop2", "/loop")
    server.add_redirect("/old", "/guide/", 301)
    server.add_redirect("/moved", "/gone-moved", 301)
    broken = ("/de/", "/gone.js", "/gone.png", "/gone-inline.png", "/gone-frame", "/gone.woff",
              "/gone-listed", "/gone-moved", "/guide/#instal", "/api/#missing")
    faults = {("broken", server.url + path) for path in broken}
    faults.add(("blocked", server.url + "/secret"))
    return faults | {("too many redirects", server.url + "/loop2")}


def test_planted_faults_are_all_reported_also_after_a_kill(
        site: Server, tls_site: Server, tmp_path: Path) -> None:
    """By http and https; in the second run after kill -9 in the middle of the first."""
    faults = plant_faults(site) | plant_faults(tls_site) | {("broken", "http://exa mple.com/")}
    page, process = site.answers["/api/"], None

    def kill(connection: socket.socket, request: str) -> None:
        if process:
            process.kill()
        connection.sendall(cast(bytes, page))

    site.answers["/api/"] = kill
    arguments = [
        sys.executable, str(HERE / "crawl.py"), "--fragments", "-o",
        str(tmp_path / "journal"), "--resume", site.url, tls_site.url]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    assert process.wait(60) == -signal.SIGKILL
    process = None
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == ""
    records = {line["url"]: line for line in journal_lines(tmp_path / "journal")}
    assert {(line["kind"], url) for url, line in records.items() if "kind" in line} == faults
    for kind, url in faults:
        if kind != "too many redirects":  # which is reported for another URL of the circle
            assert f"  {url}\n" in done.stdout, url
    broken = f"  {site.url}/gone.woff\n    404 Not Found\n    found on {site.url}/style.css\n"
    assert broken in done.stdout
    assert "/private/x" not in site.requests + tls_site.requests


def kill_and_resume(site: Server, path: Path, points: list[int]) -> None:
    """Kill a crawl of 300 pages after so many requests, over and over; let one end.

    With the points [1, 40], one run is killed at its first request, the next one at its 40th, and
    the third ends. No run may request again what the journal has."""

    def page(links: list[str]) -> Callable[[socket.socket, str], None]:
        def answer(connection: socket.socket, request: str) -> None:
            if len(site.requests) >= last:
                process.kill()
            connection.sendall(with_body(
                "".join(map("<a href={}>".format, links)).encode(), b"Content-Type: text/html"))

        return answer

    links = {
        f"/{number}": [f"{site.url}/{(number * 3 + step) % 300}" for step in range(4)]
        for number in range(300)}
    site.answers |= {path: page(its_links) for path, its_links in links.items()}
    site.heads.clear()
    known: set[str] = set()  # except the root, which is requested in every run
    for run, point in enumerate([*points, 10**9]):
        last = len(site.requests) + point
        process = subprocess.Popen([
            sys.executable, str(HERE / "crawl.py"), "-q", "-o", str(path), "--resume", "-H",
            f"User-Agent: run-{run}", site.url + "/0"])
        status = process.wait()
        assert status == (-signal.SIGKILL if run < len(points) else 0)
        # Only of this run: requests of a killed one may still have been on their way.
        asked = [head.split(" ")[1] for head in site.heads if f"run-{run}\r" in head]
        asked = [path for path in asked if path not in ("/robots.txt", "/0")]
        assert len(asked) == len(set(asked)) and known.isdisjoint(asked), "requested again"
        whole = path.read_bytes().rpartition(b"\n")[0]
        served = {
            line["url"].removeprefix(site.url): line["links"]
            for line in map(json.loads, whole.splitlines())}
        known = set(served) - {"/0"}
        assert len(set(asked) - known) <= 10, "more than what was in flight is lost"
    assert served == links
    lines = [line["url"] for line in journal_lines(path) if line["url"] != site.url + "/0"]
    assert len(lines) == len(set(lines))


def test_a_crawl_survives_kill_9(site: Server, tmp_path: Path) -> None:
    kill_and_resume(site, tmp_path / "journal", [1, 7, 40, 90])


def random_site(rng: Random) -> list[tuple[str, Any]]:
    """Return the responses of some URLs: pages, redirects, errors of all kinds, a dead host."""
    hosts = "h", "h", "h", "www.h.de", "else", "dead"
    names = [f"http://{rng.choice(hosts)}/{number}" for number in range(rng.randrange(3, 20))]
    odd = ["http://a b/", "mailto:x", "http:x", "//h//x", "http://b\u00fc.de/", "/" + "x" * 9000,
           "?a=1&amp;b"]
    reset = OSError(errno.ECONNRESET, "reset")

    def answer() -> Any:
        links = f"<title>page {rng.randrange(9)}</title>" + "".join(
            f"<a href='{rng.choice(names)}'><img src={rng.choice(names)}.png>"
            for _ in range(rng.randrange(5)))
        return rng.choice((
            links, links, links + f"<a href='{rng.choice(odd)}'>", f"-> {rng.choice(names)}",
            answer_of_type("text/xml", f"<html>{links}</html>"),
            answer_of_type("text/xml", f"<rss>{links}</rss>"),
            (301, {"location": rng.choice(names)}, ""), 404, 503, reset))

    rules = f"User-agent: *\nDisallow: /{rng.randrange(10)}" if rng.randrange(2) else 404
    root = "".join(map("<a href='{}'>".format, names[:5]))
    site: list[tuple[str, Any]] = [("/", root), ("/robots.txt", rules)]
    for name in names:
        passing = rng.choices([503, 429, reset], k=rng.randrange(3))
        site.append((name, REFUSED if "dead" in name else [*passing, answer()]))
        image = rng.choice(("", 404, f"-> {rng.choice(names)}", answer_of_type("image/png")))
        site.append((f"{name}.png", image))
    return site


def scope_host(url: str) -> str:
    """Return a URL's host, as the scope takes it."""
    return crawl.parse_url(url).host.removeprefix("www.")


def model_of_crawl(site: Site, depth: int = 100, external: bool = False,
                   pages_only: bool = False, exclude: str = "(?!)", include: str = "",
                   accept: Sequence[int] = (),
                   moved: bool = False) -> tuple[dict[str, str], dict[str, float]]:
    """The rules of a crawl from http://h/: the outcome of each URL, and the round of its request.

    The rules once more, without tasks and queues. Pages go level by level, a redirect's target
    with it. (The model does not say where a circle of redirects is closed, and says nothing of
    text that is not a URL.)

        model_of_crawl({"/": "<a href=/a><img src=/b>", "/a": "", "/robots.txt": 404})
        -> {"/": "200", "/a": "200", "/b": "check 404 broken"}, {"/": 0, "/a": 1, "/b": math.inf}
    """
    final = {
        url_of(path): answer[-1] if isinstance(answer, list) else answer
        for path, answer in site.items()}
    rules = crawl.Robots(rules if isinstance(rules := final["http://h/robots.txt"], str) else "")
    hosts, ends, rounds = {"h"}, dict[str, str](), dict[str, float]()
    pages, checks, links = ["http://h/"], list[str](), list[str]()
    following = dict[str, str]()    # the target of each redirect
    permanent, referred = set[str](), set[str]()

    def meet(target: str, level: int, found: list[str]) -> None:
        """Put what a reference or a redirect leads to in *found*, or among the checks, or out."""
        outside = scope_host(target) not in hosts
        if re.search(exclude, target):
            ends.setdefault(target, "excluded")
        elif found is checks or external and (outside or not re.search(include, target)):
            checks.append(target)
        elif outside:
            ends.setdefault(target, "on another host")
        elif not re.search(include, target):
            ends.setdefault(target, "not included")
        elif level > depth:
            ends.setdefault(target, "too many links from the start")
        else:
            found.append(target)

    def ask(url: str, number: float) -> tuple[str, str]:
        """Record the outcome of a URL; return the target of its redirect, and its page."""
        if url in rounds or re.match("excluded|forbidden", ends.get(url, "")):
            return "", ""
        rule = rules.rule(crawl.parse_url(url).target) if url.startswith("http://h/") else None
        if rule:
            ends[url] = f"forbidden by robots.txt: {rule}"
            return "", ""
        rounds[url] = number
        status, fields, page = SimulatedClient.parts_of(final.get(url, 404))
        is_broken = status >= 400 and status not in accept
        ends[url] = " ".join(filter(None, (
            "check" * (number == math.inf), str(status or "refused"), "broken" * is_broken)))
        if location := fields.get("location"):
            following[url] = str(crawl.parse_url(location, crawl.parse_url(url)))
        if status == 301:
            permanent.add(url)
        if "content-type" in fields and not page.startswith("<html>"):
            page = ""  # XML is what its root element says
        return following.get(url, ""), page

    for level in range(100):
        for url in pages:  # which grows
            target, page = ask(url, level)
            if target:
                hosts |= {scope_host(target)} if not level else set()
                meet(target, level, pages)
            markup = crawl.read_markup(page)
            for found, references in ((links, markup.links), (checks, markup.assets)):
                for reference in references if found is links or not pages_only else ():
                    with suppress(ValueError):
                        target = str(crawl.parse_url(reference, crawl.parse_url(url)))
                        referred.add(target)
                        meet(target, level + 1, found)
        pages, links = links, []
    for url in checks:  # which grows
        target, _ = ask(url, math.inf)
        if target:
            meet(target, 0, checks)
    for url in permanent & referred if moved else ():
        chain = [url]
        while following.get(chain[-1], url) not in chain:
            chain.append(following[chain[-1]])
        if chain[-1] not in following and not re.search("broken|refused", ends[chain[-1]]):
            ends[url] += " moved"
    return (
        {path_of(url): end for url, end in ends.items()},
        {path_of(url): number for url, number in rounds.items()})


def test_made_up_sites_are_crawled_and_resumed_by_the_rules(rng: Random, tmp_path: Path) -> None:
    """At any latencies the requests, their order, the report and --resume follow the model."""
    path = tmp_path / "journal"

    def by_the_rules(some: list[tuple[str, Any]]) -> None:
        """Crawl a site of random_site() twice, interrupt and resume it, and ask the model."""
        site = {"/": "", "/robots.txt": 404} | dict(some)
        ends, rounds = model_of_crawl(site, **options)

        def check(crawler: RecordingCrawler) -> None:
            urls = {
                url: re.sub(" too many redirects| x[0-9]", "", re.sub("HEAD|GET", "check", end))
                for url, end in crawler.outcomes.items()
                if end != "broken" and ": neither" not in end and "longer than" not in end}
            assert urls == ends
            assert crawler.report.moved == sum(
                "301" in end and "moved" not in end for end in urls.values())
            titles = {url_of(path): re.findall("<title>(.*)</title>", f"{answer}")
                      for path, answer in site.items()}
            for record in crawler.emitted:
                assert [record.title] == (record.encoding and titles[record.url] or [""])
            named = {line[2:] for line in crawler.lines(brief=True) if re.match("  [^ .]", line)}
            assert named == {path for path, record in crawler.records.items() if record.kind}

        last = options.get("depth", 1)
        for seed in (1, 2):
            client = Uneven(site, seed)
            crawler = crawl_site(client, max_redirect=100, max_tasks=tasks, **options)
            check(crawler)
            asked = [rounds[url] for url in client.order if not url.endswith("/robots.txt")]
            order = [number if number == math.inf else min(number, last) for number in asked]
            assert order == sorted(order)
        path.unlink(missing_ok=True)
        how: dict[str, Any] = {"max_redirect": 100}
        crawl_with_journal(path, site, stop_after=cut, **how, **other)
        check(crawl_with_journal(path, site, **how, **options))
        again = {url for url, number in rounds.items()
                 if number == 0 or re.search("refused$|503|moved", ends[url])}
        crawler = crawl_with_journal(path, site, **how, **options)
        requested = {*crawler.requested, *crawler.client.checked} - {"/robots.txt"}
        loops = {url for url, end in crawler.outcomes.items() if "too many" in end}
        assert again <= requested <= again | loops

    every: list[dict[str, Any]] = [
        {}, {}, {"depth": 1}, {"depth": 2}, {"external": True}, {"exclude": "[13]"},
        {"pages_only": True}, {"pages_only": True, "external": True}, {"accept": [404]},
        {"moved": True}, {"moved": True, "external": True, "exclude": "[2]"},
        {"include": "[02468]"}, {"include": "[02468]", "external": True, "accept": [404]}]
    for _ in range(max(60, ROUNDS // 100)):
        options, other, cut = rng.choice(every), rng.choice(every), rng.randrange(1, 30)
        tasks = rng.choice((1, 2, 10, 100))
        check_claim(by_the_rules, random_site(rng))


ERRNOS = [
    errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT, errno.EHOSTUNREACH,
    errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EMFILE, errno.ENFILE, errno.ENOBUFS,
    errno.ENOMEM, errno.ENOSPC, errno.EACCES, errno.EPERM, errno.EIO]


@each("owner, name, number", [  # before the crawl's calls come those of the self-pipe
    (socket.socket, "__init__", 3), (socket.socket, "connect_ex", 1),
    (socket.socket, "getsockopt", 1), (socket.socket, "send", 1), (socket.socket, "recv", 1),
    (selectors.DefaultSelector, "register", 2)])
def test_a_system_call_that_fails_costs_one_try(
        owner: type, name: str, number: int, site: Server, impatient: None,
        monkeypatch: Patch) -> None:
    site.add("/")
    original = getattr(owner, name)
    for code in ERRNOS:
        calls = itertools.count(1)

        def failing(self: Any, *arguments: Any, **options: Any) -> Any:
            in_thread = threading.current_thread() is not threading.main_thread()
            in_pipe = name == "recv" and self.family == socket.AF_UNIX
            if in_thread or in_pipe or next(calls) != number:
                return original(self, *arguments, **options)
            if name == "connect_ex":
                return code
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(owner, name, failing)
        (record,) = crawl_servers(f"http://127.0.0.1:{site.port}", no_robots=True).emitted
        assert (record.status, record.tries) == (200, 2)


def repeated(before: str, piece: str | bytes, after: str, size: int) -> bytes:
    """Return *size* bytes: a piece, over and over, between two texts. {} in it is counted."""
    head, tail = before.encode(), after.encode()
    unit = piece if isinstance(piece, bytes) else piece.encode()
    size -= len(head) + len(tail)
    count = size // len(unit)
    if isinstance(piece, str) and "{}" in piece:
        text = "".join(map(piece.format, range(count))).encode()[:size].decode(errors="ignore")
        return head + text.encode() + tail  # without the half of a character
    return head + unit * count + tail


# Documents that are meant to hurt: the type, the arguments of repeated(), and how many URLs are
# seen in one of a megabyte (with the page itself).
HTML = "text/html"
MEGABYTES: dict[str, tuple[str, str, str, str, int]] = {
    "distinct entities in an href": (HTML, "<a href='", "&a{};", "'>", 2),
    "distinct entities in an id": (HTML, "<a href=/x><img id='", "&a{};", "'>", 2),
    "attributes of an image": (HTML, "<img ", "a=b ", "><a href=/x>", 2),
    "attributes of a link": (HTML, "<a ", "a ", "><a href=/x>", 2),
    "attributes of another tag": (HTML, "<p ", "a ", "><a href=/x>", 2),
    "parentheses in a srcset": (HTML, "<img srcset='a ", "()", "'>", 2),
    "one reference": (HTML, "<a href='", "/ ", "%'>", 2),
    "one reference that is not in ASCII": (HTML, "<a href='", "/\u00e9", "'>", 2),
    "one base": (HTML, "<base href='", "/\u00e9", "'><a href=x>", 3),
    "declarations before the root": (HTML, "", "<!>", "<a href=/x>", 2),
    "line ends in a stylesheet": (CSS, "", "\r", "url(/x)", 2),
    "short lines in a stylesheet": (CSS, "", "ab\r", "url(/x)", 2),
    "namespaces in a stylesheet": (CSS, "", "@namespace a''", ";url(/x)", 2),
    "names without a value": (HTML, "", "<b name=>", "<a href=#x>", 2),
    "a name without quotes": (HTML, "<b name= ", "a ", "><a href=#x>", 2),
    "fragments in a sitemap": ("text/xml", "<urlset>", "<loc>/#abcd", "", 2),
    "encoded fragments": (HTML, "", "<a href=#{}%41%42>", "", 48_149),
    "svg elements": (HTML, "", "<svg><use href=/a /></svg> and some text", "", 2),
    "style attributes": (HTML, "", "<p style='a:url(/x)'> and some text", "", 2),
    "entities in a title": (HTML, "<title>", "&amp; ", "</title><a href=/x>", 2),
    "hosts of combining marks": (HTML, "", "<a href=//a{}" + "\u0301" * 2000 + ">", "", 250)}


def crawl_in_steps(site: Site, **options: Any) -> tuple[RecordingCrawler, float]:
    """Return the Crawler that has crawled a site, and the seconds of its longest step."""
    loop = MeteredLoop()

    async def main() -> RecordingCrawler:
        crawler = RecordingCrawler("http://h/", SimulatedClient(site), fragments=True, **options)
        await crawler.crawl()
        return crawler

    return crawl.run(main(), loop_factory=lambda: loop), loop.longest


@each("name", MEGABYTES)
def test_a_hostile_megabyte_is_read_in_short_steps(name: str) -> None:
    content_type, before, piece, after, urls = MEGABYTES[name]
    crawler, longest = crawl_in_steps(
        {"/": answer_of_type(content_type, repeated(before, piece, after, 1_000_000))}, max_pages=1)
    assert crawler.records["/"].encoding == "utf-8"  # it was read
    assert len(crawler.seen_urls) == urls
    assert longest < 1.5


@each("redirects, target", [
    pytest.param(2000, "/2000", id="to one page"), pytest.param(800, "/{}", id="in a chain")])
def test_the_fragments_of_many_redirects_to_a_large_page_are_found_in_short_steps(
        redirects: int, target: str) -> None:
    site: Site = {
        f"/{number}": slow_answer(0, status=302, location=target.format(number + 1))
        for number in range(redirects)}
    fragments = {f"{path}#no" for path in site}
    site["/"] = "".join(f"<a href={path}#x5><a href={path}#no>" for path in site)
    site[f"/{redirects}"] = "".join(f"<p id=x{number}>" for number in range(99_000))
    crawler, longest = crawl_in_steps(site, max_redirect=1000)
    assert {path for path, end in crawler.outcomes.items() if end == "broken"} == fragments
    assert longest < 1.5


@each("expression", [
    pytest.param(expression, id=f"{expression.method} {expression.pattern.pattern!a:.40}")
    for expression in expressions()])
def test_every_regular_expression_takes_linear_time(expression: Expression, rng: Random) -> None:
    check_linear(expression, 100_000, 20, rng)


def titles(text: str, underline: str) -> list[str]:
    """Return the headings in comments that are underlined."""
    return re.findall(rf"^# (\S.*)\n# {underline}{underline}+$", text, re.MULTILINE)


def test_this_file_has_the_order_of_crawl_and_readme() -> None:
    """The map at the top of this file, its headings, crawl.py and README agree."""
    own = project_file("test_crawl.py")
    sections = [title for title in titles(own, "=") if title[0].isdecimal()]
    assert sections == titles(project_file("crawl.py"), "=")[1:len(sections) + 1]
    shown = (__doc__ or "").split("\n\n")
    assert [line.strip() for line in shown[3].splitlines()] == sections
    expected = list[str]()  # the map of README's headings
    readme = project_file("README.md")
    for part in re.split(r"(?m)^# (?=\S.*\n# ==)", own)[1:]:
        title = part.partition("\n")[0]
        if title in sections:
            continue
        before, found, readme = readme.partition(f"# {title}\n")  # in the order of README
        assert found, f"{title} is not a heading of README, or stands too late here"
        text = re.split("(?m)^##", readme)[0]
        rows = titles(part, "-")
        for row in rows:
            before, found, text = text.partition(row)
            assert found, f"{row} does not stand in README's {title}, or stands too late here"
        expected += [title, *" | ".join(rows).split()]
    assert shown[5].split() == " ".join(expected).split(), (
        "make the map at the top of this file the same as its headings")
