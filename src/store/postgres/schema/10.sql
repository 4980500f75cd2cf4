-- Rights of keys, and what is set for organisations.

-- Rows of both have new forms, which a node of version 9 cannot read. Such a row is written only if
-- no such node works here, and keeps it off from then on.

-- Recipients that an organisation had accepted in a month, and in the last day, hour and minute of it.
-- Connections that accept its messages do not wait for each other: each writes to a slot of its own,
-- unless a limit has all of them write to the first.
CREATE TABLE usage (
    organisation integer NOT NULL,
    month bigint NOT NULL,
    slot smallint NOT NULL,
    month_used bigint NOT NULL,
    day bigint NOT NULL,
    day_used bigint NOT NULL,
    hour bigint NOT NULL,
    hour_used bigint NOT NULL,
    minute bigint NOT NULL,
    minute_used bigint NOT NULL,
    PRIMARY KEY (organisation, month, slot)
);

-- Alerts for operators.

-- Alerts that were raised and are not cleared, or that wait to be posted, by their subject.
CREATE TABLE alert (
    key bytea PRIMARY KEY,
    alert bytea NOT NULL
);
