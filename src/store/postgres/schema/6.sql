-- A database of `pillarbox dev` is not the service's.

-- Nodes of version 5 do not look at it, and make no such database.
ALTER TABLE cluster ADD COLUMN made_by_dev boolean NOT NULL DEFAULT false;
