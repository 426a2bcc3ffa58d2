"""The thread pool: any number of threads gives the same; children of fork() and concurrent callers work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support.layer_cases import dense_input, make_layer, make_targets, softmax_learn

from dslide import _core
from dslide.config import Config


@pytest.fixture(autouse=True)
def _threads():
    before = _core.threads()
    yield
    _core.set_threads(before)


def train(threads, rows=97, neurons=700, inputs=33):
    """Three steps of a layer: logits and weights."""
    _core.set_threads(threads)
    config = Config(optimizer="adam", learning_rate=0.05, epsilon=1e-2)
    layer = make_layer(inputs, neurons, False, config)
    for step in range(3):
        x, _ = dense_input(rows, inputs, step)
        targets = make_targets(rows, neurons, step, True)
        active, dx = layer.everything(rows), np.empty_like(x.values)
        kept = np.empty(layer.native.kept_size(active), np.float32)
        labels = _core.FoundLabels(active, targets.indptr, targets.indices, targets.values)
        softmax_learn(layer, x, active, labels, dx, 1 / rows, kept)
    return layer.forward(x, active), dx, layer.arrays["weights"]


def test_any_number_of_threads_gives_the_same_to_rounding():
    expected = train(1)
    for threads in (2, 3, 7, 40):
        for got, wanted in zip(train(threads), expected, strict=True):
            assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_same_number_of_threads_gives_the_same_bits(threads):
    for got, wanted in zip(train(threads), train(threads), strict=True):
        assert_array_equal(got, wanted)


@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_an_impossible_number_of_threads_is_refused(threads):
    with pytest.raises(ValueError, match="1 to 1024"):
        _core.set_threads(threads)


def wait_for(child, seconds=60):
    """Exit code of a child, which is killed if it takes too long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_computes_too():
    expected = train(3)
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                same = all(np.array_equal(a, b) for a, b in zip(train(3), expected, strict=True))
                code = 0 if same and _core.threads() == 3 else 2
            finally:
                os._exit(code)
        children.append(child)
    assert [wait_for(child) for child in children] == [0, 0, 0]
    assert_array_equal(train(3)[0], expected[0])  # the parent still does


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_while_others_compute():
    """The child must not inherit a lock that a thread it does not have holds."""
    layer = make_layer(64, 2000, False, Config())
    x, _ = dense_input(96, 64, 0)
    _core.set_threads(2)
    stop = threading.Event()

    def compute():
        while not stop.is_set():
            layer.forward(x, layer.everything(96))

    worker = threading.Thread(target=compute)
    worker.start()
    try:
        codes = []
        for _ in range(10):
            child = os.fork()
            if child == 0:
                layer.forward(x, layer.everything(96))
                os._exit(0)
            codes.append(wait_for(child))
    finally:
        stop.set()
        worker.join()
    assert codes == [0] * 10


def test_calls_from_many_threads_at_once_are_right():
    """Six Python threads, each training a layer of its own and querying a shared one, while the number of threads is
    changed again and again: per-thread buffers must fit every number."""
    common = make_layer(33, 700, False, Config())
    x, _ = dense_input(97, 33, 5)
    _core.set_threads(2)
    expected, logits = train(2), common.forward(x, common.everything(97))
    failures: list[str] = []
    stop = threading.Event()

    def work():
        for _ in range(6):
            ids, scores = np.empty((97, 3), np.int32), np.empty((97, 3), np.float32)
            common.native.topk(x.values, ids, scores)
            if not np.array_equal(scores[:, 0], logits[:, :700].max(axis=1)):
                failures.append("top-k")
            for got, wanted in zip(train(2), expected, strict=True):
                if not np.allclose(got, wanted, rtol=1e-4, atol=1e-5):
                    failures.append("training")

    def change():
        while not stop.is_set():
            for threads in (1, 5, 2, 3):
                _core.set_threads(threads)

    workers = [threading.Thread(target=work) for _ in range(6)]
    changer = threading.Thread(target=change)
    for worker in [*workers, changer]:
        worker.start()
    for worker in workers:
        worker.join()
    stop.set()
    changer.join()
    assert failures == []


def test_threads_that_cannot_be_started_are_an_error_and_not_a_crash():
    """With little address space left 1,024 threads cannot be started: an error, after which two still work."""
    pytest.importorskip("resource")
    if "asan" in os.environ.get("LD_PRELOAD", "") or "tsan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("sanitizers need more address space than that")
    script = """
import re, resource
import numpy as np
from dslide import _core
value = np.zeros((4, 16), np.float32)
used = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (used + (500 << 20),) * 2)
_core.set_threads(1024)
try:
    _core.initialise(value, 16, 1.0, 0)
except (RuntimeError, MemoryError) as error:
    print("refused:", error)
_core.set_threads(2)
_core.initialise(value, 16, 1.0, 0)
print("works:", bool(value.any()))
"""
    if not os.path.exists("/proc/self/status"):
        pytest.skip("needs /proc")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "refused:" in done.stdout
    assert "works: True" in done.stdout
