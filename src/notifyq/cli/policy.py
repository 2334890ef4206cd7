"""Options of commands for the policy of a queue or a stream, made from its description."""

import enum
import functools
import inspect
import json
from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from notifyq.cli.options import duration, duration_or_none
from notifyq.queues.options import Option, PolicyBase, options


def takes_policy(
    policy: type[PolicyBase], without: Collection[str] = (), *, of_new: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace the parameter `policy` of a command by the options of a policy.

    The help has the defaults that hold for what is `of_new`.
    """
    periods = {it.period for it in options(policy)}
    given = {it.name: it for it in options(policy) if it.name not in {*periods, *without}}

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def run(**values: Any) -> Any:
            chosen = {name: values.pop(name) for name in given}
            for name, it in given.items():
                if it.period and chosen[name] is not None:
                    chosen[name], chosen[it.period] = chosen[name]
            return command(policy=policy(**chosen), **values)

        signature = inspect.signature(command, eval_str=True)
        parameters = list(signature.parameters.values())
        index = list(signature.parameters).index("policy")
        parameters[index : index + 1] = [_parameter(it, of_new) for it in given.values()]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def _parameter(option: Option, of_new: bool) -> inspect.Parameter:
    kind, names, details = _declared(option)
    help_ = option.described("-" if option.kind == "type" else "none")
    if option.period:
        help_ += " As in 100/s or 5/10m."
    if of_new and option.default:
        help_ += f" By default {option.default}."
    return inspect.Parameter(
        option.name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=None,
        annotation=Annotated[kind, typer.Option(*names, help=help_, **details)],
    )


def _declared(option: Option) -> tuple[Any, list[str], dict[str, Any]]:
    """The type, names and settings of an option for typer."""
    match option.kind:
        case "flag":
            return bool | None, [f"--{option.name}/--{option.off}"], {}
        case "choice":
            return enum.StrEnum(option.name, {it: it for it in option.choices}), [], {}
        case "type":
            return str | None, [], {"metavar": "TYPE"}
        case "schema":
            return Any, [], {"metavar": "JSON|@FILE", "parser": schema}
        case "duration":
            parser = duration_or_none if option.none else duration
            return Any, [], {"metavar": "DURATION", "parser": parser}
        case _ if option.period:
            return Any, [], {"metavar": "N/PERIOD", "parser": rate}
        case _ if option.none:
            return Any, [], {"metavar": "N", "parser": limit}
        case _:
            return int | None, [], {"metavar": "N", "min": option.least, "max": option.most}


def limit(text: str) -> int:
    """A number of messages, or `none`, which is 0."""
    if text == "none":
        return 0
    if not text.isdecimal() or not 0 < int(text) < 2**31:
        raise typer.BadParameter("give a number from 1 on, or none")
    return int(text)


def rate(text: str) -> tuple[int, timedelta | None]:
    """`100` and `100/s` are a hundred a second, `5/10m` five in ten minutes; `none` is no limit."""
    number, slash, period = text.partition("/")
    quantity = limit(number)
    if not slash:
        return quantity, timedelta(seconds=1) if quantity else None
    return quantity, duration(period if period[:1].isdecimal() else f"1{period}")


def weight(text: str) -> float:
    """The weight of a share, or `none`, which is 0."""
    if text == "none":
        return 0.0
    try:
        read = float(text)
    except ValueError:
        read = 0.0
    if not read > 0:
        raise typer.BadParameter("give a number like 3 or 0.5, or none")
    return read


def schema(text: str) -> object:
    """A JSON Schema, or the file that has it, with or without @; `none` is no schema."""
    if text == "none":
        return True
    path = text.removeprefix("@")
    is_json = text.lstrip().startswith("{") or text in {"true", "false"}
    try:
        read = json.loads(text if is_json else Path(path).read_bytes())
    except OSError as error:
        raise typer.BadParameter(f"give JSON, @FILE or none: {error}") from error
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{'this' if is_json else path} is not JSON: {error}") from error
    if not isinstance(read, dict | bool):
        raise typer.BadParameter("a JSON Schema is an object")
    return read
