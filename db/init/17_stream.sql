-- Stream: events that every subscriber sees, and the tables that hold them.
--
-- owns:    messages.stream, messages.segment, messages.event, messages.event_id_seq, messages.tick
-- writes:  nothing
-- raises:  nothing

create table if not exists messages.stream (
  id bigint generated always as identity,
  name text not null,
  created_at timestamptz not null default clock_timestamp(),
  segment bigint,
  retention interval not null default interval '1 hour',
  max_lag interval,
  max_events bigint,
  max_bytes integer not null default 1048576,
  bell text not null default 'auto',
  paused boolean not null default false,
  durable boolean not null default true,
  payload_type text,
  payload_schema text,
  is_guarded boolean not null default false,
  lone_bytes integer generated always as (
    case
      when paused or is_guarded or bell = 'always' or payload_type is not null
        or payload_schema is not null then null
      else max_bytes
    end
  ) stored,
  constraint stream_name_pk primary key (name),
  constraint stream_id_uq unique (id),
  constraint stream_name_ck check (
    octet_length(name) between 1 and 200
    and name !~ '[:[:cntrl:]]'
    and name = btrim(name)
  ),
  constraint stream_retention_ck check (retention >= interval '0'),
  constraint stream_max_lag_ck check (max_lag > interval '0'),
  constraint stream_max_events_ck check (max_events > 0),
  constraint stream_max_bytes_ck check (max_bytes between 4096 and 268435456),
  constraint stream_payload_schema_ck check (
    jsonb_typeof(payload_schema::jsonb) in ('object', 'boolean')
  ),
  constraint stream_bell_ck check (bell in ('auto', 'always', 'off'))
);

comment on table messages.stream is
  'Registry of streams; change it through the stream functions.';
comment on column messages.stream.id is 'By which other tables know it.';
comment on column messages.stream.name is
  '1 to 200 bytes, without a colon, control characters or outer blanks.';
comment on column messages.stream.created_at is 'When it was created.';
comment on column messages.stream.segment is 'The segment that events are written to now.';
comment on column messages.stream.retention is
  'How long events are kept for replay after every subscriber has passed them, at least.';
comment on column messages.stream.max_lag is
  'How far behind a subscriber may be, in time, before it is skipped ahead; null: no bound.';
comment on column messages.stream.max_events is
  'How many events behind a subscriber may be before it is skipped ahead; null: no bound.';
comment on column messages.stream.max_bytes is
  'Most bytes of an event and its headers together, as JSON text.';
comment on column messages.stream.bell is
  'auto: publishing rings new_event, unless a busy subscriber attends; always; off: polling.';
comment on column messages.stream.paused is 'Publishing into a paused stream is refused.';
comment on column messages.stream.durable is 'Whether events survive a crash of the server.';
comment on column messages.stream.payload_type is 'The type that each payload is a value of.';
comment on column messages.stream.payload_schema is 'The JSON Schema for payloads, as text.';
comment on column messages.stream.is_guarded is 'Whether there are grants for it.';
comment on column messages.stream.lone_bytes is
  'Most bytes of an event that publish() writes without more checks; null: each is checked.';

create table if not exists messages.segment (
  id bigint generated always as identity,
  stream bigint,
  opened_at timestamptz,
  closed_at timestamptz,
  low bigint not null default 0,
  durable boolean not null,
  witnesses text[],
  sealed pg_snapshot,
  changed_by xid8,
  constraint segment_id_pk primary key (id)
);

create index if not exists segment_stream_idx on messages.segment (stream);

comment on table messages.segment is
  'The tables messages.event_<id>, each of one stream or, empty, of none; they are used again.';
comment on column messages.segment.id is 'Of the table''s name.';
comment on column messages.segment.stream is 'The stream whose events it holds; null: none.';
comment on column messages.segment.opened_at is 'When publishers began to write to it.';
comment on column messages.segment.durable is 'Whether it survives a crash of the server.';
comment on column messages.segment.low is 'All events in it have larger ids.';
comment on column messages.segment.closed_at is 'When publishers went on to the next one.';
comment on column messages.segment.witnesses is
  'Transactions that were open when it was closed, and may still write to it; of an empty one, '
  'that were open when it was made, and may not know of it.';
comment on column messages.segment.sealed is
  'Taken when nobody could write to it any more: all of its events are visible in this snapshot.';

comment on column messages.segment.changed_by is
  'The transaction that has made or closed it: until that is over others know nothing of it.';

create sequence if not exists messages.event_id_seq;

-- The number of the transaction comes first: an id is taken after it, which the cut of a window
-- relies on.
create table if not exists messages.event (
  xid xid8 not null default pg_current_xact_id(),
  id bigint not null default nextval('messages.event_id_seq'),
  segment bigint not null,
  created_at timestamptz not null default clock_timestamp(),
  type text,
  key text,
  message jsonb not null,
  headers jsonb not null default '{}'
) partition by list (segment);

alter sequence messages.event_id_seq owned by messages.event.id;

comment on table messages.event is
  'Events, one row each however many subscribers; rows never change, segments are emptied whole.';
comment on column messages.event.xid is 'The transaction that published it.';
comment on column messages.event.id is 'The event; ids of a session rise.';
comment on column messages.event.segment is 'The segment, and so the table, that it is in.';
comment on column messages.event.type is 'What kind of event it is.';
comment on column messages.event.key is 'What it is about.';

create table if not exists messages.tick (
  id bigint generated always as identity,
  stream bigint not null,
  created_at timestamptz not null default clock_timestamp(),
  snapshot pg_snapshot not null,
  low bigint not null,
  high bigint not null,
  is_asked boolean not null,
  constraint tick_stream_id_pk primary key (stream, id)
);

create index if not exists tick_asked_idx on messages.tick (stream, id) where is_asked;

comment on table messages.tick is 'Moments of a stream that subscribers can be set to.';
comment on column messages.tick.id is 'Rises within the stream.';
comment on column messages.tick.stream is 'The stream.';
comment on column messages.tick.created_at is 'When that was.';
comment on column messages.tick.snapshot is 'What was committed then.';
comment on column messages.tick.low is
  'Ids of transactions that were yet to begin then are larger.';
comment on column messages.tick.high is 'Ids of what was committed then are not larger.';
comment on column messages.tick.is_asked is 'Made by tick(), so that a batch ends here.';
