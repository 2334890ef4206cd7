"""What a viewer reads: what was granted to it, and neither rows nor counts of anything else."""

from __future__ import annotations

import json
from typing import Any

import asyncpg
import pytest

from notifyq.errors import DatabaseError, InvalidArgumentError, QueueDeniedError, QueueNotFoundError
from security.conftest import Enter, role_name
from support.database import Connection, one_row, value

# Each function that a viewer may call, with all that it can be asked for without a name. Of {q}
# and {s}, a queue and a stream, and messages of that queue, for those that take a name or an id.
LISTS = {
    "messages.queue_info": ["select * from messages.queue_info()"],
    "messages.queue_grants": ["select queue, role, may_read from messages.queue_grants()"],
    "messages.queue_shares": ["select * from messages.queue_shares()"],
    "messages.queue_limits": ["select * from messages.queue_limits()"],
    "messages.message_list": [
        "select * from messages.message_list(quantity => 10000)",
        "select * from messages.message_list(state => 'locked')",
    ],
    "messages.archive_list": [
        "select * from messages.archive_list()",
        "select * from messages.archive_list(status => 'failed')",
        "select * from messages.archive_list(status => 'success')",
    ],
    "messages.archive_summary": ["select * from messages.archive_summary()"],
    "messages.dead_list": [
        "select * from messages.dead_list()",
        "select * from messages.dead_list(cancelled => true)",
        "select * from messages.dead_list(subscriber => 'sub')",
    ],
    "messages.dead_count": [
        "select messages.dead_count()",
        "select messages.dead_count(cancelled => true)",
        "select messages.dead_count(subscriber => 'sub')",
    ],
    "messages.dead_since": ["select * from messages.dead_since()"],
    "messages.parked": ["select * from messages.parked()"],
    "messages.schedule_info": ["select * from messages.schedule_info()"],
    "messages.stream_info": ["select * from messages.stream_info()"],
    "messages.subscription_info": [
        "select * from messages.subscription_info()",
    ],
    "messages.forwards": ["select * from messages.forwards()"],
    "messages.backlog": [
        "select * from messages.backlog()",
        # More wait than are counted: an estimate would be of all queues.
        "select * from messages.backlog(most => 1)",
    ],
    "messages.throughput": [
        "select * from messages.throughput('2001-01-01', '2101-01-01', '1000 days')",
        "select * from messages.throughput("
        "'2001-01-01', '2101-01-01', '1000 days', by_queue => true)",
        "select * from messages.throughput('2001-01-01', '2101-01-01', '1000 days', most => 8)",
    ],
    # The ages grow in each call.
    "messages.health": [
        "select name, subject, unit, value > 0 as is_late from messages.health()",
    ],
    "notifyq.search_live": [
        "select * from notifyq.search_live()",
        *(
            f"""select * from notifyq.search_live('{{"{name}": "{wanted}"}}')"""
            for name, wanted in (
                ("state", "waiting"),
                ("state", "locked"),
                ("key", "k"),
                ("type", "t"),
                ("worker", "w"),
                ("payload", "$.n > 0"),
            )
        ),
    ],
    "notifyq.search_archive": [
        "select * from notifyq.search_archive()",
        # Where the budget ends, the last row has the position of the row that was read last.
        *(
            f"""select * from notifyq.search_archive('{{"state": "{it}"}}', budget => '1 us')"""
            for it in ("dead", "failed", "rejected")
        ),
        *(
            f"""select * from notifyq.search_archive('{{"{name}": "{wanted}"}}')"""
            for name, wanted in (
                ("state", "dead"),
                ("state", "failed"),
                ("state", "success"),
                ("state", "rejected"),
                ("error", "boom"),
                ("subscriber", "sub"),
                ("fingerprint", "boom"),
                ("worker", "w"),
                ("key", "k"),
            )
        ),
    ],
    # The last row has the number of those that were read.
    "notifyq.dead_groups": [
        "select * from notifyq.dead_groups()",
        "select * from notifyq.dead_groups(budget => '1 us')",
    ],
    "notifyq.open_batches": [
        "select * from notifyq.open_batches()",
    ],
    "notifyq.queue_list": ["select * from notifyq.queue_list()"],
    "notifyq.archive_extent": ["select * from notifyq.archive_extent()"],
    "notifyq.subscription_lags": [
        "select * from notifyq.subscription_lags()",
    ],
    "notifyq.archive_names": ["select * from notifyq.archive_names()"],
    # Not a function, but a viewer may read it: the rows of an export.
    "notifyq.readable_archive": [
        "select * from notifyq.readable_archive",
        "select count(*) from notifyq.readable_archive",
        "select count(*) from notifyq.readable_archive where status <> 'success'",
    ],
}
# Refused with NQ007, whether there is such a queue or not.
NAMES = {
    "messages.queue_info": "select * from messages.queue_info('{q}')",
    "messages.queue_grants": "select * from messages.queue_grants('{q}')",
    "messages.queue_shares": "select * from messages.queue_shares('{q}')",
    "messages.queue_limits": "select * from messages.queue_limits('{q}')",
    "messages.message_list": "select * from messages.message_list('{q}')",
    "messages.archive_list": "select * from messages.archive_list('{q}', 'failed')",
    "messages.archive_summary": "select * from messages.archive_summary('{q}')",
    "messages.dead_list": "select * from messages.dead_list('{q}')",
    "messages.dead_count": "select messages.dead_count('{s}', 'sub')",
    "messages.dead_since": "select * from messages.dead_since(null, '{q}')",
    "messages.events_since": "select * from messages.events_since('{s}')",
    "messages.parked": "select * from messages.parked('{q}')",
    "messages.stream_info": "select * from messages.stream_info('{s}')",
    "messages.subscription_info": "select * from messages.subscription_info('{s}', 'sub')",
    "messages.forwards": "select * from messages.forwards('{s}')",
    "messages.backlog": "select * from messages.backlog('{q}')",
    "messages.throughput": "select * from messages.throughput(queue => '{q}')",
    "notifyq.search_live": """select * from notifyq.search_live('{{"queue": "{q}"}}')""",
    "notifyq.search_archive": """select * from notifyq.search_archive('{{"queue": "{q}"}}')""",
    "notifyq.dead_groups": """select * from notifyq.dead_groups('{{"queue": "{q}"}}')""",
    "notifyq.open_batches": "select * from notifyq.open_batches('{s}')",
    "notifyq.queue_list": "select * from notifyq.queue_list('{q}')",
}
# No row, as for an id that is unknown.
IDS = {
    "messages.message_find": ["select * from messages.message_find({parked})"],
    "messages.archive_find": ["select * from messages.archive_find({dead})"],
    "messages.attempts": ["select * from messages.attempts({dead})"],
    "messages.logs": ["select * from messages.logs({dead})"],
    "messages.steps": ["select * from messages.steps({parked})"],
    "messages.dependencies": ["select * from messages.dependencies({blocked})"],
    "messages.parked": ["select * from messages.parked(id => {parked})"],
    "notifyq.message_relatives": [
        "select * from notifyq.message_relatives({blocked})",
        "select * from notifyq.message_relatives({waiting})",
        "select * from notifyq.message_relatives({retried})",
    ],
    "messages.schedule_info": ["select * from messages.schedule_info('nightly {q}')"],
    "notifyq.subscription_lags": ["select * from notifyq.subscription_lags(10, '{s}', 'sub')"],
}
# These show nothing of a queue.
NEUTRAL = {
    "messages.version",
    "messages.current_position",
    "messages.known_position",
    "messages.cron_next",
    "notifyq.oldest_client",
    "notifyq.snapshot_of",
    "notifyq.error_fingerprint",
}


