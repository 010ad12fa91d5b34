//! The cost of a rate limit in front of a service, in process: Pacegate's layer compared with
//! `tower_governor`. Prints Markdown.
#![expect(clippy::print_stdout, reason = "this program prints tables")]

use std::convert::Infallible;
use std::hint::black_box;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue};
use axum::http::{Request, Response, StatusCode};
use clap::Parser;
use pacegate::{Limit, Limiter};
use pacegate_bench::machine;
use pacegate_bench::stopwatch::{median, now};
use pacegate_bench::table::Table;
use pacegate_http::HeaderFamily;
use pacegate_tower::PacegateLayer;
use pacegate_tower::resolve::address;
use tower::{Layer, Service, service_fn};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

/// Never denies: this burst, refilled at 72 per hour.
const BURST: u32 = 1_000_000_000;
const ROUNDS: usize = 9;
/// Number of requests after which everything lazy is initialized.
const WARM_UP: u64 = 10_000;
/// The first row, which is the baseline of the others.
const BARE: &str = "bare service";

/// Measures the cost of the layer per request.
#[derive(Debug, Parser)]
struct Arguments {
    /// Length of a turn.
    #[arg(long, default_value_t = 100)]
    milliseconds: u64,
    /// Only print the names of the rows.
    #[arg(long)]
    rows: bool,
    /// Only send a number of requests to one row, for a profiler.
    #[arg(long, num_args = 2, value_names = ["ROW", "REQUESTS"])]
    spin: Option<Vec<String>>,
}

/// Sends a number of requests, and returns the number of denials.
type Run = Box<dyn FnMut(u64) -> u64>;

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut rows = rows()?;
    if let Some(spin) = arguments.spin {
        let [name, requests] = spin.as_slice() else { bail!("--spin takes ROW REQUESTS") };
        let row = rows.iter_mut().find(|(row, _)| row == name).context("there is no such row")?;
        ensure!((row.1)(requests.parse().context("REQUESTS is a number")?) == 0, "requests were refused");
        return Ok(());
    }
    if arguments.rows {
        rows.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(());
    }
    println!("{}\n", machine::description());
    let mut samples = vec![Vec::new(); rows.len()];
    let turn = Duration::from_millis(arguments.milliseconds);
    for _ in 0..ROUNDS {
        for (place, (name, run)) in rows.iter_mut().enumerate() {
            ensure!(run(WARM_UP) == 0, "{name} refused requests");
            let (start, mut requests) = (now(), 0);
            while start.elapsed() < turn {
                ensure!(run(WARM_UP) == 0, "{name} refused requests");
                requests += WARM_UP;
            }
            samples[place].push(start.elapsed().as_nanos() as f64 / requests as f64);
        }
    }
    let best = |place: usize| samples[place].iter().copied().fold(f64::INFINITY, f64::min);
    let middle = |place: usize| median(samples[place].iter().copied());
    let mut table = Table::new(["one address", "best ns", "median ns", "added: best ns", "added: median ns"]);
    for (place, (name, _)) in rows.iter().enumerate() {
        let added = median(samples[place].iter().zip(&samples[0]).map(|(own, bare)| own - bare));
        let figures = [best(place), middle(place), best(place) - best(0), added];
        table.row(std::iter::once((*name).to_owned()).chain(figures.map(|figure| format!("{figure:.0}"))));
    }
    println!("{table}");
    println!("{ROUNDS} rounds of {} ms for each row, interleaved.", arguments.milliseconds);
    Ok(())
}

/// Returns everything that is measured, the service alone first.
fn rows() -> Result<Vec<(&'static str, Run)>> {
    let governor = |headers: bool| -> Result<Run> {
        // One cell every 50 s is 72 per hour.
        let mut config = GovernorConfigBuilder::default();
        config.per_second(50).burst_size(BURST);
        Ok(if headers {
            let config = config.use_headers().finish().context("governor's configuration")?;
            run(GovernorLayer::new(config).layer(hello()))
        } else {
            run(GovernorLayer::new(config.finish().context("governor's configuration")?).layer(hello()))
        })
    };
    let pacegate = |families: &[HeaderFamily]| -> Result<Run> {
        let limit = Limit::per_hour(72).burst(BURST.into());
        let limiter = Limiter::builder().plan("bench", [limit]).build()?;
        let layer = PacegateLayer::builder(limiter).by(address()).plan("bench").headers(families).build()?;
        Ok(run(layer.layer(hello())))
    };
    Ok(vec![
        (BARE, run(hello())),
        ("the same six headers, as constants", run(with_headers())),
        ("tower_governor, no headers", governor(false)?),
        ("tower_governor, 2 headers", governor(true)?),
        ("pacegate, no headers", pacegate(&[])?),
        ("pacegate, X-RateLimit (4 headers)", pacegate(&[HeaderFamily::XRateLimit])?),
        ("pacegate, all (6 headers)", pacegate(&[HeaderFamily::XRateLimit, HeaderFamily::Ietf])?),
    ])
}

/// A service that responds immediately, with the headers of axum's handlers.
fn hello()
-> impl Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send + 'static>
+ Clone
+ Send
+ 'static {
    service_fn(|request: Request<Body>| async move {
        black_box(&request);
        let mut response = Response::new(Body::empty());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        Ok(response)
    })
}

/// The same service with constant headers as Pacegate writes them, to measure the cost of headers.
fn with_headers() -> impl Service<Request<Body>, Response = Response<Body>, Error = Infallible> + 'static {
    const HEADERS: [(HeaderName, HeaderValue); 6] = [
        (HeaderName::from_static("x-ratelimit-limit"), HeaderValue::from_static("1000000000")),
        (HeaderName::from_static("x-ratelimit-remaining"), HeaderValue::from_static("999999999")),
        (HeaderName::from_static("x-ratelimit-reset"), HeaderValue::from_static("1790000050")),
        (HeaderName::from_static("x-ratelimit-strategy"), HeaderValue::from_static("token_bucket")),
        (
            HeaderName::from_static("ratelimit-policy"),
            HeaderValue::from_static("\"bench\";q=1000000000;w=50000000000"),
        ),
        (HeaderName::from_static("ratelimit"), HeaderValue::from_static("\"bench\";r=999999999;t=50")),
    ];
    let mut inner = hello();
    service_fn(move |request: Request<Body>| {
        let response = inner.call(request);
        async move {
            let mut response = response.await?;
            response.headers_mut().reserve(HEADERS.len());
            for (name, value) in HEADERS {
                response.headers_mut().insert(name, value);
            }
            Ok(response)
        }
    })
}

fn run<S>(mut service: S) -> Run
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + 'static,
{
    let peer = ConnectInfo(SocketAddr::from(([192, 0, 2, 1], 4711)));
    Box::new(move |requests| {
        let mut refused = 0;
        for _ in 0..requests {
            let mut request = Request::new(Body::empty());
            request.extensions_mut().insert(peer);
            // Neither the service nor an in-process limiter ever waits.
            let mut context = TaskContext::from_waker(Waker::noop());
            let answered = match pin!(service.call(request)).poll(&mut context) {
                Poll::Ready(Ok(response)) => black_box(response).status() == StatusCode::OK,
                Poll::Ready(Err(never)) => match never {},
                Poll::Pending => false,
            };
            refused += u64::from(!answered);
        }
        refused
    })
}
