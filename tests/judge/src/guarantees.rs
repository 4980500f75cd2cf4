//! The guarantees about messages: acknowledged, read, sent, suppressed, cancelled.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::{Accepted, Answers, Event, Limited, OnUnknown, Post, Read, Refusal, Run};
use crate::{Contradiction, Summary, contradiction};

/// The window of an idempotency key: 24 hours, in microseconds.
const WINDOW: u64 = 24 * 3_600 * 1_000_000;
const FINAL: [&str; 3] = ["sent", "failed", "suppressed"];

type Verdict = Result<(), Contradiction>;

/// A history by message and key.
pub(crate) struct Case<'a> {
    run: &'a Run,
    events: &'a [Event],
    posts: Vec<&'a Post>,
    /// Posts that were answered with 200, by the message's id.
    acknowledged: BTreeMap<&'a str, Vec<&'a Post>>,
    /// Reads of each message, by the time at which they began.
    reads: BTreeMap<&'a str, Vec<&'a Read>>,
    accepted: BTreeMap<&'a str, Vec<&'a Accepted>>,
    killed: usize,
}

impl<'a> Case<'a> {
    /// Sorts the events of a history, which begins with its `run`.
    pub(crate) fn of(events: &'a [Event]) -> Self {
        let Some(Event::Run(run)) = events.first() else {
            unreachable!("a history begins with its run")
        };
        let mut case = Self {
            run,
            events,
            posts: Vec::new(),
            acknowledged: BTreeMap::new(),
            reads: BTreeMap::new(),
            accepted: BTreeMap::new(),
            killed: 0,
        };
        for event in events {
            match event {
                Event::Post(post) => {
                    case.posts.push(post);
                    if let Some(id) = &post.id {
                        case.acknowledged.entry(id).or_default().push(post);
                    }
                }
                Event::Read(read) => case.reads.entry(&read.id).or_default().push(read),
                Event::Provider(one) => case.accepted.entry(&one.id).or_default().push(one),
                Event::Killed { .. } => case.killed += 1,
                Event::Run(_)
                | Event::Feed(_)
                | Event::Webhook(_)
                | Event::Suppressed(_)
                | Event::Limited(_)
                | Event::Cancelled(_) => {}
            }
        }
        for reads in case.reads.values_mut() {
            reads.sort_by_key(|read| read.began);
        }
        case
    }

    /// Figures of the history.
    pub(crate) fn summary(&self) -> Summary {
        Summary {
            acknowledged: self.acknowledged.values().map(Vec::len).sum(),
            messages: self.acknowledged.len(),
            sent: self.accepted.len(),
            entries: 0,
            killed: self.killed,
        }
    }

    /// Checks one guarantee after the other.
    pub(crate) fn judge(&self) -> Verdict {
        self.each_answer_has_an_id()?;
        self.each_key_has_one_id()?;
        self.each_id_belongs_to_one_post()?;
        self.each_replay_has_a_first_post()?;
        self.each_acknowledged_message_is_final()?;
        self.no_status_moves_back()?;
        self.what_is_sent_was_accepted_by_the_provider()?;
        self.nothing_is_sent_twice()?;
        self.what_was_refused_is_not_sent()?;
        self.what_is_suppressed_is_not_sent()?;
        self.what_is_cancelled_is_not_sent()?;
        self.no_limit_is_exceeded()
    }

    fn each_answer_has_an_id(&self) -> Verdict {
        let wrong = self.posts.iter().find(|post| (post.status == Some(200)) != post.id.is_some());
        wrong.map_or(Ok(()), |post| {
            let found = format!("the answer {:?} has the id {:?}", post.status, post.id);
            Err(contradiction(
                "200 comes with an id, and nothing else does.",
                found,
                [&Event::Post((*post).clone())],
            ))
        })
    }

    fn each_key_has_one_id(&self) -> Verdict {
        const GUARANTEE: &str =
            "One key makes one message in 24 hours, also if it is used at one time.";
        let mut of_key: BTreeMap<(&str, &str), Vec<&Post>> = BTreeMap::new();
        for post in self.posts.iter().filter(|post| post.id.is_some()) {
            if let Some(key) = &post.key {
                of_key.entry((&post.organisation, key)).or_default().push(post);
            }
        }
        for ((_, key), mut posts) in of_key {
            posts.sort_by_key(|post| post.ended);
            let mut first = posts[0];
            for &post in &posts[1..] {
                if post.id == first.id {
                    continue;
                }
                if post.ended < first.began.saturating_add(WINDOW) {
                    let found =
                        format!("the key {key} has the ids {:?} and {:?}", first.id, post.id);
                    return Err(self.told_by_posts(GUARANTEE, found, &posts));
                }
                first = post;
            }
            let mut made = BTreeSet::new();
            for post in posts.iter().filter(|post| !post.replayed) {
                if !made.insert(post.id.as_deref()) {
                    let found = format!("the key {key} made its message {:?} twice", post.id);
                    return Err(self.told_by_posts(GUARANTEE, found, &posts));
                }
            }
        }
        Ok(())
    }

