"""Plans: the statements inside the functions, as the server really runs them.

A worker's session lives for weeks: it plans while the table is empty and goes on with that plan
over a backlog of a million. So the functions are called over and over while the table changes.
"""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import product

import pytest

from support.database import Connection, Notices, session
from support.databases import Databases

TIMES = 7  # from the sixth call on the server may use a generic plan

UNKNOWN = "do $$ begin perform messages.{}(79); exception when sqlstate 'NQ002' then null; end $$"
CALLS = {
    "claim": "select * from messages.claim(quantity => 10)",
    "claim of a queue": "select * from messages.claim(array['default'], 10)",
    "claim with a filter": "select * from messages.claim(quantity => 10, filter => '$ >= 0')",
    "claim with a filter over attributes": "select * from messages.claim("
    "quantity => 10, filter => '$priority >= 0')",
    "claim with filters": "select * from messages.claim(array['default', 'default'], 10, "
    "filters => array['$ == 5', null]::jsonpath[])",
    "claim_owned": "select * from notifyq.claim_owned(array['default'])",
    "full_scan claim": "select * from messages.claim(quantity => 10, full_scan => true)",
    "claim of many queues": "select * from messages.claim("
    "array_fill('default'::text, array[21]), 10)",
    "claim_id": "select * from messages.claim_id(77)",
    "take": "select * from messages.take('default', 10)",
    "finish": "select messages.finish(5, 1)",
    "finish_many": "select * from messages.finish_many("
    "array[3, 2, 1], array[1, 1, 1], array['success', 'failed', 'success']"
    "::messages.message_status[])",
    "extend_many": "select * from messages.extend_many(array[3, 2, 1], array[1, 1, 1])",
    "release_many": "select * from messages.release_many(array[3, 2, 1], array[1, 1, 1])",
    "release_orphans": "select notifyq.release_orphans('w', array[1, 2])",
    "retry": "select messages.retry(4, 1)",
    "cancel": "select messages.cancel(78)",
    "run_now": "select messages.run_now(78)",
    "attempts": "select * from messages.attempts(4)",
    "publish": "select messages.publish('default', '1', dedup_key => 'k')",
    "publish within a window": "select messages.publish("
    "'default', '1', dedup_key => 'k', dedup_window => '1 hour')",
    "replace": "select messages.publish("
    "'default', '1', dedup_key => 'k', on_duplicate => 'replace')",
    "receive": "select messages.receive("
    """'s', '[{"position": "1", "queue": "default", "dedup_key": "k"}]')""",
    "receive_many": "select notifyq.receive_many('s', '{1,2}', '{default,default}', "
    """'{1,2}'::text[]::jsonb[], '{0,0}', '{t,t}', '{"{}","{}"}'::text[]::jsonb[], """
    """'{null,null}', '{null,k}', '{null,null}', '{null,null}')""",
    "relay_claim": "select * from notifyq.relay_claim('{default}', 10, '1 min', 'w')",
    "relay_finish": "select notifyq.relay_finish('t', 's', 'p', array[3, 2, 1], "
    "array[1, 1, 1], array[0, 0, 0], "
    "array_fill('success'::messages.message_status, array[3]))",
    "reap": "select messages.reap()",
    "maintain": "select messages.maintain()",
    "stage_due": "select messages.stage_due()",
    "result": UNKNOWN.format("result"),
    "await_result": UNKNOWN.format("await_result"),
    "renotify": "select notifyq.renotify()",
    "backlog": "select messages.backlog(most => 100)",
    "throughput": "select messages.throughput(most => 100)",
    "workers": "select messages.workers()",
    "note_worker": "select notifyq.worker_heartbeat('w')",
}


@dataclass(frozen=True)
class Plan:
    """One statement that ran inside a function, with what each of its nodes did."""

    text: str

    @property
    def scans(self) -> list[str]:
        return re.findall(r"Seq Scan on (\w+)", self.text)

    def rows_of(self, node: str) -> list[int]:
        """Return how many rows each node of this kind gave, or read and threw away."""
        found = re.findall(rf"{node}[^\n]*actual time=\S+ rows=([\d.]+) loops=([\d.]+)", self.text)
        return [round(float(rows) * float(loops)) for rows, loops in found]

    def removed(self, by: str = "") -> list[int]:
        """Return how many rows each filter, or each of this kind, read and threw away."""
        return [int(rows) for rows in re.findall(rf"Rows Removed by {by}[^:]*: (\d+)", self.text)]

    def most(self, *nodes: str) -> int:
        """Return the most rows that one of these nodes gave, or that one filter threw away."""
        return max([0, *self.removed(), *(rows for node in nodes for rows in self.rows_of(node))])


