"""What happens to a service under systemd: see run.sh, which starts this.

Each scenario ends with every accepted message final and the history judged. They run in order on one
machine, because an installation lives through all of it.
"""

import os
import pathlib
import random
import shutil
import sys
import time
import traceback

import lives
import packages
from clients import History, Load
from machine import CannotBoot, Machine
from provider import Provider
from service import CONFIGURATION, INSTALL, SLOW, UNIT, Service, check, wait_for

RESEND, SMTP = "pillarbox-resend.socket", "pillarbox-smtp.socket"
# Exit code: all that this machine allows was good.
NOT_POSSIBLE = 77
# Whether the version before is that version, and not this one under its units.
IS_BUILT = os.environ.get("SYSTEMD_PREVIOUS") == "build"


class Site:
    """What scenarios share."""

    def __init__(self, machine, service, package, previous, seed):
        self.machine, self.service = machine, service
        self.package, self.previous = package, previous
        self.seed = seed
        self.choices = random.Random(seed)
        # What this machine cannot show.
        self.not_checked = []

    def load(self, name):
        return Load(self.service.history, self.service.key, name, self.seed)


def installation(site):
    """An earlier version is installed as a first package, starts, and sends."""
    service, machine = site.service, site.machine
    service.install(site.previous or site.package)
    check(service.state == "active", f"the service is {service.state} after its installation")
    for unit in ("pillarbox.service", "pillarbox.socket"):
        check(machine.systemctl("is-enabled", unit) == "enabled", f"{unit} is not enabled")
    check(machine.systemctl("is-active", "pillarbox.socket") == "active", "the socket is off")
    service.write_credentials()
    service.configure(reload=False)
    machine.systemctl("restart", UNIT)
    service.add_client()
    service.send("first")
    service.finish()


def upgrade_from_the_previous_version(site):
    """An upgrade under load: nobody is refused a connection, and what waits is sent in the drain."""
    service = site.service
    if site.previous is None:
        site.not_checked.append("THE UPGRADE FROM THE VERSION BEFORE: this clone does not have its commit")
        return
    if not IS_BUILT:
        site.not_checked.append(
            "the program of the version before, for the time that its build takes: its units and scripts "
            "were upgraded from under this version's program; SYSTEMD_PREVIOUS=build tests/systemd/run.sh"
        )
    before = service.pid
    load = site.load("upgrade")
    time.sleep(2)
    service.machine.run(*INSTALL, str(site.package))
    service.wait_until_up()
    check(service.pid != before, "the old process runs on")
    check(service.executable() == "/usr/bin/pillarbox", f"it runs {service.executable()}")
    time.sleep(1)
    load.stop()
    check(load.refused == 0, f"{load.refused} connections were refused")
    service.finish(load.accepted)


def sandbox(site):
    """The unit's limits are in force, and its slice."""
    service, machine = site.service, site.machine
    if not service.keeps_bodies:
        site.not_checked.append("BODIES OVER THE END OF A PROCESS: the unit has systemd keep nothing")
    if not service.knows("restart"):
        site.not_checked.append("A RESTART IN PLACE: the program has no such command")
    status = machine.run("cat", f"/proc/{service.pid}/status").stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    check(fields["NoNewPrivs"] == "1", "the process may gain privileges")
    check(fields["Seccomp"] == "2", "the process may make any system call")
    check(int(fields["CapEff"], 16) == 0, f"the process has capabilities: {fields['CapEff']}")
    check(machine.show("MemorySwapMax") == "0" or machine.show("Slice") == "pillarbox.slice",
          "bodies may be swapped")
    if machine.file("/usr/lib/systemd/system/pillarbox.slice").exists():
        check(machine.show("Slice") == "pillarbox.slice", f"the slice is {machine.show('Slice')}")
        swap = machine.show("MemorySwapMax", "pillarbox.slice")
        check(swap == "0", f"the slice may use {swap} of swap")


def socket_activation(site):
    """A connection starts the service, and what came before it is ready is answered."""
    service, machine = site.service, site.machine
    service.machine.run("systemctl", "stop", UNIT)
    check(machine.systemctl("is-active", "pillarbox.socket") == "active", "the socket is gone")
    service.api.close()
    service.send("activation")
    check(service.state == "active", f"the service is {service.state}")
    service.finish()


