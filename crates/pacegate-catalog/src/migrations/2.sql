-- What the audit trail is verified with. Records of the trail are keyed from here on; earlier ones cannot be verified.

CREATE TABLE IF NOT EXISTS pacegate_audit_state (
    id BIGINT NOT NULL PRIMARY KEY,
    -- Names the key that the trail is written under; empty until the first change.
    key_id VARCHAR(64) NOT NULL,
    -- The key itself, only if it is configured nowhere else.
    secret VARCHAR(64) NOT NULL,
    -- Over the trail's two ends and the numbers of rows.
    mac VARCHAR(64) NOT NULL,
    rule_rows BIGINT NOT NULL,
    plan_rows BIGINT NOT NULL,
    user_rows BIGINT NOT NULL,
    key_rows BIGINT NOT NULL
){table};

INSERT INTO pacegate_audit_state (id, key_id, secret, mac, rule_rows, plan_rows, user_rows, key_rows)
    SELECT id, '', '', '', 0, 0, 0, 0 FROM (SELECT 1 AS id) AS one
    WHERE NOT EXISTS (SELECT 1 FROM pacegate_audit_state);

-- A keyed hash of each row that a change wrote.
CREATE TABLE IF NOT EXISTS pacegate_seals (
    kind VARCHAR(16) NOT NULL,
    subject_key VARCHAR(64) NOT NULL,
    seal VARCHAR(64) NOT NULL,
    PRIMARY KEY (kind, subject_key)
){table};
