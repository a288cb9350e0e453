"""Ray is an extra: without it there is nothing to collect, and `make test-ray` fails for want of tests."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("ray") else ["test_evaluate.py"]
