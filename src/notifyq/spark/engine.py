"""Engines: who runs the tasks of a pipeline, threads of this process or the executors of Spark."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from notifyq.errors import DatabaseUnavailableError, NotifyqError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
R = TypeVar("R")


class Engine(Protocol):
    """Runs one function over many tasks; a task may be run more than once, its result counts once.

    `work` and the tasks must be picklable, and what `work` writes must not harm if it is written
    again by another attempt.
    """

    @property
    def slots(self) -> int:
        """How many tasks run at the same time."""

    def run(
        self,
        tasks: Sequence[T],
        work: Callable[[T], R],
        *,
        on_done: Callable[[R], None] | None = None,
    ) -> list[R]:
        """Run all tasks and return their results in the order of the tasks.

        `on_done` is called once for each task that is done, as they come. The first error ends it.
        """


class LocalEngine:
    """Threads of this process; ADBC and Arrow leave the lock of the interpreter to the others."""

    def __init__(self, threads: int | None = None) -> None:
        self.slots = threads or os.cpu_count() or 1

    def run(
        self,
        tasks: Sequence[T],
        work: Callable[[T], R],
        *,
        on_done: Callable[[R], None] | None = None,
    ) -> list[R]:
        """Run all tasks, see Engine.run()."""
        with ThreadPoolExecutor(self.slots, thread_name_prefix="notifyq") as pool:
            futures = [pool.submit(work, task) for task in tasks]
            try:
                for future in as_completed(futures):
                    result = future.result()
                    if on_done is not None:
                        on_done(result)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            return [future.result() for future in futures]


@dataclass(frozen=True, slots=True)
class _Refused:
    """What a task was ended by, if that was an error of ours."""

    error: NotifyqError


class SparkEngine:
    """The executors of a Spark session; Spark repeats a task that fails as it is configured to."""

    def __init__(self, spark: Any) -> None:
        self._context = spark.sparkContext
        self.slots = int(self._context.defaultParallelism)

    def run(
        self,
        tasks: Sequence[T],
        work: Callable[[T], R],
        *,
        on_done: Callable[[R], None] | None = None,
    ) -> list[R]:
        """Run all tasks, see Engine.run()."""
        if not tasks:
            return []
        numbered = self._context.parallelize(list(enumerate(tasks)), len(tasks))
        done = self._context.accumulator([], _appending())

        def attempt(task: tuple[int, T]) -> list[_Refused]:
            result = _tried(work, task[1])
            if isinstance(result, _Refused):
                return [result]
            done.add([(task[0], result)])
            return []

        results: dict[int, R] = {}

        def tell() -> None:
            for number, result in list(done.value):
                if number not in results and on_done is not None:
                    on_done(result)
                results.setdefault(number, result)

        try:
            refused = _beside(numbered.flatMap(attempt).collect, tell)
            tell()
        finally:
            done.value = []  # Spark keeps an accumulator for as long as the driver lives
        if refused:
            raise refused[0].error
        return [results[number] for number in range(len(tasks))]


def _tried(work: Callable[[T], R], task: T) -> R | _Refused:
    try:
        return work(task)
    except DatabaseUnavailableError:
        raise  # Spark tries the task again
    except NotifyqError as error:
        # It would be the same again, and come as a page of text.
        return _Refused(error)


def _beside(collect: Callable[[], R], tell: Callable[[], None]) -> R:
    """Call `collect` in a thread, and `tell` now and then until it has returned."""
    with ThreadPoolExecutor(1, thread_name_prefix="notifyq-spark") as pool:
        collected = pool.submit(collect)
        while not wait([collected], timeout=0.2).done:
            tell()
        return collected.result()


def _appending() -> Any:
    from pyspark.accumulators import AccumulatorParam

    class _Appending(AccumulatorParam):
        """Gathers results at the driver as tasks end; one that ran twice is there twice."""

        def zero(self, value: list[Any]) -> list[Any]:
            return []

        def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:  # noqa: N802
            return [*value1, *value2]

    return _Appending()
