"""Tests of the findings of an examination, in good models and in faulty ones."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from calibrant.core import (
    CalibrantError,
    Completion,
    CompletionRequest,
    ConfigurationError,
    LogprobSpace,
    NextTokens,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
    Token,
)
from calibrant.inference import Examination, FindingVerdict, Thresholds, examine
from calibrant.testing import fake_response

LABELS = ("Animals", "Food", "Music", "Weather")
WORDS = {"pasta": "Food", "rain": "Weather", "dog": "Animals", "guitar": "Music"}
NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)

Response = dict[str, Any]


def sure(label: str, share: float = 0.97) -> dict[str, float]:
    """Return a distribution with nearly all probability on one label."""
    return dict.fromkeys(LABELS, (1.0 - share) / 3) | {label: share}


def topic(request: CompletionRequest) -> str | None:
    """Return the topic of one of the built-in task's texts, or None for the question off the topic."""
    text = request.messages[1]["content"]
    return next((label for word, label in WORDS.items() if word in text), None)


class Model:
    """A model without faults, unless its arguments set some.

    ``share``: probability of the expected label, of all texts or of each. ``limit``: most alternatives it lists.
    ``illegal``, ``illegal_off_topic``: probability of texts that are no label. ``spell``: shapes the label it answers.
    ``ail``: changes the response to a question under a schema. ``refuse``: returns what a request raises.
    """

    def __init__(
        self,
        *,
        space: str = "masked",
        share: float | Sequence[float] = 0.97,
        illegal: float = 0.0,
        illegal_off_topic: float | None = None,
        limit: int = 20,
        tokens: Any = "label",
        spell: Callable[[str, bool], str] = lambda label, _: label,
        ail: Callable[[Response, int], object] = lambda response, _: response,
        refuse: Callable[[CompletionRequest], Exception | None] = lambda _: None,
        name: str = "patient",
    ) -> None:
        self.name = name
        self.space = LogprobSpace(space)
        self.requests: list[CompletionRequest] = []
        self.closed = False
        self._shares = (share,) * len(LABELS) if isinstance(share, float) else share
        self._illegal = illegal
        self._illegal_off_topic = illegal if illegal_off_topic is None else illegal_off_topic
        self._limit = limit
        self._tokens = tokens
        self._spell = spell
        self._ail = ail
        self._refuse = refuse
        self._asked = itertools.count()

    async def complete(self, request: CompletionRequest) -> object:
        """Answer as the model's settings say."""
        self.requests.append(request)
        error = self._refuse(request)
        if error is not None:
            raise error
        if request.response_format is None:
            return {"choices": [{"message": {"content": "17, 4, 9031, 5, 66"}}]}
        label = topic(request)
        response = fake_response(
            self._spell(label or "Music", label is None),
            LABELS,
            {"Animals": 0.2, "Food": 0.3, "Music": 0.4, "Weather": 0.1}
            if label is None
            else sure(label, self._shares[LABELS.index(label)]),
            field="topic",
            tokens=self._tokens,
            top_logprobs=min(request.top_logprobs, self._limit),
            illegal_mass=self._illegal_off_topic if label is None else self._illegal,
        )
        return self._ail(response, next(self._asked))

    def close(self) -> None:
        """Record that the model was closed."""
        self.closed = True


class Continuing(Model):
    """A model with next-token probabilities, which `next_logprob` changes."""

    def __init__(
        self,
        *,
        next_logprob: Callable[[float], float] = math.log,
        label_mass: float = 0.8,
        next_share: float = 0.97,
        **ailments: Any,
    ) -> None:
        super().__init__(**ailments)
        self._next_share = next_share
        self._next_logprob = next_logprob
        self._label_mass = label_mass
        self.checked: list[Sequence[str]] = []
        self.next_failure: Exception | None = None
        self.next_top: tuple[tuple[bytes, float], ...] = ()
        self.prefixes: list[str] = []

    async def check_labels(self, labels: Sequence[str]) -> None:
        """Record that labels were checked."""
        self.checked.append(labels)

    @asynccontextmanager
    async def continuing(self, request: CompletionRequest) -> AsyncIterator[Any]:
        """Return a row that knows the text's topic."""
        model = self
        self.requests.append(request)

        class Row:
            async def next_tokens(self, text: str) -> NextTokens:
                model.prefixes.append(text)
                if model.next_failure is not None:
                    raise model.next_failure
                if model.next_top:
                    return NextTokens(top=model.next_top)
                label = topic(request)
                assert label is not None
                shares = {
                    name[:3]: share * model._label_mass
                    for name, share in sure(label, model._next_share).items()
                }
                shares["The"] = 1.0 - model._label_mass
                return NextTokens(
                    top=tuple((name.encode(), model._next_logprob(share)) for name, share in shares.items())
                )

        yield Row()


