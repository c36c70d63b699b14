"""Pictures with a form for light and one for dark: a forge chooses by ``<picture>``, the site by a class."""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform


class Pictures(SphinxTransform):
    """Make two images of a ``<picture>`` in HTML, of which the theme shows one."""

    default_priority = 200

    def apply(self) -> None:
        """Replace every ``<picture>`` of a page."""
        for raw in list(self.document.findall(nodes.raw)):
            text = raw.astext()
            if "<picture>" not in text:
                continue
            (dark,) = re.findall(r'srcset="([^"]+)"', text)
            ((light, alternative),) = re.findall(r'<img src="([^"]+)" alt="([^"]+)"', text)
            images = [
                nodes.image(uri=uri, alt=alternative, classes=[name])
                for uri, name in ((light, "only-light"), (dark, "only-dark"))
            ]
            raw.replace_self(images)


def setup(app: Sphinx) -> dict[str, bool]:
    """Add to Sphinx."""
    app.add_transform(Pictures)
    return {"parallel_read_safe": True}
