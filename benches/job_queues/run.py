#!/usr/bin/env python3
"""Measures pillarbox beside two job queues with the SDK of SES: BullMQ on Redis, and Graphile Worker on
PostgreSQL. All three send to pillarbox's simulator of SES.

    benches/job_queues/run.py target/dist/pillarbox

Needs wrk, npm, Redis and PostgreSQL (Debian: wrk npm redis-server postgresql); starts its own servers
and stops them. Packages from npm, data and results go below target/bench/job_queues.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import glob
import json
import os
import pathlib
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

# Leaves nothing beside the sources.
sys.dont_write_bytecode = True

import report
from systems import DOMAIN, HERE, TICKS_PER_SECOND, BullMq, GraphileWorker, Pillarbox, Simulator, request

OUTPUT = HERE.parent.parent / "target/bench/job_queues"
SYSTEMS = [Pillarbox, BullMq, GraphileWorker]
CONNECTIONS = [1, 64]
# Latency of a call to SES while throughput is measured.
LATENCY_MS = 20
# States that a message does not leave any more.
FINAL = ("sent", "failed", "deleted", "suppressed")


def find_programs(pillarbox):
    """Where the programs are; installs the packages from npm."""
    missing = [name for name in ("wrk", "npm", "redis-server") if not shutil.which(name)]
    servers = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[4]))
    if not servers:
        missing.append("postgresql")
    if missing:
        sys.exit(f"Install {', '.join(missing)} first.")
    OUTPUT.mkdir(parents=True, exist_ok=True)
    lock = HERE / "package-lock.json"
    installed = OUTPUT / "node_modules/.installed"
    for file in [lock, HERE / "package.json", *HERE.glob("*.mjs")]:
        shutil.copy(file, OUTPUT)
    if not installed.exists() or installed.read_text() != lock.read_text():
        subprocess.run(["npm", "ci", "--silent", "--no-fund", "--no-audit"], cwd=OUTPUT, check=True)
        installed.write_text(lock.read_text())
    return {
        "pillarbox": pathlib.Path(pillarbox).resolve(), "modules": OUTPUT,
        "redis-server": shutil.which("redis-server"), "postgres": pathlib.Path(servers[-1]),
    }


def versions(programs):
    def first_line(*command):
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]

    packages = json.loads((HERE / "package.json").read_text())["dependencies"]
    return {
        "pillarbox": first_line(programs["pillarbox"], "--version"),
        "redis": first_line(programs["redis-server"], "--version"),
        "postgres": first_line(programs["postgres"] / "postgres", "--version"), **packages,
    }


def message(key, recipient):
    """The receipt of benches/message.rs: 2,500 bytes as JSON."""
    line = ('<tr><td class="item">Blue notebook, A5, 160 pages</td><td>2</td>'
            "<td>&euro;\u00a07.90</td></tr>\n")
    filler = "It leaves our house today. " * 100

    def build(length):
        return {
            "from": f"Example Shop <orders@{DOMAIN}>",
            "to": [recipient],
            "reply_to": f"help@{DOMAIN}",
            "subject": "Your order 4711 is on its way",
            "html": '<!doctype html>\n<html><body style="font-family: sans-serif">\n'
                    f"<h1>Thank you for your order</h1>\n<table>\n{line * 8}</table>\n"
                    f"<p>{filler[:length]}</p>\n"
                    '<p><a href="https://shop.example.com/orders/4711">Your order</a></p>\n</body></html>\n',
            "text": "Thank you for your order.\n\n2 x Blue notebook, A5, 160 pages: EUR 7.90\n\n"
                    "Your order: https://shop.example.com/orders/4711\n",
            "headers": {"X-Order": "4711"},
            "tag": "transactional",
            "idempotencyKey": key,
        }

    return build(2_500 - len(json.dumps(build(0), ensure_ascii=False, separators=(",", ":")).encode()))


@contextlib.contextmanager
def running(system, programs, latency_ms, sending=True, **options):
    """A new system of a kind with a simulator, both gone at the end."""
    with contextlib.ExitStack() as stack:
        directory = pathlib.Path(tempfile.mkdtemp(dir=OUTPUT, prefix="data-"))
        stack.callback(shutil.rmtree, directory)
        # The user of PostgreSQL's server passes through.
        directory.chmod(0o711)
        simulator = Simulator(directory)
        stack.callback(simulator.stop)
        simulator.start(programs, latency_ms)
        instance = system(directory, simulator, programs, **options)
        stack.callback(instance.stop)
        instance.start(sending)
        yield instance


def busy_seconds():
    """Processor time that the machine has used."""
    times = list(map(int, pathlib.Path("/proc/stat").read_text().split()[1:9]))
    idle, waiting = times[3:5]
    return (sum(times) - idle - waiting) / TICKS_PER_SECOND


class Meter:
    """Processor time from now on: of a system, and of what has nothing to do with it."""

    def __init__(self, system):
        self.system = system
        self.begun = time.monotonic()
        self.before = self.read()

    def read(self):
        used = self.system.processes.processor_seconds()
        ours = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        ours = sum(usage.ru_utime + usage.ru_stime for usage in ours)
        return used, busy_seconds() - used - ours - self.system.simulator.processes.processor_seconds()

    def stop(self):
        """Returns the system's seconds, and the others' share of the machine."""
        used, others = (now - before for now, before in zip(self.read(), self.before))
        return used, others / (time.monotonic() - self.begun) / os.cpu_count()


def load(system, connections, seconds):
    """Sends new messages by wrk; returns how many were accepted, and in which time."""
    body = system.directory / "body"
    body.write_text(json.dumps(message("order-UNIQUE_NUMBER", "Ada Lovelace <ada.lovelace@example.org>"),
                               ensure_ascii=False, separators=(",", ":")))
    done = subprocess.run(
        ["wrk", f"-t{min(2, connections)}", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s",
         "-s", HERE.parent / "load.lua", f"http://127.0.0.1:{system.port}"],
        env={**os.environ, "BODY": str(body), "RUN_ID": str(time.monotonic_ns()),
             "AUTHORIZATION": system.headers.get("Authorization", "none")},
        capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout.splitlines()[-1])
    if seen["refused"] or seen["broken"]:
        sys.exit(f"{system.name}: not all requests got 200: {seen}\n"
                 + system.processes.log.read_text()[-2000:])
    return seen


def measure_acceptance(kind, programs, seconds):
    """What it takes to accept messages that wait."""
    figures = {}
    with running(kind, programs, 0, sending=False) as system:
        for connections in CONNECTIONS:
            # Node compiles what it runs often.
            load(system, connections, seconds)
            meter = Meter(system)
            seen = load(system, connections, seconds)
            used, others = meter.stop()
            figures[f"accepted_{connections}"] = seen["requests"] / seen["duration_us"] * 1e6
            figures[f"accept_p99_ms_{connections}"] = seen["p99_us"] / 1e3
            figures[f"accept_processor_us_{connections}"] = used / seen["requests"] * 1e6
            figures["others"] = max(others, figures.get("others", 0))
    return figures


def measure_sending(kind, programs, seconds):
    """From the first request until SES has all messages."""
    with running(kind, programs, LATENCY_MS) as system:
        time.sleep(1)
        idle = system.processes.memory_bytes()
        warm = load(system, 64, seconds)["requests"]
        wait_for_accepted(system.simulator, warm)
        meter = Meter(system)
        count = load(system, 64, seconds)["requests"]
        wait_for_accepted(system.simulator, warm + count)
        elapsed = time.monotonic() - meter.begun
        # What follows the last call, such as the end of its job.
        time.sleep(0.5)
        used, others = meter.stop()
        return {
            "sent": count / elapsed, "sent_processor_us": used / count * 1e6,
            "idle_bytes": idle, "sent_bytes": system.processes.memory_bytes(), "others": others,
        }


def wait_for_accepted(simulator, count, limit=300):
    end = time.monotonic() + limit
    while (accepted := simulator.accepted()) < count:
        if time.monotonic() > end:
            sys.exit(f"SES has only {accepted} of {count} messages")
        time.sleep(0.02)


def post(system, count):
    """Posts messages over 16 connections; returns the ids of the accepted ones by recipient."""
    def one(number):
        recipient = f"customer-{number}@example.org"
        with contextlib.suppress(OSError, ValueError):
            status, answer = request(system.port, "POST", "/emails", message(f"order-{number}", recipient),
                                     {"Content-Type": "application/json", **system.headers})
            if status == 200:
                return recipient, answer["id"]

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        return dict(filter(None, pool.map(one, range(count))))


def settle(system, ids, limit):
    """Waits until the status of each message is final; returns the statuses."""
    end, pending, states = time.monotonic() + limit, dict(ids), {}
    while True:
        states |= {recipient: system.state(number) for recipient, number in pending.items()}
        pending = {r: number for r, number in pending.items() if not states[r].startswith(FINAL)}
        if not pending or time.monotonic() > end:
            return states
        time.sleep(0.5)


def judge(system, ids, states):
    """Compares what SES received with what the system says."""
    copies = system.simulator.copies()
    outcomes = collections.Counter()
    for recipient in ids:
        received = min(copies[recipient], 2)
        failed = states[recipient].startswith("failed")
        if received == 0:
            final = states[recipient].startswith(FINAL)
            outcomes["failed" if failed else "lost" if final else "waiting"] += 1
        else:
            outcomes["once" if received == 1 else "twice"] += 1
            outcomes["sent but reported as failed"] += failed
    return {"accepted": len(ids), **outcomes, "states": collections.Counter(states.values())}


def lost_answers(system, scale):
    system.simulator.faults(chances={"reset_after": 0.1}, seed=7)
    ids = post(system, scale.messages)
    return judge(system, ids, settle(system, ids, scale.patience))


def throttled(system, scale):
    system.simulator.faults(always="throttled")
    ids = post(system, scale.messages)
    time.sleep(scale.throttled)
    system.simulator.faults()
    begun, half = time.monotonic(), None
    while True:
        states = settle(system, ids, 1)
        elapsed = round(time.monotonic() - begun)
        if half is None and 2 * system.simulator.accepted() >= len(ids):
            half = elapsed
        # Waits of up to five minutes may have begun.
        if all(state.startswith(FINAL) for state in states.values()) or elapsed > 3 * scale.patience:
            break
    return {**judge(system, ids, states), "seconds until half are sent": half, "seconds until the end": elapsed}


def killed(system, scale):
    # SES handles a call in the middle of the second that it takes.
    system.simulator.faults(always="slow", slowFor="500ms")
    ids = post(system, scale.messages)
    wait_for_accepted(system.simulator, scale.messages // 3, scale.patience)
    system.kill()
    received = system.simulator.accepted()
    system.start()
    outcome = {"received when killed": received, **judge(system, ids, settle(system, ids, scale.patience))}
    if outcome["states"]["active"] and (time_passed := system.expire_locks()):
        outcome[f"after {time_passed}"] = judge(system, ids, settle(system, ids, scale.patience))
    return outcome


# Name, fault, latency of SES in milliseconds.
FAULTS = [("lost answers", lost_answers, 20), ("throttled", throttled, 20), ("killed", killed, 500)]
# Name in the results, kind, options, and the faults to which they make a difference.
EVENTS = {"events": True}
VARIANTS = [
    ("pillarbox", Pillarbox, {"supervised": True, **EVENTS}, ("lost answers", "throttled", "killed")),
    ("pillarbox, no delivery events", Pillarbox, {"supervised": True}, ("lost answers", "killed")),
    ("pillarbox, no service manager", Pillarbox, EVENTS, ("killed",)),
    ("BullMQ", BullMq, {}, ("lost answers", "throttled", "killed")),
    ("Graphile Worker", GraphileWorker, {}, ("lost answers", "throttled", "killed")),
]


def behaviours(programs, scale):
    results = collections.defaultdict(dict)
    for fault, inject, latency_ms in FAULTS:
        for name, kind, options, faults in VARIANTS:
            if fault in faults:
                with running(kind, programs, latency_ms, **options) as system:
                    results[fault][name] = inject(system, scale)
                print(f"{fault}, {name}: {json.dumps(results[fault][name])}", flush=True)
    return results


def measure(programs, scale):
    rounds = collections.defaultdict(list)
    for number in range(scale.rounds):
        # Another one begins each round.
        for kind in SYSTEMS[number % 3:] + SYSTEMS[:number % 3]:
            accepting = measure_acceptance(kind, programs, scale.seconds)
            sending = measure_sending(kind, programs, scale.seconds)
            figures = {**accepting, **sending, "others": max(accepting["others"], sending["others"])}
            rounds[kind.name].append(figures)
            print(f"round {number + 1}, {kind.name}: "
                  + json.dumps({name: round(value, 2) for name, value in figures.items()}), flush=True)
    return {
        name: {
            figure: {"median": statistics.median(values), "min": min(values), "max": max(values)}
            for figure in of_system[0]
            for values in [[one[figure] for one in of_system]]
        }
        for name, of_system in rounds.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("pillarbox", help="the program")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["figures", "behaviours"], help="one part of it")
    parser.add_argument("--short", action="store_true", help="only show that everything works")
    parser.add_argument("--plots", type=pathlib.Path, default=OUTPUT, help="directory of the plots")
    scale = parser.parse_args()
    scale.seconds, scale.messages, scale.throttled, scale.patience = 5, 600, 120, 120
    if scale.short:
        scale.rounds, scale.seconds, scale.messages, scale.throttled, scale.patience = 1, 1, 60, 1, 3
    # Leaves by the same way as Ctrl-C, so that everything is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    programs = find_programs(scale.pillarbox)
    results = {"versions": versions(programs)}
    if scale.only != "behaviours":
        results["figures"] = measure(programs, scale)
    if scale.only != "figures":
        results["behaviours"] = behaviours(programs, scale)
    file = OUTPUT / "results.json"
    if scale.only and file.exists():
        # Keeps the other part of an earlier run.
        results = {**json.loads(file.read_text()), **results}
    file.write_text(json.dumps(results, indent=2) + "\n")
    report.draw(results, scale.plots)
    if scale.only != "behaviours":
        print(report.table(results["figures"]))
    print(f"Results: {file}, plots: {scale.plots}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
