"""A member's lease on the leader of its epoch (pure): a leader that is silent for LEADER_SECONDS has lost its members.

Without it, the members of a leader that is gone for good would read and stage on without end: no checkpoint would ever
name what they stage, and nobody would read what they send to the leader.

The leader sends each member an empty message a second (`Links.idle`), from the time when it announces the epoch.

- A leader that can go on with its epoch is silent for about 12 s at most: it gives the epoch up once its own lease was
  not renewed for 5 s, and a request to a Redis that hangs takes 5 s more. A hand-over to another leader takes 20 s at
  most (5 s for the lease, 10 s for the members, then the entry and the streams), and cuts the old epoch's members off.
- Only silence that a member was awake to hear counts: a read that Redis answered, and between two of them STEP_SECONDS
  at most. So a member that was suspended, or whose Redis did not answer, hears its leader first. The time is the
  member's own monotonic clock; no other machine's clock matters.
- To leave an epoch is always safe: if the leader does live, it sees that a member gave up, and begins the next epoch at
  the last checkpoint.

What must change together: LEASE_SECONDS in services/enumerator/driver.py and TIMEOUT_SECONDS in redis.py with
LEADER_SECONDS; the idle second in links.py with STEP_SECONDS.
"""

from __future__ import annotations

LEADER_SECONDS = 30.0
STEP_SECONDS = 2.0


class Silence:
    """How long a member has not heard its leader. `now` is always seconds of one monotonic clock."""

    def __init__(self, now: float) -> None:
        """Begin to listen: the leader gets the whole time to say its first word."""
        self.seconds = 0.0
        self._read_at = now

    def read(self, now: float, *, heard: bool) -> bool:
        """Note that the leader's channel was read, and Redis answered; return whether the leader is lost.

        `heard`: that brought an entry of it, an empty one too. The typical mistake: to call this after a read that
        Redis did not answer.
        """
        self.seconds = 0.0 if heard else self.seconds + min(STEP_SECONDS, now - self._read_at)
        self._read_at = now
        return self.seconds >= LEADER_SECONDS
