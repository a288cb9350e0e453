"""Options that may hold a credential are found by their names, their values, and what is in them."""

from __future__ import annotations

from typing import Any

import pytest

from calibrant.inference._models import may_be_withheld, without_secrets


@pytest.mark.parametrize(
    ("options", "kept", "names"),
    [
        ({}, {}, ()),
        ({"temperature": 0.5, "max_tokens": 9, "stop": ["x"]}, None, ()),
        ({"api_key": "k", "seed": 1}, {"seed": 1}, ("api_key",)),
        ({"extra_headers": {}}, {}, ("extra_headers",)),
        ({"tok": "whatever-it-is"}, {}, ("tok",)),
        ({"reasoning_effort": "minimal", "response_format": {"title": "whatever it is"}}, None, ()),
        ({"extra_body": {"provider": {"order": "ok", "api_key": "k"}}}, {}, ("extra_body",)),
        ({"unknown": [0.5, True, None, "on", "0.25", "2024-05-01"]}, None, ()),
        ({"extra_body": {"deep": [{"apiKey": "k"}]}}, {}, ("extra_body",)),
        ({"api_base": "http://127.0.0.1:1/v1/"}, None, ()),
        ({"api_base": "http://me:pass@host:1/v1"}, {"api_base": "http://host:1/v1"}, ("api_base",)),
        ({"base_url": "http://host/v1?key=k&a=1"}, {"base_url": "http://host/v1?a=1"}, ("base_url",)),
        ({"api_base": None}, None, ()),
    ],
)
def test_what_may_be_a_credential_is_left_out_and_named(
    options: dict[str, Any], kept: dict[str, Any] | None, names: tuple[str, ...]
) -> None:
    """None of the rest is changed."""
    assert without_secrets(options) == (options if kept is None else kept, names)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("api_key", True),
        ("api_base", True),
        ("timeout", True),
        ("temperature", False),
    ],
)
def test_only_who_calls_and_where_may_differ_from_place_to_place(name: str, expected: bool) -> None:
    """What is asked may not."""
    assert may_be_withheld(name) is expected
