//! Each kind of contradiction is found: a recorded history is right, and is not after one change.

#![expect(clippy::unwrap_used, reason = "a test fails where something is not as it must be")]

use pillarbox_judge::history::{
    Accepted, Answers, Cancelled, Entry, Event, Limited, OnUnknown, Post, Read, Refusal, Run,
    Suppressed,
};
use pillarbox_judge::{judge, read};

/// Recorded by the test that kills the service, in two lives of the process.
const RECORDED: &str = include_str!("recorded.jsonl");

fn recorded() -> Vec<Event> {
    read(RECORDED.as_bytes()).unwrap()
}

/// The guarantee that the history breaks after the change.
fn broken(change: impl FnOnce(&mut Vec<Event>)) -> String {
    let mut history = recorded();
    judge(&history).unwrap();
    change(&mut history);
    let contradiction = judge(&history).unwrap_err();
    assert!(!contradiction.around.is_empty(), "{contradiction}");
    contradiction.guarantee.to_owned()
}

/// Asserts that the history is still right after the change.
fn right(change: impl FnOnce(&mut Vec<Event>)) {
    let mut history = recorded();
    change(&mut history);
    judge(&history).unwrap();
}

/// Returns the set-up of the run.
fn run(history: &mut [Event]) -> &mut Run {
    match &mut history[0] {
        Event::Run(run) => run,
        other => panic!("{other:?}"),
    }
}

/// The first post with a key that made a message.
fn first_made(history: &[Event]) -> Post {
    let made = history.iter().find_map(|event| match event {
        Event::Post(post) if !post.replayed && post.key.is_some() && post.id.is_some() => {
            Some(post.clone())
        }
        _ => None,
    });
    made.unwrap()
}

/// The message that the provider took first.
fn first_sent(history: &[Event]) -> Accepted {
    let accepted = history
        .iter()
        .find_map(|event| if let Event::Provider(one) = event { Some(one.clone()) } else { None });
    accepted.unwrap()
}

/// Changes the last read of a message.
fn last_read<'a>(history: &'a mut [Event], id: &str) -> &'a mut Read {
    let last = history.iter_mut().rev().find_map(|event| match event {
        Event::Read(read) if read.id == id => Some(read),
        _ => None,
    });
    last.unwrap()
}

fn end(history: &[Event]) -> u64 {
    history
        .iter()
        .map(|event| if let Event::Read(read) = event { read.ended } else { 0 })
        .max()
        .unwrap()
}

#[test]
fn a_recorded_history_is_right() {
    let summary = judge(&recorded()).unwrap();
    assert!(summary.acknowledged > summary.messages && summary.messages > 0, "{summary:?}");
    assert!(summary.sent > 0 && summary.entries > 0 && summary.killed > 0, "{summary:?}");
}

#[test]
fn an_acknowledged_message_that_is_gone_is_found() {
    let guarantee = broken(|history| {
        let id = first_sent(history).id;
        last_read(history, &id).status = None;
    });
    assert_eq!(guarantee, "Each message that was acknowledged is there and becomes final.");
}

#[test]
fn an_acknowledged_message_that_nobody_read_again_is_found() {
    let guarantee = broken(|history| {
        let id = first_sent(history).id;
        history.retain(|event| !matches!(event, Event::Read(read) if read.id == id));
    });
    assert_eq!(guarantee, "Each message that was acknowledged is there and becomes final.");
}

#[test]
fn a_message_that_never_ends_is_found() {
    let guarantee = broken(|history| {
        let id = first_sent(history).id;
        last_read(history, &id).status = Some("queued".to_owned());
    });
    assert_eq!(guarantee, "Each message that was acknowledged is there and becomes final.");
}

#[test]
fn a_key_with_two_ids_is_found() {
    let guarantee = broken(|history| {
        let replay = history.iter_mut().find_map(|event| match event {
            Event::Post(post) if post.replayed => Some(post),
            _ => None,
        });
        replay.unwrap().id = Some("another".to_owned());
    });
    assert_eq!(guarantee, "One key makes one message in 24 hours, also if it is used at one time.");
}

