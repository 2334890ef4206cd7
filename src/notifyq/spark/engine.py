"""Engines run the tasks of a pipeline in threads of this process or on executors of Spark."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from notifyq.errors import DatabaseUnavailableError, NotifyqError

if TYPE_CHECKING:
    import pyarrow as pa

    Done: TypeAlias = Callable[["R"], None] | None

T = TypeVar("T")
R = TypeVar("R")


class Engine(Protocol):
    """Runs one function over many tasks.

    `work` and the tasks must be picklable. A task may run more than once, and `work` must be safe
    to repeat; one result counts.
    """

    @property
    def slots(self) -> int:
        """How many tasks run at the same time."""

    def run(
        self, tasks: Sequence[T], work: Callable[[T], R], *, on_done: Done[R] = None
    ) -> list[R]:
        """Run all tasks and return their results in the order of the tasks.

        `on_done` is called once for each task as it ends. The first error ends the run.
        """


class LocalEngine:
    """Threads of this process; ADBC and Arrow release the interpreter's lock."""

    def __init__(self, threads: int | None = None) -> None:
        self.slots = threads or os.cpu_count() or 1

    def run(
        self, tasks: Sequence[T], work: Callable[[T], R], *, on_done: Done[R] = None
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
    """The error of notifyq that ended a task."""

    error: NotifyqError


class SparkEngine:
    """The executors of a Spark session; Spark retries a task that fails, as it is configured.

    With Spark Connect, `on_done` is called for all tasks at the end.
    """

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        # Spark Connect has no context.
        self._context = getattr(spark, "sparkContext", None)
        self.slots = self._parallelism()

    def _parallelism(self) -> int:
        if self._context is not None:
            return int(self._context.defaultParallelism)
        from pyspark.sql.functions import spark_partition_id

        # A range of unknown partitions gets one for each core of the cluster.
        numbers = self._spark.range(100_000).select(spark_partition_id())
        return int(numbers.distinct().count())

    def run(
        self, tasks: Sequence[T], work: Callable[[T], R], *, on_done: Done[R] = None
    ) -> list[R]:
        """Run all tasks, see Engine.run()."""
        if not tasks:
            return []
        results: dict[int, R] = {}

        def report(found: Iterable[tuple[int, R]]) -> None:
            for number, result in found:
                if number not in results and on_done is not None:
                    on_done(result)
                results.setdefault(number, result)

        numbers = self._spark.range(0, len(tasks), 1, len(tasks))
        with self._early() as early:
            attempt = _attempts(tasks, work, early)
            done = numbers.mapInArrow(attempt, "number long, result binary")
            rows = _beside(done.collect, lambda: report([] if early is None else list(early.value)))
        found = [(row.number, pickle.loads(row.result)) for row in rows]  # noqa: S301 - of our tasks
        for _, result in found:
            if isinstance(result, _Refused):
                raise result.error
        report(found)
        return [results[number] for number in range(len(tasks))]

    @contextmanager
    def _early(self) -> Iterator[Any]:
        """Give an accumulator of the results so far; None: only Spark's own client has one."""
        if self._context is None:
            yield None
            return
        early = self._context.accumulator([], _appending())
        try:
            yield early
        finally:
            early.value = []  # Spark keeps an accumulator as long as the driver runs


def _attempts(
    tasks: Sequence[T], work: Callable[[T], R], early: Any
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of Spark's tasks, each of which gets the number of one task."""

    def attempt(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column("id").to_pylist():
                result = _tried(work, tasks[number])
                if early is not None and not isinstance(result, _Refused):
                    early.add([(number, result)])
                row = {"number": [number], "result": [pickle.dumps(result)]}
                yield pa.RecordBatch.from_pydict(row)

    return attempt


def _tried(work: Callable[[T], R], task: T) -> R | _Refused:
    try:
        return work(task)
    except DatabaseUnavailableError:
        raise  # Spark retries the task
    except NotifyqError as error:
        # A retry would fail again, and Spark would show a page of text.
        return _Refused(error)


def _beside(collect: Callable[[], R], report: Callable[[], None]) -> R:
    """Call `collect` in a thread, and `report` five times a second until it has returned."""
    with ThreadPoolExecutor(1, thread_name_prefix="notifyq-spark") as pool:
        collected = pool.submit(collect)
        while not wait([collected], timeout=0.2).done:
            report()
        return collected.result()


def _appending() -> Any:
    from pyspark.accumulators import AccumulatorParam

    class _Appending(AccumulatorParam):
        """Collects results at the driver as tasks end; a task that ran twice has two."""

        def zero(self, value: list[Any]) -> list[Any]:
            return []

        def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:  # noqa: N802
            return [*value1, *value2]

    return _Appending()


def groups_of(sized: Sequence[tuple[int, T]], most: int) -> Iterator[list[T]]:
    """Give groups of items whose sizes add up to at most `most`; a larger item is alone."""
    group: list[T] = []
    total = 0
    for size, item in sized:
        if group and total + size > most:
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group
