-- Timelines of messages.

-- Steps that neither the record nor the events tell. They go with the record, also if a node of
-- version 8 purges it.
CREATE TABLE timeline (
    message uuid NOT NULL REFERENCES message ON DELETE CASCADE,
    number integer NOT NULL,
    step bytea NOT NULL,
    PRIMARY KEY (message, number)
);
