"""Tests of exact scoring with a server of a small language model."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from calibrant.core import CompletionRequest, ConfigurationError, LogprobSpace, NextTokens, ProviderError
from calibrant.inference import Classifier, open_client
from closed_loops import loops_left
from next_tokens import KEY, KINDS, PROMPT, REQUEST, ROUTES, TEMPLATE, ask, failure

PREFIXES = ("openai/", "hosted_vllm/", "llamafile/", "lm_studio/", "text-completion-openai/")
LABELS = ["Spa", "Sport", "Bill", "Bill/Gas", "Té"]
TEMPLATES = {"llama.cpp": "/apply-template", "vllm": "/tokenize"}
Start = Callable[..., Any]
Make = Callable[..., Any]
Classify = Callable[..., Classifier]


def no_route(server: Any) -> None:
    """Remove a route from the server."""
    server.absent.add("/v1/completions")


class TestExactness:
    @pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
    def test_agrees_with_brute_force(self, serve: Start, classify: Classify, suffix: str) -> None:
        """At tolerance 0 with all tokens listed, the probabilities equal brute force and the bound is 0."""
        server = serve("llama.cpp")
        classifier = classify(server, api_base=server.root + suffix)
        for text, prediction in zip(
            ("a swim", "power"), classifier.classify_many(["a swim", "power"]), strict=True
        ):
            truth = server.model.distribution(LABELS, PROMPT, text)
            assert prediction.distribution is not None
            np.testing.assert_allclose(np.exp(prediction.distribution.logprobs), truth, rtol=1e-6)
            assert prediction.distribution.error_bound == pytest.approx(0.0, abs=1e-12)
            assert prediction.distribution.space is LogprobSpace.EXACT
            assert prediction.label == LABELS[int(np.argmax(truth))]
            assert prediction.confidence == pytest.approx(max(truth), rel=1e-6)
            assert prediction.usage.completion_tokens == prediction.attempts > 1
            assert prediction.usage.prompt_tokens > prediction.attempts
            assert prediction.model == "toy.gguf"

    def test_own_templates_replace_the_servers(self, serve: Start, classify: Classify) -> None:
        """With an own template the server's is not requested, and the server adds the beginning token."""
        server = serve("llama.cpp")
        server.absent.add("/apply-template")
        classifier = classify(server, chat_template=TEMPLATE)
        distribution = classifier.classify("x").distribution
        assert distribution is not None
        np.testing.assert_allclose(
            np.exp(distribution.logprobs), server.model.distribution(LABELS, PROMPT, "x"), rtol=1e-6
        )
        assert not any("messages" in body for _, body, _ in server.calls)
        assert not any("chat_template" in body for _, body, _ in server.calls)

    @pytest.mark.parametrize("count", [9, 15])
    def test_fewer_alternatives_widen_the_bound(self, serve: Start, classify: Classify, count: int) -> None:
        """The error bound covers the unlisted mass."""
        server = serve("llama.cpp")
        classifier = classify(server, next_tokens=count)
        texts = [f"text {number}" for number in range(12)]
        found = [prediction.distribution for prediction in classifier.classify_many(texts)]
        bounds = []
        for text, distribution in zip(texts, found, strict=True):
            if distribution is not None:  # no label is among the few tokens
                truth = server.model.distribution(LABELS, PROMPT, text)
                away = 0.5 * float(np.abs(np.exp(distribution.logprobs) - truth).sum())
                assert distribution.error_bound is not None
                assert 0.0 < away <= distribution.error_bound
                bounds.append(distribution.error_bound)
        assert len(bounds) > 2
        assert min(bounds) < 1.0
        assert {body["n_probs"] for body in server.bodies("/completion")} == {count}


