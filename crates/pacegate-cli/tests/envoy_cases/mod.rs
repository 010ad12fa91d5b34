//! Expected responses of Envoy's rate limit service: a file, and requests with their times. They
//! are written by hand from its source and documentation; the service itself does not run in these
//! tests.

#![allow(missing_docs, unreachable_pub, reason = "the cases of one test")]

/// A file, and requests with the result of each descriptor.
pub struct Case {
    pub name: &'static str,
    /// The descriptors of the domain `d`.
    pub descriptors: &'static [&'static str],
    /// The time in microseconds since the start of all windows, the request, and the response of
    /// Envoy's service, followed by ` => ` and the response of Pacegate if it differs.
    pub steps: &'static [(u64, &'static str, &'static str)],
}

#[rustfmt::skip]
pub const CASES: &[Case] = &[
    Case {
        name: "windows of a second are aligned to the epoch",
        descriptors: &["{key: a, rate_limit: {unit: second, requests_per_unit: 2}}"],
        steps: &[
            (999_999, "d: a=1", "OK 1/2"), (999_999, "d: a=1", "OK 0/2"), (999_999, "d: a=1", "OVER 0/2"), (1_000_000, "d: a=1", "OK 1/2"),
            (1_999_999, "d: a=1", "OK 0/2"), (1_999_999, "d: a=1", "OVER 0/2"), (2_000_000, "d: a=1", "OK 1/2"),
        ],
    },
    Case {
        name: "windows of a minute are aligned to the epoch",
        descriptors: &["{key: a, rate_limit: {unit: minute, requests_per_unit: 2}}"],
        steps: &[
            (59_999_999, "d: a=1", "OK 1/2"), (59_999_999, "d: a=1", "OK 0/2"), (59_999_999, "d: a=1", "OVER 0/2"),
            (60_000_000, "d: a=1", "OK 1/2"), (119_999_999, "d: a=1", "OK 0/2"), (119_999_999, "d: a=1", "OVER 0/2"),
            (120_000_000, "d: a=1", "OK 1/2"),
        ],
    },
    Case {
        name: "windows of an hour are aligned to the epoch",
        descriptors: &["{key: a, rate_limit: {unit: hour, requests_per_unit: 2}}"],
        steps: &[
            (3_599_999_999, "d: a=1", "OK 1/2"), (3_599_999_999, "d: a=1", "OK 0/2"), (3_599_999_999, "d: a=1", "OVER 0/2"),
            (3_600_000_000, "d: a=1", "OK 1/2"), (7_199_999_999, "d: a=1", "OK 0/2"), (7_199_999_999, "d: a=1", "OVER 0/2"),
            (7_200_000_000, "d: a=1", "OK 1/2"),
        ],
    },
    Case {
        name: "windows of a day are aligned to the epoch",
        descriptors: &["{key: a, rate_limit: {unit: day, requests_per_unit: 2}}"],
        steps: &[
            (86_399_999_999, "d: a=1", "OK 1/2"), (86_399_999_999, "d: a=1", "OK 0/2"), (86_399_999_999, "d: a=1", "OVER 0/2"),
            (86_400_000_000, "d: a=1", "OK 1/2"), (172_799_999_999, "d: a=1", "OK 0/2"), (172_799_999_999, "d: a=1", "OVER 0/2"),
            (172_800_000_000, "d: a=1", "OK 1/2"),
        ],
    },
    Case {
        name: "windows of a week are aligned to the epoch",
        descriptors: &["{key: a, rate_limit: {unit: week, requests_per_unit: 2}}"],
        steps: &[
            (604_799_999_999, "d: a=1", "OK 1/2"), (604_799_999_999, "d: a=1", "OK 0/2"), (604_799_999_999, "d: a=1", "OVER 0/2"),
            (604_800_000_000, "d: a=1", "OK 1/2"), (1_209_599_999_999, "d: a=1", "OK 0/2"), (1_209_599_999_999, "d: a=1", "OVER 0/2"),
            (1_209_600_000_000, "d: a=1", "OK 1/2"),
        ],
    },
    Case {
        name: "windows of a month are aligned to the epoch",
        descriptors: &["{key: a, rate_limit: {unit: month, requests_per_unit: 2}}"],
        steps: &[
            (2_591_999_999_999, "d: a=1", "OK 1/2"), (2_591_999_999_999, "d: a=1", "OK 0/2"), (2_591_999_999_999, "d: a=1", "OVER 0/2"),
            (2_592_000_000_000, "d: a=1", "OK 1/2"), (5_183_999_999_999, "d: a=1", "OK 0/2"), (5_183_999_999_999, "d: a=1", "OVER 0/2"),
            (5_184_000_000_000, "d: a=1", "OK 1/2"),
        ],
    },
    Case {
        name: "windows of a year are aligned to the epoch",
        descriptors: &["{key: a, rate_limit: {unit: year, requests_per_unit: 2}}"],
        steps: &[
            (31_535_999_999_999, "d: a=1", "OK 1/2"), (31_535_999_999_999, "d: a=1", "OK 0/2"), (31_535_999_999_999, "d: a=1", "OVER 0/2"),
            (31_536_000_000_000, "d: a=1", "OK 1/2"), (63_071_999_999_999, "d: a=1", "OK 0/2"), (63_071_999_999_999, "d: a=1", "OVER 0/2"),
            (63_072_000_000_000, "d: a=1", "OK 1/2"),
        ],
    },
    Case {
        name: "a window does not begin with its first request",
        descriptors: &["{key: a, rate_limit: {unit: minute, requests_per_unit: 1}}"],
        steps: &[
            (59_000_000, "d: a=1", "OK 0/1"), (59_999_999, "d: a=1", "OVER 0/1"), (60_000_000, "d: a=1", "OK 0/1"),
            (119_000_000, "d: a=1", "OVER 0/1"),
        ],
    },
    Case {
        name: "units are read in any case",
        descriptors: &[
            "{key: a, rate_limit: {unit: MINUTE, requests_per_unit: 2}}",
            "{key: b, rate_limit: {unit: Hour, requests_per_unit: 3}}",
        ],
        steps: &[(30_000_000, "d: a=1; b=1", "OK 1/2; OK 2/3"), (60_000_000, "d: a=1; b=1", "OK 1/2; OK 1/3")],
    },
    Case {
        name: "a key without a value limits each value separately",
        descriptors: &["{key: a, rate_limit: {unit: minute, requests_per_unit: 1}}"],
        steps: &[(0, "d: a=1", "OK 0/1"), (0, "d: a=2", "OK 0/1"), (0, "d: a=1", "OVER 0/1"), (0, "d: b=1", "OK -")],
    },
    Case {
        name: "an exact value limits only itself",
        descriptors: &["{key: a, value: x, rate_limit: {unit: minute, requests_per_unit: 1}}"],
        steps: &[(0, "d: a=x", "OK 0/1"), (0, "d: a=x", "OVER 0/1"), (0, "d: a=xx", "OK -"), (0, "d: a=", "OK -")],
    },
    Case {
        name: "two levels, a limit only at the second",
        descriptors: &["{key: a, descriptors: [{key: b, rate_limit: {unit: minute, requests_per_unit: 1}}]}"],
        steps: &[
            (0, "d: a=1", "OK -"), (0, "d: a=1, b=1", "OK 0/1"), (0, "d: a=1, b=1", "OVER 0/1"), (0, "d: a=1, b=2", "OK 0/1"),
            (0, "d: a=2, b=1", "OK 0/1"), (0, "d: b=1", "OK -"),
        ],
    },
    Case {
        name: "two levels with a limit each count separately",
        descriptors: &["{key: a, rate_limit: {unit: minute, requests_per_unit: 2}, descriptors: [{key: b, rate_limit: {unit: minute, requests_per_unit: 1}}]}"],
        steps: &[
            (0, "d: a=1, b=1", "OK 0/1"), (0, "d: a=1, b=1", "OVER 0/1"), (0, "d: a=1", "OK 1/2"), (0, "d: a=1", "OK 0/2"),
            (0, "d: a=1", "OVER 0/2"),
        ],
    },
    Case {
        name: "three levels",
        descriptors: &["{key: a, value: x, descriptors: [{key: b, descriptors: [{key: c, value: z, rate_limit: {unit: minute, requests_per_unit: 1}}]}]}"],
        steps: &[
            (0, "d: a=x, b=1, c=z", "OK 0/1"), (0, "d: a=x, b=1, c=z", "OVER 0/1"), (0, "d: a=x, b=2, c=z", "OK 0/1"),
            (0, "d: a=x, b=1, c=y", "OK -"), (0, "d: a=x, b=1", "OK -"), (0, "d: a=y, b=1, c=z", "OK -"),
        ],
    },
    Case {
        name: "four levels",
        descriptors: &["{key: a, descriptors: [{key: b, descriptors: [{key: c, descriptors: [{key: e, rate_limit: {unit: hour, requests_per_unit: 2}}]}]}]}"],
        steps: &[
            (0, "d: a=1, b=2, c=3, e=4", "OK 1/2"), (0, "d: a=1, b=2, c=3, e=4", "OK 0/2"), (0, "d: a=1, b=2, c=3, e=4", "OVER 0/2"),
            (0, "d: a=1, b=2, c=3, e=5", "OK 1/2"), (0, "d: a=1, b=2, c=3", "OK -"),
        ],
    },
    Case {
        name: "requests with more entries than levels are unlimited",
        descriptors: &["{key: a, rate_limit: {unit: minute, requests_per_unit: 1}}"],
        steps: &[(0, "d: a=1, b=1", "OK -"), (0, "d: a=1, b=1", "OK -"), (0, "d: a=1", "OK 0/1")],
    },
    Case {
        name: "the order of entries counts",
        descriptors: &["{key: a, descriptors: [{key: b, rate_limit: {unit: minute, requests_per_unit: 1}}]}"],
        steps: &[(0, "d: b=1, a=1", "OK -"), (0, "d: a=1, b=1", "OK 0/1")],
    },
    Case {
        name: "the same key at two levels",
        descriptors: &["{key: a, rate_limit: {unit: minute, requests_per_unit: 5}, descriptors: [{key: a, rate_limit: {unit: minute, requests_per_unit: 1}}]}"],
        steps: &[(0, "d: a=1, a=1", "OK 0/1"), (0, "d: a=1, a=1", "OVER 0/1"), (0, "d: a=1, a=2", "OK 0/1"), (0, "d: a=1", "OK 4/5")],
    },
    Case {
        name: "an exact value takes precedence over a key without a value",
        descriptors: &[
            "{key: a, rate_limit: {unit: minute, requests_per_unit: 1}}",
            "{key: a, value: x, rate_limit: {unit: minute, requests_per_unit: 3}}",
        ],
        steps: &[(0, "d: a=x", "OK 2/3"), (0, "d: a=y", "OK 0/1"), (0, "d: a=x", "OK 1/3"), (0, "d: a=y", "OVER 0/1")],
    },
    Case {
        name: "an exact value takes precedence over an earlier wildcard",
        descriptors: &[
            "{key: a, value: 'x*', rate_limit: {unit: minute, requests_per_unit: 1}}",
            "{key: a, value: xy, rate_limit: {unit: minute, requests_per_unit: 3}}",
        ],
        steps: &[(0, "d: a=xy", "OK 2/3"), (0, "d: a=xz", "OK 0/1"), (0, "d: a=xz", "OVER 0/1")],
    },
    Case {
        name: "a wildcard takes precedence over an earlier key without a value",
        descriptors: &[
            "{key: a, rate_limit: {unit: minute, requests_per_unit: 1}}",
            "{key: a, value: 'x*', rate_limit: {unit: minute, requests_per_unit: 3}}",
        ],
        steps: &[(0, "d: a=xy", "OK 2/3"), (0, "d: a=y", "OK 0/1")],
    },
    Case {
        name: "of two wildcards the first wins",
        descriptors: &[
            "{key: a, value: 'x*', rate_limit: {unit: minute, requests_per_unit: 1}}",
            "{key: a, value: 'xy*', rate_limit: {unit: minute, requests_per_unit: 3}}",
        ],
        steps: &[(0, "d: a=xyz", "OK 0/1"), (0, "d: a=xyz", "OVER 0/1")],
    },
    Case {
        name: "each value of a wildcard has a counter",
        descriptors: &["{key: a, value: 'x*', rate_limit: {unit: minute, requests_per_unit: 1}}"],
        steps: &[(0, "d: a=x1", "OK 0/1"), (0, "d: a=x2", "OK 0/1"), (0, "d: a=x1", "OVER 0/1"), (0, "d: a=x", "OK 0/1"), (0, "d: a=y", "OK -")],
    },
    Case {
        name: "a single star matches any value",
        descriptors: &["{key: a, value: '*', rate_limit: {unit: minute, requests_per_unit: 1}}"],
        steps: &[(0, "d: a=x", "OK 0/1"), (0, "d: a=x", "OVER 0/1"), (0, "d: a=y", "OK 0/1"), (0, "d: a=", "OK 0/1")],
    },
    Case {
        name: "a wildcard at the second level",
        descriptors: &["{key: a, value: x, descriptors: [{key: p, value: '/api/*', rate_limit: {unit: minute, requests_per_unit: 1}}, {key: p, rate_limit: {unit: minute, requests_per_unit: 4}}]}"],
        steps: &[(0, "d: a=x, p=/api/1", "OK 0/1"), (0, "d: a=x, p=/api/1", "OVER 0/1"), (0, "d: a=x, p=/web", "OK 3/4")],
    },
    Case {
        name: "a wildcard at the first level of two",
        descriptors: &["{key: a, value: 'x*', descriptors: [{key: b, rate_limit: {unit: minute, requests_per_unit: 1}}]}"],
        steps: &[
            (0, "d: a=x1, b=1", "OK 0/1"), (0, "d: a=x1, b=1", "OVER 0/1"), (0, "d: a=x2, b=1", "OK 0/1"), (0, "d: a=y, b=1", "OK -"),
            (0, "d: a=x1", "OK -"),
        ],
    },
    Case {
        name: "a star in the middle (literal in Envoy's service, noted by the import)",
        descriptors: &["{key: a, value: 'x*z', rate_limit: {unit: minute, requests_per_unit: 1}}"],
        steps: &[(0, "d: a=x*z", "OK 0/1"), (0, "d: a=xyz", "OK - => OK 0/1"), (0, "d: a=xy", "OK -")],
    },
    Case {
        name: "a value that contains a star",
        descriptors: &["{key: a, value: 'x*', rate_limit: {unit: minute, requests_per_unit: 2}}"],
        steps: &[(0, "d: a=x*", "OK 1/2"), (0, "d: a=x*", "OK 0/2"), (0, "d: a=x*", "OVER 0/2")],
    },
    Case {
        name: "no backtracking after an exact value",
        descriptors: &[
            "{key: a, value: x, descriptors: [{key: b, rate_limit: {unit: minute, requests_per_unit: 1}}]}",
            "{key: a, descriptors: [{key: c, rate_limit: {unit: minute, requests_per_unit: 1}}]}",
        ],
        steps: &[(0, "d: a=x, c=1", "OK -"), (0, "d: a=y, c=1", "OK 0/1"), (0, "d: a=x, b=1", "OK 0/1")],
    },
    Case {
        name: "no backtracking after a wildcard",
        descriptors: &[
            "{key: a, value: 'x*', descriptors: [{key: b, rate_limit: {unit: minute, requests_per_unit: 1}}]}",
            "{key: a, rate_limit: {unit: minute, requests_per_unit: 7}}",
        ],
        steps: &[(0, "d: a=xy", "OK -"), (0, "d: a=y", "OK 6/7"), (0, "d: a=xy, b=1", "OK 0/1")],
    },
    Case {
        name: "an entry without a value matches the key without a value",
        descriptors: &[
            "{key: a, rate_limit: {unit: minute, requests_per_unit: 1}}",
            "{key: a, value: x, rate_limit: {unit: minute, requests_per_unit: 3}}",
        ],
        steps: &[(0, "d: a=", "OK 0/1"), (0, "d: a=", "OVER 0/1"), (0, "d: a=x", "OK 2/3")],
    },
    Case {
        name: "an empty value in the file means no value",
        descriptors: &["{key: a, value: '', rate_limit: {unit: minute, requests_per_unit: 1}}"],
        steps: &[(0, "d: a=x", "OK 0/1"), (0, "d: a=y", "OK 0/1"), (0, "d: a=x", "OVER 0/1")],
    },
    Case {
        name: "values that look like numbers are text",
        descriptors: &[
            "{key: a, value: 1.10, rate_limit: {unit: minute, requests_per_unit: 1}}",
            "{key: a, value: 007, rate_limit: {unit: minute, requests_per_unit: 2}}",
            "{key: a, value: true, rate_limit: {unit: minute, requests_per_unit: 3}}",
        ],
        steps: &[
            (0, "d: a=1.10", "OK 0/1"), (0, "d: a=1.1", "OK -"), (0, "d: a=007", "OK 1/2"), (0, "d: a=7", "OK -"),
            (0, "d: a=true", "OK 2/3"),
        ],
    },
    Case {
        name: "unlimited",
        descriptors: &["{key: a, rate_limit: {unlimited: true}}"],
        steps: &[(0, "d: a=1", "OK free"), (0, "d: a=1 x1000", "OK free"), (0, "d: a=1, b=1", "OK -")],
    },
    Case {
        name: "an unlimited value among limited ones",
        descriptors: &[
            "{key: a, rate_limit: {unit: minute, requests_per_unit: 1}}",
            "{key: a, value: x, rate_limit: {unlimited: true}}",
        ],
        steps: &[(0, "d: a=x", "OK free"), (0, "d: a=x", "OK free"), (0, "d: a=y", "OK 0/1"), (0, "d: a=y", "OVER 0/1")],
    },
    Case {
        name: "a value without a limit among limited ones (reported as unlimited in Pacegate)",
        descriptors: &[
            "{key: a, rate_limit: {unit: minute, requests_per_unit: 1}}",
            "{key: a, value: x}",
        ],
        steps: &[(0, "d: a=x", "OK - => OK free"), (0, "d: a=x", "OK - => OK free"), (0, "d: a=y", "OK 0/1"), (0, "d: a=y", "OVER 0/1")],
    },
    Case {
        name: "shadow_mode counts and does not deny",
        descriptors: &["{key: a, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}"],
        steps: &[(0, "d: a=1", "OK 0/1"), (0, "d: a=1", "OK 0/1"), (0, "d: a=1", "OK 0/1"), (60_000_000, "d: a=1", "OK 0/1")],
    },
    Case {
        name: "shadow_mode next to a limit that denies",
        descriptors: &[
            "{key: a, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}",
            "{key: b, rate_limit: {unit: minute, requests_per_unit: 2}}",
        ],
        steps: &[(0, "d: a=1; b=1", "OK 0/1; OK 1/2"), (0, "d: a=1; b=1", "OK 0/1; OK 0/2"), (0, "d: a=1; b=1", "OK 0/1; OVER 0/2")],
    },
    Case {
        name: "shadow_mode for one value only",
        descriptors: &[
            "{key: a, rate_limit: {unit: minute, requests_per_unit: 1}}",
            "{key: a, value: x, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}",
        ],
        steps: &[(0, "d: a=x", "OK 0/1"), (0, "d: a=x", "OK 0/1"), (0, "d: a=y", "OK 0/1"), (0, "d: a=y", "OVER 0/1")],
    },
    Case {
        name: "no requests allowed",
        descriptors: &["{key: a, rate_limit: {unit: minute, requests_per_unit: 0}}"],
        steps: &[(0, "d: a=1", "OVER 0/0"), (60_000_000, "d: a=1", "OVER 0/0"), (60_000_000, "d: b=1", "OK -")],
    },
    Case {
        name: "no requests allowed, in shadow mode (Pacegate names no limit)",
        descriptors: &["{key: a, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 0}}"],
        steps: &[(0, "d: a=1", "OK 0/0 => OK -")],
    },
    Case {
        name: "no requests allowed for one value",
        descriptors: &[
            "{key: a, rate_limit: {unit: minute, requests_per_unit: 5}}",
            "{key: a, value: bad, rate_limit: {unit: minute, requests_per_unit: 0}}",
        ],
        steps: &[(0, "d: a=bad", "OVER 0/0"), (0, "d: a=good", "OK 4/5")],
    },
    Case {
        name: "replaces: the other limit does not apply",
        descriptors: &[
            "{key: a, rate_limit: {unit: minute, requests_per_unit: 1, name: one}}",
            "{key: b, rate_limit: {unit: minute, requests_per_unit: 3, replaces: [{name: one}]}}",
        ],
        steps: &[
            (0, "d: a=1; b=1", "OK -; OK 2/3"), (0, "d: a=1; b=1", "OK -; OK 1/3"), (0, "d: a=1", "OK 0/1"), (0, "d: a=1", "OVER 0/1"),
            (0, "d: a=1; b=1", "OK -; OK 0/3"), (0, "d: a=1; b=1", "OK -; OVER 0/3"),
        ],
    },
    Case {
        name: "replaces: only if both descriptors are in the request",
        descriptors: &[
            "{key: a, rate_limit: {unit: minute, requests_per_unit: 1, name: one}}",
            "{key: b, rate_limit: {unit: minute, requests_per_unit: 3, replaces: [{name: one}]}}",
        ],
        steps: &[(0, "d: a=1; c=1", "OK 0/1; OK -"), (0, "d: a=1; c=1", "OVER 0/1; OK -"), (0, "d: b=1", "OK 2/3")],
    },
    Case {
        name: "replaces: in any order",
        descriptors: &[
            "{key: a, rate_limit: {unit: minute, requests_per_unit: 1, name: one}}",
            "{key: b, rate_limit: {unit: minute, requests_per_unit: 3, replaces: [{name: one}]}}",
        ],
        steps: &[(0, "d: b=1; a=1", "OK 2/3; OK -"), (0, "d: b=1; a=1", "OK 1/3; OK -")],
    },
    Case {
        name: "replaces: a replaced limit still replaces others",
        descriptors: &[
            "{key: a, rate_limit: {unit: minute, requests_per_unit: 1, name: one}}",
            "{key: b, rate_limit: {unit: minute, requests_per_unit: 2, name: two, replaces: [{name: one}]}}",
            "{key: c, rate_limit: {unit: minute, requests_per_unit: 3, replaces: [{name: two}]}}",
        ],
        steps: &[(0, "d: a=1; b=1; c=1", "OK -; OK -; OK 2/3"), (0, "d: a=1; b=1", "OK -; OK 1/2"), (0, "d: b=1; c=1", "OK -; OK 1/3")],
    },
    Case {
        name: "replaces: by an unlimited descriptor",
        descriptors: &[
            "{key: a, rate_limit: {unit: minute, requests_per_unit: 1, name: one}}",
            "{key: b, rate_limit: {unlimited: true, replaces: [{name: one}]}}",
        ],
        steps: &[(0, "d: a=1; b=1", "OK -; OK free"), (0, "d: a=1; b=1", "OK -; OK free"), (0, "d: a=1", "OK 0/1")],
    },
    Case {
        name: "replaces: several at once",
        descriptors: &[
            "{key: a, rate_limit: {unit: minute, requests_per_unit: 1, name: one}}",
            "{key: b, rate_limit: {unit: minute, requests_per_unit: 1, name: two}}",
            "{key: c, rate_limit: {unit: minute, requests_per_unit: 9, replaces: [{name: one}, {name: two}]}}",
        ],
        steps: &[(0, "d: a=1; b=1; c=1", "OK -; OK -; OK 8/9"), (0, "d: a=1; b=1", "OK 0/1; OK 0/1")],
    },
    Case {
        name: "two descriptors of one request, in their order",
        descriptors: &[
            "{key: a, rate_limit: {unit: minute, requests_per_unit: 3}}",
            "{key: b, rate_limit: {unit: hour, requests_per_unit: 2}}",
        ],
        steps: &[(0, "d: a=1; b=1", "OK 2/3; OK 1/2"), (0, "d: b=1; a=1", "OK 0/2; OK 1/3"), (0, "d: a=2; c=1", "OK 2/3; OK -")],
    },
    Case {
        name: "two descriptors, one over its limit (Pacegate does not charge the other)",
        descriptors: &[
            "{key: a, rate_limit: {unit: minute, requests_per_unit: 5}}",
            "{key: b, rate_limit: {unit: minute, requests_per_unit: 1}}",
        ],
        steps: &[
            (0, "d: a=1; b=1", "OK 4/5; OK 0/1"), (0, "d: a=1; b=1", "OK 3/5; OVER 0/1 => OK 4/5; OVER 0/1"),
            (0, "d: a=1", "OK 2/5 => OK 3/5"),
        ],
    },
    Case {
        name: "the same descriptor twice in one request (charged once in Pacegate)",
        descriptors: &["{key: a, rate_limit: {unit: minute, requests_per_unit: 3}}"],
        steps: &[(0, "d: a=1; a=1", "OK 2/3; OK 1/3 => OK 1/3; OK 1/3"), (0, "d: a=1; a=1", "OK 0/3; OVER 0/3 => OVER 1/3; OVER 1/3")],
    },
    Case {
        name: "another domain is not limited",
        descriptors: &["{key: a, rate_limit: {unit: minute, requests_per_unit: 1}}"],
        steps: &[(0, "other: a=1", "OK -"), (0, "other: a=1", "OK -"), (0, "d: a=1", "OK 0/1"), (0, "D: a=1", "OK -")],
    },
    Case {
        name: "hits of the request",
        descriptors: &[
            "{key: a, rate_limit: {unit: minute, requests_per_unit: 10}}",
            "{key: b, rate_limit: {unit: minute, requests_per_unit: 20}}",
        ],
        steps: &[(0, "d: a=1 x3", "OK 7/10"), (0, "d: a=1; b=1 x7", "OK 0/10; OK 13/20"), (0, "d: a=1", "OVER 0/10"), (0, "d: b=1", "OK 12/20")],
    },
    Case {
        name: "hits of each descriptor",
        descriptors: &[
            "{key: a, rate_limit: {unit: minute, requests_per_unit: 10}}",
            "{key: b, rate_limit: {unit: minute, requests_per_unit: 20}}",
        ],
        steps: &[(0, "d: a=1 @4; b=1 @15 x9", "OK 6/10; OK 5/20"), (0, "d: a=1; b=1 @1 x6", "OK 0/10; OK 4/20")],
    },
    Case {
        name: "more hits than remaining (Pacegate charges nothing)",
        descriptors: &["{key: a, rate_limit: {unit: minute, requests_per_unit: 10}}"],
        steps: &[
            (0, "d: a=1 x8", "OK 2/10"), (0, "d: a=1 x5", "OVER 0/10 => OVER 2/10"), (0, "d: a=1 x2", "OVER 0/10 => OK 0/10"),
            (60_000_000, "d: a=1", "OK 9/10"),
        ],
    },
    Case {
        name: "0 hits charge nothing (Pacegate reports whether one would be allowed)",
        descriptors: &["{key: a, rate_limit: {unit: minute, requests_per_unit: 2}}"],
        steps: &[
            (0, "d: a=1 @0", "OK 2/2"), (0, "d: a=1", "OK 1/2"), (0, "d: a=1 @0", "OK 1/2"), (0, "d: a=1", "OK 0/2"),
            (0, "d: a=1 @0", "OK 0/2 => OVER 0/2"),
        ],
    },
    Case {
        // In Pacegate, a caller without a key refunds nothing unless the rule is `refundable`.
        name: "negative hits without a key refund nothing",
        descriptors: &["{key: a, rate_limit: {unit: minute, requests_per_unit: 5}}"],
        steps: &[
            (0, "d: a=1 @4", "OK 1/5"), (0, "d: a=1 @-3", "OK 4/5 => OK 1/5"), (0, "d: a=1", "OK 3/5 => OK 0/5"),
            (0, "d: a=1", "OK 2/5 => OVER 0/5"),
        ],
    },
    Case {
        name: "an ad-hoc limit",
        descriptors: &["{key: a, rate_limit: {unit: minute, requests_per_unit: 1}}"],
        steps: &[
            (61_000_000, "d: a=1 %3/hour", "OK 2/3"), (61_000_000, "d: a=1 %3/hour", "OK 1/3"), (61_000_000, "d: b=1 %2/day", "OK 1/2"),
            (61_000_000, "d: a=1", "OK 0/1"), (61_000_000, "d: a=1", "OVER 0/1"), (61_000_000, "d: a=1 %0/hour", "OVER 0/0"),
            (3_600_000_000, "d: a=1 %3/hour", "OK 2/3"),
        ],
    },
    Case {
        name: "an ad-hoc limit in a domain without a file (counted in Pacegate)",
        descriptors: &["{key: a, rate_limit: {unit: minute, requests_per_unit: 1}}"],
        steps: &[(0, "other: a=1 %2/hour", "OK - => OK 1/2")],
    },
    Case {
        name: "detailed_metric changes nothing",
        descriptors: &[
            "{key: a, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 1}}",
            "{key: b, value: 'x*', value_to_metric: true, rate_limit: {unit: minute, requests_per_unit: 2}}",
        ],
        steps: &[(0, "d: a=1", "OK 0/1"), (0, "d: a=2", "OK 0/1"), (0, "d: a=1", "OVER 0/1"), (0, "d: b=xy", "OK 1/2")],
    },
    Case {
        name: "share_threshold: false changes nothing",
        descriptors: &["{key: a, value: 'x*', share_threshold: false, rate_limit: {unit: minute, requests_per_unit: 1}}"],
        steps: &[(0, "d: a=x1", "OK 0/1"), (0, "d: a=x2", "OK 0/1")],
    },
    Case {
        name: "ambiguous concatenations of keys and values (separate in Pacegate)",
        descriptors: &["{key: a, value: b_c, rate_limit: {unit: minute, requests_per_unit: 1}}"],
        steps: &[(0, "d: a=b_c", "OK 0/1"), (0, "d: a_b=c", "OVER 0/1 => OK -")],
    },
    Case {
        name: "a large quota",
        descriptors: &["{key: a, rate_limit: {unit: day, requests_per_unit: 1000000000}}"],
        steps: &[(0, "d: a=1 x999999999", "OK 1/1000000000"), (0, "d: a=1", "OK 0/1000000000"), (0, "d: a=1", "OVER 0/1000000000")],
    },
    Case {
        name: "a new window each second",
        descriptors: &["{key: a, rate_limit: {unit: second, requests_per_unit: 1}}"],
        steps: &[
            (0, "d: a=1", "OK 0/1"), (999_999, "d: a=1", "OVER 0/1"), (1_000_000, "d: a=1", "OK 0/1"), (1_000_001, "d: a=1", "OVER 0/1"),
            (5_500_000, "d: a=1", "OK 0/1"), (6_000_000, "d: a=1", "OK 0/1"),
        ],
    },
];
