"""LlamaCppClient on a scripted engine: what is sent, what comes back, what is shared and freed."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import sys
import threading
import types
import weakref
from typing import Any, ClassVar

import pytest

from calibrant.clients import LlamaCppClient
from calibrant.clients import _engine as engine
from calibrant.core import Client, CompletionRequest, ConfigurationError, LogprobSpace, ProviderError

SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "a", "schema": {"properties": {"category": {"enum": ["Bills", "Bills/Gas"]}}}},
}
FREE = {
    "type": "json_schema",
    "json_schema": {"name": "a", "schema": {"properties": {"x": {"type": "string"}}}},
}
USER = {"role": "user", "content": "gas"}


def token(text: Any, logprob: Any = -1.0) -> Any:
    """Return one reported token."""
    return {"token": text, "bytes": list(text.encode()), "logprob": logprob, "top_logprobs": []}


def answer(content: Any, tokens: Any, finish_reason: Any = "stop") -> Any:
    """Return one of the engine's answers."""
    reported = None if tokens is None else {"content": [token(text) for text in tokens]}
    message = {"role": "assistant", "content": content}
    return {"choices": [{"finish_reason": finish_reason, "message": message, "logprobs": reported}]}


LEGAL = answer('{"category": "Bills"', ["B", "ills", '"', ""])


class FakeServer:
    instances: ClassVar[list[Any]] = []
    script: ClassVar[list[Any]] = []
    fail = False

    def __init__(self, params: Any) -> None:
        if self.fail:
            raise RuntimeError("Failed to init server, please check the input params.")
        self.params = params
        self.bodies = []
        type(self).instances.append(self)

    def handle_chat_completions(self, body: Any) -> Any:
        self.bodies.append(copy.deepcopy(body))
        found = self.script[0] if len(self.script) == 1 else self.script.pop(0)
        if isinstance(found, Exception):
            raise found
        return copy.deepcopy(found(body) if callable(found) else found)


@pytest.fixture
def server(monkeypatch: Any) -> Any:
    """The class of a fake engine; its script holds what it answers."""
    monkeypatch.setattr(engine, "_turn", engine._Turn())
    monkeypatch.setattr(engine, "_open", weakref.WeakValueDictionary())

    class Server(FakeServer):
        instances: ClassVar[list[Any]] = []
        script: ClassVar[list[Any]] = [LEGAL]

    def params() -> Any:
        parts = {name: types.SimpleNamespace() for name in ("model", "cpuparams", "cpuparams_batch")}
        return types.SimpleNamespace(**parts)

    module = types.ModuleType("xllamacpp")
    module.CommonParams = params
    module.Server = Server
    module.json_schema_to_grammar = lambda _schema: "%llguidance {}\n"
    monkeypatch.setitem(sys.modules, "xllamacpp", module)
    return Server


@pytest.fixture
def path(tmp_path: Any) -> Any:
    """Return a file that begins like a model."""
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF...")
    return file


def request(
    response_format: Any = SCHEMA, *, messages: Any = (USER,), top_logprobs: Any = 5, **options: Any
) -> Any:
    """Return a request."""
    return CompletionRequest(
        messages=messages, response_format=response_format, top_logprobs=top_logprobs, options=options
    )


def ask(path: Any, asked: Any = None, **settings: Any) -> Any:
    """Return what a client answers."""
    client = LlamaCppClient(path, **settings)
    try:
        return asyncio.run(client.complete(asked or request()))
    finally:
        client.close()


