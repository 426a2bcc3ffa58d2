"""The processes of a server. The model is opened once, and workers are forked from that process: they share its memory,
weights being mapped from the file. Each has a socket of its own, which the first process keeps open: a worker that dies
is started again, and connections wait for it."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import uvicorn

from dslide.errors import ConfigError
from dslide.serve.app import Service, say
from dslide.serve.connections import limited
from dslide.serve.metrics import Metrics
from dslide.serve.options import ServeOptions
from dslide.serve.served_model import ServedModel
from dslide.util.signals import handling
from dslide.util.threads import available_cores, openmp_threads

STOP_SECONDS = 10  # that requests under way may take after the signal to stop
MOST_CONNECTIONS = 1000  # of a worker
QUICK_SECONDS = 2.0  # a worker that dies sooner has not really started
STOPPED = 0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Server(uvicorn.Server):
    """Ends with its requests answered on SIGTERM and Ctrl-C, without raising the signal again, or if its parent has
    ended."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._parent = os.getppid()

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or os.getppid() != self._parent

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        def stop(_number: int, _frame: object) -> None:
            self.should_exit = True

        with handling(STOP_SIGNALS, stop):
            yield


def make_server(service: Service) -> Server:
    """The HTTP server of one worker; `run(sockets=[...])` returns when it was told to stop."""
    options = service.options
    return Server(
        uvicorn.Config(
            service.app(), log_level="error", access_log=False, server_header=False, ws="none", lifespan="on",
            http=limited(options.timeout), limit_concurrency=MOST_CONNECTIONS,
            timeout_keep_alive=int(options.timeout) or 1, timeout_graceful_shutdown=STOP_SECONDS,
        )
    )  # fmt: skip


def serve(options: ServeOptions) -> None:
    """Serves until SIGTERM or Ctrl-C."""
    cores = openmp_threads() or available_cores()
    options = replace(options, threads=options.threads or max(1, cores // options.workers))
    with ExitStack() as open_sockets:
        sockets = [open_sockets.enter_context(each) for each in listen(options)]
        served, metrics = ServedModel.open(options), Metrics(options.workers)
        host, port = sockets[0].getsockname()[:2]
        where = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        print(f"serving {served.folder} at {where}", flush=True)
        if options.workers == 1:
            make_server(Service(served, metrics)).run(sockets=sockets)
        else:
            gc.freeze()  # objects of before the fork are not looked at again, so that their pages stay shared
            try:
                _supervise(options, served, metrics, sockets)
            finally:
                gc.unfreeze()


def listen(options: ServeOptions) -> list[socket.socket]:
    """A socket for each worker, all of one port: of a single one, the first worker to wake takes all connections that
    wait. Without a system that spreads connections over sockets they share one. ConfigError if the address can't be
    had."""
    spreads = sys.platform == "linux"
    sockets: list[socket.socket] = []
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0]
        for _ in range(options.workers if spreads else 1):
            listening = socket.socket(family, kind, protocol)  # asyncio sends at once if it knows that it is TCP
            sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # connections inherit it
            if len(sockets) == 1:
                listening.bind(address)  # refused if others listen there
            if spreads and options.workers > 1:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if len(sockets) > 1:
                listening.bind(sockets[0].getsockname())
        for listening in sockets:
            listening.listen(1024)
            listening.setblocking(False)
    except OSError as error:
        for listening in sockets:
            listening.close()
        raise ConfigError(f"host, port: can't listen at {options.host}:{options.port}: {error.strerror}") from None
    return sockets if spreads else sockets * options.workers


def _supervise(options: ServeOptions, served: ServedModel, metrics: Metrics, sockets: list[socket.socket]) -> None:
    """Starts workers, and starts those that die again, until it is told to stop."""
    stopping = False

    def stop(_number: int, _frame: object) -> None:
        nonlocal stopping
        stopping = True
        for pid in list(workers):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    workers: dict[int, tuple[int, float]] = {}  # by process: number and time of its start

    def start(number: int) -> None:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for each in STOP_SIGNALS:
                    signal.signal(each, signal.SIG_DFL)
                make_server(Service(served, metrics, number)).run(sockets=[sockets[number]])
                code = STOPPED
            finally:
                with suppress(OSError):
                    sys.stderr.flush()
                os._exit(code)
        workers[pid] = number, time.monotonic()
        if stopping:  # meanwhile
            os.kill(pid, signal.SIGTERM)

    with handling(STOP_SIGNALS, stop):
        for number in range(options.workers):
            start(number)
        while workers:
            pid, _ = os.waitpid(-1, 0)
            number, began = workers.pop(pid)
            if stopping:
                continue
            say(f"worker {number} ended, another one takes its place")
            if time.monotonic() - began < QUICK_SECONDS:
                time.sleep(1)
            start(number)
