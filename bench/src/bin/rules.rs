//! The cost of a check with 10 to 100,000 rules, and the time to compile them. Prints Markdown.
#![expect(clippy::print_stdout, reason = "this program prints tables")]

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;
use pacegate::{Check, Limit, Limiter, LimiterBuilder, Pattern, Profile, Rule, Scope};
use pacegate_bench::machine;
use pacegate_bench::stopwatch::{median, now};
use pacegate_bench::table::{Table, grouped};
use pacegate_bench::workload::uniform;

/// Measures a check with increasing numbers of rules, in four shapes.
#[derive(Debug, Parser)]
struct Arguments {
    /// Length of a turn.
    #[arg(long, default_value_t = 50)]
    milliseconds: u64,
    /// Only the shape with this letter.
    #[arg(long)]
    shape: Option<char>,
}

const SIZES: [usize; 5] = [10, 100, 1_000, 10_000, 100_000];
const ROUNDS: usize = 9;
/// Number of checks between two readings of the clock. The length of the order is a multiple of it.
const STRIDE: usize = 1 << 10;
const ORDER_LENGTH: usize = 1 << 17;
/// Number of requests, each with its own counter. It does not depend on the number of rules.
const REQUESTS: usize = 100_000;
const _: () = assert!(REQUESTS == SIZES[SIZES.len() - 1]);
/// Number of measurements of compiling.
const COMPILATIONS: usize = 3;
/// Ten requests, then one for each rule, then all.
const WORKLOADS: [&str; 3] = ["ten requests", "one for each rule", "100,000 requests"];
const TIERS: usize = 10;
/// Maximum cost of a check with [`GOAL_RULES`], relative to the smallest number of rules.
const GOAL: f64 = 3.0;
const GOAL_RULES: usize = 10_000;

/// The shape of rules, and the requests that match each of them.
struct Shape {
    letter: char,
    title: &'static str,
    rule: fn(usize) -> Result<Rule>,
    /// By the index of the rule, and by a number that distinguishes the requests of one rule.
    request: fn(usize, usize) -> Request,
}

struct Request {
    user: String,
    endpoint: String,
    profile: Profile,
}

const SHAPES: [Shape; 4] = [
    Shape { letter: 'a', title: "a literal endpoint each", rule: literal_rule, request: literal_request },
    Shape { letter: 'b', title: "an identifier each", rule: identifier_rule, request: identifier_request },
    Shape { letter: 'c', title: "tiers × endpoints", rule: tier_rule, request: tier_request },
    Shape { letter: 'd', title: "{id} and {*rest}", rule: pattern_rule, request: pattern_request },
];

/// A limit that never denies during a measurement.
fn rule(name: &str, endpoint: &str) -> Result<Rule> {
    let limit = Limit::per_hour(1_000_000_000).build()?;
    Ok(Rule { endpoint: Pattern::parse(endpoint)?, ..Rule::new(name, "user", limit) })
}

fn request(user: usize, endpoint: String) -> Request {
    Request { user: format!("user-{user}"), endpoint, profile: Profile::default() }
}

fn literal_rule(number: usize) -> Result<Rule> {
    rule(&format!("rule-{number}"), &format!("/api/v1/resource-{number}"))
}

fn literal_request(number: usize, other: usize) -> Request {
    request(other, format!("/api/v1/resource-{number}"))
}

fn identifier_rule(number: usize) -> Result<Rule> {
    let identifier = Some(format!("user-{number}"));
    Ok(Rule { identifier, scope: Scope::Endpoint, ..rule("per-user", "/api/{*rest}")? })
}

fn identifier_request(number: usize, other: usize) -> Request {
    request(number, format!("/api/v1/resource-{other}"))
}

fn tier(number: usize) -> String {
    format!("tier-{}", number % TIERS)
}

fn tier_rule(number: usize) -> Result<Rule> {
    let endpoint = format!("/api/v1/resource-{}", number / TIERS);
    Ok(Rule { tier: Some(tier(number)), ..rule("per-user", &endpoint)? })
}

fn tier_request(number: usize, other: usize) -> Request {
    let profile = Profile { tier: Some(tier(number)), ..Profile::default() };
    // Tiers share a counter, users do not.
    let user = other * TIERS + number % TIERS;
    Request { profile, ..request(user, format!("/api/v1/resource-{}", number / TIERS)) }
}

/// Each prefix has a rule with a parameter and a rule for everything below.
fn pattern_rule(number: usize) -> Result<Rule> {
    let rest = if number.is_multiple_of(2) { "{id}" } else { "{*rest}" };
    rule("per-user", &format!("/service-{}/items/{rest}", number / 2))
}

fn pattern_request(number: usize, other: usize) -> Request {
    let rest = if number.is_multiple_of(2) { "4711" } else { "4711/parts/8" };
    request(other, format!("/service-{}/items/{rest}", number / 2))
}

