"""When a worker looks, when it sleeps, and who gets up for one message.

Under load a worker attends its queues: it looks every few milliseconds, and publishers need not
ring. Before it sleeps it takes that back, waits for the publishers that were silent, and looks once
more. Of many idle workers only a few answer the bell for a single message.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from notifyq.notify.wake import due_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from notifyq.notify.suppression import Suppression

_LOADED = 5
"""Looks in a row that found messages, after which a queue is attended if publishers contend."""
_LULL = 0.05
"""Seconds without a message that end such a row."""
_LINGER = 0.2
"""Seconds without a message after which a queue is attended no more."""
_LOOK_EVERY = 0.003
"""Seconds between two looks at attended queues that have nothing; longer the longer that lasts."""
_SUMMON_EVERY = 0.1
"""Seconds between two calls for other workers by one that attends and cannot take everything."""
_STUCK = 1.0
"""Seconds without a free slot after which a worker leaves its queues to others."""
_BUSY = 0.02
"""Seconds without a free slot after which a worker does not answer the bell."""
_AT_ONCE = 0.0
"""Seconds to wait where a look is owed."""
_RETRY_ATTEND, _RETRY_WATCH = 0.2, 1.0
"""Seconds before what was refused is tried again."""
_NEVER = 60.0
"""Seconds to the next try where a publisher's transaction stays open."""
_TOKENS_EVERY = 0.01
"""Least time in seconds between two looks for what a rate lets through: it gathers meanwhile."""
_NO_RATE = 5.0
"""Seconds after which queues without a rate may have got one."""
_MOST_QUEUES = 16
"""Session locks live in shared memory: a worker of a thousand queues must not take it all."""


@dataclass(slots=True)
class _Load:
    """How busy one queue is."""

    looks: int = 0
    dry_since: float | None = None
    retry_at: float = 0
    retry_in: float = _RETRY_ATTEND

    def lull(self, now: float) -> float:
        """Seconds since it was seen to be empty."""
        return 0 if self.dry_since is None else now - self.dry_since


