# PYTHON_ARGCOMPLETE_OK
"""Run ``medbn`` as ``python -m medbn``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
