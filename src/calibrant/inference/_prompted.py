"""One model under prompts: requests, journal keys, and the prediction of one query."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from calibrant.core._completion import Client, CompletionRequest
from calibrant.core._errors import ConfigurationError, ProviderError
from calibrant.core._prediction import Outcome, Prediction
from calibrant.core._predictor import Query
from calibrant.inference._methods import Method, keeping_features, might_keep_features

if TYPE_CHECKING:
    from calibrant.inference._demonstrations import Retrieval

# Options that cannot change an answer.
_NOT_IN_KEY: Final = frozenset({"api_key", "timeout"})

# Prompts whose digests are kept; those with demonstrations differ from row to row.
_PROMPTS: Final = 256


class QueryKeys:
    """Digests of everything that can change the prediction of a query."""

    def __init__(self) -> None:
        self._digests: dict[tuple[str, str | None], Any] = {}

    def key(self, query: Query, settings_of: Callable[[Query], Sequence[object]]) -> str:
        """Return the digest of a query, 64 hexadecimal digits.

        Parameters
        ----------
        query : Query
            The query.
        settings_of : callable
            Returns all that can change the prediction but the text, as JSON values; called once for each prompt. It is
            not kept: a reference back to the model would keep a client from being closed with its last user.
        """
        prompt = (query.prompt + query.shown, query.user_template)
        digest = self._digests.get(prompt)
        if digest is None:
            if len(self._digests) >= _PROMPTS:
                self._digests.clear()
            settings = json.dumps(list(settings_of(query)), sort_keys=True, default=repr)
            digest = self._digests[prompt] = hashlib.sha256(settings.encode())
        digest = digest.copy()
        digest.update(query.text.encode("utf-8", "surrogatepass"))
        return str(digest.hexdigest())


@dataclass(frozen=True, kw_only=True)
class PromptedModel:
    """A model with the way in which it is asked; the `RowModel` of a classifier's runner.

    Attributes
    ----------
    client : Client
        Where the calls go.
    method : Method
        How a request becomes a prediction.
    response_format : mapping or None
        JSON schema sent with every call.
    top_logprobs : int
        Alternatives asked for per token.
    options : mapping
        Handed to the provider with every call.
    retrieval : Retrieval or None
        Which demonstrations prompts show.
    """

    client: Client
    method: Method
    response_format: Mapping[str, Any] | None = None
    top_logprobs: int = 5
    options: Mapping[str, Any] = field(default_factory=dict)
    retrieval: Retrieval | None = None
    _keys: QueryKeys = field(default_factory=QueryKeys, init=False, repr=False, compare=False)
    _richer_keys: QueryKeys = field(default_factory=QueryKeys, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The client's name."""
        return self.client.name

    def with_features(self) -> PromptedModel:
        """Return a copy whose predictions hold what the model made of the text, where it tells."""
        return replace(self, method=keeping_features(self.method))

    def request(self, query: Query) -> CompletionRequest:
        """Return the request for a query whose demonstrations are in place."""
        return CompletionRequest(
            messages=query.messages(),
            response_format=self.response_format,
            top_logprobs=self.top_logprobs,
            options=self.options,
            without_text=replace(query, text="", shown="").messages(),
        )

    def prepare(self, queries: Sequence[Query]) -> list[tuple[Query, str]]:
        """Return queries with their demonstrations, and why one has none that it should have."""
        retrieval = self.retrieval
        if retrieval is None:
            if any(query.demonstrations and query.demonstrations.strip() for query in queries):
                raise ConfigurationError(
                    "Expected labelled texts to show as demonstrations, got none: hand in a DemonstrationIndex of the "
                    "training rows (with_demonstrations), or leave the component demonstrations out."
                )
            return [(query, "") for query in queries]
        found = retrieval.render([(query.text, query.demonstrations) for query in queries])
        return [
            (replace(query, shown=own.text), own.problem) for query, own in zip(queries, found, strict=True)
        ]

    async def predict(self, query: Query) -> Prediction:
        """Return the prediction of a query, without secrets of the client's that its server repeated.

        Raises
        ------
        ProviderError
            The model could not be asked.
        """
        return _without_echoes(await self.method.predict(self.request(query)), self.client)

    def key(self, query: Query) -> str:
        """Return a digest of everything that can change the prediction."""
        return self._keys.key(query, partial(self._settings, method=self.method))

    def richer_key(self, query: Query) -> str | None:
        """Return the key under which the same prediction is stored with its features; None where none has any."""
        if not might_keep_features(self.method):
            return None
        return self._richer_keys.key(query, partial(self._settings, method=keeping_features(self.method)))

    def is_final(self, prediction: Prediction) -> bool:
        """Return whether asking again would bring nothing else."""
        return prediction.outcome is not Outcome.ERROR

    def ends_run(self, error: ProviderError, *, answered: bool) -> bool:
        """Return whether no other row can be expected to be answered."""
        return error.systemic and not answered

    def _settings(self, query: Query, *, method: Method) -> list[object]:
        return [
            self.client.name,
            getattr(self.client, "endpoint", None),
            dict(method.describe()),
            query.prompt + query.shown,
            query.user_template,
            self.response_format,
            self.top_logprobs,
            {name: value for name, value in self.options.items() if name not in _NOT_IN_KEY},
        ]


def _without_echoes(prediction: Prediction, client: Client) -> Prediction:
    """Return a prediction without secrets of the client's that its server repeated; label and evidence stay."""
    hidden = getattr(client, "hidden", None)
    if hidden is None:
        return prediction
    said = {"reason": prediction.reason, "text": prediction.text, "model": prediction.model}
    clean = {name: hidden(text) for name, text in said.items() if text}
    changed = {name: text for name, text in clean.items() if text != said[name]}
    return replace(prediction, **changed) if changed else prediction