def refusing(
    message: str, *, when: Callable[[CompletionRequest], bool], status: int | None = 400
) -> Callable[[CompletionRequest], Exception | None]:
    """Return a function that raises an error for some requests."""

    def refuse(request: CompletionRequest) -> Exception | None:
        return ProviderError(message, provider="patient", status=status) if when(request) else None

    return refuse


def values(change: Callable[[float], Any]) -> Callable[[Response, int], Response]:
    """Return a fault that changes every reported log-probability."""

    def ail(response: Response, _: int) -> Response:
        for token in response["choices"][0]["logprobs"]["content"]:
            for item in (token, *token["top_logprobs"]):
                item["logprob"] = change(item["logprob"])
        return response

    return ail


def saying(text: str) -> Callable[[Response, int], Response]:
    """Return a fault that answers another text."""

    def ail(response: Response, _: int) -> Response:
        response["choices"][0]["message"]["content"] = text
        return response

    return ail


def without_logprobs(response: Response, _: int) -> Response:
    """Remove the log-probabilities."""
    response["choices"][0]["logprobs"] = None
    return response


def verdicts(found: Examination) -> dict[str, str]:
    """Return the verdict of every finding by its feature."""
    return {finding.feature: finding.verdict.value for finding in found.findings}


FEATURES = ["enum", "space", "label_mass", "units", "alignment", "exact"]


# --- a second reader ----------------------------------------------------------------------------


def spelling(text: str, *tokens: str | bytes) -> Callable[[Response, int], Response]:
    """Return a fault that answers `text` in these tokens, each with probability one half."""

    def ail(response: Response, _: int) -> Response:
        choice = response["choices"][0]
        choice["message"]["content"] = text
        pieces = [one.encode() if isinstance(one, str) else one for one in tokens]
        choice["logprobs"]["content"] = [
            {"token": piece.decode(errors="replace"), "bytes": list(piece), "logprob": math.log(0.5)}
            for piece in pieces
        ]
        return response

    return ail


def test_both_readers_agree_on_plain_answers() -> None:
    """The finding "alignment" reports the same joint log-probability in 5 of 5 answers."""
    detail = examine(Model()).finding("alignment").detail
    assert detail.endswith("reads the same label, tokens and joint log-probability in 5 of 5 answers.")


@pytest.mark.parametrize(
    ("ail", "found"),
    [
        (
            spelling('{"topic": "Food"}', "Well: ", '{"topic": "', "Fo", "od", '"}'),
            ["calibrant: -1.386 for 'Food' over ['Fo', 'od']", "begin 6 bytes before the answer"],
        ),
        (
            spelling(
                '{"a": "é", "topic": "Food"}', '{"a": "', b"\xc3", b"\xa9", '", "topic": ', '"', "Food", '"}'
            ),
            ["over ['Food']; llm-structured-confidence: -1.386 for 'Food' over", "parts of characters"],
        ),
        (
            spelling('{"topic": "F\\u006fod"}', '{"topic": "', "F\\u006fod", '"}'),
            ["for 'Food' over", "JSON escapes"],
        ),
        (
            spelling('```json\n{"topic": "Food"}\n```', '```json\n{"topic": "', "Food", '"}\n```'),
            ["llm-structured-confidence: nothing (", "bare JSON only"],
        ),
        (
            spelling('{"topic": "Food"}', '{"topic": "', b"", "Food", '"}'),
            ["over ['', 'Food']", "a token without text"],
        ),
        (
            spelling('{"topic": ""}', '{"topic": "', '"}'),
            ["llm-structured-confidence: 0 for ''", "takes for certainty"],
        ),
        (
            spelling('{"topic": "Food"}', '{"topic": "', "Fool", '"}'),
            ["calibrant: nothing (", "does not check"],
        ),
    ],
)
def test_readers_differ_for_known_reasons(ail: Callable[[Response, int], Response], found: list[str]) -> None:
    """A known reason for different readings makes the finding "alignment" a warning with its detail."""
    finding = examine(Model(ail=ail)).finding("alignment")
    assert finding.verdict is FindingVerdict.WARNING
    for part in found:
        assert part in finding.detail
    assert "unknown" not in finding.detail


