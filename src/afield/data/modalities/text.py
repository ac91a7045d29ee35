"""Texts, as token ids: with the tokenizer of an encoder, byte by byte, or as n-grams.

A text becomes a row of whole numbers: whether it was cut at the greatest number of tokens, and its
token ids, padded with -1. Tokenizers are read from a file ``tokenizer.json`` with the package
tokenizers, which is an extra: ``pip install 'afield[text]'``.

A model takes texts as strings, as a column of a table or data frame, or as files. A string is a
text, a `Path` is a file: one text, or a table with a column of texts.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from afield import registry
from afield.data.bag_of_words import (
    ALL_HASHES,
    COUNTS,
    HASHES,
    NGRAMS,
    NGRAMS_FORM,
    BagScaling,
    BagVectors,
    encode_ngrams,
)
from afield.data.domains import Domain
from afield.data.file_batches import FileBatch, batches_of_files
from afield.data.frames import TABLE_SUFFIXES, USUAL_NAMES, is_table, read_frame
from afield.data.modality import ExportForm, Fact, FileModality, Shape
from afield.data.samples import Prepare, Rows, trim_padding
from afield.data.scaling import Scaling
from afield.data.tokenizer_files import encode, read_tokenizer, truncating_tokenizer
from afield.data.training_settings import Training
from afield.errors import DataError, SpecError
from afield.files import check_regular_file, file_digest, format_bytes, sha256

if TYPE_CHECKING:
    import pandas as pd

    from afield.data.inputs import Inputs

__all__ = ["Text"]

# The number that fills the end of a row.
PADDING = -1
# Number of different tokens if every byte is one.
BYTE_TOKENS = 256
# A longer text is taken for a mistake, such as a missing quotation mark in a table.
MAX_TEXT_BYTES = 2**20
# A longer string is no name of a file.
MAX_NAME = 200
# Shorter batches are special cases for exporters.
MIN_EXPORTED_TOKENS = 2

# The name of a sample, its text or why it cannot be read, and the number of files that are done.
Item = tuple[str, Any, int]


@dataclass(frozen=True)
class Text(FileModality):
    """Texts, as token ids.

    `tokenizer` is a file, empty if every byte is a token, or `NGRAMS` for bags of words.
    """

    tokenizer: str = ""
    tokens: int = 512

    name = "texts"
    noun = "text"
    suffixes = (".txt",)
    task = "text-classification"
    example = "new.csv"
    python_example = "A text."
    preparation = "tokenize texts"
    training = Training(steps=300, backbone="bag:")
    has_tokens = True

    @property
    def settings(self) -> dict[str, Any]:
        """The tokenizer, and the greatest number of tokens."""
        return {"tokenizer": self.tokenizer, "tokens": self.tokens}

    @property
    def vocabulary(self) -> int:
        """Number of different tokens."""
        if self.tokenizer == NGRAMS:
            return ALL_HASHES * COUNTS
        return read_tokenizer(self.tokenizer).get_vocab_size() if self.tokenizer else BYTE_TOKENS

    def with_tokens(self, tokenizer: str, tokens: int) -> Self:
        """The modality for another tokenizer; a number of 0 keeps the present one."""
        return replace(self, tokenizer=tokenizer, tokens=tokens or self.tokens)

    def decode(self, file: Path, side: int) -> NDArray[Any]:
        """Tokenize the text of a file; `side` does not matter."""
        return self.tokenize(read_text(file))

    def decode_cell(self, cell: object, side: int) -> NDArray[Any]:
        """Tokenize the text in a cell of a table."""
        return self.tokenize(cell)

    def tokenize(self, text: object) -> NDArray[Any]:
        """Tokenize a text to one row of the cache."""
        return tokenize(text, self.tokenizer, self.tokens)

    def cache_form(self, side: int) -> str:
        """Name of texts of this tokenizer and length."""
        return f"texts as {self.tokens} tokens of {tokenizer_label(self.tokenizer)}"

    def empty_row(self, side: int) -> NDArray[Any]:
        """Whether the text is cut, and its token ids."""
        return np.empty(1 + self.tokens, np.int32)

    def to_samples(self, rows: Tensor) -> Tensor:
        """The token ids."""
        return rows[:, 1:]

    def count_cut(self, rows: Tensor) -> int:
        """Number of texts with more tokens than a row."""
        return int(rows[:, 0].sum())

    def fit_scaling(self, x: Rows, *, by_sources: bool = False, robust: bool = False) -> Scaling:
        """Token ids stay as they are; the n-grams of a vector are those of the training texts."""
        del by_sources, robust
        return BagScaling.fit(x) if self.tokenizer == NGRAMS else Scaling.fit(x)

    def prepare(self, scaling: Scaling, stored: Shape, size: int, *, trim: bool = False) -> Prepare:
        """Token ids stay as they are, n-grams become vectors."""
        return trim_padding if trim and self.tokenizer != NGRAMS else scaling

    def statistics(self, x: Tensor) -> dict[str, Tensor]:
        """The number of tokens."""
        return {"tokens": (x >= 0).sum(dim=1)}

    def facts(self, domains: Mapping[str, Domain]) -> list[Fact]:
        """The median length of the texts of each domain, and how many texts are cut."""
        medians = {name: int(Rows([each.x]).lengths.median()) for name, each in domains.items()}
        facts = [Fact("median length in bytes", value, name) for name, value in medians.items()]
        length = next(iter(domains.values())).x.shape[1]
        cut = sum(domain.truncated for domain in domains.values())
        total = sum(len(domain.y) for domain in domains.values())
        return [*facts, Fact(f"texts have more than {length} bytes", cut, total=total)]

    def summary(self, inputs: "Inputs") -> str:
        """Files of texts, and tables."""
        return f"texts: .txt files, or tables with a column of texts ({', '.join(TABLE_SUFFIXES)})"

    def batches(
        self, inputs: "Inputs", values: Any, size: int, column: str = ""
    ) -> Iterator[FileBatch]:
        """Batches of strings, of a series, of a data frame, or of files and folders.

        By default, `column` is that of the training data, or one with a usual name.
        """
        import pandas as pd

        if isinstance(values, pd.DataFrame):
            values = values[_text_column(values, inputs, column, "data frame")]
        if isinstance(values, str | Path):
            values = [values]
        if not isinstance(values, Iterable):
            raise SpecError("give texts as strings, or paths of files")
        samples = list(values)
        if samples and all(isinstance(value, Path) for value in samples):
            yield from batches_of_files(
                samples,
                self.suffixes,
                lambda files: self._tokenized(_read_files(inputs, files, column), size),
            )
            return
        _refuse_names(samples)
        items = ((f"[{number}]", text, 0) for number, text in enumerate(samples))
        yield from self._tokenized(items, size)

    def _tokenized(self, items: Iterable[Item], size: int) -> Iterator[FileBatch]:
        remaining = iter(items)
        while batch := list(islice(remaining, size)):
            results = [self._row(text) for _, text, _ in batch]
            samples = [row for row, _ in results if row is not None]
            yield FileBatch(
                names=[name for name, _, _ in batch],
                errors=[error for _, error in results],
                x=self.stack(samples) if samples else None,
                files_done=batch[-1][2],
            )

    def _row(self, text: Any) -> tuple[NDArray[Any] | None, str]:
        """The row of a text, or None and the reason why there is none."""
        if isinstance(text, Exception):
            return None, (str(text).splitlines() or ["unreadable"])[0]
        try:
            return self.tokenize(str(text) if isinstance(text, np.str_) else text), ""
        except ValueError as error:
            return None, str(error)

    def export_form(self, inputs: "Inputs") -> ExportForm:
        """Token ids, and which of them are padding."""
        if self.tokenizer == NGRAMS:
            return _bag_export_form(self.tokens)
        how = f"the tokenizer in `{self.tokenizer}`" if self.tokenizer else "the bytes of UTF-8"
        return ExportForm(
            axes={"input_ids": (0, 1), "attention_mask": (0, 1)},
            summary=f"input_ids and attention_mask (n × up to {self.tokens} tokens, int64)",
            steps=f"turn each text into token ids with {how}, cut at {self.tokens} tokens, and pad "
            "them to `input_ids` of n × tokens, int64, with `attention_mask` 1 for a token and 0 "
            "for padding",
            note=f" It sees the first {self.tokens} tokens of a text.",
        )

    def export_metadata(self, inputs: "Inputs") -> dict[str, str]:
        """The digest of the tokenizer, and the greatest number of tokens."""
        del inputs
        tokenizer = NGRAMS_FORM if self.tokenizer == NGRAMS else "bytes"
        if self.tokenizer not in ("", NGRAMS):
            tokenizer = sha256(Path(self.tokenizer))
        return {"tokenizer": tokenizer, "max_tokens": str(self.tokens)}

    def export_example(self, inputs: "Inputs", count: int) -> tuple[Tensor, ...]:
        """Random token ids; the texts, and the batches, have different numbers of tokens."""
        tokens = max(MIN_EXPORTED_TOKENS, self.tokens - count)
        generator = torch.Generator().manual_seed(count)
        ids = torch.randint(self.vocabulary, (count, tokens), generator=generator)
        if inputs.vocabulary is not None:
            ids = inputs.vocabulary.example(count, tokens, generator)
        lengths = torch.randint(1, tokens + 1, (count, 1), generator=generator)
        lengths[0] = tokens
        return ids, (torch.arange(tokens) < lengths).long()

    def export_network(self, inputs: "Inputs", module: nn.Module, temperature: float) -> nn.Module:
        """The network that is exported: it has no scaling, but computes the vectors of n-grams."""
        if inputs.vocabulary is not None:
            module = nn.Sequential(BagVectors(inputs.vocabulary), module)
        return DeployedTextNetwork(module, temperature)


def _bag_export_form(tokens: int) -> ExportForm:
    """What an exported bag of words takes."""
    return ExportForm(
        axes={"input_ids": (0, 1), "attention_mask": (0, 1)},
        summary=f"input_ids and attention_mask (n × up to {tokens} n-grams, int64)",
        steps="turn each text into n-grams with `afield.data.bag_of_words.encode_ngrams(text, "
        f"{tokens})`, and pad them to `input_ids` of n × n-grams, int64, with `attention_mask` 1 "
        f"for an n-gram and 0 for padding (an n-gram is hash · {COUNTS} + count; the hash is "
        f"MurmurHash3 modulo {HASHES}, plus {HASHES} for characters)",
        note=f" It sees up to {tokens} n-grams of a text.",
    )


class DeployedTextNetwork(nn.Module):
    """A network of texts together with its temperature and softmax."""

    def __init__(self, module: nn.Module, temperature: float) -> None:
        super().__init__()
        self.module = module
        self.temperature = temperature

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the logits and probabilities of token ids."""
        logits = self.module(input_ids.masked_fill(attention_mask == 0, PADDING))
        return logits, (logits / self.temperature).softmax(dim=1)