class TestRows:
    def test_rows_keep_slots_of_their_own(self, serve: Start, classify: Classify) -> None:
        """Rows that run at the same time have slots of their own, and other rows wait for one."""
        server = serve("llama.cpp", slots=3)
        texts = [f"text {number}" for number in range(9)]
        classifier = classify(server, concurrency=8)
        assert all(prediction.label for prediction in classifier.classify_many(texts))
        rows: dict[str, set[int]] = {}
        turns: dict[int, list[str]] = {}
        for body in server.bodies("/completion"):
            found = next((text for text in texts if text in body["prompt"]), None)
            if found is not None:  # not the first call, which finds out what the server can do
                rows.setdefault(found, set()).add(body["id_slot"])
                turns.setdefault(body["id_slot"], []).append(found)
        assert rows.keys() == set(texts)
        assert all(len(slots) == 1 for slots in rows.values())
        assert turns.keys() == {0, 1, 2}
        for order in turns.values():
            blocks = [text for text, _ in itertools.groupby(order)]
            assert len(blocks) == len(set(blocks))

    @pytest.mark.parametrize("kind", KINDS)
    def test_templates_are_rendered_once_per_row(self, serve: Start, classify: Classify, kind: str) -> None:
        """The server renders the messages once per row, without the beginning of the answer."""
        server = serve(kind)
        classifier = classify(server, chat_template_kwargs={"enable_thinking": False})
        classifier.classify_many(["one", "two"])
        asked = [body for body in server.bodies(TEMPLATES[kind]) if "messages" in body]
        assert sorted(body["messages"][1]["content"] for body in asked) == ["one", "two"]
        assert all(body["chat_template_kwargs"] == {"enable_thinking": False} for body in asked)
        assert all(body.get("add_generation_prompt", True) for body in asked)
        assert all("assistant" not in str(body["messages"]) for body in asked)
        prompts = [body["prompt"] for body in server.bodies(ROUTES[kind])[1:]]
        assert len(prompts) > (10 if kind == "llama.cpp" else 1)
        assert all('[assistant]{"label": "' in prompt for prompt in np.ravel(prompts))

    @pytest.mark.parametrize("kind", KINDS)
    def test_one_greedy_token_is_requested(self, serve: Start, make: Make, kind: str) -> None:
        """A request for one greedy token has the expected body for each kind of server."""
        server = serve(kind)
        asyncio.run(ask(make(server)))
        prompt = server.model.render(REQUEST.messages) + '{"label": "'
        assert (
            server.bodies(ROUTES[kind])[-1]
            == {
                "llama.cpp": {
                    "prompt": prompt.removeprefix("<s>"),
                    "n_predict": 1,
                    "n_probs": 1000,
                    "temperature": 0,
                    "cache_prompt": True,
                    "id_slot": 0,
                    "logit_bias": [['"', 100.0]],
                },
                "vllm": {
                    "model": "toy",
                    "prompt": [prompt, f'{prompt}Spa"', f'{prompt}Bill"'],
                    "echo": True,
                    "max_tokens": 1,
                    "temperature": 0,
                    "logprobs": 1,
                    "add_special_tokens": False,
                },
            }[kind]
        )

    def test_a_request_may_want_fewer_tokens(self, serve: Start, make: Make) -> None:
        """The request's number of tokens overrides the client's."""
        server = serve("llama.cpp")

        async def few() -> NextTokens:
            async with make(server).continuing(
                CompletionRequest(messages=REQUEST.messages, top_logprobs=3)
            ) as row:
                found: NextTokens = await row.next_tokens("")
                return found

        assert len(asyncio.run(few()).top) == 3


