"""Sends a server damaged requests, from several clients at once: whatever comes, it answers or closes the connection.

    python tests/fuzz/server.py --requests 100000

Requests are valid ones with damaged bytes, damaged JSON in whole requests, half requests whose client goes, and valid
ones between them, which have to get the right answer. Ends with what was answered, and 1 if anything went wrong.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from random import Random

from fuzz.mutations import bytes_mutated, json_mutated
from support.serving import Client, train_text_model, wait_for_port

CLIENTS, SECONDS = 4, 20.0
PATIENCE = 0.05  # seconds, with a request whose head may be damaged
BODIES = (
    b'{"text": "word3 the", "k": 3, "threshold": 0.1, "why": 2}',
    b'{"texts": ["word1", "word2 other7"], "limit": 4}',
    b'{"row": {"word3": 1.5, "the": 2}}',
    b'{"rows": [{"word3": 1}, {}], "k": 12}',
    b'{"items": ["a", 7]}',
)
Counts = collections.Counter[str]


def request_of(body: bytes) -> bytes:
    kind = b"application/json"
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    return head % (kind, len(body)) + body


def send(port: int, random: Random) -> str:
    """One request; what came of it."""
    body, kind = random.choice(BODIES), random.randrange(4)
    if kind == 0:
        content = bytes_mutated(random, request_of(body))
    elif kind == 1:
        content = request_of(json_mutated(random, body))
    else:
        content = request_of(bytes_mutated(random, body))
    with socket.create_connection(("127.0.0.1", port), SECONDS) as connection:
        if kind == 3:
            connection.sendall(content[: random.randrange(len(content))])
            return "half a request"
        try:
            connection.sendall(content)
            connection.settimeout(SECONDS if kind else PATIENCE)
            answer = b""
            while piece := connection.recv(1 << 16):
                answer += piece
        except (ConnectionResetError, BrokenPipeError):
            return "closed"
        except TimeoutError:
            return "NO ANSWER" if kind else "unfinished"  # the server waits for more
    if not answer:
        return "closed"
    status = answer.split(b" ", 2)[1].decode()
    said = answer.partition(b"\r\n\r\n")[2]
    if kind and status.startswith("4") and not json.loads(said.split(b"HTTP/1.1", 1)[0])["error"]:
        return "NO SENTENCE"
    return status


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        run = train_text_model(Path(place))
        command = [sys.executable, "-m", "dslide.cli", "serve", str(run), "--port", "0", "--workers", "2"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        port = int(process.stdout.readline().rsplit(":", 1)[1])
        wait_for_port(port)
        expected = Client(port).post(text="word3 the")[1]["results"]
        counts: Counts = collections.Counter()
        before, start = memory_of(process.pid), time.monotonic()

        def work(number: int) -> None:
            random, own = Random(f"{options.seed} {number}"), collections.Counter[str]()
            for count in range(options.requests // CLIENTS):
                own[send(port, random)] += 1
                if count % 100 == 0 and Client(port).post(text="word3 the")[1].get("results") != expected:
                    own["WRONG ANSWER"] += 1
            counts.update(own)

        workers = [threading.Thread(target=work, args=(number,)) for number in range(CLIENTS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        seconds, after = time.monotonic() - start, memory_of(process.pid)
        process.terminate()
        code = process.wait(30)
    wrong = {name: count for name, count in counts.items() if name.isupper() or name.startswith("5")}
    print(
        f"{sum(counts.values()):,} requests in {seconds:.0f} s: {dict(counts.most_common())}; server ended with {code}"
    )
    print(f"memory of all processes before and after: {before >> 20} and {after >> 20} MB")
    return int(bool(wrong) or code != 0 or sum(counts.values()) < options.requests // CLIENTS * CLIENTS)


def memory_of(process: int) -> int:
    """Resident memory of a process and its children."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    pages = [Path(f"/proc/{each}/statm").read_text().split()[1] for each in (process, *children)]
    return sum(map(int, pages)) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
