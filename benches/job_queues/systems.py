"""The systems that are measured, each with its own processes, directory and ports: pillarbox, BullMQ
on Redis, and Graphile Worker on PostgreSQL; and the simulator that stands in for SES."""

import collections
import contextlib
import glob
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
DOMAIN = "mail.example.com"
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# Seconds until a process that starts or stops has done so.
PATIENCE = 60
AWS = {"AWS_ACCESS_KEY_ID": "simulator", "AWS_SECRET_ACCESS_KEY": "simulator", "AWS_REGION": "eu-west-1"}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def request(port, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, headers or {})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or "{}")
    finally:
        connection.close()


class Processes:
    """Processes and all their descendants."""

    def __init__(self, log):
        self.roots = []
        self.log = log

    def start(self, command, port=None, environment=None, **options):
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command, env={**os.environ, **(environment or {})}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True, **options)
        self.roots.append(process)
        end = time.monotonic() + PATIENCE
        while port:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            if process.poll() is not None or time.monotonic() > end:
                sys.exit(f"{command[0]} does not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.02)
        return process

    def pids(self):
        children = collections.defaultdict(list)
        for path in glob.glob("/proc/[0-9]*/stat"):
            with contextlib.suppress(OSError):
                stat = pathlib.Path(path).read_text()
                children[int(stat.rpartition(")")[2].split()[1])].append(int(stat.split()[0]))
        found = [process.pid for process in self.roots]
        for pid in found:
            found.extend(children[pid])
        return found

    def processor_seconds(self):
        """User and system time, with that of children that have ended."""
        ticks = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15]))
        return ticks / TICKS_PER_SECOND

    def memory_bytes(self):
        """Proportional set size, and the memory of pillarbox's bodies, which no process maps."""
        total, memory_files = 0, {}
        for pid in self.pids():
            with contextlib.suppress(OSError):
                for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                    if line.startswith("Pss:"):
                        total += int(line.split()[1]) * 1024
            for file in glob.glob(f"/proc/{pid}/fd/*"):
                with contextlib.suppress(OSError):
                    if "memfd:pillarbox-bodies" in os.readlink(file):
                        memory_files[os.stat(file).st_ino] = os.stat(file).st_blocks * 512
        return total + sum(memory_files.values())

    def kill(self):
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.roots:
            process.wait()
        self.roots = []


class Simulator:
    """SES, at a latency for each call."""

    def __init__(self, directory):
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.processes = Processes(directory / "simulator.log")

    def start(self, programs, latency_ms):
        self.processes.start(
            [programs["pillarbox"], "simulator", "--listen", f"127.0.0.1:{self.port}",
             "--verified", DOMAIN, "--latency", f"{latency_ms}ms"], self.port)
        if node(self.processes, programs["modules"], self, "configuration_set.mjs").wait():
            sys.exit(self.processes.log.read_text())

    def faults(self, **faults):
        status, _ = request(self.port, "PUT", "/simulator/faults", faults)
        assert status == 200

    def accepted(self):
        return request(self.port, "GET", "/simulator/status")[1]["accepted"]

    def copies(self):
        """How often each recipient got a message, of the last 1,000."""
        messages = request(self.port, "GET", "/simulator/messages")[1]["messages"]
        return collections.Counter(
            recipient["address"] for message in messages for recipient in message["recipients"])

    def stop(self):
        self.processes.kill()


def node(processes, modules, simulator, script, *arguments, port=None, **environment):
    """Starts a script of this directory, whose modules are in another one."""
    command = [modules / "node_modules/.bin/node", modules / script, *arguments]
    environment = {**AWS, "SES_ENDPOINT": simulator.address, "NODE_ENV": "production", **environment}
    return processes.start(command, port, environment)


class System:
    """A system that accepts messages on `port` and sends them to the simulator."""

    headers = {}

    def __init__(self, directory, simulator, programs):
        self.directory = directory
        self.simulator = simulator
        self.programs = programs
        self.processes = Processes(directory / "log")
        self.port = free_port()

    def kill(self):
        """Kills all processes, as `kill -9` does."""
        self.processes.kill()

    def stop(self):
        self.kill()

    def expire_locks(self):
        """Lets the time pass that the system waits for a worker that has died; says how long."""


