-- One row per counter or idempotency key; expires is the minute since the epoch after which the row is not needed any more.
CREATE TABLE IF NOT EXISTS tollgate_state (
    k varbinary(640) NOT NULL PRIMARY KEY,
    state mediumblob NOT NULL,
    expires integer NOT NULL,
    KEY tollgate_state_expires (expires)
) ENGINE = InnoDB
