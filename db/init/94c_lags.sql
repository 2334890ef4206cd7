-- Lags: how far behind subscribers are, for those who ask again and again.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._check_quantity, messages._unread, messages._first_unread_at, messages._ahead
-- raises:  NQ003

create or replace function messages.lags(most integer default 10000)
  returns setof messages.subscription_report
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_subscription record;
  v_unread messages.batch;
  v_pending bigint;
begin
  perform messages._check_quantity(lags.most, 1000000);
  for v_subscription in
    select u.id, s.name as stream, u.name as subscriber
    from messages.subscription as u
    join messages.stream as s on s.id = u.stream
    order by s.name, u.name
  loop
    v_unread := messages._unread(v_subscription.id);
    v_pending := (messages._ahead(v_unread, lags.most)).there;
    return query
    select v_subscription.stream, v_subscription.subscriber,
      case
        when v_pending = 0 then interval '0'
        else coalesce(
          clock_timestamp() - messages._first_unread_at(v_unread), interval '0'
        )
      end,
      v_pending,
      (
        select b.opened_at from messages.batch as b
        where b.subscription = v_subscription.id order by b.previous desc limit 1
      ),
      null::bigint, null::bigint, null::bigint,
      (
        select count(*)
        from (
          select from messages.event_retry as r
          where r.subscription = v_subscription.id and r.due_at is not null
          limit lags.most
        ) as l
      ),
      null::bigint, null::integer;
  end loop;
end;
$$;
comment on function messages.lags(integer) is
  'How far behind each subscriber is: what messages.subscription_info() says of lag, pending and '
  'retries, of which up to most are counted, and of last_seen_at. The other columns are null, so '
  'that a call stays cheap. Raises NQ003.';
