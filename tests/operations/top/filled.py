"""An installation with something of everything, as `top` shows it."""

from __future__ import annotations

from support.database import Connection

_QUEUES = """
  select messages.create_queue('billing', max_attempts => 1);
  select messages.create_queue('mail', max_attempts => 1);
  select messages.create_queue('thumbnails');
  select messages.create_queue('ledger');
"""
# Published, finished and failed within the time of the rates.
_MESSAGES = """
  select messages.publish_many('billing', array(
    select jsonb_build_object('order', n, 'total', 10 * n) from generate_series(1, 137) as n));
  select messages.publish_many('mail', array(
    select jsonb_build_object('to', 'user' || n) from generate_series(1, 23) as n),
    type => 'welcome');
  select messages.publish_many('thumbnails', array(
    select to_jsonb('photo ' || n) from generate_series(1, 6) as n), delay => '1 hour');
  select messages.finish(c.id, c.lock_token, 'success')
  from messages.claim(array['billing'], 60) as c;
  select messages.finish(
    c.id, c.lock_token, 'failed', format('TimeoutError: bank %s did not answer', c.id))
  from messages.claim(array['billing'], 7) as c;
  select messages.finish(c.id, c.lock_token, 'rejected', 'unknown address user' || c.id)
  from messages.claim(array['mail'], 3) as c;
  select count(*) from messages.claim(array['billing'], 4, worker => 'web-1:4711:abcdef');
  update messages.message_archive set archived_at = archived_at - interval '15 seconds',
    locked_at = archived_at - interval '15.2 seconds',
    available_at = archived_at - interval '16 seconds';
  update messages.message set available_at = available_at - interval '4 minutes',
    created_at = created_at - interval '4 minutes' where state = 'waiting';
  select messages.pause_queue('mail');
  select notifyq.worker_heartbeat('web-1:4711:abcdef', array['billing', 'mail'], array['orders'],
    10, 4,
    false, 'web-1', 4711, '0.1.0');
"""
_STREAMS = """
  select messages.create_stream('orders');
  select messages.subscribe('orders', 'warehouse');
  select messages.publish_many('orders', array(
    select jsonb_build_object('order', n) from generate_series(1, 42) as n));
"""


async def fill(connection: Connection) -> None:
    """Make it so."""
    for part in (_QUEUES, _MESSAGES, _STREAMS):
        await connection.execute(part)
