"""DSNs in both forms of libpq: their options, and their text without passwords."""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote, unquote

from notifyq.errors import ConfigurationError, meant


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


PASSED_ON = _names("""
    user password passfile dbname host port sslmode sslcert sslkey sslpassword sslrootcert sslcrl
    sslnegotiation ssl_min_protocol_version ssl_max_protocol_version target_session_attrs
    krbsrvname gsslib options
""")
"""Options that asyncpg obeys."""
_OBEYED = _names("hostaddr connect_timeout service servicefile")
# application_name is the name of our process, text is UTF-8, and pings detect a lost connection.
_IGNORED = _names("""
    application_name fallback_application_name client_encoding keepalives keepalives_idle
    keepalives_interval keepalives_count tcp_user_timeout sslcompression sslsni sslkeylogfile
    gssdelegation max_protocol_version
""")
_VALUES = {
    "channel_binding": ("disable", "prefer", "require"),
    "gssencmode": ("disable", "prefer"),
    "load_balance_hosts": ("disable", "random"),
    "min_protocol_version": ("3.0",),
    "replication": ("false", "off", "no", "0"),
    "sslcertmode": ("allow",),
}
"""Options of which only some values work."""
_MISSING = _names("""
    requirepeer require_auth sslcrldir scram_client_key scram_server_key oauth_issuer
    oauth_client_id oauth_client_secret oauth_scope
""")
"""Options of libpq that asyncpg lacks; without them a connection may be less safe."""
_KNOWN = PASSED_ON | _OBEYED | _IGNORED | _VALUES.keys() | _MISSING
_POOL = "leave it out, and set pool_size or NOTIFYQ_POOL_SIZE"
_ELSEWHERE = {
    "pgbouncer": "leave it out: notifyq detects a pooler, and needs the server's own address in "
    "listen_dsn or NOTIFYQ_LISTEN_DSN to listen",
    "schema": "leave it out: notifyq has its own schemas; handlers name theirs, or use "
    "options=-c%20search_path%3Dname",
    "connection_limit": _POOL,
    "pool_size": _POOL,
    "max_overflow": _POOL,
    "pool_timeout": "leave it out: a call waits for a free connection",
    "socket_timeout": "leave it out, and set command_timeout or NOTIFYQ_COMMAND_TIMEOUT",
    "command_timeout": "leave it out, and set command_timeout or NOTIFYQ_COMMAND_TIMEOUT",
    "timeout": "write connect_timeout",
    "statement_cache_size": "leave it out: notifyq detects whether a pooler keeps statements",
    "prepared_statement_cache_size": "leave it out: notifyq detects whether a pooler keeps "
    "statements",
    "async_fallback": "leave it out",
    "sslaccept": "leave it out, and use sslmode=require or sslmode=verify-full",
    "sslidentity": "leave it out, and use sslcert and sslkey",
}
"""Options of Prisma, SQLAlchemy, asyncpg and others, and what to do instead."""
_TLS = {"true": "require", "1": "require", "false": "disable", "0": "disable"}

_HOST = re.compile(r"(\[[^]]*\]|[^:]*)(?::(\d*))?")
# Not urlsplit(): some versions of Python refuse a list of hosts that has brackets in the middle.
# What stands before :// and is no scheme may hold a password.
_PARTS = re.compile(
    r"\s*(?P<scheme>[A-Za-z][\w+.-]*)://(?P<netloc>[^/?#]*)"
    r"(?P<rest>(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?(?:#.*)?)",
    re.DOTALL,
)
_SCHEME = re.compile(r"(\s*)(postgres(?:ql)?)(?:\+\w+)?(://)", re.IGNORECASE)
_KEYWORD = re.compile(
    r"\s*(?P<name>[^\s=]+)\s*=\s*(?P<value>'(?:[^'\\]|\\.)*'|(?:[^\s\\']|\\.)(?:[^\s\\]|\\.)*|)"
    r"(?=\s|\Z)",
    re.DOTALL,
)
_SECRET = re.compile(r"password|secret|scram_", re.IGNORECASE)
_MAY_HOLD_PASSWORD = re.compile(
    r"//.*@|^[^\s/@:]+:[^@]*@|//.*[?&][^=]*password|\bpass(word|wd)?\s*=", re.DOTALL | re.IGNORECASE
)
_USER_ONLY = re.compile(r"[\w+]+://[\w.-]+@[^@]*")
# In an address of the web that has no login, an @ behind the host ends none: that is no DSN.
_DSN = re.compile(
    r"""(?!(?:https?:)?//[\w.-]+(?::\d+)?[/?#]) (?:(?<![a-z])[a-z][a-z0-9+.-]*:)?//[^\s'"]*@[^\s'"]*
    | \bpostgres(?:ql)?(?:\+\w+)?://[^\s'"]*""",
    re.IGNORECASE | re.VERBOSE,
)
_PASSWORD = re.compile(
    r"""(\b\w*password\s*=\s*)('(?:[^'\\]|\\.)*' | "[^"]*" | [^\s&'",;)]+)""",
    re.IGNORECASE | re.VERBOSE,
)


