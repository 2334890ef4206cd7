"""Durable work: recorded steps, sleeps and waits of a handler, its progress and its output."""