    /// A refused post binds no key. So a replay comes from another post that may have been accepted.
    fn each_replay_has_a_first_post(&self) -> Verdict {
        let mut first: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for post in self.posts.iter().filter(|post| !post.replayed && self.is_open(post)) {
            if let Some(key) = &post.key {
                let began = first.entry((&post.organisation, key)).or_insert(post.began);
                *began = post.began.min(*began);
            }
        }
        for post in self.posts.iter().filter(|post| post.replayed) {
            let key = post.key.as_deref().unwrap_or_default();
            let began = first.get(&(&*post.organisation, key));
            if began.is_none_or(|began| *began > post.ended) {
                return Err(self.told_by_posts(
                    "A replay repeats a post that was not refused.",
                    format!("nobody made the message {:?} of the key {key}", post.id),
                    &[post],
                ));
            }
        }
        Ok(())
    }

    /// True if a post may have been accepted.
    fn is_open(&self, post: &Post) -> bool {
        match post.status {
            None | Some(200) => true,
            Some(503) => self.run.refusal == Refusal::MayBeOpen,
            Some(_) => false,
        }
    }

    fn each_id_belongs_to_one_post(&self) -> Verdict {
        for (id, posts) in &self.acknowledged {
            let belongs = |post: &&Post| match (&post.key, &posts[0].key) {
                (Some(key), Some(first)) => {
                    key == first && post.organisation == posts[0].organisation
                }
                (None, None) => posts.len() == 1,
                _ => false,
            };
            if !posts.iter().all(belongs) {
                return Err(self.told_by_posts(
                    "Each message has an id of its own.",
                    format!("the id {id} was given to different posts"),
                    posts,
                ));
            }
        }
        Ok(())
    }

    fn each_acknowledged_message_is_final(&self) -> Verdict {
        for (id, posts) in &self.acknowledged {
            let after = posts.iter().map(|post| post.ended).min().unwrap_or_default();
            let reads = self.reads.get(id).map(Vec::as_slice).unwrap_or_default();
            let missing = reads.iter().find(|read| read.began >= after && read.status.is_none());
            let last = reads.last().and_then(|read| read.status.as_deref());
            let is_final = last.is_some_and(|status| FINAL.contains(&status));
            if missing.is_some() || !is_final {
                return Err(self.told_of(
                    "Each message that was acknowledged is there and becomes final.",
                    format!("the message {id} is {}", last.unwrap_or("not there")),
                    id,
                ));
            }
        }
        Ok(())
    }

    fn no_status_moves_back(&self) -> Verdict {
        for (id, reads) in &self.reads {
            let mut by_end = reads.clone();
            by_end.sort_by_key(|read| read.ended);
            let (mut ended, mut before) = (by_end.iter().peekable(), None);
            for read in reads {
                while let Some(one) = ended.next_if(|one| one.ended < read.began) {
                    before = furthest(before, one.status.as_deref());
                }
                let now = read.status.as_deref();
                let is_later = match (before, now) {
                    (None | Some("queued" | "sending"), _) => now.is_some() || before.is_none(),
                    (Some("failed"), Some("sent")) => self.accepted.contains_key(id),
                    (Some(before), now) => now == Some(before),
                };
                if !is_later {
                    return Err(self.told_of(
                        "A final status stays, unless an event proves that the provider took the message.",
                        format!("the message {id} was {before:?} and is {now:?}"),
                        id,
                    ));
                }
            }
        }
        Ok(())
    }

    fn what_is_sent_was_accepted_by_the_provider(&self) -> Verdict {
        for (id, reads) in &self.reads {
            for read in reads.iter().filter(|read| read.status.as_deref() == Some("sent")) {
                let accepted = self.accepted.get(id);
                let is_there =
                    accepted.is_some_and(|all| all.iter().any(|one| one.at <= read.ended));
                if !is_there || read.attempts == 0 {
                    return Err(self.told_of(
                        "A message is sent only if the provider took it, by one attempt at least.",
                        format!("the message {id} is sent after {} attempts", read.attempts),
                        id,
                    ));
                }
            }
        }
        Ok(())
    }

    /// Holds if a lost answer causes another attempt, too: each attempt is counted.
    fn nothing_is_sent_twice(&self) -> Verdict {
        for (id, accepted) in &self.accepted {
            let may_repeat =
                (self.run.on_unknown, self.run.answers) == (OnUnknown::Retry, Answers::MayBeLost);
            let attempts = self.reads.get(id).and_then(|reads| reads.last());
            let attempts = attempts.map_or(1, |read| read.attempts.max(1));
            let most = if may_repeat { attempts } else { 1 };
            if accepted.len() as u64 > most {
                return Err(self.told_of(
                    "A message is sent again only if the answer to an attempt was lost.",
                    format!("the provider took the message {id} {} times", accepted.len()),
                    id,
                ));
            }
        }
        Ok(())
    }

