"""Clients of pillarbox, and the history of what everybody was told, for the judge of tests/judge."""

import base64
import http.client
import itertools
import json
import random
import threading
import time

# In every body and attachment, and never in what may be stored.
MARKER = "planted-marker-5b0c1f"
# In every subject: what is stored has it.
STORED = "stored-subject"
ORGANISATION = "acme"
PATIENCE = 90


class History:
    """Events with times of one clock, in microseconds."""

    def __init__(self, path):
        self._file = path.open("w")
        self._lock = threading.Lock()
        # A call whose answer a kill lost is repeated, so that a message may be sent twice.
        self.write(
            "run", onUnknown="retry", answers="may_be_lost", refusal="definite", suppressionDelay=0
        )

    @staticmethod
    def now():
        return time.monotonic_ns() // 1000

    def write(self, what, **event):
        event = {name: value for name, value in event.items() if value is not None}
        line = json.dumps({"what": what, **event})
        with self._lock:
            self._file.write(line + "\n")

    def flush(self):
        with self._lock:
            self._file.flush()


class Api:
    """One connection of a client."""

    def __init__(self, history, key, port=8025):
        self._history, self._key, self._port = history, key, port
        self._connection = None
        self._after = ""
        self.refused = 0

    def request(self, method, path, body=None, patience=PATIENCE):
        """Status, header fields and document of an answer; nothing if the connection broke."""
        try:
            if self._connection is None:
                self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=patience)
            fields = {"Authorization": f"Bearer {self._key}"}
            if body is not None:
                fields["Content-Type"] = "application/json"
                body = json.dumps(body)
            self._connection.request(method, path, body, fields)
            response = self._connection.getresponse()
            return response.status, response.headers, json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.refused += isinstance(error, ConnectionRefusedError)
            self.close()
            return None

    def close(self):
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def post(self, key, content):
        """Posts a message with a key; its id if it was accepted."""
        subject = f"{STORED} {key}"
        message = {
            "from": "a@example.com", "to": ["b@example.org"], "subject": subject,
            "idempotencyKey": key, **content,
        }
        began = self._history.now()
        answer = self.request("POST", "/emails", message)
        status, fields, document = answer or (None, {}, {})
        identity = document.get("id") if status == 200 else None
        self._history.write(
            "post", began=began, ended=self._history.now(), organisation=ORGANISATION, key=key,
            subject=subject, status=status, id=identity,
            replayed="Idempotent-Replayed" in fields,
        )
        if status is not None and status not in (200, 503):
            raise AssertionError(f"a message got {status}: {document}")
        return identity

    def read(self, identity):
        """The record of a message, which must be there; nothing if the connection broke."""
        began = self._history.now()
        answer = self.request("GET", f"/emails/{identity}")
        if answer is None:
            return None
        status, _, record = answer
        if status not in (200, 404):
            raise AssertionError(f"the record of {identity} got {status}: {record}")
        self._history.write(
            "read", began=began, ended=self._history.now(), id=identity,
            status=record.get("status"), attempts=record.get("attempts", 0),
        )
        return record

    def read_feed(self):
        """Reads the feed from where this client stopped to its end."""
        while True:
            began = self._history.now()
            answer = self.request("GET", f"/events?limit=100{self._after}")
            if answer is None or answer[0] != 200:
                raise AssertionError(f"the feed got {answer}")
            document = answer[2]
            entries = [
                {"id": one["id"], "type": one["type"], "message": one["data"]["id"]}
                for one in document["events"]
            ]
            self._history.write(
                "feed", began=began, ended=self._history.now(), organisation=ORGANISATION,
                reader="reader", entries=entries,
            )
            self._after = f"&after={document['next']}"
            if not entries:
                return


class Load:
    """Four clients that give every message a key and repeat it until it is accepted."""

    CLIENTS = 4
    # How long each waits between two messages, in seconds.
    PAUSE = 0.04

    def __init__(self, history, key, name, seed):
        # In the order in which they were accepted.
        self.accepted = []
        self.unanswered = 0
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._failures = []
        self._apis = [Api(history, key) for _ in range(self.CLIENTS)]
        self._threads = [
            threading.Thread(target=self._run, args=(api, f"{name}-{number}", f"{seed}-{name}-{number}"))
            for number, api in enumerate(self._apis)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self):
        """Waits until every message that was begun is accepted."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    @property
    def refused(self):
        """Connections that nobody listened for."""
        return sum(api.refused for api in self._apis)

    def _run(self, api, name, seed):
        try:
            self._send(api, name, random.Random(seed))
        except Exception as error:  # Given to whoever stops the load.
            self._failures.append(error)
        finally:
            api.close()

    def _send(self, api, name, choices):
        for number in itertools.count():
            if self._stop.is_set():
                return
            self._until_accepted(api, f"{name}-{number}", content(choices))
            if choices.random() < 0.1:
                # The judge sees to it that this is a replay.
                api.post(f"{name}-{number}", {"text": f"again {MARKER}"})
            time.sleep(self.PAUSE)

    def _until_accepted(self, api, key, message):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            identity = api.post(key, message)
            if identity is not None:
                with self._lock:
                    self.accepted.append(identity)
                return
            self.unanswered += 1
            time.sleep(0.1)
        raise AssertionError(f"the message {key} was not accepted in {PATIENCE} s")


def content(choices):
    """Body and attachments of a message, of sizes as they come."""
    length = choices.choice((100, 2_000, 20_000))
    message = {"text": MARKER + "t" * length, "html": f"<p>{MARKER}</p>"}
    if choices.random() < 0.1:
        # In base64, the marker looks alike if it begins at a multiple of three bytes.
        file = (MARKER + "\n") * choices.choice((30, 3_000, 30_000))
        message["attachments"] = [
            {"filename": "file.txt", "content": base64.b64encode(file.encode()).decode()}
        ]
    return message


def marker_forms():
    """The marker as it may lie in a file: in bodies, and in base64 at each offset."""
    forms = [MARKER]
    for offset in range(3):
        encoded = base64.b64encode(b"\n" * offset + MARKER.encode()).decode()
        # Without the characters that depend on what stands beside it.
        forms.append(encoded[4 if offset else 0:(offset + len(MARKER)) // 3 * 4])
    return forms
