//! The response to a check as JSON. It writes the same bytes as serde with fewer
//! instructions, because field names and words are known to need no escaping.

use std::time::Duration;

use serde::Serialize;
use serde_json::Result;

use super::{CheckResponse, LimitResponse, Limits};

/// Initial capacity: enough for the response of one limit.
const USUAL_BYTES: usize = 512;

/// A field with its value.
macro_rules! put {
    ($object:ident, $name:literal, $value:expr) => {{
        // One write for the separator and the name, which are constant.
        $object.bytes.extend_from_slice(concat!(",\"", $name, "\":").as_bytes());
        Value::write($value, $object.bytes)
    }};
}

/// A field that is left out without a value.
macro_rules! put_some {
    ($object:ident, $name:literal, $value:expr) => {
        match $value {
            Some(value) => put!($object, $name, value),
            None => Ok(()),
        }
    };
}

impl CheckResponse<'_> {
    /// Returns the bytes that serde would write.
    pub(crate) fn to_json(&self) -> Result<Vec<u8>> {
        // An exhaustive pattern, so that a new field cannot be left out.
        let Self {
            user_id,
            endpoint,
            allowed,
            limit,
            remaining,
            reset_at,
            strategy,
            current_count,
            state,
            rule,
            reason,
            degraded,
            retry_after,
            retry_after_ms,
            delay_ms,
            queue_position,
            replayed,
            usage_percentage,
            limits,
            error,
        } = self;
        let mut bytes = Vec::with_capacity(USUAL_BYTES);
        let object = Object::begin(&mut bytes);
        put_some!(object, "user_id", user_id)?;
        put_some!(object, "endpoint", endpoint)?;
        put!(object, "allowed", allowed)?;
        put!(object, "limit", limit)?;
        put!(object, "remaining", remaining)?;
        put!(object, "reset_at", reset_at)?;
        put!(object, "strategy", &strategy.map(Word))?;
        put!(object, "current_count", current_count)?;
        put!(object, "state", &Word(state))?;
        put!(object, "rule", rule)?;
        put!(object, "reason", &reason.map(Word))?;
        put!(object, "degraded", degraded)?;
        put_some!(object, "retry_after", retry_after)?;
        put_some!(object, "retry_after_ms", retry_after_ms)?;
        put_some!(object, "delay_ms", delay_ms)?;
        put_some!(object, "queue_position", queue_position)?;
        put_some!(object, "replayed", replayed.then_some(&true))?;
        put_some!(object, "usage_percentage", usage_percentage.as_ref().map(Any).as_ref())?;
        put!(object, "limits", limits)?;
        put_some!(object, "error", error.as_ref().map(Any).as_ref())?;
        object.end();
        Ok(bytes)
    }
}

impl Value for Limits<'_> {
    fn write(&self, bytes: &mut Vec<u8>) -> Result<()> {
        bytes.push(b'[');
        for (place, limit) in self.each().enumerate() {
            if place > 0 {
                bytes.push(b',');
            }
            limit.write(bytes)?;
        }
        bytes.push(b']');
        Ok(())
    }
}

impl LimitResponse<'_> {
    fn write(&self, bytes: &mut Vec<u8>) -> Result<()> {
        let Self {
            rule,
            dimension,
            unit,
            allowed,
            limit,
            remaining,
            reset_at,
            strategy,
            quota,
            window_seconds,
            state,
            reason,
            retry_after_ms,
            shadow,
            degraded,
            uncharged,
        } = self;
        let object = Object::begin(bytes);
        put!(object, "rule", rule)?;
        put!(object, "dimension", dimension)?;
        put_some!(object, "unit", unit)?;
        put!(object, "allowed", allowed)?;
        put!(object, "limit", limit)?;
        put!(object, "remaining", remaining)?;
        put!(object, "reset_at", reset_at)?;
        put!(object, "strategy", &Word(strategy))?;
        put!(object, "quota", quota)?;
        put!(object, "window_seconds", window_seconds)?;
        put!(object, "state", &Word(state))?;
        put!(object, "reason", &reason.map(Word))?;
        put_some!(object, "retry_after_ms", retry_after_ms)?;
        put_some!(object, "shadow", shadow.then_some(&true))?;
        put_some!(object, "degraded", degraded.then_some(&true))?;
        put_some!(object, "uncharged", Some(uncharged).filter(|uncharged| **uncharged > 0))?;
        object.end();
        Ok(())
    }
}

/// A JSON object being written to `bytes`. Field names and words need no escaping.
struct Object<'a> {
    bytes: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> Object<'a> {
    fn begin(bytes: &'a mut Vec<u8>) -> Self {
        Self { start: bytes.len(), bytes }
    }

    /// Every field is written with a separator before it, so the first separator becomes the brace.
    fn end(self) {
        self.bytes[self.start] = b'{';
        self.bytes.push(b'}');
    }
}

/// A value of a field.
trait Value {
    fn write(&self, bytes: &mut Vec<u8>) -> Result<()>;
}

