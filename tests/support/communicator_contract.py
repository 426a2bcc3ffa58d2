"""What every communicator promises, as functions that all ranks run on a new communicator each. `python
communicator_contract.py`, under mpiexec, runs them over MPI and prints the errors of each as JSON."""

from __future__ import annotations

import gc
import json
import time
import traceback
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from dslide.comm import Communicator, Exchange
from dslide.comm.frames import OVERHEAD, PIECE
from dslide.errors import CommError, ConfigError, DataError, ModelError, PeerFailed, UserError

LIMIT = 20.0  # seconds; nothing below takes a tenth of it
SIZES = (0, 1, 3, 1000, 99_991, PIECE, PIECE + 1, 3 * PIECE + 5)


def message(of: int, to: int, exchange: int, size: int) -> bytes:
    """What a rank sends to another one: bytes that occur nowhere else."""
    return np.random.default_rng([of, to, exchange]).bytes(size)


def same(got: Sequence[bytes | bytearray | memoryview], want: Sequence[bytes]) -> None:
    assert [len(g) for g in got] == [len(w) for w in want]
    assert [bytes(g) for g in got] == list(want)


def all_to_all(comm: Communicator, number: int, size: int) -> tuple[Exchange, list[bytes]]:
    """Posts an exchange; also what must arrive."""
    exchange = comm.post(f"exchange {number}", [message(comm.rank, to, number, size + to) for to in range(comm.size)])
    return exchange, [message(of, comm.rank, number, size + comm.rank) for of in range(comm.size)]


# ---- bytes ----------------------------------------------------------------------------------------------------------


def all_gather_returns_everybodys_bytes(comm: Communicator) -> None:
    for number, size in enumerate(SIZES):
        want = [message(of, 0, number, size) for of in range(comm.size)]
        same(comm.all_gather("gather", want[comm.rank]), want)


def sizes_may_differ_between_ranks(comm: Communicator) -> None:
    for number in range(len(SIZES)):
        want = [message(of, 0, number, SIZES[(number + of) % len(SIZES)]) for of in range(comm.size)]
        same(comm.all_gather("gather", want[comm.rank]), want)


def any_buffer_will_do(comm: Communicator) -> None:
    for size in (0, 5, 300_000):  # float32s, the last of more than a piece
        numbers = np.arange(size, dtype=np.float32)
        for given in (numbers.tobytes(), bytearray(numbers.tobytes()), memoryview(numbers)):
            same(comm.all_gather("gather", given), [numbers.tobytes()] * comm.size)
    table = np.arange(24, dtype=np.int64).reshape(4, 6)
    same(comm.all_gather("table", memoryview(table)), [table.tobytes()] * comm.size)


def each_rank_gets_its_own_message(comm: Communicator) -> None:
    for number, size in enumerate(SIZES):
        exchange, want = all_to_all(comm, number, size)
        same(exchange.wait(), want)


def buffers_may_change_after_post(comm: Communicator) -> None:
    for size in (10, 2 * PIECE):
        buffers = [bytearray(message(comm.rank, to, 0, size)) for to in range(comm.size)]
        exchange = comm.post("exchange", buffers)
        for buffer in buffers:
            buffer[:] = bytes(size)
        same(exchange.wait(), [message(of, comm.rank, 0, size) for of in range(comm.size)])


def results_are_read_only(comm: Communicator) -> None:
    for size in (10, 2 * PIECE):
        assert all(memoryview(got).readonly for got in comm.all_gather("gather", bytearray(size)))


def one_message_for_each_rank(comm: Communicator) -> None:
    with pytest.raises(ValueError, match=f"{comm.size + 1} messages for {comm.size} ranks"):
        comm.post("exchange", [b""] * (comm.size + 1))
    same(comm.all_gather("and nothing has happened", b"x"), [b"x"] * comm.size)


# ---- several exchanges ----------------------------------------------------------------------------------------------


def exchanges_in_flight_in_any_order(comm: Communicator) -> None:
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        posted = [all_to_all(comm, number, SIZES[-1 - number]) for number in range(4)]
        for number in order:
            exchange, want = posted[number]
            same(exchange.wait(), want)


def a_rank_may_be_ahead(comm: Communicator) -> None:
    if comm.rank == comm.size - 1:
        time.sleep(0.1)
    posted = [all_to_all(comm, number, 50_000 * number) for number in range(8)]
    if comm.rank == 0:
        time.sleep(0.1)
    for exchange, want in posted:
        same(exchange.wait(), want)


