"""Scenarios: ends and new starts of the process."""

import os
import pathlib
import socket
import threading
import time

from clients import MARKER
from service import PATIENCE, SLOW, UNIT, check, wait_for

# Lives in the loop of kills, and in the torture.
KILLS = 5
ROUNDS = int(os.environ.get("SYSTEMD_ROUNDS") or 8)
# How many of the youngest messages are asked for.
SAMPLE = 50
# What the messages of ten more lives may take, in bytes.
GROWTH = 32 << 20


def check_kept(site):
    """systemd keeps one descriptor, however often the service starts."""
    if site.service.keeps_bodies:
        wait_for("descriptor that systemd keeps",
                 lambda: site.machine.show("NFileDescriptorStore") == "1", 10)


def under_load(site, name, end, rounds=1):
    """Ends the process under load with a backlog, some of it cancelled, and waits for the next."""
    service = site.service
    load = None
    for number in range(rounds):
        service.configure(SLOW)
        load = site.load(f"{name}-{number}")
        time.sleep(site.choices.uniform(0.3, 1.5))
        cancel_some(site, load)
        end()
        service.wait_until_up()
        check_kept(site)
        load.stop()
        check(load.refused == 0, f"{load.refused} connections were refused")
        service.waiting += load.accepted
    service.finish(may_lose=not service.keeps_bodies)


def cancel_some(site, load):
    """Cancels the youngest messages, just before the process ends."""
    for identity in load.accepted[-2:]:
        site.service.cancel(identity)


def killed_in_a_loop(site):
    """kill -9 under load: all that was accepted is sent in a later life, once."""
    before = site.service.restarts
    under_load(site, "killed", site.service.kill, KILLS)
    after = site.service.restarts
    check(after >= before + KILLS, f"systemd started it {after - before} times")


def restarted_by_systemd(site):
    """`systemctl restart` under load, also of a process that is being started again anyway."""
    service = site.service
    under_load(site, "restarted", lambda: service.machine.run("systemctl", "restart", UNIT), 2)

    def kill_and_restart():
        service.kill()
        service.machine.run("systemctl", "restart", UNIT)

    under_load(site, "killed-and-restarted", kill_and_restart)


def restart_in_place(site):
    """`pillarbox restart` keeps the process."""
    service = site.service
    before, restarts = service.pid, service.restarts
    service.machine.run("pillarbox", "restart")
    check(service.state == "active", f"the unit is {service.state} after a restart in place")
    check(service.pid == before, "systemd started another process")
    check(service.restarts == restarts, "systemd counts a restart")


def restarted_in_place(site):
    """`pillarbox restart` under load, also right after another life."""
    service = site.service
    if not service.knows("restart"):
        return
    under_load(site, "in-place", lambda: restart_in_place(site), 3)

    def kill_and_restart_in_place():
        service.kill()
        service.wait_until_up()
        restart_in_place(site)
        restart_in_place(site)
        service.kill()

    under_load(site, "killed-around", kill_and_restart_in_place)


def restart_refused(site):
    """`pillarbox restart` with a configuration that the next process would refuse changes nothing."""
    service = site.service
    if not service.knows("restart"):
        return
    service.configure(SLOW)
    load = site.load("refused")
    time.sleep(1)
    before = service.pid
    service.configure(SLOW, more="imagined = 1\n", reload=False)
    refused = service.command("restart", check=False)
    check(refused.returncode != 0, f"the restart was not refused: {refused.stdout}")
    check("imagined" in refused.stdout, f"the reason is not given: {refused.stdout}")
    check(service.pid == before, "the process is another one")
    load.stop()
    check(load.unanswered == 0, f"{load.unanswered} requests were not answered")
    service.finish(load.accepted)


