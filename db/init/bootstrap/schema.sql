-- Schemas: messages has what people and their programs call and read, notifyq all the rest; and
-- which version of both is installed.
--
-- raises: NQ901 another version is installed

-- Not `create schema if not exists`: it needs the right to create schemas even where there is one,
-- and who owns this one need not own the database.
do $$
begin
  if to_regnamespace('messages') is null then
    create schema messages;
  end if;
  -- Helpers are replaced by the same role as the functions that call them.
  if to_regnamespace('notifyq') is null then
    execute format(
      'create schema notifyq authorization %I',
      (select pg_get_userbyid(n.nspowner) from pg_namespace as n where n.nspname = 'messages')
    );
  end if;
end;
$$;
comment on schema messages is
  'notifyq: a message queue in PostgreSQL. Publish with messages.publish() or a plain insert into '
  'messages.message.';
comment on schema notifyq is
  'notifyq: helpers, private tables and partitions, and functions that only its own processes '
  'call. Use schema messages.';

create table if not exists notifyq.schema_version (
  version integer not null,
  installed_at timestamptz not null default clock_timestamp(),
  constraint schema_version_version_pk primary key (version)
);
comment on table notifyq.schema_version is
  'One row for each version of the schema that was installed here; the largest is in force.';

create or replace function messages.version()
  returns integer
  language sql
  immutable
  security definer
  set search_path = pg_catalog, pg_temp
as $$
  select 1;
$$;
comment on function messages.version() is
  'The version of the schema that these functions need and that 99_check.sql records.';

create or replace function notifyq.oldest_client()
  returns integer
  language sql
  immutable
  security definer
  set search_path = pg_catalog, pg_temp
as $$
  select 1;
$$;
comment on function notifyq.oldest_client() is
  'The oldest version whose packages still work with this schema; they refuse it if theirs is '
  'older.';

do $$
declare
  v_installed integer := (select max(s.version) from notifyq.schema_version as s);
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
