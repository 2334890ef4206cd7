-- Lanes: the messages of a key of a queue, told by a number.
--
-- Indexes by queue and key hold it in place of both, so that numbers are compared to find a place
-- in them and no texts, whatever the collation. 24 bits are of the queue and 39 of the key, by the
-- hash that hash partitions go by, so it is the same in every version of the server. What another
-- queue has in the range of this one is left out by its name. Keys that have the same lane (of a
-- million, two of them in most cases) share a turn, and one order; what a key may have is told by
-- the key itself. No lane of a queue is its first one.

-- Before all lanes of the queue. All three are inlined.
create or replace function notifyq.first_key_hash(queue text)
  returns bigint
  language sql
  immutable
  parallel safe
as $$
  select pg_catalog.hashtextextended(queue, 0) operator(pg_catalog.<<) 40;
$$;

-- The last one that it can have.
create or replace function notifyq.last_key_hash(queue text)
  returns bigint
  language sql
  immutable
  parallel safe
as $$
  select notifyq.first_key_hash(queue) operator(pg_catalog.|) 1099511627775;
$$;

-- It must be what the indexes of messages.message have.
create or replace function notifyq.key_hash(queue text, key text)
  returns bigint
  language sql
  immutable
  parallel safe
as $$
  select notifyq.first_key_hash(queue)
    operator(pg_catalog.|)
      (pg_catalog.hashtextextended(key, 0) operator(pg_catalog.&) 1099511627775)
    operator(pg_catalog.|) 1;
$$;
