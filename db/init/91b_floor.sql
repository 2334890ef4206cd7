-- Floor: how far subscriptions have come for good, and so which segments they need no more.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._passed, messages._event_table
-- raises:  nothing

-- Batches of a subscription follow one another; this is the one that none follows.
create or replace function messages._last_batch(subscription bigint)
  returns messages.batch
  language plpgsql
  stable
  set enable_seqscan = off
  set enable_sort = off
  set jit = off
as $$
declare
  v_last messages.batch;
begin
  select b.* into v_last
  from messages.batch as b
  where b.subscription = _last_batch.subscription
  order by b.previous desc
  limit 1;
  return v_last;
end;
$$;

-- How far a subscription has come for good: whatever passed before is needed by it no more.
create or replace function messages._floor(subscription bigint)
  returns bigint
  language plpgsql
  stable
as $$
begin
  return (
    select min(
      messages._passed(
        case when b.kind = 'position' or (b.is_last and e.batch is not null) then b.upto
        else b.seen end
      )
    )
    from messages.batch as b
    left join messages.batch_end as e on e.batch = b.id
    where b.subscription = _floor.subscription
      and (
        (b.kind <> 'position' and e.batch is null)
        or b.previous = (
          select max(l.previous) from messages.batch as l where l.subscription = _floor.subscription
        )
      )
  );
end;
$$;

-- Whether a subscription may have events of a sealed segment to read. One that has read all there
-- is stays where it is until there is more, so that its place alone does not tell.
create or replace function messages._needs(subscription bigint, segment messages.segment)
  returns boolean
  language plpgsql
  stable
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
as $$
declare
  v_last messages.batch;
  v_table text := messages._event_table(segment.id);
  v_is_there boolean;
begin
  if messages._floor(subscription) >= messages._passed(segment.sealed) then
    return false;
  end if;
  v_last := messages._last_batch(_needs.subscription);
  if not v_last.is_last or messages._floor(subscription) < messages._passed(v_last.upto) then
    return true;
  end if;
  execute format(
    'select exists (select from messages.%I as e where e.xid >= %L) '
    'or exists (select from messages.%I as e where e.xid = any (%L))',
    v_table, pg_snapshot_xmax(v_last.upto), v_table,
    array(select pg_snapshot_xip(v_last.upto))
  )
  into v_is_there;
  return v_is_there;
end;
$$;
