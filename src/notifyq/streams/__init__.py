"""Streams, their subscriptions, and a subscription for a program."""
