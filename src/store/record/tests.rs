//! Rows in earlier forms and in the present one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::check::{KINDS, check_row};
use super::directory::{
    DomainStateV1, SenderDomainV1, decode_api_key, decode_domain, decode_organisation,
    encode_api_key, encode_domain, encode_organisation,
};
use super::timeline::{decode_step, encode_step};
use super::*;
use pillarbox_domain::api_key::ApiKeyHash;
use pillarbox_domain::id::KeyId;
use pillarbox_domain::organisation::{
    ApiKeyEntry, DomainCheck, DomainState, Finding, KeyRights, Limits, Organisation,
    OrganisationKind, Pause, PausedRequests, Scope, SenderDomain,
};

use pillarbox_domain::message_terms::MessageDefaults;
use pillarbox_domain::timeline::{Step, StepKind};

#[path = "../../../tests/fuzz/mutate.rs"]
mod mutate;

#[test]
fn the_corpus_has_rows_of_every_kind() {
    let corpus = mutate::files("record");
    let rows = corpus.iter().filter(|input| check_row(input));
    let kinds: BTreeSet<_> = rows.map(|input| input[0]).collect();
    assert_eq!(kinds, (0..KINDS).collect());
    assert!(!check_row(b""), "it has no kind");
    assert!((0..KINDS).all(|kind| !check_row(&[kind])), "they have no version");
}

#[test]
fn a_row_in_quarantine_has_the_reason_and_the_record_as_it_was_found() {
    let row = encode_quarantined("no known version", b"a record");
    assert_eq!(decode_quarantined(&row).unwrap(), "no known version");
    assert!(row.ends_with(b"a record"));
}

#[test]
fn a_row_of_a_later_version_is_not_read() {
    let mut row = encode_quarantined("", b"");
    row[0] += 1;
    let read = decode_quarantined(&row);
    assert!(matches!(read, Err(RowError::Version(found)) if found == row[0]), "{read:?}");
}

#[test]
fn rows_of_any_bytes_are_read_or_refused() {
    mutate::run("record", &["\u{0}\u{0}", "\u{1}", "\u{7f}\u{7f}\u{7f}\u{1}"], |input| {
        check_row(input);
    });
}

#[test]
fn every_failure_reads_back_as_it_was_written() {
    for code in FailureCode::ALL {
        for acceptance in [Acceptance::Excluded, Acceptance::Possible] {
            let failure = Failure::new(code, code.as_str());
            let message = Message {
                id: MessageId::from_bytes([7; 16]),
                organisation: OrganisationId(1),
                created_at: Timestamp::from_unix_millis(1),
                from: "ann@example.com".to_owned(),
                recipients: vec!["bob@example.org".to_owned()],
                subject: "Hello".to_owned(),
                metadata: None,
                terms: Terms::NONE,
                attempts: 1,
                state: State::Failed { failure, acceptance },
                last_event: None,
                calling: None,
            };
            let row = encode_message(&message);
            assert_eq!(decode_message(message.id, &row).unwrap(), message);
        }
    }
}

#[test]
fn metadata_reads_back_and_a_message_without_any_as_it_always_did() {
    let mut message = Message {
        id: MessageId::from_bytes([7; 16]),
        organisation: OrganisationId(1),
        created_at: Timestamp::from_unix_millis(1),
        from: "a@b.c".to_owned(),
        recipients: vec!["d@e.f".to_owned()],
        subject: "Hi".to_owned(),
        metadata: None,
        terms: Terms::NONE,
        attempts: 0,
        state: State::Queued { last_failure: None, acceptance: Acceptance::Excluded },
        last_event: None,
        calling: None,
    };
    let first = b"\x01\x01\x01\x05a@b.c\x01\x05d@e.f\x02Hi\x00\x00\x00\x00\x00";
    assert_eq!(encode_message(&message), first);
    assert_eq!(decode_message(message.id, first).unwrap(), message);
    message.metadata = Some([("order".to_owned(), "1815".to_owned())].into());
    let row = encode_message(&message);
    assert_eq!(row[0], WITH_METADATA);
    assert_eq!(row[1..first.len()], first[1..]);
    assert_eq!(row[first.len()..], *b"\x01\x05order\x041815");
    assert_eq!(decode_message(message.id, &row).unwrap(), message);
    assert_eq!(organisation_of(&row), Some(OrganisationId(1)));
    message.metadata = Some(BTreeMap::new());
    assert_eq!(decode_message(message.id, &encode_message(&message)).unwrap(), message);
}

