//! A client over its limit requests the limited file in other spellings through `pacegate proxy`,
//! in front of servers that normalise paths differently.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use pacegate_testkit::REPORT_SPELLINGS;
use pacegate_testkit::server::free_port;
use tempfile::TempDir;

use crate::callers::alone;
use crate::process::{file, pacegate, started};

/// The content of the limited file.
const CONTENT: &str = "day,visits";
const RULES: &str = "default_limit: none\nrules:\n  - {name: reports, dimension: ip, endpoint: /report.csv, method: GET, algorithm: fixed_window, limit: 1, window: 365d}\n";

/// Parses a URL as browsers do, decodes its path and joins it to the directory, like small file
/// servers in Node.
const NODE: &str = r"
const http = require('http'), fs = require('fs'), path = require('path');
const [directory, port] = process.argv.slice(1);
http.createServer((request, response) => {
  try {
    const { pathname } = new URL(request.url, 'http://upstream');
    const file = path.join(directory, path.normalize('/' + decodeURIComponent(pathname)));
    response.end(request.method === 'HEAD' ? '' : fs.readFileSync(file));
  } catch (error) {
    response.writeHead(404);
    response.end();
  }
}).listen(Number(port), '127.0.0.1');
";

/// A process that is killed when the test ends.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn python(directory: &Path, port: u16) -> Command {
    let mut command = Command::new("python3");
    command.args(["-m", "http.server", "--bind", "127.0.0.1", "--directory"]).arg(directory);
    command.arg(port.to_string());
    command
}

fn nginx(directory: &Path, port: u16) -> Command {
    let own = directory.join("..").join("nginx");
    std::fs::create_dir_all(&own).unwrap();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {}/{name};", own.display()))
        .join(" ");
    let config = format!(
        "daemon off; master_process off; pid {0}/pid; events {{}} http {{ access_log off; {temporary} server {{ listen 127.0.0.1:{port}; root {1}; }} }}",
        own.display(),
        directory.display()
    );
    let path = own.join("nginx.conf");
    std::fs::write(&path, config).unwrap();
    let mut command = Command::new("/usr/sbin/nginx");
    command.args(["-e", "stderr", "-c"]).arg(path);
    command
}

fn node(directory: &Path, port: u16) -> Command {
    let mut command = Command::new("node");
    command.args(["-e", NODE]).arg(directory).arg(port.to_string());
    command
}

/// Starts an upstream and returns its address.
fn upstream(mut command: Command, port: u16) -> (Killed, String) {
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let child = Killed(child.unwrap_or_else(|error| panic!("{:?}: {error}", command.get_program())));
    let address = format!("127.0.0.1:{port}");
    for _ in 0..1_000 {
        if TcpStream::connect(&address).is_ok() {
            return (child, address);
        }
        sleep(Duration::from_millis(20));
    }
    panic!("{:?} does not listen", command.get_program());
}

fn proxy(directory: &Path, upstream: &str, config: &str) -> (Killed, String) {
    let arguments =
        ["proxy", "--http", "127.0.0.1:0", "--upstream", &format!("http://{upstream}"), "--config"];
    let config = file(directory, config);
    let (process, _, line) = started(pacegate().args(arguments).arg(config).stderr(Stdio::null()));
    let address = line.trim().strip_prefix("pacegate proxy listening on http://").unwrap();
    (Killed(process), address.split(',').next().unwrap().to_owned())
}

/// Sends a request with exactly this target and returns the response.
fn ask(address: &str, method: &str, target: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(stream, "{method} {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut response = Vec::new();
    // A server can reset the connection after its response.
    let _ = stream.read_to_end(&mut response);
    String::from_utf8_lossy(&response).into_owned()
}

fn status(response: &str) -> &str {
    response.split(' ').nth(1).unwrap_or_default()
}

#[test]
fn every_served_spelling_of_a_limited_path_is_counted_or_rejected() {
    let _alone = alone();
    let directory = TempDir::new().unwrap();
    let root = directory.path().join("root");
    std::fs::create_dir_all(root.join("sub")).unwrap();
    std::fs::write(root.join("report.csv"), CONTENT).unwrap();
    std::fs::write(root.join("sub/index.html"), "the index").unwrap();
    let upstreams =
        [("python", python as fn(&Path, u16) -> Command, 20), ("nginx", nginx, 20), ("node", node, 20)];
    let mut figures = String::new();
    let mut slipped = Vec::new();
    for (name, command, served_min) in upstreams {
        let port = free_port();
        let (_upstream, behind) = upstream(command(&root, port), port);
        let served = |address: &str| {
            let is_served = |spelling: &&&str| ask(address, "GET", spelling).contains(CONTENT);
            REPORT_SPELLINGS.iter().filter(is_served).copied().collect::<Vec<_>>()
        };
        let unlimited = served(&behind).len();
        assert!(unlimited >= served_min, "{name} serves only {unlimited} spellings");
        for (setting, paths) in [("refuse", ""), ("decode", "paths: {encoded_slashes: decode}\n")] {
            let config = format!("{RULES}{paths}");
            let (_proxy, limited) = proxy(directory.path(), &behind, &config);
            assert!(ask(&limited, "GET", "/sub/").contains("the index") || name == "node");
            // A HEAD request is charged like a GET request.
            assert_eq!(status(&ask(&limited, "HEAD", "/report.csv")), "200", "{name}");
            assert_eq!(status(&ask(&limited, "GET", "/report.csv")), "429", "{name}");
            slipped.extend(served(&limited).into_iter().map(|spelling| (name, setting, spelling)));
            let expected = if setting == "refuse" { "400" } else { "429" };
            assert_eq!(status(&ask(&limited, "GET", "/sub/..%2freport.csv")), expected, "{name} {setting}");
        }
        figures.push_str(&format!(" {name}_serves={unlimited}"));
    }
    assert!(slipped.is_empty(), "{} spellings are served without being counted: {slipped:?}", slipped.len());
    println!("PASS attack_paths spellings={} slipped=0{figures}", REPORT_SPELLINGS.len());
}