class Explained:
    """A session whose every statement, nested ones too, is explained after it ran."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._notices = Notices(connection)

    async def start(self) -> None:
        await self.connection.execute("""
            load 'auto_explain';
            set auto_explain.log_nested_statements = on;
            set auto_explain.log_analyze = on;
            set auto_explain.log_min_duration = 0;
            set client_min_messages = log;
        """)

    async def unexplained(self, *statements: str) -> None:
        await self.connection.execute(
            "set auto_explain.log_min_duration = -1; set client_min_messages = error"
        )
        for statement in filter(None, statements):
            await self.connection.execute(statement)
        await self.connection.execute(
            "set auto_explain.log_min_duration = 0; set client_min_messages = log"
        )

    async def plans(self, statement: str) -> list[Plan]:
        await self._notices.received()
        # Not fetch(): asyncpg would query types, with statements of its own.
        await self.connection.execute(statement)
        return [Plan(text) for text in await self._notices.received("LOG") if "plan:" in text]

    async def rolled_back(self, statement: str) -> list[Plan]:
        """Return its plans, so that the next call meets the same rows."""
        transaction = self.connection.transaction()
        await transaction.start()
        plans = await self.plans(statement)
        await transaction.rollback()
        return plans


@pytest.fixture
async def explained(connection: Connection) -> Explained:
    explained = Explained(connection)
    await explained.start()
    return explained


# 50,000 waiting, 100 locked, 100 scheduled.
BACKLOG = """
    insert into messages.message (message) select to_jsonb(n) from generate_series(0, 49999) as n;
    update messages.message set state = 'locked', locked_by = 'w', locked_at = now(),
      lock_expires_at = now() + interval '1 hour', lock_token = 1, attempts = 1
    where id in (select id from messages.message order by id limit 100);
    update messages.message set available_at = now() + interval '1 hour'
    where id in (select id from messages.message order by id desc limit 100);
"""

KEYS = """
    select messages.create_queue('q');
    insert into messages.message (queue, message, key)
    select 'q', '1', 'k' || i % 300 from generate_series(1, 20000) as i;
"""

# Messages that others wait for.
WORKFLOW = """
    select messages.create_queue('taken');
    insert into messages.message (id, message) overriding system value
    select n, '1' from generate_series(1, 20000) as n;
    insert into messages.message (id, message, blockers, available_at)
    overriding system value
    select 100000 + n, '1', 1, 'infinity' from generate_series(1, 20000) as n;
    insert into notifyq.dependency (message_id, after_id, position, on_failure)
    select 100000 + n, n, 1, case when n = 5 then 'hold' else 'cancel' end
    from generate_series(1, 20000) as n;
    update messages.message set state = 'locked', locked_at = now(), attempts = 1,
      lock_token = 1, lock_expires_at = now() + interval '1 hour' * sign(10 - id)
    where id in (3, 4, 5, 13, 14, 15);
    update messages.message set queue = 'taken' where id in (10, 11, 12);
    select setval('messages.message_id_seq', 200000);
    analyze notifyq.dependency;
"""

# One that many wait for, many that one waits for, steps that wait for 2000, and many dead ones.
CROWD = """
    insert into messages.message (id, message) overriding system value
    select n, '1' from generate_series(1, 20000) as n;
    update messages.message set state = 'locked', locked_at = now(), attempts = 1,
      lock_token = 1, lock_expires_at = now() + interval '1 hour'
    where id <= 2001;
    insert into messages.message (id, message, blockers, available_at) overriding system value
    select 100000 + n, '1', 1, 'infinity' from generate_series(1, 4000) as n;
    insert into notifyq.dependency (message_id, after_id, position, on_failure)
    select 100000 + n, case when n <= 2000 then 1 else n - 1999 end, 1, 'cancel'
    from generate_series(1, 4000) as n;
    update messages.message set awaited = true where id between 2 and 2001;
    update messages.message set parked_at = now(), state = 'scheduled', available_at = 'infinity'
    where id between 10002 and 12001;
    insert into notifyq.step (message_id, number, name, kind, queue, attempt, pending)
    select 10000 + n, 1, 's', 'end', 'default', 1, 1 from generate_series(2, 2001) as n;
    insert into notifyq.end_wait (message_id, step, position, after_id)
    select 10000 + n, 's', 1, n from generate_series(2, 2001) as n;
    insert into messages.message_archive (
      id, created_at, available_at, lock_token, priority, attempts, status, queue, message,
      headers
    )
    select 300000 + n, now(), now(), 1, 0, 1, 'failed', 'default', '1', '{}'
    from generate_series(1, 20000) as n;
    select setval('messages.message_id_seq', 400000);
    analyze notifyq.dependency, messages.message_archive;
"""


# What vacuum leaves of tables whose rows are all gone, where it cannot give back their pages: the
# planner expects no row, however many follow.
VACUUMED_WHEN_EMPTY = """
    update pg_class set relpages = 100, reltuples = 0
    where relnamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)
      and relkind in ('r', 'i') and not relname like '%queue%';
    delete from pg_statistic
    where starelid in (
      select oid from pg_class
      where relnamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)
    );