def unusable(dsn: str) -> ConfigurationError:
    """The error for a DSN that cannot be read, without its password."""
    parts = _PARTS.match(dsn)
    wrong = f"its scheme is {parts['scheme']}, " if parts and not _SCHEME.match(dsn) else ""
    # A word alone may be a password.
    shown = masked(dsn) if re.search("[=/]", dsn) else "(a DSN)"
    return ConfigurationError(
        f"the DSN {shown!r} cannot be used: {wrong}"
        "it must look like postgresql://user:password@host:5432/database"
    )


def options_of(dsn: str) -> dict[str, str]:
    """The options of a DSN by their names in libpq, with those of its service.

    Raises ConfigurationError where the DSN cannot be read, or an option has no meaning here.
    """
    found: dict[str, str] = {}
    for name, value in _read(dsn):
        _add(found, name, value, dsn)
    service = found.pop("service", "") or os.environ.get("PGSERVICE")
    file = found.pop("servicefile", None)
    if service:
        theirs: dict[str, str] = {}
        for name, value in _service(service, file):
            _add(theirs, name, value, f"{name}={value}")
        found = theirs | found
    return {name: value for name, value in found.items() if value}


def hosts_of(options: dict[str, str]) -> list[tuple[str, str]]:
    """The hosts to connect to with their ports; an empty text is a default of the environment."""
    names = options.get("host", "").split(",")
    addresses = options.get("hostaddr", "").split(",")
    if options.get("host") and options.get("hostaddr"):
        if len(names) != len(addresses):
            raise ConfigurationError("the DSN needs as many addresses in hostaddr as hosts")
        if options.get("sslmode") == "verify-full" and names != addresses:
            raise ConfigurationError(
                "the DSN has hostaddr and sslmode=verify-full, and notifyq checks the name that it "
                "connects to: leave out hostaddr"
            )
        names = [address or name for name, address in zip(names, addresses, strict=True)]
    elif options.get("hostaddr"):
        names = addresses
    ports = options.get("port", "").split(",")
    if len(ports) == 1:
        ports *= len(names)
    if len(ports) != len(names):
        raise ConfigurationError("the DSN needs one port, or one for each host")
    return list(zip(names, ports, strict=True))


def url_of(options: dict[str, str]) -> str:
    """The URL with these options; a list of hosts is an option in it."""
    left = dict(options)
    login = quote(left.pop("user", ""), safe="")
    if "password" in left:
        login += ":" + quote(left.pop("password"), safe="")
    hosts = left.get("host", "").split(",")
    netloc = ""
    # Python refuses brackets in a list of hosts, and asyncpg sockets in front of the path.
    if len(hosts) == 1 and "," not in left.get("port", "") and hosts[0][:1] not in {"", "/", "@"}:
        del left["host"]
        port = left.pop("port", "")
        netloc = _bracketed(quote(hosts[0], safe=":")) + (f":{port}" if port else "")
    elif "host" in left:
        left["host"] = ",".join(map(_bracketed, hosts))
    path = "/" + quote(left.pop("dbname"), safe="") if "dbname" in left else ""
    query = "&".join(f"{name}={quote(value, safe='/')}" for name, value in left.items())
    return f"postgresql://{login}{'@' if login else ''}{netloc}{path}" + (
        f"?{query}" if query else ""
    )


def with_database(dsn: str, name: str) -> str:
    """The DSN of another database of the same server."""
    return url_of(options_of(dsn) | {"dbname": name})


