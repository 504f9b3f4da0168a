"""What a killed or troubled run may leave on the disk, judged by what the outside world was told."""

from dataclasses import dataclass, field

from allotment.addressing.address import parse_address


@dataclass
class Told:
    """The words of one run (`worker.py`): what was acknowledged, and what was asked and never answered."""

    held: dict = field(default_factory=dict)  # address -> (container, sequence)
    released: set = field(default_factory=set)
    open_grants: set = field(default_factory=set)  # (address, container, sequence)
    open_releases: set = field(default_factory=set)
    notes: list = field(default_factory=list)


def read_journal(path, before):
    """The words in `path`, where the ledger held the state `before` when the run began."""
    told = Told(held={lease.address: (lease.owner.container_id, lease.sequence) for lease in before.leases})
    told.released = {
        rest.first + step for rest in before.rests for step in range(rest.last.value - rest.first.value + 1)
    }
    lines = path.read_text().splitlines() if path.exists() else []
    for line in lines:
        word, _, text = line.partition(" ")
        if word not in ("ask", "got"):
            told.notes.append(line)
            continue
        change, address, container, sequence = text.split()
        address = parse_address(address)
        lease = (address, container, int(sequence))
        pending = told.open_grants if change == "grant" else told.open_releases
        if word == "ask":
            pending.add(lease)
            continue
        pending.discard(lease)
        if change == "grant":
            assert address not in told.held, f"{address} was given twice (I1): {line}"
            told.held[address] = lease[1:]
            told.released.discard(address)
        else:
            assert told.held.pop(address) == lease[1:], f"another lease was released than held (I7): {line}"
            told.released.add(address)
    return told


def judge(told, state, *, exact=False):
    """Compare what was told with the `state` found on the disk; `exact` when no request was cut short."""
    found = {lease.address: (lease.owner.container_id, lease.sequence) for lease in state.leases}
    assert len(found) == len(state.leases), "one address, two leases (I1)"
    for address, holder in told.held.items():
        undone = (address, *holder) in told.open_releases and not exact
        assert found.get(address) == holder or undone, f"the acknowledged lease of {address} is lost (I2)"
    for address, holder in found.items():
        begun = (address, *holder) in told.open_grants and not exact
        assert told.held.get(address) == holder or begun, f"nobody asked for the lease of {address} that is there"
    for _, container, _ in told.open_grants | told.open_releases:
        count = sum(holder[0] == container for holder in found.values())
        assert count in (0, 2), f"{container} holds {count} of its 2 addresses: half-done"
    resting = {rest.first + step for rest in state.rests for step in range(rest.last.value - rest.first.value + 1)}
    for address in told.released:
        assert address in resting or address in found, f"{address} was released and does not rest (I3)"
    highest = max([sequence for _, sequence in told.held.values()], default=0)
    assert state.sequence >= highest, "the counter of sequence numbers went back (I7)"
