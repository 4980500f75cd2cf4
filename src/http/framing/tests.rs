use std::future::poll_fn;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::*;
use crate::connections::ClientConnections;

const SECOND: Duration = Duration::from_secs(1);
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const POST: &[u8] = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
/// Its second byte is in no head.
const BAD: &[u8] = b"G\0T / HTTP/1.1 and so on, without an end";

fn guard() -> (DuplexStream, FramingGuard<DuplexStream>, Arc<Progress>) {
    let (client, server) = duplex(64 * 1024);
    let progress = Arc::new(Progress::default());
    // A fault can make the guard read for ever without a wait that a timeout could end.
    let test = Arc::downgrade(&progress);
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(15));
        if test.strong_count() > 0 {
            eprintln!("a test of the guard does not end");
            std::process::abort();
        }
    });
    let guard = FramingGuard::new(server, &Limits::default(), Arc::clone(&progress));
    (client, guard, progress)
}

/// Sends `stream` cut into pieces of `piece` bytes and returns what passes until the end.
async fn passed(stream: &[u8], piece: usize) -> (Vec<u8>, End) {
    let (mut client, mut guard, _) = guard();
    let mut out = Vec::new();
    for part in stream.chunks(piece) {
        client.write_all(part).await.unwrap();
        let mut buffer = [0; 64];
        while let Ok(count) =
            tokio::time::timeout(Duration::from_millis(1), guard.read(&mut buffer)).await
        {
            let count = count.unwrap();
            if count == 0 {
                return (out, guard.end().unwrap().clone());
            }
            out.extend_from_slice(&buffer[..count]);
        }
    }
    drop(client);
    guard.read_to_end(&mut out).await.unwrap();
    (out, guard.end().unwrap().clone())
}