#[test]
fn a_key_reads_back_and_one_that_never_expires_as_it_always_did() {
    let mut entry = ApiKeyEntry {
        id: KeyId(7),
        organisation: OrganisationId(1),
        label: "app".to_owned(),
        created_at: Timestamp::from_unix_millis(1_800_000_000_000),
        expires_at: None,
        hash: ApiKeyHash([9; 32]),
        rights: Arc::new(KeyRights::all()),
    };
    // Organisation, length and text of the label, the time as a varint, the hash.
    let mut first = vec![1, 1, 3, b'a', b'p', b'p', 0x80, 0xa0, 0xf1, 0xc2, 0xb1, 0x34];
    first.extend([9; 32]);
    assert_eq!(encode_api_key(&entry), first);
    assert_eq!(decode_api_key(7, &first).unwrap().expires_at, None);
    entry.expires_at = Some(Timestamp::from_unix_millis(1_900_000_000_000));
    let read = decode_api_key(7, &encode_api_key(&entry)).unwrap();
    assert_eq!((read.expires_at, read.label.as_str()), (entry.expires_at, "app"));
    let domains = BTreeSet::from(["example.com".to_owned()]);
    entry.rights =
        Arc::new(KeyRights { scopes: [Scope::Read].into(), domains, ..KeyRights::all() });
    for expires_at in [entry.expires_at, None] {
        entry.expires_at = expires_at;
        let read = decode_api_key(7, &encode_api_key(&entry)).unwrap();
        assert_eq!((read.expires_at, read.rights), (expires_at, entry.rights.clone()));
    }
    assert!(decode_api_key(7, &[5, 0]).is_err(), "a version of tomorrow");
}

#[test]
fn an_organisation_reads_back_and_one_that_is_only_a_name_as_it_always_did() {
    let name = "acme".parse().unwrap();
    let mut acme = Organisation::new(OrganisationId(7), name, OrganisationKind::Production);
    let first = b"\x01\x04acme";
    assert_eq!(encode_organisation(&acme), first);
    assert_eq!(decode_organisation(7, first).unwrap(), acme);
    let since = Timestamp::from_unix_millis(1_800_000_000_000);
    for requests in PausedRequests::ALL {
        acme.pause = Some(Pause { since, requests });
        assert_eq!(decode_organisation(7, &encode_organisation(&acme)).unwrap(), acme);
    }
    acme.limits = Limits { per_minute: Some(1), per_month: Some(u64::MAX), ..Limits::NONE };
    acme.kind = OrganisationKind::Test;
    assert_eq!(decode_organisation(7, &encode_organisation(&acme)).unwrap(), acme);
    assert!(decode_organisation(7, &[3, 0]).is_err(), "a version of tomorrow");
}

#[test]
fn a_domain_of_the_first_version_has_never_been_checked() {
    let row = encode(&SenderDomainV1 { state: DomainStateV1::Verified, added_at: 7 }, 16);
    assert_eq!(row, [1, 1, 7], "the bytes that the first version wrote");
    let read = decode_domain(3, "example.com", &row).unwrap();
    let added_at = Timestamp::from_unix_millis(7);
    let expected = SenderDomain {
        organisation: OrganisationId(3),
        name: "example.com".to_owned(),
        state: DomainState::Verified,
        added_at,
        since: added_at,
        last_check: None,
    };
    assert_eq!(read, expected);
    let check = DomainCheck { at: Timestamp::from_unix_millis(9), finding: Finding::Failed };
    let checked = SenderDomain { last_check: Some(check), ..expected };
    let again = decode_domain(3, "example.com", &encode_domain(&checked)).unwrap();
    assert_eq!(again, checked);
}

#[test]
fn an_entry_of_the_feed_reads_back_whatever_the_clocks_said() {
    let noon = Timestamp::from_unix_millis(1_800_000_000_000);
    let position = FeedPosition::first_of(noon);
    let hour = std::time::Duration::from_hours(1);
    for instant in
        [noon, noon.minus(hour * 24 * 90), noon.plus(hour), Timestamp::from_unix_millis(0)]
    {
        let mut id = *MessageId::first_of(instant).as_bytes();
        id[6..].copy_from_slice(&[0x7a, 0xbc, 0x92, 1, 2, 3, 4, 5, 6, 7]);
        let message = MessageId::from_bytes(id);
        let event = |event_type| {
            let recipients = [1, 2, 3, 4, 5, 6, 7, 8];
            ReportedChange::Observed(EventKey { occurred_at: instant, event_type, recipients })
        };
        let changes = [ReportedChange::Sent, ReportedChange::Failed, ReportedChange::Suppressed];
        for change in changes.into_iter().chain(EventType::ALL.map(event)) {
            let row = FeedRow { message, change };
            assert_eq!(decode_feed(position, &encode_feed(position, &row)).unwrap(), row);
        }
    }
}

#[test]
fn a_types_number_in_a_key_on_the_disk_never_changes() {
    let numbers = [
        (EventType::DeliveryDelay, 0),
        (EventType::Delivery, 1),
        (EventType::Reject, 2),
        (EventType::Bounce, 3),
        (EventType::Complaint, 4),
    ];
    assert_eq!(numbers.len(), EventType::ALL.len());
    for (event_type, number) in numbers {
        let occurred_at = Timestamp::from_unix_millis(0x0102_0304_0506);
        let key = EventKey { occurred_at, event_type, recipients: [9; 8] };
        let expected = [&[0, 0, 1, 2, 3, 4, 5, 6, number][..], &[9; 8]].concat();
        assert_eq!(
            key.of_message(MessageId::from_bytes([7; 16])),
            [&[7; 16], &expected[..]].concat()
        );
    }
    // The last of the events at one instant counts: rank and number agree.
    assert!(numbers.is_sorted());
}

