"""The services that are present, how many of each role an epoch waits for, and those that it was given (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from cutline.common.mesh.topology import Role
from cutline.services.enumerator.events import MemberSeen


class Roster:
    """The roster of one leader. Every rule is the same for each of its `roles`."""

    def __init__(self, roles: tuple[Role, ...], wanted: Mapping[str, int]) -> None:
        """`wanted`: the configured count of each role."""
        self.roles = roles
        self.seen: tuple[MemberSeen, ...] = ()
        self.chosen: dict[str, tuple[str, ...]] = {}  # of this epoch: incarnations by role, in plan order
        self._expected = {role.name: wanted[role.name] for role in roles}  # how many to wait for
        self._known: frozenset[str] = frozenset()  # services that were present at `note`

    def see(self, members: tuple[MemberSeen, ...], wanted: Mapping[str, int]) -> None:
        """These services are present. Expected is the configured count, lowered when a service leaves deliberately,
        until a replacement joins."""
        self.seen = members
        for role in self._expected:
            staying, leave = len(self._staying(role)), any(m.leaving and m.role == role for m in members)
            bound = min if leave else max
            self._expected[role] = bound(self._expected[role], min(staying, wanted[role]))

    def choose(self, *, patient: bool) -> bool:
        """Choose the members of the next epoch; False without one of each role, or if `patient` while one that is
        expected is missing."""
        found = {role.name: self._staying(role.name) for role in self.roles}
        full = all(len(staying) >= self._expected[role] for role, staying in found.items())
        if not all(found.values()) or (patient and not full):
            return False
        self.chosen = found
        return True

    @property
    def members(self) -> tuple[str, ...]:
        """The incarnations of this epoch's members, role by role."""
        return tuple(incarnation for role in self.roles for incarnation in self.chosen[role.name])

    @property
    def complete(self) -> bool:
        """Whether a member of each role is chosen."""
        return all(self.chosen.get(role.name) for role in self.roles)

    @property
    def missing(self) -> tuple[str, ...]:
        """The roles of which no service is present."""
        return tuple(role.name for role in self.roles if not self._staying(role.name))

    @property
    def has_newcomers(self) -> bool:
        """Whether services are present that this epoch lacks."""
        return not self._present() <= set(self.members)

    def note(self) -> None:
        """Note who is present."""
        self._known = self._present()

    @property
    def has_joined(self) -> bool:
        """Whether a service is present that was not when `note` was called."""
        return not self._known.issuperset(self._present())

    def _present(self) -> frozenset[str]:
        return frozenset(incarnation for role in self.roles for incarnation in self._staying(role.name))

    def _staying(self, role: str) -> tuple[str, ...]:
        return tuple(sorted(m.incarnation for m in self.seen if m.role == role and not m.leaving))