def with_user(dsn: str, user: str, database: str) -> str:
    """The DSN of a database of the same server for this user; another user has no password."""
    options = options_of(dsn)
    if options.get("user") != user:
        options.pop("password", None)
    return url_of(options | {"user": user, "dbname": database})


def without_driver(dsn: str) -> str:
    """The DSN without the driver's name in its scheme, as in `postgresql+asyncpg://`."""
    return _SCHEME.sub(r"\1\2\3", dsn) if _SCHEME.match(dsn) else dsn


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and host[0] not in "/@" else host


def _read(dsn: str) -> Iterator[tuple[str, str]]:
    """The names and values of the options of a DSN, decoded."""
    parts = _PARTS.fullmatch(dsn.strip())
    if parts is None:
        yield from _keywords(dsn)
        return
    if _SCHEME.fullmatch(f"{parts['scheme']}://") is None:
        raise unusable(dsn)
    login, _, listed = parts["netloc"].rpartition("@")
    user, _, password = login.partition(":")
    path = parts["path"].removeprefix("/")
    for name, value in (("user", user), ("password", password), ("dbname", path)):
        if value:
            yield name, unquote(value)
    yield from _listed(listed, dsn)
    for option in filter(None, (parts["query"] or "").split("&")):
        name, is_option, value = option.partition("=")
        if not is_option:
            raise unusable(dsn)
        yield unquote(name), unquote(value)


def _listed(hosts: str, dsn: str) -> Iterator[tuple[str, str]]:
    found = [_HOST.fullmatch(host) for host in hosts.split(",")]
    pairs = [(it[1].strip("[]"), it[2] or "") for it in found if it is not None]
    if len(pairs) < len(found):
        raise unusable(dsn)
    if hosts:
        yield "host", ",".join(unquote(host) for host, _ in pairs)
    if any(port for _, port in pairs):
        yield "port", ",".join(port for _, port in pairs)


def _keywords(dsn: str) -> Iterator[tuple[str, str]]:
    found = _pairs(dsn)
    if not found:
        raise unusable(dsn)
    for name, value, _ in found:
        quoted = value[1:-1] if value[:1] == "'" else value
        yield name, re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)


def _pairs(dsn: str) -> list[tuple[str, str, int]]:
    """Name, value as it is written, and where that begins; none if the text has anything else."""
    found, position = [], 0
    while dsn[position:].strip():
        pair = _KEYWORD.match(dsn, position)
        if pair is None:
            return []
        found.append((pair["name"], pair["value"], pair.start("value")))
        position = pair.end()
    return found


def _service(name: str, file: str | None) -> Iterator[tuple[str, str]]:
    own = file or os.environ.get("PGSERVICEFILE") or str(Path("~/.pg_service.conf").expanduser())
    everybody = Path(os.environ.get("PGSYSCONFDIR", "/etc/postgresql-common"), "pg_service.conf")
    parser = configparser.ConfigParser(
        delimiters=("=",), comment_prefixes=("#",), interpolation=None, strict=False,
        default_section="",
    )  # fmt: skip
    for path in (own, everybody):
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            # Without the cause: it may quote a line with a password.
            raise ConfigurationError(f"the service file {path} cannot be read") from None
        if parser.has_section(name):
            yield from parser.items(name)
            return
    raise ConfigurationError(f"there is no service {name!r} in {own} or {everybody}")


def _add(options: dict[str, str], name: str, value: str, dsn: str) -> None:
    if name == "database":  # as asyncpg writes it
        name = "dbname"
    if name == "ssl":  # as JDBC and SQLAlchemy write it
        name, value = "sslmode", _TLS.get(value, value)
    _check(name, value, dsn)
    if name == "host":
        _add_hosts(options, value)
    elif name not in _IGNORED:
        options[name] = value


def _check(name: str, value: str, dsn: str) -> None:
    if name not in _KNOWN:
        raise _unknown(name, dsn)
    if name in _MISSING:
        raise ConfigurationError(
            f"the DSN has the option {name}, which notifyq cannot obey: leave it out"
        )
    if value and value not in _VALUES.get(name, (value,)):
        raise ConfigurationError(
            f"the DSN has the option {name}, of which notifyq knows the values "
            f"{', '.join(_VALUES[name])}: choose one of them, or leave it out"
        )
    if name == "connect_timeout" and not re.fullmatch(r"[+-]?\d+", value):
        raise ConfigurationError("connect_timeout in the DSN must be a number of seconds")
    if name == "port" and not all(it == "" or _is_port(it) for it in value.split(",")):
        raise unusable(dsn)


