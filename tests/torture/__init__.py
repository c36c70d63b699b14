"""Random trials of what ``docs/reliability.md`` promises: ``python -m tests.torture --help``.

They use what users use: calls, files and the command line. ``test_torture.py`` runs a few of each kind.
"""
