"""Runs `bench run` of the benchmark without containers: `python harness.py SPEC ARGUMENT…`.

It runs in an environment with the requirements of the benchmark. Files of the checkout are not
changed: it registers systems as processes of this machine, and gives the functions that start and
stop the container of PostgreSQL a private server with the settings of their `postgresql.conf`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from notifyq.server import Server

_LINE = re.compile(r"^(\w+)\s*=\s*(?:'([^']*)'|([^\s#]+))", re.MULTILINE)
_OWN = {"listen_addresses": "127.0.0.1", "shared_preload_libraries": ""}
"""What a private server needs other than their container: no other machine has access to it."""


def settings(conf: str) -> dict[str, str]:
    """Return the settings of a postgresql.conf, with those of a private server."""
    return {name: quoted or plain for name, quoted, plain in _LINE.findall(conf)} | _OWN


def main(spec: dict[str, Any], arguments: list[str]) -> int:
    """Register the systems, take over the server, and run."""
    checkout = Path(spec["checkout"])
    sys.path.insert(0, str(checkout))
    adapters: Any = import_module("bench_harness.adapters")
    orchestrator: Any = import_module("bench_harness.orchestrator")
    conf = (checkout / "postgres.conf").read_text(encoding="utf-8")
    server = Server(Path(spec["server"]), binaries=Path(spec["binaries"]), settings=settings(conf))

    def start(_image: str) -> None:
        address = urlsplit(server.start())
        adapters.PG_PORT = address.port
        adapters.PG_USER = address.username
        adapters.PG_PASS = unquote(address.password or "")

    # The names of the orchestrator's own functions. `down` deletes the data, `stop` keeps them.
    orchestrator.start_postgres = orchestrator._compose_start_postgres = start
    orchestrator.stop_postgres = lambda _image: server.delete()
    orchestrator._compose_stop_postgres = lambda _image: server.stop()
    orchestrator.RESULTS_ROOT = Path(spec["results"])

    create = orchestrator.preflight_database

    def preflight(manifest: Any, **options: Any) -> None:
        script = spec["systems"][manifest.system].get("sql")
        if script is None:
            create(manifest, **options)
            return
        # The server lacks the extension: its script makes the same schema.
        create(replace(manifest, extensions=[]), **options)
        url = adapters.pg_url(manifest.db_name)
        with orchestrator.psycopg.connect(url, autocommit=True) as connection:
            connection.execute(Path(script).read_text(encoding="utf-8"))

    orchestrator.preflight_database = preflight
    for name, system in spec["systems"].items():

        def launch(
            manifest: Any, overrides: dict[str, str], system: dict[str, Any] = system
        ) -> Any:
            environment = adapters._base_env(manifest, overrides) | system["environment"]
            return adapters.LaunchSpec(system["command"], environment, cwd=system["folder"])

        folder = Path(system["manifest"]).parent
        adapters.ADAPTERS[name] = adapters.AdapterEntry(folder, lambda _skip: None, launch)
    try:
        return int(orchestrator.main(["run", *arguments]))
    finally:
        server.delete()


if __name__ == "__main__":
    os.environ["PRODUCER_PACING"] = "adapter"
    sys.exit(main(json.loads(sys.argv[1]), sys.argv[2:]))
