-- Nodes tell each other of calls to the provider.

-- Calls that were started for the message, if one is under way and takes long. Nodes of version 3
-- do not write it.
ALTER TABLE pending ADD COLUMN calling integer;
