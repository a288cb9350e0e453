"""Tests of the examination of decision models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from calibrant.core import DecisionAnswer, DecisionQuestion, DecisionResponse, LogprobSpace, ProviderError
from calibrant.inference import Examination, examine
from decision_server import DecisionServer

# Words of the texts that the doctor asks about.
WORDS = {"pasta": "Food", "rain": "Weather", "dog": "Animals", "guitar": "Music"}


class Reader:
    """Decision model that knows the topics; `shares` are the probabilities of the right option and of each other."""

    name, space, endpoint = "reader", "decision", None

    def __init__(self, *shares: tuple[float, float], first: bool = False) -> None:
        self.shares = list(shares)
        self.first = first

    async def complete(self, request: object) -> object:
        """Raise an error: nobody asks for a text."""
        raise NotImplementedError

    async def decide(self, text: str, questions: Sequence[DecisionQuestion]) -> DecisionResponse:
        """Return the answer to the only question."""
        (question,) = questions
        right = next(label for word, label in WORDS.items() if word in text)
        if self.first:
            right = question.options[0]
        high, low = self.shares[0] if len(self.shares) == 1 else self.shares.pop(0)
        shares = tuple(high if option == right else low for option in question.options)
        return DecisionResponse(answers=(DecisionAnswer(probabilities=shares),))

    def close(self) -> None:
        """Do nothing."""


def verdicts(found: Examination) -> dict[str, str]:
    """Return the verdicts by feature."""
    return {finding.feature: finding.verdict.value for finding in found.findings}


@pytest.fixture
def server() -> Iterator[DecisionServer]:
    """Return a server with four options."""
    found = DecisionServer(0.7, 0.1, 0.1, 0.1)
    yield found
    found.stop()


def test_a_good_model_has_a_price_to_be_set() -> None:
    """All is well but the price, which nobody knows."""
    found = examine(Reader((0.97, 0.01)))
    assert verdicts(found) == {
        "options": "ok",
        "sum": "ok",
        "rounding": "ok",
        "order": "ok",
        "repeat": "ok",
        "latency": "ok",
        "price": "warning",
    }
    assert (found.space, found.scoring, found.calls) == (LogprobSpace.DECISION, None, 6)
    assert "2 decimals: a zero is taken for 0.0025" in found.finding("rounding").detail


def test_probabilities_that_are_none_are_a_problem() -> None:
    """A sum far from 1 would fail every row."""
    assert verdicts(examine(Reader((0.97, 0.3))))["sum"] == "problem"
    found = examine(Reader((1.3, -0.1)))
    assert found.finding("sum").detail == "Some probabilities are negative."


def test_an_answer_that_moves_is_said() -> None:
    """The fifth call repeats the first; its answer is another one."""
    found = examine(Reader(*[(0.97, 0.01)] * 4, (0.94, 0.02), (0.97, 0.01)))
    assert found.finding("repeat").detail == "The same question asked again moves 3.00% of the probability."


def test_unrounded_probabilities_are_said() -> None:
    """Digits beyond the fourth decimal tell that nothing was rounded."""
    found = examine(Reader((0.970213, 0.009929)))
    assert found.finding("rounding").detail.startswith("The probabilities are not rounded")


def test_a_model_that_takes_the_first_option_is_found_out() -> None:
    """The label follows the order of the options."""
    found = examine(Reader((0.97, 0.01), first=True))
    assert (verdicts(found)["order"], verdicts(found)["options"]) == ("warning", "warning")
    assert "1 of 4" in found.finding("options").detail


def test_no_more_than_all_of_the_probability_moves() -> None:
    """Of a server whose probabilities do not sum to 1, shares of their sum are compared."""
    found = examine(Reader((1.7, 0.0), first=True))
    assert verdicts(found)["sum"] == "problem"
    assert found.finding("order").detail.startswith(
        "With the options in reverse order, 100% of the probability"
    )


def test_tied_options_say_nothing_about_their_order() -> None:
    """Of options with the same probability the first one is no choice of the model's."""
    found = examine(Reader((0.25, 0.25)))
    assert verdicts(found)["order"] == "unknown"
    assert found.finding("order").detail.startswith("The likeliest options are tied")


def test_a_server_is_examined(server: DecisionServer) -> None:
    """The price among the options is found; a record of it can be read again."""
    prices = {"input_cost_per_token": 1e-7, "output_cost_per_token": 0.0}
    found = examine("systemone/own", api_base=server.root, options=prices)
    assert verdicts(found)["price"] == "ok"
    assert len(server.asked) == 6
    assert Examination.from_record(found.to_record()) == found


def test_a_server_without_decisions_cannot_be_examined(server: DecisionServer) -> None:
    """The error of the first call says what to name."""
    server.failures = [501]
    with pytest.raises(ProviderError, match="hosted_vllm/NAME"):
        examine("systemone/own", api_base=server.root)


def test_a_refusal_ends_the_examination(server: DecisionServer) -> None:
    """Nothing can be found out from refusals."""
    server.changes = {"type": "refusal"}
    with pytest.raises(ProviderError, match="refused to say"):
        examine("decisions/own", api_base=server.root)
