-- Pace: what limits and streams cost.
-- breaking: no
-- needs: owner
--
-- owns:    messages.flow_charge
-- writes:  messages.flow_state
-- calls:   nothing
-- raises:  nothing

-- Functions that no later version has, in one list.
do $$
declare
  v_function regprocedure;
begin
  for v_function in
    select to_regprocedure('messages.' || f.signature)
    from (
      values
        ('_charge(messages.queue, bigint[], messages.flow_state, integer)'),
        ('_charge_keys(messages.queue, bigint[])'),
        ('_keys_pay(messages.queue, bigint[])'),
        ('_segment_ids(messages.batch, bigint, integer)'),
        ('_segment_events(messages.batch, bigint)'),
        ('next_due(text[])')
    ) as f (signature)
    where to_regprocedure('messages.' || f.signature) is not null
  loop
    execute format('drop function %s', v_function);
  end loop;
end;
$$;

-- Waits for the claims that are under way, so that what they charge is counted below.
alter table messages.flow_state
  add column charged bigint not null default 0,
  add column booked bigint not null default 0,
  add column keys_paid_at timestamptz not null default '-infinity',
  add column booked_paid_at timestamptz not null default '-infinity';

comment on column messages.flow_state.charged is 'The number of the last row of flow_charge.';
comment on column messages.flow_state.booked is
  'The number of the last of them that the buckets of flow_key have paid.';
comment on column messages.flow_state.keys_paid_at is
  'No bucket of a key is full again later than this, once all of flow_charge is paid.';
comment on column messages.flow_state.booked_paid_at is
  'No bucket in flow_key is full again later than this.';

create table messages.flow_charge (
  queue text not null,
  number bigint not null,
  charged_at timestamptz not null,
  each double precision not null,
  keys text[] not null,
  tokens integer[] not null,
  constraint flow_charge_queue_number_pk primary key (queue, number)
);

-- Written with each claim, as flow_state.
alter table messages.flow_charge
  alter column keys set storage external,
  alter column tokens set storage external;

comment on table messages.flow_charge is
  'What keys have had that is not in flow_key yet: one row for each claim well within their rate.';
comment on column messages.flow_charge.queue is 'Name of the queue.';
comment on column messages.flow_charge.number is
  'Rises with every claim, by the number of its keys.';
comment on column messages.flow_charge.charged_at is 'When the messages were handed out.';
comment on column messages.flow_charge.each is 'How long a bucket took for one token, in seconds.';
comment on column messages.flow_charge.keys is 'Keys of these messages.';
comment on column messages.flow_charge.tokens is 'How many messages of each of them.';

update messages.flow_state as s
set keys_paid_at = k.paid_at, booked_paid_at = k.paid_at
from (select l.queue, max(l.paid_at) as paid_at from messages.flow_key as l group by l.queue) as k
where k.queue = s.queue;
