"""Predict the classes of image files with an exported model.

    python predict_onnx.py model.onnx new/*.jpg > answers.csv

Needs only Pillow, numpy and onnxruntime. Files are decoded as `afield predict` decodes them. The
sides to which images are resized, one after the other, and the classes are in the metadata of the
model. The result is CSV: file, class and calibrated confidence.
"""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image

# Images that go through the network at once.
BATCH = 32
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF")
# The tag of the camera's orientation, and the transposition that undoes each value.
ORIENTATION = 0x0112
UPRIGHT = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}


def read_image(file: Path, sides: list[int]) -> Any:
    """An image as float32 from 0 to 255, of the shape channels × height × width."""
    with Image.open(file, formats=FORMATS) as image:
        image.draft("RGB", (sides[0], sides[0]))
        image.load()
        turn = UPRIGHT.get(image.getexif().get(ORIENTATION, 1))
        upright = image if turn is None else image.transpose(Image.Transpose(turn))
        upright = to_eight_bits(upright)
        # Pillow only honors the transparency of a palette when converting to RGBA.
        rgb = (upright.convert("RGBA") if upright.mode == "P" else upright).convert("RGB")
    for side in sides:
        rgb = rgb.resize((side, side), Image.Resampling.BILINEAR)
    return np.asarray(rgb, dtype=np.float32).transpose(2, 0, 1)


def to_eight_bits(image: Image.Image) -> Image.Image:
    """Scale grayscale of more than 8 bits to 8 bits; Pillow would clip all values above 255."""
    if image.mode not in ("I;16", "I;16L", "I;16B", "I", "F"):
        return image
    values = np.asarray(image, dtype=np.float64)
    if image.mode == "F":
        values = values * 255 if values.max() <= 1 else values
    elif image.mode != "I" or values.max() > 255:
        values = values / 257
    return Image.fromarray(values.round().clip(0, 255).astype(np.uint8))


def predict(model: str, files: list[str]) -> list[tuple[str, str, float]]:
    """The class and confidence of every file."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    facts = session.get_modelmeta().custom_metadata_map
    classes, sides = json.loads(facts["classes"]), json.loads(facts["sides"])
    answers = []
    for start in range(0, len(files), BATCH):
        part = files[start : start + BATCH]
        x = np.stack([read_image(Path(file), sides) for file in part])
        _, probabilities = session.run(None, {"x": x})
        best = probabilities.argmax(axis=1)
        answers += [
            (file, classes[number], float(row[number]))
            for file, number, row in zip(part, best, probabilities, strict=True)
        ]
    return answers


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python predict_onnx.py MODEL.onnx IMAGE...")
    writer = csv.writer(sys.stdout)
    writer.writerow(["file", "class", "confidence"])
    writer.writerows(predict(sys.argv[1], sys.argv[2:]))
