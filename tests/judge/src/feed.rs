//! The guarantees about the feed and webhooks: one order, nothing missed, nothing twice.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::{Entry, Event, Page, Read};
use crate::{Contradiction, contradiction};

/// Entries that an organisation's readers and receivers got, and the outcomes of its messages.
#[derive(Default)]
struct Feed<'a> {
    /// The pages of each reader, in order.
    readers: BTreeMap<&'a str, Vec<&'a Page>>,
    /// The entries that each receiver of webhooks got.
    receivers: BTreeMap<&'a str, BTreeSet<&'a str>>,
    /// The last read of each message that gave a status.
    reads: BTreeMap<&'a str, &'a Read>,
    /// Time at which the first post of each message began, whether or not it was answered.
    posted: BTreeMap<&'a str, u64>,
}

/// Judges all feeds; returns how many entries they have together.
pub(crate) fn judge(history: &[Event]) -> Result<usize, Contradiction> {
    let mut entries = 0;
    for feed in feeds(history).values() {
        entries += feed.judge(history)?;
    }
    Ok(entries)
}

fn feeds(history: &[Event]) -> BTreeMap<&str, Feed<'_>> {
    let mut feeds: BTreeMap<&str, Feed<'_>> = BTreeMap::new();
    let mut of_message: BTreeMap<&str, &str> = BTreeMap::new();
    // A post without an answer may have made the message of one that repeats its key.
    let mut key_used: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for event in history {
        if let Event::Post(post) = event
            && let Some(key) = &post.key
        {
            let first = key_used.entry((&post.organisation, key)).or_insert(post.began);
            *first = post.began.min(*first);
        }
    }
    for event in history {
        match event {
            Event::Post(post) => {
                let feed = feeds.entry(&post.organisation).or_default();
                if let Some(id) = &post.id {
                    of_message.insert(id, &post.organisation);
                    let first = post
                        .key
                        .as_deref()
                        .and_then(|key| key_used.get(&(post.organisation.as_str(), key)).copied());
                    feed.posted.insert(id, first.unwrap_or(post.began));
                }
            }
            Event::Feed(page) => {
                let feed = feeds.entry(&page.organisation).or_default();
                feed.readers.entry(&page.reader).or_default().push(page);
            }
            Event::Webhook(delivery) => {
                let feed = feeds.entry(&delivery.organisation).or_default();
                feed.receivers.entry(&delivery.receiver).or_default().insert(&delivery.entry.id);
            }
            Event::Read(_)
            | Event::Run(_)
            | Event::Provider(_)
            | Event::Suppressed(_)
            | Event::Cancelled(_)
            | Event::Limited(_)
            | Event::Killed { .. } => {}
        }
    }
    let mut reads: Vec<_> = history
        .iter()
        .filter_map(|event| if let Event::Read(read) = event { Some(read) } else { None })
        .collect();
    reads.sort_by_key(|read| read.began);
    for read in reads {
        let feed = of_message.get(&*read.id).and_then(|organisation| feeds.get_mut(organisation));
        if let (Some(feed), Some(_)) = (feed, &read.status) {
            feed.reads.insert(&read.id, read);
        }
    }
    feeds
}

