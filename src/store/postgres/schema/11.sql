-- Terms of messages, and keys that say something of them.

-- Rows of messages, of steps and of keys have new forms, which a node of version 10 cannot read. Such a
-- row is written only if no such node works here, and keeps it off from then on.
