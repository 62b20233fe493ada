"""Messages of known length between the judge and an answer's process; this loads no torch. See `wire`."""

import json
import struct
from typing import IO, Any

LARGEST = 64 << 20
"""Bytes of one message."""


class Malformed(ValueError):
    """A message that the answer's process would not have written."""


def send(stream: IO[bytes], message: bytes) -> None:
    """Write a message with its length."""
    stream.write(struct.pack("!Q", len(message)) + message)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes | None:
    """The next message; None at the end, or if it is longer than any may be."""
    head = stream.read(8)
    if len(head) < 8 or (length := struct.unpack("!Q", head)[0]) > LARGEST:
        return None
    message = stream.read(length)
    return message if len(message) == length else None


def dumps(said: Any) -> bytes:
    """As bytes of JSON."""
    return json.dumps(said).encode()


def loads(message: bytes) -> Any:
    """From bytes of JSON; Malformed if it is none."""
    try:
        return json.loads(message)
    except (ValueError, RecursionError):
        raise Malformed("what came from the answer is no JSON") from None
