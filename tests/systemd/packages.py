"""Scenarios: upgrades of the package."""

import pathlib
import time

from service import INSTALL, SERVICE_FILE, SLOW, UNIT, check

WORK = pathlib.Path("/srv/pillarbox-packages")
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
    printed = service.ends_a_process(*INSTALL, str(package)).stdout
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
    service.settle(accepted, may_lose=not service.keeps_bodies)


def upgrade_with_another_unit(site):
    """systemd starts the service again if its unit has changed, because only that applies it."""
    service, machine = site.service, site.machine
    package = repack(site, "0.1.2", "\n[Service]\nEnvironment=LATER_UNIT=yes\n")
    accepted, stayed, printed = upgrade(site, package, "another-unit")
    check(not stayed, f"the process of the earlier unit runs on: {printed}")
    check(service.executable() == "/usr/bin/pillarbox", f"it runs {service.executable()}")
    environment = machine.run("cat", f"/proc/{service.pid}/environ").stdout
    check("LATER_UNIT=yes" in environment, "the process is not that of the new unit")
    service.settle(accepted, may_lose=not service.keeps_bodies)


def upgrade_that_the_local_policy_forbids(site):
    """Where the operator forbids restarts, the old process goes on until he starts it again."""
    service, machine = site.service, site.machine
    policy = machine.file(POLICY)
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    before = service.pid
    service.install(repack(site, "0.1.3"))
    check(service.pid == before, "the process is another one")
    check(service.executable() == "/usr/bin/pillarbox (deleted)", f"it runs {service.executable()}")
    service.send("forbidden")
    # The unit differs from the one that the process was started with, also for the next version.
    policy.unlink()
    accepted, stayed, printed = upgrade(site, repack(site, "0.1.4"), "allowed-again")
    check(not stayed, f"the process of the earlier unit runs on: {printed}")
    service.settle(accepted, may_lose=not service.keeps_bodies)


def upgrade_with_a_broken_configuration(site):
    """A configuration that the new version refuses leaves the old process running."""
    service = site.service
    if not service.knows("restart"):
        return
    before = service.pid
    service.configure(SLOW, more="imagined = 1\n", reload=False)
    printed = service.install(repack(site, "0.1.5")).stdout
    check(service.pid == before, f"the process is another one: {printed}")
    check("imagined" in printed, f"the package does not say why: {printed}")
    service.send("broken-upgrade")
    service.configure()
    service.ends_a_process("pillarbox", "restart")
    check(service.executable() == "/usr/bin/pillarbox", f"it runs {service.executable()}")
    service.settle()


def upgrade_of_a_stopped_service(site):
    """A service that the operator stopped stays stopped."""
    service, machine = site.service, site.machine
    machine.systemctl("stop", "pillarbox.socket", UNIT)
    service.install(repack(site, "0.1.6"))
    check(service.state == "inactive", f"the service is {service.state}")
    machine.systemctl("start", "pillarbox.socket", UNIT)
    service.wait_until_up()
    service.send("started-again")
    service.settle()
