"""Groups of commands that list something: that is what they do where no command is named."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


class Listing(TyperGroup):
    """A group whose `ls` is meant where its arguments begin with no command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put in the command that was left out."""
        named = args and (not args[0].startswith("-") or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if named else ["ls", *args])
