"""Takes the times at which certificates were added out of Java's trust store, which is new in each build."""

import hashlib
import struct
import sys

MAGIC, VERSION = 0xFEEDFEED, 2
# Debian's store has the usual password. Its digest is over the password, this text and the entries.
KEY = "changeit".encode("utf-16-be") + b"Mighty Aphrodite"

path = sys.argv[1]
with open(path, "rb") as file:
    store = file.read()


def after_text(at):
    (size,) = struct.unpack_from(">H", store, at)
    return at + 2 + size


magic, version, count = struct.unpack_from(">III", store)
assert (magic, version) == (MAGIC, VERSION), "no keystore of this version"
parts, at = [store[:12]], 12
for _ in range(count):
    date = after_text(at + 4)
    size = after_text(date + 8)
    (length,) = struct.unpack_from(">I", store, size)
    end = size + 4 + length
    parts += [store[at:date], bytes(8), store[date + 8 : end]]
    at = end
assert hashlib.sha1(KEY + store[:at]).digest() == store[at:], "the digest is another one"
body = b"".join(parts)
with open(path, "wb") as file:
    file.write(body + hashlib.sha1(KEY + body).digest())
