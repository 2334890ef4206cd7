-- Extent: of which days the archive has messages.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages.archive_days
-- raises:  nothing

create or replace function messages.archive_extent(
  since timestamptz default null,
  until timestamptz default null
)
  returns setof date
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set timezone = 'UTC'
as $$
begin
  return query
  select d.day
  from (
    select e.day from messages.archive_days() as e (day)
    union
    select a.archived_at::date from messages.message_archive_default as a
  ) as d
  where (archive_extent.since is null or d.day + 1 > archive_extent.since)
    and (archive_extent.until is null or d.day < archive_extent.until)
  order by d.day;
end;
$$;
comment on function messages.archive_extent(timestamptz, timestamptz) is
  'The days, in UTC, that the archive may have messages of, archived from since on and before '
  'until: those with a table, and those of messages that have none yet.';
