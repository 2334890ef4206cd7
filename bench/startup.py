"""How long short commands take, as processes, with this checkout and with another one in turns.

`python -m bench.startup CHECKOUT [DSN [RUNS]]` prints for each command the median of both, half of
the distance between their quartiles, and their ratio. `ping` needs the DSN, whose schema must
serve both.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parents[1]
COMMANDS = (("--version",), ("--help",), ("worker", "--help"), ("ping",))


def seconds(checkout: Path, command: tuple[str, ...], dsn: str) -> float:
    """Run a command of a checkout to its end and return how long it took."""
    began = time.perf_counter()
    subprocess.run(  # noqa: S603
        [sys.executable, "-m", "notifyq", *command],
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(checkout / "src"), "NOTIFYQ_DSN": dsn},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - began


def summary(times: list[float]) -> str:
    """Return the median in milliseconds, and half of the distance between the quartiles."""
    low, _, high = statistics.quantiles(times)
    return f"{1000 * statistics.median(times):.0f} ± {500 * (high - low):.0f}"


def compare(other: Path, dsn: str, runs: int) -> None:
    """Measure the commands and print a line for each."""
    sys.stdout.write(f"{'ms':16}{'this':>12}{'other':>12}{'ratio':>8}\n")
    for command in COMMANDS if dsn else COMMANDS[:-1]:
        times: dict[Path, list[float]] = {HERE: [], other: []}
        for run in range(runs + 1):
            for checkout, found in times.items():
                took = seconds(checkout, command, dsn)
                if run:  # the first one compiles what it imports
                    found.append(took)
        ratio = statistics.median(times[HERE]) / statistics.median(times[other])
        shown = "".join(f"{summary(it):>12}" for it in times.values())
        sys.stdout.write(f"{' '.join(command):16}{shown}{ratio:8.2f}\n")


def main() -> None:
    """Read the arguments and compare."""
    checkout, dsn, runs = [*sys.argv[1:], *("", "20")[len(sys.argv) - 2 :]]
    compare(Path(checkout).resolve(), dsn, int(runs))


if __name__ == "__main__":
    main()