def other_sockets(site):
    """By the commands of the docs, sockets that are off open, get another address and close, and so
    does the client listener; clients notice nothing of the others."""
    service, machine = site.service, site.machine
    load = site.load("sockets")
    time.sleep(1)
    machine.systemctl("enable", RESEND, SMTP)
    machine.systemctl("restart", UNIT)
    service.wait_until_up()
    check(listening(machine, "8028", "587") == ["8028", "587"], "a socket is not open")
    give_address(machine, RESEND, "127.0.0.1:8029")
    service.wait_until_up()
    check(listening(machine, "8028", "8029") == ["8029"], "the socket has another address")
    machine.systemctl("disable", "--now", RESEND, SMTP)
    machine.systemctl("restart", UNIT)
    service.wait_until_up()
    check(listening(machine, "587", "8028", "8029") == [], "a socket is still open")
    load.stop()
    check(load.refused == 0, f"{load.refused} connections were refused")
    service.finish(load.accepted)
    give_address(machine, "pillarbox.socket", "127.0.0.2:8025")
    wait_for("other address", lambda: service.state == "active")
    addresses = machine.run("ss", "-ltnH", "sport = :8025").stdout
    check("127.0.0.2:8025" in addresses and "127.0.0.1:8025" not in addresses, addresses)
    machine.systemctl("revert", "pillarbox.socket")
    machine.systemctl("stop", "pillarbox.socket")
    machine.systemctl("restart", UNIT)
    service.wait_until_up()


def give_address(machine, socket, address):
    """What `systemctl edit` writes, and the commands after it."""
    drop_in = machine.file(f"/etc/systemd/system/{socket}.d/override.conf")
    drop_in.parent.mkdir()
    drop_in.write_text(f"[Socket]\nListenStream=\nListenStream={address}\n")
    machine.systemctl("daemon-reload")
    machine.systemctl("stop", socket)
    machine.systemctl("restart", UNIT)


def listening(machine, *ports):
    """The ports of these that are open."""
    return [port for port in ports if machine.run("ss", "-ltnH", f"sport = :{port}").stdout]


def stopped_for_good(site):
    """With its sockets stopped, no connection starts the service, and its start opens them again."""
    service, machine = site.service, site.machine
    machine.run("systemctl", "stop", "pillarbox*.socket", UNIT)
    service.api.close()
    check(service.api.request("GET", "/emails?limit=1") is None, "something answers")
    check(service.state == "inactive", f"the service is {service.state}")
    machine.systemctl("start", UNIT)
    service.wait_until_up()
    check(machine.systemctl("is-active", "pillarbox.socket") == "active", "the socket is off")


def reload(site):
    """A reload takes over a configuration, and a wrong one changes nothing."""
    service, machine = site.service, site.machine
    before = service.pid
    service.configure(more="imagined = 1\n")
    time.sleep(0.5)
    service.send("wrong-reload")
    service.configure()
    service.send("reload")
    check(service.pid == before, "a reload ended the process")
    check(service.state == "active", f"the service is {service.state}")
    service.finish()


def manager_reloaded(site):
    """systemd reads its units again and executes itself again; the service goes on, and is still
    watched, restarted, and what it gave systemd is kept."""
    service, machine = site.service, site.machine
    for command in ("daemon-reload", "daemon-reexec"):
        service.configure(SLOW)
        load = site.load(command)
        time.sleep(1)
        before = service.pid
        machine.systemctl(command)
        wait_for("systemd that answers", lambda: service.state == "active")
        check(service.pid == before, f"{command} ended the process")
        lives.check_kept(site)
        time.sleep(0.5)
        service.kill()
        service.wait_until_up()
        lives.check_kept(site)
        load.stop()
        service.finish(load.accepted, may_lose=not service.keeps_bodies)


