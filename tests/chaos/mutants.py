"""Mistakes in the SQL, each with the invariant that it violates.

A mutant replaces a piece of a file in db/init. The piece must be there exactly once: a mutant that
no longer applies proves nothing and must be rewritten.
"""

from __future__ import annotations

from dataclasses import dataclass

from support.database import ROOT, Connection

GATE = 7305427999
"""The advisory lock at which a mutant waits, so that another call can run first."""


@dataclass(frozen=True)
class Edit:
    """A piece of a file, and what comes instead."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """A mistake, the schedule that shows it, and the invariant that it violates."""

    name: str
    schedule: str
    invariant: str
    edits: tuple[Edit, ...]

    async def apply(self, connection: Connection) -> None:
        """Replace the functions of a fresh install."""
        for text in self.texts():
            await connection.execute(text)

    def texts(self) -> list[str]:
        """The changed files."""
        texts: dict[str, str] = {}
        for edit in self.edits:
            text = texts.get(edit.file) or (ROOT / "db/init" / edit.file).read_text()
            found = text.count(edit.old)
            assert found == 1, f"the mutant no longer applies, {found} times {edit.old!r}: {self}"
            texts[edit.file] = text.replace(edit.old, edit.new)
        return [*texts.values()]


_FENCE = """
      and (
        (m.id, m.lock_token, m.state) in (
          select e.id, e.lock_token, archive.state
          from unnest(archive.ids, archive.lock_tokens) as e (id, lock_token)
        )
      ) is true"""

_HOLD_FENCE = """
    and (
      (m.id, m.lock_token, m.state) in (
        select g.id, g.lock_token, 'locked'::messages.message_state
        from unnest(extend_many.ids, extend_many.lock_tokens) as g (id, lock_token)
      )
    ) is true"""

_CLAIM_TOKEN = """
      lock_expires_at = v_now + lock_messages.lock_duration,
      lock_token = least(m.lock_token, 9223372036854775806) + 1,"""

_RETRY_TOKEN = """
      lock_token = least(m.lock_token, 9223372036854775806) + 1,
      available_at = case"""

_RELEASE_TOKEN = """
      lock_token = least(m.lock_token, 9223372036854775806) + 1,
      attempts ="""

_CLAIM_ATTEMPTS = """
      attempts = least(m.attempts, 2147483646) + 1,
      handler_attempts = lock_messages.max_attempts"""

_REAP_RETRY = """
  perform notifyq.retry_locked(
    v_ids, v_tokens, null, v_details,"""

_REAPED_LATER = f"""
  v_read := array(select m from messages.message as m where m.id = any (v_ids));
  perform pg_advisory_xact_lock({GATE});
  insert into messages.message_archive (
    id, created_at, available_at, locked_at, lock_token, priority, attempts, status, queue, type,
    handled_by, dedup_key, message, headers
  )
  select
    e.id, e.created_at, e.available_at, e.locked_at, e.lock_token, e.priority, e.attempts,
    'lock_expired', e.queue, e.type, e.locked_by, e.dedup_key, e.message, e.headers
  from unnest(v_read) as e
  join messages.queue as q on q.name = e.queue
  where e.attempts >= q.max_attempts;
  delete from messages.message as m
  using unnest(v_read) as e, messages.queue as q
  where m.id = e.id and q.name = e.queue and e.attempts >= q.max_attempts;{_REAP_RETRY}"""

_JOIN = "on e.id = g.id and e.lock_token = g.lock_token"

_UNFENCED = (
    Edit("queue/settle.sql", _FENCE, " and m.state = archive.state"),
    Edit("queue/settle.sql", _JOIN, "on e.id = g.id"),
)

MUTANTS = (
    Mutant("a finish shows no token", "zombies", "I3", _UNFENCED),
    Mutant("a finish shows no token, in a storm", "storm", "false_acknowledgement", _UNFENCED),
    Mutant(
        "the reaper reads first, and archives and deletes later", "finish_while_reaping", "I2",
        (
            Edit(
                "maintenance/maintain.sql",
                "limit reap_locks.quantity\n    for update skip locked",
                "limit reap_locks.quantity",
            ),
            Edit(
                "maintenance/maintain.sql",
                "  v_tokens bigint[];",
                "  v_tokens bigint[];\n  v_read messages.message[];",
            ),
            Edit("maintenance/maintain.sql", _REAP_RETRY, _REAPED_LATER),
        ),
    ),
    Mutant(
        "a claim locks no row before it takes it", "two_claimers", "I5",
        (
            Edit(
                "queue/find.sql",
                "limit find_messages.quantity - cardinality(v_ids)\n      for update skip locked",
                "limit find_messages.quantity - cardinality(v_ids)",
            ),
        ),
    ),
    Mutant(
        "publishers never notify", "notifications_only", "I9",
        (
            Edit(
                "queue/insert.sql",
                "when (pg_try_advisory_xact_lock_shared(hashtextextended(new.queue, 7305427004)))",
                "when (false)",
            ),
        ),
    ),
    Mutant(
        "dead messages are read by id", "late_commit", "I8",
        (
            Edit(
                "operations/inspect.sql",
                "d.xid >= pg_snapshot_xmin(v_seen)",
                "d.id > concat('0', current_setting('notifyq.last_dead', true))::bigint",
            ),
            Edit(
                "operations/inspect.sql",
                "not pg_visible_in_snapshot(d.xid, v_seen)",
                "true",
            ),
            Edit(
                "operations/inspect.sql",
                "  order by d.archived_at, d.id;\n",
                "  order by d.archived_at, d.id;\n"
                "  perform set_config('notifyq.last_dead', max(d.id)::text, false)\n"
                "  from messages.dead_message as d;\n",
            ),
        ),
    ),
    Mutant(
        "an extension shows no token", "zombies", "I5",
        (Edit("queue/locks.sql", _HOLD_FENCE, " and m.state = 'locked'"),),
    ),
    Mutant(
        "tokens never rise", "storm", "I4",
        (
            Edit("queue/claim.sql", _CLAIM_TOKEN, _CLAIM_TOKEN.replace(" + 1", "")),
            Edit("queue/finish.sql", _RETRY_TOKEN, _RETRY_TOKEN.replace(" + 1", "")),
            Edit("queue/locks.sql", _RELEASE_TOKEN, _RELEASE_TOKEN.replace(" + 1", "")),
        ),
    ),
    Mutant(
        "the archive takes a copy and leaves the message", "storm", "I1",
        (
            Edit(
                "queue/settle.sql",
                "delete from only messages.message as m",
                "select m.* from messages.message as m",
            ),
            Edit("queue/settle.sql", "\n    returning m.*", ""),
        ),
    ),
    Mutant(
        "a rejected message is deleted and not archived", "storm", "lost",
        (
            Edit(
                "queue/settle.sql", _JOIN,
                f"{_JOIN} where coalesce(v_status, e.status) <> 'rejected'",
            ),
        ),
    ),
    Mutant(
        "attempts are not counted", "poison", "I6",
        (Edit("queue/claim.sql", _CLAIM_ATTEMPTS, _CLAIM_ATTEMPTS.replace(" + 1", "")),),
    ),
    Mutant(
        "a payload loses a field", "storm", "I7",
        (
            Edit(
                "queue/publish.sql",
                "publish.queue, publish.message, coalesce(publish.priority, 0)",
                "publish.queue, publish.message - 'n', coalesce(publish.priority, 0)",
            ),
        ),
    ),
    Mutant(
        "a lock counts from the start of the transaction", "old_transaction", "I5",
        (
            Edit(
                "queue/claim.sql",
                "  v_now timestamptz := clock_timestamp();",
                "  v_now timestamptz := now();",
            ),
        ),
    ),
    Mutant(
        "the reaper does not check whether a lock has expired", "storm", "I5",
        (Edit("maintenance/maintain.sql", "\n      and m.lock_expires_at <= v_now", ""),),
    ),
    Mutant(
        "a handler does not learn what is recorded", "steps", "I10",
        (
            Edit(
                "durable/steps.sql",
                "where s.message_id = v_message.id\n  order by s.number",
                "where false",
            ),
        ),
    ),
    Mutant(
        "a child is published without its record", "steps", "I10",
        (
            Edit(
                "durable/steps.sql",
                "    perform notifyq.add_steps(array[v_step]);",
                "    if child_id is null then perform notifyq.add_steps(array[v_step]); end if;",
            ),
        ),
    ),
    Mutant(
        "a wait does not record what it received", "steps", "I11",
        (
            Edit(
                "durable/signals.sql",
                "set state = wait_for_signal.state,\n    attempt = v_message.attempts,",
                "set attempt = v_message.attempts,",
            ),
        ),
    ),
    Mutant(
        "a signal wakes without a row", "steps", "I11",
        (
            Edit(
                "durable/signals.sql",
                "perform notifyq.mark_durable(array[signal.id]);",
                "delete from notifyq.signal as s where s.message_id = signal.id;",
            ),
        ),
    ),
    Mutant(
        "a signal to a message stays for its next wait", "steps", "I11",
        (
            Edit(
                "durable/signals.sql",
                "where s.id = v_signal.id and s.message_id is not null",
                "where false",
            ),
        ),
    ),
    Mutant(
        "a deadline counts although the signal is there", "steps", "I11",
        (
            Edit(
                "durable/signals.sql",
                "  if v_signal.id is not null then\n    state := 'received';",
                "  if v_signal.id is not null and v_step.due_at > clock_timestamp() then\n"
                "    state := 'received';",
            ),
        ),
    ),
    Mutant(
        "parking uses an attempt", "steps", "I6",
        (
            Edit(
                "durable/park.sql",
                "attempts = greatest(m.attempts, 1) - 1,",
                "attempts = m.attempts,",
            ),
        ),
    ),
    Mutant(
        "nothing parked is woken", "steps", "I9",
        (
            Edit(
                "durable/park.sql",
                "      and m.parked_at is not null\n    returning m.id",
                "      and false\n    returning m.id",
            ),
        ),
    ),
    Mutant(
        "the end of a child wakes nobody", "steps", "I9",
        (Edit("durable/ends.sql", "if v_pending = 0 then", "if false then"),),
    ),
    Mutant(
        "a finish always returns true", "zombies", "false_acknowledgement",
        (
            Edit(
                "queue/finish.sql",
                "  return exists (\n    select from notifyq.archive(",
                "  return true or exists (\n    select from notifyq.archive(",
            ),
        ),
    ),
)  # fmt: skip
