"""One request's way from provider to provider: who is asked next, and who is passed over."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from calibrant.inference.routed._member import Member, Place


class Course:
    """Says who is to be asked next.

    Parameters
    ----------
    members : iterable of Member
        All providers, in the order in which they are to be asked.
    learning : bool
        Whether the order is what a strategy has learnt, not what the user declared. Then a provider that
        was left out long enough comes first, once, to find out whether it is back; and one whose places
        are all taken is passed over while others have a free one. Otherwise it is waited for.

    Attributes
    ----------
    passed : list of Member
        Those that were not asked because they are left out.
    """

    def __init__(self, members: Iterable[Member], *, learning: bool) -> None:
        waiting = list(members)
        if learning:
            due = next((member for member in waiting if member.breaker.due), None)
            if due is not None:
                waiting.remove(due)
                waiting.insert(0, due)
        self._waiting = deque(waiting)
        self._full: deque[Member] = deque()
        self._learning = learning
        self._asked = False
        self.passed: list[Member] = []

    @property
    def is_over(self) -> bool:
        """Whether nobody is left who might be asked."""
        return not self._waiting and not self._full

    async def next(self) -> Place | None:
        """Return the next provider's place; None where nobody is left.

        Where all are left out, the one whose time ends first is asked all the same, unless it has itself
        named the time.
        """
        while self._waiting:
            member = self._waiting.popleft()
            if not member.breaker.admits:
                self.passed.append(member)
                continue
            place = member.try_enter()
            if place is None and self._learning:
                self._full.append(member)
            elif (place := place or await self._wait(member)) is not None:
                return self._taken(place)
        while self._full:
            place = await self._wait(self._full.popleft())
            if place is not None:
                return self._taken(place)
        return await self._last_resort()

    async def _wait(self, member: Member) -> Place | None:
        place = await member.enter()
        if place is None:
            self.passed.append(member)
        return place

    async def _last_resort(self) -> Place | None:
        if self._asked or not self.passed:
            return None
        first = min(self.passed, key=lambda member: member.breaker.remaining)
        if first.breaker.named_seconds is not None:
            return None
        place = await first.enter(forced=True)
        if place is None:
            return None
        self.passed.remove(first)
        return self._taken(place)

    def _taken(self, place: Place) -> Place:
        self._asked = True
        return place
