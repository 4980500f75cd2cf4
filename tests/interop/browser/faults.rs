//! Delay until the operators' page reports each fault.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::sleep;

use crate::Program;
use crate::alarms::faults::{FAULTS, Fault, Told};
use crate::alarms::site::{Monitored, Operator};
use crate::kit::PATIENCE;

/// Time limit for the page to show what the service knows, in milliseconds.
const SOON: u64 = 2_000;
/// Time in which a machine that is not busy answers the metrics, in milliseconds. In the time
/// beyond that, the service was held up.
const PROMPT: u64 = 100;
const POLL: Duration = Duration::from_millis(20);

/// A time in milliseconds since the Unix epoch, as the browser has it too.
type Millis = u64;

/// A span in which a program was held up by the machine's other work.
type Stall = (Millis, Millis);

/// The browser, driven by `faults.mjs`.
struct Browser {
    _process: Program,
    input: ChildStdin,
    output: UnboundedReceiver<Value>,
}

impl Browser {
    fn start() -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/browser/faults.mjs");
        let mut node = Command::new("node");
        let mut child =
            node.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, receiver) = unbounded_channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).unwrap());
            }
        });
        Self { _process: Program(child), input, output: receiver }
    }

    /// Opens a page while nothing is wrong yet, and watches it.
    async fn open(&mut self, url: &str, told: &[Told]) {
        let texts: Vec<_> = told.iter().map(|told| told.text).collect();
        writeln!(self.input, "{}", json!({ "url": url, "texts": texts })).unwrap();
        let answer = self.output.recv().await.expect("the page opens");
        assert_eq!(answer, json!({ "before": {} }), "told before it was so");
    }

    /// Times at which each text was visible, once all are, and at which the browser was held up.
    async fn shown(&mut self) -> Value {
        self.output.recv().await.expect("the page tells of everything")
    }
}

fn now() -> Millis {
    let passed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    passed.as_millis().try_into().unwrap()
}

/// Findings of the service's own metrics.
#[derive(Default)]
struct Known {
    /// Times at which they first showed each of the faults.
    at: Vec<Option<Millis>>,
    /// Spans in which the service was held up.
    stalls: Vec<Stall>,
}

/// Asks for the metrics again and again, and notes their values. Notifies once they have shown each
/// fault.
async fn look(operator: Operator, told: &[Told], known: &mut Known, all: &Notify) {
    known.at.resize(told.len(), None);
    loop {
        let asked = now();
        let metrics = operator.metrics().await;
        let answered = now();
        if answered > asked + PROMPT {
            known.stalls.push((asked + PROMPT, answered));
        }
        if let Some(metrics) = metrics {
            for (told, at) in told.iter().zip(&mut known.at) {
                if at.is_none() && (told.known)(&metrics) {
                    *at = Some(answered);
                }
            }
        }
        if !known.at.contains(&None) {
            all.notify_one();
        }
        sleep(POLL).await;
    }
}

/// Part of a span that was spent in these.
fn within(stalls: &[Stall], from: Millis, to: Millis) -> Millis {
    stalls.iter().map(|stall| stall.1.min(to).saturating_sub(stall.0.max(from))).sum()
}

async fn shows(browser: &mut Browser, fault: &Fault) {
    let mut site = Monitored::new((fault.setup)()).await;
    browser.open(&site.page(), fault.page).await;
    let operator = site.operator.clone();
    let mut known = Known::default();
    let all_known = Notify::new();
    let (shown, ()) = tokio::select! {
        () = (fault.inject)(&mut site) => panic!("{}: it is over before its time", fault.name),
        () = look(operator, fault.page, &mut known, &all_known) => unreachable!("it goes on"),
        both = async { tokio::join!(browser.shown(), all_known.notified()) } => both,
        () = sleep(2 * PATIENCE) => {
            panic!("{}: the page or the metrics do not tell: {:?}", fault.name, known.at)
        }
    };
    let stalls: Vec<Stall> = serde_json::from_value(shown["stalls"].clone()).unwrap();
    for (told, at) in fault.page.iter().zip(&known.at) {
        let Some(shown) = shown["shown"][told.text].as_u64() else {
            panic!("{}: {:?} is not shown, known at {at:?}", fault.name, told.text)
        };
        // The page may receive it in the moment before the metrics are asked.
        let known_at = at.expect("the metrics tell").min(shown);
        let held_up = within(&stalls, known_at, shown) + within(&known.stalls, known_at, shown);
        let took = shown - known_at;
        println!("{}: {:?} after {took} ms, {held_up} ms of them held up", fault.name, told.text);
        assert!(took <= SOON + held_up, "{}: {:?} after {took} ms", fault.name, told.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_says_what_is_wrong_within_two_seconds() {
    let mut browser = Browser::start();
    let start = Instant::now();
    for fault in FAULTS.iter().filter(|fault| !fault.page.is_empty()) {
        shows(&mut browser, fault).await;
    }
    println!("all of it took {} s", start.elapsed().as_secs());
}
