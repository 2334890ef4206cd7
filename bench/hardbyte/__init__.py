"""The public benchmark of PostgreSQL job queues, and notifyq in it."""
