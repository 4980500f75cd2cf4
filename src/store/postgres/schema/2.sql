-- What nodes tell each other and operators.

-- Version of the schema that a node was built for. Nodes of version 1 do not write it.
ALTER TABLE node ADD COLUMN schema integer NOT NULL DEFAULT 1;
-- Whether an operator wants it to accept no more.
ALTER TABLE node ADD COLUMN draining boolean NOT NULL DEFAULT false;
-- Messages in its memory that are not settled, and the conditions that hold for it.
ALTER TABLE node ADD COLUMN pending bigint NOT NULL DEFAULT 0;
ALTER TABLE node ADD COLUMN conditions text[] NOT NULL DEFAULT '{}';
