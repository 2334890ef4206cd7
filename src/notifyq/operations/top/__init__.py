"""`notifyq top`: queues, workers, dead messages, streams and health in a terminal.

The screens need Textual (extra `top`); `once`, `snapshot`, `text` and `views` work without.
"""