"""


# What the planner knows of rows that a test has made.
each_statistics = pytest.mark.parametrize(
    "statistics",
    ["", VACUUMED_WHEN_EMPTY, "analyze"],
    ids=["never analysed", "analysed when empty", "analysed now"],
)


class Filled:
    """Databases that the tests of this file share, each filled once, with what the planner knows.

    Tests roll back all that they do.
    """

    def __init__(self, databases: Databases, stack: ExitStack) -> None:
        self._databases = databases
        self._stack = stack
        self._made: dict[tuple[str, str], str] = {}

    @asynccontextmanager
    async def explained(self, rows: str, analysed: str) -> AsyncIterator[Explained]:
        """Give a new session, in a transaction, over the rows that these statements make."""
        if (rows, analysed) not in self._made:
            self._made[rows, analysed] = await self._make(rows, analysed)
        async with session(self._made[rows, analysed]) as connection:
            explained = Explained(connection)
            await explained.start()
            transaction = connection.transaction()
            await transaction.start()
            yield explained
            await transaction.rollback()

    async def _make(self, rows: str, analysed: str) -> str:
        if analysed in {"when it was empty", "now"}:
            earlier = [self._made.pop((rows, it), None) for it in ("never", "when it was empty")]
            dsn = earlier[0] or earlier[1] or await self._fill(rows, is_seen=False)
            async with session(dsn) as connection:
                await connection.execute(
                    "analyze messages.message" if analysed == "now" else VACUUMED_WHEN_EMPTY
                )
            return dsn
        return await self._fill(rows, is_seen=analysed == "while it was filled")

    async def _fill(self, rows: str, *, is_seen: bool) -> str:
        dsn = self._stack.enter_context(self._databases.lend())
        async with session(dsn) as connection, session(dsn) as other:
            await connection.execute(
                "alter table messages.message set (autovacuum_enabled = off);"
                "set client_min_messages = error"
            )
            async with connection.transaction():
                await connection.execute(rows)
                if is_seen:
                    # As autovacuum may: it finds pages, and no row on them that is committed.
                    await other.execute("analyze messages.message")
        return dsn


@pytest.fixture(scope="module")
def filled(databases: Databases) -> Iterator[Filled]:
    with ExitStack() as stack:
        yield Filled(databases, stack)


# Of the module: the tests run in the order of its values, so that few databases are filled.
@pytest.fixture(scope="module", params=["never", "when it was empty", "while it was filled", "now"])
def analysed(request: pytest.FixtureRequest) -> str:
    """Give when the table of messages was analysed."""
    return str(request.param)


async def empty(connection: Connection) -> None:
    await connection.execute("truncate messages.message restart identity")


async def faults(explained: Explained, when: str, times: int = TIMES) -> list[str]:
    """Make every call several times, each rolled back so that all meet the same rows."""
    found: list[str] = []
    for call, statement in CALLS.items():
        for _ in range(times):
            plans = await explained.rolled_back(statement)
            assert plans
            bad = [plan for plan in plans if "message" in plan.scans or "JIT:" in plan.text]
            found += [f"{call}, {when}: {plan.text}" for plan in bad[:1]]
    return found


async def test_no_call_reads_the_whole_table_or_compiles_its_plan(explained: Explained) -> None:
    connection = explained.connection
    found = await faults(explained, "never filled")
    await explained.unexplained(BACKLOG)
    found += await faults(explained, "filled since the plan was made")
    await connection.execute("analyze messages.message")
    found += await faults(explained, "analysed", 1)
    await empty(connection)
    found += await faults(explained, "truncated")
    # As autovacuum does: then a table without pages is believed to have none permanently.
    await connection.execute("analyze messages.message")
    found += await faults(explained, "analysed when empty")
    await explained.unexplained(BACKLOG)
    found += await faults(explained, "filled again", 1)
    assert found == []


@pytest.mark.parametrize("analysed", ["never"], indirect=True)
async def test_a_new_session_makes_good_plans_over_a_backlog_never_analysed(
    filled: Filled, analysed: str
) -> None:
    async with filled.explained(BACKLOG, analysed) as explained:
        assert await faults(explained, "filled before") == []


MANY_QUEUES = "select messages.create_queue('q' || n) from generate_series(1, 300) as n"


async def test_a_backlog_of_many_queues_does_not_compare_each_with_each(
    filled: Filled, analysed: str
) -> None:
    async with filled.explained(MANY_QUEUES, analysed) as explained:
        for plan in await explained.plans(CALLS["backlog"]):
            assert sum(plan.removed("Join Filter")) < 3000, plan.text


@pytest.mark.parametrize(
    "call",
    ["claim", "claim of a queue", "full_scan claim", "claim of many queues", "take", "renotify"],
)
async def test_claiming_ten_of_a_backlog_reads_about_ten(
    filled: Filled, call: str, analysed: str
) -> None:
    async with filled.explained(BACKLOG, analysed) as explained:
        for _ in range(TIMES):
            plans = await explained.plans(CALLS[call])
            assert any("message_waiting_idx" in plan.text for plan in plans)
            for plan in plans:
                assert plan.most("Sort", "on message m") <= 10, plan.text


AGING = """
    select messages.create_queue('aging');
    insert into messages.message (queue, message, priority, available_at)
    select 'aging', to_jsonb(n), n % 7, now() - interval '1 second' * (n * 7919 % 50000)
    from generate_series(0, 49999) as n;
    select messages.alter_queue('aging', aging => '1 minute');
