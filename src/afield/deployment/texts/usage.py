"""What the card of a model says about texts."""

from afield.data.modality import Text
from afield.deployment.description import Description

__all__ = ["describe_tokens", "python_example"]


def python_example(about: Description) -> str:
    """A sample as it is written in Python: a text, or the name of a file."""
    modality = about.inputs.modality
    return "A text." if isinstance(modality, Text) else modality.example.replace("*", "1")


def describe_tokens(about: Description) -> str:
    """How many tokens the model sees, and how texts become the inputs of the exported file."""
    inputs = about.inputs
    how = f"the tokenizer in `{inputs.tokenizer}`" if inputs.tokenizer else "the bytes of UTF-8"
    return (
        f" It sees the first {inputs.stored[0]} tokens of a text.\n\n`afield export . --to onnx` "
        f"writes a file for other programs. Before it: turn each text into token ids with {how}, "
        f"cut at {inputs.stored[0]} tokens, and pad them to `input_ids` of n × tokens, int64, with "
        "`attention_mask` 1 for a token and 0 for padding. It returns logits and calibrated "
        "probabilities, in the order of the classes below."
    )
