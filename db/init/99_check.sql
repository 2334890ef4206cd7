-- Check: an incomplete install fails here, not in production; then its version is recorded.
--
-- raises: NQ902 the install is incomplete

do $$
declare
  v_missing text := nullif(array_to_string(notifyq.missing_objects(), ', '), '');
begin
  if v_missing is not null then
    raise exception using
      errcode = 'NQ902',
      message = 'the install is incomplete: missing ' || v_missing,
      hint = 'run `notifyq init` as the owner of schema messages';
  end if;
end;
$$;

insert into notifyq.schema_version (version)
values (messages.version())
on conflict on constraint schema_version_version_pk do nothing;

-- Only once: a row from a restored backup identifies the server that the backup was made of.
insert into notifyq.origin
select h.* from notifyq.current_origin() as h where not exists (select from notifyq.origin);
