"""Tests of the cascade strategy: cheap providers first, dear ones after degenerate answers."""

from __future__ import annotations

import numpy as np
import pytest

from calibrant.core import StateError
from calibrant.routing import CascadeRouter, Observation, RoutingRequest

LOOP = "and so on " * 40


def climb(router: CascadeRouter, answers: list[str | None]) -> tuple[str | None, int]:
    """Return the final answer of a request and the number of calls; None is a failed call."""
    ladder, came, asked = router.ladder(), [], 0
    for answer in answers:
        asked += 1
        if answer is None:
            continue
        came.append(answer)
        if ladder.ends_with(router.assess(answer).score):
            break
    return (None if ladder.best is None else came[ladder.best]), asked


class TestOrder:
    def test_without_prices_providers_go_as_declared(self) -> None:
        assert CascadeRouter(["b", "a", "c"]).order() == ["b", "a", "c"]

    def test_tiers_come_first_and_the_others_as_declared(self) -> None:
        router = CascadeRouter(["a", "b", "c", "d"], cost_tiers=["d", "b"], costs={"a": 0.0})
        assert router.order() == ["d", "b", "a", "c"]

    def test_providers_are_sorted_by_cost(self) -> None:
        router = CascadeRouter(["x", "c", "b", "y", "a"], costs={"a": 0, "b": 2.5, "c": 2.5})
        assert router.order() == ["a", "c", "b", "x", "y"]

    def test_a_request_with_tools_keeps_the_declared_order(self) -> None:
        router = CascadeRouter(["a", "b"], cost_tiers=["b"])
        assert router.order(RoutingRequest(has_tools=True)) == ["a", "b"]
        assert router.order(RoutingRequest(has_tools=False)) == ["b", "a"]

    def test_no_observation_changes_the_order(self) -> None:
        router = CascadeRouter(["a", "b", "c"], costs={"a": 3, "b": 2, "c": 1})
        for _ in range(50):
            router.record(Observation(provider="c", success=False, latency_seconds=9.0))
            router.record(Observation(provider="b", success=True, latency_seconds=9.0, quality=0.0))
        assert router.order() == ["c", "b", "a"]


class TestOptions:
    def test_the_edges_are_fine(self) -> None:
        """With threshold 0 an answer of quality 0 is accepted, with threshold 1 not even one of 0.99."""
        least = CascadeRouter(
            ["a"], quality_threshold=0, max_escalations=0, max_cascade_tokens=1, window_size=4,
            classifier_mode="judge", rng=np.random.default_rng(0),
        ).ladder()  # fmt: skip
        assert (least.ends_with(0.0), least.accepted) == (True, True)
        most = CascadeRouter(["a"], quality_threshold=1, max_escalations=np.int64(3)).ladder()  # type: ignore[arg-type]
        assert ([most.ends_with(0.99) for _ in range(4)], most.accepted) == (
            [False, False, False, True],
            False,
        )

    def test_the_window_reaches_the_heuristic(self) -> None:
        text = " ".join(f"word{number}" for number in range(500)) + " again and again" * 20
        assert CascadeRouter(["a"]).assess(text).reasons == ()
        assert CascadeRouter(["a"], window_size=40).assess(text).reasons == ("repetitive",)


class TestClimbing:
    def test_a_correct_one_word_answer_ends_the_climb(self) -> None:
        assert climb(CascadeRouter(["a", "b"]), ["Paris.", "never asked"]) == ("Paris.", 1)

    def test_a_degenerate_answer_goes_on_to_the_next(self) -> None:
        assert climb(CascadeRouter(["a", "b"]), [LOOP, "Paris."]) == ("Paris.", 2)

    def test_truncation_and_refusal_are_seen(self) -> None:
        router = CascadeRouter(["a", "b"])
        for found in (
            router.assess("The capital is", finish_reason="length"),
            router.assess("", refusal="I won't."),
            router.assess("I'm sorry, but I can't help with that."),
        ):
            assert not router.ladder().ends_with(found.score)

    def test_earlier_better_answers_win(self) -> None:
        """After all escalations the best answer is returned, not the last one."""
        cut = '{"category": "Spo'
        assert climb(CascadeRouter(["a", "b", "c"], max_escalations=9), ["", cut, "..."]) == (cut, 3)
        assert climb(CascadeRouter(["a", "b", "c"], max_escalations=1), [cut, "", "Paris"]) == (cut, 2)

    def test_failed_calls_use_up_no_escalation(self) -> None:
        router = CascadeRouter(["a", "b", "c", "d"], max_escalations=1)
        assert climb(router, [None, LOOP, None, "Paris."]) == ("Paris.", 4)

    @pytest.mark.parametrize(("escalations", "asked"), [(0, 1), (1, 2), (9, 5)])
    def test_so_many_answers_may_be_turned_down(self, escalations: int, asked: int) -> None:
        assert climb(CascadeRouter(["a"], max_escalations=escalations), [LOOP] * 5)[1] == asked

    def test_the_token_budget_ends_the_climb(self) -> None:
        ladder = CascadeRouter(["a"], max_escalations=9, max_cascade_tokens=100).ladder()
        assert [ladder.ends_with(0.1, tokens=40) for _ in range(3)] == [False, False, True]


class TestCounts:
    def test_standings_show_calls_and_mean_quality(self) -> None:
        router = CascadeRouter(["a", "b"])
        for quality in (0.2, 0.9, None):
            router.record(Observation(provider="a", success=True, latency_seconds=0.1, quality=quality))
        router.record(Observation(provider="a", success=False, latency_seconds=0.1, quality=0.0))
        first, second = router.standings()
        assert (first.provider, first.observations) == ("a", 4)
        assert first.values == {"judged": 2, "mean_quality": pytest.approx(0.55)}
        assert (second.observations, dict(second.values)) == (0, {"judged": 0})

    @pytest.mark.parametrize(("judged", "quality"), [(2, 1.0), (1, 1.5), (1, -0.5)])
    def test_damaged_counts_are_refused_and_change_nothing(self, judged: int, quality: float) -> None:
        router = CascadeRouter(["a"])
        router.record(Observation(provider="a", success=True, latency_seconds=0.1, quality=0.5))
        before = router.snapshot()
        with pytest.raises(StateError):
            router.restore(
                before | {"providers": {"a": {"observations": 1, "judged": judged, "quality": quality}}}
            )
        assert router.snapshot() == before
