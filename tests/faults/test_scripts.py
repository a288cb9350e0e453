"""Tests of scripts: which request gets which fault."""

from __future__ import annotations

import doctest
import random
from collections import Counter
from types import ModuleType
from typing import Any

import pytest

from calibrant.core import ConfigurationError
from fault_server import Fault, FaultServer, _faults, _server
from fault_server._faults import script_of
from fault_server._limits import spell_seconds

LABELS = ["Food", "Rent"]


class TestFault:
    @pytest.mark.parametrize(
        ("text", "fault"),
        [
            ("500", Fault("500")),
            ("hang", Fault("hang")),
            ("hang:0.5", Fault("hang", seconds=0.5)),
            ("rate_limit", Fault("rate_limit", seconds=1.0)),
        ],
    )
    def test_a_text_stands_for_a_fault(self, text: str, fault: Fault) -> None:
        """A text is parsed to its fault with all defaults, equal to the fault itself."""
        assert Fault.parse(text) == fault
        assert {fault: 1}[Fault.parse(text)] == 1

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("oops", "'oops'"),
            ("200", "'200'"),
            ("hang:long", "number of seconds"),
            ("hang:nan", "seconds must be"),
        ],
    )
    def test_invalid_texts_raise_an_error(self, text: str, message: str) -> None:
        """An invalid text raises an error with the text or the mistake."""
        with pytest.raises(ConfigurationError, match=message):
            Fault.parse(text)

    @pytest.mark.parametrize(
        ("kind", "options", "message"),
        [
            ("truncated", {"message": "x"}, "message does not apply"),
            ("rate_limit", {"status": 500}, "status does not apply"),
            ("html", {"status": 99}, "status"),
        ],
    )
    def test_wrong_options_raise_an_error(self, kind: str, options: Any, message: str) -> None:
        """A wrong option raises an error with the option's name."""
        with pytest.raises(ConfigurationError, match=message):
            Fault(kind, **options)


class TestScripts:
    def test_a_sequence_goes_by_number(self, serve: Any, ask: Any) -> None:
        """A sequence gives each request its fault by number; None and later requests are healthy."""
        server = serve(faults=["500", None, Fault("503")])
        assert [ask(server).status for _ in range(5)] == [500, 200, 503, 200, 200]
        assert server.faults_sent == {"500": 1, "503": 1}

    def test_refused_requests_do_not_count(self, serve: Any, ask: Any) -> None:
        """A request with a wrong key takes no turn of the script."""
        server = serve(faults=["500"], api_key="k")
        right = {"Authorization": "Bearer k"}
        assert [ask(server).status, ask(server, headers=right).status] == [401, 500]

    def test_shares_are_met(self) -> None:
        """The shares of faults in 20,000 requests agree with the script."""
        script = script_of({"500": 0.1, Fault("hang"): 0.04}, 3)
        found = Counter(fault and fault.kind for fault in (script(number, {}) for number in range(20_000)))
        assert found["500"] / 20_000 == pytest.approx(0.1, abs=0.01)
        assert found["hang"] / 20_000 == pytest.approx(0.04, abs=0.01)
        assert found[None] / 20_000 == pytest.approx(0.86, abs=0.01)

    def test_a_seed_fixes_the_faults(self, serve: Any, ask: Any) -> None:
        """Equal seeds give equal faults and another seed others, whatever the global random state is."""

        def statuses(seed: int) -> list[int]:
            server = serve(faults={"500": 0.5, "503": 0.2}, seed=seed)
            random.seed(seed + len(server.requests))
            return [ask(server).status for _ in range(25)]

        first = statuses(1)
        assert set(first) == {200, 500, 503}
        assert first == statuses(1)
        assert first != statuses(2)

    def test_shares_of_1_and_0_hold(self) -> None:
        """A share of 1 gives every request a fault and one of 0 none; ten shares of 0.1 add up to 1."""
        names = [str(status) for status in range(500, 510)]
        always = script_of(dict.fromkeys(names, 0.1), 0)
        assert all(always(number, {}) for number in range(2000))
        never = script_of({"500": 0.0, "503": 1.0}, 0)
        assert {fault.kind for fault in (never(number, {}) for number in range(2000)) if fault} == {"503"}

    @pytest.mark.parametrize("shares", [{"500": 0.6, "503": 0.5}, {"500": -0.1}, {"500": float("nan")}])
    def test_invalid_shares_raise_an_error(self, shares: Any) -> None:
        """Invalid shares raise ConfigurationError at construction."""
        with pytest.raises(ConfigurationError, match="Shares"):
            FaultServer(LABELS, faults=shares)

    def test_functions_bind_texts_to_faults(self, serve: Any, ask: Any) -> None:
        """A function gives a text its fault at every request."""
        server = serve(
            faults=lambda _number, body: "refusal" if "bomb" in body["messages"][-1]["content"] else None
        )
        assert [ask(server, text).content is None for text in ("bomb", "lunch", "bomb")] == [
            True,
            False,
            True,
        ]

    def test_functions_may_let_retries_pass(self, serve: Any, ask: Any) -> None:
        """A function can count earlier requests, so that only a text's first request fails."""
        servers: list[FaultServer] = []

        def first_fails(_number: int, body: dict[str, Any]) -> str | None:
            return None if servers[0].count(body["messages"][-1]["content"]) else "500"

        servers.append(serve(faults=first_fails))
        found = [ask(servers[0], text).status for text in ("a", "b", "a", "b")]
        assert found == [500, 500, 200, 200]

    def test_failing_scripts_return_400(self, serve: Any, ask: Any) -> None:
        """A script that raises an exception is answered with 400 and the exception."""
        found = ask(serve(faults=lambda number, _body: ["oops"][number]))
        assert (found.status, found.json["error"]["type"]) == (400, "test_error")
        assert "oops" in found.json["error"]["message"]


@pytest.mark.parametrize(
    ("seconds", "spelled"),
    [(0, "0ms"), (0.0196, "20ms"), (0.9999, "1s"), (360, "6m0s"), (3723.25, "1h2m3.25s")],
)
def test_times_are_spelled_as_openai_does(seconds: float, spelled: str) -> None:
    """Times are written as OpenAI does: below one second in milliseconds, rounded up."""
    assert spell_seconds(seconds) == spelled


@pytest.mark.parametrize("module", [_faults, _server])
def test_examples_run(module: ModuleType) -> None:
    """The examples in the docstrings run."""
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