/// A limiter with some rules, and its requests.
struct Contender {
    rules: usize,
    limiter: Limiter,
    requests: Vec<Request>,
    /// The requests of each of the [`WORKLOADS`].
    orders: [Vec<u32>; WORKLOADS.len()],
    samples: [Vec<f64>; WORKLOADS.len()],
    compile_milliseconds: f64,
}

impl Contender {
    fn new(shape: &Shape, rules: usize) -> Result<Self> {
        let made: Vec<Rule> = (0..rules).map(shape.rule).collect::<Result<_>>()?;
        let mut times = Vec::new();
        let mut limiter = Limiter::builder().build()?;
        for _ in 0..COMPILATIONS {
            let builder = made.iter().cloned().fold(Limiter::builder(), LimiterBuilder::rule);
            let start = now();
            limiter = builder.build()?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        let requests: Vec<Request> =
            (0..REQUESTS).map(|number| (shape.request)(number % rules, number / rules)).collect();
        let all = uniform(u32::try_from(REQUESTS)?, ORDER_LENGTH);
        let each = uniform(u32::try_from(rules)?, ORDER_LENGTH);
        // Far apart, so that each matches a different rule.
        let apart = u32::try_from(rules / SIZES[0])?;
        let ten =
            uniform(u32::try_from(SIZES[0])?, ORDER_LENGTH).iter().map(|number| number * apart).collect();
        let contender = Self {
            rules,
            limiter,
            requests,
            orders: [ten, each, all],
            samples: Default::default(),
            compile_milliseconds: median(times),
        };
        for request in &contender.requests {
            let met = contender.limiter.check_now(check(request))?.limits().len();
            ensure!(met == 1, "{} meets {met} of {rules} rules", request.endpoint);
        }
        Ok(contender)
    }

    /// Returns nanoseconds per check, over at least `turn`.
    fn measure(&self, order: &[u32], turn: Duration) -> Result<f64> {
        let (mut checks, mut refused) = (0, 0);
        let start = now();
        loop {
            for step in checks..checks + STRIDE {
                let request = &self.requests[order[step % ORDER_LENGTH] as usize];
                refused += usize::from(!self.limiter.check_now(check(request))?.allowed());
            }
            checks += STRIDE;
            let elapsed = start.elapsed();
            if elapsed >= turn {
                ensure!(refused == 0, "{refused} checks were refused");
                return Ok(elapsed.as_nanos() as f64 / checks as f64);
            }
        }
    }

    fn best(&self, order: usize) -> f64 {
        self.samples[order].iter().copied().fold(f64::INFINITY, f64::min)
    }
}

#[inline(always)]
fn check(request: &Request) -> Check<'_> {
    Check::new("user", &request.user).endpoint(&request.endpoint).method("GET").profile(&request.profile)
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let turn = Duration::from_millis(arguments.milliseconds.max(1));
    println!("{}\n", machine::description());
    let mut table = Table::new([
        "rules",
        "number",
        "ten requests: best ns",
        "median ns",
        "best / 10 rules",
        "one for each rule: best ns",
        "median ns",
        "best / 10 rules",
        "100,000 requests: best ns",
        "median ns",
        "best / 10 rules",
        "compiled in ms",
    ]);
    let mut worst = [0.0f64; WORKLOADS.len()];
    for shape in SHAPES.iter().filter(|shape| arguments.shape.is_none_or(|only| only == shape.letter)) {
        let mut contenders =
            SIZES.iter().map(|rules| Contender::new(shape, *rules)).collect::<Result<Vec<_>>>()?;
        for _ in 0..ROUNDS {
            for contender in &mut contenders {
                for order in 0..contender.orders.len() {
                    // The previous contender has filled the caches.
                    contender.measure(&contender.orders[order], turn / 10)?;
                    let sample = contender.measure(&contender.orders[order], turn)?;
                    contender.samples[order].push(sample);
                }
            }
        }
        for contender in &contenders {
            let mut cells =
                vec![format!("({}) {}", shape.letter, shape.title), grouped(contender.rules as u64)];
            for (order, worst) in worst.iter_mut().enumerate() {
                let ratio = contender.best(order) / contenders[0].best(order);
                if contender.rules == GOAL_RULES {
                    *worst = worst.max(ratio);
                }
                cells.push(format!("{:.0}", contender.best(order)));
                cells.push(format!("{:.0}", median(contender.samples[order].iter().copied())));
                cells.push(format!("{ratio:.2}"));
            }
            cells.push(format!("{:.2}", contender.compile_milliseconds));
            table.row(cells);
        }
    }
    println!("{table}");
    println!("{ROUNDS} rounds of {} ms for each figure, interleaved.\n", turn.as_millis());
    for (what, worst) in WORKLOADS.iter().zip(worst) {
        let verdict = if worst <= GOAL { "ok" } else { "MISSED" };
        println!(
            "goal {} rules <= {GOAL:.0} x 10 rules, {what}: {worst:.2} at worst {verdict}",
            grouped(GOAL_RULES as u64)
        );
    }
    Ok(())
}
