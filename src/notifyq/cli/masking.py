"""What of payloads is hidden from those who look on: options that commands share."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from notifyq.masks import Masks

_VARIABLE = "NOTIFYQ_MASK"

MaskOption = Annotated[
    str | None,
    typer.Option(
        envvar=_VARIABLE,
        show_envvar=False,
        metavar="KEYS",
        help="Keys whose values are hidden in payloads: 'password,*.token,card.*'; "
        "else NOTIFYQ_MASK.",
    ),
]
HideOption = Annotated[bool, typer.Option("--hide-payloads", help="Show no payloads at all.")]


def masks_of_environment() -> Masks:
    """What is hidden where a command has no option for it."""
    return Masks.parse(os.environ.get(_VARIABLE))
