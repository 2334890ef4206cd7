"""Pipelines that publish in bulk: files, and archived messages again."""
