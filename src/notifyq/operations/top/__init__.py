"""`notifyq top`: queues, workers, dead messages, streams and health at a glance, in a terminal.

Its figures are those of `notifyq.monitor`; the screens need Textual (extra `top`), the rest not.
"""