def broken_configuration(site):
    """A configuration breaks while messages wait, and the process dies. Starts fail until it is
    mended; then everything is there."""
    service, machine = site.service, site.machine
    endings = [lambda: None]
    if service.keeps_bodies:
        # An operator who mends it does not wait for the next start.
        endings.append(lambda: service.machine.run("systemctl", "restart", UNIT))
    for number, ending in enumerate(endings):
        service.configure(SLOW)
        load = site.load(f"broken-{number}")
        time.sleep(1.5)
        load.stop()
        break_and_kill(site)
        service.configure(SLOW, reload=False)
        ending()
        if not service.keeps_bodies:
            machine.systemctl("start", UNIT)
        service.wait_until_up()
        check_kept(site)
        service.finish(load.accepted, may_lose=not service.keeps_bodies)


def break_and_kill(site):
    """Has starts fail: kills the process while its configuration is broken."""
    service, machine = site.service, site.machine
    service.configure(SLOW, more="imagined = 1\n", reload=False)
    service.kill()
    if not service.keeps_bodies:
        wait_for("unit that has failed", lambda: service.state == "failed")
        check(machine.show("ExecMainStatus") == "78", "another exit code than 78")
        return
    restarts = service.restarts
    wait_for("two starts that fail", lambda: service.restarts >= restarts + 2)
    check(service.state == "activating", f"the unit is {service.state}: bodies are lost")
    wait_for("exit code 75", lambda: machine.show("ExecMainStatus") == "75", 10)
    status = machine.systemctl("status", "--lines=0", UNIT, check=False)
    check("imagined" in status, f"the unit's status does not say why: {status}")


def waiting_connections(site):
    """Connections that wait in the listening sockets while the process is another get answers."""
    service, machine = site.service, site.machine
    ways = [("systemctl", "restart", UNIT)]
    if service.knows("restart"):
        ways.append(("pillarbox", "restart"))
    for way in ways:
        stopped, answers, failures = threading.Event(), [], []

        def connect():
            while not stopped.is_set():
                try:
                    answers.append(health())
                except OSError as error:
                    failures.append(error)
                time.sleep(0.01)

        clients = [threading.Thread(target=connect) for _ in range(4)]
        for client in clients:
            client.start()
        time.sleep(0.3)
        machine.run(*way)
        time.sleep(0.5)
        stopped.set()
        for client in clients:
            client.join()
        check(not failures, f"{' '.join(way)}: {len(failures)} connections broke, as {failures[:1]!r}")
        check(len(answers) > 20, f"{len(answers)} answers are no trial")
        check(all(b"HTTP/1.1 " in answer for answer in answers), f"odd answers: {set(answers)}")
    service.wait_until_up()
    service.finish()


def health():
    """A new connection with one request; the first line of its answer."""
    with socket.create_connection(("127.0.0.1", 8025), timeout=PATIENCE) as connection:
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = connection.recv(100)
        if not answer:
            raise ConnectionResetError("closed without an answer")
        while connection.recv(1 << 16):
            pass
        return answer.split(b"\r\n")[0]


def torture(site):
    """Any end of the process after the other, with clients that go on all the time."""
    service, machine = site.service, site.machine
    ends = {
        "kill": service.kill,
        "systemctl restart": lambda: service.machine.run("systemctl", "restart", UNIT),
    }
    if service.knows("restart"):
        ends["pillarbox restart"] = lambda: restart_in_place(site)
    if service.keeps_bodies:
        ends["start that fails"] = lambda: fail_once(site)
    service.configure(SLOW)
    before = service.calls_at_kills()
    load = site.load("torture")
    counts = dict.fromkeys(ends, 0)
    # Each of them once, however few rounds there are.
    order = site.choices.sample(sorted(ends), len(ends))
    for number in range(ROUNDS):
        time.sleep(site.choices.uniform(0.0, 1.2))
        name = order[number] if number < len(order) else site.choices.choice(order)
        counts[name] += 1
        cancel_some(site, load)
        ends[name]()
        if site.choices.random() < 0.2:
            machine.systemctl(site.choices.choice(["daemon-reload", "daemon-reexec"]))
        if site.choices.random() < 0.7:
            service.wait_until_up()
            check_kept(site)
        else:
            # As soon as there is a process: while it starts.
            wait_for("process", lambda: service.pid)
    service.wait_until_up()
    load.stop()
    check(load.refused == 0, f"{load.refused} connections were refused")
    lost = service.finish(load.accepted, may_lose=not service.keeps_bodies)
    under_way, again = (now - then for now, then in zip(service.calls_at_kills(), before))
    print(f"    {counts}: {len(load.accepted)} accepted, {lost} lost; {under_way} calls were under way at "
          f"a kill, {again} messages were sent again; up to {service.slowest / 1000} ms between")


