"""Adapters to other libraries: each is optional, and built on the public names."""
