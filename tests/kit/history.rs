//! The history of a run: what everybody was told, for the judge of `tests/judge`.
//!
//! Must not know what is right.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use pillarbox::ses::send::{MESSAGE_ID_TAG, ORGANISATION_TAG};
use pillarbox::simulator::Simulator;
use pillarbox_judge::Summary;
use pillarbox_judge::history::{Accepted, Event, Run};

/// Writes down what happens. Clones write the same history.
#[derive(Clone)]
pub(crate) struct History {
    began: Instant,
    written: Arc<Mutex<Written>>,
}

struct Written {
    path: PathBuf,
    file: BufWriter<File>,
}

impl History {
    /// Begins a history, in a file of this name. What the provider takes goes into it by itself.
    pub(crate) fn begin(name: &str, run: Run, simulator: &Simulator) -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("histories");
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join(format!("{name}.jsonl"));
        let file = BufWriter::new(File::create(&path).unwrap());
        let written = Arc::new(Mutex::new(Written { path, file }));
        let history = Self { began: Instant::now(), written };
        history.write(&Event::Run(run));
        history.follow(simulator);
        history
    }

    /// The time in the history, in microseconds.
    pub(crate) fn now(&self) -> u64 {
        self.began.elapsed().as_micros().try_into().unwrap()
    }

    /// Writes an event down.
    pub(crate) fn write(&self, event: &Event) {
        let mut line = serde_json::to_vec(event).unwrap();
        line.push(b'\n');
        self.written.lock().unwrap().file.write_all(&line).unwrap();
    }

    /// Judges what is written so far; the file stays.
    pub(crate) fn judge(&self) -> Summary {
        let path = {
            let mut written = self.written.lock().unwrap();
            written.file.flush().unwrap();
            written.path.clone()
        };
        let history = pillarbox_judge::read(BufReader::new(File::open(&path).unwrap())).unwrap();
        match pillarbox_judge::judge(&history) {
            Ok(summary) => summary,
            Err(contradiction) => panic!("{}: {contradiction}", path.display()),
        }
    }

    fn follow(&self, simulator: &Simulator) {
        let (history, mut accepted) = (self.clone(), simulator.subscribe());
        tokio::spawn(async move {
            loop {
                let message = match accepted.recv().await {
                    Ok(message) => message,
                    Err(tokio::sync::broadcast::error::RecvError::Closed) => return,
                    Err(missed) => panic!("the history is not whole: {missed}"),
                };
                let tag = |name| message.tag(name).unwrap_or_default().to_owned();
                let recipients = message.recipients.iter().map(|one| one.address.clone());
                history.write(&Event::Provider(Accepted {
                    at: history.now(),
                    organisation: tag(ORGANISATION_TAG),
                    id: tag(MESSAGE_ID_TAG),
                    subject: message.subject.clone(),
                    recipients: recipients.collect(),
                }));
            }
        });
    }
}
