"""What the CLI asks and what it is told: the one set of types that the agent encodes and the CLI decodes.

The same types are made from the ledger when the agent is down, see `offline`. Times are wall time, for people (I13), in
RFC 3339 on the wire; durations are seconds. Counts that can pass 2^63 are decimal text, as in the objects' status. Text
that may be missing is empty.
"""

# No postponed annotations here: msgspec reads the types when a class is made.

import enum
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from allotment.addressing.errors import ConfigError, DecodeError
from allotment.addressing.state import StateKind
from allotment.api.meta import wire_name

__all__ = [
    "AddressFacts",
    "BlockUseReport",
    "Ended",
    "ExplainQuery",
    "ExplainReport",
    "GcItem",
    "GcKept",
    "GcQuery",
    "GcReport",
    "HistoryEntry",
    "HistoryQuery",
    "HistoryReport",
    "LeaseReport",
    "LeasesQuery",
    "LeasesReport",
    "LedgerReport",
    "NetworkReport",
    "OrphanReport",
    "OrphanState",
    "OrphansQuery",
    "OrphansReport",
    "Phase",
    "ProblemReport",
    "SourceReport",
    "SpoolReport",
    "StatusQuery",
    "StatusReport",
    "Subject",
    "UseReport",
    "UtilizationQuery",
    "UtilizationReport",
    "decode_answer",
    "decode_question",
    "encode",
    "time_of",
]


def time_of(wall: float) -> datetime:
    """Unix time as the reports have it; what no calendar can hold becomes the nearest that one can."""
    return datetime.fromtimestamp(min(max(wall, 0.0), _LATEST), UTC)


_LATEST = 253_402_300_799.0  # the end of the year 9999

StructT = TypeVar("StructT", bound=msgspec.Struct)


class _Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Arguments of a query: a field that the agent doesn't know is refused, or it would answer another question."""


class _Answer(msgspec.Struct, frozen=True, rename=wire_name):
    """Part of an answer: a field that the CLI doesn't know is passed over."""


# -- leases -----------------------------------------------------------------------------------------------------------


class LeasesQuery(_Question, frozen=True):
    """Which leases: those that fit every field that is set. `more` goes on with an earlier answer and stands alone."""

    network: str = ""
    pod: str = ""  # NAMESPACE/POD
    container: str = ""  # the ID, or its first characters (4 at least)
    address: str = ""
    more: str = ""


class LeaseReport(_Answer, frozen=True):
    """One lease. `given` is when; `boot` and `seconds` order it against other moments of that boot.

    `vm` is the virtual machine that the pod runs, by its name in the pod's namespace.
    """

    network: str
    address: str
    block: str
    container: str
    interface: str
    pod_namespace: str
    pod: str
    pod_uid: str
    conf_name: str
    kind: str
    sequence: int
    given: datetime
    boot: str
    seconds: float
    netns: str
    vm: str = ""


class LeasesReport(_Answer, frozen=True):
    """Leases in no order. `more` asks for the next page; empty on the last one.

    `sequence` is the highest number given so far. `expired` means that the listing is no longer kept: ask anew.
    """

    leases: tuple[LeaseReport, ...] = ()
    more: str = ""
    sequence: int = 0
    expired: bool = False


# -- history ----------------------------------------------------------------------------------------------------------


class HistoryQuery(_Question, frozen=True):
    """Which leases, ended and current: those that fit every field that is set, the newest first.

    `at` asks for those that were held at that time. `limit` is at most 1,000.
    """

    network: str = ""
    address: str = ""
    pod: str = ""
    container: str = ""
    at: datetime | None = None
    limit: int = 50


class Ended(_Answer, frozen=True):
    """How a lease ended."""

    at: datetime
    cause: str
    detail: str


class HistoryEntry(_Answer, frozen=True):
    """One lease of the past, or (`ended` None) a current one."""

    network: str
    address: str
    container: str
    interface: str
    pod_namespace: str
    pod: str
    pod_uid: str
    conf_name: str
    kind: str
    sequence: int
    given: datetime
    ended: Ended | None = None
    vm: str = ""


