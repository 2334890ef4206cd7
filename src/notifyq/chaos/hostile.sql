-- What a role without any grant tries; {relation} stands for each table and view of the schema. All
-- of it must be refused, with insufficient_privilege.
table {relation};
select count(*) from {relation};
insert into {relation} default values;
delete from {relation};
truncate {relation};
do $$ begin lock table {relation} in access share mode; end $$;
copy {relation} to stdout;
create index on {relation} ((1));
comment on table {relation} is 'mine';
update messages.queue set paused = true;
update messages.message set lock_token = lock_token + 1 returning *;
insert into messages.message (queue, message) values ('quick', '{{}}');
select nextval('messages.message_id_seq');
select setval('messages.message_id_seq', 1);
create table messages.mine ();
create function messages.claim(text) returns text language sql as 'select $1';
create or replace function messages.version() returns integer language sql as 'select 0';
alter table messages.message disable trigger all;
create trigger mine before insert on messages.message
  for each row execute function suppress_redundant_updates_trigger();
drop function messages.version();
drop schema messages cascade;
create schema stolen authorization notifyq_admin;
set role notifyq_admin;
grant notifyq_worker to current_user;
grant all on schema messages to current_user;
select messages.version();
select messages.publish('quick', '{{}}');
select messages.claim();
select messages.finish(1, 1);
select messages.reap();
select messages.maintain();
select messages.drop_queue('quick', true);
select messages.dead_list();
select messages.message_list();
select messages.queue_info();
