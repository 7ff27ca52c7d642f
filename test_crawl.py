# SPDX-FileCopyrightText: 2026 The crawl.py authors
# SPDX-License-Identifier: MIT
"""What crawl.py claims, section by section. The numbers and titles are crawl.py's own.

Read conftest.py first: `play` runs a coroutine on a clock that jumps, `site` is a web
server in a thread that answers as scripted.
"""

from __future__ import annotations

import ast
import asyncio
import concurrent.futures
import contextlib
import contextvars
import errno
import gc
import gzip
import io
import json
import math
import os
import pathlib
import pty
import random
import re
import resource
import selectors
import signal
import socket
import ssl
import subprocess
import symtable
import sys
import termios
import threading
import time
import types
import weakref
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest

import crawl
from conftest import JumpingLoop, JumpingSelector, Server, play
from crawl import CancelledError, Queue, create_task, get_running_loop, sleep

HERE = pathlib.Path(__file__).parent
ROUNDS = int(os.environ.get("ROUNDS", "10000"))  # of made-up input; `make soak` takes a million


@pytest.fixture
def loop() -> Any:
    """A loop on a clock that jumps; what is reported to it a test has to expect, and to clear."""
    loop = JumpingLoop()
    yield loop
    loop.close()
    assert loop.reported == []


# 2  Event loop
# =============


def test_callbacks_run_in_the_order_in_which_they_were_asked_for(loop: JumpingLoop) -> None:
    seen: list[int] = []
    for number in range(3):
        loop.call_soon(seen.append, number)
    loop.tick()
    assert seen == [0, 1, 2]


def test_a_tick_leaves_newcomers_for_the_next_one(loop: JumpingLoop) -> None:
    seen: list[str] = []
    loop.call_soon(lambda: loop.call_soon(seen.append, "newcomer"))
    loop.tick()
    assert seen == []
    loop.tick()
    assert seen == ["newcomer"]


def test_a_cancelled_callback_is_not_called(loop: JumpingLoop) -> None:
    seen: list[int] = []
    handle = loop.call_soon(seen.append, 1)
    assert not handle.cancelled()
    handle.cancel()
    loop.tick()
    assert handle.cancelled() and seen == []


def test_timeouts_run_by_deadline_and_equal_ones_in_order(loop: JumpingLoop) -> None:
    seen: list[str] = []
    loop.call_later(2, seen.append, "late")
    loop.call_later(1, seen.append, "first")
    loop.call_at(1, seen.append, "second")
    loop.call_later(3, loop.stop)
    loop.run_forever()
    assert seen == ["first", "second", "late"] and loop.time() == 3


def test_a_timeout_knows_its_deadline(loop: JumpingLoop) -> None:
    assert loop.call_at(7.5, print).deadline == 7.5


def test_a_deadline_that_is_no_number_is_refused(loop: JumpingLoop) -> None:
    with pytest.raises(ValueError, match="nan"):
        loop.call_later(float("nan"), print)


def test_cancelled_timeouts_do_not_pile_up(loop: JumpingLoop) -> None:
    loop.call_later(1, print)
    for _ in range(10 * crawl.TIMEOUT_SWEEP):
        loop.call_later(3600, print).cancel()
    assert len(loop._timeouts) <= crawl.TIMEOUT_SWEEP


def test_living_timeouts_are_not_swept_at_every_push(loop: JumpingLoop) -> None:
    for _ in range(crawl.TIMEOUT_SWEEP):
        loop.call_later(3600, print)
    assert loop._sweep_at == 2 * crawl.TIMEOUT_SWEEP == 2 * len(loop._timeouts)


def test_sweeping_cancelled_timeouts_keeps_the_order_of_the_others(loop: JumpingLoop) -> None:
    rng = random.Random(7)
    ran: list[int] = []
    timeouts = [loop.call_later(delay, ran.append, delay) for delay in rng.sample(range(1000), crawl.TIMEOUT_SWEEP - 1)]
    for timeout in rng.sample(timeouts, 400):
        timeout.cancel()
    loop.call_later(1000, loop.stop)
    assert len(loop._timeouts) < 200
    loop.run_forever()
    assert len(ran) == crawl.TIMEOUT_SWEEP - 401 and ran == sorted(ran)


def test_a_cancelled_timeout_is_nothing_to_wait_for(loop: JumpingLoop) -> None:
    loop.call_later(3600, print).cancel()
    with pytest.raises(crawl.DeadlockError):
        loop.run_forever()
    assert loop.time() == 0


def test_a_loop_may_sleep_for_years() -> None:
    class Impatient(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> Any:
            asked.append(timeout)
            loop.stop()
            return super().select(0)
    asked: list[float | None] = []
    loop = crawl.EventLoop(Impatient())
    loop.call_later(math.inf, print)
    loop.run_forever()
    loop.close()
    assert asked == [crawl.MAX_WAIT]


def test_a_callback_that_raises_does_not_stop_the_others(loop: JumpingLoop) -> None:
    seen: list[int] = []
    loop.call_soon(lambda: 1 / 0)
    loop.call_soon(seen.append, 1)
    loop.tick()
    assert seen == [1]
    assert isinstance(loop.reported.pop()["exception"], ZeroDivisionError)


def test_an_error_with_nobody_to_go_to_is_printed_with_its_traceback(
        capsys: pytest.CaptureFixture[str]) -> None:
    loop = crawl.EventLoop()
    loop.call_soon(lambda: 1 / 0)
    loop.tick()
    loop.call_exception_handler({"message": "just words"})
    loop.close()
    printed = capsys.readouterr().err
    assert "exception in callback" in printed and "ZeroDivisionError" in printed
    assert "just words" in printed


def test_a_terminal_that_is_gone_does_not_end_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.EIO, "Input/output error")
    monkeypatch.setattr(sys, "stderr", Gone())
    loop = crawl.EventLoop()
    called: list[str] = []
    loop.call_soon(math.sqrt, -1)
    loop.call_soon(called.append, "still")
    loop.tick()
    loop.close()
    assert called == ["still"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_callback_may_end_the_program(loop: JumpingLoop, error: type[BaseException]) -> None:
    def leave() -> None:
        raise error
    loop.call_soon(leave)
    with pytest.raises(error):
        loop.run_forever()
    assert not loop.is_running()


def test_stopping_does_not_lose_the_rest_of_the_tick(loop: JumpingLoop) -> None:
    seen: list[int] = []
    loop.call_soon(loop.stop)
    loop.call_soon(seen.append, 1)
    loop.run_forever()
    assert seen == [1]


def test_a_loop_told_to_stop_before_it_runs_does_one_tick(loop: JumpingLoop) -> None:
    seen: list[int] = []
    loop.call_soon(seen.append, 1)
    loop.call_later(3600, seen.append, 2)
    loop.stop()
    loop.run_forever()
    loop.stop()
    loop.run_forever()
    assert seen == [1] and loop.time() == 0


def test_a_callback_runs_in_the_context_that_it_was_given(loop: JumpingLoop) -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
    context, seen = contextvars.copy_context(), []
    context.run(variable.set, 1)
    loop.call_soon(lambda: seen.append(variable.get()), context=context)
    loop.call_soon(lambda: seen.append(variable.get()))
    loop.tick()
    assert seen == [1, 0]


def test_a_peer_that_hangs_up_wakes_the_reader() -> None:
    loop, (ours, theirs) = crawl.EventLoop(), socket.socketpair()
    loop.add_reader(ours, loop.stop)
    theirs.close()
    loop.run_forever()
    loop.remove_reader(ours)
    loop.close()
    ours.close()


def test_a_reader_and_a_writer_on_one_socket_are_independent() -> None:
    loop, (ours, theirs) = crawl.EventLoop(), socket.socketpair()
    seen: list[str] = []
    loop.add_reader(ours, seen.append, "readable")
    loop.add_writer(ours, seen.append, "writable")
    loop.tick()
    assert seen == ["writable"]
    assert loop.remove_writer(ours) and not loop.remove_writer(ours)
    theirs.send(b"x")
    loop.tick()
    assert seen == ["writable", "readable"]
    assert loop.remove_reader(ours) and not loop.remove_reader(ours)
    loop.close()
    ours.close()
    theirs.close()


def test_a_second_reader_replaces_the_first() -> None:
    loop, (ours, theirs) = crawl.EventLoop(), socket.socketpair()
    seen: list[int] = []
    loop.add_reader(ours, seen.append, 1)
    loop.add_reader(ours, seen.append, 2)
    theirs.send(b"x")
    loop.tick()
    assert seen == [2]
    loop.remove_reader(ours)
    loop.close()
    ours.close()
    theirs.close()


def test_a_callback_that_reschedules_itself_does_not_starve_sockets() -> None:
    loop, (ours, theirs) = crawl.EventLoop(), socket.socketpair()
    ticks: list[int] = []

    def again() -> None:
        ticks.append(1)
        loop.call_soon(again)
    loop.call_soon(again)
    loop.add_reader(ours, loop.stop)
    theirs.send(b"x")
    loop.run_forever()
    assert len(ticks) == 1
    loop.remove_reader(ours)
    loop.close()
    ours.close()
    theirs.close()


def test_a_full_self_pipe_is_no_error() -> None:
    loop = crawl.EventLoop()
    with contextlib.suppress(BlockingIOError):
        while True:
            loop._wake_sender.send(b"x" * 4096)
    loop.call_soon_threadsafe(loop.stop)
    loop.run_forever()
    loop.close()


def test_a_signal_runs_its_handler_in_the_loop() -> None:
    loop, before = crawl.EventLoop(), signal.getsignal(signal.SIGUSR1)
    loop.add_signal_handler(signal.SIGUSR1, loop.stop)
    woken_by = signal.set_wakeup_fd(-1)  # what ends a sleep that a signal has just missed
    assert woken_by == loop._wake_sender.fileno()
    signal.set_wakeup_fd(woken_by)
    os.kill(os.getpid(), signal.SIGUSR1)
    loop.run_forever()
    loop.close()
    assert signal.set_wakeup_fd(-1) == -1
    assert signal.getsignal(signal.SIGUSR1) == before


def test_a_signal_that_cannot_be_handled_leaves_nothing_behind(loop: JumpingLoop) -> None:
    with pytest.raises(OSError):
        loop.add_signal_handler(signal.SIGKILL, print)
    assert signal.set_wakeup_fd(-1) == -1


def test_a_closed_loop_refuses_work_and_closing_twice_is_allowed(loop: JumpingLoop) -> None:
    loop.close()
    loop.close()
    for call in (lambda: loop.call_soon(print), lambda: loop.call_later(1, print),
                 lambda: loop.add_reader(0, print), lambda: loop.create_task(sleep(1)), loop.run_forever):
        with pytest.raises(RuntimeError, match="closed"):
            call()
    assert not loop.remove_reader(0)


def test_a_loop_cannot_run_inside_a_running_one(loop: JumpingLoop) -> None:
    async def main() -> None:
        assert get_running_loop().is_running()
        with pytest.raises(RuntimeError, match="already"):
            loop.run_forever()
        with pytest.raises(RuntimeError, match="running"):
            crawl.run(sleeping)
        with pytest.raises(RuntimeError, match="cannot close"):
            get_running_loop().close()
    sleeping = sleep(0)
    play(main())


def test_outside_of_a_loop_there_is_no_running_one() -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        get_running_loop()
    assert crawl._get_running_loop() is None

    async def main() -> bool:
        return crawl._get_running_loop() is get_running_loop()
    assert play(main())


def test_a_loop_that_was_woken_sleeps_again() -> None:
    async def main() -> None:
        get_running_loop().call_soon_threadsafe(int)
        await sleep(0.001)
        assert get_running_loop()._selector.select(0) == []
    crawl.run(main())


def test_a_reader_removed_in_the_tick_in_which_it_was_ready_is_not_called(capsys: pytest.CaptureFixture[str]) -> None:
    loop, pairs, seen = crawl.EventLoop(), [socket.socketpair(), socket.socketpair()], []
    for (ours, theirs), (other, _) in zip(pairs, pairs[::-1]):
        loop.add_reader(ours, lambda other=other: seen.append(loop.remove_reader(other)))
        theirs.send(b"x")
    loop.tick()
    assert seen == [True] and capsys.readouterr().err == ""
    loop.close()
    for sock in (sock for pair in pairs for sock in pair):
        sock.close()


# 3  Future
# =========


def test_a_future_is_pending_then_resolved(loop: JumpingLoop) -> None:
    future = loop.create_future()
    assert not future.done() and not future.cancelled() and future.get_loop() is loop
    with pytest.raises(crawl.InvalidStateError):
        future.result()
    with pytest.raises(crawl.InvalidStateError):
        future.exception()
    future.set_result(5)
    assert future.done() and future.result() == 5 and future.exception() is None
    assert repr(future) == "<Future resolved>"


def test_a_future_leaves_pending_once(loop: JumpingLoop) -> None:
    future = loop.create_future()
    future.set_result(1)
    with pytest.raises(crawl.InvalidStateError):
        future.set_result(2)
    with pytest.raises(crawl.InvalidStateError):
        future.set_exception(ValueError())
    assert not future.cancel() and future.result() == 1


def test_a_failed_future_raises_what_it_failed_with(loop: JumpingLoop) -> None:
    future = loop.create_future()
    future.set_exception(KeyError)
    assert isinstance(future.exception(), KeyError)
    with pytest.raises(KeyError):
        future.result()


def test_a_cancelled_future_raises_each_time_it_is_asked(loop: JumpingLoop) -> None:
    future = loop.create_future()
    assert future.cancel("why") and future.cancelled() and future.done()
    for _ in range(3):
        with pytest.raises(CancelledError, match="why"):
            future.result()


def test_callbacks_are_called_by_the_loop_also_when_added_late(loop: JumpingLoop) -> None:
    future, seen = loop.create_future(), []
    for number in range(3):
        future.add_done_callback(lambda _, number=number: seen.append(number))
    future.set_result(None)
    assert seen == []
    loop.tick()
    assert seen == [0, 1, 2]
    future.add_done_callback(lambda done: seen.append(done is future))
    loop.tick()
    assert seen == [0, 1, 2, True]


def test_a_removed_callback_is_not_called(loop: JumpingLoop) -> None:
    future, seen = loop.create_future(), []  # type: Any, list[Any]
    future.add_done_callback(seen.append)
    future.add_done_callback(print)
    assert future.remove_done_callback(seen.append) == 1
    assert future.remove_done_callback(seen.append) == 0
    assert future.remove_done_callback(print) == 1
    future.set_result(None)
    loop.call_soon(int)
    loop.tick()
    assert seen == []


def test_two_thousand_chained_futures_need_no_deep_stack(loop: JumpingLoop) -> None:
    futures = [loop.create_future() for _ in range(2001)]
    for one, other in zip(futures, futures[1:]):
        one.add_done_callback(lambda _, other=other: other.set_result(None))
    futures[0].set_result(None)
    for _ in range(2000):
        loop.tick()
    assert futures[-1].done()


def test_an_exception_that_nobody_asks_for_is_reported_once(loop: JumpingLoop) -> None:
    future = loop.create_future()
    future.set_exception(ValueError("lost"))
    del future
    gc.collect()
    assert str(loop.reported.pop()["exception"]) == "lost"


def test_an_exception_that_was_looked_at_is_not_reported(loop: JumpingLoop) -> None:
    future = loop.create_future()
    future.set_exception(ValueError("seen"))
    future.exception()
    del future
    gc.collect()
    assert loop.reported == []


def test_stop_iteration_arrives_as_the_cause_of_a_runtime_error(loop: JumpingLoop) -> None:
    future = loop.create_future()
    future.set_exception(StopIteration(3))
    error = future.exception()
    assert isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration)


def test_a_future_resumed_too_early_says_so(loop: JumpingLoop) -> None:
    waiting = iter(loop.create_future())
    next(waiting)
    with pytest.raises(RuntimeError, match="before it was done"):
        next(waiting)


def test_resolve_leaves_a_finished_future_alone(loop: JumpingLoop) -> None:
    future = loop.create_future()
    crawl.resolve(future, 1)
    crawl.resolve(future, 2)
    assert future.result() == 1


def test_an_error_that_is_raised_again_and_again_does_not_grow(loop: JumpingLoop) -> None:
    future = loop.create_future()
    future.set_exception(ValueError())
    lengths = set()
    for _ in range(3):
        with pytest.raises(ValueError) as caught:
            future.result()
        lengths.add(len(caught.traceback))
    assert len(lengths) == 1


# 4  Task
# =======


def test_generator_and_native_coroutines_await_one_another() -> None:
    @crawl.coroutine
    def generator(value: int) -> Any:
        got = yield from sleep(1, value)
        return (yield from native(got)) if got else "end"

    async def native(value: int) -> Any:
        return await generator(value - 1)

    assert play(generator(3)) == play(native(3)) == "end"


def test_a_task_is_the_future_of_its_return_value() -> None:
    async def main() -> None:
        task = create_task(sleep(1, "slept"))
        assert not task.done() and await task == "slept" and task.done()
        assert repr(task) == "<Task sleep resolved>"
    play(main())


def test_an_error_in_a_task_comes_out_where_it_is_awaited() -> None:
    async def fail() -> None:
        raise KeyError("inside")

    async def main() -> None:
        with pytest.raises(KeyError, match="inside"):
            await create_task(fail())
    play(main())


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_task_may_end_the_program(error: type[BaseException]) -> None:
    async def leave() -> None:
        raise error
    with pytest.raises(error):
        play(leave())


def test_an_end_of_the_program_is_no_error_to_report(capsys: pytest.CaptureFixture[str]) -> None:
    async def leave() -> None:
        raise SystemExit(3)
    with pytest.raises(SystemExit):
        crawl.run(leave())
    gc.collect()
    assert capsys.readouterr().err == ""


def test_a_task_has_its_coroutines_name_unless_given_another() -> None:
    async def main() -> None:
        one, other = create_task(sleep(0)), create_task(sleep(0), name=7)
        assert (one.get_name(), other.get_name()) == ("sleep", "7")
    play(main())


def test_a_task_whose_error_nobody_looks_at_is_reported_by_name(loop: JumpingLoop) -> None:
    async def main() -> None:
        async def fail() -> None:
            raise KeyError
        create_task(fail(), name="the culprit")
        await sleep(1)
        gc.collect()
    loop.run_until_complete(main())
    assert loop.reported.pop()["message"] == "the exception of Task the culprit was never retrieved"


def test_only_coroutines_become_tasks(loop: JumpingLoop) -> None:
    with pytest.raises(TypeError, match="a coroutine was expected, got 5"):
        loop.create_task(5)  # type: ignore[arg-type]


def test_only_its_coroutine_ends_a_task() -> None:
    async def main() -> None:
        task = create_task(sleep(0))
        with pytest.raises(RuntimeError):
            task.set_result(None)
        with pytest.raises(RuntimeError):
            task.set_exception(ValueError())
    play(main())


def test_cancelling_raises_at_the_wait_and_runs_finally() -> None:
    seen: list[str] = []

    async def worker() -> None:
        try:
            await sleep(3600)
        finally:
            seen.append("cleaned up")

    async def main() -> None:
        task = create_task(worker())
        await sleep(0)
        assert task.cancel("stop") and task.cancelling() == 1
        with pytest.raises(CancelledError):
            await task
        assert task.cancelled() and not task.cancel() and seen == ["cleaned up"]
        assert get_running_loop().time() == 0
    play(main())


def test_a_task_cancelled_while_it_runs_gets_the_message_where_it_waits_next() -> None:
    async def main() -> Any:
        task = crawl.current_task()
        assert task
        task.cancel("why")
        with pytest.raises(CancelledError) as caught:
            await sleep(1)
        return caught.value.args, get_running_loop().time()
    assert play(main()) == (("why",), 0)


def test_a_task_cancelled_before_its_first_step_never_runs() -> None:
    async def main() -> None:
        task = create_task(never())
        task.cancel("early")
        with pytest.raises(CancelledError, match="early"):
            await task

    async def never() -> None:
        raise AssertionError
    play(main())


def test_a_task_may_refuse_to_be_cancelled_and_be_asked_again() -> None:
    async def stubborn() -> str:
        for _ in range(2):
            with contextlib.suppress(CancelledError):
                await sleep(3600)
        return "finished anyway"

    async def main() -> None:
        task = create_task(stubborn())
        for _ in range(2):
            await sleep(0)
            task.cancel()
        assert await task == "finished anyway" and task.cancelling() == 2
    play(main())


def test_cancelling_inside_finally_works_too() -> None:
    async def worker() -> None:
        try:
            await sleep(3600)
        finally:
            await sleep(3600)

    async def main() -> None:
        task = create_task(worker())
        for _ in range(2):
            await sleep(0)
            task.cancel()
        with pytest.raises(CancelledError):
            await task
        assert get_running_loop().time() == 0
    play(main())


def test_cancelling_a_task_cancels_what_it_waits_for() -> None:
    async def main() -> None:
        inner = create_task(sleep(3600))
        outer = create_task(crawl.wait_for(inner, None))
        await sleep(0)
        outer.cancel()
        await crawl.gather(inner, outer, return_exceptions=True)
        assert inner.cancelled() and outer.cancelled()
    play(main())


def test_a_task_that_cancels_itself_in_its_last_step_ends_cancelled() -> None:
    async def own() -> None:
        task = crawl.current_task()
        assert task is not None
        task.cancel("self")

    async def main() -> None:
        task = create_task(own())
        with pytest.raises(CancelledError, match="self"):
            await task
    play(main())


def test_a_task_that_cancels_itself_gets_what_it_waits_for_if_that_refuses_to_end() -> None:
    async def refusing() -> str:
        with contextlib.suppress(CancelledError):
            await sleep(1)
        return "refused"

    async def main() -> None:
        child = create_task(refusing())
        await sleep(0)

        async def parent() -> str:
            task = crawl.current_task()
            assert task
            task.cancel()
            return await child
        assert await create_task(parent()) == "refused"
    play(main())


def test_cancelling_a_task_whose_future_is_done_reaches_it_at_its_next_step() -> None:
    async def main() -> None:
        future = get_running_loop().create_future()
        task = create_task(crawl.wait_for(future, None))
        await sleep(0)
        future.set_result("in time")
        task.cancel()
        with pytest.raises(CancelledError):
            await task
    play(main())


def test_a_cancel_taken_back_before_it_struck_does_not_strike() -> None:
    async def own() -> str:
        task = crawl.current_task()
        assert task is not None and task.uncancel() == 0
        task.cancel()
        task.cancel()
        assert task.uncancel() == 1
        assert task.uncancel() == 0
        await sleep(1)
        task.cancel()
        task.cancel()
        assert task.uncancel() == 1
        with pytest.raises(CancelledError):
            await sleep(1)
        return "alive"
    assert play(own()) == "alive"


def test_a_task_refuses_to_wait_for_what_is_no_future_of_its_loop() -> None:
    @crawl.coroutine
    def odd(value: object) -> Any:
        yield value

    async def main() -> None:
        foreign = JumpingLoop()
        for value in (5, foreign.create_future()):
            with pytest.raises(RuntimeError, match="cannot wait for"):
                await create_task(odd(value))
        foreign.close()

        async def itself() -> None:
            await task
        task = create_task(itself())
        with pytest.raises(RuntimeError, match="cannot wait for"):
            await task
    play(main())


def test_a_step_of_a_task_that_is_done_is_an_error(loop: JumpingLoop) -> None:
    task = loop.create_task(sleep(0))
    crawl.Future.set_result(task, None)
    loop.tick()
    assert isinstance(loop.reported.pop()["exception"], crawl.InvalidStateError)


def test_a_waiting_task_is_kept_alive_by_its_loop_and_by_nothing_else() -> None:
    async def main() -> None:
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
    play(main())


def test_a_task_runs_in_a_context_of_its_own() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="outer")

    async def change() -> None:
        variable.set("inner")
        await sleep(0)
        assert variable.get() == "inner"

    async def main() -> None:
        await create_task(change())
        assert variable.get() == "outer"
        given = contextvars.Context()
        await create_task(change(), context=given)
        assert given[variable] == "inner"
    play(main())


def test_between_two_steps_there_is_no_current_task() -> None:
    async def main() -> None:
        seen: list[Any] = []
        get_running_loop().call_soon(lambda: seen.append(crawl.current_task()))
        await sleep(1)
        assert seen == [None]
    play(main())


# 5  Waiting
# ==========


def test_run_returns_the_result_and_leaves_no_task() -> None:
    ended: list[str] = []

    async def background() -> None:
        try:
            await sleep(3600)
        finally:
            ended.append("cancelled")

    async def main() -> int:
        create_task(background())
        await sleep(1)
        return 42
    assert play(main()) == 42 and ended == ["cancelled"]


def test_what_fails_while_run_ends_it_is_reported() -> None:
    async def background() -> None:
        try:
            await sleep(3600)
        finally:
            raise ValueError("not cleaned up")

    async def main() -> None:
        create_task(background())
        await sleep(1)
    loop = JumpingLoop()
    crawl.run(main(), loop_factory=lambda: loop)
    assert [str(context["exception"]) for context in loop.reported] == ["not cleaned up"]


@pytest.mark.parametrize("moment", ["before its step", "after its step"])
def test_a_task_that_ctrl_c_took_out_of_the_queue_is_ended_all_the_same(moment: str) -> None:
    ended: list[str] = []

    class Interrupted(JumpingLoop):
        def _run(self, entry: Any) -> None:
            if self.time() == 1 and isinstance(entry, crawl.Task) and entry.cancelling() == 0:
                if moment == "after its step":
                    entry._coro.send(None)  # and nobody learns what it waits for
                raise KeyboardInterrupt
            super()._run(entry)

    async def victim() -> None:
        try:
            while True:
                await sleep(1)
        finally:
            ended.append("victim")

    async def main() -> None:
        create_task(victim())
        await sleep(3600)
    with pytest.raises(KeyboardInterrupt):
        crawl.run(main(), loop_factory=Interrupted)
    assert ended == ["victim"]


def test_run_until_complete_says_when_it_was_stopped_first(loop: JumpingLoop) -> None:
    loop.call_soon(loop.stop)
    with pytest.raises(RuntimeError, match="stopped before"):
        loop.run_until_complete(loop.create_future())


def test_a_program_ended_in_a_task_does_not_stop_a_later_run(loop: JumpingLoop) -> None:
    async def leave() -> None:
        raise KeyboardInterrupt
    seen: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(leave())
    loop.call_soon(loop.call_soon, seen.append, 1)
    loop.call_later(1, loop.stop)
    loop.run_forever()
    assert seen == [1]


def test_sleep_takes_its_time_and_not_more() -> None:
    async def main() -> float:
        await sleep(0)
        await sleep(-1)
        assert await sleep(1.5, "result") == "result"
        return get_running_loop().time()
    assert play(main()) == 1.5


def test_sleeping_for_no_number_is_an_error() -> None:
    with pytest.raises(ValueError):
        play(sleep(float("nan")))


def test_a_timeout_strikes_after_its_time() -> None:
    async def native() -> None:
        with pytest.raises(TimeoutError, match="2 s"):
            async with crawl.timeout(2):
                await sleep(3600)
        assert get_running_loop().time() == 2

    @crawl.coroutine
    def generator() -> Any:
        with pytest.raises(TimeoutError):
            with crawl.timeout(2):
                yield from sleep(3600)
        return None
    play(native())
    play(generator())


def test_a_timeout_in_time_changes_nothing_and_leaves_nothing() -> None:
    async def main() -> None:
        async with crawl.timeout(5):
            await sleep(1)
        async with crawl.timeout(None):
            await sleep(1)
        await sleep(10)
        task = crawl.current_task()
        assert task is not None and task.cancelling() == 0
    play(main())