"""


# Its index is made in the transaction that fills it: nobody can analyse the table meanwhile.
@pytest.mark.parametrize("analysed", ["never", "when it was empty", "now"], indirect=True)
@pytest.mark.parametrize(
    "call",
    [
        "select * from messages.claim('{aging}', 10)",
        "select * from messages.claim('{aging}', 10, full_scan => true)",
        "select * from messages.claim('{aging}', 10, filter => '$ >= 0')",
        "select * from messages.take('aging', 10)",
    ],
)
async def test_claiming_ten_of_a_queue_with_aging_reads_about_ten(
    filled: Filled, call: str, analysed: str
) -> None:
    async with filled.explained(AGING, analysed) as explained:
        for _ in range(TIMES):
            plans = await explained.plans(call)
            assert any("message_aging_idx" in plan.text for plan in plans)
            for plan in plans:
                assert plan.most("Sort", "on message m") <= 10, plan.text


# What a claim of ten may read at most: where keys are gone through, about a thousand of them, or of
# messages without one.
LIMITS = {
    "concurrency => 1000": 100,
    "rate => 1000, rate_burst => 1000": 10,
    "ordered => true": 10,
    "key_concurrency => 2": 100,
    "fair => true": 1000,
}


@pytest.mark.parametrize("policy", LIMITS)
async def test_a_claim_by_limits_reads_no_more_than_it_must(
    filled: Filled, policy: str, analysed: str
) -> None:
    async with filled.explained(KEYS, analysed) as explained:
        await explained.plans(f"select messages.alter_queue('q', {policy})")
        for _ in range(TIMES):
            plans = await explained.plans("select * from messages.claim(array['q'], 10)")
            for plan in plans:
                assert "message" not in plan.scans, plan.text
                assert plan.most("Sort", "on message") <= LIMITS[policy], plan.text
        locked = "select count(*) from messages.message where state = 'locked'"
        assert await explained.connection.fetchval(locked) == 10 * TIMES


@pytest.mark.parametrize(("keys", "quantity"), [(5, 10), (100, 500)])
async def test_a_fair_claim_of_few_keys_reads_what_it_claims(
    explained: Explained, keys: int, quantity: int
) -> None:
    # Its name makes the index of the keys higher than that of what waits: as if that were cheaper.
    queue = "many-tenants"
    await explained.unexplained(f"""
        select messages.create_queue('{queue}', fair => true);
        insert into messages.message (queue, message, key)
        select '{queue}', '1', 'key ' || i % {keys} from generate_series(1, 20000) as i;
        select messages.claim(array['{queue}'], {quantity});
    """)
    for _ in range(TIMES):
        plans = await explained.plans(f"select * from messages.claim(array['{queue}'], {quantity})")
        assert any("Scan on steps" in plan.text for plan in plans), "it did not go from key to key"
        assert any("hashed SubPlan" in plan.text for plan in plans), "given ids are not hashed"
        for plan in plans:
            assert "message" not in plan.scans, plan.text
            # Now and then the next thousand are scanned for messages without a key.
            assert plan.most("Sort", "on message") <= 1000, plan.text


@pytest.mark.parametrize("call", ["finish", "finish_many", "take"])
async def test_archiving_reads_only_the_listed_messages(
    filled: Filled, call: str, analysed: str
) -> None:
    async with filled.explained(BACKLOG, analysed) as explained:
        for _ in range(TIMES):
            plans = await explained.rolled_back(CALLS[call])
            (plan,) = [it for it in plans if "Delete on" in it.text]
            assert "using message_id_pk on message m" in plan.text, plan.text
            assert plan.most("on message m") <= 10, plan.text


async def test_the_message_with_a_dedup_key_is_found_by_the_key(
    filled: Filled, analysed: str
) -> None:
    async with filled.explained(BACKLOG, analysed) as explained:
        for _ in range(TIMES):
            plans = await explained.rolled_back(CALLS["receive"])
            assert any("message_dedup_key_uq" in plan.text for plan in plans)
            for plan in plans:
                assert plan.most("on message m") <= 10, plan.text


@each_statistics
async def test_received_messages_are_found_in_the_receipts_by_index(
    explained: Explained, statistics: str
) -> None:
    rows = """
        insert into notifyq.relay_receipt (role, source, position, message_id)
        select notifyq.calling_role(), 's', n::text, n from generate_series(1, 20000) as n
    """
    await explained.unexplained(rows, statistics)
    # Some of it is known, and what came last must be.
    call = CALLS["receive_many"].replace("'{1,2}', '{d", "'{7,20001}', '{d")
    call = call.removesuffix(")") + ", after => '{19999,20000}')"
    for _ in range(TIMES):
        plans = await explained.rolled_back(call)
        assert any("relay_receipt_position_source_role_pk" in plan.text for plan in plans)
        for plan in plans:
            assert plan.most("on relay_receipt r") <= 10, plan.text


async def test_an_expired_lock_is_found_among_locked_messages(
    filled: Filled, analysed: str
) -> None:
    async with filled.explained(BACKLOG, analysed) as explained:
        for _ in range(TIMES):
            plans = await explained.plans(CALLS["reap"])
            for plan in plans:
                assert plan.most() <= 100, plan.text
            assert any("message_locked_idx" in plan.text for plan in plans)


async def test_a_million_scheduled_messages_cost_a_claim_one_lookup(explained: Explained) -> None:
    await explained.unexplained("""
        insert into messages.message (message, available_at)
        select '1', now() + interval '1 hour' from generate_series(1, 20000)
    """)
    for _ in range(TIMES):
        for plan in await explained.plans(CALLS["claim"]):
            assert plan.most("on message m") == 0, plan.text


@pytest.mark.parametrize(
    "call",
    [
        "select * from messages.attempts(77)",
        "select * from messages.logs(77)",
        "select messages.dead_delete(77)",
    ],
)
async def test_the_history_of_one_message_is_found_by_its_id(
    explained: Explained, call: str
) -> None:
    # As autovacuum does: then a partition without pages is believed to have none permanently.
    await explained.connection.execute(
        "analyze messages.attempt, notifyq.attempt_log, messages.message_archive"
    )
    for _ in range(TIMES):
        await explained.plans(call)
    await explained.unexplained("""
        insert into messages.attempt (message_id, lock_token, locked_at, number, status, queue)
        select i, 1, now(), 1, 'failed', 'default' from generate_series(1, 20000) as i;
        insert into notifyq.attempt_log (message_id, lock_token, attempt, queue, lines)
        select i, 1, 1, 'default', '{}' from generate_series(1, 20000) as i;
        with dead as (
          insert into messages.message_archive (
            id, created_at, available_at, lock_token, priority, attempts, status, queue, message,
            headers
          )
          select 77, now(), now(), 1, 0, 1, 'failed', 'default', '1', '{}'
        )
        select;
    """)
    plans = await explained.plans(call)
    assert any("on attempt_" in plan.text for plan in plans)
    for plan in plans:
        assert [it for it in plan.scans if it.startswith(("attempt", "message_archive"))] == []
        assert max([0, *plan.rows_of("on attempt_")]) <= 1, plan.text


# Those of one queue are found by an index-only scan over all that did not succeed.
DEAD = (
    "messages.dead_list()", "messages.dead_list(cancelled => false, quantity => 5)",
    "messages.dead_count()", "messages.dead_since()", "messages.backlog()",
    "notifyq.dead_groups()", """notifyq.search_archive('{"state": "dead"}')""",
    """notifyq.count_dead_matching('{"until": "2100-01-01"}', 100)""",
)  # fmt: skip


@each_statistics
async def test_readers_of_dead_messages_read_no_cancelled_ones(
    explained: Explained, statistics: str
) -> None:
    rows = """
        insert into messages.message_archive (
          id, created_at, available_at, lock_token, priority, attempts, status, queue, message,
          headers, cancelled_by
        )
        select i, now(), now(), 1, 0, 1, 'rejected', 'default', '1', '{}',
          case when i > 10 then 'ann' end
        from generate_series(1, 20000) as i;
    """
    await explained.unexplained(rows, statistics)
    for call in DEAD:
        for _ in range(TIMES):
            plans = await explained.plans(f"select * from {call}")
            assert any("message_archive" in plan.text for plan in plans)
            for plan in plans:
                assert plan.most("on message_archive_") <= 100, f"{call}: {plan.text}"


@each_statistics
async def test_messages_that_expire_are_not_compared_with_each_other(
    explained: Explained, statistics: str
) -> None:
    rows = """
        insert into messages.message (id, message) overriding system value
        select i, '1' from generate_series(1, 2000) as i;
        insert into notifyq.expiry (message_id, expires_at)
        select i, now() - interval '1 second' from generate_series(1, 1000) as i;
    """
    await explained.unexplained(rows, statistics)
    for call in ("messages.maintain()", "messages.claim(quantity => 10)"):
        for _ in range(TIMES):
            plans = await explained.rolled_back(f"select * from {call}")
            assert any("Delete on expiry" in plan.text for plan in plans), call
            for plan in plans:
                assert sum(plan.removed("Join Filter")) <= 1000, f"{call}: {plan.text}"


@each_statistics
async def test_dead_messages_are_not_compared_with_all_that_were_redriven(
    explained: Explained, statistics: str
) -> None:
    rows = """
        insert into messages.message_archive (
          id, created_at, available_at, lock_token, priority, attempts, status, queue, message,
          headers
        )
        select i, now(), now(), 1, 0, 1, 'failed', 'default', '1', '{}'
        from generate_series(1, 5000) as i;
        insert into notifyq.redrive (archive_id, message_id)
        select i, 10000 + i from generate_series(101, 5000) as i;
    """
    await explained.unexplained(rows, statistics)
    for call in {*DEAD, "messages.redrive(quantity => 10)"} - {"messages.dead_since()"}:
        for _ in range(TIMES):
            plans = await explained.rolled_back(f"select * from {call}")
            assert any("redrive r" in plan.text for plan in plans), call
            for plan in plans:
                assert sum(plan.removed("Join Filter")) <= 100, f"{call}: {plan.text}"


LIVE = '{"until": "2100-01-01"'
SEARCHES = {
    # What is searched, and how many rows at most an index gives for it.
    "notifyq.search_archive()": 4100,
    """notifyq.search_archive('{"queue": "q"}')""": 110,
    """notifyq.search_archive('{"state": "dead"}')""": 110,
    """notifyq.search_archive('{"key": "nothing"}', budget => '0')""": 5000,
    """notifyq.search_archive('{"since": "2026-01-02 5:00Z",
      "until": "2026-01-02 5:01Z"}')""": 110,
    """notifyq.search_archive('{"state": "dead", "queue": "q"}')""": 110,
    """notifyq.search_archive('{"fingerprint": "no luck"}', budget => '0')""": 110,
    """notifyq.search_archive('{"payload": "$ == 2"}', budget => '0')""": 410,
    "notifyq.dead_groups(budget => '0')": 1100,
    """notifyq.dead_groups('{"queue": "q", "since": "2026-01-02"}', budget => '0')""": 1100,
    "notifyq.dead_groups(before_at => '2026-01-01 12:00Z', before_id => 5000, budget => '0')": 1100,
    """notifyq.count_dead_matching('{"until": "2027-01-01"}', 100)""": 210,
    "notifyq.message_relatives(77)": 10,
    "notifyq.search_live(budget => '0')": 110,
    """notifyq.search_live('{"queue": "default", "state": "waiting"}', budget => '0')""": 11100,
    """notifyq.search_live('{"state": "locked"}')""": 210,
    """notifyq.search_live('{"queue": "default", "dedup_key": "d"}')""": 10,
    """notifyq.search_live('{"queue": "default", "key": "k"}')""": 11100,
    "notifyq.search_live(before_id => 20000, budget => '0')": 110,
    'messages.dead_retry_matching(\'{"until": "2027-01-01"}\', 100)': 210,
    "messages.redrive('q', quantity => 100)": 210,
    # A step over all queues reads what it changes; one of a queue looks for few candidates first.
    f"notifyq.count_live_matching('{LIVE}}}', 100)": 210,
    f"messages.cancel_matching('{LIVE}}}', 100)": 210,
    f"messages.run_now_matching('{LIVE}}}', 100, budget => '0')": 210,
    f"messages.amend_matching('{LIVE}}}', 3, 100)": 210,
    f"""messages.amend_matching('{LIVE}, "queue": "default"}}', 3, 100)""": 11100,
    f"""messages.move_matching('{LIVE}, "queue": "default"}}', 'q', 100)""": 11100,
    "messages.forget('k', quantity => 100, budget => '0')": 210,
    """messages.forget('k', after => '{"part": "archive"}', budget => '0')""": 5000,
}
MODES = ("auto", "force_custom_plan", "force_generic_plan")


