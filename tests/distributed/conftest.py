"""Fixtures for Ray: without the extra no test is collected, and `make test-ray` fails."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("ray") else ["test_evaluate.py"]
