"""pillarbox as the package installs it in the container, and what can be asked of it."""

import json
import os
import signal
import subprocess
import time

from clients import MARKER, ORGANISATION, STORED, Api, marker_forms

UNIT = "pillarbox.service"
CONFIGURATION = "/etc/pillarbox/pillarbox.toml"
SERVICE_FILE = "/usr/lib/systemd/system/pillarbox.service"
# The configuration that is there stays.
INSTALL = ("dpkg", "--force-unsafe-io", "--force-confold", "--install")
PATIENCE = 90
# Between the service, which writes a request or reads an answer, and the provider's note of it, in
# microseconds: both run on a machine that is busy.
SLOWNESS = 20_000
FINAL = ("sent", "failed", "suppressed")
# Where a service could leave a file.
PLACES = ("/var/lib/pillarbox", "/tmp", "/run", "/var/tmp", "/var/log")
# Messages of which all are sent soon, and a small quota, under which most wait.
FAST, SLOW = 2_000, 25


def check(holds, what):
    if not holds:
        raise AssertionError(what)


def is_alive(process):
    """Whether a process of this machine still runs: one that is only to be waited for does not."""
    try:
        with open(f"/proc/{process}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_for(what, condition, patience=PATIENCE):
    """Waits until a condition holds; gives what it says then."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"no {what} in {patience} s")


class Service:
    def __init__(self, machine, history, provider, judge, histories):
        self.machine, self.history, self.provider = machine, history, provider
        self._judge, self._history_path = judge, histories / "history.jsonl"
        self.api = None
        self.key = None
        # Ids of all accepted messages that were not yet final when they were last read.
        self.waiting = []
        self.lost = []
        # From when to when each kill was, in microseconds.
        self.kills = []
        # The longest distance between a kill and a call that was repeated, in microseconds.
        self.slowest = 0

    # What is installed.

    def install(self, package, check=True):
        """Installs a package that lies in the container."""
        return self.machine.run(*INSTALL, str(package), check=check)

    def configure(self, rate=FAST, more="", reload=True):
        """Writes the configuration; a service that runs takes it over."""
        text = (
            f'[sending]\nmax_rate = {rate}\ndrain = "2s"\nrequest_timeout = "5s"\n'
            'retry_initial = "200ms"\nretry_max = "1s"\n'
            f'[ses]\nendpoint = "http://127.0.0.1:9100"\n{more}'
        )
        self.machine.file(CONFIGURATION).write_text(text)
        if reload:
            self.machine.systemctl("reload", UNIT)

    def write_credentials(self):
        credentials = self.machine.file("/etc/pillarbox/aws")
        credentials.write_text(
            "[default]\naws_access_key_id = simulator\naws_secret_access_key = simulator\n"
        )
        credentials.chmod(0o600)

    def command(self, *arguments, check=True):
        return self.machine.run("pillarbox", *arguments, check=check)

    def knows(self, command):
        return self.command(command, "--help", check=False).returncode == 0

    @property
    def keeps_bodies(self):
        """Whether systemd keeps descriptors of the service as it is installed."""
        return self.machine.show("FileDescriptorStoreMax") not in ("", "0")

    def add_client(self):
        self.command("org", "add", ORGANISATION)
        self.command("domain", "add", "--org", ORGANISATION, "example.com", "--assume-verified")
        added = self.command("key", "add", "--org", ORGANISATION, "--json").stdout
        self.key = json.loads(added.splitlines()[-1])["key"]
        self.api = Api(self.history, self.key)

    # What runs.

    @property
    def pid(self):
        """The main process; 0 if there is none."""
        return int(self.machine.show("MainPID"))

    @property
    def state(self):
        return self.machine.show("ActiveState")

    @property
    def restarts(self):
        return int(self.machine.show("NRestarts"))

    def executable(self):
        return self.machine.run("readlink", f"/proc/{self.pid}/exe").stdout.strip()

    def wait_until_up(self):
        self.api.close()
        return wait_for("service that answers", self._answers)

    def _answers(self):
        if self.state != "active":
            return False
        answer = self.api.request("GET", "/emails?limit=1")
        return answer is not None and answer[0] == 200

    def kill(self):
        """Kills the main process, and waits until it is gone."""
        before = self.pid
        check(before != 0, "nothing runs that could be killed")
        process = self.machine.process(before)
        began = self.history.now()
        self.history.write("killed", at=began)
        os.kill(process, signal.SIGKILL)
        while is_alive(process):
            time.sleep(0.0005)
        self.kills.append((began, self.history.now()))
        wait_for("systemd that has seen it", lambda: self.pid != before)

    # Messages and their ends.

    def send(self, key):
        """Sends one message, which must be accepted."""
        identity = self.api.post(key, {"text": MARKER})
        check(identity is not None, f"the message {key} was not accepted")
        self.waiting.append(identity)
        return identity

    def cancel(self, identity):
        """Cancels a message; says whether it was still waiting."""
        shown = self.command("message", "cancel", identity, "--json", check=False)
        if shown.returncode != 0:
            return False
        if json.loads(shown.stdout.splitlines()[-1])["cancelled"] != 1:
            return False
        self.history.write("cancelled", ended=self.history.now(), id=identity)
        return True

    def finish(self, messages=(), may_lose=False):
        """Waits until all messages are final, and has the history judged."""
        self.waiting += messages
        self.configure(FAST)
        end = time.monotonic() + PATIENCE
        while self.waiting:
            check(time.monotonic() < end, f"{len(self.waiting)} messages are not final")
            self.waiting = [one for one in self.waiting if not self._is_final(one)]
            time.sleep(0.05)
        self.api.read_feed()
        if not may_lose:
            check(not self.lost, f"{len(self.lost)} bodies were lost, such as that of {self.lost[:1]}")
        lost, self.lost = len(self.lost), []
        self._check_doubles()
        self.history.flush()
        verdict = subprocess.run([self._judge, self._history_path], capture_output=True, text=True)
        check(verdict.returncode == 0, f"the history contradicts itself: {verdict.stdout[:3000]}{verdict.stderr}")
        return lost

    def _is_final(self, identity):
        record = self.api.read(identity)
        if record is None or record.get("status") not in FINAL:
            return False
        if (record.get("error") or {}).get("code") == "body_lost_on_restart":
            self.lost.append(identity)
        return True

    def _check_doubles(self):
        """A message is sent twice only if its call was under way at a kill: an orderly end waits for
        the calls, and one whose answer was read is not repeated."""
        for message, calls in self.provider.calls.items():
            for call in calls[:-1]:
                distance = self._distance(call)
                check(distance <= SLOWNESS, f"{message} was sent again, and no kill was during {calls}")
                self.slowest = max(self.slowest, distance)

    def _distance(self, call):
        """Microseconds between a call and the nearest kill; 0 if it was under way at one."""
        ended = call["ended"] or self.history.now()
        distances = (max(call["began"] - gone, began - ended, 0) for began, gone in self.kills)
        return min(distances, default=float("inf"))

    def calls_at_kills(self):
        """How many calls were under way at a kill, and how many messages were sent again."""
        messages = self.provider.calls.values()
        under_way = sum(self._distance(call) == 0 for calls in messages for call in calls)
        return under_way, sum(len(calls) - 1 for calls in messages)

    def find(self, text):
        """Files of the container's machine that hold a text, where a service could leave one."""
        found = self.machine.run(
            "grep", "--recursive", "--files-with-matches", "--text", "--fixed-strings",
            "--devices=skip", "--no-messages", "--regexp", text, *PLACES, check=False,
        )
        return found.stdout.split()

    def check_no_body_is_in_a_file(self):
        check(self.find(STORED), "the search does not even find what is stored")
        for form in marker_forms():
            found = self.find(form)
            check(not found, f"a body is in {found}")

    def check_the_search(self):
        """The search finds a body in each of the places, in each form."""
        for form in marker_forms():
            planted = [f"{place}/planted.bin" for place in PLACES]
            for file in planted:
                self.machine.file(file).write_bytes(b"\0\xff\n" + form.encode() + b"\0")
            found = self.find(form)
            for file in planted:
                self.machine.file(file).unlink()
            check(sorted(found) == sorted(planted), f"of {planted}, only {found} were found")

    def pending(self, messages):
        """Those of the messages that are not final."""
        return [one for one in messages if (self.api.read(one) or {}).get("status") not in FINAL]