def waiting_twice_gives_the_same(comm: Communicator) -> None:
    exchange, want = all_to_all(comm, 0, 100)
    same(exchange.wait(), want)
    times = comm.wait_seconds, comm.flight_seconds
    same(exchange.wait(), want)
    assert (comm.wait_seconds, comm.flight_seconds) == times


def finished_exchanges_keep_no_memory(comm: Communicator) -> None:
    exchange, _ = all_to_all(comm, 0, 100)
    watched = weakref.ref(exchange)
    exchange.wait()
    del exchange, _
    gc.collect()
    assert watched() is None


def barrier_waits_for_all(comm: Communicator) -> None:
    for late in range(comm.size):
        if comm.rank == late:
            time.sleep(0.05)
        here = time.monotonic()  # one clock for all processes of a machine
        comm.barrier("barrier")
        there = time.monotonic()
        times = comm.gather_objects("times", [here, there])
        assert max(time[0] for time in times) <= min(time[1] for time in times)


# ---- objects and errors ---------------------------------------------------------------------------------------------


def objects_come_back_as_json_has_them(comm: Communicator) -> None:
    value = {"rank": comm.rank, "text": "ä\n", "list": (1, 2.5, None)}
    want = [{"rank": of, "text": "ä\n", "list": [1, 2.5, None]} for of in range(comm.size)]
    assert comm.gather_objects("objects", value) == want


def together_returns_what_work_returns(comm: Communicator) -> None:
    assert comm.together("work", lambda: comm.rank * 2) == comm.rank * 2


def shared_error(comm: Communicator, errors: dict[int, UserError]) -> UserError:
    """What `together` raises if these ranks fail with these errors."""

    def work() -> None:
        if comm.rank in errors:
            raise errors[comm.rank]

    with pytest.raises(UserError) as caught:
        comm.together("work", work)
    assert caught.value.collective
    comm.barrier("and the job goes on")
    return caught.value


def together_with_an_error_on_one_rank(comm: Communicator) -> None:
    last = comm.size - 1
    error = shared_error(comm, {last: DataError("file x, line 3: no")})
    assert type(error) is DataError
    assert str(error) == (f"rank {last}: " if comm.size > 1 else "") + "file x, line 3: no"


def together_with_the_same_error_everywhere(comm: Communicator) -> None:
    error = shared_error(comm, {rank: ConfigError("bad option") for rank in range(comm.size)})
    assert type(error) is ConfigError
    assert str(error) == "bad option"


def together_with_different_errors(comm: Communicator) -> None:
    if comm.size == 1:
        return
    last = comm.size - 1
    error = shared_error(comm, {0: ModelError("no model"), last: DataError("no data")})
    assert type(error) is ModelError
    assert str(error) == f"rank 0: no model; rank {last}: no data"


def together_with_the_same_error_on_some(comm: Communicator) -> None:
    if comm.size < 3:
        return
    error = shared_error(comm, {0: DataError("no data"), comm.size - 1: DataError("no data")})
    assert str(error) == f"ranks 0 and {comm.size - 1}: no data"


def another_exchange_is_noticed(comm: Communicator) -> None:
    if comm.size == 1:
        return
    comm.step = 7
    time.sleep(0.1 * (comm.rank > 1))  # so that some messages are early and some are not
    name, other = ("mine", "rank") if comm.rank == 0 else ("theirs", "rank 0")
    with pytest.raises(CommError, match=f'^exchange "{name}" of step 7: {other}.* is in another exchange'):
        comm.all_gather(name, b"x")


# ---- the side channel -----------------------------------------------------------------------------------------------


def side_messages_arrive_in_order_and_disturb_nothing(comm: Communicator) -> None:
    if comm.size == 1:
        return
    came: list[tuple[int, bytes]] = []
    comm.on_side(lambda source, content: came.append((source, bytes(content))))
    comm.barrier("all can receive")
    to, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sizes = [0, 1, 1000, 100_000, PIECE] * 3
    before = comm.bytes_sent
    flying = []
    for number, size in enumerate(sizes):
        comm.send_side(to, message(comm.rank, to, number, size))
        flying.append(all_to_all(comm, number, 1000))
    for exchange, want in flying:
        same(exchange.wait(), want)
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    assert comm.bytes_sent - before == len(sizes) * sum(1000 + rank + OVERHEAD for rank in others)
    comm.barrier("all are sent")  # frames between two ranks stay in order, those of the side channel too
    assert came == [(source, message(source, comm.rank, number, size)) for number, size in enumerate(sizes)]


