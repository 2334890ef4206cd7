"""Threads for sync handlers: reuse, giving up, counting, ending."""

import asyncio
import contextvars
import threading

import pytest

from notifyq.execution.runtime import Threads
from support.database import until


async def test_an_idle_thread_is_used_again() -> None:
    threads = Threads()
    first = await threads.run(threading.get_ident)
    assert await threads.run(threading.get_ident) == first != threading.get_ident()
    threads.close()


async def test_calls_at_the_same_time_have_threads_of_their_own() -> None:
    threads = Threads()
    together = threading.Barrier(3)

    def meet() -> int:
        together.wait(10)
        return threading.get_ident()

    assert len(set(await asyncio.gather(*(threads.run(meet) for _ in range(3))))) == 3
    threads.close()


async def test_a_function_sees_the_context_of_its_caller() -> None:
    threads, name = Threads(), contextvars.ContextVar[str]("name")
    name.set("caller")
    assert await threads.run(name.get) == "caller"
    threads.close()


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), asyncio.CancelledError()])
async def test_what_a_function_raises_is_raised_to_its_caller(error: BaseException) -> None:
    threads = Threads()

    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        await threads.run(fail)
    assert (threads.busy, threads.stuck) == (0, 0)
    threads.close()


async def test_stop_iteration_becomes_an_error_that_a_future_can_hold() -> None:
    threads = Threads()
    with pytest.raises(RuntimeError, match="StopIteration"):
        await threads.run(next, iter(()))
    threads.close()


async def test_a_function_that_is_given_up_counts_as_stuck_until_it_ends() -> None:
    threads, started, let_go = Threads(), threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        let_go.wait(10)

    call = asyncio.create_task(threads.run(hang))
    await asyncio.to_thread(started.wait, 10)
    assert (threads.busy, threads.stuck) == (1, 0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (threads.busy, threads.stuck) == (1, 1)
    # Its thread is not free, so the next call gets another one.
    assert await threads.run(threading.active_count) >= 3
    let_go.set()
    await until(lambda: threads.stuck == 0, "the function has ended")
    assert threads.busy == 0
    threads.close()


async def test_all_threads_end_when_closed_the_busy_ones_after_their_call() -> None:
    before = set(threading.enumerate())
    threads, started, let_go = Threads(), threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        let_go.wait(10)

    call = asyncio.create_task(threads.run(hang))
    await asyncio.to_thread(started.wait, 10)
    await threads.run(int)
    ours = [t for t in set(threading.enumerate()) - before if t.name == "notifyq-handler"]
    assert len(ours) == 2
    threads.close()
    let_go.set()
    await call
    for thread in ours:
        await asyncio.to_thread(thread.join, 10)
        assert not thread.is_alive()


async def test_a_thread_that_cannot_start_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads = Threads()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="start new thread"):
            await threads.run(int)
    assert (threads.busy, threads.stuck) == (0, 0)
    assert await threads.run(int) == 0
    threads.close()