def test_a_timeout_that_is_up_when_its_block_has_been_left_does_nothing() -> None:
    async def main() -> None:
        async with crawl.timeout(0):
            pass
        await sleep(10)
        task = crawl.current_task()
        assert task is not None and task.cancelling() == 0
    play(main())


def test_a_timeout_can_be_entered_once() -> None:
    async def main() -> None:
        limit = crawl.timeout(1)
        assert repr(limit) == "<TimeLimit of 1 s>"
        with limit:
            await sleep(0)
        with pytest.raises(RuntimeError, match="once"):
            limit.__enter__()
    play(main())


def test_the_outer_of_two_timeouts_passes_through_the_inner() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError, match="1 s"):
            async with crawl.timeout(1):
                async with crawl.timeout(2):
                    await sleep(3600)
    play(main())


def test_a_cancellation_from_elsewhere_passes_a_timeout_as_it_is() -> None:
    async def limited() -> None:
        async with crawl.timeout(1):
            await sleep(3600)

    async def main() -> None:
        task = create_task(limited())
        await sleep(0)
        task.cancel()
        with pytest.raises(CancelledError):
            await task
    play(main())


def test_an_error_after_the_time_was_up_is_that_error() -> None:
    async def main() -> None:
        with pytest.raises(KeyError):
            async with crawl.timeout(1):
                try:
                    await sleep(3600)
                except CancelledError:
                    raise KeyError from None
    play(main())


def test_a_timeout_belongs_inside_a_task(loop: JumpingLoop) -> None:
    def enter() -> None:
        crawl.timeout(1).__enter__()
    loop.call_soon(enter)
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert "inside a task" in str(loop.reported.pop()["exception"])


def test_wait_for_gives_the_result_or_cancels_and_waits() -> None:
    ended: list[str] = []

    async def slow() -> None:
        try:
            await sleep(3600)
        finally:
            await sleep(1)
            ended.append("cleaned up")

    async def main() -> None:
        assert await crawl.wait_for(sleep(1, "early"), 2) == "early"
        with pytest.raises(TimeoutError):
            await crawl.wait_for(slow(), 1)
        assert ended == ["cleaned up"]
    play(main())


def test_whatever_has_await_can_be_waited_for() -> None:
    class Answer:
        def __await__(self) -> crawl.Waits[int]:
            yield from sleep(1)
            return 42

    async def main() -> list[Any]:
        return [await crawl.wait_for(Answer(), 2), await crawl.wait_for(Answer(), None), *await crawl.gather(Answer())]
    assert play(main()) == [42, 42, 42]


def test_wait_for_without_time_takes_only_what_is_there() -> None:
    async def main() -> None:
        future = get_running_loop().create_future()
        future.set_result("there")
        assert await crawl.wait_for(future, 0) == "there"
        with pytest.raises(TimeoutError):
            await crawl.wait_for(sleep(1), 0)
        cancelled = get_running_loop().create_future()
        cancelled.cancel()
        with pytest.raises(CancelledError):
            await crawl.wait_for(cancelled, 0)
    play(main())


def test_wait_for_without_time_does_not_begin_a_coroutine() -> None:
    begun: list[bool] = []

    async def begin() -> None:
        begun.append(True)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await crawl.wait_for(begin(), 0)
        await sleep(1)
    play(main())
    assert begun == []


def test_gather_returns_the_results_in_order() -> None:
    async def main() -> None:
        same = sleep(1, "same")
        results = await crawl.gather(sleep(2, "slow"), same, same)
        assert results == ["slow", "same", "same"] and get_running_loop().time() == 2
        assert await crawl.gather() == []
    play(main())


def test_gather_fails_at_once_with_the_first_error_and_the_others_go_on() -> None:
    async def fail(after: float) -> None:
        await sleep(after)
        raise KeyError(after)

    async def main() -> None:
        slow = create_task(sleep(3, "slow"))
        with pytest.raises(KeyError, match="1"):
            await crawl.gather(slow, fail(1), fail(2))
        assert get_running_loop().time() == 1
        assert await slow == "slow"
        results = await crawl.gather(fail(1), sleep(1, "fine"), return_exceptions=True)
        assert isinstance(results[0], KeyError) and results[1] == "fine"
    play(main())


def test_cancelling_gather_cancels_its_children() -> None:
    async def main() -> None:
        for options in ({}, {"return_exceptions": True}):
            children = [create_task(sleep(3600)), create_task(sleep(3600))]
            everyone = crawl.gather(*children, **options)
            await sleep(0)
            assert everyone.cancel("enough")
            with pytest.raises(CancelledError, match="enough"):
                await everyone
            await sleep(0)
            assert all(child.cancelled() for child in children)
            assert not everyone.cancel()
    play(main())


def test_gather_refuses_futures_of_two_loops(loop: JumpingLoop) -> None:
    other = JumpingLoop()
    with pytest.raises(ValueError, match="different loop"):
        crawl.gather(loop.create_future(), other.create_future())
    other.close()


def test_a_gathering_that_is_cancelled_unseen_is_no_error_to_report(loop: JumpingLoop) -> None:
    task = loop.create_task(sleep(1))

    async def main() -> None:
        gathered = crawl.gather(task)
        await sleep(0)
        task.cancel()
        await crawl.finished(gathered)
    loop.run_until_complete(main())
    gc.collect()
    assert loop.reported == []


def test_calls_in_threads_share_one_pool() -> None:
    async def main() -> None:
        pools = []
        for _ in range(2):
            await crawl.to_thread(int)
            pools.append(get_running_loop()._executor)
        assert pools[0] is pools[1]
    crawl.run(main())


def test_a_result_that_nobody_wants_any_more_is_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        begun, go = threading.Event(), threading.Event()

        def work() -> None:
            begun.set()
            go.wait()
        future = crawl.to_thread(work)
        await crawl.to_thread(begun.wait)
        future.cancel()
        go.set()
        while get_running_loop()._jobs:
            await sleep(0.001)
        assert future.cancelled()
    crawl.run(main())
    assert capsys.readouterr().err == ""


def test_a_job_that_its_executor_cancels_is_a_cancelled_future() -> None:
    async def main(executor: concurrent.futures.Executor) -> None:
        go = threading.Event()
        first, second = (get_running_loop().run_in_executor(executor, go.wait) for _ in range(2))
        executor.shutdown(wait=False, cancel_futures=True)
        go.set()
        await first
        with pytest.raises(CancelledError):
            await second
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        crawl.run(main(executor))


def test_to_thread_runs_elsewhere_and_in_the_same_context() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")

    def work(*, add: int) -> tuple[int, int]:
        return variable.get() + add, threading.get_ident()

    async def main() -> None:
        variable.set(1)
        value, thread = await crawl.to_thread(work, add=2)
        assert value == 3 and thread != threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            await crawl.to_thread(lambda: 1 / 0)
    crawl.run(main())


def test_idle_threads_of_the_pool_do_not_hide_a_deadlock() -> None:
    async def main() -> None:
        await crawl.to_thread(int)
        await get_running_loop().create_future()
    with pytest.raises(crawl.DeadlockError):
        crawl.run(main())


def test_another_process_completes_a_future() -> None:
    async def main() -> int:
        with concurrent.futures.ProcessPoolExecutor(1) as executor:
            return await get_running_loop().run_in_executor(executor, pow, 2, 100)
    assert crawl.run(main()) == 2 ** 100


class HeldExecutor:
    """An executor whose jobs are run by the test."""

    def __init__(self) -> None:
        self.jobs: list[concurrent.futures.Future[Any]] = []

    def submit(self, *_: Any) -> concurrent.futures.Future[Any]:
        self.jobs.append(concurrent.futures.Future())
        return self.jobs[-1]


def test_cancelling_keeps_a_job_from_beginning() -> None:
    async def main() -> None:
        executor = HeldExecutor()
        future = get_running_loop().run_in_executor(executor, print)
        future.cancel()
        await sleep(0)
        assert executor.jobs[0].cancelled()
        await sleep(0)
    play(main())


def test_a_closed_loop_takes_no_jobs() -> None:
    loop, executor = JumpingLoop(), HeldExecutor()
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        loop.run_in_executor(executor, print)
    assert executor.jobs == []


def test_a_job_that_outlives_its_loop_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    executor = HeldExecutor()
    loop = JumpingLoop()
    loop.run_in_executor(executor, print)
    loop.close()
    executor.jobs[0].set_result(None)
    assert caplog.records == []  # where concurrent.futures would put an error of ours


def test_a_loop_that_nothing_could_wake_names_who_waits_where() -> None:
    @crawl.coroutine
    def inner() -> Any:
        yield from get_running_loop().create_future()

    async def outer() -> None:
        await inner()

    @crawl.coroutine
    def odd() -> Any:
        yield from [get_running_loop().create_future()]

    async def main() -> None:
        create_task(odd())
        await crawl.wait_for(outer(), None)

    with pytest.raises(crawl.DeadlockError) as caught:
        play(main())
    lines = str(caught.value).splitlines()
    assert any("in test_a_loop_that" in line and "outer" in line for line in lines)
    assert any("inner" in line and "test_crawl.py" in line for line in lines)


def test_a_thread_wakes_a_loop_that_sleeps_which_is_no_deadlock() -> None:
    async def main() -> int:
        loop, future = get_running_loop(), get_running_loop().create_future()
        go = threading.Event()
        thread = threading.Thread(target=lambda: (go.wait(), loop.call_soon_threadsafe(future.set_result, 7)))
        thread.start()
        go.set()
        return int(await future)
    assert crawl.run(main()) == 7


def test_a_thread_that_has_just_ended_may_have_woken_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> int:
        loop, future = get_running_loop(), get_running_loop().create_future()

        def threads() -> list[threading.Thread]:
            monkeypatch.undo()
            loop.call_soon_threadsafe(future.set_result, 7)
            return [threading.current_thread()]
        monkeypatch.setattr(threading, "enumerate", threads)
        return int(await future)
    assert crawl.run(main()) == 7


# 6  Queue
# ========


def test_a_queue_hands_out_what_was_put_in_order() -> None:
    async def main() -> None:
        queue: Queue[int] = Queue()
        assert queue.empty() and not queue.full() and queue.qsize() == 0
        for number in range(3):
            await queue.put(number)
        assert [await queue.get() for _ in range(3)] == [0, 1, 2]
        with pytest.raises(crawl.QueueEmpty):
            queue.get_nowait()
    play(main())


def test_a_full_queue_makes_putters_wait() -> None:
    async def main() -> None:
        queue: Queue[int] = Queue(1)
        queue.put_nowait(1)
        with pytest.raises(crawl.QueueFull):
            queue.put_nowait(2)
        putter = create_task(queue.put(2))
        await sleep(1)
        assert queue.full() and not putter.done()
        assert queue.get_nowait() == 1
        await putter
        assert queue.get_nowait() == 2
    play(main())


@pytest.mark.parametrize("moment", ["before", "after", "a tick after"])
def test_cancelling_a_getter_does_not_lose_the_item_put_at_any_moment(moment: str) -> None:
    async def main() -> None:
        queue: Queue[str] = Queue()
        first, second = create_task(queue.get()), create_task(queue.get())
        await sleep(0)
        if moment == "before":
            queue.put_nowait("item")
        first.cancel()
        if moment == "after":
            queue.put_nowait("item")
        await sleep(0)
        if moment == "a tick after":
            queue.put_nowait("item")
        assert await second == "item" and first.cancelled()
    play(main())


def test_a_woken_getter_whose_item_was_taken_waits_on_and_cancelled_wakes_nobody() -> None:
    async def main() -> None:
        queue: Queue[str] = Queue()
        getter, other, last = [create_task(queue.get()) for _ in range(3)]
        await sleep(0)
        queue.put_nowait("item")
        assert queue.get_nowait() == "item"
        getter.cancel()
        await sleep(1)
        queue.put_nowait("next")
        assert await other == "next" and not last.done()
    play(main())


def test_a_putter_cancelled_when_woken_passes_its_place_on() -> None:
    async def main() -> None:
        queue: Queue[int] = Queue(1)
        queue.put_nowait(0)
        first, second = create_task(queue.put(1)), create_task(queue.put(2))
        await sleep(0)
        queue.get_nowait()
        first.cancel()
        await second
        assert queue.get_nowait() == 2
    play(main())


def test_join_waits_until_every_item_is_dealt_with_batch_after_batch() -> None:
    async def main() -> None:
        queue: Queue[int] = Queue()
        await queue.join()
        for _ in range(2):
            queue.put_nowait(1)
            queue.put_nowait(2)
            joiners = [create_task(queue.join()) for _ in range(2)]
            queue.task_done()
            await sleep(1)
            assert not any(joiner.done() for joiner in joiners)
            queue.task_done()
            await crawl.gather(*joiners)
        with pytest.raises(ValueError, match="too many"):
            queue.task_done()
    play(main())


def test_join_returns_also_if_something_was_put_before_it_could() -> None:
    async def main() -> None:
        queue: Queue[int] = Queue()
        queue.put_nowait(1)
        joiner = create_task(queue.join())
        await sleep(1)
        queue.task_done()
        queue.put_nowait(2)
        await crawl.wait_for(joiner, 1)
    play(main())


def test_who_left_the_line_is_not_in_it_any_more() -> None:
    async def main() -> None:
        queue: Queue[int] = Queue()
        task = create_task(queue.get())
        await sleep(0)
        assert len(queue._getters) == 1
        task.cancel()
        await sleep(0)
        assert not queue._getters
    play(main())


def test_a_getter_that_is_cancelled_while_another_is_woken_changes_nobodys_place() -> None:
    async def main() -> list[tuple[str, int]]:
        queue: Queue[int] = Queue()
        got: list[tuple[str, int]] = []

        async def get(name: str) -> None:
            got.append((name, await queue.get()))
        first, second, third, fourth = [create_task(get(name)) for name in "abcd"]
        await sleep(0)
        second.cancel()
        queue.put_nowait(1)
        await sleep(0)
        await sleep(0)
        for item in (2, 3):
            queue.put_nowait(item)
        await crawl.gather(first, third, fourth)
        return got
    assert play(main()) == [("a", 1), ("c", 2), ("d", 3)]


# The same story under crawl and under asyncio leaves the same transcript.

async def producers_and_consumers(lib: Any, log: Callable[..., None]) -> None:
    """Two producers, three consumers, and a queue with room for two."""
    queue = lib.Queue(2)

    async def produce(name: str) -> None:
        for number in range(3):
            await queue.put((name, number))
            log("put", name, number)

    async def consume(name: str) -> None:
        while True:
            log(name, "got", await queue.get())
            await lib.sleep(0)
            queue.task_done()
    consumers = [lib.create_task(consume(name)) for name in "xyz"]
    await lib.gather(produce("a"), produce("b"))
    await queue.join()
    for consumer in consumers:
        consumer.cancel()
    log(await lib.gather(*consumers, return_exceptions=True))


async def cancellation(lib: Any, log: Callable[..., None]) -> None:
    """A child that refuses to end, and a parent that is cancelled while it waits for one."""
    async def child() -> str:
        try:
            await lib.sleep(3600)
        except lib.CancelledError:
            log("caught")
            await lib.sleep(0)
        return "refused"
    task = lib.create_task(child())
    await lib.sleep(0)
    log(task.cancel(), task.cancelled(), task.cancelling())
    log(await task, task.cancelled())
    async def wrapping() -> Any:
        return await lib.create_task(child())
    parent = lib.create_task(wrapping())
    await lib.sleep(0)
    await lib.sleep(0)
    parent.cancel()
    try:
        log(await parent)
    except lib.CancelledError:
        log("parent cancelled")


async def timeouts(lib: Any, log: Callable[..., None]) -> None:
    """A limit within a limit; either may be the first to strike."""
    for inner, outer in ((0.001, 50), (50, 0.001)):
        try:
            async with lib.timeout(outer):
                try:
                    async with lib.timeout(inner):
                        await lib.sleep(100)
                except TimeoutError:
                    log("inner")
                    raise
        except TimeoutError:
            log("outer or passed on", lib.current_task().cancelling())


async def failures(lib: Any, log: Callable[..., None]) -> None:
    """Errors and a cancellation that gather() meets."""
    async def fail(error: BaseException, turns: int) -> None:
        for _ in range(turns):
            await lib.sleep(0)
        raise error
    log(await lib.gather(fail(KeyError(1), 2), fail(lib.CancelledError(), 1), return_exceptions=True))
    try:
        await lib.gather(fail(KeyError(2), 1), fail(ValueError(), 2))
    except KeyError as error:
        log("first", error)
    await lib.sleep(0)
    await lib.sleep(0)


@pytest.mark.parametrize("story", [producers_and_consumers, cancellation, timeouts, failures])
def test_a_story_goes_as_it_does_under_asyncio(story: Any) -> None:
    def transcript(lib: Any) -> list[str]:
        lines: list[str] = []

        def log(*words: Any) -> None:
            lines.append(re.sub(r"CancelledError\([^)]*\)", "CancelledError", repr(words)))
        lib.run(story(lib, log))
        return lines
    assert transcript(crawl) == transcript(asyncio) != []


@contextlib.asynccontextmanager
async def specified_timeout(delay: float) -> AsyncIterator[None]:
    """Do what asyncio.timeout is specified to do.

    That of Python 3.11.2 does not end a block with TimeoutError where the task had been asked to end
    before the block began; that of 3.11.7 does, for "no more requests than before" is what counts.
    """
    task: Any = asyncio.current_task()
    before = task.cancelling()
    try:
        async with asyncio.timeout(delay) as limit:
            yield
    except asyncio.CancelledError as error:
        if limit.expired() and task.cancelling() <= before:
            raise TimeoutError from error
        raise


class JumpingAsyncioLoop(asyncio.SelectorEventLoop):
    """asyncio's event loop on a clock that jumps."""

    def __init__(self) -> None:
        self.clock = JumpingSelector()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


Plan = list[tuple[Any, ...]]


def planned(rng: random.Random, depth: int = 0) -> Plan:
    """Make up what a task does: a few waits, some within others; no two end at one moment, but for 0."""
    plan: Plan = []
    for _ in range(rng.randrange(1, 5)):
        kind = rng.choice(("put", "get", "get", "sleep", "sleep", "cancel", "timeout", "timeout", "gather", "finally",
                           *(["uncancel"] if sys.version_info >= (3, 13) else [])))  # before, it took nothing back
        if kind in ("timeout", "gather", "finally"):
            if depth < 2:
                plan.append((kind, rng.randrange(4), rng.choice((0, rng.random() * 2)),
                             [planned(rng, depth + 1) for _ in range(1 + (kind == "gather"))]))
        else:
            plan.append((kind, rng.randrange(4), rng.choice((0, rng.random() * 2))))
    return plan


class Performance:
    """One run of a made-up program under *lib*: some tasks and two queues."""

    def __init__(self, lib: Any, log: Callable[..., None]) -> None:
        self.lib, self.log, self.began = lib, log, lib.get_running_loop().time()
        self.timeout = specified_timeout if lib is asyncio and sys.version_info < (3, 11, 7) else lib.timeout
        self.queues: list[Any] = [lib.Queue(1), lib.Queue()]
        self.tasks: list[Any] = []

    async def run(self, program: list[Plan]) -> None:
        """Perform the program; what is not done after an hour is cancelled until it is."""
        for number, plan in enumerate(program):
            self.tasks.append(self.lib.create_task(self.act(str(number), plan)))
        await self.lib.sleep(3600)
        while not all(task.done() for task in self.tasks):
            for task in self.tasks:
                task.cancel()
            await self.lib.sleep(10)
        self.log([task.cancelled() or type(task.exception()).__name__ for task in self.tasks],
                 [queue.qsize() for queue in self.queues])

    async def act(self, name: str, plan: Plan) -> str:
        """Do one step after the other, and log how and when each ended."""
        for number, (kind, what, *rest) in enumerate(plan):
            try:
                outcome = await self.do(f"{name}.{number}", kind, what, *rest)
            except (TimeoutError, self.lib.CancelledError) as error:
                outcome = error
            self.log(name, number, kind, outcome, round(self.lib.get_running_loop().time() - self.began, 6))
            if isinstance(outcome, self.lib.CancelledError) and what:
                raise outcome
        return name

    async def do(self, name: str, kind: str, what: int, delay: float, inner: Sequence[Plan] = ()) -> Any:
        """Do one step, and return what there is to say of it."""
        queue = self.queues[what % 2]
        match kind:
            case "put":
                return await queue.put(name)
            case "get":
                item = await queue.get()
                queue.task_done()
                return item
            case "sleep":
                return await self.lib.sleep(delay)
            case "cancel":
                return self.tasks[what % len(self.tasks)].cancel()
            case "uncancel":
                return self.lib.current_task().uncancel()
            case "timeout":
                async with self.timeout(delay):
                    return await self.act(name, inner[0])
            case "gather":
                parts = [self.lib.create_task(self.act(name + letter, part)) for letter, part in zip("ab", inner)]
                self.tasks.extend(parts)
                return await self.lib.gather(*parts, return_exceptions=what > 1)
            case _:  # a clean-up that waits, too
                try:
                    await self.act(name, inner[0])
                finally:
                    await self.lib.sleep(delay)


def test_made_up_programs_run_as_they_do_under_asyncio() -> None:
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    programs = [[planned(rng) for _ in range(rng.randrange(1, 5))] for _ in range(ROUNDS // 5)]

    def transcripts(lib: Any) -> list[list[str]]:
        async def main(some: list[list[Plan]]) -> None:
            for program in some:
                lines: list[str] = []

                def log(*words: Any) -> None:
                    lines.append(re.sub(r"Error\([^)]*\)", "Error", repr(words)))
                await Performance(lib, log).run(program)
                result.append(lines)
        result: list[list[str]] = []
        for start in range(0, len(programs), 500):  # after some months a clock no longer shows nanoseconds
            if lib is crawl:
                play(main(programs[start:start + 500]))
            else:
                with asyncio.Runner(loop_factory=JumpingAsyncioLoop) as runner:
                    runner.run(main(programs[start:start + 500]))
        return result
    for program, ours, theirs in zip(programs, transcripts(crawl), transcripts(asyncio), strict=True):
        assert ours == theirs, (seed, program)


# 7  Streams
# ==========


def listener() -> socket.socket:
    """A listening socket of which the test plays the server."""
    return socket.create_server(("127.0.0.1", 0))


def port_of(server: socket.socket) -> int:
    """Return the port at which it listens."""
    return int(server.getsockname()[1])


def test_a_stream_reads_what_was_sent_until_the_end() -> None:
    server = listener()

    async def main() -> None:
        reader, writer = await crawl.open_connection("127.0.0.1", port_of(server))
        assert reader is writer
        peer, _ = server.accept()
        writer.write(b"ques")
        writer.write(b"tion")
        await writer.drain()
        assert peer.recv(100) == b"question"
        for part in (b"one", b"two"):
            get_running_loop().call_later(0.001, peer.send, part)
            assert await reader.read() == part
        peer.close()
        assert await reader.read() == b""
        writer.close()
        writer.close()
    crawl.run(main())
    server.close()


def test_all_is_sent_also_when_it_does_not_fit_at_once() -> None:
    server = listener()
    message = random.Random(1).randbytes(8_000_000)
    received = bytearray()

    def read() -> None:
        peer, _ = server.accept()
        while data := peer.recv(1_000_000):
            received.extend(data)
        peer.close()

    async def main() -> None:
        _, writer = await crawl.open_connection("127.0.0.1", port_of(server))
        writer.write(message)
        await writer.drain()
        writer.close()
    thread = threading.Thread(target=read)
    thread.start()
    crawl.run(main())
    thread.join()
    server.close()
    assert received == message


def test_every_address_of_a_name_is_tried() -> None:
    server = listener()

    async def main() -> None:
        closed = listener()
        port = port_of(closed)
        closed.close()
        here = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))
        there = (*here[:4], ("127.0.0.1", port_of(server)))
        stream, _ = await crawl.open_connection("name", 0, addresses=[here, there])
        stream.close()
        with pytest.raises(ConnectionRefusedError):
            await crawl.open_connection("name", 0, addresses=[here, here])
        with pytest.raises(OSError, match="no address"):
            await crawl.open_connection("name", 0, addresses=iter([]))
    crawl.run(main())
    server.close()


def test_a_socket_that_cannot_be_made_is_that_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_descriptor(*_: Any) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    async def main() -> None:
        address = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 9))
        monkeypatch.setattr(socket, "socket", no_descriptor)
        try:
            with pytest.raises(OSError, match="Too many"):
                await crawl.open_connection("name", 9, addresses=[address])
        finally:
            monkeypatch.undo()
    crawl.run(main())


def test_connecting_can_be_cancelled() -> None:
    async def main() -> None:
        address = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port_of(server)))
        task = create_task(crawl.open_connection("name", 0, addresses=[address, address]))
        await sleep(0)
        task.cancel()
        with pytest.raises(CancelledError):
            await task
    server = listener()
    crawl.run(main())
    server.close()


def test_a_silent_peer_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    server = listener()
    monkeypatch.setattr(crawl, "IDLE_TIMEOUT", 0.001)

    async def main() -> None:
        stream, _ = await crawl.open_connection("127.0.0.1", port_of(server))
        with pytest.raises(TimeoutError, match="no answer"):
            await stream.read()
        assert stream.timeout == crawl.IDLE_TIMEOUT
        stream.close()
    crawl.run(main())
    server.close()


def test_an_address_that_swallows_packets_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crawl, "CONNECT_TIMEOUT", 0.01)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.create_connection(full.getsockname()):
        async def main() -> None:
            with pytest.raises(TimeoutError, match="no answer"):
                await crawl.open_connection("127.0.0.1", port_of(full))
        crawl.run(main())


def test_a_silent_name_server_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    monkeypatch.setattr(crawl, "LOOKUP_TIMEOUT", 0.001)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: go.wait())

    async def main() -> None:
        with pytest.raises(TimeoutError, match="no answer"):
            await crawl.lookup("h", 80)
    crawl.run(main())
    go.set()


def test_a_stream_of_any_socket_does_not_block_the_loop() -> None:
    ours, theirs = socket.socketpair()

    async def main() -> bytes:
        stream = crawl.Stream(ours)
        get_running_loop().call_later(0.001, theirs.send, b"answer")
        try:
            return await stream.read()
        finally:
            stream.close()
    assert crawl.run(main()) == b"answer"
    theirs.close()


def test_reading_takes_no_more_than_asked_for_and_loses_nothing_when_cancelled() -> None:
    server = listener()

    async def main() -> None:
        stream, _ = await crawl.open_connection("127.0.0.1", port_of(server))
        peer, _ = server.accept()
        reading = create_task(stream.read())
        await sleep(0)
        reading.cancel()
        with pytest.raises(CancelledError):
            await reading
        peer.send(b"answer")
        assert (await stream.read(3), await stream.read(9)) == (b"ans", b"wer")
        peer.close()
        stream.close()
    crawl.run(main())
    server.close()


def test_a_selector_that_refuses_to_watch_for_writing_is_an_error_of_the_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    server = listener()

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    async def main() -> None:
        stream, _ = await crawl.open_connection("127.0.0.1", port_of(server))
        stream._readable()
        stream.write(bytes(8_000_000))
        monkeypatch.setattr(selectors.DefaultSelector, "register", refuse)
        with pytest.raises(OSError, match="no memory"):
            await stream.drain()
        monkeypatch.undo()
        stream.close()
    crawl.run(main())
    server.close()


def test_what_a_cancelled_drain_has_not_sent_the_next_one_sends() -> None:
    server = listener()
    message = random.Random(2).randbytes(8_000_000)

    async def main() -> None:
        stream, _ = await crawl.open_connection("127.0.0.1", port_of(server))
        peer, _ = server.accept()
        stream.write(message)
        sending = create_task(stream.drain())
        await sleep(0)
        sending.cancel()
        with pytest.raises(CancelledError):
            await sending
        received = bytearray()

        def receive() -> None:
            while data := peer.recv(1_000_000):
                received.extend(data)
        thread = threading.Thread(target=receive)
        thread.start()
        await stream.drain()
        stream.close()
        thread.join()
        peer.close()
        assert received == message
    crawl.run(main())
    server.close()