class TestFinding:
    @pytest.mark.parametrize("kind", KINDS)
    def test_is_done_once_for_many_calls(self, serve: Start, make: Make, kind: str) -> None:
        """Concurrent first calls wait for one detection of the server, and later loops reuse it."""
        server = serve(kind, delay=0.01)
        client = make(server)

        async def many() -> None:
            await asyncio.gather(*(ask(client) for _ in range(8)))

        asyncio.run(many())
        asyncio.run(many())
        assert [route for route, *_ in server.calls].count("/props") == 1

    def test_waiting_calls_share_the_failure(self, serve: Start, make: Make) -> None:
        """Waiting calls share the failure of the detection, and later calls detect again."""
        server = serve("llama.cpp", delay=0.02)
        server.faults["/props"] = [(503, {"error": {"message": "Loading model"}}, {})]
        client = make(server)

        async def many() -> list[Any]:
            return await asyncio.gather(*(ask(client) for _ in range(8)), return_exceptions=True)

        first = asyncio.run(many())
        assert all(isinstance(error, ProviderError) and error.retryable for error in first)
        assert "Loading model" in str(first[0])
        assert len(server.calls) == 1
        assert all(not isinstance(found, Exception) for found in asyncio.run(many()))

    @pytest.mark.parametrize(
        "missing",
        [
            pytest.param(no_route, id="no-route"),
            pytest.param(
                lambda server: server.faults["/completion"].extend(
                    [lambda answer: {**answer, "completion_probabilities": []}] * 3
                ),
                id="no-logprobs",
            ),
            pytest.param(
                lambda server: server.faults["/completion"].extend(
                    [(400, {"error": {"message": f"n_probs is not supported {KEY}"}}, {})] * 9
                ),
                id="refused",
            ),
        ],
    )
    def test_servers_without_probabilities_raise(self, serve: Start, make: Make, missing: Any) -> None:
        """A server without probabilities raises an error with its address and the alternatives."""
        server = serve("vllm" if missing is no_route else "llama.cpp")
        missing(server)
        error = failure(make(server, api_key=KEY), ConfigurationError)
        assert str(error).startswith(
            "This endpoint reports no probabilities for exact scoring: http://127.0.0.1:"
        )
        assert "use scoring='decode' or 'sampled'" in str(error)

    def test_unknown_models_raise_a_systemic_error(self, serve: Start, make: Make) -> None:
        """An unknown model raises a systemic error with the server's message."""
        error = failure(make(serve("vllm"), "hosted_vllm/other"))
        assert error.systemic
        assert "The model `other` does not exist" in str(error)

    def test_a_wrong_address_is_systemic(self, serve: Start, make: Make) -> None:
        """A server that knows neither completions nor models raises a systemic error."""
        server = serve("vllm")
        server.absent = {"/v1/completions", "/v1/models"}
        error = failure(make(server))
        assert error.systemic
        assert "the address" in str(error)

    @pytest.mark.parametrize(("kind", "routes"), [("llama.cpp", "/apply-template"), ("vllm", "/detokenize")])
    def test_missing_templates_are_named(self, serve: Start, make: Make, kind: str, routes: str) -> None:
        """A missing template raises an error with the endpoint, the routes tried and the remedy."""
        server = serve(kind)
        server.absent.add(routes)
        message = str(failure(make(server), ConfigurationError))
        assert server.root in message
        assert routes in message
        assert "chat_template" in message


async def checked(client: Any, labels: list[str]) -> ConfigurationError | None:
    """Return the error of unsuitable labels, or None."""
    try:
        await client.check_labels(labels)
    except ConfigurationError as refusal:
        return refusal
    return None


class TestLabels:
    def test_special_tokens_in_labels_raise(self, serve: Start, classify: Classify) -> None:
        """A label with a special token raises ConfigurationError before any row."""
        classifier = classify(serve("llama.cpp"), labels=["Spa", "Bill<|end|>"])
        with pytest.raises(ConfigurationError, match=r"do not spell the label 'Bill<\|end\|>'"):
            classifier.classify("x")

    @pytest.mark.parametrize("kind", KINDS)
    def test_unspellable_labels_raise_an_error(self, serve: Start, make: Make, kind: str) -> None:
        """A label that the server's tokens do not spell raises ConfigurationError."""
        with pytest.raises(ConfigurationError, match="do not spell the label 'λ'"):
            asyncio.run(make(serve(kind)).check_labels(["Spa", "λ"]))

    @pytest.mark.parametrize("kind", KINDS)
    def test_labels_longer_than_the_context_raise(self, serve: Start, make: Make, kind: str) -> None:
        """A label longer than the context raises an error with both lengths."""
        client = make(serve(kind, context=16))
        with pytest.raises(ConfigurationError, match="has 20 tokens, the context 16"):
            asyncio.run(client.check_labels(["Spa", "x" * 20]))

    def test_servers_without_tokenisers_are_trusted(self, serve: Start, make: Make) -> None:
        """On a server without /tokenize no label is checked."""
        server = serve("vllm")
        server.absent = {"/tokenize", "/detokenize"}
        client = make(server, chat_template=TEMPLATE)
        assert asyncio.run(checked(client, ["Spa", "λ"])) is None
        assert isinstance(asyncio.run(checked(make(serve("vllm")), ["Spa", "λ"])), ConfigurationError)


