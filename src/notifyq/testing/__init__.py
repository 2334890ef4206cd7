"""For tests of programs: `Sandbox`, and fixtures in `notifyq.testing.plugin`."""

from notifyq.testing.sandbox import Sandbox

__all__ = ["Sandbox"]
