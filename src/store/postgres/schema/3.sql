-- Nodes divide the pace by need.

-- Organisations whose messages it has to send. Nodes of version 2 do not write it.
ALTER TABLE node ADD COLUMN demand integer NOT NULL DEFAULT 1;
