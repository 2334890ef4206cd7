-- Audit: what people do with the dashboard and other tools.
--
-- raises: NQ003 invalid argument

create or replace function notifyq.add_counts(counts jsonb, more jsonb)
  returns jsonb language sql immutable
as $$
  select coalesce(jsonb_object_agg(c.part, c.total), '{}')
  from (
    select e.part, sum(e.n::bigint) as total
    from (
      select f.part, f.n from jsonb_each(counts) as f (part, n)
      union all
      select f.part, f.n from jsonb_each(more) as f (part, n)
    ) as e
    group by e.part
  ) as c;
$$;

create or replace function notifyq.note_audit(
  actor text,
  action text,
  subject text default '',
  details jsonb default null,
  origin text default null,
  id bigint default null
)
  returns bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_id bigint;
begin
  if coalesce(actor, '') = '' or coalesce(action, '') !~ '^[a-z_]+([.][a-z_]+)*$' then
    perform notifyq.raise_invalid(
      'an audit row needs an actor and an action', 'an action has a form like queue.pause'
    );
  end if;
  update messages.audit as a
  set details = a.details || jsonb_build_object(
    'found', (a.details -> 'found')::bigint + (note_audit.details -> 'found')::bigint,
    'done', (a.details -> 'done')::bigint + (note_audit.details -> 'done')::bigint
  ) || case when note_audit.details ? 'parts' then jsonb_build_object(
    'parts', notifyq.add_counts(a.details -> 'parts', note_audit.details -> 'parts')
  ) else '{}' end
  where a.id = note_audit.id
    and (a.role, a.actor, a.action)
      = (notifyq.calling_role(), left(note_audit.actor, 200), note_audit.action)
  returning a.id into v_id;
  if found then
    return v_id;
  end if;
  -- Truncated, not refused: a long name must not make the audited action fail.
  insert into messages.audit (role, actor, action, subject, origin, details)
  values (
    notifyq.calling_role(), left(actor, 200), left(action, 100), left(coalesce(subject, ''), 1000),
    left(origin, 200),
    case when octet_length(details::text) > 16384 then '{"too_long": true}' else details end
  )
  returning audit.id into v_id;
  return v_id;
end;
$$;
comment on function notifyq.note_audit is
  'Record an action of a person, in the transaction that does it. actor: the person who is logged '
  'in; action: such as queue.pause; subject: a name or id; details: counts and values (left out '
  'over 16 kB); origin: an address; id: the row of the steps of this action before this one, to '
  'which found, done and the counts in parts of details are added. The role of the database is '
  'recorded too. Returns the id of the row, which maintain() removes after 400 days. Raises NQ003 '
  'without actor or action.';

create or replace function messages.audit_list(
  before bigint default null,
  actor text default null,
  action text default null,
  subject text default null,
  quantity integer default 100,
  since timestamptz default null
)
  returns setof messages.audit language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
begin
  perform notifyq.check_quantity(audit_list.quantity, 10000);
  return query
  select a.*
  from messages.audit as a
  -- Not `is null or`: that is no index condition.
  where a.id < coalesce(audit_list.before, 9223372036854775807)
    and (audit_list.actor is null or a.actor = audit_list.actor)
    and (audit_list.action is null or a.action = audit_list.action
      or a.action like replace(audit_list.action, '_', e'\\_') || '.%')
    and (audit_list.subject is null or a.subject = audit_list.subject)
    and (audit_list.since is null or a.acted_at >= audit_list.since)
  order by a.id desc
  limit audit_list.quantity;
end;
$$;
comment on function messages.audit_list is
  'What people did, the latest first: before that id, by one actor, one action or all with a '
  'prefix (queue: queue.pause, queue.resume), about one subject, at since or later. Raises NQ003.';

create or replace function notifyq.forget_audit(quantity integer)
  returns integer language sql
  set enable_seqscan = off
as $$
  with forgotten as (
    delete from messages.audit as a
    where a.ctid = any (array(
      select o.ctid from messages.audit as o
      where o.acted_at < now() - interval '400 days'
      order by o.acted_at
      limit forget_audit.quantity
    ))
    returning a.id
  )
  select count(*)::integer from forgotten;
$$;