# --- ailments -----------------------------------------------------------------------------------


def sometimes(ail: Any, *, number: int) -> Callable[[Response, int], Response]:
    """Return a fault that affects one answer only."""
    return lambda response, now: ail(response, 0) if now == number else response


def as_completion(response: Response, _: int) -> Completion:
    """Return the response as a client may that reads it itself."""
    (choice,) = response["choices"]
    tokens = [
        Token(
            bytes(one["bytes"]),
            one["logprob"],
            tuple((bytes(other["bytes"]), other["logprob"]) for other in one["top_logprobs"]),
        )
        for one in choice["logprobs"]["content"]
    ]
    return Completion(text=choice["message"]["content"], tokens=tuple(tokens))


def is_off_topic(request: CompletionRequest) -> bool:
    """Return True for the question under the schema that no label answers."""
    return request.response_format is not None and topic(request) is None


@pytest.mark.parametrize(
    ("model", "found", "detail"),
    [
        (Model(ail=saying("It is about food.")), "enum problem", "4 of 4 answers were no label: "),
        (Model(ail=saying('{"topic": "Cars"}')), "enum problem", "4 of 4 answers were no label: "),
        (Model(spell=lambda label, off: "Tokyo" if off else label), "enum warning", "answered 'Tokyo'"),
        (Model(spell=lambda *_: "Music"), "enum ok", "4 of 4 answers were a label, 1 the expected one."),
        (Model(space="raw"), "space warning", "They are read as raw"),
        (Model(space="none"), "space unknown", "The client says that it has no log-probabilities"),
        (Model(refuse=refusing("no", when=is_off_topic)), "space unknown", "could not be read"),
        (Continuing(label_mass=0.1), "label_mass warning", "Mean 0.100 over 4 texts"),
        (Model(ail=sometimes(values(lambda _: math.nan), number=4)), "units problem", "NaN"),
        (Model(ail=values(lambda old: -9999.0 * (old < -1))), "units warning", "they do not tell a sure"),
        (Model(ail=values(lambda _: -20_000.0)), "alignment warning", "calibrant clips log-probabilities"),
        (Model(ail=as_completion), "alignment ok", "in 5 of 5 answers."),
        (Model(ail=spelling("Food.", "Food", ".")), "alignment unknown", "that can be read"),
    ],
)
def test_findings_name_the_ailment(model: Model, found: str, detail: str) -> None:
    """Each fault gives its finding the right verdict and detail, and every problem has a remedy."""
    feature, verdict = found.split()
    finding = examine(model).finding(feature)
    assert finding.verdict == verdict
    assert detail in finding.detail
    assert finding.remedy or verdict != "problem"


# --- models that are well -----------------------------------------------------------------------


def test_a_masked_model_that_is_well() -> None:
    """A good masked model has no problems, and "label_mass" is unknown."""
    model = Model()
    found = examine(model)
    assert list(verdicts(found)) == FEATURES
    assert verdicts(found) == dict.fromkeys(FEATURES, "ok") | {"label_mass": "unknown", "exact": "warning"}
    assert (found.space, found.scoring, found.problems) == (LogprobSpace.MASKED, "decode", ())
    assert found.finding("enum").detail == "4 of 4 answers were a label, 4 the expected one."
    assert found.calls == len(model.requests) == 6
    assert (found.model, found.api_base, found.parameters, found.examined) == ("patient", None, {}, None)
    with pytest.raises(KeyError):
        found.finding("pulse")


def test_an_embedded_model_that_is_well() -> None:
    """A good embedded model has only findings that are ok, and the scoring "exact"."""
    model = Continuing(space="raw", illegal=0.3, limit=10_000)
    assert hasattr(model, "continuing")
    found = examine(model)
    assert verdicts(found) == dict.fromkeys(FEATURES, "ok")
    assert (found.space, found.scoring) == (LogprobSpace.RAW, "exact")
    assert found.label_mass == pytest.approx(0.8)
    assert (model.prefixes, model.checked) == (['{"topic": "'] * 4, [LABELS])
    assert found.calls == len(model.requests) == 10