#[test]
fn a_replay_that_made_a_message_again_is_found() {
    let guarantee = broken(|history| {
        let again = first_made(history);
        history.push(Event::Post(again));
    });
    assert_eq!(guarantee, "One key makes one message in 24 hours, also if it is used at one time.");
}

#[test]
fn a_replay_of_what_was_refused_is_found() {
    let guarantee = broken(|history| {
        let replay = history.iter().find_map(|event| match event {
            Event::Post(post) if post.replayed => Some(post.key.clone()),
            _ => None,
        });
        let key = replay.unwrap();
        for event in history {
            if let Event::Post(post) = event
                && post.key == key
                && !post.replayed
            {
                (post.status, post.id) = (Some(422), None);
            }
        }
    });
    assert_eq!(guarantee, "A replay repeats a post that was not refused.");
}

#[test]
fn an_id_that_two_posts_got_is_found() {
    let guarantee = broken(|history| {
        let mut other = history
            .iter()
            .find_map(|event| match event {
                Event::Post(post) if post.key.is_none() && post.id.is_some() => Some(post.clone()),
                _ => None,
            })
            .unwrap();
        other.subject = "another".to_owned();
        history.push(Event::Post(other));
    });
    assert_eq!(guarantee, "Each message has an id of its own.");
}

#[test]
fn a_status_that_moves_back_is_found() {
    let guarantee = broken(|history| {
        let id = first_sent(history).id;
        let mut later = last_read(history, &id).clone();
        later.began = end(history) + 1;
        later.ended = later.began + 1;
        later.status = Some("failed".to_owned());
        history.push(Event::Read(later));
    });
    assert_eq!(
        guarantee,
        "A final status stays, unless an event proves that the provider took the message."
    );
}

#[test]
fn a_message_that_is_sent_and_never_left_is_found() {
    let guarantee = broken(|history| {
        let id = first_sent(history).id;
        history.retain(|event| !matches!(event, Event::Provider(one) if one.id == id));
    });
    assert_eq!(
        guarantee,
        "A message is sent only if the provider took it, by one attempt at least."
    );
}

#[test]
fn a_message_that_is_sent_without_an_attempt_is_found() {
    let guarantee = broken(|history| {
        let id = first_sent(history).id;
        last_read(history, &id).attempts = 0;
    });
    assert_eq!(
        guarantee,
        "A message is sent only if the provider took it, by one attempt at least."
    );
}

#[test]
fn a_message_that_is_sent_twice_is_found() {
    let guarantee = broken(|history| {
        let again = first_sent(history);
        history.push(Event::Provider(again));
    });
    assert_eq!(guarantee, "A message is sent again only if the answer to an attempt was lost.");
}

#[test]
fn a_refused_message_that_is_sent_is_found() {
    let guarantee = broken(|history| {
        let mut refused = first_sent(history);
        refused.id = "refused".to_owned();
        refused.subject = "refused".to_owned();
        history.push(Event::Provider(refused));
    });
    assert_eq!(guarantee, "A message that was refused is not sent.");
}

#[test]
fn a_message_to_a_suppressed_address_is_found() {
    let guarantee = broken(|history| {
        let last = history.iter().rev().find_map(|event| {
            if let Event::Provider(one) = event { Some(one.clone()) } else { None }
        });
        let last = last.unwrap();
        let suppressed = Suppressed {
            ended: 0,
            organisation: last.organisation,
            address: last.recipients[0].clone(),
        };
        history.insert(1, Event::Suppressed(suppressed));
    });
    assert_eq!(guarantee, "Nothing is sent to a suppressed address.");
}

#[test]
fn a_cancelled_message_that_is_sent_is_found() {
    let guarantee = broken(|history| {
        let one = first_sent(history);
        history.push(Event::Cancelled(Cancelled { ended: one.at - 1, id: one.id }));
    });
    assert_eq!(guarantee, "A cancelled message is not sent afterwards.");
}

