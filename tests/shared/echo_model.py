"""A small language model of bytes, and answers of ``/v1/completions`` servers with echoed prompts."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

PREFIX = '{"label": "'
# Some tokens reach over the quote before a label, and over the one behind it.
_MERGED = [
    "<s>",
    "[user]",
    '{"',
    "label",
    '": ',
    ' "',
    "Sp",
    '"Sp',
    ' "Sp',
    "ort",
    "Bill",
    'll"',
    "/Gas",
    "Transfer ",
]


class EchoModel:
    """How probable every token is follows from all tokens before it.

    A text is written with the longest token that fits, from left to right. Letters beyond ASCII have a token for
    each byte, which are all shown alike.
    """

    def __init__(self) -> None:
        self.vocabulary = [*(token.encode() for token in _MERGED), *(bytes([value]) for value in range(256))]
        self._numbers = {token: number for number, token in enumerate(self.vocabulary)}
        self._longest = max(map(len, self.vocabulary))
        self._known: dict[bytes, NDArray[np.float64]] = {}

    def after(self, tokens: Sequence[int]) -> NDArray[np.float64]:
        """Return the log-probability of every token after these tokens."""
        state = b""
        for token in tokens:
            state = hashlib.blake2b(state + bytes([token // 256, token % 256]), digest_size=8).digest()
        return self._next(state)

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        data, found = text.encode(), []
        while data:
            size = next(size for size in range(self._longest, 0, -1) if data[:size] in self._numbers)
            found.append(self._numbers[data[:size]])
            data = data[size:]
        return found

    def shown(self, token: int) -> str:
        """Return a token as servers write it."""
        return self.vocabulary[token].decode("utf-8", "replace")

    def logprobs(self, tokens: Sequence[int]) -> list[float]:
        """Return the log-probability of each token but the first, and of each one after the last."""
        state, found = b"", []
        for place, token in enumerate(tokens):
            if place:
                found.append(float(self._next(state)[token]))
            state = hashlib.blake2b(state + bytes([token // 256, token % 256]), digest_size=8).digest()
        return [*found, float(self._next(state).max())]

    def written(self, tokens: Sequence[int]) -> int:
        """Return the most probable token after these tokens."""
        return int(self.after(tokens).argmax())

    def _next(self, state: bytes) -> NDArray[np.float64]:
        if state not in self._known:
            weights = np.random.default_rng(int.from_bytes(state)).normal(
                scale=2.0, size=len(self.vocabulary)
            )
            self._known[state] = weights - math.log(float(np.exp(weights).sum()))
        return self._known[state]

    def mass(self, prompt: str, added: str) -> float:
        """Return the log-probability of all tokens of the prompt and the added text but the first."""
        return math.fsum(self.logprobs(self.tokenize(prompt + added))[:-1])

    def distribution(self, prompt: str, labels: Sequence[str]) -> list[float]:
        """Return the probabilities of the labels after a prompt, computed from whole texts."""
        masses = [self.mass(prompt, f'{label}"') for label in labels]
        shares = [math.exp(mass - max(masses)) for mass in masses]
        return [share / math.fsum(shares) for share in shares]


class Echoing:
    """Answers requests to ``/v1/completions`` as vLLM or SGLang does.

    Attributes
    ----------
    echo : bool
        Whether prompts come back.
    max_logprobs : int
        Log-probabilities of a token that may be asked for, of vLLM.
    writes_none : bool
        Whether vLLM can be asked to write no token.
    counted : bool
        Whether tokens are counted.
    names_tokens : bool
        Whether the server knows the option, or the route, that names tokens; another one ignores it.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.model = EchoModel()
        self.echo, self.max_logprobs, self.writes_none, self.counted = True, 20, True, True
        self.names_tokens = True

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request."""
        asked = body["prompt"]
        prompts = [asked] if isinstance(asked, str) else asked
        refusal = self._refusal(body)
        if refusal is not None:
            return {"status": 400, "error": {"message": refusal, "type": "BadRequestError", "code": 400}}
        bos = "<s>" if body.get("add_special_tokens", True) else ""
        lists = [self.model.tokenize(bos + prompt) for prompt in prompts]
        choices = [self._choice(body, place, tokens) for place, tokens in enumerate(lists)]
        found: dict[str, Any] = {"model": body["model"], "choices": choices[::-1]}
        if self.counted:
            found["usage"] = {
                "prompt_tokens": sum(map(len, lists)),
                "completion_tokens": len(lists) * bool(body["max_tokens"]),
            }
        return found

    def _refusal(self, body: dict[str, Any]) -> str | None:
        if self.kind == "vllm":
            named = body.get("logprob_token_ids", []) if self.names_tokens else []
            if len(named) > 128:
                return f"logprob_token_ids: at most 128 tokens, got {len(named)}"
            if max(named, default=0) >= len(self.model.vocabulary):
                return "logprob_token_ids contain out-of-vocab token ids."
            if body["logprobs"] > self.max_logprobs:
                return (
                    f"Requested sample logprobs of {body['logprobs']}, which is greater than max allowed: "
                    f"{self.max_logprobs}"
                )
            if not body["max_tokens"] and not self.writes_none:
                return "max_tokens must be at least 1, got 0."
        return None

    def _choice(self, body: dict[str, Any], place: int, tokens: list[int]) -> dict[str, Any]:
        given, written = tokens, self.model.written(tokens)
        logprobs: list[float | None] = [None, *self.model.logprobs(tokens)]
        # SGLang computes a prompt's log-probabilities only where alternatives are wanted.
        echoed = self.echo and body.get("echo") and (self.kind == "vllm" or body["logprobs"])
        tokens = [*(tokens if echoed else ()), *([written] if body["max_tokens"] else ())]
        logprobs = logprobs[:-1] if echoed and not body["max_tokens"] else logprobs[-len(tokens) :]
        as_numbers = self.kind == "vllm" and bool(body.get("return_tokens_as_token_ids"))
        shown = [self._shown(token, as_numbers=as_numbers) for token in tokens]
        offsets = [sum(map(len, shown[:number])) for number in range(len(shown))]
        top = [None if value is None else {text: value} for text, value in zip(shown, logprobs, strict=True)]
        if body["max_tokens"]:
            top[-1] = self._generated(body, given, as_numbers=as_numbers)
        return {
            "index": place,
            "text": "".join(shown),
            "logprobs": {
                "tokens": shown,
                "token_logprobs": logprobs,
                "text_offset": offsets if self.kind == "vllm" else [-1] * len(shown),
                "top_logprobs": top,
            },
            "finish_reason": "length",
        }

    def _shown(self, token: int, *, as_numbers: bool) -> str:
        return f"token_id:{token}" if as_numbers else self.model.shown(token)

    def _generated(self, body: dict[str, Any], tokens: list[int], *, as_numbers: bool) -> dict[str, float]:
        """Return the tokens listed where the first one is written: the best, or those that are named."""
        logprobs = self.model.after(tokens)
        best = np.argsort(-logprobs)[: max(1, body["logprobs"])].tolist()
        named = body.get("logprob_token_ids") if self.kind == "vllm" and self.names_tokens else None
        listed = best[:1] + named if named else best
        return {self._shown(token, as_numbers=as_numbers): float(logprobs[token]) for token in listed}

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request to SGLang's ``/generate`` with one text."""
        tokens = self.model.tokenize("<s>" + body["text"])
        logprobs = self.model.after(tokens)
        best = np.argsort(-logprobs)[: body.get("top_logprobs_num", 0)].tolist()

        def entries(listed: list[int]) -> list[list[Any]]:
            return [[float(logprobs[token]), token, None] for token in listed]

        meta = {"prompt_tokens": len(tokens), "completion_tokens": 1, "output_top_logprobs": [entries(best)]}
        if body.get("token_ids_logprob"):
            meta["output_token_ids_logprobs"] = [entries(body["token_ids_logprob"])]
        return {"text": "", "meta_info": meta}