def test_requests_of_an_examination() -> None:
    """Requests are greedy, and omit an engine's settings."""
    model = Model()
    examine(model, options={"top_p": 0.5, "temperature": 0.7, "n_ctx": 512})
    schema: Any = model.requests[0].response_format
    assert schema["json_schema"]["schema"]["properties"]["topic"]["enum"] == list(LABELS)
    assert {json.dumps(dict(request.options), sort_keys=True) for request in model.requests} == {
        '{"temperature": 0, "top_p": 0.5}'
    }
    assert [request.top_logprobs for request in model.requests] == [5, 20, 20, 20, 20, 20]
    assert model.requests[0].messages == model.requests[1].messages


def test_a_model_without_a_temperature_is_sent_none() -> None:
    """The temperature None among the options is passed on in the request."""
    model = Model()
    examine(model, options={"temperature": None})
    assert model.requests[0].options["temperature"] is None


def test_the_date_is_the_callers() -> None:
    """The date of an examination is the one that is given; it changes no finding."""
    found, again = examine(Model(), now=NOON), examine(Model())
    assert (found.examined, again.examined) == (NOON, None)
    assert replace(found, examined=None) == again


def test_a_callable_is_examined_too() -> None:
    """A callable is known by its own name."""

    def my_model(messages: list[dict[str, str]]) -> object:
        request = CompletionRequest(messages=tuple(messages), response_format={}, top_logprobs=5)
        return asyncio.run(Model().complete(request))

    found = examine(my_model)
    assert (found.model, found.space, found.scoring) == ("my_model", LogprobSpace.MASKED, "decode")


def test_progress_is_reported_call_by_call() -> None:
    """The callback gets the number of every call, from 1."""
    heard: list[int] = []
    found = examine(Model(), on_call=heard.append)
    assert heard == list(range(1, found.calls + 1))


# --- log-probability space ----------------------------------------------------------------------


def test_raw_claimed_as_masked_is_a_problem() -> None:
    """A raw model with the default space is a problem whose remedy sets space = "raw"."""
    set_right = examine(Model(illegal=0.4), space="raw")
    assert (set_right.finding("space").verdict, set_right.problems) == (FindingVerdict.OK, ())
    found = examine(Model(illegal=0.4))
    finding = found.finding("space")
    assert finding.verdict is FindingVerdict.PROBLEM
    assert "0.40 of the probability is on texts that are no label" in finding.detail
    assert finding.remedy == 'Set space = "raw" under [model] (space="raw" in Python).'
    assert (found.problems, found.space, found.scoring) == ((finding,), LogprobSpace.RAW, "decode")
    assert found.label_mass == pytest.approx(0.6)


def test_off_topic_question_shows_raw_space() -> None:
    """A question off the topic shows that a model is raw, although plain texts look masked."""
    found = examine(Model(illegal=0.0, illegal_off_topic=0.9))
    assert (found.finding("space").verdict, found.space) == (FindingVerdict.PROBLEM, LogprobSpace.RAW)
    assert found.label_mass == pytest.approx(1.0)


@pytest.mark.parametrize("illegal", [0.0, 0.2])
def test_one_alternative_tells_nothing_about_the_space(illegal: float) -> None:
    """With one alternative the finding "space" is unknown, and the model is read as masked."""
    found = examine(Model(limit=1, illegal=illegal))
    finding = found.finding("space")
    assert finding.verdict is FindingVerdict.UNKNOWN
    assert finding.detail.startswith("Only one alternative is reported")
    assert finding.detail.endswith("they are read as masked.")
    assert (found.space, found.scoring) == (LogprobSpace.MASKED, "decode")


@pytest.mark.parametrize("tokens", ["label", "characters", "bytes"])
@pytest.mark.parametrize(("illegal", "space"), [(0.0, "masked"), (0.4, "raw")])
def test_the_space_does_not_depend_on_the_tokeniser(tokens: str, illegal: float, space: str) -> None:
    """The detected space is the same for labels of one token and of one token per byte."""
    assert examine(Model(tokens=tokens, illegal=illegal)).space == space


# --- enum and log-probabilities -----------------------------------------------------------------


