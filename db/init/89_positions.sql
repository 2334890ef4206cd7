-- Positions: places in a stream that a subscriber can be set to, and the ticks that mark them.
--
-- owns:    nothing
-- writes:  messages.tick; notifies new_event
-- calls:   messages._stream, messages._invalid, messages._moment, messages._fresh_low,
--          messages._ring_stream, messages._may, messages._check_access, messages._check_given
-- raises:  NQ003 invalid argument, NQ007 no right to the stream, NQ020 stream not found, NQ903 not
--          adopted

-- A snapshot means nothing on a server that did not take it: there, what was seen would come again,
-- or what is new would be passed over.
create or replace function messages._check_position(seen pg_snapshot)
  returns void
  language plpgsql
  stable
as $$
begin
  -- This transaction may have taken it, and put its own number in.
  if pg_snapshot_xmax(seen) > greatest(
      pg_snapshot_xmax(pg_current_snapshot()),
      (pg_current_xact_id_if_assigned()::text::bigint + 1)::text::xid8
    )
    or (pg_control_system()).system_identifier is distinct from (
      select o.system_identifier from messages.origin as o order by o.epoch desc limit 1
    )
  then
    raise exception using
      errcode = 'NQ903',
      message = 'this database came from another server and has not been adopted',
      hint = '`notifyq migrate` tells how, or call messages.adopt(); until then subscribers wait';
  end if;
end;
$$;

create or replace function messages._cut_tick(
  stream messages.stream,
  is_asked boolean,
  fresh bigint default null
)
  returns bigint
  language plpgsql
as $$
#variable_conflict use_column
declare
  v_fresh bigint := coalesce(fresh, messages._fresh_low());
  v_last messages.tick;
  v_id bigint;
begin
  -- In their order: a later tick sees what an earlier one does.
  perform from messages.stream as s where s.id = _cut_tick.stream.id for no key update;
  select t.* into v_last
  from messages.tick as t where t.stream = _cut_tick.stream.id order by t.id desc limit 1;
  insert into messages.tick (stream, snapshot, low, high, is_asked)
  select _cut_tick.stream.id, m.snapshot, m.low, m.high, _cut_tick.is_asked
  from messages._moment(
    coalesce(v_last.low, 0), pg_snapshot_xmax(v_last.snapshot), v_fresh
  ) as m
  returning id into v_id;
  return v_id;
end;
$$;

create or replace function messages.tick(stream text default null)
  returns bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_stream messages.stream;
  v_tick bigint;
begin
  if stream is null then
    return (
      select count(messages.tick(s.name)) from messages.stream as s
      where messages._may(s.name, 'consume from')
    );
  end if;
  v_stream := messages._stream(stream);
  perform messages._check_access(v_stream.name, 'consume from');
  v_tick := messages._cut_tick(v_stream, true);
  perform messages._ring_stream(v_stream);
  return v_tick;
end;
$$;
comment on function messages.tick(text) is
  'Mark this moment of a stream and return the number of the tick: a batch ends here, even one '
  'without events, and subscribers can be set to it. Not needed for anything to be delivered. '
  'Without a stream: of all streams from which the caller may consume; returns how many. Raises '
  'NQ007 without the right to consume, and NQ020 for an unknown stream.';

-- What a place says, as a batch that ends there.
create or replace function messages._place(stream messages.stream, place text)
  returns messages.batch
  language plpgsql
as $$
declare
  v_place messages.batch;
  v_fresh bigint;
  v_tick messages.tick;
  v_time timestamptz;
begin
  perform messages._check_given('place', _place.place is not null);
  v_place.kind := 'position';
  v_place.is_last := true;
  if _place.place = 'now' then
    v_fresh := messages._fresh_low();
    select t.* into v_tick
    from messages.tick as t where t.stream = _place.stream.id order by t.id desc limit 1;
    select m.low, m.snapshot, m.high
    into v_tick.low, v_tick.snapshot, v_tick.high
    from messages._moment(
      coalesce(v_tick.low, 0), pg_snapshot_xmax(v_tick.snapshot), v_fresh
    ) as m;
  elsif _place.place = 'last' then
    select t.* into v_tick
    from messages.tick as t where t.stream = _place.stream.id order by t.id desc limit 1;
  elsif _place.place ~ '^\d{1,18}$' then
    select t.* into v_tick
    from messages.tick as t
    where t.stream = _place.stream.id
      and t.id = _place.place::bigint;
    if not found then
      perform messages._invalid(
        format('stream %L has no tick %s, or none any more', stream.name, place),
        'take `start` for the oldest event that is kept'
      );
    end if;
  elsif _place.place is distinct from 'start' then
    begin
      v_time := _place.place::timestamptz;
    exception
      when others then
        perform messages._invalid(
          format('%L is no position', left(place, 100)),
          'take last, now, start, the number of a tick, or a time with its zone'
        );
    end;
    select t.* into v_tick
    from messages.tick as t
    where t.stream = _place.stream.id
      and t.created_at <= v_time
    order by t.id desc
    limit 1;
  end if;
  -- Before everything that is kept: no transaction has a number below 3.
  v_place.upto := coalesce(v_tick.snapshot, '3:3:');
  v_place.upto_low := coalesce(v_tick.low, 0);
  v_place.upto_high := coalesce(v_tick.high, 0);
  v_place.tick := coalesce(v_tick.id, 0);
  v_place.seen := v_place.upto;
  v_place.seen_low := v_place.upto_low;
  v_place.after_id := 0;
  v_place.last_id := v_place.upto_high;
  return v_place;
end;
$$;
