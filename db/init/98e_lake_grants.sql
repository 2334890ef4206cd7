-- Lake grants: who may move the archive to a lake and back.
--
-- owns:    nothing
-- writes:  privileges
-- calls:   nothing
-- raises:  nothing

do $$
begin
  if to_regrole('notifyq_admin') is null then
    return;
  end if;
  grant execute on function
    messages.lakes(),
    messages.lake_files(bigint, text),
    messages.lake_batches(bigint, text, bigint),
    messages.lake_changes(bigint),
    messages.lake_removed(bigint),
    messages.archive_parts(pg_snapshot, pg_snapshot, integer),
    messages.archive_hashes(date),
    messages.archive_days(),
    messages.prune_obstacle(bigint, date)
    to notifyq_reader, notifyq_admin;
  -- Retention trusts in what these write, and waits for it.
  grant execute on function
    messages.create_lake(text),
    messages.forget_lake(bigint),
    messages.hold_lake(bigint),
    messages.note_lake(bigint, text),
    messages.commit_lake(bigint, text, jsonb, text, bigint[], text),
    messages.forget_files(bigint, bigint[]),
    messages.prune_day(bigint, date, bigint, numeric)
    to notifyq_admin;
  grant execute on function
    messages.error_fingerprint(text),
    messages.rolled_up(bigint),
    messages.rollup_range(bigint),
    messages.rollup_summary(timestamptz, timestamptz, interval, text[], bigint),
    messages.rollup_errors(timestamptz, timestamptz, text, integer, bigint),
    messages.rollup_workers(timestamptz, timestamptz, text, integer, bigint)
    to notifyq_reader, notifyq_admin;
  grant execute on function
    messages.roll_up(bigint, bigint, bigint),
    messages.add_rollup(bigint, jsonb, jsonb, jsonb),
    messages.forget_rollup(bigint)
    to notifyq_admin;
end;
$$;
