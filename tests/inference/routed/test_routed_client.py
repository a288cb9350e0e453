"""Tests of routed clients: order of calls, fallbacks, observations and the final error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from calibrant.core import (
    CompletionRequest,
    ContextLengthError,
    LogprobsUnsupportedError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
)
from calibrant.inference import Provider
from routed_answers import REQUEST, Scripted, answered, ask, down, hang, routed


def limited(seconds: float | None = None) -> RateLimitError:
    """Return a RateLimitError."""
    return RateLimitError("slow down", provider="a", status=429, retryable=True, retry_after=seconds)


def too_long(name: str = "a") -> ContextLengthError:
    """Return the error for a text that is too long."""
    return ContextLengthError("too long", provider=name, status=400)


class TestOneRequest:
    """Tests of one request, which the first working provider answers."""

    def test_first_provider_answers_unchanged(self) -> None:
        """The first provider's response is returned as it came."""
        response = {"choices": [{"message": {"content": "a cat"}}], "something": "else"}
        first, second = Scripted(response), Scripted()
        client, router = routed(first, second)
        assert asyncio.run(client.complete(REQUEST)) is response
        assert (first.calls, second.calls, first.requests) == (1, 0, [REQUEST])
        assert [seen.provider for seen in router.seen] == ["a"]

    @pytest.mark.parametrize(
        "failure",
        [
            down(),
            limited(1.0),
            ProviderError("wrong key", provider="a", status=401),
            ProviderTimeoutError("late", provider="a", retryable=True),
            {"error": {"message": "overloaded"}},
            {"choices": [{"message": {"content": "  "}, "finish_reason": "stop"}]},
            17,
        ],
        ids=lambda failure: str(failure)[:30],
    )
    def test_failures_go_on_to_the_next_provider(self, failure: Any) -> None:
        """A failed call and the next provider's call are observed, the first one as a failure."""
        client, router = routed(failure, "b knows")
        assert ask(client) == "b knows"
        assert [(seen.provider, seen.success) for seen in router.seen] == [("a", False), ("b", True)]
        assert router.seen[0].rate_limited is isinstance(failure, RateLimitError)
        assert client.stats()["a"].failures == 1

    @pytest.mark.parametrize(
        "choice",
        [
            {"message": {"content": None, "refusal": "I will not."}},
            {"message": {"content": ""}, "finish_reason": "length"},
            {"message": {"content": ""}, "finish_reason": "content_filter"},
        ],
        ids=["refusal", "cut off", "filtered"],
    )
    def test_refusals_and_cut_answers_are_answers(self, choice: Any) -> None:
        """A refused or truncated answer causes no further call."""
        other = Scripted()
        client, router = routed({"choices": [choice]}, other)
        asyncio.run(client.complete(REQUEST))
        assert other.calls == 0
        assert router.seen[0].success

    def test_too_long_requests_teach_nothing(self) -> None:
        """After a text too long for one provider the next answers, without a failure or a cooldown."""
        client, router = routed(too_long(), "b knows")
        for _ in range(5):
            assert ask(client) == "b knows"
        assert {seen.provider for seen in router.seen} == {"b"}
        stats = client.stats()["a"]
        assert (stats.calls, stats.failures, stats.too_long, stats.cooling_seconds) == (5, 0, 5, 0.0)

    def test_other_exceptions_pass_and_teach_nothing(self) -> None:
        """An exception that is no ProviderError passes unchanged and is not observed."""
        client, router = routed(ZeroDivisionError("oops"), "an answer")
        with pytest.raises(ZeroDivisionError):
            asyncio.run(client.complete(REQUEST))
        assert (router.seen, client.stats()["a"].in_flight) == ([], 0)

    def test_observations_hold_what_the_call_took(self, clock: Any) -> None:
        """The observation's latency is the clock's; its cost is the response's, or else the declared one."""
        priced = Scripted(answered("yes", cost=0.25), clock=clock, seconds=2.0)
        unpriced = Scripted(answered("yes"), clock=clock, seconds=0.5)
        for client, cost, seconds in ((priced, 0.25, 2.0), (unpriced, 0.125, 0.5)):
            whole, router = routed(Provider("a", client, cost=0.125), clock=clock)
            asyncio.run(whole.complete(REQUEST))
            (seen,) = router.seen
            assert (seen.cost, seen.latency_seconds, seen.quality, seen.context) == (
                cost,
                seconds,
                None,
                None,
            )
            assert (whole.stats()["a"].cost, whole.stats()["a"].mean_latency_seconds) == (cost, seconds)

    def test_strategies_get_the_request(self) -> None:
        """The strategy gets task, tokens and tools; the provider's options go with the call."""
        inner = Scripted()
        client, router = routed(Provider("a", inner, options={"seed": 1, "user": "me"}), task="animals")
        messages = (
            {"role": "system", "content": "x" * 10},
            {"role": "user", "content": [{"type": "text", "text": "y" * 7}]},
        )
        request = CompletionRequest(messages=messages, options={"tools": [{"type": "function"}], "seed": 2})
        asyncio.run(client.complete(request))
        (seen,) = router.requests
        assert (seen.task, seen.tokens, seen.has_tools, seen.tier) == ("animals", 5, True, None)
        assert inner.requests[0].options == {"seed": 2, "user": "me", "tools": [{"type": "function"}]}

    def test_an_answer_with_tools_may_be_without_text(self) -> None:
        """A response with a tool call and no text is returned as it came."""
        response = {"choices": [{"message": {"content": None, "tool_calls": [{}]}, "finish_reason": "stop"}]}
        client, _ = routed(response, "an answer")
        request = CompletionRequest(messages=(), options={"tools": [{}]})
        assert asyncio.run(client.complete(request)) is response

    def test_small_windows_go_last(self) -> None:
        """A provider with a small window goes last; one with an unknown window keeps its place."""
        client, _ = routed(Provider("a", Scripted("a"), context_window=10), "b", Provider("c", Scripted("c")))
        assert ask(client, "short") == "a"
        assert ask(client, "long " * 20) == "b"

    def test_slow_calls_go_on_to_the_next(self) -> None:
        """A call over its time limit counts as a failure, and the next provider answers."""
        client, router = routed(hang, "b knows", call_seconds=0.02)
        assert ask(client) == "b knows"
        assert [seen.success for seen in router.seen] == [False, True]