# ---- counting -------------------------------------------------------------------------------------------------------


def bytes_are_counted(comm: Communicator) -> None:
    for size in SIZES:
        before = comm.bytes_sent
        comm.post("exchange", [bytes(size)] * comm.size).wait()
        frames = max(1, -(-size // PIECE))
        assert comm.bytes_sent - before == (comm.size - 1) * (size + frames * OVERHEAD)


def waiting_and_flight_are_counted(comm: Communicator) -> None:
    comm.barrier("begin")
    waited, flown = comm.wait_seconds, comm.flight_seconds
    if comm.rank == 0:
        time.sleep(0.3)
    exchange = comm.post("exchange", [b""] * comm.size)
    time.sleep(0.1)  # in which the others don't wait
    exchange.wait()
    waited, flown = comm.wait_seconds - waited, comm.flight_seconds - flown
    assert waited >= 0
    assert flown >= 0
    if comm.rank > 0:
        assert waited >= 0.1
        assert flown >= waited + 0.05


# ---- the end --------------------------------------------------------------------------------------------------------


def a_closed_communicator_says_so(comm: Communicator) -> None:
    comm.barrier("all are here")
    comm.close()
    comm.close()
    if comm.size == 1:
        comm.barrier("nothing to close")
        return
    with pytest.raises(CommError, match=r'^exchange "late" of step 0: the communicator is closed'):
        comm.post("late", [b""] * comm.size)


def messages_arrive_from_a_rank_that_has_left(comm: Communicator) -> None:
    exchange, want = all_to_all(comm, 0, 3 * PIECE)
    if comm.rank > 0:
        time.sleep(0.1)
    same(exchange.wait(), want)
    comm.close()


def a_rank_that_left_is_named_at_once(comm: Communicator) -> None:
    comm.barrier("all are here")
    if comm.rank == comm.size - 1:
        comm.close()
        return
    comm.step = 12
    begin = time.monotonic()
    with pytest.raises(CommError, match=f'^exchange "next" of step 12: rank {comm.size - 1} has ended$'):
        comm.barrier("next")
    assert time.monotonic() - begin < LIMIT / 2


def a_failure_is_passed_on(comm: Communicator) -> None:
    begin = time.monotonic()
    if comm.rank == comm.size - 1:
        comm.fail("no space left", 7)
        return
    with pytest.raises(PeerFailed) as caught:
        comm.barrier("next")
    assert (caught.value.rank, caught.value.message, caught.value.code) == (comm.size - 1, "no space left", 7)
    comm.fail("because of the other one", 1)  # which must not hide who began
    assert time.monotonic() - begin < LIMIT / 2


CONTRACT: dict[str, Callable[[Communicator], None]] = {
    promise.__name__: promise
    for promise in (
        all_gather_returns_everybodys_bytes,
        sizes_may_differ_between_ranks,
        any_buffer_will_do,
        each_rank_gets_its_own_message,
        buffers_may_change_after_post,
        results_are_read_only,
        one_message_for_each_rank,
        exchanges_in_flight_in_any_order,
        a_rank_may_be_ahead,
        waiting_twice_gives_the_same,
        finished_exchanges_keep_no_memory,
        barrier_waits_for_all,
        objects_come_back_as_json_has_them,
        together_returns_what_work_returns,
        together_with_an_error_on_one_rank,
        together_with_the_same_error_everywhere,
        together_with_different_errors,
        together_with_the_same_error_on_some,
        another_exchange_is_noticed,
        side_messages_arrive_in_order_and_disturb_nothing,
        bytes_are_counted,
        waiting_and_flight_are_counted,
        a_closed_communicator_says_so,
        messages_arrive_from_a_rank_that_has_left,
        a_rank_that_left_is_named_at_once,
        a_failure_is_passed_on,
    )
}


def main() -> None:
    from mpi4py import MPI

    from dslide.comm.mpi import MpiTransport

    errors: dict[str, str] = {}
    for name, promise in CONTRACT.items():
        comm = Communicator(MpiTransport(MPI), LIMIT)
        try:
            promise(comm)
        except Exception as error:
            errors[name] = traceback.format_exc()
            comm.fail(str(error), 1)
        finally:
            comm.close()
    everybodys = MPI.COMM_WORLD.gather(errors)
    if MPI.COMM_WORLD.rank == 0:
        print(json.dumps(everybodys))


if __name__ == "__main__":
    main()
