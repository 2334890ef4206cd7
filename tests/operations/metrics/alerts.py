"""For every alert: series that fire it, its labels, and series that do not fire it."""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """One alert; its series have one sample a minute."""

    alert: str
    series: dict[str, str]
    at: str
    labels: dict[str, str]
    quiet: dict[str, str]


CASES = [
    Case(
        "NotifyqMessagesWait",
        {
            'notifyq_queue_oldest_waiting_seconds{queue="q"}': "400+0x30",
            'notifyq_queue_paused{queue="q"}': "0+0x30",
            'notifyq_queue_oldest_waiting_seconds{queue="p"}': "400+0x30",
            'notifyq_queue_paused{queue="p"}': "1+0x30",
        },
        "10m",
        {"queue": "q", "severity": "warning"},
        {'notifyq_queue_oldest_waiting_seconds{queue="q"}': "100+0x30"},
    ),
    Case(
        "NotifyqLocksExpired",
        {'notifyq_queue_oldest_expired_seconds{queue="q"}': "200+0x30"},
        "5m",
        {"queue": "q", "severity": "critical"},
        {'notifyq_queue_oldest_expired_seconds{queue="q"}': "1+0x30"},
    ),
    Case(
        "NotifyqMessagesOverdue",
        {'notifyq_queue_overdue_seconds{queue="q"}': "200+0x30"},
        "5m",
        {"queue": "q", "severity": "critical"},
        {'notifyq_queue_overdue_seconds{queue="q"}': "1+0x30"},
    ),
    Case(
        "NotifyqMessagesDead",
        {'notifyq_queue_dead_recently{queue="q"}': "0+0x10 2+0x5"},
        "12m",
        {"queue": "q", "severity": "warning"},
        {'notifyq_queue_dead_recently{queue="q"}': "0+0x30"},
    ),
    Case(
        "NotifyqAttemptsFail",
        {
            'notifyq_finished_total{queue="q",status="failed"}': "0+10x30",
            'notifyq_finished_total{queue="q",status="success"}': "0+10x30",
        },
        "20m",
        {"queue": "q", "severity": "warning"},
        {
            'notifyq_finished_total{queue="q",status="failed"}': "0+1x30",
            'notifyq_finished_total{queue="q",status="success"}': "0+10x30",
        },
    ),
    Case(
        "NotifyqLocksLost",
        {'notifyq_locks_lost_total{queue="q"}': "0+1x30"},
        "5m",
        {"queue": "q", "severity": "warning"},
        {'notifyq_locks_lost_total{queue="q"}': "4+0x30"},
    ),
    Case(
        "NotifyqSubscriberLags",
        {'notifyq_subscription_lag_seconds{stream="s",subscriber="u"}': "400+0x30"},
        "10m",
        {"stream": "s", "subscriber": "u", "severity": "warning"},
        {'notifyq_subscription_lag_seconds{stream="s",subscriber="u"}': "4+0x30"},
    ),
    Case(
        "NotifyqWorkerDown",
        {'up{job="notifyq",instance="w:9464"}': "0+0x30"},
        "5m",
        {"job": "notifyq", "instance": "w:9464", "severity": "warning"},
        {'up{job="notifyq",instance="w:9464"}': "1+0x30"},
    ),
    Case(
        "NotifyqNoWorker",
        {"notifyq_worker_sessions": "0+0x30"},
        "5m",
        {"severity": "critical"},
        {"notifyq_worker_sessions": "1+0x30"},
    ),
    Case(
        "NotifyqHandlersBlock",
        {'notifyq_handlers_loop_delay_seconds{instance="w"}': "30+0x30"},
        "5m",
        {"instance": "w", "severity": "warning"},
        {'notifyq_handlers_loop_delay_seconds{instance="w"}': "0.1+0x30"},
    ),
    Case(
        "NotifyqHandlersStuck",
        {'notifyq_handlers_stuck_total{instance="w",queue="q"}': "0+1x30"},
        "10m",
        {"instance": "w", "queue": "q", "severity": "warning"},
        {'notifyq_handlers_stuck_total{instance="w",queue="q"}': "1+0x30"},
    ),
    Case(
        "NotifyqSlotsFull",
        {
            "notifyq_handlers_running": "10+0x40",
            "notifyq_slots": "10+0x40",
            "notifyq_waiting_for_seconds": "100+0x40",
        },
        "30m",
        {"severity": "warning"},
        {
            "notifyq_handlers_running": "10+0x40",
            "notifyq_slots": "10+0x40",
            "notifyq_waiting_for_seconds": "1+0x40",
        },
    ),
    Case(
        "NotifyqListenerPolls",
        {'notifyq_listener_notifications_lost{instance="w"}': "1+0x30"},
        "10m",
        {"instance": "w", "severity": "warning"},
        {'notifyq_listener_notifications_lost{instance="w"}': "0+0x30"},
    ),
    Case(
        "NotifyqListenerFlaps",
        {'notifyq_listener_losses_total{instance="w"}': "0+1x30"},
        "15m",
        {"instance": "w", "severity": "warning"},
        {'notifyq_listener_losses_total{instance="w"}': "5+0x30"},
    ),
    Case(
        "NotifyqDatabaseUnseen",
        {'notifyq_database_exporter{instance="w"}': "0+0x30"},
        "5m",
        {"severity": "critical"},
        {
            'notifyq_database_exporter{instance="w"}': "0+0x30",
            'notifyq_database_exporter{instance="v"}': "1+0x30",
        },
    ),
    Case(
        "NotifyqDatabaseDown",
        {"notifyq_database_up": "0+0x30"},
        "5m",
        {"severity": "critical"},
        {"notifyq_database_up": "1+0x30"},
    ),
    Case(
        "NotifyqVacuumHeld",
        {'notifyq_xmin_age{cause="session"}': "2000000+0x30"},
        "15m",
        {"cause": "session", "severity": "warning"},
        {'notifyq_xmin_age{cause="session"}': "20+0x30"},
    ),
    Case(
        "NotifyqIdleTransaction",
        {"notifyq_longest_idle_in_transaction_seconds": "900+0x30"},
        "10m",
        {"severity": "warning"},
        {"notifyq_longest_idle_in_transaction_seconds": "9+0x30"},
    ),
    Case(
        "NotifyqDeadRows",
        {
            'notifyq_dead_rows{table="message"}': "500000+0x50",
            'notifyq_live_rows{table="message"}': "100+0x50",
        },
        "40m",
        {"table": "message", "severity": "warning"},
        {
            'notifyq_dead_rows{table="message"}': "500000+0x50",
            'notifyq_live_rows{table="message"}': "1000000+0x50",
        },
    ),
    Case(
        "NotifyqNotifyQueueFills",
        {"notifyq_notify_queue_ratio": "0.5+0x30"},
        "10m",
        {"severity": "critical"},
        {"notifyq_notify_queue_ratio": "0.01+0x30"},
    ),
    Case(
        "NotifyqMaintenanceFails",
        {'notifyq_maintenance_failing{duty="drop days"}': "9+1x30"},
        "5m",
        {"duty": "drop days", "severity": "critical"},
        {'notifyq_maintenance_failing{duty="drop days"}': "1+0x30"},
    ),
    Case(
        "NotifyqCronFails",
        {'notifyq_cron_failed_runs{entry="e"}': "9+0x30"},
        "10m",
        {"entry": "e", "severity": "warning"},
        {'notifyq_cron_failed_runs{entry="e"}': "0+0x30"},
    ),
    Case(
        "NotifyqPartitionsMissing",
        {'notifyq_partitions_ahead{table="message_archive"}': "0+0x50"},
        "40m",
        {"table": "message_archive", "severity": "critical"},
        {'notifyq_partitions_ahead{table="message_archive"}': "3+0x50"},
    ),
    Case(
        "NotifyqSlotKeepsWal",
        {'notifyq_kept_wal_bytes{slot="s"}': "20000000000+0x30"},
        "15m",
        {"slot": "s", "severity": "warning"},
        {'notifyq_kept_wal_bytes{slot="s"}': "2000+0x30"},
    ),
    Case(
        "NotifyqConnectionsRunOut",
        {"notifyq_connections": "95+0x30", "notifyq_connections_most": "97+0x30"},
        "10m",
        {"severity": "warning"},
        {"notifyq_connections": "5+0x30", "notifyq_connections_most": "97+0x30"},
    ),
    Case(
        "NotifyqPartsMissing",
        {"notifyq_missing_parts": "1+0x30"},
        "5m",
        {"severity": "critical"},
        {"notifyq_missing_parts": "0+0x30"},
    ),
    Case(
        "NotifyqFreezeLags",
        {"notifyq_frozen_age": "1500000000+0x90"},
        "80m",
        {"severity": "critical"},
        {"notifyq_frozen_age": "150000000+0x90"},
    ),
    Case(
        "NotifyqNotificationsLost",
        {
            'notifyq_notifications_sent_total{channel="new_message"}': "0+10x40",
            'notifyq_notifications_received_total{channel="new_message"}': "7+0x40",
            'notifyq_claims_total{woken_by="poll"}': "0+5x40",
        },
        "30m",
        {"channel": "new_message", "severity": "warning"},
        {
            'notifyq_notifications_sent_total{channel="new_message"}': "0+10x40",
            'notifyq_notifications_received_total{channel="new_message"}': "0+10x40",
            'notifyq_claims_total{woken_by="poll"}': "0+5x40",
        },
    ),
    Case(
        "NotifyqRelayStalled",
        {'notifyq_relay_stalled_seconds{instance="r"}': "0+60x30"},
        "10m",
        {"instance": "r", "severity": "critical"},
        {'notifyq_relay_stalled_seconds{instance="r"}': "0+0x30"},
    ),
    Case(
        "NotifyqRelayRefused",
        {'notifyq_relay_messages_total{source="q",outcome="refused"}': "0+1x30"},
        "5m",
        {"source": "q", "severity": "warning"},
        {'notifyq_relay_messages_total{source="q",outcome="new"}': "0+1x30"},
    ),
    Case(
        # The first batch of a source is refused: its counter begins above zero.
        "NotifyqRelayRefused",
        {'notifyq_relay_messages_total{source="q",outcome="refused"}': "_x3 3+0x30"},
        "5m",
        {"source": "q", "severity": "warning"},
        {'notifyq_relay_messages_total{source="q",outcome="refused"}': "_x3 0+0x30"},
    ),
    Case(
        "NotifyqBrokerGone",
        {'notifyq_brokers{instance="b"}': "1+0x3 0+0x30"},
        "10m",
        {"instance": "b", "severity": "critical"},
        {'notifyq_brokers{instance="b"}': "2+0x30"},
    ),
    Case(
        "NotifyqProceduresFail",
        {'notifyq_procedure_dead_events_total{role="app",database="shop"}': "0+1x30"},
        "5m",
        {"role": "app", "database": "shop", "severity": "warning"},
        {'notifyq_procedure_dead_events_total{role="app",database="shop"}': "4+0x30"},
    ),
]
