-- Tables of pillarbox. Rows are encoded as in the data file of the default engine: a version byte,
-- then postcard. What the server searches by is a column of its own.
--
-- Each version is one step, from its line with three dashes on. Nodes of the version before continue to
-- work meanwhile and after: a step only adds columns and tables, and new columns have defaults. A step
-- that was released does not change.

--- Version 1: The first tables.

CREATE TABLE cluster (
    one_row boolean PRIMARY KEY DEFAULT true CHECK (one_row),
    -- Version of this schema, and the oldest version whose nodes may work on it.
    version integer NOT NULL,
    oldest_reader integer NOT NULL,
    feed_id bigint NOT NULL,
    -- Grows with each change of organisations, keys, domains and endpoints.
    directory_version bigint NOT NULL DEFAULT 1,
    last_organisation integer NOT NULL DEFAULT 0,
    last_key integer NOT NULL DEFAULT 0,
    last_webhook integer NOT NULL DEFAULT 0,
    -- The most that a message's id was ahead of its acceptance, in milliseconds.
    id_lead bigint NOT NULL DEFAULT 0,
    lost_messages bigint NOT NULL DEFAULT 0,
    lost_messages_at bigint NOT NULL DEFAULT 0,
    time_record bytea
);

-- One life of one process.
CREATE TABLE node (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    -- Random number in the process's data directory.
    directory bytea NOT NULL,
    version text NOT NULL,
    beat bigint NOT NULL DEFAULT 0,
    started_at bigint NOT NULL
) WITH (fillfactor = 50);