    fn what_was_refused_is_not_sent(&self) -> Verdict {
        let open: BTreeSet<(&str, &str)> = self
            .posts
            .iter()
            .copied()
            .filter(|post| self.is_open(post))
            .map(|post| (post.organisation.as_str(), post.subject.as_str()))
            .collect();
        for (id, accepted) in &self.accepted {
            let is_known = self.acknowledged.contains_key(id);
            let one = accepted[0];
            if !is_known && !open.contains(&(&*one.organisation, &*one.subject)) {
                return Err(self.told_of(
                    "A message that was refused is not sent.",
                    format!(
                        "the provider took {id} ({}), which was accepted from nobody",
                        one.subject
                    ),
                    id,
                ));
            }
        }
        Ok(())
    }

    fn what_is_suppressed_is_not_sent(&self) -> Verdict {
        let mut since: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for event in self.events {
            if let Event::Suppressed(one) = event {
                let known = one.ended.saturating_add(self.run.suppression_delay);
                let first = since.entry((&one.organisation, &one.address)).or_insert(known);
                *first = known.min(*first);
            }
        }
        for one in self.accepted.values().flatten() {
            for address in &one.recipients {
                let known = since.get(&(&one.organisation, address));
                if known.is_some_and(|known| one.at > *known) {
                    return Err(self.told_of(
                        "Nothing is sent to a suppressed address.",
                        format!("the message {} went to {address}, which was suppressed", one.id),
                        &one.id,
                    ));
                }
            }
        }
        Ok(())
    }

    fn what_is_cancelled_is_not_sent(&self) -> Verdict {
        for event in self.events {
            let Event::Cancelled(cancelled) = event else { continue };
            let accepted = self.accepted.get(&*cancelled.id);
            if accepted.is_some_and(|all| all.iter().any(|one| one.at > cancelled.ended)) {
                return Err(self.told_of(
                    "A cancelled message is not sent afterwards.",
                    format!("the message {} was cancelled and then sent", cancelled.id),
                    &cancelled.id,
                ));
            }
        }
        Ok(())
    }

    /// Counts messages that a client or the provider knows: those whose answers were there before the
    /// limit was changed, and at the end all.
    fn no_limit_is_exceeded(&self) -> Verdict {
        let mut limits: BTreeMap<&str, Vec<&Limited>> = BTreeMap::new();
        for event in self.events {
            if let Event::Limited(one) = event {
                limits.entry(&one.organisation).or_default().push(one);
            }
        }
        for (organisation, mut limits) in limits {
            limits.sort_by_key(|limit| limit.began);
            for (index, limit) in limits.iter().enumerate() {
                let next = limits.get(index + 1).map_or(u64::MAX, |next| next.began);
                let known = self.known_before(organisation, next);
                if known as u64 > limit.most {
                    let is_limit = |event: &&Event| matches!(event, Event::Limited(_));
                    return Err(contradiction(
                        "No more messages are accepted than the organisation's limit says.",
                        format!("{known} messages of {organisation}, and at most {}", limit.most),
                        self.events.iter().filter(is_limit),
                    ));
                }
            }
        }
        Ok(())
    }

    /// Number of messages of an organisation that were certainly accepted before a time.
    fn known_before(&self, organisation: &str, time: u64) -> usize {
        let posts = self.posts.iter().filter(|post| post.ended < time);
        let posts = posts.filter(|post| post.organisation == organisation);
        let sent = self.accepted.values().flatten().filter(|one| one.at < time);
        let sent = sent.filter(|one| one.organisation == organisation);
        let ids = posts.filter_map(|post| post.id.as_deref()).chain(sent.map(|one| &*one.id));
        ids.collect::<BTreeSet<_>>().len()
    }

    fn told_by_posts(
        &self,
        guarantee: &'static str,
        found: String,
        posts: &[&Post],
    ) -> Contradiction {
        let is_one = |event: &&Event| matches!(event, Event::Post(post) if posts.iter().any(|one| std::ptr::eq(*one, post)));
        contradiction(guarantee, found, self.events.iter().filter(is_one))
    }

    /// A contradiction with all observations of a message.
    fn told_of(&self, guarantee: &'static str, found: String, id: &str) -> Contradiction {
        let is_about = |event: &&Event| match event {
            Event::Post(post) => post.id.as_deref() == Some(id),
            Event::Read(read) => read.id == id,
            Event::Provider(one) => one.id == id,
            Event::Cancelled(one) => one.id == id,
            Event::Feed(page) => page.entries.iter().any(|entry| entry.message == id),
            Event::Webhook(delivery) => delivery.entry.message == id,
            Event::Killed { .. } => true,
            Event::Run(_) | Event::Suppressed(_) | Event::Limited(_) => false,
        };
        contradiction(guarantee, found, self.events.iter().filter(is_about))
    }
}

/// The status from which a message may go less far.
fn furthest<'a>(before: Option<&'a str>, now: Option<&'a str>) -> Option<&'a str> {
    let rank = |status: Option<&str>| match status {
        None => 0,
        Some("sent" | "suppressed") => 3,
        Some("failed") => 2,
        Some(_) => 1,
    };
    if rank(now) > rank(before) { now } else { before }
}
