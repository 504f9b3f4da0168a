"""Pure decisions about addresses: standard library alone, no clock, no I/O, no logging, no asyncio."""