/// The pages of one reader that have entries.
fn pages(history: &mut [Event]) -> Vec<&mut pillarbox_judge::history::Page> {
    let pages = history
        .iter_mut()
        .filter_map(|event| if let Event::Feed(page) = event { Some(page) } else { None });
    let mut pages: Vec<_> = pages.filter(|page| page.entries.len() > 1).collect();
    let reader = pages[0].reader.clone();
    pages.retain(|page| page.reader == reader);
    pages
}

#[test]
fn an_entry_of_the_feed_that_comes_twice_is_found() {
    let guarantee = broken(|history| {
        // Of all readers, so that their orders are the same.
        for event in history.iter_mut() {
            if let Event::Feed(page) = event {
                page.entries =
                    page.entries.iter().flat_map(|entry| [entry.clone(), entry.clone()]).collect();
            }
        }
    });
    assert_eq!(guarantee, "A reader of the feed sees nothing twice.");
}

#[test]
fn readers_that_see_two_orders_are_found() {
    let guarantee = broken(|history| pages(history)[0].entries.swap(0, 1));
    assert_eq!(guarantee, "All readers of the feed see one order.");
}

#[test]
fn an_entry_that_one_reader_missed_is_found() {
    let guarantee = broken(|history| drop(pages(history)[0].entries.remove(0)));
    assert_eq!(guarantee, "All readers of the feed see one order.");
}

#[test]
fn an_entry_that_all_readers_missed_is_found() {
    let guarantee = broken(|history| {
        let id = first_sent(history).id;
        for event in history.iter_mut() {
            if let Event::Feed(page) = event {
                page.entries.retain(|entry| entry.message != id);
            }
        }
    });
    assert_eq!(guarantee, "The feed tells each end of a message once.");
}

#[test]
fn an_entry_that_was_put_in_front_of_those_already_read_is_found() {
    let guarantee = broken(|history| {
        let last = pages(history).pop().unwrap().entries.pop().unwrap();
        for event in history.iter_mut() {
            if let Event::Feed(page) = event {
                page.entries.retain(|entry| *entry != last);
            }
        }
        let mut readers = std::collections::BTreeSet::new();
        for event in history.iter_mut() {
            if let Event::Feed(page) = event
                && !page.entries.is_empty()
                && readers.insert(page.reader.clone())
            {
                page.entries.insert(0, last.clone());
            }
        }
    });
    assert_eq!(guarantee, "The feed has the order of the commits.");
}

#[test]
fn an_entry_that_a_receiver_of_webhooks_missed_is_found() {
    let guarantee = broken(|history| {
        let missed = history.iter().find_map(|event| match event {
            Event::Webhook(delivery) => Some(delivery.entry.id.clone()),
            _ => None,
        });
        let missed = missed.unwrap();
        history.retain(|event| !matches!(event, Event::Webhook(one) if one.entry.id == missed));
    });
    assert_eq!(guarantee, "A webhook's receiver gets each entry.");
}

#[test]
fn an_answer_of_success_without_an_id_is_found() {
    let guarantee = broken(|history| {
        let post = history.iter_mut().find_map(|event| match event {
            Event::Post(post) if post.id.is_some() => Some(post),
            _ => None,
        });
        post.unwrap().id = None;
    });
    assert_eq!(guarantee, "200 comes with an id, and nothing else does.");
}

#[test]
fn a_history_with_a_line_that_is_none_is_not_read() {
    let cut = &RECORDED[..RECORDED.len() - 20];
    assert!(read(cut.as_bytes()).is_err());
    let (_, without_run) = RECORDED.split_once('\n').unwrap();
    assert!(read(without_run.as_bytes()).is_err());
}