def read_text(file: Path) -> str:
    """The content of a file; raises ValueError unless it is UTF-8."""
    check_regular_file(file)
    size = file.stat().st_size
    if size > MAX_TEXT_BYTES:
        raise ValueError(_too_long(size))
    try:
        # utf-8-sig: some editors write a byte order mark, which is not part of the text.
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: byte {error.start}") from None


def tokenize(text: object, tokenizer: str, tokens: int) -> NDArray[np.int32]:
    """The row of a text: 1 if it has more than `tokens` tokens, else 0, and its first token ids.

    `tokenizer` is a file, `NGRAMS`, or empty for bytes. Raises ValueError for what is no text.
    """
    if not isinstance(text, str) or not text.strip():
        raise ValueError("no text")
    size = len(text.encode(errors="replace"))
    if size > MAX_TEXT_BYTES:
        raise ValueError(_too_long(size))
    ids, is_cut = _encode(text, tokenizer, tokens)
    row = np.full(1 + tokens, PADDING, np.int32)
    row[0] = is_cut
    row[1 : 1 + len(ids)] = ids
    return row


def tokenizer_label(tokenizer: str) -> str:
    """What the cache calls a tokenizer: the digest of its file, or its form."""
    if tokenizer == NGRAMS:
        return NGRAMS_FORM
    return f"tokenizer {file_digest(tokenizer)}" if tokenizer else "bytes"