async def test_a_search_reads_slices_by_an_index_under_any_plan(
    explained: Explained,
) -> None:
    """Two days of a huge archive, each planned for while it was empty."""
    connection = explained.connection
    await explained.unexplained("""
        select notifyq.make_partition('message_archive', 'archived_at', '2026-01-01');
        select notifyq.make_partition('message_archive', 'archived_at', '2026-01-02');
        select messages.create_queue('q');
        analyze messages.message_archive, messages.message;
    """)
    for call in SEARCHES:
        for _ in range(TIMES):
            await explained.rolled_back(f"select * from {call}")
    rows = """
        insert into messages.message_archive (
          id, created_at, available_at, archived_at, lock_token, priority, attempts, status, queue,
          message, headers, details
        )
        select i, t, t, t, 1, 0, 1, case when i % 2 = 0 then 'failed' else 'success' end
          ::messages.message_status, 'q' || repeat('x', i % 2), '1', '{}', 'no luck'
        from generate_series(1, 20000) as i
        cross join lateral (select timestamptz '2026-01-01Z' + i * interval '8 s') as x (t)
    """
    await explained.unexplained(BACKLOG, rows)
    found = await long_reads(explained)
    await connection.execute("analyze messages.message, messages.message_archive")
    assert found + await long_reads(explained) == []