def test_no_logprobs_is_a_problem() -> None:
    """A model without log-probabilities is a problem, and the recommended scoring is "fused"."""
    found = examine(Model(ail=without_logprobs))
    finding = found.finding("space")
    assert finding.verdict is FindingVerdict.PROBLEM
    assert finding.detail.startswith("No log-probabilities came with the answers")
    assert 'scoring = "fused"' in finding.remedy
    assert (verdicts(found)["label_mass"], verdicts(found)["units"]) == ("unknown", "unknown")
    assert (found.space, found.scoring, found.top_logprobs) == (LogprobSpace.NONE, "fused", 0)
    assert found.thresholds == Thresholds(high=0.85, low=0.60)


def test_logprobs_that_are_refused_are_done_without() -> None:
    """Refused log-probabilities are a problem, and the other probes still run."""
    model = Model(refuse=refusing("logprobs are not supported", when=lambda r: r.top_logprobs > 0))
    found = examine(model)
    assert verdicts(found)["enum"] == "ok"
    finding = found.finding("space")
    assert finding.verdict is FindingVerdict.PROBLEM
    assert finding.detail == "Log-probabilities are refused: logprobs are not supported"
    assert (found.calls, found.scoring) == (6, "fused")


def test_without_logprobs_exact_scoring_may_still_be_possible() -> None:
    """Missing log-probabilities are only a warning where exact scoring works."""
    found = examine(Continuing(ail=without_logprobs))
    assert found.finding("space").verdict is FindingVerdict.WARNING
    assert (found.problems, found.scoring) == ((), "exact")


def test_tokens_must_spell_the_answer() -> None:
    """Tokens that do not spell the answer are a problem, and the recommended scoring is "fused"."""

    def ail(response: Response, _: int) -> Response:
        for token in response["choices"][0]["logprobs"]["content"]:
            token |= {"bytes": None, "token": "?"}
        return response

    found = examine(Model(ail=ail))
    assert found.finding("space").verdict is FindingVerdict.PROBLEM
    assert "do not spell the label" in found.finding("space").detail
    assert found.scoring == "fused"


def test_a_schema_that_is_refused_is_a_problem() -> None:
    """A refused schema is a problem, and labels are scored all the same."""
    model = Continuing(refuse=refusing("no json_schema here", when=lambda r: r.response_format is not None))
    found = examine(model)
    finding = found.finding("enum")
    assert (finding.verdict, finding.detail) == (
        FindingVerdict.PROBLEM,
        (
            "The schema is refused: no json_schema here. Nor does the server give a JSON object, or plain text, that "
            "names a label."
        ),
    )
    assert (verdicts(found)["space"], verdicts(found)["exact"]) == ("unknown", "ok")
    assert (found.scoring, found.calls) == ("exact", 9)


# --- alternatives -------------------------------------------------------------------------------


def listing(limit: int) -> Callable[[Response, int], Response]:
    """Return a fault that lists up to `limit` more alternatives, each with almost no probability."""

    def ail(response: Response, _: int) -> Response:
        for token in response["choices"][0]["logprobs"]["content"]:
            token["top_logprobs"] += [
                {"token": f"~{number}", "bytes": None, "logprob": -9999.0}
                for number in range(limit - len(token["top_logprobs"]))
            ]
        return response

    return ail


class Listing(Model):
    """A model that lists as many alternatives as the request wants, up to a limit."""

    async def complete(self, request: CompletionRequest) -> object:
        """Answer with as many alternatives as the request wants."""
        self._ail = listing(min(request.top_logprobs, self._limit))
        return await super().complete(request)


@pytest.mark.parametrize(
    ("limit", "asked"), [(5, [20]), (20, [20, 100]), (50, [20, 100]), (1000, [20, 100, 1000])]
)
def test_the_largest_number_of_alternatives_is_found(limit: int, asked: list[int]) -> None:
    """`top_logprobs` is the largest number that came back; other requests want 100 at most."""
    model = Listing(limit=limit)
    found = examine(model)
    assert found.top_logprobs == limit
    asked_in_all = [request.top_logprobs for request in model.requests]
    assert asked_in_all == [5, *asked, *[min(asked[-1], 100)] * 4]


@pytest.mark.parametrize(("most", "came"), [(5, 5), (20, 20)])
def test_a_number_that_is_refused_is_no_failure(most: int, came: int) -> None:
    """After a refused number of alternatives the next smaller one is used, without a problem."""
    model = Listing(
        limit=1000, refuse=refusing(f"at most {most}", when=lambda request: request.top_logprobs > most)
    )
    found = examine(model)
    assert (found.top_logprobs, verdicts(found)["space"], found.problems) == (came, "ok", ())
    assert found.calls == (7 if most == 20 else 6)


