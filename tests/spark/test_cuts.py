"""Windows between snapshots: each transaction in exactly one, and cuts within them."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from notifyq.spark.source import cuts


def visible(snapshot: str, xid: int) -> bool:
    """Do what pg_visible_in_snapshot() does."""
    xmin, xmax, running = snapshot.split(":")
    return xid < int(xmin) or (
        xid < int(xmax) and xid not in {int(x) for x in running.split(",") if x}
    )


@st.composite
def snapshots(draw: st.DrawFn) -> list[str]:
    """Draw snapshots in their order: transactions begin, and those that run may end."""
    running: set[int] = set()
    following = 3
    taken = ["3:3:"]
    for _ in range(draw(st.integers(1, 4))):
        begun = draw(st.integers(0, 6))
        running |= set(range(following, following + begun))
        following += begun
        running -= set(draw(st.lists(st.sampled_from(sorted(running))))) if running else set()
        listed = ",".join(str(xid) for xid in sorted(running))
        taken.append(f"{min(running, default=following)}:{following}:{listed}")
    return taken


@given(snapshots())
def test_each_transaction_is_in_the_window_in_which_it_ended(taken: list[str]) -> None:
    for seen, until in itertools.pairwise(taken):
        found = cuts.intervals(seen, until)
        assert found == sorted(found)
        inside = {xid for low, high in found for xid in range(low, high)}
        assert len(inside) == sum(high - low for low, high in found)
        assert inside == {
            xid for xid in range(40) if visible(until, xid) and not visible(seen, xid)
        }


def test_a_window_is_clipped_at_cuts() -> None:
    found = [(5, 6), (10, 20), (22, 30)]
    assert cuts.between(found, (0, 0), None) == found
    assert cuts.between(found, (12, 7), None) == [(12, 20), (22, 30)]
    assert cuts.between(found, (12, 7), (12, 9)) == [(12, 13)]
    assert cuts.between(found, (5, 1), (22, 3)) == [(5, 6), (10, 20), (22, 23)]


def test_a_position_survives_its_offset() -> None:
    position = cuts.Position("1:2:3:4/3:3:", "1:2:3:4/9:9:", (7, 8), "message_archive_20260101")
    assert cuts.Position.parse(position.offset()) == position
    assert not position.done("x").is_within
    assert cuts.beginning(position.until) == position.seen
