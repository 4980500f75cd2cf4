"""A container that this machine's own systemd runs as process 1, on a copy of this machine's files."""

import os
import pathlib
import shutil
import subprocess
import time

# Requires nothing but the basic system: what else this machine would start stays out.
TARGET = "pillarbox-test.target"
BOOT_PATIENCE = 90


class CannotBoot(Exception):
    """This machine does not boot systemd in a container."""


class Machine:
    """Files are reached below `root`, programs are run by `run`."""

    def __init__(self, work):
        self.work = pathlib.Path(work)
        self.console = self.work / "console"
        self._prepare(self.work / "root")
        self._nspawn = self._boot(self.work / "root")
        self.pid = self._wait_for_init()
        self.root = pathlib.Path(f"/proc/{self.pid}/root")
        self._wait_for_target()

    @staticmethod
    def _prepare(root):
        """Takes out what belongs to this machine alone."""
        units = root / "etc/systemd/system"
        for wanted in units.glob("*.wants"):
            shutil.rmtree(wanted)
        (units / TARGET).write_text(
            "[Unit]\nRequires=basic.target\nAfter=basic.target\nAllowIsolate=yes\n"
        )
        for unit in ("timers.target", "getty.target", "systemd-timesyncd.service"):
            (units / unit).unlink(missing_ok=True)
            (units / unit).symlink_to("/dev/null")
        (root / "etc/fstab").write_text("")
        # With an identity, because a machine without one enables every unit at its first boot.
        (root / "etc/machine-id").unlink(missing_ok=True)
        (root / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
        (root / "usr/sbin/policy-rc.d").unlink(missing_ok=True)
        shutil.rmtree(root / "etc/pillarbox", ignore_errors=True)
        shutil.rmtree(root / "var/lib/pillarbox", ignore_errors=True)

    def _boot(self, root):
        if shutil.which("systemd-nspawn") is None:
            raise CannotBoot("there is no systemd-nspawn")
        # The network is that of this process, which has a namespace of its own.
        command = [
            *("systemd-nspawn", "--directory", str(root), "--boot", "--machine", "pillarbox-test"),
            *("--register=no", "--keep-unit", "--link-journal=no", "--resolv-conf=off"),
            *("--timezone=off", "--console=pipe", f"systemd.unit={TARGET}"),
        ]
        with self.console.open("wb") as console:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT
            )

    def _wait_for_init(self):
        """Finds process 1 of the container: the one that is process 1 one level below."""
        ours = self._levels("self")
        for _ in self._until_booted("no process 1"):
            for entry in pathlib.Path("/proc").iterdir():
                if not entry.name.isdigit():
                    continue
                levels = self._levels(entry.name)
                if len(levels) == len(ours) + 1 and levels[-1] == "1":
                    return int(entry.name)
        raise AssertionError("unreachable")

    def _wait_for_target(self):
        for _ in self._until_booted("the system does not come up"):
            state = self.run("systemctl", "is-active", TARGET, check=False)
            if state.stdout.strip() == "active":
                return

    def _until_booted(self, what):
        end = time.monotonic() + BOOT_PATIENCE
        while time.monotonic() < end and self._nspawn.poll() is None:
            yield
            time.sleep(0.1)
        raise CannotBoot(f"{what}:\n{self.console.read_text(errors='replace')[-3000:]}")

    @staticmethod
    def _levels(pid):
        """The numbers of a process, from this namespace of processes to the innermost."""
        try:
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return []
        line = next((line for line in status.splitlines() if line.startswith("NSpid:")), "NSpid:")
        return line.split()[1:]

    def process(self, number):
        """The number of a process here, which has another one in the container."""
        depth = len(self._levels("self")) + 1
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            levels = self._levels(entry.name)
            if len(levels) == depth and levels[-1] == str(number):
                return int(entry.name)
        raise AssertionError(f"the container has no process {number}")

    def run(self, *command, check=True, stdin=None, timeout=300):
        """Runs a program in the container as root."""
        result = subprocess.run(
            ["nsenter", "--target", str(self.pid), "--mount", "--uts", "--ipc", "--pid", "--",
             *command],
            input=stdin, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=timeout, errors="replace",
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"},
        )
        if check and result.returncode != 0:
            raise AssertionError(f"{' '.join(command)} ended with {result.returncode}:\n{result.stdout}")
        return result

    def systemctl(self, *arguments, check=True):
        return self.run("systemctl", *arguments, check=check).stdout.strip()

    def show(self, name, unit="pillarbox.service"):
        """A property of a unit."""
        return self.systemctl("show", "--property", name, "--value", unit)

    def file(self, path):
        return self.root / str(path).lstrip("/")

    def end(self):
        """Ends the container at once: nothing in it is of any use afterwards."""
        try:
            os.kill(self.pid, 9)
        except ProcessLookupError:
            pass
        self._nspawn.wait(timeout=60)
