"""Hugging Face: text encoders in a folder or on the hub, e.g. hf:BAAI/bge-small-en-v1.5.

    hf:FOLDER, hf:OWNER/NAME, hf:OWNER/NAME@REVISION
    hf:FOLDER?pooling=first

A folder has ``config.json``, ``tokenizer.json`` and the weights as safetensors. Neither pickled
weights nor code of the repository are read. Tokens are pooled as sentence-transformers'
``1_Pooling/config.json`` says, if there is one, and otherwise by their mean. The package
transformers is an extra: ``pip install 'afield[text]'``.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, cast, get_args

import torch
from torch import Tensor, nn

from afield.data.modalities.text import Text
from afield.data.sources.hub import download_snapshot
from afield.data.tokenizer_files import largest_id
from afield.errors import AfieldError, DataError, SpecError, UnknownNameError
from afield.files import file_digest, read_json_object
from afield.networks.backbone import HUB, Backbone, Shape
from afield.networks.encoder_files import (
    Size,
    check_encoder_weights,
    read_config,
    read_encoder_weights,
    without_memory,
)
from afield.networks.text_features import Pooling, TransformerFeatures
from afield.tensors import check_complete, read_weights

__all__ = ["Hf"]

REPOSITORY = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w.-]+))?")
# Files that are fetched from the hub; never pickled weights or code.
PATTERNS = ["config.json", "tokenizer.json", "*.safetensors", "*.safetensors.index.json"]
POOLING_FILE = "1_Pooling/config.json"
# A greater length is slow, and rarely needed to classify a text.
USUAL_TOKENS = 128


@dataclass(frozen=True)
class Hf(Backbone):
    """A text encoder of the library transformers."""

    patterns: ClassVar[tuple[str, ...]] = ("hf:FOLDER", "hf:OWNER/NAME")

    @property
    def takes_text(self) -> bool:
        """True: these are encoders of texts."""
        return True

    @property
    def package(self) -> str:
        """Transformers."""
        return "transformers"

    @property
    def source(self) -> str:
        """The folder, or the repository."""
        return self.model.partition("?")[0]

    @property
    def folder(self) -> Path:
        """The folder of the encoder, which is fetched from the hub if it is not on this machine."""
        return _folder(self.source)

    @property
    def tokenizer(self) -> str:
        """The file of the encoder's own tokenizer."""
        return str(_existing(self.folder, "tokenizer.json", "save the encoder with its tokenizer"))

    @property
    def usual_tokens(self) -> int:
        """128, or fewer if the encoder has fewer positions."""
        most = self._config().get("max_position_embeddings")
        return min(USUAL_TOKENS, most) if isinstance(most, int) and most > 0 else USUAL_TOKENS

    @property
    def pooling(self) -> Pooling:
        """How states are pooled: as the name says, or else as the folder says."""
        chosen = self.model.partition("?")[2].removeprefix("pooling=")
        if chosen:
            if chosen not in get_args(Pooling):
                raise SpecError(f"{self.name}: pooling is {' or '.join(get_args(Pooling))}")
            return cast(Pooling, chosen)
        file = self.folder / POOLING_FILE
        return (
            "first"
            if file.is_file() and read_json_object(file).get("pooling_mode_cls_token")
            else "mean"
        )

    def check(self) -> None:
        """Raise an error unless there is an encoder with a tokenizer, and all their files."""
        if not self.source:
            raise UnknownNameError("hf: names no encoder; give a folder, or OWNER/NAME on the hub")
        self._config()
        Path(self.tokenizer)
        _ = self.pooling

    def has_pretrained_weights(self) -> bool:
        """True: the folder holds them."""
        return True

    def is_pretrained(self) -> bool:
        """True: the folder holds the weights."""
        return True

    def tagged_name(self) -> str:
        """The name with the path of the folder, or the repository's revision, and the pooling."""
        source = str(self.folder)
        if not Path(self.source).expanduser().is_dir():
            source = f"{self.source.partition('@')[0]}@{self.folder.name}"
        return f"hf:{source}?pooling={self.pooling}"

    def start_digest(self, weights: str) -> str:
        """A digest of the configuration and the tokenizer, and of the weights if they are used."""
        files = ["config.json", "tokenizer.json"]
        files += [path.name for path in self._weight_files()] if weights == HUB else []
        digests = [file_digest(self.folder / name) for name in files]
        digests += [file_digest(weights)] if weights not in ("", HUB) else []
        return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:16]

    def build(
        self, shape: Shape, *, weights: str, class_names: Sequence[str]
    ) -> tuple[nn.Module, Tensor | None]:
        """The encoder, pooled."""
        del class_names
        self.require_tokens(shape)
        state = read_weights(weights) if weights not in ("", HUB) else {}
        with _one_line():
            encoder = self._pretrained() if weights == HUB else self._random(state)
            _remove_pooler(encoder)
            features = TransformerFeatures(encoder, self.pooling)
            self._check_vocabulary(encoder)
            if state:
                check_complete(weights, features, state)
                features.load_state_dict(state)
            with torch.no_grad():
                features.eval()(torch.zeros(1, *shape))
        return features.train(), None

    def check_size(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise an error if the encoder is much larger than a model with these tensors."""
        try:
            with _one_line():
                self._planned(Size.of(tensors))
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:160]
            raise DataError(f"{self.folder}: its config.json cannot be used ({reason})") from None

    def _planned(self, most: Size) -> nn.Module:
        """The encoder without memory for its weights; raises an error if it is too large."""
        with without_memory(most, str(self.folder)):
            return self._from_config()

    def _random(self, state: Mapping[str, Tensor]) -> nn.Module:
        self._planned(Size.of(state) if state else Size.of_machine())
        return self._from_config()

    def _from_config(self) -> nn.Module:
        kind, config = _transformers().AutoModel, self._auto_config()
        return cast(nn.Module, kind.from_config(config, trust_remote_code=False, **_options()))

    def _config(self) -> dict[str, Any]:
        _existing(self.folder, "config.json", "give the folder of an encoder")
        return read_config(self.folder)

    def _auto_config(self) -> Any:
        values = self._config()
        known, kind = _transformers().CONFIG_MAPPING, values.pop("model_type", None)
        if not isinstance(kind, str) or kind not in known:
            raise ValueError(f"its model_type is {kind!r}, which transformers does not know")
        return known[kind].from_dict(values)

    def _weight_files(self) -> list[Path]:
        files = sorted(self.folder.glob("*.safetensors"))
        if not files:
            pickled = [path.name for path in sorted(self.folder.glob("*.bin"))]
            reason = f"only {pickled[0]}, a pickle, which may run code" if pickled else "no weights"
            raise DataError(
                f"{self.folder}: {reason}; convert the weights to model.safetensors, or use "
                "--weights none"
            )
        return files

    def _pretrained(self) -> nn.Module:
        self._weight_files()
        tensors = read_encoder_weights(self.folder)
        planned = self._planned(Size.of(tensors))
        check_encoder_weights(self.folder, tensors, dict(planned.named_parameters()))
        kind: Any = type(planned)
        encoder, loading = kind.from_pretrained(
            None,
            config=self._auto_config(),
            state_dict=tensors,
            output_loading_info=True,
            **_options(),
        )
        missing = sorted(name for name in loading["missing_keys"] if "pooler" not in name)
        if missing:
            raise DataError(
                f"{self.folder}: its weights lack {len(missing)} tensors (e.g. {missing[0]}); "
                "give the weights of this configuration"
            )
        return cast(nn.Module, encoder)

    def _check_vocabulary(self, encoder: Any) -> None:
        known = encoder.get_input_embeddings().num_embeddings
        tokens, largest = Text(self.tokenizer).vocabulary, largest_id(self.tokenizer)
        if tokens > known or largest >= known:
            has = f"{tokens} tokens" if tokens > known else f"a token with the id {largest}"
            raise DataError(
                f"{self.folder}: its tokenizer has {has}, its encoder knows {known}; give the "
                "tokenizer of this encoder"
            )


@contextmanager
def _one_line() -> Iterator[None]:
    """Turn what the library raises for an odd configuration into one kind of error."""
    try:
        yield
    except AfieldError:
        raise
    except Exception as error:  # noqa: BLE001  an odd folder makes the library raise anything
        raise RuntimeError(f"{type(error).__name__}: {error}") from None


def _options() -> dict[str, Any]:
    # Eager attention can be differentiated twice, which some methods do.
    return {"attn_implementation": "eager", "dtype": torch.float32}


@lru_cache(maxsize=1)
def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise SpecError(
            "text encoders need the package transformers; try: pip install 'afield[text]'"
        ) from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


@lru_cache(maxsize=16)
def _folder(source: str) -> Path:
    """The folder of an encoder."""
    path = Path(source).expanduser()
    if path.is_dir():
        return path.resolve()
    match = REPOSITORY.fullmatch(source)
    if match is None or path.is_absolute():
        raise UnknownNameError(f"no encoder {source!r}: no such folder; give one, or OWNER/NAME")
    repository, revision = match.groups()
    patterns = [*PATTERNS, POOLING_FILE]
    return download_snapshot(repository, revision, kind="model", patterns=patterns)


def _existing(folder: Path, name: str, advice: str) -> Path:
    if not (folder / name).is_file():
        raise DataError(f"{folder}: no {name}; {advice}")
    return folder / name


def _remove_pooler(encoder: Any) -> None:
    """Remove the layer after the last block that only some training objectives use."""
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None
