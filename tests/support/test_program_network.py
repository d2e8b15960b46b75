"""The network of programs: addresses in frames, however they arrive, and connections that are cut."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from penstock.protocol.connector import (
    Ack,
    Acked,
    Decoder,
    Frame,
    Hello,
    Migrate,
    Ok,
    Restart,
    Use,
    encode,
)
from tests.support.ports import free_port
from tests.support.program_network import HERE, ProgramNetwork
from tests.support.waiting import SECONDS_MAX, until

GREETING = encode(Hello("0.0.1+migrate", b"", "program", "numbers"))


@pytest.fixture
def network() -> Iterator[ProgramNetwork]:
    with ProgramNetwork() as network:
        yield network


@contextmanager
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SECONDS_MAX)
        yield listener


def port_of(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port


def connect(network: ProgramNetwork, listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    """The program's end, which has sent its HELLO, and the worker's, which has received it."""
    host, _, port = network.address(port_of(listener)).rpartition(":")
    program = socket.create_connection((host, int(port)), SECONDS_MAX)
    program.sendall(GREETING)
    worker, _ = listener.accept()
    worker.settimeout(SECONDS_MAX)
    assert read(worker, len(GREETING)) == GREETING
    return program, worker


def read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        received = connection.recv(size - len(data))
        assert received
        data += received
    return data


def receive(connection: socket.socket, count: int) -> list[Frame]:
    decoder, frames = Decoder(Use.SOURCE), list[Frame]()
    while len(frames) < count:
        received = connection.recv(65536)
        assert received
        frames.extend(decoder.feed(received))
    return frames


FRAMES: list[tuple[Callable[[int], Frame], Callable[[int], Frame]]] = [
    (lambda port: Migrate("127.0.0.1", port), lambda port: Migrate(HERE, port)),
    (lambda port: Restart(f"127.0.0.1:{port}"), lambda port: Restart(f"{HERE}:{port}")),
    (lambda port: Migrate("elsewhere", port), lambda port: Migrate("elsewhere", port)),
    (lambda _: Restart(), lambda _: Restart()),
]


@pytest.mark.parametrize("piece_bytes", [1, 7, 1000])
def test_the_address_in_a_frame_is_one_of_the_network(network: ProgramNetwork, piece_bytes: int) -> None:
    """However the frames are cut into pieces."""
    with listening() as near, listening() as far:
        program, worker = connect(network, near)
        with closing(program), closing(worker):
            port = port_of(far)
            around = Ok(5), Ack(0, (Acked(1, port),))
            worker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sent = b"".join(map(encode, [around[0], *(made(port) for made, _ in FRAMES), around[1]]))
            for at in range(0, len(sent), piece_bytes):
                worker.sendall(sent[at : at + piece_bytes])
            assert receive(program, len(FRAMES) + 2) == [
                around[0],
                *(expected(port) for _, expected in FRAMES),
                around[1],
            ]
            assert network.ports == sorted([port_of(near), port])
            moved = socket.create_connection((HERE, port), SECONDS_MAX)
            with closing(moved):
                moved.sendall(GREETING)
                reached, _ = far.accept()
                with closing(reached):
                    assert read(reached, len(GREETING)) == GREETING


def test_programs_that_are_sent_to_a_new_port_at_the_same_time_find_it_in_the_network(network: ProgramNetwork) -> None:
    with listening() as near, listening() as far, ExitStack() as stack:
        ends = [tuple(map(stack.enter_context, map(closing, connect(network, near)))) for _ in range(10)]
        for _, worker in ends:
            worker.sendall(encode(Migrate("127.0.0.1", port_of(far))))
        assert [receive(program, 1) for program, _ in ends] == [[Migrate(HERE, port_of(far))]] * len(ends)


def test_an_address_that_another_network_has_stays_as_it_is(network: ProgramNetwork) -> None:
    port = free_port()
    with listening() as near, socket.create_server((HERE, port)):
        program, worker = connect(network, near)
        with closing(program), closing(worker):
            worker.sendall(encode(Migrate("127.0.0.1", port)))
            assert receive(program, 1) == [Migrate("127.0.0.1", port)]


@pytest.mark.parametrize("resets", [False, True])
def test_what_was_sent_during_a_cut_arrives_late_or_never_and_the_cut_is_counted(
    network: ProgramNetwork, resets: bool
) -> None:
    with listening() as near:
        program, worker = connect(network, near)
        with closing(program), closing(worker):
            network.cut([port_of(near)])
            program.sendall(b"late")
            worker.sendall(encode(Ok(1)))
            network.reconnect(resets=resets)
            if resets:
                assert not rest_of(program)
                assert not rest_of(worker)
            else:
                assert read(worker, 4) == b"late"
                assert receive(program, 1) == [Ok(1)]
    assert network.cuts == {"numbers": 1}
    assert network.resets == resets


def rest_of(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except ConnectionError:
        return b""


def test_a_program_that_connects_during_a_cut_is_cut_off(network: ProgramNetwork) -> None:
    with listening() as near:
        address = network.address(port_of(near))
        network.cut([port_of(near)])
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), SECONDS_MAX) as program:
            program.sendall(GREETING)
            until(lambda: "numbers" in network.connected)
            network.reconnect(resets=False)
            worker, _ = near.accept()
            with closing(worker):
                assert read(worker, len(GREETING)) == GREETING
    assert network.cuts == {"numbers": 1}