#[test]
fn a_refusal_with_an_id_is_found() {
    let guarantee = broken(|history| {
        let post = history.iter_mut().find_map(|event| match event {
            Event::Post(post) if post.id.is_some() => Some(post),
            _ => None,
        });
        post.unwrap().status = Some(503);
    });
    assert_eq!(guarantee, "200 comes with an id, and nothing else does.");
}

#[test]
fn a_key_is_free_after_24_hours_and_no_sooner() {
    const DAY: u64 = 24 * 3_600 * 1_000_000;
    let again_at = |at: u64| {
        let post = |id: &str, at| {
            Event::Post(Post {
                began: at,
                ended: at + 5,
                organisation: "acme".to_owned(),
                key: Some("k".to_owned()),
                subject: "Hello".to_owned(),
                status: Some(200),
                id: Some(id.to_owned()),
                replayed: false,
            })
        };
        let read = |id: &str, at| {
            Event::Read(Read {
                began: at + 10,
                ended: at + 15,
                id: id.to_owned(),
                status: Some("failed".to_owned()),
                attempts: 0,
            })
        };
        let run = recorded().swap_remove(0);
        judge(&[run, post("a", 100), read("a", 100), post("b", at), read("b", at)])
    };
    again_at(100 + DAY).unwrap();
    // The second answer was there before the window of the first one could be over.
    let guarantee = again_at(100 + DAY - 10).unwrap_err().guarantee;
    assert_eq!(guarantee, "One key makes one message in 24 hours, also if it is used at one time.");
}

#[test]
fn an_id_that_two_keys_or_two_organisations_got_is_found() {
    let changes: [fn(&mut Post); 2] = [
        |post| post.key = Some("another".to_owned()),
        |post| post.organisation = "another".to_owned(),
    ];
    for change in changes {
        let guarantee = broken(|history| {
            let mut other = Post { replayed: true, ..first_made(history) };
            change(&mut other);
            history.push(Event::Post(other));
        });
        assert_eq!(guarantee, "Each message has an id of its own.");
    }
}

#[test]
fn an_acknowledged_message_that_was_gone_for_a_while_is_found() {
    let guarantee = broken(|history| {
        let post = first_made(history);
        let (began, id) = (post.ended + 1, post.id.unwrap());
        let gone = Read { began, ended: began + 1, id, status: None, attempts: 0 };
        history.push(Event::Read(gone));
    });
    assert_eq!(guarantee, "Each message that was acknowledged is there and becomes final.");
}

/// Adds a read of the message that the provider took first, which ends before all others began.
fn read_before(history: &mut Vec<Event>, status: &str) {
    let id = first_sent(history).id;
    let reads = history.iter().filter_map(|event| match event {
        Event::Read(read) if read.id == id => Some(read.began),
        _ => None,
    });
    let ended = reads.min().unwrap() - 1;
    let (began, status) = (ended - 1, Some(status.to_owned()));
    history.push(Event::Read(Read { began, ended, id, status, attempts: 1 }));
}

#[test]
fn a_final_status_that_becomes_another_one_is_found() {
    let guarantee = broken(|history| read_before(history, "suppressed"));
    assert_eq!(
        guarantee,
        "A final status stays, unless an event proves that the provider took the message."
    );
    right(|history| read_before(history, "failed"));
    right(|history| read_before(history, "sending"));
}

#[test]
fn a_failure_that_becomes_success_though_the_provider_never_took_the_message_is_found() {
    let guarantee = broken(|history| {
        read_before(history, "failed");
        let id = first_sent(history).id;
        history.retain(|event| !matches!(event, Event::Provider(one) if one.id == id));
    });
    assert_eq!(
        guarantee,
        "A final status stays, unless an event proves that the provider took the message."
    );
}

#[test]
fn a_message_that_was_sent_before_the_provider_took_it_is_found() {
    let guarantee = broken(|history| {
        let id = first_sent(history).id;
        let late = last_read(history, &id).ended + 1;
        for event in history.iter_mut() {
            if let Event::Provider(one) = event
                && one.id == id
            {
                one.at = late;
            }
        }
    });
    assert_eq!(
        guarantee,
        "A message is sent only if the provider took it, by one attempt at least."
    );
}

