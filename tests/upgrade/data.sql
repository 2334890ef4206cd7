-- Messages in every state.

select messages.create_queue(
  'bills', lock_duration => '5 minutes', max_attempts => 3, backoff => '10 seconds', notify => 'off',
  retention => '60 days'
);
select messages.create_queue('closed');
select messages.pause_queue('closed');

-- Archived: 1 success, 2 rejected, 3 failed, 4 lock expired.
insert into messages.message (message) select to_jsonb(n) from generate_series(1, 4) as n;
select messages.finish(c.id, c.lock_token, result => '{"done": true}')
from messages.claim(array['default'], worker => 'w') as c;
select messages.cancel(2);
select messages.finish(c.id, c.lock_token, 'failed', 'boom')
from messages.claim(array['default'], worker => 'w') as c;
select messages.claim(array['default'], lock_duration => '1 microsecond', worker => 'w');
select messages.reap();

-- Locked: 5, by worker w2, its second attempt.
select messages.publish(
  'bills', '{"bill": 1}', priority => 9, type => 'bill', headers => '{"h": 1}'
);
select messages.retry(c.id, c.lock_token, '0', 'try again')
from messages.claim(array['bills'], worker => 'w1') as c;
select messages.claim(array['bills'], worker => 'w2');

-- Waiting: 6 with a key, 7 and 8; scheduled: 9.
select messages.publish('bills', '{"bill": 2}', dedup_key => 'two');
select messages.publish_many('closed', array['"a"', 'null']::jsonb[]);
select messages.publish('bills', '{"bill": 3}', delay => '1 hour');
