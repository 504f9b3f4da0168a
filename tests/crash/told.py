"""What callers were told, and what may therefore be true: the judge of an agent that is killed again and again.

Nothing here knows how the agent works. An attachment is certain while its last call was answered; a call without an
answer (killed, hung up, refused for the time being) leaves open whether it took effect, until the next answer or
the next look at a quiet agent says which.
"""

import itertools
from dataclasses import dataclass, field


@dataclass(eq=False)
class Attachment:
    """One container in one network."""

    network: str
    container: str
    certain: tuple | None = ()
    """The addresses that it holds, () for none, None while that is open."""
    before: tuple = ()
    """While open: the addresses that it held when it was last certain."""
    may_have_none: bool = True
    may_have_new: bool = False
    ending_since: float | None = None
    """When the first DEL was sent that may have ended what it held."""
    hung_up: bool = False
    """Open only because its caller hung up during ADD: a living agent takes that back."""
    ending: bool = False
    """It will end without being asked again: its DEL is kept, or the machine was restarted."""

    def allows(self, found):
        """Whether it may be found with these addresses."""
        if self.certain is not None:
            return found == self.certain
        if not found:
            return self.may_have_none
        return (bool(self.before) and found == self.before) or (self.may_have_new and len(found) == 2)

    def __str__(self):
        state = (
            f"certain of {self.certain}"
            if self.certain is not None
            else (f"open: held {self.before}, may have none: {self.may_have_none}, may have new: {self.may_have_new}")
        )
        return f"{self.network}/{self.container} ({state}, ending: {self.ending})"


