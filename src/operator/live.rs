//! How it goes, once a second: looked at once for however many watch.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::operator::Parts;
use crate::operator::conditions::trends::Trends;
use crate::operator::state::{Sample, State, Totals};

/// How often it is looked at.
const PERIOD: Duration = Duration::from_secs(1);
/// How many looks are kept: five minutes.
const KEPT: usize = 300;

/// What those who watch are told.
#[derive(Debug, Default)]
pub(super) struct Told {
    history: VecDeque<Sample>,
    /// The last look, as an event.
    event: Bytes,
}

/// Looks for as long as it is polled.
pub(super) async fn look(parts: Arc<Parts>, told: watch::Sender<Told>) {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before = (Instant::now(), Totals::of(&parts));
    let mut trends = Trends::new(before.0);
    loop {
        ticks.tick().await;
        let now = (Instant::now(), Totals::of(&parts));
        trends.look(now.0, &parts, &now.1.organisations);
        let state = State::now(&parts, &now.1, &before.1, now.0 - before.0, &trends);
        let event = event("state", &state);
        told.send_modify(|told| {
            if told.history.len() == KEPT {
                told.history.pop_front();
            }
            told.history.push_back(state.sample);
            told.event = event;
        });
        before = now;
    }
}

/// An event of a stream (HTML Living Standard, "Server-sent events").
fn event(name: &str, data: &impl Serialize) -> Bytes {
    let data = serde_json::to_string(data).expect("texts and numbers serialize");
    // JSON has no line break outside of texts, and there it is escaped.
    format!("event: {name}\ndata: {data}\n\n").into()
}

/// A response's body.
pub enum PageBody {
    /// All of it.
    Whole(Full<Bytes>),
    /// Events, until the service stops looking.
    Live(Watching),
}

type Next = Pin<Box<dyn Future<Output = Option<(watch::Receiver<Told>, Bytes)>> + Send>>;

/// One who watches.
pub struct Watching(Next);

impl PageBody {
    /// The history, and from then on each look.
    pub(super) fn live(mut told: watch::Receiver<Told>) -> Self {
        let history = event("history", &told.borrow_and_update().history);
        Self::Live(Watching(Box::pin(async move { Some((told, history)) })))
    }
}

async fn next(mut told: watch::Receiver<Told>) -> Option<(watch::Receiver<Told>, Bytes)> {
    told.changed().await.ok()?;
    let event = told.borrow_and_update().event.clone();
    Some((told, event))
}

impl From<Full<Bytes>> for PageBody {
    fn from(body: Full<Bytes>) -> Self {
        Self::Whole(body)
    }
}

impl Body for PageBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(body) => Pin::new(body).poll_frame(context),
            Self::Live(Watching(waiting)) => waiting.as_mut().poll(context).map(|come| {
                let (told, event) = come?;
                *waiting = Box::pin(next(told));
                Some(Ok(Frame::data(event)))
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Live(_) => false,
        }
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Live(_) => hyper::body::SizeHint::default(),
        }
    }
}
