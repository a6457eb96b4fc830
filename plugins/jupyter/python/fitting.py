"""Keeps a cell's results and errors within the message size that the server accepts: a larger message would end the
kernel and its state.
"""

import sys

# Longest escape of a character: \\uXXXX.
WIDEST = 6


def packed_to_fit(content, most_bytes, pack):
    """The packed content of a result message. The largest of its representations are left out with a note on stderr,
    and its text is cut, until it has no more than `most_bytes`.
    """
    packed = pack(content)
    if len(packed) <= most_bytes:
        return packed
    data = dict(content["data"])
    sizes = {mime: len(pack(value)) for mime, value in data.items()}
    excess = len(packed) - most_bytes
    for mime in sorted(sizes, key=sizes.get, reverse=True):
        if excess <= 0:
            break
        excess -= sizes[mime]
        value = data.pop(mime)
        if mime == "text/plain" and isinstance(value, str):
            data[mime] = _cut(value, most_bytes // WIDEST // 2)
        else:
            print(f"[{mime} left out: {sizes[mime]} bytes are more than a message may have]", file=sys.stderr)
    return pack({**content, "data": data})


def error_to_fit(content, most_bytes):
    """The content of an error message, with its value and traceback cut."""
    value, traceback = str(content["evalue"]), content["traceback"]
    most = most_bytes // WIDEST // 4
    if len(value) + sum(map(len, traceback)) <= most:
        return content
    text = "\n".join(traceback)
    return {**content, "evalue": _cut(value, most), "traceback": [_cut(text, most)]}


def _cut(text, most):
    return text if len(text) <= most else f"{text[:most]}\n[truncated: {len(text) - most} more characters]"
