"""`notifyq roles`: a login for each duty, with the password of its environment variable."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from enum import StrEnum

import typer

from notifyq.cli.command import Commands, Listing, acting, open_database
from notifyq.cli.options import DsnOption, JsonOption, option
from notifyq.cli.output import out, print_rows
from notifyq.database.installs import inner, of
from notifyq.errors import ConfigurationError

roles = Commands(name="roles", cls=Listing, help="List (ls) and create logins, one for each duty.")

_ITERATIONS = 4096
"""Of SCRAM-SHA-256, as PostgreSQL has them by default."""

_LIST = """
select r.rolname as name,
  array_agg(substr(g.rolname, length('notifyq_') + 1) order by g.rolname) as duties,
  r.rolsuper as superuser
from pg_roles as r
join pg_roles as g on g.rolname in (
  'notifyq_publisher', 'notifyq_worker', 'notifyq_viewer', 'notifyq_reader', 'notifyq_admin',
  'notifyq_owner'
) and pg_has_role(r.oid, g.oid, 'member')
where r.rolcanlogin
group by 1, 3
order by 1
"""

# What a login of this name may do beside its duty; null: there is no such role.
_MORE = """
select r.rolsuper or r.rolcreaterole or r.rolbypassrls or r.rolreplication or exists (
  select from pg_roles as g
  where g.rolname ~ '^notifyq_([a-z0-9_]+_)?(publisher|worker|viewer|reader|admin|owner)$'
    and g.rolname <> $2
    and pg_has_role(r.oid, g.oid, 'member')
) as may_more
from pg_roles as r
where r.rolname = $1
"""
_CREATE = "select format('create role %I', $1::text)"
_ALTER = "select format('alter role %I login password %L', $1::text, $2::text)"
_GRANT = "select format('grant %I to %I', $2::text, $1::text)"


class Duty(StrEnum):
    """What a login does; each has one group role and one variable with its password."""

    PUBLISHER = "publisher"
    WORKER = "worker"
    VIEWER = "viewer"
    READER = "reader"
    ADMIN = "admin"
    DASHBOARD = "dashboard"

    def role(self, schema: str) -> str:
        """The group role of the duty in an install."""
        return f"{inner(schema)}_{Duty.READER if self is Duty.DASHBOARD else self}"

    @property
    def variable(self) -> str:
        """The environment variable with the password of its login."""
        name = "DASHBOARD_DB" if self is Duty.DASHBOARD else self.upper()
        return f"NOTIFYQ_{name}_PASSWORD"


@roles.command()
async def ls(dsn: DsnOption = None, as_json: JsonOption = False) -> None:
    """List the logins that have a role of notifyq, by membership or as superusers."""
    async with open_database(dsn) as database:
        found = [dict(row) for row in await database.fetch(_LIST)]
    print_rows(found, as_json=as_json, empty="no login has a role of notifyq")


@roles.command()
async def create(
    duties: list[Duty] | None = typer.Argument(
        None,
        metavar="[DUTY]...",
        show_default=False,
        help="publisher, worker, viewer, reader, admin, dashboard; by default those whose password "
        "is set.",
    ),
    prefix: str = option("What the names begin with.", default="queue"),
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a login for each duty, as queue_worker; one that exists gets the password.

    Passwords are in NOTIFYQ_PUBLISHER_PASSWORD, NOTIFYQ_WORKER_PASSWORD, NOTIFYQ_VIEWER_PASSWORD,
    NOTIFYQ_READER_PASSWORD, NOTIFYQ_ADMIN_PASSWORD and NOTIFYQ_DASHBOARD_DB_PASSWORD; the server
    gets their SCRAM verifiers only. A login that may do more than its duty is refused.
    """  # fmt: skip
    wanted = duties or [it for it in Duty if os.environ.get(it.variable)]
    if not wanted:
        names = ", ".join(it.variable for it in Duty)
        raise ConfigurationError(f"no password is set: set those of {names} that you need")
    verifiers = {it: _verifier(it) for it in dict.fromkeys(wanted)}
    done = []
    async with acting(dsn, "role.create", prefix) as act:
        for duty, verifier in verifiers.items():
            name = f"{prefix}_{duty}"
            role = duty.role(of(act.connection))
            found = await act.fetch(_MORE, name, role)
            if found and found[0]["may_more"]:
                raise ConfigurationError(
                    f"role {name!r} exists and may do more than a {duty}: give another --prefix"
                )
            if not found:
                await act.fetch(await act.value(_CREATE, name))
            await act.fetch(await act.value(_ALTER, name, verifier))
            await act.fetch(await act.value(_GRANT, name, role))
            done.append({"name": name, "role": role, "created": not found})
        act.note(names=[it["name"] for it in done])
    if as_json:
        print_rows(done, as_json=True, empty="")
        return
    for it in done:
        what = "created" if it["created"] else "changed"
        out.print(f"{what} {it['name']}, a member of {it['role']}", markup=False)


def _verifier(duty: Duty) -> str:
    """What PostgreSQL stores of the password of a duty (RFC 5803): a log can have only that."""
    password = os.environ.get(duty.variable, "")
    if not password:
        raise ConfigurationError(f"{duty.variable} is not set: it has the password of the {duty}")
    if not (password.isascii() and password.isprintable()):
        # Others would have to be normalised first (RFC 4013).
        raise ConfigurationError(f"{duty.variable} may have printable ASCII characters only")
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _ITERATIONS)
    client, server = (hmac.digest(salted, it, "sha256") for it in (b"Client Key", b"Server Key"))
    stored = hashlib.sha256(client).digest()
    encoded = [base64.b64encode(it).decode() for it in (salt, stored, server)]
    return "SCRAM-SHA-256${}:{}${}:{}".format(_ITERATIONS, *encoded)
