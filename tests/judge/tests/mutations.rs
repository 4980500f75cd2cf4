//! Each kind of contradiction is found: a recorded history is right, and is not after one change.

#![expect(clippy::unwrap_used, reason = "a test fails where something is not as it must be")]

use pillarbox_judge::history::{Accepted, Cancelled, Event, Suppressed};
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

/// The message that the provider took first.
fn first_sent(history: &[Event]) -> Accepted {
    let accepted = history
        .iter()
        .find_map(|event| if let Event::Provider(one) = event { Some(one.clone()) } else { None });
    accepted.unwrap()
}

/// Changes the last read of a message.
fn last_read<'a>(history: &'a mut [Event], id: &str) -> &'a mut pillarbox_judge::history::Read {
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
        let again = history.iter().find_map(|event| match event {
            Event::Post(post) if !post.replayed && post.key.is_some() && post.id.is_some() => {
                Some(post.clone())
            }
            _ => None,
        });
        history.push(Event::Post(again.unwrap()));
    });
    assert_eq!(guarantee, "One key makes one message in 24 hours, also if it is used at one time.");
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