#[tokio::test(start_paused = true)]
async fn valid_requests_pass_unchanged_however_they_are_cut() {
    let stream = [b"\r\n", GET, POST, b"\r\n", POST, GET, GET].concat();
    for piece in [1, 2, 3, 7, 20, 31, 64, 1_000] {
        assert_eq!(passed(&stream, piece).await, (stream.clone(), End::ByClient), "{piece}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_precedes_a_refused_request_passes_and_nothing_else() {
    let bad = b"GET / HTTP/1.1\r\n\r\n";
    let stream = [GET, POST, bad, GET].concat();
    for piece in [1, 5, 50, 1_000] {
        let (out, end) = passed(&stream, piece).await;
        assert_eq!(out, [GET, POST].concat());
        assert!(matches!(end, End::Refused(Rejection::BadRequest { .. })), "{end:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_is_left_until_all_of_it_came() {
    let (mut client, mut guard, progress) = guard();
    let mut buffer = [0; 1_024];
    let (begin, end) = POST.split_at(POST.len() - 2);
    client.write_all(begin).await.unwrap();
    assert_eq!(guard.read(&mut buffer).await.unwrap(), begin.len());
    assert!(progress.is_body_left(1) && !progress.is_body_left(2));
    client.write_all(end).await.unwrap();
    assert_eq!(guard.read(&mut buffer).await.unwrap(), end.len());
    assert!(!progress.is_body_left(1));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_counts_once_the_requests_before_it_were_read() {
    let (mut client, mut guard, _) = guard();
    let mut buffer = [0; 1_024];
    client.write_all(&[GET, b"GET / HTTP/1.1\r\n\r\n"].concat()).await.unwrap();
    assert_eq!(guard.read(&mut buffer).await.unwrap(), GET.len());
    assert_eq!(guard.end(), None);
    assert_eq!(guard.read(&mut buffer).await.unwrap(), 0);
    assert!(matches!(guard.end(), Some(End::Refused(_))));
}

/// Sends a part of a head, of which nothing passes yet.
async fn send_held(client: &mut DuplexStream, guard: &mut FramingGuard<DuplexStream>, part: &[u8]) {
    client.write_all(part).await.unwrap();
    let mut buffer = [0; 1_024];
    let reading = tokio::time::timeout(Duration::from_millis(1), guard.read(&mut buffer));
    assert!(reading.await.is_err());
}

/// Sends bytes one at a time until the guard refuses, and returns how many it took.
async fn taken_before_the_refusal(
    client: &mut DuplexStream,
    guard: &mut FramingGuard<DuplexStream>,
    bytes: impl Iterator<Item = u8>,
) -> usize {
    let mut buffer = [0; 1_024];
    for (taken, byte) in bytes.enumerate() {
        client.write_all(&[byte]).await.unwrap();
        let reading = tokio::time::timeout(Duration::from_millis(1), guard.read(&mut buffer));
        if reading.await.is_ok() {
            assert!(matches!(guard.end(), Some(End::Refused(_))));
            return taken + 1;
        }
    }
    panic!("it takes all of them")
}

#[tokio::test(start_paused = true)]
async fn a_head_that_comes_slowly_is_refused_before_it_is_twice_as_long_as_its_fault() {
    let (mut client, mut guard, _) = guard();
    let taken = taken_before_the_refusal(&mut client, &mut guard, BAD.iter().copied()).await;
    assert!(taken <= 4, "{taken}");
}

#[tokio::test(start_paused = true)]
async fn so_is_one_behind_a_long_request_that_was_held() {
    let (mut client, mut guard, _) = guard();
    let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\nGE", "x".repeat(200));
    let (begin, rest) = long.as_bytes().split_at(5);
    send_held(&mut client, &mut guard, begin).await;
    client.write_all(rest).await.unwrap();
    assert_eq!(guard.read(&mut [0; 1_024]).await.unwrap(), long.len() - 2);
    let taken = taken_before_the_refusal(&mut client, &mut guard, BAD[1..].iter().copied()).await;
    assert!(taken <= 2, "{taken}");
}

#[tokio::test(start_paused = true)]
async fn a_head_that_comes_slowly_is_refused_as_soon_as_it_is_too_long() {
    let (mut client, mut guard, _) = guard();
    let most = Limits::default().max_head_bytes;
    let mut head = GET[..GET.len() - 4].to_vec();
    head.resize(most - 2, b'a');
    for part in head.chunks(most / 2 + 1) {
        send_held(&mut client, &mut guard, part).await;
    }
    let taken =
        taken_before_the_refusal(&mut client, &mut guard, std::iter::repeat_n(b'a', most)).await;
    assert_eq!(taken, 3);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_sends_what_is_left_and_keeps_the_socket_open() {
    let (mut client, server) = duplex(1_024);
    let server = tokio::io::BufWriter::new(server);
    let mut guard = FramingGuard::new(server, &Limits::default(), Arc::default());
    let mut buffer = [0; 5];
    for _ in 0..2 {
        guard.write_all(b"hello").await.unwrap();
        guard.shutdown().await.unwrap();
        let read = tokio::time::timeout(SECOND, client.read_exact(&mut buffer)).await;
        assert_eq!(read.unwrap().unwrap(), 5);
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_cut_off_by_the_client_is_refused() {
    let (out, end) = passed(&[GET, b"GET / HTTP/1.1\r\nHos"].concat(), 1_000).await;
    assert_eq!(out, GET);
    assert!(matches!(end, End::Refused(Rejection::BadRequest { .. })), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn behind_a_chunked_head_everything_passes() {
    let head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let stream = [&head[..], b"0\r\n\r\nno request at all"].concat();
    assert_eq!(passed(&stream, 10).await, (stream, End::ByClient));
}

#[tokio::test(start_paused = true)]
async fn empty_lines_before_a_request_are_limited() {
    let (out, end) = passed(&[&b"\r\n".repeat(100), GET].concat(), 2).await;
    assert_eq!(out.len(), MAX_LEADING_NEWLINES);
    assert!(matches!(end, End::Refused(Rejection::BadRequest { .. })), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn a_head_has_its_time_from_its_first_byte() {
    let limits = Limits::default();
    let (mut client, mut guard, _) = guard();
    let start = Instant::now();
    let drip = tokio::spawn(async move {
        client.write_all(GET).await.unwrap();
        tokio::time::sleep(Duration::from_mins(1)).await;
        for byte in GET.iter().cycle() {
            if client.write_all(&[*byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    let mut out = Vec::new();
    guard.read_to_end(&mut out).await.unwrap();
    assert_eq!(out, GET);
    assert_eq!(guard.end(), Some(&End::Refused(Rejection::RequestTimeout)));
    let taken = start.elapsed();
    let (least, most) = (limits.head_timeout, limits.head_timeout * 2);
    let silence = Duration::from_mins(1);
    assert!((silence + least..silence + most).contains(&taken), "{taken:?}");
    drop(guard);
    drip.await.unwrap();
}

/// Another client needs its place. One that is in the middle of a head has begun something, and stays.
#[tokio::test(start_paused = true)]
async fn an_idle_connection_ends_at_once_if_it_is_to_make_room() {
    let all = ClientConnections::new(2, Vec::new());
    for (sent, is_to_end) in [(&b""[..], true), (GET, true), (b"GET / HT", false)] {
        let (mut client, server) = duplex(1_024);
        let first = Arc::new(all.admit(None, Activity::Idle).unwrap());
        let progress = Arc::new(Progress::new(Some(Arc::clone(&first)), None));
        let mut guard = FramingGuard::new(server, &Limits::default(), Arc::clone(&progress));
        client.write_all(sent).await.unwrap();
        let started = Instant::now();
        let reading = tokio::spawn(async move {
            let mut out = Vec::new();
            guard.read_to_end(&mut out).await.unwrap();
            guard.end().unwrap().clone()
        });
        tokio::time::sleep(SECOND).await;
        let _others = [(); 2].map(|()| all.admit(None, Activity::Idle));
        let end = reading.await.unwrap();
        assert_eq!(started.elapsed() < 2 * SECOND, is_to_end, "{end:?}");
        assert_eq!(end == End::Idle, is_to_end, "{end:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_connection_ends_idle() {
    let limits = Limits::default();
    for (sent, timeout) in [(&b""[..], limits.head_timeout), (GET, limits.idle_timeout)] {
        let (mut client, mut guard, _) = guard();
        let start = Instant::now();
        client.write_all(sent).await.unwrap();
        let mut out = Vec::new();
        guard.read_to_end(&mut out).await.unwrap();
        assert_eq!(guard.end(), Some(&End::Idle));
        assert!((timeout..timeout * 2).contains(&start.elapsed()), "{:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn the_place_within_a_body_is_known() {
    let (mut client, mut guard, progress) = guard();
    let (first, last) = POST.split_at(POST.len() - 1);
    client.write_all(first).await.unwrap();
    let mut buffer = [0; 1_000];
    assert_eq!(guard.read(&mut buffer).await.unwrap(), first.len());
    assert!(progress.is_body_left(1) && !progress.is_body_left(2));
    client.write_all(&[last, first].concat()).await.unwrap();
    assert_eq!(guard.read(&mut buffer).await.unwrap(), POST.len());
    assert!(!progress.is_body_left(1), "the second request's body is not the first one's");
    assert!(progress.is_body_left(2));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_holds_a_write_for_a_limited_time() {
    let (client, mut guard, _) = guard();
    let error = guard.write_all(&vec![0; 1_000_000]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert!(!guard.is_writable());
    drop(client);
}

#[tokio::test(start_paused = true)]
async fn a_cleared_deadline_starts_anew_and_may_become_earlier() {
    let start = Instant::now();
    let mut deadline = Deadline::default();
    let poll_once = |deadline: &mut Deadline, timeout| {
        deadline.poll(&mut Context::from_waker(std::task::Waker::noop()), timeout)
    };
    assert!(poll_once(&mut deadline, 3 * SECOND).is_pending());
    tokio::time::advance(2 * SECOND).await;
    deadline.clear();
    poll_fn(|cx| deadline.poll(cx, 3 * SECOND)).await;
    assert!(start.elapsed() >= 5 * SECOND, "{:?}", start.elapsed());
    deadline.clear();
    assert!(poll_once(&mut deadline, 100 * SECOND).is_pending());
    deadline.clear();
    poll_fn(|cx| deadline.poll(cx, SECOND)).await;
    assert!(start.elapsed() < 7 * SECOND, "{:?}", start.elapsed());
}
