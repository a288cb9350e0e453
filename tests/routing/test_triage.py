"""Tests of triage: requests go to the provider of their tier if its window holds them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.core import CompletionRequest, ConfigurationError
from calibrant.inference import Provider, RoutedClient
from calibrant.routing import Observation, RoutingRequest, TriageRouter
from routed_answers import Scripted, Watched

TIERS = ("simple", "medium", "complex", "expert")
ALL = {"simple": "s", "medium": "m", "complex": "c", "expert": "e"}


def asked(router: TriageRouter, tier: str | None = None, tokens: int | None = None) -> list[str]:
    """Return the order of providers for a request."""
    return router.order(RoutingRequest(tier=tier, tokens=tokens))


def observed(provider: str, request: RoutingRequest | None = None) -> Observation:
    """Return the observation of a complete answer."""
    return Observation(provider=provider, success=True, latency_seconds=0.1, request=request)


def triaged(
    text: str, tiers: Mapping[str, str] = ALL, reply: str = "simple"
) -> tuple[CompletionRequest, str | None]:
    """Return what a triage model is asked about a request, and the tier in its reply."""
    triage, router = Scripted(reply), TriageRouter(sorted(tiers.values()), tiers=tiers)
    seen = Watched(router).seen
    client = RoutedClient(
        [Provider(name, Scripted()) for name in router.providers], router=router, triage=triage
    )
    asyncio.run(client.complete(CompletionRequest(messages=({"role": "user", "content": text},))))
    assert seen[0].request is not None
    return triage.requests[0], seen[0].request.tier


def read_tier(reply: str) -> str | None:
    """Return the tier in a triage model's reply."""
    return triaged("hello", reply=reply)[1]


class TestOrder:
    @pytest.mark.parametrize("tier", TIERS)
    def test_a_tier_has_its_provider(self, tier: str) -> None:
        assert asked(TriageRouter(["e", "m", "s", "c"], tiers=ALL), tier)[0] == ALL[tier]

    @given(present=st.sets(st.sampled_from(TIERS), min_size=1), tier=st.sampled_from(TIERS))
    def test_missing_tiers_fall_up_then_down(self, present: set[str], tier: str) -> None:
        rank = TIERS.index(tier)
        higher = [name for name in TIERS[rank:] if name in present]
        lower = [name for name in TIERS[:rank] if name in present]
        router = TriageRouter(["c", "e", "m", "s"], tiers={name: ALL[name] for name in present})
        assert asked(router, tier)[0] == ALL[higher[0] if higher else lower[-1]]

    @pytest.mark.parametrize("request_", [None, RoutingRequest(), RoutingRequest(tier=None, tokens=5)])
    def test_without_a_tier_the_lowest_present_one_serves(self, request_: RoutingRequest | None) -> None:
        """A request without a usable tier goes to the provider of the lowest tier present."""
        router = TriageRouter(["e", "m", "x"], tiers={"expert": "e", "medium": "m"})
        assert router.order(request_)[0] == "m"

    def test_fallbacks_go_up_then_down_then_as_declared(self) -> None:
        router = TriageRouter(["y", "e", "s", "x", "c", "m"], tiers=ALL)
        assert asked(router, "complex") == ["c", "e", "m", "s", "y", "x"]
        assert asked(router) == ["s", "m", "c", "e", "y", "x"]

    def test_one_provider_may_serve_several_tiers(self) -> None:
        """A provider may serve several tiers, also under the name of another tier."""
        router = TriageRouter(["simple", "b"], tiers={"simple": "b", "medium": "b", "expert": "simple"})
        assert asked(router, "medium") == ["b", "simple"]
        assert asked(router, "simple") == ["b", "simple"]

    @given(data=st.data())
    def test_all_providers_are_always_there_once(self, data: st.DataObject) -> None:
        names = data.draw(st.lists(st.sampled_from("abcdef"), min_size=1, unique=True))
        tiers = data.draw(st.dictionaries(st.sampled_from(TIERS), st.sampled_from(names), min_size=1))
        windows = data.draw(st.dictionaries(st.sampled_from(names), st.integers(1, 100)))
        router = TriageRouter(names, tiers=tiers, context_windows=windows)
        order = asked(
            router, data.draw(st.none() | st.sampled_from(TIERS)), data.draw(st.none() | st.integers(0, 150))
        )
        assert sorted(order) == sorted(names)

    def test_an_unknown_tier_is_an_error(self) -> None:
        with pytest.raises(ConfigurationError, match="simple, medium, complex, expert, or None, got 'hard'"):
            asked(TriageRouter(["a"], tiers={"simple": "a"}), "hard")


