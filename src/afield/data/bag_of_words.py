"""Bags of words: texts as n-grams with their counts, and as TF-IDF vectors.

    n-grams     one and two words, and three to four characters within a word
    tf          1 + log(count)
    idf         1 + log((1 + texts) / (1 + texts with the n-gram))
    vector      tf · idf, with length 1 for the words and length 1 for the characters

A text is stored as one number per n-gram, its hash and its count, so that the stored texts depend
on nothing but themselves. Which n-grams a vector has, and their idf, come from the texts that a run
trains on.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from afield.data.samples import Rows, trim_padding
from afield.data.scaling import Scaling
from afield.errors import SpecError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

# What stands for the name of a tokenizer where texts are bags of words.
NGRAMS = "ngrams"
# The name of their form in the cache of decoded files; it changes whenever `encode_ngrams` does.
NGRAMS_FORM = "n-grams of 1-2 words and 3-4 characters"
# N-grams of each kind have this number of hashes. Those of characters follow those of words.
HASHES = 2**19
# A stored number is hash · COUNTS + count; larger counts are stored as the largest one.
COUNTS = 2**10
# Greatest numbers of n-grams of words and of characters in a vector.
MAX_COLUMNS = (15_000, 10_000)
ALL_HASHES = HASHES * len(MAX_COLUMNS)
# N-grams of fewer texts cannot be learned from.
MIN_TEXTS = 2
# Texts that become a sparse matrix at once.
CHUNK = 4096


def encode_ngrams(text: str, most: int) -> tuple[NDArray[np.int32], bool]:
    """The n-grams of a text as stored numbers, at most `most`, and whether there are more.

    Words may take half of the numbers, or what characters leave; words and characters at the
    beginning of the text come first.
    """
    from sklearn.utils import murmurhash3_32

    kinds = [Counter(analyze(text)) for analyze in _analyzers()]
    words = min(len(kinds[0]), max(most // 2, most - len(kinds[1])))
    sizes = (words, most - words)
    stored: dict[int, int] = {}
    for kind, (grams, size) in enumerate(zip(kinds, sizes, strict=True)):
        for gram in list(grams)[:size]:
            index = kind * HASHES + murmurhash3_32(gram, positive=True) % HASHES
            stored[index] = min(COUNTS - 1, stored.get(index, 0) + grams[gram])
    numbers = [index * COUNTS + count for index, count in stored.items()]
    is_cut = any(len(grams) > size for grams, size in zip(kinds, sizes, strict=True))
    return np.array(numbers, np.int32), is_cut


@lru_cache(maxsize=1)
def _analyzers() -> tuple[Callable[[str], list[str]], ...]:
    """The functions from a text to its n-grams of words, and of characters."""
    from sklearn.feature_extraction.text import CountVectorizer

    # A word is a run of letters and digits; a single one counts too, as in "7" or "I".
    words = CountVectorizer(ngram_range=(1, 2), token_pattern=r"\b\w+\b")
    characters = CountVectorizer(analyzer="char_wb", ngram_range=(3, 4))
    return words.build_analyzer(), characters.build_analyzer()


@dataclass(frozen=True)
class Vocabulary:
    """The n-grams of a vector: their hashes, in ascending order, and in how many texts they are.

    `texts` is the number of all texts.
    """

    texts: int
    hashes: tuple[int, ...] = field(repr=False)
    frequencies: tuple[int, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if not self.hashes or not 0 <= self.hashes[0] <= self.hashes[-1] < ALL_HASHES:
            raise SpecError(f"bag: hashes must be from 0 to {ALL_HASHES - 1}")
        if any(first >= second for first, second in pairwise(self.hashes)):
            raise SpecError("bag: hashes must be in ascending order")
        if len(self.frequencies) != len(self.hashes):
            raise SpecError("bag: frequencies must have a number for every hash")
        if not 0 < min(self.frequencies) <= max(self.frequencies) <= self.texts:
            raise SpecError("bag: frequencies must be from 1 to the number of texts")

    @classmethod
    def fit(cls, x: Rows) -> "Vocabulary":
        """Take the n-grams that most of these texts have, words and characters apart."""
        counts = np.zeros(ALL_HASHES, np.int64)
        for chunk in x.chunks(CHUNK):
            present = chunk[chunk >= 0] // COUNTS
            counts += np.bincount(present.cpu().numpy(), minlength=ALL_HASHES)
        least = min(MIN_TEXTS, int(counts.max()))
        kept = []
        for kind, most in enumerate(MAX_COLUMNS):
            of_kind = counts[kind * HASHES : (kind + 1) * HASHES]
            order = np.argsort(-of_kind, kind="stable")[:most]
            kept.append(kind * HASHES + np.sort(order[of_kind[order] >= least]))
        hashes = np.concatenate(kept)
        return cls(len(x), tuple(hashes.tolist()), tuple(counts[hashes].tolist()))

    def example(self, count: int, size: int, generator: torch.Generator) -> Tensor:
        """Random stored texts of `size` different n-grams, most of which are in the vocabulary."""
        known = torch.tensor(self.hashes)
        rows = []
        for _ in range(count):
            others = torch.randperm(ALL_HASHES, generator=generator)[:size]
            order = torch.randperm(len(known), generator=generator)[: size - size // 4]
            hashes = torch.cat([known[order], others[~torch.isin(others, known)]])[:size]
            rows.append(hashes * COUNTS + torch.randint(1, 9, hashes.shape, generator=generator))
        return torch.stack(rows)

    @property
    def words(self) -> int:
        """The number of n-grams of words, which come first."""
        return bisect_left(self.hashes, HASHES)

    def tables(self) -> tuple[Tensor, Tensor]:
        """The column of every hash, and the idf of every column; the last column is for others."""
        width = len(self.hashes)
        columns = torch.full((ALL_HASHES,), width, dtype=torch.int32)
        columns[torch.tensor(self.hashes)] = torch.arange(width, dtype=torch.int32)
        frequencies = torch.tensor(self.frequencies, dtype=torch.float64)
        idf = 1 + ((1 + self.texts) / (1 + frequencies)).log()
        return columns, torch.cat([idf, torch.zeros(1)]).float()


@dataclass(frozen=True)
class BagScaling(Scaling):
    """Map stored n-grams to TF-IDF vectors."""

    kind = "texts"

    mean: Tensor = field(init=False, repr=False, compare=False, default=torch.zeros(1))
    std: Tensor = field(init=False, repr=False, compare=False, default=torch.ones(1))
    vocabulary: Vocabulary

    @classmethod
    def fit(cls, x: Rows) -> "BagScaling":
        """Take vocabulary and weights from these texts."""
        return cls(Vocabulary.fit(x))

    def to_dict(self) -> dict[str, Any]:
        """The vocabulary, to store beside the weights."""
        return {**super().to_dict(), "vocabulary": asdict(self.vocabulary)}

    def restored(self, values: Mapping[str, Any]) -> "BagScaling":
        """Restore the vectors of another run from `to_dict`."""
        return BagScaling(restore_vocabulary(values))

    def network_shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """The number of n-grams in a vector."""
        del stored
        return (len(self.vocabulary.hashes),)

    @cached_property
    def on_devices(self) -> dict[torch.device, "BagVectors"]:
        """The network from n-grams to vectors, on each device."""
        return {}

    def vectors(self, device: torch.device) -> "BagVectors":
        """The network from n-grams to vectors."""
        if device not in self.on_devices:
            self.on_devices[device] = BagVectors(self.vocabulary).to(device)
        return self.on_devices[device]

    def __call__(self, x: Tensor) -> Tensor:
        """TF-IDF vectors of a batch of stored texts."""
        vectors: Tensor = self.vectors(x.device)(x)
        return vectors

    def sparse(self, x: Rows) -> "csr_matrix":
        """The same vectors, of all rows, as a sparse matrix."""
        from scipy.sparse import csr_matrix, vstack

        pieces = []
        for chunk in x.chunks(CHUNK):
            columns, values = self.vectors(x.device).entries(trim_padding(chunk))
            present = (values > 0).cpu().numpy()
            ends = np.concatenate([[0], present.sum(axis=1).cumsum()])
            kept = (part.cpu().numpy()[present] for part in (values, columns))
            shape = (len(chunk), len(self.vocabulary.hashes))
            pieces.append(csr_matrix((*kept, ends), shape=shape))
        return vstack(pieces, format="csr")


class BagVectors(nn.Module):
    """From stored n-grams, padded with -1, to TF-IDF vectors."""

    columns: Tensor
    idf: Tensor

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        columns, idf = vocabulary.tables()
        self.register_buffer("columns", columns)
        self.register_buffer("idf", idf)
        self.words, self.width = vocabulary.words, len(vocabulary.hashes)

    def entries(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Column and value of every n-gram; padding and unknown n-grams have the value 0."""
        stored = x.clamp(min=0)
        hashes = torch.div(stored, COUNTS, rounding_mode="floor")
        columns = self.columns[hashes].masked_fill(x < 0, self.width).long()
        counts = (stored - hashes * COUNTS).clamp(min=1)
        values = (1 + counts.float().log()) * self.idf[columns]
        are_words = columns < self.words
        of_words, of_characters = (
            (values * kind).square().sum(dim=1, keepdim=True).sqrt().clamp(min=1e-6)
            for kind in (are_words, ~are_words)
        )
        return columns, values / torch.where(are_words, of_words, of_characters)

    def forward(self, x: Tensor) -> Tensor:
        """Vectors of texts × n-grams of the vocabulary."""
        columns, values = self.entries(x)
        empty = values.new_zeros(len(x), self.width + 1)
        return empty.scatter(1, columns, values)[:, : self.width]


def restore_vocabulary(values: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary of `BagScaling.to_dict`."""
    stored = values["vocabulary"]
    return Vocabulary(stored["texts"], tuple(stored["hashes"]), tuple(stored["frequencies"]))
