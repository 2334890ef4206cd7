-- Limits: concurrency, rate, order, fairness and capacity.
\ir limits/key_hash.sql
\ir limits/cost.sql
\ir limits/capacity.sql
\ir limits/triggers.sql
\ir limits/turns.sql
\ir limits/claim_before_turn.sql
\ir limits/find_limited.sql
\ir limits/keys.sql
\ir limits/fair.sql
\ir limits/shares.sql
\ir limits/key_limits.sql
