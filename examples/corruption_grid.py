"""Draw what the fifteen corruptions look like at each severity.

python examples/corruption_grid.py                                      # a digit
python examples/corruption_grid.py --photo flower.jpg --size 32         # a photograph, scaled to 32 × 32 pixels
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from medbn import data
from medbn.data import corruptions

GAP, CAPTION = 4, 22  # pixels


def main(arguments: list[str] | None = None) -> None:
    """Write a picture of one image under all corruptions at all severities."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photo", help="an image file; by default a digit")
    parser.add_argument("--size", type=int, default=32, help="pixels of the photograph that is corrupted")
    parser.add_argument("--cell", type=int, default=96, help="pixels of each image in the picture")
    parser.add_argument("--frost", default="synthetic", help="a folder of photographs of frost, or 'synthetic'")
    parser.add_argument("--out", default="corruptions.png")
    options = parser.parse_args(arguments)

    if options.photo:
        pixels = data.read_image(options.photo, options.size, options.size)
        image = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None]
    else:
        image = data.load("digits").read([0])
    cell, rows = options.cell, 5
    columns = -(-len(corruptions.NAMES) // rows)
    width, height = 5 * (cell + GAP) + 12, cell + GAP + CAPTION  # of five severities of one corruption
    sheet = Image.new("RGB", (columns * width, rows * height), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    for number, name in enumerate(corruptions.NAMES):
        left, top = (number // rows) * width, (number % rows) * height
        draw.text((left, top + 3), name.replace("_", " "), "black", font)
        for severity in corruptions.SEVERITIES:
            result = corruptions.corrupt(image, name, severity, frost=options.frost)[0]
            pixels = np.ascontiguousarray(result.expand(3, -1, -1).permute(1, 2, 0).numpy())
            picture = Image.fromarray(pixels).resize((cell, cell), Image.Resampling.NEAREST)
            sheet.paste(picture, (left + (severity - 1) * (cell + GAP), top + CAPTION))
    sheet.save(options.out, optimize=True)
    print(f"{options.out}: {sheet.width} × {sheet.height} px")


if __name__ == "__main__":
    main()