class Pillarbox(System):
    name = "pillarbox"

    def __init__(self, directory, simulator, programs, events=False, supervised=False):
        super().__init__(directory, simulator, programs)
        config = directory / "pillarbox.toml"
        text = f"""
            listen = "127.0.0.1:{self.port}"
            operator_listen = "127.0.0.1:{free_port()}"
            data_dir = "{directory}"
            admin_socket = "{directory}/admin.sock"
            [sending]
            max_pending_bytes = {8 << 30}
            [ses]
            endpoint = "{simulator.address}"
        """
        if events:
            text += f"""
            configuration_set = "pillarbox"
            [ses.events]
            queue_url = "{simulator.address}/000000000000/pillarbox-events"
            """
        config.write_text(text)
        self.config = config
        self.command("org", "add", "shop")
        key = json.loads(self.command("key", "add", "--org", "shop", "--json"))["key"]
        self.command("domain", "add", "--org", "shop", "--assume-verified", DOMAIN)
        self.headers = {"Authorization": f"Bearer {key}"}
        self.supervisor = Supervisor(directory / "notify") if supervised else None

    def command(self, *arguments):
        done = subprocess.run(
            [self.programs["pillarbox"], *arguments, "--config", self.config],
            env={**os.environ, **AWS}, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        return done.stdout

    def start(self, sending=True):
        if not sending:
            self.simulator.faults(always="sending_paused")
        command = [self.programs["pillarbox"], "serve", "--config", self.config]
        environment = {**AWS, "RUST_LOG": "warn"}
        options = {}
        if self.supervisor:
            command, options = self.supervisor.wrap(command, environment)
        self.processes.start(command, self.port, environment, **options)

    def state(self, message_id):
        status, body = request(self.port, "GET", f"/emails/{message_id}", headers=self.headers)
        assert status == 200, body
        error = body.get("error")
        return body["status"] + (f" ({error['code']})" if error else "")


class Supervisor:
    """Keeps file descriptors for a service, as systemd does with `FileDescriptorStoreMax=`."""

    def __init__(self, path):
        self.path = path
        self.kept = []
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        threading.Thread(target=self.receive, daemon=True).start()

    def receive(self):
        while True:
            message, descriptors, _, _ = socket.recv_fds(self.socket, 4096, 16)
            lines = message.decode().splitlines()
            name = next((line[7:] for line in lines if line.startswith("FDNAME=")), "stored")
            if "FDSTORE=1" in lines:
                self.kept += [(name, descriptor) for descriptor in descriptors]
                continue
            for descriptor in descriptors:
                os.close(descriptor)
            if "FDSTOREREMOVE=1" in lines:
                self.kept = [kept for kept in self.kept if kept[0] != name]

    def wrap(self, command, environment):
        """The command with what is kept from descriptor 3 on, by systemd's protocol."""
        environment["NOTIFY_SOCKET"] = str(self.path)
        script = ""
        if self.kept:
            environment["LISTEN_FDS"] = str(len(self.kept))
            environment["LISTEN_FDNAMES"] = ":".join(name for name, _ in self.kept)
            script = "export LISTEN_PID=$$; exec " + " ".join(
                f"{number}<&{descriptor}" for number, (_, descriptor) in enumerate(self.kept, 3)) + "; "
        return (["bash", "-c", script + 'exec "$0" "$@"', *command],
                {"pass_fds": [descriptor for _, descriptor in self.kept]})


class JobQueue(System):
    """An HTTP server and a worker, each a process of Node."""

    def start(self, sending=True):
        self.start_store()
        arguments = {"PORT": str(self.port), self.store_variable: str(self.store_port)}
        modules = self.programs["modules"]
        node(self.processes, modules, self.simulator, self.script, "api", port=self.port, **arguments)
        if sending:
            node(self.processes, modules, self.simulator, self.script, "worker", **arguments)

    def state(self, message_id):
        """State of the job; nothing is known of a job that is done."""
        return request(self.port, "GET", f"/emails/{message_id}")[1].get("status", "deleted")


class BullMq(JobQueue):
    name = "BullMQ"
    script = "bullmq.mjs"
    store_variable = "REDIS_PORT"

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.store_port = free_port()

    def start_store(self):
        self.processes.start(
            [self.programs["redis-server"], "--port", str(self.store_port), "--bind", "127.0.0.1",
             "--dir", self.directory, "--appendonly", "yes", "--appendfsync", "always", "--save", "",
             "--maxmemory-policy", "noeviction"], self.store_port)


class GraphileWorker(JobQueue):
    name = "Graphile Worker"
    script = "graphile.mjs"
    store_variable = "POSTGRES_PORT"

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.store_port = free_port()
        # The server refuses to run as root.
        self.as_user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"] \
            if os.getuid() == 0 else []
        self.data = self.directory / "postgres"
        self.data.mkdir()
        self.server = None
        if self.as_user:
            shutil.chown(self.data, "nobody", "nogroup")
        subprocess.run(
            [*self.as_user, self.programs["postgres"] / "initdb", "-D", self.data, "-U", "queue", "-A",
             "trust", "-E", "UTF8", "--locale=C"], check=True, stdout=subprocess.DEVNULL, cwd="/")

    def start_store(self):
        self.server = self.processes.start(
            [*self.as_user, self.programs["postgres"] / "postgres", "-D", self.data,
             "-p", str(self.store_port), "-k", "", "-c", "listen_addresses=127.0.0.1",
             "-c", "fsync=on", "-c", "synchronous_commit=on", "-c", "max_wal_size=4GB"],
            self.store_port, cwd="/")
        while subprocess.run(
                [self.programs["postgres"] / "pg_isready", "-q", "-h", "127.0.0.1", "-p",
                 str(self.store_port)], check=False).returncode:
            time.sleep(0.05)

    def stop(self):
        # So that it releases its shared memory.
        if self.server:
            self.server.send_signal(signal.SIGQUIT)
            self.server.wait()
        super().stop()

    def expire_locks(self):
        subprocess.run(
            [self.programs["postgres"] / "psql", "-q", "-h", "127.0.0.1", "-p", str(self.store_port),
             "-U", "queue", "-d", "postgres", "-c",
             "UPDATE graphile_worker._private_jobs SET locked_at = locked_at - interval '4 hours'"],
            check=True)
        # A worker looks for such locks within a minute of its start.
        self.kill()
        self.start()
        return "4 hours"
