"""A dslide command that records its peak memory: `python peak_memory.py FOLDER COMMAND...` runs `dslide COMMAND...` and
writes the bytes to FOLDER/HOST, on each rank."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from dslide.cli import main
from dslide.util.memory import peak_rss_bytes

if __name__ == "__main__":
    code = main(sys.argv[2:])
    (Path(sys.argv[1]) / socket.gethostname()).write_text(str(peak_rss_bytes()))
    sys.exit(code)
