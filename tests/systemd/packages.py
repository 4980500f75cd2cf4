"""Scenarios: upgrades of the package."""

import pathlib
import re
import socket
import threading
import time

import lives
from service import INSTALL, SERVICE_FILE, SLOW, UNIT, check

WORK = pathlib.Path("/srv/pillarbox-packages")
SOCKET = "/run/pillarbox/admin.sock"
POLICY = "/usr/sbin/policy-rc.d"


def repack(site, version, unit_line=None):
    """Makes a later version of the package, perhaps with another line in the unit."""
    machine = site.machine
    tree, package = WORK / version, WORK / f"{version}.deb"
    machine.run("dpkg-deb", "--raw-extract", str(site.package), str(tree))
    control = machine.file(tree / "DEBIAN/control")
    lines = control.read_text().splitlines()
    lines = [f"Version: {version}" if line.startswith("Version: ") else line for line in lines]
    control.write_text("\n".join(lines) + "\n")
    if unit_line is not None:
        unit = machine.file(str(tree) + SERVICE_FILE)
        unit.write_text(unit.read_text() + unit_line)
    # It would no longer fit.
    machine.file(tree / "DEBIAN/md5sums").unlink(missing_ok=True)
    machine.run("dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", str(tree), str(package))
    return package


def upgrade(site, package, name):
    """Upgrades under load with a backlog; the messages' ids, and whether the process stayed."""
    service = site.service
    service.configure(SLOW)
    load = site.load(name)
    time.sleep(2)
    before = service.pid
    printed = service.machine.run(*INSTALL, str(package)).stdout
    service.wait_until_up()
    time.sleep(0.5)
    load.stop()
    check(load.refused == 0, f"{load.refused} connections were refused")
    return load.accepted, service.pid == before, printed


def upgrade_with_the_same_units(site):
    """The package has the running process execute the new binary in its own place."""
    service = site.service
    accepted, stayed, printed = upgrade(site, repack(site, "0.1.1"), "same-units")
    check(service.executable() == "/usr/bin/pillarbox", f"it runs {service.executable()}: {printed}")
    check(stayed or not service.knows("restart"), f"systemd started another process: {printed}")
    service.finish(accepted, may_lose=not service.keeps_bodies)


def upgrade_with_another_unit(site):
    """systemd starts the service again if its unit has changed, because only that applies it."""
    service, machine = site.service, site.machine
    package = repack(site, "0.1.2", "\n[Service]\nEnvironment=LATER_UNIT=yes\n")
    accepted, stayed, printed = upgrade(site, package, "another-unit")
    check(not stayed, f"the process of the earlier unit runs on: {printed}")
    check(service.executable() == "/usr/bin/pillarbox", f"it runs {service.executable()}")
    environment = machine.run("cat", f"/proc/{service.pid}/environ").stdout
    check("LATER_UNIT=yes" in environment, "the process is not that of the new unit")
    service.finish(accepted, may_lose=not service.keeps_bodies)


def upgrade_that_the_local_policy_forbids(site):
    """Where the operator forbids restarts, the old process goes on until he starts it again."""
    service, machine = site.service, site.machine
    policy = machine.file(POLICY)
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    before = service.pid
    line = "\n[Service]\nEnvironment=FORBIDDEN_UNIT=yes\n"
    service.install(repack(site, "0.1.3", line))
    check(service.pid == before, "the process is another one")
    check(service.executable() == "/usr/bin/pillarbox (deleted)", f"it runs {service.executable()}")
    service.send("forbidden")
    # The unit of the next version is that of this one, and not that which the process was started with.
    policy.unlink()
    accepted, stayed, printed = upgrade(site, repack(site, "0.1.4", line), "allowed-again")
    check(not stayed, f"the process of the earlier unit runs on: {printed}")
    service.finish(accepted, may_lose=not service.keeps_bodies)


def upgrade_with_a_broken_configuration(site):
    """A configuration that the new version refuses leaves the old process running."""
    service = site.service
    if not service.knows("restart"):
        return
    # If the unit changed too, systemd would have to start the service again.
    service.install(repack(site, "0.1.5~unit"))
    service.wait_until_up()
    before = service.pid
    service.configure(SLOW, more="imagined = 1\n", reload=False)
    printed = service.install(repack(site, "0.1.5")).stdout
    check(service.pid == before, f"the process is another one: {printed}")
    check("imagined" in printed, f"the package does not say why: {printed}")
    service.send("broken-upgrade")
    service.configure()
    service.machine.run("pillarbox", "restart")
    check(service.executable() == "/usr/bin/pillarbox", f"it runs {service.executable()}")
    service.finish()


