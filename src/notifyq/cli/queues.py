"""`notifyq queues`: list, create, change, pause, drop and grant queues."""

from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from notifyq.cli.command import Commands, Listing, acting, change, open_database
from notifyq.cli.hints import quoted, require_known
from notifyq.cli.options import (
    DsnOption,
    JsonOption,
    MaybeQueueArgument,
    duration_option,
    flag,
    instant_option,
    option,
)
from notifyq.cli.output import cell, note, out, print_json, print_rows, print_table
from notifyq.cli.policy import takes_policy, weight
from notifyq.database import statements as sql
from notifyq.errors import ConfigurationError, QueueNotFoundError
from notifyq.queues.admin import Admin
from notifyq.queues.options import options
from notifyq.queues.policy import Policy

queues = Commands(
    name="queues", cls=Listing, help="List (ls), create, change, pause and drop queues."
)

# `show` has the whole policy.
_COLUMNS = ("queue", "waiting", "scheduled", "locked", "expired", "oldest_waiting_at", "paused")
_MORE = ("blocked", "lock_duration", "max_attempts")
_WIDE = 110

NameArgument = Annotated[str, typer.Argument(help="Name of the queue.")]
RoleArgument = Annotated[str, typer.Argument(help="Role of the database, with its members.")]


@queues.command()
async def ls(dsn: DsnOption = None, as_json: JsonOption = False) -> None:
    """List the queues with their counts; `show` has the policy."""
    async with open_database(dsn) as database:
        rows = [dict(row) for row in await Admin(database).queue_info()]
    names = _COLUMNS + (_MORE if out.width >= _WIDE else ())
    ends = [row | {"paused": row["resumes_at"] or row["paused"]} for row in rows]
    shown = [{name.removesuffix("_waiting_at"): row[name] for name in names} for row in ends]
    print_rows(rows if as_json else shown, as_json=as_json, empty="no queues")
    if not as_json and (unlogged := [row["queue"] for row in rows if not row["durable"]]):
        note(f"unlogged, a crash of the server empties them: {', '.join(unlogged)}")


@queues.command()
async def show(name: NameArgument, dsn: DsnOption = None, as_json: JsonOption = False) -> None:
    """Show one queue: its counts, and every option of its policy."""
    async with open_database(dsn) as database:
        rows = await Admin(database).queue_info(name)
    if not rows:
        raise QueueNotFoundError(f"there is no queue {quoted(name)}")
    [row] = map(dict, rows)
    if as_json:
        print_json(row)
        return
    unset = {it.name: it.none for it in options(Policy)}
    counts_first = sorted(row, key=unset.__contains__)
    print_table(
        ["", "value"],
        [[key.replace("_", "-"), _worded(row[key], unset.get(key))] for key in counts_first],
    )


def _worded(value: Any, unset: str | None) -> Any:
    if value is None:
        return unset or "-"
    return "no" if value is False else value


@queues.command()
@takes_policy(Policy, of_new=True)
async def create(name: NameArgument, policy: Policy, dsn: DsnOption = None) -> None:
    """Create a queue. Options that are not given have their defaults."""
    async with acting(dsn, "queue.create", name) as act:
        created = await Admin(act).create_queue(name, policy)
        act.note(changed=created)
    out.print(f"created {name}" if created else f"{name} exists, nothing changed")
    if created and policy.durable is False:
        out.print("it is unlogged: a crash of the server empties it")


@queues.command()
@takes_policy(Policy)
async def alter(name: NameArgument, policy: Policy, dsn: DsnOption = None) -> None:
    """Change the policy of a queue. Options that are not given stay as they are."""
    async with acting(dsn, "queue.alter", name) as act:
        admin = Admin(act)
        was = await admin.queue_info(name)
        await admin.alter_queue(name, policy)
        act.note(**_changes(was, await admin.queue_info(name)))
    out.print(f"changed {name}")


def _changes(was: Sequence[Any], now: Sequence[Any]) -> dict[str, list[str]]:
    """The options of a policy that changed, each with its old and new value."""
    [old], [new] = was, now
    names = [it.name for it in fields(Policy) if old[it.name] != new[it.name]]
    return {name: [cell(old[name]), cell(new[name])] for name in names}


@queues.command()
async def pause(
    name: NameArgument,
    until: datetime | None = instant_option("Resume by itself at this instant."),
    duration: timedelta | None = duration_option("Resume by itself after this time.", name="--for"),
    dsn: DsnOption = None,
) -> None:
    """Hand out no more messages of a queue; publishing goes on."""
    if until is not None and duration is not None:
        raise typer.BadParameter("--until and --for exclude each other: give one of them")
    ends = {"until": until and until.isoformat(), "for": duration and str(duration)}
    async with acting(
        dsn, "queue.pause", name, **{key: end for key, end in ends.items() if end}
    ) as act:
        changed = await Admin(act).pause_queue(name, until=until, duration=duration)
        act.note(changed=changed)
    end = f" until {cell(until)}" if until else f" for {cell(duration)}" if duration else ""
    out.print(f"paused {name}{end}" if changed else f"{name} was paused already{end}")


