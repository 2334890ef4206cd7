-- Takeover: where a reader goes on when a standby has taken over from the server that it read.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages.snapshot_of, messages._here, messages._database
-- raises:  NQ003 invalid argument, NQ903 not adopted, NQ904 foreign position

create or replace function messages.known_position(place text)
  returns text
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_here messages.origin;
  v_parts text[];
  v_seen pg_snapshot;
  v_reached xid8;
begin
  perform messages.snapshot_of(place);
  return place;
exception
  when sqlstate 'NQ904' then
    v_here := messages._here();
    v_parts := regexp_match(place, '^(-?\d+):(\d+):(\d+):(\d+)/(.+)$');
    v_seen := v_parts[5]::pg_snapshot;
    select o.reached into v_reached
    from messages.origin as o
    where o.epoch = v_here.epoch
      and o.timeline < v_here.timeline
      and v_parts[1:4] = array[
        v_here.system_identifier::text, messages._database()::text, o.epoch::text, o.timeline::text
      ];
    if v_reached is null then
      raise;
    end if;
    -- What has a number below is the same on both; of the rest only the standby's own counts.
    return format(
      '%s:%s:%s:%s/%s:%s:%s', v_parts[1], v_parts[2], v_parts[3], v_parts[4],
      least(pg_snapshot_xmin(v_seen), v_reached), v_reached, (
        select string_agg(x.xid::text, ',' order by x.xid)
        from pg_snapshot_xip(v_seen) as x (xid)
        where x.xid < v_reached
      )
    );
end;
$$;
comment on function messages.known_position(text) is
  'Where a reader at a position goes on: there, or, on a standby that took over and cannot know '
  'it, at the last place before that both servers have in common, at most some ten seconds of the '
  'old one back. What came since then is read once more, and nothing is left out. Raises NQ904 for '
  'a position of another server or database, and from before a restore.';
