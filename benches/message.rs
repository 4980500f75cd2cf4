//! The message that everything is measured with: a receipt, 2.5 KB as JSON.

use serde_json::json;

/// Placeholder for a number of its own in a message that is sent many times.
pub(crate) const UNIQUE_NUMBER: &str = "UNIQUE_NUMBER";
/// The length of the messages, as JSON, in bytes.
pub(crate) const LENGTH: usize = 2_500;
/// The domain that the messages come from.
pub(crate) const DOMAIN: &str = "mail.example.com";

/// Choice whether a message has an idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    Unique,
    #[allow(dead_code, reason = "one of the two benches measures messages without a key")]
    None,
}

/// The message as JSON, with [`UNIQUE_NUMBER`] in the place of each one's own number.
pub(crate) fn json(key: Key) -> String {
    let line = "<tr><td class=\"item\">Blue notebook, A5, 160 pages</td><td>2</td>\
                <td>&euro;\u{a0}7.90</td></tr>\n";
    let html = |filler: &str| {
        format!(
            "<!doctype html>\n<html><body style=\"font-family: sans-serif\">\n\
             <h1>Thank you for your order</h1>\n<table>\n{}</table>\n<p>{filler}</p>\n\
             <p><a href=\"https://shop.example.com/orders/4711\">Your order</a></p>\n\
             </body></html>\n",
            line.repeat(8)
        )
    };
    let text = "Thank you for your order.\n\n2 x Blue notebook, A5, 160 pages: EUR 7.90\n\n\
                Your order: https://shop.example.com/orders/4711\n";
    let build = |filler: &str| {
        let mut message = json!({
            "from": format!("Example Shop <orders@{DOMAIN}>"),
            "to": ["Ada Lovelace <ada.lovelace@example.org>"],
            "reply_to": format!("help@{DOMAIN}"),
            "subject": "Your order 4711 is on its way",
            "html": html(filler),
            "text": text,
            "headers": { "X-Order": "4711" },
            "tag": "transactional",
        });
        match key {
            Key::Unique => message["idempotencyKey"] = json!(format!("order-{UNIQUE_NUMBER}")),
            Key::None => message["headers"]["X-Order"] = json!(UNIQUE_NUMBER),
        }
        message.to_string()
    };
    let short = build("").len();
    build(&"It leaves our house today. ".repeat(100)[..LENGTH - short])
}
