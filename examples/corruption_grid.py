"""A picture of all fifteen corruptions at all five severities of one image.

python examples/corruption_grid.py PHOTO.jpg --size 32 --out corruptions.png
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from medbn.data import corruptions
from medbn.data.image_folder import decoded


def main() -> None:
    """Draw and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photo")
    parser.add_argument("--size", type=int, default=32, help="of the image that is corrupted, in pixels")
    parser.add_argument("--cell", type=int, default=96, help="of each picture in the grid, in pixels")
    parser.add_argument("--frost", default=None, help="a folder of photographs, or 'synthetic'")
    parser.add_argument("--out", default="corruptions.png")
    options = parser.parse_args()

    image = torch.from_numpy(decoded(options.photo, options.size, options.size).copy()).permute(2, 0, 1)[None]
    cell, gap, head = options.cell, 4, 22
    columns, rows = 3, 5  # groups of a clean picture and five severities
    group = 5 * (cell + gap) + 12
    sheet = Image.new("RGB", (columns * group, rows * (cell + gap + head)), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    for number, name in enumerate(corruptions.NAMES):
        left, top = (number // rows) * group, (number % rows) * (cell + gap + head)
        draw.text((left, top + 3), name.replace("_", " "), "black", font)
        for severity in corruptions.SEVERITIES:
            result = corruptions.corrupt(image, name, severity, frost=options.frost)[0].permute(1, 2, 0).numpy()
            picture = Image.fromarray(np.ascontiguousarray(result)).resize((cell, cell), Image.Resampling.NEAREST)
            sheet.paste(picture, (left + (severity - 1) * (cell + gap), top + head))
    sheet.save(options.out, optimize=True)
    print(f"{options.out}: {sheet.width} × {sheet.height} px")


if __name__ == "__main__":
    main()