def _is_port(text: str) -> bool:
    return re.fullmatch(r"\d{1,5}", text) is not None and 0 < int(text) < 65536


def _add_hosts(options: dict[str, str], listed: str) -> None:
    hosts, ports = [], []
    for host in listed.split(","):
        pair = _HOST.fullmatch(host)
        # asyncpg and SQLAlchemy take a port here, libpq an IPv6 address without brackets.
        name, port = (pair[1], pair[2]) if pair and host[:1] not in {"/", "@"} else (host, "")
        hosts.append(name[1:-1] if name[:1] == "[" else name)
        ports.append(port or "")
    options["host"] = ",".join(hosts)
    if any(ports):
        options["port"] = ",".join(ports)


def _unknown(name: str, dsn: str) -> ConfigurationError:
    if name in _ELSEWHERE:
        return ConfigurationError(f"the DSN has the option {name}: {_ELSEWHERE[name]}")
    # What looks like an option may be a part of a password.
    if name not in masked(dsn):
        return unusable(dsn)
    return ConfigurationError(
        f"the DSN has the option {name}, which libpq does not know{meant(name, _KNOWN)}: leave it "
        f"out, or set a parameter of the server with options=-c%20{name}%3Dvalue"
    )


def has_password(dsn: str) -> bool:
    """Whether the DSN may contain a password; a malformed one may."""
    return masked(dsn) != dsn


def masked_in(text: str, arguments: Iterable[str] = ()) -> str:
    """A text for logs and errors without the passwords of the DSNs in it.

    `arguments` of a command that may be DSNs are replaced as a whole: a password may contain any
    character, and the end of such a DSN in a text is unknown.
    """
    for argument in arguments:
        for value in (argument.partition("=")[2] if argument.startswith("-") else "", argument):
            if value and _MAY_HOLD_PASSWORD.search(value):
                hidden = masked(value)
                if hidden == value and not _USER_ONLY.fullmatch(value):
                    hidden = "(a DSN)"
                for form in (value, repr(value)[1:-1], value.encode("ascii", "replace").decode()):
                    text = text.replace(form, hidden)
    text = _DSN.sub(_masked_match, text)
    return _PASSWORD.sub(r"\1***", text)


def _masked_match(found: re.Match[str]) -> str:
    dsn = found[0].rstrip(":;,.!?)]}>\\`…")  # punctuation of the sentence
    return masked(dsn) + found[0][len(dsn) :]


def masked(dsn: str) -> str:
    """The DSN without its passwords, for logs and errors."""
    parts = _PARTS.fullmatch(dsn)
    if parts is None:
        return _masked_keywords(dsn)
    if "@" in parts["rest"]:
        return "(a DSN whose password needs percent-encoding)"
    login, at, hosts = parts["netloc"].rpartition("@")
    if not all(_HOST.fullmatch(host) for host in hosts.split(",")):
        return "(a DSN that cannot be read)"  # `user:password` without a host, most likely
    if ":" in login:
        netloc = f"{login.partition(':')[0]}:***{at}{hosts}"
        dsn = dsn.replace(parts["netloc"], netloc, 1)
    names = [option.partition("=")[0] for option in (parts["query"] or "").split("&")]
    for index, name in enumerate(names):
        if _SECRET.search(unquote(name)):
            # The rest may belong to the password: it may contain an & or a #.
            head, *options = re.split("[?&]", dsn)
            return f"{head}?{'&'.join([*options[:index], name])}=***"
    return dsn


def _masked_keywords(dsn: str) -> str:
    found = _pairs(dsn)
    if not found or not all(name in _KNOWN for name, *_ in found):
        # A password may be anywhere in it.
        return "(a DSN that cannot be read)" if "=" in dsn or "@" in dsn else dsn
    for name, _, start in found:
        if _SECRET.search(name):
            # The rest may belong to the password: it may contain spaces.
            return f"{dsn[:start]}***"
    return dsn