class HistoryReport(_Answer, frozen=True):
    """The newest first. `cut` means that there are more than the limit.

    `past_unknown` says why leases that ended couldn't be looked up; those that are held are there all the same.
    """

    entries: tuple[HistoryEntry, ...] = ()
    cut: bool = False
    past_unknown: str = ""


# -- explain ----------------------------------------------------------------------------------------------------------


class Subject(enum.StrEnum):
    """What a word on the command line turned out to mean."""

    ADDRESS = "address"
    POD = "pod"
    CONTAINER = "container"


class Phase(enum.StrEnum):
    """What a network is doing on this node."""

    SERVING = "serving"
    CLOSED = "closed"
    DRAINING = "draining"
    NOT_ADMITTED = "not admitted"
    GONE = "gone"  # no object names it any more, but leases of it are left


class ExplainQuery(_Question, frozen=True):
    """An address, NAMESPACE/POD, or a container ID (its first 4 characters are enough)."""

    subject: str


class AddressFacts(_Answer, frozen=True):
    """All that is known of one address in one network (or, foreign, in none).

    `held_back` says by what it is kept from being handed out (a lease may lie there all the same). `cooling_left` and
    `cooldown` are durations in seconds; `released` is when it was released last. `last` is the newest lease of it
    that ended and is still in the history. `claim` is the Claim (`namespace/name`) by which this node has it, on an L2
    network in a cluster; `role` is what that is to a virtual machine's address, Active or Standby.
    """

    address: str
    network: str
    state: StateKind
    phase: Phase | None = None
    phase_reason: str = ""
    subnet: str = ""
    block: str = ""
    held_back: tuple[str, ...] = ()
    lease: LeaseReport | None = None
    last: HistoryEntry | None = None
    released: datetime | None = None
    cooling_left: float | None = None
    cooldown: float = 0.0
    claim: str = ""
    role: str = ""


class ExplainReport(_Answer, frozen=True):
    """What the subject is and what is known of it; `addresses` and `past` empty: nothing.

    `networks` are those that this node knows, for a person who has to try again.
    """

    subject: str
    kind: Subject
    addresses: tuple[AddressFacts, ...] = ()
    past: tuple[HistoryEntry, ...] = ()
    past_unknown: str = ""
    networks: tuple[str, ...] = ()
    asked: datetime | None = None


# -- utilization ------------------------------------------------------------------------------------------------------


class UtilizationQuery(_Question, frozen=True):
    """Of one network, or of all."""

    network: str = ""


class BlockUseReport(_Answer, frozen=True):
    """The numbers of one block (or, on L2, subnet) of this node."""

    block: str
    capacity: str
    in_use: str
    reserved: str
    cooling: str
    available: str
    gives: bool = True


class UseReport(_Answer, frozen=True):
    """The numbers of a network in one family: of all its subnets, and of each block that this node has."""

    network: str
    family: int
    phase: Phase
    capacity: str
    in_use: str
    reserved: str
    cooling: str
    available: str
    blocks: tuple[BlockUseReport, ...] = ()


class UtilizationReport(_Answer, frozen=True):
    """By network, then family."""

    networks: tuple[UseReport, ...] = ()


# -- status -----------------------------------------------------------------------------------------------------------


class StatusQuery(_Question, frozen=True):
    """Nothing to say."""


class ProblemReport(_Answer, frozen=True):
    """Something wrong with what the agent was told; `line` 0 means the file as a whole."""

    file: str
    line: int
    message: str


class SourceReport(_Answer, frozen=True):
    """Where the objects come from. `doubted` says why its emptiness is not believed.

    `out_of_contact` is for how many seconds it could not be asked; None while it can.
    """

    kind: str  # manifests | cluster | ledger
    place: str
    synced: bool
    doubted: str = ""
    out_of_contact: float | None = None
    problems: tuple[ProblemReport, ...] = ()
    warnings: tuple[ProblemReport, ...] = ()


