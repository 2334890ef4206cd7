"""The program that spark-submit runs: the pipelines of the command line, on a cluster.

`spark-submit $(python -m notifyq.spark.submit) export --lake DIR` is
`notifyq spark export --lake DIR --engine spark` with the session that spark-submit configures.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main(arguments: list[str]) -> None:
    """Run a pipeline; without arguments print the path of this program."""
    if not arguments:
        sys.stdout.write(f"{Path(__file__).resolve()}\n")
        return
    # Python puts the folder of a program first on the path: its modules would hide others of the
    # same names.
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    sys.argv = ["notifyq", "spark", *arguments]
    runpy.run_module("notifyq", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