def fail_once(site):
    """A start fails, and the next does not."""
    service = site.service
    break_and_kill(site)
    service.configure(SLOW, reload=False)
    service.wait_until_up()


def ten_restarts(site):
    """The memory of earlier lives is not kept for ever, not swapped, and in no file."""
    service = site.service
    service.configure(SLOW)
    load = site.load("ten")
    time.sleep(2)
    before = anonymous_files()
    check(before or not service.keeps_bodies, "no process has the bodies in a file in memory")
    for number in range(10):
        service.kill() if number % 2 else service.machine.run("systemctl", "restart", UNIT)
        service.wait_until_up()
    check_kept(site)
    # While messages wait: afterwards there is nothing to be found.
    service.check_the_search()
    waiting = service.pending(load.accepted[-SAMPLE:])
    service.check_no_body_is_in_a_file()
    after = anonymous_files()
    in_memory = in_anonymous_files(MARKER.encode())
    if service.keeps_bodies:
        check(service.pending(waiting), f"of {len(waiting)} messages that waited, none does any more")
        check(in_memory, "the bodies are not in memory either")
    load.stop()
    check(after.keys() == before.keys(), f"files in memory were {before} and are {after}")
    check(sum(after.values()) < sum(before.values()) + GROWTH, f"they grew from {before} to {after}")
    look_at_swap(site)
    service.finish(load.accepted, may_lose=not service.keeps_bodies)
    service.check_no_body_is_in_a_file()


def anonymous_links():
    """Each file that is in memory alone (memfd) and that a process has open: inode and a link to it."""
    found = {}
    for link in pathlib.Path("/proc").glob("[0-9]*/fd/*"):
        try:
            # systemd has some of its own, for a moment each.
            if os.readlink(link).startswith("/memfd:") and "systemd" not in os.readlink(link):
                found[os.stat(link).st_ino] = link
        except OSError:
            pass
    return found


def anonymous_files():
    """The bytes of each such file."""
    return {inode: os.stat(link).st_blocks * 512 for inode, link in anonymous_links().items()}


def in_anonymous_files(text):
    """Whether one of these files holds a text."""
    for link in anonymous_links().values():
        with open(link, "rb") as file:
            rest = b""
            while part := file.read(1 << 20):
                if text in rest + part:
                    return True
                rest = part[-len(text):]
    return False


def memory(name):
    """A line of /proc/meminfo, in KiB."""
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def look_at_swap(site):
    """What of the service's memory was swapped, as far as this machine can tell."""
    machine = site.machine
    slice_ = machine.show("Slice")
    unit = slice_ if slice_ == "pillarbox.slice" else UNIT
    group = "/sys/fs/cgroup" + machine.show("ControlGroup", unit)
    used = machine.run("cat", f"{group}/memory.swap.current", check=False)
    if used.returncode != 0:
        site.not_checked.append(
            f"SWAP AND SHARED MEMORY OF {unit}: this machine shows no memory controller in a container"
        )
    else:
        check(used.stdout.strip() == "0", f"{unit} has {used.stdout.strip()} bytes in swap")
    if memory("SwapTotal") == 0:
        site.not_checked.append("BODIES IN SWAP: this machine has no swap")
