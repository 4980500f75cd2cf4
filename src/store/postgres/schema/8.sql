-- Places of nodes, and rows of sessions that are found by their node.

-- Boot of the machine, device and inode of the file by which a node holds its data directory. It is
-- empty if the node does not say it, as nodes of version 7 do not.
ALTER TABLE node ADD COLUMN place bytea NOT NULL DEFAULT '';

-- They are looked for after lost connections, and if a node is removed.
CREATE INDEX session_by_node ON session (node);