@pytest.mark.usefixtures("server")
class TestRequest:
    def test_satisfies_the_client_protocol(self, path: Any) -> None:
        """Raw log-probabilities: llama.cpp reports the unconstrained model."""
        client = LlamaCppClient(path, name="mine")
        assert isinstance(client, Client)
        assert (client.name, client.space) == ("mine", LogprobSpace.RAW)
        assert LlamaCppClient(path).name == f"llamacpp:{path}"
        assert (client.n_parallel, LlamaCppClient(path, n_parallel=3).n_parallel) == (1, 3)

    def test_an_enum_is_decoded_from_the_label_on(self, server: Any, path: Any) -> None:
        """The JSON before the label is the beginning of the answer, the rest a grammar."""
        ask(path)
        (body,) = server.instances[0].bodies
        assert body["messages"] == [USER, {"role": "assistant", "content": '{"category": "'}]
        assert body["grammar"] == '%llguidance {}\nstart: VALUE\nVALUE: "Bills\\"" | "Bills/Gas\\""'
        assert "response_format" not in body
        assert (body["temperature"], body["logprobs"], body["top_logprobs"]) == (0, True, 100)
        assert body["max_tokens"] > 0

    def test_never_asks_for_few_alternatives(self, server: Any, path: Any) -> None:
        """Tokens the grammar forbids head the list; more than the least is passed on."""
        ask(path, request(top_logprobs=1000))
        assert server.instances[0].bodies[0]["top_logprobs"] == 1000

    def test_other_schemas_are_a_grammar_of_json_on_one_line(self, server: Any, path: Any) -> None:
        """The engine's own conversion would allow white space anywhere."""
        server.script = [answer('{"x": "y"}', ["{"])]
        ask(path, request(FREE))
        (body,) = server.instances[0].bodies
        assert body["messages"] == [USER]
        assert body["grammar"].startswith("%llguidance {}\nstart: %json {")
        assert "response_format" not in body

    def test_a_build_without_llguidance_gets_forms_it_knows(
        self, server: Any, path: Any, monkeypatch: Any
    ) -> None:
        """It would ignore the others."""
        monkeypatch.setattr(sys.modules["xllamacpp"], "json_schema_to_grammar", lambda _schema: "root ::= x")
        ask(path, n_ctx=77)
        assert server.instances[-1].bodies[0]["grammar"].startswith("root ::= ")
        server.script = [answer('{"x": "y"}', ["{"])]
        ask(path, request(FREE), n_ctx=78)
        assert server.instances[-1].bodies[0]["response_format"] == FREE
        assert "grammar" not in server.instances[-1].bodies[0]

    def test_a_json_object_without_schema_is_passed_on(self, server: Any, path: Any) -> None:
        """There is nothing to build a grammar from."""
        server.script = [answer("{}", ["{}"])]
        ask(path, request({"type": "json_object"}))
        assert server.instances[0].bodies[0]["response_format"] == {"type": "json_object"}

    def test_options_override_the_defaults(self, server: Any, path: Any) -> None:
        """None leaves a parameter out."""
        ask(path, request(temperature=0.7, max_tokens=None, id_slot=0))
        (body,) = server.instances[0].bodies
        assert (body["temperature"], body["id_slot"]) == (0.7, 0)
        assert "max_tokens" not in body

    def test_a_begun_answer_is_left_alone(self, server: Any, path: Any) -> None:
        """Exact scoring begins the answer itself."""
        begun = {"role": "assistant", "content": '{"category": "Bi'}
        server.script = [answer("anything", ["any"])]
        found = ask(path, request(messages=(USER, begun), max_tokens=1))
        (body,) = server.instances[0].bodies
        assert body["messages"] == [USER, begun]
        assert "grammar" not in body
        assert "response_format" not in body
        assert found == server.script[0]

    def test_no_logprobs_are_asked_for_when_none_are_wanted(self, server: Any, path: Any) -> None:
        """And their absence is no reason to ask again."""
        server.script = [answer('{"category": "Bills"', None)]
        found = ask(path, request(top_logprobs=0))
        (body,) = server.instances[0].bodies
        assert "logprobs" not in body
        assert found["choices"][0]["message"]["content"] == '{"category": "Bills"}'


@pytest.mark.usefixtures("server")
class TestResponse:
    def test_is_the_whole_json_and_its_tokens_join_to_it(self, path: Any) -> None:
        """What the model did not write is certain and has no alternatives."""
        choice = ask(path)["choices"][0]
        tokens = choice["logprobs"]["content"]
        assert choice["message"]["content"] == '{"category": "Bills"}'
        assert b"".join(bytes(found["bytes"]) for found in tokens).decode() == '{"category": "Bills"}'
        assert [found["token"] for found in tokens] == ['{"category": "', "B", "ills", '"', "}"]
        assert [found["logprob"] for found in tokens] == [0.0, -1.0, -1.0, -1.0, 0.0]

    def test_a_cut_off_answer_stays_cut_off(self, server: Any, path: Any) -> None:
        """Its end is not made up."""
        server.script = [answer('{"category": "Bil', ["Bil"], "length")]
        choice = ask(path)["choices"][0]
        assert choice["message"]["content"] == '{"category": "Bil'
        assert [found["token"] for found in choice["logprobs"]["content"]] == ['{"category": "', "Bil"]

    def test_missing_logprobs_are_asked_for_once_more(self, server: Any, path: Any) -> None:
        """About one call in 300 comes back without."""
        server.script = [answer('{"category": "Bills"', None), LEGAL]
        assert ask(path)["choices"][0]["logprobs"]["content"]
        assert len(server.instances[0].bodies) == 2

    def test_logprobs_missing_twice_are_missing(self, server: Any, path: Any) -> None:
        """The caller decides what that means."""
        server.script = [answer('{"category": "Bills"', None)]
        assert ask(path)["choices"][0]["logprobs"] is None
        assert len(server.instances[0].bodies) == 2