def _encode(text: str, tokenizer: str, tokens: int) -> tuple[Any, bool]:
    """The token ids of a text, at most `tokens`, and whether there are more."""
    if tokenizer == NGRAMS:
        return encode_ngrams(text, tokens)
    if not tokenizer:
        content = np.frombuffer(text.encode(errors="replace")[: tokens + 1], np.uint8)
        return content[:tokens], len(content) > tokens
    encoding = encode(truncating_tokenizer(tokenizer, tokens), text)
    return encoding.ids, bool(encoding.overflowing)


def _too_long(size: int) -> str:
    most = format_bytes(MAX_TEXT_BYTES)
    return f"{format_bytes(size)} of text, above {most}; is a quotation mark missing?"


def _read_files(inputs: "Inputs", files: Sequence[Path], column: str) -> Iterator[Item]:
    for number, file in enumerate(files, start=1):
        try:
            if file.suffix.lower() in registry.find("modalities", "array").suffixes:
                raise ValueError("arrays, but this model takes texts")  # noqa: TRY301
            if not is_table(file):
                yield str(file), read_text(file), number
                continue
            frame = read_frame(file)
            texts = frame[_text_column(frame, inputs, column, str(file))].tolist()
        except (DataError, ValueError, OSError) as error:
            reason = str(error).removeprefix(f"{file}: ")
            reason = reason if file.exists() else "no such file or folder"
            yield str(file), ValueError(reason), number
        else:
            for row, text in enumerate(texts):
                yield f"{file}[{row}]", text, number - (row + 1 < len(texts))


def _text_column(frame: "pd.DataFrame", inputs: "Inputs", column: str, where: str) -> str:
    """The column with the texts: the given one, that of the training data, or a usual one."""
    usual = () if column else (inputs.column, *USUAL_NAMES["text"])
    found = next((name for name in (column, *usual) if name and name in frame.columns), "")
    if not found:
        known = ", ".join(map(str, frame.columns[:20]))
        wanted = column or inputs.column or "text"
        raise DataError(
            f"{where}: no column {wanted!r} of texts; it has {known}; use --text COLUMN"
        )
    return found


def _refuse_names(values: Sequence[Any]) -> None:
    """Refuse strings that name files: a model for texts would classify the name."""
    for value in values:
        if isinstance(value, Path):
            raise SpecError("give either texts or paths of files, not both")
        if isinstance(value, str) and len(value) < MAX_NAME and "\n" not in value:
            path = Path(value)
            if (is_table(path) or path.suffix == ".txt") and path.is_file():
                raise SpecError(f"{value!r} is a file, not a text; give Path({value!r})")
