"""Chandy and Lamport's process: the paper's examples with toy machines on a hand-driven network."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pytest

from cutline.common.errors import ProtocolError
from cutline.common.mesh.chandy_lamport import Process
from cutline.common.mesh.machine import Effect, Event, MessageReceived, SavePart, Send, State, Ticked
from cutline.common.mesh.messages import Marker, Message, SplitsWanted

PROCESSES: list[Process] = []


@pytest.fixture(autouse=True)
def _invariants_hold() -> Iterator[None]:
    PROCESSES.clear()
    yield
    for process in PROCESSES:
        process.check()


class Account:
    """A toy machine: holds an amount; a `SplitsWanted` carries some of it over; a Ticked sends one to every peer."""

    def __init__(self, amount: int, peers: tuple[str, ...]) -> None:
        self.amount, self.peers, self.willing = amount, peers, True
        self.cuts: dict[int, tuple[int, dict[str, list[int]]]] = {}
        self.afters: list[int] = []

    def handle(self, event: Event, now: float) -> list[Effect]:
        if isinstance(event, MessageReceived):
            if not isinstance(event.message, SplitsWanted):
                raise ProtocolError("only money is taken")
            self.amount += event.message.free
            self.afters.append(event.after)
            return []
        self.amount -= len(self.peers)
        return [Send(receiver=peer, message=SplitsWanted(free=1)) for peer in self.peers]

    def ready(self) -> bool:
        return self.willing

    def snapshot(self) -> State:
        return State(head={"amount": self.amount})

    def cut(self, checkpoint: int, state: State, recorded: dict[str, list[Message]], kept: bool) -> list[Effect]:
        found = {c: [m.free for m in messages if isinstance(m, SplitsWanted)] for c, messages in recorded.items()}
        self.cuts[checkpoint] = (state.head["amount"], found)
        return [SavePart(checkpoint=checkpoint, state=state)]

    def check(self) -> None:
        pass


class Network:
    """FIFO channels between processes; a message moves only when the test says so."""

    def __init__(self, amounts: dict[str, int], pairs: list[tuple[str, str]]) -> None:
        self.channels: dict[tuple[str, str], deque[Message]] = {pair: deque() for pair in pairs}
        self.machines, self.processes = {}, {}
        for name, amount in amounts.items():
            out = tuple(r for s, r in pairs if s == name)
            self.machines[name] = Account(amount, out)
            inbound = [s for s, r in pairs if r == name]
            self.processes[name] = Process(self.machines[name], inbound=inbound, outbound=out)
            PROCESSES.append(self.processes[name])

    def out(self, name: str, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, Send):
                self.channels[name, effect.receiver].append(effect.message)
        return effects

    def tick(self, name: str) -> None:
        self.out(name, self.processes[name].handle(Ticked(), 0.0))

    def start(self, name: str, checkpoint: int) -> None:
        self.out(name, self.processes[name].start(checkpoint, False, 0.0))

    def deliver(self, sender: str, receiver: str) -> list[Effect]:
        message = self.channels[sender, receiver].popleft()
        fact = MessageReceived(channel=sender, message=message)
        return self.out(receiver, self.processes[receiver].handle(fact, 0.0))

    def deliver_all(self) -> None:
        while any(self.channels.values()):
            for (sender, receiver), queue in self.channels.items():
                while queue:
                    self.deliver(sender, receiver)

    def recorded(self, checkpoint: int) -> int:
        """The sum over the global state: local states and channel states."""
        cuts = [machine.cuts[checkpoint] for machine in self.machines.values()]
        return sum(amount + sum(map(sum, channels.values())) for amount, channels in cuts)


def two(p: int = 5, q: int = 5) -> Network:
    return Network({"p": p, "q": q}, [("p", "q"), ("q", "p")])


def test_the_single_token_is_recorded_once_where_it_is_in_flight_from_q_to_p() -> None:
    """The paper's single-token system (its figures 1 to 4, section 2), with the token in the channel as the cut is
    taken.

    1. q holds the token and sends it to p; it is in flight.
    2. p, which holds nothing, records its state and sends its marker to q.
    3. The token reaches p: p has recorded and has not had q's marker, so it is the state of channel q -> p.
    4. q meets p's marker, records that it holds nothing, and sends its marker, which ends p's recording.
    """
    network = two(p=0, q=1)
    network.tick("q")
    network.start("p", 1)
    network.deliver("q", "p")
    network.deliver("p", "q")
    network.deliver("q", "p")
    assert network.machines["p"].cuts[1] == (0, {"q": [1]})
    assert network.machines["q"].cuts[1] == (0, {"p": []})
    assert network.recorded(1) == 1


def test_a_marker_that_meets_a_message_in_flight_records_it_as_the_channels_state() -> None:
    """Two processes send each other money while a cut passes through (the paper's two-process example).

    1. p starts checkpoint 1; its marker is on the way to q.
    2. q sends one to p before the marker reaches it: that one belongs before the cut, on the channel.
    3. p sends one to q after its marker: that one is after the cut, on neither side.
    """
    network = two()
    network.start("p", 1)
    network.tick("q")
    network.tick("p")
    network.deliver_all()
    assert network.machines["p"].cuts[1] == (5, {"q": [1]})
    assert network.machines["q"].cuts[1] == (4, {"p": []})
    assert network.recorded(1) == 10


@pytest.mark.parametrize("order", range(60))
def test_any_order_of_deliveries_records_all_of_the_money(order: int) -> None:
    """Three processes, all channels; what the order of steps is follows from the number alone."""
    names = ("p", "q", "r")
    network = Network(dict.fromkeys(names, 100), [(s, r) for s in names for r in names if s != r])
    number = order * 7919 + 13
    for step in range(60):
        number = (number * 1103515245 + 12345) % (1 << 31)
        if step == 20:
            network.start(names[number % 3], 1)
        full = [pair for pair, queue in network.channels.items() if queue]
        if full and number % 5 < 3:
            network.deliver(*full[number % len(full)])
        else:
            network.tick(names[(number >> 8) % 3])
    network.deliver_all()
    assert network.recorded(1) == 300
    assert sum(machine.amount for machine in network.machines.values()) == 300


def test_the_marker_goes_before_any_later_message_on_every_channel() -> None:
    network = two()
    network.tick("p")
    network.start("p", 1)
    network.tick("p")
    assert [type(m) for m in network.channels["p", "q"]] == [SplitsWanted, Marker, SplitsWanted]


def test_a_process_with_one_inbound_channel_is_cut_by_its_marker_at_once() -> None:
    network = Network({"p": 1, "q": 1}, [("p", "q")])
    network.start("p", 3)
    assert [type(e) for e in network.deliver("p", "q")] == [SavePart]
    assert network.machines["q"].cuts == {3: (1, {"p": []})}


def test_a_message_is_told_the_last_marker_before_it_on_its_channel() -> None:
    network = two()
    network.tick("p")
    network.start("p", 4)
    network.tick("p")
    for _ in range(3):
        network.deliver("p", "q")
    assert network.machines["q"].afters == [0, 4]


def test_a_marker_waits_for_its_machine_and_what_comes_behind_it_waits_too() -> None:
    network = two()
    network.machines["q"].willing = False
    network.start("p", 1)
    network.tick("p")
    network.deliver("p", "q")
    network.deliver("p", "q")
    assert network.machines["q"].amount == 5
    assert network.machines["q"].cuts == {}
    network.machines["q"].willing = True
    network.tick("q")
    assert network.machines["q"].amount == 5
    network.deliver_all()
    assert network.recorded(1) == 10
    assert network.machines["q"].cuts[1] == (4, {"p": []})


def test_two_markers_behind_one_that_waits_are_taken_in_order() -> None:
    machine = Account(0, ())
    process = Process(machine, inbound=("p",), outbound=())
    machine.willing = False
    for message in (Marker(checkpoint=1), SplitsWanted(free=3), Marker(checkpoint=2), SplitsWanted(free=4)):
        assert process.handle(MessageReceived(channel="p", message=message), 0.0) == []
    machine.willing = True
    process.handle(Ticked(), 0.0)
    assert {n: amount for n, (amount, _) in machine.cuts.items()} == {1: 0, 2: 3}
    assert machine.amount == 7


def test_an_illegal_step_is_refused_and_leaves_the_process_as_it_was() -> None:
    machine = Account(5, ())
    process = Process(machine, inbound=("p", "q"), outbound=(), after=3)
    process.handle(MessageReceived(channel="p", message=Marker(checkpoint=4)), 0.0)
    before = repr(vars(process)), machine.amount
    illegal = (
        MessageReceived(channel="x", message=Marker(checkpoint=4)),
        MessageReceived(channel="p", message=Marker(checkpoint=4)),
        MessageReceived(channel="p", message=Marker(checkpoint=5)),
        MessageReceived(channel="q", message=Marker(checkpoint=5)),
        MessageReceived(channel="q", message=Marker(checkpoint=3)),
        MessageReceived(channel="q", message=Marker(checkpoint=2)),
    )
    for event in illegal:
        with pytest.raises(ProtocolError):
            process.handle(event, 0.0)
        assert (repr(vars(process)), machine.amount) == before
    with pytest.raises(ProtocolError):
        process.start(5, False, 0.0)
    assert (repr(vars(process)), machine.amount) == before


def test_an_initiator_refuses_a_marker_that_it_did_not_start() -> None:
    process = Process(Account(5, ()), inbound=("p",), outbound=("p",), initiator=True)
    before = repr(vars(process))
    with pytest.raises(ProtocolError):
        process.handle(MessageReceived(channel="p", message=Marker(checkpoint=4)), 0.0)
    assert repr(vars(process)) == before


def test_a_machine_that_keeps_channels_apart_itself_gets_nothing_recorded() -> None:
    machine = Account(5, ())
    process = Process(machine, inbound=("p", "q"), outbound=(), recording=False)
    process.handle(MessageReceived(channel="p", message=Marker(checkpoint=1)), 0.0)
    process.handle(MessageReceived(channel="q", message=SplitsWanted(free=1)), 0.0)
    process.handle(MessageReceived(channel="p", message=SplitsWanted(free=1)), 0.0)
    process.handle(MessageReceived(channel="q", message=Marker(checkpoint=1)), 0.0)
    assert machine.afters == [0, 1]
    assert machine.cuts[1][1] == {"p": [], "q": []}
