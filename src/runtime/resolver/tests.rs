use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;

use super::*;

const LIMITS: ResolverLimits = ResolverLimits {
    max_lookups: 8,
    patience: Duration::from_secs(3),
    kept: Duration::from_mins(10),
};
/// Longer than any caller waits.
const NEVER: Duration = Duration::from_secs(20);
/// Sooner than any time-out.
const AT_ONCE: Duration = Duration::from_millis(700);

fn address() -> Vec<SocketAddr> {
    vec!["192.0.2.1:0".parse().unwrap()]
}

#[expect(clippy::unnecessary_wraps, reason = "as the system answers")]
fn silent_unless_alive(name: &str) -> std::io::Result<Vec<SocketAddr>> {
    if !name.starts_with("alive") {
        sleep(NEVER);
    }
    Ok(address())
}

#[tokio::test]
async fn a_holder_whose_names_get_no_answer_leaves_threads_to_others() {
    let resolver = Resolver::asking(LIMITS, silent_unless_alive);
    let dead: Vec<_> = (0..40)
        .map(|number| {
            let resolver = resolver.clone();
            tokio::spawn(async move { resolver.resolve('a', &format!("dead{number}")).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(resolver.0.all.threads.in_use(), 4, "half of the threads");
    let start = Instant::now();
    assert_eq!(*resolver.resolve('b', "alive").await.unwrap(), *address());
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    for one in dead {
        assert!(one.await.unwrap().is_err());
    }
    assert!(start.elapsed() < LIMITS.patience + AT_ONCE, "{:?}", start.elapsed());
}

#[tokio::test]
async fn one_look_up_serves_all_who_ask_for_the_name() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let resolver = Resolver::asking(LIMITS, |_| {
        ASKED.fetch_add(1, Ordering::SeqCst);
        sleep(Duration::from_millis(50));
        Ok(address())
    });
    let all = (0..20).map(|_| {
        let resolver = resolver.clone();
        tokio::spawn(async move { resolver.resolve('a', "one").await.unwrap() })
    });
    for one in all.collect::<Vec<_>>() {
        one.await.unwrap();
    }
    resolver.resolve('b', "one").await.unwrap();
    assert_eq!(ASKED.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn slow_names_take_half_of_the_threads_though_they_are_of_many_holders() {
    let resolver = Resolver::asking(LIMITS, silent_unless_alive);
    for number in 0..8_u32 {
        resolver.0.names().insert(
            format!("dead{number}"),
            Name { lookup: None, found: None, is_slow: true, asked_at: Instant::now() },
        );
        let resolver = resolver.clone();
        tokio::spawn(async move { resolver.resolve(number, &format!("dead{number}")).await });
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(resolver.0.all.threads.in_use(), 4);
    let start = Instant::now();
    resolver.resolve(9, "alive").await.unwrap();
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
}

#[tokio::test]
async fn addresses_from_before_serve_while_the_name_server_is_silent_and_go_with_the_name() {
    static STATE: AtomicUsize = AtomicUsize::new(0);
    let resolver = Resolver::asking(LIMITS, |_| match STATE.load(Ordering::SeqCst) {
        0 => Ok(address()),
        1 => {
            sleep(Duration::from_secs(2));
            Err(std::io::Error::other("no such name"))
        }
        _ => Err(std::io::Error::other("no such name")),
    });
    resolver.resolve('a', "one").await.unwrap();
    STATE.store(1, Ordering::SeqCst);
    let age = |resolver: &Resolver<char>, by: Duration| {
        let mut names = resolver.0.names();
        let (at, _) = names.get_mut("one").unwrap().found.as_mut().unwrap();
        *at -= by;
    };
    age(&resolver, FRESH);
    let start = Instant::now();
    assert_eq!(*resolver.resolve('a', "one").await.unwrap(), *address());
    assert!(start.elapsed() >= SLOW && start.elapsed() < SLOW + AT_ONCE);
    STATE.store(2, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(matches!(resolver.resolve('a', "one").await, Err(ResolveError::Failed { .. })));
}

#[tokio::test]
async fn an_answer_that_came_too_late_serves_the_next_caller() {
    let limits = ResolverLimits { patience: Duration::from_millis(200), ..LIMITS };
    let resolver = Resolver::asking(limits, |_| {
        sleep(Duration::from_millis(500));
        Ok(address())
    });
    let error = resolver.resolve('a', "one").await.unwrap_err();
    assert_eq!(error.to_string(), "no answer to the look-up of one within 0.2 s");
    tokio::time::sleep(Duration::from_millis(500)).await;
    resolver.resolve('a', "one").await.unwrap();
}
