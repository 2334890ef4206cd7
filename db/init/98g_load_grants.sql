-- Load grants: who may load, and who may replay.
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
  -- The number of an attempt is all that gives a row a place in a load.
  grant insert on messages.load_row to notifyq_publisher, notifyq_admin;
  grant execute on function
    messages.check_targets(text[]),
    messages.begin_load(text, bigint),
    messages.begin_attempt(text),
    messages.commit_load(text, bigint[], bigint[], bigint),
    messages.drop_attempts(text, bigint[]),
    messages.load_rejects(text, bigint[], integer),
    messages.drop_load(text)
    to notifyq_publisher, notifyq_admin;
  -- What is archived may be of any queue.
  grant execute on function
    messages.begin_replay(text, text),
    messages.replay_rows(text, bigint, bigint, double precision, boolean),
    messages.replay_archive(
      text, integer, bigint, text, messages.message_status[], text, timestamptz, timestamptz,
      jsonb, double precision, boolean
    )
    to notifyq_admin;
  grant execute on function messages.replay_counts(
    text, text, messages.message_status[], text, timestamptz, timestamptz, jsonb, boolean
  )
    to notifyq_reader, notifyq_admin;
end;
$$;