class Filled:
    """A queue with a message in each state, and a stream: something of all that is ever read."""

    def __init__(self, connection: Connection, queue: str, stream: str) -> None:
        self.connection = connection
        self.ids: dict[str, Any] = {"q": queue, "s": stream}

    async def put(self, state: str, more: str = "") -> None:
        self.ids[state] = await self.connection.fetchval(
            "select messages.publish($1, jsonb_build_object('n', 1, 'of', $1::text), type => 't', "
            f"key => 'k', headers => '{{}}'{more})",
            self.ids["q"],
        )

    async def claim(self) -> Any:
        queue = self.ids["q"]
        claim = "select id, lock_token from messages.claim(array[$1], 1, worker => $2)"
        return await self.connection.fetchrow(claim, queue, f"w {queue}")

    async def queue(self) -> None:
        queue, run = self.ids["q"], self.connection.execute
        limits = {"max_attempts": 2, "fair": True, "key_rate": 10**9}
        await value(self.connection, "create_queue", name=queue, **limits)
        await value(self.connection, "set_share", queue=queue, key="k", weight=2.0)
        await value(self.connection, "set_limit", queue=queue, key="k", rate=1000)
        await self.put("parked")
        held = await self.claim()
        await run("select messages.step($1, $2, 'a', '1')", *held)
        await run("select messages.sleep($1, $2, 'nap', delay => '1 hour')", *held)
        for state in ("dead", "retried"):
            await self.put(state)
            held = await self.claim()
            await run(
                "select notifyq.keep_logs(array[$1::bigint], array[$2::bigint], '{1}', "
                """array['[{"text": "line"}]'::json])""",
                *held,
            )
            await run("select messages.retry($1, $2, '0', 'boom')", *held)
            await run("select messages.finish($1, $2, 'failed', 'boom')", *await self.claim())
        await run("select messages.dead_retry($1)", self.ids["retried"])
        await run("select messages.finish($1, $2)", *await self.claim())
        await self.put("cancelled")
        await run("select messages.cancel($1)", self.ids["cancelled"])
        await self.put("locked")
        await self.claim()
        await self.put("waiting")
        await self.put("waiting")
        await self.put("scheduled", ", delay => interval '1 day'")
        await self.put("blocked", f", after => array[{self.ids['waiting']}]")
        schedule = "select messages.schedule($1, '0 0 1 1 *', $2, '1')"
        await run(schedule, f"nightly {queue}", queue)
        await value(self.connection, "grant_read", queue=queue, role="notifyq_admin")

    async def stream(self) -> None:
        stream, run = self.ids["s"], self.connection.execute
        await value(self.connection, "create_stream", name=stream)
        await value(self.connection, "subscribe", stream=stream, subscriber="sub")
        to = {"stream": stream, "subscriber": "to", "queue": self.ids["q"]}
        await value(self.connection, "forward", **to)
        for _ in range(2):
            await run("select messages.publish($1, '1')", stream)
        batch = await value(self.connection, "next_batch", stream=stream, subscriber="sub")
        event = "select min(id) from messages.batch_events($1)"
        event = await self.connection.fetchval(event, batch)
        await run("select messages.fail_event($1, $2, 'boom')", batch, event)