class LedgerReport(_Answer, frozen=True):
    """The ledger. Sizes are bytes; `last_write` is when something was last written to it, None if that isn't known."""

    state: str  # open | full | failed | closed (agent down)
    ledger_id: str
    folder: str
    size: int
    free: int
    last_write: datetime | None = None
    reason: str = ""
    last_error: str = ""


class SpoolReport(_Answer, frozen=True):
    """DELs that the shim kept: those that wait, and those that can't be read."""

    folder: str
    waiting: int = 0
    unreadable: int = 0


class NetworkReport(_Answer, frozen=True):
    """One network here.

    `waits_for` names the first few owners of leases that a drain waits for; `waits_for_more` is how many others
    there are.
    """

    network: str
    type: str
    phase: Phase
    reason: str = ""
    waits_for: tuple[str, ...] = ()
    waits_for_more: int = 0
    leases: int = 0
    subnets: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()


class StatusReport(_Answer, frozen=True):
    """How the agent is. `running` is false when the ledger alone could be asked, and `down` then says why."""

    node: str
    version: str
    running: bool
    ledger: LedgerReport
    source: SourceReport
    spool: SpoolReport
    networks: tuple[NetworkReport, ...] = ()
    started: datetime | None = None
    uptime: float | None = None
    not_serving: str = ""
    leases: int = 0
    resting: int = 0
    in_flight: int = 0
    asked: datetime | None = None
    down: str = ""


# -- gc ---------------------------------------------------------------------------------------------------------------


class GcItem(_Question, frozen=True):
    """One lease to free, named so that no other can be meant (I7)."""

    network: str
    address: str
    sequence: int


class GcQuery(_Question, frozen=True):
    """Free these leases. `detail` is the evidence; it goes to the history."""

    items: tuple[GcItem, ...]
    detail: str


class GcKept(_Answer, frozen=True):
    """A lease that was not freed, and why."""

    network: str
    address: str
    why: str


class GcReport(_Answer, frozen=True):
    """What was freed (it is on disk) and what was kept."""

    freed: tuple[LeaseReport, ...] = ()
    kept: tuple[GcKept, ...] = ()


# -- orphans ----------------------------------------------------------------------------------------------------------


class OrphanState(enum.StrEnum):
    """What is to become of a lease whose owner can't be found.

    ORPHAN: two looks agree; FREED: so they did, and it is freed; SUSPECTED: if the next look agrees it goes; HELD: its
    address may be in use, so it stays until a person says otherwise.
    """

    ORPHAN = "orphan"
    FREED = "freed"
    SUSPECTED = "suspected"
    HELD = "held"


class OrphansQuery(_Question, frozen=True):
    """Look for leases without an owner now, of one network or of all. `free` frees what this look and the last show."""

    network: str = ""
    free: bool = False


class OrphanReport(_Answer, frozen=True):
    """One of them; `why` is the evidence."""

    lease: LeaseReport
    state: OrphanState
    why: str


class OrphansReport(_Answer, frozen=True):
    """What the look came to.

    `searches` is false where there is no runtime and no API server to ask: then nothing else is said. `blind` says why
    this look could tell nothing. `cut` means that there are more than one answer can hold.
    """

    searches: bool
    found: tuple[OrphanReport, ...] = ()
    blind: str = ""
    cut: bool = False


# -- bytes ------------------------------------------------------------------------------------------------------------


def encode(message: msgspec.Struct) -> bytes:
    """A question or an answer as JSON."""
    return msgspec.json.encode(message)


def decode_question(data: bytes, kind: type[StructT]) -> StructT:
    """The arguments of a query.

    Raises:
        ConfigError: they are not what this agent's version of the query takes.
    """
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"the agent doesn't understand the question: {error}; are CLI and agent of one version?"
        ) from error


def decode_answer(data: bytes, kind: type[StructT]) -> StructT:
    """The agent's answer.

    Raises:
        DecodeError: it is not what this version of the CLI expects.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise DecodeError(f"the agent's answer can't be read: {error}; are CLI and agent of one version?") from error
