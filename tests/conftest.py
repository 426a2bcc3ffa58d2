"""Few hypothesis examples with DSLIDE_TEST_PROFILE=quick (under sanitizers everything is slow). SIGINT, which tests
send to processes they start, is not ignored even if a script runs pytest in the background. And garbage collection does
not look at the thousands of tests each time, which would be most of the time of some."""

from __future__ import annotations

import gc
import os
import signal
import tempfile

import pytest

QUICK_EXAMPLES = 5


def pytest_configure() -> None:
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="dslide-tests-")  # for what dslide notes of files
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("DSLIDE_TEST_PROFILE") != "quick":
        return
    from hypothesis import settings

    for item in items:
        test = getattr(item, "obj", None)
        chosen = getattr(test, "_hypothesis_internal_use_settings", None)
        if chosen is not None:
            test._hypothesis_internal_use_settings = settings(
                chosen, max_examples=min(QUICK_EXAMPLES, chosen.max_examples)
            )
