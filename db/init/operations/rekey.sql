-- Rekey: envelopes of an old key are replaced by ones of the current key, in steps.
--
-- The program reads a step, decrypts and encrypts, and writes it back. A row that has changed
-- meanwhile is left out, and so is one that would differ in more than key, nonce and data. Each
-- step is a transaction of its own: a run that was killed is done again, and writes only the rest.
--
-- raises: NQ003 invalid argument

-- What has envelopes, by the primary key. Events of streams are left out: they never change.
create or replace function notifyq.sealed_place(name text)
  returns table (relation text, keys text[], types text[], texts text[], jsons text[])
  language sql immutable
as $$
  select p.relation, p.keys, p.types, p.texts, p.jsons
  from (
    values
      ('message', 'messages.message', '{id}'::text[], '{bigint}'::text[], '{details}'::text[],
        '{message}'::text[]),
      ('archive', 'messages.message_archive', '{id,archived_at}', '{bigint,timestamptz}',
        '{details}', '{message,result}'),
      ('attempt', 'messages.attempt', '{message_id,lock_token,ended_at}',
        '{bigint,bigint,timestamptz}', '{details,traceback}', '{}'),
      ('step', 'notifyq.step', '{message_id,name}', '{bigint,text}', '{}', '{value}'),
      ('step_archive', 'notifyq.step_archive', '{message_id,name,archived_at}',
        '{bigint,text,timestamptz}', '{}', '{value}'),
      ('end_wait', 'notifyq.end_wait', '{message_id,step,after_id}', '{bigint,text,bigint}',
        '{details}', '{result}'),
      ('signal', 'notifyq.signal', '{id}', '{bigint}', '{}', '{payload}'),
      ('output', 'notifyq.message_output', '{message_id,number}', '{bigint,bigint}', '{}',
        '{chunk}')
  ) as p (name, relation, keys, types, texts, jsons)
  where p.name = sealed_place.name;
$$;

create or replace function notifyq.sealed_rows(place text, "position" jsonb, quantity integer)
  returns jsonb language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_place record;
  v_keys text;
  v_columns text[];
  v_step jsonb;
begin
  perform notifyq.check_quantity(quantity, 10000);
  select p.* into v_place from notifyq.sealed_place(place) as p;
  if not found then
    perform notifyq.raise_invalid(format('there is no place %L with envelopes', place));
  end if;
  v_columns := v_place.texts || v_place.jsons;
  v_keys := (
    select string_agg(format('s.%I', k.name), ', ' order by k.ordinal)
    from unnest(v_place.keys) with ordinality as k (name, ordinal)
  );
  execute format(
    'with s as materialized (select s.* from %1$s as s %2$s order by %3$s limit $1) '
    'select jsonb_build_object( '
    '  ''read'', count(*), '
    '  ''next'', case when count(*) = $1 then ( '
    '    select jsonb_build_object(%4$s) from s order by %5$s limit 1 '
    '  ) end, '
    '  ''rows'', coalesce( '
    '    jsonb_agg(jsonb_build_object(''key'', jsonb_build_object(%4$s), ''old'', '
    '      jsonb_build_object(%6$s))) filter (where concat(%7$s) like ''%%$encrypted%%''), ''[]'' '
    '  ) '
    ') from s',
    v_place.relation,
    (
      select format('where (%s) > (%s)', v_keys, string_agg(
        format('%L::%s', sealed_rows.position ->> k.name, k.type), ', ' order by k.ordinal
      ))
      from unnest(v_place.keys, v_place.types) with ordinality as k (name, type, ordinal)
      where sealed_rows.position is not null
      having count(*) > 0
    ),
    v_keys,
    (select string_agg(format('%L, s.%I', k, k), ', ') from unnest(v_place.keys) as k),
    replace(v_keys, ',', ' desc,') || ' desc',
    (select string_agg(format('%L, s.%I::text', c, c), ', ') from unnest(v_columns) as c),
    (select string_agg(format('s.%I', c), ', ') from unnest(v_columns) as c)
  )
  using quantity
  into v_step;
  return v_step;
end;
$$;
comment on function notifyq.sealed_rows(text, jsonb, integer) is
  'Up to quantity rows of a place behind position: how many were read, the next position (null: '
  'the end), and those that have envelopes, with their key and the texts of their columns. Places '
  'are message, archive, attempt, step, step_archive, end_wait, signal and output.';

-- A text without what may differ after it was encrypted again.
create or replace function notifyq.without_seals(value text)
  returns text language sql immutable
as $$
  select regexp_replace(
    value, e'\\\\*"(data|key|nonce)\\\\*": \\\\*"[A-Za-z0-9+/=._-]*\\\\*"', '', 'g'
  );
$$;

create or replace function notifyq.replace_sealed(place text, rows jsonb)
  returns bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_place record;
  v_row jsonb;
  v_one bigint;
  v_done bigint := 0::bigint;
begin
  select p.* into v_place from notifyq.sealed_place(place) as p;
  if not found then
    perform notifyq.raise_invalid(format('there is no place %L with envelopes', place));
  end if;
  for v_row in
    select r.value from jsonb_array_elements(rows) as r (value)
  loop
    execute (
      select format(
        'update %s as t set %s where %s and %s', v_place.relation,
        string_agg(format('%I = ($1 -> ''new'' ->> %L)::%s', c.name, c.name, c.type), ', '),
        (
          select string_agg(
            format('t.%I = ($1 -> ''key'' ->> %L)::%s', k.name, k.name, k.type), ' and '
          )
          from unnest(v_place.keys, v_place.types) as k (name, type)
        ),
        string_agg(
          format(
            't.%1$I::text is not distinct from $1 -> ''old'' ->> %1$L and '
            'notifyq.without_seals(t.%1$I::text) '
            'is not distinct from notifyq.without_seals(($1 -> ''new'' ->> %1$L)::%2$s::text)',
            c.name, c.type
          ), ' and '
        )
      )
      from (
        select t.name, 'text' as type from unnest(v_place.texts) as t (name)
        union all
        select v.name, 'jsonb' from unnest(v_place.jsons) as v (name)
      ) as c
    )
    using v_row;
    get diagnostics v_one = row_count;
    v_done := v_done + v_one;
  end loop;
  return v_done;
end;
$$;
comment on function notifyq.replace_sealed(text, jsonb) is
  'Replace the envelopes in rows of a place, as sealed_rows() returns them, each with its new '
  'texts too; return how many were replaced. A row is left as it is if it has changed since, or if '
  'the new texts differ in more than key, nonce and data of envelopes.';
