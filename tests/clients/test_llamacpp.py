"""LlamaCppClient on a scripted engine: what is sent, what comes back, what is shared and freed."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import sys
import threading
import types

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


def token(text, logprob=-1.0):
    return {"token": text, "bytes": list(text.encode()), "logprob": logprob, "top_logprobs": []}


def answer(content, tokens, finish_reason="stop"):
    reported = None if tokens is None else {"content": [token(text) for text in tokens]}
    message = {"role": "assistant", "content": content}
    return {"choices": [{"finish_reason": finish_reason, "message": message, "logprobs": reported}]}


LEGAL = answer('{"category": "Bills"', ["B", "ills", '"', ""])


class FakeServer:
    instances: list[FakeServer] = []
    script: list = []
    fail = False

    def __init__(self, params):
        if self.fail:
            raise RuntimeError("Failed to init server, please check the input params.")
        self.params = params
        self.bodies = []
        type(self).instances.append(self)

    def handle_chat_completions(self, body):
        self.bodies.append(copy.deepcopy(body))
        found = self.script[0] if len(self.script) == 1 else self.script.pop(0)
        if isinstance(found, Exception):
            raise found
        return copy.deepcopy(found(body) if callable(found) else found)


@pytest.fixture
def server(monkeypatch):
    """The class of a fake engine; its script holds what it answers."""

    class Server(FakeServer):
        instances = []
        script = [LEGAL]

    def params():
        parts = {name: types.SimpleNamespace() for name in ("model", "cpuparams", "cpuparams_batch")}
        return types.SimpleNamespace(**parts)

    module = types.ModuleType("xllamacpp")
    module.CommonParams = params
    module.Server = Server
    module.json_schema_to_grammar = lambda _schema: "%llguidance {}\n"
    monkeypatch.setitem(sys.modules, "xllamacpp", module)
    return Server


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF...")
    return file


def request(response_format=SCHEMA, *, messages=(USER,), top_logprobs=5, **options):
    return CompletionRequest(
        messages=messages, response_format=response_format, top_logprobs=top_logprobs, options=options
    )


def ask(path, asked=None, **settings):
    client = LlamaCppClient(path, **settings)
    try:
        return asyncio.run(client.complete(asked or request()))
    finally:
        client.close()


class TestRequest:
    def test_satisfies_the_client_protocol(self, server, path):
        """Raw log-probabilities: llama.cpp reports the unconstrained model."""
        client = LlamaCppClient(path, name="mine")
        assert isinstance(client, Client)
        assert (client.name, client.space) == ("mine", LogprobSpace.RAW)
        assert LlamaCppClient(path).name == f"llamacpp:{path}"

    def test_an_enum_is_decoded_from_the_label_on(self, server, path):
        """The JSON before the label is the beginning of the answer, the rest a grammar."""
        ask(path)
        (body,) = server.instances[0].bodies
        assert body["messages"] == [USER, {"role": "assistant", "content": '{"category": "'}]
        assert body["grammar"] == '%llguidance {}\nstart: VALUE\nVALUE: "Bills\\"" | "Bills/Gas\\""'
        assert "response_format" not in body
        assert (body["temperature"], body["logprobs"], body["top_logprobs"]) == (0, True, 100)
        assert body["max_tokens"] > 0

    def test_never_asks_for_few_alternatives(self, server, path):
        """Tokens the grammar forbids head the list; more than the least is passed on."""
        ask(path, request(top_logprobs=1000))
        assert server.instances[0].bodies[0]["top_logprobs"] == 1000

    def test_other_schemas_go_to_the_engine(self, server, path):
        """With the request to write on one line."""
        ask(path, request(FREE))
        (body,) = server.instances[0].bodies
        assert body["messages"] == [USER]
        assert "x-guidance" in body["response_format"]["json_schema"]["schema"]
        assert "grammar" not in body

    def test_options_override_the_defaults(self, server, path):
        """None leaves a parameter out."""
        ask(path, request(temperature=0.7, max_tokens=None, id_slot=0))
        (body,) = server.instances[0].bodies
        assert (body["temperature"], body["id_slot"]) == (0.7, 0)
        assert "max_tokens" not in body

    def test_a_begun_answer_is_left_alone(self, server, path):
        """Exact scoring begins the answer itself."""
        begun = {"role": "assistant", "content": '{"category": "Bi'}
        found = ask(path, request(messages=(USER, begun), max_tokens=1))
        (body,) = server.instances[0].bodies
        assert body["messages"] == [USER, begun]
        assert "grammar" not in body
        assert found == LEGAL

    def test_no_logprobs_are_asked_for_when_none_are_wanted(self, server, path):
        """And their absence is no reason to ask again."""
        server.script = [answer('{"category": "Bills"', None)]
        found = ask(path, request(top_logprobs=0))
        (body,) = server.instances[0].bodies
        assert "logprobs" not in body
        assert found["choices"][0]["message"]["content"] == '{"category": "Bills"}'


class TestResponse:
    def test_is_the_whole_json_and_its_tokens_join_to_it(self, server, path):
        """What the model did not write is certain and has no alternatives."""
        choice = ask(path)["choices"][0]
        tokens = choice["logprobs"]["content"]
        assert choice["message"]["content"] == '{"category": "Bills"}'
        assert b"".join(bytes(found["bytes"]) for found in tokens).decode() == '{"category": "Bills"}'
        assert [found["token"] for found in tokens] == ['{"category": "', "B", "ills", '"', "}"]
        assert [found["logprob"] for found in tokens] == [0.0, -1.0, -1.0, -1.0, 0.0]

    def test_a_cut_off_answer_stays_cut_off(self, server, path):
        """Its end is not made up."""
        server.script = [answer('{"category": "Bil', ["Bil"], "length")]
        choice = ask(path)["choices"][0]
        assert choice["message"]["content"] == '{"category": "Bil'
        assert [found["token"] for found in choice["logprobs"]["content"]] == ['{"category": "', "Bil"]

    def test_missing_logprobs_are_asked_for_once_more(self, server, path):
        """About one call in 300 comes back without."""
        server.script = [answer('{"category": "Bills"', None), LEGAL]
        assert ask(path)["choices"][0]["logprobs"]["content"]
        assert len(server.instances[0].bodies) == 2

    def test_logprobs_missing_twice_are_missing(self, server, path):
        """The caller decides what that means."""
        server.script = [answer('{"category": "Bills"', None)]
        assert ask(path)["choices"][0]["logprobs"] is None
        assert len(server.instances[0].bodies) == 2


class TestFailures:
    @pytest.mark.parametrize("finish_reason", ["stop", "length"])
    def test_an_ignored_grammar_is_noticed(self, server, path, finish_reason):
        """llama.cpp answers with HTTP 200 all the same."""
        server.script = [answer('{"category": "the sky', ["the", " sky"], finish_reason)]
        with pytest.raises(ConfigurationError, match=r"ignored the grammar of 2 labels.*the sky.*[Ff]ewer"):
            ask(path)

    def test_a_text_beyond_the_context_is_an_error_of_its_row(self, server, path):
        """Both numbers and the remedy; not retryable, not systemic."""
        error = {"code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": 5033, "n_ctx": 2048}
        server.script = [{"error": error}]
        with pytest.raises(ProviderError, match=r"5033 tokens.*context 2048.*n_ctx") as caught:
            ask(path)
        assert (caught.value.status, caught.value.retryable, caught.value.systemic) == (400, False, False)

    def test_a_rejected_grammar_is_a_configuration_error(self, server, path):
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
    def test_other_errors_become_provider_errors(self, server, path, scripted, status, retryable):
        """Dicts and exceptions alike."""
        server.script = [scripted]
        with pytest.raises(ProviderError) as caught:
            ask(path, name="mine")
        found = caught.value
        assert (found.status, found.retryable, found.provider) == (status, retryable, "mine")

    def test_a_model_that_does_not_load_is_a_configuration_error(self, server, path):
        """The engine itself says little more than no."""
        server.fail = True
        with pytest.raises(ConfigurationError, match=r"model\.gguf: llama\.cpp cannot load"):
            ask(path)

    @pytest.mark.parametrize("setting", ["n_ctx", "n_parallel", "n_threads"])
    def test_refuses_parameters_out_of_range(self, server, path, setting):
        """A wrong parameter is named at once."""
        with pytest.raises(ConfigurationError, match=f"{setting} must be at least 1"):
            LlamaCppClient(path, **{setting: 0})

    def test_check_schema_refuses_what_would_not_be_obeyed(self, server, path):
        """Before the first call."""
        client = LlamaCppClient(path)
        client.check_schema(SCHEMA)
        huge = {"properties": {"category": {"enum": ["x" * 6_000_000, "y"]}}}
        with pytest.raises(ConfigurationError, match=r"5,000,000 bytes"):
            client.check_schema({"type": "json_schema", "json_schema": {"schema": huge}})


class TestEngine:
    def test_is_loaded_by_the_first_call_with_the_fast_settings(self, server, path):
        """Context per slot, no RAM cache, all cores, any free port."""
        client = LlamaCppClient(path, n_ctx=1000, n_parallel=3)
        assert server.instances == []
        asyncio.run(client.complete(request()))
        params = server.instances[0].params
        assert (params.n_ctx, params.n_parallel, params.cache_ram_mib, params.port) == (3000, 3, 0, 0)
        assert params.cpuparams.n_threads == params.cpuparams_batch.n_threads == engine.default_threads()
        assert params.model.path == str(path)

    def test_is_shared_by_clients_with_the_same_settings(self, server, path):
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

    def test_calls_run_side_by_side_up_to_n_parallel(self, server, path):
        """Two slots, two calls at the same time."""
        barrier = threading.Barrier(2, timeout=10)

        def meet(_body):
            barrier.wait()
            return LEGAL

        server.script = [meet]

        async def four(client):
            await asyncio.gather(*(client.complete(request()) for _ in range(4)))

        asyncio.run(four(LlamaCppClient(path, n_parallel=2)))

    def test_threads_wait_without_spinning(self, server, monkeypatch):
        """The switch is set while the library loads, and is gone afterwards."""
        for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
            monkeypatch.delenv(name, raising=False)
        with engine._patient_threads():
            assert os.environ["GOMP_SPINCOUNT"] == "1000"
        assert "GOMP_SPINCOUNT" not in os.environ
        monkeypatch.setenv("OMP_WAIT_POLICY", "active")
        with engine._patient_threads():
            assert "GOMP_SPINCOUNT" not in os.environ

    def test_a_missing_system_library_is_named(self, monkeypatch, path):
        """A slim image lacks the GNU OpenMP library: reinstalling the engine would not help."""

        class Broken:
            def find_spec(self, name, *_arguments):
                if name == "xllamacpp":
                    raise ImportError("libgomp.so.1: cannot open shared object file")

        monkeypatch.delitem(sys.modules, "xllamacpp", raising=False)
        monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
        with pytest.raises(ConfigurationError, match="libgomp1"):
            LlamaCppClient(path)