def test_closing_a_stream_again_spares_who_has_its_descriptor_by_then() -> None:
    async def main() -> None:
        loop, (ours, theirs) = get_running_loop(), socket.socketpair()
        descriptor, stream = ours.fileno(), crawl.Stream(ours)
        stream.close()
        again = theirs.dup()
        assert again.fileno() == descriptor
        loop.add_reader(again, print)
        stream.close()
        assert loop.remove_reader(again)
        again.close()
        theirs.close()
    crawl.run(main())


def test_an_answer_beats_a_deadline_of_the_same_moment(loop: JumpingLoop) -> None:
    loop.call_later(1, loop.stop)
    wait = crawl._Wait(loop, 1)
    wait.set_result("answer")
    loop.run_forever()
    assert wait.result() == "answer" and loop.reported == []


def test_a_stream_that_speaks_unasked_is_not_watched_any_more() -> None:
    server = listener()

    async def main() -> None:
        stream, _ = await crawl.open_connection("127.0.0.1", port_of(server))
        peer, _ = server.accept()
        get_running_loop().call_later(0.001, peer.send, b"answer")
        assert await stream.read() == b"answer" and not stream.spoken()
        peer.send(b"unasked")
        while stream._watching:
            await sleep(0.001)
        assert stream.spoken()
        assert stream._fd not in get_running_loop()._selector.get_map()  # else each tick would tell of it
        assert await stream.read() == b"unasked"
        get_running_loop().call_later(0.001, peer.send, b"more")
        stream.timeout = 1
        assert await stream.read() == b"more"
        peer.close()
        stream.close()
    crawl.run(main())
    server.close()


def test_an_impossible_name_is_no_name() -> None:
    async def main() -> None:
        for host in ("a" * 64 + ".test", "a." * 130, "two..dots.", "nul\0", "no.such.host.invalid"):
            with pytest.raises(OSError):
                await crawl.lookup(host, 80)
            assert all(timeout.obsolete() for _, _, timeout in get_running_loop()._timeouts)
        assert (await crawl.lookup("[::1]", 80))[0][4][0] == "::1"
    crawl.run(main())