/// Text that needs no escaping.
struct Word(&'static str);

/// Anything else, written by serde.
struct Any<'a, T>(&'a T);

impl Value for bool {
    #[inline]
    fn write(&self, bytes: &mut Vec<u8>) -> Result<()> {
        bytes.extend_from_slice(if *self { b"true" } else { b"false" });
        Ok(())
    }
}

impl Value for u32 {
    #[inline]
    fn write(&self, bytes: &mut Vec<u8>) -> Result<()> {
        bytes.extend_from_slice(itoa::Buffer::new().format(*self).as_bytes());
        Ok(())
    }
}

impl Value for u64 {
    #[inline]
    fn write(&self, bytes: &mut Vec<u8>) -> Result<()> {
        bytes.extend_from_slice(itoa::Buffer::new().format(*self).as_bytes());
        Ok(())
    }
}

impl Value for Word {
    #[inline]
    fn write(&self, bytes: &mut Vec<u8>) -> Result<()> {
        bytes.push(b'"');
        bytes.extend_from_slice(self.0.as_bytes());
        bytes.push(b'"');
        Ok(())
    }
}

impl Value for str {
    /// Most texts have no character to escape, which is found in one pass.
    fn write(&self, bytes: &mut Vec<u8>) -> Result<()> {
        if self.bytes().any(|byte| byte < 0x20 || byte == b'"' || byte == b'\\') {
            return serde_json::to_writer(bytes, self);
        }
        bytes.push(b'"');
        bytes.extend_from_slice(self.as_bytes());
        bytes.push(b'"');
        Ok(())
    }
}

impl Value for &str {
    fn write(&self, bytes: &mut Vec<u8>) -> Result<()> {
        Value::write(*self, bytes)
    }
}

impl Value for Duration {
    fn write(&self, bytes: &mut Vec<u8>) -> Result<()> {
        super::seconds(self, &mut serde_json::Serializer::new(bytes))
    }
}

impl<T: Serialize> Value for Any<'_, T> {
    fn write(&self, bytes: &mut Vec<u8>) -> Result<()> {
        serde_json::to_writer(bytes, self.0)
    }
}

impl<T: Value> Value for Option<T> {
    #[inline]
    fn write(&self, bytes: &mut Vec<u8>) -> Result<()> {
        match self {
            Some(value) => value.write(bytes),
            None => {
                bytes.extend_from_slice(b"null");
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pacegate::{Check, Cost, Limiter};

    use super::*;
    use crate::respond::{ApiError, Code};

    const RULES: &str = r#"
rules:
  - {name: 'plain', dimension: user, endpoint: /plain, algorithm: fixed_window, limit: 2, window: 1h}
  - {name: 'odd name: {1}', dimension: user, endpoint: /odd, algorithm: gcra, limit: 1, window: 1500ms}
  - {name: 'queue', dimension: user, endpoint: /queue, algorithm: leaky_bucket, limit: 2, window: 1h}
  - {name: 'one', dimension: user, endpoint: /two, algorithm: token_bucket, limit: 3, window: 1m, burst: 5}
  - {name: 'other', dimension: ip, endpoint: /two, algorithm: sliding_log, limit: 1, window: 1d}
  - {name: 'watched', dimension: user, endpoint: /shadow, algorithm: sliding_counter, limit: 1, window: 1m, mode: shadow}
default_limit: none
"#;

    fn limiter() -> Limiter {
        pacegate_config::Config::parse(RULES).unwrap().limiter().unwrap()
    }

    #[test]
    fn output_equals_serde_output() {
        let limiter = limiter();
        let error = ApiError::new(Code::ServiceUnavailable, "a \"message\"\n");
        let (mut allowed, mut denied) = (0, 0);
        for endpoint in ["/plain", "/odd", "/queue", "/two", "/shadow", "/none"] {
            for cost in [1, 1, 1, 9] {
                let check = Check::new("user", "u\"1").and("ip", "::1").endpoint(endpoint);
                let decision = limiter.check_now(check.cost(Cost::try_new(cost).unwrap())).unwrap();
                *(if decision.allowed() { &mut allowed } else { &mut denied }) += 1;
                let mut body = CheckResponse::new(&decision);
                assert_eq!(body.to_json().unwrap(), serde_json::to_vec(&body).unwrap());
                (body.user_id, body.endpoint, body.replayed) = (Some("u\"1"), Some(endpoint), true);
                body.error = Some(error.envelope("id").error);
                let body = body.with_usage(&decision);
                assert_eq!(body.to_json().unwrap(), serde_json::to_vec(&body).unwrap());
                for mut limit in body.limits.each() {
                    (limit.shadow, limit.degraded) = (true, true);
                    let mut bytes = Vec::new();
                    limit.write(&mut bytes).unwrap();
                    assert_eq!(bytes, serde_json::to_vec(&limit).unwrap());
                }
            }
        }
        assert!(allowed > 6 && denied > 6, "{allowed} {denied}");
    }
}
