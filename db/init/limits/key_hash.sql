-- Key hash: one number for a queue and a key.
--
-- Indexes hold it in place of both texts: numbers compare faster, whatever the collation. 24 bits
-- are of the queue and 39 of the key, from the hash function of hash partitioning, which is the
-- same in all versions of the server. Searches also compare the name of the queue: two queues may
-- share a range. Keys with equal hashes (most likely two in a million) share a turn and an order;
-- limits of a key are compared by the key itself. No key has the first hash of its queue.

-- Below all hashes of the queue. The server inlines all three functions.
create or replace function notifyq.first_key_hash(queue text)
  returns bigint language sql immutable parallel safe
as $$
  select pg_catalog.hashtextextended(queue, 0) operator(pg_catalog.<<) 40;
$$;

-- The largest hash of the queue.
create or replace function notifyq.last_key_hash(queue text)
  returns bigint language sql immutable parallel safe
as $$
  select notifyq.first_key_hash(queue) operator(pg_catalog.|) 1099511627775;
$$;

-- The indexes of messages.message have the same expression.
create or replace function notifyq.key_hash(queue text, key text)
  returns bigint language sql immutable parallel safe
as $$
  select notifyq.first_key_hash(queue)
    operator(pg_catalog.|)
      (pg_catalog.hashtextextended(key, 0) operator(pg_catalog.&) 1099511627775)
    operator(pg_catalog.|) 1;
$$;
