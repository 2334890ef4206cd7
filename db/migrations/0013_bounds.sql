-- Bounds: instants, durations and numbers that every reader can hold; older rows get them too.
-- breaking: no
-- needs: owner
--
-- owns:    nothing
-- writes:  nothing
-- calls:   nothing
-- raises:  nothing

-- Functions that this version no longer has, or has with another signature or result, in one list.
do $$
declare
  v_function regprocedure;
begin
  for v_function in
    select to_regprocedure('messages.' || f.signature)
    from (
      values
        ('_none(void)')
    ) as f (signature)
    where to_regprocedure('messages.' || f.signature) is not null
  loop
    execute format('drop function %s', v_function);
  end loop;
end;
$$;
