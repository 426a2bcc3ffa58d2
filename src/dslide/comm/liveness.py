"""Every timeout of a job: how ranks, launcher and elastic supervisor notice that somebody is lost, and how long they
wait. All times are in seconds.

Four layers watch each other. The *silence limit* (option `watchdog`) is the one value a user sets; the rest follows.

1. Rank to rank (communicator.py). Every rank sends every other one a heartbeat about once a second. A rank that is
   silent for the silence limit, or alive but without a message for `STUCK` times as long, ends the exchange that waits
   for it with CommError. This layer names exchange, step and rank, so the layers above wait a little longer.
2. Rank and launcher (rank_client.py, rank_table.py). Each sends the other a heartbeat a second. A rank without a
   launcher for the silence limit ends itself, and an agent (agent.py) without one ends its ranks; the launcher ends a
   job if a rank is silent for the silence limit and a
   margin, or if no rank makes progress for a multiple of it.
3. The end of a job (launcher.py, mpi.py, exit.py): how long processes get to start, report, save and exit, before they
   are killed.
4. Elastic runs (elastic.py): how often a job is started again, and how long hosts are waited for (`RetryPolicy`).
"""

from __future__ import annotations

from dataclasses import dataclass

# ---- 1. rank to rank ------------------------------------------------------------------------------------------------

SILENCE_LIMIT = 60.0  # default of the silence limit
HEARTBEAT = 1.0  # between two heartbeats, of ranks and of the launcher
HEARTBEATS_PER_LIMIT = 10  # ranks send at least so many to each other within the silence limit, however short it is
STUCK = 10  # times the silence limit, after which a rank that is alive but sends no message is given up
FAREWELL = 0.5  # for the other ranks to receive that this one leaves or has failed

# ---- 2. rank and launcher -------------------------------------------------------------------------------------------

LEAST_LAUNCHER_LIMIT = 5.0  # least silence limit between rank and launcher, whatever was asked for
HELLO = 10.0  # for who connects to the launcher to prove that it is a rank
STRANGERS = 64  # connections without such a proof that the launcher keeps; the oldest goes first
CONNECT = 10.0  # for a rank to connect to each of the launcher's addresses
SILENCE_MARGIN = 5.0  # added to the silence limit by the launcher: ranks notice silence first, and know more about it
STUCK_BEFORE_STEP_1 = 60  # times the silence limit without progress before the first step, while data is read
RANK_0_REPORT = 2.0  # for rank 0 to report an error that all ranks have, before another rank does

# ---- 3. start and end of a job --------------------------------------------------------------------------------------

START = 120.0  # for all ranks to connect to the launcher
MPI_START = 120.0  # for MPI_Init, during which no thread of a rank can run
MPI_START_SILENCE = MPI_START + 10.0  # that the launcher therefore allows a rank until it has made progress
MPI_ABORT = 5  # for MPI_Abort; whole seconds, as signal.alarm wants
OUTPUT_FORWARDED = 0.3  # for mpiexec to pass on what a failed rank has printed, before MPI_Abort
POLL = 0.1  # between two checks of all the limits by the launcher
DELIVERY = 20.0  # for the secret of a job to be written on the hosts whose ranks mpiexec starts
OUTPUT_AFTER_MPIEXEC = 2.0  # for output still to arrive when agents and mpiexec have exited
EXIT_AFTER_FAILURE = 1.0  # for the other ranks to exit when one has failed,
EXIT_AFTER_SIGNAL = 10.0  # when one has exited because of a signal (all of them save first),
EXIT_AFTER_SUCCESS = 60.0  # or when all have reported success
KILL = 5.0  # for mpiexec to exit when it was told to,
UNREACHABLE = 3 * HEARTBEAT  # unless all ranks that it would wait for have been silent for so long

# ---- 4. elastic runs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RetryPolicy:
    """When the ranks of an elastic run are started again, and on which hosts."""

    failures: int = 10  # in a row, without progress in between, after which the run is given up
    host_failures: int = 3  # caused by one host, without progress in between, after which it is left out
    pause: float = 1.0  # before the first restart; doubled with each failure in a row,
    longest_pause: float = 60.0  # up to this
    answer: float = 20.0  # for a host to answer
    enough_hosts: float = 3600.0  # to wait until enough hosts answer
    probe: float = 30.0  # between two probes of missing hosts, and before a host that failed is used again;
    longest_absence: float = 3600.0  # doubled each time it fails, up to this
    notice: float = 120.0  # for which a host that got SIGTERM is not used, though it may still answer
