"""What of payloads is hidden from those who look on: options that commands share."""

from __future__ import annotations

from typing import Annotated

import typer

MaskOption = Annotated[
    str | None,
    typer.Option(
        envvar="NOTIFYQ_MASK",
        show_envvar=False,
        metavar="KEYS",
        help="Keys whose values are hidden in payloads: 'password,*.token,card.*'; "
        "else NOTIFYQ_MASK.",
    ),
]
HideOption = Annotated[bool, typer.Option("--hide-payloads", help="Show no payloads at all.")]
