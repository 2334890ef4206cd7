-- Glance: whether a subscriber has nothing to read, told without a lock, a number or a write.
--
-- Of looks most find nothing, and what those cost is what a subscription costs that waits.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._last_batch, messages._check_position, messages._is_open, messages._ahead,
--          messages._moment, messages._passed, messages._look_ahead
-- raises:  NQ903 not adopted

-- Whether a member has a batch open, or may take one over.
create or replace function messages._may_hold(subscription bigint, member text, takeover interval)
  returns boolean
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set jit = off
as $$
begin
  return exists (
    select
    from messages.batch as b
    where b.subscription = _may_hold.subscription
      and (b.member = _may_hold.member or b.opened_at < clock_timestamp() - _may_hold.takeover)
      and b.kind <> 'position'
      and not exists (select from messages.batch_end as e where e.batch = b.id)
  );
end;
$$;

-- True: of what is committed now nothing is to be handed out. False: next_batch() must see, once
-- nobody else can hand out anything.
create or replace function messages._has_nothing(
  subscription bigint,
  member text,
  takeover interval
)
  returns boolean
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set jit = off
as $$
declare
  v_last messages.batch;
  v_seen pg_snapshot;
begin
  v_last := messages._last_batch(_has_nothing.subscription);
  perform messages._check_position(v_last.upto);
  if (
      case when member is null then messages._is_open(v_last)
      else messages._may_hold(subscription, member, takeover) end
    )
    or exists (
      select
      from messages.event_retry as r
      where r.subscription = _has_nothing.subscription
        and r.batch is null
        and r.due_at <= clock_timestamp()
    )
  then
    return false;
  end if;
  if not v_last.is_last then
    v_last.after_id := v_last.last_id;
    v_last.last_id := v_last.upto_high;
    if (messages._ahead(v_last, 1)).there > 0 then
      return false;
    end if;
  end if;
  v_seen := v_last.upto;
  v_last.seen := v_seen;
  v_last.seen_low := v_last.upto_low;
  v_last.after_id := 0;
  select m.snapshot, m.high
  into v_last.upto, v_last.upto_high
  from messages._moment(v_last.upto_low, pg_snapshot_xmax(v_seen), null) as m;
  v_last.last_id := v_last.upto_high;
  return messages._passed(v_last.upto) <= messages._passed(v_seen)
    or not exists (
      select
      from messages.subscription as u
      join messages.tick as t on t.stream = u.stream and t.is_asked and t.id > v_last.tick
      where u.id = v_last.subscription
        and messages._passed(t.snapshot) > messages._passed(v_seen)
    )
    and not (select a.late or a.fresh from messages._look_ahead(v_last) as a);
end;
$$;
