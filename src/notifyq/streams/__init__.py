"""Streams, and one subscription as a program reads it."""
