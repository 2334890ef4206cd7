"""Look at a database, a server and the way to them, and say what is wrong and what to do."""

from notifyq.operations.doctor.examination import CHECKS, examine
from notifyq.operations.doctor.finding import Finding, Fix, Level
from notifyq.operations.doctor.mending import mend, steps

__all__ = ["CHECKS", "Finding", "Fix", "Level", "examine", "mend", "steps"]