def upgrade_of_a_stopped_service(site):
    """What the operator stopped stays stopped; the next upgrade is again one of a running service."""
    service, machine = site.service, site.machine
    for version, stopped in (("0.1.6", ("pillarbox.socket", UNIT)), ("0.1.7", (UNIT,))):
        machine.systemctl("stop", *stopped)
        service.install(repack(site, version))
        check(service.state == "inactive", f"the service is {service.state}")
        listening = machine.systemctl("is-active", "pillarbox.socket", check=False)
        expected = "inactive" if "pillarbox.socket" in stopped else "active"
        check(listening == expected, f"the socket is {listening}")
        if expected == "active":
            # By this connection.
            service.api.close()
            service.send(f"started-by-{version}")
        else:
            machine.systemctl("start", "pillarbox.socket", UNIT)
        service.wait_until_up()
        check(service.executable() == "/usr/bin/pillarbox", f"it runs {service.executable()}")
        service.finish()
    accepted, stayed, printed = upgrade(site, repack(site, "0.1.8"), "after-stops")
    check(stayed or not service.knows("restart"), f"systemd started another process: {printed}")
    service.finish(accepted, may_lose=not service.keeps_bodies)


def upgrade_while_starts_fail(site):
    """The upgrade that mends failing starts finds every body."""
    service = site.service
    if not service.keeps_bodies:
        return
    service.configure(SLOW)
    load = site.load("failing")
    time.sleep(1.5)
    load.stop()
    lives.break_and_kill(site)
    service.configure(SLOW, reload=False)
    service.install(repack(site, "0.1.9"))
    service.wait_until_up()
    lives.check_kept(site)
    service.finish(load.accepted)


def upgrade_of_a_service_that_cannot_restart(site):
    """If the running version does not know the call, systemd starts the new one."""
    service = site.service
    if not service.knows("restart"):
        return
    early = EarlyVersion(service.machine.file(SOCKET))
    accepted, stayed, printed = upgrade(site, repack(site, "0.1.10"), "early")
    check(early.was_asked, f"it was not asked to restart: {printed}")
    check(not stayed, f"the old process runs on: {printed}")
    check(service.executable() == "/usr/bin/pillarbox", f"it runs {service.executable()}")
    service.finish(accepted, may_lose=not service.keeps_bodies)


class EarlyVersion:
    """Stands before the administration socket until it is asked for a restart, a call that version
    0.1.0 does not know. All other calls go through."""

    def __init__(self, path):
        self.was_asked = False
        self._path, self._service = path, path.with_name("moved.sock")
        path.rename(self._service)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        while True:
            client, _ = self._listener.accept()
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client):
        with client:
            call = whole_message(client)
            if call.startswith(b"POST /restart "):
                # The service goes on with its own, which the next one replaces.
                self._service.rename(self._path)
                self.was_asked = True
                answer = b'{"error":{"code":"UnknownCall","message":"what is that"}}'
                client.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\n"
                               b"Content-Length: %d\r\n\r\n%s" % (len(answer), answer))
            elif call:
                with socket.socket(socket.AF_UNIX) as service:
                    service.connect(str(self._service))
                    service.sendall(call)
                    client.sendall(whole_message(service))


def whole_message(connection):
    """Reads a request or a response that says how long it is; nothing if there is none."""
    read = b""
    while part := connection.recv(1 << 16):
        read += part
        head, end, body = read.partition(b"\r\n\r\n")
        length = re.search(rb"(?im)^content-length: *(\d+)", head)
        if end and len(body) >= int(length[1] if length else 0):
            break
    return read


def removed_and_installed_again(site):
    """A package that was removed and is installed again starts, with its data."""
    service, machine = site.service, site.machine
    machine.run("dpkg", "--remove", "pillarbox")
    check(service.state == "inactive", f"the service is {service.state} after its removal")
    printed = service.install(site.package).stdout
    check(service.state == "active", f"the service is {service.state}: {printed}")
    check(machine.systemctl("is-active", "pillarbox.socket") == "active", "the socket is off")
    for unit in ("pillarbox.service", "pillarbox.socket"):
        check(machine.systemctl("is-enabled", unit) == "enabled", f"{unit} is not enabled")
    service.wait_until_up()
    service.send("installed-again")
    service.finish()