# So many dead messages that not all are counted, one of a day without a table, and a roll-up of a
# lake, which has no row for each message.
MORE = """
insert into messages.message_archive (id, queue, message, headers, status, details, created_at,
  available_at, locked_at, lock_token, attempts, priority)
select 1000000 + i, 'theirs 0', '1', '{}', 'failed', 'boom', now(), now(), now(), 1, 1, 0
from generate_series(1, 2001) as i;
insert into messages.message_archive (id, queue, message, headers, status, created_at, available_at,
  archived_at, lock_token, attempts, priority)
values (1, 'theirs 0', '1', '{}', 'success', '2000-01-01', '2000-01-01', '2000-01-01', 1, 1, 0);
insert into notifyq.rollup (lake, span, bucket_at, queue, type, status, finished, dead, retried,
  attempts, waited, wait_total_us, wait_max_us, wait_bins, wait_counts, ran, run_total_us,
  run_max_us, run_bins, run_counts)
select l.id, 'hour', '2020-01-01', u.queue, '', 'success', 7, 0, 0, 7, 7, 7, 7, '{1}', '{7}', 7, 7,
  7, '{1}', '{7}'
from notifyq.create_lake('/lake') as l, unnest('{mine,theirs 0}'::text[]) as u (queue);
insert into notifyq.lake_batch (lake, dataset) select l.id, 'archive' from notifyq.lake as l;
insert into notifyq.rollup_progress (lake, batch) select b.lake, b.id from notifyq.lake_batch as b;
analyze;
"""


