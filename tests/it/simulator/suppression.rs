//! The account's suppression list: its calls, and the outcome of mail to an address on it.

use pillarbox_simulator::RecipientFate;
use reqwest::Method;
use serde_json::json;

use super::client::{message_with, start};

const LIST: &str = "/v2/email/suppression/addresses";

#[tokio::test]
async fn an_address_on_the_list_bounces_until_it_is_taken_off() {
    let (simulator, client) = start().await;
    let put = json!({ "EmailAddress": "Bob+1@Example.org", "Reason": "COMPLAINT" });
    let put = client.sign(Method::PUT, LIST, &serde_json::to_vec(&put).unwrap());
    assert_eq!(client.call(put).await.status, 200);
    let at = format!("{LIST}/bob%2B1%40example.org");
    let found = client.get(&at).await;
    assert_eq!(found.body["SuppressedDestination"]["EmailAddress"], "bob+1@example.org");
    assert_eq!(found.body["SuppressedDestination"]["Reason"], "COMPLAINT");

    let request = message_with(
        "/Destination/ToAddresses",
        json!(["B <bob+1@example.org>", "eve@example.org"]),
    );
    assert_eq!(client.send(&request).await.status, 200);
    let fates =
        |n: usize| simulator.messages()[n].recipients.iter().map(|r| r.fate).collect::<Vec<_>>();
    assert_eq!(fates(0), [RecipientFate::Suppressed, RecipientFate::Delivered]);

    let delete = || client.call(client.sign(Method::DELETE, &at, b""));
    assert_eq!(delete().await.status, 200);
    assert_eq!(delete().await.error.as_deref(), Some("NotFoundException"));
    assert_eq!(client.get(&at).await.status, 404);
    client.send(&request).await;
    let newest =
        simulator.messages().iter().position(|m| m.recipients[0].fate == RecipientFate::Delivered);
    assert!(newest.is_some(), "the second message reaches both");
}

#[tokio::test]
async fn only_addresses_with_a_reason_of_sess_own_are_put_on_the_list() {
    let (_simulator, client) = start().await;
    for body in [
        json!({ "EmailAddress": "bob", "Reason": "BOUNCE" }),
        json!({ "EmailAddress": "bob@example.org", "Reason": "MANUAL" }),
        json!({ "EmailAddress": "bob@example.org" }),
    ] {
        let put = client.sign(Method::PUT, LIST, &serde_json::to_vec(&body).unwrap());
        assert_eq!(client.call(put).await.error.as_deref(), Some("BadRequestException"), "{body}");
    }
}