@dataclass(eq=False)
class Told:
    """All attachments of one agent. Times are `agents.now()`; `cooldown` is in seconds."""

    cooldown: float
    attachments: dict = field(default_factory=dict)  # (network, container) -> Attachment
    """Those that may have addresses; the others are forgotten when an agent is looked at."""
    _holder: dict = field(default_factory=dict)  # (network, address) -> Attachment, certain and not about to end
    _released: dict = field(default_factory=dict)  # (network, address) -> the earliest that its last release can be
    _sequences: dict = field(default_factory=dict)  # sequence -> (network, container, address)

    def attachment(self, network, container):
        return self.attachments.setdefault((network, container), Attachment(network, container))

    # -- calls

    def add_sent(self, item, *, hangs_up=False):
        self.attachments[item.network, item.container] = item
        if item.certain == ():
            self._open(item)
            item.hung_up = hangs_up
        elif item.certain is None:
            item.hung_up = item.hung_up and hangs_up
        if item.certain is None and item.may_have_none:
            item.may_have_new = True

    def add_answered(self, item, addresses, when):
        assert len(addresses) == 2, f"{item} was given {addresses}: dual-stack is all or nothing"
        assert item.allows(addresses), f"{item} was given {addresses} (I2)"
        # What was to end has ended before anybody is told of new addresses, be they the same ones.
        new = item.ending or addresses not in (item.certain, item.before)
        if item.certain is None and item.before and new:
            self._gone(item)
        for address in addresses:
            place = (item.network, address)
            holder = self._holder.get(place)
            assert holder in (None, item), f"{address} was given to {item} and is held by {holder} (I1)"
            if new and place in self._released:
                rested = when - self._released[place]
                assert rested >= self.cooldown, f"{address} was given to {item} after {rested:.3f} s of rest (I3)"
            self._holder[place] = item
        self._settle(item, addresses)

    def delete_sent(self, item, when):
        if item.certain == ():
            return
        if item.certain is not None:
            self._open(item)
        if item.ending_since is None:
            item.ending_since = when
        item.may_have_none = True
        item.hung_up = False

    def delete_answered(self, item):
        self._gone(item)
        self._settle(item, ())

    def refused_for_good(self, item):
        """An ADD was refused because there is no address: then it holds none either."""
        assert item.allows(()), f"{item} was refused an address, and has one (I2)"
        self._gone(item)
        self._settle(item, ())

    # -- the world

    def rebooted(self, when):
        """The machine was restarted: what there was ends, and every rest begins anew."""
        for item in self.attachments.values():
            self.delete_sent(item, when)
            item.ending = True
        for place in self._released:
            self._released[place] = when

    def lost(self, *known):
        """The ledger is lost. What nobody but it knew of, all but the attachments `known`, is gone without a rest."""
        for item in self.attachments.values():
            if item.certain and item not in known:
                self._open(item)
                item.may_have_none = item.ending = True
        self._released.clear()
        self._sequences.clear()

    # -- looks

    def judge(self, leases, *, settle, drained=False):
        """Compare with `leases` of the agent or its ledger.

        `settle` says that the agent is quiet: what is open is then as it is found. `drained` says that it ended in
        order, having taken back what callers who hung up were given.
        """
        found = {}
        for lease in leases:
            owner = getattr(lease, "owner", lease)
            container = getattr(owner, "container_id", None) or owner.container
            found.setdefault((owner.network, container), []).append(str(lease.address))
            meant = self._sequences.setdefault(lease.sequence, (owner.network, container, str(lease.address)))
            assert meant == (owner.network, container, str(lease.address)), (
                f"sequence number {lease.sequence} was of {meant}, and now of {container} and {lease.address} (I7)"
            )
        places = [(network, address) for (network, _), addresses in found.items() for address in addresses]
        assert len(places) == len(set(places)), "one address, two leases (I1)"
        for key in found:
            assert key in self.attachments, f"{key} has addresses, and was released or never asked for"
        for key, item in list(self.attachments.items()):
            addresses = tuple(sorted(found.get(key, ())))
            assert item.allows(addresses), f"{item} was found with {addresses} (I2)"
            if drained and item.hung_up and item.certain is None:
                assert not addresses, f"{item} was found with {addresses}, though its caller hung up"
            if settle and item.ending:
                assert not addresses, f"{item} was found with {addresses}, though it was to end"
            if settle and item.certain is None:
                if addresses != item.before:
                    self._gone(item)
                for address in addresses:
                    self._holder[item.network, address] = item
                self._settle(item, addresses)
            if settle and item.certain == ():
                del self.attachments[key]

    def history(self, rows, leases):
        """Judge the whole past: `rows` of the history with the `leases` that are held now (I1, I3, I7)."""
        lives = {}
        numbers = {}
        for entry in [*rows, *leases]:
            place = (entry.owner.network, str(entry.address))
            began, ended = (entry.began, entry.ended) if hasattr(entry, "began") else (entry.wall, None)
            lives.setdefault(place, []).append((began, ended, entry.sequence))
            meant = numbers.setdefault(entry.sequence, place)
            assert meant == place, f"sequence number {entry.sequence} is of {meant} and of {place} (I7)"
        assert len(numbers) == len(rows) + len(leases), "a sequence number was given twice (I7)"
        for place, times in lives.items():
            times.sort(key=lambda life: life[2])
            for (_, ended, number), (began, _, after) in itertools.pairwise(times):
                assert ended is not None, f"lease {after} of {place} began while {number} had not ended (I1)"
                assert began - ended >= self.cooldown - 0.05, f"{place} rested {began - ended:.3f} s (I3)"

    # -- inside

    def _open(self, item):
        """Its next state is not known yet."""
        item.before, item.certain = item.certain, None
        item.may_have_none, item.may_have_new, item.ending_since = not item.before, False, None
        for address in item.before:
            self._holder.pop((item.network, address), None)

    def _gone(self, item):
        """What it held is released, at the time of the first DEL at the earliest."""
        for address in item.before if item.certain is None else ():
            if item.ending_since is not None:
                self._released[item.network, address] = item.ending_since

    def _settle(self, item, addresses):
        item.certain, item.before = addresses, ()
        item.may_have_none, item.may_have_new, item.ending_since = True, False, None
        item.hung_up = item.ending = False
