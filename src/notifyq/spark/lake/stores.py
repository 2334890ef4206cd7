"""File systems of pyarrow for the URIs of lakes, and the options that they and mirrors take.

One map of options serves all. Its names are those of deltalake; what is not given is taken from
the environment, and credentials that are in neither are found by the chains of the libraries:
profiles, workload identities, the machine's role.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from notifyq.config import parse_duration
from notifyq.errors import ConfigurationError, meant

if TYPE_CHECKING:
    from collections.abc import Mapping

_COMMON = ("CONNECT_TIMEOUT", "TIMEOUT")
_CREDENTIALS = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    "abfss": (
        *("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"),
        *("AZURE_STORAGE_CLIENT_ID", "AZURE_STORAGE_CLIENT_SECRET", "AZURE_STORAGE_TENANT_ID"),
    ),
    "gs": (),
    "hdfs": (),
}
"""Names that belong together: where an option gives one, none is taken from the environment."""
_OTHERS = {
    "s3": (
        *("AWS_REGION", "AWS_ENDPOINT_URL", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"),
        *("AWS_SKIP_SIGNATURE", "AWS_S3_ALLOW_UNSAFE_RENAME"),
    ),
    "abfss": (),
    "gs": ("GOOGLE_SKIP_SIGNATURE",),
    "hdfs": (),
}
_VARIABLES = {
    "AWS_REGION": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "AWS_ENDPOINT_URL": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
}
"""Variables of the environment; the first one that is set counts. Else it has the same name."""
_TOGETHER = (
    ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    ("AZURE_STORAGE_CLIENT_ID", "AZURE_STORAGE_CLIENT_SECRET", "AZURE_STORAGE_TENANT_ID"),
)
_FLAGS = ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "AWS_SKIP_SIGNATURE", "AWS_S3_ALLOW_UNSAFE_RENAME",
          "GOOGLE_SKIP_SIGNATURE")  # fmt: skip
_TIMEOUTS = {"CONNECT_TIMEOUT": "5s", "TIMEOUT": "30s"}
_ICEBERG = {
    "AWS_REGION": "s3.region",
    "AWS_ENDPOINT_URL": "s3.endpoint",
    "AWS_ACCESS_KEY_ID": "s3.access-key-id",
    "AWS_SECRET_ACCESS_KEY": "s3.secret-access-key",
    "AWS_SESSION_TOKEN": "s3.session-token",
    "AWS_SKIP_SIGNATURE": "s3.anonymous",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "s3.force-virtual-addressing",
    "CONNECT_TIMEOUT": "s3.connect-timeout",
    "TIMEOUT": "s3.request-timeout",
}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LONGEST = 300


def scheme_of(location: str) -> str:
    """Return the scheme of a location of lake_location(); empty: it is a local folder."""
    return location.partition("://")[0] if "://" in location else ""


def resolved(location: str, given: Mapping[str, str] | None) -> dict[str, str]:
    """Return the options of a location: those given, else those of the environment.

    Raises ConfigurationError for an unknown name or a wrong value; the text shows no value.
    """
    scheme = scheme_of(location)
    options = _upper(given or {})
    if not scheme:
        if options:
            raise ConfigurationError(
                f"storage option {next(iter(options))}: {location} is a local folder, which has "
                "no options"
            )
        return {}
    known = (*_COMMON, *_CREDENTIALS[scheme], *_OTHERS[scheme])
    for name in options:
        if name not in known:
            hint = meant(name, known) or f"; there are {', '.join(sorted(known))}"
            raise ConfigurationError(f"{scheme}:// has no storage option {name!r}{hint}")
    taken = [*_OTHERS[scheme], *(
        () if options.keys() & set(_CREDENTIALS[scheme]) else _CREDENTIALS[scheme]
    )]  # fmt: skip
    for name in taken:
        for variable in _VARIABLES.get(name, (name,)):
            if name not in options and (value := os.environ.get(variable)):
                options[name] = value
    _check(options)
    return options


def _upper(given: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in given.items():
        if name.upper() in found:
            raise ConfigurationError(f"storage option {name.upper()} is given twice")
        found[name.upper()] = value
    return found


def _check(options: Mapping[str, str]) -> None:
    for name, value in options.items():
        if (fault := _fault(name, value)) is not None:
            raise ConfigurationError(f"storage option {name} {fault}")
    for together in _TOGETHER:
        if 0 < len(options.keys() & set(together)) < len(together):
            raise ConfigurationError(f"storage options {', '.join(together)} need each other")
    if endpoint := options.get("AWS_ENDPOINT_URL"):
        parts = urlsplit(endpoint)
        if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
            raise ConfigurationError(
                "storage option AWS_ENDPOINT_URL is no address such as https://host:9000"
            )


def _fault(name: str, value: str) -> str | None:
    if not value.isprintable() or not value:
        return "is empty, or has a control character"
    if name in _FLAGS and value.lower() not in {"true", "false"}:
        return "is neither true nor false"
    try:
        if name in _COMMON and parse_duration(value).total_seconds() <= 0:
            return "is not longer than 0"
        if name == "AZURE_STORAGE_ACCOUNT_KEY":
            base64.b64decode(value, validate=True)  # else the library aborts the process
    except binascii.Error:
        return "is not base64"
    except ValueError:
        return "is no duration such as 30s"
    return None


def connected(location: str, options: Mapping[str, str]) -> Any:
    """Return the file system of pyarrow for a URI."""
    import pyarrow.fs

    parts = urlsplit(location)
    match parts.scheme:
        case "s3":
            return pyarrow.fs.S3FileSystem(**_s3(options))
        case "gs":
            is_anonymous = _is_set(options, "GOOGLE_SKIP_SIGNATURE")
            limit = parse_duration({**_TIMEOUTS, **options}["TIMEOUT"])
            return pyarrow.fs.GcsFileSystem(anonymous=is_anonymous, retry_time_limit=limit)
        case "abfss":
            named = {
                "account_key": "AZURE_STORAGE_ACCOUNT_KEY", "sas_token": "AZURE_STORAGE_SAS_TOKEN",
                "client_id": "AZURE_STORAGE_CLIENT_ID", "tenant_id": "AZURE_STORAGE_TENANT_ID",
                "client_secret": "AZURE_STORAGE_CLIENT_SECRET",
            }  # fmt: skip
            account = (parts.hostname or "").partition(".")[0]
            given = {key: options[name] for key, name in named.items() if name in options}
            return pyarrow.fs.AzureFileSystem(account_name=account, **given)
        case _:
            return pyarrow.fs.HadoopFileSystem(parts.hostname, parts.port or 8020)


def _s3(options: Mapping[str, str]) -> dict[str, Any]:
    names = {
        "access_key": "AWS_ACCESS_KEY_ID", "secret_key": "AWS_SECRET_ACCESS_KEY",
        "session_token": "AWS_SESSION_TOKEN", "region": "AWS_REGION",
    }  # fmt: skip
    found: dict[str, Any] = {key: options[name] for key, name in names.items() if name in options}
    if endpoint := options.get("AWS_ENDPOINT_URL"):
        found["scheme"], _, found["endpoint_override"] = endpoint.rstrip("/").partition("://")
    if _is_set(options, "AWS_SKIP_SIGNATURE"):
        found["anonymous"] = True
    timeouts = {**_TIMEOUTS, **options}
    return {
        **found,
        "request_timeout": parse_duration(timeouts["TIMEOUT"]).total_seconds(),
        "connect_timeout": parse_duration(timeouts["CONNECT_TIMEOUT"]).total_seconds(),
        "force_virtual_addressing": _is_set(options, "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"),
        # A small file is one request instead of three.
        "allow_delayed_open": True,
    }


def _is_set(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "").lower() == "true"


def for_delta(location: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of deltalake for a location."""
    if not scheme_of(location):
        return {}
    found = {name: value for name, value in options.items() if name not in _COMMON}
    for name, value in {**_TIMEOUTS, **options}.items():
        if name in _COMMON:
            found[name.lower()] = f"{parse_duration(value).total_seconds():g}s"
    if options.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        found["AWS_ALLOW_HTTP"] = "true"
    # Else it tries for three minutes.
    return {**found, "max_retries": "3", "retry_timeout": "60s"}


def for_iceberg(location: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of pyiceberg for a location.

    Raises ConfigurationError for a store that has not been tried with it.
    """
    scheme = scheme_of(location)
    if scheme not in {"", "s3"}:
        raise ConfigurationError(
            f"a lake in {scheme}:// cannot have Iceberg tables: only one in a folder or in s3://"
        )
    if not scheme:
        return {}
    given = {**_TIMEOUTS, **options}
    if "AWS_ENDPOINT_URL" in given:
        given.setdefault("AWS_REGION", "us-east-1")  # else it would ask AWS for the bucket's
    for name in _TIMEOUTS:
        given[name] = str(parse_duration(given[name]).total_seconds())
    return {_ICEBERG[name]: value for name, value in given.items() if name in _ICEBERG}


def reason(error: BaseException) -> str:
    """Return the message of a library's error, in one line without addresses of requests."""
    text = _COLOUR.sub("", str(error)).split(" (Request ID", 1)[0]
    lines = [line.strip(" ↳\t") for line in text.splitlines()]
    found = ": ".join(line for line in lines if line)
    return found[:_LONGEST] or type(error).__name__
