"""Message brokers of a test's own, which may be killed and started again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from support.ports import free_port

_RABBITMQ = "/usr/lib/rabbitmq/bin/rabbitmq-server"


def program(path: str, package: str) -> str:
    """Give the path of a program, or skip the test."""
    found = shutil.which(path) or shutil.which(path, path="/usr/sbin")
    if found is None:
        pytest.skip(f"there is no {path}: install the package {package}")
    return found


class Server:
    """A broker that keeps its data and its port."""

    def __init__(self, command: list[str], port: int, url: str, **environment: str) -> None:
        self.url = url
        self._command = command
        self._port = port
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | self._environment,
        )
        deadline = time.monotonic() + 50
        while not self._answers():
            assert self._process.poll() is None, f"{self._command[0]} has ended"
            assert time.monotonic() < deadline, f"{self._command[0]} does not answer"
            time.sleep(0.05)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port)):
            return True
        return False

    def kill(self) -> None:
        """Kill it with all its processes."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def running(made: Server) -> Iterator[Server]:
    made.start()
    try:
        yield made
    finally:
        made.kill()


@contextlib.contextmanager
def nats_server(config: str = "") -> Iterator[Server]:
    """Give a NATS server with JetStream."""
    path, port = program("nats-server", "nats-server"), free_port()
    with tempfile.TemporaryDirectory(prefix="notifyq-test-") as folder:
        file = Path(folder, "nats.conf")
        file.write_text(f'jetstream {{ store_dir: "{folder}" }}\n{config}\n')
        command = [path, "-a", "127.0.0.1", "-p", str(port), "-c", str(file)]
        with running(Server(command, port, f"nats://127.0.0.1:{port}")) as made:
            yield made


@contextlib.contextmanager
def rabbitmq_server(*lines: str) -> Iterator[Server]:
    """Give a RabbitMQ, with lines of its configuration."""
    path, port, names, peers = program(_RABBITMQ, "rabbitmq-server"), *_ports(3)
    with tempfile.TemporaryDirectory(prefix="notifyq-test-") as folder:
        Path(folder, "rabbitmq.conf").write_text("\n".join(["loopback_users = none", *lines]))
        made = Server(
            [path], port, f"amqp://guest:guest@127.0.0.1:{port}/",
            HOME=folder, ERL_EPMD_PORT=str(names), RABBITMQ_NODENAME="notifyq@localhost",
            RABBITMQ_NODE_IP_ADDRESS="127.0.0.1", RABBITMQ_NODE_PORT=str(port),
            RABBITMQ_DIST_PORT=str(peers), RABBITMQ_MNESIA_BASE=folder, RABBITMQ_LOG_BASE=folder,
            RABBITMQ_CONFIG_FILE=f"{folder}/rabbitmq", RABBITMQ_PID_FILE=f"{folder}/pid",
            RABBITMQ_ENABLED_PLUGINS_FILE=f"{folder}/plugins",
            RABBITMQ_CONF_ENV_FILE=f"{folder}/env",
        )  # fmt: skip
        # Otherwise the server starts one that stays.
        registry = Server([program("epmd", "erlang-base"), "-port", str(names)], names, "")
        with running(registry), running(made):
            yield made


def _ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]


def _ignore(_: object) -> None:
    """Drop an error of the cluster itself."""


@contextlib.contextmanager
def kafka_cluster() -> Iterator[str]:
    """Give the URL of a cluster that librdkafka simulates in this process."""
    cluster = Producer(
        {"test.mock.num.brokers": 1, "bootstrap.servers": "x", "log_level": 0, "error_cb": _ignore}
    )
    [broker] = cluster.list_topics(timeout=10).brokers.values()
    yield f"kafka://{broker.host}:{broker.port}"
    cluster.purge()
