-- Wait: block until there is a message, and own it.
--
-- A procedure, since it commits: what was owned before is finished for good before it blocks, and
-- while it blocks no transaction is older than a pause. A procedure that commits can have neither
-- the rights of its owner nor a search path, so it names all with its schema.
--
-- A session that runs a statement cannot hear a bell, so it looks again: after 1 ms, then after
-- longer and longer pauses, up to 50 ms. Clients that can listen do better.
--
-- owns:    nothing
-- writes:  messages.message, messages.owner_session
-- calls:   messages.claim_owned, messages.finish_owned
-- raises:  NQ001 queue not found, NQ003 invalid argument, NQ007 no right to the queue

create or replace procedure messages.wait(
  queues text[],
  timeout interval default '1 minute',
  filters jsonpath[] default null,
  worker text default null,
  inout place integer default null,
  inout id bigint default null,
  inout lock_token bigint default null,
  inout queue text default null,
  inout message jsonb default null
)
  language plpgsql
as $$
declare
  v_found record;
  v_pause double precision := 0.001::pg_catalog.float8;
  v_left double precision;
  v_end timestamptz;
begin
  if pg_catalog.current_setting('notifyq.owned', true) operator(pg_catalog.<>) '' then
    perform messages.finish_owned();
    commit;
  end if;
  -- In seconds, and not more than a thousand years: other intervals have instants overflow.
  v_end := pg_catalog.clock_timestamp() operator(pg_catalog.+) pg_catalog.make_interval(
    secs => greatest(
      least(extract(epoch from timeout)::pg_catalog.float8, 31557600000::pg_catalog.float8),
      0::pg_catalog.float8
    )
  );
  v_found := messages.claim_owned(queues, filters, worker);
  loop
    commit;
    exit when v_found.place is not null;
    v_left := extract(
      epoch from v_end operator(pg_catalog.-) pg_catalog.clock_timestamp()
    )::pg_catalog.float8;
    exit when v_left operator(pg_catalog.<=) 0;
    perform pg_catalog.pg_sleep(least(v_pause, v_left));
    v_pause := least(
      v_pause operator(pg_catalog.*) 1.5::pg_catalog.float8, 0.05::pg_catalog.float8
    );
    commit;
    v_found := messages.claim_owned(queues, filters, worker, true);
  end loop;
  place := coalesce(v_found.place, 0);
  id := v_found.id;
  lock_token := v_found.lock_token;
  queue := v_found.queue;
  message := v_found.message;
end;
$$;
comment on procedure messages.wait(
  text[], interval, jsonpath[], text, integer, bigint, bigint, text, jsonb
) is
  'Finish what this session owns, wait up to timeout (null: for ever) until one of queues has a '
  'message, and own that: `call messages.wait(array[''high'', ''low''])`. Nobody else gets it, for '
  'as long as this session lasts: it is ended by finish_owned(), by the next wait, or by finish() '
  'and the like with its lock_token, and is back in its old place with release_owned(), or within '
  'two seconds after the session is gone while a worker or another session that waits or claims is '
  'there, else with the next maintenance: not counted where its queue allows one attempt, and as '
  'an attempt where it allows several, after the last of which the message is dead. filters has a '
  'JSON path predicate for each of the queues, see claim(); a queue may be listed more than once. '
  'Returns in place which of the queues it is, from 1 on, and 0 after timeout, when there is no id '
  'and no '
  'message; owned() has all of it. It '
  'commits, so it must not be called inside a transaction, and it looks every 50 ms. Not through '
  'a pooler that lends a session for one transaction. Raises NQ001 for an unknown queue, and does '
  'not mind one that is dropped later; NQ003 for filters that are none; NQ007 for a queue from '
  'which the caller may not consume.';
