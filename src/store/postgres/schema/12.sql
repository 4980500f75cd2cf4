-- Endpoints whose events have another form than the feed's.

-- Rows of such endpoints have a new form, which a node of version 11 cannot read. Such a row is written
-- only if no such node works here, and keeps it off from then on.
