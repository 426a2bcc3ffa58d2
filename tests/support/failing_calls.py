"""`failing_calls.py STEP RANKS COMMAND...` launches ranks again and again, and each time another system call of the
launcher fails: the first, the one STEP later, and so on until a job makes no more of them. RANKS 0 stands for one rank
under a supervisor. Prints a JSON object for each launch. Calls are made to fail in Python's own modules. (EINTR is left
out: Python itself repeats such calls.)"""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from selectors import EpollSelector
from typing import Any

from dslide.comm.liveness import RetryPolicy
from dslide.launch.elastic import Supervisor
from dslide.launch.launcher import launch

ERRORS = {
    "socket": [errno.EMFILE, errno.ENOMEM],
    "bind": [errno.EADDRINUSE, errno.ENOMEM],
    "listen": [errno.EADDRINUSE],
    "accept": [errno.EMFILE, errno.ECONNABORTED, errno.ENOMEM],
    "setsockopt": [errno.EINVAL],
    "send": [errno.EPIPE, errno.ENOBUFS, errno.ENOMEM],
    "recv": [errno.ECONNRESET, errno.ENOMEM],
    "read": [errno.EIO],
    "write": [errno.EPIPE, errno.ENOSPC],
    "pipe": [errno.EMFILE],
    "fork": [errno.ENOMEM, errno.EAGAIN],
    "kill": [errno.ESRCH],
    "killpg": [errno.ESRCH],
    "register": [errno.ENOMEM, errno.ENOSPC],
    "thread": [errno.EAGAIN],
}
_due = -1  # calls until the one that fails
_turn = 0
_failed: str | None = None
_lock = threading.Lock()
_launcher = os.getpid()


def failing(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*arguments: Any, **options: Any) -> Any:
        global _due, _failed
        if options.get("fileno") is not None:  # an object for a socket that there is
            return call(*arguments, **options)
        with _lock:
            _due -= 1
            fails = _due == 0 and os.getpid() == _launcher
        if fails:
            _failed = name
            if name == "thread":
                raise RuntimeError("can't start new thread")
            number = ERRORS[name][_turn % len(ERRORS[name])]
            raise OSError(number, os.strerror(number))
        return call(*arguments, **options)

    return wrapped


def install() -> None:
    socket.socket.__init__ = failing("socket", socket.socket.__init__)  # type: ignore[method-assign]
    for name in ("bind", "listen", "accept", "setsockopt", "send", "recv"):
        setattr(socket.socket, name, failing(name, getattr(socket.socket, name)))
    for name in ("read", "write", "pipe", "kill", "killpg"):
        setattr(os, name, failing(name, getattr(os, name)))
    subprocess._fork_exec = failing("fork", subprocess._fork_exec)  # type: ignore[attr-defined]
    EpollSelector.register = failing("register", EpollSelector.register)  # type: ignore[method-assign]
    threading.Thread.start = failing("thread", threading.Thread.start)  # type: ignore[method-assign]


def main(step: int, ranks: int, command: list[str]) -> None:
    global _due, _turn, _failed
    out = os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    install()
    number, folder = 1 - step, Path(command[-1]) / "run"
    while True:
        number, _turn = number + step, _turn + 1
        _due, _failed, begin = number, None, time.monotonic()
        result: dict[str, Any] = {"code": None, "error": None, "message": ""}
        try:
            if ranks == 0:
                result["code"] = Supervisor(command, folder, 1, [], 1, 5.0, RetryPolicy(pause=0.01)).run()
            else:
                outcome = launch(command, ranks, start_limit=20.0, limit=5.0)
                result |= {"code": outcome.code, "message": outcome.reason}
        except Exception as error:
            result |= {"error": type(error).__name__, "message": str(error)}
        _due = -1
        measured = {"files": len(os.listdir("/proc/self/fd")), "seconds": time.monotonic() - begin}
        print(json.dumps({"n": number, "call": _failed, **measured, **result}), file=out, flush=True)
        if _failed is None:
            return


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
