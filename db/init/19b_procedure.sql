-- Procedure: what the broker of a role calls for the events of a subscriber.
--
-- owns:    messages.subscriber_procedure, messages.broker, types broker_turn, broker_report and
--          handled_event of messages
-- writes:  nothing
-- raises:  nothing

create table if not exists messages.subscriber_procedure (
  subscription bigint not null,
  stream text not null,
  subscriber text not null,
  position text not null default 'last',
  procedure text not null,
  owner text not null,
  registrar text not null default current_user,
  registered_at timestamptz not null default clock_timestamp(),
  handled bigint not null default 0,
  failed bigint not null default 0,
  batch bigint,
  run bigint,
  is_careful boolean not null default false,
  done bigint not null default 0,
  event bigint,
  event_starts integer not null default 0,
  constraint subscriber_procedure_subscription_pk primary key (subscription),
  constraint subscriber_procedure_subscription_fk foreign key (subscription)
    references messages.subscription (id) on delete cascade
) with (fillfactor = 50);

comment on table messages.subscriber_procedure is
  'The procedures that brokers call for each event of a subscriber, see messages.register().';
comment on column messages.subscriber_procedure.subscription is 'Number of the subscription.';
comment on column messages.subscriber_procedure.stream is 'Its stream.';
comment on column messages.subscriber_procedure.subscriber is 'Its name in the stream.';
comment on column messages.subscriber_procedure.position is
  'Where the subscription was to begin, if it had to be made.';
comment on column messages.subscriber_procedure.procedure is 'Its schema and name.';
comment on column messages.subscriber_procedure.owner is 'Whose it was when it was registered.';
comment on column messages.subscriber_procedure.registrar is
  'The role that has registered it, and that it is called by.';
comment on column messages.subscriber_procedure.registered_at is 'When that was.';
comment on column messages.subscriber_procedure.handled is 'Calls that returned.';
comment on column messages.subscriber_procedure.failed is 'Calls that ended with an error.';
comment on column messages.subscriber_procedure.batch is 'The batch that is being handled.';
comment on column messages.subscriber_procedure.run is 'The run of the broker that has begun it.';
comment on column messages.subscriber_procedure.is_careful is
  'Whether a session has ended in it, so that its events are now tried one by one.';
comment on column messages.subscriber_procedure.done is 'The last event of it that was handled.';
comment on column messages.subscriber_procedure.event is 'The event that is tried alone now.';
comment on column messages.subscriber_procedure.event_starts is 'How often that was begun.';

create table if not exists messages.broker (
  role text not null,
  pid integer,
  started_at timestamptz,
  is_wanted boolean not null default false,
  constraint broker_role_pk primary key (role)
);

comment on table messages.broker is 'Brokers of this database; see messages.status_broker().';
comment on column messages.broker.role is 'Whose procedures it calls, and whose session it is.';
comment on column messages.broker.pid is 'The server process of the one that was started last.';
comment on column messages.broker.started_at is 'When that was.';
comment on column messages.broker.is_wanted is
  'Whether one was started and not stopped since: one that is lost is then started again.';

do $$
begin
  if to_regtype('messages.broker_turn') is null then
    create type messages.broker_turn as (
      act text,
      place bigint,
      subscription bigint,
      batch bigint,
      stream text,
      subscriber text,
      procedure text[],
      done bigint,
      event bigint
    );
  end if;
  if to_regtype('messages.broker_report') is null then
    create type messages.broker_report as (
      running boolean,
      wanted boolean,
      role text,
      pid integer,
      started_at timestamptz,
      procedures bigint,
      handled bigint,
      failed bigint,
      obstacles text[]
    );
  end if;
  if to_regtype('messages.handled_event') is null then
    create type messages.handled_event as (
      stream text,
      subscriber text,
      id bigint,
      created_at timestamptz,
      type text,
      key text,
      message jsonb,
      headers jsonb,
      retries integer
    );
  end if;
end;
$$;

comment on type messages.broker_turn is 'What a broker does next.';
comment on type messages.broker_report is 'What there is to know of the broker of a role.';
comment on type messages.handled_event is 'An event as dequeued() gives it to a procedure.';
