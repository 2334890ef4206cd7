"""Adapters to other libraries; each is optional."""