def test_more_alternatives_than_requested_skip_steps() -> None:
    """A model that lists 100 alternatives at first is next asked for 1000."""
    model = Model(ail=listing(100))
    assert examine(model).top_logprobs == 100
    assert [request.top_logprobs for request in model.requests][1] == 1000


def test_vanishing_alternatives_end_the_search() -> None:
    """If a larger request returns no log-probabilities, the last number that came back is reported."""

    class Dropping(Model):
        async def complete(self, request: CompletionRequest) -> object:
            self._ail = without_logprobs if request.top_logprobs > 5 else lambda response, _: response
            return await super().complete(request)

    found = examine(Dropping())
    assert (found.top_logprobs, found.space) == (4, LogprobSpace.MASKED)


# --- label mass ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("illegal", "verdict"), [(0.49, "ok"), (0.51, "warning")])
def test_low_label_mass_is_a_warning(illegal: float, verdict: str) -> None:
    """A label mass below 0.5 makes its finding a warning with a remedy."""
    found = examine(Model(space="raw", illegal=illegal))
    finding = found.finding("label_mass")
    assert (finding.verdict, bool(finding.remedy)) == (verdict, verdict == "warning")
    assert finding.detail.startswith(f"Mean {1 - illegal:.3f} over 4 texts")
    assert found.label_mass == pytest.approx(1 - illegal)


# --- units --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        pytest.param(lambda value: value + 0.5, "values above 0 (up to 0.5)", id="positive"),
        pytest.param(math.exp, "probabilities instead of their logarithms", id="probabilities"),
        pytest.param(lambda value: 100 * math.exp(value), "percentages instead", id="percentages"),
        pytest.param(lambda value: value / math.log(10), "logarithms to base 10", id="base-10"),
        pytest.param(lambda value: value / 20, "sum to 3.38, which is more than 1", id="more-than-1"),
        pytest.param(lambda _: math.nan, "NaN, or no number", id="nan"),
        pytest.param(str, "NaN, or no number", id="text"),
    ],
)
def test_numbers_that_are_no_logprobs_are_a_problem(change: Callable[[float], Any], detail: str) -> None:
    """Numbers that are no log-probabilities are a problem, and the recommended scoring is "fused"."""
    found = examine(Model(ail=values(change)))
    finding = found.finding("units")
    assert finding.verdict is FindingVerdict.PROBLEM
    assert detail in finding.detail
    assert finding.remedy
    assert [verdicts(found)[name] for name in ("space", "label_mass")] == ["unknown"] * 2
    assert (found.space, found.scoring) == (LogprobSpace.NONE, "fused")


def test_values_for_impossible_are_fine() -> None:
    """Log-probabilities of -9999 and minus infinity count as impossible, and "units" is ok."""
    found = examine(Model(ail=listing(7)))
    finding = found.finding("units")
    assert finding.verdict is FindingVerdict.OK
    assert "at or below -9999, read as impossible" in finding.detail
    assert found.space is LogprobSpace.MASKED


def test_tokens_listed_twice_count_once() -> None:
    """An emitted token that is also listed as an alternative leaves the finding "units" ok."""

    def ail(response: Response, _: int) -> object:
        for token in response["choices"][0]["logprobs"]["content"]:
            token["top_logprobs"].append({key: token[key] for key in ("token", "bytes", "logprob")})
        return response

    assert examine(Model(ail=ail)).finding("units").verdict is FindingVerdict.OK


# --- exact scoring ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ailment", "detail"),
    [
        ({"next_logprob": lambda _: math.nan}, "got nan"),
        ({"next_logprob": lambda share: share}, "Expected a log-probability <= 0"),
        ({"next_logprob": lambda share: math.log(share) / math.log(10)}, "base 10"),
        ({"next_logprob": lambda share: math.log(1.03 * share)}, "sum to 1.03"),
        ({"label_mass": 0.0, "next_logprob": lambda share: math.log(max(share, 1e-320))}, None),
    ],
)
def test_next_tokens_are_checked_like_any_other_numbers(ailment: dict[str, Any], detail: str | None) -> None:
    """A fault in the next tokens' numbers is a problem where exact scoring is the default."""
    found = examine(Continuing(**ailment, illegal=0.4))
    finding = found.finding("exact")
    assert ('scoring = "exact"' in found.finding("space").remedy) is (detail is None)
    if detail is None:
        assert finding.verdict is FindingVerdict.OK
        return
    assert finding.verdict is FindingVerdict.PROBLEM
    assert detail in finding.detail
    assert finding.remedy.startswith('Use scoring = "decode"')
    assert (found.scoring, found.label_mass) == ("decode", pytest.approx(0.6))