async def long_reads(explained: Explained) -> list[str]:
    """Search in every way, by plans of every kind, and return those that read too much."""
    found: list[str] = []
    for mode, (call, most) in product(MODES, SEARCHES.items()):
        await explained.connection.execute(f"set plan_cache_mode = {mode}")
        plans = await explained.rolled_back(f"select * from {call}")
        assert plans
        for plan in plans:
            scans = [it for it in plan.scans if it.startswith(("message", "redrive"))]
            if scans or plan.most("on message") > most:
                found.append(f"{call}, {mode}: {plan.text}")
    return found


async def test_a_plan_that_reads_the_table_is_detected(explained: Explained) -> None:
    """The tests above must be able to fail."""
    statement = "select count(*) from messages.message where details = 'x'"
    (plan,) = await explained.plans(f"do $$ begin perform ({statement}); end $$")
    assert plan.scans == ["message"]
    assert plan.rows_of("on message") == [0]


# What reads the archive, and how many of its rows it may read: a little more than it gives.
READS = {
    "archive_list": ("select * from messages.archive_list(quantity => 10)", 60),
    "archive_list of a queue": ("select * from messages.archive_list('default', null, 10)", 20),
    "archive_list of dead": ("select * from messages.archive_list(null, 'failed', 10)", 20),
    "archive_list of dead of a queue": (
        "select * from messages.archive_list('q3', 'failed', 10)",
        0,
    ),
    "archive_find": ("select * from messages.archive_find(77)", 1),
    "dead_list": ("select * from messages.dead_list(quantity => 10)", 20),
    "dead_list of a queue": ("select * from messages.dead_list('q1', 10)", 22),
    "dead_list of a queue without dead messages": ("select * from messages.dead_list('q3', 10)", 0),
    "dead_count": ("select messages.dead_count()", 200),
    "dead_count of a queue": ("select messages.dead_count('q1')", 29),
    "queue_list": ("select * from notifyq.queue_list()", 0),
}


