"""Claim, dispatch, settle, and stop in order."""