def test_a_name_that_is_too_long_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def note(host: bytes, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        return []
    monkeypatch.setattr(socket, "getaddrinfo", note)

    async def main() -> None:
        for host in ("a" * 64, "a." * 126 + "ab", "a..b", ".a"):
            with pytest.raises(socket.gaierror, match="at most 253 characters, its labels 1 to 63"):
                await crawl.lookup(host, 80)
        for host in ("a" * 63, "a." * 126 + "a"):
            await crawl.lookup(host, 80)
    crawl.run(main())
    assert list(map(len, asked)) == [63, 253]


def test_a_lookup_that_ends_after_its_loop_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    def slow(*_: Any, **__: Any) -> list[Any]:
        go.wait()
        return []

    async def main() -> None:
        create_task(crawl.lookup("localhost", 80))
        await sleep(0)
        await sleep(0)
    monkeypatch.setattr(socket, "getaddrinfo", slow)
    crawl.run(main())
    go.set()


@pytest.mark.parametrize("want, waits", [(ssl.SSLWantReadError, "_readable"), (ssl.SSLWantWriteError, "_writable")])
def test_tls_may_want_to_read_or_to_write_whatever_it_was_asked_for(
        want: type[ssl.SSLError], waits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        stream = crawl.Stream(ours)
        waited: list[str] = []

        def operation() -> str:
            if not waited:
                raise want
            return "done"

        def wait(_: Any) -> Iterator[None]:
            waited.append(waits)
            yield

        def asked_for() -> Any:
            raise AssertionError("it waits for what TLS wants, whatever it was called for")
        monkeypatch.setattr(crawl.Stream, waits, wait)
        assert await crawl.coroutine(stream._call)(asked_for, operation) == "done" and waited == [waits]
        stream.close()
        theirs.close()
    play(main())


# 8  URLs
# =======

BASE = crawl.parse_url("http://example.com/dir/page.html?x=1")


@pytest.mark.parametrize("reference, meaning", [
    ("", "http://example.com/dir/page.html?x=1"),
    ("#top", "http://example.com/dir/page.html?x=1"),
    ("?y", "http://example.com/dir/page.html?y"),
    ("?", "http://example.com/dir/page.html?"),
    ("other", "http://example.com/dir/other"),
    ("../up", "http://example.com/up"),
    ("../../../up", "http://example.com/up"),
    ("./a/./b/../c/", "http://example.com/dir/a/c/"),
    (".", "http://example.com/dir/"),
    ("..", "http://example.com/"),
    ("%2e%2E/x", "http://example.com/x"),
    ("/abs?q#f", "http://example.com/abs?q"),
    ("//host", "http://host/"),
    ("http:relative", "http://example.com/dir/relative"),
    ("https:host", "https://host/"),
    ("http:\\\\host\\path?a\\b", "http://host/path?a\\b"),
    (" \t\n/a\tb\n ", "http://example.com/ab"),
    ("HTTP://EXAMPLE.com:80/", "http://example.com/"),
    ("https://h:443", "https://h/"),
    ("http://h:/", "http://h/"),
    ("http://h:0081/", "http://h:81/"),
    ("http://user:secret@h/", "http://h/"),
    ("http://a@b@h/", "http://h/"),
    ("/caf\u00e9 \"<>`{}^|", "http://example.com/caf%C3%A9%20%22%3C%3E%60%7B%7D%5E|"),
    ("?caf\u00e9 \"<>'`{}", "http://example.com/dir/page.html?caf%C3%A9%20%22%3C%3E%27`{}"),
    ("/\ud800", "http://example.com/%EF%BF%BD"),
    ("http://127.1/", "http://127.0.0.1/"),
    ("http://0x7f.0.0.1./", "http://127.0.0.1/"), ("http://1.2.3.4/", "http://1.2.3.4/"),
    ("http://1.2.772/", "http://1.2.3.4/"),
    ("http://017700000001/", "http://127.0.0.1/"),
    ("http://0x/", "http://0.0.0.0/"),
    ("http://[::1]:81/", "http://[::1]:81/"),
    ("http://[2001:DB8:0:0:8a2e:0370:7334:ff]/", "http://[2001:db8::8a2e:370:7334:ff]/"),
    ("http://[1:0:0:2:0:0:0:3]/", "http://[1:0:0:2::3]/"),
    ("http://[10:0:1:0:0:2:3:4]/", "http://[10:0:1::2:3:4]/"),
    ("http://[1:0:0:2:0:0:3:4]/", "http://[1::2:0:0:3:4]/"),
    ("http://[1:2:3:4:5:6:7:8]/", "http://[1:2:3:4:5:6:7:8]/"),
    ("http://b\u00fccher.example/", "http://xn--bcher-kva.example/"),
    ("http://B\u00dcCHER.example/", "http://xn--bcher-kva.example/"),
    ("http://xn--bcher-kva.example/", "http://xn--bcher-kva.example/"),
    ("http://a\u00adb\uff0eexample/", "http://ab.example/"),
    ("http://\uff45\uff58ample/", "http://example/"),
    ("http://ex%61mple/", "http://example/"),
])
def test_a_reference_means_what_a_browser_takes_it_for(reference: str, meaning: str) -> None:
    url = crawl.parse_url(reference, BASE)
    assert str(url) == meaning
    assert crawl.parse_url(meaning) == url, "a normal form is its own normal form"


@pytest.mark.parametrize("reference", [
    "mailto:me@example.com", "javascript:alert(1)", "file:///etc/passwd", "ftp://h/", "data:,x",
    "http://", "http:///", "http://h:65536/", "http://h:x/", "http://h:-1/", "http://a b/", "http://a^b/",
    "http://[::1/", "http://[x]/", "http://[\u00e9]/", "http://1.2.3.256/", "http://1.2.3.4.5/",
    "http://1.2.3.4.5.6/", "http://1.2.3.4.0/", "http://256.0.0.1/",
    "http://1_0.0.0.1/", "http://08.0.0.1/", "http://a.0x100000000/", "http://%ff/", "http://a%00b/",
    "http://fa\u00df.example/", "http://a\u200db/", "http://xn--a/", "http://xn--bcher-KVB.example/",
    "http://www\u2025x/", "http://xn--xn--a-/", "http://" + "xn--" * 1300 + "a" + "-" * 1300 + "/",
    "http://" + "\u6f22" * 64 + "/", "http://\U0001e900/", "/" + "x" * crawl.MAX_URL])
def test_what_is_no_certain_address_is_refused(reference: str) -> None:
    with pytest.raises(ValueError):
        print(crawl.parse_url(reference, BASE))


def test_a_short_reference_on_a_long_base_is_too_long_as_well() -> None:
    base = crawl.parse_url("/" + "\u00e9" * 1200 + "/", BASE)
    with pytest.raises(ValueError, match="more than 8000"):
        crawl.parse_url("\u00e9" * 200, base)


def test_a_url_alone_needs_a_scheme() -> None:
    with pytest.raises(ValueError, match="only http and https"):
        crawl.parse_url("example.com")


def test_a_mutated_url_is_printable_ascii_or_refused() -> None:
    rng = random.Random(8)
    for _ in range(ROUNDS):
        text = "".join(chr(rng.choice((rng.randrange(128), rng.randrange(0x3000), 0x2f, 0x2e, 0x25)))
                       for _ in range(rng.randrange(12)))
        with contextlib.suppress(ValueError):
            assert re.fullmatch("[!-~]+", str(crawl.parse_url(rng.choice(("", "//", "http://")) + text, BASE)))


# 9  HTTP messages
# ================

@contextlib.contextmanager
def linear_time() -> Iterator[None]:
    """Fail when the block takes seconds of the processor: what is linear takes milliseconds, else minutes."""
    began = time.process_time()
    yield
    assert time.process_time() - began < 5


def parsed(raw: bytes, method: str = "GET", pieces: int = 0) -> crawl.Response:
    """Return what a parser makes of *raw*, followed by the end, whole or in pieces of a size."""
    parser = crawl.ResponseParser(method)
    size = pieces or len(raw) or 1
    for start in range(0, len(raw), size):
        if parser.feed(raw[start:start + size]):
            break
    else:
        assert parser.feed(b"")
    assert parser.response is not None
    return parser.response


def silence(connection: socket.socket) -> None:
    """Say nothing until the client leaves."""
    connection.recv(1)


def says(data: bytes, then: Callable[[socket.socket], None]) -> Callable[[socket.socket], None]:
    """Answer with *data* and do something *then*."""
    def answer(connection: socket.socket) -> None:
        connection.sendall(data)
        then(connection)
    return answer


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
GZIPPED = gzip.compress(b"zipped")
DEFLATED = zlib.compress(b"zipped")


def with_body(body: bytes, *fields: bytes) -> bytes:
    """Return a response of *body* and its length, with other *fields*."""
    return OK + b"".join(field + b"\r\n" for field in fields) + b"Content-Length: %d\r\n\r\n" % len(body) + body


ANSWERS = [
    (with_body(b"hello"), b"hello", True),
    (with_body(b""), b"", True),
    (with_body(b"hello", b"Connection: Close"), b"hello", False),
    (with_body(b"hello", b"X: folded\r\n  line", b"Y:\t value \t", b"Z: a: b"), b"hello", True),
    (OK + b"Content-Length: 5, 5\r\nContent-Length: 05\r\n\r\nhello", b"hello", True),
    (OK + b"\r\nuntil the end", b"until the end", False),
    (b"HTTP/1.0 200 OK\nContent-Length: 2\n\nok", b"ok", False),
    (b"HTTP/1.1 204 None\r\nContent-Length: 5\r\n\r\n", b"", True),
    (b"HTTP/1.1 304 Same\r\nContent-Length: 5\r\n\r\n", b"", True),
    (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", b"ok", True),
    (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + with_body(b"ok"), b"ok", True),
    (CHUNKED + b"5\r\nhello\r\n6;ext=\"1\"\r\n world\r\n0\r\nTrailer: x\r\n\r\n", b"hello world", True),
    (CHUNKED + b"0\r\n\r\n", b"", True),
    (CHUNKED + b"0a\r\n0123456789\r\n0\r\nTrailer: x\n\n", b"0123456789", True),
    (with_body(GZIPPED, b"Content-Encoding: gzip"), b"zipped", True),
    (with_body(GZIPPED + GZIPPED + b"\0", b"Content-Encoding: x-gzip"), b"zippedzipped", True),
    (with_body(DEFLATED, b"Content-Encoding: deflate"), b"zipped", True),
    (with_body(DEFLATED[2:-4], b"Content-Encoding: deflate"), b"zipped", True),
    (with_body(b"plain", b"Content-Encoding: identity"), b"plain", True),
]


@pytest.mark.parametrize("raw, body, reusable", ANSWERS)
def test_a_response_is_the_same_however_it_is_cut(raw: bytes, body: bytes, reusable: bool) -> None:
    for pieces in (0, 1, 2, 3, 7):
        response = parsed(raw, pieces=pieces)
        assert (response.body, response.reusable) == (body, reusable)
    for cut in range(1, len(raw)):
        parser = crawl.ResponseParser()
        assert (parser.feed(raw[:cut]) or parser.feed(raw[cut:]) or parser.feed(b"")) and parser.response
        assert parser.response.body == body


def test_a_head_is_a_status_and_fields() -> None:
    response = parsed(b"HTTP/1.0 404 Not  Here\r\nX-Long: folded\r\n \t line\r\nY:\t value \t\r\nset-cookie: a=b: c\r\n"
                      b"SET-COOKIE:d\r\nEmpty:\r\nContent-Length: 0\r\n\r\n")
    assert (response.version, response.status, response.reason) == (0, 404, "Not  Here")
    assert response.headers == {
        "x-long": "folded line", "y": "value", "set-cookie": "a=b: c, d", "empty": "", "content-length": "0"}
    assert (parsed(b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n").reason, parsed(with_body(b"")).version) == ("", 1)


DELIMITED = [(raw, body) for raw, body, _ in ANSWERS if b"until the end" not in raw]


@pytest.mark.parametrize("raw, body", DELIMITED)
def test_bytes_after_a_response_end_the_connection(raw: bytes, body: bytes) -> None:
    response = parsed(raw + b"HTTP/1.1 200 OK\r\n")
    assert response.body == body and not response.reusable


@pytest.mark.parametrize("raw, body", DELIMITED)
def test_a_response_cut_short_is_never_taken_for_whole(raw: bytes, body: bytes) -> None:
    for end in range(len(raw)):
        with pytest.raises(crawl.TruncatedError):
            parsed(raw[:end])


@pytest.mark.parametrize("raw, complaint", [
    (b"SSH-2.0-OpenSSH\r\n\r\n", "status line"),
    (b"HTTP/2 200\r\n\r\n", "status line"),
    (b"HTTP/1.1 099 Low\r\n\r\n", "status line"),
    (OK + b"no colon\r\n\r\n", "header field was expected, not 'no colon'"),
    (OK + b"a b: c\r\n\r\n", "header field"),
    (OK + b"X: a\rb\r\n\r\n", "header field"),
    (OK + b"X: a\0b\r\n\r\n", "header field"),
    (OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "Content-Length"),
    (OK + b"Content-Length: +5\r\n\r\nhello", "Content-Length"),
    (OK + b"Content-Length: 5_0\r\n\r\nhello", "Content-Length"),
    (OK + b"Content-Length: 5\x0c\r\n\r\nhello", "Content-Length"),
    (OK + b"Content-Length:\r\n\r\nhello", "Content-Length"),
    (OK + b"Transfer-Encoding: gzip\r\n\r\n", "in doubt"),
    (OK + b"Transfer-Encoding: chunked, gzip\r\n\r\n", "in doubt"),
    (OK + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", "in doubt"),
    (b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "in doubt"),
    (CHUNKED + b"xyz\r\n", "chunk size in hexadecimal was expected, not b'xyz"),
    (CHUNKED + b"5\nhello\r\n0\r\n\r\n", "chunk size"),
    (CHUNKED + b"5\r\nhelloXX0\r\n\r\n", "end of a chunk"),
    (with_body(b"x", b"Content-Encoding: br"), "not asked for"),
    (with_body(b"\x1f\x8bxxxx", b"Content-Encoding: gzip"), "corrupt"),
    (with_body(GZIPPED[:-1], b"Content-Encoding: gzip"), "ends too early"),
])
def test_what_is_not_http_is_refused_with_what_was_seen(raw: bytes, complaint: str) -> None:
    for pieces in range(8):
        with pytest.raises(crawl.ProtocolError, match=re.escape(complaint)):
            parsed(raw, pieces=pieces)


@pytest.mark.parametrize("raw, complaint", [
    (OK + b"X: " + b"x" * crawl.MAX_HEAD + b"\r\n\r\n", "head of more than 65536 bytes"),
    (OK + b"x" * crawl.MAX_HEAD, "head of more than"),
    (OK + b"X: y\r\n" * (crawl.MAX_FIELDS + 1) + b"\r\n", "more than 200 header fields"),
    (b"HTTP/1.1 100 Continue\r\n\r\n" * 11, "more than 10 interim responses"),
    (CHUNKED + (b"1;" + b"x" * 9000 + b"\r\ny\r\n") * 9, "chunk's first line of more than"),
    (CHUNKED + b"0\r\n" + b"X: y\r\n" * 20000, "trailer section of more than"),
    (CHUNKED + (b"a;" + b"x" * 42 + b"\r\n0123456789\r\n") * 7000, "chunk's first line of more than"),
    (CHUNKED + b"FFFFFFFFFFFFFFFF\r\n", "body of more than"),
    (OK + b"Content-Length: 999999999999\r\n\r\n", "body of more than"),
    (OK + b"\r\n" + b"x" * (crawl.MAX_BODY + 1), "body of more than"),
    (with_body(gzip.compress(bytes(crawl.MAX_BODY + 1)), b"Content-Encoding: gzip"), "decoded body of more than"),
])
def test_nothing_in_a_response_grows_without_a_bound(raw: bytes, complaint: str) -> None:
    with pytest.raises(crawl.LimitError, match=complaint):
        parsed(raw)


def test_a_body_that_is_too_long_is_refused_before_its_end() -> None:
    with pytest.raises(crawl.LimitError, match="body of more than"):
        crawl.ResponseParser().feed(OK + b"\r\n" + b"x" * (crawl.MAX_BODY + 1))


@pytest.mark.parametrize("raw, shown", [
    (b"x" * 99 + b"\r\n\r\n", "x" * 60), (OK + b"x" * 99 + b"\r\n\r\n", "x" * 60),
    (CHUNKED + b"x" * 99 + b"\r\n", b"x" * 40)])
def test_of_what_is_no_http_only_the_beginning_is_shown(raw: bytes, shown: object) -> None:
    with pytest.raises(crawl.ProtocolError) as caught:
        parsed(raw)
    assert str(caught.value).endswith(f"expected, not {shown!r}")


@pytest.mark.parametrize("line", [
    b"A:" + b" " * 60000 + b"\0", b"A: x" + b" " * 60000 + b"y\r\n z", b"A:" + b"\t " * 30000 + b"\r"])
def test_a_hostile_head_takes_no_longer_than_its_size(line: bytes) -> None:
    with linear_time(), contextlib.suppress(crawl.ProtocolError):
        parsed(OK + b"Content-Length: 0\r\n" + line + b"\r\n\r\n")


@pytest.mark.parametrize("coding, body", [(b"deflate", b"\3\0" * 100_000), (b"gzip", gzip.compress(b"") * 20_000)])
def test_a_body_of_endless_members_is_refused(coding: bytes, body: bytes) -> None:
    with pytest.raises(crawl.LimitError, match="100 members"):
        parsed(with_body(body, b"Content-Encoding: " + coding))


def test_an_upgrade_that_nobody_asked_for_ends_the_connection() -> None:
    assert not parsed(b"HTTP/1.1 101 Switching\r\n\r\n").reusable


def test_a_body_that_is_not_wanted_is_not_judged_either() -> None:
    parser = crawl.ResponseParser(wanted=lambda response: False, max_body=3)
    assert parser.feed(with_body(b"brotli", b"Content-Encoding: br")) and parser.response
    assert parser.response.body == b"" and parser.response.reusable


def test_ten_thousand_small_chunks_are_within_the_bounds() -> None:
    assert parsed(CHUNKED + b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n").body == b"x" * 10_000
    # An extension of 42 bytes on a chunk of ten costs ten.
    assert len(parsed(CHUNKED + (b"a;" + b"x" * 42 + b"\r\n0123456789\r\n") * 6000 + b"0\r\n\r\n").body) == 60_000


def test_the_answer_to_head_has_no_body() -> None:
    assert parsed(OK + b"Content-Length: 5\r\n\r\n", "HEAD").body == b""


def test_a_body_that_is_not_wanted_is_not_waited_for() -> None:
    parser = crawl.ResponseParser(wanted=lambda response: response.status != 200)
    assert parser.feed(OK + b"Content-Length: 9999\r\n\r\n") and parser.response
    assert parser.response.body == b"" and not parser.response.reusable


def test_mutated_responses_give_a_response_or_a_documented_error() -> None:
    rng = random.Random(9)
    for _ in range(ROUNDS):
        raw = bytearray(rng.choice(ANSWERS)[0])
        for _ in range(rng.randrange(1, 4)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        with contextlib.suppress(crawl.ProtocolError):
            parsed(bytes(raw), pieces=rng.choice((0, 0, 3, 17)))


# 10  HTTP client
# ===============


def fetched(url: str, count: int = 1, **options: Any) -> tuple[list[crawl.Response], int]:
    """Return the responses to *count* requests, one after the other, and connections made."""
    async def main() -> tuple[list[crawl.Response], int]:
        client = crawl.Client(**options)
        try:
            return [await client.fetch(crawl.parse_url(url)) for _ in range(count)], client.opened
        finally:
            client.close()
    return crawl.run(main())


def test_a_connection_is_used_again(site: Server) -> None:
    site.add("/page", "hello")
    responses, opened = fetched(site.url + "/page", 3)
    assert [response.body for response in responses] == [b"hello"] * 3
    assert opened == site.connections == 1


def test_a_request_says_who_asks_for_what_from_whom(site: Server) -> None:
    site.add("/page?q=1", "hello")
    fetched(site.url + "/page?q=1", headers={"X-Mine": "yes"})
    lines = site.heads[0].split("\r\n")
    assert lines[0] == "GET /page?q=1 HTTP/1.1"
    assert {f"Host: localhost:{site.port}", f"User-Agent: crawl.py/{crawl.VERSION}",
            "Accept-Encoding: gzip, deflate", "X-Mine: yes"} <= set(lines)


@pytest.mark.parametrize("name, value", [("Bad Name", "x"), ("X", "a\r\nInjected: yes"), ("X", "\x07")])
def test_what_is_no_header_field_is_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="header"):
        crawl.Client({name: value})


def test_a_reused_connection_that_died_is_replaced_silently(site: Server) -> None:
    def answer_once(connection: socket.socket) -> None:
        connection.sendall(with_body(b"hello"))
        site.answers["/page"] = die

    def die(connection: socket.socket) -> None:
        site.answers["/page"] = with_body(b"again")
        connection.close()
    site.answers["/page"] = answer_once
    responses, opened = fetched(site.url + "/page", 2)
    assert [response.body for response in responses] == [b"hello", b"again"] and opened == 2


def test_a_fresh_connection_that_dies_is_an_error(site: Server) -> None:
    site.answers["/page"] = lambda connection: connection.close()
    with pytest.raises(crawl.TruncatedError):
        fetched(site.url + "/page")
    assert site.requests == ["/page"]


def test_idle_connections_of_a_dead_server_are_dropped_together(site: Server) -> None:
    async def main() -> None:
        client = crawl.Client()
        url = crawl.parse_url(site.url + "/page")
        await crawl.gather(*[client.fetch(url) for _ in range(3)])
        assert client.opened == 3
        site.answers["/page"] = lambda connection: connection.close()
        with pytest.raises(crawl.TruncatedError):
            await client.fetch(url)
        assert client._pool[url.origin] == [] and client.opened == 4
        client.close()
    site.add("/page", "hello")
    crawl.run(main())


def test_a_connection_that_the_server_closed_while_idle_is_not_used(site: Server) -> None:
    def answer_and_close(connection: socket.socket) -> None:
        connection.sendall(with_body(b"bye"))
        connection.shutdown(socket.SHUT_WR)  # it would still see another request

    async def main() -> None:
        client = crawl.Client()
        url = crawl.parse_url(site.url + "/page")
        await client.fetch(url)
        while not client._pool[url.origin][0].spoken():
            await sleep(0.001)
        assert (await client.fetch(url)).body == b"bye"
        client.close()
    site.answers["/page"] = answer_and_close
    crawl.run(main())
    assert site.requests == ["/page"] * 2 and site.connections == 2


def test_an_answer_that_nobody_asked_for_is_nobodys_answer(site: Server) -> None:
    idle = threading.Event()

    def answer(connection: socket.socket) -> None:
        connection.sendall(with_body(b"hello"))
        idle.wait()
        connection.sendall(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")

    async def main() -> None:
        client = crawl.Client()
        url = crawl.parse_url(site.url + "/page")
        await client.fetch(url)
        idle.set()
        while not client._pool[url.origin][0].spoken():
            await sleep(0.001)
        assert (await client.fetch(url)).status == 200 and client.opened == 2
        client.close()
    site.answers["/page"] = answer
    crawl.run(main())


@pytest.mark.parametrize("body, late", [(b"good", b""), (b"x" * (crawl.READ_SIZE - 200), b""), (b"good", b"\n")])
@pytest.mark.parametrize("tls", [False, True])
def test_what_follows_an_answer_is_not_the_next_one(
        body: bytes, late: bytes, tls: bool, site: Server, tls_site: Server) -> None:
    server = tls_site if tls else site
    answered = threading.Event()

    def answer(connection: socket.socket) -> None:
        connection.sendall(with_body(body))
        connection.sendall(late or with_body(b"evil"))
        answered.set()

    async def main() -> list[bytes]:
        client = crawl.Client()
        bodies = []
        for _ in range(2):
            bodies.append((await client.fetch(crawl.parse_url(server.url + "/page"))).body)
            answered.wait()  # blocks the loop: no poll comes between the two
        client.close()
        return bodies
    server.answers["/page"] = answer
    assert crawl.run(main()) == [body] * 2 and server.connections == 2


def test_a_byte_now_and_then_does_not_put_off_the_deadline(site: Server) -> None:
    def drip(connection: socket.socket) -> None:
        connection.settimeout(0.002)
        connection.sendall(OK + b"\r\n")
        while True:
            connection.sendall(b"x")
            with contextlib.suppress(TimeoutError):
                if not connection.recv(1):
                    break
    site.answers["/slow"] = drip
    with pytest.raises(TimeoutError):
        fetched(site.url + "/slow", timeout=0.05)


def test_all_who_need_a_name_share_one_lookup(site: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    lookups: list[Any] = []
    original = socket.getaddrinfo

    def counting(*arguments: Any, **options: Any) -> Any:
        lookups.append(arguments[0])
        return original(*arguments, **options)

    async def main() -> None:
        client = crawl.Client()
        url = crawl.parse_url(site.url + "/page")
        await crawl.gather(*[client.fetch(url) for _ in range(5)])
        client.close()
    site.add("/page", "hello")
    monkeypatch.setattr(socket, "getaddrinfo", counting)
    crawl.run(main())
    assert lookups == [b"localhost"]


def test_a_lookup_that_failed_is_tried_again(site: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    site.add("/", "hello")
    outcomes: list[Any] = [socket.gaierror(socket.EAI_AGAIN, "later"),
                           socket.getaddrinfo("localhost", site.port, type=socket.SOCK_STREAM)]

    def failing_once(*_: Any, **__: Any) -> Any:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome
    monkeypatch.setattr(socket, "getaddrinfo", failing_once)

    async def main() -> None:
        with contextlib.closing(crawl.Client()) as client:
            url = crawl.parse_url(site.url)
            with pytest.raises(socket.gaierror, match="later"):
                await client.fetch(url)
            assert (await client.fetch(url)).body == b"hello"
    crawl.run(main())


def test_a_lookup_that_fails_when_nobody_waits_any_more_is_not_reported(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    go = threading.Event()

    def slow(*_: Any, **__: Any) -> list[Any]:
        go.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "later")

    async def main() -> None:
        client = crawl.Client(timeout=0.001)
        with pytest.raises(TimeoutError):
            await client.fetch(crawl.parse_url("http://h/"))
        go.set()
        while len(get_running_loop().tasks) > 1:
            await sleep(0.001)
        client.close()
    monkeypatch.setattr(socket, "getaddrinfo", slow)
    crawl.run(main())
    gc.collect()
    assert capsys.readouterr().err == ""


def test_fetch_follows_no_redirect(site: Server) -> None:
    site.add_redirect("/old", "/new")
    assert crawl.run(crawl.fetch(site.url + "/old")).headers["location"] == "/new"


def test_a_name_with_a_final_dot_is_proven_by_the_certificate_of_the_name(
        tls_site: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    original = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: original("localhost", *rest, **more))
    tls_site.add("/page", "hello")
    assert fetched(tls_site.url.replace("localhost", "localhost.") + "/page")[0][0].body == b"hello"


def test_https_is_http_over_tls(tls_site: Server) -> None:
    tls_site.add("/page", "hello " * 20_000)
    responses, opened = fetched(tls_site.url + "/page", 2)
    assert [len(response.body) for response in responses] == [120_000] * 2 and opened == 1


def test_tls_names_the_host_and_the_protocol(tls_site: Server) -> None:
    said: list[Any] = []

    def answer(connection: Any) -> None:
        said.append(connection.selected_alpn_protocol())
        connection.sendall(with_body(b"hello"))
    context: Any = tls_site.tls
    context.set_alpn_protocols(["h2", "http/1.1"])
    context.sni_callback = lambda connection, name, context: said.append(name)
    tls_site.answers["/"] = answer
    fetched(tls_site.url)
    assert said == ["localhost", "http/1.1"]


def test_a_certificate_that_nobody_vouches_for_is_refused(
        tls_site: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(ssl.SSLCertVerificationError):
        fetched(tls_site.url)


def test_a_certificate_for_another_name_is_refused(
        tls_site: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    original = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: original("localhost", *rest, **more))
    with pytest.raises(ssl.SSLCertVerificationError, match="match"):
        fetched(tls_site.url.replace("localhost", "other.test"))


def test_a_tls_stream_cut_off_is_not_the_end_of_a_body(tls_site: Server) -> None:
    def cut(connection: socket.socket) -> None:
        connection.sendall(OK + b"\r\nhalf of the body")
        connection.shutdown(socket.SHUT_RDWR)
    tls_site.answers["/cut"] = cut
    with pytest.raises(ssl.SSLError):
        fetched(tls_site.url + "/cut")


class CountingLoop(crawl.EventLoop):
    """Calls *then* before the callback or step with the number *at*, counting from when it was set."""

    at, then = 0, staticmethod(lambda: None)

    def _run(self, entry: Any) -> None:
        self.at -= 1
        if self.at == 0:
            self.then()
        super()._run(entry)


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("answer", [CHUNKED + b"5\r\nhello\r\n0\r\n\r\n", with_body(GZIPPED, b"Content-Encoding: gzip")])
def test_cancelling_a_fetch_at_any_step_leaves_nothing_behind(
        answer: bytes, tls: bool, site: Server, tls_site: Server) -> None:
    server = tls_site if tls else site
    server.answers["/"] = answer

    async def main(step: int) -> bool:
        client = crawl.Client()
        task, loop = create_task(client.fetch(crawl.parse_url(server.url))), get_running_loop()
        loop.then, loop.at = task.cancel, step  # type: ignore[attr-defined]
        with contextlib.suppress(CancelledError):
            await task
        client.close()
        while len(get_running_loop().tasks) > 1:  # the lookup, which others may be waiting for
            await sleep(0)
        assert get_running_loop()._watched == 0
        assert all(timeout.obsolete() for _, _, timeout in get_running_loop()._timeouts)
        return not task.cancelled()
    steps = 1
    while not crawl.run(main(steps), loop_factory=CountingLoop):
        steps += 1
    assert steps > 3


# 11  Links
# =========

def links_of(markup: str, page: str = "http://t.test/d/p.html") -> list[str]:
    """Return the paths that a page's links lead to."""
    links, base, refresh, nofollow = crawl.read_markup(markup, crawl.parse_url(page))
    assert not refresh and not nofollow
    return [str(crawl.parse_url(reference, base)) for reference in map(crawl.spelled, links) if reference is not None]


@pytest.mark.parametrize("markup", [
    '<a href="/x">', "<a href='/x'>", "<a href=/x>", "<A HREF=/x>", "<a\nhref\t=\n/x>", '<a/href="/x">',
    '<a class="y" href="/x" id=z>', "<a title='>' href=/x>", '<a data-href="/y" href="/x">', "<a href=/x href=/y>",
    "<area href=/x>", "<p title=\"<a href='/y'>\"><a href=/x>", "<!-- <a href=/y> --><a href=/x>",
    "<!--><a href=/x>", "<!---><a href=/x>", "<!-- --!><a href=/x>", "<a href=/x><!-- <a href=/y>",
    "<script><a href=/y></script><a href=/x>", "<script>'<!--<script></script><a href=/y>-->'</script><a href=/x>",
    "<script><!-- <a href=/y></script><a href=/x>", "<style><a href=/y></style><a href=/x>",
    "<textarea><a href=/y></textarea><a href=/x>", "<TITLE><a href=/y></title ><a href=/x>",
    "<template><a href=/y></template><a href=/x>", "<iframe><a href=/y></iframe><a href=/x>",
    "<noembed><a href=/y></noembed><a href=/x>", "<noframes><a href=/y></noframes><xmp><a href=/y></xmp><a href=/x>",
    "<svg><title><a href=/x></title></svg>", "<a href=/x><plaintext><a href=/y>", "<!doctype x><?php?><a href=/x>",
    "<a href=/x><a href=/x>", "<a href=/x><a href='/y", "<abbr href=/y><a href=/x>", "it's <a href=/x>",
    "</p><a href=/x>",
    "<iframe src=/x></iframe>", "<frameset><FRAME name='y' SRC = '/x'></frameset>",
    "<iframe><iframe src=/y></iframe><a href=/x>",
    "<base target=x><a href=/x>", "<base href=/x><a href>", "<base href=//t.test/><a href=x>",
    "<base href='http://[x'><a href=/x>",
    "<base href=//t.test/><base href=/y/><a href=x>", "<a href='/x#y'>", "<a href=/x#y>",
    '<a href="/x"><a href="/x#a"><a href="/x#b">', '<a href="/x#it\'s" title="<a href=/y>">',
    '<p class="<a href=/y>"><a href=/x>', '<p class="y"><a href=/x>', '<p class="y" title="<a href=/y>"><a href=/x>',
    '<title class="y"><a href=/y></title><a href=/x>', "<p <script><a href=/x>", "<br <!-- x><a href=/x>",
    "<td ='><a href=/x>", '<p class="y" ="><a href=/x>', "<p<a href=/y><a href=/x>", "<a href=/x><frame src=/y",
    "<a href=../x><base href=/y/z/", "<a =href=/y><a href=/x>", "<a/=/href=/x>",
])
def test_a_page_links_where_a_browser_says_it_does(markup: str) -> None:
    assert links_of(markup) == ["http://t.test/x"]


@pytest.mark.parametrize("value, meaning", [
    ("/?a=1&amp;b=2", "/?a=1&b=2"), ("/?a&copy=2", "/?a&copy=2"), ("/&copy;", "/%C2%A9"), ("/a&#47;&#x2f", "/a//"),
    ("/&nosuch;", "/&nosuch;"), ("/&notit;", "/&notit;"), ("/x&#35;y", "/x"), ("/x&#47;#y", "/x/"),
    ("/x #y", "/x%20"), ("/&#9999999999;", "/&"), ("/a\0b", "/a%EF%BF%BDb"), ("/it's", "/it's")])
def test_entities_are_decoded_as_in_an_attribute(value: str, meaning: str) -> None:
    assert links_of(f'<a href="{value}">') == ["http://t.test" + meaning]


@pytest.mark.parametrize("markup, refresh, nofollow", [
    ("<meta http-equiv=refresh content='0; url=/x'>", "/x", False),
    ('<META HTTP-EQUIV="Refresh" CONTENT="5;URL=\'/x\'">', "/x", False),
    ("<meta http-equiv=refresh content='0,&quot;/x&quot;'>", "/x", False),
    ("<meta http-equiv=refresh content=5>", "", False), ("<meta http-equiv=refresh content='5 ; '>", "", False),
    ("<meta http-equiv=refresh content='0; url=/a b'>", "/a b", False),
    ("<meta http-equiv=refresh content='.5;url=/x'>", "/x", False), ("<meta name=robots content=nofollow", "", False),
    ("<meta name=refresh content='0;url=/x'>", "", False),
    ("<!-- <meta http-equiv=refresh content='0;url=/x'> -->", "", False),
    ("<meta name=robots content='noindex, NOFOLLOW'>", "", True), ('<meta name="crawl" content="none">', "", True),
    ("<meta name='crawl' content=nofollow>", "", True), ("<meta name='r&#111;bots' content=nofollow>", "", True),
    ("<base name=robots content=nofollow>", "", False),
    ("<meta name=robots content='index, max-image-preview:none'>", "", False),
    ("<meta name=robots content='max-video-preview: none, nofollow'>", "", True),
    ("<meta name=robots content=noindex>", "", False), ("<meta name=keywords content='robots nofollow'>", "", False),
    ("<meta charset=utf-8 data-x><meta name=robots content=nofollow content=all>", "", True)])
def test_a_page_says_in_meta_where_to_go_and_where_not_to(markup: str, refresh: str, nofollow: bool) -> None:
    found = crawl.read_markup(markup, BASE)
    assert (found.refresh, found.nofollow, found.links) == (refresh, nofollow, [])


@pytest.mark.parametrize("body, content_type, text, charset", [
    ("\u00e9".encode(), "text/html", "\u00e9", "utf-8"),
    ("\u00e9".encode("latin-1"), "text/html; charset=ISO-8859-1", "\u00e9", "iso-8859-1"),
    (b"\xef\xbb\xbf\xc3\xa9", "text/html; charset=latin-1", "\ufeff\u00e9", "utf-8"),
    ("\u00e9".encode("utf-16"), "", "\u00e9", "utf-16"),
    (b'<meta charset="latin-1">\xe9', "", '<meta charset="latin-1">\u00e9', "latin-1"),
    (b" " * crawl.MAX_PRESCAN + b'<meta charset="latin-1">', "",
     " " * crawl.MAX_PRESCAN + '<meta charset="latin-1">', "utf-8"),
    (b"\xff", "", "\ufffd", "utf-8"),
    (b"<meta charset=UTF-16>", "", "<meta charset=UTF-16>", "utf-8"),
    (b"<meta charset=utf16>", "", "<meta charset=utf16>", "utf-8"),
    (b"<meta charset=utf--16>", "", "<meta charset=utf--16>", "utf-8"),
    (b"\xfe\xff\x00\xe9", "", "\u00e9", "utf-16"),
    ("\u00e9".encode("utf-16-le"), "text/html;charset=UTF-16LE", "\u00e9", "utf-16le"),
    (b"\xc3\xa9", "text/html; charset=nonsense", "\u00e9", "utf-8"),
    (b"\xc3\xa9", "text/html; charset=cp99999", "\u00e9", "utf-8"),
    *[(b"\\x41+ADw-", f"text/html; charset={name}", "\\x41+ADw-", "utf-8")
      for name in ("unicode_escape", "undefined", "idna", "punycode", "utf-7", "utf_7", "utf:7", "utf--7", "utf-32", "rot13")]])
def test_a_page_is_decoded_as_it_says(body: bytes, content_type: str, text: str, charset: str) -> None:
    assert crawl.decode_page(body, content_type) == (text, charset)


@pytest.mark.parametrize("piece", [
    "0", " ", "<a ", "<a href", '<a href="', "<", "<!--", "--!", "<script>", "<script><!--<script>", "<a b=c ",
    "<a href=' ", "</script ", "<title>", "&amp", "<svg ", "<p =", "<x y='", '<a href="#', '<p class="',
    "<p ", '<a ="x=">', "<base x", "<iframe ", "<meta a=", '<div class="x" ='])
def test_a_hostile_page_takes_no_longer_than_its_size(piece: str) -> None:
    with linear_time():
        hostile = "<base><frame><meta name=robots refresh>" + piece * (1_000_000 // len(piece))
        crawl.read_markup(hostile, BASE)
        crawl.read_markup(hostile + ">", BASE)
        crawl.read_markup(f"<meta http-equiv=refresh content='0{piece.replace(chr(39), '') * 50_000}'>", BASE)
        crawl.decode_page(b"", "charset=" + piece * 20_000)


def test_mutated_pages_never_fail() -> None:
    rng = random.Random(11)
    pieces = ["<a href=", "'", '"', ">", "<!--", "-->", "<script>", "</script>", " ", "x", "<base href=", "&#", ";",
              "=", "<meta name=robots content=", "<iframe src=", "</iframe", "<meta http-equiv=refresh content='0;",
              "\0", "&amp"]
    for _ in range(ROUNDS):
        markup = crawl.read_markup("".join(rng.choices(pieces, k=rng.randrange(12))), BASE)
        assert all(isinstance(crawl.spelled(link), str | None) for link in markup.links)


# 12  Robots
# ==========

@pytest.mark.parametrize("text, target, rule", [
    ("", "/x", None),
    ("User-agent: *\nDisallow: /", "/x", "Disallow: /"),
    ("User-agent: *\nDisallow:", "/x", None),
    ("User-agent: other\nDisallow: /", "/x", None),
    ("User-agent: CRAWL/2.0\nDisallow: /\n\nUser-agent: *\nAllow: /", "/x", "Disallow: /"),
    ("User-agent: *\nAllow: /%7E\nDisallow: /%7Eab", "/%7Eabc", "Disallow: /~ab"),
    ("User-agent: crawl\nAllow: /\nUser-agent: *\nDisallow: /", "/x", None),
    ("User-agent: a\nUser-agent: crawl\nDisallow: /1\nUser-agent: b\nDisallow: /2\nUser-agent: crawl\nDisallow: /3",
     "/3", "Disallow: /3"),
    ("User-agent: a\nUser-agent: crawl\nDisallow: /1\nUser-agent: b\nDisallow: /2", "/2", None),
    ("User-agent: *\nDisallow: /a\nAllow: /a/b", "/a/b/c", None),
    ("User-agent: *\nAllow: /a/b\nDisallow: /a", "/a/c", "Disallow: /a"),
    ("User-agent: *\nDisallow: /a\nAllow: /a", "/a", None),
    ("User-agent: *\nDisallow: /*.pdf$", "/x/y.pdf", "Disallow: /*.pdf$"),
    ("User-agent: *\nDisallow: /*.pdf$", "/x/y.pdf?z", None),
    ("User-agent: *\nDisallow: /*.pdf$", "/x.pdf/y.pdf", "Disallow: /*.pdf$"),
    ("User-agent: *\nDisallow: /a*b*c", "/axxbxxcxx", "Disallow: /a*b*c"),
    ("User-agent: *\nDisallow: /a*b*c", "/axxbxx", None),
    ("User-agent: *\nDisallow: /fish$", "/fish", "Disallow: /fish$"),
    ("User-agent: *\nDisallow: /fish$", "/fishes", None),
    ("User-agent: *\nDisallow: /\u00e9", "/%c3%a9", "Disallow: /%C3%A9"),
    ("User-agent: *\nDisallow: /bar/%62%61%7A", "/bar/baz", "Disallow: /bar/baz"),
    ("User-agent: *\nDisallow: /~joe", "/%7ejoe/x", "Disallow: /~joe"),
    ("User-agent: *\nDisallow: /a%2fb", "/a/b", None),
    ("User-agent: *\nDisallow: /bar\nAllow: /bar/%62%61%7A", "/bar/baz", "Disallow: /bar"),
    ("User-agent: *\nDisallow: /bar\nAllow: /bar/%62%61%7a", "/bar/%62%61%7A", None),
    ("\ufeffUser-agent: *  # all\r\nDisallow: /x # this\r\nnonsense\r\n", "/x", "Disallow: /x"),
    ("user-agent *\ndisallow /x", "/x", "Disallow: /x"),
    ("User-agent: *\nDisallow: /", "/robots.txt", None),
    ("Disallow: /", "/x", None),
    ("User-agent: *\nDisallow: */a", "/a", "Disallow: */a"),
    ("User-agent: *\nDisallow: /*ab*ab", "/xab", None),
    ("User-agent: crawl\nUser-agent: b\nDisallow: /x", "/x", "Disallow: /x"),
    ("User-agent: crawl\nSitemap: /s\nUser-agent: b\nDisallow: /x", "/x", "Disallow: /x"),
    ("User-agent: *\nSitemap: /s", "/s", None),
])
def test_the_longest_matching_rule_of_our_groups_decides(text: str, target: str, rule: str | None) -> None:
    assert crawl.Robots(text).rule(target) == rule


def test_mutated_robots_files_never_fail() -> None:
    rng = random.Random(12)
    pieces = ["User-agent: ", "*", "crawl", "\n", "Disallow: ", "Allow:", "/", "a", "%2f", "%", "$", "Crawl-delay:",
              "9", "#", "\r", "\ufeff", " ", ":", "\u00e9"]
    for _ in range(ROUNDS):
        robots = crawl.Robots("".join(rng.choices(pieces, k=rng.randrange(14))))
        rule = robots.rule("/" + "".join(rng.choices(("a", "/", "%2F", "?", "$", "*"), k=4)))
        assert (rule is None or rule.startswith("Disallow: ")) and robots.delay >= 0


def test_a_hostile_robots_file_takes_no_longer_than_its_size() -> None:
    with linear_time():
        crawl.Robots("user-agent: *\n" * 15_000 + "allow: /\n" * 15_000)
        crawl.Robots("".join(f"user-agent: a{number}\n" for number in range(15_000)) + "allow: /\n" * 15_000)
        assert crawl.Robots("User-agent: *\nDisallow: /" + "*a" * 5000 + "b").rule("/" + "a" * 8000) is None


def test_of_a_robots_file_only_so_many_characters_count() -> None:
    rules = "User-agent: *\nDisallow: /a\n" + "#" * crawl.MAX_ROBOTS + "\nDisallow: /b\n"
    assert crawl.Robots(rules).rule("/a") and not crawl.Robots(rules).rule("/b")


@pytest.mark.parametrize("pattern, target", [
    ("/path/foo-%24", "/path/foo-$"), ("/a-%2A.html", "/a-*.html"), ("/a$b", "/a$b"), ("/<a>", "/%3Ca%3E"),
    ("/{x}/", "/%7Bx%7D/1"), ('/*"', "/a%22b"), ("/s?q='", "/s?q=%27a"), ("/s?q=~", "/s?q=%7e")])
def test_a_pattern_and_a_path_may_be_spelled_differently(pattern: str, target: str) -> None:
    assert crawl.Robots(f"User-agent: *\nDisallow: {pattern}").rule(target)


def test_a_crawl_delay_is_read_and_does_not_end_the_names_of_a_group() -> None:
    assert crawl.Robots("User-agent: *\nCrawl-delay: 2.5\nCrawl-delay: x").delay == 2.5
    robots = crawl.Robots("User-agent: crawl\nCrawl-delay: 5\nUser-agent: b\nDisallow: /x")
    assert robots.rule("/x") and robots.delay == 5


# 13  Crawler
# ===========

class RecordingCrawler(crawl.Crawler):
    """A crawler that keeps the records of what was fetched, one by URL, and why the rest was not."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.records: dict[str, crawl.Record] = {}
        self.reasons: dict[str, str] = {}
        super().__init__(*arguments, **{"on_record": self.keep} | options)

    def keep(self, record: crawl.Record) -> None:
        assert record.url not in self.records
        if record.skipped:
            assert self.reasons.get(record.url) != record.skipped
            self.reasons[record.url] = record.skipped
        else:
            self.records[record.url] = record


def crawled(roots: str | list[str], **options: Any) -> tuple[dict[str, crawl.Record], RecordingCrawler]:
    """Crawl, and return the records by URL and the crawler."""
    async def main() -> RecordingCrawler:
        crawler = RecordingCrawler([roots] if isinstance(roots, str) else roots, **options)
        await crawler.crawl()
        assert get_running_loop().tasks == {crawl.current_task()}
        assert not crawler.in_flight and not crawler.frontier.postponed()
        assert len(crawler.reasons) == crawler.skipped.total()
        return crawler
    crawler = crawl.run(main())
    return crawler.records, crawler


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time between tries."""
    monkeypatch.setattr(crawl, "BACKOFF", 0.0001)


class SimulatedClient:
    """Answers from a table, on a clock that jumps; notes when it was asked for what."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[tuple[float, str]] = []
        self.own_headers: dict[str, bool] = {}  # whether the user's headers were sent, by URL

    @crawl.coroutine
    def fetch(self, url: crawl.URL, wanted: Any = None, max_body: int = 0, own_headers: bool = True) -> Any:
        self.asked.append((get_running_loop().time(), str(url)))
        self.own_headers[str(url)] = own_headers
        answers = self.answers.get(str(url), [(404, {}, "")])
        if isinstance(answers, str):
            answers = [(200, {}, answers)]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            yield from sleep(0.125)
            raise answer
        status, headers, body = answer
        yield from sleep(headers.get("seconds", 0.125))
        response = crawl.Response(1, status, "Words", {"content-type": "text/html"} | headers)
        response.body = body.encode()
        return response

    def idle(self) -> int:
        return 0

    def close(self) -> None:
        pass


def simulated_crawl(roots: list[str], answers: dict[str, Any],
                    **options: Any) -> tuple[RecordingCrawler, SimulatedClient]:
    """Crawl simulated sites; return the crawler and its client."""
    client = SimulatedClient(answers)

    async def main() -> RecordingCrawler:
        crawler = RecordingCrawler(roots, **options)
        crawler.client = client  # type: ignore[assignment]
        await crawler.crawl()
        return crawler
    return play(main()), client


def simulated(root: str, answers: dict[str, Any],
              **options: Any) -> tuple[dict[str, crawl.Record], list[tuple[float, str]]]:
    """Crawl a simulated site; return the records and what was asked for, when."""
    crawler, client = simulated_crawl([root], answers, **options)
    return crawler.records, client.asked


def to(location: str) -> Any:
    """The answer of a simulated server that redirects."""
    return [(302, {"location": location}, "")]


def pages(count: int) -> dict[str, Any]:
    """A site of *count* pages, all linked from the root of http://h/."""
    site: dict[str, Any] = {f"http://h/{number}": "" for number in range(1, count)}
    return site | {"http://h/": [(200, {}, "".join(f"<a href=/{number}>" for number in range(1, count)))]}


# Once each

def test_every_page_is_fetched_once(site: Server) -> None:
    site.add("/", "<a href=/a><a href=b/><a href=#top><a href=/a#x>")
    site.add("/a", "<a href=/><a href='b/'><a href=b/>")
    site.add("/b/", "<a href=../a><a href=c?q=1><a href=?p=2><a href=//localhost:%d/%%7Euser><a href=/~user>" % site.port)
    for path in ("/b/c?q=1", "/b/?p=2", "/%7Euser"):
        site.add(path)
    records, crawler = crawled(site.url)
    paths = ["/", "/a", "/b/", "/b/c?q=1", "/b/?p=2", "/%7Euser"]
    assert sorted(site.requests) == sorted(["/robots.txt", *paths])
    assert {url.removeprefix(site.url) for url in records} == set(paths)
    assert all(record.status == 200 and not record.kind for record in records.values())


def test_only_urls_that_a_page_was_the_first_to_name_are_new() -> None:
    records, _ = simulated("http://h/", pages(4) | {"http://h/1": "<a href=/2><a href=/5><a href=/6>"},
                           robots=False, max_tasks=1)
    assert [(record.num_urls, record.num_new_urls) for record in records.values()][:2] == [(3, 3), (3, 2)]


def test_a_record_says_how_a_url_ended(site: Server) -> None:
    site.add("/", "<a href=/gone>")
    records, _ = crawled(site.url)
    root, gone = records[site.url + "/"], records[site.url + "/gone"]
    assert root.links == (gone.url,) and root.size == 14 and root.content_type == "text/html"
    assert (root.depth, root.parent, root.tries) == (0, "", 1) and root.seconds >= 0
    assert (root.num_urls, root.num_new_urls, root.encoding) == (1, 1, "utf-8")
    assert (gone.status, gone.error, gone.kind) == (404, "404 Not Found", "broken")
    assert (gone.depth, gone.parent) == (1, root.url)


def test_a_crawl_needs_no_more_connections_than_tasks(tls_site: Server) -> None:
    tls_site.add("/", "".join(f"<a href=/{n}>" for n in range(20)))
    for number in range(20):
        tls_site.add(f"/{number}")
    records, crawler = crawled(f"localhost:{tls_site.port}", max_tasks=3)
    assert len(records) == 21 and crawler.client.opened <= 3 and crawler.notes == []


# Scope

@pytest.mark.parametrize("url, options, reason", [
    ("http://example.com/x", {}, ""), ("http://www.example.com/x", {}, ""), ("https://example.com/x", {}, ""),
    ("http://example.com:8080/x", {}, "other host"), ("http://sub.example.com/x", {}, "other host"),
    ("http://a.sub.example.com/x", {"subdomains": True}, ""),
    ("http://notexample.com/x", {"subdomains": True}, "other host"),
    ("http://sub.example.com:8080/x", {"subdomains": True}, "other host"),
    ("http://exam.plecom/x", {"subdomains": True}, "other host"), ("http://example.com./x", {}, "other host"),
    ("http://example.com/blog/x", {"include": "/blog/"}, ""),
    ("http://example.com/x", {"include": "/blog/"}, "excluded"),
    ("http://example.com/blog/x.pdf", {"include": "/blog/", "exclude": "pdf$"}, "excluded"),
    ("http://example.com" + "/a/b" * 4, {}, ""),
    ("http://example.com" + "/a/b" * 5, {}, "a path that repeats itself")])
def test_the_scope_is_the_roots_host_widened_and_narrowed(url: str, options: dict[str, Any], reason: str) -> None:
    async def main() -> str:
        return crawl.Crawler(["http://example.com/"], **options).scope.objection(crawl.parse_url(url))
    assert crawl.run(main()) == reason


def test_what_leaves_the_scope_is_not_fetched(site: Server) -> None:
    site.add("/", "<iframe></iframe><a href=http://127.0.0.1:%d/other><a href=mailto:x><a href=/no.pdf>"
                  "<a href=/leave>" % site.port)
    site.add_redirect("/leave", "/leave2")
    site.add_redirect("/leave2", "http://127.0.0.1:%d/elsewhere" % site.port)
    records, crawler = crawled(site.url, exclude=r"\.pdf$")
    assert site.requests == ["/robots.txt", "/", "/leave", "/leave2"]
    assert +crawler.skipped == {"other host": 2, "no http or https URL": 1, "excluded": 1}
    assert records[site.url + "/leave2"].next_url == f"http://127.0.0.1:{site.port}/elsewhere"
    assert crawler.notes == []


def test_a_root_that_is_not_fetched_is_at_no_depth_and_has_no_parent(site: Server) -> None:
    records: list[crawl.Record] = []

    async def main() -> None:
        await crawl.Crawler([site.url], max_pages=0, on_record=records.append).crawl()
    crawl.run(main())
    assert records == [crawl.Record(site.url + "/", skipped="page limit")]


def test_every_url_that_is_not_fetched_has_a_reason(site: Server) -> None:
    site.add("/robots.txt", "User-agent: *\nDisallow: /private/\nAllow: /", 200)
    site.add("/", "<a href=//other.test/><a href=mailto:x><a href=/a.pdf><a href=/private/x><a href='//[x/'>"
                  "<a href=/1><a href=/meta><a href=/r/r/r/r/r>")
    site.add("/1", "<a href=/2>")
    site.add("/2", "<a href=/3>")
    site.add("/meta", "<meta name=robots content=nofollow><a href=/x><a href=//other.test/y>")
    _, crawler = crawled(site.url, exclude=r"\.pdf$", depth=2)
    assert {url.removeprefix(site.url): reason for url, reason in crawler.reasons.items()} == {
        "http://other.test/": "other host", "http://other.test/y": "nofollow", "mailto:x": "no http or https URL",
        "//[x/": "no http or https URL", "/a.pdf": "excluded", "/private/x": "robots.txt: Disallow: /private/",
        "/3": "depth", "/x": "nofollow", "/r/r/r/r/r": "a path that repeats itself"}
    _, crawler = crawled(site.url, max_pages=2, max_tasks=1, robots=False)
    assert crawler.reasons[site.url + "/meta"] == "page limit"


def test_depth_and_number_of_pages_have_limits(site: Server) -> None:
    site.add("/", "<a href=/1>")
    for number in range(1, 6):
        site.add(f"/{number}", f"<a href=/{number + 1}>")
    records, crawler = crawled(site.url, depth=2)
    assert len(records) == 3 and crawler.skipped["depth"] == 1
    records, crawler = crawled(site.url, max_pages=2)
    assert len(records) == 2 and crawler.skipped["page limit"] == 1


def test_a_page_too_deep_here_may_be_near_enough_from_elsewhere() -> None:
    records, _ = simulated("http://h/", {
        "http://h/": "<a href=/slow><a href=/a>", "http://h/a": "<a href=/b>",
        "http://h/b": "<a href=/x>", "http://h/slow": [(200, {"seconds": 9}, "<a href=/x>")]}, depth=2)
    assert records["http://h/x"].parent == "http://h/slow" and records["http://h/x"].depth == 2


def test_what_is_not_fetched_says_how_deep_it_would_have_been_and_where_it_was_met() -> None:
    skips: list[crawl.Record] = []
    answers: dict[str, Any] = {"http://h/": "<a href=/go><a href=//b/><a href=mailto:x>",
                               "http://h/go": to("http://o/")}
    simulated_crawl(["http://h/"], answers, on_record=skips.append)
    assert {record.url: (record.depth, record.parent) for record in skips if record.skipped} == {
        "http://o/": (1, "http://h/go"), "http://b/": (1, "http://h/"), "mailto:x": (1, "http://h/")}


def test_links_of_a_nofollow_page_are_not_followed(site: Server) -> None:
    site.add("/", "<a href=/meta><a href=/header>")
    site.add("/meta", "<meta name=robots content=nofollow><a href=/x><a href=/>")
    site.add("/header", "<a href=/x><a href=/y><a href=/>", X_Robots_Tag="noindex, nofollow")
    records, crawler = crawled(site.url)
    assert len(records) == 3 and records[site.url + "/meta"].links == records[site.url + "/header"].links == ()
    assert crawler.reasons == {site.url + "/x": "nofollow", site.url + "/y": "nofollow"}


def test_what_another_way_leads_to_is_no_longer_counted_as_skipped(site: Server) -> None:
    site.add("/", "<a href=/meta><a href=/open>")
    site.add("/meta", "<meta name=robots content=nofollow><a href=/x>")
    site.add("/open", "<a href=/x>")
    records: list[crawl.Record] = []

    async def main() -> crawl.Crawler:
        crawler = crawl.Crawler([site.url], max_tasks=1, on_record=records.append)
        await crawler.crawl()
        return crawler
    crawler = crawl.run(main())
    assert [record.skipped or record.status for record in records if record.url == site.url + "/x"] == ["nofollow", 404]
    assert crawler.skipped == {"nofollow": 0}


def test_external_links_are_asked_for_once_and_not_read(site: Server, tls_site: Server) -> None:
    site.add("/", f"<a href={tls_site.url}/><a href={tls_site.url}/gone><a href={tls_site.url}/moved>")
    tls_site.add("/", "<a href=/inside><a href=/inside2>")
    tls_site.add_redirect("/moved", "/elsewhere", 301)
    records, _ = crawled(site.url, external=True, headers={"Authorization": "secret", "user-agent": "me"})
    assert sorted(tls_site.requests) == ["/", "/gone", "/moved"]
    assert not any("secret" in head for head in tls_site.heads) and "secret" in site.heads[-1]
    assert all("User-Agent: me\r\n" in head for head in tls_site.heads + site.heads)
    assert [records[tls_site.url + path].kind for path in ("/", "/gone", "/moved")] == ["", "broken", ""]
    assert records[tls_site.url + "/moved"].next_url == tls_site.url + "/elsewhere"
    assert records[tls_site.url + "/"].encoding == "" and records[tls_site.url + "/"].size == 0


def test_an_external_link_can_be_excluded() -> None:
    answers: dict[str, Any] = {"http://h/": "<a href=http://x/a.pdf><a href=http://x/b>"}
    crawler, _ = simulated_crawl(["http://h/"], answers, robots=False, external=True, exclude="pdf$")
    assert crawler.reasons == {"http://x/a.pdf": "excluded"} and "http://x/b" in crawler.records


def test_www_is_no_prefix_where_nothing_but_a_top_level_domain_follows() -> None:
    answers: dict[str, Any] = {"http://www.com/": "<a href=http://other.com/>"}
    crawler, _ = simulated_crawl(["http://www.com/"], answers, robots=False, subdomains=True)
    assert crawler.reasons == {"http://other.com/": "other host"}


def test_an_external_link_met_behind_nofollow_is_checked_where_another_page_has_it(site: Server, tls_site: Server) -> None:
    site.add("/", "<a href=/meta><a href=/open>")
    site.add("/meta", f"<meta name=robots content=nofollow><a href={tls_site.url}/gone>")
    site.add("/open", f"<a href={tls_site.url}/gone>")

    async def main() -> tuple[list[crawl.Record], int]:
        records: list[crawl.Record] = []
        crawler = crawl.Crawler([site.url], external=True, max_tasks=1, on_record=records.append)
        await crawler.crawl()
        return records, (+crawler.skipped).total()
    records, skipped = crawl.run(main())
    ends = [record.skipped or record.kind for record in records if record.url == tls_site.url + "/gone"]
    assert ends == ["nofollow", "broken"]
    assert skipped == 0


# Robots

def test_a_robots_file_is_obeyed_and_asked_for_once(site: Server) -> None:
    site.add("/robots.txt", "User-agent: *\nDisallow: /private", 200)
    site.add("/", "<a href=/private/x><a href=/public>")
    site.add("/public")
    records, crawler = crawled(site.url)
    assert site.requests == ["/robots.txt", "/", "/public"]
    assert crawler.skipped["robots.txt: Disallow: /private"] == 1
    assert "/private/x" in [url.removeprefix(site.url) for url in crawled(site.url, robots=False)[0]]


def test_a_site_whose_robots_file_fails_is_left_alone_after_as_many_tries_as_a_page(site: Server, impatient: None) -> None:
    site.add("/robots.txt", "", 500)
    records, crawler = crawled(site.url, max_tries=2)
    assert records == {} and crawler.reasons == {site.url + "/": "robots.txt: 500 Internal Server Error"}
    assert site.requests == ["/robots.txt"] * 2


def test_a_robots_file_that_fails_once_is_asked_for_again() -> None:
    site: dict[str, Any] = {"http://h/": "", "http://h/robots.txt": [
        (503, {}, ""), (503, {}, ""), (301, {"location": "/r"}, "")], "http://h/r": ""}
    records, asked = simulated("http://h/", site)
    assert records["http://h/"].status == 200 and [moment for moment, _ in asked] == [0, 1.125, 3.25, 3.375, 3.5]


def test_what_comes_with_a_404_is_no_robots_file(site: Server) -> None:
    site.add("/robots.txt", "User-agent: *\nDisallow: /", 404)
    site.add("/")
    assert len(crawled(site.url)[0]) == 1


def test_redirects_of_robots_txt_are_followed_five_times(site: Server) -> None:
    site.add_redirect("/robots.txt", "/r0")
    for number in range(9):
        site.add_redirect(f"/r{number}", f"/r{number + 1}")
    site.add("/r4", "User-agent: *\nDisallow: /", 200)
    records, crawler = crawled(site.url)
    assert records == {} and "/r5" not in site.requests
    site.add_redirect("/r4", "http://[")
    site.add("/")
    assert len(crawled(site.url)[0]) == 1 and site.requests.count("/r4") == 2
    site.add_redirect("/r4", "/r5")
    assert len(crawled(site.url)[0]) == 1 and "/r5" not in site.requests
    site.add("/robots.txt", "User-agent: *\nDisallow: /", 200, Location="/r9")  # which only a redirect may have
    assert crawled(site.url)[0] == {}


def test_a_redirect_of_robots_txt_does_not_leave_the_scope(site: Server) -> None:
    site.add_redirect("/robots.txt", f"http://127.0.0.1:{site.port}/secret")
    site.add("/")
    assert len(crawled(site.url)[0]) == 1 and "/secret" not in site.requests


def test_a_robots_file_may_redirect_to_any_host_in_scope() -> None:
    moved: dict[str, Any] = {"http://a.h/robots.txt": [(301, {"location": "http://b.h/robots.txt"}, "")],
                             "http://b.h/robots.txt": "User-agent: *\nDisallow: /"}
    linked: dict[str, Any] = {"http://h/": "<a href=http://a.h/>"}
    crawler, _ = simulated_crawl(["http://h/"], linked | moved, subdomains=True)
    assert crawler.reasons == {"http://a.h/": "robots.txt: Disallow: /"}


def test_a_robots_file_that_cannot_be_had_is_tried_for_again() -> None:
    site: dict[str, Any] = pages(3) | {
        "http://h/robots.txt": [ConnectionResetError(errno.ECONNRESET, "reset"), (404, {}, "")]}
    records, _ = simulated("http://h/", site)
    assert len(records) == 3 and all(record.status == 200 for record in records.values())


# Roots

def test_a_root_that_is_no_url_is_refused() -> None:
    async def main() -> None:
        crawl.Crawler(["http://[x"])
    with pytest.raises(crawl.CrawlError):
        crawl.run(main())


def test_a_root_is_tried_with_https_and_then_with_http(site: Server) -> None:
    site.add("/")
    records, crawler = crawled(f"localhost:{site.port}")
    assert list(records) == [site.url + "/"]
    assert "cannot be reached" in crawler.notes[0]


def test_a_guess_that_failed_leaves_no_trace(site: Server) -> None:
    site.add("/", f"<a href=https://localhost:{site.port}/>")
    records, crawler = crawled(f"localhost:{site.port}", max_tries=1, robots=False)
    assert [record.kind for record in records.values()] == ["", "refused"] and crawler.num_fetched == 2
    site.add("/?u=http://x/")
    assert len(crawled(f"localhost:{site.port}/?u=http://x/", robots=False, max_pages=1)[0]) == 1


def test_a_guess_of_port_80_keeps_its_host_in_scope() -> None:
    answers: dict[str, Any] = {"https://h:80/": [OSError("refused")], "http://h/": "<a href=/x>"}
    crawler, _ = simulated_crawl(["h:80"], answers, robots=False)
    assert list(crawler.records) == ["http://h/", "http://h/x"]


def test_a_guess_is_given_up_only_where_nothing_answered() -> None:
    answers: dict[str, Any] = {"https://h/": [ConnectionResetError(errno.ECONNRESET, "reset"), (200, {}, "")]}
    crawler, _ = simulated_crawl(["h"], answers)  # robots.txt was answered
    assert [(url, record.tries) for url, record in crawler.records.items()] == [("https://h/", 2)] and not crawler.notes


@pytest.mark.parametrize("roots", [["https://h", "h"], ["h", "https://h"]])
def test_what_is_also_named_with_its_scheme_is_no_guess(roots: list[str]) -> None:
    crawler, _ = simulated_crawl(roots, {"https://h/": [OSError("refused")]}, robots=False, max_tries=1)
    assert [record.error for record in crawler.records.values()] == ["refused"] and not crawler.notes


@pytest.mark.parametrize("answers", [
    [(503, {}, ""), OSError("refused"), (200, {}, "")],
    [OSError(errno.EMFILE, "Too many open files"), (200, {}, "")]])
def test_a_guess_that_answered_or_lacked_a_descriptor_is_tried_again(answers: list[Any]) -> None:
    site = {"https://h/": answers, "http://s/": [(200, {"seconds": 9}, "")]}
    crawler, _ = simulated_crawl(["h", "http://s/"], site, robots=False)
    assert not crawler.notes and {url: record.status for url, record in crawler.records.items()} == {
        "https://h/": 200, "http://s/": 200}


@pytest.mark.parametrize("site", [
    {"http://s/": [(200, {"seconds": 0.1}, "<a href=https://h/>")]},
    {"http://s/": [(200, {"seconds": 0.05}, "<a href=/x>")],
     "http://s/x": [(302, {"seconds": 0.05, "location": "https://h/"}, "")]}])
def test_what_leads_to_a_guess_that_fails_leads_to_an_error_of_its_own(site: dict[str, Any]) -> None:
    answers = site | {"https://h/": [OSError("refused")], "http://h/": ""}
    crawler, _ = simulated_crawl(["h", "http://s/"], answers, robots=False, max_tries=2)
    kinds = {url: record.kind for url, record in crawler.records.items()}
    assert kinds == dict.fromkeys(answers, "") | {"https://h/": "refused"}
    assert crawler.num_fetched == len(answers) and len(crawler.notes) == 1 and "https://h/" in crawler.seen_urls


ADOPTED: dict[str, Any] = {"http://r/": [(302, {"location": "http://b/", "seconds": 9}, "")],
                           "http://b/": "", "http://b/x": "<a href=/y>",
                           "http://b/y": ""}
REFUSED: dict[str, Any] = {f"https://{host}/{path}": [OSError("refused")]
                           for host in ("h", "h:80", "r", "s") for path in ("", "robots.txt")}


@pytest.mark.parametrize("seconds", [0.1, 0.2, 0.5])
def test_a_root_is_one_also_if_a_link_to_it_is_met_before_its_guess_failed(seconds: float) -> None:
    site = ADOPTED | REFUSED | {"http://b/": "<a href=/y>",
                                "http://s/": [(200, {"seconds": seconds}, "<a href=http://r/>")]}
    crawler, _ = simulated_crawl(["r", "http://s/"], site, robots=False)
    assert {"http://r/", "http://b/", "http://b/y"} <= crawler.records.keys()


def test_one_root_may_be_given_as_a_string_and_there_is_always_one_task_and_one_try(site: Server) -> None:
    async def main() -> None:
        await crawl.Crawler(site.url, max_tasks=0, max_tries=0).crawl()
    crawl.run(main())
    assert site.requests == ["/robots.txt", "/"]


def test_the_host_that_a_root_redirects_to_is_adopted(site: Server) -> None:
    with contextlib.closing(Server()) as other:
        site.add_redirect("/", other.url + "/start")
        other.add_redirect("/start", "/home")
        other.add("/home", "<a href=/more>")
        other.add("/more")
        records, crawler = crawled(site.url)
        assert list(records)[-1] == other.url + "/more"
        assert "which is crawled, too" in crawler.notes[0]


def test_a_root_that_redirects_to_where_the_crawl_goes_anyway_is_worth_no_note() -> None:
    for host in ("www.h", "a.h"):
        crawler, _ = simulated_crawl(["http://h/"], {
            "http://h/": to(f"http://{host}/"), f"http://{host}/": ""},
            subdomains=True)
        assert crawler.records[f"http://{host}/"].status == 200 and crawler.notes == []


def test_what_was_out_of_scope_is_fetched_after_its_host_is_adopted() -> None:
    crawler, _ = simulated_crawl(["http://s/", "http://r/"], {
        "http://s/": "<a href=//b/><a href=//b/x><a href=//c/>", "http://b/x": "",
        "http://r/": [(302, {"location": "http://b/", "seconds": 9}, "")], "http://b/": ""},
        robots=False)
    assert crawler.records["http://b/"].status == crawler.records["http://b/x"].status == 200
    assert +crawler.skipped == {"other host": 1}


def test_what_a_root_redirects_to_is_adopted_also_if_pages_link_into_the_chain() -> None:
    site: dict[str, Any] = {
        "http://a/": to("/home"), "http://a/2": [(200, {"seconds": 0.25}, "<a href=/home>")],
        "http://a/home": [(302, {"location": "http://b/", "seconds": 0.5}, "")], "http://b/": ""}
    crawler, _ = simulated_crawl(["http://a/", "http://a/2"], site, robots=False)
    assert crawler.records["http://b/"].status == 200 and not crawler.reasons


def test_a_url_of_an_adopted_host_does_not_take_the_root_for_the_page_with_the_link() -> None:
    site = ADOPTED | {"http://s/": "<a href=http://b/x>"}
    crawler, _ = simulated_crawl(["http://s/", "http://r/"], site, robots=False)
    assert crawler.records["http://b/x"].parent == "" and crawler.records["http://b/x"].depth == 1


@pytest.mark.parametrize("seconds", [0, 9])
@pytest.mark.parametrize("link, fetched", [("", False), ("<a href=//b/x>", True)])
def test_an_adopted_host_does_not_make_links_followed_that_are_not_to_be(seconds: int, link: str, fetched: bool) -> None:
    meta = "<meta name=robots content=nofollow><a href=//b/x>"
    answers: dict[str, Any] = {
        "http://s/": [(200, {"seconds": 1}, meta)], "http://t/": [(200, {"seconds": 2}, link)],
        "http://r/": [(302, {"location": "http://b/", "seconds": seconds}, "")], "http://b/": ""}
    roots = ["http://s/", "http://t/", "http://r/"]
    crawler, client = simulated_crawl(roots, answers, robots=False)
    assert ("http://b/x" in [url for _, url in client.asked]) == fetched
    assert +crawler.skipped == ({} if fetched else {"nofollow": 1})


def test_headers_are_for_the_hosts_that_were_named(site: Server) -> None:
    with contextlib.closing(Server()) as other:
        site.add_redirect("/", other.url.replace("localhost", "127.0.0.1") + "/")
        other.add("/", f"<a href=/a><a href={site.url}/b>")
        records, crawler = crawled(site.url, headers={"Cookie": "secret"}, max_body=100)
        assert crawler.client.opened == site.connections + other.connections
        assert len(records) == 4 and not any("secret" in head for head in other.heads)
        assert all("secret" in head for head in site.heads)


def test_what_lies_below_an_adopted_host_gets_no_headers() -> None:
    _, client = simulated_crawl(["http://a.example/"], {
        "http://a.example/": to("http://b.example/"),
        "http://b.example/": "<a href=//s.b.example/><a href=//s.a.example/>"}, subdomains=True,
        robots=False)
    assert client.own_headers == {"http://a.example/": True, "http://b.example/": False,
                              "http://s.b.example/": False, "http://s.a.example/": True}


# Redirects

def test_redirects_join_and_are_not_followed_twice(site: Server) -> None:
    site.add("/", "<a href=/old><a href=/older><a href=/new>")
    site.add_redirect("/old", "new#fragment", 308)
    site.add_redirect("/older", site.url + "/old", 301)
    site.add("/new")
    records, _ = crawled(site.url)
    assert sorted(site.requests) == ["/", "/new", "/old", "/older", "/robots.txt"]
    assert records[site.url + "/old"].next_url == site.url + "/new"


@pytest.mark.parametrize("location", [None, "http://[x", "file:///etc/passwd"])
def test_a_redirect_to_nowhere_is_broken(site: Server, location: str | None) -> None:
    site.add("/", "", 302, **({} if location is None else {"Location": location}))
    record = crawled(site.url)[0][site.url + "/"]
    assert record.kind == "broken" and "leads nowhere" in record.error


def test_as_many_redirects_as_allowed_are_no_circle(site: Server) -> None:
    site.add("/", "<a href=/b><a href=/a>")
    site.add_redirect("/b", "/c")
    site.add_redirect("/a", "/b")
    site.add("/c")
    records, _ = crawled(site.url, max_redirect=1, max_tasks=1)
    assert not any(record.kind for record in records.values()) and len(records) == 4


def test_a_redirect_to_itself_in_another_spelling_is_a_circle(site: Server) -> None:
    site.add_redirect("/%7Ex", "/%7ex")
    site.add("/", "<a href=/~x>")
    site.add_redirect("/~x", "/%7Ex")
    assert "in a circle" in crawled(site.url)[0][site.url + "/~x"].error


def test_redirects_in_a_circle_are_an_error_with_the_chain(site: Server) -> None:
    site.add("/", "<a href=/old>")
    site.add_redirect("/old", "/a")
    site.add_redirect("/a", "/b")
    site.add_redirect("/b", "/a")
    record = crawled(site.url)[0][site.url + "/b"]
    assert record.kind == "too many redirects"
    assert record.error.replace(site.url, "") == "too many redirects, in a circle: /old -> /a -> /b -> /a"


@pytest.mark.parametrize("length", [2, 14])
def test_a_circle_is_found_also_where_pages_link_into_it(length: int, site: Server) -> None:
    for number in range(length):
        site.add_redirect(f"/{number}", f"/{(number + 1) % length}")
    site.add("/", f"<a href=/0><a href=/{length // 2}>")
    records, _ = crawled(site.url)
    assert [record.kind for record in records.values() if "in a circle" in record.error] == ["too many redirects"]


def test_a_redirect_that_comes_back_has_all_its_tries() -> None:
    site: dict[str, Any] = {
        "http://h/": "<a href=/0><a href=/p>", "http://h/p": [(200, {"seconds": 9}, "<a href=/1>")],
        "http://h/0": to("/1"), "http://h/2": "",
        "http://h/1": [(302, {"location": "/2"}, ""), (503, {}, ""), (302, {"location": "/2"}, "")]}
    records, _ = simulated("http://h/", site, robots=False, max_redirect=1, max_tries=2)
    assert (records["http://h/1"].status, records["http://h/1"].tries, records["http://h/2"].status) == (302, 2, 200)


def test_a_circle_longer_than_the_limit_ends_all_the_same(site: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crawl, "MAX_CIRCLE", 3)
    for number in range(5):
        site.add_redirect(f"/{number}", f"/{(number + 1) % 5}")
    site.add("/", "".join(f"<a href=/{number}>" for number in range(5)))
    assert len(crawled(site.url)[0]) == 6


def test_a_link_begins_a_new_chain_for_all_that_follow(site: Server) -> None:
    for number in range(12):
        site.add_redirect(f"/r{number}", f"/r{number + 1}")
    site.add("/", "<a href=/r0><a href=/p1>")
    for number in range(1, 15):
        site.add(f"/p{number}", f"<a href=/p{number + 1}>")
    site.add("/p15", "<a href=/r5>")
    site.add("/r12")
    records, crawler = crawled(site.url)
    assert records[site.url + "/r12"].status == 200 and not any(record.kind for record in records.values())


def test_a_chain_of_redirects_has_a_limit_that_a_link_renews(site: Server) -> None:
    for number in range(9):
        site.add_redirect(f"/{number}", f"/{number + 1}")
    site.add("/", "<a href=/0>")
    records, _ = crawled(site.url, max_redirect=4)
    assert records[site.url + "/4"].kind == "too many redirects" and site.url + "/5" not in records
    site.add("/late", "<a href=/4><a href=/1>")
    site.add("/", "<a href=/0><a href=/d1>")
    for number in range(1, 9):
        site.add(f"/d{number}", f"<a href=/d{number + 1}>")
    site.add("/d9", "<a href=/late>")
    records, _ = crawled(site.url, max_redirect=4, max_tasks=1)
    assert records[site.url + "/8"].error.startswith("too many redirects: ") and not records[site.url + "/4"].kind


@pytest.mark.parametrize("raw, path", [("/\u00e9".encode(), "/%C3%A9"), (b"/\xe9", "/%C3%A9")])
def test_a_location_outside_of_ascii_is_utf_8_or_else_latin_1(raw: bytes, path: str, site: Server) -> None:
    site.answers["/"] = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: " + raw + b"\r\n\r\n"
    assert crawled(site.url)[0][site.url + "/"].next_url == site.url + path


def test_a_redirect_down_to_http_is_followed_and_marked() -> None:
    records, _ = simulated("https://h/", {
        "https://h/": to("http://h/x"), "http://h/x": to("/y"),
        "http://h/y": ""})
    assert {url: (record.status, record.insecure) for url, record in records.items()} == {
        "https://h/": (302, True), "http://h/x": (302, False), "http://h/y": (200, False)}


# What a page is, and what its links mean

def test_xhtml_is_a_page_and_so_is_a_list_of_choices(site: Server) -> None:
    site.add("/", "<a href='/choices' /><a href='/text' />", Content_Type="application/xhtml+xml; charset=utf-8")
    site.add("/choices", "<a href=/never>", 300, Location="/elsewhere")
    site.add("/text", "<a href=/never>", Content_Type="text/plain")
    records, _ = crawled(site.url)
    assert {url.removeprefix(site.url) for url in records} == {"/", "/choices", "/text"}


@pytest.mark.parametrize("kind, pages", [
    ("text/html, text/html", 2), ("TEXT/HTML;charset=utf-8", 2), ("text/plain, text/html", 1)])
def test_the_first_content_type_decides(kind: str, pages: int, site: Server) -> None:
    site.add("/", "<a href=/x>", Content_Type=kind)
    assert len(crawled(site.url)[0]) == pages


def test_what_is_no_page_is_not_read(site: Server) -> None:
    site.add("/", "<a href=/file>")
    site.answers["/file"] = OK + b"Content-Type: audio/ogg\r\n\r\n"
    assert crawled(site.url)[0][site.url + "/file"].status == 200


def test_frames_and_refreshes_are_followed(site: Server) -> None:
    site.add("/", "<iframe src=/frame></iframe><meta http-equiv=refresh content='0; url=/next'>")
    site.add("/next", "<meta http-equiv=refresh content='0; url=mailto:x'>")
    records, crawler = crawled(site.url)
    assert {url.removeprefix(site.url) for url in records} == {"/", "/frame", "/next"}


def test_a_relative_reference_is_not_taken_for_one_of_the_root(site: Server) -> None:
    site.add("/", "<a href=/x><a href=/d/>")
    site.add("/d/", "<a href=x>")
    site.add("/x")
    site.add("/d/x")
    assert site.url + "/d/x" in crawled(site.url)[0]


def test_a_reference_that_depends_on_its_page_means_another_on_the_next(site: Server) -> None:
    site.add("/d/1", "<a href='?x'><a href='2'><a href='1?y'><a href='http:?x'><a href='\1?x'>")
    site.add("/d/2", "<a href='?x'><a href='2'><a href=' HTTP:?x'><a href='http:?x'>")
    records, _ = crawled(site.url + "/d/1", max_tasks=1)
    assert [url.removeprefix(site.url) for url in records] == ["/d/1", "/d/1?x", "/d/2", "/d/1?y", "/d/2?x"]
    assert records[site.url + "/d/2"].links == (site.url + "/d/2?x", site.url + "/d/2")


def test_a_plain_reference_that_is_too_long_is_refused(site: Server) -> None:
    site.add("/", f"<a href=/{'x' * crawl.MAX_URL}><a href=/{'y' * 7000}>")
    records, crawler = crawled(site.url)
    assert len(records) == 2 and list(crawler.reasons.values()) == ["no http or https URL"]


def test_mutated_references_mean_what_the_parser_says() -> None:
    rng = random.Random(13)
    pieces = ["a", "b.c", "..", "../", "/", "?", "q=1", "~", "http://h", "_", ".", "a/", "@", "#", "%41", ":", " ", "&",
              ";,!", "//h", "%2E", "%e2", "http:", "\\", "./", "\t", "://"]

    async def main() -> None:
        crawler = crawl.Crawler(["http://h/"])
        page = crawler.add(crawl.parse_url("http://h/"), None)
        assert page
        for _ in range(ROUNDS):
            reference = "".join(rng.choices(pieces, k=rng.randrange(5)))
            base = crawl.parse_url(rng.choice(("http://h/", "http://h/a", "http://h/a/b/c?x")))
            with contextlib.suppress(ValueError):
                meant = crawler.add(crawl.parse_url(reference, base), page)
                folder = base.target.partition("?")[0].rpartition("/")[0]
                found = crawler._find(reference, base, folder, page, False)
                assert found is (meant or crawl._NOWHERE), (reference, base)
    crawl.run(main())


def test_the_memory_of_spellings_has_a_bound(site: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crawl, "MAX_SPELLINGS", 20)
    for number in range(40):
        following = range(number + 1, min(number + 4, 40))
        site.add(f"/{number}", "".join(f"<a href=/{other}><a href={other}>" for other in following))
    records, crawler = crawled(site.url + "/0")
    assert len(records) == 40 and sum(map(len, crawler._meanings.values())) <= 20 + 7


# Failures

@pytest.mark.parametrize("answer, kind, tries", [
    (b"", "broken", 3), (OK + b"Content-Length: 9\r\n\r\nhalf", "broken", 3), (b"nonsense\r\n\r\n", "broken", 1),
    (OK + b"Content-Length: 99999999\r\n\r\n", "over a limit", 1)])
def test_a_broken_answer_is_a_record(site: Server, impatient: None, answer: bytes, kind: str, tries: int) -> None:
    site.answers["/"] = says(answer, then=socket.socket.close)
    record = crawled(site.url)[0][site.url + "/"]
    assert (record.kind, record.tries, record.status) == (kind, tries, 0) and record.error


def test_a_second_try_may_succeed(site: Server, impatient: None) -> None:
    def once(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200")
        connection.close()
        site.add("/")
    site.answers["/"] = once
    record = crawled(site.url)[0][site.url + "/"]
    assert record.status == 200 and record.tries == 2


@pytest.mark.parametrize("status, tries", [
    (408, 3), (429, 3), (500, 3), (502, 3), (503, 3), (504, 3), (400, 1), (404, 1), (501, 1)])
def test_passing_errors_are_tried_again(site: Server, impatient: None, status: int, tries: int) -> None:
    site.add("/", "", status)
    record = crawled(site.url)[0][site.url + "/"]
    assert site.requests.count("/") == record.tries == tries and record.status == status
    assert record.kind == ("blocked" if status == 429 else "broken")


def test_what_cannot_be_reached_is_a_record(impatient: None) -> None:
    closed = listener()
    url = f"http://127.0.0.1:{port_of(closed)}/"
    closed.close()
    record = crawled(url)[0][url]
    assert (record.kind, record.error, record.tries) == ("refused", "Connection refused", 3)
    unknown = {"http://h/": [socket.gaierror(socket.EAI_NONAME, "Name or service not known")]}
    assert simulated("http://h/", unknown, robots=False)[0]["http://h/"].tries == 1


def test_a_silent_server_is_a_record(site: Server, impatient: None) -> None:
    site.answers["/"] = silence
    record = crawled(site.url, timeout=0.02, max_tries=2)[0][site.url + "/"]
    assert (record.kind, record.tries) == ("timed out", 2)


@pytest.mark.parametrize("scheme", ["https://", ""])
def test_a_bad_certificate_is_a_record(scheme: str, tls_site: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    records, crawler = crawled(f"{scheme}localhost:{tls_site.port}")
    assert [(record.kind, record.tries) for record in records.values()] == [("bad certificate", 1)] and not crawler.notes


@pytest.mark.parametrize("status, kind", [(400, "broken"), (401, "blocked"), (402, "broken"), (403, "blocked"), (404, "broken"),
                                          (429, "blocked"), (500, "broken")])
def test_who_is_not_let_in_is_blocked_and_what_is_not_there_is_broken(status: int, kind: str) -> None:
    records, _ = simulated("http://h/", {"http://h/": [(status, {}, "")]}, robots=False, max_tries=1)
    assert records["http://h/"].kind == kind


def test_a_record_says_how_long_the_answer_took_in_milliseconds() -> None:
    records, _ = simulated("http://h/", pages(2) | {"http://h/1": [(200, {"seconds": 0.12345}, "")]}, robots=False)
    assert (records["http://h/"].seconds, records["http://h/1"].seconds) == (0.125, 0.123)


@pytest.mark.parametrize("status, error", [(404, "404 Not Found"), (599, "599 "), (500, "500 Internal Server Error")])
def test_a_status_without_words_is_given_its_usual_ones(site: Server, impatient: None, status: int, error: str) -> None:
    site.answers["/"] = b"HTTP/1.1 %d\r\nContent-Length: 0\r\n\r\n" % status
    records, _ = crawled(site.url)
    assert records[site.url + "/"].error == error


def gaps(asked: list[tuple[float, str]]) -> list[float]:
    """Return the seconds between one request and the next."""
    return [after - before for (before, _), (after, _) in zip(asked, asked[1:])]


@pytest.mark.parametrize("end, pauses", [(0, [0.5, 1, 2]), (1, [1.5, 3, 6])])
def test_tries_wait_longer_and_longer_half_a_time_to_one_and_a_half(
        end: int, pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda *ends: ends[end])
    records, asked = simulated("http://h/", {"http://h/": [(503, {}, "")]}, robots=False, max_tries=4)
    assert [gap - 0.125 for gap in gaps(asked)] == pauses
    assert records["http://h/"].tries == 4


@pytest.mark.parametrize("limit, kinds", [(4, ["refused", "refused", "refused"]), (1, [])])
def test_a_url_whose_robots_file_fails_is_one_of_the_page_limit(limit: int, kinds: list[str]) -> None:
    answers: dict[str, Any] = {"http://h/": [(200, {}, "".join(f"<a href=http://s{n}.h/>" for n in range(3)) + "<a href=/x>")]}
    for number in range(3):
        answers[f"http://s{number}.h/robots.txt"] = [OSError(errno.ECONNREFUSED, "refused")]
    crawler, client = simulated_crawl(
        ["http://h/"], answers, subdomains=True, max_pages=limit, max_tasks=1, max_tries=1)
    assert [record.kind for record in crawler.records.values()][1:] == kinds
    assert len(client.asked) == 2 + len(kinds) and set(crawler.reasons.values()) == {"page limit"}


def test_urls_whose_robots_files_fail_at_one_time_do_not_exceed_the_page_limit() -> None:
    roots = [f"http://s{number}.h/" for number in range(3)]
    dead = {f"{root}robots.txt": [OSError(errno.ECONNREFUSED, "refused")] for root in roots}
    crawler, client = simulated_crawl(roots, dead, max_pages=1, max_tries=1)
    assert len(client.asked) == 3 and [record.kind for record in crawler.records.values()] == ["refused"]
    assert crawler.num_fetched == 1 and crawler.skipped == {"page limit": 2}


def test_without_descriptors_the_crawl_goes_on_with_fewer_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[float] = []
    monkeypatch.setattr(SimulatedClient, "close", lambda self: closed.append(get_running_loop().time()))
    site = pages(3) | {"http://h/1": [OSError(errno.EMFILE, "Too many open files"), (200, {}, "")]}
    records, asked = simulated("http://h/", site, robots=False, max_tasks=2)
    assert {(record.status, record.tries) for record in records.values()} == {(200, 1)}
    assert asked[1:] == [(0.125, "http://h/1"), (0.125, "http://h/2"), (1.25, "http://h/1")]
    assert closed == [0.25, 1.375]  # idle connections at once, in case that frees some, and all in the end
    alone = simulated("http://h/", {"http://h/": [OSError(errno.EMFILE, "Too many open files")]}, robots=False)[0]
    assert alone["http://h/"].error == "Too many open files"


def test_a_url_that_found_no_descriptor_is_one_page_of_the_limit() -> None:
    site = pages(6)
    for number in (1, 2, 3):
        site[f"http://h/{number}"] = [OSError(errno.EMFILE, "Too many open files"), (200, {}, "")]
    assert len(simulated("http://h/", site, robots=False, max_pages=6)[0]) == 6


# Courtesy

def test_a_delay_separates_requests_to_one_site() -> None:
    _, asked = simulated("http://h/", pages(5), delay=2, robots=False)
    assert [moment for moment, _ in asked] == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("delay, theirs, seconds", [(0, 3, 3), (1, 3, 3), (3, 1, 3), (1, 9999, crawl.MAX_PAUSE)])
def test_the_longer_of_two_delays_is_kept_up_to_a_limit(delay: float, theirs: int, seconds: float) -> None:
    robots: dict[str, Any] = {"http://h/robots.txt": f"User-agent: *\nCrawl-delay: {theirs}"}
    _, asked = simulated("http://h/", pages(2) | robots, delay=delay)
    assert gaps(asked)[1:] == [seconds]


def test_each_site_has_its_own_delay_and_its_own_pauses() -> None:
    site: dict[str, Any] = {f"http://{host}/{path}": "<a href=/1>" for host in "ab" for path in ("", "1")}
    _, client = simulated_crawl(["http://a/", "http://b/"], site, robots=False, delay=2)
    assert client.asked == [(0, "http://a/"), (0, "http://b/"), (2, "http://a/1"), (2, "http://b/1")]
    site["http://a/"] = [(503, {"retry-after": "60"}, ""), (200, {}, "<a href=/1>")]
    _, client = simulated_crawl(["http://a/", "http://b/"], site, robots=False, max_tasks=1)
    assert [(moment >= 60, url) for moment, url in client.asked] == [
        (False, "http://a/"), (False, "http://b/"), (False, "http://b/1"), (True, "http://a/"), (True, "http://a/1")]


@pytest.mark.parametrize("value, date, seconds", [
    ("", "", 0), ("7", "", 7), ("99999", "", crawl.MAX_PAUSE), ("-5", "", 0), ("5_0", "", 0), ("soon", "", 0),
    ("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:07 GMT", 30),
    ("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 09:00:00 GMT", 0), ("Sun, 06 Nov 1994 08:49:37 GMT", "", 0)])
def test_retry_after_is_seconds_or_a_date(value: str, date: str, seconds: float) -> None:
    assert crawl._retry_after({"retry-after": value, "date": date}) == seconds


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_retry_after_pauses_the_whole_site(tasks: int) -> None:
    site: dict[str, Any] = pages(6) | {"http://h/1": [(429, {"retry-after": "60"}, ""), (200, {}, "")]}
    records, asked = simulated("http://h/", site, robots=False, max_tasks=tasks)
    assert [url for _, url in asked[:tasks + 1]] == ["http://h/", "http://h/1", "http://h/2"][:tasks + 1]
    assert len(asked) == 7 and asked[tasks + 1][0] == 60.25  # an answer takes 0.125 s
    assert len(records) == 6 and records["http://h/1"].status == 200


def test_of_two_pauses_the_longer_one_holds() -> None:
    site: dict[str, Any] = pages(4) | {"http://h/1": [(429, {"retry-after": "60"}, ""), (200, {}, "")],
                                       "http://h/2": [(429, {"retry-after": "1", "seconds": 0.25}, ""), (200, {}, "")]}
    _, asked = simulated("http://h/", site, robots=False, max_tasks=2)
    assert len(asked) == 6 and [moment >= 60 for moment, _ in asked] == [False] * 3 + [True] * 3


def test_a_second_try_takes_a_turn_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crawl, "BACKOFF", 1e-6)
    site: dict[str, Any] = pages(3) | {"http://h/1": [(503, {}, ""), (200, {}, "")]}
    _, asked = simulated("http://h/", site, robots=False, delay=2)
    assert [moment for moment, _ in asked] == [0, 2, 4, 6]


def test_the_retry_after_of_a_last_try_pauses_the_site_too() -> None:
    site: dict[str, Any] = pages(3) | {"http://h/1": [(429, {"retry-after": "60"}, "")]}
    _, asked = simulated("http://h/", site, robots=False, max_tasks=1, max_tries=1)
    assert asked == [(0, "http://h/"), (0.125, "http://h/1"), (60.25, "http://h/2")]


def test_after_a_pause_the_delay_is_kept() -> None:
    site: dict[str, Any] = pages(6) | {"http://h/1": [(503, {"retry-after": "5"}, ""), (200, {}, "")]}
    _, asked = simulated("http://h/", site, robots=False, delay=1)
    assert [moment for moment, _ in asked] == [0, 1, 6.125, 7.125, 8.125, 9.125, 10.125]


@pytest.mark.parametrize("tasks", [2, 10])
def test_no_burst_follows_when_a_site_was_slow(tasks: int) -> None:
    site: dict[str, Any] = pages(40) | {f"http://h/{number}": [(200, {"seconds": 9}, "")] for number in range(1, 11)}
    _, asked = simulated("http://h/", site, robots=False, delay=0.25, max_tasks=tasks)
    assert len(asked) == 40 and min(gaps(asked)) >= 0.25


def test_a_redirect_that_comes_back_keeps_the_delay() -> None:
    answers: dict[str, Any] = {
        "http://h/": "<a href=/0><a href=/late>", "http://h/late": "<a href=/x1>",
        "http://h/x1": "<a href=/x2>", "http://h/x2": "<a href=/2>",
        "http://h/3": ""}
    for number in range(3):
        answers[f"http://h/{number}"] = to(f"/{number + 1}")
    crawler, client = simulated_crawl(["http://h/"], answers, robots=False, delay=2, max_redirect=2)
    assert min(gaps(client.asked)) == 2 and "http://h/3" in crawler.records
    assert crawler.records["http://h/x2"].num_new_urls == 0


def test_at_the_page_limit_nobody_waits_for_a_turn() -> None:
    for seconds in (0.125, 400):
        site: dict[str, Any] = pages(1000) | {"http://h/2": [(200, {"seconds": seconds}, "")]}
        crawler, client = simulated_crawl(["http://h/"], site, robots=False, delay=300, max_pages=3)
        assert len(client.asked) == 3 and crawler.loop.time() == 600 + seconds
        assert crawler.skipped == {"page limit": 997}


def test_nobody_waits_for_a_turn_either_when_a_failure_reaches_the_page_limit() -> None:
    site: dict[str, Any] = pages(1000) | {"http://b/robots.txt": [OSError("refused")]}
    crawler, client = simulated_crawl(["http://h/", "http://b/"], site, delay=300, max_pages=2, max_tries=2)
    assert client.asked[-1][1] == "http://b/robots.txt" and crawler.loop.time() < 300
    assert crawler.skipped == {"page limit": 999}


def test_a_pause_shorter_than_the_delay_adds_no_second_delay() -> None:
    site: dict[str, Any] = pages(4) | {"http://h/1": [(503, {"retry-after": "1", "seconds": 9.5}, ""), (200, {}, "")]}
    _, asked = simulated("http://h/", site, robots=False, delay=10)
    assert [moment for moment, _ in asked] == [0, 10, 20.5, 30.5, 40.5]


def test_waiting_in_line_wakes_nobody_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    class CountingFrontier(crawl.Frontier):
        def put_nowait(self, node: crawl.Node) -> None:
            came.append(node)
            super().put_nowait(node)
    came: list[crawl.Node] = []
    monkeypatch.setattr(crawl, "Frontier", CountingFrontier)
    site: dict[str, Any] = pages(200) | {f"http://h/{number}": [(503, {}, "")] for number in range(1, 200)}
    _, asked = simulated("http://h/", site, robots=False, delay=1, max_pages=200)
    assert len(asked) == 1 + 199 * 3 and len(came) < 4 * len(asked)


def test_a_delay_once_read_holds_for_external_links_too() -> None:
    links = "".join(f"<a href=http://b/{number}>" for number in range(3))
    site: dict[str, Any] = {
        "http://s/": [(200, {"seconds": 2}, links)], "http://b/": "",
        "http://b/robots.txt": "User-agent: *\nCrawl-delay: 100"}
    _, client = simulated_crawl(["http://s/", "http://b/"], site, external=True, max_tasks=2)
    assert min(gaps([(moment, url) for moment, url in client.asked if url[:9] == "http://b/" and "robots" not in url])) == 100


def test_the_retry_after_of_robots_txt_counts() -> None:
    site: dict[str, Any] = pages(2) | {"http://h/robots.txt": [(503, {"retry-after": "60"}, ""), (200, {}, "")]}
    _, asked = simulated("http://h/", site)
    assert [round(moment) for moment, _ in asked] == [0, 60, 60, 60]
    site["http://h/robots.txt"] = [(429, {"retry-after": "60"}, "")]
    _, asked = simulated("http://h/", site)
    assert [round(moment) for moment, _ in asked] == [0, 60, 60]


def test_one_worker_closes_idle_connections_for_want_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = [5]
    monkeypatch.setattr(SimulatedClient, "idle", lambda self: idle[0])
    monkeypatch.setattr(SimulatedClient, "close", lambda self: idle.__setitem__(0, 0))
    site = {"http://h/": [OSError(errno.EMFILE, "Too many open files"), (200, {}, "")]}
    records, _ = simulated("http://h/", site, robots=False, max_tasks=1)
    assert (records["http://h/"].status, records["http://h/"].tries) == (200, 1)


# Callbacks

@pytest.mark.parametrize("kind", ["function", "coroutine", "generator"])
def test_on_page_gets_each_page_with_its_record_headers_and_body(site: Server, kind: str) -> None:
    pages: list[crawl.Page] = []

    async def later(page: crawl.Page) -> None:
        await sleep(0.001)
        pages.append(page)

    @crawl.coroutine
    def later_too(page: crawl.Page) -> Any:
        yield from sleep(0.001)
        pages.append(page)
    site.add("/", "<a href=/gone><a href=/image>", X_Word="yes")
    site.add("/image", b"\x89PNG", Content_Type="image/png")
    crawled(site.url, on_page={"coroutine": later, "generator": later_too, "function": pages.append}[kind])
    (page,) = pages
    assert page.body == b"<a href=/gone><a href=/image>" and page.headers["x-word"] == "yes"
    assert page.record.url == site.url + "/" and len(page.record.links) == 2


@pytest.mark.parametrize("callback", ["on_record", "on_page"])
def test_an_error_in_a_callback_ends_the_crawl_with_it_and_leaves_nothing(callback: str, site: Server) -> None:
    calls: list[Any] = []

    def fail(argument: Any) -> None:
        calls.append(argument)
        raise OSError("my disk")

    async def main() -> None:
        options: dict[str, Any] = {callback: fail}
        with pytest.raises(OSError, match="my disk"):
            await crawl.Crawler([site.url], robots=False, **options).crawl()
        assert get_running_loop().tasks == {crawl.current_task()}
        assert len(calls) == 1 or callback == "on_record"  # which gets what was cut off, too
    site.add("/", "<a href=/a><a href=/b>")
    crawl.run(main())


# The end

@pytest.mark.parametrize("tasks", [2, 9])
def test_a_stopped_crawl_finishes_what_is_in_flight_and_takes_nothing_new(tasks: int) -> None:
    client = SimulatedClient({
        "http://h/": "<a href=/slow><a href=/failing><a href=/slow2><a href=/queued>",
        "http://h/slow": [(200, {"seconds": 9}, "<a href=/new>")], "http://h/slow2": [(503, {"seconds": 8}, "")],
        "http://h/failing": [(503, {}, "")], "http://h/queued": ""})

    async def main() -> RecordingCrawler:
        crawler = RecordingCrawler(["http://h/"], max_tasks=tasks, robots=False)
        crawler.client = client  # type: ignore[assignment]
        task = create_task(crawler.crawl())
        await sleep(0.4)
        assert len(crawler.frontier.postponed()) == 1
        crawler.stop()
        await task
        await sleep(60)
        return crawler
    crawler = play(main())
    left = 1 if tasks > 2 else 2  # /new, and /queued unless there was somebody to fetch it
    assert crawler.skipped == {"the crawl was ended": left}
    fates = {"http://h/": "", "http://h/slow": "", "http://h/slow2": "not finished", "http://h/failing": "not finished"}
    asked = {"http://h/queued": ""} if tasks > 2 else {}
    assert {url: record.kind for url, record in crawler.records.items()} == fates | asked


def test_a_stopped_crawl_does_not_wait_for_turns() -> None:
    async def main() -> RecordingCrawler:
        crawler = RecordingCrawler(["http://h/"], robots=False, delay=100)
        crawler.client = SimulatedClient(pages(5))  # type: ignore[assignment]
        task = create_task(crawler.crawl())
        await sleep(50)
        assert len(crawler.frontier.postponed()) == 4
        crawler.stop()
        await task
        assert get_running_loop().time() == 50
        return crawler
    crawler = play(main())
    assert crawler.skipped == {"the crawl was ended": 4} and not any(site.line for site in crawler.sites.values())


def test_a_crawl_cancelled_before_it_asked_for_a_url_leaves_no_record_of_it(site: Server) -> None:
    records: list[crawl.Record] = []

    async def main() -> None:
        task = create_task(crawl.Crawler([site.url], on_record=records.append).crawl())
        while not site.requests:
            await sleep(0.001)
        task.cancel()
        with pytest.raises(CancelledError):
            await task
    site.answers["/robots.txt"] = silence
    crawl.run(main())
    assert site.requests == ["/robots.txt"] and records == []


@pytest.mark.parametrize("state", ["in flight", "between tries"])
def test_a_cancelled_crawl_says_what_was_not_finished(site: Server, state: str) -> None:
    records: list[crawl.Record] = []

    async def main() -> None:
        loop = get_running_loop()
        crawler = crawl.Crawler([site.url], on_record=records.append)
        task = create_task(crawler.crawl())
        while "/" not in site.requests or (state == "between tries" and not crawler.frontier.postponed()):
            await sleep(0.001)
        task.cancel()
        with pytest.raises(CancelledError):
            await task
        assert len(loop.tasks) == 1 and not crawler.frontier.postponed()
    if state == "in flight":
        site.answers["/"] = silence
    else:
        site.add("/", "", 503)
    crawl.run(main())
    assert [record.kind for record in records] == ["not finished"]


def test_a_crawl_cancelled_while_robots_txt_is_awaited_leaves_no_task(site: Server) -> None:
    async def main() -> None:
        task = create_task(crawl.Crawler([site.url]).crawl())
        while "/robots.txt" not in site.requests:
            await sleep(0.001)
        task.cancel()
        with pytest.raises(CancelledError):
            await task
        assert get_running_loop().tasks == {crawl.current_task()}
    site.answers["/robots.txt"] = silence
    crawl.run(main())


def test_a_crawl_cancelled_during_on_page_says_that_the_page_was_not_finished(site: Server) -> None:
    site.add("/")

    async def main() -> dict[str, crawl.Record]:
        begun = get_running_loop().create_future()

        async def for_ever(page: crawl.Page) -> None:
            begun.set_result(None)
            await get_running_loop().create_future()
        crawler = RecordingCrawler([site.url], on_page=for_ever)
        task = create_task(crawler.crawl())
        await begun
        task.cancel()
        with pytest.raises(CancelledError):
            await task
        return crawler.records
    assert crawl.run(main())[site.url + "/"].kind == "not finished"


def test_a_crawl_describes_what_it_waits_for(site: Server) -> None:
    site.add("/", "<a href=/silent>")
    site.answers["/silent"] = silence

    async def main() -> str:
        crawler = RecordingCrawler([site.url], timeout=9)
        task = create_task(crawler.crawl())
        while "/silent" not in site.requests:
            await sleep(0.001)
        described = crawler.describe()
        task.cancel()
        with contextlib.suppress(CancelledError):
            await task
        return described
    first, fetch, *stack = crawl.run(main()).splitlines()
    assert re.fullmatch(r"2 URLs asked for, 0 queued, 0 to be asked for later, 0 of \d+ connections idle", first)
    assert re.fullmatch(re.escape(site.url) + r"/silent: for 0\.\d s, [89]\.\d s left", fetch)
    assert "_work" in stack[0] and "in Crawler._fetch" in "".join(stack) and "in Stream._call" in "".join(stack)
    assert re.fullmatch(r"in ([0-9]|1[0-9]|20)\.\d s: <\w+ .*>", stack[-1])
    assert len([line for line in stack if re.fullmatch(r"in [89]\.\d s: <TimeLimit of 9 s>", line)]) == 1


# Going on after it

PIECES: dict[str, Any] = {
    "http://h/": "<a href=/a><a href=/old><a href=//else/><a href=/loop><a href=mailto:x><a href=/meta>",
    "http://h/a": "<a href=/b><a href=/gone><a href=/x%7Ey><a href=/flaky>",
    "http://h/b": "<a href=/a><a href=/deep><a href=/x>",
    "http://h/deep": "<a href=/deeper>", "http://h/deeper": "<a href=/deepest>",
    "http://h/old": [(301, {"location": "/older"}, "")], "http://h/older": to("/b"),
    "http://h/loop": to("/pool"), "http://h/pool": to("/loop"),
    "http://h/meta": "<meta name=robots content=nofollow><a href=/x><a href=/y>",
    "http://h/flaky": [(503, {}, ""), (200, {}, "")], "http://h/x%7Ey": [OSError(111, "Connection refused")],
    "http://else/": "",
    "http://h/robots.txt": "User-agent: *\nDisallow: /y"}


LINKED: dict[str, Any] = {"http://h/": "<a href=/a><a href=//else/>", "http://h/a": ""}


@pytest.mark.parametrize("roots, answers, options", [
    (["http://h/"], PIECES, {}), (["http://h/"], PIECES, {"max_tasks": 1}), (["http://h/"], PIECES, {"depth": 3}),
    (["http://h/"], PIECES, {"external": True}), (["http://h/"], PIECES, {"max_pages": 7, "max_tasks": 1}),
    (["h"], LINKED | REFUSED, {}), (["h:80"], LINKED | REFUSED, {}), (["h", "http://h/"], LINKED | REFUSED, {}),
    (["s", "r"], ADOPTED | REFUSED | {"http://s/": "<a href=http://r/><a href=http://b/x>"}, {}),
    (["r", "http://s/"], ADOPTED | REFUSED | {"http://s/": "<a href=http://b/x>"}, {}),
    (["s", "http://r/"], ADOPTED | REFUSED | {"http://s/": "<a href=http://b/x>"}, {}),
    (["http://r/"], ADOPTED, {"exclude": "b/"}), (["http://r/"], ADOPTED, {"exclude": "b/", "external": True}),
    (["http://s/", "r"], ADOPTED | REFUSED | {"http://s/": "<a href=https://r/>"}, {"max_tries": 1}),
    (["http://h/", "h"], LINKED | {"https://h/": "<a href=/secure>"}, {}),
    (["http://s/", "r"], ADOPTED | {"http://s/": "<a href=http://r/>", "https://r/": [
        (503, {"retry-after": "60"}, ""), (200, {}, "")]}, {}),
    (["h", "http://s/"], LINKED | REFUSED | {"http://s/": "<a href=https://h/>"}, {}),
    (["h", "http://s/"], LINKED | REFUSED | {"http://s/": [(200, {"seconds": 0.1}, "<a href=https://h/>")]}, {})])
def test_a_crawl_goes_on_from_any_prefix_of_its_records(
        roots: list[str], answers: dict[str, Any], options: dict[str, Any]) -> None:
    """Whatever the moment of a crash: the union has each URL once, as if nothing had happened."""
    async def main(before: list[crawl.Record]) -> tuple[list[crawl.Record], crawl.Crawler]:
        records: list[crawl.Record] = []
        crawler = crawl.Crawler(roots, on_record=records.append, **options)
        client: Any = SimulatedClient({url: answer[:] for url, answer in answers.items()})
        crawler.client = client
        done = [record for record in before if crawler.replay(record)]
        assert [record for record in before if not record.skipped] == done and not records
        await crawler.crawl()
        return before + records, crawler

    def meaning(records: list[crawl.Record]) -> list[tuple[Any, ...]]:
        return sorted((record.url, record.status, record.skipped, record.kind,
                       record.depth if options.get("max_tasks") else 0, record.links) for record in records)
    whole, crawler = play(main([]))
    assert len(whole) > 1
    for length in range(len(whole) + 1):
        union, again = play(main(whole[:length]))
        assert meaning(union) == meaning(whole), length
        assert +again.skipped == +crawler.skipped and again.num_fetched == crawler.num_fetched


def test_what_an_earlier_crawl_fetched_is_not_counted_as_left() -> None:
    async def main() -> tuple[int, dict[str, int]]:
        crawler = crawl.Crawler(["http://h/"])
        for number in range(9):
            crawler.replay(crawl.Record(f"http://h/{number}", 200, links=("http://h/x", "http://h/y")))
        crawler.stop()
        await crawler.crawl()
        return crawler.num_fetched, dict(crawler.skipped)
    assert play(main()) == (9, {"the crawl was ended": 3})


def test_urls_that_were_not_finished_are_fetched_again() -> None:
    async def main() -> tuple[bool, bool]:
        crawler = crawl.Crawler(["http://h/"])
        return (crawler.replay(crawl.Record("http://h/", kind="not finished")),
                crawler.replay(crawl.Record("http://h/", 200)))
    assert crawl.run(main()) == (False, True)


def test_a_record_whose_parent_is_unknown_keeps_its_depth() -> None:
    async def main() -> tuple[int, int]:
        crawler = crawl.Crawler(["http://h/"], depth=5)
        crawler.replay(crawl.Record("http://h/x", 200, depth=4, parent="http://h/lost", links=("http://h/y",)))
        crawler.replay(crawl.Record("http://h/go", 301, depth=1, parent="http://h/lost", next_url="http://more/"))
        crawler.replay(crawl.Record("http://h/deep", skipped="depth", parent="http://h/lost"))
        assert crawler.rejected["http://h/deep"] == "depth"
        return crawler.seen_urls["http://h/y"].depth, len(crawler.scope.hosts)
    assert crawl.run(main()) == (5, 1)


def test_a_reference_that_is_no_url_is_none_of_a_resumed_crawl_either(site: Server) -> None:
    real = f"{site.url}/" + "y" * (200 - len(site.url) - 1)
    links = f"<a href={site.url}/\u200d\ud800><a href={real}{'y' * 9000}><a href='http://h\u200d/'><a href={real}>"
    site.add("/", links.encode("utf-8", "ignore"))
    records: list[crawl.Record] = []

    async def main() -> tuple[int, int]:
        crawler = crawl.Crawler([site.url], on_record=records.append)
        await crawler.crawl()
        again = crawl.Crawler([site.url], on_record=records.append)
        for record in list(records):
            again.replay(record)
        await again.crawl()
        return crawler.skipped.total(), again.skipped.total()
    assert crawl.run(main()) == (2, 2)
    assert len({record.url for record in records if record.status == 404}) == len(records) - 3
    assert real in [record.url for record in records if record.status]


def test_an_interrupted_crawl_does_not_judge_redirects_that_a_link_may_yet_renew() -> None:
    answers: dict[str, Any] = {"http://h/": "<a href=/0><a href=/slow>", "http://h/3": "",
                               "http://h/slow": [(200, {"seconds": 9}, "<a href=/2>")]}
    for number in range(3):
        answers[f"http://h/{number}"] = to(f"/{number + 1}")

    async def main(before: list[crawl.Record], cut: str) -> list[crawl.Record]:
        records: list[crawl.Record] = []
        crawler = crawl.Crawler(["http://h/"], robots=False, max_redirect=2)
        crawler.client = SimulatedClient(answers)  # type: ignore[assignment]
        done = [record for record in before if crawler.replay(record)]
        crawler.on_record = records.append
        task = create_task(crawler.crawl())
        if cut:
            await sleep(5)
            if cut == "off":
                task.cancel()
            else:
                crawler.stop()
        with contextlib.suppress(CancelledError):
            await task
        return done + records
    for cut, unfinished in (("off", {"http://h/2", "http://h/slow"}), ("short", {"http://h/2"})):
        first = play(main([], cut))
        assert {record.url for record in first if record.kind == "not finished"} == unfinished
        assert {record.url: record.kind for record in play(main(first, ""))} == {
            f"http://h/{page}": "" for page in ("", "0", "1", "2", "3", "slow")}


# Asking why

@pytest.mark.parametrize("url, reason", [
    ("/x", ""), ("/private/x", "robots.txt: Disallow: /private/"), ("http://other.test/", "other host"),
    ("ftp://h/", "'ftp': only http and https URLs can be fetched"), ("/x.pdf", "excluded"),
    ("other.test", "other host"), ("/root.pdf", "")])
def test_why_answers_without_a_crawl(site: Server, url: str, reason: str) -> None:
    async def main() -> str:
        crawler = crawl.Crawler([site.url + "/root.pdf"], exclude="pdf$")
        return await crawler.why(site.url + url if url[0] == "/" else url)
    site.add("/robots.txt", "User-agent: *\nDisallow: /private/", 200)
    assert crawl.run(main()) == reason
    assert set(site.requests) <= {"/robots.txt"}


def test_without_robots_why_asks_for_nothing(site: Server) -> None:
    async def main() -> str:
        crawler = crawl.Crawler([site.url], robots=False, external=True)
        return await crawler.why(site.url + "/x") + await crawler.why("http://other.test/")
    assert crawl.run(main()) == "" and site.requests == []


# Everything at once

@pytest.mark.parametrize("how", ["FIN", "RST"])
@pytest.mark.parametrize("tls", [False, True])
def test_an_answer_cut_after_any_byte_is_one_record(how: str, tls: bool, site: Server, tls_site: Server) -> None:
    server, answer = tls_site if tls else site, with_body(b"hello")

    def cut(size: int) -> Callable[[socket.socket], None]:
        def play_it(connection: socket.socket) -> None:
            connection.sendall(answer[:size])
            if how == "RST":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            connection.close()
        return play_it
    for size in range(len(answer)):
        server.answers[f"/{size}"] = cut(size)
    server.add("/", "".join(f"<a href=/{size}>" for size in range(len(answer))))
    records, _ = crawled(server.url, max_tries=1)
    assert len(records) == len(answer) + 1
    assert all(record.kind in ("broken", "refused") for url, record in records.items() if url != server.url + "/")


@pytest.mark.parametrize("owner, call", [
    *[(socket.socket, call) for call in ("connect", "send", "recv", "getsockopt", "setsockopt", "setblocking", "__init__")],
    (selectors.DefaultSelector, "register")])
def test_a_system_call_may_fail_with_anything(
        owner: Any, call: str, site: Server, impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def ours(self: Any, *arguments: Any) -> bool:
        """Return whether this is no socket of the loop's own, by which it is woken."""
        if owner is selectors.DefaultSelector:
            return isinstance(arguments[0], int)
        return (arguments[0] if call == "__init__" else self.family) in (socket.AF_INET, socket.AF_INET6)
    site.add("/", "<a href=/a><a href=/b>")
    site.add("/a")
    site.add("/b")
    original = getattr(owner, call)
    for code in (errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT, errno.EHOSTUNREACH,
                 errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM,
                 errno.ENOSPC, errno.EACCES, errno.EPERM, errno.EIO):
        for which in (1, 2, 3):
            calls = 0

            def failing(self: Any, *arguments: Any, **options: Any) -> Any:
                nonlocal calls
                if threading.current_thread() is threading.main_thread() and ours(self, *arguments):
                    calls += 1
                    if calls == which:
                        raise OSError(code, os.strerror(code))
                return original(self, *arguments, **options)
            with monkeypatch.context() as patch:
                patch.setattr(owner, call, failing)
                records, _ = crawled(site.url, max_tries=2)
            assert set(records) == {site.url + path for path in ("/", "/a", "/b")}
            assert all(record.kind in ("", "refused", "timed out") for record in records.values())
            assert calls >= which or which > 1


@pytest.mark.parametrize("tls", [False, True])
def test_a_crawl_cancelled_at_any_step_can_be_resumed(tls: bool, site: Server, tls_site: Server, impatient: None) -> None:
    """Redirected, retried, chunked, kept alive: nothing is left behind, and no URL is lost."""
    server = tls_site if tls else site
    failed: set[int] = set()
    run = 0

    def flaky(connection: socket.socket) -> None:
        again = run in failed
        failed.add(run)
        connection.sendall(with_body(b"", b"Content-Type: text/plain") if again else
                           b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")
    server.add("/", "<a href=/old><a href=/flaky><a href=/chunked><a href=//other.test/>")
    server.add_redirect("/old", "/older")
    server.add_redirect("/older", "/chunked")
    server.answers["/flaky"] = flaky
    server.answers["/chunked"] = (OK + b"Content-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n"
                                  b"9\r\n<a href=/\r\n2\r\n>x\r\n0\r\n\r\n")

    async def main(at: int, before: list[crawl.Record]) -> tuple[list[crawl.Record], bool]:
        records: list[crawl.Record] = []
        loop = get_running_loop()
        crawler = crawl.Crawler([server.url], max_tasks=2)
        kept = [record for record in before if crawler.replay(record) or record.skipped]
        crawler.on_record = records.append
        task = create_task(crawler.crawl())
        loop.then, loop.at = task.cancel, at  # type: ignore[attr-defined]
        with contextlib.suppress(CancelledError):
            await task
        while len(loop.tasks) > 1:  # a lookup, which others may be waiting for
            await sleep(0)
        assert loop._watched == 0 and all(entry.obsolete() for _, _, entry in loop._timeouts)
        return kept + records, task.cancelled()

    def fates(records: list[crawl.Record]) -> list[tuple[str, int, str]]:
        return sorted((record.url, record.status, record.skipped) for record in records)
    whole = fates(crawl.run(main(0, []), loop_factory=CountingLoop)[0])
    assert len(whole) == 6
    cancelled = True
    while cancelled:
        run += 1
        records, cancelled = crawl.run(main(run, []), loop_factory=CountingLoop)
        failed.discard(run)
        if fates(records) != whole:
            union, _ = crawl.run(main(0, records), loop_factory=CountingLoop)
            assert fates(union) == whole, run
    assert run > 10


@pytest.mark.soak
def test_two_hundred_thousand_pages_leave_no_trace(site: Server) -> None:
    """A thousand pages two hundred times over in one process: memory and descriptors stay what they are."""
    links = "".join(f"<a href=/{number}>" for number in range(1000))
    site.add("/", links)
    for number in range(1000):
        site.add(f"/{number}", "<a href=/>" * 50)
    used: list[tuple[int, int]] = []

    async def main() -> None:
        for turn in range(200):
            crawler = crawl.Crawler([site.url])
            await crawler.crawl()
            assert crawler.num_fetched == 1001
            status = pathlib.Path("/proc/self/statm").read_text().split()
            used.append((int(status[1]) * 4096, len(os.listdir("/proc/self/fd"))))
            if turn % 20 == 0:
                print(f"{(turn + 1) * 1001} pages, {used[-1][0] / 1e6:.1f} MB, {used[-1][1]} descriptors")
            site.requests.clear()
            site.heads.clear()
            site.open = {connection for connection in site.open if connection.fileno() >= 0}
            site.threads = [thread for thread in site.threads if thread.is_alive()]
    crawl.run(main())
    assert max(memory for memory, _ in used) < used[20][0] * 1.1
    assert max(files for _, files in used[20:]) <= used[20][1] + 20


# 14  Report
# ==========

def command(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run crawl.py as a user does."""
    return subprocess.run([sys.executable, str(HERE / "crawl.py"), *arguments], capture_output=True,
                          text=True, timeout=60, **options)


def said(*arguments: str) -> tuple[int, str, str]:
    """Run main; return its status and what it wrote to stdout and stderr."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = crawl.main(list(arguments))
    return status, out.getvalue(), err.getvalue()


def in_terminal(*arguments: str, columns: int = 80, stream: str = "stdout") -> str:
    """Run main with stdout (or stderr) on a pseudo-terminal; return what that shows."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    shown = []

    def watch() -> None:
        with contextlib.suppress(OSError):  # EIO is how a terminal ends
            while True:
                shown.append(os.read(ours, 65536))
    watcher = threading.Thread(target=watch)
    watcher.start()
    with open(theirs, "w") as terminal, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", io.StringIO())
        patch.setattr(sys, "stderr", io.StringIO())
        patch.setattr(sys, stream, terminal)
        crawl.main(list(arguments))
    watcher.join()
    os.close(ours)
    return b"".join(shown).decode().replace("\r\n", "\n")


def broken_site(site: Server) -> None:
    """A page that is broken and linked from six, a forbidden one, and redirects."""
    site.add("/", "<a href=/a><a href=/secret><a href=/moved><a href=/found><a href=http://other.test/>")
    site.add("/a", "".join(f"<a href=/a{number}>" for number in range(6)) + "<a href=/rare>")
    for number in range(6):
        site.add(f"/a{number}", "<a href=/gone><a href=/moved>")
    site.add("/secret", "", 403)
    site.add_redirect("/moved", "/moved2", 301)
    site.add_redirect("/moved2", "/missing", 308)
    site.add_redirect("/found", "/")


def test_the_journal_has_a_line_for_each_url(site: Server, tmp_path: pathlib.Path) -> None:
    site.add("/", "<a href=/gone>")
    journal = tmp_path / "site.jsonl"
    crawl.main(["-q", "-o", str(journal), site.url])
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [line["url"] for line in lines] == [site.url + "/", site.url + "/gone"]
    assert lines[0]["links"] == [site.url + "/gone"] and "error" not in lines[0]
    assert (lines[1]["status"], lines[1]["parent"], lines[1]["depth"]) == (404, site.url + "/", 1)


def test_a_journal_gives_back_what_was_written(tmp_path: pathlib.Path) -> None:
    records = [crawl.Record("http://h/", 200, links=("http://h/\\x", "http://h/b"), seconds=0.5, insecure=True),
               crawl.Record("mailto:x", skipped="no http or https URL", parent="http://h/")]
    path = str(tmp_path / "journal")
    for record in records:
        with contextlib.closing(crawl.Journal(path)) as journal:
            list(journal.read())
            journal.write(record)
    with contextlib.closing(crawl.Journal(path)) as journal:
        assert list(journal.read()) == records
    assert os.stat(path).st_mode & 0o111 == 0


@pytest.mark.parametrize("line", ['{"status": 200, "url": "http://h/"}', '{"url": "http://h/", "status": 200}'])
def test_a_last_line_that_lacks_nothing_but_its_end_gets_one(line: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "journal"
    path.write_text(line)
    journal = crawl.Journal(str(path))
    assert list(journal.read()) == [crawl.Record("http://h/", 200)]
    journal.write(crawl.Record("http://h/x"))
    journal.close()
    assert [json.loads(line)["url"] for line in path.read_text().splitlines()] == ["http://h/", "http://h/x"]


def test_ctrl_c_while_the_journal_is_read_ends_the_program_at_once(
        tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: crawl.Journal) -> Iterator[crawl.Record]:
        os.kill(os.getpid(), signal.SIGINT)
        read_on.append(1)
        yield crawl.Record("http://h/")
    read_on: list[int] = []
    monkeypatch.setattr(crawl.Journal, "read", read)
    assert said("-o", str(tmp_path / "journal"), "http://h/")[0] == 130 and not read_on


def test_a_torn_last_line_is_dropped_wherever_it_was_torn(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "journal"
    whole = b'{"url": "http://h/", "status": 200}\n'
    for torn in [whole[:size] for size in range(len(whole) - 1)] + [whole[:9] + b"\0" * 100, b"\0" * 100]:
        path.write_bytes(whole + torn)
        with contextlib.closing(crawl.Journal(str(path))) as journal:
            assert list(journal.read()) == [crawl.Record("http://h/", 200)]
            journal.write(crawl.Record("http://h/2"))
        assert path.read_bytes() == whole + b'{"url": "http://h/2"}\n'


@pytest.mark.parametrize("text", [
    "notes", "notes\n", "{}\n", "[]\n", "7\n", '{"url": 7}\n', '{"url": "http://h/", "links": [7]}\n',
    "[" * 100_000 + "\n",
    '{"url": "http://h/", "links": 7}\n', '{"url": "http://h/", "unknown": 7}\n',
    '{"url": "http://h/", "status": "200"}\n',
    '{"url": "ftp://h/"}\n', '{"url": "http://h/", "links": ["x"]}\n', "\n", '{"url"\n{"url": "http://h/"}\n',
    "\x00\n"])
def test_what_is_no_journal_is_refused_and_left_as_it_is(
        text: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    assert crawl.main(["-o", str(path), "http://h.invalid/"]) == 2
    assert re.search("is no journal of a crawl: .", capsys.readouterr().err) and path.read_text() == text


def test_a_journal_without_an_answer_for_the_only_root_is_one_line(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "journal"
    path.write_text('{"url": "http://h/"}\n')
    status, out, err = said("-o", str(path), "http://h/")
    assert (status, out) == (2, "") and "nothing could be crawled: the journal has no answer" in err


def test_the_line_that_is_no_record_is_named(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "journal"
    path.write_text('{"url": "http://h/"}\n{"url": 7}\n')
    assert "line 2: a field of another type was expected" in said("-o", str(path), "http://h/")[2]


def test_zeros_that_a_power_cut_left_at_the_end_are_dropped(site: Server, tmp_path: pathlib.Path) -> None:
    site.add("/")
    path = tmp_path / "journal"
    path.write_bytes(b'{"url": "http://h/x", "skipped": "other host"}\n' + bytes(100))
    assert said("-o", str(path), site.url)[0] == 0
    assert [json.loads(line)["url"] for line in path.read_text().splitlines()] == ["http://h/x", site.url + "/"]


def test_a_mutated_journal_is_read_or_refused(tmp_path: pathlib.Path) -> None:
    rng, path = random.Random(4), tmp_path / "journal"
    line = b'{"url": "http://h/", "status": 301, "next_url": "http://h/b", "links": ["http://h/a"], "seconds": 0.1}\n'

    async def main() -> None:
        for _ in range(ROUNDS // 10):  # each of which opens, locks and closes a file
            text = bytearray(line * 2)
            for _ in range(rng.randrange(1, 4)):
                text[rng.randrange(len(text))] = rng.choice(b'{}[]",:0\\\n\xff tnull')
            path.write_bytes(text)
            crawler = crawl.Crawler(["http://h/"])
            with contextlib.closing(crawl.Journal(str(path))) as journal, contextlib.suppress(ValueError):
                for record in journal.read():
                    crawler.replay(record)
    crawl.run(main())


def test_a_journal_may_spell_urls_as_people_do(site: Server, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "journal"
    path.write_text('{"url": "%s/./a", "status": 404, "error": "404 Gone", "kind": "broken"}\n' % site.url.upper())
    site.add("/", "<a href=/a>")
    status, out, _ = said("-o", str(path), site.url)
    assert status == 1 and "404 Gone" in out and "/a" not in site.requests


def test_a_journal_that_jq_has_rewritten_is_one_still(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "journal"
    path.write_text('{"url":"http://h/","seconds":2}\n')
    with contextlib.closing(crawl.Journal(str(path))) as journal:
        assert list(journal.read()) == [crawl.Record("http://h/", seconds=2.0)]


def test_two_crawls_may_throw_their_journals_away_together() -> None:
    with contextlib.closing(crawl.Journal("/dev/null")), contextlib.closing(crawl.Journal("/dev/null")) as journal:
        journal.write(crawl.Record("http://h/"))
        assert list(journal.read()) == []


def test_of_a_line_that_the_disk_cannot_take_whole_nothing_is_left(
        tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write = tmp_path / "journal", os.write
    journal = crawl.Journal(str(path))
    journal.write(crawl.Record("http://h/1"))

    def half(file: int, data: bytes) -> int:
        if len(data) < 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data[:9])
    monkeypatch.setattr(os, "write", half)
    with contextlib.closing(journal), pytest.raises(crawl.CrawlError, match="cannot be written: No space"):
        journal.write(crawl.Record("http://h/2"))
    assert path.read_bytes() == b'{"url": "http://h/1"}\n'


def test_two_crawls_cannot_use_one_journal(site: Server, tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "journal")
    with contextlib.closing(crawl.Journal(path)):
        done = command("-o", path, site.url)
    assert (done.returncode, done.stdout) == (2, "") and "another crawl writes there" in done.stderr


def test_a_full_disk_leaves_a_journal_that_resumes(site: Server, tmp_path: pathlib.Path) -> None:
    def small() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900))
    site.add("/", "<a href=/a><a href=/b><a href=/c>")
    for name in "abc":
        site.add(f"/{name}", "<a href=/>" + "".join(f"<a href=//other.test/{name}{number}>" for number in range(3)))
    path = tmp_path / "journal"
    done = command("-o", str(path), site.url, preexec_fn=small)
    assert done.returncode == 2 and "cannot be written: File too large" in done.stderr and done.stderr.count("\n") == 1
    lines = path.read_text().splitlines(keepends=True)
    assert 0 < len(lines) < 13 and all(json.loads(line) for line in lines) and lines[-1].endswith("\n")
    assert command("-o", str(path), site.url).returncode == 0
    urls = [json.loads(line)["url"] for line in path.read_text().splitlines()]
    assert len(urls) == len(set(urls)) == 13


def test_a_pipe_takes_a_journal_too(site: Server, tmp_path: pathlib.Path) -> None:
    site.add("/")
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    assert crawl.main(["-q", "-o", str(path), site.url]) == 0
    assert json.loads(os.read(reader, 65536))["url"] == site.url + "/"
    os.close(reader)


def test_a_pipe_whose_reader_has_left_ends_the_crawl(site: Server, tmp_path: pathlib.Path) -> None:
    site.add("/", "".join(f"<a href=/{number}>" for number in range(100)))
    path = tmp_path / "pipe"
    os.mkfifo(path)
    lines: list[str] = []

    def read_one() -> None:
        with open(path) as reader:
            lines.append(reader.readline())
    reader = threading.Thread(target=read_one)
    reader.start()
    done = command("-o", str(path), site.url)
    reader.join()
    assert len(lines) == 1 and (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_a_journal_on_stdout_leaves_the_report_to_stderr(site: Server) -> None:
    site.add("/", "<a href=/gone>")
    done = command("-o", "-", site.url)
    assert [json.loads(line)["status"] for line in done.stdout.splitlines()] == [200, 404]
    assert done.returncode == 1 and done.stderr.startswith("broken (1)\n")


def test_a_reader_that_leaves_ends_the_crawl_quietly(site: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    site.add("/", "".join(f"<a href=/{number}>" for number in range(100)))
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, str(HERE / "crawl.py"), "-o", "-", site.url],
                          stdout=writer, stderr=subprocess.PIPE)
    assert done.returncode == 1 and done.stderr == b"" and len(site.requests) < 20
    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", lambda _: writer)
        journal = crawl.Journal("-")
    with contextlib.closing(journal), pytest.raises(BrokenPipeError):
        journal.write(crawl.Record("http://h/"))


def test_the_same_command_again_goes_on(site: Server, tmp_path: pathlib.Path) -> None:
    site.add("/", "<a href=/a><a href=/gone>")
    site.add("/a", "<a href=/gone><a href=/new>" + "<a href=/gone>" * 3)
    path = str(tmp_path / "journal")
    _, first, _ = said("-o", path, "--max-pages", "3", site.url)
    site.add("/new")
    status, second, _ = said("-o", path, site.url)
    assert site.requests.count("/a") == 1 and status == 1
    assert second.splitlines()[:4] == first.splitlines()[:4] and f"linked from {site.url}/, {site.url}/a" in second
    assert ", 3 URLs done before" in second and "done before" not in first
    assert re.search(r"\n3 pages, .* s, \d+ URLs/s, 1 problem, 1 connection, 3 URLs", second)
    assert re.search(r"\n3 pages, .* s, 0 URLs/s, 1 problem, 0 connections, 4 URLs", said("-o", path, site.url)[1])


def killed_and_resumed(site: Server, path: pathlib.Path, points: list[int]) -> None:
    """Crawl with kill -9 at the given numbers of requests, then to the end, and compare."""
    killed = threading.Event()

    def page(number: int) -> Callable[[socket.socket], None]:
        links = "".join(f"<a href=/{(number * 3 + step) % 300}>" for step in range(4)) + f"<a href=//other.test/{number}>"
        body = with_body(links.encode(), b"Content-Type: text/html")

        def answer(connection: socket.socket) -> None:
            if process is not None and len(site.requests) >= stop_at:
                process.kill()
                killed.set()
            connection.sendall(body)
        return answer
    for number in range(300):
        site.answers[f"/{number}"] = page(number)
    before: set[str] = set()
    process: subprocess.Popen[bytes] | None = None
    for point in [*points, 10 ** 9]:
        stop_at = len(site.requests) + point
        name = f"number-{len(site.heads)}"  # what a dead one had sent may still be on its way
        process = subprocess.Popen([sys.executable, str(HERE / "crawl.py"), "-q", "-o", str(path), site.url + "/0",
                                    "--user-agent", name])
        process.wait()
        requested = [head.split(" ")[1] for head in site.heads if name in head and "/robots.txt" not in head]
        assert len(requested) == len(set(requested)) and not before & set(requested), "fetched twice"
        lines = path.read_bytes().split(b"\n")[:-1]
        records = [json.loads(line) for line in lines]
        before = {record["url"].removeprefix(site.url) for record in records if "skipped" not in record}
        assert len(set(requested) - before) <= 10, "more than what was in flight was lost"
    assert process and process.returncode == 0
    urls = [record["url"] for record in records]
    assert len(urls) == len(set(urls)) == 600
    assert {record["url"].removeprefix(site.url): record["links"] for record in records if "links" in record} == {
        f"/{number}": [f"{site.url}/{(number * 3 + step) % 300}" for step in range(4)] for number in range(300)}


def test_a_crawl_survives_kill_9(site: Server, tmp_path: pathlib.Path) -> None:
    killed_and_resumed(site, tmp_path / "journal", [1, 7, 40, 90])


@pytest.mark.soak
def test_a_crawl_survives_kill_9_at_a_hundred_random_points(site: Server, tmp_path: pathlib.Path) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    for run in range(20):
        killed_and_resumed(site, tmp_path / f"journal{run}", [rng.randrange(1, 100) for _ in range(5)])


def test_the_report_says_what_is_broken_and_where_the_links_to_it_stand(site: Server) -> None:
    broken_site(site)
    site.add("/a5", "x" * 1_250_000)
    status, out, err = said(site.url, "--max-tasks", "1")
    assert status == 1 and err == ""
    assert out.replace(site.url, "").splitlines()[:-3] == [
        "broken (3)",
        "  /gone", "    404 Not Found", "    linked from /a0, /a1, /a2 and 2 more", "    path / > /a > /a0 > /gone",
        "  /rare", "    404 Not Found", "    linked from /a", "    path / > /a > /rare",
        "  /missing", "    404 Not Found", "    redirected from /moved2", "    path / > /moved > /moved2 > /missing",
        "blocked (1)", "  /secret", "    403 Words", "    linked from /",
        "redirects worth updating (1)", "  /moved", "    301 to /moved2", "    linked from /, /a0, /a1 and 3 more"]
    numbers, statuses, reasons = out.splitlines()[-3:]
    assert re.fullmatch(r"8 pages, 1\.3 MB in \d\.\d s, \d+ URLs/s, 4 problems, 1 connection", numbers)
    assert (statuses, reasons) == ("statuses: 8 x 200, 1 x 301, 1 x 302, 1 x 308, 1 x 403, 3 x 404",
                                   "not fetched: 1 (other host)")


@pytest.mark.parametrize("status, outdated", [(301, True), (302, False), (303, False), (307, False), (308, True)])
def test_links_to_permanent_redirects_are_worth_updating(status: int, outdated: bool, site: Server) -> None:
    site.add("/", "<a href=/moved>")
    site.add_redirect("/moved", "/", status)
    assert ("redirects worth updating (1)" in said(site.url)[1]) == outdated


def test_the_quiet_report_holds_the_problems_only(site: Server) -> None:
    broken_site(site)
    _, shown, _ = said(site.url, "-q")
    assert shown.startswith("broken (3)") and "redirects worth" not in shown and "statuses" not in shown


def test_a_terminal_gets_colours_and_a_narrow_one_shorter_lines(
        site: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_site(site)
    monkeypatch.delenv("NO_COLOR", raising=False)
    wide, narrow = [in_terminal(site.url, "--max-tasks", "1", columns=columns) for columns in (300, 50)]
    assert "\x1b[1;31mbroken (3)\x1b[0m\n" in wide and "\x1b[1;33mredirects worth updating (1)\x1b[0m" in wide
    assert "/a0," in wide and f"    linked from\n      {site.url}/a0\n" in narrow and " and 3 more\n" in narrow
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in in_terminal(site.url, columns=300)
    assert "\x1b" not in said(site.url)[1]


def test_a_list_that_is_too_wide_has_a_line_for_each_item() -> None:
    def listing(columns: int) -> list[str]:
        return list(crawl._listing("linked from", ["first", "second", "third"], columns, " and 7 more"))
    line = "    linked from first, second, third and 7 more"
    assert listing(0) == listing(len(line)) == [line]
    assert listing(len(line) - 1) == ["    linked from", "      first", "      second", "      third and 7 more"]
    assert list(crawl._listing("linked from", ["first"], 9)) == ["    linked from first"]


def test_the_numbers_are_of_this_crawl_and_of_the_one_before() -> None:
    async def main() -> str:
        report, out = crawl.Report(), io.StringIO()
        for number, status in enumerate((200, 200, 299, 300, 404, 0)):
            report.add(crawl.Record(f"http://h/{number}", status, size=250_000), old=number < 4)
        report.print(crawl.Crawler(["http://h/"]), 0.5, out)
        return out.getvalue()
    assert crawl.run(main()) == (
        "3 pages, 1.5 MB in 0.5 s, 4 URLs/s, 0 problems, 0 connections, 4 URLs done before\n"
        "statuses: 1 x no answer, 2 x 200, 1 x 299, 1 x 300, 1 x 404\n")


def test_a_fourth_page_with_the_link_is_one_more(site: Server) -> None:
    site.add("/", "<a href=/1><a href=/2><a href=/3><a href=/gone>")
    for number in (1, 2, 3):
        site.add(f"/{number}", "<a href=/gone>")
    assert f"linked from {site.url}/, {site.url}/1, {site.url}/2 and 1 more\n" in said(site.url, "--max-tasks", "1")[1]


def test_a_long_click_path_is_cut_in_its_middle(site: Server) -> None:
    for number in range(15):
        site.add(f"/{number}", f"<a href=/{number + 1}>")
    path, = [line for line in said(f"{site.url}/0")[1].replace(site.url, "").splitlines() if "path" in line]
    assert path == "    path /0 > /1 > /2 > /3 > ... > /12 > /13 > /14 > /15"
    path, = [line for line in said(f"{site.url}/4")[1].replace(site.url, "").splitlines() if "path" in line]
    assert path == "    path " + " > ".join(f"/{number}" for number in range(4, 16))


def test_a_broken_root_names_the_pages_that_link_to_it(site: Server) -> None:
    site.add("/a", "<a href=/gone>")
    lines = said(f"{site.url}/gone", f"{site.url}/a")[1].splitlines()
    assert lines[:4] == ["broken (1)", f"  {site.url}/gone", "    404 Not Found", f"    linked from {site.url}/a"]


def test_reasons_are_listed_up_to_a_number(site: Server) -> None:
    site.add("/robots.txt", "User-agent: *\n" + "".join(f"Disallow: /{number}\n" for number in range(10, 40)), 200)
    site.add("/", "".join(f"<a href=/{number}>" for number in range(10, 40)))
    lines = [line for line in said(site.url)[1].splitlines() if line.startswith("not fetched")]
    assert not any("other reasons" in line for line in said(site.url, "--no-robots")[1].splitlines())
    assert len(lines) == crawl.MAX_REASONS + 1 and lines[-1] == "not fetched: 10 (other reasons)"


def test_a_server_cannot_write_to_the_terminal(site: Server, capsys: pytest.CaptureFixture[str]) -> None:
    site.answers["/"] = b"HTTP/1.1 500 \x1b[31mred\x1b[0m\xc3\r\nContent-Length: 0\r\n\r\n"
    assert crawl.main([site.url, "--max-tries", "1", "-v"]) == 1
    printed = "".join(capsys.readouterr())
    assert "\x1b" not in printed and r"\x1b[31mred\x1b[0m" in printed


# 15  Command line
# ================

def test_all_is_well_is_status_0(site: Server, capsys: pytest.CaptureFixture[str]) -> None:
    site.add("/")
    assert crawl.main([site.url]) == 0
    assert "1 page, " in capsys.readouterr().out
    assert crawl.main(["-q", site.url]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_note_about_the_root_is_in_the_report(site: Server, capsys: pytest.CaptureFixture[str]) -> None:
    site.add("/")
    assert crawl.main([f"localhost:{site.port}", "-v"]) == 0
    printed = capsys.readouterr()
    assert "http is tried" in printed.out
    assert printed.err == (f"https://localhost:{site.port}/ not fetched: https cannot be reached\n"
                           f"{site.url}/ 200\n")


@pytest.mark.parametrize("arguments, complaint", [
    (["http://no.such.host.invalid"], "nothing could be crawled: "), (["http://[x"], "not an IPv6 address"),
    (["ftp://h/"], "only http and https"), (["-o", "/no/such/folder/x", "h"], "No such file"),
    (["--exclude", "(", "h"], "missing"),
    (["--max-tries", "1", "http://127.0.0.1:1/" + "a" * 300], "Connection refused"),
    (["-o", "/dev/full", "h.invalid"], "No space left"), (["--include", "a{99999999999999999999}", "h"], "too large"),
    (["--exclude", "(" * 3000, "h"], "recursion"),
    (["--user-agent", "a\nb", "h"], "header"), (["-H", "host: x", "h"], "'Host: x'")])
def test_what_cannot_be_crawled_is_status_2_and_one_line(
        arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert crawl.main(arguments) == 2
    printed = capsys.readouterr()
    assert complaint in printed.err and printed.err.count("\n") == 1 and printed.out == ""


def test_a_root_that_robots_forbid_is_status_2(site: Server, capsys: pytest.CaptureFixture[str]) -> None:
    site.add("/robots.txt", "User-agent: *\nDisallow: /", 200)
    assert crawl.main([site.url]) == 2
    assert "nothing could be crawled: robots.txt: Disallow: /" in capsys.readouterr().err


@pytest.mark.parametrize("option, name, value", [
    ("--depth=7", "depth", 7), ("--max-pages=7", "max_pages", 7), ("--include=7", "include", "7"),
    ("--exclude=7", "exclude", "7"),
    ("--subdomains", "subdomains", True), ("--external", "external", True), ("--no-robots", "robots", False),
    ("--max-tasks=7", "max_tasks", 7), ("--max-redirect=0", "max_redirect", 0), ("--max-tries=7", "max_tries", 7),
    ("--max-body=7", "max_body", 7), ("--timeout=0.7", "timeout", 0.7),
    ("--delay=0.00", "delay", 0.0), ("--delay=3", "delay", 3.0),
    ("--delay=0.7", "delay", 0.7), ("-HX:7", "headers", {"User-Agent": crawl.USER_AGENT, "X": "7"}),
    ("--user-agent=7", "headers", {"User-Agent": "7"})])
def test_an_option_reaches_the_crawler_and_the_others_keep_their_defaults(
        option: str, name: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def crawler(roots: list[str], **options: Any) -> None:
        given.update(options)
        raise crawl.CrawlError("seen enough")
    defaults = {**(crawl.Crawler.__init__.__kwdefaults__ or {}), "headers": {"User-Agent": crawl.USER_AGENT}}
    monkeypatch.setattr(crawl, "Crawler", crawler)
    assert said("h", option, "other") == (2, "", "crawl.py: seen enough\n")
    assert given == defaults | {name: value}


def test_a_crawl_of_no_pages_is_status_2(site: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert crawl.main([site.url, "--max-pages", "0", "--delay", "0"]) == 2
    assert "nothing could be crawled: page limit" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--max-tasks", "x", "h"], ["--max-tasks", "-1", "h"], ["--timeout", "0", "h"],
                                       ["--timeout", "1e3", "h"], ["--timeout", ".7", "h"], ["--nonsense", "h"],
                                       ["--max-tries", "0", "h"], ["-H", "word", "h"], ["--max-p", "3", "h"]])
def test_wrong_use_is_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        crawl.main(arguments)
    printed = capsys.readouterr()
    assert caught.value.code == 2 and printed.out == ""
    assert re.fullmatch("crawl.py: .*--help lists the options.\n", printed.err)


def test_underscores_do_for_dashes(site: Server, capsys: pytest.CaptureFixture[str]) -> None:
    site.add("/")
    assert crawl.main(["--max_tasks=2", "--max_tries", "1", "--no_robots", "--timeout", "9.5",
                       "--user_agent", "me", site.url]) == 0
    assert site.requests == ["/"] and "User-Agent: me\r\n" in site.heads[0]


def test_the_program_runs_as_a_program(site: Server) -> None:
    site.add("/")
    done = command(site.url)
    assert done.returncode == 0 and "1 page, " in done.stdout and done.stderr == ""
    assert command("--version").stdout == f"crawl.py {crawl.VERSION}\n"


def test_a_report_that_nobody_reads_to_the_end_is_no_error(
        site: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    site.add("/")
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert crawl.main([site.url]) == 1


def test_a_report_that_cannot_be_written_is_status_2(
        site: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    site.add("/")
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert crawl.main([site.url]) == 2
    assert "crawl.py: No space left" in capsys.readouterr().err


def shell(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell, in which $CRAWL runs crawl.py, in an environment that holds nothing else."""
    return subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, timeout=60, env={
        "CRAWL": f"{sys.executable} {HERE / 'crawl.py'}", "PATH": os.defpath, **environment})


SURROUNDINGS = [{}, {"PYTHONUNBUFFERED": "1"}, {"PYTHONIOENCODING": "ascii:strict", "LC_ALL": "C"},
                {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "0", "LC_ALL": "C", "HOME": "/nonexistent"}]


@pytest.mark.parametrize("environment", SURROUNDINGS)
def test_the_status_and_the_journal_do_not_depend_on_who_reads_or_on_the_environment(
        environment: dict[str, str], site: Server, tmp_path: pathlib.Path) -> None:
    site.add("/", "<a href=/gone>")
    site.add("/fine", "caf\u00e9")
    path = tmp_path / "journal"
    for streams in ("2>/dev/full", "2>&-", "2>&1 >/dev/null | true", "<&- >&- 2>&-", ">&-"):
        for page, status in (("/", 1), ("/fine", 0)):
            path.unlink(missing_ok=True)
            done = shell(f"($CRAWL -v -o {path} {site.url}{page}; echo $? >{tmp_path}/status) {streams}", **environment)
            assert int((tmp_path / "status").read_text()) == status, (streams, page, done)
            assert "Traceback" not in done.stdout + done.stderr
            assert [json.loads(line)["url"] for line in path.read_text().splitlines()] == [
                site.url + page, *[site.url + "/gone"] * status]
    for streams, status in ((">/dev/full", 2), ("2>/dev/full --max-tasks 0", 2), ("2>&- --max-tasks 0", 2)):
        assert shell(f"$CRAWL {site.url} {streams}", **environment).returncode == status
    assert "--help lists the options" in shell("$CRAWL --depth caf\u00e9 h", **environment).stderr


def test_verbose_names_each_url_and_what_became_of_it(site: Server) -> None:
    site.add("/", "<a href=/gone><a href=mailto:x><a href=/old>")
    site.add_redirect("/old", "/")
    assert said("-v", "--max-tasks", "1", site.url)[2].replace(site.url, "").splitlines() == [
        "mailto:x not fetched: no http or https URL", "/ 200", "/gone 404 Not Found", "/old /"]


def test_a_terminal_shows_progress_in_one_line(site: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    site.add("/", "<a href=/slow>")

    def slow(connection: socket.socket) -> None:
        time.sleep(0.03)
        connection.sendall(with_body(b""))
    site.answers["/slow"] = slow
    monkeypatch.setattr(crawl, "PROGRESS", 0.01)
    shown = in_terminal(site.url, stream="stderr", columns=70)
    *states, end = shown.split("\r\x1b[K")[1:]
    assert "\n" not in shown and end == "" and len(states) >= 2 and all(len(state) < 70 for state in states)
    assert any(re.match(r"1 done, 0 queued, 1 in flight, 0 problems, \d+/s, 0\.\d s http://", state) for state in states)
    monkeypatch.setattr(crawl, "PROGRESS", 0)  # due again at once, also when all is done
    assert in_terminal(site.url, stream="stderr").endswith("\r\x1b[K")
    for option in ("-v", "-q"):
        assert "in flight" not in in_terminal(site.url, option, stream="stderr")


def test_a_report_on_the_terminal_of_the_progress_line_follows_it(site: Server) -> None:
    site.add("/")
    shown = in_terminal(site.url, "-o", "-", stream="stderr")
    assert shown.startswith("\r\x1b[K0 done") and shown.rpartition("\r\x1b[K")[2].startswith("1 page, ")


def test_on_a_terminal_the_first_ctrl_c_says_what_comes_and_the_report_what_was_left(
        site: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crawl, "GRACE", 0.05)

    def interrupt(connection: socket.socket) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        silence(connection)
    site.add("/", "<a href=/silent><a href=/next><a href=/last>")
    site.answers["/silent"] = interrupt
    shown = in_terminal(site.url, "--max-tasks", "1", stream="stderr")
    assert "\r\x1b[Kending, in 0.05 s at most; once more: at once\n" in shown
    status, out, err = said(site.url, "--max-tasks", "1")
    assert status == 130 and err == "" and "not fetched: 2 (the crawl was ended)\n" in out


def test_a_progress_line_names_the_oldest_fetch_or_else_the_next(loop: JumpingLoop) -> None:
    lines: list[str] = []

    async def main() -> None:
        report = crawl.Report()
        for number in range(10):
            report.add(crawl.Record(f"http://h/{number}", 200), old=number < 4)
        crawler = crawl.Crawler(["http://h/"], delay=9, robots=False)
        crawler.client = SimulatedClient(pages(4) | {"http://h/": [  # type: ignore[assignment]
            (200, {"seconds": 2}, "<a href=/1><a href=/2><a href=/3>")]})
        lines.append(report.progress(crawler, 2.0, 200))
        task = create_task(crawler.crawl())
        for moment in (1, 3):
            await sleep(moment - loop.time())
            lines.append(report.progress(crawler, 0.5, 200))
        lines.append(report.progress(crawler, 2.0, 10))
        await task
    loop.run_until_complete(main())
    assert lines == ["10 done, 1 queued, 0 in flight, 0 problems, 3/s",
                     "10 done, 0 queued, 1 in flight, 0 problems, 12/s, 1.0 s http://h/",
                     "10 done, 0 queued, 0 in flight, 0 problems, 12/s, 3 wait, the next for 6 s", "10 done, "]


def started(site: Server, *arguments: str) -> subprocess.Popen[str]:
    """Start a crawl of a page that links to a silent one; return when that is in flight."""
    asked = threading.Event()

    def ask(connection: socket.socket) -> None:
        asked.set()
        silence(connection)
    site.add("/", "<a href=/silent><a href=/next>")
    site.answers["/silent"] = site.answers["/next"] = ask
    process = subprocess.Popen([sys.executable, str(HERE / "crawl.py"), site.url, *arguments], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    asked.wait()
    return process


def test_what_ctrl_c_twice_cuts_off_is_in_the_report_and_in_the_journal(site: Server, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "journal"
    process = started(site, "-o", str(path), "--max-pages", "2")
    assert process.stdout and process.stderr
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGQUIT)
    while not process.stderr.readline().startswith("in "):  # the answer: the first Ctrl-C has arrived
        pass
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130 and "Traceback" not in err
    assert f"not finished (1)\n  {site.url}/silent\n    the crawl was interrupted\n    linked from {site.url}/\n" in out
    records = {record["url"]: record for record in map(json.loads, path.read_text().splitlines())}
    assert records[site.url + "/silent"]["kind"] == "not finished"


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_crawl_told_to_end_waits_a_while_for_what_is_in_flight(
        number: int, status: int, site: Server, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(connection: socket.socket) -> None:
        os.kill(os.getpid(), number)
        silence(connection)
    monkeypatch.setattr(crawl, "GRACE", 0.05)
    site.answers["/"] = interrupt
    assert crawl.main([site.url, "--no-robots", "--max-tries", "1"]) == status
    assert "not finished (1)" in capsys.readouterr().out


def test_told_twice_it_does_not_wait(
        site: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(connection: socket.socket) -> None:
        os.kill(os.getpid(), signal.SIGINT)  # which of two arrives first nobody promises
        os.kill(os.getpid(), signal.SIGTERM)
        silence(connection)
    monkeypatch.setattr(crawl, "GRACE", 3600)
    site.answers["/"] = interrupt
    assert crawl.main([site.url]) in (130, 143)
    assert "not finished (1)" in capsys.readouterr().out


def test_a_crawl_told_to_end_reports_what_ended_in_time(site: Server, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(connection: socket.socket) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)
        connection.sendall(with_body(b"<a href=/more>", b"Content-Type: text/html"))
    site.answers["/"] = interrupt
    assert crawl.main([site.url]) == 143
    assert "1 page, " in capsys.readouterr().out and "/more" not in site.requests


def test_sigquit_tells_what_the_crawl_waits_for_and_it_goes_on(site: Server) -> None:
    asked, told = threading.Event(), threading.Event()

    def slow(connection: socket.socket) -> None:
        asked.set()
        told.wait()
        connection.sendall(with_body(b"", b"Content-Type: text/plain"))
    site.add("/", "<a href=/slow><a href=/next>")
    site.answers["/slow"] = slow
    site.add("/next")
    process = subprocess.Popen([sys.executable, str(HERE / "crawl.py"), site.url, "--max-tasks", "1"], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    asked.wait()
    process.send_signal(signal.SIGQUIT)
    lines: list[str] = []
    while process.stderr and not (lines and lines[-1].startswith("in ")):
        lines.append(process.stderr.readline())
    assert lines[0].startswith("2 URLs asked for, 1 queued, ") and lines[1].startswith(f"{site.url}/slow: for ")
    assert any("crawl.py:" in line and " in Client._exchange" in line for line in lines)
    told.set()
    out, _ = process.communicate()
    assert process.returncode == 0 and out.startswith("3 pages, ")


def test_a_cancelled_command_is_status_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def cancelled(self: Any) -> Any:
        yield
        raise CancelledError
    monkeypatch.setattr(crawl.Crawler, "crawl", cancelled)
    assert said("h") == (130, "", "")


def test_headers_are_sent_to_the_site(site: Server) -> None:
    site.add("/")
    assert crawl.main([site.url, "-q", "-H", "X-Word: a: b", "-H", "accept:text/html"]) == 0
    assert "X-Word: a: b\r\n" in site.heads[1] and "Accept: text/html\r\n" in site.heads[1] and "*/*" not in site.heads[1]


def test_without_stdout_and_stderr_the_crawl_goes_on(
        site: Server, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.add("/", "<a href=/gone>")
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    path = tmp_path / "journal"
    assert crawl.main([site.url, "-v", "-o", str(path)]) == 1
    sys.stdout.close()
    sys.stderr.close()
    assert len(path.read_text().splitlines()) == 2


def test_an_empty_option_is_not_one_left_out(site: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert crawl.main([site.url, "-o", ""]) == 2 and crawl.main([site.url, "--why", ""]) == 1
    assert site.requests == []


def test_why_says_whether_a_url_would_be_fetched(site: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert crawl.main([site.url, "--why", site.url + "/x"]) == 0
    assert crawl.main([site.url, "--why", "http://other.test/"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{site.url}/x: fetched, where a link leads to it", "http://other.test/: not fetched: other host"]
    assert crawl.main(["http://h.invalid", "--why", "http://h.invalid/"]) == 2
    assert "robots.txt cannot be had" in capsys.readouterr().err


def test_why_touches_no_journal(site: Server, tmp_path: pathlib.Path) -> None:
    assert crawl.main([site.url, "--why", site.url + "/x", "-o", str(tmp_path / "journal")]) == 0
    assert not (tmp_path / "journal").exists()


def test_why_tries_https_and_then_http_as_a_root_does(site: Server, tls_site: Server) -> None:
    for server in (site, tls_site):
        server.add("/robots.txt", "User-agent: *\nDisallow: /private/", 200)
        host = server.url.partition("//")[2]
        for path, status in (("/x", 0), ("/private/x", 1)):
            assert said(host, "--why", host + path)[0] == status
    with socket.create_server(("127.0.0.1", 0)) as closed:
        host = f"127.0.0.1:{port_of(closed)}"
    assert said(host, "--why", "http://" + host)[0] == said(host, "--why", host)[0] == 2


def test_why_says_what_is_wrong_with_a_robots_file(site: Server) -> None:
    site.answers["/robots.txt"] = b"SSH-2.0\r\n\r\n"
    status, _, err = said(site.url, "--why", site.url + "/x")
    assert status == 2 and "robots.txt cannot be had: an HTTP/1 status line was expected" in err


def test_a_certificate_that_is_bad_is_no_reason_to_ask_why_without_tls(
        tls_site: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    host = tls_site.url.partition("//")[2]
    status, _, err = said(host, "--why", host)
    assert status == 2 and "certificate" in err


# The file itself
# ===============

def test_the_file_itself_names_its_sections_in_its_contents() -> None:
    source = (HERE / "crawl.py").read_text()
    contents = re.findall(r"^ {4,5}(\d+)  (\S.*?)(?:  .*)?$", source, re.MULTILINE)
    headings = re.findall(r"^# (\d+)  (.*)\n# =+$", source, re.MULTILINE)
    assert contents == headings and len(headings) == 15


def test_the_file_itself_imports_the_standard_library_only() -> None:
    tree = ast.parse((HERE / "crawl.py").read_text())
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert len(modules) > 20 and {name.split(".")[0] for name in modules} <= sys.stdlib_module_names | {"__future__"}


def test_the_file_itself_documents_its_public_names() -> None:
    for name in crawl.__all__:
        value = getattr(crawl, name)
        assert value.__doc__, name
        methods = {} if value in (crawl.TimeoutError, crawl.coroutine) or not isinstance(value, type) else vars(value)
        for method, function in methods.items():
            if isinstance(function, types.FunctionType) and not method.startswith("_"):
                assert function.__doc__ or any(getattr(base, method, None) for base in value.__mro__[1:]), (name, method)


def test_the_file_itself_exports_what_has_a_public_name() -> None:
    public = {name for name, value in vars(crawl).items() if getattr(value, "__module__", "") == "crawl"
              and not name.startswith("_") and isinstance(value, type | types.FunctionType)}
    assert public | {"coroutine", "timeout", "TimeoutError"} == set(crawl.__all__)


def test_the_file_itself_checks_with_errors_and_not_with_assert() -> None:
    assert not re.findall(r"^\s*assert ", (HERE / "crawl.py").read_text(), re.MULTILINE)


def test_the_file_itself_and_the_readme_name_the_same_options() -> None:
    table = re.findall(r"^\| `(--?[a-zA-Z-]+)", (HERE / "README.md").read_text(), re.MULTILINE)
    shown = re.findall(r"^  (--?[a-zA-Z-]+)", command("--help").stdout, re.MULTILINE)
    assert sorted(table) == sorted(set(shown) - {"-h"})


def test_the_file_itself_and_the_readme_name_the_same_api() -> None:
    table = (HERE / "README.md").read_text().partition("| name | what it is |\n|---|---|\n")[2].partition("\n\n")[0]
    named = [name for line in table.splitlines() for name in re.findall(r"`(\w+)", line.split("|")[1])]
    assert sorted(named) == sorted(crawl.__all__)


def test_the_file_itself_and_the_readme_name_the_same_fields() -> None:
    readme = (HERE / "README.md").read_text()
    table = readme.partition("| field | type | meaning |\n|---|---|---|\n")[2].partition("\n\n")[0]
    types: dict[str, Any] = {"string": str, "number": (int, float), "array of strings": tuple, "boolean": bool}
    named = [tuple(cell.strip(" `") for cell in line.split("|")[1:3]) for line in table.splitlines()]
    assert [name for name, _ in named] == list(crawl.Record._fields)
    assert all(isinstance(value, types[kind]) for value, (_, kind) in zip(crawl.Record(""), named))


def test_the_file_itself_names_nothing_before_its_meaning() -> None:
    """No code refers to what is defined further down; annotations, which are not evaluated, may."""
    tree = ast.parse((HERE / "crawl.py").read_text())
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            if getattr(node, field, None) is not None:
                setattr(node, field, ast.Constant(None))
    defined: set[str] = set()
    names = {symbol.get_name() for symbol in symtable.symtable(ast.unparse(tree), "crawl.py", "exec").get_symbols()
             if symbol.is_assigned() or symbol.is_namespace() or symbol.is_imported()}
    for statement in tree.body:
        tables = [symtable.symtable(ast.unparse(statement), "crawl.py", "exec")]
        defined |= {symbol.get_name() for symbol in tables[0].get_symbols()
                    if symbol.is_assigned() or symbol.is_imported()}
        for table in tables:  # which grows
            tables += table.get_children()
            early = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() or table is tables[0]}
            assert early & names <= defined, (table.get_name(), early & names - defined)


def test_the_file_itself_says_which_python_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    code = compile((HERE / "crawl.py").read_text(), str(HERE / "crawl.py"), "exec")
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    with pytest.raises(SystemExit, match=r"needs Python 3\.11 or later; this is 3\.10"):
        exec(code, {"__name__": "crawl"})


README = re.findall(r"^```(\w+)\n(.*?)^```", (HERE / "README.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("program", [text for language, text in README if language == "python"])
def test_the_readmes_programs_run(program: str, site: Server, tmp_path: pathlib.Path) -> None:
    site.add("/", "<a href=/x>")
    (tmp_path / "crawl.py").symlink_to(HERE / "crawl.py")
    program = program.replace("http://localhost:8765", site.url)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == ""
    if "print(" in program:
        assert site.url in done.stdout or "200 text/html" in done.stdout or "'crawl.py': '" in done.stdout
    else:
        assert [path.read_bytes() for path in tmp_path.glob("archive/*")] == [b"<a href=/x>"]
