//! Sessions of SMTP that are silent, idle, slow or never end: the clients of SMTP and of HTTP that
//! behave are served all the while.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::attack::{Attack, DRIP};
use crate::kit::{History, SmtpClient, accepted_id};
use crate::patrons::{Figures, PATRONS, PAUSE, Patrons, subject};
use crate::site::{Running, Target};
use crate::{HELD_UP, ROUNDS, length};

/// Sessions that are misused.
const SESSIONS: usize = if cfg!(feature = "long") { 10_000 } else { 400 };
/// Files that the service has open beside its client connections, and some more.
const OTHER_FILES: usize = 1_000;
/// Larger than the sessions of both together, and than twice those that log in.
const LISTEN: &str = "max_connections = 13000\ntrusted_proxies = [\"127.0.0.0/8\"]\n\
                      [smtp]\nlisten = \"127.0.0.1:0\"\n";

/// Hands a message over, which must be accepted.
async fn submit(session: &mut SmtpClient, history: &History) -> io::Result<()> {
    let (began, subject) = (history.now(), subject());
    let message = format!("From: ann@example.com\r\nSubject: {subject}\r\n\r\nHow are you?\r\n");
    let reply = session.submit(&["bob@example.org"], &message).await?;
    let id = accepted_id(&reply).ok_or_else(|| io::Error::other(reply.clone()))?;
    history.write_post(began, &subject, Some((200, Some(id))));
    Ok(())
}

/// One session's life, in one of five ways; counts once it does its harm.
async fn misuse(number: usize, target: &Target, harmed: &AtomicUsize) -> io::Result<()> {
    let mut session = match number % 5 {
        0 | 1 => SmtpClient::connect(target.address).await?,
        _ => SmtpClient::login(target.address, &target.key).await?,
    };
    match number % 5 {
        // Says nothing, or half a word, or nothing more.
        0 | 2 => {}
        1 => session.write("EHL").await?,
        // A message that stops, and one that comes byte by byte.
        _ => {
            session.begin(&["bob@example.org"]).await?;
            session.write("From: ").await?;
        }
    }
    harmed.fetch_add(1, Ordering::Relaxed);
    if number % 5 == 4 {
        loop {
            sleep(DRIP).await;
            session.write("a").await?;
        }
    }
    // Until the service has had enough.
    session.last_words().await.map(drop)
}

/// Clients of SMTP that behave: half keep their session, half begin a new one for each message.
struct Submitters {
    sessions: Vec<Option<SmtpClient>>,
    history: History,
}

impl Submitters {
    async fn arrive(target: &Target, history: &History) -> Self {
        let mut sessions = Vec::new();
        for number in 0..PATRONS {
            let stays = number.is_multiple_of(2);
            sessions.push(if stays {
                Some(SmtpClient::login(target.address, &target.key).await.unwrap())
            } else {
                None
            });
        }
        Self { sessions, history: history.clone() }
    }

    /// Submits messages for a while.
    async fn measure(&mut self, target: &Target, length: Duration) -> Figures {
        let end = Instant::now() + length;
        let mut tasks = JoinSet::new();
        for mut session in self.sessions.drain(..) {
            let (target, history) = (target.clone(), self.history.clone());
            tasks.spawn(async move {
                let mut taken = Vec::new();
                loop {
                    let start = Instant::now();
                    if let Some(session) = &mut session {
                        submit(session, &history).await.unwrap();
                    } else {
                        let login = SmtpClient::login(target.address, &target.key).await;
                        submit(&mut login.unwrap(), &history).await.unwrap();
                    }
                    taken.push(start.elapsed());
                    if Instant::now() >= end {
                        return (session, taken);
                    }
                    sleep(PAUSE).await;
                }
            });
        }
        let mut all = Vec::new();
        for (session, taken) in tasks.join_all().await {
            self.sessions.push(session);
            all.extend(taken);
        }
        Figures::of(all)
    }
}

/// As many sessions as are wanted and fit, beside as many connections of HTTP, into the files that a
/// process may have open here.
fn sessions() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let files = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap());
    SESSIONS.min((files - OTHER_FILES) / 2)
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_idle_slow_and_half_open_sessions() {
    let mut site = Running::start(LISTEN, None).await;
    site.write_history("Smtp");
    let history = site.history.clone().expect("it was begun");
    let address = site.process.smtp_listening().parse().unwrap();
    let target = Target { address, ..site.target() };
    let hostile = Target { address, ..site.add_organisation("hostile") };
    let before = site.process.open_files();
    let sessions = sessions();
    let (mut calm, mut attacked) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut clients = Patrons::All.arrive(&site).await;
        let mut submitters = Submitters::arrive(&target, &history).await;
        submitters.measure(&target, Duration::from_millis(50)).await;
        if cfg!(feature = "long") {
            let measured =
                tokio::join!(clients.measure(length()), submitters.measure(&target, length()));
            calm.push(measured);
        }
        let hostile = hostile.clone();
        let life = move |number, harmed: Arc<AtomicUsize>| {
            let hostile = hostile.clone();
            async move { misuse(number, &hostile, &harmed).await }
        };
        let attack = Attack::of(sessions, life).await;
        if cfg!(feature = "long") {
            // What is compared is the attack that goes on, not its first blow.
            sleep(Duration::from_secs(2)).await;
        }
        let measured =
            tokio::join!(clients.measure(length()), submitters.measure(&target, length()));
        attacked.push(measured);
        attack.end().await;
    }
    site.until_open_files_are(before).await;
    site.judge().await;
    let (attacked_http, attacked_smtp) = medians(attacked);
    println!("{sessions} sessions: HTTP {attacked_http}; SMTP {attacked_smtp}");
    assert!(attacked_http.p99 < HELD_UP, "{attacked_http}");
    assert!(attacked_smtp.p99 < HELD_UP, "{attacked_smtp}");
    if !calm.is_empty() {
        let (calm_http, calm_smtp) = medians(calm);
        let ratio =
            |attacked: Figures, calm: Figures| attacked.p99.as_secs_f64() / calm.p99.as_secs_f64();
        let (http, smtp) = (ratio(attacked_http, calm_http), ratio(attacked_smtp, calm_smtp));
        println!("without: HTTP {calm_http}; SMTP {calm_smtp}; p99 x {http:.2} and x {smtp:.2}");
        assert!(http <= 3.0 && smtp <= 3.0, "{http:.2} and {smtp:.2}");
    }
}

fn medians(measured: Vec<(Figures, Figures)>) -> (Figures, Figures) {
    let (http, smtp) = measured.into_iter().unzip();
    (Figures::median(http), Figures::median(smtp))
}
