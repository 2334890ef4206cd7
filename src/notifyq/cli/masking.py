"""What of payloads is hidden from those who look on: options that commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from notifyq.config import from_environment
from notifyq.operations.masks import Masks

_VARIABLE = "NOTIFYQ_MASK"

MaskOption = Annotated[
    str | None,
    typer.Option(
        metavar="KEYS",
        help="Keys whose values are hidden in payloads: 'password,*.token,card.*'; "
        "else NOTIFYQ_MASK.",
    ),
]
HideOption = Annotated[bool, typer.Option("--hide-payloads", help="Show no payloads at all.")]


def masks_of_environment() -> Masks:
    """What is hidden where a command has no option for it."""
    return masks_of(None)


def masks_of(given: str | None, *, all_payloads: bool = False) -> Masks:
    """What --mask says, else NOTIFYQ_MASK; blank it is refused, as it would hide nothing."""
    keys = from_environment(_VARIABLE) if given is None else given
    return Masks.parse(keys, all_payloads=all_payloads)