@each_statistics
async def test_reading_the_archive_does_not_grow_with_it(
    explained: Explained, statistics: str
) -> None:
    rows = """
        insert into messages.message_archive (
          id, created_at, available_at, archived_at, lock_token, priority, attempts, status, queue,
          message, headers
        )
        select n, t, t, t, 1, 0, 1,
          (case n % 100 when 0 then 'failed' else 'success' end)::messages.message_status,
          case when n % 7 = 0 then 'q1' when n % 10 = 1 then 'q3' else 'default' end, '1', '{}'
        from generate_series(1, 20000) as g (n),
          -- From midnight or noon on: a day of a few rows is read by any index.
          lateral (select date_bin('12 h', now(), '2001-01-01Z') - interval '10 s' * n) as w (t);
        select notifyq.make_partitions();
    """
    await explained.unexplained(rows, statistics)
    for call, (statement, most) in READS.items():
        for _ in range(TIMES):
            plans = await explained.plans(statement)
            assert plans
            for plan in plans:
                assert not [name for name in plan.scans if "archive" in name], (call, plan.text)
                read = sum(plan.rows_of(r"Scan[^\n]* on message_archive_\w+ \w+"))
                assert read + sum(plan.removed("Filter")) <= most, (call, plan.text)


@each_statistics
async def test_a_page_of_the_audit_reads_what_it_shows(
    explained: Explained, statistics: str
) -> None:
    rows = """
        insert into messages.audit (role, actor, action, subject)
        select 'r', 'a' || n % 3, 'queue.pause', 'default' from generate_series(1, 20000) as n
    """
    await explained.unexplained(rows, statistics)
    for page in (
        "quantity => 10",
        "before => 5000, quantity => 10",
        "actor => 'a1', quantity => 3",
    ):
        for _ in range(TIMES):
            plans = await explained.plans(f"select * from messages.audit_list({page})")
            [plan] = [it for it in plans if "on audit a" in it.text]
            assert "audit_id_pk" in plan.text
            read = sum(plan.rows_of("on audit a"))
            assert 0 < read + sum(plan.removed("Filter")) <= 10, plan.text


# What a call of a workflow may read: a few rows of each table, however many wait for others.
FOLLOWED = {
    "finish": "select messages.finish(3, 1)",
    "finish as dead": "select messages.finish(4, 1, 'failed')",
    "finish as dead, for one that holds": "select messages.finish(5, 1, 'failed')",
    "take": "select * from messages.take('taken', 3)",
    "reap": "select messages.reap()",
    "cancel": "select messages.cancel(7)",
    "publish": "select messages.publish('default', '1', after => array[8, 9])",
}


# Each in a session of its own: the plan that the first call leads to is kept for all others.
@pytest.mark.parametrize("call", FOLLOWED)
async def test_dependents_of_a_message_are_found_by_its_id(
    filled: Filled, call: str, analysed: str
) -> None:
    async with filled.explained(WORKFLOW, analysed) as explained:
        for _ in range(TIMES):
            plans = await explained.rolled_back(FOLLOWED[call])
            assert any("on dependency" in plan.text for plan in plans)
            for plan in plans:
                assert plan.most("on message", "on dependency") <= 10, plan.text


# Beside the workflow, rows about many messages in each table that knows messages by their ids.
ABOUT_MANY = f"""{WORKFLOW}
    insert into notifyq.step (message_id, number, name, kind, queue, attempt)
    select n, 1, 's', 'step', 'default', 1 from generate_series(1, 5000) as n;
    insert into notifyq.signal (name, message_id, payload, forget_at)
    select 's', 100000 + n, '1', now() + interval '1 hour' from generate_series(1, 5000) as n;
    insert into notifyq.signal_wait (message_id, step, signal)
    select 100000 + n, 's', 's' from generate_series(1, 5000) as n;
    insert into notifyq.end_wait (message_id, step, position, after_id)
    select 100000 + n, 's', 1, n from generate_series(1, 5000) as n;
    insert into notifyq.message_output (message_id, number, attempt, chunk)
    select n, 1, 1, '1' from generate_series(1, 5000) as n;
    insert into messages.message_archive (
      id, created_at, available_at, lock_token, priority, attempts, status, queue, message, headers
    )
    select 300000 + n, now(), now(), 1, 0, 1, 'failed', 'default', '1', '{{}}'
    from generate_series(1, 5000) as n;
    insert into notifyq.redrive (archive_id, message_id)
    select 302000 + n, n from generate_series(1, 3000) as n;
    insert into messages.attempt (message_id, lock_token, locked_at, number, status, queue)
    select 300000 + n, 1, now(), 1, 'failed', 'default' from generate_series(1, 5000) as n;
    insert into notifyq.attempt_log (message_id, lock_token, attempt, queue, lines)
    select 300000 + n, 1, 1, 'default', '{{}}' from generate_series(1, 5000) as n;
"""
ABOUT_ONE = (
    "messages.amend(7, priority => 3)", "messages.attempts(300001)", "messages.cancel(7)",
    "messages.await_any(3, 1, 'n', array['s', 't'], '1 h')",
    "messages.await_end(3, 1, 'n', array[9], '1 h')", "messages.dead_delete(300001)",
    "messages.dead_retry(300001)", "messages.dependencies(100007)", "messages.emit(3, 1, '1')",
    "messages.logs(300001)", "messages.message_find(7)", "messages.output(3)",
    "messages.retry(3, 1)",
    "notifyq.keep_logs('{{3,300002}}', '{{1,1}}', '{{1,1}}', array['[]', '[]']::json[])",
    "messages.run_now(7)", "messages.signal('s', '1', 7)",
    "messages.sleep(3, 1, 'x', delay => '1 h')", "messages.step(3, 1, 'x')", "messages.steps(3)",
    "messages.unblock(100009)", "notifyq.message_relatives(7)", "notifyq.recorded_steps(3, 1)",
)  # fmt: skip


