# PYTHON_ARGCOMPLETE_OK
"""Run ``medbn`` as ``python -m medbn``."""

import os
import sys

from .cli import main

if __name__ == "__main__":
    if sys.path[:1] == [os.getcwd()] and not os.path.isdir("medbn"):
        del sys.path[0]  # ``python -m`` adds the current folder, from which nothing is to be imported by accident
    sys.exit(main())
