-- Glance: whether a subscriber has nothing to read, told without a lock, a number or a write.
--
-- Of looks most find nothing, and what those cost is what a subscription costs that waits.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._last_batch, messages._check_position, messages._ahead, messages._moment,
--          messages._passed, messages._window, messages._is_ahead
-- raises:  NQ903 not adopted

create or replace function messages._is_open(batch messages.batch)
  returns boolean
  language plpgsql
  stable
as $$
begin
  return batch.kind <> 'position'
    and not exists (select from messages.batch_end as e where e.batch = batch.id);
end;
$$;

-- Whether a member has a batch open, or may take one over.
create or replace function messages._may_hold(subscription bigint, member text, takeover interval)
  returns boolean
  language plpgsql
  stable
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

-- Nothing: of what is committed now nothing is to be handed out. Else next_batch() must see, once
-- nobody else can hand out anything; what lies ahead of the last batch then need not be looked for
-- once more, as long as that one is the last: an event that is there stays there.
create or replace function messages._glance(
  subscription bigint,
  member text,
  takeover interval,
  out nothing boolean,
  out last bigint,
  out is_ahead boolean
)
  language plpgsql
  stable
  set enable_seqscan = off
  set jit = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_last messages.batch;
  v_moment record;
begin
  nothing := false;
  is_ahead := false;
  v_last := messages._last_batch(_glance.subscription);
  last := v_last.id;
  perform messages._check_position(v_last.upto);
  if (
      case when member is null then messages._is_open(v_last)
      else messages._may_hold(subscription, member, takeover) end
    )
    or exists (
      select
      from messages.event_retry as r
      where r.subscription = _glance.subscription
        and r.batch is null
        and r.due_at <= v_now
    )
  then
    return;
  end if;
  if not v_last.is_last then
    v_last.after_id := v_last.last_id;
    v_last.last_id := v_last.upto_high;
    if (messages._ahead(v_last, 1)).there > 0 then
      return;
    end if;
  end if;
  v_moment := messages._moment(v_last.upto_low, pg_snapshot_xmax(v_last.upto), null);
  if messages._passed(v_moment.snapshot) <= messages._passed(v_last.upto) then
    nothing := true;
    return;
  end if;
  is_ahead := messages._is_ahead(
    messages._window(v_last, v_moment.snapshot, v_moment.low, v_moment.high)
  );
  nothing := not is_ahead and not exists (
    select
    from messages.subscription as u
    join messages.tick as t on t.stream = u.stream and t.is_asked and t.id > v_last.tick
    where u.id = v_last.subscription
      and messages._passed(t.snapshot) > messages._passed(v_last.upto)
  );
end;
$$;
