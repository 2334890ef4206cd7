"""The demo: index every source file of the running Python's standard library."""
