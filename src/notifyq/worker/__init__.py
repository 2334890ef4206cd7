"""A worker. A message passes `fetch`, `run` and `settle`; `worker` drives them and stops in order.

`wake` decides when to poll, `heartbeat` extends locks; `streams` serves subscriptions.
"""