@queues.command()
async def resume(name: NameArgument, dsn: DsnOption = None) -> None:
    """Hand out the messages of a paused queue again."""
    done, unchanged = f"resumed {name}", f"{name} was not paused"
    await change(dsn, "queue.resume", sql.RESUME_QUEUE, [name], done, unchanged)


@queues.command()
async def drop(
    name: NameArgument,
    force: bool = flag("--force", "Delete its live messages, too."),
    dsn: DsnOption = None,
) -> None:
    """Drop a queue; its archived messages stay."""
    async with acting(dsn, "queue.drop", name) as act:
        dropped = await Admin(act).drop_queue(name, force=force)
        act.note(deleted=dropped)
    out.print(f"dropped {name} and {dropped} live messages")


@queues.command()
async def grant(
    name: NameArgument,
    role: RoleArgument,
    publish: bool = flag("--publish", "Only to publish."),
    consume: bool = flag("--consume", "Only to consume."),
    read: bool = flag("--read", "Only to read, which closes nothing."),
    dsn: DsnOption = None,
) -> None:
    """Let a role use a queue, which is then closed to all others.

    With --read a role that has notifyq_viewer sees the queue or stream.
    """
    is_use = publish or consume or not read
    allowed = {"publish": publish or not consume, "consume": consume or not publish}
    noted = {key: is_use and it for key, it in allowed.items()} | {"read": read}
    async with acting(dsn, "queue.grant", name, role=role, **noted) as act:
        admin = Admin(act)
        changed = is_use and await admin.grant_queue(name, role, **allowed)
        changed |= read and await admin.grant_read(name, role)
        act.note(changed=changed)
    out.print(f"granted {name} to {role}" if changed else f"{role} has that grant already")


@queues.command()
async def revoke(name: NameArgument, role: RoleArgument, dsn: DsnOption = None) -> None:
    """Revoke all grants of a role; without the last one to use it the queue is open again."""
    async with acting(dsn, "queue.revoke", name, role=role) as act:
        admin = Admin(act)
        was_used = await admin.revoke_queue(name, role)
        if not await admin.revoke_read(name, role) and not was_used:
            raise ConfigurationError(
                f"role {quoted(role)} has no grant on queue {quoted(name)}: "
                "`notifyq queues grants` lists all"
            )
        act.note(changed=True)
        left = await admin.queue_grants(name)
    is_open = was_used and not any(it["may_publish"] or it["may_consume"] for it in left)
    end = f"; {name} is open to all publishers and workers" if is_open else ""
    out.print(f"revoked {name} from {role}{end}")


@queues.command()
async def grants(
    name: MaybeQueueArgument = None, dsn: DsnOption = None, as_json: JsonOption = False
) -> None:
    """List the roles that may use the queues that are not open to all, and those that may read."""
    async with open_database(dsn) as database:
        rows = [dict(row) for row in await Admin(database).queue_grants(name)]
    print_rows(rows, as_json=as_json, empty="every queue is open to all publishers and workers")


@queues.command()
async def share(
    name: NameArgument,
    key: Annotated[str, typer.Argument(help="Key of messages.")],
    weight: Annotated[
        Any, typer.Argument(parser=weight, help="Its share relative to other keys; none: equal.")
    ],
    dsn: DsnOption = None,
) -> None:
    """Give a key of a fair queue a larger or smaller share than others."""
    async with acting(dsn, "queue.share", name, key=key, weight=weight) as act:
        changed = await Admin(act).set_share(name, key, weight or None)
        act.note(changed=changed)
    out.print(f"changed {name}" if changed else "nothing changed")


@queues.command()
async def shares(
    name: MaybeQueueArgument = None, dsn: DsnOption = None, as_json: JsonOption = False
) -> None:
    """List the keys whose share is larger or smaller than others."""
    async with open_database(dsn) as database:
        rows = [dict(row) for row in await Admin(database).queue_shares(name)]
        if not rows:
            await require_known(database, name)
    print_rows(rows, as_json=as_json, empty="every key has the weight 1")


@queues.command()
async def limit(
    name: NameArgument,
    key: Annotated[str, typer.Argument(help="Key of messages.")],
    concurrency: int | None = option("Most messages of the key at a time.", min=1, max=10**9),
    rate: int | None = option("Most in the period of the key rate of the queue.", min=1, max=10**9),
    dsn: DsnOption = None,
) -> None:
    """Give one key other limits than the queue has for each key; without options the same."""
    limits = {"concurrency": concurrency, "rate": rate}
    async with acting(dsn, "queue.limit", name, key=key, **limits) as act:
        changed = await Admin(act).set_limit(name, key, concurrency=concurrency, rate=rate)
        act.note(changed=changed)
    out.print(f"changed {name}" if changed else "nothing changed")


@queues.command()
async def limits(
    name: MaybeQueueArgument = None, dsn: DsnOption = None, as_json: JsonOption = False
) -> None:
    """List the keys that have limits of their own."""
    async with open_database(dsn) as database:
        rows = [dict(row) for row in await Admin(database).queue_limits(name)]
        if not rows:
            await require_known(database, name)
    print_rows(rows, as_json=as_json, empty="every key has the limits of its queue")
