"""Look at a database, a server and the way to them, and say what is wrong and what to do."""

from notifyq.doctor.examination import examine
from notifyq.doctor.finding import Finding, Level

__all__ = ["Finding", "Level", "examine"]
