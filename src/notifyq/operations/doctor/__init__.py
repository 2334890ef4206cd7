"""Checks a database, its server and the connection to it, and advises what to do."""

from notifyq.operations.doctor.finding import Finding, Level
from notifyq.operations.doctor.run import CHECKS, apply_fixes, examine, steps

__all__ = ["CHECKS", "Finding", "Level", "apply_fixes", "examine", "steps"]
