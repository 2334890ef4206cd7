"""The program that spark-submit runs: the pipelines of the command line, on a cluster.

`spark-submit $(python -m notifyq.spark.submit) export --lake DIR --engine spark` is
`notifyq spark export --lake DIR --engine spark` with the session that spark-submit configures.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main(arguments: list[str]) -> None:
    """Run a pipeline; without arguments tell where this program is."""
    if not arguments:
        sys.stdout.write(f"{Path(__file__).resolve()}\n")
        return
    # The folder of a program comes first on its path, and the modules beside this one have names
    # that others may have, too.
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    sys.argv = ["notifyq", "spark", *arguments]
    runpy.run_module("notifyq", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