def stop(site):
    """After a stop, what waited is sent, or is final with its reason; it is never forgotten."""
    service, machine = site.service, site.machine
    service.configure(SLOW)
    load = site.load("stop")
    time.sleep(2)
    load.stop()
    service.machine.run("systemctl", "stop", UNIT)
    check(service.state == "inactive", f"the unit is {service.state} after its stop")
    machine.systemctl("start", UNIT)
    service.wait_until_up()
    # Earlier versions let go of kept descriptors when a unit stops.
    is_kept = service.keeps_bodies and machine.show("FileDescriptorStorePreserve") == "yes"
    lost = service.finish(load.accepted, may_lose=not is_kept)
    print(f"    of {len(load.accepted)} messages, {lost} lost their bodies by the stop")


def removal(site):
    """The package goes, its data stays."""
    service, machine = site.service, site.machine
    machine.run("dpkg", "--remove", "pillarbox")
    check(machine.systemctl("is-active", UNIT, check=False) != "active", "it runs after its removal")
    check(machine.systemctl("is-active", "pillarbox.socket", check=False) != "active", "its socket")
    check(machine.file("/var/lib/pillarbox/pillarbox.redb").exists(), "the data file is gone")
    machine.run("dpkg", "--purge", "pillarbox")
    check(not machine.file(CONFIGURATION).exists(), "the configuration is left")
    check(machine.file("/var/lib/pillarbox/pillarbox.redb").exists(), "the purge took the data")


SCENARIOS = [
    installation,
    upgrade_from_the_previous_version,
    sandbox,
    socket_activation,
    other_sockets,
    stopped_for_good,
    reload,
    manager_reloaded,
    lives.killed_in_a_loop,
    lives.restarted_by_systemd,
    lives.restarted_in_place,
    lives.restart_refused,
    lives.broken_configuration,
    lives.waiting_connections,
    packages.upgrade_with_the_same_units,
    packages.upgrade_with_another_unit,
    packages.upgrade_that_the_local_policy_forbids,
    packages.upgrade_with_a_broken_configuration,
    packages.upgrade_of_a_stopped_service,
    packages.upgrade_while_starts_fail,
    packages.upgrade_of_a_service_that_cannot_restart,
    packages.removed_and_installed_again,
    lives.torture,
    lives.ten_restarts,
    stop,
    removal,
]


def main():
    work, package, previous, judge, histories, *chosen = sys.argv[1:]
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    print(f"SEED={seed}")
    try:
        machine = Machine(work)
    except CannotBoot as error:
        print(f"systemd does not boot in a container: {error}", file=sys.stderr)
        sys.exit(NOT_POSSIBLE)
    histories = pathlib.Path(histories)
    history = History(histories / "history.jsonl")
    service = Service(machine, history, Provider(history), judge, histories)
    place = pathlib.Path("/srv/pillarbox-packages")
    machine.file(place).mkdir(parents=True)
    for name, file in (("package", package), ("previous", previous)):
        if pathlib.Path(file).exists():
            shutil.copy(file, machine.file(place / f"{name}.deb"))
    earlier = place / "previous.deb" if pathlib.Path(previous).exists() else None
    site = Site(machine, service, place / "package.deb", earlier, seed)
    first = SCENARIOS[:2]
    if not chosen:
        chosen = [one.__name__ for one in SCENARIOS]
    failed = run(site, [one for one in SCENARIOS if one in first or one.__name__ in chosen])
    machine.end()
    for check_ in site.not_checked:
        print(f"NOT CHECKED: {check_}")
    sys.exit(failed)


def run(site, scenarios):
    """Runs scenarios; the first that fails is the last."""
    for scenario in scenarios:
        began = time.monotonic()
        print(f"== {scenario.__module__}.{scenario.__name__}", flush=True)
        try:
            scenario(site)
        except Exception:
            traceback.print_exc()
            journal = ("journalctl", "--no-pager", "--lines=60", "--output=short-precise")
            print(site.machine.run(*journal, "--unit=pillarbox.*", "--unit=init.scope", check=False).stdout)
            return 1
        print(f"   {time.monotonic() - began:.1f} s", flush=True)
    print("The service lives with systemd.")
    return 0


if __name__ == "__main__":
    main()
