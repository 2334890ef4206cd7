-- Schema: the namespace of everything, and which version of it is installed.
--
-- raises: NQ901 another version is installed

-- Not `create schema if not exists`: it needs the right to create schemas even where there is one,
-- and who owns this one need not own the database.
do $$
begin
  if to_regnamespace('messages') is null then
    create schema messages;
  end if;
end;
$$;
comment on schema messages is
  'notifyq: a message queue in PostgreSQL. Publish with messages.publish() or a plain insert into '
  'messages.message.';

create table if not exists messages.schema_version (
  version integer not null,
  installed_at timestamptz not null default clock_timestamp(),
  constraint schema_version_version_pk primary key (version)
);
comment on table messages.schema_version is
  'One row for each version of the schema that was installed here; the largest is in force.';

create or replace function messages.version()
  returns integer
  language sql
  immutable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
  select 1;
$$;
comment on function messages.version() is
  'The version of the schema that these functions need and that 99_check.sql records.';

create or replace function messages.serves()
  returns integer
  language sql
  immutable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
  select 1;
$$;
comment on function messages.serves() is
  'The oldest version whose packages still work with this schema; they refuse it if theirs is '
  'older.';

do $$
declare
  v_installed integer := (select max(s.version) from messages.schema_version as s);
begin
  -- The files of tables/ create what is missing but never alter a table: run over an older
  -- schema they would leave new functions beside old tables. A migration records its version
  -- first.
  if v_installed <> messages.version() then
    raise exception using
      errcode = 'NQ901',
      message = format('version %s of the schema is installed here', v_installed),
      hint = case
        when v_installed < messages.version()
        then format('upgrade it to version %s with `notifyq migrate`', messages.version())
        else format('these files are version %s: use those of a later notifyq', messages.version())
      end;
  end if;
end;
$$;
