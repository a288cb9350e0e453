"""Several providers' failures as one error that says most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from calibrant.core._errors import (
    ContextLengthError,
    LogprobsUnsupportedError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
)
from calibrant.inference.routed._member import Failure, Member

_KINDS: Final = (ContextLengthError, RateLimitError, ProviderTimeoutError)
# Routed providers take how they are scored from a cascade, of which they may be the only model.
_SECTION: Final = '[cascade]\nconfidence_method = "label_probability"\n\n[[cascade.models]]\nname = "routed"'


def all_failed(failures: Sequence[Failure], passed: Sequence[Member], *, provider: str) -> ProviderError:
    """Return what to raise when nobody answered.

    It may be retried if any provider may succeed a moment later, and every call would meet it only if
    that is so of every provider. A kind of failure that all share is kept.

    Parameters
    ----------
    failures : sequence of Failure
        Of those that were asked, at least one.
    passed : sequence of Member
        Those that were not asked because they are left out; what left them out counts for them.
    provider : str
        Who raises, for the message.
    """
    errors = [(failure.member.name, failure.error) for failure in failures]
    told = [_said(name, error) for name, error in errors]
    for member in passed:
        last = member.breaker.last_failure
        if last is not None:
            errors.append((member.name, last))
        told.append(_left_out(member))
    found = [error for _, error in errors]
    unsupported = [error for error in found if isinstance(error, LogprobsUnsupportedError)]
    if len(told) == 1:
        return unsupported[0].under(_SECTION) if unsupported else found[0]
    message = f"no provider answered: {'; '.join(sorted(told))}."
    if len(unsupported) == len(told):
        return LogprobsUnsupportedError(message, provider=provider, section=_SECTION)
    kind = next((kind for kind in _KINDS if all(isinstance(error, kind) for error in found)), ProviderError)
    paused = len(errors) < len(told)  # somebody is left out who has not failed
    if paused and kind is ContextLengthError:
        kind = ProviderError
    statuses = {error.status for error in found}
    systemic = not paused and all(error.systemic for error in found)
    return kind(
        message,
        provider=provider,
        status=statuses.pop() if len(statuses) == 1 and not paused else None,
        retryable=paused or any(error.retryable for error in found),
        retry_after=_soonest(found),
        hint=LogprobsUnsupportedError.remedy(_SECTION) if systemic and unsupported else None,
        systemic=systemic,
    )


def all_limited(passed: Sequence[Member], seconds: float, *, provider: str) -> RateLimitError:
    """Return what to raise when nobody may be asked before a time that a provider named."""
    return RateLimitError(
        f"every provider is left out: {'; '.join(sorted(map(_left_out, passed)))}.",
        provider=provider,
        retryable=True,
        retry_after=seconds,
    )


def _soonest(errors: Sequence[ProviderError]) -> float | None:
    """Return the least wait of those worth asking again; None where one of them named none."""
    waits = [error.retry_after for error in errors if error.retryable]
    named = [wait for wait in waits if wait is not None]
    return min(named) if named and len(named) == len(waits) else None


def _said(name: str, error: ProviderError) -> str:
    said = _words(error)
    return said if name == error.provider else f"{name}: {said}"


def _left_out(member: Member) -> str:
    last = member.breaker.last_failure
    why = "its allowance is used up" if last is None else _words(last)
    return f"{member.name}: left out for another {member.breaker.remaining:.3g} seconds ({why})"


def _words(error: ProviderError) -> str:
    """Return what an error says in a list of several: the lines for the task file stand once, behind the list."""
    said = error.summary if isinstance(error, LogprobsUnsupportedError) else str(error)
    return said.removesuffix(".")
