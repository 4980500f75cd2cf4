use super::*;

const ADDRESS: &str = "192.0.2.7";

#[expect(clippy::unnecessary_wraps, reason = "as it is asked for")]
fn address(text: &str) -> Option<IpAddr> {
    Some(text.parse().unwrap())
}

fn is_told(connection: &ClientConnection) -> bool {
    connection.poll_told(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// Connections from an address of their own each, so that only the half counts.
fn open(all: &ClientConnections, count: u8, activity: Activity) -> Vec<ClientConnection> {
    (0..count)
        .map(|number| {
            let connection = all.admit(address(&format!("198.51.100.{number}")), Activity::Silent);
            let connection = connection.unwrap();
            connection.enter(activity);
            connection
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_key_counts_until_a_minute_after_the_last_request_with_it() {
    let all = ClientConnections::new(4, Vec::new());
    let keyed = all.admit(address(ADDRESS), Activity::Silent).unwrap();
    let begun = keyed.begin_request();
    keyed.accept_key();
    assert_eq!(all.keyless(), 0);
    // A request that takes long has a key all the while.
    tokio::time::advance(Duration::from_mins(5)).await;
    drop(all.admit(address(ADDRESS), Activity::Silent));
    assert_eq!(all.keyless(), 0);
    keyed.answered(begun);
    tokio::time::advance(Duration::from_secs(59)).await;
    // One without a key does not make it last longer.
    let begun = keyed.begin_request();
    keyed.answered(begun);
    drop(all.admit(address(ADDRESS), Activity::Silent));
    assert_eq!(all.keyless(), 0);
    tokio::time::advance(Duration::from_secs(2)).await;
    drop(all.admit(address(ADDRESS), Activity::Silent));
    assert_eq!(all.keyless(), 1);
    let begun = keyed.begin_request();
    keyed.accept_key();
    keyed.answered(begun);
    assert_eq!(all.keyless(), 0, "it has one again");
}

#[tokio::test(start_paused = true)]
async fn one_that_sent_nothing_makes_room_first_and_one_with_a_key_never() {
    let all = ClientConnections::new(12, Vec::new());
    let mut opened = open(&all, 1, Activity::Idle);
    opened.extend(open(&all, 1, Activity::Incomplete));
    opened.extend(open(&all, 1, Activity::Silent));
    opened.extend(open(&all, 1, Activity::Handshake));
    opened.extend(open(&all, 2, Activity::Busy));
    let keyed = all.admit(address(ADDRESS), Activity::Handshake);
    let told = |opened: &[ClientConnection]| opened.iter().map(is_told).collect::<Vec<_>>();
    // The seventh took the place of the handshake.
    assert_eq!(told(&opened), [false, false, false, true, false, false]);
    let keyed = keyed.unwrap();
    keyed.accept_key();
    let _more = open(&all, 1, Activity::Busy);
    let _other = open(&all, 1, Activity::Busy);
    assert_eq!(told(&opened), [false, false, true, true, false, false]);
    // What is incomplete for less than 2 seconds stays, so the idle one goes.
    let _another = open(&all, 1, Activity::Busy);
    assert_eq!(told(&opened), [true, false, true, true, false, false]);
    tokio::time::advance(CHOICE_PAUSE).await;
    assert!(all.admit(address("203.0.113.1"), Activity::Silent).is_none());
    tokio::time::advance(INCOMPLETE).await;
    let last = all.admit(address("203.0.113.1"), Activity::Busy).unwrap();
    assert_eq!(told(&opened), [true, true, true, true, false, false]);
    assert!(!is_told(&keyed));
    drop(last);
    drop(opened);
    let counts = Closed::ALL.map(|reason| all.closed(reason));
    assert_eq!(counts, [3, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn one_that_gets_a_request_before_it_goes_stays() {
    let all = ClientConnections::new(2, Vec::new());
    let first = all.admit(address(ADDRESS), Activity::Silent).unwrap();
    let second = all.admit(address(ADDRESS), Activity::Busy).unwrap();
    assert!(is_told(&first));
    assert_eq!(all.keyless(), 1);
    first.begin_request();
    assert!(!is_told(&first));
    assert_eq!(all.keyless(), 2);
    drop((first, second));
    assert_eq!(all.keyless(), 0);
    assert!(all.0.open().of_address.is_empty() && all.0.open().all.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_address_has_a_share_and_a_trusted_proxy_has_not() {
    let all = ClientConnections::new(1_000, vec!["10.0.0.0/8".parse().unwrap()]);
    let of = |text: &str, count: usize| -> Vec<_> {
        (0..count).map(|_| all.admit(address(text), Activity::Busy)).collect()
    };
    let own = of(ADDRESS, 126);
    assert_eq!(own.iter().flatten().count(), 125, "a quarter of a half");
    // The same address, as a socket of IPv6 shows it.
    assert!(all.admit(address("::ffff:192.0.2.7"), Activity::Busy).is_none());
    let proxy = of("10.1.2.3", 400);
    assert_eq!(proxy.iter().flatten().count(), 375, "all that is left of the half");
    let few = ClientConnections::new(100, Vec::new());
    let admitted: Vec<_> = (0..20).map(|_| few.admit(address(ADDRESS), Activity::Busy)).collect();
    assert_eq!(admitted.iter().flatten().count(), LEAST_OF_ADDRESS);
}

#[tokio::test(start_paused = true)]
async fn connections_with_a_key_may_have_more_than_half() {
    let all = ClientConnections::new(8, Vec::new());
    let mut keyed = Vec::new();
    for _ in 0..8 {
        let connection = all.admit(address(ADDRESS), Activity::Silent).unwrap();
        connection.accept_key();
        keyed.push(connection);
    }
    assert!(all.admit(address(ADDRESS), Activity::Silent).is_none(), "all is in use");
    assert!(!keyed[0].ends_without_key());
    keyed.truncate(6);
    let first = all.admit(address(ADDRESS), Activity::Silent).unwrap();
    assert!(!first.ends_without_key());
    let _second = all.admit(address(ADDRESS), Activity::Silent).unwrap();
    assert!(first.ends_without_key(), "two of four");
}

#[tokio::test(start_paused = true)]
async fn no_more_are_accepted_while_many_have_not_ended_yet() {
    let all = ClientConnections::new(16, Vec::new());
    let mut opened = open(&all, 8, Activity::Silent);
    let first = all.admit(address(ADDRESS), Activity::Busy).unwrap();
    assert!(!all.is_crowded());
    let _second = all.admit(address(ADDRESS), Activity::Busy).unwrap();
    assert!(all.is_crowded(), "two of sixteen are leaving");
    assert_eq!(opened.iter().filter(|one| is_told(one)).count(), 2);
    opened.retain(|one| !is_told(one));
    assert!(!all.is_crowded());
    drop(first);
    assert_eq!(all.keyless(), 7);
}
