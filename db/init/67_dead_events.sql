-- Dead events: what a subscriber could not handle, in the archive beside the dead messages.
--
-- owns:    nothing
-- writes:  messages.message_archive
-- calls:   nothing
-- raises:  nothing

-- An event stays in its stream, for the other subscribers: so a row of the archive that is about it
-- has an id of its own, and several may be about one event. Whoever calls has locked the batch.
create or replace function messages._archive_event(
  stream text,
  subscriber text,
  event_id bigint,
  created_at timestamptz,
  type text,
  key text,
  message jsonb,
  headers jsonb,
  attempts integer,
  details text default null,
  status messages.message_status default 'failed',
  handled_by text default null
)
  returns bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_id bigint := nextval('messages.message_id_seq');
begin
  insert into messages.message_archive (
    id, created_at, available_at, lock_token, priority, attempts, status, queue, type, handled_by,
    message, headers, details, key, subscriber, event_id
  )
  values (
    v_id, _archive_event.created_at, _archive_event.created_at, 0, 0, _archive_event.attempts,
    _archive_event.status, _archive_event.stream, _archive_event.type, _archive_event.handled_by,
    coalesce(_archive_event.message, 'null'), coalesce(_archive_event.headers, '{}'),
    _archive_event.details, _archive_event.key, _archive_event.subscriber, _archive_event.event_id
  );
  return v_id;
end;
$$;
