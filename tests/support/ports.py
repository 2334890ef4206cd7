"""Ports for programs that cannot choose one, and report it, themselves."""

import random
import socket
from contextlib import ExitStack, suppress


def free_port(count: int = 1) -> int:
    """Give the first of so many free ports in a row.

    They are below those that the system chooses for sockets, and so remain free for a while.
    """
    while True:
        port = random.randrange(10_000, 30_000)
        with suppress(OSError), ExitStack() as taken:
            for one in range(port, port + count):
                taken.enter_context(socket.create_server(("127.0.0.1", one)))
            return port
