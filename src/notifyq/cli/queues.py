"""`notifyq queues`: list, create, change, pause and drop queues; say who may use them."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from notifyq.cli.audited import acting
from notifyq.cli.default_command import Listing
from notifyq.cli.hints import require_known
from notifyq.cli.output import (
    DsnOption,
    JsonOption,
    cell,
    note,
    open_database,
    out,
    print_rows,
    run,
)
from notifyq.cli.policy import (
    AttemptsOption,
    BackoffMaxOption,
    BackoffOption,
    BellOption,
    CapacityOption,
    ConcurrencyOption,
    DurableOption,
    FairOption,
    KeyConcurrencyOption,
    KeyRateBurstOption,
    KeyRateOption,
    LockTimeoutOption,
    MaxBytesOption,
    OrderedOption,
    OverflowOption,
    PayloadSchemaOption,
    PayloadTypeOption,
    RateBurstOption,
    RateOption,
    RetentionDeadOption,
    RetentionOption,
    weight,
)
from notifyq.queues.admin import Admin, Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

queues = typer.Typer(
    name="queues", cls=Listing, help="List (ls), create, change, pause and drop queues."
)

# --json has the whole policy.
_COLUMNS = ("queue", "waiting", "scheduled", "locked", "expired", "oldest_waiting_at", "paused")
_MORE = ("blocked", "lock_timeout", "max_attempts")
_WIDE = 110


NameArgument = Annotated[str, typer.Argument(help="Name of the queue.")]
RoleArgument = Annotated[str, typer.Argument(help="Role of the database, and all of its members.")]


@queues.command()
def ls(dsn: DsnOption = None, as_json: JsonOption = False) -> None:
    """List the queues with their counts and policy."""

    async def list_queues() -> None:
        async with open_database(dsn) as database:
            rows = [dict(row) for row in await Admin(database).queue_info()]
        names = _COLUMNS + (_MORE if out.width >= _WIDE else ())
        shown = [{name.removesuffix("_waiting_at"): row[name] for name in names} for row in rows]
        print_rows(rows if as_json else shown, as_json=as_json, empty="no queues")
        if not as_json and (volatile := [row["queue"] for row in rows if not row["durable"]]):
            note(f"volatile, contents are gone after a crash: {', '.join(volatile)}")

    run(list_queues())


@queues.command()
def create(
    name: NameArgument,
    lock_timeout: LockTimeoutOption = None,
    max_attempts: AttemptsOption = None,
    backoff: BackoffOption = None,
    backoff_max: BackoffMaxOption = None,
    bell: BellOption = None,
    retention: RetentionOption = None,
    max_bytes: MaxBytesOption = None,
    concurrency: ConcurrencyOption = None,
    key_concurrency: KeyConcurrencyOption = None,
    rate: RateOption = None,
    rate_burst: RateBurstOption = None,
    key_rate: KeyRateOption = None,
    key_rate_burst: KeyRateBurstOption = None,
    ordered: OrderedOption = None,
    fair: FairOption = None,
    capacity: CapacityOption = None,
    overflow: OverflowOption = None,
    durable: DurableOption = None,
    payload_type: PayloadTypeOption = None,
    payload_schema: PayloadSchemaOption = None,
    retention_dead: RetentionDeadOption = None,
    dsn: DsnOption = None,
) -> None:
    """Create a queue; what is not given is the default."""
    policy = _policy(locals())

    async def create_queue() -> None:
        async with acting(dsn, "queue.create", name) as act:
            created = await Admin(act).create_queue(name, policy)
            act.note(changed=created)
        out.print(f"created {name}" if created else f"{name} exists, nothing changed")
        if created and durable is False:
            out.print("its contents are gone after a crash of the server")

    run(create_queue())


@queues.command()
def alter(
    name: NameArgument,
    lock_timeout: LockTimeoutOption = None,
    max_attempts: AttemptsOption = None,
    backoff: BackoffOption = None,
    backoff_max: BackoffMaxOption = None,
    bell: BellOption = None,
    retention: RetentionOption = None,
    max_bytes: MaxBytesOption = None,
    concurrency: ConcurrencyOption = None,
    key_concurrency: KeyConcurrencyOption = None,
    rate: RateOption = None,
    rate_burst: RateBurstOption = None,
    key_rate: KeyRateOption = None,
    key_rate_burst: KeyRateBurstOption = None,
    ordered: OrderedOption = None,
    fair: FairOption = None,
    capacity: CapacityOption = None,
    overflow: OverflowOption = None,
    durable: DurableOption = None,
    payload_type: PayloadTypeOption = None,
    payload_schema: PayloadSchemaOption = None,
    retention_dead: RetentionDeadOption = None,
    dsn: DsnOption = None,
) -> None:
    """Change the policy of a queue; what is not given stays as it is."""
    policy = _policy(locals())

    async def alter_queue() -> None:
        async with acting(dsn, "queue.alter", name) as act:
            admin = Admin(act)
            was = await admin.queue_info(name)
            await admin.alter_queue(name, policy)
            act.note(**_changes(was, await admin.queue_info(name)))
        out.print(f"changed {name}")

    run(alter_queue())


@queues.command()
def pause(name: NameArgument, dsn: DsnOption = None) -> None:
    """Hand out no more messages of a queue; publishing goes on."""

    async def pause_queue() -> None:
        async with acting(dsn, "queue.pause", name) as act:
            changed = await Admin(act).pause_queue(name)
            act.note(changed=changed)
        out.print(f"paused {name}" if changed else f"{name} was paused already")

    run(pause_queue())


@queues.command()
def resume(name: NameArgument, dsn: DsnOption = None) -> None:
    """Hand out the messages of a paused queue again."""

    async def resume_queue() -> None:
        async with acting(dsn, "queue.resume", name) as act:
            changed = await Admin(act).resume_queue(name)
            act.note(changed=changed)
        out.print(f"resumed {name}" if changed else f"{name} was not paused")

    run(resume_queue())


@queues.command()
def drop(
    name: NameArgument,
    force: Annotated[bool, typer.Option("--force", help="Delete its live messages, too.")] = False,
    dsn: DsnOption = None,
) -> None:
    """Drop a queue; what it has archived stays."""

    async def drop_queue() -> None:
        async with acting(dsn, "queue.drop", name) as act:
            dropped = await Admin(act).drop_queue(name, force=force)
            act.note(deleted=dropped)
        out.print(f"dropped {name} and {dropped} live messages")

    run(drop_queue())


@queues.command()
def grant(
    name: NameArgument,
    role: RoleArgument,
    publish: Annotated[bool, typer.Option("--publish", help="Only to publish.")] = False,
    consume: Annotated[bool, typer.Option("--consume", help="Only to consume.")] = False,
    dsn: DsnOption = None,
) -> None:
    """Let a role use a queue, which is closed to others from then on."""

    async def grant_queue() -> None:
        allowed = {"publish": publish or not consume, "consume": consume or not publish}
        async with acting(dsn, "queue.grant", name, role=role, **allowed) as act:
            changed = await Admin(act).grant_queue(name, role, **allowed)
            act.note(changed=changed)
        out.print(f"granted {name} to {role}" if changed else f"{role} has that grant already")

    run(grant_queue())


@queues.command()
def revoke(name: NameArgument, role: RoleArgument, dsn: DsnOption = None) -> None:
    """Take a grant back; with the last one the queue is open again."""

    async def revoke_queue() -> None:
        async with acting(dsn, "queue.revoke", name, role=role) as act:
            admin = Admin(act)
            changed = await admin.revoke_queue(name, role)
            act.note(changed=changed)
            is_open = not await admin.queue_grants(name)
        end = f"; {name} is open to all publishers and workers" if is_open else ""
        out.print((f"revoked {name} from {role}" if changed else f"{role} had no grant") + end)

    run(revoke_queue())


@queues.command()
def grants(
    name: Annotated[str | None, typer.Argument(help="Name of the queue.")] = None,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """List who may use the queues that are not open to all."""

    async def list_grants() -> None:
        async with open_database(dsn) as database:
            rows = [dict(row) for row in await Admin(database).queue_grants(name)]
        print_rows(rows, as_json=as_json, empty="every queue is open to all publishers and workers")

    run(list_grants())


@queues.command()
def share(
    name: NameArgument,
    key: Annotated[str, typer.Argument(help="Key of messages.")],
    weight: Annotated[
        Any, typer.Argument(parser=weight, help="How many times as many as others; none: as many.")
    ],
    dsn: DsnOption = None,
) -> None:
    """Give a key of a fair queue more or less than the others."""

    async def set_share() -> None:
        async with acting(dsn, "queue.share", name, key=key, weight=weight) as act:
            changed = await Admin(act).set_share(name, key, weight or None)
            act.note(changed=changed)
        out.print(f"changed {name}" if changed else "it was so already")

    run(set_share())


@queues.command()
def shares(
    name: Annotated[str | None, typer.Argument(help="Name of the queue.")] = None,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the keys that get more or less than others."""

    async def list_shares() -> None:
        async with open_database(dsn) as database:
            rows = [dict(row) for row in await Admin(database).queue_shares(name)]
            if not rows:
                await require_known(database, name)
        print_rows(rows, as_json=as_json, empty="every key has the weight 1")

    run(list_shares())


def _changes(was: Sequence[Any], now: Sequence[Any]) -> dict[str, list[str]]:
    """What is otherwise in a policy than it was: both values of each part."""
    [old], [new] = was, now
    names = [it.name for it in fields(Policy) if old[it.name] != new[it.name]]
    return {name: [cell(old[name]), cell(new[name])] for name in names}


def _policy(given: dict[str, Any]) -> Policy:
    values: dict[str, Any] = {field.name: given.get(field.name) for field in fields(Policy)}
    for name in ("rate", "key_rate"):
        if (parsed := values[name]) is not None:
            values[name], values[f"{name}_period"] = parsed
    return Policy(**values)
