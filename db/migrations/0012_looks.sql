-- Looks: what a subscriber and a claim ask in fewer steps.
-- breaking: no
-- needs: owner
--
-- owns:    nothing
-- writes:  nothing
-- calls:   nothing
-- raises:  nothing

-- Functions that no later version has, or not with this result, in one list.
do $$
declare
  v_function regprocedure;
begin
  for v_function in
    select to_regprocedure('messages.' || f.signature)
    from (
      values
        ('_look_ahead(messages.batch)'),
        ('_claim_ahead(messages.queue, integer, interval, text, jsonpath, boolean, integer)'),
        ('_count_running(messages.queue, integer, messages.flow_state, bigint[], integer)'),
        ('_pick_known(text, bigint[], integer, integer)')
    ) as f (signature)
    where to_regprocedure('messages.' || f.signature) is not null
  loop
    execute format('drop function %s', v_function);
  end loop;
end;
$$;
