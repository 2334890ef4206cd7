-- Rekey: envelopes of an old key are replaced by ones of the current key, in steps.
--
-- The program reads some blocks of a table, decrypts and encrypts, and writes that back. A row that
-- has changed meanwhile is left out, and so is a text that would differ in more than key, nonce and
-- data. Each step is a transaction of its own: a run that was killed is done again, and writes only
-- the rest.
--
-- raises: NQ003 invalid argument

-- Tables and columns that have envelopes.
create or replace function notifyq.sealed_columns()
  returns setof notifyq.sealed_column language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select n.nspname::text, c.relname::text, p.name
  from (
    values
      (1, 'messages.message', 'message'), (2, 'messages.message', 'details'),
      (3, 'notifyq.message_unlogged', 'message'), (4, 'notifyq.message_unlogged', 'details'),
      (5, 'messages.message_archive', 'message'), (6, 'messages.message_archive', 'result'),
      (7, 'messages.message_archive', 'details'), (8, 'messages.attempt', 'details'),
      (9, 'messages.attempt', 'traceback'), (10, 'notifyq.step', 'value'),
      (11, 'notifyq.step_archive', 'value'), (12, 'notifyq.end_wait', 'result'),
      (13, 'notifyq.end_wait', 'details'), (14, 'notifyq.signal', 'payload'),
      (15, 'notifyq.message_output', 'chunk'), (16, 'messages.event', 'message'),
      (17, 'notifyq.event_retry', 'message'), (18, 'notifyq.event_retry', 'reason'),
      (19, 'notifyq.attempt_log', 'lines')
  ) as p (number, relation, name)
  cross join lateral (
    select p.relation::regclass::oid
    union
    select t.relid::oid from pg_partition_tree(p.relation::regclass) as t
  ) as t (oid)
  join pg_class as c on c.oid = t.oid and c.relkind = 'r'
  join pg_namespace as n on n.oid = c.relnamespace
  order by p.number, n.nspname, c.relname;
$$;
comment on function notifyq.sealed_columns() is
  'The tables and columns that have envelopes of encrypted queues and streams, in the order to '
  'replace them.';

create or replace function notifyq.check_sealed_column(given notifyq.sealed_column)
  returns void language plpgsql
as $$
begin
  if not exists (select from notifyq.sealed_columns() as c where c = given) then
    perform notifyq.raise_invalid(
      format('%s.%s.%s has no envelopes', given.namespace, given.relation, given.name)
    );
  end if;
end;
$$;

create or replace function notifyq.sealed_texts(
  namespace text, relation text, name text, first_block bigint, blocks integer
)
  returns jsonb language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_last bigint := sealed_texts.first_block + sealed_texts.blocks;
  v_from text := format('(%s,0)', first_block);
  v_to text := format('(%s,0)', least(v_last, 4294967294));
  v_like text := '%$encrypted%';
  v_texts jsonb;
begin
  perform notifyq.check_sealed_column((namespace, relation, name)::notifyq.sealed_column);
  perform notifyq.check_quantity(blocks, 10000, 'blocks'),
    notifyq.check_between('first_block', first_block, 0, 4294967294);
  perform notifyq.check_given('first_block', first_block is not null);
  execute format(
    'select jsonb_agg(jsonb_build_object(''row'', s.ctid, ''old'', to_jsonb(s.%I)::text)) '
    'from %I.%I as s where s.ctid >= %L and s.ctid < %L and s.%I::text like %L',
    name, namespace, relation, v_from, v_to, name, v_like
  )
  into v_texts;
  return jsonb_build_object('texts', coalesce(v_texts, '[]'), 'next', (
    select v_last
    where v_last * current_setting('block_size')::bigint
      < pg_relation_size(format('%I.%I', namespace, relation)::regclass)
  ));
end;
$$;
comment on function notifyq.sealed_texts(text, text, text, bigint, integer) is
  'The values of a column that have envelopes, as JSON, in some blocks of a table of '
  'sealed_columns(), each with its row; and next, the block to go on with, null at the end. Raises '
  'NQ003 for others.';

-- A text without what may differ after it was encrypted again.
create or replace function notifyq.without_seals(value text)
  returns text language sql immutable
as $$
  select regexp_replace(
    value, e'\\\\*"(data|key|nonce)\\\\*": \\\\*"[A-Za-z0-9+/=._-]*\\\\*"', '', 'g'
  );
$$;

create or replace function notifyq.replace_sealed(
  namespace text, relation text, name text, texts jsonb
)
  returns bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_text record;
  v_one bigint;
  v_done bigint := 0::bigint;
begin
  perform notifyq.check_sealed_column((namespace, relation, name)::notifyq.sealed_column);
  for v_text in
    select r.row, r.old, r.new
    from jsonb_to_recordset(texts) as r (row text, old text, new text)
  loop
    continue when
      notifyq.without_seals(v_text.old) is distinct from notifyq.without_seals(v_text.new);
    execute format(
      'update %I.%I as t '
      'set %I = (jsonb_populate_record(t, jsonb_build_object(%L, %L::jsonb))).%I '
      'where t.ctid = %L and to_jsonb(t.%I)::text = %L',
      namespace, relation, name, name, v_text.new, name, v_text.row, name, v_text.old
    );
    get diagnostics v_one = row_count;
    v_done := v_done + v_one;
  end loop;
  return v_done;
end;
$$;
comment on function notifyq.replace_sealed(text, text, text, jsonb) is
  'Replace texts that sealed_texts() has returned by their new ones; return how many were. One is '
  'left as it is if its row has changed since, or if more would change than key, nonce and data of '
  'envelopes. Raises NQ003 for another column.';
