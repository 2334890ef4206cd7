-- Check: an install that is not whole fails here, not in production; then its version is recorded.
--
-- owns:    nothing
-- writes:  messages.schema_version
-- calls:   messages.version, messages._partition_name
-- raises:  NQ902 the install is not whole

do $$
declare
  v_missing text;
begin
  select string_agg(w.what, ', ') into v_missing
  from (
    select 'trigger ' || t.name as what
    from (
      values
        ('messages.message', 'published'), ('messages.message', 'schedule'),
        ('messages.message_archive', 'died')
    ) as t (relation, name)
    where not exists (
      select from pg_trigger as g
      where g.tgrelid = t.relation::regclass and g.tgname = t.name and g.tgenabled = 'O'
    )
    union all
    select 'index ' || i.name
    from (
      values ('message_waiting_idx'), ('message_scheduled_idx'), ('message_locked_idx'),
        ('message_dedup_key_uq'), ('message_archive_xid_idx'), ('redrive_archive_id_pk')
    ) as i (name)
    where not exists (
      select from pg_index as x
      where x.indexrelid = to_regclass('messages.' || i.name) and x.indisvalid
    )
    union all
    select 'an archive partition for today'
    where to_regclass(
      'messages.' || messages._partition_name((clock_timestamp() at time zone 'UTC')::date)
    ) is null
  ) as w;
  if v_missing is not null then
    raise exception using
      errcode = 'NQ902',
      message = 'the install is not whole: missing ' || v_missing,
      hint = 'run `notifyq init` as the owner of schema messages';
  end if;
end;
$$;

insert into messages.schema_version (version)
values (messages.version())
on conflict on constraint schema_version_version_pk do nothing;
