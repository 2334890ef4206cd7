-- Streams: every subscriber sees every event; typed and volatile queues; relays.
-- breaking: no
-- needs: owner
--
-- owns:    nothing
-- writes:  nothing
-- calls:   nothing
-- raises:  nothing

-- Dead events: of which subscriber, and which event. They are told apart by the functions, too.
alter table messages.message_archive
  add column subscriber text,
  add column event_id bigint;

-- Coming from version 1, some were never made.
do $$
declare
  v_function regprocedure;
begin
  for v_function in
    select to_regprocedure('messages.' || f.signature)
    from (
      values
        ('dead_list(text, integer, integer)'), ('dead_count(text)'),
        ('dead_since(pg_snapshot, text)'),
        ('redrive(text, messages.message_status, timestamptz, timestamptz, integer)')
    ) as f (signature)
    where to_regprocedure('messages.' || f.signature) is not null
  loop
    execute format('drop function %s', v_function);
  end loop;
end;
$$;
