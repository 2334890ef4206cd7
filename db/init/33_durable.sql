-- Durable: recorded steps, sleeps, signals, waits for messages, output.
\ir durable/steps.sql
\ir durable/park.sql
\ir durable/signals.sql
\ir durable/ends.sql
\ir durable/output.sql
