//! All input from outside is read or refused, and nothing else happens: the checks that libFuzzer
//! runs (`tests/fuzz`), tried here on their corpora and on seeded mutations of them.
//!
//! The long form: `cargo test --release --features long --test inputs`, and for rows of the file
//! `cargo test --release -p pillarbox-store --features long rows_`.

#![expect(clippy::unwrap_used, reason = "a test fails where something is not as it must be")]

#[path = "fuzz/checks/event.rs"]
mod event;
#[path = "fuzz/checks/mailbox.rs"]
mod mailbox;
#[path = "fuzz/mutate.rs"]
mod mutate;
#[path = "fuzz/checks/request.rs"]
mod request;
#[path = "fuzz/checks/smtp_fields.rs"]
mod smtp_fields;
#[path = "fuzz/checks/smtp_session.rs"]
mod smtp_session;

/// Inputs that break readers of JSON.
const JSON: [&str; 16] = [
    "{", "}", "[", "]", "\"", ":", ",", "null", "1e999", "-0", "\\ud800", "\\udc00", "\\u0000",
    "\\\"", "\u{feff}", "\"to\":",
];

#[test]
fn a_request_of_any_bytes_is_read_as_others_read_it_or_refused_in_short() {
    mutate::run("request", &JSON, request::check);
}

#[test]
fn a_mailbox_of_any_text_is_one_address_to_others_too_or_none() {
    let words = [
        "@",
        "<",
        ">",
        "\"",
        "\\",
        ",",
        ";",
        ":",
        "(",
        ")",
        "[",
        "]",
        "=?utf-8?q?",
        "?=",
        "\r\n",
        "\0",
        "\u{202e}",
        "\u{e9}",
        "xn--",
        "\u{3002}",
        ".",
        " ",
    ];
    mutate::run("mailbox", &words, mailbox::check);
}

#[test]
fn an_event_of_any_text_is_read_or_refused_without_an_address_in_the_reason() {
    mutate::run("event", &JSON, event::check);
}

#[test]
fn a_session_of_any_bytes_has_the_same_lines_however_they_come() {
    let words = ["\r\n", "\r\n.\r\n", "\n.\n", "\r", "\n", ".", "\0", "RCPT TO:<", ">", "\"", "\\"];
    mutate::run("smtp_session", &words, smtp_session::check);
}

#[test]
fn a_messages_sender_is_the_same_to_others_and_what_is_removed_is_gone() {
    let words = [
        "From:",
        "From :",
        "Bcc: ",
        "X-SES-",
        "Return-Path:",
        "Sender: ",
        "Resent-From: ",
        "Resent-Sender: ",
        "Resent-Bcc: ",
        "Subject: ",
        "=?iso-2022-jp?b?",
        "\r\n",
        "\r\n ",
        "\r\n\t",
        "\r\n\r\n",
        "<",
        ">",
        "@",
        ",",
        ";",
        ":",
        "(",
        ")",
        "\"",
        "\\",
        "=?utf-8?q?",
        "?=",
        " ",
        "\u{e9}",
        "a@x.org",
    ];
    mutate::run("smtp_fields", &words, smtp_fields::check);
}
