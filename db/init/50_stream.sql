-- Stream: every subscriber sees every event.
\ir stream/admin.sql
\ir stream/publish.sql
\ir stream/segments.sql
\ir stream/windows.sql
\ir stream/batches.sql
\ir stream/settle.sql
\ir stream/subscriptions.sql
\ir stream/skip.sql
\ir stream/forward.sql
\ir stream/capture.sql
\ir stream/captures.sql
\ir stream/broker.sql
\ir stream/broker_loop.sql
\ir stream/inspect.sql
\ir stream/maintenance.sql
