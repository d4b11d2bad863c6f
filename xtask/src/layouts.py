# Run by gdb on a program with Tokio's debug information: where the words of the two
# schedulers are, in bytes from the number of the list of tasks.
import re

import gdb

SCHEDULER = "tokio::runtime::scheduler::"
HANDLES = [("multi-thread", "multi_thread::handle::Handle"), ("current-thread", "current_thread::Handle")]
NUMBER = r"owned\..*\bid\b"
WORDS = [
    ("remotes", r"^shared\.remotes\.length"),
    ("worker_metrics", r"^shared\.worker_metrics\.length"),
    ("num_workers", r"^shared\.idle.*num_workers"),
    ("len", r"^shared\.inject.*\.len\."),
    ("head", r"inject.*\.head\."),
    ("tail", r"inject.*\.tail\."),
    ("is_closed", r"inject.*is_closed"),
    ("lists", r"owned.*lists\.length"),
    ("list.head", r"owned.*list\.head\."),
    ("list.tail", r"owned.*list\.tail\."),
    ("count", r"owned.*count"),
    ("mask", r"owned.*mask"),
    ("closed", r"owned.*closed"),
]


def leaves(kind, offset, path):
    kind = kind.strip_typedefs()
    if kind.code != gdb.TYPE_CODE_STRUCT:
        yield offset, path
        return
    for field in kind.fields():
        if hasattr(field, "bitpos"):
            yield from leaves(field.type, offset + field.bitpos // 8, f"{path}.{field.name or '?'}".lstrip("."))


for name, handle in HANDLES:
    found = sorted(leaves(gdb.lookup_type(SCHEDULER + handle), 0, ""))
    numbers = [offset for offset, path in found if re.search(NUMBER, path)]
    if not numbers:
        print(f"  {name}: no number")
        continue
    words = []
    for word, pattern in WORDS:
        offsets = [offset for offset, path in found if re.search(pattern, path)]
        if offsets:
            words.append(f"{word}{offsets[0] - numbers[0]:+}")
    print(f"  {name}:", *words)