#[test]
fn a_message_that_is_sent_more_often_than_attempted_is_found() {
    const GUARANTEE: &str = "A message is sent again only if the answer to an attempt was lost.";
    // With another attempt after a lost answer, as far as attempts are counted.
    let twice = |on_unknown, answers, attempts| {
        move |history: &mut Vec<Event>| {
            run(history).on_unknown = on_unknown;
            run(history).answers = answers;
            let again = first_sent(history);
            last_read(history, &again.id).attempts = attempts;
            history.push(Event::Provider(again));
        }
    };
    right(twice(OnUnknown::Retry, Answers::MayBeLost, 2));
    for (on_unknown, answers, attempts) in [
        (OnUnknown::Retry, Answers::MayBeLost, 1),
        (OnUnknown::Retry, Answers::Arrive, 2),
        (OnUnknown::Fail, Answers::MayBeLost, 2),
    ] {
        assert_eq!(broken(twice(on_unknown, answers, attempts)), GUARANTEE);
    }
}

#[test]
fn a_message_whose_posts_were_all_refused_and_that_is_sent_is_found() {
    let sent_after = |refusal, status| {
        move |history: &mut Vec<Event>| {
            run(history).refusal = refusal;
            let (mut sent, mut post) = (first_sent(history), first_made(history));
            sent.id = "refused".to_owned();
            sent.subject = "refused".to_owned();
            post.subject.clone_from(&sent.subject);
            post.key = None;
            post.id = None;
            post.status = status;
            history.extend([Event::Post(post), Event::Provider(sent)]);
        }
    };
    right(sent_after(Refusal::MayBeOpen, Some(503)));
    right(sent_after(Refusal::Definite, None));
    for (refusal, status) in
        [(Refusal::Definite, 503), (Refusal::MayBeOpen, 422), (Refusal::MayBeOpen, 451)]
    {
        let guarantee = broken(sent_after(refusal, Some(status)));
        assert_eq!(guarantee, "A message that was refused is not sent.");
    }
}

#[test]
fn a_suppression_counts_for_its_organisation_and_once_all_can_know_it() {
    let suppressed = |delay, before: u64, organisation: Option<&'static str>| {
        move |history: &mut Vec<Event>| {
            run(history).suppression_delay = delay;
            let sent = first_sent(history);
            history.push(Event::Suppressed(Suppressed {
                ended: sent.at - before,
                organisation: organisation.map_or(sent.organisation, str::to_owned),
                address: sent.recipients[0].clone(),
            }));
            // Those that were sent later went to other addresses.
            for event in history.iter_mut() {
                if let Event::Provider(one) = event
                    && one.id != sent.id
                {
                    one.recipients.clear();
                }
            }
        }
    };
    right(suppressed(10, 10, None));
    right(suppressed(10, 11, Some("another")));
    let guarantee = broken(suppressed(10, 11, None));
    assert_eq!(guarantee, "Nothing is sent to a suppressed address.");
}

/// The last page with entries of the reader that got the most.
fn last_page(history: &mut [Event]) -> &mut Vec<Entry> {
    let mut counts = std::collections::BTreeMap::new();
    for event in history.iter() {
        if let Event::Feed(page) = event {
            *counts.entry(page.reader.clone()).or_insert(0) += page.entries.len();
        }
    }
    let (longest, _) = counts.into_iter().max_by_key(|(_, count)| *count).unwrap();
    let last = history.iter_mut().rev().find_map(|event| match event {
        Event::Feed(page) if page.reader == longest && !page.entries.is_empty() => Some(page),
        _ => None,
    });
    &mut last.unwrap().entries
}