class TestOpening:
    @pytest.mark.parametrize("prefix", PREFIXES)
    def test_exact_scoring_opens_this_client(self, prefix: str) -> None:
        """A name with its prefix and an address opens this client for exact scoring only."""
        name, options = f"{prefix}x", {"api_base": "http://localhost:1/v1", "timeout": 5}
        client = open_client(name, options=options, scoring="exact", space="raw")
        assert hasattr(client, "continuing")
        assert (client.name, client.space) == (name, LogprobSpace.RAW)
        for scoring in (None, "decode", "sampled"):
            assert not hasattr(open_client(name, options=options, scoring=scoring), "continuing")
        assert not hasattr(open_client("groq/x", options=options, scoring="exact"), "continuing")

    @pytest.mark.parametrize("name", ["chat_template", "next_tokens"])
    def test_its_settings_mean_nothing_elsewhere(self, name: str) -> None:
        """The settings of exact scoring raise ConfigurationError with other clients, and are not sent."""
        options = {"api_base": "http://localhost:1", name: 5}
        for model in ("openai/x", "groq/x", "local/smollm2-135m", lambda _messages: {}):
            with pytest.raises(ConfigurationError, match=f"Expected no {name} among the options of"):
                open_client(model, options=options)
        sent = Classifier(
            model="openai/x",
            labels=LABELS,
            scoring="exact",
            options={**options, name: TEMPLATE if name == "chat_template" else 5},
        )
        assert sent.describe()["options"] == {}

    def test_exact_scoring_needs_an_address(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Exact scoring without an address raises an error with the forms of names that work."""
        monkeypatch.setenv("OPENAI_API_KEY", "any")
        with pytest.raises(ConfigurationError, match="with the option api_base") as caught:
            Classifier(model="openai/gpt", labels=LABELS, scoring="exact")
        assert all(f"{prefix}NAME" in str(caught.value) for prefix in PREFIXES)
        assert "scoring='decode'" in str(caught.value)

    def test_settings_are_part_of_cache_keys(self) -> None:
        """Another chat template or number of tokens changes the described settings, and so the cache key."""
        address = {"api_base": "http://localhost:1"}
        methods = [
            Classifier(model="openai/x", labels=LABELS, scoring="exact", options={**address, **more})
            for more in ({}, {"chat_template": TEMPLATE}, {"next_tokens": 9})
        ]
        described = [classifier.method.describe() for classifier in methods]
        assert methods[0].space is LogprobSpace.EXACT
        assert "settings" not in described[0]
        assert described[1]["settings"] == {"chat_template": TEMPLATE}
        assert described[2]["settings"] == {"next_tokens": 9}


def test_slots_are_first_come_first_served(serve: Start) -> None:
    """A free slot goes to the row that waits longest, not to the next row of the same worker."""
    server = serve("llama.cpp")
    server.slots = 1
    order: list[int] = []
    rows = iter(range(12))

    async def run() -> None:
        client = open_client("openai/toy", options={"api_base": server.root}, scoring="exact")
        await ask(client)  # finds out which server it is

        async def work() -> None:
            for row in rows:
                async with client.continuing(REQUEST):
                    order.append(row)
                    await asyncio.sleep(0)

        await asyncio.gather(*(work() for _ in range(4)))
        client.close()

    asyncio.run(run())
    assert order == sorted(order)


def test_closed_loops_are_released(serve: Start, classify: Classify) -> None:
    """Event loops in which rows waited for a slot do not pile up in memory."""
    classifier = classify(serve("llama.cpp"))
    assert loops_left(lambda: classifier.aclassify_many([f"text {number}" for number in range(6)])) <= 2