#[test]
fn terms_read_back_and_a_message_without_any_as_it_always_did() {
    let mut message = Message {
        id: MessageId::from_bytes([7; 16]),
        organisation: OrganisationId(1),
        created_at: Timestamp::from_unix_millis(1),
        from: "a@b.c".to_owned(),
        recipients: vec!["d@e.f".to_owned()],
        subject: "Hi".to_owned(),
        metadata: None,
        terms: Terms::NONE,
        attempts: 0,
        state: State::Queued { last_failure: None, acceptance: Acceptance::Excluded },
        last_event: None,
        calling: None,
    };
    let first = b"\x01\x01\x01\x05a@b.c\x01\x05d@e.f\x02Hi\x00\x00\x00\x00\x00";
    assert_eq!(encode_message(&message), first);
    let minute = Some(Duration::from_mins(1));
    for (priority, expires_in, bytes) in [
        (MessagePriority::Given(Priority::High), None, &b"\x00\x00\x01\x00"[..]),
        (MessagePriority::Given(Priority::Normal), None, b"\x00\x01\x01\x00"),
        (MessagePriority::Default(Priority::High), None, b"\x00\x00\x00\x00"),
        (MessagePriority::Default(Priority::Normal), minute, b"\x00\x01\x00\x01\xe0\xd4\x03"),
    ] {
        message.terms = Terms { priority, expires_in };
        let row = encode_message(&message);
        assert_eq!((row[0], &row[1..first.len()]), (WITH_TERMS, &first[1..]));
        assert_eq!(row[first.len()..], *bytes);
        assert_eq!(decode_message(message.id, &row).unwrap(), message);
        assert_eq!(organisation_of(&row), Some(OrganisationId(1)));
    }
    message.metadata = Some([("order".to_owned(), "1815".to_owned())].into());
    assert_eq!(decode_message(message.id, &encode_message(&message)).unwrap(), message);
}

#[test]
fn a_keys_defaults_read_back_and_a_key_without_any_as_it_always_did() {
    let mut entry = ApiKeyEntry {
        id: KeyId(7),
        organisation: OrganisationId(1),
        label: "app".to_owned(),
        created_at: Timestamp::from_unix_millis(1),
        expires_at: None,
        hash: ApiKeyHash([9; 32]),
        rights: Arc::new(KeyRights::all()),
    };
    assert_eq!(encode_api_key(&entry)[0], 1);
    for priority in Priority::ALL {
        for expires_in in [None, Some(Duration::from_mins(5))] {
            let defaults = MessageDefaults { priority, expires_in };
            let scopes = [Scope::Send].into();
            entry.rights = Arc::new(KeyRights { scopes, defaults, ..KeyRights::all() });
            let row = encode_api_key(&entry);
            let version = if defaults == MessageDefaults::default() { 3 } else { 4 };
            assert_eq!(row[0], version);
            assert_eq!(decode_api_key(7, &row).unwrap().rights, entry.rights);
        }
    }
}

#[test]
fn every_kind_of_step_reads_back_as_it_was_written() {
    for (kind, number) in StepKind::ALL.into_iter().zip([0, 1, 2, 3, 5, 4]) {
        let step = Step { kind, ..Step::restart(Timestamp::from_unix_millis(1)) };
        let row = encode_step(&step);
        assert_eq!(row[2], number, "{kind:?}");
        assert_eq!(decode_step(&row).unwrap(), step);
    }
}

#[test]
fn corrections_of_the_clock_have_a_beginning_each_in_their_order() {
    let at = Timestamp::from_unix_millis;
    let read = |beginnings: [u64; 2]| {
        let corrections = beginnings.map(|from| Correction { from: at(from), shift_millis: 5 });
        decode_time(&encode_time(&TimeRecord {
            corrections: corrections.into(),
            ..TimeRecord::at(at(9))
        }))
    };
    assert_eq!(read([1, 2]).unwrap().corrections.len(), 2);
    assert!(read([1, 1]).is_err());
    assert!(read([2, 1]).is_err());
}

#[test]
fn an_idempotency_key_keeps_its_origin() {
    for origin in [KeyOrigin::Client, KeyOrigin::Derived] {
        let key = IdempotencyKey::from_stored(origin, "order-7");
        let row = IdempotencyRow { organisation: 1, created_at: 2, key };
        let encoded = row.encode();
        let read = IdempotencyRow::decode(&encoded).unwrap();
        assert_eq!((read.organisation, read.created_at, read.key), (1, 2, key));
    }
}