#[test]
fn an_end_that_the_feed_tells_twice_or_wrong_is_found() {
    const GUARANTEE: &str = "The feed tells each end of a message once.";
    for kind in ["email.sent", "email.failed", "email.suppressed"] {
        let guarantee = broken(|history| {
            let message = first_sent(history).id;
            let (id, kind) = ("another".to_owned(), kind.to_owned());
            last_page(history).push(Entry { id, kind, message });
        });
        assert_eq!(guarantee, GUARANTEE, "{kind} after email.sent");
        if kind == "email.sent" {
            continue;
        }
        let guarantee = broken(|history| {
            let sent = first_sent(history).id;
            for event in history.iter_mut() {
                let Event::Feed(page) = event else { continue };
                for entry in &mut page.entries {
                    if entry.message == sent && entry.kind == "email.sent" {
                        kind.clone_into(&mut entry.kind);
                    }
                }
            }
        });
        assert_eq!(guarantee, GUARANTEE, "{kind} in the place of email.sent");
    }
}

/// Makes a sent message one that failed first and was corrected to `sent` by an event; its record
/// is read as `failed` at the given time.
fn corrected(history: &mut Vec<Event>, read_at: u64) {
    let sent = first_sent(history).id;
    // No receiver of webhooks: it would have got both.
    history.retain(|event| !matches!(event, Event::Webhook(_)));
    for event in history.iter_mut() {
        match event {
            Event::Read(read) if read.id == sent => {
                (read.began, read.ended) = (read_at, read_at);
                read.status = Some("failed".to_owned());
            }
            Event::Feed(page) => {
                let is_end = |one: &Entry| one.message == sent && one.kind == "email.sent";
                if let Some(at) = page.entries.iter().position(is_end) {
                    let (id, kind) = (format!("{sent} failed"), "email.failed".to_owned());
                    page.entries.insert(at, Entry { id, kind, message: sent.clone() });
                }
            }
            _ => {}
        }
    }
}

#[test]
fn a_record_that_fails_after_the_feed_told_of_its_correction_is_found() {
    // The correction came after the record was read.
    right(|history| corrected(history, 0));
    let guarantee = broken(|history| corrected(history, u64::MAX));
    assert_eq!(guarantee, "The feed tells each end of a message once.");
}

#[test]
fn an_entry_that_one_of_two_receivers_missed_is_found() {
    let other = |history: &mut Vec<Event>, missed: usize| {
        let deliveries = history.iter().filter_map(|event| match event {
            Event::Webhook(delivery) => Some(delivery.clone()),
            _ => None,
        });
        let deliveries: Vec<_> = deliveries.collect();
        let missed = deliveries.first().filter(|_| missed > 0).map(|one| one.entry.id.clone());
        for mut delivery in deliveries {
            if Some(&delivery.entry.id) != missed.as_ref() {
                delivery.receiver = "another".to_owned();
                history.push(Event::Webhook(delivery));
            }
        }
    };
    right(|history| other(history, 0));
    let guarantee = broken(|history| other(history, 1));
    assert_eq!(guarantee, "A webhook's receiver gets each entry.");
}

#[test]
fn a_message_beyond_a_limit_is_found() {
    const GUARANTEE: &str = "No more messages are accepted than the organisation's limit says.";
    let limited =
        |began, most| Event::Limited(Limited { began, organisation: "acme".to_owned(), most });
    let all = |history: &[Event]| {
        let ids = history.iter().filter_map(|event| match event {
            Event::Post(post) => post.id.clone(),
            Event::Provider(one) => Some(one.id.clone()),
            _ => None,
        });
        ids.collect::<std::collections::BTreeSet<_>>().len() as u64
    };
    right(|history| history.push(limited(0, all(history))));
    let guarantee = broken(|history| history.push(limited(0, all(history) - 1)));
    assert_eq!(guarantee, GUARANTEE);
    // The limit was raised in time, and too late.
    right(|history| history.extend([limited(0, 0), limited(1, all(history))]));
    let guarantee = broken(|history| {
        let first = first_made(history);
        history.extend([limited(0, 0), limited(first.ended + 1, all(history))]);
    });
    assert_eq!(guarantee, GUARANTEE);
}