async def fill(connection: Connection, queue: str, stream: str) -> dict[str, Any]:
    filled = Filled(connection, queue, stream)
    await filled.queue()
    await filled.stream()
    return filled.ids


async def give(connection: Connection, who: str, *names: str) -> None:
    for name in names:
        await value(connection, "grant_read", queue=name, role=role_name(who))


async def seen(session: Connection, statement: str) -> list[dict[str, Any]]:
    """The rows, without the age of an event, which is another in each call."""
    rows = await session.fetch(f"select to_jsonb(r) - 'lag' from ({statement}) as r")
    return sorted((row[0] for row in rows), key=json.dumps)


def shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the rows that are not empty: an aggregate has one with 0."""
    return [it for it in rows if any(it.values())]


async def all_seen(session: Connection, ids: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    listed = [it for group in LISTS.values() for it in group]
    found = [it.format(**ids) for group in IDS.values() for it in group]
    named = [it.format(**ids) for it in NAMES.values() if "backlog" not in it]
    return {it: await seen(session, it) for it in (*listed, *found, *named)}


async def code_of(session: Connection, statement: str) -> str | None:
    try:
        await session.execute(statement)
    except asyncpg.PostgresError as error:
        return error.sqlstate
    except DatabaseError as error:
        return error.sqlstate
    return None


async def test_every_function_and_table_of_a_viewer_is_tried(connection: Connection) -> None:
    """A new function needs a decision, and a place here."""
    functions = await connection.fetch("""
        select distinct format('%s.%s', p.pronamespace::regnamespace, p.proname)
        from pg_proc as p
        where p.pronamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)
          and has_function_privilege('notifyq_viewer', p.oid, 'execute')
    """)
    relations = await connection.fetch("""
        select format('%s.%s', c.relnamespace::regnamespace, c.relname)
        from pg_class as c
        where c.relnamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)
          and c.relkind in ('r', 'p', 'v', 'm', 'S')
          and case c.relkind
            when 'S' then has_sequence_privilege('notifyq_viewer', c.oid, 'select, usage, update')
            else has_table_privilege(
                'notifyq_viewer', c.oid, 'select, insert, update, delete, truncate, trigger')
              or has_any_column_privilege('notifyq_viewer', c.oid, 'select, insert, update')
          end
    """)
    assert {row[0] for row in relations} == {"notifyq.readable_archive"}
    found = {row[0] for row in (*functions, *relations)}
    assert found == {*LISTS, *NAMES, *IDS, *NEUTRAL}
    named = await connection.fetch("""
        select distinct format('%s.%s', p.pronamespace::regnamespace, p.proname)
        from pg_proc as p
        where p.pronamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)
          and has_function_privilege('notifyq_viewer', p.oid, 'execute')
          and p.proargnames[:p.pronargs] && '{queue,stream,conditions}'
    """)
    assert {row[0] for row in named} - {*NAMES} == {"notifyq.subscription_lags"}


@pytest.mark.parametrize("who", ["viewer", "reader"])
async def test_what_others_do_changes_nothing_that_a_viewer_sees(
    connection: Connection, enter: Enter, who: str
) -> None:
    """Rows, counts, ages and positions: all answers are the same as if the others were not."""
    own = await fill(connection, "mine", "feed")
    await give(connection, who, "mine", "feed")
    session = await enter(who)
    before = await all_seen(session, own)
    empty = [it for it, rows in before.items() if not rows]
    assert empty == []
    for number in range(3):
        await fill(connection, f"theirs {number}", f"tide {number}")
    await connection.execute(MORE)
    after = await all_seen(session, own)
    changed = [it for it in before if before[it] != after[it]]
    if who == "viewer":
        assert changed == []
        assert "theirs" not in str(after)
        assert "tide" not in str(after)
    else:
        # Else equal answers would prove nothing.
        unchanged = {it for group in LISTS.values() for it in group} - {*changed}
        assert unchanged == {"select * from notifyq.archive_names()"}


async def test_the_health_of_a_viewer_is_that_of_its_queues(
    connection: Connection, enter: Enter
) -> None:
    for name in ("mine", "late", "paused"):
        await value(connection, "create_queue", name=name)
        for _ in range(2):
            await value(connection, "publish", queue=name, message=1)
        delay = "select messages.publish($1, '1', delay => interval '1 day')"
        await connection.execute(delay, name)
        await connection.fetch("select id from messages.claim(array[$1])", name)
    await connection.execute("""
        update messages.message set created_at = created_at - interval '2 days',
          available_at = available_at - interval '2 days',
          locked_at = locked_at - interval '2 days',
          lock_expires_at = lock_expires_at - interval '2 days'
        where queue <> 'mine';
        select messages.pause_queue('paused');
    """)
    viewer = await enter("viewer")
    figures = "select name, value > 60 from messages.health()"
    found: dict[str, dict[str, bool]] = {}
    for name in ("mine", "paused", "late"):
        await give(connection, "viewer", name)
        found[name] = {row[0]: row[1] for row in await viewer.fetch(figures)}
    names = ("expired_for", "overdue_for", "waiting_for")
    assert found == {
        "mine": dict.fromkeys(names, False),
        "paused": dict.fromkeys(names, False) | {"expired_for": True},
        "late": dict.fromkeys(names, True),
    }
    for it in ("table_sizes()", "notification_counters()", "failing_duties()", "diagnose()"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await viewer.execute(f"select notifyq.{it}")


async def test_ids_and_names_of_others_give_nothing(connection: Connection, enter: Enter) -> None:
    own = await fill(connection, "mine", "feed")
    theirs = await fill(connection, "theirs", "tide")
    await give(connection, "viewer", "mine", "feed")
    viewer = await enter("viewer")
    for group in IDS.values():
        for it in group:
            assert await seen(viewer, it.format(**theirs)) == [], it
            assert await seen(viewer, it.format(**own)) != [], it
    unknown = {**theirs, "q": "thirs", "s": "tid"}
    wrong = {
        it: codes
        for it in NAMES.values()
        if (codes := [await code_of(viewer, it.format(**ids)) for ids in (theirs, unknown, own)])
        != ["NQ007", "NQ007", None]
    }
    assert wrong == {}
    with pytest.raises(QueueDeniedError, match="may not read queue 'theirs'") as caught:
        await viewer.execute(NAMES["messages.message_list"].format(**theirs))
    assert "grant_read" in (caught.value.hint or "")


async def test_relations_to_messages_of_others_are_left_out(
    connection: Connection, enter: Enter
) -> None:
    own, theirs = [await fill(connection, *it) for it in (("mine", "feed"), ("theirs", "tide"))]
    publish = "select messages.publish($1, '1', after => array[$2::bigint])"
    waits = await connection.fetchval(publish, "mine", theirs["waiting"])
    foreign = await connection.fetchval(publish, "theirs", own["waiting"])
    await give(connection, "viewer", "mine")
    viewer = await enter("viewer")
    for id_ in (waits, foreign):
        assert await seen(viewer, f"select * from messages.dependencies({id_})") == []
        assert await seen(viewer, f"select * from notifyq.message_relatives({id_})") == []
    relatives = f"select id from notifyq.message_relatives({own['waiting']})"
    assert await seen(viewer, relatives) == [{"id": own["blocked"]}]


async def test_ends_of_messages_of_others_are_left_out(
    connection: Connection, enter: Enter
) -> None:
    children: dict[str, int] = {}
    for name in ("mine", "theirs"):
        await value(connection, "create_queue", name=name)
        children[name] = await value(connection, "publish", queue=name, message=1)
    await connection.execute("""
        select messages.finish(c.id, c.lock_token, result => '"secret"')
        from messages.claim('{mine,theirs}', 2) as c
    """)
    open_ = [await value(connection, "publish", queue=it, message=1) for it in ("theirs", "theirs")]
    parent = await value(connection, "publish", queue="mine", message=1)
    held = await one_row(connection, "select id, lock_token from messages.claim('{mine}')")
    await_end = "select state from messages.await_end($1, $2, $3, $4)"
    await connection.fetch(await_end, *held, "both", [*children.values()])
    await connection.fetch(await_end, *held, "more", open_)
    await give(connection, "viewer", "mine")
    viewer, reader = await enter("viewer"), await enter("reader")
    ended = (
        f"select s.name, e ->> 'queue' as queue, e -> 'result' as result "
        f"from messages.steps({parent}) as s, jsonb_array_elements(s.value) as e"
    )
    mine = {"name": "both", "queue": "mine", "result": "secret"}
    assert await seen(viewer, ended) == [mine]
    assert await seen(reader, ended) == [mine, mine | {"queue": "theirs"}]
    parked = "select name, waits_for from messages.parked('mine')"
    assert await seen(viewer, parked) == [{"name": "more", "waits_for": None}]
    waits_for = ", ".join(map(str, open_))
    assert await seen(reader, parked) == [{"name": "more", "waits_for": waits_for}]


@pytest.mark.parametrize("who", ["viewer", "reader"])
async def test_a_grant_that_closes_a_queue_hides_nothing_from_who_may_read_it(
    connection: Connection, enter: Enter, who: str
) -> None:
    own = await fill(connection, "mine", "feed")
    await give(connection, who, "mine", "feed")
    session = await enter(who)
    before = await all_seen(session, own)
    for name in ("mine", "feed"):
        await value(connection, "grant_queue", queue=name, role="notifyq_admin")
    after = await all_seen(session, own)
    changed = [it for it in before if before[it] != after[it]]
    # They show the grants, and the statistics of the server.
    assert [it for it in changed if "queue_grants" not in it and "health" not in it] == []


async def test_without_a_grant_a_viewer_sees_nothing(connection: Connection, enter: Enter) -> None:
    """A queue is open to publishers and workers, but not to viewers."""
    own = await fill(connection, "mine", "feed")
    viewer = await enter("viewer")
    for group in LISTS.values():
        for it in group:
            # Each day of the archive has its table, with or without rows.
            assert "archive_extent" in it or shown(await seen(viewer, it)) == [], it
    for group in IDS.values():
        for it in group:
            assert await seen(viewer, it.format(**own)) == [], it
    for it in NAMES.values():
        assert await code_of(viewer, it.format(**own)) == "NQ007", it


async def test_a_function_of_a_viewer_shows_no_more_to_anybody(
    connection: Connection, enter: Enter
) -> None:
    """Who lends a right by SECURITY DEFINER, or takes another role, lends its grants at most."""
    await fill(connection, "mine", "feed")
    await connection.execute("create schema lent; grant all on schema lent to public")
    viewer, mallory = await enter("viewer"), await enter("mallory")
    statements = {
        name: it
        for name, group in LISTS.items()
        for it in group[:1]
        if name != "notifyq.archive_extent"
    }
    for number, it in enumerate(statements.values()):
        await viewer.execute(
            f"create function lent.f{number}() returns setof text language sql security definer "
            f"as $$ select to_jsonb(r)::text from ({it}) as r $$"
        )
    for number, it in enumerate(statements.values()):
        rows = [json.loads(row[0]) for row in await mallory.fetch(f"select lent.f{number}()")]
        assert shown(rows) == [], it


async def test_a_grant_counts_for_members_and_ends_with_its_revocation(
    connection: Connection, enter: Enter
) -> None:
    await value(connection, "create_queue", name="mine")
    await value(connection, "publish", queue="mine", message=1)
    admin, biller = await enter("admin"), await enter("biller")
    await connection.execute(f"grant notifyq_viewer to {role_name('biller')}")
    await connection.execute(f"revoke {role_name('billing')} from {role_name('biller')}")
    count = "select count(*) from messages.message_list()"
    grant = "select messages.grant_read('mine', $1)"
    try:
        assert await biller.fetchval(count) == 0
        assert await admin.fetchval(grant, role_name("billing"))
        assert not await admin.fetchval(grant, role_name("billing"))
        assert await biller.fetchval(count) == 0
        await connection.execute(f"grant {role_name('billing')} to {role_name('biller')}")
        assert await biller.fetchval(count) == 1
        revoke = "select messages.revoke_read('mine', $1)"
        assert await admin.fetchval(revoke, role_name("billing"))
        assert not await admin.fetchval(revoke, role_name("billing"))
    finally:
        await connection.execute(f"revoke notifyq_viewer from {role_name('biller')}")
        await connection.execute(f"grant {role_name('billing')} to {role_name('biller')}")
    with pytest.raises(QueueNotFoundError):
        await admin.fetchval("select messages.grant_read('nope', 'notifyq_viewer')")
    with pytest.raises(InvalidArgumentError, match="no role"):
        await admin.fetchval("select messages.grant_read('mine', 'nobody')")
    for who in ("viewer", "reader", "worker", "publisher"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await (await enter(who)).execute("select messages.grant_read('mine', 'pg_monitor')")


async def test_a_grant_to_read_closes_nothing(connection: Connection, enter: Enter) -> None:
    await value(connection, "create_queue", name="mine")
    await value(connection, "create_stream", name="feed")
    await give(connection, "viewer", "mine", "feed")
    await (await enter("publisher")).execute("select messages.publish('mine', '1')")
    worker = await enter("worker")
    assert await worker.fetchval("select count(*) from messages.claim('{mine}')") == 1
    assert await worker.fetchval("select messages.subscribe('feed', 'sub')")
    viewer = await enter("viewer")
    for statement in (
        "select messages.publish('mine', '1')",
        "select messages.claim('{mine}')",
        "select messages.result(1)",
        "select messages.output(1)",
        "insert into messages.message (queue, message) values ('mine', '1')",
        "select messages.cancel(1)",
        "begin; lock table notifyq.readable_archive in row exclusive mode",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await viewer.execute(statement)
        await viewer.execute("rollback")


async def test_grants_are_dropped_with_their_queue_or_stream(
    connection: Connection, enter: Enter
) -> None:
    await fill(connection, "mine", "feed")
    await give(connection, "viewer", "mine", "feed")
    await connection.execute("""
        select messages.unforward('feed', 'to'), messages.drop_stream('feed', true),
          messages.drop_queue('mine', true);
        select messages.create_queue('mine'), messages.create_stream('feed');
    """)
    viewer = await enter("viewer")
    assert await viewer.fetchval("select count(*) from notifyq.readable_archive") == 0
    assert await viewer.fetch("select * from messages.queue_info()") == []
    assert await connection.fetch("select * from messages.queue_grants()") == []


async def test_a_worker_that_is_a_viewer_too_reads_what_it_may_consume(
    connection: Connection, enter: Enter
) -> None:
    for name in ("mine", "open", "theirs"):
        await value(connection, "create_queue", name=name)
        await value(connection, "publish", queue=name, message=1)
    for name in ("mine", "theirs"):
        await value(connection, "grant_queue", queue=name, role="notifyq_admin")
    await give(connection, "worker", "mine")
    await connection.execute(f"grant notifyq_viewer to {role_name('worker')}")
    try:
        worker = await enter("worker")
        rows = await worker.fetch("select queue from messages.message_list()")
        assert sorted(row["queue"] for row in rows) == ["mine", "open"]
    finally:
        await connection.execute(f"revoke notifyq_viewer from {role_name('worker')}")
