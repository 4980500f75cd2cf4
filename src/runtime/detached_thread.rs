//! Threads for work that may hang: the resolution of a name, or another program.
//!
//! Each caller limits its own wait for such a thread. The runtime's own threads for blocking work
//! are no place for it: store reads run there, and the end of the runtime waits for them.

use std::io;
use std::thread;

use tokio::sync::oneshot;

/// Does work on a thread of its own. If the returned future is dropped, or the process ends, the
/// thread continues without them.
///
/// Fails if the system has no thread left, or if the work panics.
pub async fn run<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (done, result) = oneshot::channel();
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        // The caller may have gone.
        let _ = done.send(work());
    })?;
    result.await.map_err(|_| io::Error::other("the thread panicked"))
}
