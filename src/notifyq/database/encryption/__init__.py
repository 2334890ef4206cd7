"""Encrypted queues and streams: keys and their envelopes, and messages that have some."""
