"""Provider for litellm that serves bundles as models named ``calibrant/NAME``."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from calibrant.core._errors import CalibrantError, ConfigurationError
from calibrant.core._prediction import Outcome, Prediction
from calibrant.core._predictor import Predictor
from calibrant.heads._tuned import Tuned
from calibrant.inference._loop import ask_async, run_sync
from calibrant.serving._answers import answer_record
from calibrant.tuned._open import load

# Importing litellm downloads a price list unless told not to.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import litellm
from litellm import ModelResponse
from litellm.llms.custom_llm import CustomLLM, CustomLLMError

_PROVIDER: Final = "calibrant"


class BundleProvider(CustomLLM):  # type: ignore[misc]
    """Provider that answers litellm's calls of ``calibrant/NAME`` with the bundle of that name.

    The last user message is classified; the bundle's own prompt is used, and other messages are not. The answer's
    content is the JSON object that the service gives for a text: ``label``, ``probabilities``, ``confidence``,
    ``calibrated``, ``decision``, ``decided_by``, ``threshold``, ``outcome`` and ``reason``, and ``parts`` where it
    holds several labels. A text whose call failed raises litellm's error of status 503, any other without a label 502,
    so that fallbacks apply; one without a user message of text, status 400.

    For the proxy, make one in a module of yours and name it under ``litellm_settings: custom_provider_map`` with the
    provider ``calibrant``; elsewhere call `register`.

    Parameters
    ----------
    bundles : mapping of str to str or Path
        Folders by name.
    options : mapping of str to mapping, optional
        Options of `calibrant.load`, by name of a bundle.

    Raises
    ------
    StateError, ConfigurationError
        A bundle cannot be opened, as with `calibrant.load`; options name none.

    Examples
    --------
    >>> import contextlib
    >>> import tempfile
    >>> import litellm
    >>> import json
    >>> from pathlib import Path
    >>> from calibrant import BatchEvaluator, Classifier, Example, Task
    >>> from calibrant.serving import BundleProvider
    >>> from calibrant.testing import FakeClient, fake_model
    >>> from calibrant.tuned import Tuned
    >>> out = Path(tempfile.mkdtemp())
    >>> task = Task(name="pets", labels=["cat", "dog"], prompt="Which animal?")
    >>> messages = [{"role": "user", "content": "purrs"}]
    >>> fake = FakeClient(["cat", "dog"], {"purrs": ("cat", 0.9)}, field="label", name="fake/pets")
    >>> with fake_model("fake/pets", fake) as name:
    ...     rows = [Example(input="purrs", answer="cat")]
    ...     _ = BatchEvaluator(Classifier.from_task(task, model=name)).evaluate(rows, out=out / "run")
    ...     _ = Tuned.from_run(out / "run", task=task, model=name).save(out / "bundle")
    ...     with contextlib.closing(BundleProvider({"pets": out / "bundle"})) as provider:
    ...         provider.register()
    ...         found = litellm.completion("calibrant/pets", messages=messages)
    >>> json.loads(found.choices[0].message.content)["label"]
    'cat'
    """

    def __init__(
        self,
        bundles: Mapping[str, str | Path],
        *,
        options: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__()
        options = options or {}
        unknown = sorted(set(options) - set(bundles))
        if unknown or not bundles:
            raise ConfigurationError(
                f"Expected bundles by name, and options for these only, got options for {', '.join(unknown) or 'none'}"
                f" and the bundles {', '.join(bundles) or 'none'}."
            )
        self._opened: dict[str, tuple[Tuned, Predictor]] = {}
        with ExitStack() as opened:
            for name, path in bundles.items():
                bundle = Tuned.load(path)
                classifier = load(bundle, options=options.get(name))
                opened.callback(classifier.close)
                self._opened[name] = bundle, classifier
            self._closing = opened.pop_all()

    def register(self) -> None:
        """Register as litellm's provider ``calibrant`` in this process."""
        others = [own for own in litellm.custom_provider_map if own["provider"] != _PROVIDER]
        litellm.custom_provider_map = [*others, {"provider": _PROVIDER, "custom_handler": self}]

    def close(self) -> None:
        """Close the classifiers and free their resources."""
        self._closing.close()

    def completion(self, model: str, messages: Sequence[Mapping[str, Any]], **call: Any) -> ModelResponse:  # noqa: ANN401
        """Answer a call; the parameters are those of litellm."""
        return run_sync(self.acompletion(model, messages, **call))

    async def acompletion(
        self,
        model: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        model_response: ModelResponse,
        timeout: Any = None,  # noqa: ANN401, ASYNC109 (litellm's: seconds, or httpx's own)
        **_: object,
    ) -> ModelResponse:
        """Answer a call inside an event loop; the parameters are those of litellm."""
        prediction, content = await self._predict_json(model, messages, timeout)
        model_response.model = model
        model_response.choices[0].message.content = content
        model_response.choices[0].finish_reason = "stop"
        model_response.usage = litellm.Usage(**_usage(prediction))
        return model_response

    def streaming(self, model: str, messages: Sequence[Mapping[str, Any]], **call: Any) -> Iterator[Any]:  # noqa: ANN401
        """Answer a streaming call in one piece; the parameters are those of litellm."""
        prediction, content = run_sync(self._predict_json(model, messages, call.get("timeout")))
        yield _piece(prediction, content)

    async def astreaming(
        self,
        model: str,
        messages: Sequence[Mapping[str, Any]],
        **call: Any,  # noqa: ANN401
    ) -> AsyncIterator[Any]:
        """Answer a streaming call in one piece inside an event loop; the parameters are those of litellm."""
        prediction, content = await self._predict_json(model, messages, call.get("timeout"))
        yield _piece(prediction, content)

    async def _predict_json(
        self, model: str, messages: Sequence[Mapping[str, Any]], seconds: object
    ) -> tuple[Prediction, str]:
        name = model.removeprefix(f"{_PROVIDER}/")
        if name not in self._opened:
            known = ", ".join(f"{_PROVIDER}/{own}" for own in self._opened)
            raise CustomLLMError(status_code=404, message=f"Expected one of {known}, got {name!r:.80}.")
        bundle, classifier = self._opened[name]
        text = _last_text(messages)
        try:
            async with asyncio.timeout(seconds if isinstance(seconds, int | float) else None):
                (prediction,) = await ask_async(classifier, [classifier.query(text)])
        except TimeoutError:
            raise CustomLLMError(status_code=504, message=f"{model}: no answer within {seconds}s.") from None
        except CalibrantError as error:
            raise CustomLLMError(status_code=503, message=f"{model}: {error}") from error
        if prediction.outcome is not Outcome.OK:
            message = f"{model}: {prediction.outcome.value}: {prediction.reason}"
            # As the service: 503 where the call failed, so that it may be tried again.
            failed = prediction.outcome is Outcome.ERROR
            raise CustomLLMError(status_code=503 if failed else 502, message=message)
        record = answer_record(prediction, bundle.decide(prediction))
        return prediction, json.dumps(record, ensure_ascii=False)


def _last_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of the last user message, which may be a list of parts."""
    content = next((own.get("content") for own in reversed(messages) if own.get("role") == "user"), None)
    if isinstance(content, list):
        parts = [str(part.get("text")) for part in content if part.get("type") == "text"]
        content = "\n".join(parts) if len(parts) == len(content) else None
    if not isinstance(content, str) or not content:
        raise CustomLLMError(
            status_code=400, message="Expected a user message of text, got none: send the text to classify."
        )
    return content


def _usage(prediction: Prediction) -> dict[str, int]:
    used = prediction.usage
    return {
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.completion_tokens,
        "total_tokens": used.prompt_tokens + used.completion_tokens,
    }


def _piece(prediction: Prediction, content: str) -> dict[str, Any]:
    """Return a whole answer as litellm's ``GenericStreamingChunk``."""
    return {
        "text": content,
        "tool_use": None,
        "is_finished": True,
        "finish_reason": "stop",
        "usage": _usage(prediction),
        "index": 0,
    }
