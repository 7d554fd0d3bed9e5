"""Modules beside the tests can be imported by them; tokenizers are made once."""

import json
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Make the folder of a tokenizer by its maker's name (encode_made.py) and a template, once."""
    from tests.preparation import encode_made

    kept: dict[Any, str] = {}

    def get(maker: str, template: str | None = None, **options: Any) -> str:
        key = (maker, template, json.dumps(options))
        if key not in kept:
            kept[key] = encode_made.save(
                getattr(encode_made, maker)(**options),
                tmp_path_factory.mktemp("tokenizer"),
                template,
            )
        return kept[key]

    return get
