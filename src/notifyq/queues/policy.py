"""The policy of a queue."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, Self, get_args

from notifyq.queues.options import PolicyBase, SqlType, call, option, options
from notifyq.queues.payload_schema import Schema

Notify = Literal["auto", "always", "off"]
Overflow = Literal["reject", "drop_oldest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(PolicyBase):
    """Policy of a queue; None is the default when it is created, "as it is" when it is altered.

    Durations are timedeltas or seconds; a pydantic model stands for its JSON Schema.
    """

    lock_duration: timedelta | float | None = option(
        "How long a claim holds a message unless it is extended.", "Attempts", default="1m"
    )
    max_attempts: int | None = option(
        "Attempts before a message is dead; with 1 it is never retried.",
        "Attempts",
        default="1",
        least=1,
        most=1000,
    )
    backoff: timedelta | float | None = option(
        "Delay before the second attempt; it doubles with every attempt.", "Attempts", default="2s"
    )
    backoff_max: timedelta | float | None = option(
        "Longest delay between attempts.", "Attempts", default="5m"
    )
    notify: Notify | None = option(
        "auto: publishing wakes workers, unless a busy one polls; always: it always does; "
        "off: workers only poll.",
        "Other",
        default="auto",
        choices=get_args(Notify),
    )
    retention: timedelta | float | None = option(
        "How long the archive keeps its messages.", "Other", default="30d"
    )
    max_bytes: int | None = option(
        "Most bytes of a message and its headers, as JSON text.",
        "Limits",
        default="1048576",
        least=4096,
        most=2**28,
    )
    concurrency: int | None = option(
        "Most messages that all workers handle at a time.", "Limits", none="no limit"
    )
    key_concurrency: int | None = option(
        "Most messages of one key that are handled at a time.", "Keys", none="no limit"
    )
    rate: int | None = option(
        "Most messages handed out in a period.", "Limits", none="no limit", period="rate_period"
    )
    rate_period: timedelta | float | None = option("Period of the rate.", "Limits")
    rate_burst: int | None = option(
        "Most messages handed out at once after an idle time.",
        "Limits",
        none="a tenth of a second's worth",
    )
    key_rate: int | None = option(
        "Most messages of one key handed out in a period.",
        "Keys",
        none="no limit",
        period="key_rate_period",
    )
    key_rate_period: timedelta | float | None = option("Period of the rate of a key.", "Keys")
    key_rate_burst: int | None = option(
        "Most messages of one key handed out at once after an idle time.",
        "Keys",
        none="a tenth of a second's worth",
    )
    ordered: bool | None = option(
        "A message waits until all earlier ones of its key are archived.", "Keys", off="unordered"
    )
    fair: bool | None = option(
        "Keys get equal shares of the workers, or those that are set for them.",
        "Keys",
        off="unfair",
    )
    capacity: int | None = option(
        "Most messages that wait or are scheduled.", "Limits", none="no limit"
    )
    overflow: Overflow | None = option(
        "Beyond the capacity: reject makes publishing fail, drop_oldest archives the oldest "
        "messages as rejected.",
        "Limits",
        default="reject",
        choices=get_args(Overflow),
    )
    durable: bool | None = option(
        "Not durable (unlogged): messages are lost when the server crashes, and only dead ones are "
        "archived.",
        "Other",
        off="unlogged",
    )
    payload_type: SqlType | None = option(
        "SQL type of all messages, such as integer or public.invoice.", "Payload", none="any"
    )
    payload_schema: Schema | None = option(
        "JSON Schema that messages must satisfy.", "Payload", none="any JSON"
    )
    retention_dead: timedelta | float | None = option(
        "How long the archive keeps messages that did not succeed.", "Other", none="as the others"
    )
    aging: timedelta | float | None = option(
        "Waiting for this long raises a message by one level of priority.",
        "Other",
        none="it is not raised",
    )
    encrypted: bool | None = option(
        "Programs encrypt payloads, results, errors, steps and output; plain text is refused.",
        "Payload",
        off="plain",
    )

    @classmethod
    def of(cls, queue: Mapping[str, Any]) -> Self:
        """The policy of a queue, a row of `queue_info`."""
        values = {it.name: queue[it.name] for it in options(cls)}
        schema = values["payload_schema"]
        return cls(**values | {"payload_schema": schema and json.loads(schema)})

    def differences(self, queue: Mapping[str, Any]) -> list[str]:
        """What a queue, a row of `queue_info`, has other than this policy."""
        found, values = [], self.values()
        for it in options(Policy):
            wanted, actual = values[it.name], queue[it.name]
            if it.kind == "schema":
                wanted, actual = (text and json.loads(text) for text in (wanted, actual))
            is_none = actual is None and wanted == it.none_value
            if wanted is not None and wanted != actual and not is_none:
                found.append(f"{it.name} is {actual}, not {wanted}")
        return found


CREATE_QUEUE: Final = call("create_queue", Policy)
ALTER_QUEUE: Final = call("alter_queue", Policy)