def test_missing_label_tokens_cannot_be_scored() -> None:
    """If no label is among the next tokens, the finding "exact" is a problem."""
    model = Continuing()
    model.next_top = ((b"The", -0.1),)
    finding = examine(model).finding("exact")
    assert finding.verdict is FindingVerdict.PROBLEM
    assert finding.detail == "No label is among the tokens the model would write next."
    assert "does not take the text before a label for a beginning" in finding.remedy


@pytest.mark.parametrize(
    "error",
    [ProviderError("no such route", provider="patient", status=501), ConfigurationError("special token")],
)
def test_failing_exact_scoring_is_a_problem(error: Exception) -> None:
    """A failure of exact scoring is a problem after one text, and the scoring becomes "decode"."""
    model = Continuing()
    model.next_failure = error
    found = examine(model)
    finding = found.finding("exact")
    assert finding.verdict is FindingVerdict.PROBLEM
    assert str(error).removeprefix("patient: ") in finding.detail
    assert (len(model.prefixes), found.scoring) == (1, "decode")


# --- failures -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ProviderError("bad key", provider="patient", status=401), id="key"),
        pytest.param(ProviderError("cannot connect", provider="patient"), id="unreachable"),
        pytest.param(ProviderTimeoutError("late", provider="patient", retryable=True), id="timeout"),
        pytest.param(RateLimitError("slow down", provider="patient", status=429), id="limit"),
    ],
)
def test_lasting_faults_end_the_examination(error: ProviderError) -> None:
    """A lasting fault is raised after one call, as the same exception."""
    model = Continuing(refuse=lambda _: error)
    with pytest.raises(ProviderError) as caught:
        examine(model)
    assert caught.value is error
    assert len(model.requests) == 1


def test_first_failure_is_raised_without_answers() -> None:
    """If no answer comes at all, the first failure is raised."""
    model = Model(refuse=refusing("API key not valid", when=lambda _: True))
    with pytest.raises(ProviderError, match="patient: API key not valid"):
        examine(model)
    assert len(model.requests) == 6


def test_later_failures_are_findings() -> None:
    """After one answer, later failures become findings, even with status 401."""
    model = Continuing()
    model._refuse = lambda _: (
        ProviderError("quota", provider="patient", status=401) if len(model.requests) > 1 else None
    )
    model.next_failure = ProviderError("quota", provider="patient", status=401)
    found = examine(model)
    unknown = dict.fromkeys(("space", "label_mass"), "unknown")
    others = {"enum": "warning", "exact": "problem"}
    assert verdicts(found) == dict.fromkeys(FEATURES, "ok") | unknown | others
    assert "3 calls failed: quota" in found.finding("enum").detail


@pytest.mark.parametrize("body", [None, {"choices": []}])
def test_a_broken_body_is_a_finding(body: object) -> None:
    """A broken body makes "enum" and "space" problems."""
    found = examine(Model(ail=lambda _, __: body))
    assert found.finding("enum").verdict is FindingVerdict.PROBLEM
    assert "broken response" in found.finding("enum").detail
    assert found.finding("space").verdict is FindingVerdict.PROBLEM


def test_system_exit_does_not_end_the_loop() -> None:
    """SystemExit becomes a CalibrantError, and later examinations still run."""
    with pytest.raises(CalibrantError, match="patient: the model raised SystemExit"):
        examine(Model(refuse=lambda _: exit_error()))
    assert examine(Model()).calls == 6


def exit_error() -> Exception:
    """Raise SystemExit."""
    raise SystemExit(3)


@pytest.mark.parametrize("fails", [False, True])
def test_opened_clients_are_closed(use_model: Callable[..., Any], *, fails: bool) -> None:
    """`examine` closes clients that it opened, and leaves a given client open."""
    error = ProviderError("bad key", provider="patient", status=401)
    model = Model(refuse=lambda _: error if fails else None)
    use_model(lambda *_, **__: model, "openai/x")
    for given, closed in ((model, False), ("openai/x", True)):
        with pytest.raises(ProviderError) if fails else nullcontext():
            examine(given)
        assert model.closed is closed


