-- Nodes take each other for dead only once no call of theirs can be under way.

-- Milliseconds of silence after which none of its calls is under way. Nodes of version 4 do not
-- write it.
ALTER TABLE node ADD COLUMN least_dead_after bigint NOT NULL DEFAULT 0;