class TestNobodyAnswers:
    """Tests of the error if no provider answers."""

    @pytest.fixture
    def raised(self) -> Callable[..., ProviderError]:
        """Return a function that returns the error raised by a routed client."""

        def caught(*clients: Any, times: int = 1, **options: Any) -> ProviderError:
            client, _ = routed(*clients, **options)
            for _ in range(times):
                with pytest.raises(ProviderError) as failure:
                    asyncio.run(client.complete(REQUEST))
            return failure.value

        return caught

    def test_one_provider_raises_what_it_raised(self, raised: Any) -> None:
        """The error of a single provider passes unchanged."""
        error = limited(3.0)
        assert raised(error) is error

    def test_the_message_names_every_reason(self, raised: Any) -> None:
        """The message lists every provider with its error."""
        error = raised(down("gpt"), ProviderTimeoutError("was late", provider="b"))
        assert "no provider answered: a: gpt: is down; b: was late" in str(error)
        assert error.provider == "routed:recording(a, b)"

    def test_it_may_be_retried_if_any_may(self, raised: Any) -> None:
        """The error is retryable and not systemic if any provider's error may be retried."""
        wrong = ProviderError("wrong key", provider="a", status=401)
        error = raised(wrong, down("b"))
        assert error.retryable
        assert not error.systemic
        assert error.status is None

    @pytest.mark.parametrize(("times", "message"), [(1, "no provider answered"), (3, "left out for another")])
    def test_it_is_systemic_if_all_are(self, raised: Any, times: int, message: str) -> None:
        """The error is systemic if all providers' errors are, also where fewer providers are called."""
        wrong = ProviderError("wrong key", provider="a", status=401)
        unknown = ProviderError("no such model", provider="b", status=404)
        error = raised(wrong, unknown, times=times)
        assert error.systemic
        assert not error.retryable
        assert message in str(error)

    def test_missing_logprobs_come_with_task_file_lines(self, raised: Any) -> None:
        """The remedy appears once, after all providers' messages, also during cooldowns."""
        lines = (
            '\n\n[cascade]\nconfidence_method = "label_probability"\n\n'
            '[[cascade.models]]\nname = "routed"\nscoring = "fused"\n\n'
        )
        refused = LogprobsUnsupportedError("no logprobs.", provider="gpt")
        alone, _ = routed(refused)
        error = raised(alone)
        assert isinstance(error, LogprobsUnsupportedError)
        assert str(error).startswith("gpt: no logprobs. This model gives no token")
        assert str(error).count(lines) == 1
        several, _ = routed(refused, refused)
        for _ in range(2):
            error = raised(several)
            assert isinstance(error, LogprobsUnsupportedError)
            assert "a: gpt: no logprobs; b: " in str(error)
            assert (str(error).count("This model gives no token"), str(error).count(lines)) == (1, 1)

    def test_task_file_lines_only_for_lasting_faults(self, raised: Any) -> None:
        """The remedy appears only if the error is systemic."""
        refused = LogprobsUnsupportedError("no logprobs.", provider="gpt")
        denied = ProviderError("wrong key", provider="b", status=401, hint="Check the API key.")
        client, _ = routed(refused, denied)
        error = raised(client)
        assert error.systemic
        assert "b: wrong key Check the API key. This model gives" in str(error)
        assert '\nscoring = "fused"\n' in str(error)
        client, _ = routed(refused, down("b"))
        assert str(raised(client)).endswith("no provider answered: a: gpt: no logprobs; b: is down.")

    @pytest.mark.parametrize(
        ("first", "second", "kind"),
        [
            (limited(2.0), limited(1.0), RateLimitError),
            (
                ProviderTimeoutError("late", provider="a", retryable=True),
                ProviderTimeoutError("late", provider="b", retryable=True),
                ProviderTimeoutError,
            ),
            (limited(2.0), down("b"), ProviderError),
            (too_long("a"), too_long("b"), ContextLengthError),
            (too_long("a"), down("b"), ProviderError),
        ],
        ids=["limits", "timeouts", "mixed", "too long", "too long for one"],
    )
    def test_a_kind_that_all_share_is_kept(
        self,
        first: ProviderError,
        second: ProviderError,
        kind: type[ProviderError],
        raised: Any,
    ) -> None:
        """Errors that are all rate limits, timeouts or too long texts keep their kind."""
        assert type(raised(first, second)) is kind

    def test_all_limits_say_when_the_first_one_ends(self, raised: Any) -> None:
        """`retry_after` is the shortest wait, or None if a retryable error names no time."""
        assert raised(limited(5.0), limited(2.0)).retry_after == 2.0
        assert raised(limited(5.0), down("b")).retry_after is None
        never = down("b", status=400, retryable=False)
        assert raised(limited(5.0), never).retry_after == 5.0

    def test_too_long_does_not_cover_cooling_providers(self, clock: Any) -> None:
        """With one provider in a cooldown, a text too long for the other raises a retryable error."""
        a, b = (
            Scripted(down("a"), down("a"), down("a"), "never"),
            Scripted("one", "two", "three", too_long("b")),
        )
        client, _ = routed(a, b, clock=clock)
        for _ in range(3):
            asyncio.run(client.complete(REQUEST))
        with pytest.raises(ProviderError) as caught:
            asyncio.run(client.complete(REQUEST))
        assert not isinstance(caught.value, ContextLengthError)
        assert caught.value.retryable

    @pytest.mark.parametrize(
        "error", [too_long("a"), ProviderError("wrong key", provider="a", status=401)], ids=["long", "key"]
    )
    def test_paused_providers_have_not_failed(self, clock: Any, error: ProviderError) -> None:
        """A paused provider makes the error retryable and not systemic."""
        headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "20s"}
        spent = answered("b") | {"_hidden_params": {"additional_headers": headers}}
        client, _ = routed(Scripted(down("a"), error), spent, clock=clock)
        asyncio.run(client.complete(REQUEST))
        with pytest.raises(ProviderError, match="its allowance is used up") as caught:
            asyncio.run(client.complete(REQUEST))
        assert type(caught.value) is ProviderError
        assert caught.value.retryable
        assert not caught.value.systemic

    def test_last_resort_is_named_once(self, clock: Any, raised: Any) -> None:
        """A provider that was called as the last resort is listed as failed, not as left out."""
        error = raised(down("a"), down("b"), allowed_failures=1, clock=clock, times=2)
        assert (str(error).count("is down"), str(error).count("left out")) == (2, 1)

    def test_shortest_cooldown_is_the_last_resort(self, clock: Any) -> None:
        """If all providers are left out, the one with the shortest cooldown is called and recovers."""
        a = Scripted(ProviderError("wrong key", provider="a", status=401), "a is back")
        b = Scripted(down("b"), "b is back")
        client, router = routed(a, b, clock=clock, allowed_failures=1)
        with pytest.raises(ProviderError):
            ask(client)
        assert ask(client) == "b is back"
        assert (a.calls, b.calls) == (1, 2)
        assert router.seen[-1].recovered
        assert client.stats()["b"].cooling_seconds == 0.0

    def test_a_time_that_a_provider_named_is_kept(self, clock: Any) -> None:
        """Before the time that a provider named no call is made, and the error holds the wait."""
        a, b = Scripted(limited(9.0), "a is back"), Scripted(limited(4.0), "b is back")
        client, _ = routed(a, b, clock=clock)
        with pytest.raises(RateLimitError):
            ask(client)
        clock.tick(1.0)
        with pytest.raises(RateLimitError, match="every provider is left out") as caught:
            ask(client)
        assert caught.value.retry_after == 3.0
        assert caught.value.retryable
        assert (a.calls, b.calls) == (1, 1)
        clock.tick(3.0)
        assert ask(client) == "b is back"
