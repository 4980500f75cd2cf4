-- Tables of pillarbox. Rows are encoded as in the data file of the default engine: a version byte,
-- then postcard. What the server searches by is a column of its own.

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