@pytest.mark.usefixtures("server")
class TestFailures:
    @pytest.mark.parametrize("finish_reason", ["stop", "length"])
    def test_an_ignored_grammar_is_noticed(self, server: Any, path: Any, finish_reason: Any) -> None:
        """llama.cpp answers with HTTP 200 all the same."""
        server.script = [answer('{"category": "the sky', ["the", " sky"], finish_reason)]
        with pytest.raises(ConfigurationError, match=r"ignored the grammar of 2 labels.*the sky.*[Ff]ewer"):
            ask(path)

    @pytest.mark.parametrize("finish_reason", ["stop", "length"])
    def test_an_ignored_schema_is_noticed(self, server: Any, path: Any, finish_reason: Any) -> None:
        """Prose where JSON was demanded, complete or cut off."""
        server.script = [answer("The sky is", ["The", " sky", " is"], finish_reason)]
        with pytest.raises(ConfigurationError, match=r"ignored the schema.*The sky is.*pattern"):
            ask(path, request(FREE))

    def test_prose_is_fine_where_no_schema_was_given(self, server: Any, path: Any) -> None:
        """Plain chat."""
        server.script = [answer("The sky is", ["The"])]
        assert ask(path, request(None))["choices"][0]["message"]["content"] == "The sky is"

    def test_a_text_beyond_the_context_is_an_error_of_its_row(self, server: Any, path: Any) -> None:
        """Both numbers and the remedy; not retryable, not systemic."""
        error = {"code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": 5033, "n_ctx": 2048}
        server.script = [{"error": error}]
        with pytest.raises(ProviderError, match=r"5033 tokens.*context 2048.*n_ctx") as caught:
            ask(path)
        assert (caught.value.status, caught.value.retryable, caught.value.systemic) == (400, False, False)

    def test_a_rejected_grammar_is_a_configuration_error(self, server: Any, path: Any) -> None:
        """Every row would fail the same way."""
        server.script = [{"error": {"code": 400, "message": "failed to parse grammar", "type": "x"}}]
        with pytest.raises(ConfigurationError, match=r"cannot enforce this schema"):
            ask(path)

    @pytest.mark.parametrize(
        ("scripted", "status", "retryable"),
        [
            ({"error": {"code": 503, "message": "Loading model"}}, 503, True),
            ({"error": {"code": 400, "message": "bad"}}, 400, False),
            ({"error": "odd"}, None, False),
            (ValueError("Expected 'messages' to be an array"), None, False),
            (RuntimeError("broken"), None, False),
        ],
    )
    def test_other_errors_become_provider_errors(
        self, server: Any, path: Any, scripted: Any, status: Any, retryable: Any
    ) -> None:
        """Dicts and exceptions alike."""
        server.script = [scripted]
        with pytest.raises(ProviderError) as caught:
            ask(path, name="mine")
        found = caught.value
        assert (found.status, found.retryable, found.provider) == (status, retryable, "mine")

    def test_a_model_that_does_not_load_is_a_configuration_error(self, server: Any, path: Any) -> None:
        """The engine itself says little more than no."""
        server.fail = True
        with pytest.raises(ConfigurationError, match=r"model\.gguf: llama\.cpp cannot load"):
            ask(path)

    @pytest.mark.parametrize("setting", ["n_ctx", "n_parallel", "n_threads"])
    def test_refuses_parameters_out_of_range(self, path: Any, setting: Any) -> None:
        """A wrong parameter is named at once."""
        with pytest.raises(ConfigurationError, match=f"{setting} must be at least 1"):
            LlamaCppClient(path, **{setting: 0})

    def test_check_schema_refuses_what_would_not_be_obeyed(self, path: Any) -> None:
        """Before the first call."""
        client = LlamaCppClient(path)
        client.check_schema(SCHEMA)
        huge = {"properties": {"category": {"enum": ["x" * 6_000_000, "y"]}}}
        with pytest.raises(ConfigurationError, match=r"5,000,000 bytes"):
            client.check_schema({"type": "json_schema", "json_schema": {"schema": huge}})


