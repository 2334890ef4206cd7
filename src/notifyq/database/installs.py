"""Several installs in one database: what each calls its schemas, roles, channels and locks.

The SQL files and all statements are written for the install `messages`. Those of another one are
the same text with other names, and nothing else decides which install a statement belongs to.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Any

from notifyq.config import from_environment
from notifyq.errors import ConfigurationError

DEFAULT = "messages"
"""The schema of the install that has the names as they are written."""
_LONGEST = 32
"""The longest schema: names of roles and of sessions, which it is a part of, end at 63."""
_TAKEN = """
    public information_schema cron
    all analyse analyze and any array as asc asymmetric authorization between bigint binary bit
    boolean both case cast char character check coalesce collate collation column concurrently
    constraint create cross current_catalog current_date current_role current_schema current_time
    current_timestamp current_user dec decimal default deferrable desc distinct do else end except
    exists extract false fetch float for foreign freeze from full grant greatest group grouping
    having ilike in initially inner inout int integer intersect interval into is isnull join
    json json_array json_arrayagg json_exists json_object json_objectagg json_query json_scalar
    json_serialize json_table json_value lateral leading least left like limit localtime
    localtimestamp merge_action national natural nchar none normalize not notnull null nullif
    numeric offset on only or order out outer overlaps overlay placing position precision primary
    real references returning right row select session_user setof similar smallint some substring
    symmetric system_user table tablesample then time timestamp to trailing treat trim true union
    unique user using values varchar variadic verbose when where window with xmlattributes
    xmlconcat xmlelement xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize
    xmltable
"""
"""Schemas of others, and words that SQL or a call would need quotes for."""

_CHANNELS = "new_message|new_event|dead_message|finished_message|cancelled_message|message_output"
# Each alternative is a place where a name can stand; the word in prose is none of them.
_TOKEN = re.compile(
    r"""
    # messages.publish, 'messages.message', messages.%I, and in a pattern messages[.]x
    (?P<face> (?<![\w.]) messages (?= \.[a-z_%] | \[\.\] | \\+\. )
    # a schema as a text; behind the name of a sequence it is the unit of a number
    | (?<=') (?<!_seq',[ ]') messages (?=')
    | (?<=schema[ ]) messages \b | (?<=schemas[ ]) messages \b )
    # notifyq.claim, 'notifyq.' || name, the parameters notifyq.x, and notifyq[.]x
    | (?P<inner> (?<![\w.]) notifyq (?= \.[a-z_%'] | \[\.\] )
    | (?<=') notifyq (?=')
    | (?<=schema[ ]) notifyq \b
    | (?<=schema[ ]messages,[ ]) notifyq \b | (?<=schemas[ ]messages[ ]and[ ]) notifyq \b
    # a search_path
    | (?<=pg_catalog,[ ]) notifyq (?=,)
    # group roles, also put together, and triggers on captured tables
    | (?<!\w) notifyq (?= _(?:owner|publisher|worker|viewer|reader|admin)\b )
    | (?<=') notifyq (?= _['%] )
    # entries of pg_cron and sessions: 'notifyq maintain', 'notifyq %', '^notifyq |'
    | (?<=') notifyq (?= (?:[ ][a-z%]*[ ]?|%)' ) | (?<='\^) notifyq (?= [ ]\| ) )
    # channels
    | (?P<call> (?:pg_notify|send_notification)\(\s*' | channel[ ]=[ ]' )
      (?P<channel> CHANNELS )(?=')
    # advisory keys: seeds of hashes, and classes
    | \b7305427(?P<seed>\d{3})\b | \b(?P<class>730542|1852926059)\b
    """.replace("CHANNELS", _CHANNELS),
    re.VERBOSE,
)


def inner(schema: str) -> str:
    """The internal schema of an install, and what its roles and sessions begin with."""
    return "notifyq" if schema == DEFAULT else f"notifyq_{schema}"


def channel_prefix(schema: str) -> str:
    """What its channels begin with."""
    return "" if schema == DEFAULT else f"{schema}_"


def channel_of(channel: str, schema: str) -> str:
    """The name of a channel in an install; others, as those of a test, keep theirs."""
    ours = re.fullmatch(_CHANNELS, channel) is not None
    return channel_prefix(schema) + channel if ours else channel


def renamed(statement: str, schema: str) -> str:
    """The statement, or any text with names in it, for an install."""
    return statement if schema == DEFAULT else _renamed(statement, schema)


def of(connection: Any) -> str:
    """The install that a connection is for: ours know it, those of others are for the default."""
    schema: str = getattr(connection, "schema", DEFAULT)
    return schema


def ours(connection: Any, statement: str) -> str:
    """One of our statements, for a connection that sends those of a user unchanged."""
    return renamed(statement, of(connection))


@lru_cache(maxsize=1000)
def _renamed(statement: str, schema: str) -> str:
    own = inner(schema)
    digest = hashlib.sha256(schema.encode()).digest()
    # Below 2^62 with the three digits of the seed, and below 2^31: a class is an integer.
    seed = 10**12 + int.from_bytes(digest[:6]) % 10**12
    classes = {it: 2**30 + int.from_bytes(digest[at : at + 4]) % 2**30
               for it, at in (("730542", 8), ("1852926059", 12))}  # fmt: skip

    def name(found: re.Match[str]) -> str:
        if found["face"]:
            return schema
        if found["inner"]:
            return own
        if found["channel"]:
            return f"{found['call']}{channel_prefix(schema)}{found['channel']}"
        return f"{seed}{found['seed']}" if found["seed"] else str(classes[found["class"]])

    return _TOKEN.sub(name, statement)


def schema_of(given: str | None) -> str:
    """The schema that is given, else NOTIFYQ_SCHEMA, else `messages`.

    Raises ConfigurationError where it cannot be that of an install.
    """
    schema = from_environment("NOTIFYQ_SCHEMA") if given is None else given
    if schema is None or schema == DEFAULT:
        return DEFAULT
    if not re.fullmatch(r"[a-z][a-z0-9_]*", schema):
        raise _unusable(schema, "it must be lower-case letters, digits and _, a letter first")
    if len(schema) > _LONGEST:
        raise _unusable(schema, f"it has {len(schema)} characters, at most {_LONGEST} are allowed")
    if schema.startswith(("pg_", "notifyq")):
        raise _unusable(schema, "names that begin with pg_ or notifyq are reserved")
    if schema in _TAKEN.split():
        raise _unusable(schema, "it is a reserved word, or the schema of something else")
    return schema


def require_default(what: str) -> None:
    """Raise ConfigurationError for an install that a part of notifyq does not know."""
    schema = schema_of(None)
    if schema != DEFAULT:
        raise ConfigurationError(
            f"{what} can use the schema {DEFAULT} only, and {schema!r} is chosen by --schema, "
            "NOTIFYQ_SCHEMA or schema=…"
        )


def _unusable(schema: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"the schema cannot be named {schema!r}: {why}")
