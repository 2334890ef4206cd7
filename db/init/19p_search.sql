-- Search: what is looked for, and what is found, as the pages for people on call show it.
--
-- owns:    messages.search_conditions, messages.found_message, messages.dead_group,
--          messages.step_report, messages.relative_report
-- writes:  nothing
-- raises:  nothing

do $$
begin
  if to_regtype('messages.search_conditions') is null then
    create type messages.search_conditions as (
      state text,
      queue text,
      subscriber text,
      type text,
      key text,
      dedup_key text,
      worker text,
      error text,
      fingerprint text,
      payload jsonpath,
      since_at timestamptz,
      until_at timestamptz
    );
  end if;
  if to_regtype('messages.found_message') is null then
    create type messages.found_message as (
      id bigint,
      queue text,
      state text,
      created_at timestamptz,
      available_at timestamptz,
      locked_at timestamptz,
      lock_expires_at timestamptz,
      archived_at timestamptz,
      priority integer,
      attempts integer,
      type text,
      key text,
      dedup_key text,
      worker text,
      subscriber text,
      event_id bigint,
      retried_as bigint,
      details text,
      message jsonb
    );
  end if;
  if to_regtype('messages.dead_group') is null then
    create type messages.dead_group as (
      fingerprint text,
      dead bigint,
      first_at timestamptz,
      last_at timestamptz,
      last_id bigint,
      queues text[],
      statuses messages.message_status[],
      sample text
    );
  end if;
  if to_regtype('messages.step_report') is null then
    create type messages.step_report as (
      found bigint,
      done bigint,
      place_at timestamptz,
      place_id bigint,
      is_over boolean
    );
  end if;
  if to_regtype('messages.relative_report') is null then
    create type messages.relative_report as (
      kind text,
      id bigint,
      queue text,
      state text,
      happened_at timestamptz
    );
  end if;
end;
$$;

comment on type messages.search_conditions is
  'What search_live(), search_archive() and those beside them take as JSON: each is null or must '
  'hold.';
comment on type messages.found_message is
  'A message as search_live() and search_archive() give it: state is that of a live one or the '
  'status of a finished one, message is null where the payload is long.';
comment on type messages.dead_group is
  'Dead messages whose errors have the same fingerprint, as messages.dead_groups() reports them.';
comment on type messages.step_report is
  'What one step of an action over many dead messages did, and where the next one begins.';
comment on type messages.relative_report is
  'A message that has to do with another one, as messages.relatives() reports it.';
