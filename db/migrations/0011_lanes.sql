-- Lanes: the messages of a key in indexes of numbers, see 08b_lane.sql.
-- breaking: no
-- needs: owner
--
-- owns:    the indexes of messages.message and messages.message_volatile that it makes
-- writes:  messages.flow_state
-- calls:   nothing
-- raises:  nothing

-- Functions that no later version has, or not with this result, in one list.
do $$
declare
  v_function regprocedure;
begin
  for v_function in
    select to_regprocedure('messages.' || f.signature)
    from (
      values
        ('_waiting_keys(text, text, text, integer, bigint[])'),
        ('_pick_equal(text, text[], bigint[], integer, bigint[])'),
        ('_pick_known(text, text[], integer, integer)'),
        ('_known_keys_setting(text)'),
        ('_known_keys(text, integer)'),
        ('_remember_keys(text, text[])'),
        ('_add_keys(text, text[], text, integer)'),
        (
          '_pick_fair(messages.queue, text[], boolean, integer, jsonpath, bigint[], bigint[], '
          'bigint[], messages.flow_state)'
        )
    ) as f (signature)
    where to_regprocedure('messages.' || f.signature) is not null
  loop
    execute format('drop function %s', v_function);
  end loop;
end;
$$;

-- Waits for the claims that are under way, so that no round goes on from a key.
alter table messages.flow_state
  drop column after_key,
  add column after_lane bigint,
  add column lanes bigint[],
  alter column lanes set storage external;

comment on column messages.flow_state.had is
  'How much of its share the key of after_lane has had in this round.';
comment on column messages.flow_state.after_lane is
  'The lane (see messages._lane()) of the key at which the next look begins; null: the first.';
comment on column messages.flow_state.lanes is
  'In which lanes of a fair queue something waits; null: that is not known.';

update messages.flow_state as s set had = 0 where s.had <> 0;

drop index messages.message_key_waiting_idx, messages.message_key_idx,
  messages.message_volatile_key_waiting_idx, messages.message_volatile_key_idx;

-- The first column is messages._lane(), which who inserts need not have the right to call.
create index message_key_waiting_idx
  on messages.message (
    (hashtextextended(queue, 0) << 40 | (hashtextextended(key, 0) & 1099511627775) | 1),
    priority desc, id
  )
  where state = 'waiting' and key is not null;
create index message_key_idx
  on messages.message (
    (hashtextextended(queue, 0) << 40 | (hashtextextended(key, 0) & 1099511627775) | 1), id
  )
  where key is not null;
create index message_volatile_key_waiting_idx
  on messages.message_volatile (
    (hashtextextended(queue, 0) << 40 | (hashtextextended(key, 0) & 1099511627775) | 1),
    priority desc, id
  )
  where state = 'waiting' and key is not null;
create index message_volatile_key_idx
  on messages.message_volatile (
    (hashtextextended(queue, 0) << 40 | (hashtextextended(key, 0) & 1099511627775) | 1), id
  )
  where key is not null;

comment on column messages.segment.witnesses is
  'Transactions that were open when it was closed, and may still write to it; of an empty one, '
  'that were open when it was made, and may not know of it.';
