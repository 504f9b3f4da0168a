"""HPACK (RFC 7541) as far as we need it: we send literals, and read what a server sends us.

Our SETTINGS say that the dynamic table has no room. A server that keeps to them refers to the static table alone; it
may still say "add to the table" of a literal, which then adds nothing (section 4.4), and Huffman-code any string.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from allotment.addressing.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Header", "decode", "decode_huffman", "encode", "huffman_codes"]

Header = tuple[str, str]
"""Name and value. Octets that are not ASCII are shown as Latin-1 shows them."""

_LARGEST_INTEGER: Final = 1 << 24

_WITHOUT_VALUE: Final = (
    "accept-language",
    "accept-ranges",
    "accept",
    "access-control-allow-origin",
    "age",
    "allow",
    "authorization",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-range",
    "content-type",
    "cookie",
    "date",
    "etag",
    "expect",
    "expires",
    "from",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "link",
    "location",
    "max-forwards",
    "proxy-authenticate",
    "proxy-authorization",
    "range",
    "referer",
    "refresh",
    "retry-after",
    "server",
    "set-cookie",
    "strict-transport-security",
    "transfer-encoding",
    "user-agent",
    "vary",
    "via",
    "www-authenticate",
)
# RFC 7541, appendix A: index 1 is the first.
_STATIC: Final[tuple[Header, ...]] = (
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    *((name, "") for name in _WITHOUT_VALUE),
)

# RFC 7541, appendix B. The code is canonical, so that the lengths in bits of the 256 octets and of the end say it all:
# codes of one length are consecutive numbers in the order of the octets. A letter is a length: `a` 5 … `z` 30.
_LENGTHS: Final = bytes(
    letter - ord("a") + 5
    for letter in (
        b"isxxxxxxxtzxxzxxxxxxxxzxxxxxxxxxbffhibdgffdgdbbbaaabbbbbbbcdkbhf"
        b"ibccccccccccccccccccccccdcdioijbkabababbbaccbbbabcbaabccccckgjix"
        b"prpprrrsrssssststtrstssssqrsrsstrqprrssqsrrtqrssqqrqsrssprrrsrrs"
        b"vvporsruvvvwwvtuoqvwwvwtqqvvxwwwptpqrqqsrruuttvsvwvvwwwwwxwwwwwv"
    )
)
_END: Final = 256
_END_LENGTH: Final = 30


def huffman_codes() -> dict[int, tuple[int, int]]:
    """Each octet's (length in bits, code); 256 is the end of a string, of which only the beginning is ever sent."""
    codes: dict[int, tuple[int, int]] = {}
    code = before = 0
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate((*_LENGTHS, _END_LENGTH))):
        code <<= length - before
        codes[symbol] = (length, code)
        code, before = code + 1, length
    return codes


_SYMBOLS: Final = {meaning: symbol for symbol, meaning in huffman_codes().items()}


def decode_huffman(data: bytes) -> bytes:
    """The octets that were coded.

    Raises:
        DecodeError: the code of the end is in it, or the padding is not what section 5.2 demands.
    """
    found = bytearray()
    length = code = 0
    for octet in data:
        for shift in range(7, -1, -1):
            code = code << 1 | octet >> shift & 1
            length += 1
            symbol = _SYMBOLS.get((length, code))
            if symbol is None:
                if length >= _END_LENGTH:
                    raise DecodeError("a Huffman-coded header holds a code that there is not")
                continue
            if symbol == _END:
                raise DecodeError("a Huffman-coded header holds the code of the end")
            found.append(symbol)
            length = code = 0
    if length > 7 or code != (1 << length) - 1:
        raise DecodeError("a Huffman-coded header is padded with something else than ones")
    return bytes(found)


def encode(headers: Iterable[Header]) -> bytes:
    """A header block of literals that leave the receiver's table as it is (section 6.2.2).

    Raises:
        ValueError: a name or a value is not ASCII.
    """
    block = bytearray()
    for name, value in headers:
        block.append(0)  # with a name of its own
        for text in (name, value):
            octets = text.encode("ascii")
            block += _integer(len(octets), 7) + octets
    return bytes(block)


def decode(block: bytes) -> tuple[Header, ...]:
    """The headers of a whole block.

    Raises:
        DecodeError: it is no header block, or refers to a table that our SETTINGS left no room for.
    """
    reader = _Reader(block)
    found: list[Header] = []
    while reader.more:
        first = reader.peek
        if first & 0x80:  # section 6.1: the whole header is in the table
            found.append(_entry(reader.integer(7)))
        elif first & 0xE0 == 0x20:  # section 6.3: the size of the dynamic table, which has to stay 0
            if reader.integer(5) != 0:
                raise DecodeError("the sender wants a dynamic header table, and was told that there is none")
        else:  # sections 6.2.1 to 6.2.3; to add to a table without room changes nothing
            index = reader.integer(6 if first & 0x40 else 4)
            name = _entry(index)[0] if index else reader.text()
            found.append((name, reader.text()))
    return tuple(found)


class _Reader:
    """Takes a block apart from its beginning."""

    def __init__(self, block: bytes) -> None:
        self._block = block
        self._at = 0

    @property
    def more(self) -> bool:
        return self._at < len(self._block)

    @property
    def peek(self) -> int:
        return self._block[self._at]

    def _octet(self) -> int:
        if not self.more:
            raise DecodeError("a header block ends in the middle of a header")
        self._at += 1
        return self._block[self._at - 1]

    def integer(self, bits: int) -> int:
        """Section 5.1: a number that begins in the last `bits` bits of the next octet."""
        most = (1 << bits) - 1
        value = self._octet() & most
        if value < most:
            return value
        shift = 0
        while True:
            octet = self._octet()
            value += (octet & 0x7F) << shift
            if value > _LARGEST_INTEGER or shift > 28:
                raise DecodeError("a header block holds a number that is too large")
            if not octet & 0x80:
                return value
            shift += 7

    def text(self) -> str:
        """Section 5.2: a string, coded or not."""
        coded = self.more and bool(self.peek & 0x80)
        length = self.integer(7)
        octets = self._block[self._at : self._at + length]
        if len(octets) < length:
            raise DecodeError("a header block ends in the middle of a header")
        self._at += length
        return (decode_huffman(octets) if coded else octets).decode("latin-1")


def _integer(value: int, bits: int) -> bytes:
    most = (1 << bits) - 1
    if value < most:
        return bytes((value,))
    found = bytearray((most,))
    value -= most
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _entry(index: int) -> Header:
    if not 1 <= index <= len(_STATIC):
        raise DecodeError(f"a header block refers to entry {index} of a table that has {len(_STATIC)}")
    return _STATIC[index - 1]
