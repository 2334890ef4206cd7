-- Schemas: messages is public, notifyq is internal; and the installed version of both.
--
-- raises: NQ901 another version is installed

-- Not `create schema if not exists`: that needs the right to create schemas even where the schema
-- exists, and its owner need not own the database.
do $$
begin
  if to_regnamespace('messages') is null then
    create schema messages;
  end if;
  -- One role must be able to replace all functions.
  if to_regnamespace('notifyq') is null then
    execute format(
      'create schema notifyq authorization %I',
      (select pg_get_userbyid(n.nspowner) from pg_namespace as n where n.nspname = 'messages')
    );
  end if;
end;
$$;
comment on schema messages is
  'notifyq, a message queue in PostgreSQL. Publish with messages.publish() or with a plain insert '
  'into messages.message.';
comment on schema notifyq is
  'Internal part of notifyq: helpers, private tables, partitions, and functions for its own '
  'processes. Use schema messages.';

create table if not exists notifyq.schema_version (
  version integer not null,
  installed_at timestamptz not null default clock_timestamp(),
  constraint schema_version_version_pk primary key (version)
);
comment on table notifyq.schema_version is
  'One row for each version of the schema that was installed; the largest is the present one.';

create or replace function messages.version()
  returns integer language sql immutable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select 1;
$$;
comment on function messages.version is
  'The version of the schema that these functions need; 99_check.sql records it.';

create or replace function notifyq.oldest_client()
  returns integer language sql immutable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select 1;
$$;
comment on function notifyq.oldest_client is
  'The oldest version whose packages work with this schema; older packages refuse it.';

do $$
declare
  v_installed integer := (select max(s.version) from notifyq.schema_version as s);
begin
  -- The files of tables/ never alter a table: run over an older schema they would leave new
  -- functions beside old tables. A migration records its version first.
  if v_installed <> messages.version() then
    raise exception using
      errcode = 'NQ901',
      message = format('version %s of the schema is installed here', v_installed),
      hint = case
        when v_installed < messages.version()
        then format('upgrade it to version %s with `notifyq migrate`', messages.version())
        else format('these files are version %s: use a later notifyq', messages.version())
      end;
  end if;
end;
$$;
