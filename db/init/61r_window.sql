-- Window: a stretch of time with about as many finished messages of all queues as are wanted.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   nothing
-- raises:  nothing

-- All queues that the archive has messages of, by a look into the index for each. Not as
-- _queues_of() does it, whose text is planned anew each time: over all days that costs the most.
create or replace function messages._archived_queues()
  returns text[]
  language plpgsql
  stable
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
as $$
declare
  v_queues text[] := array[]::text[];
  v_queue text := '';
begin
  loop
    v_queue := (
      select a.queue from messages.message_archive as a
      where a.queue > v_queue
      order by a.queue
      limit 1
    );
    exit when v_queue is null;
    v_queues := v_queues || v_queue;
  end loop;
  return v_queues;
end;
$$;

-- No index has all queues by time alone, and finishing would have to pay for it. So the time before
-- upto is cut off that has about as many messages as wanted: what begins from _from on.
create or replace function messages._archive_window(
  queues text[],
  upto timestamptz,
  oldest timestamptz,
  wanted integer,
  inout width interval,
  out _from timestamptz
)
  language plpgsql
  stable
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
as $$
declare
  v_there integer;
  v_is_cut boolean := false;
begin
  loop
    _from := greatest(upto - width, oldest);
    select count(*)::integer into v_there
    from (
      select
      -- Not `any`: then the planner may take an index that begins with something else.
      from unnest(queues) as q (name)
      cross join lateral (
        select
        from messages.message_archive as a
        where a.queue = q.name and a.archived_at >= _from and a.archived_at <= upto
        offset 0
      ) as a
      limit wanted + 1
    ) as looked;
    if v_there > wanted and width > interval '10 microseconds' then
      width := width / 8;
      v_is_cut := true;
    elsif v_there < wanted / 8 and _from > oldest and not v_is_cut then
      width := width * 8;
    else
      return;
    end if;
  end loop;
end;
$$;