-- One connection that writes. Without its row it writes nothing.
CREATE TABLE session (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node integer NOT NULL REFERENCES node ON DELETE CASCADE,
    writes bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- What one node does for all.
CREATE TABLE duty (
    name text PRIMARY KEY,
    node integer NOT NULL,
    until timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Part of the pace of all nodes that one holds, from 0 to 1.
CREATE TABLE quota_share (
    node integer PRIMARY KEY,
    rate double precision NOT NULL,
    until timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE message (
    id uuid PRIMARY KEY,
    organisation integer NOT NULL,
    record bytea NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX message_by_organisation ON message (organisation, id);

-- Messages that a node holds in memory.
CREATE TABLE pending (
    id uuid PRIMARY KEY,
    node integer NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX pending_by_node ON pending (node, id);

CREATE TABLE idempotency (
    organisation integer NOT NULL,
    -- SHA-256 of the key and where it comes from.
    key bytea NOT NULL,
    message uuid NOT NULL,
    created_at bigint NOT NULL,
    PRIMARY KEY (organisation, key)
) WITH (fillfactor = 70);
CREATE INDEX idempotency_by_message ON idempotency (message);

CREATE TABLE overturned_failure (id uuid PRIMARY KEY, failure bytea NOT NULL);

-- Messages by the provider's id.
CREATE TABLE sent (
    ses_message_id text COLLATE "C" PRIMARY KEY,
    id uuid NOT NULL,
    sent_at bigint NOT NULL
);

CREATE TABLE event (
    message uuid NOT NULL,
    key bytea NOT NULL,
    event bytea NOT NULL,
    PRIMARY KEY (message, key)
);

CREATE TABLE unmatched_event (
    ses_message_id text COLLATE "C" NOT NULL,
    digest bytea NOT NULL,
    received_at bigint NOT NULL,
    event bytea NOT NULL,
    PRIMARY KEY (ses_message_id, digest)
);

CREATE TABLE dead_letter (
    key bytea PRIMARY KEY,
    received_at bigint NOT NULL,
    letter bytea NOT NULL
);

-- Last position that was given. Its row is locked last in a transaction and until the commit, so
-- positions are in the order of commits, and nobody sees one without those before it.
CREATE TABLE feed_counter (
    one_row boolean PRIMARY KEY DEFAULT true CHECK (one_row),
    last bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 10);

CREATE TABLE feed (
    organisation integer NOT NULL,
    position bigint NOT NULL,
    entry bytea NOT NULL,
    PRIMARY KEY (organisation, position)
);

-- Where each organisation's feed ends.
CREATE TABLE feed_end (
    organisation integer PRIMARY KEY,
    last bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE suppression (
    -- 0 for all organisations.
    organisation integer NOT NULL,
    address text COLLATE "C" NOT NULL,
    suppression bytea NOT NULL,
    -- Position of its commit in the order of commits.
    position bigint NOT NULL,
    PRIMARY KEY (organisation, address)
);
CREATE INDEX suppression_by_position ON suppression (position);

CREATE TABLE organisation (id integer PRIMARY KEY, organisation bytea NOT NULL);
CREATE TABLE api_key (
    id integer PRIMARY KEY,
    organisation integer NOT NULL,
    api_key bytea NOT NULL,
    used_at bigint
) WITH (fillfactor = 70);
CREATE TABLE domain (
    organisation integer NOT NULL,
    name text COLLATE "C" NOT NULL,
    domain bytea NOT NULL,
    PRIMARY KEY (organisation, name)
);

CREATE TABLE webhook (id integer PRIMARY KEY, organisation integer NOT NULL, webhook bytea NOT NULL);
CREATE TABLE webhook_cursor (id integer PRIMARY KEY, cursor bytea NOT NULL) WITH (fillfactor = 50);
CREATE TABLE webhook_waiting (
    webhook integer NOT NULL,
    due bigint NOT NULL,
    position bigint NOT NULL,
    delivery bytea NOT NULL,
    PRIMARY KEY (webhook, due, position)
);
CREATE TABLE webhook_failed (
    webhook integer NOT NULL,
    position bigint NOT NULL,
    delivery bytea NOT NULL,
    PRIMARY KEY (webhook, position)
);

CREATE TABLE history (
    hour integer NOT NULL,
    organisation integer NOT NULL,
    counts bytea NOT NULL,
    PRIMARY KEY (hour, organisation)
) WITH (fillfactor = 50);

--- Version 2: What nodes tell each other and operators.

-- Version of the schema that a node was built for. Nodes of version 1 do not write it.
ALTER TABLE node ADD COLUMN schema integer NOT NULL DEFAULT 1;
-- Whether an operator wants it to accept no more.
ALTER TABLE node ADD COLUMN draining boolean NOT NULL DEFAULT false;
-- Messages in its memory that are not settled, and the conditions that hold for it.
ALTER TABLE node ADD COLUMN pending bigint NOT NULL DEFAULT 0;
ALTER TABLE node ADD COLUMN conditions text[] NOT NULL DEFAULT '{}';

--- Version 3: Nodes divide the pace by need.

-- Organisations whose messages it has to send. Nodes of version 2 do not write it.
ALTER TABLE node ADD COLUMN demand integer NOT NULL DEFAULT 1;

--- Version 4: Nodes tell each other of calls to the provider.

-- Calls that were started for the message, if one is under way and takes long. Nodes of version 3
-- do not write it.
ALTER TABLE pending ADD COLUMN calling integer;

--- Version 5: Nodes take each other for dead only once no call of theirs can be under way.

-- Milliseconds of silence after which none of its calls is under way. Nodes of version 4 do not
-- write it.
ALTER TABLE node ADD COLUMN least_dead_after bigint NOT NULL DEFAULT 0;

--- Version 6: A database of `pillarbox dev` is not the service's.

-- Nodes of version 5 do not look at it, and make no such database.
ALTER TABLE cluster ADD COLUMN made_by_dev boolean NOT NULL DEFAULT false;

--- Version 7: Nodes ask each other to stop messages. Nodes of version 6 do not look at it.

-- What one node asks of another. Who asks removes it once it waits no more.
CREATE TABLE node_request (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node integer NOT NULL REFERENCES node ON DELETE CASCADE,
    asked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    request bytea NOT NULL,
    answer bytea
);
CREATE INDEX node_request_by_node ON node_request (node);

--- Version 8: Places of nodes, and rows of sessions that are found by their node.

-- Boot of the machine, device and inode of the file by which a node holds its data directory. It is
-- empty if the node does not say it, as nodes of version 7 do not.
ALTER TABLE node ADD COLUMN place bytea NOT NULL DEFAULT '';

-- They are looked for after lost connections, and if a node is removed.
CREATE INDEX session_by_node ON session (node);

--- Version 9: Timelines of messages.

-- Steps that neither the record nor the events tell. They go with the record, also if a node of
-- version 8 purges it.
CREATE TABLE timeline (
    message uuid NOT NULL REFERENCES message ON DELETE CASCADE,
    number integer NOT NULL,
    step bytea NOT NULL,
    PRIMARY KEY (message, number)
);

--- Version 10: Rights of keys, and what is set for organisations.

-- Rows of both have new forms, which a node of version 9 cannot read. Such a row is written only if
-- no such node works here, and keeps it off from then on.

-- Recipients that an organisation had accepted in a month, and in the last day, hour and minute of it.
-- Connections that accept its messages do not wait for each other: each writes to a slot of its own,
-- unless a limit has all of them write to the first.
CREATE TABLE usage (
    organisation integer NOT NULL,
    month bigint NOT NULL,
    slot smallint NOT NULL,
    month_used bigint NOT NULL,
    day bigint NOT NULL,
    day_used bigint NOT NULL,
    hour bigint NOT NULL,
    hour_used bigint NOT NULL,
    minute bigint NOT NULL,
    minute_used bigint NOT NULL,
    PRIMARY KEY (organisation, month, slot)
);

-- Alerts for operators.

-- Alerts that were raised and are not cleared, or that wait to be posted, by their subject.
CREATE TABLE alert (
    key bytea PRIMARY KEY,
    alert bytea NOT NULL
);

--- Version 11: Terms of messages, and keys that say something of them.

-- Rows of messages, of steps and of keys have new forms, which a node of version 10 cannot read. Such a
-- row is written only if no such node works here, and keeps it off from then on.

--- Version 12: Endpoints whose events have another form than the feed's.

-- Rows of such endpoints have a new form, which a node of version 11 cannot read. Such a row is written
-- only if no such node works here, and keeps it off from then on.
