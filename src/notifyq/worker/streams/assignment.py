"""Which member slots of subscriptions this worker holds.

A slot is an advisory lock of the listening session. It ends with the session, and another worker
takes it within about a second, as workers without a slot keep trying.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

import asyncpg

from notifyq.database import advisory_locks
from notifyq.database import statements as sql
from notifyq.database.installs import ours
from notifyq.errors import NotifyqError
from notifyq.handlers.subscriber import Subscriber
from notifyq.notify.session import Session
from notifyq.telemetry import SubscriptionLeft, SubscriptionTaken, TelemetryHandler
from notifyq.worker.streams.member import Member
from notifyq.worker.streams.rebalance import Rebalancer

if TYPE_CHECKING:
    from notifyq.database.pool import AnyConnection, Database
    from notifyq.worker.wake import Suppression

log = logging.getLogger("notifyq.worker")

_TRY_EVERY = 0.7
"""Seconds between two tries for slots that others have."""
_SESSION_LOST = 1.0
"""Seconds without a session after which another worker may serve the same members."""
_PING_EVERY = 5.0
"""Seconds between two checks that an open transaction is alive."""


class Assignment:
    """The members of all subscriptions of a worker, and its tries to get their slots."""

    def __init__(
        self,
        subscribers: Sequence[Subscriber[Any]],
        suppression: Suppression,
        telemetry: TelemetryHandler,
        database: Database,
    ) -> None:
        self._all = [
            Member(subscriber, number, database, telemetry)
            for subscriber in subscribers
            for number in range(1, subscriber.members + 1)
        ]
        self._suppression = suppression
        self._telemetry = telemetry
        self._transaction = TransactionLock(database)
        self._session: Session | AnyConnection | None = None
        self._session_seen = time.monotonic()
        self._try_at = 0.0
        self._rebalancers = {
            subscriber.subscription: Rebalancer(
                [it for it in self._all if it.subscriber is subscriber], suppression
            )
            for subscriber in subscribers
            if subscriber.members > 1
        }

    def __iter__(self) -> Iterator[Member]:
        return iter(self._all)

    @property
    def is_complete(self) -> bool:
        """Whether this worker holds all of them."""
        return all(member.is_held for member in self._all)

    @property
    def next_try(self) -> float:
        """When `take` has something to do again, in monotonic seconds."""
        if self._session is None:
            return time.monotonic() + _TRY_EVERY
        counts = [it.next_count for it in self._rebalancers.values()]
        return min([math.inf if self.is_complete else self._try_at, *counts])

    async def take(self) -> list[Member]:
        """Try for missing slots and return the members gained; leave surplus ones to others."""
        now = time.monotonic()
        if self._suppression.is_pooled:
            await self._transaction.keep()
        if not self._has_session(now):
            return []
        gained = await self._try() if now >= self._try_at and not self.is_complete else []
        for rebalancer in self._rebalancers.values():
            surplus = await rebalancer.surplus()
            if surplus is not None and surplus.task is None:
                await self.leave([surplus])
            elif surplus is not None:
                surplus.is_surplus = True
        return gained

    async def _try(self) -> list[Member]:
        pause = _TRY_EVERY * random.uniform(0.8, 1.2)  # noqa: S311  nothing secret
        self._try_at = time.monotonic() + pause
        wanted = self._wanted()
        if not wanted:
            return []
        choices = [member.lock for member in wanted], list(wanted.values())
        if self._suppression.is_pooled:
            granted = await self._transaction.call(advisory_locks.LEAD_IN_TRANSACTION, *choices)
        else:
            granted = await self._suppression.call(advisory_locks.LEAD_ONE_OF_EACH, *choices)
        if granted is None:
            return []
        gained = []
        for member in wanted:
            if member.lock in granted:
                gained.append(member)
                self._gained(member)
            elif member.was_held:
                member.was_held = False
                member.cancel()
                self._report(SubscriptionLeft, member)
        return gained

    def holds(self, member: Member) -> bool:
        """Whether this worker still holds a slot: its session may have been lost meanwhile."""
        return member.is_held and self._present is self._session

    @property
    def _present(self) -> Session | AnyConnection | None:
        return (
            self._transaction.session if self._suppression.is_pooled else self._suppression.session
        )

    def _has_session(self, now: float) -> bool:
        session = self._present
        if session is not self._session:
            # The locks have ended with their session.
            for member in self._all:
                member.was_held |= member.is_held
                member.is_held = False
            self._session, self._try_at = session, 0.0
        if session is not None:
            self._session_seen = now
        elif now - self._session_seen > _SESSION_LOST:
            self.cancel()
        return session is not None

    def _wanted(self) -> dict[Member, int]:
        """The members to try for: those held before, and one more of each subscription.

        Of the members with the same number one is wanted, the first that is free.
        """
        wanted = {}
        choices: dict[tuple[str, str], int | None] = {}
        for number, member in enumerate(random.sample(self._all, len(self._all))):
            if member.is_held:
                continue
            if member.was_held:
                wanted[member] = number
                continue
            subscription = member.subscriber.subscription
            if subscription not in choices:
                rebalancer = self._rebalancers.get(subscription)
                may_grow = rebalancer is None or rebalancer.may_grow()
                choices[subscription] = number if may_grow else None
            if (choice := choices[subscription]) is not None:
                wanted[member] = choice
        return wanted

    def _gained(self, member: Member) -> None:
        if not member.was_held:
            member.is_inherited = member.may_have_retries = True
            if rebalancer := self._rebalancers.get(member.subscriber.subscription):
                rebalancer.gained(member)
            self._report(SubscriptionTaken, member)
        member.is_held = member.was_held = True
        member.is_surplus = False

    def cancel(self) -> None:
        """Cancel the batches that run."""
        for member in self._all:
            member.cancel()

    async def leave(self, members: Iterable[Member]) -> None:
        """Leave slots to other workers."""
        left = [member for member in members if member.is_held]
        if not left:
            return
        for member in left:
            member.is_held = member.was_held = member.is_surplus = False
            if rebalancer := self._rebalancers.get(member.subscriber.subscription):
                rebalancer.left(member)
        if not self._suppression.is_pooled:  # then they end with the transaction
            await self._suppression.call(advisory_locks.UNLEAD, [member.lock for member in left])
        for member in left:
            self._report(SubscriptionLeft, member)

    async def stand_down(self) -> None:
        """Get no more slots from other workers."""
        for rebalancer in self._rebalancers.values():
            await rebalancer.stand_down()

    async def close(self) -> None:
        """Release what is left."""
        await self._transaction.close()

    def _report(
        self, kind: type[SubscriptionTaken] | type[SubscriptionLeft], member: Member
    ) -> None:
        stream, name = member.subscriber.subscription
        self._telemetry(kind(stream=stream, subscriber=name, member=member.number))


class TransactionLock:
    """Locks of an open transaction, for a worker behind a pooler in transaction mode.

    There a session is lent for one transaction: its session locks would belong to all clients and
    never end. An idle transaction without a snapshot does not hold back vacuum.
    """

    def __init__(self, database: Database) -> None:
        self._connections = database.dedicated()
        self._stack = AsyncExitStack()
        self._ping_at = 0.0
        self._connection: AnyConnection | None = None
        self.session: AnyConnection | None = None
        """The connection that holds the locks."""

    async def keep(self) -> None:
        """Begin, or check that the connection still answers."""
        now = time.monotonic()
        if now < self._ping_at:
            return
        self._ping_at = now + _PING_EVERY
        if self.session is not None and await self.call(sql.VERSION) is not None:
            return
        await self._end()
        try:
            connection = await self._stack.enter_async_context(self._connections.connection())
            self._connection = connection
            await self._stack.enter_async_context(connection.transaction())
            await connection.fetch(sql.TRANSACTION)
        except (NotifyqError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            log.warning("no member slot of a subscription can be taken: %s", error)
            await self._end()
        else:
            self.session = connection

    async def call(self, statement: str, *args: Any) -> Any:
        """The one value of a call in the transaction; None without an answer."""
        if self.session is None:
            return None
        try:
            return await self.session.fetchval(ours(self.session, statement), *args, timeout=5)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            log.debug("a call for a member slot was not answered: %s", error)
            self.session = None
            self._ping_at = 0.0
            return None

    async def close(self) -> None:
        """Release all locks."""
        await self._end()
        await self._connections.close()

    async def _end(self) -> None:
        if self._connection is not None and self.session is None:
            # It broke, or was cancelled while it began: what is open on it is unknown.
            with suppress(asyncpg.InterfaceError):  # the pool has released it already
                self._connection.terminate()
        self.session = self._connection = None
        stack, self._stack = self._stack, AsyncExitStack()
        with suppress(NotifyqError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            await stack.aclose()
