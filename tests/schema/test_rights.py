"""Rights: what each role may do, tried; everything else is denied."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from notifyq import LockNotHeldError, QueueDeniedError
from support.database import Connect, Connection, publish

Denied = asyncpg.InsufficientPrivilegeError

PUBLISH = [
    "select messages.publish('default', '1')",
    "select messages.publish_many('default', array['1']::jsonb[])",
    "select messages.is_duplicate(1)",
    "select notifyq.noted_duplicates()",
    "insert into messages.message (message) values ('1')",
    "select notifyq.check_inserted(1, 'default', true)",
    "insert into messages.stream_event (stream, type, key, message, headers) "
    "values ('orders', 't', 'k', '1', '{}')",
    "insert into messages.stream_event (stream, message) values ('orders', '1')",
    # Which that insert does.
    "select notifyq.admit_event('orders', '1', null)",
    "select nextval('messages.event_id_seq')",
    "select messages.uncapture('pg_class', 'orders')",
    *(
        f"create temporary table mine (id integer); {statement}"
        for statement in (
            "select messages.capture_sql('mine', 'orders')",
            "select messages.capture('mine', 'orders')",
            "create trigger t after insert on mine referencing new table as captured "
            "for each statement execute function notifyq.capture_rows('orders', '')",
            "create trigger t after update on mine referencing old table as captured_old new table "
            "as captured for each statement "
            "execute function notifyq.capture_updates('orders', '')",
            "create trigger t after insert on mine for each row "
            "execute function notifyq.capture_each('orders', '')",
        )
    ),
    "select notifyq.receive_many('s', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')",
    "select notifyq.receive_dead('s', '1', 'default', '1', null, '{}', null, 'd')",
    "select notifyq.relay_target()",
    "insert into notifyq.load_row (attempt, position, queue, message) values (1, 1, 'q', '1')",
    "select notifyq.check_targets('{default}')",
    "select notifyq.begin_load('l')",
    "select notifyq.begin_load('l'); select notifyq.begin_attempt('l')",
    "select notifyq.begin_load('l'); select notifyq.commit_load('l', '{}', '{}')",
    "select notifyq.begin_load('l'); select notifyq.drop_attempts('l', '{}')",
    "select notifyq.begin_load('l'); select notifyq.load_rejects('l', '{}')",
    "select notifyq.drop_load('l')",
    "select messages.enqueue('typed', 1::smallint)",
    "select messages.enqueue('typed', null::text)",
    "select messages.payload_schema('default')",
    "insert into messages.message (queue, message, priority, available_at, type, headers, "
    "dedup_key, key, max_attempts) values ('default', '1', 1, now(), 't', '{}', 'k', 'c', 3)",
]
WORK = [
    "select messages.claim()",
    "select messages.claim_id(1)",
    "select messages.step(1, 1, 'a')",
    "select messages.sleep(1, 1, 'a', delay => '0')",
    "select messages.await_signal(1, 1, 'a', 's')",
    "select messages.await_any(1, 1, 'a', '{s}')",
    "select messages.await_end(1, 1, 'a', '{2}')",
    "select messages.emit(1, 1, '1')",
    "select messages.progress(1, 1, 0.5)",
    "select notifyq.record_step(1, 1, 'a', '1')",
    "select from notifyq.record_steps('{1}', '{1}', '{a}', array['1'::jsonb], '{f}')",
    "select notifyq.recorded_steps(1, 1)",
    "select notifyq.step_origin()",
    "select notifyq.keep_logs('{1}', '{1}', '{1}', array['[]'::json])",
    "select notifyq.wait_for_ends(1, 1, 'a', '{2}', null)",
    "select notifyq.claim_owned('{default}')",
    # Inside of a transaction it fails, but not for want of a right.
    "call messages.wait('{default}', '0')",
    "select messages.owned() from notifyq.claim_owned('{default}')",
    "select messages.finish_owned() from notifyq.claim_owned('{default}')",
    "select messages.release_owned() from notifyq.claim_owned('{default}')",
    "select messages.finish(1, 1)",
    "select messages.finish_many(array[1], array[1], array['success']::messages.message_status[])",
    "select messages.retry(1, 1)",
    "select messages.retry_many(array[1], array[1])",
    "select messages.release(1, 1)",
    "select messages.release_many(array[1], array[1])",
    "select notifyq.release_orphans('w', array[1])",
    "select messages.extend(1, 1)",
    "select messages.extend_many(array[1], array[1])",
    "select messages.take('default')",
    "select notifyq.suppress('default')",
    "select notifyq.unsuppress('{}')",
    "select notifyq.is_transaction_over('1')",
    "select notifyq.take_wake_slots('{}')",
    "select notifyq.leave_wake_slots('{}', '{}')",
    "select notifyq.next_due('{default}')",
    "select notifyq.wake_all('{default}')",
    "select notifyq.rate_limit_wait('{default}')",
    "select notifyq.relay_source()",
    "select notifyq.relay_claim('{default}', 1, '1 s', 'w')",
    "select notifyq.relay_finish('t', 's', 'p', '{}', '{}', '{}', '{}')",
    "select notifyq.relay_marks('t', 's', '1 day')",
    "select notifyq.relay_forget('t')",
    "select messages.reap()",
    "select messages.stage_due()",
    "select notifyq.renotify()",
    "select notifyq.fire_schedules()",
    "select notifyq.next_schedule()",
    "select messages.maintain()",
    "select notifyq.maintain(false)",
    "select notifyq.reap_and_stage()",
    "select messages.subscribe('orders', 'w')",
    "select messages.next_batch('orders', 'r')",
    "select messages.batch_events(messages.next_batch('orders', 'r'))",
    "select messages.retry_batch(messages.next_batch('orders', 'r'))",
    "select messages.finish_batch(messages.next_batch('orders', 'r'))",
    "select messages.retry_event(b, (messages.batch_events(b)).id) "
    "from messages.next_batch('orders', 'r') as b",
    "select messages.fail_event(b, (messages.batch_events(b)).id) "
    "from messages.next_batch('orders', 'r') as b",
    "select messages.recover_batch('orders', 'r')",
    "select messages.release_batch(messages.next_batch('orders', 'r'))",
    "select notifyq.next_retry('orders', 'r')",
    "select messages.tick()",
    "select notifyq.suppress_stream('orders', false)",
    "select notifyq.unsuppress_streams('{}')",
    "select messages.register('orders', 'r', 'public.nothing')",
    "select messages.unregister('orders', 'r')",
    "select set_config('notifyq.event', '{}', true), messages.dequeued()",
    "select set_config('notifyq.event', '{}', true), messages.dequeue(null::text)",
    "select notifyq.broker_next(1, 1)",
    "select notifyq.broker_note(1, 1, 1, null)",
    "select notifyq.broker_done(1, 1, 1, 0, 0, true)",
    "select notifyq.want_broker(current_user, true)",
    "do $$ begin perform messages.start_broker(); "
    "exception when feature_not_supported then null; end $$",
    "select messages.stop_broker()",
    "select notifyq.forward_pending()",
    "select notifyq.worker_heartbeat('w')",
    "select notifyq.remove_worker('w')",
]
AWAIT = ["select messages.await_result(1)", "select messages.signal('s')"]
RESULT = [
    "select messages.result(1)",
    "select messages.progress(1)",
    "select messages.output(1)",
    "select messages.value_of('null', null::text)",
    "select messages.payload_type('typed')",
    "select notifyq.encrypted_names()",
]
READ_TABLES = [
    "select * from messages.audit",
    "select * from notifyq.broker",
    "select * from messages.message",
    "select * from messages.message_archive",
    "select * from messages.dead_message",
    "select * from messages.queue",
    "select * from notifyq.schema_version",
    "select * from notifyq.redrive",
    "select * from notifyq.origin",
    "select * from messages.queue_grant",
    "select * from messages.read_grant",
    "select * from notifyq.readable_archive",
    "select * from notifyq.limit_turn",
    "select * from notifyq.limit_state",
    "select * from notifyq.limit_key",
    "select * from notifyq.limit_charge",
    "select * from notifyq.limit_room",
    "select * from messages.share",
    "select * from messages.attempt",
    "select * from notifyq.attempt_log",
    "select * from notifyq.relay_receipt",
    "select * from notifyq.relay_mark",
    "select * from messages.schedule",
    "select * from notifyq.dedup",
    "select * from notifyq.dependency",
    "select * from notifyq.owner_session",
    "select * from messages.stream",
    "select * from notifyq.segment",
    "select * from messages.event",
    "select * from messages.stream_event",
    "select * from notifyq.tick",
    "select * from messages.subscription",
    "select * from notifyq.batch",
    "select * from notifyq.batch_end",
    "select * from notifyq.event_retry",
    "select * from notifyq.message_unlogged",
    "select * from notifyq.unlogged_room",
    "select * from notifyq.unlogged_count",
    "select * from notifyq.forward",
    "select * from notifyq.lake",
    "select * from notifyq.lake_batch",
    "select * from messages.lake_file",
    "select * from notifyq.lake_prune",
    "select * from notifyq.lake_stream",
    "select * from messages.anomaly",
    "select * from notifyq.load",
    "select * from notifyq.replay",
    "select * from notifyq.replayed",
    "select * from notifyq.worker",
]
READ = [
    "select messages.audit_list()",
    "select notifyq.queue_list()",
    "select messages.message_list()",
    "select messages.message_find(1)",
    "select messages.archive_list()",
    "select messages.archive_find(1)",
    "select messages.archive_summary()",
    "select messages.dead_list()",
    "select messages.dead_count()",
    "select messages.dead_since(messages.current_position())",
    "select messages.events_since('orders', messages.current_position())",
    "select messages.current_position()",
    "select notifyq.snapshot_of(messages.current_position())",
    "select messages.known_position(messages.current_position())",
    "select messages.queue_grants()",
    "select messages.queue_shares()",
    "select messages.queue_limits()",
    "select notifyq.archive_hours(now(), now())",
    "select messages.schedule_info()",
    "select messages.cron_next('@daily')",
    "select messages.lakes()",
    "select notifyq.error_fingerprint('x')",
    "select notifyq.rolled_up(1)",
    "select notifyq.rollup_range()",
    "select notifyq.rollup_summary()",
    "select notifyq.rollup_errors()",
    "select notifyq.rollup_workers()",
    "select messages.lake_files(1)",
    "select notifyq.lake_batches(1)",
    "select notifyq.lake_changes(1)",
    "select notifyq.lake_removed(1)",
    "select notifyq.lake_tables(1)",
    "select notifyq.lake_stream_of(1, 'events')",
    "select notifyq.archive_hashes('2026-01-01')",
    "select notifyq.archive_days()",
    "select notifyq.archive_names()",
    "select notifyq.archive_extent()",
    "select messages.archive_info()",
    "select messages.retention_info()",
    "select notifyq.prune_obstacle(l.id, '2026-01-01') from notifyq.lake as l",
    "select notifyq.archive_parts('1:1:', pg_current_snapshot())",
    "select notifyq.replay_counts('r')",
    "select messages.workers()",
    "select notifyq.search_live()",
    "select notifyq.search_archive()",
    "select notifyq.dead_groups()",
    """select notifyq.count_dead_matching('{"until": "2026-01-01"}')""",
    """select notifyq.count_live_matching('{"until": "2026-01-01"}')""",
    "select notifyq.message_relatives(1)",
    "select notifyq.open_batches()",
]
INFO = [
    "select messages.steps(1)",
    "select messages.parked()",
    "select * from messages.subscriber_procedure",
    "select messages.status_broker()",
    "select messages.queue_info()",
    "select messages.dependencies(1)",
    "select notifyq.diagnose()",
    "select messages.attempts(1)",
    "select messages.logs(1)",
    "select messages.stream_info()",
    "select messages.subscription_info()",
    "select (messages.batch_info(null::bigint)).batch where false",
    "select messages.forwards()",
    "select messages.backlog()",
    "select notifyq.subscription_lags()",
    "select messages.throughput()",
    "select messages.activity(holding => true)",
    "select messages.activity()",
    "select messages.cron_entries()",
    "select notifyq.table_sizes()",
    "select notifyq.failing_duties()",
    "select notifyq.late_sequences()",
    "select notifyq.wal_position()",
    "select notifyq.notification_counters()",
    "select messages.health()",
]
CAPTURES = ["select messages.captures()"]
ADMIN = [
    # Who reads these can act as a relay or add rows to a load.
    "select * from notifyq.relay_self",
    "select * from notifyq.load_attempt",
    "select * from notifyq.load_row",
    "select notifyq.note_audit('ann', 'queue.pause', 'default')",
    "select notifyq.sealed_columns()",
    "select notifyq.sealed_texts('messages', 'message', 'message', 0, 10)",
    "select notifyq.replace_sealed('messages', 'message', 'message', '[]')",
    "select messages.forget('k')",
    "select notifyq.forget_archived('{}')",
    "select notifyq.forget_samples('{}', '{}', '{}', '{}')",
    "select notifyq.match_payloads('{}', '$ == 1')",
    "select messages.alter_archive()",
    "select messages.create_queue('q')",
    "select messages.alter_queue('default')",
    "select messages.set_share('default', 'k', 2)",
    "select messages.set_limit('default', 'k')",
    "select messages.grant_queue('default', 'notifyq_worker')",
    "select messages.revoke_queue('default', 'notifyq_worker')",
    "select messages.grant_read('default', 'notifyq_worker')",
    "select messages.revoke_read('default', 'notifyq_worker')",
    "select messages.pause_queue('default')",
    "select messages.resume_queue('default')",
    "select messages.cancel(1)",
    "select messages.amend(1, priority => 1)",
    "select messages.unblock(1)",
    "select messages.run_now(1)",
    """select messages.dead_retry_matching('{"until": "2026-01-01"}')""",
    """select messages.dead_delete_matching('{"until": "2026-01-01"}')""",
    """select messages.cancel_matching('{"until": "2026-01-01"}')""",
    """select messages.run_now_matching('{"until": "2026-01-01"}')""",
    """select messages.amend_matching('{"until": "2026-01-01"}', 1)""",
    """select messages.move_matching('{"until": "2026-01-01", "queue": "typed"}', 'default')""",
    "select messages.dead_delete(1)",
    "select messages.dead_retry(1)",
    "select messages.dead_retry_from(1)",
    "select messages.redrive()",
    "select notifyq.redrive_ids()",
    "select messages.adopt()",
    """select messages.receive('s', '[]')""",
    "select notifyq.report_anomalies('[]')",
    "select messages.schedule('s', '@daily', 'default')",
    "select messages.resume_schedule('nightly')",
    "select messages.pause_schedule('nightly')",
    "select messages.run_schedule('nightly')",
    "select messages.unschedule('nightly')",
    "select messages.drop_queue('default', true)",
    "select messages.create_stream('s')",
    "select messages.alter_stream('orders')",
    "select messages.pause_stream('orders')",
    "select messages.resume_stream('orders')",
    "select messages.seek('orders', 'r', 'now')",
    "select messages.forward('orders', 'f', 'default')",
    "select messages.unforward('orders', 'r')",
    "select messages.unsubscribe('orders', 'r')",
    "select messages.drop_stream('orders', true)",
    "select notifyq.hold_lake(l.id), notifyq.commit_lake(l.id, 'archive', '[]') "
    "from notifyq.create_lake('/lake') as l",
    "select notifyq.prune_day(l.id, '2026-01-01', 0, 0) from notifyq.create_lake('/lake') as l",
    "select notifyq.note_lake(1, 'gone')",
    "select notifyq.advance_lake(l.id, 'events', 's', null, '{}') from notifyq.lake as l",
    "select notifyq.forget_files(1, '{}')",
    "select messages.forget_lake(1)",
    "select notifyq.roll_up(l.id, 0, 1), notifyq.add_rollup(l.id, '[]') "
    "from notifyq.create_lake('/lake') as l",
    "select notifyq.forget_rollup(1)",
    "select notifyq.begin_replay('r')",
    "select notifyq.begin_replay('r'); select notifyq.replay_archive('r')",
    "select notifyq.begin_replay('r'); "
    "select notifyq.replay_rows('r', notifyq.begin_attempt('replay r'), 0)",
]
NOBODY = [
    # A broker is a session of its role; here another has taken it on.
    "call messages.run_broker('0')",
    "insert into messages.subscriber_procedure (stream, subscriber, procedure, registrar) "
    "values ('orders', 'r', 'public.nothing', 'postgres')",
    "update messages.subscriber_procedure set registrar = 'postgres'",
    "update notifyq.broker set is_wanted = true",
    "insert into messages.message (message, lock_token) values ('1', 5)",
    "insert into messages.message (message, state) values ('1', 'waiting')",
    "insert into messages.message (message, attempts) values ('1', -5)",
    "insert into messages.queue (name) values ('q')",
    "update messages.message set priority = 1",
    "delete from messages.message",
    "truncate messages.message",
    "update messages.message_archive set details = ''",
    "delete from messages.message_archive",
    "delete from notifyq.message_archive_default",
    "update messages.queue set paused = true",
    "delete from notifyq.schema_version",
    "insert into notifyq.redrive (archive_id, message_id) values (1, 1)",
    "insert into notifyq.relay_receipt (role, source, position) values (user, 's', '1')",
    "insert into messages.schedule (name, cron, timezone, queue, message, next_at) "
    "values ('s', '@daily', 'UTC', 'default', '1', now())",
    "insert into messages.queue_grant values ('default', 'pg_monitor', now(), true, true)",
    "delete from messages.queue_grant",
    "insert into messages.read_grant values ('default', 'pg_monitor')",
    "select notifyq.readable_names(null)",
    "delete from notifyq.owner_session",
    "select from notifyq.limit_turn for update",
    "update notifyq.limit_state set paid_at = now()",
    "select from messages.message for update",
    "select from messages.message for key share",
    "select from messages.queue for key share",
    "select from notifyq.schema_version for share",
    "lock table notifyq.redrive in row share mode",
    "update notifyq.load_row set queue = 'default'",
    "update notifyq.load set owner = current_user",
    "lock table messages.message in row exclusive mode",
    "copy messages.message (id, message) from '/dev/null'",
    "alter table messages.message disable trigger bound",
    "select notifyq.hide_barred(array[1])",
    "select notifyq.calling_role()",
    "create table messages.t ()",
    "drop table messages.message",
    "alter table messages.message disable trigger published",
    "insert into messages.event (segment, message) values (1, '1')",
    "insert into messages.stream_event (id, stream, message) values (1, 'orders', '1')",
    "insert into messages.stream_event (created_at, stream, message) values (now(), 'orders', '1')",
    "select setval('messages.event_id_seq', 1)",
    "delete from notifyq.batch",
    "select notifyq.publish_events('orders', array['1']::jsonb[], null, null, null)",
    "select notifyq.archive(array[1], array[0], array['success']::messages.message_status[])",
    "select notifyq.send_notification('new_message', 'default', '1')",
    "select notifyq.drop_partitions()",
    "select notifyq.drop_day('message_archive_20260101')",
    "select notifyq.retain()",
    "update messages.archive_policy set days_ahead = 1",
    "select nextval('messages.message_id_seq')",
    "select setval('messages.message_id_seq', 1)",
]
ALL = [*PUBLISH, *WORK, *AWAIT, *RESULT, *READ_TABLES, *READ, *INFO, *CAPTURES, *ADMIN, *NOBODY]
RIGHTS = {
    "notifyq_publisher": [*PUBLISH, *AWAIT, *RESULT, *CAPTURES],
    # A finish whose answer was lost is found in the archive.
    "notifyq_worker": [
        *WORK,
        *AWAIT,
        *RESULT,
        *INFO,
        *CAPTURES,
        "select messages.archive_find(1)",
    ],
    "notifyq_reader": [*RESULT, *READ_TABLES, *READ, *INFO, *CAPTURES],
    "notifyq_admin": [
        *PUBLISH,
        *WORK,
        *AWAIT,
        *RESULT,
        *READ_TABLES,
        *READ,
        *INFO,
        *CAPTURES,
        *ADMIN,
    ],
    # A role of the server's own, to which nothing was granted.
    "pg_monitor": [],
}


async def is_denied(connection: Connection, statement: str) -> bool:
    await connection.execute("begin")
    try:
        await connection.execute(statement)
    except Denied:
        return True
    except QueueDeniedError:
        return True
    except (asyncpg.InvalidTransactionTerminationError, LockNotHeldError):
        return False
    finally:
        await connection.execute("rollback")
    return False


@pytest.fixture
async def guest(connect: Connect) -> AsyncIterator[Connection]:
    guest = await connect()
    yield guest
    await guest.execute("reset role")


@pytest.mark.parametrize("role", RIGHTS)
async def test_a_role_may_do_its_own_and_nothing_else(
    connection: Connection, guest: Connection, role: str
) -> None:
    await publish(connection, 1)
    await connection.execute("select messages.schedule('nightly', '@daily', 'default')")
    await connection.execute("select messages.create_stream('orders')")
    await connection.execute("select messages.subscribe('orders', 'r')")
    await connection.execute("select messages.publish('orders', '1')")
    await connection.execute("select messages.create_queue('typed', payload_type => 'smallint')")
    await connection.execute("create procedure public.nothing() language sql as 'select'")
    await guest.execute(f"set role {role}")
    allowed = [statement for statement in ALL if not await is_denied(guest, statement)]
    assert allowed == [statement for statement in ALL if statement in RIGHTS[role]]


async def test_every_public_function_is_tested(connection: Connection) -> None:
    """Else a new function would have rights that no test checks."""
    public = await connection.fetch(
        "select format('%s.%s', p.pronamespace::regnamespace, p.proname) from pg_proc as p "
        "where p.pronamespace in ('messages'::regnamespace, 'notifyq'::regnamespace) "
        "and obj_description(p.oid, 'pg_proc') is not null"
    )
    tried = "\n".join(ALL)
    untried = [row[0] for row in public if f"{row[0]}(" not in tried]
    assert sorted(untried) == ["messages.version", "notifyq.oldest_client"]