class TestWindows:
    WINDOWS: ClassVar = {"s": 1_000, "m": 2_000, "c": 10_000, "e": 100_000}

    @pytest.mark.parametrize(
        ("tokens", "first"),
        [(None, "s"), (800, "s"), (801, "m"), (80_000, "e")],
    )
    def test_long_requests_go_to_larger_windows(self, tokens: int | None, first: str) -> None:
        router = TriageRouter(["e", "c", "m", "s"], tiers=ALL, context_windows=self.WINDOWS)
        assert asked(router, "simple", tokens)[0] == first

    def test_an_unknown_window_is_never_skipped(self) -> None:
        router = TriageRouter(
            ["s", "m", "c"], tiers={"simple": "s", "medium": "m"}, context_windows={"m": 10}
        )
        assert asked(router, "simple", 10**9)[0] == "s"
        assert asked(router, "medium", 100) == ["s", "c", "m"]

    def test_what_fits_nowhere_goes_to_the_largest_window(self) -> None:
        router = TriageRouter(["s", "m", "c", "e"], tiers=ALL, context_windows=self.WINDOWS)
        assert asked(router, "simple", 90_000) == ["e", "c", "m", "s"]

    def test_fallbacks_too_small_for_the_request_come_last(self) -> None:
        router = TriageRouter(["s", "m", "c", "e"], tiers=ALL, context_windows=self.WINDOWS)
        assert asked(router, "complex", 5_000) == ["c", "e", "m", "s"]

    def test_a_larger_fallback_below_serves_too(self) -> None:
        router = TriageRouter(
            ["a", "b"], tiers={"simple": "a", "expert": "b"}, context_windows={"a": 1000, "b": 10}
        )
        assert asked(router, "expert", 100) == ["a", "b"]


class TestCounts:
    def test_calls_count_by_tier_and_reason(self) -> None:
        router = TriageRouter(["s", "m"], tiers={"simple": "s", "medium": "m"}, context_windows={"s": 10})
        simple, long, unknown = (
            RoutingRequest(tier="simple"),
            RoutingRequest(tier="simple", tokens=9),
            RoutingRequest(),
        )
        for provider, request in (("s", simple), ("s", simple), ("m", long), ("s", unknown), ("m", unknown)):
            router.record(observed(provider, request))
        router.record(observed("m"))
        small, medium = router.standings()
        assert (small.provider, small.observations) == ("s", 3)
        assert dict(small.values) == {
            "simple": 2, "medium": 0, "complex": 0, "expert": 0, "untriaged": 1, "larger_window": 0,
        }  # fmt: skip
        assert (medium.observations, medium.values["simple"], medium.values["untriaged"]) == (3, 1, 1)
        assert medium.values["larger_window"] == 1

    def test_fallbacks_do_not_count_as_larger_window(self) -> None:
        router = TriageRouter(["s", "m"], tiers={"simple": "s", "medium": "m"}, context_windows={"s": 10})
        router.record(observed("m", RoutingRequest(tier="simple", tokens=1)))
        router.record(observed("s", RoutingRequest(tier="simple", tokens=9)))
        assert [standing.values["larger_window"] for standing in router.standings()] == [0, 0]


class TestMessages:
    def test_request_is_cut_at_400_characters(self) -> None:
        text = "".join(chr(ord("a") + number % 26) for number in range(1_000))
        system, user = triaged(text)[0].messages
        assert (system["role"], user["role"]) == ("system", "user")
        assert re.fullmatch(rf"BEGIN REQUEST (\w+)\n{text[:400]}\nEND REQUEST \1", user["content"])
        assert text[:20] not in system["content"]

    def test_only_configured_tiers_are_offered(self) -> None:
        system = triaged("hello", {"expert": "e", "simple": "s"})[0].messages[0]["content"]
        assert re.findall(r"^(\w+): ", system, re.MULTILINE) == ["simple", "expert"]
        assert '{"tier": "..."}' in system
        assert '"simple"' not in system  # a small model would copy it

    def test_the_format_allows_the_four_tiers(self) -> None:
        asked = triaged("hello")[0].response_format or {}
        schema = asked["json_schema"]["schema"]
        assert tuple(schema["properties"]["tier"]["enum"]) == TIERS
        json.dumps(asked)


class TestReading:
    @pytest.mark.parametrize("tier", TIERS)
    @pytest.mark.parametrize(
        "form",
        [
            '{{"tier": "{}"}}',
            '{{"tier": " {} ", "reason": "not \\"simple\\" nor \\"expert\\""}}',
            'Sure! ```json\n{{"tier": "{}"}}\n``` Anything else?',
            '{{"tier": "{}", "reason": "the request asks',
            "The tier is **{}**.",
            "{}",
            "Tier: {}.",
            '<think>"simple"? "expert"?</think>{}',
        ],
    )
    def test_tiers_are_read_in_these_forms(self, tier: str, form: str) -> None:
        assert read_tier(form.format(tier)) == tier
        assert read_tier(form.format(tier.upper())) == tier

    @pytest.mark.parametrize(
        "reply",
        [
            "",
            "hard",
            '{"tier": "hard", "reason": "more than \\"complex\\""}',
            '{"tier": ["simple"]}',
            "{}",
            'Either "simple" or "expert".',
            '{"tier": "simple", "tier": "expert"}',
            "This is a simple question.",
            "<think>simple",
            "{" * 100_000,
        ],
    )
    def test_anything_else_is_no_tier(self, reply: str) -> None:
        assert read_tier(reply) is None

    @given(st.text(max_size=80))
    def test_any_reply_gives_a_tier_or_nothing(self, reply: str) -> None:
        assert read_tier(reply) in {None, *TIERS}