impl Feed<'_> {
    fn judge(&self, history: &[Event]) -> Result<usize, Contradiction> {
        let readers: Vec<Vec<&Entry>> = self
            .readers
            .values()
            .map(|pages| pages.iter().flat_map(|page| &page.entries).collect())
            .collect();
        let Some(longest) = readers.iter().max_by_key(|entries| entries.len()) else {
            return Ok(0);
        };
        let tell = |guarantee, found, id: &str| {
            let is_about = |event: &&Event| match event {
                Event::Feed(page) => {
                    page.entries.iter().any(|entry| entry.id == id || entry.message == id)
                }
                Event::Webhook(delivery) => delivery.entry.id == id || delivery.entry.message == id,
                Event::Post(post) => post.id.as_deref() == Some(id),
                Event::Read(read) => read.id == id,
                _ => false,
            };
            contradiction(guarantee, found, history.iter().filter(is_about))
        };
        let mut ids = BTreeSet::new();
        if let Some(twice) = longest.iter().find(|entry| !ids.insert(&*entry.id)) {
            let found = format!("the entry {} came twice", twice.id);
            return Err(tell("A reader of the feed sees nothing twice.", found, &twice.id));
        }
        for entries in &readers {
            let differs = entries.iter().zip(longest).find(|(one, other)| one != other);
            if let Some((one, other)) = differs {
                let found = format!("one reader got {} in the place of {}", one.id, other.id);
                return Err(tell("All readers of the feed see one order.", found, &one.id));
            }
        }
        if let Some((early, message)) = self.inversion(longest) {
            let found = format!(
                "the entry {early} stands behind one of the message {message}, and was read before \
                 that message was posted"
            );
            return Err(tell("The feed has the order of the commits.", found, message));
        }
        let mut of_message: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
        for entry in longest {
            of_message.entry(&entry.message).or_default().push(entry);
        }
        let first_read = self.first_read();
        for (id, read) in &self.reads {
            let told = of_message.get(id).map(Vec::as_slice).unwrap_or_default();
            let ends: Vec<&Entry> = told.iter().copied().filter(|one| is_end(&one.kind)).collect();
            let kinds: Vec<&str> = ends.iter().map(|one| &*one.kind).collect();
            let status = read.status.as_deref().unwrap_or_default();
            let is_whole = match (status, &*kinds) {
                ("sent", ["email.sent"] | ["email.failed", "email.sent"])
                | ("failed", ["email.failed"])
                | ("suppressed", ["email.suppressed"]) => true,
                // An event of the provider may correct a record after it was read.
                ("failed", ["email.failed", "email.sent"]) => {
                    first_read.get(&*ends[1].id).is_some_and(|told| read.began < *told)
                }
                ("sent" | "failed" | "suppressed", _) => false,
                _ => true,
            };
            if !is_whole {
                let found = format!("the message {id} is {status}; the feed tells {kinds:?}");
                return Err(tell("The feed tells each end of a message once.", found, id));
            }
        }
        for (receiver, got) in &self.receivers {
            if let Some(missed) = longest.iter().find(|entry| !got.contains(&*entry.id)) {
                let found = format!("the receiver {receiver} never got {}", missed.id);
                return Err(tell("A webhook's receiver gets each entry.", found, &missed.id));
            }
        }
        Ok(longest.len())
    }

    /// Returns when each entry was read for the first time.
    fn first_read(&self) -> BTreeMap<&str, u64> {
        let mut first_read: BTreeMap<&str, u64> = BTreeMap::new();
        for page in self.readers.values().flatten() {
            for entry in &page.entries {
                let first = first_read.entry(&entry.id).or_insert(page.ended);
                *first = page.ended.min(*first);
            }
        }
        first_read
    }

    /// Finds an entry that was read before a message was posted whose entry stands in front of it.
    fn inversion<'a>(&'a self, longest: &[&'a Entry]) -> Option<(&'a str, &'a str)> {
        let first_read = self.first_read();
        let mut earliest: Option<(u64, &str)> = None;
        for entry in longest.iter().rev() {
            if let (Some((read, id)), Some(posted)) = (earliest, self.posted.get(&*entry.message))
                && read < *posted
            {
                return Some((id, &entry.message));
            }
            let read = first_read.get(&*entry.id).copied();
            if let Some(read) = read
                && earliest.is_none_or(|(earlier, _)| read < earlier)
            {
                earliest = Some((read, &entry.id));
            }
        }
        None
    }
}

fn is_end(kind: &str) -> bool {
    matches!(kind, "email.sent" | "email.failed" | "email.suppressed")
}
