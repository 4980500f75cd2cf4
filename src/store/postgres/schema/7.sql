-- Nodes ask each other to stop messages. Nodes of version 6 do not look at it.

-- What one node asks of another. Who asks removes it once it waits no more.
CREATE TABLE node_request (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node integer NOT NULL REFERENCES node ON DELETE CASCADE,
    asked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    request bytea NOT NULL,
    answer bytea
);
CREATE INDEX node_request_by_node ON node_request (node);
