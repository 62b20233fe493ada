"""Folders with a tiny Llama, whole and in shards."""

import pytest


@pytest.fixture
def folder(tmp_path):
    from tiny_folders import tiny_llama  # here: it takes seconds to load transformers

    tiny_llama().save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


@pytest.fixture
def shards(tmp_path):
    from tiny_folders import tiny_llama

    tiny_llama().save_pretrained(tmp_path / "sharded", max_shard_size="3KB")
    return tmp_path / "sharded"