@pytest.mark.parametrize("analysed", ["when it was empty", "now"], indirect=True)
async def test_a_call_about_one_message_reads_no_rows_of_others(
    filled: Filled, analysed: str
) -> None:
    async with filled.explained(ABOUT_MANY, analysed) as explained:
        for call in ABOUT_ONE:
            for _ in range(TIMES):
                plans = await explained.rolled_back(f"select * from {call}")
                assert plans
                for plan in plans:
                    assert plan.most(r"\bon (?!pg_|queue)\w+") <= 20, f"{call}: {plan.text}"


# 2000 messages of 20,000: what one waits for, what others wait for, and dead ones.
MANY = {
    "finish": "select messages.finish(1, 1)",
    "finish_many": "select count(*) from messages.finish_many("
    "array(select n from generate_series(2, 2001) as n), array_fill(1::bigint, array[2000]), "
    "array_fill('success'::messages.message_status, array[2000]))",
    "dead_retry": "select count(*) from messages.dead_retry("
    "variadic array(select n from generate_series(300001, 302000) as n))",
    "redrive": "select messages.redrive(quantity => 2000)",
    "maintain": "select messages.maintain()",
}


@pytest.mark.parametrize("call", MANY)
@pytest.mark.parametrize("analysed", ["when it was empty", "now"], indirect=True)
async def test_many_messages_are_not_compared_with_each_other(
    filled: Filled, call: str, analysed: str
) -> None:
    async with filled.explained(CROWD, analysed) as explained:
        for _ in range(TIMES):
            plans = await explained.rolled_back(MANY[call])
            assert plans
            for plan in plans:
                assert sum(plan.removed()) <= 4000, plan.text


# Statements that find the few due rows of a table.
DUE = {
    "claim": "select * from messages.claim(array['default'], 10)",
    "claim_id": "select * from messages.claim_id(77)",
    "publish within a window": CALLS["publish within a window"],
    "next_batch": "select messages.next_batch('s', 'a')",
    "forward_pending": "select notifyq.forward_pending()",
    "maintain": "select messages.maintain()",
    "signal": "select messages.signal('s', '1', 77)",
    "report_anomalies": "select notifyq.report_anomalies('[]')",
}
IN_AN_HOUR = "now() + interval '1 hour' from generate_series(1, 5000) as n"


@each_statistics
async def test_due_rows_are_found_by_time(explained: Explained, statistics: str) -> None:
    rows = f"""
        select messages.create_stream('s');
        select messages.subscribe('s', 'a');
        select messages.forward('s', 'b', 'default');
        insert into notifyq.event_retry (
          subscription, event_id, retries, created_at, message, headers, due_at
        )
        select (select min(id) from messages.subscription), n, 1, now(), '1', '{{}}', {IN_AN_HOUR};
        insert into notifyq.dedup (queue, dedup_key, id, expires_at)
        select 'default', n::text, n, {IN_AN_HOUR};
        insert into notifyq.expiry (message_id, expires_at) select n, {IN_AN_HOUR};
        insert into notifyq.signal (name, message_id, payload, is_new, forget_at)
        select 's', n, '1', false, {IN_AN_HOUR};
        insert into messages.message (id, message) overriding system value values (77, '1');
        insert into notifyq.signal_wait (message_id, step, signal, is_new)
        select n, 'w', 's', false from generate_series(1, 5000) as n;
        insert into notifyq.message_output (message_id, number, attempt, chunk, forget_at)
        select n, 1, 1, '1', {IN_AN_HOUR};
        insert into notifyq.relay_receipt (role, source, position, message_id, forget_at)
        select 'r', 's', n::text, n, {IN_AN_HOUR};
        insert into messages.anomaly (
          bucket_at, value, expected, chance, finished, queue, metric, details
        )
        select now() - n * interval '1 minute', 1, 1, 1, 1, 'default', 'wait', ''
        from generate_series(1, 5000) as n;
    """
    await explained.unexplained(rows, statistics)
    of_them = (
        r"on (?:event_retry|dedup|expiry|signal|signal_wait|message_output|relay_receipt|anomaly)\b"
    )
    for call, statement in DUE.items():
        for _ in range(TIMES):
            plans = await explained.rolled_back(statement)
            plans = [plan for plan in plans if re.search(of_them, plan.text)]
            assert plans, call
            for plan in plans:
                assert plan.most(of_them) <= 10, (call, plan.text)