@pytest.mark.usefixtures("server")
class TestEngine:
    def test_is_loaded_by_the_first_call_with_the_fast_settings(self, server: Any, path: Any) -> None:
        """Context per slot, no RAM cache, all cores, any free port."""
        client = LlamaCppClient(path, n_ctx=1000, n_parallel=3)
        assert server.instances == []
        asyncio.run(client.complete(request()))
        params = server.instances[0].params
        assert (params.n_ctx, params.n_parallel, params.cache_ram_mib, params.port) == (3000, 3, 0, 0)
        assert params.cpuparams.n_threads == params.cpuparams_batch.n_threads == engine.default_threads()
        assert params.model.path == str(path)

    def test_is_shared_by_clients_with_the_same_settings(self, server: Any, path: Any) -> None:
        """One load, until the last of them is closed."""
        first, second, other = LlamaCppClient(path), LlamaCppClient(path), LlamaCppClient(path, n_ctx=99)
        for client in (first, second, other):
            asyncio.run(client.complete(request()))
        assert len(server.instances) == 2
        server.instances.clear()
        first.close()
        gc.collect()
        assert len(engine._open) == 2
        second.close()
        other.close()
        gc.collect()
        assert len(engine._open) == 0

    def test_only_one_engine_at_a_time_uses_llguidance(self, path: Any, tmp_path: Any) -> None:
        """Its tokeniser is one per process, unprotected, and must not outlive its file."""
        first, second = LlamaCppClient(path), LlamaCppClient(path, n_ctx=99)
        grammars = []

        def record(client: Any) -> None:
            asyncio.run(client.complete(request()))
            grammars.append(client._engine.llguidance)

        record(first)
        record(second)
        first.close()
        gc.collect()
        record(second)
        record(LlamaCppClient(path, n_ctx=98))
        gc.collect()
        other = tmp_path / "other.gguf"
        other.write_bytes(b"GGUF")
        record(LlamaCppClient(other))
        assert grammars == [True, False, False, True, False]

    def test_a_closed_client_gives_llguidance_back_before_its_engine_is_collected(self, path: Any) -> None:
        """Something may still refer to the engine; opened again, it has to wait for its turn."""
        first = LlamaCppClient(path)
        asyncio.run(first.complete(request()))
        kept = first._engine
        first.close()
        second, again = LlamaCppClient(path, n_ctx=99), LlamaCppClient(path)
        for client in (second, again):
            asyncio.run(client.complete(request()))
        assert again._engine is kept
        assert [client._engine.llguidance for client in (second, again)] == [True, False]

    def test_calls_run_side_by_side_up_to_n_parallel(self, server: Any, path: Any) -> None:
        """Two slots, two calls at the same time."""
        barrier = threading.Barrier(2, timeout=10)

        def meet(_body: Any) -> Any:
            barrier.wait()
            return LEGAL

        server.script = [meet]

        async def four(client: Any) -> list[Any]:
            return await asyncio.gather(*(client.complete(request()) for _ in range(4)))

        # A call that ran alone would break the barrier.
        assert len(asyncio.run(four(LlamaCppClient(path, n_parallel=2)))) == 4
        assert not barrier.broken

    def test_threads_wait_without_spinning(self, monkeypatch: Any) -> None:
        """The switch is set while the library loads, and is gone afterwards."""
        for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
            monkeypatch.delenv(name, raising=False)
        with engine._patient_threads():
            assert os.environ["GOMP_SPINCOUNT"] == "1000"
        assert "GOMP_SPINCOUNT" not in os.environ
        monkeypatch.setenv("OMP_WAIT_POLICY", "active")
        with engine._patient_threads():
            assert "GOMP_SPINCOUNT" not in os.environ

    def test_a_missing_system_library_is_named(self, monkeypatch: Any, path: Any) -> None:
        """A slim image lacks the GNU OpenMP library: reinstalling the engine would not help."""

        class Broken:
            def find_spec(self, name: Any, *_arguments: Any) -> None:
                if name == "xllamacpp":
                    raise ImportError("libgomp.so.1: cannot open shared object file")

        monkeypatch.delitem(sys.modules, "xllamacpp", raising=False)
        monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
        with pytest.raises(ConfigurationError, match="libgomp1"):
            LlamaCppClient(path)
