-- Alerts for operators.

-- Alerts that were raised and are not cleared, or that wait to be posted, by their subject.
CREATE TABLE alert (
    key bytea PRIMARY KEY,
    alert bytea NOT NULL
);