@pytest.fixture
def opened(use_model: Callable[..., Any]) -> list[tuple[object, Mapping[str, Any]]]:
    """Record models opened by name, all without faults."""
    calls: list[tuple[object, Mapping[str, Any]]] = []

    def open_well(model: str, **options: Any) -> Any:
        calls.append((model, options))
        return Model(name=str(model))

    use_model(open_well, "openai/x")
    return calls


def test_names_open_as_in_a_classifier(opened: list[tuple[object, Mapping[str, Any]]]) -> None:
    """Models opened by name get the address and the options, and are read in the given space."""
    found = examine("openai/x", api_base="http://h/v1", options={"n_ctx": 512}, space="raw")
    ((name, settings),) = opened
    assert (name, settings["space"]) == ("openai/x", "raw")
    assert settings["options"] == {"n_ctx": 512, "api_base": "http://h/v1"}
    assert (found.model, found.api_base, found.parameters) == ("openai/x", "http://h/v1", {"n_ctx": 512})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"space": "exact"}, "Expected space 'masked' or 'raw', got 'exact'"),
        ({"space": "cooked"}, "'cooked': expected one of masked"),
        ({"api_base": "http://a", "options": {"api_base": "http://b"}}, "Expected one api_base"),
        ({"options": {"top_logprobs": 3}}, "Expected no 'top_logprobs' among the model's options"),
    ],
)
def test_wrong_arguments_are_refused_before_any_call(arguments: dict[str, Any], message: str) -> None:
    """A wrong argument raises ConfigurationError before any call."""
    model = Model()
    with pytest.raises(ConfigurationError, match=message):
        examine(model, **arguments)
    assert model.requests == []


class ContinuingListing(Continuing, Listing):
    """A model that causes the most calls."""


PATHOLOGIES: dict[str, Callable[[], Model]] = {
    "generous and embedded": lambda: ContinuingListing(limit=5000),
    "no logprobs": lambda: Model(ail=without_logprobs),
    "schema refused": lambda: Continuing(refuse=refusing("no", when=lambda r: r.response_format is not None)),
    "broken": lambda: Continuing(ail=lambda _, __: None),
}


@pytest.mark.parametrize("name", PATHOLOGIES)
def test_few_calls_are_made(name: str) -> None:
    """An examination takes at most 17 calls, has every finding, and is equal after JSON."""
    model = PATHOLOGIES[name]()
    found = examine(model, now=NOON)
    assert found.calls == len(model.requests) <= 17
    assert (found.calls == 12) is (name == "generous and embedded")
    assert list(verdicts(found)) == FEATURES
    for finding in found.findings:
        assert finding.detail
        assert finding.remedy or finding.verdict is not FindingVerdict.PROBLEM
    assert Examination.from_record(json.loads(json.dumps(found.to_record()))) == found


# --- thresholds ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "high", "low"),
    [
        (Model(share=0.995), 0.99, 0.90),
        (Model(share=0.97), 0.95, 0.80),
        (Model(share=0.7), 0.85, 0.60),
        (Model(share=[0.999, 0.992, 0.992, 0.4]), 0.99, 0.90),
        (Model(share=[0.98, 0.98, 0.4, 0.999]), 0.95, 0.80),
        (Model(share=[0.9, 0.94, 0.94, 0.999]), 0.85, 0.60),
        (Model(share=[0.3, 0.3, 0.3, 0.999]), 0.85, 0.60),
        (Model(share=0.992, illegal=0.005), 0.95, 0.80),
        (Model(share=0.995, illegal=0.4, space="raw"), 0.95, 0.80),
        (Model(share=0.995, illegal=0.4), 0.95, 0.80),
        (Model(share=0.999, space="none"), 0.85, 0.60),
        (Continuing(share=0.5, label_mass=0.4), 0.95, 0.80),
        (Continuing(share=0.5, next_share=0.999), 0.95, 0.80),
        (Continuing(share=0.5, next_share=0.9), 0.85, 0.60),
    ],
)
def test_an_examination_recommends_thresholds(model: Model, high: float, low: float) -> None:
    """An examination recommends the strictest thresholds, of its scoring and space, that half of the texts reach."""
    assert examine(model).thresholds == Thresholds(high=high, low=low)