class Poller:
    """Decides, after each look of a worker, what it promises and how long it may wait."""

    def __init__(self, promises: Suppression, queues: Sequence[str], *, poll: float) -> None:
        self._promises = promises
        self._queues = frozenset(queues)
        self._poll = poll
        self._loads: dict[str, _Load] = {}
        self._attending: asyncio.Task[None] | None = None
        self._crowded: set[str] = set()
        self._summoned: set[str] = set()
        self._watch_at = 0.0
        self._ask_token_at = 0.0
        self._summon_at = 0.0
        self._full_since: float | None = None
        self._dry_looks = 0
        self._owes_look_since = 0
        self._has_failed = False
        self._looked_at = 0.0
        self._due_at: float | None = None
        self._ask_due_at = 0.0

    def answers(self, queue: str, ids: str) -> bool:
        """Whether to look when the bell rings for these messages of a queue; none: a summons."""
        if not ids:
            self._summoned.add(queue)
            # Maybe nobody is left who answers for a single message.
            self._crowded.discard(queue)
            self._watch_at = 0
        return queue not in self._crowded or not ids.isdecimal()

    @property
    def owes_look(self) -> bool:
        """Whether something may be there that rang for nobody: the next look must find it."""
        return self._owes_look_since == self._dry_looks

    async def note(self, look: Poll) -> None:
        """Learn what a look has found, and attend queues that are under load."""
        now = time.monotonic()
        self._has_failed = look.has_failed
        self._looked_at = look.began
        self._full_since = None
        for queue in look.queues:
            load = self._loads.setdefault(queue, _Load())
            load.looks = 1 if load.lull(now) > _LULL else load.looks + 1
            load.dry_since = None if look.is_full else now
        if look.is_full:
            await self._summon(now)
        elif not look.has_failed:
            self._dry_looks += 1
            if not look.queues:
                self._ask_due_at = 0  # it may have been rung for what is due in a moment
            for queue, load in self._loads.items():
                if queue not in look.queues and load.dry_since is None:
                    load.dry_since = now
        self._attend(now)

    async def pause(self, room: int) -> float:
        """Keep the promises of a worker that can claim nothing now; return how long it may wait."""
        if not self._promises.is_possible:
            return await self._until_due() if room > 0 else self._poll
        if await self._promises.renew(self._queues):
            self._crowded.clear()
            self._watch_at = 0
        now = time.monotonic()
        if room <= 0:
            return await self._pause_full(now)
        # Not without room: the others have heard it as well. To summon them in turn would go on
        # for ever where all workers are full.
        if self._summoned:
            summoned, self._summoned = self._summoned, set()
            await self._promises.fall_silent(summoned)
        lulls = {queue: self._lull(queue, now) for queue in self._promises.attended}
        if calm := [queue for queue, lull in lulls.items() if lull >= _LINGER]:
            await self._promises.leave(calm)
        if self._promises.attended or self._attending is not None:
            return max(_LOOK_EVERY, min(lulls.values(), default=0) / 8)
        if now >= self._watch_at:
            await self._watch(now)
        seconds = await self._before_sleep()
        return seconds if seconds == _AT_ONCE else min(seconds, await self._until_due())

    async def until_token(self) -> float:
        """Seconds until a rate lets something through again, if one of the queues has a rate."""
        now = time.monotonic()
        if now < self._ask_token_at:
            return math.inf
        seconds = await due_in(self._looked_at, partial(self._promises.token_in, self._queues))
        if seconds is None:
            self._ask_token_at = now + _NO_RATE
            return math.inf
        return max(_TOKENS_EVERY, seconds)

    async def close(self) -> None:
        """Take all promises back, and leave publishers that were silent to the other workers."""
        if self._attending is not None:
            await asyncio.wait({self._attending})
        await self._promises.leave(list(self._promises.attended))
        await self._promises.unwatch()
        if silence := self._promises.silence:
            await self._promises.summon(silence.queues, always=True)

    async def _before_sleep(self) -> float:
        if silence := self._promises.silence:
            if not await silence.is_over(self._promises):
                return silence.next_check
            self._promises.silence = None
            self._owes_look_since = self._dry_looks
        return _AT_ONCE if self.owes_look and not self._has_failed else self._poll

    async def _until_due(self) -> float:
        """Seconds until something may be due, or the poll."""
        now = time.monotonic()
        if now >= self._ask_due_at:
            self._ask_due_at = now + self._poll
            seconds = await due_in(self._looked_at, partial(self._promises.next_due, self._queues))
            self._due_at = None if seconds is None else time.monotonic() + seconds
        if self._due_at is None:
            return self._poll
        return min(self._poll, max(_LOOK_EVERY, self._due_at - time.monotonic()))

    def _lull(self, queue: str, now: float) -> float:
        return self._loads[queue].lull(now) if queue in self._loads else _LINGER

    async def _pause_full(self, now: float) -> float:
        promises = self._promises
        if self._full_since is None:
            self._full_since = now
        full_for = now - self._full_since
        if full_for >= _BUSY and promises.places:
            await promises.unwatch()
            self._watch_at = 0
        if full_for >= _STUCK and promises.attended:
            await promises.leave(list(promises.attended))
        if promises.attended:
            await self._summon(now)
            return _SUMMON_EVERY
        seconds = await self._before_sleep()
        if seconds == _AT_ONCE:
            # There is no room for the look that is owed: others must take it.
            await promises.summon(self._queues)
            self._dry_looks += 1
        return min(seconds, _BUSY if promises.places else self._poll)

    def _attend(self, now: float) -> None:
        for queue, load in list(self._loads.items()):
            if queue in self._promises.attended:
                continue
            if self._attending is None and load.looks >= _LOADED and now >= load.retry_at:
                load.retry_at = now + load.retry_in
                if len(self._promises.attended) < _MOST_QUEUES:
                    # Beside the claims, for publishers that ring may hold it up.
                    self._attending = asyncio.create_task(self._try_to_attend(queue, load))
            elif load.lull(now) > _LINGER:
                del self._loads[queue]

    async def _try_to_attend(self, queue: str, load: _Load) -> None:
        try:
            answer = await self._promises.attend(queue)
            # Each try in vain has silenced publishers for as long as it waited for one of them.
            load.retry_in = _RETRY_ATTEND if answer is not None else min(2 * load.retry_in, _NEVER)
        finally:
            self._attending = None

    async def _summon(self, now: float) -> None:
        if self._promises.attended and now >= self._summon_at:
            await self._promises.summon(self._promises.attended)
            # Where old snapshots make it slow, it must not become all that happens.
            self._summon_at = now + max(_SUMMON_EVERY, 10 * (time.monotonic() - now))

    async def _watch(self, now: float) -> None:
        """Try for a place in each queue."""
        self._watch_at = now + _RETRY_WATCH
        missing = [queue for queue in self._queues if queue not in self._promises.places]
        if not missing or len(self._queues) > _MOST_QUEUES:
            return
        self._crowded = await self._promises.watch(missing)
        if len(self._crowded) < len(missing):
            # What rang before the place was taken, nobody may have answered.
            self._owes_look_since = self._dry_looks


@dataclass(frozen=True, slots=True)
class Poll:
    """What one look at all queues has found; `is_full` means that there may be more."""

    queues: frozenset[str]
    is_full: bool
    began: float
    """In monotonic seconds: what was due by then it has found."""
    has_failed: bool = False
