"""Read a report
=============

The bench runs combinations of data, methods, estimators and attacks into a store. A report shows a store as one page.
"""

# sphinx_gallery_thumbnail_path = "images/report.png"
import tempfile
import textwrap
from dataclasses import replace
from pathlib import Path

import torch

from medbn import bench, report

torch.set_num_threads(1)
folder = tempfile.TemporaryDirectory()
path = Path(folder.name) / "results.db"

# %%
# A recipe is an experiment by name. ``medbn recipes`` lists them; this is the one of ``medbn demo``, with fewer steps.

recipe = bench.recipes.get("demo").narrow(corruptions=["snow", "fog"], methods=["tebn"], batches=3)
recipe = replace(recipe, attacks=tuple(replace(attack, steps=10, step_size=0.1) for attack in recipe.attacks))
bench.run(recipe, path)

# %%
# ``medbn report results.db`` writes the page. In Python, a report is a document, which is then written in some format.

with bench.Store(path, create=False) as store:
    document = report.build(store)
    results = bench.results.read(store)[0]
page = report.FORMATS.get("html").write(document)
print(textwrap.fill(document.lead, 88))

# %%
# This is the page. Read it from the top:
#
# 1. **The first sentence** has the result: the worst attack that was run, for each defence.
# 2. **The table** has a row for each defence, and a column for each attack. Below a number is its 95 % interval, or how
#    many batches it is from where these are too few for one. A bar repeats the number.
# 3. **Where the defences stand** shows robustness against accuracy; the lower left corner is best.
# 4. **By corruption, examples, time, what was run** are for those who want to know more.


class Page:
    """A page in a frame, for this site."""

    def _repr_html_(self):
        text = page.replace("&", "&amp;").replace('"', "&quot;")
        return (
            f'<iframe srcdoc="{text}" style="width:100%;height:34rem;border:1px solid #8884" title="report"></iframe>'
        )


Page()

# %%
# Every number of the page can be read in Python too, with its interval: of all cells, or of those that you choose.

median = results.select(lambda cell: cell.estimator == "median" and cell.attack and cell.attack.gradient == "exact")
print(median.error())

# %%
# The same report for a paper or a repository: ``markdown``, ``latex``, ``csv`` and ``json``.

text = report.FORMATS.get("markdown").write(document)
print(text[text.index("\n|") :].strip().split("\n\n")[0])  # its first table
folder.cleanup()
