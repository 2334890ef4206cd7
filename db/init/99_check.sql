-- Check: an install that is not whole fails here, not in production; then its version is recorded.
--
-- raises:  NQ902 the install is not whole

do $$
declare
  v_missing text := nullif(array_to_string(notifyq.missing_objects(), ', '), '');
begin
  if v_missing is not null then
    raise exception using
      errcode = 'NQ902',
      message = 'the install is not whole: missing ' || v_missing,
      hint = 'run `notifyq init` as the owner of schema messages';
  end if;
end;
$$;

insert into notifyq.schema_version (version)
values (messages.version())
on conflict on constraint schema_version_version_pk do nothing;

-- Once: a row that came with a restored backup tells where it came from.
insert into notifyq.origin
select h.* from notifyq.current_origin() as h
where not exists (select from notifyq.origin);
