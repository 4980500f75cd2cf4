#!/usr/bin/env python3
"""Shows that the tests of schedules find a barrier that is missing.

Copies the sources to target/schedules, takes out one barrier after the other there, and expects that the
test of that part fails. With arguments, it takes out only the barriers whose name contains one of them.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPY = ROOT / "target" / "schedules"
# Most faults are found long before.
SCHEDULES = "3000"


@dataclass
class Fault:
    """A barrier that is taken out: each text in the file, once there, becomes the other."""

    name: str
    test: str
    file: str
    changes: list[tuple[str, str]]


FAULTS = [
    Fault(
        "budget: bytes are checked and taken under two locks",
        "budgets::no_byte_is_granted_twice_and_all_come_back",
        "src/runtime/shared_limits.rs",
        [
            (
                "        self.0.ledger().take(holder, bytes)?;\n",
                "        if bytes > self.0.ledger().free() {\n"
                "            return Err(Exhausted::Whole);\n"
                "        }\n"
                "        return Ok(self.reserve_always(holder, bytes));\n"
                "        #[expect(unreachable_code)]\n",
            )
        ],
    ),
    Fault(
        "budget: a caller counts as waiting only after it found no room",
        "budgets::a_release_wakes_all_that_wait_for_it",
        "src/runtime/shared_limits.rs",
        [
            ("        let _waiting = self.0.waiting.enter();\n", ""),
            (
                "            released.await;\n",
                "            let _waiting = self.0.waiting.enter();\n            released.await;\n",
            ),
        ],
    ),
    Fault(
        "budget: a release wakes before it gives back",
        "budgets::a_release_wakes_all_that_wait_for_it",
        "src/runtime/shared_limits.rs",
        [
            ("        self.budget.ledger().give_back(self.holder, self.bytes);\n", ""),
            (
                "            self.budget.released.notify_waiters();\n        }\n",
                "            self.budget.released.notify_waiters();\n        }\n"
                "        self.budget.ledger().give_back(self.holder, self.bytes);\n",
            ),
        ],
    ),
    Fault(
        "arena: a reader does not check if its record was moved",
        "arena::a_body_is_read_as_it_was_put_while_others_come_and_go",
        "src/body_store/lib.rs",
        [
            (
                "            if arena.moves.load(Ordering::SeqCst) == moves {\n",
                "            if moves < u64::MAX {\n",
            )
        ],
    ),
    Fault(
        "arena: blocks are used again before their head is invalid",
        "arena::a_process_that_takes_over_at_any_moment_finds_all_bodies",
        "src/body_store/lib.rs",
        [
            (
                "        let first = block_offset(freed.blocks.start);\n",
                "        self.room().reuse(freed.clone());\n"
                "        let first = block_offset(freed.blocks.start);\n",
            ),
            ("        self.room().reuse(freed);\n", ""),
        ],
    ),
    Fault(
        "arena: the state of a message is written without the lock",
        "arena::a_process_that_takes_over_at_any_moment_finds_all_bodies",
        "src/body_store/lib.rs",
        [
            (
                "        let room = self.arena.room();\n        let place = room.place(self.slot);\n"
                "        let at = place.offset() + LIVE_AT as u64;\n",
                "        let place = self.arena.room().place(self.slot);\n"
                "        let at = place.offset() + LIVE_AT as u64;\n",
            )
        ],
    ),
    Fault(
        "store: rows leave the memory before snapshots have them",
        "store::an_accepted_message_is_in_every_read_and_after_an_end_at_any_moment",
        "src/store/redb/database.rs",
        [
            (
                "        let published = published_tables(database)?;\n",
                "        self.recent_rows.clear();\n"
                "        let published = published_tables(database)?;\n",
            )
        ],
    ),
    Fault(
        "store: a batch can be read before it is in the journal",
        "store::an_accepted_message_is_in_every_read_and_after_an_end_at_any_moment",
        "src/store/redb/database.rs",
        [
            (
                "        let mut guard = locked(&self.journal);\n"
                "        let journal = guard.as_mut().ok_or_else(closed)?;\n"
                "        journal.make_room(",
                "        self.recent_rows.add(&changes);\n"
                "        let mut guard = locked(&self.journal);\n"
                "        let journal = guard.as_mut().ok_or_else(closed)?;\n"
                "        journal.make_room(",
            )
        ],
    ),
    Fault(
        "store: a checkpoint is made before the journal has its mark",
        "store::an_accepted_message_is_in_every_read_and_after_an_end_at_any_moment",
        "src/store/redb/database.rs",
        [
            (
                "        let checkpoint = self.mark_checkpoint()?;\n",
                "        let checkpoint =\n"
                "            locked(&self.journal).as_ref().ok_or_else(closed)?.checkpoint();\n",
            ),
            (
                "        self.commit(database, transaction)?;\n        if let Some(journal)",
                "        self.commit(database, transaction)?;\n        self.mark_checkpoint()?;\n"
                "        if let Some(journal)",
            ),
        ],
    ),
    Fault(
        "store: callers are answered before the feed has their entries",
        "store::the_feed_is_read_in_one_order_without_a_gap",
        "src/store/redb/writer/thread.rs",
        [
            (
                "            outcome = Ok(());\n        }\n        answer(operations, outcome);\n",
                "        }\n",
            ),
            (
                "        let Attempt { operations, written, started } = batch;\n",
                "        let Attempt { operations, written, started } = batch;\n"
                "        let count = operations.len();\n"
                "        if matches!(written, Written::Durably(_)) {\n"
                "            outcome = Ok(());\n"
                "        }\n"
                "        answer(operations, outcome);\n",
            ),
            (
                "memory.metrics.committed(operations.len(),",
                "memory.metrics.committed(count,",
            ),
        ],
    ),
]


def copy_sources() -> None:
    """Copies what git knows or would add; leaves files that are the same, so that cargo does too."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        source, copy = ROOT / name, COPY / name
        if not source.is_file():
            continue
        if not copy.is_file() or copy.read_bytes() != source.read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)


def try_out(fault: Fault) -> str:
    """Returns what the test says with the fault in the sources."""
    path = COPY / fault.file
    text = original = path.read_text()
    for before, after in fault.changes:
        if text.count(before) != 1:
            sys.exit(f"{fault.name}: {fault.file} has {text.count(before)} times:\n{before}")
        text = text.replace(before, after)
    path.write_text(text)
    command = ["cargo", "test", "-p", "pillarbox-schedules", "--", "--exact", fault.test]
    target = os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target"))
    try:
        tried = subprocess.run(
            command,
            cwd=COPY,
            env={"SCHEDULES": SCHEDULES} | os.environ | {"CARGO_TARGET_DIR": target},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    finally:
        path.write_text(original)
    found = re.search(r"failed in schedule (\d+)", tried.stdout)
    if tried.returncode == 0:
        return "NOT FOUND"
    if not found:
        sys.exit(f"{fault.name}: the test could not run:\n{tried.stdout}")
    return f"found in schedule {found[1]}"


def main() -> None:
    """Tries the faults."""
    parts = sys.argv[1:] or [""]
    wanted = [fault for fault in FAULTS if any(part in fault.name for part in parts)]
    copy_sources()
    missed = 0
    for fault in wanted:
        result = try_out(fault)
        missed += result == "NOT FOUND"
        print(f"{fault.name}: {result}", flush=True)
    if missed or not wanted:
        sys.exit(f"{missed} of {len(wanted)} faults were not found")


if __name__ == "__main__":
    main()
